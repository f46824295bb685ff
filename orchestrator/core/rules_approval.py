"""Who may still answer an approval, and what an answer does."""

from __future__ import annotations

from typing import Any

from orchestrator.core import entries as e
from orchestrator.core.approval import full_access, unconfined_key
from orchestrator.core.commands import MailArrived, PendingBelow, Submitted
from orchestrator.core.draft import Draft, Letter
from orchestrator.core.history import call_output
from orchestrator.core.rules_standing import activity
from orchestrator.core.rules_task import approval_timer, settle, stop
from orchestrator.core.state import Answer, Call, Phase
from orchestrator.protocol.ops import ExecApproval, PatchApproval

ACTIVITY_CHARS = 120
REJECTED = {"exec": "exec command rejected by user", "patch": "patch rejected by user"}


def answer(draft: Draft, command: Submitted, op: ExecApproval | PatchApproval) -> None:
    """An answer under a call id, or under the turn's id if exactly one request was open then."""
    decision = op.decision if isinstance(op.decision, str) else "approved_for_session"
    if op.agent_id not in (None, draft.state.facts.agent_id):
        _route(draft, command, op, decision)
        return
    meant = _meant(draft, op.id, command.seq)
    if len(meant) == 1:
        resolve(draft, meant[0], decision, command.who or command.client)
        return
    # Where several are open, the answer was meant for one of them, not for an earlier one.
    earlier = None if meant else _answered(draft.state.answers, op.id)
    if not meant and _below(command, op):
        _route(draft, command, op, decision)
    elif earlier is None:
        draft.add(e.error(command.id, _unknown(draft, op.id)))
    elif earlier.decision != decision:
        text = f"{earlier.call_id} was already decided: {earlier.decision}, by {earlier.who or 'a client'}"
        draft.add(e.error(command.id, text))


def _below(command: Submitted, op: ExecApproval | PatchApproval) -> list[PendingBelow]:
    """The requests of the tree that an answer can mean: under the call's id, else under the turn's."""
    asked = [p for p in command.below if op.agent_id in (None, p.agent_id)]
    return [p for p in asked if p.call_id == op.id] or [p for p in asked if p.turn == op.id]


def _route(draft: Draft, command: Submitted, op: ExecApproval | PatchApproval, decision: str) -> None:
    """Sends an answer on to the one agent that waits for it."""
    meant = _below(command, op)
    if len(meant) != 1:
        who = ", ".join(f"{p.call_id} of agent {p.agent_id}" for p in meant or command.below)
        text = f"no single approval is pending under {op.id!r} in the tree; pending: {who or 'none'}"
        draft.add(e.error(command.id, f"{text}; name the agent by agent_id" if meant else text))
        return
    asked, by = meant[0], command.who or command.client
    payload = {"call_id": asked.call_id, "turn": asked.turn, "decision": decision, "who": by}
    key = f"answer:{command.client}:{command.id}"
    draft.tree.letters.append(Letter(asked.session, "answer", payload, key))
    draft.add(e.answered(asked.call_id, asked.turn, decision, by, draft.moment.at_ms))


def routed_answer(draft: Draft, command: MailArrived) -> None:
    """An answer that was given at the root; one that was decided here meanwhile stays decided."""
    answer = command.payload
    for call in _pending(draft):
        if call.call_id == answer["call_id"]:
            resolve(draft, call, answer["decision"], answer["who"])
            return


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
    draft.guard()
    if spec["kind"] == "exec":
        activity(draft, f"runs {' '.join(spec['command'])}"[:ACTIVITY_CHARS])
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
