"""Approvals: which answers still count, and what an answer does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import RunnableWork
from orchestrator.core.commands import MailArrived, PendingBelow, Submitted
from orchestrator.core.decide.approval_events import WITHDRAWN, resolved
from orchestrator.core.decide.call_end import close
from orchestrator.core.decide.helper_activity import activity
from orchestrator.core.decide.task_end import stop
from orchestrator.core.draft import DoesNotFit, Draft, OutboundMessage, TreeEvent
from orchestrator.core.message_payloads import AnswerPayload
from orchestrator.core.state import Answer, Call, Phase
from orchestrator.core.timers import approval_timer
from orchestrator.protocol import events as ev
from orchestrator.protocol.ops import ExecApproval, PatchApproval
from orchestrator.protocol.wire import UNSET, JsonValue

REJECTED = "call rejected by user"


def answer(draft: Draft, command: Submitted, op: ExecApproval | PatchApproval) -> None:
    """An answer under a call id, or under the turn's id if exactly one request was open then."""
    decision = op.decision if isinstance(op.decision, str) else "approved_for_session"
    meant = _meant(draft, op.id, command.seq) if _for_me(draft, op) else []
    below = _below(command, op)
    if len(meant) == 1:
        resolve(draft, meant[0], decision, command.who or command.client, command.client)
    elif meant:
        # Where several are open, the answer was meant for one of them, not for an earlier one.
        draft.add(e.error(command.id, _unknown(draft, op.id)))
    elif len(below) == 1:
        _route(draft, command, below[0], decision)
    elif below:
        text = f"{_unknown_below(below, op.id)}; name the agent by agent_id"
        draft.add(e.error(command.id, text))
    else:
        _hold_against_earlier(draft, command, op, decision)


def _for_me(draft: Draft, op: ExecApproval | PatchApproval) -> bool:
    return op.agent_id in (None, draft.state.facts.agent_id)


def _below(command: Submitted, op: ExecApproval | PatchApproval) -> list[PendingBelow]:
    """The requests of the tree that an answer can mean: under the call's id, else under the turn's."""
    asked = [p for p in command.below if op.agent_id in (None, p.agent_id)]
    return [p for p in asked if p.call_id == op.id] or [p for p in asked if p.turn == op.id]


def _route(draft: Draft, command: Submitted, asked: PendingBelow, decision: str) -> None:
    """Sends an answer on to the one agent that waits for it."""
    by = command.who or command.client
    payload: AnswerPayload = {
        "id": command.id,
        "call_id": asked.call_id,
        "turn": asked.turn,
        "decision": decision,
        "who": by,
        "sandboxed": asked.sandboxed,
    }
    key = f"answer:{command.client}:{command.id}"
    draft.tree.outbox.append(OutboundMessage(asked.session, "answer", payload, key))
    at_ms = draft.moment.at_ms
    draft.add(f.Answered(asked.call_id, asked.turn, decision, by, at_ms, agent_id=asked.agent_id))


def routed_answer(draft: Draft, command: MailArrived) -> None:
    """Carries out an answer given at the root; a request decided here meanwhile stays decided.

    A command that its sandbox stopped is asked about again under the same id: an approval of the confined
    command does not allow it without the sandbox.
    """
    answer = command.payload
    for call in _pending(draft):
        if call.call_id == answer["call_id"] and answer.get("sandboxed") in (None, _sandboxed(call)):
            resolve(draft, call, answer["decision"], answer["who"])
            return
    _tell_late(draft, answer)


def _tell_late(draft: Draft, answer: Mapping[str, JsonValue]) -> None:
    """Tells the root that an answer which it has sent on came too late."""
    facts, told = draft.state.facts, (answer["call_id"], answer["turn"])
    earlier = [one for one in draft.state.answers if (one.call_id, one.turn) == told]
    if "id" not in answer or (earlier and earlier[-1].decision == answer["decision"]):
        return
    name = f"{answer['call_id']} of agent {facts.agent_id}"
    text = (
        _too_late(name, earlier[-1].decision, earlier[-1].who) if earlier else _too_late(name, WITHDRAWN, "")
    )
    told_late = ev.Error(message=text, codex_error_info=UNSET)
    draft.tree.events.append(TreeEvent(answer["id"], told_late, (facts.tree_id,)))


def _hold_against_earlier(
    draft: Draft, command: Submitted, op: ExecApproval | PatchApproval, decision: str
) -> None:
    """Answers with an error if no open request fits; the same decision again does no harm."""
    mine = _for_me(draft, op)
    own = _answered(draft.state.answers, op.id) if mine else None
    there = next((one for one in reversed(command.decided) if op.id in (one.call_id, one.turn)), None)
    if there is not None and (own is None or own.turn == there.turn):
        # A routed answer stands in this log, too; but what counts is what the agent did with it.
        earlier, name = there.decision, f"{there.call_id} of agent {there.agent_id}"
        text = _too_late(name, earlier, there.who)
    elif own is not None:
        earlier, text = own.decision, _too_late(own.call_id, own.decision, own.who)
    else:
        earlier = ""
        text = _unknown(draft, op.id) if mine else _unknown_below(command.below, op.id)
    if earlier != decision:
        draft.add(e.error(command.id, text))


def _too_late(name: str, decision: str, who: str) -> str:
    if decision == WITHDRAWN:
        return f"{name} is not asked any more: its turn has ended"
    return f"{name} was already decided: {decision}, by {who or 'a client'}"


def _unknown_below(pending: Sequence[PendingBelow], id: str) -> str:
    who = ", ".join(f"{one.call_id} of agent {one.agent_id}" for one in pending)
    return f"no single approval is pending under {id!r} in the tree; pending: {who or 'none'}"


def _meant(draft: Draft, id: str, seen_seq: int) -> list[Call]:
    """The open requests that an answer under `id` can mean.

    Two people who press Allow on A must not allow B, nor A without its sandbox: an answer counts
    only for a request that stood in the log when the answer was submitted.
    """
    pending = _pending(draft)
    named = [call for call in pending if call.call_id == id]
    if named or draft.state.task is None or id != draft.state.task.id:
        return [call for call in named if call.asked_seq <= seen_seq]
    return [call for call in pending if call.asked_seq <= seen_seq]


def _pending(draft: Draft) -> tuple[Call, ...]:
    """The calls that may still be approved; none in a task that is being stopped, where nothing starts."""
    task = draft.state.task
    return () if task is None or task.stopping else task.awaiting


def _unknown(draft: Draft, id: str) -> str:
    names = [call.call_id for call in _pending(draft)]
    return f"no single approval is pending under {id!r}; pending: {', '.join(names) or 'none'}"


def _answered(answers: tuple[Answer, ...], id: str) -> Answer | None:
    return next((answer for answer in reversed(answers) if id in (answer.call_id, answer.turn)), None)


def resolve(draft: Draft, call: Call, decision: str, who: str, client: str = "") -> None:
    """Carries a decision out; it is recorded with who and when. No `client`: it was not given here."""
    draft.add(f.Answered(call.call_id, draft.task.id, decision, who, draft.moment.at_ms))
    draft.close_approval(call.call_id)
    draft.clear_timer(approval_timer(call.call_id))
    if decision != "abort":
        # An abort withdraws what else was asked as well, when all that runs has stopped.
        resolved(draft, call, decision, who, client)
    match decision:
        case "approved" | "approved_for_session":
            if decision == "approved_for_session":
                _remember(draft, call)
            run(draft, call, _work(call))
        case "abort":
            stop(draft, "interrupted", call.call_id)
        case _:
            reject(draft, call, call.work.rejected if isinstance(call.work, RunnableWork) else REJECTED)


def _sandboxed(call: Call) -> bool | None:
    return call.work.sandboxed if isinstance(call.work, RunnableWork) else None


def _work(call: Call) -> RunnableWork:
    """The work that was asked about; what a newer version asked about cannot be started here."""
    if not isinstance(call.work, RunnableWork):
        raise DoesNotFit(
            f"call {call.call_id} is of a kind that this version does not know: it can be denied, "
            "or approved once every worker is updated"
        )
    return call.work


def _remember(draft: Draft, call: Call) -> None:
    remembered = _work(call).remembered(draft.task.settings)
    draft.add(f.ApprovedForSession(remembered.keys, remembered.roots))


def reject(draft: Draft, call: Call, text: str) -> None:
    """Ends the call without having run it; the turn goes on."""
    close(draft, call, text)


def run(draft: Draft, call: Call, work: RunnableWork, auto_approved: bool = False) -> None:
    """Decides to start the call, with the event that tells of it; the worker that commits starts it once."""
    draft.guard()
    activity(draft, work.activity)
    draft.event(work.begin(call.call_id, auto_approved=auto_approved))
    draft.add(f.CallMoved(call.call_id, Phase.RUNNING, epoch=draft.moment.epoch, work=work))
