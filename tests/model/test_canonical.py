"""The canonical form of requests: what makes two the same, and that only what is new is read."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from orchestrator.core.frozen import replace
from orchestrator.model.canonical import CanonicalRequests
from orchestrator.model.prompt import Prompt
from orchestrator.model.responses import sent_form

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


@pytest.mark.parametrize("change", [{"model": "m"}, {"instructions": "x"}, {"effort": None}, {"tools": []}])
def test_other_words_or_tools_are_another_request(change: dict[str, Any]) -> None:
    known = CanonicalRequests()
    one, two = known.of(prompt(SAID), "turn"), known.of(prompt(SAID, **change), "turn")
    assert one is not None
    assert two is not None
    assert one.sha256 != two.sha256


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
