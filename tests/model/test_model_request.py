"""Request bodies against the recorded ones, and the fields that depend on the model."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.model_client import HttpBudget
from orchestrator.model.prompt import ItemDone
from orchestrator.model.provider_errors import RetryableModelError
from orchestrator.model.responses import request_body
from orchestrator.stub import Scenario
from tests.model.stubbed_client import connected, prompt

RECORDED = Path(__file__).parent / "recorded"
CONVERSATIONS = sorted(path.name for path in RECORDED.iterdir())
STOPPED_BY_THE_USER = {"exec_abort", "interrupt_approval", "interrupt_exec"}
WHOLE_CONVERSATIONS = [
    name for name in CONVERSATIONS if name not in STOPPED_BY_THE_USER | {"compact", "drop_retry"}
]


def recorded_requests(name: str) -> list[dict[str, Any]]:
    text = (RECORDED / name / "model_requests.ndjson").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def prompt_of(recorded: dict[str, Any]) -> Any:
    reasoning = recorded["reasoning"]
    return prompt(input=recorded["input"], effort=reasoning.get("effort"), summary=reasoning.get("summary"))


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_request_equals_the_recorded_one_field_by_field(name: str) -> None:
    for recorded in recorded_requests(name):
        body = request_body(prompt_of(recorded))
        for field, value in recorded.items():
            assert body[field] == value, field
        assert set(body) - set(recorded) == {"model", "instructions", "tools", "prompt_cache_key"}


@pytest.mark.parametrize("name", WHOLE_CONVERSATIONS)
async def test_items_that_the_client_hands_out_are_those_the_next_recorded_request_carries(
    name: str,
) -> None:
    requests = recorded_requests(name)
    made_by_the_model: list[dict[str, Any]] = []
    async with connected(Scenario.read(RECORDED / name / "model.json")) as peer:
        for recorded in requests:
            assert [item for item in recorded["input"] if is_made_by_the_model(item)] == made_by_the_model
            stream = peer.client.stream(prompt_of(recorded), HttpBudget(0))
            with contextlib.suppress(RetryableModelError):
                made_by_the_model += [event.item async for event in stream if isinstance(event, ItemDone)]


def is_made_by_the_model(item: dict[str, Any]) -> bool:
    return item["type"] in ("reasoning", "function_call") or item.get("role") == "assistant"


def test_request_without_reasoning_asks_for_none() -> None:
    body = request_body(prompt(supports_reasoning=False, effort="high"))
    assert body["reasoning"] is None
    assert body["include"] == []


def test_request_leaves_a_summary_of_none_out() -> None:
    assert request_body(prompt(summary="none", effort="low"))["reasoning"] == {"effort": "low"}


@pytest.mark.parametrize(
    ("model", "verbosity", "text"),
    [
        ("gpt-5", "low", {"verbosity": "low"}),
        ("gpt-5-mini", "high", {"verbosity": "high"}),
        ("gpt-5", None, None),
        ("gpt-5-codex", "low", None),
        ("codex-mini-latest", "low", None),
    ],
)
def test_request_tells_verbosity_to_the_models_that_take_it(
    model: str, verbosity: str | None, text: dict[str, str] | None
) -> None:
    assert request_body(prompt(model=model, verbosity=verbosity)).get("text") == text


def test_request_carries_an_output_schema_and_a_previous_response_only_when_given() -> None:
    schema = {"type": "object"}
    body = request_body(prompt(output_schema=schema, previous_response_id="resp_1"))
    assert body["text"]["format"]["schema"] == schema
    assert body["previous_response_id"] == "resp_1"
    assert "previous_response_id" not in request_body(prompt())


def test_request_keeps_raw_reasoning_at_home() -> None:
    raw = [{"type": "reasoning_text", "text": "hm"}]
    item = {"type": "reasoning", "summary": [], "content": raw, "encrypted_content": "E"}
    sent = request_body(prompt(input=[item]))["input"]
    assert sent == [{"type": "reasoning", "summary": [], "encrypted_content": "E"}]
    assert item["content"] == raw
