"""The canonical form of requests: what makes two the same, and that only what is new is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from itertools import permutations
from typing import Any

import orjson
import pytest

from orchestrator.config_keys import ProviderSettings
from orchestrator.core.birth import opened
from orchestrator.core.blobs import REFERENCE
from orchestrator.core.frozen import replace
from orchestrator.core.history import BESIDE, INHERITED, Item, Log, for_model
from orchestrator.model.canonical import CanonicalRequests, Conversations
from orchestrator.model.prompt import Prompt
from orchestrator.model.responses import ResponsesFormat, request_body, sent_form

SAID = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "gö"}]}
CALL = {"type": "function_call", "id": "fc_9", "call_id": "call_7", "name": "shell", "arguments": "{}"}
DONE = {"type": "function_call_output", "call_id": "call_7", "output": "ok"}
THOUGHT = {
    "type": "reasoning", "id": "rs_1", "summary": [], "content": [{"text": "raw"}], "encrypted_content": "x",
}  # fmt: skip
TOOLS = [{"type": "function", "name": "b"}, {"name": "a", "type": "function"}]


def prompt(*items: Any, **changes: Any) -> Prompt:
    return replace(Prompt("gpt-5", "do", items, TOOLS, "low", "none", None, "s1", True), **changes)


def digest_of(**whole: Any) -> str:
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def test_digest_is_that_of_the_documented_json() -> None:
    sent = CanonicalRequests().of(prompt(SAID, THOUGHT, CALL, DONE), "turn")
    assert sent is not None
    tools = sorted(TOOLS, key=lambda tool: tool["name"])
    assert sent.sha256 == digest_of(
        model="gpt-5",
        instructions="do",
        tools=tools,
        input=[
            SAID,
            {
                "type": "reasoning",
                "id": 0,
                "summary": [],
                "encrypted_content": hashlib.sha256(b"x").hexdigest(),
            },
            {**CALL, "id": 1, "call_id": 0},
            {**DONE, "call_id": 0},
        ],
        reasoning={"effort": "low"},
        tool_choice="auto",
        text=None,
    )
    assert sent.texts[sent.instructions] == "do"
    assert json.loads(sent.texts[sent.tools]) == tools


def test_other_ids_of_items_and_calls_are_the_same_request() -> None:
    one, two = CanonicalRequests(), CanonicalRequests()
    other = ({**CALL, "id": "x", "call_id": "y"}, {**DONE, "call_id": "y"})
    assert one.of(prompt(SAID, CALL, DONE), "turn") == two.of(prompt(SAID, *other, session_id="s2"), "turn")
    assert one.of(prompt(SAID, CALL, DONE, store=True), "turn") == two.of(prompt(SAID, *other), "turn")


@pytest.mark.parametrize(
    "change",
    [
        {"model": "m"},
        {"instructions": "x"},
        {"effort": None},
        {"summary": "auto"},
        {"supports_reasoning": False},
        {"verbosity": "low"},
        {"output_schema": {"type": "object"}},
        {"tools": []},
        {"tools": [*TOOLS, {"type": "web_search"}]},
        {"tools": [TOOLS[0], {**TOOLS[1], "description": "x"}]},
        {"tools": [TOOLS[1], TOOLS[1]]},
    ],
)
def test_other_words_or_tools_are_another_request(change: dict[str, Any]) -> None:
    known = CanonicalRequests()
    one, two = known.of(prompt(SAID), "turn"), known.of(prompt(SAID, **change), "turn")
    assert one is not None
    assert two is not None
    assert one.sha256 != two.sha256
    if "tools" in change:
        assert json.loads(two.texts[two.tools]) != json.loads(one.texts[one.tools])
    # Back again, it is the one that it was, and as somebody sees it who knew none of them.
    assert known.of(prompt(SAID), "turn") == one
    assert CanonicalRequests().of(prompt(SAID, **change), "turn") == two


def test_order_of_tools_without_names_is_none_of_a_request_either() -> None:
    tools = [*TOOLS, {"type": "web_search"}, {"type": "local_shell"}]
    sent = {CanonicalRequests().of(prompt(SAID, tools=order), "turn").sha256 for order in permutations(tools)}  # type: ignore[union-attr]
    assert len(sent) == 1


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_order_of_tools_is_none_of_a_request_and_that_of_its_words_is(order: list[int]) -> None:
    tools = [TOOLS[at] for at in order]
    assert CanonicalRequests().of(prompt(SAID, CALL, tools=tools), "turn") == CanonicalRequests().of(
        prompt(SAID, CALL), "turn"
    )
    one, two = (
        CanonicalRequests().of(prompt(SAID, CALL), "turn"),
        CanonicalRequests().of(prompt(CALL, SAID), "turn"),
    )
    assert one is not None
    assert two is not None
    assert one.sha256 != two.sha256


def test_requests_of_sessions_and_their_compactions_that_take_turns_have_their_own_digests() -> None:
    known = CanonicalRequests()
    for length in (1, 2, 3, 4):
        for session, purpose in (("s1", "turn"), ("s2", "turn"), ("s1", "compact")):
            items = {"s1turn": (SAID, CALL, DONE, SAID), "s2turn": (SAID, SAID, CALL, DONE)}.get(
                f"{session}{purpose}", (CALL, DONE, SAID, CALL)
            )
            asked = prompt(*items[:length], session_id=session)
            assert known.of(asked, purpose) == CanonicalRequests().of(asked, purpose)


def test_conversation_that_grew_or_went_back_has_the_digest_of_who_reads_it_whole() -> None:
    known = CanonicalRequests()
    longer = (SAID, CALL, DONE, THOUGHT)
    for items in (longer[:1], longer[:3], longer, longer[:2], (CALL, DONE), (SAID, SAID), longer):
        assert known.of(prompt(*items), "turn") == CanonicalRequests().of(prompt(*items), "turn")


def test_of_a_conversation_that_grew_only_what_is_new_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.model import canonical

    known, encoded = CanonicalRequests(), list[str]()
    real = sent_form

    def counted(item: Any) -> Any:
        encoded.append(item["type"])
        return real(item)

    monkeypatch.setattr(canonical, "sent_form", counted)
    known.of(prompt(SAID, CALL), "turn")
    known.of(prompt(SAID, CALL, DONE), "turn")
    assert encoded == ["message", "function_call", "function_call_output"]


def test_request_that_is_no_json_has_no_digest_and_spoils_no_later_one() -> None:
    known = CanonicalRequests()
    assert known.of(prompt(SAID, {"type": "message", "role": "user", "content": "\ud800"}), "turn") is None
    assert known.of(prompt(SAID), "turn") == CanonicalRequests().of(prompt(SAID), "turn")


# ── inputs ────────────────────────────────────────────────────────────────────────────────────────

TEXT, ELSEWHERE = "a" * 64, "b" * 64
LONG = {**DONE, "call_id": "long", "output": {REFERENCE: TEXT, "bytes": 5}}
BEFORE = {"type": INHERITED, "content": {REFERENCE: ELSEWHERE, "bytes": 5}}
TABLE = ProviderSettings(id="p", base_url="http://127.0.0.1/v1")
STORED = {TEXT: "a long output", ELSEWHERE: json.dumps([SAID, {**CALL, "call_id": "x"}])}
KEPT_BY_NOBODY = {"type": "reasoning", "summary": [], "content": [{"text": "raw"}]}
CONVERSATION: tuple[Item, ...] = (
    BEFORE, SAID, CALL, {**CALL, "call_id": "long"}, {**CALL, "call_id": "never"}, THOUGHT, LONG, DONE,
    KEPT_BY_NOBODY, {**CALL, "call_id": "late", BESIDE: True}, SAID, {**DONE, "call_id": "late"},
    {**DONE, "call_id": "of nothing"}, {**SAID, "content": [{"type": "input_text", "text": '"$blob"'}]},
)  # fmt: skip


def log_of(items: Iterable[Item]) -> Log[Item]:
    return Log.of(items)


def told_whole(items: Any, text_of: Any) -> list[Any]:
    return list(opened(for_model(items), text_of))


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 14])
def test_conversation_that_grew_is_shown_and_sent_as_if_it_was_read_whole(chunk: int) -> None:
    known, history = Conversations(), Log[Item]()
    # Behind 64 items they stand in another part of the log.
    for at, item in enumerate(CONVERSATION * 11):
        history = history.append(item)
        if at % chunk:
            continue
        shown = known.of("s1", history, STORED.get)
        assert shown is not None
        assert shown.items == told_whole(history, STORED.get)
        asked = prompt(*shown.items)
        encoded = ResponsesFormat().body(replace(asked, encoded=shown.encoded), TABLE)
        assert orjson.dumps(encoded) == orjson.dumps(request_body(asked))


def test_other_history_of_a_session_is_read_anew() -> None:
    known, of_all = Conversations(), log_of(CONVERSATION)
    for history in (of_all, of_all.prefix(5), log_of((SAID, CALL)), of_all, log_of([*CONVERSATION])):
        shown = known.of("s1", history, STORED.get)
        assert shown is not None
        assert shown.items == told_whole(history, STORED.get)
        assert orjson.loads(shown.encoded) == request_body(prompt(*shown.items))["input"]


def test_of_a_conversation_that_grew_no_item_is_encoded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.model import canonical

    known, encoded = Conversations(), list[str]()

    def counted(item: Any) -> Any:
        encoded.append(item["type"])
        return sent_form(item)

    monkeypatch.setattr(canonical, "sent_form", counted)
    history = log_of([SAID] * 200)
    for _ in range(3):
        history = history.append(SAID)
        known.of("s1", history, STORED.get)
    assert len(encoded) == 203


def test_request_that_waits_for_its_retry_keeps_its_conversation() -> None:
    known, history = Conversations(), log_of([SAID, CALL])
    before = known.of("s1", history, STORED.get)
    assert before is not None
    items, encoded = list(before.items), before.encoded
    known.of("s1", history.append(DONE).append(SAID), STORED.get)
    assert (before.items, before.encoded) == (items, encoded)
    assert items[-1]["output"] == "aborted"


def test_conversation_whose_text_is_not_at_hand_is_shown_once_it_is() -> None:
    known, at_hand, history = Conversations(), dict[str, str](), log_of(CONVERSATION)
    assert known.of("s1", history, at_hand.get) is None
    at_hand[ELSEWHERE] = STORED[ELSEWHERE]
    assert known.of("s1", history, at_hand.get) is None, "the output is still missing"
    at_hand |= STORED
    shown = known.of("s1", history, at_hand.get)
    assert shown is not None
    assert shown.items == told_whole(history, STORED.get)


def test_conversation_that_is_no_json_is_shown_to_nobody_and_spoils_no_other() -> None:
    known, broken = Conversations(), {**SAID, "content": "\ud800"}
    assert known.of("s1", log_of([SAID, broken, CALL]), STORED.get) is None
    shown = known.of("s1", log_of([SAID]), STORED.get)
    assert shown is not None
    assert shown.items == [SAID]


def test_conversations_that_are_asked_for_last_are_kept_within_their_bound() -> None:
    size = len(orjson.dumps(SAID)) + 1
    known, histories = Conversations(most_bytes=3 * size), [log_of([SAID, SAID]) for _ in range(4)]
    for session, history in enumerate(histories):
        shown = known.of(f"s{session}", history, STORED.get)
        assert shown is not None
    assert [known._known.get(f"s{session}") is not None for session in range(4)] == [
        False,
        False,
        False,
        True,
    ]
    assert known._known.bytes == 2 * size
    large = known.of("large", log_of([SAID] * 9), STORED.get)
    assert large is not None
    assert known._known.get("large") is not None, "the last one stays, whatever its size"
