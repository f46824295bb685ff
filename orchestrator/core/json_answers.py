"""JSON objects in what a model answers."""

from __future__ import annotations

import orjson

from orchestrator.protocol.wire import JsonMapping


def object_in(text: str) -> JsonMapping:
    """The JSON object that a text is, or else that it holds from its first brace to its last; {} for none."""
    for part in (text, text[text.find("{") : text.rfind("}") + 1]):
        try:
            found = orjson.loads(part)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return {}
