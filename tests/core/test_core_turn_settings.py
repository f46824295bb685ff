"""Settings of a turn and of those after it, and turns that go on from an earlier one."""

from __future__ import annotations

from tests.core.driver import Session, assistant, op, text


def test_user_turn_settings_stay_for_the_tasks_after_it() -> None:
    session = Session()
    session.submit(
        op(
            "user_turn",
            items=[text("hi")],
            cwd="/other",
            approval_policy="never",
            sandbox_policy={"mode": "danger-full-access"},
            model="codex-mini-latest",
            effort="high",
            summary="concise",
        )
    )
    assert session.task.settings.cwd == "/other"
    assert session.state.settings.effort == "high"
    session.answers("ok")
    seen = session.say("again")
    assert seen.one("task_started")["model_context_window"] == 200_000
    assert session.task.settings.approval_policy == "never"


def test_folder_that_is_not_absolute_is_named_from_the_sessions_own() -> None:
    session = Session()
    session.submit(op("override_turn_context", cwd="/repo/a"), "o1")
    session.submit(op("override_turn_context", cwd="../b/./c"), "o2")
    assert session.state.settings.cwd == "/repo/b/c"
    changed = {"type": "override_turn_context", "cwd": "d"}
    session.submit(op("user_input", items=[text("hi")], overrides=changed))
    assert session.task.settings.cwd == "/repo/b/c/d"
    session.submit(op("override_turn_context", cwd="."), "o3")
    assert session.state.settings.cwd == "/repo/b/c/d"


def test_user_turn_without_effort_clears_it() -> None:
    session = Session(settings={"effort": "high"})
    session.submit(
        op(
            "user_turn",
            items=[text("hi")],
            cwd="/repo",
            approval_policy="on-request",
            sandbox_policy={"mode": "workspace-write"},
            model="gpt-5",
            summary="auto",
        )
    )
    assert session.task.settings.effort is None


def test_override_changes_later_tasks_and_leaves_the_running_one() -> None:
    session = Session(settings={"effort": "high"})
    session.say("first")
    session.submit(op("override_turn_context", model="codex-mini-latest", effort=None))
    assert (session.task.settings.model, session.task.settings.effort) == ("gpt-5", "high")
    session.answers("ok")
    session.say("second")
    assert (session.task.settings.model, session.task.settings.effort) == ("codex-mini-latest", None)


def test_override_without_effort_keeps_it() -> None:
    session = Session(settings={"effort": "high"})
    session.submit(op("override_turn_context", model="gpt-5"))
    assert session.state.settings.effort == "high"


def test_model_is_told_of_new_settings_that_it_is_shown() -> None:
    session = Session()
    session.submit(op("override_turn_context", cwd="/elsewhere"))
    assert session.texts() == ["<environment_context>\n  <cwd>/elsewhere</cwd>\n</environment_context>"]
    session.submit(op("override_turn_context", cwd="/elsewhere"))
    session.submit(op("override_turn_context", model="gpt-5-codex"))
    assert len(session.texts()) == 1


def test_configure_aborts_the_running_task_and_keeps_the_history() -> None:
    session = Session()
    session.say("first", "u1")
    session.begin()
    seen = session.submit(op("configure_session", model="gpt-5-codex"), "conf")
    assert seen.id_of("session_configured") == "conf"
    assert seen.one("session_configured")["model"] == "gpt-5-codex"
    stopped = session.stopped()
    assert stopped.one("turn_aborted")["reason"] == "replaced"
    assert session.status == "idle"
    assert session.texts() == ["first"]
    session.say("second")
    assert session.task.settings.model == "gpt-5-codex"


def test_get_path_is_answered_after_the_file_is_brought_up_to_date() -> None:
    session = Session()
    seen = session.submit(op("get_path"), "p")
    assert seen.decision.export
    assert seen.one("conversation_path")["path"] == "/data/rollout.jsonl"


def test_input_from_an_earlier_turn_goes_on_from_there() -> None:
    session = Session()
    session.say("one")
    session.answers("first answer", "r1")
    session.say("two")
    session.answers("second answer", "r2")
    session.say("instead", last_response_id="r1")
    assert session.texts() == ["one", "first answer", "instead"]
    session.answers("third answer", "r3")
    assert [mark for mark, _ in session.state.bookmarks] == ["r1", "r3"]


def test_bookmark_of_a_turn_with_calls_lies_behind_their_outputs() -> None:
    session = Session()
    session.say("one")
    session.begin()
    session.calls("c1")
    session.ends("r1")
    session.runs("c1")
    session.finishes("c1", "listing")
    session.answers("done", "r2")
    session.say("retry", last_response_id="r1")
    assert session.texts() == ["one", "call c1", "output c1: listing", "retry"]


def test_unknown_bookmark_is_an_error_and_starts_nothing() -> None:
    session = Session()
    session.say("one")
    session.answers("ok", "r1")
    seen = session.say("two", "u2", last_response_id="nope")
    assert seen.id_of("error") == "u2"
    assert "nope" in seen.one("error")["message"]
    assert session.status == "idle"


def test_turn_that_rewinds_keeps_its_own_settings() -> None:
    session = Session()
    session.say("one")
    session.answers("ok", "r1")
    session.say("two")
    session.answers("ok", "r2")
    session.submit(
        op(
            "user_turn",
            items=[text("three")],
            cwd="/new",
            approval_policy="on-request",
            sandbox_policy={"mode": "workspace-write"},
            model="gpt-5",
            summary="auto",
            last_response_id="r1",
        )
    )
    shown = session.texts()
    assert shown[:2] == ["one", "ok"]
    assert "<cwd>/new</cwd>" in shown[2]
    assert shown[3] == "three"


def test_rewind_behind_a_change_of_settings_tells_the_model_again() -> None:
    session = Session()
    session.say("one")
    session.answers("ok", "r1")
    session.submit(op("override_turn_context", cwd="/new"))
    session.say("two")
    session.answers("ok", "r2")
    session.say("three", last_response_id="r1")
    assert "<cwd>/new</cwd>" in session.texts()[2]


def test_input_goes_on_where_it_is_when_its_earlier_turn_was_compacted_away_meanwhile() -> None:
    session = Session()
    session.say("one")
    session.answers("first", "r1")
    session.compact()
    session.begin()
    session.item(assistant("summary"))
    session.say("from there", "u2", last_response_id="r1")
    session.stopped()
    assert session.texts() == ["one", "first", "from there"]
