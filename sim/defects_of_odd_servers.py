"""Defects that show where providers and MCP servers keep no rules."""

from __future__ import annotations

from orchestrator.core.decide import call_end, request
from orchestrator.runtime.model_request import ItemStream
from sim.mutant import Mutant, swapped, text

DEFECTS = (
    Mutant(
        "repeated ids stay",
        "two calls of one response have one id, because the model gave it to both",
        swapped(request, "_unique_call_id", lambda real: lambda draft, call_id: call_id),
        "oddities",
    ),
    Mutant(
        "the third of an id is called as the second",
        "an id that the model repeats twice is told apart once",
        text(request, "_unique_call_id", "while calls.has_used(unique)", "if calls.has_used(unique)"),
        "oddities",
    ),
    Mutant(
        "repeated calls are dropped",
        "a call whose id the model repeats is taken for the same one, whatever it calls",
        text(
            request,
            "_call_proposed",
            'item["call_id"] = _unique_call_id(draft, item["call_id"])\n',
            'if item["call_id"] in draft.task.calls:\n        return\n',
        ),
        "oddities",
    ),
    Mutant(
        "questions outlive their calls",
        "a question of a server stays open when its call ends",
        swapped(call_end, "withdraw", lambda real: lambda draft, call, *, with_task: None),
        "oddities",
    ),
    Mutant(
        "withdrawn, and listed still",
        "a question that is withdrawn stays in the fleet's queue of approvals",
        text(call_end, "_withdraw", "draft.close_approval(asked.id)", "pass"),
        "oddities",
    ),
    Mutant(
        "withdrawn, and answered all the same",
        "an answer counts that comes behind the withdrawal of its question",
        text(call_end, "open_elicitation", "task.open_elicitations if", "task.elicitations if"),
        "oddities",
    ),
    Mutant(
        "withdrawn without a word",
        "nobody is told that a question is withdrawn because its call has ended",
        text(call_end, "_withdraw", "if told:", "if False:"),
        "oddities",
    ),
    Mutant(
        "text behind an item is its own",
        "an item that is done is handed on twice where text comes behind it",
        text(
            ItemStream,
            "done",
            "self._push(c.ItemCompleted(self._n, event.item, named, begun=begun))",
            "self._push(c.ItemCompleted(self._n, event.item, named, begun=begun))\n"
            "    if self._count > 2:\n"
            "        self._push(c.ItemCompleted(self._n, event.item, named, begun=begun))",
        ),
        "oddities",
    ),
)
