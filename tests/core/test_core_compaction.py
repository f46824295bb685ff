"""Compaction: when it is owed, what the conversation becomes, and what it may not do."""

from __future__ import annotations

import pytest

from orchestrator.core.context import TURN_ABORTED_MARKER, initial_context
from orchestrator.core.entries import COMPACTED, Entry, item
from orchestrator.core.outstanding import StopAll
from orchestrator.core.settings import Rules, TurnSettings
from orchestrator.runtime.model_request import build_prompt
from tests.core.driver import SETTINGS, Session, assistant, op, text
from tests.core.tree_driver import TreeDriver

TOLD = "context_compaction"
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
    assert seen.types == ["token_count", "context_compaction", "warning", "agent_message", "task_complete"]
    assert {id for id, _ in seen.events} == {"k"}
    assert session.status == "idle"


def test_compaction_is_told_from_its_begin_to_its_end_in_every_session() -> None:
    session = nearly_full()
    session.begin()
    assert session.seen[-1].types == ["token_count", "context_compaction"]
    session.breaks()
    session.begin()
    session.item(assistant("what was done"))
    session.ends()
    told = [(id, msg["turn_id"], msg["phase"]) for id, msg in session.events if msg["type"] == TOLD]
    assert told == [("u2", "u2", "begun"), ("u2", "u2", "begun"), ("u2", "u2", "done")]


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
    assert seen.types == ["token_count", "context_compaction", "warning"]
    assert session.answers("done").types[-1] == "task_complete"
    assert session.texts()[-1] == "done"


def test_request_of_a_compaction_offers_no_tools_and_wants_no_form() -> None:
    session, schema = talked(), {"type": "object"}
    session.say("in JSON", "u2", final_output_json_schema=schema)
    asked = {}
    for limit in (1, None):
        session.rules = Rules(auto_compact_limit=limit)
        session.begin()
        request = session.task.request
        assert request is not None
        asked[request.purpose] = build_prompt(session.state, request, [{"name": "shell"}], session.text_of)
        session.item(assistant("what was done"))
        session.ends(usage=FULL)
    assert (asked["compact"].tools, asked["compact"].output_schema) == ((), None)
    assert (asked["turn"].tools, asked["turn"].output_schema) == ([{"name": "shell"}], schema)


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


@pytest.mark.parametrize("manual", [True, False])
def test_interrupted_compaction_keeps_the_history_and_the_next_one_sums_it_up(manual: bool) -> None:
    session = talked() if manual else nearly_full()
    if manual:
        session.compact("k1")
    before = session.texts()
    session.begin()
    session.item(assistant("half a summ"))
    assert session.interrupt().types == []
    assert session.owes() == (StopAll("interrupted"),)
    assert session.stopped().types == ["turn_aborted"]
    assert session.texts() == [*before, TURN_ABORTED_MARKER]
    assert [msg["phase"] for _, msg in session.events if msg["type"] == TOLD] == ["begun"]
    assert not [entry for seen in session.seen for entry in seen.entries if entry.type == COMPACTED]
    assert session.replayed() == session.state
    session.compact("k2")
    summarises(session, "whole")
    assert session.texts()[-1].endswith("whole")
    assert "half a summ" not in "".join(session.texts())


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


def test_turn_that_an_earlier_version_summed_up_is_not_gone_back_to() -> None:
    session = talked()
    session.record(Entry(COMPACTED, {"message": "what was done"}))
    error = session.say("again", last_response_id="r1").one("error")
    assert "lies before a compaction" in error["message"]


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
        if id == "k1":
            session.say("more")
            session.answers("ok")
    assert "".join(session.state.kept_user_texts) == "one" + "a" * 40_000 + "b" * 30_000 + "more"
    assert session.replayed() == session.state


# ── the context of the new history ────────────────────────────────────────────────────────────


def test_new_history_tells_of_the_settings_in_force_once_however_often_they_changed() -> None:
    session = talked()
    for number in range(200):
        session.submit(op("override_turn_context", approval_policy=("never", "untrusted")[number % 2]))
    session.submit(op("override_turn_context", cwd="/elsewhere", approval_policy="on-failure"))
    session.compact()
    summarises(session)
    instructions, environment, bridge = session.texts()
    assert instructions.startswith("<user_instructions>")
    assert "<cwd>/elsewhere</cwd>" in environment
    assert "<approval_policy>on-failure</approval_policy>" in environment
    assert "<sandbox_mode>workspace-write</sandbox_mode>" in environment
    assert "<shell>bash</shell>" in environment
    assert bridge.startswith("This conversation was compacted.")


def test_compaction_keeps_instructions_too_long_for_their_line() -> None:
    session = Session()
    for opening in initial_context(TurnSettings.of(SETTINGS), "heed " * 20_000, "bash"):
        session.record(item(opening))
    session.say("one")
    session.answers("ok")
    session.compact()
    summarises(session)
    assert session.texts()[0].startswith("<user_instructions>")
    assert len(session.shown()) == 3
    assert session.replayed() == session.state


def test_compacted_child_still_knows_its_part() -> None:
    tree = TreeDriver()
    tree.root.say("go")
    child = tree.root.spawns("look")
    tree.settle()
    child.answers("looked")
    said = [words for words in child.texts() if words.startswith("You are agent 1")]
    assert said
    child.compact()
    summarises(child)
    assert [words for words in child.texts() if words.startswith("You are agent 1")] == said


def test_compacted_fork_has_its_folder_and_what_it_inherited_of_people() -> None:
    tree = TreeDriver()
    for opening in initial_context(TurnSettings.of(SETTINGS), "be brief", "bash"):
        tree.root.record(item(opening))
    tree.root.say("the words of the person")
    fork = tree.root.forks("go on alone")
    tree.settle()
    fork.answers("done")
    fork.compact()
    summarises(fork)
    shown = fork.texts()
    assert "be brief" in shown[0]
    assert "<cwd>/repo</cwd>" in shown[1]
    assert shown[2].startswith("You are agent 1")
    assert "the words of the person" in shown[3]
    assert "go on alone" in shown[3]
    assert fork.replayed() == fork.state


def test_fork_of_a_compacted_session_keeps_what_people_said_before() -> None:
    tree = TreeDriver()
    tree.root.say("the first words")
    tree.root.answers("ok")
    tree.root.compact()
    summarises(tree.root)
    tree.root.say("the second words")
    fork = tree.root.forks("go on alone")
    tree.settle()
    fork.answers("done")
    fork.compact()
    summarises(fork)
    assert fork.state.kept_user_texts == ("the first words", "the second words", "go on alone")


# ── pictures ──────────────────────────────────────────────────────────────────────────────────


def _shows(session: Session, words: str, *names: str) -> None:
    pictures = [{"type": "image", "image_url": f"data:image/png;base64,{name}"} for name in names]
    session.submit(op("user_input", items=[text(words), *pictures]))


def _pictures(session: Session) -> list[str]:
    parts = [part for item in session.shown() for part in item.get("content") or ()]
    return [part["image_url"][-1] for part in parts if part["type"] == "input_image"]


def test_pictures_of_the_running_task_outlive_a_compaction_and_older_ones_are_named() -> None:
    session = talked(rules=Rules(auto_compact_limit=100))
    _shows(session, "an old one", "A")
    summarises(session)
    session.answers("seen")
    _shows(session, "look", "B", "C")
    summarises(session)
    assert _pictures(session) == ["B", "C"]
    assert session.state.kept_user_texts == ("one", "an old one", "[image]", "look")
    assert session.texts()[-1].startswith("This conversation was compacted.")


def test_pictures_of_several_messages_stay_in_the_order_in_which_they_were_sent() -> None:
    session = talked(rules=Rules(auto_compact_limit=100), facts={"on_user_input": "steer"})
    _shows(session, "look", "B", "C")
    for words, picture in (("and", "D"), ("then", "E")):
        _shows(session, words, picture)
    session.begin()
    assert session.task.request is not None
    assert session.task.request.purpose == "compact"
    session.item(assistant("sum"))
    session.ends()
    assert _pictures(session) == ["B", "C", "D", "E"]


def test_pictures_are_named_once_their_task_is_over() -> None:
    session = talked()
    _shows(session, "look", "B")
    session.answers("seen")
    session.compact()
    summarises(session)
    assert _pictures(session) == []
    assert session.state.kept_user_texts == ("one", "look [image]")


def test_no_more_pictures_are_kept_than_a_window_holds() -> None:
    session = talked(rules=Rules(auto_compact_limit=100))
    _shows(session, "many", *"ABCDEFGHIJKLMNOPQ")
    summarises(session)
    assert _pictures(session) == []
    assert session.state.kept_user_texts[-1].count("[image]") == 17


# ── the compaction's own task ─────────────────────────────────────────────────────────────────


def test_compaction_leaves_no_bookmark() -> None:
    session = talked()
    session.compact()
    session.begin()
    session.item(assistant("what was done"))
    assert "response_id" not in session.ends("rk").one("task_complete")
    assert "error" in session.say("on", last_response_id="rk").types


def test_nothing_is_spent_on_a_conversation_that_says_nothing() -> None:
    session = Session()
    for opening in initial_context(TurnSettings.of(SETTINGS), "be brief", "bash"):
        session.record(item(opening))
    seen = session.compact("k")
    assert seen.types == ["task_started", "warning", "task_complete"]
    assert "nothing to compact" in seen.one("warning")["message"]
    assert session.owes() == ()
    session.say("one")
    session.answers("ok")
    session.compact()
    summarises(session)
    assert session.compact().types == ["task_started", "warning", "task_complete"]


def test_input_that_waits_behind_a_compaction_without_work_begins() -> None:
    session = Session()
    session.say("one", "u1")
    session.begin()
    session.say("two", "u2")
    assert session.stopped().types[-2:] == ["task_started", "user_message"]


# ── settings that change meanwhile ────────────────────────────────────────────────────────────


def test_running_task_is_not_told_of_settings_that_hold_behind_it() -> None:
    session = talked()
    session.say("two")
    session.begin()
    session.submit(op("override_turn_context", cwd="/elsewhere"))
    assert session.texts()[-1] == "two"
    assert session.answers_now("ok").types[-1] == "task_complete"
    assert session.texts()[-1] == "<environment_context>\n  <cwd>/elsewhere</cwd>\n</environment_context>"


def test_model_is_told_nothing_of_settings_that_came_back_before_they_held() -> None:
    session = talked()
    session.say("two")
    session.begin()
    session.submit(op("override_turn_context", cwd="/elsewhere"))
    session.submit(op("override_turn_context", cwd="/repo"))
    session.answers_now("ok")
    assert session.texts()[-1] == "ok"
