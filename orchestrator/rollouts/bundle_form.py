"""The form of a bundle: its members, its manifest, its lines, and the hashes over them.

A bundle is a ZIP, or a folder, that shows a whole tree of sessions to somebody who has no server and no key
(docs/protocol/bundle.md). Nothing in it is believed for being in it: it is an entry of a log, a text or a
pack that an entry names by its SHA-256, or a receipt. Pure: bytes in, values out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

import orjson

from orchestrator.core.blobs import is_reference
from orchestrator.core.chain import GENESIS, payload_digest
from orchestrator.core.frozen import record
from orchestrator.core.history import INHERITED

FORMAT: Final = "dendro-bundle"
VERSION: Final = 1
MANIFEST: Final = "manifest.json"
NOTE: Final = "manifest.note"
REGISTER: Final = "receipts/register.jsonl"
CONSISTENCY: Final = "receipts/consistency.json"

MOST_BYTES: Final = 64 << 30
"""Of all members together, unpacked."""
MOST_MEMBERS: Final = 100_000
MOST_MANIFEST_BYTES: Final = 32 << 20
MOST_LINE_BYTES: Final = 16 << 20
"""An entry has at most a few hundred KiB: what is larger stands in a text."""
MOST_TEXT_BYTES: Final = 64 << 20
"""Of a text that is put back into its entry."""
MOST_CONVERSATION_BYTES: Final = 16 << 20
"""Of an inherited conversation, which is looked into; what is large in it stands in texts of their own."""
MOST_UNEXPLAINED: Final = 100_000
"""Lines without text of one log, as long as it is not known what explains them."""

_ID = r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}"
_HASH = "[0-9a-f]{64}"
_COUNT = "0|[1-9][0-9]{0,17}"
MEMBER = re.compile(
    rf"{re.escape(MANIFEST)}|{re.escape(NOTE)}|logs/(?:session|tree)-{_ID}[.]jsonl|texts/{_HASH}|packs/{_HASH}[.]pack"
    rf"|{re.escape(REGISTER)}|{re.escape(CONSISTENCY)}|receipts/(?:{_COUNT})[.](?:note|tsr)"
)
CHECKPOINT = re.compile(rf"receipts/({_COUNT})[.]note")
_LOG_ID = re.compile(rf"(?:session|tree):{_ID}")
_SESSION_ID = re.compile(_ID)
HASH = re.compile(_HASH)


class BadForm(ValueError):
    """Bytes that are not what the format says; the message says what is wrong."""


def log_member(log: str) -> str:
    """The member that holds a log: `session:<id>` or `tree:<id>`."""
    return f"logs/{log.replace(':', '-', 1)}.jsonl"


# ── strict JSON ───────────────────────────────────────────────────────────────────────────────────


def strict_json(data: bytes | str, *, floats: bool = False) -> Any:
    """Reads JSON that every reader takes alike: no key twice, no NaN, no floats unless they are allowed.

    Raises `BadForm`.
    """
    try:
        text = data.decode() if isinstance(data, bytes) else data
        refused = None if floats else _no_float
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_float, parse_float=refused)
    except UnicodeDecodeError:
        raise BadForm("it is not UTF-8") from None
    except RecursionError:
        raise BadForm("it is nested too deep") from None
    except BadForm:
        raise
    except ValueError as error:
        raise BadForm(f"it is no JSON: {error}") from None


class KeyTwice(BadForm):
    """An object that has a key twice: of its two values each reader believes another."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise KeyTwice(f"it has the key {next(name for name in names if names.count(name) > 1)!r} twice")
    return found


def _no_float(text: str) -> Any:
    raise BadForm(f"it has the number {text[:40]}, where whole numbers are")


def is_canonical(data: bytes, value: Any) -> bool:
    """Whether bytes are what our own writers make of a value; such bytes have no key twice."""
    try:
        return orjson.dumps(value) == data
    except TypeError:
        return False  # It is nested too deep for that, or has numbers of more than 64 bits.


def is_compact(line: bytes, value: Any) -> bool:
    """Whether a line is its value as compact JSON, with or without escapes of what is not ASCII."""
    if is_canonical(line, value):
        return True
    forms = (json.dumps(value, separators=(",", ":"), ensure_ascii=plain) for plain in (True, False))
    return any(form.encode("utf-8", "surrogatepass") == line for form in forms)


def _whole(value: Any, name: str, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 1 << 63:
        raise BadForm(f"its {name} is no whole number from {least} on")
    return value


def _text(value: Any, name: str, form: re.Pattern[str] | None = None) -> str:
    if type(value) is not str or (form is not None and form.fullmatch(value) is None):
        raise BadForm(f"its {name} is {value!r:.80}")
    return value


def _fields(value: Any, what: str, names: frozenset[str]) -> dict[str, Any]:
    if type(value) is not dict or value.keys() != names:
        told = ", ".join(map(str, value)) if type(value) is dict else repr(value)
        raise BadForm(f"{what} has {told:.200}, where {', '.join(sorted(names))} stand")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if type(value) is not list:
        raise BadForm(f"its {name} is no list")
    return value


# ── the manifest ──────────────────────────────────────────────────────────────────────────────────


@record
class LogLine:
    """A log as the manifest tells of it; `head` is the last entry's chain value."""

    id: str
    size: int
    root: bytes
    head: bytes
    key_id: str = ""

    @property
    def session(self) -> str:
        """The session whose log it is; empty for a tree's."""
        return self.id.removeprefix("session:") if self.id.startswith("session:") else ""


@record
class Stated:
    """A text or a pack: its bytes, and whether it is in the bundle."""

    bytes: int
    state: str


@record
class File:
    """A member's hash and length."""

    sha256: str
    bytes: int


@record
class Manifest:
    """The contents of a bundle, as it states them."""

    origin: str
    made_at: str
    by: str
    tree: str
    logs: tuple[LogLine, ...]
    left_out: tuple[str, ...]
    """Sessions of the tree that were deleted, or kept back by the bundle's maker."""
    withheld: tuple[tuple[str, int], ...]
    """Entries whose text the bundle's maker kept back: log and number."""
    texts: Mapping[str, Stated]
    packs: Mapping[str, Stated]
    files: Mapping[str, File]

    def encode(self) -> bytes:
        logs = [
            {
                "id": log.id,
                "size": log.size,
                "root": log.root.hex(),
                "head": log.head.hex(),
                "key_id": log.key_id,
            }
            for log in self.logs
        ]
        value = {
            "format": FORMAT,
            "version": VERSION,
            "origin": self.origin,
            "made": self.made_at,
            "by": self.by,
            "tree": self.tree,
            "logs": logs,
            "left_out": self.left_out,
            "withheld": self.withheld,
            "texts": {name: {"bytes": one.bytes, "state": one.state} for name, one in self.texts.items()},
            "packs": {name: {"bytes": one.bytes, "state": one.state} for name, one in self.packs.items()},
            "files": {name: {"sha256": one.sha256, "bytes": one.bytes} for name, one in self.files.items()},
        }
        return orjson.dumps(value) + b"\n"


_MANIFEST_FIELDS = frozenset(
    {"format", "version", "origin", "made", "by", "tree", "logs", "left_out", "withheld", "texts", "packs"}
    | {"files"}
)
_LOG_FIELDS = frozenset({"id", "size", "root", "head", "key_id"})
_STATED_FIELDS = frozenset({"bytes", "state"})
_FILE_FIELDS = frozenset({"sha256", "bytes"})


class NewerFormat(Exception):
    """The bundle is of a version that is not known here."""


def read_manifest(data: bytes) -> Manifest:
    """Reads `manifest.json`; raises `BadForm`, and `NewerFormat` for another version."""
    value = strict_json(data)
    if isinstance(value, dict) and value.get("format") == FORMAT:
        version = value.get("version")
        if type(version) is int and version > VERSION:
            raise NewerFormat(f"it is a bundle of version {version}, and this program knows {VERSION}")
    found = _fields(value, "the manifest", _MANIFEST_FIELDS)
    if found["format"] != FORMAT or type(found["version"]) is not int or found["version"] != VERSION:
        raise BadForm(f"it is no {FORMAT} of version {VERSION}")
    logs = tuple(map(_log_line, _list(found["logs"], "logs")))
    _unlike([log.id for log in logs], "log")
    left_out = tuple(_text(id, "left_out", _SESSION_ID) for id in _list(found["left_out"], "left_out"))
    _unlike(left_out, "session in left_out")
    withheld = tuple(map(_withheld, _list(found["withheld"], "withheld")))
    _unlike(withheld, "entry in withheld")
    return Manifest(
        origin=_line(found["origin"], "origin"),
        made_at=_line(found["made"], "made"),
        by=_line(found["by"], "by"),
        tree=_text(found["tree"], "tree", _SESSION_ID),
        logs=logs,
        left_out=left_out,
        withheld=withheld,
        texts=_all_stated(found["texts"], "texts", ("here", "withheld", "redacted")),
        packs=_all_stated(found["packs"], "packs", ("here", "named", "withheld")),
        files=_files(found["files"]),
    )


def _line(value: Any, name: str) -> str:
    text = _text(value, name)
    if not text or any(char < " " for char in text):
        raise BadForm(f"its {name} is no line")
    return text


def _unlike(values: Any, what: str) -> None:
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            raise BadForm(f"it names the {what} {value} twice")
        seen.add(value)


def _log_line(value: Any) -> LogLine:
    found = _fields(value, "a log", _LOG_FIELDS)
    return LogLine(
        _text(found["id"], "log's id", _LOG_ID),
        _whole(found["size"], "log's size"),
        bytes.fromhex(_text(found["root"], "log's root", HASH)),
        bytes.fromhex(_text(found["head"], "log's head", HASH)),
        _text(found["key_id"], "log's key_id"),
    )


def _withheld(value: Any) -> tuple[str, int]:
    pair = _list(value, "withheld")
    if len(pair) != 2:
        raise BadForm("an entry of withheld is no pair of a log and a number")
    return _text(pair[0], "withheld log", _LOG_ID), _whole(pair[1], "withheld entry", 1)


def _all_stated(value: Any, name: str, states: tuple[str, ...]) -> dict[str, Stated]:
    if type(value) is not dict:
        raise BadForm(f"its {name} is no object")
    found = {}
    for digest, one in value.items():
        _text(digest, f"{name} entry", HASH)
        fields = _fields(one, f"an entry of {name}", _STATED_FIELDS)
        if fields["state"] not in states:
            raise BadForm(f"an entry of {name} has the state {fields['state']!r:.80}")
        found[digest] = Stated(_whole(fields["bytes"], f"{name} entry's bytes"), fields["state"])
    return found


def _files(value: Any) -> dict[str, File]:
    if type(value) is not dict:
        raise BadForm("its files is no object")
    found = {}
    for name, one in value.items():
        fields = _fields(one, "an entry of files", _FILE_FIELDS)
        if MEMBER.fullmatch(name) is None or name in (MANIFEST, NOTE):
            raise BadForm(f"its files name {name!r:.120}, which is no member's name")
        digest = _text(fields["sha256"], "file's sha256", HASH)
        found[name] = File(digest, _whole(fields["bytes"], "file's bytes"))
    return found


def note_text(origin: str, manifest: bytes) -> str:
    """The text of `manifest.note`, which is signed."""
    return f"{FORMAT}/{VERSION}\n{origin}\n{sha256(manifest).hexdigest()}\n"


# ── lines ─────────────────────────────────────────────────────────────────────────────────────────


def leaf(seq: int, epoch: int, digest: bytes, chain: bytes) -> bytes:
    """The hash of an entry in its log's Merkle tree."""
    return sha256(b"\x00" + seq.to_bytes(8, "big") + epoch.to_bytes(8, "big") + digest + chain).digest()


@record
class Line:
    """A line of a log: an entry with its text, or with its digest alone."""

    seq: int
    epoch: int
    """Of a tree's log: the number of the entry that caused it, in the log of `by`."""
    chain: bytes
    digest: bytes
    payload: str | None
    salt: bytes = b""
    by: str = ""

    def encode(self) -> bytes:
        place: dict[str, Any] = {"s": self.seq, "e": self.epoch}
        text = {"salt": self.salt.hex(), "c": self.chain.hex(), "p": self.payload}
        bare = {"c": self.chain.hex(), "d": self.digest.hex()}
        by = {"by": self.by} if self.by else {}
        return orjson.dumps({**place, **(text if self.payload is not None else bare), **by}) + b"\n"


_WITH_TEXT = frozenset({"s", "e", "salt", "c", "p"})
_WITHOUT = frozenset({"s", "e", "c", "d"})


def read_line(line: bytes, *, tree: bool) -> Line:
    """Reads a line without its end; raises `BadForm`."""
    try:
        value = orjson.loads(line)
        sound = is_canonical(line, value)
    except orjson.JSONDecodeError:
        value, sound = None, False
    if not sound:
        # Other writers escape what is not ASCII: that is compact JSON, too.
        value = strict_json(line)
        if not is_compact(line, value):
            raise BadForm("it is not compact JSON")
    if type(value) is not dict:
        raise BadForm("it is no object")
    by = ""
    if tree:
        by = _text(value.pop("by", None), "by", _SESSION_ID)
    seq, epoch, chain = value.get("s"), value.get("e"), value.get("c")
    if type(seq) is not int or type(epoch) is not int or not 0 < seq < 1 << 63 or not 0 <= epoch < 1 << 63:
        raise BadForm("its s and e are no numbers of an entry")
    place = _hex(chain, 32)
    if value.keys() == _WITH_TEXT:
        payload, salt = value["p"], _hex(value["salt"], 0, 16)
        if type(payload) is not str:
            raise BadForm("its p is no text")
        try:
            digest = payload_digest(salt, payload.encode())
        except UnicodeEncodeError:
            raise BadForm("its p has half of a surrogate pair, and no UTF-8 is that") from None
        return Line(seq, epoch, place, digest, payload, salt, by)
    if value.keys() == _WITHOUT:
        return Line(seq, epoch, place, _hex(value["d"], 32), None, b"", by)
    raise BadForm(f"it has the fields {', '.join(value):.200}")


def _hex(text: Any, *lengths: int) -> bytes:
    try:
        found = bytes.fromhex(text)
    except (TypeError, ValueError):
        raise BadForm(f"{text!r:.80} is no hexadecimal number") from None
    if len(found) not in lengths or found.hex() != text:
        raise BadForm(f"{text!r:.80} is no hexadecimal number of {' or '.join(map(str, lengths))} bytes")
    return found


# ── what an entry names ───────────────────────────────────────────────────────────────────────────


def texts_named(value: Any) -> Iterator[tuple[str, int]]:
    """The references to texts in a value: the hash, and the length that stands beside it."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            if is_reference(found):
                if 0 <= found["bytes"] < 1 << 63:
                    yield found["$blob"], found["bytes"]
            else:
                waiting.extend(found.values())
        elif isinstance(found, list):
            waiting.extend(found)


def packs_named(value: Any) -> Iterator[Mapping[str, Any]]:
    """The packs that a fact names: objects with `name`, `sha256` and `bytes`."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            digest = found.get("sha256")
            if type(digest) is str and HASH.fullmatch(digest) and "name" in found and "bytes" in found:
                yield found
            waiting.extend(found.values())
        elif isinstance(found, list):
            waiting.extend(found)


def child_of(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The agent that a fact `child` says was made."""
    told = payload.get("child")
    return told if type(told) is dict else payload


def conversation(text: str) -> tuple[list[tuple[str, int]], list[Any]]:
    """The texts that an inherited conversation names, and what it had inherited itself."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return [], []
    items = value if type(value) is list else []
    inherited = [item for item in items if type(item) is dict and item.get("type") == INHERITED]
    return list(texts_named(value)), [item["content"] for item in inherited if "content" in item]


EMPTY_HEAD: Final = GENESIS
"""The head of a log without entries."""
