"""`remove_queued` and `reorder_queue`: changes of the inputs that wait for the running task's end."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.decide.ops import REMOVED
from orchestrator.core.snapshot import decode, encode
from tests.core.driver import Session, op, text
from tests.core.tree_driver import a_family


def waits(session: Session) -> list[str]:
    return [waiting.id for waiting in session.state.queue]


def queued(*ids: str) -> Session:
    """A session at work on its first input, for which others wait."""
    session = Session()
    session.say("go")
    for id in ids:
        session.submit(op("user_input", items=[text(f"words {id}")], delivery="queue"), id)
    assert waits(session) == list(ids)
    return session


def test_person_takes_input_back_that_waits_and_its_sender_is_told() -> None:
    session = queued("a", "b", "c")
    seen = session.submit(op("remove_queued", submission_id="b"), "r1")
    assert seen.types == ["warning", "queue_changed"]
    assert (seen.id_of("warning"), seen.one("warning")["message"]) == ("b", REMOVED)
    assert (seen.id_of("queue_changed"), seen.one("queue_changed")["waiting"]) == ("r1", 2)
    assert waits(session) == ["a", "c"]
    assert session.replayed() == session.state
    for answer in ("one", "two", "three"):
        session.answers(answer)
    assert session.texts() == ["go", "one", "words a", "two", "words c", "three"]


def test_person_puts_what_waits_in_another_order() -> None:
    session = queued("a", "b", "c")
    assert session.submit(op("reorder_queue", submission_ids=["c", "a", "b"])).types == ["queue_changed"]
    assert waits(session) == ["c", "a", "b"]
    assert session.replayed() == session.state
    session.answers("one")
    assert session.task.id == "c"


def queued_twice() -> Session:
    """A session at work, for which inputs of two clients wait under one id, and another between them."""
    session = Session()
    session.say("go")
    for id, client in (("a", "one"), ("b", "one"), ("a", "two")):
        said = op("user_input", items=[text(f"{id} of {client}")], delivery="queue")
        session.submit(said, id, client=client)
    return session


def test_of_two_clients_inputs_under_one_id_the_later_is_taken_out_and_the_first_keeps_its_place() -> None:
    session = queued_twice()
    session.submit(op("remove_queued", submission_id="a"), "r1")
    assert [waiting.client for waiting in session.state.queue] == ["one", "one"]
    assert session.replayed() == session.state
    for answer in ("1", "2", "3"):
        session.answers(answer)
    assert session.texts() == ["go", "1", "a of one", "2", "b of one", "3"]


def test_inputs_of_two_clients_under_one_id_both_stay_in_another_order() -> None:
    session = queued_twice()
    session.submit(op("reorder_queue", submission_ids=["a", "a", "b"]), "r1")
    assert session.replayed() == session.state
    for answer in ("1", "2", "3", "4"):
        session.answers(answer)
    assert session.texts() == ["go", "1", "a of one", "2", "a of two", "3", "b of one", "4"]


def test_person_says_something_else_in_the_place_of_what_waits() -> None:
    session = queued("a", "b")
    changed = op("update_queued", submission_id="a", items=[text("other"), text("words")])
    seen = session.submit(changed, "r1")
    assert (seen.types, seen.one("queue_changed")["waiting"]) == (["queue_changed"], 2)
    assert waits(session) == ["a", "b"]
    assert session.replayed() == session.state == decode(encode(session.state))
    for answer in ("one", "two", "three"):
        session.answers(answer)
    assert session.texts() == ["go", "one", "otherwords", "two", "words b", "three"]


def test_words_in_the_place_of_others_have_what_was_read_of_their_files() -> None:
    session = queued("a")
    read = ({"type": "image", "image_url": "data:image/png;base64,AA", "path": "/repo/a.png"},)
    asked = op("update_queued", submission_id="a", items=[{"type": "local_image", "path": "a.png"}])
    session.submit(asked, "r1", items=read)
    assert session.state.queue[0].turn.items == read


@pytest.mark.parametrize(
    ("id", "items", "told"),
    [
        ("x", [text("w")], "no input x waits"),
        ("u1", [text("w")], "no input u1 waits"),
        ("a", [], "items: at least one is needed"),
        ("k", [text("w")], "k is a task of its own, and no words"),
    ],
)
def test_change_that_fits_no_words_that_wait_is_an_error(id: str, items: list[Any], told: str) -> None:
    session = queued("a")
    session.submit(op("compact"), "k")
    before = session.state.queue
    seen = session.submit(op("update_queued", submission_id=id, items=items))
    assert told in seen.one("error")["message"]
    assert session.state.queue == before


@pytest.mark.parametrize("ids", [["a"], ["a", "b", "b"], ["a", "b", "x"], ["a", "b", "c"], []])
def test_order_that_does_not_name_all_that_wait_changes_nothing(ids: list[str]) -> None:
    session = queued("a", "b")
    seen = session.submit(op("reorder_queue", submission_ids=ids))
    assert "look at the queue again" in seen.one("error")["message"]
    assert waits(session) == ["a", "b"]


@pytest.mark.parametrize("id", ["x", "u1", ""])
def test_input_that_does_not_wait_is_not_taken_back(id: str) -> None:
    session = queued("a")
    seen = session.submit(op("remove_queued", submission_id=id))
    assert f"no input {id} waits" in seen.one("error")["message"]
    assert waits(session) == ["a"]


def test_words_in_the_place_of_others_leave_the_rest_of_the_input_as_it_was() -> None:
    session = Session()
    session.say("one")
    session.answers("first", "r1")
    session.say("two")
    session.begin()
    own = {"cwd": "/other", "approval_policy": "never", "sandbox_policy": {"mode": "read-only"}, "model": "m"}
    also = {"final_output_json_schema": {"type": "object"}, "client_user_message_id": "mine"}
    turn = op(
        "user_turn", items=[text("x")], summary="auto", delivery="queue", last_response_id="r1", **own, **also
    )
    session.submit(turn, "a")
    session.submit(op("update_queued", submission_id="a", items=[text("other")]))
    seen = session.answers_now("second")
    assert (session.task.settings.cwd, session.task.settings.model) == ("/other", "m")
    assert session.task.output_schema == {"type": "object"}
    assert seen.one("user_message")["client_id"] == "mine"
    said = [text for text in session.texts() if not text.startswith("<")]
    assert said == ["one", "first", "other"]


@pytest.mark.parametrize("closed", [False, True])
def test_input_whose_earlier_turn_is_being_looked_for_stays_where_it_is(closed: bool) -> None:
    session = Session()
    session.say("question")
    session.answers("answer", "r1")
    session.compact()
    session.begin()
    session.item(
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "sum"}]}
    )
    session.ends()
    if closed:
        session.shutdown()
    session.submit(op("user_input", items=[text("back")], last_response_id="r1"), "b1")
    assert (waits(session), session.state.task) == (["b1"], None)
    other = op("update_queued", submission_id="b1", items=[text("other")])
    for change in (
        op("remove_queued", submission_id="b1"),
        op("reorder_queue", submission_ids=["b1"]),
        other,
    ):
        assert "about to begin" in session.submit(change).one("error")["message"]
    assert waits(session) == ["b1"]


def test_two_clients_inputs_of_one_id_are_taken_back_one_by_one() -> None:
    session = queued("a", "a", "b")
    session.submit(op("remove_queued", submission_id="a"))
    assert waits(session) == ["a", "b"]


def test_order_of_nothing_is_refused_where_nothing_waits() -> None:
    session = queued()
    seen = session.submit(op("reorder_queue", submission_ids=[]), "r1")
    assert seen.one("error")["message"] == "not reordered: no input waits"


@pytest.mark.parametrize("closed", [True, False])
def test_input_that_waits_in_a_closed_session_is_changed_and_taken_back(closed: bool) -> None:
    session = queued("a", "b", "c")
    session.begin()
    session.shutdown()
    if closed:
        session.stopped()
        assert session.status == "closed"
    else:
        assert session.state.closing
    other = op("update_queued", submission_id="c", items=[text("other")])
    changes = (
        other,
        op("reorder_queue", submission_ids=["c", "a", "b"]),
        op("remove_queued", submission_id="a"),
    )
    for change in changes:
        assert session.submit(change).types[-1:] == ["queue_changed"]
    if not closed:
        session.stopped()
    assert (waits(session), session.state.task, session.status) == (["c", "b"], None, "closed")
    assert session.replayed() == session.state
    session.submit(op("user_input", items=[text("again")], delivery="queue"), "d")
    session.answers("one")
    assert [said for said in session.texts() if not said.startswith("<")][-3:] == ["other", "one", "words b"]
    assert waits(session) == ["d"]


def test_input_taken_out_of_a_closed_session_leaves_the_others_waiting_until_somebody_speaks() -> None:
    session = queued("a", "b")
    session.begin()
    session.shutdown()
    session.stopped()
    for id in ("a", "b"):
        assert session.submit(op("remove_queued", submission_id=id)).types == ["warning", "queue_changed"]
    assert (waits(session), session.status, session.owes()) == ([], "closed", ())
    session.say("again", "d")
    assert session.task.id == "d"


def test_input_that_comes_while_a_root_without_a_task_is_being_closed_is_changed_and_taken_back() -> None:
    tree, (child,) = a_family()
    child.asks_for("c1")
    child.runs("c1")
    root = tree.root
    root.answers("done")
    root.shutdown()
    tree.settle()
    assert (root.state.closing, root.state.task) == ("bye", None), "its agent has not ended"
    for id in ("a", "b"):
        root.submit(op("user_input", items=[text(f"words {id}")], delivery="queue"), id)
    for change in (op("reorder_queue", submission_ids=["b", "a"]), op("remove_queued", submission_id="a")):
        assert root.submit(change).types[-1:] == ["queue_changed"]
    child.stopped(c1=1.0)
    tree.settle()
    assert (waits(root), root.status) == (["b"], "closed")
