"""Rollouts' files, held against the logs that they are written from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from orchestrator.core.entries import DENDRO, EVENT_MSG, Entry
from sim.files import SimFiles

if TYPE_CHECKING:
    from sim.seen import Seen
    from sim.watch import Watch

OWN = frozenset({"seq", "epoch", "salt", "chain", "omitted"})
"""Fields of a line beside those of its entry."""
ASKED = frozenset({"conversation_path", "shutdown_complete"})
"""Events before which the file is brought up to date, or a warning says why not."""


class Exported:
    """The rules of rollouts' files. A file of a session that Redis took back may hold what is lost."""

    def __init__(self, watch: Watch, files: SimFiles) -> None:
        self._watch = watch
        self._files = files
        files.wrote = self._wrote
        watch.grew = self._grew

    def _wrote(self, path: Path) -> None:
        """A file holds the log's first lines, each once and whole, after every write."""
        session = path.stem[-36:]
        if self._watch.went_back_s < 0 and session in self._watch.sessions:
            self._begins(session, self._watch.sessions[session], self._files.content[path])

    def _grew(self, session: str, seen: Seen, before: int) -> None:
        """A reader told the file's path, or the session's end, finds all earlier entries in the file."""
        events = [entry for entry in seen.entries[before:] if entry.type == EVENT_MSG]
        asked = next((event for event in events if event.payload["type"] in ASKED), None)
        if asked is None or any(_warns(e) and (e in events or e.id == asked.id) for e in seen.entries):
            return
        path = Path(seen.state.facts.rollout_path or "")
        if not (path.name and seen.state.native) or self._watch.went_back_s >= 0 or path in self._files.torn:
            return
        if self._begins(session, seen, self._files.content.get(path, b"")) < len(_lines(seen, before)):
            self._watch.broken("exported", f"{session}: {asked.payload['type']} without its file")

    def _begins(self, session: str, seen: Seen, content: bytes) -> int:
        """How many lines of the log the file has; breaks the rule if it has any other."""
        if content and not content.endswith(b"\n"):
            self._watch.broken("exported", f"the file of {session} is written on behind a torn line")
        lines = [value for value in map(orjson.loads, content.splitlines()) if "inherited" not in value]
        logged = _lines(seen)
        if [(line["seq"], line["chain"]) for line in lines] != [place for place, _ in logged[: len(lines)]]:
            numbers = [line["seq"] for line in lines]
            self._watch.broken("exported", f"the file of {session} has the lines {numbers} of {seen.seq}")
        for line, (_, value) in zip(lines, logged, strict=False):
            if b'"$blob"' not in orjson.dumps(value) and _said(line) != value:
                self._watch.broken("exported", f"the file of {session} says another thing at {line['seq']}")
        return len(lines)

    def at_rest(self) -> None:
        """The file of a session that came to rest after all faults holds its log to the end."""
        for session, seen in self._watch.sessions.items():
            path = Path(seen.state.facts.rollout_path or "")
            written_s = self._watch.archive_moves.written_s(session)
            # The former writer may have died, or lost Redis, between its last step and the file.
            if (
                path.name
                and seen.state.native
                and written_s > max(self._watch.peace_s, self._watch.went_back_s)
            ):
                has = self._begins(session, seen, self._files.content.get(path, b""))
                if has != len(_lines(seen)):
                    self._watch.broken("exported", f"{session} is at rest, and its file lacks the log's end")


def _warns(entry: Entry) -> bool:
    return entry.type == EVENT_MSG and bool(entry.payload["type"] == "warning")


def _lines(seen: Seen, through: int | None = None) -> list[tuple[tuple[int, str], Any]]:
    """The places and contents of all lines that the log has, or its first entries."""
    entries = ((number, fields, orjson.loads(fields[b"p"])) for number, fields in seen.stored[:through])
    return [
        ((int(number.partition(b"-")[0]), fields[b"h"].hex()), value)
        for number, fields, value in entries
        if value["type"] != DENDRO
    ]


def _said(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in OWN}
