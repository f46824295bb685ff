"""Personalities and collaboration modes: what a task has of them, and what its model is told."""

from __future__ import annotations

import re
from typing import Any

import pytest

from orchestrator.core.calls import ExecWork
from orchestrator.core.calls.approval_policy import unconfined_key
from orchestrator.core.context import environment_context
from orchestrator.core.entries import decode_entry, item
from orchestrator.core.evolve import fold
from orchestrator.core.history import INHERITED, message_text
from orchestrator.core.modes import PLAN_TAG, Widening, narrowed, not_told, with_plan
from orchestrator.core.settings import EXTERNAL_SANDBOX, TurnSettings
from orchestrator.core.snapshot import decode, encode
from orchestrator.core.state import State
from orchestrator.protocol.wire import written
from tests.core.driver import SETTINGS, Seen, Session, a_command, assistant, function_call, op, text

PROPOSED = "Intro\n<proposed_plan>\n- a\n- b\n</proposed_plan>\nOutro"


SANDBOXES = re.compile("<sandbox_mode>(.*?)</sandbox_mode>")


def mode(kind: str, **settings: Any) -> dict[str, Any]:
    """A collaboration mode on the wire."""
    given = {"model": "gpt-5", "reasoning_effort": None, "developer_instructions": None, **settings}
    return {"mode": kind, "settings": given}


WRITE = {"mode": "workspace-write", "writable_roots": ["/data"], "network_access": True}


@pytest.mark.parametrize(
    ("policy", "asked", "gets"),
    [
        (WRITE, None, WRITE),
        (WRITE, "workspace", WRITE),
        (WRITE, "read-only", {"mode": "read-only"}),
        (WRITE, "danger", None),
        ({"mode": "danger-full-access"}, "workspace-write", {"mode": "workspace-write"}),
        ({"mode": "danger-full-access"}, "danger", {"mode": "danger-full-access"}),
        ({"mode": "read-only"}, "workspace-write", None),
        ({"mode": EXTERNAL_SANDBOX}, "workspace-write", None),
        ({"mode": EXTERNAL_SANDBOX}, "danger", None),
        ({"mode": EXTERNAL_SANDBOX}, "read-only", {"mode": "read-only"}),
    ],
)
def test_agent_gets_what_its_parents_turn_has_or_less_and_never_more(
    policy: dict[str, Any], asked: str | None, gets: dict[str, Any] | None
) -> None:
    parent = TurnSettings.of({**SETTINGS, "sandbox_policy": policy})
    if gets is None:
        with pytest.raises(Widening):
            narrowed(parent, asked, None)
    else:
        assert narrowed(parent, asked, None).sandbox_policy == gets


@pytest.mark.parametrize("personality", [None, "none", "friendly"])
def test_fork_is_told_of_the_personality_in_force_whatever_its_conversation_was_told(
    personality: str | None,
) -> None:
    inherited = {"type": INHERITED, "content": "[]"}
    settings = TurnSettings.of(
        {**SETTINGS, "personality": personality, "collaboration_mode": mode("execute")}
    )
    texts = [message_text(written(message)) for message in not_told([inherited], settings)]
    assert ["You are in execute mode" in text for text in texts] == [True, False]
    assert ("Be friendly" in texts[1]) == (personality == "friendly")
    assert ("taken back" in texts[1]) == (personality != "friendly")


def test_approved_plan_stands_behind_all_that_says_under_what_the_model_works() -> None:
    session = Session()
    session.record(item(environment_context(session.state.settings.wire())))
    session.record(
        item(
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "You are agent 3."}],
            }
        )
    )
    turn(session, "go", personality="friendly", collaboration_mode=mode("execute"))
    plan = {"title": "T", "summary": "S", "plan": {"plan": [{"step": "one", "status": "pending"}]}}
    shown = with_plan(list(session.state.history), plan)
    places = [at for at, one in enumerate(shown) if message_text(one).startswith(PLAN_TAG)]
    assert len(places) == 1
    assert message_text(shown[places[0] + 1]) == "go"
    assert len(shown) == places[0] + 2


def turn(session: Session, words: str = "go", **fields: Any) -> Seen:
    return session.submit(op("user_turn", items=[text(words)], summary="auto", **SETTINGS, **fields))


def told(session: Session, tag: str) -> list[str]:
    """The developer messages about one thing, oldest first."""
    texts = [message_text(item) for item in session.shown() if item.get("role") == "developer"]
    return [found for found in texts if found.startswith(f"<{tag}>")]


# ── personality ───────────────────────────────────────────────────────────────────────────────


def test_a_personality_is_told_when_it_is_set_and_when_it_changes() -> None:
    session = Session()
    for personality, count in (("friendly", 1), ("friendly", 1), ("pragmatic", 2)):
        turn(session, personality=personality)
        assert len(told(session, "personality")) == count
        assert session.shown()[-1]["role"] == "user", "it stands before what the person says"
        session.answers("ok")
    assert session.state.settings.personality == "pragmatic"


def test_a_personality_that_was_never_set_is_not_taken_back() -> None:
    session = Session()
    turn(session, personality="none")
    assert told(session, "personality") == []
    session.answers("ok")
    turn(session, personality="friendly")
    session.answers("ok")
    turn(session, personality="none")
    assert "taken back" in told(session, "personality")[-1]
    session.answers("ok")
    session.say("more")
    assert len(told(session, "personality")) == 2


def test_a_personality_that_is_set_and_set_back_between_two_turns_is_not_told() -> None:
    session = Session()
    turn(session, personality="friendly")
    session.answers("ok")
    for personality in ("pragmatic", "friendly"):
        session.submit(op("override_turn_context", personality=personality))
    session.say("more")
    assert len(told(session, "personality")) == 1


def test_a_compaction_keeps_the_newest_personality_alone() -> None:
    session = Session()
    for personality in ("friendly", "pragmatic"):
        turn(session, personality=personality)
        session.answers("ok")
    session.compact()
    session.answers("summary")
    assert len(told(session, "personality")) == 1
    assert "pragmatic" in told(session, "personality")[0]
    session.say("more")
    assert len(told(session, "personality")) == 1


def test_an_earlier_turn_is_gone_on_from_with_the_personality_in_force() -> None:
    session = Session()
    session.say("one")
    session.answers("first", "r1")
    turn(session, personality="friendly")
    session.answers("second", "r2")
    session.say("instead", last_response_id="r1")
    assert len(told(session, "personality")) == 1


# ── modes ─────────────────────────────────────────────────────────────────────────────────────


def test_a_task_that_only_plans_writes_nothing_and_the_settings_stay() -> None:
    session = Session()
    seen = turn(session, collaboration_mode=mode("plan"))
    assert seen.one("task_started")["collaboration_mode_kind"] == "plan"
    assert session.task.settings.sandbox_policy == {"mode": "read-only"}
    assert session.state.settings.sandbox_policy["mode"] == "workspace-write"
    session.answers("ok")
    seen = session.say("more")
    assert seen.one("task_started")["collaboration_mode_kind"] == "plan", "it is sticky"
    session.answers("ok")
    turn(session, collaboration_mode=mode("default"))
    assert session.task.settings.sandbox_policy["mode"] == "workspace-write"
    assert [found.splitlines()[1][:20] for found in told(session, "collaboration_mode")] == [
        "You are in plan mode",
        "You are in code mode",
    ]


def test_model_is_told_by_its_environment_that_a_task_which_plans_only_reads() -> None:
    session = Session()
    session.submit(
        op("override_turn_context", collaboration_mode=mode("plan", developer_instructions="Sing."))
    )
    session.say("one")
    assert SANDBOXES.findall(" ".join(session.texts())) == ["read-only"]
    session.submit(op("override_turn_context", sandbox_policy={"mode": "danger-full-access"}))
    session.answers("ok")
    session.say("two")
    session.answers("ok")
    assert SANDBOXES.findall(" ".join(session.texts())) == ["read-only"], "nothing else held meanwhile"
    session.submit(op("override_turn_context", collaboration_mode=mode("code")))
    assert SANDBOXES.findall(" ".join(session.texts()))[-1] == "danger-full-access"


def test_a_mode_that_is_set_while_a_task_runs_is_the_next_task_s() -> None:
    session = Session()
    session.say("first")
    session.submit(op("override_turn_context", collaboration_mode=mode("plan")))
    assert session.task.settings.sandbox_policy["mode"] == "workspace-write"
    session.answers("ok")
    session.say("second")
    assert session.task.settings.sandbox_policy == {"mode": "read-only"}


def test_the_settings_of_a_mode_count_before_those_beside_it() -> None:
    session = Session(settings={"effort": "low"})
    given = mode("execute", model="gpt-5-codex", reasoning_effort="high")
    session.submit(op("override_turn_context", model="gpt-5", effort="low", collaboration_mode=given))
    assert (session.state.settings.model, session.state.settings.effort) == ("gpt-5-codex", "high")
    session.submit(op("configure_session", collaboration_mode=mode("code")), "cfg")
    assert session.state.settings.effort is None


def test_instructions_of_a_mode_stand_in_the_place_of_its_own_words() -> None:
    session = Session()
    turn(session, collaboration_mode=mode("code"))
    assert told(session, "collaboration_mode") == [], "a session begins so"
    session.answers("ok")
    turn(session, collaboration_mode=mode("code", developer_instructions="Sing."))
    assert told(session, "collaboration_mode") == ["<collaboration_mode>\nSing.\n</collaboration_mode>"]


def test_model_in_plan_mode_is_told_where_and_how_its_plan_stands() -> None:
    session = Session()
    turn(session, collaboration_mode=mode("plan"))
    (words,) = told(session, "collaboration_mode")
    assert "its first line is <proposed_plan> and its last line </proposed_plan>" in words.lower()
    assert "each tag exactly so and alone on its line" in words
    assert "in the final message only, never in messages before it and never in reasoning" in words
    assert "at most one block in a turn" in words


@pytest.mark.parametrize("type", ["override_turn_context", "configure_session"])
def test_a_mode_that_cannot_be_taken_changes_nothing(type: str) -> None:
    session = Session()
    before = session.digest
    long = mode("plan", developer_instructions="é" * 20_000)
    seen = session.submit(op(type, collaboration_mode=long))
    assert "collaboration_mode.settings.developer_instructions:" in seen.one("error")["message"]
    assert session.digest == before


def test_what_was_approved_for_the_session_is_asked_about_again_in_plan_mode() -> None:
    session = Session()
    session.say("go")
    session.asks_for("c1")
    session.assessed("c1", a_command("make", escalated=True))
    session.decides("c1", "approved_for_session")
    session.finishes("c1")
    session.answers("ok")
    assert unconfined_key("make") in session.state.approved
    turn(session, collaboration_mode=mode("plan"))
    session.asks_for("c2", "c3")
    session.assessed("c2", a_command("make"))
    work = session.call("c2").work
    assert isinstance(work, ExecWork)
    assert work.sandboxed


def test_turn_context_says_what_is_in_force() -> None:
    session = Session()
    given = mode("plan")
    turn(session, collaboration_mode=given, personality="friendly")
    session.begin()
    (context,) = [entry.payload for entry in session.seen[-1].entries if entry.type == "turn_context"]
    assert context["collaboration_mode"] == given
    assert context["personality"] == "friendly"
    assert context["sandbox_policy"] == {"mode": "read-only"}


def test_settings_that_nobody_set_are_not_written() -> None:
    plain = TurnSettings.of(SETTINGS)
    assert not {"personality", "collaboration_mode", "item_events"} & set(plain.wire())
    session = Session()
    assert b"collaboration_mode" not in encode(session.state)
    turn(session, collaboration_mode=mode("plan"), personality="pragmatic")
    assert decode(encode(session.state)) == session.state
    assert fold(State(), map(decode_entry, session.lines), 1) == session.state


# ── plans ─────────────────────────────────────────────────────────────────────────────────────


def planned(words: str) -> tuple[Session, Seen, Seen]:
    """A turn in plan mode that is answered: the session, its message, its end."""
    session = Session()
    turn(session, collaboration_mode=mode("plan"))
    session.begin()
    return session, session.item(assistant(words)), session.ends()


def test_a_plan_is_an_item_of_its_own_and_cut_out_of_the_message() -> None:
    session, message, end = planned(PROPOSED)
    assert message.types == ["item_completed", "agent_message"]
    plan = {"type": "Plan", "id": "s1-plan", "text": "- a\n- b"}
    completed = message.one("item_completed")
    assert (completed["item"], completed["turn_id"]) == (plan, "s1")
    assert completed["thread_id"] == session.state.facts.session_id
    assert message.one("agent_message")["message"] == "Intro\nOutro"
    assert end.one("task_complete")["last_agent_message"] == "Intro\nOutro"
    assert session.texts()[-1] == PROPOSED, "the model keeps its plan"


def test_reasoning_about_a_plan_is_told_with_its_tags_and_is_no_item() -> None:
    session = Session()
    turn(session, collaboration_mode=mode("plan"))
    session.begin()
    seen = session.item({"type": "reasoning", "summary": [{"type": "summary_text", "text": PROPOSED}]})
    assert seen.types == ["agent_reasoning"]
    assert seen.one("agent_reasoning")["text"] == PROPOSED


def test_a_message_that_is_a_plan_alone_says_nothing_beside_it() -> None:
    _, message, end = planned("<proposed_plan>\n- a\n")
    assert message.types == ["item_completed"]
    assert end.one("task_complete")["last_agent_message"] is None


# ── items ─────────────────────────────────────────────────────────────────────────────────────


def told_items(seen: Seen) -> list[tuple[str, str, str]]:
    """The item events that are not kept: what happened, the item's kind, its id."""
    messages = [passing.event.entry.payload for passing in seen.decision.passing]
    return [(m["type"], m["item"]["type"], m["item"]["id"]) for m in messages]


def test_every_item_is_told_where_that_is_wished_and_the_log_does_not_keep_it() -> None:
    session = Session()
    session.submit(op("configure_session", item_events="all"), "cfg")
    seen = session.say("go", "u1")
    (user,) = {id for _, _, id in told_items(seen)}
    assert [(type, kind) for type, kind, _ in told_items(seen)] == [
        ("item_started", "UserMessage"),
        ("item_completed", "UserMessage"),
    ]
    assert user.startswith("u1-user-")
    session.begin()
    assert told_items(session.item(assistant("hello"), "msg_1")) == [
        ("item_completed", "AgentMessage", "msg_1")
    ]
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    assert told_items(session.item(thought, "rs_1")) == [("item_completed", "Reasoning", "rs_1")]
    session.ends()
    session.compact("c1")
    session.begin()
    (begun,) = told_items(session.seen[-1])
    session.item(assistant("summary"), "msg_2")
    ended = session.ends()
    assert told_items(ended) == [("item_completed", "ContextCompaction", begun[2])]
    assert ended.types[-4:] == ["context_compacted", "warning", "agent_message", "task_complete"]
    assert not {"item_started", "item_completed"} & set(session.types)


def test_no_item_but_a_plan_is_told_unasked() -> None:
    session = Session()
    assert told_items(session.say("go")) == []
    session.begin()
    assert told_items(session.item(assistant("hello"), "msg_1")) == []


def test_tags_are_ordinary_text_in_every_other_mode() -> None:
    session = Session()
    turn(session, collaboration_mode=mode("execute"))
    session.begin()
    message = session.item(assistant(PROPOSED))
    assert message.types == ["agent_message"]
    assert message.one("agent_message")["message"] == PROPOSED
    assert session.ends().one("task_complete")["last_agent_message"] == PROPOSED


def test_search_of_the_model_is_told_as_an_item_and_a_call_is_not() -> None:
    session = Session(settings={"item_events": "all"})
    session.say("go", "u1")
    session.begin()
    search = {"type": "web_search_call", "action": {"type": "search", "query": "redis"}}
    assert told_items(session.item(search, "ws1")) == [("item_completed", "WebSearch", "ws1")]
    assert told_items(session.item(function_call("c1"), "f1")) == []
