"""Questions of MCP servers in the middle of a call: the call runs on, and its server waits for the decision.

A decision, the deadline, the server or the end of the call settles one, and only the first of them. The
worker holds the session meanwhile; one that is lost takes the call and its questions along.
"""

from __future__ import annotations

from orchestrator.core import facts as f
from orchestrator.core.calls.ask import digest_of
from orchestrator.core.commands import Elicited
from orchestrator.core.commit_parts import WITHDRAWN
from orchestrator.core.decide.approval_events import open_request, resolved
from orchestrator.core.decide.draft import DoesNotFit, Draft
from orchestrator.core.decide.reach import server_reach
from orchestrator.core.state import Elicitation
from orchestrator.core.timers import approval_timer
from orchestrator.core.turn_calls import Call, Phase
from orchestrator.protocol.events import ElicitationRequest
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.wire import JsonObject, written

KIND = "elicitation"
UNANSWERED = "cancel"
"""The decision on a question that nobody has answered in time."""


def elicited(draft: Draft, command: Elicited) -> None:
    """Puts a server's question to the person."""
    call = draft.task.call(command.call_id)
    if call is None or call.phase is not Phase.RUNNING or draft.task.stopping:
        raise DoesNotFit(f"call {command.call_id} does not run any more")
    reach = server_reach(draft, call, command.server)
    request = written(
        ElicitationRequest(server_name=command.server, id=command.id, message=command.message, reach=reach)
    )
    draft.event(request)
    timeout, timer = draft.state.facts.approval_timeout_ms, None
    if timeout is not None:
        timer = draft.set_timer(approval_timer(command.id), draft.moment.at_ms + timeout)
    draft.add(f.ElicitationOpened(call.call_id, command.id, command.server, timer))
    open_request(draft, command.id, KIND, request)


def dropped(draft: Draft, id: str) -> None:
    """Withdraws a question that its server does not wait for any more."""
    task = draft.state.task
    for asked in task.open_elicitations if task is not None else ():
        if asked.id == id:
            _withdraw(draft, asked, told=True)


def response_of(decision: str) -> JsonObject:
    """The response that an answer is known by."""
    return {"decision": decision}


def open_elicitation(draft: Draft, id: str) -> Elicitation | None:
    """The open question of this id."""
    task = draft.state.task
    asked = task.open_elicitations if task is not None else ()
    return next((one for one in asked if one.id == id), None)


def decide_elicitation(draft: Draft, asked: Elicitation, decision: str, who: str, client: str = "") -> None:
    """Hands a decision on to the server that waits for it."""
    digest, key = digest_of(response_of(decision)), CallId(asked.id)
    draft.add(
        f.Answered(key, draft.task.id, decision, who, draft.moment.at_ms, digest=digest),
        f.ElicitationClosed(asked.id, decision),
    )
    draft.close_approval(asked.id)
    draft.clear_timer(approval_timer(asked.id))
    resolved(draft, asked.id, decision, who, client, digest=digest)


def withdraw(draft: Draft, call: Call, *, with_task: bool) -> None:
    """Withdraws the questions of a call that ends; the end of a root's turn tells of them by itself."""
    for asked in draft.task.elicitations:
        if asked.call_id == call.call_id and not asked.decision:
            _withdraw(draft, asked, told=not (with_task and draft.state.facts.is_root))


def _withdraw(draft: Draft, asked: Elicitation, *, told: bool) -> None:
    draft.add(f.ElicitationClosed(asked.id, WITHDRAWN))
    draft.close_approval(asked.id)
    draft.clear_timer(approval_timer(asked.id))
    if told:
        resolved(draft, asked.id, WITHDRAWN, "")
