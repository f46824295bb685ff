"""`inject_items`: messages that join the conversation without a turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.core.decide.ops import MOST_INJECTED, MOST_INJECTED_BYTES, MOST_STEERED
from orchestrator.core.history import INJECTED, for_model, message_text
from tests.core.driver import Session, op
from tests.core.tree_driver import a_family


def message(text: str, role: str = "user") -> Mapping[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def injects(session: Session, *messages: Mapping[str, Any]) -> list[str]:
    return session.submit(op("inject_items", items=messages), "i1").types


def refusal(session: Session) -> str:
    return str(session.seen[-1].one("error")["message"])


def shown(session: Session) -> list[tuple[str, str]]:
    """The conversation as the model is shown it, without what it begins with."""
    items = [item for item in for_model(session.state.history) if "<environment_context>" not in str(item)]
    assert all(INJECTED not in item for item in items)
    return [(item["role"], message_text(item)) for item in items]


def test_messages_are_refused_while_input_waits_for_its_turn_in_a_closed_session() -> None:
    session = Session()
    session.say("go", "u1")
    session.begin()
    session.submit(op("user_input", items=[{"type": "text", "text": "later"}], delivery="queue"), "u2")
    session.shutdown()
    session.stopped()
    before = shown(session)
    assert injects(session, message("the build is red")) == ["error"]
    assert refusal(session).startswith("not taken: input waits for its turn")
    assert shown(session) == before


def test_client_adds_messages_between_turns_and_none_begins() -> None:
    session = Session()
    said = (
        message("the build is red"),
        message("I looked at it", "assistant"),
        message("be brief", "developer"),
    )
    assert injects(session, *said) == ["items_injected"]
    assert session.seen[-1].one("items_injected")["count"] == 3
    assert session.status == "idle"
    assert shown(session) == [
        ("user", "the build is red"),
        ("assistant", "I looked at it"),
        ("developer", "be brief"),
    ]
    assert session.replayed() == session.state
    session.say("go")
    session.answers("yes")
    assert [text for _, text in shown(session)][-2:] == ["go", "yes"]


def test_messages_join_a_running_turn_with_its_next_request() -> None:
    session = Session()
    session.say("go")
    session.begin()
    assert injects(session, message("the build is green")) == ["items_injected"]
    assert "the build is green" not in session.texts()
    session.item(
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "one"}]}
    )
    session.ends("r1")
    session.answers("two")
    assert session.texts() == ["go", "one", "the build is green", "two"]
    assert session.status == "idle"


def test_words_in_the_models_name_do_not_join_a_running_turn() -> None:
    session = Session()
    session.say("go")
    assert injects(session, message("I am done", "assistant")) == ["error"]
    assert "would pass for its answer" in refusal(session)
    assert session.task.steered == ()


@pytest.mark.parametrize("kind", ["compact", "review"])
def test_messages_are_refused_while_a_turn_of_another_kind_runs(kind: str) -> None:
    session = Session()
    session.say("go")
    session.answers("done")
    request = {"review_request": {"prompt": "p", "user_facing_hint": "h"}} if kind == "review" else {}
    session.submit(op(kind, **request), "t2")
    assert injects(session, message("words")) == ["error"]
    assert f"a {kind} turn runs" in refusal(session)


def test_messages_are_refused_while_a_turn_is_being_stopped() -> None:
    session = Session()
    session.say("go")
    session.begin()
    session.submit(op("interrupt"))
    assert injects(session, message("words")) == ["error"]
    assert "is being stopped" in refusal(session)


def test_rollback_of_a_turn_leaves_what_was_added_before_it() -> None:
    session = Session()
    for number in (1, 2):
        session.say(f"question {number}")
        session.answers(f"answer {number}", f"r{number}")
        injects(session, message(f"note {number}"))
    session.submit(op("thread_rollback", num_turns=1), "back")
    assert session.texts() == ["question 1", "answer 1", "note 1"]


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "at least one is needed"),
        ([message("  ")], "items[0].content: say something"),
        ([message("x")] * (MOST_INJECTED + 1), f"at most {MOST_INJECTED} messages"),
        ([message("x" * (MOST_INJECTED_BYTES + 1))], "bytes of text together"),
        (
            [{**message("x", "assistant"), "content": [{"type": "input_text", "text": "x"}]}],
            "role assistant has parts of type output_text",
        ),
    ],
)
def test_what_no_conversation_can_take_is_refused(messages: list[Mapping[str, Any]], why: str) -> None:
    session = Session()
    before = session.state.history
    assert injects(session, *messages) == ["error"]
    assert why in refusal(session)
    assert session.state.history == before


@pytest.mark.parametrize("field", ["id", "injected", "status", "call_id"])
def test_members_that_no_message_has_are_dropped(field: str) -> None:
    session = Session()
    injects(session, {**message("words"), field: "x"})
    (item,) = (item for item in session.state.history if INJECTED in item)
    assert dict(item) == {**message("words"), INJECTED: True}


def test_largest_injection_fits_a_commit() -> None:
    session = Session()
    # Each byte is six in JSON.
    part = {"type": "input_text", "text": "\x01" * (MOST_INJECTED_BYTES // MOST_INJECTED // 16)}
    said = {"type": "message", "role": "user", "content": [part] * 16}
    assert injects(session, *[said] * MOST_INJECTED) == ["items_injected"]
    assert sum(len(encoded.line) for encoded in session.seen[-1].decision.entries) < 1 << 20


def test_messages_that_would_join_a_turn_after_too_many_others_are_refused() -> None:
    session = Session()
    session.say("go")
    session.begin()
    for left in range(MOST_STEERED, 0, -MOST_INJECTED):
        assert injects(session, *[message("more")] * min(left, MOST_INJECTED)) == ["items_injected"]
    assert injects(session, message("one more")) == ["error"]
    assert f"{MOST_STEERED} inputs wait" in refusal(session)


def test_messages_of_which_some_alone_would_find_room_in_a_turn_are_all_refused() -> None:
    session = Session()
    session.say("go")
    session.begin()
    for left in range(MOST_STEERED - 1, 0, -MOST_INJECTED):
        injects(session, *[message("more")] * min(left, MOST_INJECTED))
    assert injects(session, message("two"), message("more")) == ["error"]
    assert injects(session, message("the last")) == ["items_injected"]
    assert len(session.task.steered) == MOST_STEERED


def test_agent_that_was_cancelled_takes_no_messages_of_a_client() -> None:
    tree, (child,) = a_family()
    child.asks_for("c1")
    child.runs("c1")
    tree.root.cancels(1)
    tree.settle()
    assert injects(child, message("hello")) == ["error"]
    assert "takes no more input" in refusal(child)
