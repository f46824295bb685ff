"""An event as a reader gets it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import PurePath
from typing import Any, Final, TypeAlias

import orjson

from orchestrator.broker.follow import EqCursor
from orchestrator.core.entries import EventKind, event_kind, read_event
from orchestrator.core.frozen import record
from orchestrator.protocol.events import EventMsg
from orchestrator.protocol.wire import JsonMapping, JsonObject


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


# ── for tenants ───────────────────────────────────────────────────────────────────────────────────
# Events as the tenant of a namespace gets them: without paths and addresses of the machine.
#
# What agents say, run and write is the tenant's own. Changed is what Dendro says of the machine: where
# files of the deployment lie, which program of it did not start, where a provider did not answer.


_PLACE: Final = re.compile(
    r"""
    (?P<address>
        (?<![\w+.-])[A-Za-z][A-Za-z0-9+.-]{0,20}://(?:[^\s'"`<>|,;)\[\]]*\[[0-9A-Fa-f:.]{2,45}\])?
          [^\s'"`<>|,;)\]]*[^\s'"`<>|,;)\].:]                   # a URL
        | \('[^']{0,255}',\ \d{1,5}(?:,\ \d{1,10}){0,2}\)        # a socket's address, as Python shows it
        | (?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?(?![\w.]*\w)
        | (?<![\w.:/-])(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z][A-Za-z0-9-]{0,62}(?:\.[A-Za-z0-9-]{1,63}){0,8})
          :\d{2,5}(?!\w)                                        # host:port
    )
    | (?P<path> (?<![\w.…/~-])~?/[^\s'"`<>|,;:)\]]+ )
    """,
    re.VERBOSE,
)


def without_places(text: str) -> str:
    """Words of Dendro without the paths in them, of which the last name stays, and without addresses."""
    return _PLACE.sub(lambda found: "…" if found["path"] is None else _shown(found["path"]), text)


def _shown(path: str) -> str:
    return f"…/{PurePath(path).name}"


def for_tenant(message: dict[str, Any]) -> dict[str, Any]:
    """An event as a tenant gets it."""
    change = _CHANGES.get(str(message.get("type")))
    return message if change is None else {**message, **change(message)}


def _configured(message: JsonMapping) -> JsonObject:
    said = message.get("initial_messages")
    told = {} if said is None else {"initial_messages": [for_tenant(one) for one in said]}
    return {**told, "rollout_path": ""}


def _prompts(message: JsonMapping) -> JsonObject:
    return {
        "custom_prompts": [{**one, "path": PurePath(one["path"]).name} for one in message["custom_prompts"]]
    }


def _skills(message: JsonMapping) -> JsonObject:
    return {
        "skills": [
            {
                **entry,
                "skills": [_skill(skill) for skill in entry["skills"]],
                "errors": [
                    {"path": _end(error["path"]), "message": without_places(error["message"])}
                    for error in entry.get("errors") or ()
                ],
            }
            for entry in message["skills"]
        ]
    }


def _skill(skill: JsonObject) -> JsonObject:
    """A skill of the session's own folder as it is, of another one without the folder."""
    return skill if skill.get("scope") == "repo" else {**skill, "path": _end(skill["path"])}


def _end(path: str) -> str:
    return "/".join(PurePath(path).parts[-2:])


def _words(*names: str) -> Callable[[JsonMapping], JsonObject]:
    """The members that are words of Dendro."""

    def change(message: JsonMapping) -> JsonObject:
        said = {name: message[name] for name in names if isinstance(message.get(name), str)}
        return {name: without_places(text) for name, text in said.items()}

    return change


def _server_starts(message: JsonMapping) -> JsonObject:
    status = message["status"]
    return {"status": {**status, **_words("error")(status)} if isinstance(status, Mapping) else status}


def _servers_started(message: JsonMapping) -> JsonObject:
    return {"failed": [{**one, **_words("error")(one)} for one in message.get("failed") or ()]}


_Change: TypeAlias = Callable[[JsonMapping], JsonObject]
_CHANGES: Final[Mapping[str, _Change]] = {
    "session_configured": _configured,
    "conversation_path": lambda _: {"path": ""},
    "list_custom_prompts_response": _prompts,
    "list_skills_response": _skills,
    "mcp_startup_update": _server_starts,
    "mcp_startup_complete": _servers_started,
    "error": _words("message"),
    "stream_error": _words("message", "additional_details"),
    "warning": _words("message"),
    "background_event": _words("message"),
}
CHANGED: Final = frozenset(_CHANGES)
"""The types of events that a tenant gets otherwise than a session of the machine's user."""
