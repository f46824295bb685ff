"""The turns that a log, or a slice of one, tells of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId
from orchestrator.views.event import Event
from orchestrator.views.turns import records as r
from orchestrator.views.turns.projector import Projector
from orchestrator.views.turns.records import Turn, TurnId


def turns_of(session: SessionId, events: Iterable[Event]) -> tuple[Turn, ...]:
    """The turns that events of a log tell of, oldest first; the last one may still run.

    A slice of a log will do: what happened in a turn whose begin is not among the events is left out.
    """
    projector = Projector(session, counts=False)
    turns: dict[TurnId, Turn] = {}
    for event in events:
        for change in projector.receive(event):
            match change:
                case r.TurnCompleted(turn):
                    turns[turn.id] = turn
                case r.ItemCompleted(turn=id, item=item) if id in turns:
                    turns[id] = _with(turns[id], item)
                case r.TurnsDropped(count):
                    turns = _kept(turns, count)
                case _:
                    pass
    running = projector.turn
    return (*turns.values(), *((running,) if running is not None else ()))


def _with(turn: Turn, item: r.ThreadItem) -> Turn:
    """The turn with an item that ended behind it."""
    return replace(turn, items=tuple(item if one.id == item.id else one for one in turn.items))


def _kept(turns: Mapping[TurnId, Turn], count: int) -> dict[TurnId, Turn]:
    """The turns before the last `count` of a person."""
    said = [id for id, turn in turns.items() if any(isinstance(item, r.UserMessage) for item in turn.items)]
    if not count or not said:
        return dict(turns)
    ids = list(turns)
    return {id: turns[id] for id in ids[: ids.index(said[-min(count, len(said))])]}
