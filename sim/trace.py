"""Events of a simulation, line by line: cheap to keep, formatted only when somebody asks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any


class Trace:
    """Events of one simulation, each with its time and the lane that it happened on."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.kept = True
        """Whether anybody will read it; else nothing is noted."""
        self.heard: Callable[[str, str, bytes], None] = lambda client, way, message: None
        """Told of each message of a client of a gateway, and which way it went."""
        self._rows: list[tuple[float, str, str, tuple[Any, ...]]] = []

    def note(self, who: str, what: str, *details: Any) -> None:
        """`what` is a word; details are values that print the same in every run."""
        if self.kept:
            self._rows.append((self._now(), who, what, details))

    def rows(self) -> list[tuple[float, str, str, tuple[Any, ...]]]:
        """Each event's time, lane, word and details."""
        return self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def lines(self, last: int | None = None) -> Iterator[str]:
        """Readable, oldest first."""
        rows = self._rows if last is None else self._rows[-last:]
        for at, who, what, details in rows:
            yield f"{at:10.4f}  {who:<14} {what:<12} {' '.join(map(_short, details))}".rstrip()

    def digest(self) -> str:
        """Equal for equal runs."""
        found = hashlib.sha256()
        for line in self.lines():
            found.update(line.encode("utf-8", "backslashreplace") + b"\n")
        return found.hexdigest()


def _short(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    return text if len(text) <= 90 else text[:87] + "..."
