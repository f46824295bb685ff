"""Items, changes and threads as strict clients are told of them, word for word: each member has a value."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.write_items import (
    cli_version,
    error_info,
    fault_json,
    item_json,
    listed_turn_json,
    notifications,
    thread_json,
    turn_json,
)
from orchestrator.protocol.events import TokenUsage
from orchestrator.protocol.scalars import ExecCommandSource
from orchestrator.views.threads import Spawned, Thread
from orchestrator.views.turns import turn_records as r

ONE, TWO, ROOT = (SessionId(f"0199a2b4-0000-7000-8000-00000000000{number}") for number in (1, 2, 3))
TURN, ID = r.TurnId("the turn"), r.ItemId("the item")
STATUSES = {
    r.ItemStatus.IN_PROGRESS: ("inProgress", "inProgress"),
    r.ItemStatus.COMPLETED: ("completed", "completed"),
    r.ItemStatus.FAILED: ("failed", "failed"),
    r.ItemStatus.DECLINED: ("declined", "failed"),
    r.ItemStatus.INTERRUPTED: ("failed", "failed"),
}
"""Of calls that can be refused, and of those that cannot."""
TIMES = {"startedAtMs": 11, "completedAtMs": 22}


def told(item: r.ThreadItem) -> dict[str, Any]:
    """The item but for its id."""
    found = item_json(item)
    assert found.pop("id") == ID
    return found


def test_begin_of_an_item_is_its_end_where_nobody_knows_more() -> None:
    assert told(r.Plan(ID, "p", 11, 22)) == {"type": "plan", "text": "p", **TIMES}
    assert told(r.Plan(ID, "p", None, 22)) == {
        "type": "plan", "text": "p", "startedAtMs": 22, "completedAtMs": 22
    }  # fmt: skip
    assert told(r.Plan(ID, "p", 0, 22))["startedAtMs"] == 0
    assert told(r.Plan(ID, "p", 11)) == {
        "type": "plan",
        "text": "p",
        "startedAtMs": 11,
        "completedAtMs": None,
    }


CONTENT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "text", "text": "hi"}, {"type": "text", "text": "hi", "text_elements": []}),
    (
        {
            "type": "text",
            "text": "hi",
            "text_elements": [
                {"byte_range": {"start": 1, "end": 2}, "placeholder": "@a"},
                {"byte_range": {"start": 3, "end": 5}},
                {},
            ],
        },
        {
            "type": "text",
            "text": "hi",
            "text_elements": [
                {"byteRange": {"start": 1, "end": 2}, "placeholder": "@a"},
                {"byteRange": {"start": 3, "end": 5}, "placeholder": None},
                {"byteRange": {"start": 0, "end": 0}, "placeholder": None},
            ],
        },
    ),
    ({"type": "image", "image_url": "data:x"}, {"type": "image", "url": "data:x"}),
    ({"type": "local_image", "path": "/a.png"}, {"type": "localImage", "path": "/a.png"}),
    ({"type": "skill", "name": "n", "path": "/p"}, {"type": "skill", "name": "n", "path": "/p"}),
    ({"type": "mention", "name": "n", "path": "/p"}, {"type": "mention", "name": "n", "path": "/p"}),
]


@pytest.mark.parametrize(
    "who", [{}, {"who": "ann"}, {"from_session": TWO}, {"who": "ann", "from_session": TWO}]
)
def test_words_have_each_part_in_its_order_and_who_said_them(who: dict[str, Any]) -> None:
    message = r.UserMessage(
        ID, tuple(part for part, _ in CONTENT), "mine", started_ms=11, completed_ms=22, **who
    )
    sent = {"who": "sentBy", "from_session": "sentByThreadId"}
    assert told(message) == {
        "type": "userMessage", "clientId": "mine", "content": [shown for _, shown in CONTENT], **TIMES,
        **{sent[name]: value for name, value in who.items()},
    }  # fmt: skip
    assert told(r.UserMessage(ID, ()))["clientId"] is None


ITEMS: list[tuple[r.ThreadItem, dict[str, Any]]] = [
    *(
        (r.AgentMessage(ID, "m", phase), {"type": "agentMessage", "text": "m", "phase": shown})
        for phase, shown in (
            *((one, one) for one in ("commentary", "partial_answer", "final_answer", None)),
            ("of tomorrow", None),
        )
    ),
    (r.Reasoning(ID, ("a", "b"), ("c",)), {"type": "reasoning", "summary": ["a", "b"], "content": ["c"]}),
    (r.ImageView(ID, "/a.png"), {"type": "imageView", "path": "/a.png"}),
    (r.EnteredReview(ID, "r"), {"type": "enteredReviewMode", "review": "r"}),
    (r.ExitedReview(ID, "r"), {"type": "exitedReviewMode", "review": "r"}),
    (r.ContextCompaction(ID), {"type": "contextCompaction"}),
    *(
        (r.WebSearch(ID, "asked", action), {"type": "webSearch", "query": "asked", "action": shown})
        for action, shown in (
            (None, None),
            (
                {"type": "search", "query": "q", "queries": ["q", "r"], "url": "u"},
                {"type": "search", "query": "q", "queries": ["q", "r"]},
            ),
            (
                {"type": "search", "query": "q", "queries": []},
                {"type": "search", "query": "q", "queries": None},
            ),
            ({"type": "open_page", "url": "u", "query": "q"}, {"type": "openPage", "url": "u"}),
            (
                {"type": "find_in_page", "url": "u", "pattern": "p"},
                {"type": "findInPage", "url": "u", "pattern": "p"},
            ),
            ({"type": "of tomorrow", "url": "u"}, {"type": "other"}),
        )
    ),
]


@pytest.mark.parametrize(("item", "shown"), ITEMS)
def test_item_of_each_kind_without_a_status_is_told_as_it_is(
    item: r.ThreadItem, shown: dict[str, Any]
) -> None:
    assert told(item) == {**shown, "startedAtMs": None, "completedAtMs": None}


ACTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"type": "read", "cmd": "cat a", "name": "a", "path": "/w/a"},
        {"type": "read", "command": "cat a", "name": "a", "path": "/w/a"},
    ),
    (
        {"type": "read", "cmd": "cat a", "name": "a"},
        {"type": "read", "command": "cat a", "name": "a", "path": "a"},
    ),
    ({"type": "list_files", "cmd": "ls", "path": "/w"}, {"type": "listFiles", "command": "ls", "path": "/w"}),
    (
        {"type": "search", "cmd": "rg x", "query": "x", "path": "/w"},
        {"type": "search", "command": "rg x", "query": "x", "path": "/w"},
    ),
    ({"type": "of tomorrow", "cmd": "y", "path": "/w"}, {"type": "unknown", "command": "y"}),
]
SOURCES = {
    ExecCommandSource.AGENT: "agent",
    ExecCommandSource.USER_SHELL: "userShell",
    ExecCommandSource.UNIFIED_EXEC_STARTUP: "unifiedExecStartup",
    ExecCommandSource.UNIFIED_EXEC_INTERACTION: "unifiedExecInteraction",
}


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("doubt", ["", "it may have run"])
def test_command_is_told_with_what_became_of_it(
    doubt: str, source: ExecCommandSource, status: r.ItemStatus
) -> None:
    actions = tuple(parsed for parsed, _ in ACTIONS)
    command = r.CommandExecution(
        ID, ("cat", "a b"), "/w", status, source, actions, "out", 3, 44, "7", 11, 22, doubt
    )
    assert told(command) == {
        "type": "commandExecution", "command": "cat 'a b'", "cwd": "/w", "processId": "7",
        "source": SOURCES[source], "status": STATUSES[status][0],
        "commandActions": [shown for _, shown in ACTIONS],
        "aggregatedOutput": "out", "exitCode": 3, "durationMs": 44, **TIMES,
        **({"inDoubt": doubt} if doubt else {}),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "script"),
    [
        (("bash", "-lc", "cat a"), "cat a"), (("/bin/sh", "-c", "cat a"), "cat a"), (("zsh", "-c", "x"), "x"),
        (("bash", "-x", "cat a"), "bash -x 'cat a'"), (("fish", "-c", "cat a"), "fish -c 'cat a'"),
        (("bash", "-c", "cat a", "b"), "bash -c 'cat a' b"), (("ls",), "ls"),
        (("bash", "-c", ""), "bash -c ''"),
    ],
)  # fmt: skip
def test_command_of_which_no_more_is_known_is_shown_by_its_script_or_whole(
    argv: tuple[str, ...], script: str
) -> None:
    assert told(r.CommandExecution(ID, argv, "/w"))["commandActions"] == [
        {"type": "unknown", "command": script}
    ]


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("doubt", ["", "it may be written"])
def test_change_of_files_is_told_with_each_file(doubt: str, status: r.ItemStatus) -> None:
    files = (
        r.FileDiff("/add", r.ChangeKind.ADD, "d1", "/never"),
        r.FileDiff("/gone", r.ChangeKind.DELETE, "d2"),
        r.FileDiff("/same", r.ChangeKind.UPDATE, "d3"),
        r.FileDiff("/from", r.ChangeKind.UPDATE, "d4", "/to"),
    )
    assert told(r.FileChange(ID, files, status, 5, 11, 22, doubt)) == {
        "type": "fileChange",
        "changes": [
            {"path": "/add", "kind": {"type": "add"}, "diff": "d1"},
            {"path": "/gone", "kind": {"type": "delete"}, "diff": "d2"},
            {"path": "/same", "kind": {"type": "update", "move_path": None}, "diff": "d3"},
            {"path": "/from", "kind": {"type": "update", "move_path": "/to"}, "diff": "d4\n\nMoved to: /to"},
        ],
        "status": STATUSES[status][0],
        **TIMES,
        **({"inDoubt": doubt} if doubt else {}),
    }


TEXT = {"type": "text", "text": "x"}


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (None, None),
        ({"content": [TEXT]}, {"content": [TEXT], "structuredContent": None}),
        ({"content": [], "structuredContent": {"a": 1}}, {"content": [], "structuredContent": {"a": 1}}),
        ({}, {"content": [], "structuredContent": None}),
    ],
)
@pytest.mark.parametrize("error", [None, "no"])
@pytest.mark.parametrize("doubt", ["", "it may have acted"])
def test_call_of_a_servers_tool_is_told_with_its_result_or_its_error(
    doubt: str, error: str | None, result: Any, shown: Any, status: r.ItemStatus
) -> None:
    call = r.McpToolCall(ID, "srv", "tool", {"a": 1}, status, result, error, 44, 11, 22, doubt)
    assert told(call) == {
        "type": "mcpToolCall", "server": "srv", "tool": "tool", "arguments": {"a": 1},
        "status": STATUSES[status][1], "result": shown,
        "error": None if error is None else {"message": "no"}, "durationMs": 44, **TIMES,
        **({"inDoubt": doubt} if doubt else {}),
    }  # fmt: skip


IMAGE = {"type": "input_image", "image_url": "https://example.org/a.png"}
SAID = {"type": "input_text", "text": "y"}


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize(
    ("output", "parts", "shown"),
    [
        (None, (), None),
        ("", (), [{"type": "inputText", "text": ""}]),
        ("out", (), [{"type": "inputText", "text": "out"}]),
        (
            "out",
            (SAID, IMAGE),
            [
                {"type": "inputText", "text": "y"},
                {"type": "inputImage", "imageUrl": "https://example.org/a.png"},
            ],
        ),
    ],
)
@pytest.mark.parametrize("success", [True, False, None])
def test_call_of_another_tool_is_told_with_what_it_has_given_back(
    success: bool | None, output: str | None, parts: Any, shown: Any, status: r.ItemStatus
) -> None:
    call = r.DynamicToolCall(ID, "tool", {"a": 1}, "space", status, output, success, 44, 11, 22, parts)
    assert told(call) == {
        "type": "dynamicToolCall", "namespace": "space", "tool": "tool", "arguments": {"a": 1},
        "status": STATUSES[status][1], "contentItems": shown, "success": success, "durationMs": 44, **TIMES,
    }  # fmt: skip


TOOLS = {
    r.CollabTool.SPAWN: "spawnAgent",
    r.CollabTool.SEND_INPUT: "sendInput",
    r.CollabTool.INTERRUPT: "interruptAgent",
    r.CollabTool.WAIT: "wait",
    r.CollabTool.CLOSE: "closeAgent",
    r.CollabTool.LIST: "listAgents",
}


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("tool", TOOLS)
def test_call_about_agents_is_told_with_each_of_them(tool: r.CollabTool, status: r.ItemStatus) -> None:
    states: dict[str, r.CollabState] = {
        ONE: r.CollabState(r.CollabStatus.PENDING_INIT, "first"),
        TWO: r.CollabState(r.CollabStatus.COMPLETED),
    }
    call = r.CollabToolCall(ID, tool, ROOT, (ONE, TWO), "go", "gpt", "low", states, status, 11, 22)
    interrupted = status is r.ItemStatus.INTERRUPTED
    assert told(call) == {
        "type": "collabAgentToolCall", "tool": TOOLS[tool],
        "status": "interrupted" if interrupted else STATUSES[status][1],
        "senderThreadId": ROOT, "receiverThreadIds": [ONE, TWO], "prompt": "go", "model": "gpt",
        "reasoningEffort": "low",
        "agentsStates": {
            ONE: {"status": "pendingInit", "message": "first"}, TWO: {"status": "completed", "message": None}
        },
        **TIMES,
    }  # fmt: skip


def used(first: int) -> TokenUsage:
    return TokenUsage(
        input_tokens=first,
        cached_input_tokens=first + 1,
        output_tokens=first + 2,
        reasoning_output_tokens=first + 3,
        total_tokens=first + 4,
    )


# ── changes ───────────────────────────────────────────────────────────────────────────────────────

PLACE = {"threadId": ONE, "turnId": TURN}
DELTAS: dict[r.DeltaKind, tuple[str, dict[str, Any]]] = {
    r.DeltaKind.MESSAGE: ("item/agentMessage/delta", {"delta": "x"}),
    r.DeltaKind.PLAN: ("item/plan/delta", {"delta": "x"}),
    r.DeltaKind.REASONING_SUMMARY: ("item/reasoning/summaryTextDelta", {"delta": "x", "summaryIndex": 4}),
    r.DeltaKind.REASONING_PART: ("item/reasoning/summaryPartAdded", {"summaryIndex": 4}),
    r.DeltaKind.REASONING_TEXT: ("item/reasoning/textDelta", {"delta": "x", "contentIndex": 4}),
    r.DeltaKind.COMMAND_OUTPUT: ("item/commandExecution/outputDelta", {"delta": "x"}),
    r.DeltaKind.TERMINAL_INPUT: (
        "item/commandExecution/terminalInteraction",
        {"processId": "7", "stdin": "x"},
    ),
    r.DeltaKind.PROGRESS: ("item/mcpToolCall/progress", {"message": "x"}),
}
FILES = (
    "diff --git a/old b/new\nnew file mode 100644\n+x\n"
    "diff --git a/kept b/moved\nindex 1..2\n+diff --git a/old b/new\n"
    "diff --git a/two b/three\nnew file mode 100755\n+y\n"
)
ITEM = r.Plan(ID, "p", 11, 22)
WRITTEN = {"type": "plan", "text": "p", "id": ID, **TIMES}
CHANGES: list[tuple[r.Change, str, dict[str, Any]]] = [
    *(
        (r.ItemDelta(TURN, ID, kind, "x", 4, "7"), method, {**PLACE, "itemId": ID, **more})
        for kind, (method, more) in DELTAS.items()
    ),
    (
        r.ItemDelta(TURN, ID, r.DeltaKind.TERMINAL_INPUT, "x"),
        "item/commandExecution/terminalInteraction",
        {**PLACE, "itemId": ID, "processId": "", "stdin": "x"},
    ),
    (r.ItemStarted(TURN, ITEM), "item/started", {**PLACE, "item": WRITTEN, "startedAtMs": 11}),
    (r.ItemCompleted(TURN, ITEM), "item/completed", {**PLACE, "item": WRITTEN, "completedAtMs": 22}),
    (
        r.PlanUpdated(
            TURN, "why", (("a", "in_progress"), ("b", "pending"), ("c", "completed"), ("d", "odd"))
        ),
        "turn/plan/updated",
        {
            **PLACE,
            "explanation": "why",
            "plan": [
                {"step": "a", "status": "inProgress"}, {"step": "b", "status": "pending"},
                {"step": "c", "status": "completed"}, {"step": "d", "status": "pending"},
            ],
        },
    ),
    (
        r.DiffUpdated(TURN, FILES),
        "turn/diff/updated",
        {
            **PLACE,
            "diff": "diff --git a/new b/new\nnew file mode 100644\n+x\n"
            "diff --git a/kept b/moved\nindex 1..2\n+diff --git a/old b/new\n"
            "diff --git a/three b/three\nnew file mode 100755\n+y\n",
        },
    ),
    (
        r.TokenUsageUpdated(
            TURN,
            used(1),
            used(6),
            11,
        ),
        "thread/tokenUsage/updated",
        {
            **PLACE,
            "tokenUsage": {
                "total": {
                    "inputTokens": 1, "cachedInputTokens": 2, "outputTokens": 3, "reasoningOutputTokens": 4,
                    "totalTokens": 5,
                },
                "last": {
                    "inputTokens": 6, "cachedInputTokens": 7, "outputTokens": 8, "reasoningOutputTokens": 9,
                    "totalTokens": 10,
                },
                "modelContextWindow": 11,
            },
        },
    ),
    (r.Warned("w", TURN), "warning", {"threadId": ONE, "message": "w"}),
    (r.StatusChanged(r.Idle()), "thread/status/changed", {"threadId": ONE, "status": {"type": "idle"}}),
    (
        r.StatusChanged(r.Broken()),
        "thread/status/changed",
        {"threadId": ONE, "status": {"type": "systemError"}},
    ),
    (
        r.StatusChanged(r.Active(tuple(r.ActiveFlag)[::-1])),
        "thread/status/changed",
        {
            "threadId": ONE,
            "status": {"type": "active", "activeFlags": ["waitingOnUserInput", "waitingOnApproval"]},
        },
    ),
    (r.NameChanged("n"), "thread/name/updated", {"threadId": ONE, "threadName": "n"}),
    (r.NameChanged(None), "thread/name/updated", {"threadId": ONE, "threadName": None}),
    (r.TurnsDropped(2), "thread/reverted", {"threadId": ONE}),
    (r.QueueChanged(), "thread/queue/changed", {"threadId": ONE}),
]  # fmt: skip


@pytest.mark.parametrize(("change", "method", "params"), CHANGES)
def test_change_of_each_kind_is_told_word_for_word(
    change: r.Change, method: str, params: dict[str, Any]
) -> None:
    assert list(notifications(ONE, change, "of the root")) == [(method, params)]


@pytest.mark.parametrize("root", [None, "of the root"])
@pytest.mark.parametrize("status", list(r.TurnStatus))
def test_turn_is_told_with_its_root_turn_its_times_and_as_many_items_as_a_view_has(
    status: r.TurnStatus, root: str | None
) -> None:
    items = (
        r.UserMessage(ID, ({"type": "text", "text": "go"},)),
        r.AgentMessage(ID, "a"),
        ITEM,
        r.AgentMessage(ID, "b"),
    )
    turn = r.Turn(TURN, status, items, None, 1_900, 4_100)
    whole = {
        "id": TURN, "rootTurnId": root or TURN, "error": None,
        "startedAt": 1, "completedAt": 4, "durationMs": 2_200,
        "status": {"in_progress": "inProgress"}.get(status.value, status.value),
    }  # fmt: skip
    done = status is r.TurnStatus.COMPLETED
    last, words = [item_json(items[3])] if done else [], [item_json(items[0])]
    full = [item_json(item) for item in items]
    found = {view: turn_json(turn, view, root) for view in ("full", "summary", "notLoaded")}
    assert found == {
        "full": {**whole, "items": full, "itemsView": "full"},
        "summary": {**whole, "items": last, "itemsView": "summary" if done else "notLoaded"},
        "notLoaded": {**whole, "items": [], "itemsView": "notLoaded"},
    }
    listed = {view: listed_turn_json(turn, view, root) for view in ("full", "summary", "notLoaded")}
    assert listed == {**found, "summary": {**whole, "items": words + last, "itemsView": "summary"}}
    for method, change in (("turn/started", r.TurnStarted(turn)), ("turn/completed", r.TurnCompleted(turn))):
        view = "notLoaded" if method == "turn/started" else "summary"
        assert list(notifications(ONE, change, root)) == [(method, {"threadId": ONE, "turn": found[view]})]
    assert turn_json(r.Turn(TURN, status), "full")["items"] == []
    assert turn_json(r.Turn(TURN, status), "full")["itemsView"] == "full"


@pytest.mark.parametrize(
    ("started", "completed", "lasted"), [(None, 5, None), (5, None, None), (9, 4, 0), (0, 0, 0), (4, 9, 5)]
)
def test_turn_has_lasted_as_long_as_both_its_ends_say(
    started: int | None, completed: int | None, lasted: int | None
) -> None:
    turn = r.Turn(TURN, r.TurnStatus.COMPLETED, (), None, started, completed)
    assert turn_json(turn, "full")["durationMs"] == lasted


RETRY = "stream error: cut; retrying 2/5 in 5ms…"


@pytest.mark.parametrize("will_retry", [True, False])
@pytest.mark.parametrize(
    ("fault", "retried", "final"),
    [
        (
            r.Fault(RETRY),
            ("Reconnecting... 2/5", {"responseStreamDisconnected": {"httpStatusCode": None}}, RETRY),
            (RETRY, None, None),
        ),
        (
            r.Fault(RETRY, "bad_request", "why"),
            ("Reconnecting... 2/5", "badRequest", "why"),
            (RETRY, "badRequest", "why"),
        ),
        (
            r.Fault("uncounted"),
            ("uncounted", {"responseStreamDisconnected": {"httpStatusCode": None}}, "uncounted"),
            ("uncounted", None, None),
        ),
    ],
)
def test_fault_of_a_try_says_which_it_was_and_a_last_one_what_it_is(
    fault: r.Fault, retried: Any, final: Any, will_retry: bool
) -> None:
    message, info, details = retried if will_retry else final
    shown = {"message": message, "codexErrorInfo": info, "additionalDetails": details, "misalignment": None}
    assert fault_json(fault, will_retry=will_retry) == shown
    change = r.TurnError(TURN, fault, will_retry)
    assert list(notifications(ONE, change)) == [("error", {**PLACE, "error": shown, "willRetry": will_retry})]
    assert error_info({"http_connection_failed": {"http_status_code": 502}}) == {
        "httpConnectionFailed": {"httpStatusCode": 502}
    }


# ── threads ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("spawned", [None, Spawned(TWO, "0/3/5", "scout", "spawn"), Spawned(TWO, "0/3")])
@pytest.mark.parametrize("source", ["cli", "exec"])
def test_thread_is_told_with_its_times_in_seconds_its_repository_and_where_it_came_from(
    source: Any, spawned: Spawned | None
) -> None:
    thread = Thread(
        ONE, ROOT, "active", 1_900, 2_900, 3_900, "user_input", "first words", "named", "/w", "gpt", "own",
        "low", "/rollout", {"commit_hash": "c", "branch": "b", "repository_url": "u"}, TWO, source, True,
        True, spawned,
    )  # fmt: skip
    nickname, role = (spawned.nickname, spawned.role) if spawned else (None, None)
    of_agent = {
        "parent_thread_id": TWO, "depth": 2 if nickname else 1,
        "agent_path": "/root/3/5" if nickname else "/root/3", "agent_nickname": nickname, "agent_role": role,
    }  # fmt: skip
    assert thread_json(thread, [{"id": "t"}]) == {
        "id": ONE, "sessionId": ROOT, "forkedFromId": TWO, "parentThreadId": TWO if spawned else None,
        "preview": "first words", "ephemeral": True, "projectId": None, "historyMode": "paginated",
        "modelProvider": "own", "model": "gpt", "reasoningEffort": "low",
        "createdAt": 1, "updatedAt": 2, "recencyAt": 3,
        "status": {"type": "active", "activeFlags": ["waitingOnUserInput"]}, "path": "/rollout",
        "cwd": "/w", "cliVersion": cli_version(), "originator": None,
        "source": {"subAgent": {"thread_spawn": of_agent}} if spawned else source,
        "canAcceptDirectInput": True, "threadSource": "subagent" if spawned else None,
        "agentNickname": nickname, "agentRole": role,
        "gitInfo": {"sha": "c", "branch": "b", "originUrl": "u"}, "name": "named", "turns": [{"id": "t"}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "waits", "shown"),
    [
        ("active", None, {"type": "active", "activeFlags": []}),
        ("active", "approval", {"type": "active", "activeFlags": ["waitingOnApproval"]}),
        ("idle", "approval", {"type": "idle"}),
        ("not_loaded", None, {"type": "notLoaded"}),
        ("system_error", None, {"type": "systemError"}),
    ],
)
def test_thread_of_which_less_is_known_is_told_so(status: Any, waits: Any, shown: dict[str, Any]) -> None:
    told = thread_json(Thread(ONE, ONE, status, 1_000, 5_000, 2_000, waits, git={"branch": "b"}))
    assert (told["status"], told["recencyAt"], told["model"], told["reasoningEffort"]) == (
        shown,
        5,
        None,
        None,
    )
    assert told["gitInfo"] == {"sha": None, "branch": "b", "originUrl": None}
    assert thread_json(Thread(ONE, ONE, status, 1_000, 5_000))["gitInfo"] is None
