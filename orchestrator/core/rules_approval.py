"""Who may still answer an approval, and what an answer does."""

from __future__ import annotations

from typing import Any

from orchestrator.core import entries as e
from orchestrator.core.commands import Submitted
from orchestrator.core.draft import Draft
from orchestrator.core.history import call_output
from orchestrator.core.rules_task import approval_timer, settle, stop
from orchestrator.core.state import Answer, Call, Phase
from orchestrator.protocol.ops import ExecApproval, PatchApproval

REJECTED = {"exec": "exec command rejected by user", "patch": "patch rejected by user"}


def answer(draft: Draft, command: Submitted, op: ExecApproval | PatchApproval) -> None:
    """An answer under a call id, or under the turn's id if exactly one request was open then."""
    decision = op.decision if isinstance(op.decision, str) else "approved_for_session"
    call = _pending(draft, op.id, command.seq)
    if call is None:
        _refuse(draft, command.id, op.id, decision)
        return
    resolve(draft, call, decision, command.who or command.client)


def _pending(draft: Draft, id: str, seen_seq: int) -> Call | None:
    task = draft.state.task
    if task is None:
        return None
    named = next((call for call in task.awaiting if call.call_id == id), None)
    if named is not None or id != task.id:
        return named
    # Two people who press Allow on A must not allow B: an answer by turn id counts only
    # for a request that stood in the log when the answer was submitted.
    open_then = [call for call in task.awaiting if call.asked_seq <= seen_seq]
    return open_then[0] if len(open_then) == 1 else None


def _refuse(draft: Draft, submission: str, id: str, decision: str) -> None:
    earlier = _answered(draft.state.answers, id)
    if earlier is not None and earlier.decision == decision:
        return
    if earlier is not None:
        text = f"{earlier.call_id} was already decided: {earlier.decision}, by {earlier.who or 'a client'}"
    else:
        pending = [call.call_id for call in draft.state.task.awaiting] if draft.state.task else []
        text = f"no approval is pending under {id!r}; pending: {', '.join(pending) or 'none'}"
    draft.add(e.event(submission, "error", message=text))


def _answered(answers: tuple[Answer, ...], id: str) -> Answer | None:
    return next((answer for answer in reversed(answers) if id in (answer.call_id, answer.turn)), None)


def resolve(draft: Draft, call: Call, decision: str, who: str) -> None:
    """Carries a decision out; it is recorded with who and when."""
    draft.add(e.answered(call.call_id, draft.task.id, decision, who, draft.moment.at_ms))
    draft.close_approval(call.call_id)
    draft.clear_timer(approval_timer(call.call_id))
    match decision:
        case "approved" | "approved_for_session":
            if decision == "approved_for_session":
                _remember(draft, call)
            run(draft, call, dict(call.spec))
        case "abort":
            stop(draft, "interrupted", call.call_id)
        case _:
            reject(draft, call, REJECTED[call.spec["kind"]])


def _remember(draft: Draft, call: Call) -> None:
    roots = [call.spec["grant_root"]] if call.spec.get("grant_root") else []
    draft.add(e.approved_for_session(list(call.spec["keys"]), roots))


def reject(draft: Draft, call: Call, text: str) -> None:
    """The call ends without having run; the turn goes on."""
    draft.add(e.item(call_output(call.item, text)), e.call_phase(call.call_id, Phase.DONE))
    settle(draft)


def run(draft: Draft, call: Call, spec: dict[str, Any], auto_approved: bool = False) -> None:
    """The decision to start the call, with the event that tells of it; whoever commits it starts it once."""
    if spec["kind"] == "exec":
        draft.event(
            "exec_command_begin",
            call_id=call.call_id,
            command=list(spec["command"]),
            cwd=spec["cwd"],
            parsed_cmd=list(spec["parsed_cmd"]),
        )
    else:
        draft.event(
            "patch_apply_begin", call_id=call.call_id, auto_approved=auto_approved, changes=spec["changes"]
        )
    baselines = spec.pop("baselines", None)
    fields = {"baselines": baselines} if baselines else {}
    draft.add(e.call_phase(call.call_id, Phase.RUNNING, epoch=draft.moment.epoch, spec=spec, **fields))
