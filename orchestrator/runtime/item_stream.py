"""The items of one response while it streams: their names, and what is told of them before they are done."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.core import commands as c
from orchestrator.core.state import Request, Task
from orchestrator.model.events import ItemDone
from orchestrator.model.shapes import name_of
from orchestrator.protocol.wire import JsonValue

Push = Callable[[c.Command], None]

MOST_BEGUN = 1_024
"""Items of one response whose beginning is told: as many as the calls that run of it."""


class ItemStream:
    """The items of one request's response, in their order.

    An item is named by its provider, and by its place in the turn where the provider names none.
    """

    def __init__(self, task: Task, request: Request, push: Push) -> None:
        self._request = request
        self._push = push
        self._names = f"{task.id}-{request.n}"
        self._count = 0
        self._open = ""
        """The name of the item that has begun last, until it is done."""
        self._told: set[str] = set()

    def begins(self, item: JsonValue) -> None:
        """Takes the beginning of an item, which may be anything that a server sends."""
        self._open = self._named(name_of(item.get("id")) if isinstance(item, dict) else "")
        if isinstance(item, dict) and item.get("type") == "web_search_call" and self._tells():
            self._push(c.SearchBegun(self._request.n, self._open))

    def done(self, event: ItemDone) -> None:
        """Hands a whole item on."""
        item_id = event.place[1] or self._open or self._named("")
        self._open = ""
        self._push(c.ItemCompleted(self._request.n, event.item, item_id, begun=item_id in self._told))

    def _named(self, name: str) -> str:
        self._count += 1
        return name or f"{self._names}-{self._count}"

    def _tells(self) -> bool:
        if self._open in self._told or len(self._told) >= MOST_BEGUN:
            return False
        self._told.add(self._open)
        return True
