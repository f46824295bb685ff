"""Prints `docs/states.md`: the three tables of states, drawn. `python -m tests.states_page`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import TypeVar

from orchestrator.core.calls import TRANSITIONS
from orchestrator.core.state import AGENT, TASK

S = TypeVar("S", bound=str | None)

_HEAD = """# States

What a task, a call and an agent may become. The page is generated from the tables that the code checks each
decision against: `python -m tests.states_page > docs/states.md`.
"""
_TASK = """## A task

`orchestrator/core/state.py` says what each phase means. A session without a task is at either end: the
next task begins with queued input, with mail, or with a person's op. What follows from a state by itself
(a turn is over, a wait is over, the next task begins, an agent comes to rest) is
`orchestrator/core/decide/__init__.py`.
"""
_CALL = """## A tool call

`proposed` again behind `running` is a call whose lost worker left no trace, or one that only reads.
"""
_AGENT = """## An agent

`ready` is an agent whose result its parent has not read yet, `idle` one whose result was read. Only a message
starts an agent again; a cancelled one nothing starts.
"""


def page() -> str:
    parts = [
        _HEAD,
        *(_TASK, _drawn(TASK)),
        *(_CALL, _drawn(TRANSITIONS, "proposed")),
        *(_AGENT, _drawn(AGENT, "queued", "ready")),
    ]
    return "\n".join(parts)


def _drawn(table: Mapping[S, Collection[S]], *first: str) -> str:
    """A table as a diagram; None, or an entry into one of `first`, is its round end."""
    lines = ["```mermaid", "stateDiagram-v2", *(f"    [*] --> {name}" for name in first)]
    for was, later in table.items():
        # In the order of the table: a set has none.
        lines += [f"    {was or '[*]'} --> {now or '[*]'}" for now in table if now in later]
        if not later:
            lines.append(f"    {was} --> [*]")
    return "\n".join([*lines, "```", ""])


if __name__ == "__main__":
    sys.stdout.write(page())
