"""Stops and takeovers: the rest of work that was stopped, or whose worker was lost."""

from __future__ import annotations

from orchestrator.core import facts as f
from orchestrator.core.calls import (
    Call,
    Phase,
)
from orchestrator.core.calls.exec import DOUBT, NOTHING_SHOWN, Shown
from orchestrator.core.commands import ResponseBroken, Stopped, TaskRefused, TookOver
from orchestrator.core.commit_parts import TreeNote
from orchestrator.core.decide.call_end import WORKER_LOST, close, lose, lost_processes
from orchestrator.core.decide.draft import DoesNotFit, Draft
from orchestrator.core.decide.folder import fall_back
from orchestrator.core.decide.request import response_broken
from orchestrator.core.decide.task import all_stopped, fail, go_on
from orchestrator.protocol import events as ev
from orchestrator.protocol.agents import LifecycleChange

IN_DOUBT = f"{DOUBT}while this call was running; it may have had effects; check before repeating"

IN_DOUBT_ELSEWHERE = (
    f"{DOUBT}while this call was running; the folder is as it was before this call; "
    "what it did elsewhere may have happened; check before repeating"
)
"""The same of a call in a portable folder, which goes on from its last snapshot."""

IN_DOUBT_PARTLY = (
    f"{DOUBT}while this call was running; the folder was recorded meanwhile: a part of what it wrote may be "
    "there; what it did elsewhere may have happened; check before repeating"
)
"""The same of one beside which a process ended: the folder is recorded then, whatever else runs."""

IN_DOUBT_RECORDED = (
    f"{DOUBT}before the output of this call was recorded; what it did to the folder is "
    "there; check before repeating"
)
"""The same of one that had ended when its holder was lost."""


def stopped(draft: Draft, command: Stopped) -> None:
    """Ends the task, or begins to, now that everything that ran has ended.

    A command may have outlived its call just before: it is being killed as a process, and goes first.
    """
    if not draft.state.processes.stopping:
        all_stopped(draft, command.elapsed_s)


def refused(draft: Draft, command: TaskRefused) -> None:
    """Fails the task before anything more of it is begun."""
    if draft.task.stopping or draft.task.request is not None:
        raise DoesNotFit("the task is being stopped, or a model request is in flight")
    fail(draft, command.message, output=f"not run: {command.message}")


def took_over(draft: Draft, command: TookOver) -> None:
    """Takes over from a lost holder: what it had begun is void, in doubt, or shown to be done."""
    _tell_tree(draft)
    processes = lost_processes(draft.state.processes.living, draft.moment.epoch)
    lose(draft, processes, WORKER_LOST, shown=command.shown)
    task = draft.state.task
    if draft.state.facts.portable is not None:
        running = [call for call in task.running if call.epoch != draft.moment.epoch] if task else []
        fall_back(draft, running, [one.call_id for one in processes], command)
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
            judgement = command.judgements.get(call.call_id, "in_doubt")
            _judge(draft, call, judgement, command.shown.get((task.id, call.call_id), NOTHING_SHOWN))
    task = draft.state.task
    if task is not None and task.stopping:
        all_stopped(draft, {})
    elif task is not None and task.request is not None and task.request.epoch != draft.moment.epoch:
        lost = ResponseBroken(
            task.request.n, "stream", "the worker was lost while the response streamed", delay_ms=0
        )
        response_broken(draft, lost)


def _tell_tree(draft: Draft) -> None:
    """Has the tree's log say so, where there are agents: a session's own log says it alone otherwise."""
    facts = draft.state.facts
    if facts.is_root and not draft.state.tree.children:
        return
    message = ev.SubagentLifecycle(
        event=LifecycleChange.UPDATED, agent_id=facts.agent_id, session_id=facts.session_id
    )
    about: TreeNote = {"agent_id": facts.agent_id, "takeover": draft.moment.epoch}
    draft.tree.publish("", message, (facts.tree_id,), about=about)


def _judge(draft: Draft, call: Call, judgement: str, shown: Shown) -> None:
    if draft.state.facts.portable is not None:
        judgement = _judged_by_folder(draft, call)
    if judgement == "none" or call.repeatable or call.name in draft.moment.rules.repeatable:
        draft.add(f.CallMoved(call.call_id, Phase.PROPOSED))
    elif judgement == "all" and (done := call.found_done()) is not None:
        close(draft, call, done.output, events=(done.event,), baselines=done.baselines)
    else:
        text = _in_doubt(draft, call)
        close(draft, call, shown.behind(text), events=call.broken_off(text, shown=shown))
        draft.event(ev.WarningEvent(message=f"call {call.call_id} is {text}"))


def _judged_by_folder(draft: Draft, call: Call) -> str:
    """The judgement on a call in a portable folder, which is without what a lost patch has written of it."""
    known = draft.state.workspace
    is_there = call.call_id in known.recorded or call.call_id in known.partly
    return "none" if call.writes_files and not is_there else "in_doubt"


def _in_doubt(draft: Draft, call: Call) -> str:
    if draft.state.facts.portable is None:
        return IN_DOUBT
    known = draft.state.workspace
    if call.call_id in known.recorded:
        return IN_DOUBT_RECORDED
    return IN_DOUBT_PARTLY if call.call_id in known.partly else IN_DOUBT_ELSEWHERE
