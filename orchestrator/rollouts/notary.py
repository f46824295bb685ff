"""The notary: it reads the logs of a deployment, and states their heads in a register that it signs.

It writes nothing to Redis, and knows no secret of the deployment. Of each log it keeps the frontier of its
Merkle tree and its last entry, so that no entry is read twice but the last one. Where that one is another
than it was, or is gone, the log's past was changed: that is an alarm, and nothing is stated about that log
until it agrees again. All changed logs of a tree are stated as of one moment.

A log gets a statement when it is born, when its session comes to rest, every `interval` while it grows, when
an entry of it was redacted, and when it was deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import BrokerError, DamagedEntry, Unavailable
from orchestrator.broker.records import AT_REST, StoredEntry, Tip
from orchestrator.core.chain import payload_digest
from orchestrator.core.entries import stored_kind
from orchestrator.core.facts import Redacted
from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.merkle import Frontier
from orchestrator.rollouts.bundle_form import BadForm, leaf
from orchestrator.rollouts.bundle_receipts import Head
from orchestrator.rollouts.bundle_writer import tree_payload
from orchestrator.rollouts.log_source import LogSource
from orchestrator.rollouts.notary_state import Alarm, KnownLog, NotaryState
from orchestrator.rollouts.object_store import ArchiveUnavailable, Objects
from orchestrator.rollouts.register import (
    CHECKPOINT_NAME,
    BadRegister,
    Forked,
    Register,
    Signed,
    publish,
    register_of,
)
from orchestrator.rollouts.segments import BrokenArchive
from orchestrator.rollouts.signed_notes import Note, Signer
from orchestrator.rollouts.tree_log import tree_entries

log = logging.getLogger("dendro.notary")

MOST_PAGES: Final = 1_000
"""Sessions of a shard that are read at once."""
TREES_AT_ONCE: Final = 100
"""Trees whose statements are written and published together."""
ROUND_TREES: Final = 500
"""Trees that are looked at every interval though nothing says that they changed, in turn."""

Witnessed = Callable[[str, Signed], Awaitable[Note]]
"""Takes a register and its checkpoint; answers the note with the signatures of witnesses."""


class _Refused(Exception):
    """Nothing can be stated about a log; the kind of alarm, and why."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


@dataclass(slots=True)
class _Round:
    """The statements and alarms of one look."""

    now_ms: int
    stated: list[tuple[KnownLog, Head]] = field(default_factory=list)
    alarms: dict[str, Alarm | None] = field(default_factory=dict)


@record
class Look:
    """The outcome of one look."""

    statements: int
    alarms: Mapping[str, int]
    """By kind, the logs about which nothing is stated now."""


class Notary:
    """States the heads of all logs of a deployment, look by look."""

    def __init__(
        self,
        source: LogSource,
        state: NotaryState,
        objects: Objects,
        signer: Callable[[str], Signer],
        interval_ms: int,
        now_ms: Callable[[], int],
        witnessed: Witnessed | None = None,
    ) -> None:
        self._source, self._state, self._objects = source, state, objects
        self._signer, self.interval_ms, self._now_ms = signer, interval_ms, now_ms
        self._witnessed = witnessed
        self._since = [0] * source.broker.config.shards
        """By shard, the time of the last change that was seen."""
        self._scores: dict[SessionId, int] = {}
        self._changed: dict[SessionId, None] = {}
        """Sessions that were seen to change, and whose ends could not be read yet."""
        self._trees: dict[str, set[SessionId]] = {}
        for known in state.logs.values():
            if (session := _session_of(known)) is not None and (
                known.state != "deleted" or known.log in state.alarms
            ):
                self._trees.setdefault(known.tree, set()).add(session)
        self._growing: dict[SessionId, str] = {}
        """Sessions whose logs go on behind their last statements, with their trees."""
        self._next_round_ms = 0
        self._waiting: dict[str, None] = {}
        """Trees that are to be looked at now: also those that an error of Redis has kept from it."""
        self._turn: list[str] = []
        """Trees that wait for their turn to be looked at."""

    @property
    def _broker(self) -> Broker:
        return self._source.broker

    def start(self) -> None:
        """Holds the state against what is published; raises `Forked` or `BadRegister`."""
        for name, standing in self._state.registers.items():
            newest = Register(self._objects, name).newest()
            published = newest.point.size if newest is not None else 0
            if published > standing.frontier.size:
                raise Forked(
                    f"the register {self._state.origin(name)} has {published} statements, and this state "
                    f"{standing.frontier.size}: it is older, as from a backup. It is of no use any more: a "
                    "register goes on with its own state alone, and a new one needs another receipts.name"
                )
            if published < standing.published:
                raise BadRegister(
                    f"the register {self._state.origin(name)} was published with {standing.published} "
                    f"statements, and has {published} at its URL: bring its files back from a backup"
                )

    async def look(self) -> Look:
        """Publishes what an earlier look left, states what is to be stated, and publishes that.

        Raises `ArchiveUnavailable` and errors of the broker: the next look does it again.
        """
        try:
            return await self._look()
        except Unavailable:
            # What comes back may be a backup.
            self._next_round_ms = 0
            raise

    async def _look(self) -> Look:
        await self._publish()
        now_ms, asked, statements = self._now_ms(), False, 0
        self._waiting |= dict.fromkeys(await self._due(now_ms))
        if now_ms >= self._next_round_ms:
            self._waiting |= dict.fromkeys(await self._others())
            self._next_round_ms, asked = now_ms + self.interval_ms, True
        while self._waiting:
            some = list(islice(self._waiting, TREES_AT_ONCE))
            statements += await self._look_at_some(some)
            for tree in some:
                del self._waiting[tree]
        if asked:
            for name in self._state.registers:
                await self._witness(name)
        return Look(statements, Counter(alarm.kind for alarm in self._state.alarms.values()))

    async def _look_at_some(self, trees: Iterable[str]) -> int:
        """States what is to be stated of some trees, and publishes it; how many statements."""
        round = _Round(self._now_ms())
        for tree in trees:
            try:
                await self._look_at(tree, round)
            except (Unavailable, ArchiveUnavailable):
                raise
            except (BrokerError, ValueError) as error:
                # Of no shard, or of keys that are none of Dendro's: somebody else wrote them.
                for session in self._trees.get(tree, ()):
                    text = f"its tree {tree!r:.80} cannot be read: {error}"
                    self._refuse(f"session:{session}", _Refused("unreadable", text), round)
        if round.stated or round.alarms:
            self._state.add(round.stated, round.alarms)
            self._tell(round)
            await self._publish()
        return len(round.stated)

    def _tell(self, round: _Round) -> None:
        for name, alarm in round.alarms.items():
            known = self._state.logs.get(name)
            if alarm is None and known is not None and known.state == "deleted":
                log.info("%s was deleted, and that is recorded: its alarm is over", name)
            elif alarm is None:
                log.info("%s agrees with its last statement again", name)
            else:
                log.error("ALARM %s: %s: %s; nothing is stated about it", alarm.kind, name, alarm.text)

    # ── which trees ───────────────────────────────────────────────────────────────────────────────

    async def _due(self, now_ms: int) -> list[str]:
        """Trees of which a log was born, came to rest, or grew for as long as the interval."""
        await self._see_changes(now_ms)
        due = dict[str, None]()
        asked = [session for session in self._changed if session not in self._growing]
        tips = await self._broker.logs.tips([*asked, *self._growing])
        for session in asked:
            # One that cannot be read any more, or is gone.
            if session not in tips and (known := self._state.logs.get(f"session:{session}")) is not None:
                due[known.tree] = None
        for session, tip in tips.items():
            known, tree = self._state.logs.get(f"session:{session}"), str(tip.tree)
            self._trees.setdefault(tree, set()).add(session)
            if known is not None and (tip.seq, tip.head) == (known.size, known.chain):
                self._growing.pop(session, None)
            elif known is None or tip.status in AT_REST or now_ms - known.ms >= self.interval_ms:
                due[tree] = None
            else:
                self._growing[session] = tree
        self._changed.clear()
        return list(due)

    async def _see_changes(self, now_ms: int) -> None:
        """Notes the sessions that have changed since the last look, from the index of each shard."""
        for shard, since in enumerate(self._since):
            start = 0
            while page := await self._broker.logs.changed_since(shard, since, MOST_PAGES, start):
                touched = dict(one for one in page if self._is_session(one[0], shard))
                self._scores.update(touched)
                self._changed |= dict.fromkeys(touched)
                # A time to come would hide all changes up to it.
                self._since[shard] = max(self._since[shard], min(page[-1][1], now_ms))
                start += len(page)
                if len(page) < MOST_PAGES:
                    break

    async def _others(self) -> list[str]:
        """Trees of which a session is gone or has another time than was seen, and the next in turn."""
        found = dict.fromkeys(
            self._state.logs[name].tree for name in self._state.alarms if name in self._state.logs
        )
        seen = dict[SessionId, int]()
        for shard in range(self._broker.config.shards):
            listed = await self._broker.logs.changed_since(shard, 0, -1)
            seen.update(one for one in listed if self._is_session(one[0], shard))
        for tree, sessions in self._trees.items():
            for session in sessions:
                at = seen.get(session)
                if at is None or at != self._scores.get(session):
                    found[tree] = None
        self._scores = seen
        if not self._turn:
            self._turn = sorted(self._trees)
        found |= dict.fromkeys(self._turn[:ROUND_TREES])
        del self._turn[:ROUND_TREES]
        return list(found)

    def _is_session(self, id: str, shard: int) -> bool:
        """Whether a shard's list may have an id: somebody else than Dendro has written one that is none."""
        try:
            return self._broker.keys.shard_of(id) == shard
        except ValueError:
            return False

    # ── a tree ────────────────────────────────────────────────────────────────────────────────────

    async def _look_at(self, tree: str, round: _Round) -> None:
        """States the changed logs of a tree, all as of one moment."""
        known = self._trees.setdefault(tree, set())
        tree_seq, ends = await self._broker.trees.ends_at_once(TreeId(tree), known)
        tips = await self._broker.logs.tips(list(ends))
        root = tips.get(SessionId(tree))
        for session, end in ends.items():
            self._growing.pop(session, None)
            if end is None or session not in tips:
                await self._gone(session, tree, round)
                continue
            known.add(session)
            tip = tips[session]
            await self._state_log(f"session:{session}", (root or tip).namespace, tree, end, tip, round)
        if root is not None:
            await self._state_log(f"tree:{tree}", root.namespace, tree, (tree_seq, b""), root, round)
        elif f"tree:{tree}" in self._state.logs or f"tree:{tree}" in self._state.alarms:
            await self._gone(SessionId(tree), tree, round, f"tree:{tree}")
        if not known:
            self._trees.pop(tree, None)

    async def _gone(self, session: SessionId, tree: str, round: _Round, name: str = "") -> None:
        """A log that is not there any more: it was deleted, or somebody took it away."""
        name = name or f"session:{session}"
        known = self._state.logs.get(name)
        stated = known if known is not None and known.state != "deleted" else None
        if stated is None and name not in self._state.alarms:
            self._trees[tree].discard(session)
            return
        if await self._broker.trees.deleted_at(session) is None:
            if stated is not None:
                text = f"its {stated.size} entries are gone, and no deletion of it is recorded"
                self._refuse(name, _Refused("vanished", text), round)
            return
        self._trees[tree].discard(session)
        if name in self._state.alarms:
            # What was wrong with it stays in the notary's log; nothing more will be stated of it.
            round.alarms[name] = None
        if stated is not None:
            self._add(replace(stated, state="deleted"), Frontier(stated.size, stated.peaks), round)

    async def _state_log(
        self, name: str, namespace: str, tree: str, end: tuple[int, bytes], tip: Tip, round: _Round
    ) -> None:
        """States a log that has grown; one that is not as it was stated is refused."""
        known = self._state.logs.get(name)
        seq, head = end
        of_tree = name.startswith("tree:")
        try:
            if known is None:
                if seq == 0:
                    return
                known = KnownLog(name, register_of(namespace), tree)
            if seq < known.size:
                raise _Refused("rewound", f"it ends with entry {seq}, and was stated up to {known.size}")
            # A tree's log names no hash of its end: only its last entry shows that it is as it was stated.
            if seq == known.size and name not in self._state.alarms and not of_tree and head == known.chain:
                return
            found, redacted = await (self._grown_tree if of_tree else self._grown)(known, seq)
            if not of_tree and found.chain != head:
                raise _Refused("head", f"its session names another hash than that of its entry {seq}")
            if name in self._state.alarms:
                round.alarms[name] = None
            if seq > known.size:
                state = "redacted" if redacted else _state_of(tip.status)
                self._add(replace(found, state=state), found.frontier(), round)
        except _Refused as refused:
            self._refuse(name, refused, round)
        except (BadForm, BadRegister, BrokenArchive, DamagedEntry) as error:
            self._refuse(name, _Refused("unreadable", str(error)), round)

    def _add(self, known: KnownLog, frontier: Frontier, round: _Round) -> None:
        # Times of a register do not fall, whatever the clock does.
        last = self._state.registers.get(known.register)
        ms = max([round.now_ms, last.ms if last else 0])
        known = replace(known, ms=ms)
        head = Head(0, known.log, known.tree, known.size, frontier.root(), known.chain, ms, known.state)
        _ = head.text
        round.stated.append((known, head))

    def _refuse(self, name: str, refused: _Refused, round: _Round) -> None:
        before = self._state.alarms.get(name)
        if before is None or (before.kind, before.text) != (refused.kind, refused.text):
            round.alarms[name] = Alarm(refused.kind, refused.text, round.now_ms)

    # ── a log ─────────────────────────────────────────────────────────────────────────────────────

    async def _grown(self, known: KnownLog, seq: int) -> tuple[KnownLog, bool]:
        """A session's log up to an entry, and whether a redaction stands in what is new."""
        frontier, redacted, last, chain = known.frontier(), False, known.leaf, known.chain
        at = max(known.size - 1, 0)
        async for entry in self._source.log(SessionId(known.log.removeprefix("session:")), seq, at):
            at += 1
            if entry.seq != at:
                break
            leaf = _leaf(entry)
            if at == known.size:
                _require_same(leaf, known)
                continue
            frontier.append(leaf)
            last, chain = leaf, entry.chain
            redacted = redacted or stored_kind(entry.payload) is Redacted
        if max(frontier.size, at) < seq or frontier.size < seq:
            raise _Refused("missing", f"its entry {max(frontier.size, at) + 1} is not there")
        return replace(known, size=seq, chain=chain, leaf=last, peaks=frontier.peaks), redacted

    async def _grown_tree(self, known: KnownLog, seq: int) -> tuple[KnownLog, bool]:
        """The same of a tree's log, which is in no chain: its entries name those that caused them."""
        frontier, last, chain = known.frontier(), known.leaf, known.chain
        at = max(known.size - 1, 0)
        async for entry in tree_entries(self._broker.logs, TreeId(known.tree), at):
            if entry.tree_seq != at + 1:
                break
            at += 1
            digest = payload_digest(entry.salt, tree_payload(entry))
            leaf_ = leaf(entry.tree_seq, entry.seq, digest, entry.head)
            if at == known.size:
                _require_same(leaf_, known)
            else:
                frontier.append(leaf_)
                last, chain = leaf_, entry.head
            if at == seq:
                break
        if at < seq:
            raise _Refused("missing", f"its entry {at + 1} is not there")
        return replace(known, size=seq, chain=chain, leaf=last, peaks=frontier.peaks), False

    # ── publishing ────────────────────────────────────────────────────────────────────────────────

    async def _publish(self) -> None:
        for name, step in self._state.unpublished():
            signer = self._signer(step.point.origin)
            note = await asyncio.to_thread(publish, self._objects, name, step, signer.signed)
            self._state.published(name, step.point.size, note)
            await self._witness(name)

    async def _witness(self, name: str) -> None:
        """Asks the witnesses for their signatures under the newest checkpoint, those again that gave one."""
        if self._witnessed is None:
            return
        newest = await asyncio.to_thread(Register(self._objects, name).newest)
        if newest is None:
            return
        seen = await self._witnessed(name, newest)
        if seen != newest.note:
            await asyncio.to_thread(self._objects.put, f"{name}/{CHECKPOINT_NAME}", seen.encode())


def _require_same(leaf: bytes, known: KnownLog) -> None:
    if leaf != known.leaf:
        raise _Refused(
            "changed", f"its entry {known.size} is another one than was stated: its past was changed"
        )


def _leaf(entry: StoredEntry) -> bytes:
    return leaf(entry.seq, entry.epoch, entry.covered, entry.chain)


def _session_of(known: KnownLog) -> SessionId | None:
    kind, _, id = known.log.partition(":")
    return SessionId(id) if kind == "session" else None


def _state_of(status: str) -> str:
    return "closed" if status == "closed" else "rest" if status in AT_REST else "open"
