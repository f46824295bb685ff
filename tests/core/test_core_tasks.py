"""Tasks: how input takes the session, what a turn shows, what waits, what replaces what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from orchestrator.core.commands import BeginRequest
from orchestrator.core.decide import IllegalCommand
from orchestrator.core.outstanding import AssessCall, FollowRequest, OweRequest, RunCall, StopAll
from orchestrator.core.settings import Rules
from tests.core.driver import Session, a_command, assistant, function_call, op, text

STEER = {"on_user_input": "steer"}


def test_user_input_starts_a_task_under_its_submission_id() -> None:
    session = Session()
    seen = session.say("hello", "u1")
    assert seen.events == [
        ("u1", {"type": "task_started", "model_context_window": 272_000, "collaboration_mode_kind": "code"}),
        ("u1", {"type": "user_message", "message": "hello", "kind": "plain"}),
    ]
    assert session.owed == (OweRequest(),)
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
    assert (session.status, session.owed, session.state.outcome) == ("idle", (), "completed")


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
    assert session.owed == (AssessCall("c1"), FollowRequest(1, 1))
    session.runs("c1")
    assert session.owed == (RunCall("c1", 1), FollowRequest(1, 1))
    assert session.ends().types == []
    assert session.finishes("c1", "listing").types == ["token_count"]
    assert session.owed == (OweRequest(),)
    session.answers("done")
    assert session.texts() == ["go", "call c1", "output c1: listing", "done"]


def test_every_request_records_the_settings_it_goes_out_with() -> None:
    session = Session()
    session.say("go")
    session.begin()
    contexts = [entry for entry in session.seen[-1].decision.entries if entry.type == "turn_context"]
    assert [entry.payload["model"] for entry in contexts] == ["gpt-5"]
    assert "effort" not in contexts[0].payload


def test_input_while_a_task_runs_replaces_it_once_what_runs_has_stopped() -> None:
    session = Session()
    session.say("first", "u1")
    session.begin()
    assert session.say("second", "u2").types == []
    assert session.owed == (StopAll("replaced"),)
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
    assert session.owed == (OweRequest(),)
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
    assert session.owed == (OweRequest(),)
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


def test_images_and_several_texts_are_one_message() -> None:
    session = Session()
    image = {"type": "image", "image_url": "data:image/png;base64,AA"}
    seen = session.submit(op("user_input", items=[text("look "), image, text("here")]))
    assert seen.one("user_message")["message"] == "look here"
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


def test_nothing_is_begun_twice() -> None:
    session = Session()
    with pytest.raises(IllegalCommand, match="idle"):
        session.begin()
    session.say("go")
    session.begin()
    with pytest.raises(IllegalCommand, match="no model request is owed"):
        session.happens(BeginRequest())
    session.calls("c1")
    session.ends()
    with pytest.raises(IllegalCommand):
        session.begin()


def test_late_reports_of_a_request_that_is_over_are_refused() -> None:
    session = Session()
    session.say("go")
    session.answers("done")
    before = session.digest
    with pytest.raises(IllegalCommand):
        session.finishes("c1")
    assert session.digest == before


def test_call_runs_once_for_one_decision() -> None:
    session = Session()
    session.say("go")
    session.asks_for("c1")
    session.runs("c1")
    with pytest.raises(IllegalCommand, match="c1 is running"):
        session.runs("c1")
    session.finishes("c1")
    with pytest.raises(IllegalCommand, match="c1 is done"):
        session.finishes("c1")


def test_refusal_travels_through_a_context_manager_as_itself() -> None:
    @contextmanager
    def passing() -> Iterator[None]:
        yield

    with pytest.raises(IllegalCommand) as caught, passing():
        Session().begin()
    assert (caught.value.command, caught.value.state) == ("BeginRequest", "idle")


def test_calls_run_in_order_one_at_a_time() -> None:
    session = Session()
    session.say("go")
    session.asks_for("c1", "c2")
    assert session.owed == (AssessCall("c1"),)
    session.runs("c1")
    assert session.owed == (RunCall("c1", 1),)
    session.finishes("c1")
    assert session.owed == (AssessCall("c2"),)


def test_parallel_safe_calls_run_together_and_others_wait_for_them() -> None:
    session = Session(rules=Rules(parallel_safe=frozenset({"view"})))
    session.say("go")
    session.begin()
    for call_id, name in (("v1", "view"), ("v2", "view"), ("c1", "shell"), ("v3", "view")):
        session.item(function_call(call_id, name))
    session.ends()
    assert session.owed == (AssessCall("v1"), AssessCall("v2"))
    session.runs("v1")
    session.runs("v2")
    session.finishes("v2", "second")
    assert session.owed == (RunCall("v1", 1),)
    session.finishes("v1", "first")
    assert session.owed == (AssessCall("c1"),)
    session.runs("c1")
    session.finishes("c1", "third")
    assert session.owed == (AssessCall("v3"),)
    assert [line for line in session.texts() if line.startswith("output")][:3] == [
        "output v1: first",
        "output v2: second",
        "output c1: third",
    ]


def test_call_behind_one_that_awaits_approval_waits_too() -> None:
    session = Session()
    session.say("go")
    session.asks_for("c1", "c2")
    session.assessed("c1", a_command("rm", "-rf", "build", dangerous=True))
    assert session.owed == ()
    assert session.status == "awaiting_approval"


def test_call_id_that_the_model_repeats_is_told_apart() -> None:
    session = Session()
    session.say("go")
    session.asks_for("c1", "c1", "c1")
    assert [call.call_id for call in session.task.calls] == ["c1", "c1#2", "c1#3"]
    for call_id in ("c1", "c1#2", "c1#3"):
        session.runs(call_id)
        session.finishes(call_id, call_id)
    assert session.output_of("c1#2") == "c1#2"


def test_local_shell_call_without_an_id_gets_one() -> None:
    session = Session()
    session.say("go")
    session.begin()
    session.item({"type": "local_shell_call", "status": "completed", "action": {"type": "exec"}})
    session.ends()
    assert [call.call_id for call in session.task.calls] == ["call-1"]
    session.runs("call-1")
    session.finishes("call-1", "ok")
    assert session.output_of("call-1") == "ok"


def test_unknown_item_is_kept_whole_and_shown_to_the_model_again() -> None:
    session = Session()
    session.say("go")
    session.begin()
    strange = {"type": "hologram", "depth": {"z": [1, 2]}, "extra": None}
    assert session.item(strange).types == []
    session.item(assistant("look"))
    session.ends()
    assert session.shown()[1] == strange


def test_reasoning_is_shown_in_summary_and_raw_only_where_configured() -> None:
    thought = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "plan"}],
        "content": [{"type": "reasoning_text", "text": "secret"}],
        "encrypted_content": "abc",
    }
    for raw, types in (
        (False, ["agent_reasoning"]),
        (True, ["agent_reasoning", "agent_reasoning_raw_content"]),
    ):
        session = Session(rules=Rules(show_raw_reasoning=raw))
        session.say("go")
        session.begin()
        assert session.item(thought).types == types


def test_web_search_of_the_model_is_told_by_a_pair_of_events() -> None:
    session = Session()
    session.say("go")
    session.begin()
    seen = session.item(
        {"type": "web_search_call", "id": "ws1", "action": {"type": "search", "query": "redis"}}
    )
    assert seen.types == ["web_search_begin", "web_search_end"]
    assert seen.one("web_search_end")["query"] == "redis"


def test_command_that_the_policy_refuses_has_an_output_that_says_why() -> None:
    session = Session(settings={"approval_policy": "never"})
    session.say("go")
    session.asks_for("c1")
    session.assessed("c1", a_command("rm", dangerous=True))
    assert "approval policy is never" in session.output_of("c1")
    assert session.owed == (OweRequest(),)


def test_input_that_is_no_text_is_named_to_the_model() -> None:
    session = Session()
    mention = {"type": "mention", "name": "notes", "path": "/repo/notes.md"}
    seen = session.submit(op("user_input", items=[text("see "), mention]))
    assert seen.one("user_message")["message"] == "see "
    assert session.texts() == ["see [mention: notes]"]


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
