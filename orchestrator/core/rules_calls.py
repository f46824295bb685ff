"""A tool call from its assessment to its output."""

from __future__ import annotations

from typing import Any, assert_never

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.approval import (
    UNSANDBOXED_REASON,
    Ask,
    Refuse,
    Run,
    Verdict,
    judge_exec,
    judge_patch,
    may_ask_for_more,
    patch_keys,
)
from orchestrator.core.commands import ApplyPatch, CallAssessed, CallFinished, Exec, Immediate
from orchestrator.core.draft import DoesNotFit, Draft
from orchestrator.core.history import call_output
from orchestrator.core.rules_activity import activity, uses
from orchestrator.core.rules_approval import done_phase, reject, run
from orchestrator.core.rules_subagents import agent_call
from orchestrator.core.rules_surfacing import ApprovalRequest, surface
from orchestrator.core.rules_task import approval_timer, settle
from orchestrator.core.state import Call, Phase
from orchestrator.protocol import events as ev
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.items import ToolOutput
from orchestrator.protocol.wire import EventModel, written


def assessed(draft: Draft, command: CallAssessed) -> None:
    """Decides a call whose turn has come: it runs, is asked about, is refused, or is done already."""
    call = _call(draft, command.call_id, Phase.PROPOSED)
    if draft.task.stopping:
        raise DoesNotFit(f"call {command.call_id} may not start: the task is being stopped")
    match command.assessment:
        case Immediate() as done:
            _done(draft, call, done.output, done.events)
        case Exec() as exec_:
            verdict = judge_exec(exec_, draft.task.settings, draft.state.approved)
            _carry_out(draft, call, _exec_spec(exec_), verdict)
        case ApplyPatch() as patch:
            verdict = judge_patch(patch, draft.task.settings, draft.state.approved)
            _carry_out(draft, call, _patch_spec(patch), verdict)
        case asked:
            agent_call(draft, call, asked)


def _call(draft: Draft, call_id: str, phase: Phase) -> Call:
    call = draft.task.call(call_id)
    if call is None or call.phase is not phase:
        raise DoesNotFit(f"call {call_id} is {call.phase if call else 'unknown'}, not {phase}")
    return call


def _exec_spec(command: Exec) -> dict[str, Any]:
    return {
        "kind": "exec",
        "keys": [command.key],
        "command": list(command.command),
        "cwd": command.cwd,
        "parsed_cmd": [written(part) for part in command.parsed_cmd],
        "timeout_ms": command.timeout_ms,
        "env": dict(command.env),
    }


def _patch_spec(patch: ApplyPatch) -> dict[str, Any]:
    return {
        "kind": "patch",
        "keys": sorted(patch_keys(patch)),
        "patch": patch.patch,
        "cwd": patch.cwd,
        "changes": {path: written(change) for path, change in patch.changes.items()},
        "summary": patch.summary,
        "record": patch.record if isinstance(patch.record, str) else [list(row) for row in patch.record],
        "baselines": dict(patch.baselines),
        "grant_root": _grant_root(patch),
        **({"left_out": patch.left_out} if patch.left_out else {}),
    }


def _grant_root(patch: ApplyPatch) -> str | None:
    """The folder whose grant would let the patch in; only offered for a single one."""
    folders = {path.rpartition("/")[0] for path in patch.outside}
    return folders.pop() if len(folders) == 1 else None


def _carry_out(draft: Draft, call: Call, spec: dict[str, Any], verdict: Verdict) -> None:
    match verdict:
        case Run(sandboxed):
            run(draft, call, {**spec, "sandboxed": sandboxed}, auto_approved=True)
        case Ask(reason, sandboxed):
            ask(draft, call, {**spec, "sandboxed": sandboxed}, reason)
        case Refuse(text):
            reject(draft, call, text)
        case _:
            assert_never(verdict)


def ask(draft: Draft, call: Call, spec: dict[str, Any], reason: str | None) -> None:
    """Opens an approval; nothing is held while it waits."""
    request = _request_event(call, spec, reason)
    draft.event(request)
    timeout = draft.state.facts.approval_timeout_ms
    if timeout is not None:
        spec["timer"] = draft.set_timer(approval_timer(call.call_id), draft.moment.at_ms + timeout)
    draft.add(f.CallMoved(call.call_id, Phase.AWAITING_APPROVAL, spec=spec))
    facts = draft.state.facts
    asked = {
        "kind": spec["kind"],
        "turn": draft.task.id,
        "event": written(request),
        "sandboxed": spec["sandboxed"],
        "tree": facts.tree_id,
        "agent_id": facts.agent_id,
        "agent_path": facts.agent_path,
    }
    draft.open_approval(call.call_id, asked)
    surface(draft, request)


def _request_event(call: Call, spec: dict[str, Any], reason: str | None) -> ApprovalRequest:
    call_id = CallId(call.call_id)
    if spec["kind"] == "exec":
        return ev.ExecApprovalRequest(
            command=spec["command"],
            cwd=spec["cwd"],
            env=spec.get("env") or None,
            call_id=call_id,
            reason=reason or None,
        )
    return ev.ApplyPatchApprovalRequest(
        changes=spec["changes"],
        changes_left_out=spec.get("left_out") or None,
        call_id=call_id,
        reason=reason or None,
        grant_root=spec.get("grant_root") or None,
    )


def finished(draft: Draft, command: CallFinished) -> None:
    """A running call ended. A command that the sandbox stopped may be asked about again."""
    call = _call(draft, command.call_id, Phase.RUNNING)
    if (
        command.sandbox_denied
        and call.spec["sandboxed"]
        and may_ask_for_more(draft.task.settings.approval_policy)
        and not draft.task.stopping
    ):
        for event in command.events:
            draft.event(event)
        ask(draft, call, {**call.spec, "sandboxed": False}, UNSANDBOXED_REASON)
        return
    _done(draft, call, command.output, command.events, applied=command.applied)


def _done(
    draft: Draft, call: Call, output: ToolOutput, events: tuple[EventModel, ...], applied: bool = False
) -> None:
    for event in events:
        draft.event(event)
    if call.phase is Phase.RUNNING:
        activity(draft, "")
    else:
        uses(draft, call.name)
    draft.add(e.item(call_output(call.item, output)), done_phase(call, applied))
    settle(draft)
