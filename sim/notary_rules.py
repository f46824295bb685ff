"""The rules of a notary: what it states, signs and alarms of, held against the logs as they grew.

Roots are made here a second time, by the words of the format. What Redis took back excuses a statement that
was read before, and nothing else; a log that is not as it was stated is to be an alarm.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from orchestrator.broker.replies import tree_entry
from orchestrator.core.chain import GENESIS, payload_digest
from orchestrator.core.entries import DENDRO
from orchestrator.rollouts.bundle_receipts import Head
from orchestrator.rollouts.bundle_writer import tree_payload
from orchestrator.rollouts.notary_state import KnownLog, NotaryState
from orchestrator.rollouts.register import BadRegister, Register
from orchestrator.rollouts.signed_notes import VerifierKey
from sim.double import EPOCH_S, Double
from sim.objects import SimObjects
from sim.redactions import as_stored
from sim.rule import Case, Rule

if TYPE_CHECKING:
    from sim.seen import Seen
    from sim.watch import Watch

ALARM_S = 60.5
"""An interval, by a clock that is a little slow: a look that begins so long after a cut knows of it."""
NOTARY_RULES = {
    "one_root": Rule(
        (
            "However often a notary is killed, and from whatever copy of its state another one goes on, a "
            "size of a register is never signed with two roots, and each root is one of the register as it "
            "is published."
        ),
        Case("a notary was killed before a write"),
    ),
    "noted": Rule(
        (
            "A statement says what its log was: its size is an end that the log had, its root and chain "
            "value are those of the entries up to there, a redaction or a deletion is said; what is known "
            "of the logs of a tree, and of its own, is of one moment; and at rest each log is stated "
            "to its end."
        ),
        Case("a log had grown on when a statement of it was written"),
    ),
    "alarmed": Rule(
        (
            "A log that is not as it was stated, because Redis was put back, is an alarm within an interval, "
            "and no other log is one for longer than that."
        ),
        Case("a log that was stated was not as stated any more, and a look came to its end"),
    ),
    "receipts": Rule(
        (
            "A receipt holds for ever; and a bundle with the register holds, under each receipt that there "
            "ever was, where its logs are as they were stated, and shows it where they are not."
        ),
        Case("a bundle was held against a receipt that was older than the register"),
    ),
    "bundled": Rule(
        (
            "A bundle of a tree that is taken while its agents commit holds for two readers that share no "
            "code, has each session that there was when it was asked for, and each log as it was at one of "
            "its ends."
        ),
        Case("a log of a tree with agents grew while its bundle was written"),
    ),
}
NOTARY_CASES = {
    "notary_forked": Case("a notary stopped, because another one had continued its register"),
    "disputed": Case("a bundle was made of a tree that was not as it was stated"),
    "stated_deleted": Case("a notary stated that a log was deleted"),
}


class NotaryRules:
    """The rules, and what they know of the logs."""

    def __init__(self, watch: Watch, double: Double, registers: SimObjects, public: bytes) -> None:
        self._watch, self._double, self._registers, self._public = watch, double, registers, public
        self._roots: dict[tuple[str, int], bytes] = {}
        """Every root that was ever signed, by its register's origin and its size."""
        self._ends: defaultdict[str, list[tuple[float, int, int]]] = defaultdict(list)
        """When each log grew, up to which entry, and where the tree's log ended then."""
        self._began_s = 0.0
        self._unlike_s: dict[str, float] = {}
        """Logs that are not as they were stated, since when."""
        before = watch.grew

        def grew(session: str, seen: Seen, at: int) -> None:
            before(session, seen, at)
            if watch.reads_anew:
                self._ends[session].clear()
            tree_seq = int(watch.marks(seen.tree).get(b"tree_seq", b"0"))
            self._ends[session].append((watch.now_s, seen.seq, tree_seq))

        watch.grew = grew

    # ── signatures ────────────────────────────────────────────────────────────────────────────

    def signs(self, origin: str, text: str) -> None:
        """A notary is about to sign a checkpoint."""
        own, size, root = text.split("\n")[:3]
        made = base64.b64decode(root)
        if own != origin or self._roots.setdefault((origin, int(size)), made) != made:
            self._watch.broken("one_root", f"{own}, which is {origin}: size {size} has two roots")

    def published(self) -> list[str]:
        """The registers that there are, each read to its end and held against all that was signed of it."""
        found = []
        for name in self._registers.names(""):
            register = Register(self._registers.opened(), name)
            newest = register.newest()
            if newest is None:
                continue
            found.append(name)
            key = VerifierKey.of(newest.point.origin, self._public)
            try:
                texts = list(register.statements(newest.point.size))
            except BadRegister as error:
                self._watch.broken("one_root", f"the register {name} cannot be read: {error}")
            leaves = [sha256(b"\x00" + text.encode()).digest() for text in texts]
            signed = {
                size: root for (origin, size), root in self._roots.items() if origin == newest.point.origin
            }
            if not newest.note.signed_by([key]) or signed.get(newest.point.size) != newest.point.root:
                self._watch.broken("one_root", f"the register {name} has a checkpoint that nobody signed")
            for size, root in signed.items():
                if size > len(leaves) or root_of(leaves[:size]) != root:
                    self._watch.broken(
                        "one_root", f"the register {name} has another root at {size} than was signed"
                    )
        return found

    # ── statements ────────────────────────────────────────────────────────────────────────────

    def begins(self, at_s: float) -> None:
        """A look begins."""
        self._began_s = at_s

    def states(self, state: NotaryState, stated: Sequence[tuple[KnownLog, Head]]) -> None:
        """Some statements are about to be written."""
        watch = self._watch
        if watch.went_back_s >= self._began_s or watch.late_s > watch.now_s:
            return
        news = dict(state.logs) | {known.log: known for known, _ in stated}
        for known, head in stated:
            self._is_true(state, known, head)
        for tree in sorted({head.tree for _, head in stated}):
            logs = [known for known in news.values() if known.tree == tree and not self.unlike(known)]
            self._is_of_one_moment(tree, logs)

    def _is_true(self, state: NotaryState, known: KnownLog, head: Head) -> None:
        watch = self._watch
        kind, _, id = head.log.partition(":")
        of = (known.log, known.tree, known.size, known.chain, known.ms, known.state)
        if of != (head.log, head.tree, head.size, head.chain, head.ms, head.state):
            watch.broken("noted", f"{head.log} is stated otherwise than it is remembered")
        last = state.registers.get(known.register)
        if last is not None and head.ms < last.ms:
            watch.broken("noted", f"{head.log} is stated at {head.ms}, behind a statement of {last.ms}")
        seen = watch.sessions.get(id)
        if head.state == "deleted":
            watch.reach.saw("stated_deleted")
            if seen is not None and watch.fields(id):
                watch.broken("noted", f"{head.log} is stated as deleted, and it is there")
            return
        if seen is None:
            if watch.fields(id):
                watch.broken("noted", f"{head.log} is stated, and nobody has seen it")
            return
        if seen.tree != head.tree:
            watch.broken("noted", f"{head.log} is stated as of {head.tree}, and is of {seen.tree}")
        if kind == "tree":
            leaves, chain = self._tree_leaves(seen.tree), b""
        else:
            leaves, chain = self._leaves(seen), seen.at[head.size].head if head.size in seen.at else GENESIS
            if seen.seq > head.size:
                watch.reach.saw("noted")
            if chain != head.chain:
                watch.broken("noted", f"{head.log} is stated with another chain value at {head.size}")
            before = state.logs[head.log].size if head.log in state.logs else 0
            redacted = any(
                one.type == DENDRO and one.payload["kind"] == "redacted"
                for one in seen.entries[before : head.size]
            )
            if redacted != (head.state == "redacted"):
                watch.broken("noted", f"{head.log} is stated at {head.size} as {head.state}")
        if not 0 < head.size <= len(leaves) or root_of(leaves[: head.size]) != head.root:
            watch.broken("noted", f"{head.log} is stated with another root at {head.size} of {len(leaves)}")

    def _leaves(self, seen: Seen) -> list[bytes]:
        entries = (as_stored(*one) for one in seen.stored)
        return [_leaf(one.seq, one.epoch, one.covered, one.chain) for one in entries]

    def _tree_leaves(self, tree: str) -> list[bytes]:
        found = self._double.tree_after(self._watch.keys, tree, 0)
        entries = [tree_entry(*one) for one in found]
        return [
            _leaf(one.tree_seq, one.seq, payload_digest(one.salt, tree_payload(one)), one.head)
            for one in entries
        ]

    def _is_deleted(self, session: str) -> bool:
        """Whether Redis has a record of its deletion."""
        keys = self._watch.keys
        return self._double.scored(keys.deleted(keys.shard_of(session)), session) is not None

    def _is_of_one_moment(self, tree: str, logs: Sequence[KnownLog]) -> None:
        """Whether there was a moment at which all of these logs ended where they are known to end."""
        first, last, told = 0.0, self._watch.now_s, []
        of_tree = next((known.size for known in logs if known.log.startswith("tree:")), None)
        for known in logs:
            kind, _, id = known.log.partition(":")
            if kind == "tree" or known.state == "deleted" or id not in self._watch.sessions:
                continue
            spans = list(self._spans(id, known.size))
            if not spans:
                self._watch.broken("noted", f"{known.log} is stated at {known.size}, and never ended there")
            since, until, tree_seq = spans[-1]
            if of_tree is not None and of_tree < tree_seq:
                told_of = f"{known.log} is stated at {known.size}, when its tree's log had {tree_seq} entries"
                self._watch.broken("noted", f"{told_of}, and that is stated at {of_tree}")
            first, last = max(first, since), min(last, until)
            told.append((id[-4:], known.size))
        if first > last:
            self._watch.broken(
                "noted", f"the logs of {tree} never ended at one moment where they are stated: {told}"
            )

    def _spans(self, session: str, size: int) -> Iterator[tuple[float, float, int]]:
        """From when to when the log ended there, and where the tree's log ended at its begin."""
        ends = self._ends[session]
        for at, (since, end, tree_seq) in enumerate(ends):
            if end == size:
                yield since, ends[at + 1][0] if at + 1 < len(ends) else self._watch.now_s, tree_seq

    # ── alarms ────────────────────────────────────────────────────────────────────────────────

    def _is_there(self, known: KnownLog) -> bool:
        return bool(self._watch.fields(known.log.partition(":")[2]))

    def unlike(self, known: KnownLog) -> bool:
        """Whether a log is not as it was stated."""
        kind, _, id = known.log.partition(":")
        seen = self._watch.sessions.get(id)
        if known.state == "deleted":
            return False
        if not self._watch.fields(id):
            return not self._is_deleted(id)
        if kind == "tree":
            leaves = self._tree_leaves(id)
            return len(leaves) < known.size or leaves[known.size - 1] != known.leaf
        return seen is None or known.size not in seen.at or seen.at[known.size].head != known.chain

    def looked(self, state: NotaryState, began_s: float) -> None:
        """A look that began then came to its end."""
        watch = self._watch
        if watch.parted is not None:
            return
        calm_s = watch.went_back_s
        for log, known in state.logs.items():
            if not self.unlike(known):
                self._unlike_s.pop(log, None)
                alarm = state.alarms.get(log)
                if (
                    alarm is not None
                    and self._is_there(known)
                    and began_s > max(calm_s, alarm.ms / 1000 - EPOCH_S) + ALARM_S + 1.0
                ):
                    watch.broken("alarmed", f"{log} is as it was stated, and there is an alarm: {alarm.text}")
                continue
            watch.reach.saw("alarmed")
            since_s = self._unlike_s.setdefault(log, max(calm_s, 0.0))
            if log not in state.alarms and began_s > since_s + ALARM_S:
                watch.broken(
                    "alarmed",
                    f"{log} is not as it was stated up to {known.size}, and has no alarm since {since_s}",
                )

    def at_rest(self, state: NotaryState) -> None:
        """Nothing has changed for longer than an interval."""
        watch = self._watch
        for session, seen in watch.sessions.items():
            known = state.logs.get(f"session:{session}")
            if f"session:{session}" in state.alarms or not watch.fields(session):
                continue
            if known is None or (known.size != seen.seq and known.state != "deleted"):
                size = known.size if known is not None else 0
                watch.broken("noted", f"{session} is at rest at {seen.seq}, and is stated up to {size}")


def _leaf(seq: int, epoch: int, digest: bytes, chain: bytes) -> bytes:
    return sha256(b"\x00" + seq.to_bytes(8, "big") + epoch.to_bytes(8, "big") + digest + chain).digest()


def root_of(leaves: Sequence[bytes]) -> bytes:
    """The root of a Merkle tree, as RFC 6962 makes it of hashes of leaves."""
    if not leaves:
        return sha256().digest()
    if len(leaves) == 1:
        return leaves[0]
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return sha256(b"\x01" + root_of(leaves[:half]) + root_of(leaves[half:])).digest()
