"""The requests that are open before a client, by the events that the client gets.

A root gets its agents' requests as well, and their ends; two agents may have a call
of one name, so a request is known by its session and its call.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.core.entries import Kind
from orchestrator.core.ids import SessionId
from orchestrator.protocol import events as ev
from orchestrator.protocol.wire import JsonMapping
from orchestrator.requests import TO_PEOPLE, Request, call_id_of, request_of
from orchestrator.views.event import Event

_BEGINS = frozenset[Kind]({ev.ExecCommandBegin, ev.McpToolCallBegin, ev.PatchApplyBegin})
"""Events by which a call begins: its request was allowed."""
_ASKING = frozenset[Kind](ev.EVENTS[tag] for tag in TO_PEOPLE)
TELLING = _ASKING | _BEGINS | ev.TURN_ENDS | {ev.RequestResolved, ev.TokenCount}
"""Events that open or close requests."""


class OpenRequests:
    """The requests that the events of one session have opened and not closed, oldest first."""

    def __init__(self, session: SessionId) -> None:
        self._session = session
        self._open: dict[tuple[str, str], Request] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._open.values())

    @property
    def first(self) -> Request | None:
        """The request that has waited longest."""
        return next(iter(self._open.values()), None)

    def add(self, request: Request) -> None:
        """Opens a request; one that was listed, and is told by its event too, stays as it is."""
        key = self._key(request.event)
        known = self._open.get(key)
        if known is None or known.turn_id != request.turn_id:
            # An earlier one of this name has ended: this one has waited for a shorter time than all others.
            self._open.pop(key, None)
            self._open[key] = request

    def take_first(self) -> Request:
        """Removes and returns the request that has waited longest; the caller must answer it."""
        return self._open.pop(next(iter(self._open)))

    def receive(self, event: Event) -> None:
        """Opens or closes the requests that the event is about."""
        kind = event.kind
        if kind in _ASKING:
            self.add(request_of(event.msg))
        elif not self._open:
            return
        elif kind in _BEGINS or kind is ev.RequestResolved:
            self._open.pop(self._key(event.msg), None)
        elif kind in ev.TURN_ENDS:
            # The end of a session's task withdraws its own requests, not those of its agents.
            self._close_own(event.id, ended_calls=False)
        elif kind is ev.TokenCount:
            # A turn whose calls have ended: no event tells of an answer by the client that gave the task.
            self._close_own(event.id, ended_calls=True)

    def _close_own(self, turn: str, *, ended_calls: bool) -> None:
        """Closes the session's own requests of a turn; one of a later turn was read ahead of its event."""
        for key, request in tuple(self._open.items()):
            ended = request.turn_id in (None, turn)
            if ended and key[0] == self._session and (request.ends_with_calls or not ended_calls):
                del self._open[key]

    def _key(self, message: JsonMapping) -> tuple[str, str]:
        return str(message.get("session_id") or self._session), call_id_of(message)
