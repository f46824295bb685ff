"""Following one model request: its stream, turned into commands and deltas."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any, cast

from orchestrator.core import commands as c
from orchestrator.core.blobs import references
from orchestrator.core.ids import TreeId
from orchestrator.core.state import State
from orchestrator.model.client import HttpBudget
from orchestrator.model.errors import FatalModelError, RateLimited, RetryableModelError
from orchestrator.model.events import (
    Completed,
    ItemDone,
    ModelEvent,
    RateLimits,
    ReasoningRawDelta,
    ReasoningSectionBreak,
    ReasoningSummaryDelta,
    TextDelta,
)
from orchestrator.runtime.ports import DeltaSink, Ports
from orchestrator.runtime.prompting import build_prompt

Push = Callable[[c.Command], None]


async def follow_request(ports: Ports, state: State, push: Push, delta: DeltaSink) -> None:
    """Sends the request that `state` has begun, and reports it to its end."""
    task = state.task
    assert task is not None
    assert task.request is not None
    request, provider = task.request, task.settings.model_provider
    most = ports.models.retries(provider)[0]
    budget = HttpBudget(max(0, most - task.http_used))
    try:
        await ports.texts.fetch(TreeId(state.facts.tree_id), _needed(state))
        prompt = build_prompt(state, request, ports.tools.specs(state), ports.texts.get)
        shown = delta if request.purpose == "turn" else _unseen
        limits = None
        stream = cast(Any, ports.models.stream(provider, prompt, budget))
        async with aclosing(stream) as events:
            async for event in events:
                if isinstance(event, RateLimits):
                    limits = event.snapshot
                elif isinstance(event, ItemDone):
                    push(c.ItemCompleted(request.n, event.item))
                elif isinstance(event, Completed):
                    push(
                        c.ResponseCompleted(request.n, event.response_id, event.usage, limits, event.end_turn)
                    )
                else:
                    _show(event, shown)
    except (FatalModelError, RetryableModelError, RateLimited) as error:
        push(_broken(request.n, error, most - budget.retries_left))


def _needed(state: State) -> set[str]:
    return {digest for item in state.history for digest in references(item)}


def _unseen(message: dict[str, Any]) -> None:
    """A compaction's text is not the agent's answer."""


def _show(event: ModelEvent, delta: DeltaSink) -> None:
    match event:
        case TextDelta(text):
            delta({"type": "agent_message_delta", "delta": text})
        case ReasoningSummaryDelta(text):
            delta({"type": "agent_reasoning_delta", "delta": text})
        case ReasoningRawDelta(text):
            delta({"type": "agent_reasoning_raw_content_delta", "delta": text})
        case ReasoningSectionBreak():
            delta({"type": "agent_reasoning_section_break"})
        case _:
            pass


def _broken(
    n: int, error: FatalModelError | RetryableModelError | RateLimited, http_used: int
) -> c.ResponseBroken:
    match error:
        case FatalModelError():
            return c.ResponseBroken(
                n, "fatal", error.message, http_used=http_used, codex_error_info=error.codex_error_info
            )
        case RateLimited():
            return c.ResponseBroken(n, "limited", error.message, int(error.retry_after_s * 1000), http_used)
        case RetryableModelError():
            delay = None if error.delay_s is None else int(error.delay_s * 1000)
            return c.ResponseBroken(n, "stream", error.message, delay, http_used, error.codex_error_info)
