"""A session's events as changes of its turns and items."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from orchestrator.core.frozen import replace
from orchestrator.views.event import Event
from orchestrator.views.thread_log import turns_of
from orchestrator.views.turns import turn_records as r
from orchestrator.views.turns.projector import Projector
from tests.views.turns.told import (
    SESSION,
    begun,
    changes,
    completed,
    done,
    items,
    logged,
    named,
    numbered,
    told,
)

COMMAND: dict[str, Any] = {"call_id": "c1", "command": ["bash", "-lc", "echo"], "cwd": "/w"}
END: dict[str, Any] = {
    "call_id": "c1",
    "stdout": "",
    "stderr": "",
    "duration": {"secs": 1, "nanos": 5_000_000},
}
PATCH: dict[str, Any] = {
    "call_id": "p1",
    "changes": {
        "/w/new": {"add": {"content": "a\n"}},
        "/w/old": {"type": "update", "unified_diff": "@@ -1 +1 @@\n", "move_path": "/w/moved"},
        "/w/gone": {"type": "delete", "content": "g\n"},
    },
}


def usage(total: int) -> Event:
    tokens = {"total_tokens": total, "input_tokens": total}
    info = {"total_token_usage": tokens, "last_token_usage": tokens, "model_context_window": 9}
    return told("token_count", info=info)


# ── turns ─────────────────────────────────────────────────────────────────────────────────────


def test_turn_is_told_in_the_order_that_clients_know() -> None:
    events = [begun(), told("user_message", message="hi", kind="plain"), told("agent_message", message="ok")]
    assert named(changes([*events, usage(5), done()])) == [
        "StatusChanged",
        "TurnStarted",
        "ItemStarted UserMessage",
        "ItemCompleted UserMessage",
        "ItemStarted AgentMessage",
        "ItemDelta",
        "ItemCompleted AgentMessage",
        "TokenUsageUpdated",
        "StatusChanged",
        "TurnCompleted",
    ]


def test_turn_ends_with_its_items_its_times_and_its_last_message() -> None:
    events = [begun(), told("agent_message", message="a"), told("agent_message", message="b"), done("b")]
    last = changes(numbered(events))[-1]
    assert isinstance(last, r.TurnCompleted)
    assert (last.turn.status, last.turn.started_ms, last.turn.completed_ms) == ("completed", 1001, 1004)
    assert [getattr(item, "text", "") for item in last.turn.items] == ["a", "b"]
    assert last.last_message is not None
    assert (last.last_message.text, last.last_message.completed_ms) == ("b", 1003)


def test_words_that_join_during_a_command_stand_behind_it_where_the_model_reads_them() -> None:
    said = [told("user_message", message=text, kind="plain") for text in ("go", "also this")]
    answer = told("agent_message", message="ok")
    events = [begun(), said[0], told("exec_command_begin", **COMMAND), said[1]]
    projector = Projector(SESSION)
    for event in numbered(events):
        projector.receive(event)
    assert projector.turn is not None
    assert [type(item).__name__ for item in projector.turn.items] == [
        "UserMessage",
        "CommandExecution",
        "UserMessage",
    ], "whoever reads the turn meanwhile sees them"
    ended = told("exec_command_end", **END, exit_code=0)
    told_of = named(changes([*events, ended, usage(5), answer, usage(6), done()]))
    begins = [name for name in told_of if name.startswith("Item") and "Delta" not in name]
    assert begins == [
        "ItemStarted UserMessage",
        "ItemCompleted UserMessage",
        "ItemStarted CommandExecution in_progress",
        "ItemCompleted CommandExecution completed",
        "ItemStarted UserMessage",
        "ItemCompleted UserMessage",
        "ItemStarted AgentMessage",
        "ItemCompleted AgentMessage",
    ]


def test_words_that_joined_a_turn_which_is_stopped_stand_behind_the_call_that_was_closed() -> None:
    joins = told("user_message", message="also this", kind="plain")
    stopped = told("turn_aborted", reason="interrupted")
    told_of = named(changes([begun(), told("exec_command_begin", **COMMAND), joins, stopped]))
    assert told_of[3:6] == [
        "ItemCompleted CommandExecution interrupted",
        "ItemStarted UserMessage",
        "ItemCompleted UserMessage",
    ]


def test_words_that_join_between_calls_stand_behind_those_that_joined_while_one_ran() -> None:
    first, second = (told("user_message", message=text, kind="plain") for text in ("first", "second"))
    ended = told("exec_command_end", **END, exit_code=0)
    events = [begun(), told("exec_command_begin", **COMMAND), first, ended, second]
    for all_of_them in (events, [*events, usage(5)], [*events, done()]):
        (turn,) = turns_of(SESSION, numbered(all_of_them))
        said = [item.content[0]["text"] for item in turn.items if isinstance(item, r.UserMessage)]
        assert said == ["first", "second"]
    live = [change for change in changes([*events, usage(5)]) if isinstance(change, r.ItemCompleted)]
    assert [type(change.item).__name__ for change in live] == ["CommandExecution", *["UserMessage"] * 2]


def test_words_that_join_while_a_process_lives_on_stand_where_they_were_said() -> None:
    process = told("exec_command_begin", **COMMAND, process_id="1")
    joins = told("user_message", message="also this", kind="plain")
    told_of = named(changes([begun(), process, usage(5), joins]))
    assert told_of[-2:] == ["ItemStarted UserMessage", "ItemCompleted UserMessage"]


def test_failed_turn_tells_its_fault_before_its_end_and_leaves_the_session_broken() -> None:
    fault = told("error", message="no", codex_error_info="bad_request")
    found = changes([begun(), fault, done(None)])
    assert named(found)[2:] == ["StatusChanged", "TurnError", "TurnCompleted"]
    assert found[2:4] == [
        r.StatusChanged(r.Broken()),
        r.TurnError(r.TurnId("t"), r.Fault("no", "bad_request"), will_retry=False),
    ]
    end = found[-1]
    assert isinstance(end, r.TurnCompleted)
    assert (end.turn.status, end.turn.fault) == (r.TurnStatus.FAILED, r.Fault("no", "bad_request"))


def test_next_turn_after_a_failed_one_works_as_ever() -> None:
    events = [begun(), told("error", message="no"), done(None), begun("u"), done("ok", "u")]
    assert [turn.status for turn in turns_of(SESSION, events)] == ["failed", "completed"]


def test_error_about_another_submission_does_not_fail_the_turn() -> None:
    refused = told("error", "answer-1", message="not answered")
    found = named(changes([begun(), refused, done(None)]))
    assert found == ["StatusChanged", "TurnStarted", "StatusChanged", "TurnCompleted"]
    assert turns_of(SESSION, [begun(), refused, done(None)])[0].status == "completed"


def test_person_is_warned_of_errors_that_belong_to_no_submission() -> None:
    assert changes([told("error", "", message="put aside")]) == [r.Warned("put aside")]


def test_interrupt_ends_what_runs_with_the_turn() -> None:
    events = [begun(), told("exec_command_begin", **COMMAND), told("turn_aborted", reason="interrupted")]
    found = changes(events)
    assert named(found)[2:] == [
        "ItemStarted CommandExecution in_progress",
        "ItemCompleted CommandExecution interrupted",
        "StatusChanged",
        "TurnCompleted",
    ]
    assert turns_of(SESSION, events)[0].status == "interrupted"


def test_spent_budget_fails_the_turn_with_its_own_kind_of_fault() -> None:
    (turn,) = turns_of(SESSION, [begun(), told("turn_aborted", reason="budget_limited")])
    assert turn.fault is not None
    assert (turn.status, turn.fault.info) == ("failed", "session_budget_exceeded")


def test_running_turn_is_the_last_of_a_log() -> None:
    events = [begun("a"), done("ok", "a"), begun("b"), told("agent_message", "b", message="m")]
    assert [(turn.id, turn.status, len(turn.items)) for turn in turns_of(SESSION, events)] == [
        ("a", "completed", 0),
        ("b", "in_progress", 1),
    ]


def test_slice_of_a_log_leaves_out_what_began_before_it() -> None:
    events = [told("exec_command_end", **END, exit_code=0), done(), begun("b"), done("ok", "b")]
    assert [turn.id for turn in turns_of(SESSION, events)] == ["b"]


def test_turns_that_were_rolled_back_are_left_out() -> None:
    said = [
        event
        for id in ("a", "b", "c")
        for event in (begun(id), told("user_message", id, message="m"), done("ok", id))
    ]
    back = told("thread_rolled_back", "op", num_turns=2)
    assert [turn.id for turn in turns_of(SESSION, [*said, back, begun("d"), done("ok", "d")])] == ["a", "d"]
    assert changes([back]) == [r.TurnsDropped(2)]


def test_log_of_another_program_has_a_turn_for_each_message_of_a_person() -> None:
    events = numbered(
        [
            told("user_message", "", message="one"),
            told("agent_message", "", message="1"),
            told("user_message", "", message="two"),
        ]
    )
    turns = turns_of(SESSION, events)
    assert [(turn.id, turn.status, len(turn.items)) for turn in turns] == [
        ("turn-1", "completed", 2),
        ("turn-3", "in_progress", 1),
    ]


# ── what is said ──────────────────────────────────────────────────────────────────────────────


def test_text_of_a_broken_attempt_never_completes_and_the_next_attempt_has_another_name() -> None:
    events = [
        begun(),
        told("agent_message_delta", delta="par"),
        told("stream_error", message="cut", codex_error_info={"response_stream_disconnected": {}}),
        told("agent_message_delta", delta="wh"),
        told("agent_message", message="whole"),
        done("whole"),
    ]
    found = changes(events)
    started = [change.item.id for change in found if isinstance(change, r.ItemStarted)]
    assert started == ["t-0-m1", "t-1-m1"]
    assert completed(found) == completed(changes(logged(events)))
    assert completed(found) == [("t", r.AgentMessage(r.ItemId("t-1-m1"), "whole"))]
    error = next(change for change in found if isinstance(change, r.TurnError))
    assert (error.will_retry, error.fault.message) == (True, "cut")


def test_reasoning_items_that_follow_each_other_are_told_apart_by_their_place_in_the_log() -> None:
    one, two, three = (told("agent_reasoning", text=text) for text in ("a", "b", "c"))
    log = numbered([begun(), one, two, told("raw_response_item", item={}), three])
    log = [event for event in log if event.type != "raw_response_item"]
    assert [getattr(item, "summary", None) for item in items([*log, done()])] == [("a", "b"), ("c",)]


def test_live_pieces_of_the_next_reasoning_end_the_one_before() -> None:
    pieces = [told("agent_reasoning_delta", delta="b"), told("agent_reasoning", text="b")]
    found = changes([begun(), told("agent_reasoning", text="a"), *pieces, done()])
    assert [getattr(item, "summary", None) for _, item in completed(found)] == [("a",), ("b",)]


def test_parts_of_a_summary_have_their_index() -> None:
    events = [
        begun(),
        told("agent_reasoning_section_break"),
        told("agent_reasoning_delta", delta="a"),
        told("agent_reasoning_section_break"),
        told("agent_reasoning_delta", delta="b"),
        told("agent_reasoning", text="a"),
        told("agent_reasoning", text="bc"),
        told("agent_reasoning_raw_content", text="raw"),
        done(),
    ]
    found = changes(events)
    deltas = [(c.kind.value, c.index, c.text) for c in found if isinstance(c, r.ItemDelta)]
    assert deltas == [
        ("reasoning_part", 0, ""),
        ("reasoning_summary", 0, "a"),
        ("reasoning_part", 1, ""),
        ("reasoning_summary", 1, "b"),
        ("reasoning_summary", 1, "c"),
        ("reasoning_text", 0, "raw"),
    ]
    assert items(events) == [r.Reasoning(r.ItemId("t-0-r1"), ("a", "bc"), ("raw",))]


def test_plan_is_an_item_beside_the_message_that_it_was_in() -> None:
    plan = {"type": "Plan", "id": "t-plan", "text": ""}
    events = [
        begun(),
        told("agent_message_delta", delta="see"),
        told("item_started", item=plan),
        told("plan_delta", item_id="t-plan", delta="1. do"),
        told("item_completed", item={**plan, "text": "1. do it"}),
        told("agent_message", message="see"),
        done("see"),
    ]
    assert items(events) == [
        r.Plan(r.ItemId("t-plan"), "1. do it"),
        r.AgentMessage(r.ItemId("t-0-m1"), "see"),
    ]


def test_each_plan_of_a_turn_is_an_item_of_its_own_live_and_in_the_log() -> None:
    plan = {"type": "Plan", "id": "t-plan", "text": ""}
    events = [
        begun(),
        told("item_started", item=plan),
        told("plan_delta", item_id="t-plan", delta="1. do"),
        told("item_completed", item={**plan, "text": "1. do it"}),
        told("item_completed", item={**plan, "text": "1. leave it"}),
        done(),
    ]
    plans = [r.Plan(r.ItemId("t-plan"), "1. do it"), r.Plan(r.ItemId("t-plan-2"), "1. leave it")]
    assert items(events) == plans
    found = changes(events)
    assert [change.item.id for change in found if isinstance(change, r.ItemStarted)] == ["t-plan", "t-plan-2"]
    pieces = [(change.item, change.kind, change.text) for change in found if isinstance(change, r.ItemDelta)]
    assert pieces == [
        ("t-plan", r.DeltaKind.PLAN, "1. do"),
        ("t-plan", r.DeltaKind.PLAN, " it"),
        ("t-plan-2", r.DeltaKind.PLAN, "1. leave it"),
    ]


def test_message_keeps_its_phase() -> None:
    (message,) = items([begun(), told("agent_message", message="m", phase="commentary")])
    assert getattr(message, "phase", None) == "commentary"


def test_input_is_shown_with_its_images_and_the_senders_name_for_it() -> None:
    said = told("user_message", message="look", images=["data:x"], local_images=["/w/a.png"], client_id="me")
    (message,) = items([begun(), said])
    assert isinstance(message, r.UserMessage)
    assert (message.id, message.client_id) == ("t-in-1", "me")
    assert [one["type"] for one in message.content] == ["text", "image", "local_image"]


def test_context_that_the_session_adds_is_no_input() -> None:
    assert items([begun(), told("user_message", message="<environment>", kind="environment_context")]) == []


def test_compaction_begins_and_ends_and_a_second_one_has_a_name_of_its_own() -> None:
    phases = [told("context_compaction", turn_id="t", phase=phase) for phase in ("begun", "begun", "done")]
    old = told("context_compacted")
    found = changes([begun(), *phases, old, *phases[1:], done()])
    assert [
        (type(c).__name__, c.item.id) for c in found if isinstance(c, r.ItemStarted | r.ItemCompleted)
    ] == [
        ("ItemStarted", "t-c"),
        ("ItemCompleted", "t-c"),
        ("ItemStarted", "t-c-2"),
        ("ItemCompleted", "t-c-2"),
    ]


def test_older_log_shows_a_compaction_by_its_end() -> None:
    assert items([begun(), told("context_compacted")]) == [r.ContextCompaction(r.ItemId("t-c"))]


def test_compaction_that_fails_leaves_no_item() -> None:
    log = [begun(), told("context_compaction", phase="begun"), told("error", message="no"), done(None)]
    assert turns_of(SESSION, log)[0].items == ()


# ── calls ─────────────────────────────────────────────────────────────────────────────────────


def test_command_that_fails_shows_its_output_its_status_and_its_time() -> None:
    end = told("exec_command_end", **{**END, "aggregated_output": "no\n", "exit_code": 2})
    (item,) = items([begun(), told("exec_command_begin", **COMMAND), end])
    assert isinstance(item, r.CommandExecution)
    assert (item.status, item.output, item.exit_code, item.duration_ms) == ("failed", "no\n", 2, 1005)


def test_output_that_is_cut_inside_a_character_is_shown_whole() -> None:
    data = "é".encode()
    chunks = [base64.b64encode(part).decode() for part in (data[:1], data[1:])]
    pieces = [told("exec_command_output_delta", call_id="c1", stream="stdout", chunk=one) for one in chunks]
    found = changes([begun(), told("exec_command_begin", **COMMAND), *pieces])
    assert [change.text for change in found if isinstance(change, r.ItemDelta)] == ["é"]


def test_process_goes_on_behind_its_turn_and_its_end_is_told_of_that_turn() -> None:
    start = told("exec_command_begin", **COMMAND, process_id="7", source="unified_exec_startup")
    end = told("exec_command_end", **END, exit_code=0, process_id="7")
    events = [begun(), start, done(), begun("u"), end, done("ok", "u")]
    ((turn, item),) = completed(changes(events))
    assert (turn, getattr(item, "status", None)) == ("t", "completed")
    first = turns_of(SESSION, events)[0].items[0]
    assert getattr(first, "status", None) == "completed"


def test_typing_into_a_process_is_a_piece_of_its_command() -> None:
    start = told("exec_command_begin", **COMMAND, process_id="7")
    typed = told("terminal_interaction", call_id="c1", process_id="7", stdin="y\n")
    found = changes([begun(), start, typed])[-1]
    assert found == r.ItemDelta(
        r.TurnId("t"), r.ItemId("c1"), r.DeltaKind.TERMINAL_INPUT, "y\n", process_id="7"
    )


def test_patch_shows_each_file_in_either_form_of_the_event() -> None:
    (item,) = items(
        [begun(), told("patch_apply_begin", **PATCH), told("patch_apply_end", **PATCH, success=True)]
    )
    assert isinstance(item, r.FileChange)
    assert item.status == "completed"
    assert item.changes == (
        r.FileDiff("/w/gone", r.ChangeKind.DELETE, "g\n"),
        r.FileDiff("/w/new", r.ChangeKind.ADD, "a\n"),
        r.FileDiff("/w/old", r.ChangeKind.UPDATE, "@@ -1 +1 @@\n", "/w/moved"),
    )


def test_tool_of_a_server_shows_its_result_or_why_there_is_none() -> None:
    asked = {"call_id": "m1", "invocation": {"server": "docs", "tool": "find", "arguments": {"q": 1}}}
    ends = [{"content": []}, {"content": [], "isError": True}, "gone", {"Err": "gone"}]
    found = []
    for result in ends:
        (item,) = items(
            [begun(), told("mcp_tool_call_begin", **asked), told("mcp_tool_call_end", **asked, result=result)]
        )
        assert isinstance(item, r.McpToolCall)
        found.append((item.status.value, item.result is not None, item.error))
    assert found == [
        ("completed", True, None),
        ("failed", True, None),
        ("failed", False, "gone"),
        ("failed", False, "gone"),
    ]


def test_search_whose_stream_breaks_leaves_nothing() -> None:
    log = [begun(), told("web_search_begin", call_id="w1"), told("stream_error", message="cut"), done()]
    assert turns_of(SESSION, log)[0].items == ()
    action = {"type": "search", "query": "q"}
    whole = told("web_search_end", call_id="w1", query="q", action=action)
    assert items([*log[:2], whole]) == [r.WebSearch(r.ItemId("w1"), "q", action)]


def test_images_reviews_and_diffs_are_told() -> None:
    finding = {
        "title": "T",
        "body": "B",
        "code_location": {"absolute_file_path": "/w/a", "line_range": {"start": 1, "end": 2}},
    }
    found = changes(
        [
            begun(),
            told("view_image_tool_call", call_id="i1", path="/w/a.png"),
            told("entered_review_mode", target={"type": "commit", "sha": "0123456789", "title": "fix"}),
            told("exited_review_mode", review_output={"findings": [finding], "overall_explanation": "E"}),
            told("turn_diff", unified_diff="d"),
            told("plan_update", explanation="why", plan=[{"step": "s", "status": "pending"}]),
        ]
    )
    assert [item for _, item in completed(found)] == [
        r.ImageView(r.ItemId("i1"), "/w/a.png"),
        r.EnteredReview(r.ItemId("t-review-1"), "commit 0123456: fix"),
        r.ExitedReview(r.ItemId("t-reviewed-1"), "E\n\nReview comment:\n\n- T — /w/a:1-2\n  B"),
    ]
    assert found[-2:] == [
        r.DiffUpdated(r.TurnId("t"), "d"),
        r.PlanUpdated(r.TurnId("t"), "why", (("s", "pending"),)),
    ]
    several = told("exited_review_mode", review_output={"findings": [finding, {**finding, "body": ""}]})
    (review,) = [item for _, item in completed(changes([begun(), several]))]
    assert isinstance(review, r.ExitedReview)
    assert review.review == "Full review comments:\n\n- T — /w/a:1-2\n  B\n\n- T — /w/a:1-2"


# ── requests ──────────────────────────────────────────────────────────────────────────────────


def test_command_begins_before_it_is_asked_about_and_goes_on_when_it_is_approved() -> None:
    request = told("exec_approval_request", **COMMAND)
    begin = told("exec_command_begin", **COMMAND, parsed_cmd=[{"type": "unknown", "cmd": "echo"}])
    end = told("exec_command_end", **END, exit_code=0)
    found = changes([begun(), request, begin, end])
    assert named(found)[2:] == [
        "StatusChanged",
        "ItemStarted CommandExecution in_progress",
        "RequestOpened",
        "RequestResolved",
        "StatusChanged",
        "ItemCompleted CommandExecution completed",
    ]
    (item,) = [item for _, item in completed(found)]
    assert getattr(item, "actions", None) == ({"type": "unknown", "cmd": "echo"},)
    flags = [change.status for change in found if isinstance(change, r.StatusChanged)]
    assert flags[1:] == [r.Active((r.ActiveFlag.APPROVAL,)), r.Active()]


def test_refused_command_is_declined_as_soon_as_the_answer_is_told() -> None:
    answer = told("request_resolved", call_id="c1", turn_id="t", decision="denied", who="ann", session_id="s")
    found = changes([begun(), told("exec_approval_request", **COMMAND), answer])
    assert named(found)[-3:] == [
        "RequestResolved",
        "ItemCompleted CommandExecution declined",
        "StatusChanged",
    ]


def test_refusal_of_which_no_event_tells_shows_when_the_response_is_over() -> None:
    found = changes([begun(), told("apply_patch_approval_request", **PATCH), usage(5)])
    assert "ItemCompleted FileChange declined" in named(found)


def test_request_that_is_open_when_its_turn_ends_is_withdrawn_behind_the_end() -> None:
    events = [begun(), told("exec_approval_request", **COMMAND), told("turn_aborted", reason="interrupted")]
    found = changes(events)
    assert named(found)[-4:] == [
        "ItemCompleted CommandExecution declined",
        "StatusChanged",
        "TurnCompleted",
        "RequestResolved",
    ]


SERVER_TOOL = {"call_id": "m1", "command": ["mcp", "docs", "find", "{}"], "cwd": "/w"}
INVOKED = {"call_id": "m1", "invocation": {"server": "docs", "tool": "find", "arguments": {}}}
CLIENT_TOOL = {"callId": "d1", "turnId": "t", "tool": "look", "arguments": {}}
QUESTION = {"call_id": "q1", "questions": []}
GOES_ON: list[tuple[Event, Event]] = [
    (told("exec_approval_request", **COMMAND), told("exec_command_begin", **COMMAND)),
    (told("apply_patch_approval_request", **PATCH), told("patch_apply_begin", **PATCH)),
    (told("exec_approval_request", **SERVER_TOOL), told("mcp_tool_call_begin", **INVOKED)),
    (
        told("dynamic_tool_call_request", **CLIENT_TOOL),
        told("dynamic_tool_call_response", call_id="d1", success=True, content_items=[]),
    ),
    *[
        (told(kind, **about), told("request_resolved", call_id=id, decision="answered", session_id=SESSION))
        for kind, about, id in (
            ("exec_approval_request", COMMAND, "c1"),
            ("apply_patch_approval_request", PATCH, "p1"),
            ("exec_approval_request", SERVER_TOOL, "m1"),
            ("dynamic_tool_call_request", CLIENT_TOOL, "d1"),
            ("request_user_input", QUESTION, "q1"),
            ("ask_user_question_request", {"callId": "q1", "questions": []}, "q1"),
            ("plan_approval_request", QUESTION, "q1"),
            ("elicitation_request", {"id": "e1", "server_name": "docs", "message": "May I?"}, "e1"),
        )
    ],
]
"""A request of each kind, and each event by which it is over."""


@pytest.mark.parametrize(("asks", "over"), GOES_ON, ids=lambda event: event.type)
@pytest.mark.parametrize("other", [None, "before", "behind"])
def test_request_is_over_with_the_event_that_its_call_goes_on_and_no_other_is(
    asks: Event, over: Event, other: str | None
) -> None:
    second = told("exec_approval_request", **{**COMMAND, "call_id": "c2"})
    projector = Projector(SESSION)
    events = [begun(), *[second] * (other == "before"), asks, *[second] * (other == "behind")]
    opened = [
        change
        for event in events
        for change in projector.receive(event)
        if isinstance(change, r.RequestOpened)
    ]
    (its,) = (change.item for change in opened if change.item != "c2")
    found = projector.receive(over)
    assert [change.item for change in found if isinstance(change, r.RequestResolved)] == [its]
    assert [request.item for request in projector.waiting] == ["c2"] * bool(other)
    assert projector.status == r.Active((r.ActiveFlag.APPROVAL,) * bool(other))


def test_questions_and_plans_make_the_session_wait_for_words() -> None:
    for kind, name in (
        ("request_user_input", "call_id"),
        ("ask_user_question_request", "callId"),
        ("plan_approval_request", "call_id"),
    ):
        projector = Projector(SESSION)
        for event in (begun(), told(kind, **{name: "q1"}, questions=[])):
            projector.receive(event)
        assert projector.status == r.Active((r.ActiveFlag.USER_INPUT,))
        assert [request.item for request in projector.waiting] == ["q1"]


def test_request_of_another_agent_is_told_under_its_session_and_leaves_the_own_status() -> None:
    asked = told("exec_approval_request", "turn-of-child", **COMMAND, session_id="child", agent_id=2)
    over = told("request_resolved", "turn-of-child", call_id="c1", decision="denied", session_id="child")
    assert named(changes([begun(), asked, over]))[2:] == ["RequestOpened", "RequestResolved"]
    assert {getattr(change, "session", None) for change in changes([asked, over])} == {"child"}


@pytest.mark.parametrize(
    ("piece", "whole"),
    [
        (told("agent_message_delta", delta="Hel"), told("agent_message", message="Hello")),
        (told("agent_reasoning_delta", delta="Hel"), told("agent_reasoning", text="Hello")),
        (
            told("plan_delta", delta="Hel"),
            told("item_completed", item={"type": "Plan", "id": "p", "text": "Hello"}),
        ),
    ],
)
def test_item_began_no_later_than_it_ended_where_its_pieces_were_timed_elsewhere(
    piece: Event, whole: Event
) -> None:
    events = [begun(), replace(piece, at_ms=1_059), replace(whole, at_ms=1_053), done()]
    (item,) = [change.item for change in changes(events) if isinstance(change, r.ItemCompleted)]
    assert (item.started_ms, item.completed_ms) == (1_053, 1_053)


def test_clients_are_told_when_other_inputs_wait_than_before() -> None:
    accepted = told("input_accepted", "b", turn_id="b", delivery="queued")
    assert changes([accepted]) == [r.QueueChanged()]
    assert changes([told("input_accepted", "b", turn_id="a", delivery="steered")]) == []
    assert changes([told("queue_changed", "op", waiting=1)]) == [r.QueueChanged()]
    begun = [accepted, told("task_started", "b"), told("task_complete", "b"), told("task_started", "c")]
    assert sum(isinstance(change, r.QueueChanged) for change in changes(begun)) == 2
