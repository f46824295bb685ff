"""Approvals: what a decision does to the call that it is about."""

from __future__ import annotations

from orchestrator.core import facts as f
from orchestrator.core.calls import AskWork, ClientToolWork, ExecWork, RunnableWork
from orchestrator.core.calls.ask import DoesNotAnswer, Settled, digest_of
from orchestrator.core.calls.exec import AMENDED, amended
from orchestrator.core.calls.verdict import Remembered
from orchestrator.core.decide.approval_events import open_request, resolved
from orchestrator.core.decide.branch import decided
from orchestrator.core.decide.call_end import close
from orchestrator.core.decide.draft import DoesNotFit, Draft
from orchestrator.core.decide.helper_activity import activity
from orchestrator.core.decide.process import numbered
from orchestrator.core.decide.task_end import stop
from orchestrator.core.frozen import replace
from orchestrator.core.timers import approval_timer
from orchestrator.core.turn_calls import Call, Phase
from orchestrator.protocol.ops import Shown
from orchestrator.protocol.wire import JsonObject, written

REJECTED = "call rejected by user"


def resolve(
    draft: Draft, call: Call, decision: str, who: str, client: str = "", shown: Shown | None = None
) -> None:
    """Carries a decision out; it is recorded with who and when, and what they had before them.

    No `client`: it was not given here.

    Raises `DoesNotAnswer` before anything is written for a decision that does not fit the call.
    """
    remembered = _remembered(draft, call, decision)
    answer = f.Answered(call.call_id, draft.task.id, decision, who, draft.moment.at_ms)
    if shown is not None:
        text, surface, since_ms = shown.text, shown.surface, shown.opened_ms
        answer = replace(answer, shown=text, surface=surface, opened_ms=since_ms)
    draft.add(answer)
    draft.close_approval(call.call_id)
    draft.clear_timer(approval_timer(call.call_id))
    if decision != "abort":
        # An abort withdraws what else was asked as well, when all that runs has stopped.
        resolved(draft, call.call_id, decision, who, client)
    match decision:
        case "approved":
            run(draft, call, _work(call))
        case _ if remembered is not None:
            draft.add(f.ApprovedForSession(remembered.keys, remembered.roots))
            run(draft, call, _work(call))
        case "abort":
            stop(draft, "interrupted", call.call_id)
        case _:
            close(draft, call, call.work.rejected if isinstance(call.work, RunnableWork) else REJECTED)


def _work(call: Call) -> RunnableWork:
    """The work that was asked about; what a newer version asked about cannot be started here."""
    if not isinstance(call.work, RunnableWork):
        raise DoesNotFit(
            f"call {call.call_id} is of a kind that this version does not know: it can be denied, "
            "or approved once every worker is updated"
        )
    return call.work


def _remembered(draft: Draft, call: Call, decision: str) -> Remembered | None:
    """The memory of the decision: nothing where it stands for this call alone."""
    if decision == "approved_for_session":
        return _work(call).remembered(draft.task.settings)
    if not decision.startswith(AMENDED):
        return None
    if not isinstance(call.work, ExecWork):
        raise DoesNotAnswer("it is no command, and has no prefix that could be allowed")
    return call.work.allowing(amended(decision), draft.task.settings)


def run(draft: Draft, call: Call, work: RunnableWork, auto_approved: bool = False) -> None:
    """Decides to start the call, with the event that tells of it; the worker that commits starts it once."""
    draft.guard()
    if isinstance(work, ExecWork) and work.lasting is not None:
        work = numbered(draft, work, work.lasting)
    activity(draft, work.activity)
    draft.event(work.begin(call.call_id, auto_approved=auto_approved))
    draft.add(f.CallMoved(call.call_id, Phase.RUNNING, epoch=draft.moment.epoch, work=work))


# ── ask ───────────────────────────────────────────────────────────────────────────────────────────
# Questions to a person, plans, and calls of a client's tools: a phase of a call, decided from its
# own log.
#
# Nobody is held while it lasts. An answer, the timer or the end of the task settles it, and only the
# first of them: behind it the call is done.


BY_TIMER = "timer"
"""Settles what nobody has answered in time."""


def ask_out(draft: Draft, call: Call, work: AskWork) -> None:
    """Asks a person or a client, whatever the approval policy: that is about commands and patches.

    Nothing is held meanwhile.
    """
    request = written(work.request(call.call_id, draft.task.id))
    draft.event(request)
    facts = draft.state.facts
    timeout = work.limit_ms if isinstance(work, ClientToolWork) else facts.approval_timeout_ms
    if timeout is not None:
        work = work.asked(draft.set_timer(approval_timer(call.call_id), draft.moment.at_ms + timeout))
    draft.add(f.CallMoved(call.call_id, Phase.ASKING, work=work))
    open_request(draft, call.call_id, work.kind, request)


def settle(
    draft: Draft, call: Call, response: JsonObject, who: str, client: str = "", secret: str = ""
) -> bool:
    """Gives the call an answer; raises `DoesNotAnswer` before anything is written if it does not fit.

    Whether requests of the task need the texts that stand beside the log under the name `secret`.
    """
    end = _question(call).settled(response)
    if not end.hides:
        _end(draft, call, end, digest_of(response), who, client)
        return False
    _end(draft, call, end, "", who, client, secret)
    return True


def give_up(draft: Draft, call: Call) -> None:
    """Ends questions that nobody has answered in time."""
    _end(draft, call, _question(call).unanswered, "", BY_TIMER)


def _question(call: Call) -> AskWork:
    if not isinstance(call.work, AskWork):
        raise DoesNotFit(f"call {call.call_id} asks for something that this version does not know")
    return call.work


def _end(
    draft: Draft, call: Call, end: Settled, digest: str, who: str, client: str = "", secret: str = ""
) -> None:
    turn, said = draft.task.id, (end.decision, who, draft.moment.at_ms)
    draft.add(f.Answered(call.call_id, turn, *said, digest=digest, secret=secret))
    draft.close_approval(call.call_id)
    draft.clear_timer(approval_timer(call.call_id))
    resolved(draft, call.call_id, end.decision, who, client, digest=digest)
    decided(draft, call, end.decision)
    events = end.events
    if isinstance(call.work, ClientToolWork):
        events = (call.work.ended(call.call_id, turn, end),)
    close(draft, call, end.output, events=events)
