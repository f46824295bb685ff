"""Who may still answer an approval, and what an answer does."""

from __future__ import annotations

from typing import Any

from orchestrator.core import entries as e
from orchestrator.core.approval import full_access, unconfined_key
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
    meant = _meant(draft, op.id, command.seq)
    if len(meant) == 1:
        resolve(draft, meant[0], decision, command.who or command.client)
        return
    # Where several are open, the answer was meant for one of them, not for an earlier one.
    earlier = None if meant else _answered(draft.state.answers, op.id)
    if earlier is None:
        draft.add(e.error(command.id, _unknown(draft, op.id)))
    elif earlier.decision != decision:
        text = f"{earlier.call_id} was already decided: {earlier.decision}, by {earlier.who or 'a client'}"
        draft.add(e.error(command.id, text))


def _meant(draft: Draft, id: str, seen_seq: int) -> list[Call]:
    """The open requests that an answer under `id` can mean.

    Two people who press Allow on A must not allow B: an answer by turn id counts only
    for a request that stood in the log when the answer was submitted.
    """
    pending = _pending(draft)
    named = [call for call in pending if call.call_id == id]
    if named or draft.state.task is None or id != draft.state.task.id:
        return named
    return [call for call in pending if call.asked_seq <= seen_seq]


def _pending(draft: Draft) -> tuple[Call, ...]:
    """What may still be approved: nothing starts in a task that is being stopped."""
    task = draft.state.task
    return () if task is None or task.stopping else task.awaiting


def _unknown(draft: Draft, id: str) -> str:
    names = [call.call_id for call in _pending(draft)]
    return f"no single approval is pending under {id!r}; pending: {', '.join(names) or 'none'}"


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
    spec = call.spec
    roots = [spec["grant_root"]] if spec.get("grant_root") else []
    keys = list(spec["keys"])
    if spec["kind"] == "exec" and not spec["sandboxed"] and not full_access(draft.task.settings):
        keys = [unconfined_key(key) for key in keys]
    draft.add(e.approved_for_session(keys, roots))


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
    draft.add(e.call_phase(call.call_id, Phase.RUNNING, epoch=draft.moment.epoch, spec=spec))


def done_phase(call: Call, applied: bool) -> e.Entry:
    """The call is over; an applied patch leaves the baselines that the task's diff counts from."""
    baselines = call.spec.get("baselines") if applied else None
    return e.call_phase(call.call_id, Phase.DONE, **({"baselines": baselines} if baselines else {}))
