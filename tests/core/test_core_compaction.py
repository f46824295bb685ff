"""Compaction: when it is owed, what the conversation becomes, and what it may not do."""

from __future__ import annotations

import pytest

from orchestrator.core.context import initial_context
from orchestrator.core.entries import item
from orchestrator.core.settings import Rules, TurnSettings
from tests.core.driver import SETTINGS, Session, assistant, op, text

FULL = {"input_tokens": 250_000, "output_tokens": 10, "total_tokens": 250_010}


def talked(**fields: object) -> Session:
    """A session with its initial context and one answered turn."""
    session = Session(**fields)  # type: ignore[arg-type]
    for opening in initial_context(TurnSettings.of(SETTINGS), "be brief", "bash"):
        session.record(item(opening))
    session.say("one", "u1")
    session.answers("first answer", "r1")
    return session


def summarises(session: Session, words: str = "what was done") -> None:
    session.begin()
    session.item(assistant(words))
    session.ends()


def nearly_full() -> Session:
    """A session whose last response filled the window."""
    session = talked()
    session.say("two", "u2")
    session.begin()
    session.calls("c1")
    session.ends(usage=FULL)
    session.runs("c1")
    session.finishes("c1")
    return session


def test_manual_compaction_is_a_task_of_its_own() -> None:
    session = talked()
    assert session.compact("k").types == ["task_started"]
    session.begin()
    assert session.task.request is not None
    assert session.task.request.purpose == "compact"
    assert session.item(assistant("what was done")).types == []
    seen = session.ends("rk")
    assert seen.types == ["token_count", "warning", "agent_message", "task_complete"]
    assert {id for id, _ in seen.events} == {"k"}
    assert session.status == "idle"


def test_history_becomes_context_user_messages_and_summary() -> None:
    session = talked()
    session.compact()
    summarises(session)
    context, environment, bridge = session.texts()
    assert context.startswith("<user_instructions>")
    assert environment.startswith("<environment_context>")
    assert "one" in bridge
    assert bridge.endswith("what was done")
    assert "first answer" not in bridge
    assert session.state.kept_user_texts == ("one",)


def test_rollout_holds_the_replacement_so_that_a_replay_needs_no_rule() -> None:
    session = talked()
    session.compact()
    summarises(session)
    compacted = [entry for entry in session.seen[-1].entries if entry.type == "compacted"]
    assert list(compacted[0].payload["replacement_history"]) == session.shown()


def test_user_messages_survive_several_compactions() -> None:
    session = talked()
    for number, words in enumerate(("two", "three")):
        session.compact()
        summarises(session, f"summary {number}")
        session.say(words)
        session.answers("ok")
    session.compact()
    summarises(session, "the last summary")
    bridge = session.texts()[-1]
    assert session.state.kept_user_texts == ("one", "two", "three")
    assert "summary 0" not in bridge
    assert bridge.index("one") < bridge.index("two") < bridge.index("three")


def test_newest_user_messages_are_kept_when_they_do_not_all_fit() -> None:
    session = talked()
    for letter in "abc":
        session.say(letter * 40_000)
        session.answers("ok")
    session.compact()
    summarises(session)
    assert [text[0] for text in session.state.kept_user_texts] == ["b", "c"]


def test_interrupt_marker_is_not_taken_for_something_the_user_said() -> None:
    session = talked()
    session.say("two")
    session.interrupt()
    session.compact()
    summarises(session)
    assert session.state.kept_user_texts == ("one", "two")


def test_full_window_compacts_before_the_next_request_and_the_task_goes_on() -> None:
    session = nearly_full()
    session.begin()
    assert session.task.request is not None
    assert session.task.request.purpose == "compact"
    session.item(assistant("what was done"))
    seen = session.ends(usage=FULL)
    assert seen.types == ["token_count", "warning"]
    assert session.answers("done").types[-1] == "task_complete"
    assert session.texts()[-1] == "done"


def test_session_is_never_compacted_twice_in_a_row() -> None:
    session = nearly_full()
    purposes = []
    for _ in range(2):
        session.begin()
        assert session.task.request is not None
        purposes.append(session.task.request.purpose)
        session.item(assistant("what was done"))
        session.ends(usage=FULL)
    assert purposes == ["compact", "turn"]


def test_retry_after_a_compaction_does_not_compact_again() -> None:
    session = nearly_full()
    summarises(session)
    session.begin()
    session.breaks()
    session.begin()
    assert session.task.request is not None
    assert session.task.request.purpose == "turn"


def test_next_task_after_a_full_turn_compacts_first() -> None:
    session = talked()
    session.say("two")
    session.begin()
    session.item(assistant("ok"))
    session.ends(usage=FULL)
    session.say("three")
    session.begin()
    assert session.task.request is not None
    assert session.task.request.purpose == "compact"


def test_limit_may_be_set_by_hand_and_an_unknown_model_has_none() -> None:
    session = talked(rules=Rules(auto_compact_limit=100))
    session.say("two")
    session.begin()
    assert session.task.request is not None
    assert session.task.request.purpose == "compact"
    session = talked(settings={"model": "somebody-elses"})
    session.say("two")
    session.begin()
    session.item(assistant("ok"))
    session.ends(usage=FULL)
    session.say("three")
    session.begin()
    assert session.task.request is not None
    assert session.task.request.purpose == "turn"


@pytest.mark.parametrize("manual", [True, False])
def test_compaction_without_a_text_fails_and_keeps_the_history(manual: bool) -> None:
    session = talked() if manual else nearly_full()
    if manual:
        session.compact()
    before = session.texts()
    session.begin()
    assert session.ends().types[-2:] == ["error", "task_complete"]
    assert session.texts() == before
    assert session.state.outcome == "failed"


def test_compaction_that_fails_keeps_the_history() -> None:
    session = talked()
    session.compact()
    session.begin()
    session.item(assistant("half a summ"))
    session.breaks("fatal", "bad request")
    assert session.texts()[-2:] == ["one", "first answer"]


def test_retried_compaction_forgets_the_half_summary() -> None:
    session = talked()
    session.compact()
    session.begin()
    session.item(assistant("half a summ"))
    session.breaks()
    summarises(session, "whole")
    assert session.texts()[-1].endswith("whole")
    assert "half a summ" not in session.texts()[-1]


def test_input_during_a_manual_compaction_replaces_it_and_loses_nothing() -> None:
    session = talked(facts={"on_user_input": "steer"})
    session.compact()
    session.begin()
    session.item(assistant("half a summ"))
    session.say("two", "u2")
    assert session.stopped().types == ["turn_aborted", "task_started", "user_message"]
    assert session.texts()[-3:] == ["one", "first answer", "two"]


def test_input_steered_into_an_automatic_compaction_is_in_the_next_request() -> None:
    session = talked(facts={"on_user_input": "steer"}, rules=Rules(auto_compact_limit=100))
    session.say("two")
    session.begin()
    session.say("three")
    session.item(assistant("what was done"))
    session.ends()
    session.begin()
    assert session.texts()[-1] == "three"


def test_bookmarks_of_the_old_history_are_gone() -> None:
    session = talked()
    session.compact()
    summarises(session)
    assert "error" in session.say("again", last_response_id="r1").types


def test_long_summary_and_long_messages_still_fold_and_compact_again() -> None:
    session = talked()
    for letter in "abc":
        session.say(letter * 10_000)
        session.answers("ok")
    for _ in range(2):
        session.compact()
        summarises(session, "s" * 100_000)
        assert session.status == "idle"
        session.say("more")
        session.answers("ok")
    assert [text[0] for text in session.state.kept_user_texts] == ["o", "a", "b", "c", "m"]


def test_message_too_long_to_be_stored_inline_is_named_in_the_summary() -> None:
    session = talked()
    session.say("z" * 70_000)
    session.answers("ok")
    session.compact()
    summarises(session)
    assert session.state.kept_user_texts == ("one", "[a long text]")


def test_very_long_message_of_several_parts_survives_two_compactions() -> None:
    session = talked()
    session.submit(op("user_input", items=[text("a" * 40_000), text("b" * 30_000)]), "u2")
    session.answers("read")
    for id in ("k1", "k2"):
        session.compact(id)
        summarises(session)
    assert "".join(session.state.kept_user_texts) == "one" + "a" * 40_000 + "b" * 30_000
    assert session.replayed() == session.state
