"""The rollout's file: an export of the stream that Codex's `resume` opens.

The stream is the truth. The file is brought up to date when the session has rested a moment,
before `shutdown_complete` and before `conversation_path` is answered. It holds Codex's line
shapes with our own fields beside them; facts of the one own type are left out, but for
their place in the chain (`omitted`), so that the file can be verified without Redis. What a
fork inherited is in it item by item (`inherited_lines`): the file needs no other.

When Redis has lost the log's end, the file may hold lines of it, and what is in the log now does not
follow them. So nothing is appended to a line before it is known to be the log's; a file that ends with
another is written anew.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import orjson

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import LogPlace, StoredEntry
from orchestrator.core.blobs import may_refer, references, resolve
from orchestrator.core.chain import GENESIS, next_chain
from orchestrator.core.facts import Redacted
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId, created_ms
from orchestrator.private_files import make_folder, open_file
from orchestrator.rollouts.archive import Archive
from orchestrator.rollouts.full_log import read_all
from orchestrator.rollouts.inherited_lines import LogLine, inherited_lines, is_fork, missing_texts
from orchestrator.rollouts.segments import BrokenArchive

# ── files ─────────────────────────────────────────────────────────────────────────────────────────
# The disk, as far as rollouts' files need it: one file at a time, locked for its user.
#
# Files of sessions are all that the runtime itself writes to a disk. The simulation replaces this port.


Files = Callable[[Path], AbstractContextManager[BinaryIO]]


@contextmanager
def locked(path: Path) -> Iterator[BinaryIO]:
    """A file to read and to append to, which is made if it is missing, with its folder.

    A second caller waits for the lock: the session may have been claimed elsewhere by now.
    """
    with _opened(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _opened(path: Path) -> BinaryIO:
    flags = os.O_RDWR | os.O_APPEND
    try:
        descriptor = open_file(path, flags)
    except FileNotFoundError:
        make_folder(path.parent)
        descriptor = open_file(path, flags)
    return os.fdopen(descriptor, "a+b")


# ── rollout file ──────────────────────────────────────────────────────────────────────────────────


log = logging.getLogger("dendro.runtime")

_REDACTED = Redacted.kind.encode()
_TAIL_BYTES = 1 << 16
_NEAR_BYTES = 1 << 12
"""The distance at which a last line is looked for first: few are longer."""
_LONGEST_LINE = 16 << 20
"""The longest distance from a file's end at which a note of its last entry is looked for."""


class FileTexts(Protocol):
    """Large texts by their hashes."""

    async def fetch(self, tree: TreeId, digests: Iterable[str]) -> None:
        """Makes texts available to `get`."""
        ...

    def get(self, digest: str) -> str | None:
        """A text that was fetched."""
        ...


class FilePorts(Protocol):
    """The sources of the file, and the port that writes it."""

    @property
    def broker(self) -> Broker: ...

    @property
    def texts(self) -> FileTexts: ...

    @property
    def archive(self) -> Archive | None: ...

    @property
    def files(self) -> Files: ...


@record
class FileLine:
    """The `seq` of a line's entry in the file, and the chain's value there."""

    seq: int
    head: bytes


NOTHING = FileLine(0, GENESIS)


@record
class LogPart:
    """A stretch of a session's log, up to an end of it that its writer knows."""

    end: LogPlace
    entries: Sequence[StoredEntry] = ()

    def joins(self, line: FileLine, secret: bytes) -> bool:
        """Whether it is certain, without a look at the log, that the line is an entry of the same log."""
        if line.seq == 0 or (line.seq, line.head) == (self.end.seq, self.end.head):
            return True
        for entry in self.entries:
            if entry.seq == line.seq:
                return entry.chain == line.head
            if entry.seq == line.seq + 1:
                return next_chain(line.head, entry.seq, entry.epoch, entry.covered, secret) == entry.chain
        return False


@record
class Judged:
    """The last line of a file as it was once, and whether the log has such an entry."""

    line: FileLine
    true: bool


class RolloutFile:
    """A session's file. The worker that brought the session to rest writes it, under the file's lock."""

    def __init__(self, path: Path, session: SessionId, tree: TreeId, secret: bytes = b"") -> None:
        """`secret` keys the chain; a wrong secret costs a read of the log, and is no error."""
        self._path = path
        self._session = session
        self._tree = tree
        self._secret = secret

    async def bring_up_to(self, ports: FilePorts, end: LogPlace, fresh: Sequence[StoredEntry] = ()) -> int:
        """Appends what the file lacks of the log; `fresh` are entries that the caller has: they are not read.

        Returns the `seq` of the last line: facts behind it are owed to the line after them. Raises
        `OSError` where the file cannot be written, `BrokenArchive` or `ArchiveUnavailable` where the log
        cannot be read: a file with a hole would verify as altered.
        """
        part, judged = LogPart(end, [entry for entry in fresh if entry.seq <= end.seq]), None
        while True:
            await self._fetch_texts(ports, part.entries)
            last, whole = self._append(part, judged, ports)
            if whole:
                return last.seq
            judged = await self._judged(ports, last)
            part = LogPart(end, await self._read(ports, last.seq if judged.true else 0, end.seq))

    def _append(self, part: LogPart, judged: Judged | None, ports: FilePorts) -> tuple[FileLine, bool]:
        """The file's last line, and whether it is up to date now: if not, more must be read for it.

        Awaits nothing: under the file's lock the event loop would wait for itself, when this very
        process has claimed the session again and comes here for it.
        """
        with ports.files(self._path) as file:
            last = self._last_line(file)
            if judged == Judged(last, False):
                log.warning("session %s: its file held what Redis has lost, and is made anew", self._session)
                file.truncate(0)
                last = NOTHING
            elif judged != Judged(last, True) and not part.joins(last, self._secret):
                return last, False
            lacking = [LogLine(entry) for entry in part.entries if entry.seq > last.seq]
            redacted = (line.kind is Redacted for line in lacking if _REDACTED in line.stored.payload)
            if last.seq and any(redacted):
                # Its lines may have the text of what was redacted since.
                file.truncate(0)
                return NOTHING, False
            if last.seq < part.end.seq and (not lacking or lacking[0].stored.seq != last.seq + 1):
                return last, False
            file.write(b"".join(export_lines(lacking, ports.texts.get)))
            left = (line for line in reversed(lacking) if not line.stored.digest and not line.is_fact)
            shown = next((line.stored for line in left), None)
            return FileLine(shown.seq, shown.chain) if shown else last, True

    def _last_line(self, file: BinaryIO) -> FileLine:
        try:
            return last_line(file)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("session %s: its file is damaged, and is made anew: %s", self._session, error)
            file.truncate(0)
            return NOTHING

    async def _judged(self, ports: FilePorts, line: FileLine) -> Judged:
        if line.seq == 0:
            return Judged(line, True)
        try:
            (entry,) = await self._read(ports, line.seq - 1, line.seq)
        except BrokenArchive:
            return Judged(line, False)
        return Judged(line, entry.chain == line.head)

    async def _fetch_texts(self, ports: FilePorts, entries: Sequence[StoredEntry]) -> None:
        asked: set[str] = set()
        lines = [LogLine(entry) for entry in entries if may_refer(entry.payload) or is_fork(entry.payload)]
        while lines and (missing := missing_texts(lines, ports.texts.get) - asked):
            asked |= missing
            await ports.texts.fetch(self._tree, missing)

    async def _read(self, ports: FilePorts, after: int, through: int) -> list[StoredEntry]:
        return list(await read_all(ports.broker.logs, ports.archive, self._session, after, through))


def export_lines(lines: Iterable[LogLine], text_of: Callable[[str], str | None]) -> Iterator[bytes]:
    """The file's lines. Facts become the `omitted` of the line after them: their place in the chain.

    Large texts are put back in. A verifier takes them out again by the same rule, which
    gives the stored bytes that the chain covers.
    """
    omitted: list[list[Any]] = []
    inherited: list[bytes] = []
    for line in lines:
        entry = line.stored
        if line.is_fact or entry.digest:
            # Of one that was redacted a reader gets what it gets of a fact: its place.
            omitted.append([entry.seq, entry.epoch, entry.covered.hex()])
            inherited += [] if entry.digest else inherited_lines(line, text_of)
            continue
        # Only with the line that names their fact's digest: they have no place of their own.
        yield from inherited
        data = entry.payload
        if may_refer(data):
            value = line.value
            data = orjson.dumps({**value, "payload": resolve(value["payload"], text_of)})
        place: dict[str, Any] = {"seq": entry.seq, "epoch": entry.epoch}
        place |= {"salt": entry.salt.hex(), "chain": entry.chain.hex()}
        if omitted:
            place["omitted"] = omitted
        # A line is stored as it is written here: its place goes in before its last brace.
        yield b"".join((data[:-1], b",", orjson.dumps(place)[1:], b"\n"))
        omitted, inherited = [], []


def blob_hashes(entries: Iterable[StoredEntry]) -> set[str]:
    """The texts that entries refer to."""
    mentioning = (orjson.loads(entry.payload) for entry in entries if may_refer(entry.payload))
    return {digest for value in mentioning for digest in references(value)}


def last_noted(file: BinaryIO) -> FileLine:
    """The last entry that a file has a whole line of, `NOTHING` if none is near its end; changes nothing."""
    size = file.seek(0, 2)
    for reach in (_TAIL_BYTES, _LONGEST_LINE):
        file.seek(max(0, size - reach))
        for line in reversed(file.read().split(b"\n")):
            try:
                return _place(orjson.loads(line))
            except (ValueError, KeyError, TypeError):
                # Torn, a part of a line, or of what has no place in the chain.
                continue
    return NOTHING


def last_line(file: BinaryIO) -> FileLine:
    """The entry of the file's last whole line; `NOTHING` if the file has none.

    What a crash tore is cut off, a line or what was inherited before it: the stream still has
    it, and it is written again.
    """
    size = file.seek(0, 2)
    start, reach = size, _NEAR_BYTES
    while True:
        start, reach = max(0, start - reach), _TAIL_BYTES
        file.seek(start)
        tail = file.read()
        end = tail.rfind(b"\n") + 1
        begin = tail.rfind(b"\n", 0, max(0, end - 1)) + 1
        if (end and begin) or start == 0:
            break
    if start + end < size:
        file.truncate(start + end)
    if not end:
        return NOTHING
    last = orjson.loads(tail[begin:end])
    return _place(last) if "seq" in last else _cut_inherited(file)


def _place(line: Mapping[str, Any]) -> FileLine:
    return FileLine(int(line["seq"]), bytes.fromhex(line["chain"]))


def _cut_inherited(file: BinaryIO) -> FileLine:
    """Cuts a run of inherited lines that lacks its end; they stand near the file's beginning."""
    file.seek(0)
    kept, last, at = 0, NOTHING, 0
    for line in file:
        at += len(line)
        value = orjson.loads(line)
        if "seq" in value:
            kept, last = at, _place(value)
    file.truncate(kept)
    return last


# ── rollout path ──────────────────────────────────────────────────────────────────────────────────
# The path of a session's rollout file: in a folder for its day, under its time and id.


def rollout_path(sessions: Path, session: str, at_ms: int) -> Path:
    """`<sessions>/YYYY/MM/DD/rollout-<time>-<session id>.jsonl`, in local time as Codex has it."""
    moment = datetime.fromtimestamp(at_ms / 1000)
    return _day(sessions, moment) / f"rollout-{moment:%Y-%m-%dT%H-%M-%S}-{session}.jsonl"


def days_of(sessions: Path, session: SessionId) -> tuple[Path, ...]:
    """The folders that a session's file may lie in, by its id alone.

    Days are local: the machine may have been in another time zone when it made the file.
    """
    made = datetime.fromtimestamp(created_ms(session) / 1000)
    return tuple(_day(sessions, made + timedelta(days=days)) for days in (-1, 0, 1))


def _day(sessions: Path, moment: datetime) -> Path:
    return sessions / f"{moment:%Y}" / f"{moment:%m}" / f"{moment:%d}"


def path_beside(path: str | None, session: str, at_ms: int) -> str | None:
    """The path of another session's file in the same place; None if there is none."""
    return str(rollout_path(Path(path).parents[3], session, at_ms)) if path else None
