"""The front matter of a Markdown file: YAML between two lines of three dashes.

Only events of the parser are read, so no object is built, no alias is followed, and what nests deeper than
needed is passed over: the file may be hostile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

FENCE = "---"
MOST_BYTES = 16 << 10
"""Bytes of a front matter; a longer one is an error."""


def split(text: str) -> tuple[Mapping[str, str] | None, str]:
    """The front matter's plain values and the text behind it; None and the whole text if there is none.

    A value inside of a mapping is named by both keys, joined by a dot. Raises `ValueError` for a front matter
    that does not end, is too long, or is no YAML.
    """
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)
    if not lines or lines[0].rstrip() != FENCE:
        return None, text
    end = next((at for at, line in enumerate(lines) if at and line.rstrip() == FENCE), None)
    if end is None:
        raise ValueError(f"its front matter does not end: a line `{FENCE}` is missing")
    matter = "".join(lines[1:end])
    if len(matter.encode("utf-8", "replace")) > MOST_BYTES:
        raise ValueError(f"its front matter has more than {MOST_BYTES:,} bytes")
    return _values(matter), "".join(lines[end + 1 :])


def _values(matter: str) -> dict[str, str]:
    # Most processes meet no such file, and the library takes a tenth of their start.
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return dict(_pairs(yaml, yaml.parse(matter, Loader=loader)))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 2}" if mark is not None else ""
        raise ValueError(f"its front matter is no YAML{place}") from None


def _pairs(yaml: Any, events: Iterator[Any]) -> Iterator[tuple[str, str]]:
    """The keys and values of the document's mapping, and of the mappings in it."""
    keys: list[str] = []
    """The keys of the open mappings; of a collection that is no such value, an empty text."""
    key: str | None = None
    for event in events:
        match event:
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                mapping = isinstance(event, yaml.MappingStartEvent)
                readable = mapping and (not keys or (len(keys) == 1 and key is not None))
                keys.append(f"{key}." if readable and key is not None else "" if readable else "\0")
                key = None
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                keys.pop()
                key = None
            case yaml.ScalarEvent() if keys and keys[-1] != "\0" and key is None:
                key = event.value
            case yaml.ScalarEvent() if keys and keys[-1] != "\0":
                yield keys[-1] + str(key), event.value
                key = None
            case yaml.AliasEvent():
                key = "" if key is None else None
            case _:
                pass
