"""Folding a log for a person: from the stream or from a file, with the chain checked on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from orchestrator.broker.records import SessionHead
from orchestrator.core.chain import GENESIS, BrokenLink, ChainKey, ChainWalk
from orchestrator.core.entries import DENDRO, Entry, decode_entry, encode_entry, shows_only
from orchestrator.core.evolve import evolve
from orchestrator.core.facts import Redacted, decode
from orchestrator.core.frozen import record
from orchestrator.core.snapshot import digest
from orchestrator.core.state import State
from orchestrator.rollouts import RolloutError, file_format
from orchestrator.rollouts.chain_check import is_keyed
from orchestrator.rollouts.full_log import pages, response_ended
from orchestrator.rollouts.log_source import LogSource
from orchestrator.rollouts.segments import links_of
from orchestrator.rollouts.verify import audit_file, unchecked_for


@record
class LiveFold:
    """The digest of the state that the last worker had folded when it brought the session to rest."""

    seq: int
    sha256: str

    @classmethod
    def of(cls, head: SessionHead) -> LiveFold | None:
        meta = head.summary
        return cls(meta["seq"], meta["state_sha256"]) if meta.get("state_sha256") else None

    @classmethod
    def from_header(cls, header: file_format.Header | None) -> LiveFold | None:
        if header is None or not header.state_sha256:
            return None
        return cls(header.state_seq, header.state_sha256)


@dataclass(slots=True)
class Folded:
    """A state and how it came about."""

    kind: file_format.Kind | None
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
    turn_ends: dict[str, int] = field(default_factory=dict)
    """The entries of a session's log with which turns ended, by response."""
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
            self.sha256_then = digest(self.state, again=False)


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
            result.redacted += bool(stored.digest)
            if not shows_only(stored.payload):
                entry = decode_entry(stored.payload)
                result.state = evolve(result.state, entry, stored.seq)
                if response := response_ended(entry):
                    result.turn_ends[response] = stored.seq
            result.lines += 1
            result.passed(stored.seq)
        result.head = walk.head
    if result.seq < through:
        result.broken = BrokenLink(result.seq + 1, f"missing: the log should go on to {through}")
    return result


def fold_file(path: Path, at: int | None, key: ChainKey | None, *, accept_old_header: bool = False) -> Folded:
    """Folds what a file holds. A foreign one has no chain; its lines are counted instead.

    What `verify` finds in an export is found here, too; with an `at` before its end, what does not follow up
    to there. Nothing is folded of an export whose chain cannot be checked here. Raises `RolloutError` for a
    line that cannot be read or folded.
    """
    result = Folded(None)
    with path.open("rb") as file:
        try:
            text = file_format.read_rollout(file_format.lines_in(file))
            result.kind, result.live = text.kind, LiveFold.from_header(text.header)
            if text.kind != "foreign":
                report = audit_file(path, key, None, accept_old_header=accept_old_header)
                end = text.header.seq if text.header is not None else report.seq + 1
                found = report.findings if at is None or at >= end else ()
                result.unchecked, result.broken = report.unchecked, next(iter(found), None)
            if not result.unchecked:
                _Fold(text, result, key, instead_in(path, {})).run(at)
        except file_format.BadLine as error:
            if result.broken is None:
                raise RolloutError(f"{path}: {error}") from None
    return result


def instead_in(path: Path, keep: dict[str, bytes] | None = None) -> dict[int, Entry]:
    """The entries that stand instead of those which facts in a full export say were redacted.

    With `keep` large texts are taken out of them, as out of a file's other entries, and go there under their
    hashes.
    """
    with path.open("rb") as file:
        return instead_of(file_format.lines_in(file), keep)


def instead_of(lines: Iterable[bytes], keep: dict[str, bytes] | None = None) -> dict[int, Entry]:
    """The same of the lines of one."""
    found: dict[int, Entry] = {}
    for line in lines:
        if Redacted.kind.encode() not in line:
            continue
        try:
            value = orjson.loads(line)
            stated = decode(value["payload"]) if value["type"] == DENDRO else None
            if isinstance(stated, Redacted):
                instead = stated.instead
                entry = Entry(instead["type"], instead["payload"], instead.get("id", ""))
                found[stated.seq] = entry if keep is None else encode_entry(entry, 0, keep).entry
        except (ValueError, KeyError, TypeError, AttributeError):
            # Another entry that has these words; a damaged one is told of by who reads it.
            continue
    return found


class _Fold:
    """The fold of a file's lines into `result`, up to the first one that does not follow."""

    def __init__(
        self,
        text: file_format.RolloutText,
        result: Folded,
        key: ChainKey | None,
        instead: Mapping[int, Entry],
    ) -> None:
        """`instead` stands in the place of entries that were redacted."""
        self._text, self._result, self._instead = text, result, instead
        self._walk = file_format.FileWalk(key.secret if key else b"")

    def run(self, at: int | None) -> None:
        """Up to entry `at`, or to the end."""
        result = self._result
        for line in self._text.lines:
            seq = result.seq + (line.inherited is None)
            seq = line.place.seq if line.place else seq
            if at is not None and seq > at:
                return
            if self._text.kind != "foreign":
                broken = self._walk.take_line(line)
                if broken is not None:
                    result.broken = result.broken or broken
                    return
            elif line.fault:
                raise file_format.BadLine(line.number, line.fault)
            if not line.tree_seq:
                self._take(line, seq)

    def _take(self, line: file_format.FileLine, seq: int) -> None:
        result = self._result
        result.lines += 1
        result.omitted += len(line.omitted)
        entry = line.entry
        if entry is None:
            result.redacted += 1
            entry = self._instead.get(seq)
        if entry is not None:
            try:
                result.state = evolve(result.state, entry, seq)
            except (KeyError, TypeError, ValueError) as error:
                raise file_format.BadLine(
                    line.number, f"it does not fit what came before ({error})"
                ) from None
        result.passed(seq)
        result.head = self._walk.head
