"""Questions to a person, plans, and calls of a client's tools: a phase of a call, decided from its own log.

Nobody is held while it lasts. An answer, the timer or the end of the task settles it, and only the first of
them: behind it the call is done.
"""

from __future__ import annotations

from orchestrator.core import facts as f
from orchestrator.core.calls import AskWork, ClientToolWork
from orchestrator.core.calls.ask import Settled, digest_of
from orchestrator.core.decide.approval_events import open_request, resolved
from orchestrator.core.decide.branch import decided
from orchestrator.core.decide.call_end import close
from orchestrator.core.decide.draft import DoesNotFit, Draft
from orchestrator.core.timers import approval_timer
from orchestrator.core.turn_calls import Call, Phase
from orchestrator.protocol.wire import JsonObject

BY_TIMER = "timer"
"""Settles what nobody has answered in time."""


def ask_out(draft: Draft, call: Call, work: AskWork) -> None:
    """Asks a person or a client, whatever the approval policy: that is about commands and patches.

    Nothing is held meanwhile.
    """
    request = work.request(call.call_id, draft.task.id)
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
    end = _work(call).settled(response)
    if not end.hides:
        _end(draft, call, end, digest_of(response), who, client)
        return False
    _end(draft, call, end, "", who, client, secret)
    return True


def give_up(draft: Draft, call: Call) -> None:
    """Ends questions that nobody has answered in time."""
    _end(draft, call, _work(call).unanswered, "", BY_TIMER)


def _work(call: Call) -> AskWork:
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
