"""The items of a turn as newer clients draw them (`TurnItem`), made of what the conversation holds."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.history import Item, searched
from orchestrator.core.settings import TurnSettings, readable_setting
from orchestrator.protocol.items import web_action
from orchestrator.protocol.turn_items import (
    AgentMessageItem,
    AgentMessageText,
    ReasoningItem,
    TurnItem,
    UserMessageItem,
    WebSearchItem,
)


def publishes_items(settings: TurnSettings) -> bool:
    """Whether clients are told of every item, and not of plans alone."""
    return settings.item_events == "all"


def begun_item(item: Item, item_id: str) -> TurnItem | None:
    """An item that the model has begun; None for one that clients know by other events."""
    match item.get("type"):
        case "message" if item.get("role", "assistant") == "assistant":
            return AgentMessageItem(id=item_id, content=())
        case "reasoning":
            return ReasoningItem(id=item_id)
        case "web_search_call":
            return WebSearchItem(id=item_id, query="")
        case _:
            return None


def completed_item(item: Item, item_id: str, said: str, *, raw: bool) -> TurnItem | None:
    """The same when it is done; `said` is the text of a message, `raw` permits raw reasoning."""
    match item.get("type"):
        case "message" if item.get("role") == "assistant":
            return AgentMessageItem(id=item_id, content=(AgentMessageText(text=said),))
        case "reasoning":
            shown = _texts(item.get("content")) if raw else ()
            return ReasoningItem(
                id=item_id, summary_text=_texts(item.get("summary")), raw_content=shown or None
            )
        case "web_search_call":
            return WebSearchItem(id=item_id, query=searched(item), action=web_action(item.get("action")))
        case _:
            return None


def user_item(items: Sequence[Item], item_id: str) -> TurnItem:
    """The person's input; what a log keeps elsewhere is named by its size."""
    plain = [{name: readable_setting(value) for name, value in item.items()} for item in items]
    return UserMessageItem.model_validate({"id": item_id, "content": plain})


def _texts(parts: Sequence[Item] | None) -> tuple[str, ...]:
    return tuple(str(part.get("text", "")) for part in parts or ())
