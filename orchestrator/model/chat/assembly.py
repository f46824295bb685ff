"""The items of one response, put together from the pieces of its stream.

A stream of chat completions has no items: it has pieces of a text, of reasoning, and of calls by index. One
item is open at a time; a piece that belongs to another one completes it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from orchestrator.core.frozen import record
from orchestrator.model.chat.tools import call_item
from orchestrator.model.events import ItemAdded, ItemDone, ModelEvent, ReasoningRawDelta, TextDelta
from orchestrator.model.shapes import BrokenItem, check_item
from orchestrator.protocol.items import Message, OutputText, ReasoningText
from orchestrator.protocol.wire import JsonObject, written

MOST_ITEMS: Final = 1_024
"""Texts and calls of one response: as many calls as one may ask for."""
MOST_CHARS: Final = 32 << 20
"""Characters of one text, or of one call's arguments."""


@record
class CallPiece:
    """A piece of a call; an empty text is a field that the server left out."""

    index: int | None
    id: str
    name: str
    arguments: str

    @classmethod
    def of(cls, piece: Any) -> CallPiece:
        """Reads an entry of `tool_calls`; raises `BrokenItem` for a field of another type."""
        function = piece.get("function") or {}
        index = piece.get("index")
        if index is not None and (type(index) is not int or index < 0):
            raise BrokenItem("a piece of a call whose `index` is no number of a call")
        texts = (piece.get("id"), function.get("name"), function.get("arguments"))
        for name, text in zip(("id", "name", "arguments"), texts, strict=True):
            if text is not None and not isinstance(text, str):
                raise BrokenItem(f"a piece of a call whose `{name}` is no text")
        return cls(index, *(text or "" for text in texts))


@dataclass(slots=True)
class _Words:
    """A text or a reasoning that is being written; blanks alone are not shown."""

    kind: Literal["message", "reasoning"]
    pieces: list[str] = field(default_factory=list)
    size: int = 0
    shown: bool = False

    def more(self, piece: str) -> Iterator[ModelEvent]:
        self.size = _within(self.size, piece, f"a {self.kind}")
        self.pieces.append(piece)
        if not self.shown:
            if not piece.strip():
                return
            self.shown, piece = True, "".join(self.pieces)
            yield ItemAdded(self._item(()))
        yield TextDelta(piece) if self.kind == "message" else ReasoningRawDelta(piece)

    def done(self) -> Iterator[ModelEvent]:
        if self.shown:
            yield ItemDone(self._item(("".join(self.pieces),)))

    def _item(self, texts: tuple[str, ...]) -> JsonObject:
        if self.kind == "message":
            return written(Message(role="assistant", content=tuple(OutputText(text=text) for text in texts)))
        # No `Reasoning`: it would say that encrypted reasoning is null, of a server that has no such thing.
        raw = [written(ReasoningText(text=text)) for text in texts]
        return {"type": "reasoning", "summary": [], "content": raw}


@dataclass(slots=True)
class _Call:
    """A call that is being written."""

    index: int | None
    converted: Mapping[str, str]
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    size: int = 0

    def takes(self, piece: CallPiece) -> bool:
        """Whether a piece is one of this call: by id, by index, or as a piece without either.

        Servers that give every call the same index tell them apart by their ids; servers that give neither
        send each call whole, and its name begins it.
        """
        if piece.id and self.id and piece.id != self.id:
            return False
        if piece.index is None:
            return bool(piece.id) or not piece.name
        return self.index is None or piece.index == self.index

    def more(self, piece: CallPiece) -> Iterator[ModelEvent]:
        if piece.name and self.name and piece.name != self.name:
            raise BrokenItem("a call with two names")
        self.id = self.id or piece.id
        self.size = _within(self.size, piece.arguments, "a call")
        self.arguments.append(piece.arguments)
        if piece.name and not self.name:
            self.name = piece.name
            yield ItemAdded(self._item(""))

    def done(self) -> Iterator[ModelEvent]:
        item = self._item("".join(self.arguments) or "{}")
        check_item(item)
        yield ItemDone(item)

    def _item(self, arguments: str) -> dict[str, Any]:
        item = call_item(self.name, arguments, self.converted)
        return item | {"call_id": self.id} if self.id else item


class Assembly:
    """The items of one response, each handed out as soon as it is complete."""

    def __init__(self, converted: Mapping[str, str]) -> None:
        self._converted = converted
        self._open: _Words | _Call | None = None
        self._begun = 0
        self._indexes: set[int] = set()
        self._ids: set[str] = set()

    def words(self, kind: Literal["message", "reasoning"], piece: str) -> Iterator[ModelEvent]:
        """A piece of the message, or of what the model thought before it."""
        current = self._open
        if not isinstance(current, _Words) or current.kind != kind:
            yield from self.close()
            self._begin(current := _Words(kind))
        yield from current.more(piece)

    def call(self, piece: CallPiece) -> Iterator[ModelEvent]:
        """A piece of a call."""
        current = self._open
        if not isinstance(current, _Call) or not current.takes(piece):
            if self._is_late(piece):
                raise BrokenItem("a piece of a call that was complete before it")
            yield from self.close()
            self._begin(current := _Call(piece.index, self._converted))
        yield from current.more(piece)
        self._note(piece)

    def close(self) -> Iterator[ModelEvent]:
        """The open item, which is complete."""
        current, self._open = self._open, None
        if current is not None:
            yield from current.done()

    def _begin(self, item: _Words | _Call) -> None:
        self._begun += 1
        if self._begun > MOST_ITEMS:
            raise BrokenItem(f"more than {MOST_ITEMS:,} texts and calls in one response")
        self._open = item

    def _is_late(self, piece: CallPiece) -> bool:
        """Whether a piece belongs to a call that another item has completed."""
        known = piece.id in self._ids if piece.id else not piece.name
        return known and (piece.index is None or piece.index in self._indexes)

    def _note(self, piece: CallPiece) -> None:
        if piece.index is not None:
            self._indexes.add(piece.index)
        if piece.id:
            self._ids.add(piece.id)


def _within(size: int, piece: str, what: str) -> int:
    size += len(piece)
    if size > MOST_CHARS:
        raise BrokenItem(f"{what} of more than {MOST_CHARS:,} characters")
    return size
