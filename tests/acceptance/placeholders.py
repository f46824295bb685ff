"""Recorded values with placeholders in them, held against real ones.

A recording writes `@WORKSPACE@`, `@ID1@`, `@TIME@` where the real thing differs at each run. A
placeholder stands for its pattern; one that names a thing (an id, a folder) stands for the same
text wherever it comes again. Knows nothing of events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

Json = Any

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_PATTERNS = {
    "ID": _UUID,
    "TIME": r"[0-9][0-9T:.Z+-]*",
    "DATE": r"\d{4}/\d{2}/\d{2}",
    "HOME": r"/\S*?",
    "COMMIT": r"[0-9a-f]{40}",
    "RESPONSE": r"[^\s\"]+",
    "ITEM": r"[^\s\"]+",
    "PORT": r"\d+",
    "WORKSPACE": r"/[^\s\"<]*?",
    "OUTSIDE": r"/[^\s\"<]*?",
    "LONG_TEXT": r"(?s:.{40,})",
    "ANY": r"(?s:.*)",
}
_NAMES_ONE_THING = ("ID", "WORKSPACE", "OUTSIDE", "RESPONSE", "ITEM")
_PLACEHOLDER = re.compile(r"@((?:" + "|".join(_PATTERNS) + r")\d*)@")
ANYTHING = "@ANY@"


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that should have been the recorded one."""

    where: str
    recorded: Json
    got: Json

    def __str__(self) -> str:
        return f"{self.where}\n    recorded {_shown(self.recorded)}\n    got      {_shown(self.got)}"


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT = _Absent()


@dataclass(slots=True)
class Bindings:
    """Values that the placeholders of a conversation turned out to stand for."""

    values: dict[str, str] = field(default_factory=dict)

    def fits(self, recorded: str, got: str) -> bool:
        """Whether the text is the recorded one; what it teaches of placeholders is kept."""
        found = _compiled(self.fill(recorded)).fullmatch(got)
        if found is not None:
            self.values.update(found.groupdict())
        return found is not None

    def fill(self, text: str) -> str:
        """The text with every known placeholder replaced by what it stands for."""
        return _PLACEHOLDER.sub(lambda found: self.values.get(found[1], found[0]), text)


@lru_cache(maxsize=4096)
def _compiled(recorded: str) -> re.Pattern[str]:
    pattern, end, named = "", 0, set[str]()
    for found in _PLACEHOLDER.finditer(recorded):
        label = found[1]
        kind = label.rstrip("0123456789")
        pattern += re.escape(recorded[end : found.start()])
        end = found.end()
        if kind not in _NAMES_ONE_THING:
            pattern += f"(?:{_PATTERNS[kind]})"
        elif label in named:
            pattern += f"(?P={label})"
        else:
            named.add(label)
            pattern += f"(?P<{label}>{_PATTERNS[kind]})"
    return re.compile(pattern + re.escape(recorded[end:]))


def differences(recorded: Json, got: Json, bindings: Bindings, where: str) -> Iterator[Difference]:
    """Every recorded field by name and value; further fields of an object are allowed at any depth."""
    if recorded == ANYTHING and got is not ABSENT:
        return
    if isinstance(recorded, dict) and isinstance(got, dict):
        found = {bindings.fill(name): value for name, value in recorded.items()}
        for name, value in found.items():
            yield from differences(value, got.get(name, ABSENT), bindings, f"{where}.{name}")
    elif isinstance(recorded, list) and isinstance(got, list) and len(recorded) == len(got):
        for index, (expected, value) in enumerate(zip(recorded, got, strict=True)):
            yield from differences(expected, value, bindings, f"{where}[{index}]")
    elif isinstance(recorded, str) and isinstance(got, str):
        if not bindings.fits(recorded, got):
            yield Difference(where, bindings.fill(recorded), got)
    elif recorded != got or isinstance(recorded, bool) != isinstance(got, bool):
        yield Difference(where, recorded, got)


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 1500 else f"{text[:1000]} … {text[-400:]}"
