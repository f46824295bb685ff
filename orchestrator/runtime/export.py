"""The rollout's file: an export of the stream that the peer's `resume` opens.

The stream is the truth. The file is brought up to date when the session comes to rest,
before `shutdown_complete` and before `conversation_path` is told. It holds the peer's line
shapes with our own fields beside them; facts of the one own type are left out, but for
their place in the chain (`omitted`), so that the file can be verified without Redis. What a
fork inherited stands in it item by item (`inherited_lines`): the file needs no other.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from orchestrator.broker.records import StoredEntry
from orchestrator.core.blobs import REFERENCE, references, resolve
from orchestrator.core.chain import payload_digest
from orchestrator.core.entries import DENDRO
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.runtime.full_log import read_all
from orchestrator.runtime.inherited_lines import inherited_lines, missing_texts
from orchestrator.runtime.log import log
from orchestrator.runtime.ports import Ports
from orchestrator.runtime.segments import BrokenArchive

_TAIL_BYTES = 1 << 16
_REFERS = f'"{REFERENCE}"'.encode()


class RolloutFile:
    """One session's file. Whoever has brought the session to rest writes it, under the file's lock."""

    def __init__(self, path: Path, session: SessionId, tree: TreeId) -> None:
        self._path = path
        self._session = session
        self._tree = tree

    async def bring_up_to(self, ports: Ports, seq: int, fresh: Sequence[StoredEntry] = ()) -> int:
        """Appends what the file lacks up to `seq`; `fresh` saves reading what the caller still has.

        Answers the `seq` of the last line: facts behind it are owed to the line after them.
        """
        entries = [entry for entry in fresh if entry.seq <= seq]
        while True:
            await self._fetch_texts(ports, entries)
            through, whole = self._append(entries, seq, ports.texts.get)
            if whole:
                return through
            try:
                entries = await self._read(ports, through, seq)
            except BrokenArchive as error:
                # A file with a hole would verify as altered; the session itself goes on without one.
                log.warning("session %s: its file was not brought up to date: %s", self._session, error)
                return through

    def _append(
        self, entries: Sequence[StoredEntry], seq: int, text_of: Callable[[str], str | None]
    ) -> tuple[int, bool]:
        """The file's last `seq`, and whether `entries` were enough to bring it up to date.

        Awaits nothing: under the file's lock the event loop would wait for itself, when this very
        process has claimed the session again and comes here for it.
        """
        with _opened(self._path) as file:
            # The session may be claimed elsewhere by now: its next holder waits here.
            fcntl.flock(file, fcntl.LOCK_EX)
            through = last_exported(file)
            lacking = [entry for entry in entries if entry.seq > through]
            if through < seq and (not lacking or lacking[0].seq != through + 1):
                return through, False
            file.write(b"".join(export_lines(lacking, text_of)))
            return next((e.seq for e in reversed(lacking) if not is_fact(e)), through), True

    async def _fetch_texts(self, ports: Ports, entries: Sequence[StoredEntry]) -> None:
        asked: set[str] = set()
        while missing := missing_texts(entries, ports.texts.get) - asked:
            asked |= missing
            await ports.texts.fetch(self._tree, missing)

    async def _read(self, ports: Ports, after: int, through: int) -> list[StoredEntry]:
        return list(await read_all(ports.broker, ports.archive, self._session, after, through))


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("a+b")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+b")


def is_fact(entry: StoredEntry) -> bool:
    """Whether an entry is of the one own type, which the peer's format has no line for."""
    return bool(orjson.loads(entry.payload)["type"] == DENDRO)


def export_lines(entries: Iterable[StoredEntry], text_of: Callable[[str], str | None]) -> Iterator[bytes]:
    """The file's lines. Facts become the `omitted` of the line after them: their place in the chain.

    Large texts are put back in. A verifier takes them out again by the same rule, which
    gives the stored bytes that the chain covers.
    """
    omitted: list[list[Any]] = []
    inherited: list[bytes] = []
    for entry in entries:
        value = orjson.loads(entry.payload)
        if value["type"] == DENDRO:
            omitted.append([entry.seq, entry.epoch, payload_digest(entry.salt, entry.payload).hex()])
            inherited += inherited_lines(entry, text_of)
            continue
        # Only with the line that names their fact's digest: they have no place of their own.
        yield from inherited
        if _REFERS in entry.payload:
            value["payload"] = resolve(value["payload"], text_of)
        place = {"seq": entry.seq, "epoch": entry.epoch, "salt": entry.salt.hex(), "chain": entry.chain.hex()}
        yield orjson.dumps({**value, **place, **({"omitted": omitted} if omitted else {})}) + b"\n"
        omitted, inherited = [], []


def blob_hashes(entries: Iterable[StoredEntry]) -> set[str]:
    """The texts that entries refer to."""
    mentioning = (orjson.loads(entry.payload) for entry in entries if _REFERS in entry.payload)
    return {digest for value in mentioning for digest in references(value)}


def last_exported(file: BinaryIO) -> int:
    """The `seq` of the file's last whole line; 0 if it has none.

    What a crash tore is cut off, a line or what was inherited before it: the stream still has
    it, and it is written again.
    """
    size = file.seek(0, 2)
    start = size
    while True:
        start = max(0, start - _TAIL_BYTES)
        file.seek(start)
        tail = file.read()
        end = tail.rfind(b"\n") + 1
        begin = tail.rfind(b"\n", 0, max(0, end - 1)) + 1
        if (end and begin) or start == 0:
            break
    if start + end < size:
        file.truncate(start + end)
    if not end:
        return 0
    last = orjson.loads(tail[begin:end])
    return int(last["seq"]) if "seq" in last else _cut_inherited(file)


def _cut_inherited(file: BinaryIO) -> int:
    """Cuts a run of inherited lines that lacks its end; they stand near the file's beginning."""
    file.seek(0)
    kept, seq, at = 0, 0, 0
    for line in file:
        at += len(line)
        value = orjson.loads(line)
        if "seq" in value:
            kept, seq = at, int(value["seq"])
    file.truncate(kept)
    return seq
