"""Moves to the archive and back, and deletions, held against the logs as they grew.

The archive is read here line by line, and not by the product's own reader: what a segment holds is what a
person would find in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import zstandard

from orchestrator.broker.redis_keys import Keys
from orchestrator.core.blobs import references
from orchestrator.core.commit_parts import STANDING_TIMERS
from orchestrator.core.outstanding import outstanding
from orchestrator.core.snapshot import decode_snapshot, encode
from sim.double import EPOCH_S, Double
from sim.objects import SimObjects
from sim.observer import TreeObserver
from sim.redactions import instead_fields, plain
from sim.seen import Seen
from sim.tool_calls import RULES

MOVES = frozenset({"seal", "archive", "restore", "delete"})
NEVER = 1e9
CONDEMNED = "condemned"
"""The folder of the archive with a note of each deletion that has begun."""
DECIDED_S = 15.0
"""How long before it was written a step may have been decided: what it says of the time is of then."""

Entry = tuple[bytes, dict[bytes, bytes]]
"""As a stream has it."""


@dataclass(frozen=True, slots=True)
class UpkeepRules:
    """Upkeep's settings, in seconds instead of days."""

    processes: int
    seal_after: int
    archive_after_s: float
    """NEVER: it archives nothing."""
    retention_s: float | None = None
    idle_after_s: float | None = None
    """None: what nobody closed is not archived."""
    verify_sessions: int = 20
    seal_idle_s: float | None = None
    """None: what waits is sealed behind its snapshot alone."""
    packs: bool = False
    """Whether it looks after the packs of portable folders."""


class ArchiveMoves:
    """The rules of upkeep. Where no workload asks for upkeep, nothing is ever looked at."""

    def __init__(self, watch: TreeObserver, double: Double, keys: Keys, objects: SimObjects) -> None:
        self._watch = watch
        self._double = double
        self._keys = keys
        self._objects = objects
        self.rules: UpkeepRules | None = None
        self._written_s: defaultdict[str, list[float]] = defaultdict(list)
        """When each session's log grew."""
        self._archived: set[str] = set()
        self.by_people: set[str] = set()
        """Trees that people have deleted, or begun to."""
        self._deleted: set[str] = set()
        """Every session that was ever deleted: Redis may go back to where it lives."""
        self._deleted_s: dict[str, float] = {}
        """When each tree was deleted last."""
        objects.lacks = self._lacks

    def _hash(self, session: str) -> Mapping[bytes, bytes]:
        return self._double.hash(self._keys.session(session))

    # ── the log, wherever it is ───────────────────────────────────────────────────────────────

    def log_after(self, session: str, after: int) -> list[Entry]:
        """The session's entries behind one of them: those in the archive, then those in Redis."""
        sealed = self._sealed(session) if self.sealed_seq(session) > after else []
        stream = self._double.stream_after(self._keys.rollout(session), after)
        instead = self._double.hash(self._keys.redacted(session))
        if instead:
            rows = {b"%s-0" % number: instead_fields(row) for number, row in instead.items()}
            # Segments have the words until they are written anew: nobody reads them there.
            sealed = [(entry_id, rows.get(entry_id, fields)) for entry_id, fields in sealed]
            there = {entry[0] for entry in (*sealed, *stream)}
            stream += [one for one in rows.items() if one[0] not in there and _number(one) > after]
            stream.sort(key=_number)
        return [*(entry for entry in sealed if _number(entry) > after), *stream]

    def _sealed(self, session: str) -> list[Entry]:
        found: list[Entry] = []
        for segment in orjson.loads(self._hash(session)[b"manifest"])["segments"]:
            packed = self._objects.get(segment["name"])
            if packed is None:
                self._watch.broken("sealed", f"{session}: {segment['name']} is not in the archive")
            else:
                found += map(_entry, zstandard.decompress(packed).splitlines())
        return found

    def is_redacting(self, session: str, found: Sequence[Entry], seen: Seen) -> bool:
        """Whether the log is as it was seen, but for words that are redacted and not removed yet."""
        owed = self._hash(session).get(b"redacting", b"") != b""
        return owed and [plain(one) for one in found] == [plain(one) for one in seen.stored]

    # ── after every move ──────────────────────────────────────────────────────────────────────

    def grew(self, session: str) -> None:
        self._written_s[session].append(self._watch.now_s)

    def moved(self, name: str, session: str) -> None:
        """A script took something out of Redis, or brought it back."""
        seen = self._watch.sessions.get(session)
        if seen is None:
            # Deleted by two at once: the second finds nothing.
            return
        match name:
            case "seal":
                self._is_sealed(session, seen)
            case "archive":
                self._is_archived(session, seen)
            case "restore":
                # Of those who restore a session together, the first does it.
                if session in self._archived:
                    self._is_restored(session, seen)
            case _:
                self._is_deleted(session, seen)

    def _is_sealed(self, session: str, seen: Seen) -> None:
        """Whether the archive leads to where the stream begins, entry by entry of the log as it grew."""
        entries = self.log_after(session, 0)
        if entries != seen.stored and not self.is_redacting(session, entries, seen):
            numbers = [_number(entry) for entry in entries]
            self._watch.broken(
                "sealed", f"{session}: archive and stream hold {numbers} of {seen.seq} entries"
            )
        if self._double.stream_after(self._keys.rollout(session), 0)[:1] == entries[:1]:
            self._watch.broken("sealed", f"{session}: what was sealed is still in the stream")
        if self._sealed_whole(session):
            self._watch.reach.saw("sealed_whole")
            if seen.state.task is not None:
                self._watch.reach.saw("sealed_waiting")
            least_s = self.rules.seal_idle_s if self.rules is not None else None
            if least_s is None:
                self._watch.broken("sealed", f"{session} is sealed to its end, and nobody asked for that")
            else:
                self._ended_for(session, least_s, "sealed")

    def _sealed_whole(self, session: str) -> bool:
        """Whether the log has left Redis to its end, the snapshot too."""
        own = self._hash(session)
        sealed = int(own.get(b"sealed_seq") or b"0")
        return sealed == int(own.get(b"seq") or b"0") > int(own.get(b"snapshot_seq") or b"0")

    def _is_archived(self, session: str, seen: Seen) -> None:
        """Whether it owed nothing and waited for nothing, and had ended long enough ago."""
        state = seen.state
        owed: list[Any] = [*outstanding(state, RULES), *seen.queue]
        owed += [state.task] if state.task is not None else []
        timers = {name.decode() for name in self._double.hash(self._keys.timer(session))}
        # Timers that look after a cancel stand until they are due, also when the cancel is over.
        owed += sorted(timers if self._watch.ending() else timers - STANDING_TIMERS.keys())
        owed += ["a slot"] if state.tree.slot else []
        closed = self._root_closed(session)
        idle_s = self.rules.idle_after_s if self.rules is not None else None
        if owed or not (closed or idle_s is not None):
            self._watch.broken(
                "archived", f"{session} is archived, its root closed: {closed}, and owes {owed}"
            )
        if self.rules is not None:
            least_s = self.rules.archive_after_s if closed or idle_s is None else idle_s
            self._ended_for(session, least_s, "archived")
        self._is_sealed(session, seen)
        self._archived.add(session)

    def _root_closed(self, session: str) -> bool:
        """Whether the root of the session's tree is closed, as Redis has it."""
        tree = self._hash(session).get(b"tree", b"").decode()
        return self._hash(tree).get(b"status") == b"closed"

    def _ended_for(self, session: str, least_s: float, rule: str) -> None:
        rested_s = self._watch.now_s - self.written_s(session)
        if rested_s < least_s - DECIDED_S:
            self._watch.broken(rule, f"{session} is {rule} {rested_s:.1f} s after it was written")

    def _is_restored(self, session: str, seen: Seen) -> None:
        """Whether it begins with the state that it ended with, and with every large text of its log."""
        self._archived.discard(session)
        found = decode_snapshot(
            self._double.look("GET", self._keys.snapshot(session)) or b"", self._watch.secret
        )
        if found is None or (found[1], found[2]) != (seen.seq, seen.head):
            self._watch.broken("restored", f"{session} is restored with another entry than {seen.seq}")
        elif encode(found[0]) != encode(seen.state):
            self._watch.broken("restored", f"{session} is restored with another state than it ended with")
        resting = self._keys.to_archive(self._keys.shard_of(session))
        if (self._double.scored(resting, seen.tree) or 0.0) < int((EPOCH_S + self._watch.redis_s) * 1000) - 1:
            self._watch.broken("restored", f"{session} is restored, and upkeep is not told to look anew")
        for digest in {digest for entry in seen.readable for digest in references(entry.payload)}:
            if self._double.look("GET", self._keys.blob(seen.tree, digest)) is None:
                self._watch.broken("restored", f"{session} is restored without its text {digest[:8]}")

    def _is_deleted(self, session: str, seen: Seen) -> None:
        """Whether it had come to rest long enough ago, a root by its end, and has nothing to do.

        What a person deletes at a gateway need not rest.
        """
        if seen.tree in self.by_people:
            return
        ended = seen.state.closed or session != seen.tree
        if seen.queue or seen.state.task is not None or not ended:
            owed = seen.queue or seen.state.task
            self._watch.broken(
                "deleted", f"{session} is deleted, closed: {seen.state.closed}, {owed} is owed"
            )
        if self.rules is None or self.rules.retention_s is None:
            self._watch.broken("deleted", f"{session} is deleted, and everything is to be kept")
        else:
            self._ended_for(session, self.rules.retention_s, "deleted")
        if left := [other for other in self._watch.members[seen.tree] if self._hash(other)]:
            self._watch.broken("deleted", f"{session} is deleted, and {left[0]} of its tree is left")
        told = self._keys.deleted(self._keys.shard_of(session))
        if self._double.scored(told, session) is None:
            self._watch.broken("deleted", f"{session} is deleted, and no machine with files of it is told")
        self._deleted.add(session)
        # It stays a member: a tree counts the agents that it ever made.
        self._watch.sessions.pop(session)
        if session == seen.tree:
            self._watch.trees.pop(session, None)
            self._deleted_s[session] = self._watch.now_s
            if not self._objects.exists(f"{CONDEMNED}/{session}"):
                self._watch.broken("deleted", f"{session} is deleted, and the archive has no note of that")

    def _lacks(self, name: str) -> None:
        """Something is gone from the archive: no note of a deletion goes before all that it is about."""
        folder, _, tree = name.partition("/")
        if folder != CONDEMNED or self._hash(tree):
            return
        at_s = self._deleted_s.get(tree, NEVER)
        if left := [one for one in self._objects.below(tree) if self._objects.put_s[one] <= at_s]:
            self._watch.broken("deleted", f"{tree}: the note of its deletion is gone, and {left[0]} is there")

    def condemned(self) -> list[str]:
        """Trees that Redis does not have any more, and whose deletion the archive has noted."""
        return [tree for tree in self._objects.names(CONDEMNED) if not self._hash(tree)]

    def retained(self, condemned: Sequence[str], began_s: float) -> None:
        """A look for what is to be deleted has ended well; `condemned`: as it began, these were.

        The note stays while a job may write that had begun before the deletion.
        """
        for tree in condemned:
            left = [one for one in self._objects.below(tree) if self._objects.put_s[one] < began_s]
            if left and not self._hash(tree):
                self._watch.broken("deleted", f"{tree}: its deletion is not ended by the next look")

    def at_rest(self) -> None:
        """Of a tree that is deleted nothing is left in the archive.

        But where a note leads upkeep to it, if a process died; and where Redis has lost the deletion as well.
        """
        noted = self._objects.names(CONDEMNED)
        for tree in sorted({*self._deleted_s, *self.by_people}.difference(noted)):
            known = self._double.scored(self._keys.deleted(self._keys.shard_of(tree)), tree) is not None
            if known and not self._hash(tree) and (left := self._objects.below(tree)):
                self._watch.broken("deleted", f"{tree} is deleted, and {left[0]} is left in the archive")

    # ── what others ask ───────────────────────────────────────────────────────────────────────

    def written_s(self, session: str) -> float:
        """When the session's log grew last, as Redis has it."""
        return max(self._written_s[session], default=-EPOCH_S)

    def was_deleted(self, session: str) -> bool:
        """Whether the session, a root, was deleted, and is not there again since Redis went back."""
        return session not in self._watch.sessions and session in self._deleted | self.by_people

    def sealed_seq(self, session: str) -> int:
        """How far the session's log has left Redis."""
        return int(self._hash(session).get(b"sealed_seq") or b"0")

    def went_back(self, to_s: float) -> list[str]:
        """Redis holds what it held then; these sessions may be there again."""
        for times in self._written_s.values():
            times[:] = [at_s for at_s in times if at_s <= to_s]
        known = {*self._archived, *self._deleted, *self._watch.sessions}
        self._archived = {session for session in known if self._hash(session).get(b"archived") == b"1"}
        return sorted(self._deleted)

    def left(self) -> Iterator[str]:
        """Sessions of closed trees that are not in the archive, where upkeep is to put them there."""
        if self.rules is None or self.rules.archive_after_s >= NEVER:
            return
        for session in self._watch.sessions:
            data = self._hash(session)
            if data and self._root_closed(session) and data.get(b"archived") != b"1":
                yield f"{session} of a closed tree is not archived"

    def failed(self, job: str, error: object, began_s: float) -> None:
        """A job of upkeep failed, though Redis was there."""
        if self._watch.went_back_s < began_s:
            self._watch.broken("no_crash", f"upkeep's {job} failed: {type(error).__name__}: {error}")


def _number(entry: Entry) -> int:
    return int(entry[0].partition(b"-")[0])


def _entry(line: bytes) -> Entry:
    """A line of a segment, as the stream had it."""
    value = orjson.loads(line)
    payload = bytes.fromhex(value["payload_hex"]) if "payload_hex" in value else value["payload"].encode()
    fields = {b"e": b"%d" % value["epoch"], b"p": payload}
    fields |= {b"s": bytes.fromhex(value["salt"]), b"h": bytes.fromhex(value["chain"])}
    if "digest" in value:
        fields[b"d"] = bytes.fromhex(value["digest"])
    return b"%d-0" % value["seq"], fields
