"""Pages of a thread's turns and items, from either end of its log, and the places between pages.

A place names an entry of a log with the chain's value there, so that a log which was put back to an earlier
moment is noticed. Pages of one thread have no gap and repeat nothing while it goes on.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Sequence
from typing import Literal, TypeAlias

from orchestrator.broker.records import SessionHead
from orchestrator.core.frozen import record
from orchestrator.views.thread_log import Stretch, ThreadLog
from orchestrator.views.turns.turn_records import ThreadItem, Turn, TurnId

Kind: TypeAlias = Literal["turns", "items"]
Direction: TypeAlias = Literal["asc", "desc"]
Side: TypeAlias = Literal["before", "behind"]
MOST = 200
"""Turns or items of one page."""
MOST_CURSOR = 500
_SIDES: dict[str, Side] = {"<": "before", ">": "behind"}
_KINDS: dict[str, Kind] = {"t": "turns", "i": "items"}
_END = 1 << 40
"""The number of an item behind all items of a turn."""


class BadCursor(ValueError):
    """A cursor that names no place of this log; the message is for the client."""


@record
class Cursor:
    """A place before or behind an entry: a turn's first one, with an item's number, or the log's last."""

    kind: Kind
    side: Side
    leg: int
    seq: int
    hash8: str
    item: int = 0

    def __str__(self) -> str:
        side = "<" if self.side == "before" else ">"
        text = f"{self.kind[0]}{side}.{self.leg}.{self.seq}.{self.hash8}.{self.item}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def of(cls, text: str, kind: Kind) -> Cursor:
        """Raises `BadCursor`."""
        try:
            if len(text) > MOST_CURSOR:
                raise ValueError
            named, *numbers = base64.b64decode(text, b"-_", validate=True).decode("ascii").split(".")
            leg, seq, hash8, item = numbers
            cursor = cls(_KINDS[named[:1]], _SIDES[named[1:]], int(leg), int(seq), hash8, int(item))
        except (ValueError, KeyError, binascii.Error):
            raise BadCursor("cursor: this is no place of a list; give one that a list answered") from None
        if cursor.kind != kind or min(cursor.leg, cursor.seq, cursor.item) < 0:
            raise BadCursor(
                f"cursor: this is no place of a list of {kind}; give one that such a list answered"
            )
        return cursor


def end_of(head: SessionHead, kind: Kind) -> Cursor:
    """The place behind the newest turn or item of a thread."""
    return Cursor(kind, "behind", 0, head.seq, head.head.hex()[:8], _END)


@record
class Asked:
    """A page that is asked for."""

    direction: Direction
    limit: int
    cursor: Cursor | None = None


@record
class TurnPage:
    """Turns, and the places behind the last and, for the other direction, before the first."""

    turns: tuple[Turn, ...] = ()
    next: Cursor | None = None
    back: Cursor | None = None


@record
class ItemPage:
    """The same of items, each with its turn."""

    items: tuple[tuple[TurnId, ThreadItem], ...] = ()
    next: Cursor | None = None
    back: Cursor | None = None


async def turns_page(log: ThreadLog, asked: Asked) -> TurnPage:
    """Raises `BadCursor`."""
    turns: list[Turn] = []
    places: list[Stretch] = []
    async for stretch in await _stretches(log, asked, "turns"):
        if len(turns) == asked.limit:
            return TurnPage(tuple(turns), _next(asked, places[-1]), _back(asked, places[0]))
        turn = await log.turn(stretch)
        if turn is not None:
            turns.append(turn)
            places.append(stretch)
    return TurnPage(tuple(turns), None, _back(asked, places[0]) if places else None)


async def items_page(log: ThreadLog, asked: Asked, of: str | None = None) -> ItemPage:
    """The items of all turns, or of one; raises `BadCursor`."""
    items: list[tuple[TurnId, ThreadItem]] = []
    places: list[tuple[Stretch, int]] = []
    async for stretch in await _stretches(log, asked, "items"):
        if of not in (None, stretch.turn):
            continue
        turn = await log.turn(stretch)
        for number, item in _numbered(turn, asked.direction):
            if not _behind(asked, stretch, number):
                continue
            if turn is None or len(items) == asked.limit:
                return ItemPage(tuple(items), _next(asked, *places[-1]), _back(asked, *places[0]))
            items.append((turn.id, item))
            places.append((stretch, number))
        if of is not None:
            break
    return ItemPage(tuple(items), None, _back(asked, *places[0]) if places else None)


def _numbered(turn: Turn | None, direction: Direction) -> Sequence[tuple[int, ThreadItem]]:
    numbered = list(enumerate(turn.items if turn is not None else ()))
    return numbered if direction == "asc" else numbered[::-1]


def _behind(asked: Asked, stretch: Stretch, number: int) -> bool:
    """Whether an item comes after the cursor in the page's direction."""
    cursor = asked.cursor
    if cursor is None:
        return True
    own = (-stretch.leg, stretch.start, number)
    place = (-cursor.leg, cursor.seq, cursor.item)
    if own == place:
        return (cursor.side == "before") == (asked.direction == "asc")
    return own > place if asked.direction == "asc" else own < place


async def _stretches(log: ThreadLog, asked: Asked, kind: Kind) -> AsyncIterator[Stretch]:
    """The turns in which a page may begin, and those that follow in its direction."""
    cursor = asked.cursor
    if cursor is None:
        return log.back() if asked.direction == "desc" else log.forward()
    await _check(log, cursor)
    # The turn at the cursor itself has items on both of its sides.
    inside = kind == "items"
    if asked.direction == "asc":
        return log.forward(cursor.leg, cursor.seq + (not inside and cursor.side == "behind"))
    if cursor.side == "before" and not inside:
        return log.back(cursor.leg, cursor.seq - 1)
    return log.back(cursor.leg, await log.last_of_turn(cursor.leg, cursor.seq))


async def _check(log: ThreadLog, cursor: Cursor) -> None:
    if await log.hash8(cursor.leg, cursor.seq) != cursor.hash8:
        raise BadCursor(
            "cursor: the log does not have this place; the server was put back to an earlier moment, or the "
            "cursor is of another thread: list again without a cursor"
        )


def _next(asked: Asked, stretch: Stretch, item: int | None = None) -> Cursor:
    return _at(stretch, item, "before" if asked.direction == "desc" else "behind")


def _back(asked: Asked, stretch: Stretch, item: int | None = None) -> Cursor:
    """The place from which the other direction begins with the page's first turn or item."""
    return _at(stretch, item, "behind" if asked.direction == "asc" else "before")


def _at(stretch: Stretch, item: int | None, side: Side) -> Cursor:
    kind: Kind = "turns" if item is None else "items"
    return Cursor(kind, side, stretch.leg, stretch.start, stretch.hash8, item or 0)
