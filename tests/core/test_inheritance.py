"""Parts of a conversation that stand elsewhere, and have to be fetched before a model can read them."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from orchestrator.core.birth import opened, whole
from orchestrator.core.history import INHERITED, user_message
from orchestrator.protocol.wire import written

REFERENCE = {"$blob": "ab" * 32, "bytes": 5000}


def output(text: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "c1", "output": text}


def test_conversation_of_plain_items_is_whole_and_is_what_a_model_reads() -> None:
    said = [written(user_message("hello")), output('{"inherited": "$blob"}'), MappingProxyType(output("x"))]
    assert whole(said)
    assert list(opened(said, lambda _: None)) == said


@pytest.mark.parametrize(
    "item",
    [
        output(REFERENCE),
        output([{"type": "input_image", "image_url": MappingProxyType(REFERENCE)}]),
        {"type": INHERITED, "content": "[]"},
        {"type": INHERITED, "content": REFERENCE},
        output("\ud800"),
    ],
)
def test_conversation_is_not_whole_with_something_that_stands_elsewhere_or_cannot_be_told(
    item: dict[str, Any],
) -> None:
    assert not whole([written(user_message("hello")), item])
