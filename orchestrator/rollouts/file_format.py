"""Rollouts as files: what a full export looks like, and how any exported file is read again.

    full      first a line `{"format": "dendro-rollout", "version": 1, …}`, then every entry
    exported  Codex's line shapes with our own fields beside them; `omitted` stands for facts
    foreign   Codex's own rollout: no place in any chain

A line of the first two is the stored entry with its large texts put back, and its place
(`seq`, `epoch`, `salt`, `chain`) beside it. Taking both away again by the rule that `core`
stores by gives the stored bytes, which is what the chain covers. A redacted entry has lost
payload and salt; its `digest` is left. What a fork inherited is one entry of a full export,
with the texts inside it beside it (`texts`); an exported file has it as lines of their own
(`inherited`), proved by the fact that they stand for. What the tree's log told of a parent's
agents (`tree_seq`) is in no chain of this session's, and kept apart. Pure: lines in, values out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import orjson

from orchestrator.core.blobs import INLINE_BYTES, REFERENCE, externalise, is_reference, references
from orchestrator.core.chain import (
    BrokenLink,
    ChainWalk,
    ExpectedHead,
    Link,
    mac,
    next_chain,
    payload_digest,
    same_mac,
)
from orchestrator.core.entries import Entry
from orchestrator.rollouts.inherited_lines import Inherited, proves, texts_inside
from orchestrator.rollouts.log_line import LogLine

FORMAT = "dendro-rollout"
VERSION = 1
PLACE = frozenset({"seq", "epoch", "salt", "chain", "digest", "omitted", "inherited", "texts"})
"""Fields beside an entry that are not part of it."""

_REFERS = f'"{REFERENCE}"'.encode()

Kind = Literal["full", "exported", "foreign"]


class BadLine(ValueError):
    """A line that is not one of a rollout; the message names its number."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"line {number}: {reason}")
        self.number = number


@dataclass(frozen=True, slots=True)
class Omitted:
    """A fact that an export leaves out: its place in the chain."""

    seq: int
    epoch: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class LinePlace:
    """Where an entry stands in its log, and what ties it to the one before."""

    seq: int
    epoch: int
    digest: bytes
    chain: bytes


@dataclass(frozen=True, slots=True)
class FileLine:
    """A line of a file: an entry (None once redacted), and its place if the file has it."""

    number: int
    timestamp: str
    entry: Entry | None
    place: LinePlace | None
    omitted: tuple[Omitted, ...] = ()
    inherited: Inherited | None = None
    """For a line that stands for a part of a fact: its payload as the file has it, and its mark."""
    texts_missing: int = 0
    """Large texts that it only refers to: they were not stored any more when it was written."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a full export."""

    session_id: str
    pool: str
    seq: int
    head: bytes
    key_id: str = ""
    """Names the key of the chain, if it has one."""
    state_seq: int = 0
    state_sha256: str = ""
    """The live fold's digest, and the entry it was taken at; empty before the session's first rest."""
    mac: str = field(default="", compare=False)
    """Shows that the line is as it was written, with the chain's key if there is one; older files lack it."""

    def encode(self, secret: bytes = b"") -> bytes:
        """The line; `secret` keys the chain."""
        said = self._fields()
        return orjson.dumps({**said, "mac": mac(secret, "export header", orjson.dumps(said))})

    def fault(self, secret: bytes) -> BrokenLink | None:
        """Returns the fault if the line is not as it was written with this key; None for older files."""
        if not self.mac or same_mac(self.mac, mac(secret, "export header", orjson.dumps(self._fields()))):
            return None
        return BrokenLink(0, "the file's first line was changed, or written with another chain key")

    def _fields(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "session_id": self.session_id,
            "pool": self.pool,
            "seq": self.seq,
            "head": self.head.hex(),
            "key_id": self.key_id,
            "state_seq": self.state_seq,
            "state_sha256": self.state_sha256,
        }


@dataclass(frozen=True, slots=True)
class RolloutText:
    """A file that was opened: what it is, and its lines, read as they are asked for."""

    kind: Kind
    header: Header | None
    lines: Iterator[FileLine]
    told: list[Mapping[str, Any]] = field(default_factory=list)
    """What the tree's log told of agents: the events of the lines that were read so far."""


# ── writing ───────────────────────────────────────────────────────────────────────────────────


def full_line(line: LogLine, text_of: Callable[[str], str | None]) -> bytes:
    """An entry of a full export. A text that is not stored any more stays a reference, and so verifies."""
    entry, value = line.stored, line.value
    place = {"seq": entry.seq, "epoch": entry.epoch, "salt": entry.salt.hex(), "chain": entry.chain.hex()}
    if b'"$blob"' in entry.payload:
        value = {**value, "payload": _put_back(value["payload"], text_of)}
    inside = texts_inside(value["payload"], text_of)
    return orjson.dumps({**value, **place, **({"texts": inside} if inside else {})}) + b"\n"


def _put_back(value: Any, text_of: Callable[[str], str | None]) -> Any:
    if is_reference(value):
        text = text_of(value["$blob"])
        return value if text is None else text
    if isinstance(value, Mapping):
        return {key: _put_back(inner, text_of) for key, inner in value.items()}
    return [_put_back(inner, text_of) for inner in value] if isinstance(value, list) else value


# ── reading ───────────────────────────────────────────────────────────────────────────────────


def read_rollout(lines: Iterable[bytes], keep: dict[str, bytes] | None = None) -> RolloutText:
    """Opens a file by its lines; raises `BadLine`, also while `lines` of the answer are read.

    Large texts are taken out of the entries again, and go to `keep` under their hashes.
    """
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    first = next(numbered, None)
    if first is None:
        raise BadLine(1, "the file is empty")
    value = _object(*first)
    blobs: dict[str, bytes] = keep if keep is not None else {}
    told: list[Mapping[str, Any]] = []
    if "format" in value and "payload" not in value:
        return RolloutText("full", _header(first[0], value), _lines(numbered, blobs, told), told)
    kind: Kind = "exported" if "chain" in value and "seq" in value else "foreign"
    return RolloutText(kind, None, _lines(_again(first, numbered), blobs, told), told)


def _again(first: tuple[int, bytes], rest: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    yield first
    yield from rest


def _object(number: int, line: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadLine(number, f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadLine(number, "not a JSON object")
    return value


def _header(number: int, value: Mapping[str, Any]) -> Header:
    if value["format"] != FORMAT:
        raise BadLine(number, f"unknown format {value['format']!r}")
    if value.get("version") != VERSION:
        raise BadLine(number, f"format version {value.get('version')}: a newer Dendro wrote it, use that one")
    try:
        return Header(
            session_id=str(value["session_id"]),
            pool=str(value["pool"]),
            seq=int(value["seq"]),
            head=bytes.fromhex(value["head"]),
            key_id=str(value["key_id"]),
            state_seq=int(value["state_seq"]),
            state_sha256=str(value["state_sha256"]),
            mac=str(value.get("mac", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadLine(number, f"the format line is damaged ({error})") from None


def _lines(
    numbered: Iterable[tuple[int, bytes]], blobs: dict[str, bytes], told: list[Mapping[str, Any]]
) -> Iterator[FileLine]:
    for number, line in numbered:
        value = _object(number, line)
        if "tree_seq" in value:
            told.append(value.get("payload", {}))
            continue
        try:
            found = _file_line(number, value, blobs)
            yield replace(found, texts_missing=_missing(value)) if _REFERS in line else found
        except BadLine:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise BadLine(number, f"a field is missing or damaged ({error})") from None


def _file_line(number: int, value: dict[str, Any], blobs: dict[str, bytes]) -> FileLine:
    omitted = tuple(
        Omitted(int(seq), int(epoch), bytes.fromhex(digest))
        for seq, epoch, digest in value.get("omitted", ())
    )
    own = {name: field for name, field in value.items() if name not in PLACE}
    if "digest" in value and "payload" not in value:
        return FileLine(number, str(own.get("timestamp", "")), None, _place(value, b""), omitted)
    kind, timestamp, payload = own.get("type"), own.get("timestamp"), own.get("payload")
    if not isinstance(kind, str) or not isinstance(timestamp, str) or not isinstance(payload, dict):
        raise BadLine(number, "timestamp, type and a payload object are required")
    _keep_texts(value, blobs)
    inherited = (payload, dict(value["inherited"])) if "inherited" in value else None
    stored = orjson.dumps(own)
    if len(stored) > INLINE_BYTES:
        own["payload"] = externalise(payload, blobs)
        stored = orjson.dumps(own)
    place = _place(value, stored) if "chain" in value and "seq" in value else None
    entry = Entry(kind, own["payload"], own.get("id", ""))
    return FileLine(number, timestamp, entry, place, omitted, inherited)


def _missing(value: Mapping[str, Any]) -> int:
    return sum(1 for _ in references(value.get("payload", {})))


def _keep_texts(value: Mapping[str, Any], blobs: dict[str, bytes]) -> None:
    for digest, text in dict(value.get("texts", {})).items():
        content = text.encode("utf-8", "surrogatepass")
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError(f"the text {digest[:12]}… is not what its name says")
        blobs[digest] = content


def _place(value: Mapping[str, Any], stored: bytes) -> LinePlace:
    if "digest" in value and "salt" not in value:
        digest = bytes.fromhex(value["digest"])
    else:
        digest = payload_digest(bytes.fromhex(value["salt"]), stored)
    return LinePlace(int(value["seq"]), int(value["epoch"]), digest, bytes.fromhex(value["chain"]))


# ── the chain ─────────────────────────────────────────────────────────────────────────────────


class FileWalk(ChainWalk):
    """The same over the lines of a file, which may leave out facts and have inherited lines between."""

    def __init__(self, secret: bytes, expected: ExpectedHead | None = None) -> None:
        super().__init__(secret)
        self.met_expected = False
        """Whether the log contains the head that was expected."""
        self._expected = expected
        self._inherited: list[Inherited] = []

    def take_line(self, line: FileLine) -> BrokenLink | None:
        """The fault of a line, or of the facts that were left out before it; None moves on."""
        if line.inherited is not None:
            self._inherited.append(line.inherited)
            return None
        digests = {fact.seq: fact.digest for fact in line.omitted}
        if self._inherited and not proves(self._inherited, digests):
            return self.unproved()
        self._inherited.clear()
        links: list[Link] = []
        head = self.head
        for fact in line.omitted:
            # Nothing is left of a fact but its digest; that it is the true one shows in the next line.
            try:
                head = next_chain(head, fact.seq, fact.epoch, fact.digest, self._secret)
            except OverflowError:
                return BrokenLink(fact.seq, "it has a number that no entry can have")
            links.append(Link(fact.seq, fact.epoch, fact.digest, head))
        if line.place is None:
            return BrokenLink(self.seq + 1, f"line {line.number} has no place in the chain")
        place = line.place
        links.append(Link(place.seq, place.epoch, place.digest, place.chain))
        if self._expected is not None:
            self.met_expected = self.met_expected or any(map(self._expected.is_met, links))
        return self.take(links)

    def unproved(self) -> BrokenLink | None:
        """Returns the fault at the file's end: inherited lines that no following line proves."""
        if not self._inherited:
            return None
        return BrokenLink(self.seq + 1, "the conversation that it inherited is not the one its log names")
