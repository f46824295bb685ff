"""Answers of clients to calls of their tools, as operations: one that cannot be used is a failed call."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.calls.ask import MOST_ANSWER_BYTES, MOST_IMAGES
from orchestrator.gateways.app_server.write_requests import answer_of
from orchestrator.protocol import ops
from orchestrator.protocol.wire import written
from orchestrator.requests import ClientToolRequest
from orchestrator.views.turns.turn_records import ItemId, RequestOpened, TurnId

PNG = "data:image/png;base64,iVBORw0KGgoA"
OPENED = RequestOpened(TurnId("t"), ItemId("c"), ClientToolRequest({"tool": "look", "callId": "c"}))


def image(url: str = PNG) -> dict[str, str]:
    return {"type": "inputImage", "imageUrl": url}


def text(said: str) -> dict[str, str]:
    return {"type": "inputText", "text": said}


def response(**result: Any) -> dict[str, Any]:
    op = answer_of(OPENED, result)
    assert isinstance(op, ops.DynamicToolResponse)
    assert op.id == "c"
    return written(op.response)


def test_answer_that_does_not_say_whether_it_was_done_is_a_failure() -> None:
    assert "success" in response(contentItems=[])["output"]


def test_texts_are_one_output_and_with_an_image_the_parts_are_as_they_came() -> None:
    texts = [text("a"), text("b")]
    assert response(success=True, contentItems=texts) == {"success": True, "output": "a\nb"}
    parts = [text("a"), image(), text("b")]
    assert response(success=False, contentItems=parts) == {"success": False, "contentItems": parts}


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([image("file:///etc/passwd")], "contentItems[0].imageUrl: an image is a URL `https://"),
        ([text("a"), image("data:image/png;base64,aGk=")], "contentItems[1].imageUrl: it is no PNG"),
        ([image()] * (MOST_IMAGES + 1), "at most 16 images are taken, these are 17"),
        ([image(PNG + "A" * (8 << 20))], "at most 7,340,032 are taken"),
        ([{"type": "inputAudio", "audioUrl": "data:"}], "type must be one of inputImage, inputText"),
        ([*[text("x")] * 1_000, image()], "content_items: at most 1,000 elements"),
        ([{"type": "inputImage"}], "imageUrl: Field required"),
        ([text("x" * (MOST_ANSWER_BYTES + 1))], "at most 131,072"),
        ([[]], "contentItems.0"),
        ({}, "contentItems"),
        ("text", "contentItems"),
    ],
    ids=[
        *("file", "no-image", "images", "huge", "sound", "parts", "no-url", "long", "list", "object", "text"),
    ],
)
def test_answer_that_cannot_be_used_is_a_failure_that_says_why(parts: Any, told: str) -> None:
    failed = response(success=True, contentItems=parts)
    assert failed == {"success": False, "output": failed["output"]}
    assert failed["output"].startswith("its client's answer cannot be used: ")
    assert told in failed["output"]
