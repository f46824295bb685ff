"""Agents' requests to people, shown at the root as well, where people look, and taken away there.

The root's queue has the root's own requests already; decisions on them are added, unless the task's client
made them in a session without agents.
"""

from __future__ import annotations

from orchestrator.core.commit_parts import WITHDRAWN, OpenRequest, TreeNote
from orchestrator.core.decide.draft import Draft
from orchestrator.core.turn_calls import Call
from orchestrator.protocol.events import RequestResolved
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.wire import JsonObject


def open_request(
    draft: Draft, call_id: str, kind: str, request: JsonObject, sandboxed: bool | None = None
) -> None:
    """Puts a request, as the session's own log has its event, into the fleet's queue and before the root."""
    facts = draft.state.facts
    asked = OpenRequest(
        event=request,
        kind=kind,
        turn=draft.task.id,
        sandboxed=sandboxed,
        tree=facts.tree_id,
        agent_id=facts.agent_id,
        agent_path=facts.agent_path,
    )
    draft.open_approval(call_id, asked.value())
    _publish_at_root(draft, request)


def _publish_at_root(draft: Draft, request: JsonObject) -> None:
    """Shows at the root a request that an agent has made in its own log."""
    facts = draft.state.facts
    if not facts.is_root:
        asker = {
            "agent_id": facts.agent_id,
            "session_id": facts.session_id,
            "agent_path": facts.agent_path,
        }
        draft.tree.publish(draft.task.id, {**request, **asker}, (facts.tree_id,))


def resolved(draft: Draft, id: str, decision: str, who: str, client: str = "", *, digest: str = "") -> None:
    """Tells the root, and clients of the agent, that the request needs no answer any more.

    `id` is the call's, or that of a server's question in it. The tree log has the `digest` of a response, so
    that the root knows a second one that says the same.
    """
    facts = draft.state.facts
    if facts.is_root and _knows_alone(draft, client):
        return
    message = RequestResolved(
        call_id=CallId(id),
        turn_id=draft.task.id,
        decision=decision,
        who=who,
        resolved_at_ms=draft.moment.at_ms,
        agent_id=facts.agent_id,
        session_id=facts.session_id,
        agent_path=facts.agent_path,
    )
    about: TreeNote = {"response": digest} if digest else {}
    targets = (facts.tree_id, facts.session_id)
    draft.tree.publish(draft.task.id, message, targets, about=about)


def _knows_alone(draft: Draft, client: str) -> bool:
    """Whether the client that gave the task has answered itself, in a session without agents.

    The recorded Codex has one client, and writes no event for what that has just said.
    """
    return bool(client) and client == draft.task.client and not draft.state.tree.children


def withdrawn(draft: Draft, call: Call) -> None:
    """Withdraws the request of a call that ends with its turn: a client said so, or the turn ended."""
    if draft.state.facts.is_root:
        # The end of the turn stands on the same queue.
        return
    told = (call.call_id, draft.task.id, "abort")
    by = [one.who for one in draft.state.answers if (one.call_id, one.turn, one.decision) == told]
    resolved(draft, call.call_id, "abort" if by else WITHDRAWN, by[-1] if by else "")
