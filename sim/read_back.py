"""Logs that are exported and read again: by a fold, by verification, and by an import's plan.

What Redis holds when everything has come to rest is written out as a person's commands write it, and each of
their readers must come to what the log says. It reads the double, and sends nothing.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import zstandard

from orchestrator.broker.blobs import Texts
from orchestrator.broker.broker import Broker
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import SessionHead, StoredEntry, TreeEntry
from orchestrator.broker.replies import HEAD_FIELDS, session_head, tree_entry
from orchestrator.core.chain import BrokenLink, ChainKey, ExpectedHead
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.snapshot import digest
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.export import Tally, exported, header_of
from orchestrator.rollouts.file_format import read_rollout
from orchestrator.rollouts.imports import ImportPlan, Newcomer, plan_import
from orchestrator.rollouts.replay import fold_file, fold_session, instead_of
from orchestrator.rollouts.verify import audit_file
from sim.double import Double
from sim.objects import SimObjects
from sim.observer import Observer
from sim.redactions import as_stored
from sim.seen import Seen

OTHER = SessionId("00000000-0000-7000-8000-000000000000")
"""The session that an import makes: of the length of any other's id."""


class _File:
    """Lines that are opened as a file is."""

    def __init__(self, name: str, lines: Iterable[bytes]) -> None:
        self._name, self._content = name, b"".join(lines)

    def open(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._content)

    def __str__(self) -> str:
        return self._name


@dataclass(frozen=True)
class _Source:
    """A log source over what is in the double and the archive, and over a log as it was seen to grow."""

    double: Double
    objects: SimObjects
    seen: Seen
    secret: bytes
    keys: Any

    @property
    def broker(self) -> Broker:
        return cast(Broker, self)

    @property
    def logs(self) -> Logs:
        return cast(Logs, self)

    async def read_tree(self, tree: TreeId, after: int = 0) -> list[TreeEntry]:
        return [tree_entry(*one) for one in self.double.tree_after(self.keys, tree, after)]

    @property
    def texts(self) -> Texts:
        raise AssertionError("texts are asked for by `large_texts`")

    async def log(self, session: SessionId, through: int, after: int = 0) -> AsyncIterator[StoredEntry]:
        for place, fields in self.seen.stored[after:through]:
            yield as_stored(place, fields)

    async def large_texts(self, tree: TreeId, digests: Iterable[str]) -> dict[str, str]:
        packed = {
            digest: self.double.look("GET", self.keys.blob(tree, digest))
            or self.objects.get(f"{tree}/blobs/{digest}.zst")
            for digest in digests
        }
        return {
            digest: zstandard.decompress(content).decode("utf-8", "surrogatepass")
            for digest, content in packed.items()
            if content is not None
        }


class ReadBack:
    """The rule that what is exported says what the log says."""

    def __init__(self, watch: Observer, double: Double, objects: SimObjects, secret: bytes) -> None:
        self._watch, self._double, self._objects, self._secret = watch, double, objects, secret

    def at_rest(self, keys: Any) -> None:
        for session, seen in self._watch.sessions.items():
            fields = self._double.hash(keys.session(session))
            head = session_head(SessionId(session), [fields.get(name.encode()) for name in HEAD_FIELDS])
            if head is not None and seen.seq:
                source = _Source(self._double, self._objects, seen, self._secret, keys)
                try:
                    self._read(session, seen, head, source)
                except (RolloutError, ValueError) as error:
                    self._broken(session, f"its export is refused: {error}")

    def _read(self, session: str, seen: Seen, head: SessionHead, source: _Source) -> None:
        live = _finished(fold_session(source, head, None))
        if live.broken or live.matches is False or digest(live.state) != digest(seen.state):
            self._broken(session, f"its fold is not its state: {live.broken}, {live.matches}")
        lines = [
            header_of(head, "").encode(self._secret) + b"\n",
            *_finished(_lines(source, head, full=True)),
        ]
        key = ChainKey("", self._secret) if self._secret else None
        file = cast(Any, _File(session, lines))
        folded = fold_file(file, None, key)
        if folded.broken or folded.seq != seen.seq or folded.sha256_then != live.sha256_then:
            self._broken(session, f"its file folds to another state: {folded.broken} at {folded.seq}")
        if (
            folded.head != seen.head
            or folded.complete == bool(seen.instead)
            or digest(folded.state) != digest(seen.state)
        ):
            self._broken(session, f"its file folds to another state at {folded.seq}")
        noted = ExpectedHead(seen.seq, seen.head)
        self._verified(session, audit_file(file, key, noted).findings)
        kept: dict[str, bytes] = {}
        text, told = read_rollout(lines, kept), instead_of(lines, kept)
        plan = plan_import(text, _newcomer(seen), kept, key, instead=told)
        self._imported(session, seen, plan)
        shown = _File(session, _finished(_lines(source, head, full=False)))
        self._verified(session, audit_file(cast(Any, shown), key, None).findings)
        if kept:
            self._watch.reach.saw("read_back")

    def _verified(self, session: str, findings: Sequence[BrokenLink]) -> None:
        if findings:
            self._broken(session, f"its file does not verify: {findings}")

    def _imported(self, session: str, seen: Seen, plan: ImportPlan) -> None:
        """An import has the conversation, the settings and the accounts, under an id of its own."""
        mine, its = plan.state, seen.state
        same = all(getattr(mine, name) == getattr(its, name) for name in ("settings", "tokens", "status"))
        said = list(mine.history) == list(its.history)
        if not (same and said and plan.facts.session_id == mine.facts.session_id == OTHER):
            self._broken(session, "an import of its export is another conversation")
        if replace(mine.facts, **_own(seen)) != its.facts or len(plan.entries) != seen.seq:
            self._broken(session, "an import of its export has other facts")

    def _broken(self, session: str, told: str) -> None:
        self._watch.broken("read_back", f"{session}: {told}")


def _own(seen: Seen) -> dict[str, Any]:
    facts = seen.state.facts
    names = ("session_id", "tree_id", "agent_id", "pool", "rollout_path")
    return {name: getattr(facts, name) for name in names}


def _newcomer(seen: Seen) -> Newcomer:
    facts = replace(seen.state.facts, session_id=OTHER, tree_id=TreeId(OTHER), rollout_path=None)
    return Newcomer(facts, seen.state.settings, "0", 1_800_000_000_000)


async def _lines(source: _Source, head: SessionHead, *, full: bool) -> list[bytes]:
    """An export's lines, as a file has them."""
    chunks = [chunk async for chunk in exported(source, head, full, Tally())]
    return b"".join(chunks).splitlines(keepends=True)


def _finished(steps: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never waits."""
    try:
        steps.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something")
