"""Turns as clients of gateways heard them, held against a second reading of their sessions' logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.broker.replies import stored_entry
from orchestrator.core.blobs import REFERENCE
from orchestrator.core.entries import EVENT_MSG, line_ms
from sim.told_turns import LoggedTurn, TurnReader, whole

if TYPE_CHECKING:
    from sim.seen import Seen

TOLD_LATE_MS = 5_000
"""A turn of the root that began so shortly before one of its agent may have been committed behind it."""
STATUSES = {"in_progress": "inProgress", "interrupted": "failed"}
"""How calls are told that ended so."""
HIDDEN = "/srv/"
"""Paths of the machine, of which a tenant is told the last name."""
TURNS = {"in_progress": "inProgress"}


@dataclass
class Heard:
    """A turn that a connection heard from its beginning on."""

    id: str
    root_turn: str
    """The turn's own id where Redis did not answer as it began."""
    status: str = ""
    """Empty until it was told to be over."""
    fault: str = ""
    items: list[Mapping[str, Any]] = field(default_factory=list)
    """Those that were told to be complete."""

    def ends(self, told: Mapping[str, Any]) -> None:
        self.status = told["status"]
        self.fault = (told["error"] or {}).get("message", "")


def unlike(
    session: str,
    seen: Seen,
    root: Seen | None,
    turns: Iterable[Heard],
    text: Callable[[str, str], str],
) -> str:
    """How turns of a session at rest are told otherwise than its log has them; empty if they are not.

    `text` is what a tree keeps beside its logs, by its digest.
    """
    reader = TurnReader(session)
    for entry, (_, fields) in zip(seen.entries, seen.stored, strict=True):
        refers = REFERENCE.encode() in fields[b"p"]
        reader.read(entry if not refers else whole(entry, lambda digest: text(seen.tree, digest)))
    logged = {turn.id: turn for turn in reader.turns}
    for turn in turns:
        own = logged.get(turn.id)
        if own is None or not turn.status:
            continue
        hidden = HIDDEN in own.fault
        if turn.status != TURNS.get(own.status, own.status) or not (hidden or turn.fault == own.fault):
            return f"that {turn.id} is {turn.status} {turn.fault!r}, which {own.status} {own.fault!r}"
        told, has = _told(turn.items), _logged(own)
        if told != has:
            return f"{[*(told - has)]} of {turn.id}, which has {[*(has - told)]}"
        if (
            root is not None
            and turn.root_turn != turn.id
            and turn.root_turn not in (may := _root_turns(root, _began_ms(seen, turn.id)))
        ):
            return f"that {turn.id} is of the root's turn {turn.root_turn}, which is of {may}"
    return ""


def _told(items: Sequence[Mapping[str, Any]]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for item in items:
        match item["type"]:
            case "userMessage":
                found["said", "".join(part.get("text") or "" for part in item["content"])] += 1
            case "agentMessage":
                found["message", item["text"]] += 1
            case "commandExecution":
                found["command", item["id"], item["status"], item["exitCode"], item["aggregatedOutput"]] += 1
            case "fileChange":
                paths = tuple(change["path"] for change in item["changes"])
                found["patch", item["id"], item["status"], paths] += 1
            case _:
                pass
    return found


def _logged(turn: LoggedTurn) -> Counter[Any]:
    found = Counter[Any](("said", words) for words in turn.said)
    found.update(("message", shown[1]) for shown in turn.shown if shown[0] == "message")
    for id, (kind, status, *told) in turn.calls.items():
        if kind in ("command", "patch"):
            found[(kind, id, STATUSES.get(status, status), *told[: 2 if kind == "command" else 1])] += 1
    return found


def _root_turns(root: Seen, at_ms: int) -> list[str]:
    """The turns of the root in one of which an agent's turn began at a time."""
    begun = [
        (line_ms(stored_entry(*stored).payload), entry.id)
        for entry, stored in zip(root.entries, root.stored, strict=True)
        if entry.type == EVENT_MSG and entry.payload["type"] == "task_started"
    ]
    if [ms for ms, _ in begun] != sorted(ms for ms, _ in begun):
        # By a clock that was put back none is surely before another.
        return [id for _, id in begun]
    before = [(ms, id) for ms, id in begun if ms <= at_ms]
    return [
        id
        for place, (ms, id) in enumerate(before)
        if all(later > at_ms - TOLD_LATE_MS for later, _ in before[place + 1 :])
    ]


def _began_ms(seen: Seen, turn: str) -> int:
    return next(
        line_ms(stored_entry(*stored).payload)
        for entry, stored in zip(seen.entries, seen.stored, strict=True)
        if entry.id == turn and entry.type == EVENT_MSG and entry.payload["type"] == "task_started"
    )
