"""A helper's activity, shown to the agent that waits for it (the December 2025 document, `spawn_subagent`).

Other agents show theirs in their own event queues.
"""

from __future__ import annotations

from orchestrator.core.agent_views import one_line
from orchestrator.core.decide.agent_status import header_of
from orchestrator.core.decide.draft import Draft
from orchestrator.core.history import Item, message_text, searched
from orchestrator.protocol import events as ev
from orchestrator.protocol.wire import EventModel

ACTIVITY_CHARS = 120
STARTING = "starting"
THINKING = "thinking"


def activity(draft: Draft, text: str) -> None:
    """Shows what a helper does now; an empty text clears it."""
    if (call_id := draft.state.facts.helper_call) is not None:
        shown = one_line(text, ACTIVITY_CHARS) or ""
        _publish_to_asker(draft, ev.SubAgentToolCallActivity(call_id=call_id, activity=shown))


def thinks(draft: Draft) -> None:
    """Shows that the helper's model is asked; a retry of the request shows nothing new."""
    if not (draft.task.stream_retries or draft.task.http_used):
        activity(draft, THINKING)


def made(draft: Draft, item: Item) -> None:
    """Shows what an item of the model's answer tells."""
    match item.get("type"):
        case "reasoning":
            if header := header_of(item):
                activity(draft, header)
        case "message" if item.get("role") == "assistant":
            activity(draft, f"writes: {message_text(item)}")
        case "web_search_call":
            activity(draft, f"searches the web: {searched(item)}")


def uses(draft: Draft, tool: str) -> None:
    """Shows a call that is done as soon as its turn has come."""
    activity(draft, f"uses {tool}")


def tokens_used(draft: Draft) -> None:
    """Shows how many tokens a helper has used so far, at the end of each of its turns."""
    tokens = draft.state.tokens
    total = tokens.total.total_tokens if tokens is not None else 0
    if (call_id := draft.state.facts.helper_call) is not None:
        _publish_to_asker(draft, ev.SubAgentToolCallTokens(call_id=call_id, tokens=total))


def _publish_to_asker(draft: Draft, told: EventModel) -> None:
    facts = draft.state.facts
    assert facts.parent_session is not None, "a helper has a parent"
    draft.tree.publish(facts.born_in, told, (facts.parent_session,))
