"""A tool call from its assessment to its output."""

from __future__ import annotations

from typing import Final, assert_never

from orchestrator.core import facts as f
from orchestrator.core.calls import (
    ApplyPatch,
    ClientToolWork,
    Custom,
    Exec,
    ExecWork,
    Mcp,
    Merge,
    MergeWork,
    PatchWork,
    PlanWork,
    QuestionWork,
    Runnable,
    RunnableWork,
    UserInputWork,
    WriteStdin,
)
from orchestrator.core.calls.exec import UNSANDBOXED_REASON, may_ask_for_more, with_planted
from orchestrator.core.calls.verdict import Ask, Refuse, Run, Verdict
from orchestrator.core.commands import CallAssessed, CallFinished, Immediate
from orchestrator.core.decide.agent_calls import agent_call
from orchestrator.core.decide.approval import ask_out, run
from orchestrator.core.decide.approval_events import open_request
from orchestrator.core.decide.call_end import close
from orchestrator.core.decide.draft import DoesNotFit, Draft
from orchestrator.core.decide.helper_activity import activity, uses
from orchestrator.core.decide.process import keep, no_room, seen_ending, write_stdin
from orchestrator.core.decide.reach import reach_of
from orchestrator.core.modes import plans
from orchestrator.core.state import State
from orchestrator.core.timers import approval_timer
from orchestrator.core.turn_calls import Call, Phase
from orchestrator.protocol.items import ToolOutput
from orchestrator.protocol.wire import EventModel, JsonObject, written

NOT_RUN: Final = "not run: the person has decided on the plan, and the planning session is over"


def assessed(draft: Draft, command: CallAssessed) -> None:
    """Decides a call whose turn has come: it runs, is asked about, is refused, or is done already."""
    call = _call(draft, command.call_id, Phase.PROPOSED)
    if draft.task.stopping:
        raise DoesNotFit(f"call {command.call_id} may not start: the task is being stopped")
    if draft.task.result is not None:
        close(draft, call, NOT_RUN)
        return
    match command.assessment:
        case Immediate() as done:
            _done(draft, call, done.output, done.events)
        case Exec() as asked if asked.lasting is not None and (full := no_room(draft)):
            close(draft, call, full)
        case Exec() as asked:
            may_leave = _may_leave_the_sandbox(draft.state)
            verdict = asked.judged(draft.task.settings, _approved(draft), may_leave=may_leave)
            _carry_out(draft, call, asked, verdict)
        case ApplyPatch() | Custom() | Mcp() | Merge() as asked:
            _carry_out(draft, call, asked, asked.judged(draft.task.settings, _approved(draft)))
        case WriteStdin() as asked:
            write_stdin(draft, call, asked)
        case QuestionWork() | UserInputWork() | PlanWork() | ClientToolWork() as work:
            ask_out(draft, call, work)
        case asked:
            agent_call(draft, call, asked)


def _call(draft: Draft, call_id: str, phase: Phase) -> Call:
    call = draft.task.call(call_id)
    if call is None or call.phase is not phase:
        raise DoesNotFit(f"call {call_id} is {call.phase if call else 'unknown'}, not {phase}")
    return call


def _approved(draft: Draft) -> frozenset[str]:
    """The session's approvals that count: none was given for a task that is to write nothing."""
    narrow = draft.task.branch is not None or plans(draft.task.settings)
    return frozenset() if narrow else draft.state.approved


def _may_leave_the_sandbox(state: State) -> bool:
    """Whether a rule that allows a command takes it out of the sandbox: never for an agent that only reads.

    The sandbox of a root that only reads is the owner's choice, and so are the rules; an agent's may be its
    parent's.
    """
    facts, task = state.facts, state.task
    if task is None or task.kind != "user" or plans(task.settings) or facts.helper_call:
        return False
    return facts.is_root or task.settings.sandbox_policy["mode"] != "read-only"


def _carry_out(draft: Draft, call: Call, asked: Runnable, verdict: Verdict) -> None:
    match verdict:
        case Run(sandboxed):
            run(draft, call, asked.work(sandboxed), auto_approved=True)
        case Ask():
            work = asked.work(verdict.sandboxed)
            if verdict.proposed and isinstance(work, ExecWork):
                work = work.proposing(verdict.proposed)
            ask(draft, call, work, verdict)
        case Refuse(text):
            close(draft, call, text)
        case _:
            assert_never(verdict)


def ask(draft: Draft, call: Call, work: RunnableWork, asked: Ask) -> None:
    """Opens an approval; nothing is held while it waits."""
    request = written(work.request(call.call_id, reach_of(draft, work, asked)))
    draft.event(request)
    timeout = draft.state.facts.approval_timeout_ms
    if timeout is not None:
        work = work.asked(draft.set_timer(approval_timer(call.call_id), draft.moment.at_ms + timeout))
    draft.add(f.CallMoved(call.call_id, Phase.AWAITING_APPROVAL, work=work))
    open_request(draft, call.call_id, work.kind, request, work.sandboxed)


def finished(draft: Draft, command: CallFinished) -> None:
    """A running call ended. A command that the sandbox stopped may be asked about again."""
    call = _call(draft, command.call_id, Phase.RUNNING)
    work = call.work
    if (
        command.sandbox_denied
        and isinstance(work, ExecWork)
        and work.sandboxed
        and may_ask_for_more(draft.task.settings.approval_policy)
        and not draft.task.stopping
    ):
        for event in command.events:
            draft.event(event)
        first = command.output if isinstance(command.output, str) else ""
        reason = with_planted(UNSANDBOXED_REASON, command.planted)
        ask(draft, call, work.unconfined(first, command.planted), Ask(reason, sandboxed=False))
        return
    if command.keeps:
        keep(draft, call)
    seen_ending(draft, command)
    if command.applied and isinstance(work, MergeWork):
        draft.add(f.WorkspaceMerged(call.call_id, work.agent_id, work.base, work.snapshot, work.packs))
    baselines = work.baselines if command.applied and isinstance(work, PatchWork) else None
    _done(draft, call, command.output, command.events, baselines)


def _done(
    draft: Draft,
    call: Call,
    output: ToolOutput,
    events: tuple[EventModel, ...],
    baselines: JsonObject | None = None,
) -> None:
    for event in events:
        draft.event(event)
    if call.phase is Phase.RUNNING:
        activity(draft, "")
    else:
        uses(draft, call.name)
    close(draft, call, output, baselines=baselines)
