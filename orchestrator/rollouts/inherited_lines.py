"""A fork's conversation in an export: its lines, and the proof that they are what its log names.

The log of a fork holds its parent's conversation as one text, in a fact. A file that another
program opens has the items in its place, as `response_item` lines without a place in the
chain, marked `inherited`:

    depth   0 for the parent's own part, 1 for what the parent had inherited itself, and so on
    raw     the item as the text holds it, where that has references to large texts
    fact    on the first line of a run: the fact as it is stored, but for its text, and its salt

Items of one depth make up one text again, byte by byte, deeper ones first. So the fact's
digest, which the next line's `omitted` names, proves every item. Knows nothing of files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from orchestrator.broker.records import StoredEntry
from orchestrator.core.birth import needed
from orchestrator.core.blobs import externalise, is_reference, may_refer, references, resolve
from orchestrator.core.chain import SALT_BYTES, payload_digest
from orchestrator.core.entries import DENDRO, RESPONSE_ITEM, Kind, stored_kind
from orchestrator.core.facts import Forked, states
from orchestrator.core.history import INHERITED, Item

# ── log line ──────────────────────────────────────────────────────────────────────────────────────
# An entry of a log with its JSON, which is read once: for those who look at a line several times.


_TIME_HEAD: Final = b'{"timestamp":"'
_TIME_END: Final = len(_TIME_HEAD) + len("2025-11-28T12:00:00.000")
_TYPE_HEAD: Final = b'Z","type":"'
"""Stands behind the time of each line as it is written: its type is seen without reading the JSON."""
_FACT_HEAD: Final = _TYPE_HEAD + f'{DENDRO}"'.encode()
_FORK: Final = Forked.kind.encode()


def is_fork(payload: bytes) -> bool:
    """Whether a stored line is the fact that a fork's log begins with."""
    return _FORK in payload and stored_kind(payload) is Forked


class LogLine:
    """A stored entry; its JSON is read when somebody first asks for it, and changed by nobody."""

    __slots__ = ("_value", "stored")

    def __init__(self, stored: StoredEntry) -> None:
        self.stored = stored
        self._value: Mapping[str, Any] | None = None

    @property
    def value(self) -> Mapping[str, Any]:
        """The whole line: timestamp, type, payload, and the event's id if it is one."""
        if self._value is None:
            self._value = orjson.loads(self.stored.payload)
        return self._value

    @property
    def kind(self) -> Kind:
        """The record that the line is read as, known without its JSON."""
        return stored_kind(self.stored.payload)

    @property
    def is_fact(self) -> bool:
        """Whether the line's type is `dendro`, Dendro's own, which Codex's format has no line for."""
        payload = self.stored.payload
        if payload.startswith(_TYPE_HEAD, _TIME_END) and payload.startswith(_TIME_HEAD):
            return payload.startswith(_FACT_HEAD, _TIME_END)
        return bool(self.value["type"] == DENDRO)

    @property
    def is_fork(self) -> bool:
        """Whether the line is the fact that a fork's log begins with."""
        return is_fork(self.stored.payload)


# ── inherited lines ───────────────────────────────────────────────────────────────────────────────


TextOf = Callable[[str], str | None]


def missing_texts(lines: Iterable[LogLine], text_of: TextOf) -> set[str]:
    """The texts that lines refer to and `text_of` does not have, those inside inherited ones too.

    What an inherited conversation refers to is known only when it is there: hence ask again.
    """
    found: set[str] = set()
    for line in lines:
        stored = line.stored.payload
        if may_refer(stored) or is_fork(stored):
            payload = line.value["payload"]
            found.update(digest for digest in references(payload) if text_of(digest) is None)
            found |= needed(_wrapped(payload), text_of)
    return found


def texts_inside(payload: Mapping[str, Any], text_of: TextOf) -> dict[str, str]:
    """The texts that the items of a fork's fact refer to, by hash: what its own text does not hold."""
    asked: dict[str, str] = {}

    def noted(digest: str) -> str | None:
        text = text_of(digest)
        if text is not None:
            asked[digest] = text
        return text

    needed(_wrapped(payload), noted)
    return {digest: text for digest, text in asked.items() if digest not in set(references(payload))}


def _wrapped(payload: Mapping[str, Any]) -> list[Item]:
    if not states(payload, Forked) or "content" not in payload:
        return []
    return [{"type": INHERITED, "content": payload["content"]}]


# ── writing ───────────────────────────────────────────────────────────────────────────────────────


def inherited_lines(line: LogLine, text_of: TextOf) -> list[bytes]:
    """The lines for a fork's fact; none for any other, or if its text is not stored any more."""
    if not line.is_fork:
        return []
    entry, value = line.stored, line.value
    items = list(_items(_wrapped(value["payload"]), text_of, depth=-1))
    if not items:
        return []
    stored = {**value, "payload": {**value["payload"], "content": None}}
    marks: list[dict[str, Any]] = [{"depth": depth} for depth, _ in items]
    marks[0]["fact"] = {"seq": entry.seq, "salt": entry.salt.hex(), "stored": stored}
    return [
        _line(value["timestamp"], item, mark, text_of) for (_, item), mark in zip(items, marks, strict=True)
    ]


def _items(items: Iterable[Item], text_of: TextOf, depth: int) -> Iterator[tuple[int, Item]]:
    for item in items:
        if item.get("type") != INHERITED:
            yield depth, item
            continue
        content: Any = item["content"]
        text = text_of(content["$blob"]) if is_reference(content) else content
        yield from _items(orjson.loads(text) if text is not None else (), text_of, depth + 1)


def _line(timestamp: str, item: Item, mark: dict[str, Any], text_of: TextOf) -> bytes:
    if next(references(item), None) is not None:
        mark = {**mark, "raw": item}
    line = {"timestamp": timestamp, "type": RESPONSE_ITEM, "payload": resolve(item, text_of)}
    return orjson.dumps({**line, "inherited": mark}, default=dict) + b"\n"


# ── proving ───────────────────────────────────────────────────────────────────────────────────────

Inherited = tuple[Mapping[str, Any], Mapping[str, Any]]
"""A line's payload and its mark."""


def proves(run: Sequence[Inherited], digests: Mapping[int, bytes]) -> bool:
    """Whether a run of inherited lines matches the fact whose digest has the fact's number in `digests`."""
    try:
        if not _well_marked(run):
            return False
        fact = run[0][1]["fact"]
        stored = fact["stored"]
        stored["payload"]["content"] = _content(run)
        digest = payload_digest(bytes.fromhex(fact["salt"]), orjson.dumps(stored))
        same = all(_shown(mark.get("raw", payload), payload) for payload, mark in run)
        return same and digests.get(fact["seq"]) == digest
    except (KeyError, TypeError, ValueError):
        return False


def _well_marked(run: Sequence[Inherited]) -> bool:
    """Whether the marks are those that an export writes: what they say beside the items is in no digest."""
    fact, depths = run[0][1]["fact"], [mark["depth"] for _, mark in run]
    written = list(fact) == ["seq", "salt", "stored"] and type(fact["seq"]) is int
    salted = bytes.fromhex(fact["salt"]).hex() == fact["salt"] and len(fact["salt"]) == 2 * SALT_BYTES
    ordered = all(type(depth) is int and depth >= 0 for depth in depths) and depths == sorted(depths)[::-1]
    return (
        written
        and salted
        and ordered
        and fact["stored"]["payload"]["content"] is None
        and all(list(mark) == _names(mark, number == 0) for number, (_, mark) in enumerate(run))
    )


def _names(mark: Mapping[str, Any], first: bool) -> list[str]:
    refers = "raw" in mark and next(references(mark["raw"]), None) is not None
    return ["depth", *(["fact"] if first else []), *(["raw"] if refers else [])]


def _content(run: Sequence[Inherited]) -> Any:
    """The text of the whole run as its fact stores it: in place, or as a reference if it is large."""
    content: Any = None
    for depth in range(max(mark["depth"] for _, mark in run), -1, -1):
        items: list[Any] = [] if content is None else [{"type": INHERITED, "content": content}]
        items += [mark.get("raw", payload) for payload, mark in run if mark["depth"] == depth]
        content = externalise({"content": orjson.dumps(items).decode()}, {})["content"]
    return content


def _shown(raw: Any, shown: Any) -> bool:
    """Whether `shown` is `raw` with texts in the place of references, or the word that they are gone."""
    if is_reference(raw):
        if not isinstance(shown, str):
            return False
        digest = hashlib.sha256(shown.encode("utf-8", "surrogatepass")).hexdigest()
        return bool(shown == resolve(raw, lambda _: None) or digest == raw["$blob"])
    if isinstance(raw, dict) and isinstance(shown, dict):
        return raw.keys() == shown.keys() and all(_shown(raw[key], shown[key]) for key in raw)
    if isinstance(raw, list) and isinstance(shown, list):
        return len(raw) == len(shown) and all(map(_shown, raw, shown))
    # Not by their values: of those 1, 1.0 and true are the same.
    return orjson.dumps(raw) == orjson.dumps(shown)
