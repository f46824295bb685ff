"""Effects of a configured session, a schema and an unfinished turn on the requests that follow."""

from __future__ import annotations

import pytest

from orchestrator.core.outstanding import OweRequest, outstanding
from orchestrator.core.settings import Rules
from tests.core.driver import Session, op

REVIEW = {"target": {"type": "uncommittedChanges"}}


def test_a_reconfigured_session_gets_the_new_system_prompt_and_user_instructions() -> None:
    session = Session()
    seen = session.submit(
        op("configure_session", base_instructions="Be brief.", user_instructions="No emojis."), "cfg"
    )
    assert session.state.facts.base_instructions == "Be brief."
    assert session.texts()[-1] == (
        "<user_instructions>\n\nThese instructions replace all that were given before them.\n\nNo emojis."
        "\n\n</user_instructions>"
    )
    assert seen.id_of("session_configured") == "cfg"


@pytest.mark.parametrize("type", ["review", "plan"])
def test_instructions_that_come_while_a_review_or_a_plan_ends_are_the_conversations(type: str) -> None:
    session, requests = Session(), {"review": REVIEW, "plan": {"goal": "a login"}}
    session.submit(op("configure_session", user_instructions="No emojis."))
    session.submit(op(type, **{f"{type}_request": requests[type]}))
    session.begin()
    session.submit(op("configure_session", user_instructions="Be brief."))
    session.stopped()
    assert [text.count("Be brief.") for text in session.texts() if "replace all" in text] == [0, 1]
    assert session.replayed() == session.state


def test_an_empty_system_prompt_takes_back_the_sessions_own_and_none_leaves_it() -> None:
    session, prompts = Session(facts={"base_instructions": "Be brief."}), []
    for fields in ({"model": "gpt-5-mini"}, {"base_instructions": ""}):
        session.submit(op("configure_session", **fields))
        prompts.append(session.state.facts.base_instructions)
    assert prompts == ["Be brief.", None]
    assert session.replayed() == session.state


def test_a_session_is_configured_with_a_personality_and_a_mode() -> None:
    session, mode = Session(), {"mode": "plan", "settings": {"model": "gpt-5-codex"}}
    seen = session.submit(op("configure_session", personality="friendly", collaboration_mode=mode), "cfg")
    assert seen.types == ["session_configured"]
    assert seen.one("session_configured")["model"] == "gpt-5-codex"
    assert session.state.settings.personality == "friendly"
    assert session.say("go").one("task_started")["collaboration_mode_kind"] == "plan"


def test_a_schema_for_the_last_message_stays_with_its_task() -> None:
    session, schema = Session(), {"type": "object"}
    session.say("go", final_output_json_schema=schema)
    assert session.task.output_schema == schema
    session.begin()
    session.answers_now("{}")
    session.say("again")
    assert session.task.output_schema is None


def test_a_response_that_does_not_end_the_turn_is_followed_by_another_request() -> None:
    session = Session()
    session.say("go")
    session.begin()
    assert "task_complete" not in session.ends(end_turn=False).types
    assert outstanding(session.state, Rules()) == (OweRequest(),)
    session.begin()
    assert "task_complete" in session.answers_now("done").types
