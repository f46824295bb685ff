"""Tasks: how input takes the session, what a turn shows, what waits, what replaces what."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.blobs import resolve
from orchestrator.core.outstanding import AssessCall, FollowRequest, OweRequest, RunCall, StopAll
from tests.core.driver import Session, assistant, op, text

STEER = {"on_user_input": "steer"}


def test_user_input_starts_a_task_under_its_submission_id() -> None:
    session = Session()
    seen = session.say("hello", "u1")
    assert seen.events == [
        ("u1", {"type": "task_started", "model_context_window": 272_000, "collaboration_mode_kind": "code"}),
        ("u1", {"type": "user_message", "message": "hello", "kind": "plain"}),
    ]
    assert session.owes() == (OweRequest(),)
    assert session.texts() == ["hello"]


def test_turn_without_calls_ends_the_task_with_its_message_and_bookmark() -> None:
    session = Session()
    session.say("hello", "u1")
    seen = session.answers("good day", "r1")
    assert seen.types == ["token_count", "task_complete"]
    assert seen.one("task_complete") == {
        "type": "task_complete",
        "last_agent_message": "good day",
        "response_id": "r1",
    }
    assert seen.one("token_count")["response_id"] == "r1"
    assert (session.status, session.owes(), session.state.outcome) == ("idle", (), "completed")


def test_message_of_the_model_is_an_event_as_soon_as_its_item_is_done() -> None:
    session = Session()
    session.say("hello")
    session.begin()
    assert session.item(assistant("thinking aloud")).one("agent_message")["message"] == "thinking aloud"


def test_turn_with_calls_owes_another_request_when_their_outputs_are_in() -> None:
    session = Session()
    session.say("go", "u1")
    session.begin()
    session.calls("c1")
    assert session.owes() == (AssessCall("c1"), FollowRequest(1, 1))
    session.runs("c1")
    assert session.owes() == (RunCall("c1", 1), FollowRequest(1, 1))
    assert session.ends().types == []
    assert session.finishes("c1", "listing").types == ["token_count"]
    assert session.owes() == (OweRequest(),)
    session.answers("done")
    assert session.texts() == ["go", "call c1", "output c1: listing", "done"]


def test_every_request_records_the_settings_it_goes_out_with() -> None:
    session = Session()
    session.say("go")
    session.begin()
    contexts = [entry for entry in session.seen[-1].entries if entry.type == "turn_context"]
    assert [entry.payload["model"] for entry in contexts] == ["gpt-5"]
    assert "effort" not in contexts[0].payload


def test_input_while_a_task_runs_replaces_it_once_what_runs_has_stopped() -> None:
    session = Session()
    session.say("first", "u1")
    session.begin()
    assert session.say("second", "u2").types == []
    assert session.owes() == (StopAll("replaced"),)
    seen = session.stopped()
    assert [(id, message["type"]) for id, message in seen.events] == [
        ("u1", "turn_aborted"),
        ("u2", "task_started"),
        ("u2", "user_message"),
    ]
    assert seen.one("turn_aborted")["reason"] == "replaced"
    assert session.texts() == ["first", "second"]


def test_input_replaces_a_task_at_once_when_nothing_of_it_runs() -> None:
    session = Session()
    session.say("first", "u1")
    assert session.say("second", "u2").types == ["turn_aborted", "task_started", "user_message"]
    assert session.task.id == "u2"


def test_several_queued_inputs_become_tasks_in_order_one_a_decision() -> None:
    session = Session()
    session.say("first", "u1")
    session.begin()
    for name in ("u2", "u3", "u4"):
        session.say(name, name)
    assert [waiting.id for waiting in session.state.queue] == ["u2", "u3", "u4"]
    started = [session.stopped().id_of("task_started") for _ in range(3)]
    assert started == ["u2", "u3", "u4"]
    assert session.owes() == (OweRequest(),)
    assert session.texts() == ["first", "u2", "u3", "u4"]


def test_thousand_queued_inputs_never_make_a_decision_larger_than_a_commit() -> None:
    session = Session()
    session.say("first", "u1")
    session.begin()
    for number in range(1_000):
        session.say(f"input {number}")
    while session.task.stopping:
        assert len(session.stopped().decision.entries) <= 16
    assert len(session.shown()) == 1_001


def test_two_clients_may_queue_input_under_the_same_id() -> None:
    session = Session()
    session.say("first", "u1")
    session.begin()
    session.submit(op("user_input", items=[text("from a")]), "same", client="a")
    session.submit(op("user_input", items=[text("from b")]), "same", client="b")
    session.stopped()
    session.stopped()
    assert session.texts() == ["first", "from a", "from b"]


def test_steered_input_joins_the_running_task_at_its_next_request() -> None:
    session = Session(facts=STEER)
    session.say("first", "u1")
    session.asks_for("c1")
    seen = session.say("also this", "u2")
    assert seen.events == [("u1", {"type": "user_message", "message": "also this", "kind": "plain"})]
    session.runs("c1")
    session.finishes("c1")
    session.answers("done")
    assert session.texts() == ["first", "call c1", "output c1: ok", "also this", "done"]


def test_input_steered_while_the_last_response_streams_is_answered_before_the_task_ends() -> None:
    session = Session(facts=STEER)
    session.say("first", "u1")
    session.begin()
    session.item(assistant("finished?"))
    session.say("one more thing", "u2")
    assert "task_complete" not in session.ends().types
    assert session.owes() == (OweRequest(),)
    assert session.answers("now it is").types[-1] == "task_complete"
    assert session.texts() == ["first", "finished?", "one more thing", "now it is"]


def test_steered_input_survives_an_interrupt() -> None:
    session = Session(facts=STEER)
    session.say("first")
    session.begin()
    session.say("wait")
    session.interrupt()
    session.stopped()
    assert session.texts()[:2] == ["first", "wait"]


def test_steered_input_survives_the_failure_of_its_task() -> None:
    session = Session(facts=STEER)
    session.say("first")
    session.begin()
    session.say("wait")
    session.breaks("fatal", "bad request")
    assert session.status == "idle"
    assert session.texts() == ["first", "wait"]


def test_steering_rule_still_queues_input_that_rewinds_or_meets_a_stopping_task() -> None:
    session = Session(facts=STEER)
    session.say("first", "u1")
    session.answers("yes", "r1")
    session.say("second", "u2")
    session.begin()
    session.say("from the first answer", "u3", last_response_id="r1")
    session.say("later", "u4")
    assert session.task.stopping == "replaced"
    assert [waiting.id for waiting in session.state.queue] == ["u3", "u4"]


def test_images_and_several_texts_are_one_message() -> None:
    session = Session()
    image = {"type": "image", "image_url": "data:image/png;base64,AA"}
    seen = session.submit(op("user_input", items=[text("look "), image, text("here")]))
    assert seen.one("user_message")["message"] == "look \nhere"
    assert seen.one("user_message")["images"] == [image["image_url"]]
    assert len(session.shown()) == 1


def test_huge_queued_input_starts_like_any_other() -> None:
    session = Session()
    session.say("first")
    session.begin()
    session.say("x" * 200_000, "u2")
    session.submit(op("user_input", items=[text("y" * 200_000), text("short")]), "u3")
    assert session.stopped().id_of("task_started") == "u2"
    assert session.stopped().id_of("task_started") == "u3"


def test_input_that_is_no_text_is_named_to_the_model() -> None:
    session = Session()
    mention = {"type": "mention", "name": "notes", "path": "/repo/notes.md"}
    seen = session.submit(op("user_input", items=[text("see "), mention]))
    assert seen.one("user_message")["message"] == "see \n@notes"
    assert session.texts() == ["see @notes"]
    assert "no connector ID /repo/notes.md" in seen.one("warning")["message"]


def long_answer(session: Session, *texts: str) -> Any:
    """The last message that clients are told of a response of these texts."""
    session.begin()
    parts = [{"type": "output_text", "text": text} for text in texts]
    session.item({"type": "message", "role": "assistant", "content": parts})
    told = session.ends().one("task_complete")["last_agent_message"]
    assert session.replayed() == session.state
    return resolve(told, session.text_of)


@pytest.mark.parametrize("kind", ["user_input", "review"])
@pytest.mark.parametrize("size", [10, 65_536, 65_537, 200_000])
def test_last_message_of_a_task_is_told_whole_however_long_it_is(kind: str, size: int) -> None:
    session = Session()
    asked: dict[str, dict[str, Any]]
    asked = {"user_input": {"items": [text("go")]}, "review": {"review_request": {"prompt": "look"}}}
    session.submit(op(kind, **asked[kind]), "t1")
    assert long_answer(session, "x" * size) == "x" * size


def test_last_message_is_the_last_one_where_an_earlier_one_was_long() -> None:
    session = Session()
    session.say("go")
    session.begin()
    session.item(assistant("x" * 70_000))
    session.item(assistant("y" * 70_000))
    told = session.ends().one("task_complete")["last_agent_message"]
    assert resolve(told, session.text_of) == "y" * 70_000
    session.say("and?")
    assert long_answer(session, "done") == "done"


def test_last_message_of_several_parts_of_which_one_is_long_is_named() -> None:
    session = Session()
    session.say("go")
    assert long_answer(session, "see: ", "x" * 70_000) == "see: [a long text]"
