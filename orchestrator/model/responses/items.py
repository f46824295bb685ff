"""A provider's output items in the form that rollouts keep and later requests send back.

Pure. The September 2025 protocol never serialises an item's `id`, so that a history can be
sent to a provider that stores nothing; what else is unknown to us stays as it came.
"""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]

_TRANSIENT: dict[str, frozenset[str]] = {
    "message": frozenset({"id", "status"}),
    "reasoning": frozenset({"id", "status"}),
    "function_call": frozenset({"id", "status"}),
    "custom_tool_call": frozenset({"id"}),
    "local_shell_call": frozenset({"id"}),
    "web_search_call": frozenset({"id"}),
}
"""Known item types and the fields that name or time the item at the provider only."""


def kept_item(item: JsonObject) -> JsonObject:
    """The item without what only its provider understands; an unknown type comes back whole."""
    kind = item.get("type")
    transient = _TRANSIENT.get(kind) if isinstance(kind, str) else None
    if transient is None:
        return item
    kept = {name: value for name, value in item.items() if name not in transient}
    if kind == "message":
        kept["content"] = [_kept_part(part) for part in item.get("content") or ()]
    elif kind == "reasoning":
        return _kept_reasoning(kept)
    elif kind == "local_shell_call" and not kept.get("call_id"):
        # Older servers name the call by the item's id alone; its output must name it too.
        kept["call_id"] = item.get("id")
    return kept


def _kept_reasoning(kept: JsonObject) -> JsonObject:
    known = {
        "type": kept["type"],
        "summary": kept.get("summary") or [],
        "content": kept.get("content") or None,
        "encrypted_content": kept.get("encrypted_content"),
    }
    return known | {name: value for name, value in kept.items() if name not in known}


def _kept_part(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    return {name: value for name, value in part.items() if value or name not in ("annotations", "logprobs")}
