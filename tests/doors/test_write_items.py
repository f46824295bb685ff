"""Every change of a session's turns is told by a message that strict clients accept."""

from __future__ import annotations

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.write_items import (
    error_info,
    fault_json,
    item_json,
    notifications,
    turn_json,
)
from orchestrator.protocol.scalars import ExecCommandSource
from orchestrator.protocol.wire import JsonValue
from orchestrator.views.thread_log import turns_of
from orchestrator.views.turns import turn_records as r
from orchestrator.views.turns.projector import BUDGET_SPENT
from tests.doors.schema import assert_valid
from tests.views.turns.told import SESSION, changes, recordings

THREAD = SessionId("s")
TURN = r.TurnId("t")
ID = r.ItemId("i")
RECORDED = dict(recordings())
ITEMS: tuple[r.ThreadItem, ...] = (
    r.UserMessage(
        ID,
        (
            {"type": "text", "text": "x", "text_elements": [{"byte_range": {"start": 0, "end": 1}}]},
            {"type": "image", "image_url": "data:x"},
            {"type": "local_image", "path": "/a.png"},
            {"type": "skill", "name": "n", "path": "/p"},
        ),
        "mine",
    ),
    r.AgentMessage(ID, "m", "commentary"),
    r.AgentMessage(ID, "m", "a phase of tomorrow"),
    r.Reasoning(ID, ("a",), ("b",)),
    r.Plan(ID, "p"),
    *(
        r.CommandExecution(
            ID,
            ("bash", "-lc", "cat a"),
            "/w",
            status,
            ExecCommandSource.USER_SHELL,
            (
                {"type": "read", "cmd": "cat a", "name": "a"},
                {"type": "list_files", "cmd": "ls", "path": None},
                {"type": "search", "cmd": "rg x", "query": "x", "path": None},
                {"type": "of_tomorrow", "cmd": "y"},
            ),
            "out",
            0,
            1,
            "7",
        )
        for status in r.ItemStatus
    ),
    r.CommandExecution(ID, ("ls",), "/w"),
    *(
        r.FileChange(ID, (r.FileDiff("/a", kind, "d", "/b"),), status)
        for kind in r.ChangeKind
        for status in r.ItemStatus
    ),
    *(
        r.McpToolCall(ID, "s", "t", {"a": 1}, status, {"content": [{"type": "text", "text": "x"}]})
        for status in r.ItemStatus
    ),
    r.McpToolCall(ID, "s", "t", None, r.ItemStatus.FAILED, None, "no", 5),
    r.CommandExecution(ID, ("ls",), "/w", r.ItemStatus.FAILED, output="?", exit_code=-1, in_doubt="?"),
    r.FileChange(ID, (), r.ItemStatus.FAILED, in_doubt="?"),
    r.McpToolCall(ID, "s", "t", status=r.ItemStatus.FAILED, error="?", in_doubt="?"),
    *(r.DynamicToolCall(ID, "t", None, "dendro", status, "out", True) for status in r.ItemStatus),
    r.DynamicToolCall(
        ID, "t", output="", parts=({"type": "input_image", "image_url": "https://example.org/a.png"},)
    ),
    *(
        r.CollabToolCall(ID, tool, "s", ("c",), "p", "m", "low", {"c": r.CollabState(state, "x")}, status)
        for tool in r.CollabTool
        for state in r.CollabStatus
        for status in r.ItemStatus
    ),
    *(
        r.WebSearch(ID, "q", action)
        for action in (
            None,
            {"type": "search", "query": "q", "queries": ["q"]},
            {"type": "open_page", "url": "u"},
            {"type": "find_in_page", "url": "u", "pattern": "p"},
            {"type": "of_tomorrow"},
        )
    ),
    r.ImageView(ID, "/a.png"),
    r.EnteredReview(ID, "r"),
    r.ExitedReview(ID, "r"),
    r.ContextCompaction(ID),
)
CHANGES: tuple[r.Change, ...] = (
    *(r.ItemDelta(TURN, ID, kind, "x", 1, "7") for kind in r.DeltaKind),
    r.PlanUpdated(TURN, None, (("a", "in_progress"), ("b", "of_tomorrow"))),
    r.DiffUpdated(TURN, "d"),
    r.TurnError(TURN, r.Fault("stream error: cut; retrying 1/2 in 5ms…"), will_retry=True),
    r.TurnError(TURN, r.Fault("no", "bad_request", "d"), will_retry=False),
    r.Warned("w", TURN),
    r.StatusChanged(r.Idle()),
    r.StatusChanged(r.Active(tuple(r.ActiveFlag))),
    r.StatusChanged(r.Broken()),
    r.NameChanged(None),
    r.NameChanged("n"),
    r.TurnsDropped(1),
    r.QueueChanged(),
)


def assert_told(change: r.Change) -> None:
    for method, params in notifications(THREAD, change):
        assert_valid("ServerNotification", {"method": method, "params": params})


def test_every_item_is_valid_for_strict_clients() -> None:
    assert {type(item) for item in ITEMS} == set(r.ThreadItem.__args__)
    for item in ITEMS:
        assert_valid("ThreadItem", item_json(item))
        assert_told(r.ItemStarted(TURN, item))
        assert_told(r.ItemCompleted(TURN, item))


def test_every_change_is_told_by_a_valid_notification() -> None:
    for change in CHANGES:
        assert len(list(notifications(THREAD, change))) == 1
        assert_told(change)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_conversation_is_told_by_valid_messages(name: str) -> None:
    for change in changes(RECORDED[name]):
        assert_told(change)
    for turn in turns_of(SESSION, RECORDED[name]):
        for view in ("full", "summary", "notLoaded"):
            assert_valid("Turn", turn_json(turn, view, "root-turn"))


def test_faults_have_the_kinds_of_the_protocol() -> None:
    said = {
        "context_window_exceeded": "contextWindowExceeded",
        BUDGET_SPENT: "sessionBudgetExceeded",
        "of_tomorrow": "other",
    }
    assert {kind: error_info(kind) for kind in said} == said
    broken = error_info({"response_stream_disconnected": {"http_status_code": 503}})
    assert broken == {"responseStreamDisconnected": {"httpStatusCode": 503}}
    assert error_info({"model_cap": {"model": "m"}}) == "usageLimitExceeded"
    infos: tuple[JsonValue, ...] = (*said, {"response_stream_disconnected": {}}, {"x": 1}, 5, None)
    for info in infos:
        assert_valid("TurnError", fault_json(r.Fault("m", info)))


def test_retry_is_counted_as_clients_show_it() -> None:
    told = fault_json(r.Fault("stream error: cut; retrying 1/2 in 5ms…"), will_retry=True)
    assert (told["message"], told["additionalDetails"]) == (
        "Reconnecting... 1/2",
        "stream error: cut; retrying 1/2 in 5ms…",
    )


def test_turn_that_did_not_complete_is_told_without_items() -> None:
    message = r.AgentMessage(ID, "m")
    for status, items, view in (("completed", 1, "summary"), ("interrupted", 0, "notLoaded")):
        told = turn_json(r.Turn(TURN, r.TurnStatus(status), (message,), None, 1_500, 4_000), "summary")
        assert (len(told["items"]), told["itemsView"]) == (items, view)
        assert (told["startedAt"], told["completedAt"], told["durationMs"]) == (1, 4, 2500)
