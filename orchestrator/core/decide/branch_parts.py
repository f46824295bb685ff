"""Beginning and exit of a task with a conversation of its own, as the kinds of such tasks make them."""

from __future__ import annotations

from orchestrator.core.frozen import record
from orchestrator.core.history import Item
from orchestrator.core.settings import TurnSettings
from orchestrator.core.task_kinds import TaskKind
from orchestrator.protocol.wire import EventModel, ItemModel, JsonObject


@record
class Beginning:
    """The beginning of such a task."""

    kind: TaskKind
    settings: TurnSettings
    opening: tuple[Item, ...]
    """The items that say what it is about, behind those that it begins with by its kind."""
    event: EventModel
    """The event behind `task_started`."""


@record
class Exit:
    """The rest of a task that ends, however it ends."""

    message: str | None = None
    """Its last message."""
    events: tuple[EventModel, ...] = ()
    """The events before its final one."""
    items: tuple[ItemModel, ...] = ()
    """The items that join the session's conversation."""
    plan: JsonObject | None = None
    """A plan that the next task of a person is shown."""
