"""Events as tests write them, and what a projector makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId
from orchestrator.views.event import Event
from orchestrator.views.turns import turn_records as r
from orchestrator.views.turns.projector import Projector

SESSION = SessionId("s")
TESTS = Path(__file__).parents[2]
PASSING = frozenset(
    {
        "agent_message_delta",
        "agent_message_content_delta",
        "agent_reasoning_delta",
        "agent_reasoning_raw_content_delta",
        "agent_reasoning_section_break",
        "reasoning_content_delta",
        "reasoning_raw_content_delta",
        "plan_delta",
        "item_started",
        "exec_command_output_delta",
    }
)
"""Events that no log has."""


_PLACE = {"thread_id": SESSION, "turn_id": "t"}
_NEEDED: dict[str, dict[str, Any]] = {
    "item_started": _PLACE,
    "item_completed": _PLACE,
    "plan_delta": {**_PLACE, "item_id": "i1"},
    "request_resolved": {"turn_id": "t", "resolved_at_ms": 1},
}
"""Fields that an event has to have, and that matter to no test."""


def told(kind: str, id: str = "t", /, **fields: Any) -> Event:
    return Event(id, {"type": kind, **_NEEDED.get(kind, {}), **fields})


def begun(id: str = "t") -> Event:
    return told("task_started", id, model_context_window=1000)


def done(said: str | None = "ok", id: str = "t") -> Event:
    return told("task_complete", id, last_agent_message=said)


def numbered(events: Iterable[Event]) -> list[Event]:
    """Events with a time and a place in the log, as a reader gets them."""
    return [replace(event, at_ms=1000 + n, seq=n) for n, event in enumerate(events, 1)]


def logged(events: Iterable[Event]) -> list[Event]:
    """Those of the events that a log has."""
    return [event for event in events if event.type not in PASSING]


def changes(events: Iterable[Event], session: str = SESSION) -> list[r.Change]:
    projector = Projector(SessionId(session))
    return [change for event in events for change in projector.receive(event)]


def named(found: Iterable[r.Change]) -> list[str]:
    """The changes in short: their class, and of items the kind and the status."""
    names = []
    for change in found:
        name = type(change).__name__
        if isinstance(change, r.ItemStarted | r.ItemCompleted):
            status = getattr(change.item, "status", None)
            name += f" {type(change.item).__name__}" + (f" {status}" if status else "")
        names.append(name)
    return names


def completed(found: Iterable[r.Change]) -> list[tuple[r.TurnId, r.ThreadItem]]:
    """The items that were completed, without the time of their begin: a log knows the end alone."""
    return [
        (change.turn, replace(change.item, started_ms=None))
        for change in found
        if isinstance(change, r.ItemCompleted)
    ]


def recordings() -> Iterator[tuple[str, list[Event]]]:
    """The events of every recorded conversation, by its name."""
    for folder in sorted((TESTS / "transcripts").iterdir()):
        if (folder / "sq_eq.ndjson").exists():
            lines = map(json.loads, (folder / "sq_eq.ndjson").read_text().splitlines())
            yield folder.name, _events(lines)
    for path in sorted((TESTS / "acceptance" / "further").glob("*.json")):
        processes = json.loads(path.read_text())["processes"]
        yield path.stem, _events(line for process in processes for line in process["lines"])


def _events(lines: Iterable[dict[str, Any]]) -> list[Event]:
    return [Event(line["eq"]["id"], line["eq"]["msg"]) for line in lines if "eq" in line]


def items(events: list[Event]) -> list[r.ThreadItem]:
    return [item for _, item in completed(changes(events))]
