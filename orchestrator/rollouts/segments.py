"""Archive segments: what a sealed stretch of a log looks like outside of Redis.

A segment is zstandard-compressed JSONL with one stored entry per line, byte-exact, so that
the hash chain verifies over it as it does over the stream. A manifest lists the segments of
one session in order; Redis keeps it beside the session. Pure: bytes in, bytes out.

A segment's name holds the chain value of its last entry, so one name can only ever mean one
content: a writer that lost its session, or a branch of the log that Redis has forgotten,
cannot overwrite what a manifest names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from dataclasses import fields as fields_of
from io import BytesIO
from itertools import pairwise, zip_longest
from typing import Any

import orjson
import zstandard

from orchestrator.broker.records import StoredEntry
from orchestrator.core.chain import GENESIS, Link, first_broken
from orchestrator.core.frozen import record
from orchestrator.rollouts import BrokenArchive as BrokenArchive

VERSION = 1
_LEVEL = 9
ENDING = ".jsonl.zst"
_NAME = re.compile(r"[0-9]+-([0-9]{1,18})-[0-9a-f]{8}(?:-[0-9a-f]{8})?\.jsonl\.zst")
"""Of a segment that was written anew, since entries of it were redacted, with a hash of its content."""
MAX_SEGMENT_BYTES = 256 << 20
"""Most bytes unpacked of a segment: far above what is written, below what would exhaust memory."""


@record
class Segment:
    """An object of the archive. `sha256` and `bytes` are of the plain JSONL, not of the compressed object."""

    name: str
    first: int
    last: int
    before: str
    """Hex of the chain value before the first entry."""
    after: str
    sha256: str
    bytes: int


@record
class Manifest:
    """The sealed part of one session's log, oldest segment first."""

    segments: tuple[Segment, ...] = ()

    @property
    def last(self) -> int:
        return self.segments[-1].last if self.segments else 0

    @property
    def head(self) -> bytes:
        """The chain value after the last sealed entry."""
        return bytes.fromhex(self.segments[-1].after) if self.segments else GENESIS

    def with_segment(self, segment: Segment) -> Manifest:
        return Manifest((*self.segments, segment))

    def encode(self) -> bytes:
        return orjson.dumps({"version": VERSION, "segments": [asdict(s) for s in self.segments]})

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Empty bytes are the manifest of a session that was never sealed; raises `BrokenArchive`."""
        if not data:
            return cls()
        try:
            value = orjson.loads(data)
            if value["version"] != VERSION:
                raise BrokenArchive(f"the manifest has version {value['version']}; a newer Dendro wrote it")
            manifest = cls(tuple(_segment(fields) for fields in value["segments"]))
        except (ValueError, KeyError, TypeError) as error:
            raise BrokenArchive(f"the manifest cannot be read: {error}") from error
        manifest._check_gapless()
        return manifest

    async def entries(
        self,
        read: Callable[[Segment], Awaitable[Iterable[StoredEntry]]],
        after: int,
        through: int | None = None,
    ) -> AsyncIterator[StoredEntry]:
        """The entries after one up to another, in order; `read` is asked for the segments that have them."""
        last = self.last if through is None else through
        for segment in self.segments:
            if segment.last <= after or segment.first > last:
                continue
            for entry in await read(segment):
                if after < entry.seq <= last:
                    yield entry

    def _check_gapless(self) -> None:
        for earlier, later in pairwise(self.segments):
            if later.first != earlier.last + 1 or later.before != earlier.after:
                raise BrokenArchive(f"segment {later.name} does not follow from {earlier.name}")


def _segment(fields: dict[str, Any]) -> Segment:
    # A newer version may say more of a segment than this one knows.
    return Segment(**{name: fields[name] for name in (spec.name for spec in fields_of(Segment))})


def segment_of(folder: str, before: bytes, entries: Sequence[StoredEntry], plain: bytes) -> Segment:
    """The manifest's record of `entries`, whose JSONL is `plain`."""
    first, last, after = entries[0].seq, entries[-1].seq, entries[-1].chain.hex()
    return Segment(
        name=f"{folder}/{first}-{last}-{after[:8]}{ENDING}",
        first=first,
        last=last,
        before=before.hex(),
        after=after,
        sha256=hashlib.sha256(plain).hexdigest(),
        bytes=len(plain),
    )


def last_of(name: str) -> int:
    """The last entry that a segment holds, by its name below its session's folder; 0 for another object."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else 0


def encode_entries(entries: Sequence[StoredEntry]) -> bytes:
    """The JSONL of a segment."""
    return b"".join(_line(entry) for entry in entries)


def _line(entry: StoredEntry) -> bytes:
    place = {"seq": entry.seq, "epoch": entry.epoch, "salt": entry.salt.hex(), "chain": entry.chain.hex()}
    if entry.digest:
        place = {**place, "digest": entry.digest.hex()}
    try:
        stored: dict[str, str] = {"payload": entry.payload.decode()}
    except UnicodeDecodeError:
        stored = {"payload_hex": entry.payload.hex()}
    return orjson.dumps({**place, **stored}) + b"\n"


def _entry(line: bytes) -> StoredEntry:
    value = orjson.loads(line)
    payload = bytes.fromhex(value["payload_hex"]) if "payload_hex" in value else value["payload"].encode()
    salt, chain = bytes.fromhex(value["salt"]), bytes.fromhex(value["chain"])
    digest = bytes.fromhex(value.get("digest", ""))
    return StoredEntry(value["seq"], value["epoch"], payload, salt, chain, digest)


def pack(plain: bytes) -> bytes:
    return zstandard.compress(plain, _LEVEL)


def unpack(name: str, packed: bytes) -> bytes:
    try:
        # The bound of `decompress` is for frames that do not say their size.
        if zstandard.frame_content_size(packed) > MAX_SEGMENT_BYTES:
            raise BrokenArchive(f"archive object {name} has more than {MAX_SEGMENT_BYTES:,} bytes")
        return zstandard.decompress(packed, max_output_size=MAX_SEGMENT_BYTES)
    except zstandard.ZstdError as error:
        raise BrokenArchive(f"archive object {name} cannot be unpacked: {error}") from error


def decode_segment(segment: Segment, packed: bytes, secret: bytes) -> tuple[StoredEntry, ...]:
    """The entries of a segment, proved against the manifest and the chain; raises `BrokenArchive`."""
    entries = tuple(_entries(segment, _sealed(segment, packed)))
    _require_whole(segment, entries, secret)
    return entries


def require_readable(segment: Segment, packed: bytes, entries: Sequence[StoredEntry], secret: bytes) -> None:
    """Raises `BrokenArchive` unless the packed segment holds these entries; reads one at a time."""
    _require_whole(segment, entries, secret)
    found = _entries(segment, _sealed(segment, packed))
    if any(read != entry for read, entry in zip_longest(found, entries)):
        raise BrokenArchive(f"{segment.name} would not be read as it was written")


def _sealed(segment: Segment, packed: bytes) -> bytes:
    plain = unpack(segment.name, packed)
    if hashlib.sha256(plain).hexdigest() != segment.sha256:
        raise BrokenArchive(f"archive object {segment.name} is not what was sealed: its hash differs")
    return plain


def _require_whole(segment: Segment, entries: Sequence[StoredEntry], secret: bytes) -> None:
    broken = first_broken(links_of(entries), bytes.fromhex(segment.before), secret)
    if broken is not None:
        raise BrokenArchive(f"archive object {segment.name}: entry {broken.seq}: {broken.reason}")
    numbered = bool(entries) and (entries[0].seq, entries[-1].seq) == (segment.first, segment.last)
    if not numbered or entries[-1].chain.hex() != segment.after:
        raise BrokenArchive(f"archive object {segment.name} does not hold {segment.first}-{segment.last}")


def _entries(segment: Segment, plain: bytes) -> Iterator[StoredEntry]:
    try:
        yield from (_entry(line) for line in BytesIO(plain) if line != b"\n")
    except (ValueError, KeyError) as error:
        raise BrokenArchive(f"archive object {segment.name} has a line that is no entry: {error}") from error


def links_of(entries: Sequence[StoredEntry]) -> Iterator[Link]:
    """Entries as the chain sees them."""
    return (Link(e.seq, e.epoch, e.covered, e.chain) for e in entries)
