"""The flows of the protocol that wait for somebody, as lives of one session: questions, plans, variants,
reviews, compactions, look-ups, servers that ask, processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from orchestrator.core.settings import Rules
from orchestrator.model.prompt import Completed, Item, ItemDone, Prompt
from orchestrator.protocol import ops
from orchestrator.views.event import Event
from tests.core.driver import op
from tests.runtime.players import USAGE, message
from tests.tree.harness import Cue
from tests.tree.lived import Flow

_OPTIONS = [{"label": "A", "description": "a"}, {"label": "B", "description": "b"}]
_QUESTION = {"header": "Which", "question": "Which one?", "options": _OPTIONS}
_STEPS = [{"step": "one", "status": "pending"}]
_PROPOSAL = {"title": "Plan", "summary": "Do it.", "plan": {"plan": _STEPS}}
_FINDINGS = {"findings": [], "overall_correctness": "patch is correct", "overall_explanation": "fine"}


def calls(call_id: str, name: str, **arguments: Any) -> ItemDone:
    text = orjson.dumps(arguments).decode()
    return ItemDone({"type": "function_call", "name": name, "arguments": text, "call_id": call_id})


def made(prompt: Prompt) -> dict[str, str]:
    """The outputs of the calls that the request shows."""
    return {item["call_id"]: str(item["output"]) for item in prompt.input if "output" in item}


def says(text: str) -> ops.UserInput:
    return ops.UserInput.model_validate({"type": "user_input", "items": [{"type": "text", "text": text}]})


def words_of(item: Item) -> str:
    """The text of a user's message; empty of anything else."""
    return str(item["content"][0]["text"]) if item.get("role") == "user" else ""


def last_words(prompt: Prompt) -> str:
    """The last text of a user."""
    return next(filter(None, map(words_of, reversed(prompt.input))))


# ── what the model does ───────────────────────────────────────────────────────────────────────


def _asks(prompt: Prompt) -> Sequence[Cue]:
    done = made(prompt)
    if "q1" not in done:
        asked = calls("q1", "ask_user_question", questions=[{**_QUESTION, "multiSelect": False}])
        secret = {"id": "token", "header": "Token", "question": "Which token?", "isSecret": True}
        return [asked, calls("q2", "request_user_input", questions=[{**_QUESTION, "id": "which"}, secret])]
    return [calls("c1", "shell", command=["true"])] if "c1" not in done else [message("done")]


def _plans(prompt: Prompt) -> Sequence[Cue]:
    done = made(prompt)
    if last_words(prompt).startswith("turn") or "p2" in done:
        return [message("done")]
    return [calls("p2" if "p1" in done else "p1", "approve_plan", proposal=_PROPOSAL)]


def _drafts(prompt: Prompt) -> Sequence[Cue]:
    done, words = made(prompt), last_words(prompt)
    if "Point of view" in words:
        # One of the three answers with words that are no plan.
        text = "no plan" if "of view: DX" in words else orjson.dumps(_PROPOSAL).decode()
        return [message(text)]
    if "v1" not in done:
        return [calls("v1", "propose_plan_variants", goal="Add login")]
    return [calls("p1", "approve_plan", proposal=_PROPOSAL)]


def _reviews(prompt: Prompt) -> Sequence[Cue]:
    if last_words(prompt).startswith("turn"):
        return [message("done")]
    if "c1" not in made(prompt):
        return [calls("c1", "shell", command=["git", "diff"])]
    return [message(orjson.dumps(_FINDINGS).decode())]


def _is_summary(prompt: Prompt) -> bool:
    return "Write a handover" in last_words(prompt)


def _compacts(prompt: Prompt) -> Sequence[Cue]:
    return [message("What was done." if _is_summary(prompt) else f"done {last_words(prompt)}")]


def _compacts_by_itself(prompt: Prompt) -> Sequence[Cue]:
    if _is_summary(prompt):
        return [message("What was done.")]
    summed_up = any("What was done." in str(item) for item in prompt.input)
    if summed_up:
        return [message("done")]
    usage = {**USAGE, "input_tokens": 900, "total_tokens": 902}
    return [calls("c1", "shell", command=["true"]), Completed("full", usage, None)]


def _looks_up(prompt: Prompt) -> Sequence[Cue]:
    return [message("done")] if "c1" in made(prompt) else [calls("c1", "shell", command=["true"])]


def _calls_server(prompt: Prompt) -> Sequence[Cue]:
    done = made(prompt)
    for call_id in ("m1", "m2"):
        if call_id not in done:
            return [calls(call_id, "mcp__files__wipe")]
    return [message("done")]


def _serves(prompt: Prompt) -> Sequence[Cue]:
    done = made(prompt)
    if "c1" not in done:
        return [calls("c1", "exec_command", command=["serve"])]
    if "turn 2" in map(words_of, prompt.input) and "w1" not in done:
        return [calls("w1", "write_stdin", session_id=1, chars="stop\n")]
    return [message("done")]


# ── what the person answers ───────────────────────────────────────────────────────────────────


def _answers(event: Event) -> Any:
    match event.type:
        case "ask_user_question_request":
            answered = {"type": "answered", "answers": {"Which": "the second"}}
            return op("resolve_ask_user_question", id=event.msg["callId"], response=answered)
        case "request_user_input":
            given = {"which": {"answers": ["the first"]}, "token": {"answers": ["hunter2"]}}
            return op("user_input_answer", id=event.msg["call_id"], response={"answers": given})
        case "plan_approval_request":
            first = event.msg["call_id"] == "p1" and event.id == "op-1"
            response = {"type": "revised", "feedback": "shorter"} if first else {"type": "approved"}
            return op("resolve_plan_approval", id=event.msg["call_id"], response=response)
        case "elicitation_request":
            decision = "accept" if event.msg["message"] == "May I?" else "decline"
            names = {"server_name": event.msg["server_name"], "request_id": event.msg["id"]}
            return op("resolve_elicitation", **names, decision=decision)
        case _:
            return None


def _approves(event: Event) -> Any:
    if event.type != "plan_approval_request":
        return None
    return op("resolve_plan_approval", id=event.msg["call_id"], response={"type": "approved"})


_PLAN = op("plan", plan_request={"goal": "Add login"})
_REVIEW = op("review", review_request={"prompt": "Look at it.", "user_facing_hint": "it"})
_LOOK_UPS = (
    ops.AddToHistory(text="turn 1"),
    ops.ListCustomPrompts(),
    ops.ListSkills(),
    ops.ListMcpTools(),
    says("turn 1"),
    # The first entry is there, and none behind it.
    ops.GetHistoryEntryRequest(offset=0, log_id=0),
    ops.GetHistoryEntryRequest(offset=1, log_id=0),
)

FLOWS = (
    Flow("questions", (says("turn 1"), says("turn 2")), _asks, _answers),
    Flow("plans", (_PLAN, says("turn 1"), says("turn 2")), _plans, _answers),
    Flow("variants", (_PLAN,), _drafts, _approves, agents=True),
    Flow("reviews", (_REVIEW, says("turn 1")), _reviews),
    Flow("compactions", (says("turn 1"), ops.Compact(), says("turn 2")), _compacts),
    Flow("full windows", (says("turn 1"),), _compacts_by_itself, rules=Rules(auto_compact_limit=500)),
    Flow("look-ups", _LOOK_UPS, _looks_up),
    Flow("servers that ask", (says("turn 1"),), _calls_server, _answers),
    Flow("processes", (says("turn 1"), says("turn 2")), _serves),
)
