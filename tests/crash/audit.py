"""Rules that must hold after any crashes: the log held against the ledger, the people and itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from orchestrator.core.chain import GENESIS, next_chain, payload_digest
from orchestrator.core.decide.takeover import IN_DOUBT
from orchestrator.core.entries import DENDRO
from orchestrator.core.evolve import evolve
from orchestrator.core.ids import TreeId
from orchestrator.core.snapshot import decode_snapshot, digest
from orchestrator.core.state import State
from orchestrator.requests import TO_PEOPLE, call_id_of
from orchestrator.views.event import Event
from orchestrator.wiring.deployment import Deployment
from tests.crash.flow_audit import settled
from tests.crash.flows import Asked
from tests.crash.logs import Log, read_log
from tests.crash.people import Person
from tests.crash.tree_audit import Tree, audit_tree, of_tree, read_tree
from tests.crash.workload import Ledger, patch_files

BEGIN_TASKS = frozenset({"user_input", "plan", "review", "run_user_shell_command"})
USER_SHELL = "user_shell-"
RUN_ONCE = frozenset({"exec", "stdin", "mcp"})
APPLIED = "Success. Updated the following files:"


async def audit(deployment: Deployment, people: list[Person], ledger: Ledger) -> list[str]:
    """Every violation, in words; empty when all is well."""
    found: list[str] = []
    executed = Counter(ledger.executions())
    for person in people:
        tree = await read_tree(deployment, TreeId(person.session))
        logs = [await read_log(deployment, session) for session in tree.sessions]
        for log in logs:
            checks: list[Iterator[str]] = [_chain(log), _tasks(log), _answers(log, tree), _file(log, person)]
            checks += [_executions(log, executed, person), _patches(log, ledger.folder), _doubts(log, ledger)]
            if log.session == person.session:
                checks += [_submissions(log, person), _shown(log, person, tree)]
                checks += [settled(log, person, ledger.folder)] if isinstance(person, Asked) else []
            name = f"{log.session} ({person.character.name})"
            found += [f"{name}: {text}" for check in checks for text in check]
            found += [f"{name}: {text}" async for text in _replay(deployment, log)]
        if tree.facts:
            found += [f"tree {person.session}: {text}" for text in audit_tree(tree, logs)]
    return found + list(_left_running(ledger))


def _left_running(ledger: Ledger) -> Iterator[str]:
    """Commands of a run that live on although every worker has left."""
    mark = str(ledger.path).encode()
    for entry in Path("/proc").iterdir():
        # A process may be gone by now.
        with suppress(OSError):
            if entry.name.isdecimal() and mark in (words := (entry / "cmdline").read_bytes()):
                yield f"process {entry.name} is still there: {words.decode(errors='replace')}"


def _chain(log: Log) -> Iterator[str]:
    head, epoch = GENESIS, 0
    for seq, entry in enumerate(log.stored, 1):
        if entry.seq != seq:
            yield f"entry {seq} is missing, {entry.seq} follows"
            return
        head = next_chain(head, seq, entry.epoch, payload_digest(entry.salt, entry.payload))
        if head != entry.chain:
            yield f"entry {seq} breaks the chain"
            return
        if entry.epoch < epoch:
            yield f"entry {seq} was written under epoch {entry.epoch}, after {epoch}"
        epoch = entry.epoch
    if (log.head.seq, log.head.head) != (len(log.stored), head):
        yield f"the head is {log.head.seq}, the log ends at {len(log.stored)}"


def _submissions(log: Log, person: Person) -> Iterator[str]:
    """Every acknowledged submission took effect, once."""
    begun = Counter(fact["id"] for fact in log.facts("task"))
    for id, op in person.acknowledged.items():
        if op in BEGIN_TASKS and begun[id] != 1:
            yield f"{op} {id} was acknowledged and began {begun[id]} tasks"
    for id, times in begun.items():
        if times > 1 or (id not in person.acknowledged and not id.startswith("auto-")):
            yield f"task {id} was begun {times} times, and never asked for"


def _answers(log: Log, tree: Tree) -> Iterator[str]:
    """Every approval was decided once, and everything in the queue was read.

    The root also keeps the answers that it passed on to agents which asked there.
    """
    answered = Counter(fact["call_id"] for fact in log.facts("answer"))
    events = log.events() + (tree.events if TreeId(log.session) == tree.id else [])
    asking = (msg for _, msg in events if msg["type"] in TO_PEOPLE)
    asked = Counter(map(call_id_of, asking))
    for call_id, times in answered.items():
        if times > asked[call_id]:
            yield f"call {call_id} was asked about {asked[call_id]} times and decided {times} times"
    if log.head.cursor != log.head.sq_tip:
        yield f"the queue was read to {log.head.cursor} of {log.head.sq_tip}"


def _tasks(log: Log) -> Iterator[str]:
    begun, ended = len(log.facts("task")), len(log.facts("task_ended"))
    if begun != ended:
        yield f"{begun} tasks began, {ended} ended"
    if log.head.status != "idle" or log.head.holder is not None:
        yield f"the session is {log.head.status}, held by {log.head.holder}"


def _executions(log: Log, executed: Counter[tuple[str, str]], person: Person) -> Iterator[str]:
    """No command ran more often than it was decided to; one that is said to have ended well did run."""
    decided = log.decisions()
    session = log.session
    for (ran_in, call_id), times in executed.items():
        if ran_in == session and times > decided[call_id]:
            yield f"command {call_id} ran {times} times, decided {decided[call_id]} times"
    running = (fact for fact in log.facts("call") if fact["phase"] == "running")
    for call_id in {fact["call_id"] for fact in running if fact["spec"]["kind"] in RUN_ONCE}:
        if decided[call_id] > 1:
            yield f"command {call_id} was decided to run {decided[call_id]} times: it may have had effects"
    for end in (msg for _, msg in log.events() if msg["type"] == "exec_command_end"):
        # What reads only, or is typed by a person, leaves no trace in the ledger.
        counts = not isinstance(person, Asked)
        if counts and end["exit_code"] == 0 and not executed[session, end["call_id"]]:
            yield f"command {end['call_id']} is said to have ended, and never ran"
    for (asked_in, call_id), decisions in person.decided.items():
        if asked_in == session and executed[session, call_id] and "approved" not in decisions:
            yield f"command {call_id} ran although it was denied"


def _patches(log: Log, folder: Path) -> Iterator[str]:
    """A patch that the model was told is applied is there whole; one that was not begun left nothing."""
    for _, call_id, text in log.outputs():
        there = [path.exists() for path in patch_files(folder, log.session, call_id)]
        if APPLIED in text and not all(there):
            yield f"patch {call_id} is said to be applied, its files are {there}"
        if any(there) and not log.decisions()[call_id]:
            yield f"patch {call_id} was never decided to run, its files are {there}"
        if IN_DOUBT in text and all(there):
            yield f"patch {call_id} is said to be in doubt, and is there whole"


def _doubts(log: Log, ledger: Ledger) -> Iterator[str]:
    """Calls lost in the middle are reported: to people by a warning, to the model by the call's output."""
    warned = " ".join(msg["message"] for _, msg in log.events() if msg["type"] == "warning")
    answered = [seq for seq, fact in log.numbered("request_ended") if fact["outcome"] == "completed"]
    for seq, call_id, text in log.outputs():
        if IN_DOUBT not in text:
            continue
        asked_since = answered and answered[-1] > seq
        # An agent that was cancelled in the middle is not asked any more.
        if asked_since and (log.session, call_id) not in ledger.told:
            yield f"call {call_id} is in doubt, and no request told the model so"
        if f"call {call_id} is in doubt" not in warned:
            yield f"call {call_id} is in doubt, and no warning says so"
    silent = set(log.decisions()) - {call_id for _, call_id, _ in log.outputs()}
    # What a person ran is told as the person's own words.
    silent = {call_id for call_id in silent if not call_id.startswith(USER_SHELL)}
    if silent:
        yield f"calls without an output: {sorted(silent)}"


def _shown(log: Log, person: Person, tree: Tree) -> Iterator[str]:
    """The people saw every event of the log and of the tree's, once and in order; nothing else but deltas."""
    # An answer that came too late is refused by the agent that it was sent on to, in the tree's log.
    refused = [event for event in tree.events if not of_tree(event[1])]
    told = [of_tree(e.msg) or (e.id, e.msg) in refused for e in person.events]
    yield from _differ("log", [e for e, of in zip(person.events, told, strict=True) if not of], log.events())
    yield from _differ("tree", [e for e, of in zip(person.events, told, strict=True) if of], tree.events)


def _differ(name: str, shown: list[Event], kept: list[tuple[str, Any]]) -> Iterator[str]:
    logged = [(id, *_gist(msg)) for id, msg in kept]
    seen = [(e.id, *_gist(e.msg)) for e in shown]
    if seen != logged:
        place = next(
            (i for i, (a, b) in enumerate(zip(seen, logged, strict=False)) if a != b),
            min(len(seen), len(logged)),
        )
        there = slice(place, place + 2)
        yield f"event {place} of {len(logged)} of the {name}: shown {seen[there]}, logged {logged[there]}"


def _gist(msg: Any) -> tuple[Any, ...]:
    names = ("type", "call_id", "event", "agent_id", "status", "pending_messages", "pending_interrupts")
    return tuple(msg.get(name) for name in names)


def _file(log: Log, person: Person) -> Iterator[str]:
    """The exported file holds whole lines, in order, with the places that the stream gives them.

    An agent's may end before its log does, or within a line: the worker that let it rest was killed before
    it had written the rest, and whoever is the next to write goes on from there.
    """
    facts = [fact["session"] for fact in log.facts("configured")]
    path = Path(facts[0]["rollout_path"])
    lines = path.read_bytes().splitlines() if path.exists() else []
    chains = {entry.seq: entry.chain.hex() for entry in log.stored}
    last, whole = 0, log.session == person.session
    for number, line in enumerate(lines, 1):
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            if whole or number < len(lines):
                yield f"line {number} of the file is torn"
            return
        if "seq" not in value:
            # Lines that a fork inherited have their place in its parent's log.
            continue
        if value["seq"] <= last or chains.get(value["seq"]) != value["chain"]:
            yield f"line {number} of the file is entry {value['seq']}, which does not follow {last}"
            return
        last = value["seq"]
    shared = max(e.seq for e, entry in zip(log.stored, log.entries, strict=True) if entry.type != DENDRO)
    if last > shared or (whole and last < shared):
        yield f"the file ends at {last}, the log at {shared}"


async def _replay(deployment: Deployment, log: Log) -> AsyncIterator[str]:
    """The live fold, a fold from the beginning, and one from the snapshot are the same state."""
    state, states = State(), {}
    for seq, entry in enumerate(log.entries, 1):
        state = evolve(state, entry, seq)
        states[seq] = state
    meta = orjson.loads(log.head.meta)
    # Without one the session does not rest: its worker was killed.
    if digest(states[meta["seq"]]) != meta.get("state_sha256", digest(states[meta["seq"]])):
        yield f"at {meta['seq']} the live state was not what a replay gives"
    stored = await deployment.broker.logs.snapshot_of(log.session)
    snapshot = decode_snapshot(stored) if stored is not None else None
    if snapshot is not None and digest(snapshot[0]) != digest(states[snapshot[1]]):
        yield f"the snapshot at {snapshot[1]} is not what a replay gives"
