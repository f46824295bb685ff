"""Folding a log for a person: from the stream or from a file, with the chain checked on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import orjson

from orchestrator.broker.records import SessionHead
from orchestrator.core.chain import GENESIS, NOT_FOLLOWING, BrokenLink, ChainKey, ChainWalk
from orchestrator.core.entries import DENDRO
from orchestrator.core.entries.stored import decode_entry
from orchestrator.core.evolve import evolve
from orchestrator.core.facts import Configured, states
from orchestrator.core.snapshot import digest
from orchestrator.core.state import State
from orchestrator.rollouts.audit import is_keyed
from orchestrator.rollouts.errors import RolloutError
from orchestrator.rollouts.file_format import (
    BadLine,
    FileLine,
    FileWalk,
    Header,
    Kind,
    RolloutText,
    read_rollout,
)
from orchestrator.rollouts.full_log import pages
from orchestrator.rollouts.segments import links_of
from orchestrator.rollouts.source import LogSource
from orchestrator.rollouts.verify import unchecked_for
from orchestrator.rollouts.verify_file import header_lacks_code, keyed_elsewhere


@dataclass(frozen=True, slots=True)
class LiveFold:
    """The digest of the state that the last worker had folded when it brought the session to rest."""

    seq: int
    sha256: str

    @classmethod
    def of(cls, head: SessionHead) -> LiveFold | None:
        meta = orjson.loads(head.meta) if head.meta else {}
        return cls(meta["seq"], meta["state_sha256"]) if meta.get("state_sha256") else None

    @classmethod
    def from_header(cls, header: Header | None) -> LiveFold | None:
        if header is None or not header.state_sha256:
            return None
        return cls(header.state_seq, header.state_sha256)


@dataclass(slots=True)
class Folded:
    """A state and how it came about."""

    kind: Kind | None
    """The kind of the file that the state is from; None for a session's stream."""
    state: State = field(default_factory=State)
    seq: int = 0
    head: bytes = GENESIS
    broken: BrokenLink | None = None
    unchecked: str = ""
    """Why the chain could not be checked here, where it is keyed otherwise; nothing is folded then."""
    lines: int = 0
    omitted: int = 0
    redacted: int = 0
    live: LiveFold | None = None
    sha256_then: str = ""
    """The digest of this fold at the live fold's `seq`; empty if it was not passed."""

    @property
    def complete(self) -> bool:
        """Whether every entry was there to be folded; only then can states be compared."""
        return self.kind in (None, "full") and not self.redacted

    @property
    def matches(self) -> bool | None:
        """Whether this fold is the live one's; None if there is nothing to compare."""
        if self.live is None or not self.sha256_then or not self.complete:
            return None
        return self.sha256_then == self.live.sha256

    def passed(self, seq: int) -> None:
        """Notes that the state is the one after entry `seq`."""
        self.seq = seq
        if self.live is not None and seq == self.live.seq:
            self.sha256_then = digest(self.state)


async def fold_session(found: LogSource, head: SessionHead, at: int | None) -> Folded:
    """Folds a session's log up to `at` or its end; stops before the first entry that does not follow."""
    through = head.seq if at is None else min(at, head.seq)
    result = Folded(None, live=LiveFold.of(head))
    walk = ChainWalk(found.secret)
    async for page in pages(found.log(head.session, through)):
        links = tuple(links_of(page))
        result.broken = walk.take(links)
        if result.broken is not None:
            if not found.secret and is_keyed(links, result.broken):
                result.broken, result.unchecked = None, unchecked_for("")
            return result
        for stored in page:
            result.state = evolve(result.state, decode_entry(stored.payload), stored.seq)
            result.lines += 1
            result.passed(stored.seq)
        result.head = walk.head
    if result.seq < through:
        result.broken = BrokenLink(result.seq + 1, f"missing: the log should go on to {through}")
    return result


def fold_file(path: Path, at: int | None, key: ChainKey | None, *, accept_old_header: bool = False) -> Folded:
    """Folds what a file holds. A foreign one has no chain; its lines are counted instead.

    Raises `RolloutError` for a line that cannot be read or folded.
    """
    with path.open("rb") as file:
        try:
            text = read_rollout(file)
            result = Folded(text.kind, live=LiveFold.from_header(text.header))
            if elsewhere := keyed_elsewhere(text.header, key):
                result.unchecked = unchecked_for(elsewhere)
            else:
                _Fold(text, result, key, accept_old_header).run(at)
        except BadLine as error:
            raise RolloutError(f"{path}: {error}") from None
    return result


class _Fold:
    """The fold of a file's lines into `result`."""

    def __init__(self, text: RolloutText, result: Folded, key: ChainKey | None, accept_old: bool) -> None:
        self._text, self._result, self._key, self._accept_old = text, result, key, accept_old
        self._walk = FileWalk(key.secret if key else b"")
        self._export_mac = False

    def run(self, at: int | None) -> None:
        """Up to entry `at`, or to the end, which must be where the first line says."""
        result = self._result
        for line in self._text.lines:
            seq = result.seq + (line.inherited is None)
            seq = line.place.seq if line.place else seq
            if at is not None and seq > at:
                return
            if self._text.kind != "foreign":
                result.broken = self._walk.take_line(line)
                if result.broken is not None:
                    self._keyed_otherwise()
                    return
            elif line.fault:
                raise BadLine(line.number, line.fault)
            if not line.tree_seq:
                self._take(line, seq)
        if at is None:
            result.broken = self._walk.unproved() or self._wrong_end()

    def _take(self, line: FileLine, seq: int) -> None:
        result = self._result
        result.lines += 1
        result.omitted += len(line.omitted)
        if line.entry is None:
            result.redacted += 1
        else:
            try:
                result.state = evolve(result.state, line.entry, seq)
            except (KeyError, TypeError, ValueError) as error:
                raise BadLine(line.number, f"it does not fit what came before ({error})") from None
            if line.entry.type == DENDRO and states(line.entry.payload, Configured):
                self._export_mac |= line.entry.payload.get("export_mac") is True
        result.passed(seq)
        result.head = self._walk.head

    def _keyed_otherwise(self) -> None:
        """A full export's first line says by which key; with another one there is nothing to say of it."""
        header, result = self._text.header, self._result
        other = header is not None and header.key_id and self._key and header.key_id != self._key.id
        if header and other and not result.seq and result.broken and result.broken.reason == NOT_FOLLOWING:
            result.broken, result.unchecked = None, unchecked_for(header.key_id)

    def _wrong_end(self) -> BrokenLink | None:
        header, result = self._text.header, self._result
        if header is None:
            return None
        if result.seq != header.seq:
            return BrokenLink(result.seq + 1, f"missing: the file should go on to {header.seq}")
        secret = self._key.secret if self._key else b""
        return header.fault(secret) or header_lacks_code(
            header, self._key, self._export_mac, self._accept_old
        )
