"""Requests to a provider that keeps responses, and those after it has forgotten a response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.config_keys import ModelSettings, ProviderSettings
from orchestrator.model.prompt import Prompt
from orchestrator.model.provider_errors import FatalKind, FatalModelError, RetryableModelError
from orchestrator.model.responses import request_body
from orchestrator.protocol import ops
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends, message


def with_provider(**options: bool) -> ModelSettings:
    """The worker's table of the provider that all sessions here have."""
    openai = ProviderSettings.model_validate({"id": "openai", "base_url": "http://openai/v1", **options})
    return ModelSettings(providers={"openai": openai})


@pytest.fixture
def keeping(harness: Harness) -> Harness:
    """The provider's table says that it keeps responses."""
    harness.ports = replace(harness.ports, model_settings=with_provider(previous_response_id=True))
    return harness


def refusal(kind: FatalKind) -> FatalModelError:
    return FatalModelError(kind, "Previous response with id 'r1' not found.", "bad_request")


def said(prompt: Prompt) -> list[str]:
    return [_short(item) for item in prompt.input if not _short(item).startswith("<")]


def _short(item: Any) -> str:
    if item["type"] != "message":
        return f"{item['type']} {item['call_id']}"
    return "".join(part["text"] for part in item["content"])


async def turns(harness: Harness, *words: str) -> list[Prompt]:
    """Each text is a turn of one session; answers the prompts."""
    session = await harness.session()
    for text in words:
        await harness.say(session, text)
        await harness.run(session)
    return harness.models.prompts


def previous(prompts: Sequence[Prompt]) -> list[str | None]:
    return [prompt.previous_response_id for prompt in prompts]


async def test_second_turn_names_the_first_and_says_only_what_is_new(keeping: Harness) -> None:
    keeping.models.will([message("one"), ends("r1")], [message("two"), ends("r2")])
    first, second = await turns(keeping, "hello", "and now?")
    assert (first.previous_response_id, second.previous_response_id) == (None, "r1")
    assert (said(first), said(second)) == (["hello"], ["and now?"])
    assert second.instructions == first.instructions
    body = request_body(second)
    assert (body["store"], body["previous_response_id"]) == (True, "r1")
    assert request_body(first)["store"] is True, "or there would be nothing to go on from"


async def test_outputs_of_calls_are_what_is_new_within_a_task(keeping: Harness) -> None:
    keeping.models.will([calls("c1"), ends("r1")], [message("done"), ends("r2")])
    _, second = await turns(keeping, "go")
    assert (second.previous_response_id, said(second)) == ("r1", ["function_call_output c1"])


async def test_provider_that_keeps_nothing_is_told_everything(harness: Harness) -> None:
    harness.models.will([message("one"), ends("r1")], [message("two"), ends("r2")])
    _, second = await turns(harness, "hello", "and now?")
    assert said(second) == ["hello", "one", "and now?"]
    body = request_body(second)
    assert body["store"] is False
    assert "previous_response_id" not in body


@pytest.mark.parametrize("kind", [FatalKind.BAD_REQUEST, FatalKind.NOT_FOUND])
async def test_forgotten_response_is_passed_over_in_silence_once(keeping: Harness, kind: FatalKind) -> None:
    keeping.models.will([message("one"), ends("r1")], [refusal(kind)], [message("two"), ends("r2")])
    session = await keeping.session()
    for text in ("hello", "and now?", "more"):
        await keeping.say(session, text)
        await keeping.run(session)
    prompts = keeping.models.prompts
    assert previous(prompts) == [None, "r1", None, "r2"]
    assert said(prompts[2]) == ["hello", "one", "and now?"]
    assert prompts[2].store
    assert await keeping.logged_events(session, "stream_error") == []
    assert await keeping.logged_events(session, "error") == []


async def test_full_request_that_is_refused_too_fails_the_task(keeping: Harness) -> None:
    keeping.models.will(
        [message("one"), ends("r1")], [refusal(FatalKind.BAD_REQUEST)], [refusal(FatalKind.BAD_REQUEST)]
    )
    session = await keeping.session()
    for text in ("hello", "and now?"):
        await keeping.say(session, text)
        await keeping.run(session)
    assert len(keeping.models.prompts) == 3
    assert len(await keeping.logged_events(session, "error")) == 1


async def test_refusal_for_another_reason_is_not_tried_again(keeping: Harness) -> None:
    keeping.models.will([message("one"), ends("r1")], [refusal(FatalKind.UNAUTHORIZED)])
    await turns(keeping, "hello", "and now?")
    assert previous(keeping.models.prompts) == [None, "r1"]


async def test_retry_of_a_broken_stream_says_everything(keeping: Harness) -> None:
    broken = RetryableModelError("the stream ended early", 0.0)
    keeping.models.will([message("one"), ends("r1")], [broken], [message("two"), ends("r2")])
    prompts = await turns(keeping, "hello", "and now?")
    assert previous(prompts) == [None, "r1", None]


async def test_another_model_is_told_everything(keeping: Harness) -> None:
    keeping.models.will([message("one"), ends("r1")], [message("two"), ends("r2")])
    session = await keeping.session()
    await keeping.say(session, "hello")
    await keeping.run(session)
    await keeping.submit(session, ops.OverrideTurnContext(model="gpt-5-mini"))
    await keeping.say(session, "and now?")
    await keeping.run(session)
    assert said(keeping.models.prompts[-1]) == ["hello", "one", "and now?"]
    assert previous(keeping.models.prompts) == [None, None]


async def test_compaction_says_everything_and_leaves_nothing_to_go_on_from(keeping: Harness) -> None:
    keeping.models.will(
        [message("one"), ends("r1")], [message("a summary"), ends("r2")], [message("three"), ends("r3")]
    )
    session = await keeping.session()
    await keeping.say(session, "hello")
    await keeping.run(session)
    await keeping.submit(session, ops.Compact())
    await keeping.run(session)
    await keeping.say(session, "go on")
    await keeping.run(session)
    assert previous(keeping.models.prompts) == [None, None, None]
    assert [prompt.store for prompt in keeping.models.prompts] == [True, False, True]
    assert said(keeping.models.prompts[1])[:2] == ["hello", "one"]


async def test_provider_is_asked_for_several_calls_at_once_where_its_table_says_so(harness: Harness) -> None:
    harness.ports = replace(harness.ports, model_settings=with_provider(parallel_tool_calls=True))
    harness.models.will([message("done"), ends()])
    (asked,) = await turns(harness, "both, please")
    assert request_body(asked)["parallel_tool_calls"] is True
