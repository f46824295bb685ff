"""The model of the bench's trees: `Make <n> agents` makes them, awaits them all, and counts their results.

Everything follows from the request alone. An agent that was made takes a moment: its parent has parked by
then, as it would have beside a real model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from orchestrator.core.decide.request import MOST_CALLS
from orchestrator.stub.answers import Answer, Call, Step, StubRequest, Text

MOMENT_MS = 60.0
_ORDER = re.compile(r"Make (\d+) agents")


def order(count: int) -> str:
    """The task of a root that is to make so many agents."""
    return f"Make {count} agents and merge what they say."


def merged(count: int) -> str:
    """The root's answer when all agents have reported."""
    return f"{count} agents reported."


@dataclass(frozen=True, slots=True)
class TreeScript:
    """`slow` agents take a moment, others answer at once."""

    slow: bool
    name: str = "trees"

    def answer(self, request: StubRequest) -> Answer:
        items = request.body.get("input") or ()
        return Answer(self._step(items), 1 + sum("call_id" in item for item in items), request.digest)

    def _step(self, items: Sequence[Mapping[str, Any]]) -> Step:
        wanted = next((int(found[1]) for item in items if (found := _ORDER.search(_text(item)))), None)
        if wanted is None:
            return Step(items=(Text("Done."),), delay_ms=MOMENT_MS if self.slow else 0)
        made = sum(item.get("name") == "subagent_spawn" for item in items)
        if made < wanted:
            spawn = Call("subagent_spawn", {"prompt": "Say that you are done."})
            return Step(items=(spawn,) * min(MOST_CALLS, wanted - made))
        awaits = [orjson.loads(i["output"]) for i in items if str(i.get("output")).startswith('{"timed_out"')]
        last = awaits[-1] if awaits else {"injected": True}
        if last["injected"] or last["waiting"] or last["ready"]:
            return Step(items=(Call("subagent_await", {}),))
        heard = {one["session_id"] for result in awaits for one in result["ready"] if one["completion"]}
        return Step(items=(Text(merged(len(heard))),))


def _text(item: Mapping[str, Any]) -> str:
    parts = item.get("content") if item.get("role") == "user" else ()
    return "".join(part.get("text", "") for part in parts or ())
