"""Stops and takeovers: the rest of work that was stopped, or whose worker was lost."""

from __future__ import annotations

from typing import Any

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.commands import ResponseBroken, Stopped, TaskRefused, TookOver
from orchestrator.core.draft import DoesNotFit, Draft
from orchestrator.core.history import call_output
from orchestrator.core.rules_approval import done_phase
from orchestrator.core.rules_ending import all_stopped, fail, go_on
from orchestrator.core.rules_model import response_broken
from orchestrator.core.rules_task import settle
from orchestrator.core.state import Call, Phase
from orchestrator.protocol import events as ev
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.scalars import Duration
from orchestrator.protocol.wire import EventModel

IN_DOUBT = (
    "in doubt: the worker was lost while this call was running; it may have had effects; "
    "check before repeating"
)


def stopped(draft: Draft, command: Stopped) -> None:
    """Ends the task, or begins to, now that everything that ran has ended."""
    all_stopped(draft, command.elapsed_s)


def refused(draft: Draft, command: TaskRefused) -> None:
    """Fails the task before anything more of it is begun."""
    if draft.task.stopping or draft.task.request is not None:
        raise DoesNotFit("the task is being stopped, or a model request is in flight")
    fail(draft, command.message, output=f"not run: {command.message}")


def took_over(draft: Draft, command: TookOver) -> None:
    """Takes over from a lost holder: what it had begun is void, in doubt, or shown to be done."""
    task = draft.state.task
    if task is None:
        return
    if task.ending:
        # Nothing of it ran any more, and the log says so.
        go_on(draft)
        return
    if task.running and not draft.state.facts.is_root:
        # Its supervisor has killed what ran, by its own clock; no worker saw it.
        draft.add(f.AgentChanged({"evidence": "presumed"}))
    for call in task.running:
        if call.epoch != draft.moment.epoch:
            _judge(draft, call, command.judgements.get(call.call_id, "in_doubt"))
    task = draft.state.task
    if task is not None and task.stopping:
        all_stopped(draft, {})
    elif task is not None and task.request is not None and task.request.epoch != draft.moment.epoch:
        lost = ResponseBroken(
            task.request.n, "stream", "the worker was lost while the response streamed", delay_ms=0
        )
        response_broken(draft, lost)


def _judge(draft: Draft, call: Call, judgement: str) -> None:
    if judgement == "none" or call.name in draft.moment.rules.repeatable:
        draft.add(f.CallMoved(call.call_id, Phase.PROPOSED))
        return
    if judgement == "all":
        output: Any = call.spec["summary"]
        end: EventModel = ev.PatchApplyEnd(
            call_id=CallId(call.call_id), stdout=output, stderr="", success=True
        )
    else:
        output = IN_DOUBT
        end = _in_doubt_end(call)
    draft.event(end)
    draft.add(e.item(call_output(call.item, output)), done_phase(call, applied=judgement == "all"))
    if judgement != "all":
        draft.event(ev.WarningEvent(message=f"call {call.call_id} is {IN_DOUBT}"))
    settle(draft)


def _in_doubt_end(call: Call) -> EventModel:
    if call.spec["kind"] == "patch":
        return ev.PatchApplyEnd(call_id=CallId(call.call_id), stdout="", stderr=IN_DOUBT, success=False)
    return ev.ExecCommandEnd(
        call_id=CallId(call.call_id),
        stdout="",
        stderr=IN_DOUBT,
        aggregated_output=IN_DOUBT,
        exit_code=-1,
        duration=Duration(secs=0, nanos=0),
        formatted_output=IN_DOUBT,
    )
