"""The model of a soak: roots make agents and hear them out; agents run a command and say that it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.tree_script import TreeScript
from orchestrator.stub.answers import Call, Step

COMMAND = ["bash", "-c", "touch report.txt; sleep 0.05"]
"""A command that `approval_policy = untrusted` asks about."""


@dataclass(frozen=True, slots=True)
class SoakScript(TreeScript):
    """Each answer takes the model `think_ms`."""

    slow: bool = False
    name: str = "soak"
    think_ms: float = 500.0

    def _step(self, items: Sequence[Mapping[str, Any]]) -> Step:
        step = TreeScript._step(self, items)
        if step.delay_ms == 0 and _is_new_agent(items):
            step = Step(items=(Call("shell", {"command": COMMAND}),))
        return replace(step, delay_ms=self.think_ms)


def _is_new_agent(items: Sequence[Mapping[str, Any]]) -> bool:
    """Whether nobody has ordered agents here, and nothing was called since the last message."""
    said = [item for item in items if item.get("role") == "user"]
    return not any("agents" in str(item.get("content")) for item in said) and items[-1].get("role") == "user"
