"""Holds `docs/protocol/coverage.md` against the protocol and the tests: `python -m tests.coverage_page`.

Each operation, event, item, member of a union, value of an enumeration and tool has a row, by its name in
the row's first cell; each row names tests that exist, or says in bold that there is none to name. Exits with
1 and a line for each fault.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args

from orchestrator.protocol import events, items, ops, turn_items
from orchestrator.protocol.wire import tag_of
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.tools.tool_context import ToolConfig
from orchestrator.tools.toolbox import built_in
from tests.protocol_page import SHARED, UNIONS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "protocol" / "coverage.md"
ROLLOUT = ("session_meta", "response_item", "compacted", "turn_context", "event_msg", "dendro")
NO_TEST = re.compile(r"\*\*(not served|not sent|no test)[^*]*\*\*")
RECORDINGS = {
    "tests/acceptance/test_recorded_conversations.py": "tests/transcripts/{}",
    "tests/acceptance/test_further_conversations.py": "tests/acceptance/further/{}.json",
}
_CODE = re.compile(r"`([^`]+)`(:?)")
_TEST = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)(?:\[([\w]+)\])?")
_UNIONS_OF_THEIR_OWN = frozenset({"Op", "EventMsg"})


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the page: the names that it is about, and all that it says."""

    number: int
    names: tuple[str, ...]
    text: str


def rows_of(page: str) -> Iterator[Row]:
    """The rows of all tables, without their heads."""
    for number, line in enumerate(page.split("\n"), 1):
        if line.startswith("|") and not line.startswith(("| what ", "| where ", "|---")):
            yield Row(number, tuple(_names_of(line.split("|")[1])), line)


def _names_of(cell: str) -> Iterator[str]:
    """The names in a cell; what stands behind a name with a colon are values of it."""
    whose = ""
    for name, colon in _CODE.findall(cell):
        yield f"{whose}.{name}" if whose and not colon else name
        whose = name if colon else whose


def names_of_the_protocol() -> Iterator[str]:
    """Every name that must have a row."""
    yield from ops.OPS
    yield from events.EVENTS
    for union, members in UNIONS.items():
        if union not in _UNIONS_OF_THEIR_OWN:
            tags = map(_tag, get_args(members))
            yield from (f"{union}.{tag}" for tag in tags if not tag.startswith("Unknown"))
    yield from (f"RolloutItem.{kind}" for kind in ROLLOUT)
    for enumeration in enumerations():
        yield enumeration.__name__
        yield from (f"{enumeration.__name__}.{value.value}" for value in enumeration)


def enumerations() -> Iterator[type[Enum]]:
    """The enumerations of the protocol, each once."""
    for module in (*SHARED, events, items, turn_items, ops):
        for value in vars(module).values():
            if inspect.isclass(value) and issubclass(value, Enum) and value.__module__ == module.__name__:
                yield value


def names_of_tools() -> Iterator[str]:
    """The names under which models may call the product's own tools."""
    for tool in built_in(ToolConfig(SandboxSupport(None, 0, ()), {}), cast(Any, None)):
        yield from tool.names


def _tag(member: Any) -> str:
    try:
        return str(tag_of(member))
    except (AttributeError, KeyError, TypeError, StopIteration):
        return str(member.__name__)


def faults(page: str, wanted: Iterable[str]) -> Iterator[str]:
    """The wanted names that a page lacks, and its rows that prove nothing."""
    rows, names = list(rows_of(page)), dict.fromkeys(wanted)
    known = {name for row in rows for name in row.names}
    yield from (f"{name} has no row" for name in names if name not in known)
    for row in rows:
        yield from (f"line {row.number}: {name} is no name" for name in row.names if name not in names)
        named = _TEST.findall(row.text)
        if not named and not NO_TEST.search(row.text):
            yield f"line {row.number} names no test, and does not say that there is none"
        for path, name, recording in named:
            yield from (f"line {row.number}: {why}" for why in _missing(path, name, recording))


def _missing(path: str, name: str, recording: str) -> Iterator[str]:
    if name not in tests_of(path):
        yield f"there is no {path}::{name}"
    elif recording and not (ROOT / RECORDINGS.get(path, path).format(recording)).exists():
        yield f"{path}::{name} has no recording {recording}"


@cache
def tests_of(path: str) -> frozenset[str]:
    """The names of the tests of a file; none if there is no such file."""
    file = ROOT / path
    tree = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module([], [])
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions)


def main() -> int:
    found = list(faults(PAGE.read_text(encoding="utf-8"), (*names_of_the_protocol(), *names_of_tools())))
    for fault in found:
        print(f"{PAGE.relative_to(ROOT)}: {fault}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
