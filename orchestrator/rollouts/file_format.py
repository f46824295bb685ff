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
agents (`tree_seq`) is in no chain of this session's: such lines are counted, and kept apart.

A hash covers bytes. So a line of our own files must be, byte for byte, the line that an export writes for
the values that are read from it: with another space, number form, order, or a key twice it is a finding
(`FileLine.fault`), whatever its hash says. Pure: lines in, values out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import chain
from typing import Any, BinaryIO, Final, Literal

import orjson

from orchestrator.core.blobs import is_reference, may_refer, references
from orchestrator.core.chain import (
    DIGEST_BYTES,
    SALT_BYTES,
    BrokenLink,
    ChainWalk,
    ExpectedHead,
    Link,
    mac,
    next_chain,
    payload_digest,
    same_mac,
)
from orchestrator.core.entries import DENDRO, EVENT_MSG, RESPONSE_ITEM, Entry, milliseconds, stored_form
from orchestrator.core.frozen import record
from orchestrator.rollouts.inherited_lines import Inherited, LogLine, proves, texts_inside

FORMAT = "dendro-rollout"
VERSION = 1
MOST_LINE_BYTES: Final = 256 << 20
"""Bytes of a line: one of a full export has the large texts of its entry in it."""
PLACE = frozenset({"seq", "epoch", "salt", "chain", "digest", "omitted", "inherited", "texts"})
"""Fields beside an entry that are not part of it."""

TOLD = frozenset({"subagent_lifecycle", "agent_inbox"})
"""The events of a tree's log that an exported file has lines of."""
_ENTRY = ("timestamp", "type", "payload", "id")
_PLACE = ("seq", "epoch", "salt", "chain")
_REDACTED = ("seq", "epoch", "chain", "digest")
_TOLD_LINE = ("timestamp", "type", "payload", "id", "tree_seq", "caused_by")
_INHERITED_LINE = ("timestamp", "type", "payload", "inherited")
_OURS = frozenset(
    {"seq", "epoch", "salt", "chain", "digest", "inherited", "tree_seq", "omitted", "caused_by"}
)
"""Fields that no other program writes: a line with any of them must be one of an export's."""

Kind = Literal["full", "exported", "foreign"]


class BadLine(ValueError):
    """A line that is not one of a rollout; the message names its number."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"line {number}: {reason}")
        self.number = number


@record
class Omitted:
    """A fact that an export leaves out: its place in the chain."""

    seq: int
    epoch: int
    digest: bytes


@record
class LinePlace:
    """Where an entry stands in its log, and what ties it to the one before."""

    seq: int
    epoch: int
    digest: bytes
    chain: bytes


@record
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
    tree_seq: int = 0
    """For a line of the tree's log: its number there. Nothing in this file proves such a line."""
    told: bytes = b""
    """The bytes of such a line, without their end."""
    fault: str = ""
    """A sign that no export wrote the line as it stands; it has neither entry nor place then."""


@record
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
    as_written: bool = field(default=True, compare=False)
    """Whether the line's bytes are those that an export writes for these values."""

    def encode(self, secret: bytes = b"") -> bytes:
        """The line; `secret` keys the chain."""
        said = self._fields()
        return orjson.dumps({**said, "mac": mac(secret, "export header", orjson.dumps(said))})

    def fault(self, secret: bytes) -> BrokenLink | None:
        """Returns the fault if the line is not as it was written with this key; None for older files."""
        if not self.as_written:
            return BrokenLink(0, "the file's first line was changed: no export writes it so")
        if not self.mac or same_mac(self.mac, mac(secret, "export header", orjson.dumps(self._fields()))):
            return None
        return BrokenLink(0, "the file's first line was changed, or written with another chain key")

    def is_written(self, line: bytes) -> bool:
        """Whether an export, perhaps of an older version, writes these values as these bytes."""
        said = self._fields()
        try:
            return line == orjson.dumps({**said, **({"mac": self.mac} if self.mac else {})})
        except TypeError:
            return False

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


@record
class RolloutText:
    """A file that was opened: what it is, and its lines, read as they are asked for."""

    kind: Kind
    header: Header | None
    lines: Iterator[FileLine]
    told: list[Mapping[str, Any]] = field(default_factory=list)
    """The word of the tree's log on agents: the events of the lines that were read so far."""


# ── writing ───────────────────────────────────────────────────────────────────────────────────────


def full_line(line: LogLine, text_of: Callable[[str], str | None]) -> bytes:
    """An entry of a full export. A text that is not stored any more stays a reference, and so verifies."""
    entry = line.stored
    if entry.digest:
        bare = {"seq": entry.seq, "epoch": entry.epoch, "chain": entry.chain.hex()}
        return orjson.dumps({**bare, "digest": entry.digest.hex()}) + b"\n"
    value = line.value
    place = {"seq": entry.seq, "epoch": entry.epoch, "salt": entry.salt.hex(), "chain": entry.chain.hex()}
    if may_refer(entry.payload):
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


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


def lines_in(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a rollout's file, which may be anybody's; raises `BadLine` for one that is too long."""
    number = 0
    while line := file.readline(MOST_LINE_BYTES + 1):
        number += 1
        if len(line) > MOST_LINE_BYTES:
            raise BadLine(number, f"it has more than {MOST_LINE_BYTES:,} bytes, which no line of a log has")
        yield line


def read_rollout(lines: Iterable[bytes], keep: dict[str, bytes] | None = None) -> RolloutText:
    """Opens a file by its lines; raises `BadLine`, also while `lines` of the answer are read.

    Large texts are taken out of the entries again, and go to `keep` under their hashes.
    """
    numbered = iter(enumerate(lines, 1))
    first = next((line for line in numbered if line[1].strip()), None)
    if first is None:
        raise BadLine(1, "the file is empty")
    value = _object(*first)
    blobs: dict[str, bytes] = keep if keep is not None else {}
    told: list[Mapping[str, Any]] = []
    if "format" in value and "payload" not in value:
        return RolloutText("full", _header(*first, value), _lines(numbered, blobs, "full", told), told)
    kind: Kind = "exported" if "chain" in value and "seq" in value else "foreign"
    blank = ((number, b"\n") for number in range(1, first[0]))
    return RolloutText(kind, None, _lines(chain(blank, (first,), numbered), blobs, kind, told), told)


def _object(number: int, line: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadLine(number, f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadLine(number, "not a JSON object")
    return value


def _header(number: int, line: bytes, value: Mapping[str, Any]) -> Header:
    if value["format"] != FORMAT:
        raise BadLine(number, f"unknown format {value['format']!r}")
    if value.get("version") != VERSION:
        raise BadLine(number, f"format version {value.get('version')}: a newer Dendro wrote it, use that one")
    try:
        header = Header(
            session_id=str(value["session_id"]),
            pool=str(value["pool"]),
            seq=int(value["seq"]),
            head=bytes.fromhex(value["head"]),
            key_id=str(value["key_id"]),
            state_seq=int(value["state_seq"]),
            state_sha256=str(value["state_sha256"]),
            mac=str(value.get("mac", "")),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadLine(number, f"the format line is damaged ({error})") from None
    return replace(header, as_written=number == 1 and header.is_written(line.removesuffix(b"\n")))


def _lines(
    numbered: Iterable[tuple[int, bytes]],
    blobs: dict[str, bytes],
    kind: Kind,
    told: list[Mapping[str, Any]],
) -> Iterator[FileLine]:
    for number, line in numbered:
        if kind == "foreign" and not line.strip():
            continue
        try:
            yield _read(number, line, blobs, kind, told)
        except BadLine:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise BadLine(number, f"a field is missing or damaged ({error})") from None


def _read(
    number: int, line: bytes, blobs: dict[str, bytes], kind: Kind, told: list[Mapping[str, Any]]
) -> FileLine:
    if not line.strip():
        return FileLine(number, "", None, None, fault="it is blank, and no export writes such a line")
    value = _object(number, line)
    if kind != "foreign" and (fault := _form_fault(value, line, kind)):
        return FileLine(number, "", None, None, fault=fault)
    if "tree_seq" in value:
        found = _told_line(number, value)
        told += [value["payload"]] if found.tree_seq else []
        return found
    found = _file_line(number, value, blobs)
    return replace(found, texts_missing=_missing(value)) if may_refer(line) else found


# ── the form of a line ────────────────────────────────────────────────────────────────────────────


def _form_fault(value: Mapping[str, Any], line: bytes, kind: Kind) -> str:
    """The sign that no export wrote these bytes; empty for a line that one may have written.

    A line behind the export, which another program appended, has none of our fields: it is told by its place.
    """
    if kind == "exported" and not _OURS & value.keys():
        return ""
    if orjson.dumps(value) + b"\n" != line:
        return (
            "it is not written as an export writes it (a key twice, another space or form of a number, "
            "or no end): it was changed"
        )
    names = _names(value, kind)
    if names is None:
        return _STRANGE[kind]
    if tuple(value) != names and names[:4] == _REDACTED:
        return (
            f"it has the fields {', '.join(value)}; a redacted line has {', '.join(names)} and nothing else: "
            "what else it says is not believed"
        )
    if tuple(value) != names:
        return f"it has the fields {', '.join(value)}, where an export writes {', '.join(names)}"
    return _place_fault(value) or _texts_fault(value)


def _texts_fault(value: Mapping[str, Any]) -> str:
    """No hash covers which texts stand beside an entry, so they are those that it refers to and no others."""
    texts = value.get("texts")
    if texts is None and "texts" not in value:
        return ""
    if isinstance(texts, dict) and texts and texts_inside(value["payload"], texts.get).keys() == texts.keys():
        return ""
    return "texts stand beside it that it does not refer to"


_STRANGE: Mapping[Kind, str] = {
    "full": "a full export has no such line: it was put in",
    "exported": "only a full export has facts of Dendro's own: the file's first line was taken away",
    "foreign": "",
}


def _names(value: Mapping[str, Any], kind: Kind) -> tuple[str, ...] | None:
    """The fields that an export gives such a line, in their order; None if a file of the kind has none."""
    omitted = ("omitted",) if kind == "exported" and "omitted" in value else ()
    texts = ("texts",) if kind == "full" and "texts" in value else ()
    match value:
        case {"tree_seq": _}:
            return _TOLD_LINE if kind == "exported" else None
        case {"inherited": _}:
            return _INHERITED_LINE if kind == "exported" else None
        case {"payload": _, "type": type}:
            own = _ENTRY if "id" in value else _ENTRY[:3]
            return None if type == DENDRO and kind == "exported" else (*own, *_PLACE, *texts, *omitted)
        case _:
            return (*_REDACTED, *omitted)


def _place_fault(value: Mapping[str, Any]) -> str:
    """A fault of numbers and hashes: a reader would take other forms of them for the same values."""
    lengths = {"salt": SALT_BYTES, "chain": DIGEST_BYTES, "digest": DIGEST_BYTES}
    sound = (
        all(_is_hex(value[name], length) for name, length in lengths.items() if name in value)
        and all(type(value[name]) is int for name in ("seq", "epoch", "tree_seq") if name in value)
        and all(
            type(seq) is int and type(epoch) is int and _is_hex(digest, DIGEST_BYTES)
            for seq, epoch, digest in value.get("omitted", ())
        )
    )
    return "" if sound else "its place has a number or a hash in a form that no export writes"


def _is_hex(text: object, length: int) -> bool:
    return isinstance(text, str) and len(text) == 2 * length and bytes.fromhex(text).hex() == text


def _told_line(number: int, value: Mapping[str, Any]) -> FileLine:
    """A line of the tree's log. It names an event of one that tells of agents, or it is somebody else's."""
    kind, payload, cause = value.get("type"), value["payload"], value["caused_by"]
    if kind != EVENT_MSG or not isinstance(payload, dict) or payload.get("type") not in TOLD:
        said = payload.get("type") if isinstance(payload, dict) else payload
        fault = f"it says that it is of the tree's log, which has no {kind} {said!r}: it was put in"
        return FileLine(number, "", None, None, fault=fault)
    sound = type(cause["seq"]) is int and _is_hex(cause["chain"], DIGEST_BYTES) and value["tree_seq"] > 0
    if not sound or tuple(cause) != ("session_id", "seq", "chain"):
        return FileLine(number, "", None, None, fault="it does not name the entry that caused it")
    told = orjson.dumps(value)
    return FileLine(number, str(value["timestamp"]), None, None, tree_seq=value["tree_seq"], told=told)


# ── the values of a line ──────────────────────────────────────────────────────────────────────────


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
    inherited = _inherited(kind, timestamp, payload, value) if "inherited" in value else None
    entry, stored = stored_form(
        Entry(kind, payload, own.get("id", "")),
        lambda entry: orjson.dumps({**own, "payload": entry.payload}),
        blobs,
    )
    place = _place(value, stored) if "chain" in value and "seq" in value else None
    return FileLine(number, timestamp, entry, place, omitted, inherited)


def _inherited(kind: str, timestamp: str, payload: Any, value: Mapping[str, Any]) -> Inherited:
    if kind != RESPONSE_ITEM:
        raise ValueError(f"a conversation that was inherited has no {kind}")
    mark = dict(value["inherited"])
    if "fact" in mark and mark["fact"]["stored"]["timestamp"] != timestamp:
        raise ValueError("its time is not that of the fact that it stands for")
    return payload, mark


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


# ── the chain ─────────────────────────────────────────────────────────────────────────────────────


def links_of(line: FileLine, head: bytes, secret: bytes = b"") -> list[Link]:
    """A line with a place, and the facts left out before it, as the chain sees them behind `head`."""
    links: list[Link] = []
    for fact in line.omitted:
        # Nothing is left of a fact but its digest; that it is the true one shows in the next line.
        head = next_chain(head, fact.seq, fact.epoch, fact.digest, secret)
        links.append(Link(fact.seq, fact.epoch, fact.digest, head))
    place = line.place
    return [*links, Link(place.seq, place.epoch, place.digest, place.chain)] if place is not None else links


class FileWalk(ChainWalk):
    """The same over the lines of a file, which may leave out facts and have inherited lines between."""

    def __init__(self, secret: bytes, expected: ExpectedHead | None = None, *, keyed: bool = True) -> None:
        """`keyed`: whether `secret` is the one that the file's chain needs; if not, only numbers are held
        against each other."""
        super().__init__(secret)
        self.met_expected = False
        """Whether the log contains the head that was expected."""
        self.told = 0
        """Lines of the tree's log: nothing in the file proves them."""
        self._expected = expected
        self._keyed = keyed
        self._inherited: list[Inherited] = []
        self._inherited_at: set[str] = set()
        self._order = _TreeOrder()

    def take_line(self, line: FileLine) -> BrokenLink | None:
        """The fault of a line, or of the facts that were left out before it; None moves on."""
        if line.fault:
            return BrokenLink(self.seq + 1, f"line {line.number}: {line.fault}")
        if line.tree_seq:
            self.told += 1
            return self._misplaced(line, self._order.told(line))
        if line.inherited is not None:
            self._inherited.append(line.inherited)
            self._inherited_at.add(line.timestamp)
            return None
        digests = {fact.seq: fact.digest for fact in line.omitted}
        # All of a run have the time of the fact that they stand for, which the first of them has.
        if self._inherited and (len(self._inherited_at) > 1 or not proves(self._inherited, digests)):
            return self.unproved()
        self._inherited.clear()
        self._inherited_at.clear()
        if line.place is None:
            return BrokenLink(self.seq + 1, f"line {line.number} has no place in the chain")
        return self._take_place(line, line.place)

    def _take_place(self, line: FileLine, place: LinePlace) -> BrokenLink | None:
        try:
            links = links_of(line, self.head, self._secret)
        except OverflowError:
            return BrokenLink(self.seq + 1, "it has a number that no entry can have")
        if self._expected is not None:
            self.met_expected = self.met_expected or any(map(self._expected.is_met, links))
        broken = self.take(links) if self._keyed else self._numbered(links)
        return broken or self._misplaced(line, self._order.written(line))

    def _numbered(self, links: Sequence[Link]) -> BrokenLink | None:
        """Moves on along the numbers alone: what can be said without the key."""
        for link in links:
            if link.seq != self.seq + 1:
                return BrokenLink(self.seq + 1, f"missing: the next entry present is {link.seq}")
            self.seq, self.head = link.seq, link.chain
        return None

    def _misplaced(self, line: FileLine, fault: str) -> BrokenLink | None:
        return BrokenLink(self.seq, f"line {line.number}: {fault}") if fault else None

    def unproved(self) -> BrokenLink | None:
        """Returns the fault at the file's end: inherited lines that no following line proves."""
        if not self._inherited:
            return None
        return BrokenLink(self.seq + 1, "the conversation that it inherited is not the one its log names")


class _TreeOrder:
    """Where lines of the tree's log may stand: in its order, each before the first entry that is later."""

    def __init__(self) -> None:
        self._tree_seq = 0
        self._entries_ms = 0
        """The latest entry since a line of the tree's log, which a clock may have dated back."""
        self._told_ms = -1
        """The latest line of the tree's log since then; -1 for none."""

    def told(self, line: FileLine) -> str:
        at_ms = milliseconds(line.timestamp)
        if line.tree_seq <= self._tree_seq:
            return f"it is entry {line.tree_seq} of the tree's log, and stands behind entry {self._tree_seq}"
        entries_ms, self._entries_ms = self._entries_ms, 0
        self._tree_seq, self._told_ms = line.tree_seq, max(self._told_ms, at_ms)
        return "" if at_ms >= entries_ms else "it stands behind an entry that was written after it"

    def written(self, line: FileLine) -> str:
        """The fault of lines that stand before this entry; one that was redacted has no time."""
        if line.entry is None or line.place is None or line.place.seq == 1:
            return ""
        at_ms, told = milliseconds(line.timestamp), self._told_ms
        self._entries_ms, self._told_ms = max(self._entries_ms, at_ms), -1
        return "" if told < at_ms else "a line of the tree's log stands before it, and was written after it"
