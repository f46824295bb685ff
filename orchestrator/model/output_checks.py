"""Checks of an output item's shape, before anything is done with it.

Servers differ, and their output is not to be trusted: an item with a field of the wrong type, or one
that no log could hold, is refused here in words, where the fault can still be attributed. An item of
an unknown type is taken as it is, whole, within the same bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from orchestrator.core.blobs import is_reference
from orchestrator.core.frozen import record
from orchestrator.core.history import INHERITED, OUTPUT_KINDS

NAME_BYTES: Final = 1_024
"""Ids of calls, items and responses; names of tools."""
MOST_PARTS: Final = 100
"""Parts of one item's reasoning: each is an event."""
MOST_DEPTH: Final = 64
BESIDE_BYTES: Final = 128 << 10
"""Most bytes of an item in the log when its long texts are stored beside it."""
_STORED_BYTES: Final = 256
_NODE_BYTES: Final = 16

Check = Callable[[Any], str]
"""Returns the fault of a field's value; empty if there is none."""


class BrokenItem(ValueError):
    """An item that cannot be taken; the message goes on behind "sent"."""


def check_item(item: Any) -> None:
    """Raises `BrokenItem` for what is no item, or one that cannot be recorded."""
    kind = item.get("type") if isinstance(item, dict) else None
    if not isinstance(kind, str) or not _fits(kind):
        raise BrokenItem("an item without a type")
    if kind == INHERITED or kind in OUTPUT_KINDS:
        raise BrokenItem(f"an item of type {kind}, which is not a model's to send")
    for field, check in _FIELDS.get(kind, {}).items():
        if wrong := check(item.get(field)):
            raise BrokenItem(f"a {kind} whose `{field}` {wrong}")
    _check_size(item, kind)


def name_of(value: Any) -> str:
    """An id that can be kept; empty for anything else."""
    return value if isinstance(value, str) and _fits(value) else ""


def _check_size(item: Any, kind: str) -> None:
    weight, level, depth = 0, [item], 0
    while level:
        depth += 1
        below: list[Any] = []
        for value in level:
            weight += _NODE_BYTES
            if isinstance(value, str):
                # The length in characters: four bytes each are stored beside the log long before.
                weight += min(len(value), _STORED_BYTES)
            elif isinstance(value, dict):
                if is_reference(value):
                    raise BrokenItem(f"a {kind[:40]} that refers to a stored text")
                weight += sum(map(len, value))
                below += value.values()
            elif isinstance(value, list):
                below += value
        if depth > MOST_DEPTH and below:
            raise BrokenItem(f"a {kind[:40]} that is nested deeper than {MOST_DEPTH} levels")
        level = below
    if weight > BESIDE_BYTES:
        raise BrokenItem(
            f"a {kind[:40]} of too many parts: beside its texts {weight:,} bytes, at most {BESIDE_BYTES:,} "
            "can be kept"
        )


def _fits(name: str) -> bool:
    return len(name) <= NAME_BYTES and len(name.encode()) <= NAME_BYTES


def _text(value: Any) -> str:
    return "" if isinstance(value, str) else "is no text"


def _name(value: Any) -> str:
    return _text(value) or ("" if _fits(value) else f"is longer than {NAME_BYTES:,} bytes")


def _tool(value: Any) -> str:
    return _name(value) or ("" if value else "is empty")


def _object(value: Any) -> str:
    return "" if isinstance(value, dict) else "is no object"


def _array(value: Any) -> str:
    return "" if isinstance(value, list) else "is no array"


def _texts(value: Any) -> str:
    """Parts of a reasoning: each is an object with a text."""
    if wrong := _array(value):
        return wrong
    if len(value) > MOST_PARTS:
        return f"has {len(value):,} parts, at most {MOST_PARTS} can be shown"
    broken = any(not isinstance(part, dict) or _text(part.get("text", "")) for part in value)
    return "has a part without a text" if broken else ""


def _search(value: Any) -> str:
    if wrong := _object(value):
        return wrong
    texts = [value.get(name) for name in ("type", "query", "url", "pattern")]
    queries = value.get("queries")
    if queries is not None and _array(queries):
        return "has queries that are no array"
    broken = [text for text in (*texts, *(queries or ())) if text is not None and _text(text)]
    return "has a query that is no text" if broken else ""


def _or_absent(check: Check) -> Check:
    return lambda value: "" if value is None else check(value)


_FIELDS: Final[Mapping[str, Mapping[str, Check]]] = {
    "message": {"role": _or_absent(_name), "content": _or_absent(_array)},
    "reasoning": {
        "summary": _or_absent(_texts),
        "content": _or_absent(_texts),
        "encrypted_content": _or_absent(_text),
    },
    "function_call": {"name": _tool, "arguments": _text, "call_id": _or_absent(_name)},
    "custom_tool_call": {"name": _tool, "input": _text, "call_id": _or_absent(_name)},
    "local_shell_call": {
        "action": _or_absent(_object),
        "call_id": _or_absent(_name),
        "id": _or_absent(_name),
    },
    "web_search_call": {"id": _or_absent(_name), "action": _or_absent(_search)},
}
"""Known items and what their fields must be, as far as anything reads them."""


# ── usage ─────────────────────────────────────────────────────────────────────────────────────────
# The tokens of a response, as a server reports them, in the TokenUsage wire shape. Pure.


MOST_TOKENS: Final = 10**12
"""More than any response has; a server that counts more, or less than none, is not believed."""


@record
class UsageNames:
    """The names that a wire format has for the counts."""

    input: str
    output: str
    input_details: str
    output_details: str

    def read(self, usage: Any) -> Mapping[str, int] | None:
        """The token usage; None where the server does not report it, or reports impossible figures.

        A request without usage counts as its reservation: never as less than nothing.
        """
        if not isinstance(usage, dict):
            return None
        try:
            input_tokens, output_tokens = _count(usage, self.input), _count(usage, self.output)
            cached = _count(usage.get(self.input_details) or {}, "cached_tokens")
            reasoning = _count(usage.get(self.output_details) or {}, "reasoning_tokens")
            total = _count(usage, "total_tokens") or input_tokens + output_tokens
        except (ValueError, OverflowError, TypeError, AttributeError):
            return None
        return {
            "input_tokens": input_tokens,
            "cached_input_tokens": min(cached, input_tokens),
            "output_tokens": output_tokens,
            "reasoning_output_tokens": reasoning,
            "total_tokens": total,
        }


def _count(counts: Any, name: str) -> int:
    """A number of tokens, 0 where it is left out; raises for what no response can have used."""
    value = counts.get(name) or 0
    if isinstance(value, bool) or int(value) != value or not 0 <= value <= MOST_TOKENS:
        raise ValueError(f"{name} is no number of tokens")
    return int(value)
