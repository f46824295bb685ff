"""Looks at Redis after every write, beside it and outside of time, and breaks the simulation off.

It folds each session's log as it grows. What it knows is what the rules in `invariants.py`
need; it decides nothing for the product.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import orjson

from orchestrator.broker.records import AgentStates
from orchestrator.broker.redis_keys import Keys
from orchestrator.core.blobs import REFERENCE, is_reference, resolve
from orchestrator.core.calls import Phase
from orchestrator.core.chain import GENESIS, next_chain
from orchestrator.core.entries import COMPACTED, DENDRO, EVENT_MSG, RESPONSE_ITEM, Entry, decode_entry
from orchestrator.core.evolve import evolve
from orchestrator.core.history import CALL_KINDS, OUTPUT_KINDS
from orchestrator.core.registry import RegistryView
from orchestrator.model.prompt import Prompt
from orchestrator.model.provider_errors import ModelError
from sim.accounts import Accounts
from sim.admissions import Admissions
from sim.agent_rules import AgentRules
from sim.answers import Answers
from sim.archive_moves import MOVES, ArchiveMoves
from sim.branches import Branches
from sim.cancels import Cancels
from sim.commits import CLAIM, Commits, arguments, reply_fields
from sim.conversation import Conversations
from sim.deadlines import Deadlines
from sim.doors import Doors
from sim.double import Double
from sim.folder_rules import FolderRules
from sim.grammar_terms import Wrong
from sim.inherited import Place, stored_text, strange_child, text_of, unlike, unlike_then
from sim.invariants import Broken, Violation
from sim.jobs import SCRIPTS, Jobs
from sim.ledger import Ledger, Run
from sim.live_state import LiveState
from sim.loop import SimLoop
from sim.network import session_of, sessions_of
from sim.objects import SimObjects
from sim.odd_servers import OddServers
from sim.process_rules import ProcessRules
from sim.queued import Given, waiting
from sim.reach import Reach
from sim.redactions import Redactions, as_stored
from sim.renewals import Renewals
from sim.replies import Replies
from sim.requests import Requests
from sim.rest import Rest
from sim.rights import Rights
from sim.script_rules import ScriptRules
from sim.secrets import Secrets
from sim.seen import Seen
from sim.shown import Shown
from sim.tree_logs import TreeLogs

QUARANTINED = {"id": "", "msg": {"type": "error", "message": "set aside", "codex_error_info": None}}
"""The event that followers of a quarantined session get, which no log has."""
GOES_ON = "\nProcess running with session ID "
"""In the output of a call whose command goes on."""
SALT_BYTES = 16
TURN_ENDS = frozenset({"task_complete", "turn_aborted"})
_REFERS = f'"{REFERENCE}"'.encode()


class Watch(Rest, Branches, TreeLogs):
    """The rules that hold after every write."""

    def __init__(
        self,
        loop: SimLoop,
        double: Double,
        keys: Keys,
        ledger: Ledger,
        objects: SimObjects,
        secret: bytes,
    ) -> None:
        super().__init__()
        self.secret = secret
        self._loop = loop
        self._double = double
        self.grew: Callable[[str, Seen, int], None] = lambda session, seen, before: None
        """Told of new entries, with the number of the last one before them."""
        self.keys = keys
        self._ledger = ledger
        self.sessions: dict[str, Seen] = {}
        self.taken: defaultdict[str, list[float]] = defaultdict(list)
        """When each submission was put into a queue, by its id."""
        self._errors: defaultdict[str, dict[int, list[ModelError]]] = defaultdict(dict)
        """By session: the errors that ended a request of this number, of any branch."""
        self._heard_by: defaultdict[str, dict[int, str]] = defaultdict(dict)
        """The claim whose holder heard the last of them."""
        self.compacts_at: int | None = None
        """The tokens of a response from which on every worker compacts by itself."""
        self._cut_back: set[str] = set()
        """Sessions of which nothing was written since Redis went back."""
        self.members: defaultdict[str, dict[str, Seen]] = defaultdict(dict)
        """The sessions of each tree."""
        self.reach = Reach()
        self.rights = Rights(self, ledger)
        self.folders: FolderRules | None = None
        self.jobs = Jobs(self, ledger)
        self.answers = Answers(self)
        self.replies = Replies(self)
        self.agent_rules = AgentRules(self)
        ledger.behind = self._begins_behind
        ledger.misread = partial(self.broken, "readings")
        ledger.misheld = partial(self.broken, "buried")
        self._readings = ledger.readings
        self.script_rules = ScriptRules(self, ledger)
        self.processes = ProcessRules(self, ledger)
        self.cancels = Cancels(self, self.rights, ledger)
        self.requests = Requests(self)
        self.secrets = Secrets(self, double, keys)
        self.doors: Doors | None = None
        self.viewed: Callable[[str], None] | None = None
        """Told of each commit, where views are looked at."""
        self.odd_servers = OddServers(self, ledger)
        self.shown = Shown(double, keys, self.broken, self.reach)
        self.deadlines = Deadlines(double, keys, self.broken, self.reach)
        self.accounts = Accounts(double, keys, self.broken, self.reach)
        self.admissions = Admissions(double.ahead_s, self.broken)
        self.steps = Commits(loop.time, double, self.broken, self.reach)
        self.conversations = Conversations(self._text)
        self.archive_moves = ArchiveMoves(self, double, keys, objects)
        self.live_state = LiveState(self, double, keys)
        self.redactions = Redactions(self, double, objects)
        self.renewals = Renewals(self, loop, double, keys)
        self.violation: Violation | None = None
        self.commits = 0
        self.poisonous: set[str] = set()
        """Sessions that kill every worker that touches them: these are quarantined, and no others."""
        self.readmitted_s: dict[str, float] = {}
        """When an operator gave back those that were mended: Redis may go back to before that."""
        self.reads_anew: bool = False
        """Whether entries are read that were written before what else Redis has."""
        self.written_s = 0.0
        """When something was committed last."""
        self.peace_s = 0.0
        """When the last fault had ended."""
        self.told_home: dict[str, float] = {}
        """When a worker was told last, after all faults, that a person has sent it home."""

    @property
    def now_s(self) -> float:
        return self._loop.time()

    @property
    def redis_s(self) -> float:
        """The time that Redis's clock shows, counted from the beginning."""
        return self._double.clock_s

    def broken(self, rule: str, seen: str) -> None:
        """The first broken rule ends the simulation, wherever the product would catch the error."""
        violation = Violation(rule, self._loop.time(), seen)
        self.violation = self.violation or violation
        self._loop.stop()
        raise Broken(violation)

    def unmended(self, session: str) -> bool:
        """Whether Redis has forgotten that the session was given back: its claims are counted from before."""
        at_s = self.readmitted_s.get(session)
        return at_s is not None and not self.kept(at_s)

    # ── after every write ─────────────────────────────────────────────────────────────────────

    def wrote(self, name: str, args: Sequence[Any], reply: Any) -> None:
        self.rights.look()
        self.reach.replied(name, reply)
        self.secrets.wrote(name, args)
        if not isinstance(reply, list) or not reply or type(reply[0]) is not bytes:
            return
        code, session = reply[0], session_of(name, args)
        if self.folders is not None:
            self.folders.script(name, args, reply, session)
        if name in SCRIPTS:
            self.jobs.wrote(name, args, reply)
        if name == "add_to_history" and code == b"OK":
            self.redactions.prompted(str(args[3]), args)
        self._judge(name, args, reply, session)
        if name == "seal_tree" and code == b"OK":
            rules = self.archive_moves.rules
            self._tree_is_sealed(str(args[3]).rpartition(":")[2], rules.seal_idle_s if rules else None)
        if code == b"OK" and session:
            self._changed(name, args, reply, session)

    def _judge(self, name: str, args: Sequence[Any], reply: Any, session: str) -> None:
        """Holds the answer's code against the rules, whatever was written."""
        code = reply[0]
        if name == "admit" and code == b"OK":
            self.admissions.admitted(args)
        if name == "admit" and code == b"WAIT":
            self.admissions.asked(args, reply_fields("admit", reply)["wait"])
        if name == "settle" and code == b"OK":
            self.admissions.settled(args)
        if name == "heartbeat" and code == b"OK" and self.peace_s and reply_fields(name, reply)["drains"]:
            worker = args[3 + int(args[2])]
            self.told_home[worker.decode() if isinstance(worker, bytes) else str(worker)] = self._loop.time()
        if code == b"CORRUPT":
            self.broken("no_crash", f"{name} found {reply[1:]}")
        if code == b"QUARANTINED" and (session in self.poisonous or self.unmended(session)):
            self.reach.saw("quarantined")
        elif code == b"QUARANTINED":
            self.broken("no_crash", f"{name} quarantined {session}")
        if name == "claim" and code == b"NONE":
            self.rights.turned_away(session)
        if name == "commit" and code in (b"OK", b"REFUSED", b"UNSTORED"):
            self.steps.judged(session, args, code)

    def _changed(self, name: str, args: Sequence[Any], reply: Any, session: str) -> None:
        """Reads what a script has written about a session and those beside it."""
        if name == "commit":
            self.commits += 1
            self.accounts.committed(args)
            self.written_s, answer = self._loop.time(), reply_fields("commit", reply)
            self.accounts.answered(self.sessions[session].tree, str(arguments(args)[CLAIM]), answer)
            if not answer["released"] and "park" in _first_words(args):
                self.reach.saw("one_place")
        if name == "submit":
            self.taken[str(args[3 + int(args[2]) + 4])].append(self._loop.time())
        if name == "claim":
            self.rights.claimed(session, args)
        if name == "bury":
            self.rights.buried(session, args)
        if name in ("claim", "renew", "release", "bury"):
            self._heard(name, args)
        if name == "revoke":
            self.rights.revoked(args, reply)
        known = self.sessions.get(session)
        seq = known.seq if known is not None else 0
        touched = sessions_of(args)
        eqs = {other: self.sessions[other].eq for other in touched if other in self.sessions}
        for other in touched:
            self.look(other)
        self.replies.settled()
        self._letters()
        self.agent_rules.settled(touched)
        if name == "commit" and self.sessions[session].seq != seq:
            self.archive_moves.grew(session)
        if name in MOVES:
            # `archive` only reads the root of its session's tree.
            for other in touched if name == "delete" else (session,):
                self.archive_moves.moved(name, other)
        if name == "commit":
            self.shown.asked(session, self.sessions[session])
            if self.folders is not None:
                self.folders.committed(session)
        if name == "snapshot":
            self.live_state.snapshot(session)
        if name == "raise_limits":
            self.accounts.raised(session, args)
        if name in ("commit", "create", "raise_limits"):
            self._tree(session, eqs)
            self.replies.logged()
            self.agent_rules.logged(session)
        if name in ("commit", "create", "raise_limits", "fire"):
            tree = self.sessions[session].tree
            self.accounts.look(tree, self.members[tree])
            self._counted(tree)
        if name == "commit" and self.viewed is not None:
            self.viewed(session)

    def _counted(self, tree: str) -> None:
        """The rule `counted`, of the tree of a session that a script has changed."""
        states = self.fields(tree).get(b"states")
        if states is None:
            return
        found = [self.fields(session) for session in self.members[tree]]
        there = sorted((int(one[b"agent_id"]), one[b"status"].decode()) for one in found)
        if len(there) > 1:
            self.reach.saw("counted")
        said = AgentStates.of(states.decode())
        if said.counts != Counter(status for _, status in there):
            self.broken("counted", f"the root of {tree} says {states.decode()!r}, and its agents {there}")
        if sorted((agent, status) for agent, _, status in said.first) != there[:64]:
            self.broken(
                "counted", f"the root of {tree} shows {states.decode()!r}, and its agents are {there}"
            )

    def _heard(self, name: str, args: Sequence[Any]) -> None:
        words = args[3 + int(args[2]) :]
        match name:
            case "claim":
                self.cancels.heard(str(words[3]))
                least = int(
                    self._double.hash(self.keys.session(session_of(name, args))).get(b"min_core") or 0
                )
                if int(words[4]) < least:
                    self.broken("versions", f"a worker of core {words[4]} was given what needs core {least}")
            case "renew":
                self.cancels.heard(str(words[2]))
                self.renewals.granted(args)
            case _:
                self.cancels.stopped(str(words[3]))

    def marks(self, tree: str) -> Mapping[bytes, bytes]:
        """The fields of a tree's registry, marks among them."""
        return self._double.hash(self.keys.agents(tree))

    def fields(self, session: str) -> Mapping[bytes, bytes]:
        """A session's hash."""
        return self._double.hash(self.keys.session(session))

    def claim_of(self, session: str) -> str:
        """The claim that stands now; empty if nobody may write."""
        return self._double.hash(self.keys.session(session)).get(b"claim", b"").decode()

    def tries_of(self, session: str) -> int:
        """How often it was claimed without progress."""
        return int(self._double.hash(self.keys.session(session)).get(b"tries", b"0"))

    def _is_pruned(self, tree: str, number: int) -> bool:
        view, _ = self.trees.get(tree, (RegistryView(), 0))
        return 0 < number <= view.spawned and number not in view.agents

    def look(self, session: str) -> None:
        """Reads what is new of one session, and checks where it stands."""
        data = self._double.hash(self.keys.session(session))
        if not data:
            return
        if session not in self.sessions:
            made = self.sessions[session] = Seen(data[b"pool"].decode(), data[b"tree"].decode())
            made.grammar.readings = self._readings
            made.grammar.errors = self._errors[session]
            made.grammar.heard_by = self._heard_by[session]
            made.grammar.is_pruned = partial(self._is_pruned, made.tree)
            made.grammar.compacts_at = self.compacts_at
            self.members[made.tree][session] = made
        seen = self.sessions[session]
        seen.grammar.claim = data.get(b"claim", b"").decode() or seen.claim
        newborn = not seen.seq
        self._read_log(session, seen, data)
        if newborn and (wrong := strange_child(seen, self.members[seen.tree])):
            self.broken("kin", f"{session}: {wrong}")
        seen.eq = int(data.get(b"eq", b"0"))
        before = seen.cursor
        self._place(session, seen, data)
        consumed = [one for one in seen.queue if before < one.n <= seen.cursor]
        self.processes.stepped(session, seen, consumed)
        self.replies.stepped(session, seen, consumed)
        self.agent_rules.stepped(session, seen, consumed)
        self._read_queue(session, seen, data)
        self.deadlines.look(session, seen)

    def _read_log(self, session: str, seen: Seen, data: dict[bytes, bytes]) -> None:
        epoch = int(data.get(b"epoch", b"0"))
        if epoch < seen.epoch:
            self.broken("epochs", f"session {session} went from epoch {seen.epoch} back to {epoch}")
        if int(data[b"seq"]) != (before := seen.seq):
            for entry_id, fields in self.archive_moves.log_after(session, seen.seq):
                self._entry(session, seen, entry_id, fields, epoch)
            self.redactions.read(session, seen)
            if before and session in self._cut_back:
                self._cut_back.discard(session)
                self.reach.saw("chain")
            self.grew(session, seen, before)
            self._agrees(session, seen)
        seen.epoch = epoch
        if int(data[b"seq"]) != seen.seq:
            self.broken("gapless", f"{session}: the log ends at {seen.seq}, the hash says {data[b'seq']!r}")
        if int(data.get(b"ended_seq", b"0")) != seen.ended and not seen.state.facts.imported_from:
            self.broken(
                "ended", f"{session}: its last turn ended at {seen.ended}, not {data.get(b'ended_seq')!r}"
            )
        if data.get(b"head", GENESIS) != seen.head:
            self.broken("chain", f"the hash of session {session} has another head than its log at {seen.seq}")

    def _entry(
        self, session: str, seen: Seen, entry_id: bytes, fields: dict[bytes, bytes], epoch: int
    ) -> None:
        stored = as_stored(entry_id, fields)
        if stored.seq != seen.seq + 1:
            self.broken("gapless", f"{session}: entry {stored.seq} follows entry {seen.seq}")
        head = next_chain(seen.head, stored.seq, stored.epoch, stored.covered, self.secret)
        if head != stored.chain:
            self.broken(
                "chain", f"entry {stored.seq} of session {session} does not follow from the one before"
            )
        if stored.seq > 1 and seen.epoch and stored.epoch != epoch and stored.epoch != 0:
            self.broken(
                "epochs", f"{session}: entry {stored.seq} is of epoch {stored.epoch}, the claim of {epoch}"
            )
        if len(stored.salt) != SALT_BYTES and not stored.digest:
            self.broken(
                "chain", f"entry {stored.seq} of session {session} has a salt of {len(stored.salt)} bytes"
            )
        self.steps.dated(session, stored.seq, stored.payload)
        entry = whole = instead = decode_entry(stored.payload)
        if stored.digest:
            seen.instead[stored.seq] = instead
            # Read anew behind a moment to which Redis went back.
            entry = whole = self.redactions.original(stored) or instead
            seen.grammar.hides(instead.payload, entry.payload, stored.covered.hex())
        if _REFERS in stored.payload or stored.digest:
            whole = Entry(entry.type, resolve(entry.payload, lambda _: "large"), entry.id)
        try:
            seen.audit.read(whole)
        except AssertionError as error:
            self.broken("log", f"session {session}, entry {stored.seq}: {error}")
        try:
            if stored.digest:
                seen.grammar.read(instead, stored.epoch)
            else:
                self.conversations.read(session, seen.grammar, entry, stored.epoch)
        except Wrong as error:
            self.broken("grammar", f"session {session}, entry {stored.seq}: {error}")
        self.processes.entry(session, seen, entry, stored.epoch)
        self.script_rules.entry(session, entry)
        self.deadlines.entry(session, seen.state, entry, stored.payload)
        if entry.type == DENDRO:
            self.cancels.entry(session, seen, entry, stored.epoch)
        seen.state = evolve(seen.state, instead, stored.seq)
        seen.seq, seen.head = stored.seq, head
        seen.at[stored.seq] = Place(head, seen.state.history, seen.state.kept_user_texts)
        seen.entries.append(entry)
        seen.stored.append((entry_id, fields))
        if stored.epoch and entry.type == EVENT_MSG and entry.payload["type"] in TURN_ENDS:
            if seen.ended:
                self.reach.saw("ended")
            seen.ended = stored.seq
        self._facts(session, seen, entry)
        self.agent_rules.entry(session, seen, entry)

    def _agrees(self, session: str, seen: Seen) -> None:
        try:
            seen.grammar.agrees(seen.state)
        except Wrong as error:
            self.broken("grammar", f"session {session} at {seen.seq}: {error}")

    def _letters(self) -> None:
        """Messages that arrived are what their senders wrote: when all that was read is read to its end."""
        try:
            self.conversations.letters_are_true(
                lambda session: self.sessions[session].grammar if session in self.sessions else None
            )
        except Wrong as error:
            self.broken("kin", str(error))

    def broke(self, session: str, n: int, error: ModelError, claim: str) -> None:
        """A provider ended a request by an error, of which the holder of a claim heard."""
        self._heard_by[session][n] = claim
        self.reach.saw("broken_off")
        self._errors[session].setdefault(n, []).append(error)

    def asked(self, prompt: Prompt) -> None:
        """The model is asked something."""
        self.conversations.shown(prompt)
        self.redactions.asked(prompt)
        if self.late_s > self._loop.time() or (self.was_parted and self.requests.untrusted):
            # Maybe by what a primary was told that was left: no log here has begun it.
            return
        self.admissions.sends(prompt)
        try:
            self.conversations.asked(self.secrets.logged(prompt))
        except Wrong as error:
            self.broken("conversation", f"session {prompt.session_id}: {error}")

    def text(self, tree: str, digest: str) -> str:
        """A large text that stands beside the logs of a tree."""
        return stored_text(self._double, self.keys, tree, digest)

    def _text(self, session: str, content: Any) -> str | None:
        tree = self.sessions[session].tree
        if is_reference(content) and (tree, content[REFERENCE]) in self.redactions.texts:
            # It is gone, or Redis has lost the redaction, and the archive has not.
            key = self.keys.blob(tree, content[REFERENCE])
            stored = self._double.look("GET", key) is not None
            return text_of(self._double, self.keys, tree, content) if stored else None
        return text_of(self._double, self.keys, tree, content)

    def _facts(self, session: str, seen: Seen, entry: Entry) -> None:
        if entry.type == DENDRO:
            fact = entry.payload
            self.reach.met("fact", fact["kind"])
            self.answers.entry(session, seen, fact)
            if fact["kind"] == "redacted":
                self.redactions.told(session, seen, fact)
            if fact["kind"] == "request_begun":
                self.odd_servers.begins(session)
            if self.folders is not None:
                self.folders.fact(session, seen, fact)
            if fact["kind"] == "call" and fact["phase"] == Phase.RUNNING:
                seen.running[fact["call_id"]] += 1
            elif fact["kind"] == "forked":
                self._inherited(session, fact)
            elif fact["kind"] == "rewound" and "content" in fact:
                self._put_back(session, seen, fact)
            elif fact["kind"] == "request_ended":
                self.accounts.request_ended(session, seen.tree, seen.state.in_force.model, fact)
            elif fact["kind"] == "task_ended":
                self._task_ended(session, seen)
            elif fact["kind"] == "watchdog_ended" and (seen.state.closing or seen.state.tree.canceling):
                self.reach.saw("watchdogs")
        elif entry.type == RESPONSE_ITEM and entry.payload.get("type") in OUTPUT_KINDS:
            self._output(session, entry.payload["call_id"], str(entry.payload["output"]))
            if self.folders is not None:
                self.folders.output(session, seen, entry.payload["call_id"], str(entry.payload["output"]))
        elif entry.type == RESPONSE_ITEM and entry.payload.get("type") in CALL_KINDS:
            self.odd_servers.called(session, entry.payload)
        elif entry.type == EVENT_MSG and entry.payload["type"] == "mcp_tool_call_end":
            self.odd_servers.ended(session, entry.payload)
        elif entry.type == COMPACTED:
            self.reach.saw("said")

    def _task_ended(self, session: str, seen: Seen) -> None:
        kept = {process.number for process in seen.state.processes.living}
        running = self.rights.running(session, seen.claim)
        left = [run for run in running if run.lasting not in kept]
        if left and not self.reads_anew:
            self.broken("stopped", f"{session}: the task ended while {[run.call_id for run in left]} run")
        if any(run.state == "killed" for run in self._ledger.since_task(session)):
            self.reach.saw("stopped")

    def _inherited(self, session: str, fact: Mapping[str, Any]) -> None:
        """A fork names an entry of its parent, and begins with what was said there."""
        if self.archive_moves.was_deleted(fact["parent"]["session"]):
            return
        parent = self.sessions[fact["parent"]["session"]]
        content = self._text(session, fact["content"])
        if content is None or parent.instead or self.sessions[session].instead:
            # They may have lost the same words at other times.
            return
        if wrong := unlike(parent.at.get(fact["parent"]["seq"]), fact, content):
            self.broken("forks", f"{session}: {wrong}")
        if fact.get("instructions"):
            self.reach.saw("heeded")
        made = parent.grammar.children.get(self.sessions[session].state.facts.agent_id, {})
        told, begun = made.get("initial_messages"), len(orjson.loads(content))
        if made.get("session") == session and told != begun:
            self.broken("forks", f"{session} begins with {begun} items, and its parent tells of {told}")

    def _put_back(self, session: str, seen: Seen, fact: Mapping[str, Any]) -> None:
        """A conversation of before a compaction is the one that a turn ended with."""
        self.reach.saw("gone_back")
        content = self._text(session, fact["content"])
        if content is None:
            return
        if wrong := unlike_then(seen.at, seen.entries, fact, content):
            self.broken("gone_back", f"{session}: {wrong}")

    def _output(self, session: str, call_id: str, output: str) -> None:
        runs = self._ledger.by_call.get((session, call_id), [])
        if output.startswith("in doubt"):
            self.reach.saw("told_truly")
        elif output.startswith("aborted"):
            self.reach.saw("outputs")
        # A large output without a run is what a tool said of other agents.
        claims_end = output.startswith(("finished", "Success")) or (runs and output.startswith("{'$blob"))
        if claims_end and not any(run.state == "finished" for run in runs):
            self.broken("told_truly", f"{session}: {call_id} has the output {output[:40]!r} and never ended")
        gave = {run.output for run in runs if run.output}
        if output.startswith("finished") and gave and output not in gave:
            self.broken("told_truly", f"{session}: {call_id} gave {gave}, and its output is {output[:80]!r}")
        unfinished = [run for run in runs if not (run.lasting and GOES_ON in output)]
        if any(map(self._runs, unfinished)) and not self.reads_anew:
            self.broken("told_truly", f"{session}: {call_id} has the output {output[:40]!r} while it runs")

    def _begins_behind(self, run: Run) -> None:
        """A supervisor starts something behind the deadline that it was told for the claim."""
        self.broken(
            "right_to_start", f"{run.session}: {run.call_id} starts at {run.machine} behind its deadline"
        )

    def _runs(self, run: Run) -> bool:
        return run.state == "running" and self.rights.stands(run)

    def _place(self, session: str, seen: Seen, data: dict[bytes, bytes]) -> None:
        shard = self.keys.shard_of(session)
        due = self._double.scored(self.keys.due(shard, seen.pool), session)
        lease = self._double.scored(self.keys.leases(shard, seen.pool), session)
        cursor, tip = int(data.get(b"cursor", b"0")), int(data.get(b"sq", b"0"))
        if due is not None and lease is not None:
            self.broken("one_place", f"session {session} is due and leased")
        if due is None and lease is None and cursor != tip and data.get(b"quarantined") != b"1":
            self.broken("one_place", f"session {session} is parked at {cursor} and its queue ends at {tip}")
        unsaved = seen.state.workspace.unsaved
        parked = due is None and lease is None and data.get(b"quarantined") != b"1"
        if parked and unsaved is not None and unsaved.trying:
            self.broken("one_place", f"session {session} is parked, and its folder's changes are not stored")
        if (lease is not None) != bool(data.get(b"owner")):
            self.broken("owner", f"session {session}: owner {data.get(b'owner')!r}, lease {lease}")
        if not seen.cursor <= cursor <= tip:
            self.broken(
                "cursor", f"session {session}: from {seen.cursor} to {cursor}, the queue ends at {tip}"
            )
        if seen.cursor < cursor < tip:
            self.reach.saw("cursor")
        seen.cursor = cursor
        seen.lease_ms, seen.claim = lease, data.get(b"claim", b"").decode()

    def _read_queue(self, session: str, seen: Seen, data: dict[bytes, bytes]) -> None:
        tip = int(data.get(b"sq", b"0"))
        if tip != seen.tip:
            after = max(seen.tip, seen.cursor)
            for entry_id, fields in self._double.stream_after(self.keys.sq(session), after):
                entry = waiting(entry_id, fields)
                seen.queue.append(entry)
                if given := Given.of(entry):
                    seen.given.append(given)
                self.deadlines.queued(entry)
                self.agent_rules.queued(session, seen, entry)
                self.redactions.queued(session, entry)
            seen.tip = tip
        if seen.queue and seen.queue[0].n <= seen.cursor:
            seen.queue = [entry for entry in seen.queue if entry.n > seen.cursor]
        told = int(data.get(b"regular", b"0")), int(data.get(b"interrupts", b"0"))
        self.accounts.inbox(session, seen, told)

    # ── Redis goes back ───────────────────────────────────────────────────────────────────────

    def _read_anew(self, to_s: float) -> None:
        if any(at_s <= to_s for times in self.taken.values() for at_s in times):
            self.reach.saw("acknowledged")
        known = dict.fromkeys((*self.sessions, *self.archive_moves.went_back(to_s)))
        before = self.sessions
        self.sessions, self.trees = {}, {}
        self.cancels.went_back()
        self.processes.went_back()
        self.conversations.went_back()
        self.answers.went_back()
        self.replies.went_back()
        self.agent_rules.went_back()
        self.odd_servers.went_back()
        self.members.clear()
        self.accounts.went_back()
        self.renewals.went_back()
        self.admissions.went_back()
        self.steps.went_back(to_s)
        self.reads_anew = True
        for session in known:
            self.look(session)
        self.reads_anew = False
        self.odd_servers.are_read_anew()
        for session, seen in self.sessions.items():
            # Entries consumed before that moment are on the branch that is left.
            old = before[session].given if session in before else ()
            seen.given = [*(given for given in old if given.n <= seen.cursor), *seen.given]
        self._cut_back = set(self.sessions)
        self.rights.went_back()


def _first_words(args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of a commit before its entries."""
    first = 3 + int(args[2])
    return args[first : first + 16]
