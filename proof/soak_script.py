"""The model of a soak: roots make agents and hear them out; agents run a command and say that it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from bench.tree_script import TreeScript, order
from orchestrator.stub.answers import Answer, Call, OutputItem, Step, StubRequest, Text

THINK_S = 2.0
COMMAND = ["bash", "-c", "touch report.txt; sleep 0.05"]
"""A command that `approval_policy = untrusted` asks about."""
NOTES = ["bash", "-c", "echo $RANDOM >> notes.txt; touch report-$RANDOM.txt"]
"""One that leaves a file of its own, and one that is another's too: merged, they conflict."""

PROBE = "Say that you are done, at once."
"""The text of a turn that is timed: the model does not think about it."""
Work = Literal["command", "notes", "tool"]
"""What each agent of a tree does: runs a command; writes into its own folder, which is merged; or calls an
MCP server's tool."""
_ASKS: Mapping[Work, str] = {
    "command": "Say that you are done.",
    "notes": "Write it into your notes, and say that you are done.",
    "tool": "Note it with the tool, and say that you are done.",
}
_WORKS: Mapping[Work, Call] = {
    "command": Call("shell", {"command": COMMAND}),
    "notes": Call("shell", {"command": NOTES}),
    "tool": Call("mcp__ledger__note", {"id": "an-agent", "seconds": 0.05}),
}


def task(agents: int, work: Work = "command") -> str:
    """The task of a root that is to make so many agents for that work."""
    return f"{order(agents)} To each say: {_ASKS[work]}"


@dataclass(frozen=True, slots=True)
class SoakScript(TreeScript):
    """Each answer takes the model `think_ms`."""

    slow: bool = False
    name: str = "soak"
    think_ms: float = THINK_S * 1000

    def answer(self, request: StubRequest) -> Answer:
        if request.body.get("tools"):
            return TreeScript.answer(self, request)
        # A compaction is offered none.
        step = Step(items=(Text("All is done that was asked for."),), delay_ms=self.think_ms)
        return Answer(step, 1, request.digest)

    def _step(self, items: Sequence[Mapping[str, Any]]) -> Step:
        said = [_said(item) for item in items if item.get("role") == "user"]
        step = TreeScript._step(self, items) if _is_parent(items, said) else self._done(items, said[-1])
        ordered: Work = next((_work(text) for text in said if "agents" in text), "command")
        step = replace(step, items=tuple(_as_ordered(item, ordered) for item in step.items))
        if ordered == "notes" and not any(isinstance(item, Call) for item in step.items):
            step = _merges(items) or step
        return replace(step, delay_ms=0 if said[-1] == PROBE else self.think_ms)

    def _done(self, items: Sequence[Mapping[str, Any]], said: str) -> Step:
        """Works once for the last message, and says that it is done."""
        return Step(items=(_WORKS[_work(said)] if items[-1].get("role") == "user" else Text("Done."),))


def _is_parent(items: Sequence[Mapping[str, Any]], said: Sequence[str]) -> bool:
    """Whether it makes agents, or has made them; one that was compacted since does not begin again."""
    return "agents" in said[-1] or any(item.get("name") == "subagent_spawn" for item in items)


def _work(said: str) -> Work:
    return next((work for work, asks in _ASKS.items() if asks in said), "command")


def _said(item: Mapping[str, Any]) -> str:
    parts = item.get("content")
    return parts if isinstance(parts, str) else "".join(part.get("text", "") for part in parts or ())


def _as_ordered(item: OutputItem, work: Work) -> OutputItem:
    if isinstance(item, Call) and item.call == "subagent_spawn":
        return replace(item, args={"prompt": _ASKS[work]})
    return item


def _merges(items: Sequence[Mapping[str, Any]]) -> Step | None:
    """Merges the folder of each agent, one after the other as calls of one answer; None when that is done."""
    made = sum(item.get("name") == "subagent_spawn" for item in items)
    if any(item.get("name") == "subagent_merge" for item in items):
        return None
    return Step(items=tuple(Call("subagent_merge", {"agent_id": number}) for number in range(1, made + 1)))
