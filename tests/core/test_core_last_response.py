"""Items that a provider that keeps conversations has seen of this one, and items that are new to it."""

from __future__ import annotations

from orchestrator.core.commands import ResponseCompleted
from orchestrator.core.history import since
from orchestrator.core.settings import SessionFacts, WorkspaceMark
from orchestrator.core.snapshot import decode, digest, encode
from orchestrator.core.state import Response
from tests.core.driver import FACTS, Session, _short, assistant, op


def new_to_the_provider(session: Session) -> list[str] | None:
    """New items of the next request, beside the last response's id; None if it has to send everything."""
    known = session.state.last_response
    if known is None:
        return None
    return [_short(item) for item in since(session.state.history, known.sent, known.length)]


def talked() -> Session:
    session = Session()
    session.say("hello")
    session.answers("hi", "r1")
    return session


def test_next_turn_has_only_its_own_message_to_send() -> None:
    session = talked()
    session.say("and now?")
    assert session.state.last_response == Response("r1", "openai", "gpt-5", 1, 2)
    assert new_to_the_provider(session) == ["and now?"]


def test_outputs_are_new_also_those_that_came_while_the_response_went_on() -> None:
    session = Session()
    session.say("go")
    session.begin()
    session.calls("c1")
    session.runs("c1")
    session.finishes("c1", "one")
    session.calls("c2")
    session.item(assistant("both"))
    session.ends("r1")
    session.runs("c2")
    session.finishes("c2", "two")
    assert session.texts() == ["go", "call c1", "output c1: one", "call c2", "output c2: two", "both"]
    assert new_to_the_provider(session) == ["output c1: one", "output c2: two"]


def test_settings_told_while_a_response_streams_are_new() -> None:
    session = Session()
    session.say("go")
    session.begin()
    session.submit(op("override_turn_context", cwd="/elsewhere"))
    session.answers_now("done", "r1")
    assert new_to_the_provider(session) == [
        "<environment_context>\n  <cwd>/elsewhere</cwd>\n</environment_context>"
    ]


def test_items_of_a_broken_response_are_new_with_the_outputs_of_its_calls() -> None:
    session = talked()
    session.say("go")
    session.begin()
    session.calls("c1")
    session.runs("c1")
    session.breaks()
    session.finishes("c1")
    assert new_to_the_provider(session) == ["go", "call c1", "output c1: ok"]


def test_interrupted_response_leaves_the_one_before_to_go_on_from() -> None:
    session = talked()
    session.say("go")
    session.begin()
    session.calls("c1")
    session.interrupt()
    session.stopped()
    texts = new_to_the_provider(session)
    assert texts is not None
    assert texts[:3] == ["go", "call c1", "output c1: aborted by user"]
    assert texts[3].startswith("<turn_aborted>")


def test_call_without_an_output_is_answered_as_the_full_conversation_answers_it() -> None:
    call = {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c1"}
    healed = {"type": "function_call_output", "call_id": "c1", "output": "aborted"}
    assert since([call], sent=0, length=1) == [healed]
    assert since([call], sent=1, length=1) == [], "the request that sent the call sent its output too"


def test_compacted_history_is_sent_whole() -> None:
    session = talked()
    session.compact()
    session.begin()
    assert session.state.last_response is not None, "until the summary replaces the history"
    session.answers_now("a summary", "r2")
    assert new_to_the_provider(session) is None
    session.say("on")
    session.answers("yes", "r3")
    assert session.state.last_response is not None
    assert session.state.last_response.id == "r3"


def test_rewound_history_is_sent_whole() -> None:
    session = talked()
    session.say("two")
    session.answers("2", "r2")
    session.say("another two", last_response_id="r1")
    assert new_to_the_provider(session) is None


def test_response_without_an_id_cannot_be_named() -> None:
    session = talked()
    session.say("two")
    session.begin()
    session.happens(ResponseCompleted(session.request_n, ""))
    assert new_to_the_provider(session) is None


def test_last_response_survives_a_snapshot() -> None:
    session = talked()
    assert digest(decode(encode(session.state))) == session.digest
    assert decode(encode(session.state)).last_response == session.state.last_response


def test_mark_of_the_workspace_survives_log_and_snapshot() -> None:
    mark = WorkspaceMark("/repo", "/repo/.git/mark", "0123")
    session = Session(facts=SessionFacts.of({**FACTS, "workspace": mark_wire(mark)}).wire())
    assert session.state.facts.workspace == mark
    assert session.replayed().facts.workspace == mark
    assert decode(encode(session.state)).facts.workspace == mark


def mark_wire(mark: WorkspaceMark) -> dict[str, str]:
    return {"path": mark.path, "file": mark.file, "id": mark.id}
