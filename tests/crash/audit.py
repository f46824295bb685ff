"""What must hold after any number of crashes: the log held against the ledger, the people and itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from orchestrator.broker.records import SessionHead, StoredEntry
from orchestrator.core.chain import GENESIS, next_chain, payload_digest
from orchestrator.core.entries import DENDRO, EVENT_MSG, RESPONSE_ITEM, Entry
from orchestrator.core.evolve import evolve
from orchestrator.core.rules_stop import IN_DOUBT
from orchestrator.core.snapshot import decode_snapshot, digest
from orchestrator.core.state import State
from orchestrator.core.stored import decode_entry
from orchestrator.wiring import Deployment
from tests.crash.people import Person
from tests.crash.workload import Ledger, patch_files

APPLIED = "Success. Updated the following files:"


@dataclass(frozen=True, slots=True)
class Log:
    """One session's whole rollout, as stored and as read."""

    person: Person
    head: SessionHead
    stored: tuple[StoredEntry, ...]
    entries: tuple[Entry, ...]

    def facts(self, kind: str) -> list[Any]:
        return [e.payload for e in self.entries if e.type == DENDRO and e.payload["kind"] == kind]

    def events(self) -> list[tuple[str, Any]]:
        return [(e.id, e.payload) for e in self.entries if e.type == EVENT_MSG]

    def outputs(self) -> list[tuple[str, str]]:
        """(call id, text) of every tool output."""
        return [
            (e.payload["call_id"], orjson.dumps(e.payload["output"]).decode())
            for e in self.entries
            if e.type == RESPONSE_ITEM and str(e.payload.get("type")).endswith("_output")
        ]

    def decisions(self) -> Counter[str]:
        """How often each call was decided to run."""
        return Counter(fact["call_id"] for fact in self.facts("call") if fact["phase"] == "running")


async def read_log(deployment: Deployment, person: Person) -> Log:
    head = await deployment.broker.head(person.session)
    assert head is not None
    stored = await deployment.broker.read_rollout(person.session, 0, 1_000_000)
    return Log(person, head, stored, tuple(decode_entry(entry.payload) for entry in stored))


async def audit(deployment: Deployment, people: list[Person], ledger: Ledger) -> list[str]:
    """Every violation, in words; empty when all is well."""
    found: list[str] = []
    executed = Counter(ledger.executions())
    for person in people:
        log = await read_log(deployment, person)
        checks = (
            _chain(log),
            _submissions(log),
            _tasks(log),
            _executions(log, executed),
            _patches(log, ledger.folder),
            _doubts(log, ledger),
            _shown(log),
            _file(log),
        )
        found += [f"{person.session} ({person.character.name}): {text}" for check in checks for text in check]
        found += [f"{person.session}: {text}" async for text in _replay(deployment, log)]
    return found


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


def _submissions(log: Log) -> Iterator[str]:
    """Every acknowledged submission took effect, once."""
    begun = Counter(fact["id"] for fact in log.facts("task"))
    answered = Counter(fact["call_id"] for fact in log.facts("answer"))
    for id, op in log.person.acknowledged.items():
        if op == "user_input" and begun[id] != 1:
            yield f"input {id} was acknowledged and began {begun[id]} tasks"
    for id, times in begun.items():
        if times and id not in log.person.acknowledged:
            yield f"task {id} was never asked for"
    asked = Counter(msg["call_id"] for _, msg in log.events() if msg["type"].endswith("_approval_request"))
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


def _executions(log: Log, executed: Counter[tuple[str, str]]) -> Iterator[str]:
    """No command ran more often than it was decided to; one that is said to have ended well did run."""
    decided = log.decisions()
    session = log.person.session
    for (ran_in, call_id), times in executed.items():
        if ran_in == session and times > decided[call_id]:
            yield f"command {call_id} ran {times} times, decided {decided[call_id]} times"
    running = (fact for fact in log.facts("call") if fact["phase"] == "running")
    for call_id in {fact["call_id"] for fact in running if fact["spec"]["kind"] == "exec"}:
        if decided[call_id] > 1:
            yield f"command {call_id} was decided to run {decided[call_id]} times: it may have had effects"
    for end in (msg for _, msg in log.events() if msg["type"] == "exec_command_end"):
        if end["exit_code"] == 0 and not executed[session, end["call_id"]]:
            yield f"command {end['call_id']} is said to have ended, and never ran"
    for call_id, decisions in log.person.decided.items():
        if executed[session, call_id] and "approved" not in decisions:
            yield f"command {call_id} ran although it was denied"


def _patches(log: Log, folder: Path) -> Iterator[str]:
    """A patch that the model was told is applied is there whole; one that was not begun left nothing."""
    for call_id, text in log.outputs():
        there = [path.exists() for path in patch_files(folder, log.person.session, call_id)]
        if APPLIED in text and not all(there):
            yield f"patch {call_id} is said to be applied, its files are {there}"
        if any(there) and not log.decisions()[call_id]:
            yield f"patch {call_id} was never decided to run, its files are {there}"


def _doubts(log: Log, ledger: Ledger) -> Iterator[str]:
    """What was lost in the middle is told: to the people by a warning, to the model by the call's output."""
    warned = " ".join(msg["message"] for _, msg in log.events() if msg["type"] == "warning")
    for call_id, text in log.outputs():
        if IN_DOUBT not in text:
            continue
        if (log.person.session, call_id) not in ledger.told:
            yield f"call {call_id} is in doubt, and no request told the model so"
        if f"call {call_id} is in doubt" not in warned:
            yield f"call {call_id} is in doubt, and no warning says so"
    silent = set(log.decisions()) - {call_id for call_id, _ in log.outputs()}
    if silent:
        yield f"calls without an output: {sorted(silent)}"


def _shown(log: Log) -> Iterator[str]:
    """The people saw every event of the log, once and in its order; nothing else but deltas."""
    logged = [(id, msg["type"], msg.get("call_id")) for id, msg in log.events()]
    seen = [(e.id, e.type, e.msg.get("call_id")) for e in log.person.events]
    if seen != logged:
        place = next(
            (i for i, (a, b) in enumerate(zip(seen, logged, strict=False)) if a != b),
            min(len(seen), len(logged)),
        )
        there = slice(place, place + 2)
        yield f"event {place} of {len(logged)}: shown {seen[there]}, logged {logged[there]}"


def _file(log: Log) -> Iterator[str]:
    """The exported file holds whole lines, in order, with the places that the stream gives them."""
    facts = [fact["session"] for fact in log.facts("configured")]
    path = Path(facts[0]["rollout_path"])
    chains = {entry.seq: entry.chain.hex() for entry in log.stored}
    last = 0
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            yield f"line {number} of the file is torn"
            return
        if value["seq"] <= last or chains.get(value["seq"]) != value["chain"]:
            yield f"line {number} of the file is entry {value['seq']}, which does not follow {last}"
            return
        last = value["seq"]
    shared = max(e.seq for e, entry in zip(log.stored, log.entries, strict=True) if entry.type != DENDRO)
    if last != shared:
        yield f"the file ends at {last}, the log at {shared}"


async def _replay(deployment: Deployment, log: Log) -> AsyncIterator[str]:
    """The live fold, a fold from the beginning, and one from the snapshot are the same state."""
    state, states = State(), {}
    for seq, entry in enumerate(log.entries, 1):
        state = evolve(state, entry, seq)
        states[seq] = state
    meta = orjson.loads(log.head.meta)
    if digest(states[meta["seq"]]) != meta["state_sha256"]:
        yield f"at {meta['seq']} the live state was not what a replay gives"
    snapshot = decode_snapshot(await deployment.broker.snapshot_of(log.person.session) or b"")
    if snapshot is not None and digest(snapshot[0]) != digest(states[snapshot[1]]):
        yield f"the snapshot at {snapshot[1]} is not what a replay gives"
