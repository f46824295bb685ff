"""Conversations that do not fit the model's window any more: compacted, or cut down to be compacted."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from orchestrator.core import snapshot
from orchestrator.core.compaction import SUMMARY_PROMPT, compaction_input
from orchestrator.core.history import message_text, user_message
from orchestrator.core.snapshot import decode, encode
from orchestrator.protocol.wire import written
from orchestrator.runtime.model_request import build_prompt
from tests.core.driver import Seen, Session, assistant, function_call

TOO_LONG = {"codex_error_info": "context_window_exceeded"}


def talked() -> Session:
    session = Session()
    session.say("one")
    session.answers("first answer", "r1")
    session.say("two", "u2")
    return session


def overflows(session: Session) -> Seen:
    session.begin()
    return session.breaks("fatal", "too long", **TOO_LONG)


def purpose(session: Session) -> str:
    assert session.task.request is not None
    return session.task.request.purpose


def summarises(session: Session) -> Seen:
    session.begin()
    assert purpose(session) == "compact"
    session.item(assistant("what was done"))
    return session.ends()


def test_turn_that_does_not_fit_is_tried_again_behind_a_compaction() -> None:
    session = talked()
    seen = overflows(session)
    assert seen.types == ["background_event"]
    assert "does not fit" in seen.one("background_event")["message"]
    assert summarises(session).types == ["token_count", "context_compaction", "warning"]
    session.begin()
    assert purpose(session) == "turn"
    assert session.answers_now("done").types[-1] == "task_complete"
    assert session.state.outcome == "completed"
    assert session.replayed() == session.state


def test_task_is_rescued_once() -> None:
    session = talked()
    overflows(session)
    summarises(session)
    session.begin()
    session.calls("c1")
    session.ends()
    session.runs("c1")
    session.finishes("c1")
    assert overflows(session).types == ["error", "task_complete"]
    assert session.state.outcome == "failed"
    session.say("three")
    assert overflows(session).types == ["background_event"]


def test_compaction_that_does_not_fit_leaves_out_more_and_more_and_then_fails() -> None:
    session = talked()
    session.compact("k")
    before = session.texts()
    told = [overflows(session) for _ in range(2)]
    words = [seen.one("background_event")["message"] for seen in told]
    assert ["half" in words[0], "three quarters" in words[1]] == [True, True]
    assert overflows(session).types == ["error", "task_complete"]
    assert session.texts() == before
    session.compact("k2")
    assert summarises(session).types[-1] == "task_complete"
    assert session.state.outcome == "completed"


def test_request_of_each_attempt_is_shown_less_of_the_conversation() -> None:
    session = Session()
    for n in range(8):
        session.say(str(n) * 100)
        session.answers("ok")
    session.compact("k")
    shown = []
    for _ in range(3):
        session.begin()
        assert session.task.request is not None
        prompt = build_prompt(session.state, session.task.request, (), session.text_of)
        shown.append([message_text(item)[0] for item in prompt.input if item["role"] == "user"][:-1])
        session.breaks("fatal", "too long", **TOO_LONG)
    assert shown == [list("01234567"), list("4567"), list("67")]


def test_rescue_fails_with_the_third_compaction_and_the_next_task_may_try_again() -> None:
    session = talked()
    told = [overflows(session).types for _ in range(4)]
    assert told == [["background_event"]] * 3 + [["error", "task_complete"]]
    session.say("three")
    assert overflows(session).types == ["background_event"]
    summarises(session)
    assert session.answers("done").types[-1] == "task_complete"


def test_conversation_that_is_nothing_but_a_summary_is_not_compacted_again() -> None:
    session = Session()
    session.say("one")
    session.answers("ok")
    session.compact()
    summarises(session)
    session.say("two")
    assert overflows(session).types == ["background_event"]
    summarises(session)
    assert overflows(session).types == ["error", "task_complete"]


def test_interrupt_of_a_rescue_leaves_the_history_and_the_next_task_begins_anew() -> None:
    session = talked()
    overflows(session)
    session.begin()
    session.interrupt()
    session.stopped()
    assert "first answer" in session.texts()
    session.say("three")
    session.begin()
    assert purpose(session) == "turn"


def test_worker_that_takes_over_goes_on_with_the_attempt_of_the_lost_one() -> None:
    session = talked()
    overflows(session)
    overflows(session)
    session.begin()
    session.state = decode(encode(session.state))
    session.is_taken_over()
    assert session.task.rescue == 2
    assert session.replayed() == session.state


@pytest.mark.parametrize("rescued", [True, False])
def test_snapshot_says_of_a_rescue_only_where_there_is_one(rescued: bool) -> None:
    session = talked()
    if rescued:
        overflows(session)
    stored = orjson.loads(encode(session.state))
    assert ("rescue" in stored["task"]) is rescued
    assert decode(encode(session.state)) == session.state
    assert snapshot.digest(decode(encode(session.state))) == session.digest


# ── the input of such a request ───────────────────────────────────────────────────────────────


def _said(words: str) -> dict[str, Any]:
    return dict(written(user_message(words)))


def _shown(items: list[dict[str, Any]], attempt: int) -> list[str]:
    found = compaction_input(items, attempt)
    assert message_text(found[-1]) == SUMMARY_PROMPT
    return [message_text(item) or f"{item['type']} {item.get('call_id', '')}" for item in found[:-1]]


def test_later_attempts_leave_out_the_oldest_half_and_then_three_quarters() -> None:
    items = [_said(name * 100) for name in "abcdefgh"]
    assert [words[0] for words in _shown(items, 1)] == list("abcdefgh")
    assert [words[0] for words in _shown(items, 2)] == list("efgh")
    assert [words[0] for words in _shown(items, 3)] == list("gh")


def test_last_message_of_the_user_is_never_left_out() -> None:
    items = [_said("a" * 100), _said("the order"), *(assistant(str(n) * 100) for n in range(9))]
    assert [words[:9] for words in _shown(items, 3)] == ["the order", "777777777", "888888888"]


def test_call_is_left_out_with_its_output() -> None:
    output = {"type": "function_call_output", "call_id": "c1", "output": "x" * 400}
    items = [_said("go"), function_call("c1"), output, assistant("done" * 10)]
    assert _shown(items, 2) == ["go", "done" * 10]


def test_output_is_left_out_with_its_call() -> None:
    output = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
    items = [_said("go"), function_call("c1", arguments="x" * 400), output, assistant("done" * 10)]
    assert _shown(items, 2) == ["go", "done" * 10]


def _ran(call_id: str) -> list[dict[str, Any]]:
    said = {"type": "function_call_output", "call_id": call_id, "output": "x" * 100}
    return [function_call(call_id), said]


def test_each_attempt_keeps_the_newest_of_a_long_task_of_nothing_but_calls() -> None:
    items = [_said("go"), *(item for n in range(200) for item in _ran(f"c{n}"))]
    shown = [_shown(items, attempt) for attempt in (1, 2, 3)]
    assert list(map(len, shown)) == [401, 199, 99]
    assert shown[1] == ["go", *shown[0][203:]]
    assert shown[2] == ["go", *shown[0][303:]]


def test_calls_of_one_response_are_left_out_one_by_one_each_with_its_output() -> None:
    calls = [function_call(f"c{n}") for n in range(100)]
    outputs = [{"type": "function_call_output", "call_id": f"c{n}", "output": "x" * 100} for n in range(100)]
    for attempt, left in ((2, 49), (3, 24)):
        found = compaction_input([_said("go"), *calls, *outputs], attempt)[1:-1]
        made = [item["call_id"] for item in found if item["type"] == "function_call"]
        answered = [item["call_id"] for item in found if item["type"] == "function_call_output"]
        assert made == answered == [f"c{n}" for n in range(100 - left, 100)]


def test_conversation_of_one_message_is_shown_at_every_attempt() -> None:
    assert [_shown([_said("all")], attempt) for attempt in (1, 2, 3)] == [["all"]] * 3
    assert _shown([], 3) == []


def test_pictures_weigh_as_much_as_a_window_is_charged_for_them() -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 1_000_000}
    items = [
        _said("a" * 50_000),
        {"type": "message", "role": "user", "content": [picture]},
        _said("b" * 50_000),
    ]
    assert [words[:7] for words in _shown(items, 2)] == ["b" * 7]
