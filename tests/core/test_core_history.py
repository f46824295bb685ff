"""The conversation: a persistent list, and what the model is shown of it."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.context import context_change, environment_context, initial_context
from orchestrator.core.history import (
    ABORTED,
    CALL_KINDS,
    OUTPUT_KINDS,
    Log,
    call_output,
    for_model,
    message_text,
)
from orchestrator.core.settings import TurnSettings, context_window
from orchestrator.core.tokens import TokenInfo, Usage, context_left, must_compact
from orchestrator.protocol.items import Message
from orchestrator.protocol.wire import written
from tests.core.driver import SETTINGS, assistant, function_call

ELSEWHERE = {"type": "input_text", "text": {"$blob": "c" * 64, "bytes": 9}}
LENGTHS = st.integers(0, 200)


@given(LENGTHS, LENGTHS)
def test_log_is_the_list_that_was_appended_to_it(length: int, cut: int) -> None:
    log: Log[int] = Log()
    for number in range(length):
        log = log.append(number)
    assert list(log) == list(range(length))
    assert len(log) == length
    assert log == Log.of(range(length))
    assert list(log.prefix(cut)) == list(range(length))[:cut]
    assert log.prefix(cut) == Log.of(range(min(cut, length)))


def test_earlier_versions_of_a_log_stay_as_they_were() -> None:
    before = Log.of(range(63))
    after = before.append(63).append(64)
    assert (list(before), list(after)) == (list(range(63)), list(range(65)))
    assert after.prefix(63) == before


def output(call_id: str, words: str = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": words}


def test_output_stands_right_behind_its_call() -> None:
    shown = for_model([function_call("a"), function_call("b"), assistant("hm"), output("b"), output("a")])
    assert [item.get("call_id") for item in shown] == ["a", "a", "b", "b", None]


def test_call_without_an_output_gets_one_and_output_without_a_call_is_left_out() -> None:
    shown = for_model([output("ghost"), function_call("a"), assistant("hm")])
    assert shown == [function_call("a"), output("a", ABORTED), assistant("hm")]


def test_second_output_of_a_call_is_left_out() -> None:
    assert for_model([function_call("a"), output("a", "1"), output("a", "2")])[1:] == [output("a", "1")]


def test_call_id_used_again_in_a_later_turn_gets_its_own_output() -> None:
    history = [function_call("a"), output("a", "1"), function_call("a"), output("a", "2")]
    assert for_model(history) == history


def test_custom_tool_has_an_output_kind_of_its_own() -> None:
    custom = {"type": "custom_tool_call", "call_id": "x", "name": "apply_patch", "input": "…"}
    assert for_model([custom])[1]["type"] == "custom_tool_call_output"
    assert written(call_output(function_call("a"), "ok")) == output("a")


def test_foreign_items_without_ids_or_types_are_passed_on() -> None:
    odd = [{"type": "function_call_output", "output": "?"}, {"text": "no type"}, {"type": "local_shell_call"}]
    assert for_model(odd) == [{"text": "no type"}, {"type": "local_shell_call"}]


CALL_IDS = st.sampled_from("abcd")
ITEMS = st.one_of(st.builds(function_call, CALL_IDS), st.builds(output, CALL_IDS), st.just(assistant("hm")))


@given(st.lists(ITEMS, max_size=20))
def test_model_is_shown_as_many_outputs_as_calls_each_behind_its_own(history: list[dict[str, Any]]) -> None:
    shown = for_model(history)
    for call, answer in pairwise([*shown, {}]):
        if call["type"] in CALL_KINDS:
            assert answer["type"] in OUTPUT_KINDS
            assert answer["call_id"] == call["call_id"]
    kinds = Counter(item["type"] for item in shown)
    assert kinds["function_call"] == kinds["function_call_output"]
    assert [item for item in shown if item["type"] not in OUTPUT_KINDS] == [
        item for item in history if item["type"] not in OUTPUT_KINDS
    ]
    assert for_model(shown) == shown


def test_text_of_a_message_joins_its_parts_and_names_one_stored_elsewhere() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image"},
        ELSEWHERE,
    ]
    assert message_text({"content": parts}) == "a[a long text]"
    assert message_text({}) == ""


# --- context -------------------------------------------------------------------------


def text_of(message: Message) -> str:
    return message_text(written(message))


def settings(**fields: Any) -> TurnSettings:
    return TurnSettings.of({**SETTINGS, **fields})


def test_conversation_opens_with_instructions_then_environment() -> None:
    first, second = initial_context(settings(), "be brief", "zsh")
    assert text_of(first) == "<user_instructions>\n\nbe brief\n\n</user_instructions>"
    assert text_of(second) == (
        "<environment_context>\n  <cwd>/repo</cwd>\n  <approval_policy>on-request</approval_policy>\n"
        "  <sandbox_mode>workspace-write</sandbox_mode>\n  <network_access>restricted</network_access>\n"
        "  <shell>zsh</shell>\n</environment_context>"
    )
    assert initial_context(settings(), None, "zsh") == [second]


def test_instructions_are_cut_after_as_many_characters_as_two_files_may_have() -> None:
    around = len("<user_instructions>\n\n") + len("\n\n</user_instructions>")
    longest = "é" * 131_071 + "a"
    for given_text in (longest, f"{longest}b"):
        text = text_of(initial_context(settings(), given_text, "zsh")[0])
        assert len(text) == around + 131_072
        assert text.endswith("éa\n\n</user_instructions>")


def test_environment_names_writable_roots_and_open_network() -> None:
    policy = {"mode": "workspace-write", "network_access": True, "writable_roots": ["/a", "/b"]}
    text = text_of(environment_context({"sandbox_policy": policy}))
    assert "<network_access>enabled</network_access>" in text
    assert "<writable_roots>\n    <root>/a</root>\n    <root>/b</root>\n  </writable_roots>" in text
    free = environment_context({"sandbox_policy": {"mode": "danger-full-access"}})
    assert "<network_access>enabled</network_access>" in text_of(free)


def test_change_tells_every_shown_field_that_was_named_if_one_is_new() -> None:
    def change(**named: str) -> Message | None:
        return context_change(settings(), settings().changed(named), named)

    changed = change(cwd="/new", approval_policy="on-request", model="o3")
    assert changed is not None
    assert "<approval_policy>on-request</approval_policy>" in text_of(changed)
    assert "sandbox_mode" not in text_of(changed)
    assert change(cwd="/repo", model="o3") is None
    assert change() is None


def test_new_model_forgets_a_window_that_was_set_for_the_old_one() -> None:
    old = settings(window=1_000)
    assert old.changed({"effort": "low"}).context_window == 1_000
    assert old.changed({"model": "gpt-5-codex"}).context_window == 272_000
    assert old.changed({"model": "gpt-5-codex", "window": 5}).context_window == 5


# --- tokens --------------------------------------------------------------------------


def test_windows_come_from_the_table_and_unknown_models_have_none() -> None:
    windows = {
        "gpt-5": 272_000,
        "gpt-5-codex": 272_000,
        "codex-mini-latest": 200_000,
        "o3": 200_000,
        "o4-mini": 200_000,
        "gpt-4.1-mini": 1_047_576,
        "gpt-4o": 128_000,
        "other": None,
    }
    assert {model: context_window(model) for model in windows} == windows


def test_blended_total_leaves_cached_input_out() -> None:
    assert Usage(input_tokens=100, cached_input_tokens=60, output_tokens=5).blended_total == 45
    assert Usage(input_tokens=1, cached_input_tokens=5, output_tokens=2).blended_total == 2


def test_share_left_of_the_window_does_not_count_the_baseline() -> None:
    def left(total: int, window: int | None) -> float | None:
        return context_left(TokenInfo(Usage(), Usage(total_tokens=total)), window)

    assert context_left(None, 112_000) == 1.0
    assert left(12_000, 112_000) == 1.0
    assert left(62_000, 112_000) == 0.5
    assert left(1_000_000, 112_000) == 0.0
    assert left(1, None) is None
    assert left(1, 12_000) is None


def test_compaction_is_due_at_nine_tenths_of_the_window() -> None:
    def due(total: int, limit: int | None = None) -> bool:
        return must_compact(TokenInfo(Usage(), Usage(total_tokens=total)), 1_000, limit)

    assert [due(899), due(900), due(50, 50), due(49, 50)] == [False, True, True, False]
    assert not must_compact(None, 1_000, None)
