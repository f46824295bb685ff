"""The fold from a session's events to the changes of its turns and items.

The same fold is used live and over a log: a log has no deltas, and gives the same items with the same ids.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.core.ids import SessionId
from orchestrator.views.event import Event
from orchestrator.views.turns.records import Change, Status, Turn


class Projector:
    """The turns of one session, by its events in their order.

    An event's `id` is the turn that it belongs to. Events of a log and of the EQ may follow each other, so a
    door reads the log up to a place and goes on live from there.
    """

    def __init__(self, session: SessionId) -> None:
        raise NotImplementedError

    def receive(self, event: Event) -> tuple[Change, ...]:
        """The changes that follow from the next event."""
        raise NotImplementedError

    @property
    def turn(self) -> Turn | None:
        """The turn that runs, with its items as they stand."""
        raise NotImplementedError

    @property
    def status(self) -> Status:
        """The session's status after the last event."""
        raise NotImplementedError


def turns_of(session: SessionId, events: Iterable[Event]) -> tuple[Turn, ...]:
    """The turns that events of a log tell of, oldest first; the last one may still run.

    A slice of a log will do: what happened in a turn whose begin is not among the events is left out.
    """
    raise NotImplementedError
