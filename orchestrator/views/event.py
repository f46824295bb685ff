"""An event as a reader gets it."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import orjson

from orchestrator.broker.follow import EqCursor
from orchestrator.core.entries.stored import EventKind, event_kind, read_event
from orchestrator.core.frozen import record
from orchestrator.protocol.events import EventMsg


class Message:
    """A payload of an event queue, read; several readers share it, and none may change it."""

    __slots__ = ("_line", "_told", "id", "msg")

    def __init__(self, payload: bytes) -> None:
        value = orjson.loads(payload)
        self.id: str = value["id"]
        self.msg: dict[str, Any] = value["msg"]
        self._line = b""
        self._told: EventMsg | None = None

    def told(self) -> EventMsg:
        """The message as its record, read at the first call."""
        if self._told is None:
            self._told = read_event(self.msg)
        return self._told

    def line(self) -> bytes:
        """The message as a JSON object, written at the first call."""
        self._line = self._line or orjson.dumps({"id": self.id, "msg": self.msg})
        return self._line


@record
class Event:
    """An event as a client reads it: large texts are put back in."""

    id: str
    msg: dict[str, Any]
    cursor: EqCursor | None = field(default=None, compare=False)
    """Where to come back after it; None inside a replay."""
    at_ms: int = field(default=0, compare=False)
    """When it happened: the same live and in the log; 0 for a warning of the client's own."""
    seq: int = field(default=0, compare=False)
    """The entry of the log that it is, or that was the last one when it came up; 0 as for `at_ms`."""

    shared: Message | None = field(default=None, compare=False)
    """The message that it is of, where other readers get the same one."""

    def line(self) -> bytes:
        """The event as a JSON object, as clients of lines read it."""
        if self.shared is not None:
            return self.shared.line()
        return orjson.dumps({"id": self.id, "msg": self.msg})

    @property
    def type(self) -> str:
        return str(self.msg.get("type", ""))

    @property
    def kind(self) -> EventKind:
        """The class of `told`, known without reading it."""
        return event_kind(self.msg)

    @property
    def told(self) -> EventMsg:
        """The message as its record; an `UnknownEvent` if it is not sound, or of an unknown kind."""
        return read_event(self.msg) if self.shared is None else self.shared.told()
