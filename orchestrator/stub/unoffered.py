"""Calls of tools that the request does not offer: most often a name that a scenario misspells.

The stub answers with them all the same, because a scenario may mean to try what a worker does
with such a call; it warns, once for each name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from orchestrator.stub.script import Answer, Call, CustomCall, RawItem, StubRequest

_CALL_TYPES = frozenset({"function_call", "custom_tool_call"})


class UnofferedTools:
    """The warnings of one server; `script` is the name of what it answers from."""

    def __init__(self, script: str, warn: Callable[[str], None]) -> None:
        self._script = "the scenario" if script == "scenario" else f"the behaviour {script}"
        self._warn = warn
        self._reported: set[str] = set()

    def check(self, request: StubRequest, answer: Answer) -> None:
        """Warns of each tool that the answer calls and the request does not offer."""
        called = [name for name in _called(answer) if name not in self._reported]
        if not called:
            return
        offered = sorted(_offered(request.body))
        for name in dict.fromkeys(called):
            if name not in offered:
                self._reported.add(name)
                which = ", ".join(offered) if offered else "no tool with a name"
                self._warn(
                    f"{self._script} calls `{name}`, which this request does not offer: it offers {which}"
                )


def _called(answer: Answer) -> Iterator[str]:
    step = answer.step
    for item in step.items if step.status is None else ():
        match item:
            case Call(call=name) | CustomCall(custom_call=name):
                yield name
            case RawItem(item={"type": kind, "name": str(name)}) if kind in _CALL_TYPES:
                yield name
            case _:
                pass


def _offered(body: Mapping[str, Any]) -> set[str]:
    tools = body.get("tools")
    named = tools if isinstance(tools, list) else ()
    return {tool["name"] for tool in named if isinstance(tool, dict) and isinstance(tool.get("name"), str)}
