"""Methods that hand something in: the operation has all that its client said, and is its thread's alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.core.settings import TurnSettings
from orchestrator.gateways.app_server.door import Door
from orchestrator.gateways.app_server.door_ports import ConfigWrite, ConfigWritten
from orchestrator.gateways.app_server.messages import Code, RpcError
from orchestrator.gateways.app_server.methods import METHODS, changes, queue, threads, turns, v1
from orchestrator.gateways.principals import Principal
from orchestrator.protocol.wire import written
from tests.doors.test_door_of_several_threads import OTHER, ROOT, Sent
from tests.views.test_thread_log import Logs, turn
from tests.views.test_threads import ROOT as LOGGED

INPUT: list[dict[str, Any]] = [
    {
        "type": "text",
        "text": "go",
        "text_elements": [{"byteRange": {"start": 0, "end": 2}, "placeholder": "p"}],
    },
    {"type": "localImage", "path": "/w/a.png"},
    {"type": "image", "url": "data:image/png;base64,eA=="},
    {"type": "skill", "name": "s", "path": "/s"},
    {"type": "mention", "name": "n", "path": "app://n"},
]
SAID: list[dict[str, Any]] = [
    {
        "type": "text",
        "text": "go",
        "text_elements": [{"byte_range": {"start": 0, "end": 2}, "placeholder": "p"}],
    },
    {"type": "local_image", "path": "/w/a.png"},
    {"type": "image", "image_url": "data:image/png;base64,eA=="},
    {"type": "skill", "name": "s", "path": "/s"},
    {"type": "mention", "name": "n", "path": "app://n"},
]
V1_INPUT = [{"type": "text", "data": {"text": "go"}}, {"type": "localImage", "data": {"path": "/w/a.png"}}]
ITEMS = [{"type": "text", "text": "go"}, {"type": "local_image", "path": "/w/a.png"}]
NOTE = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
TARGET = {"type": "custom", "instructions": "all of it"}
NAMED: dict[str, Any] = {
    "cwd": "/w/b",
    "model": "m2",
    "effort": "low",
    "summary": "detailed",
    "approvalPolicy": "untrusted",
    "sandboxPolicy": {"type": "workspaceWrite", "writableRoots": ["/r"], "networkAccess": True},
    "personality": "friendly",
}
SET: dict[str, Any] = {
    "cwd": "/w/b",
    "model": "m2",
    "effort": "low",
    "summary": "detailed",
    "approval_policy": "untrusted",
    "sandbox_policy": {"mode": "workspace-write", "writable_roots": ["/r"], "network_access": True},
    "personality": "friendly",
}
COME_BACK = {name: NAMED[name] for name in ("cwd", "model", "approvalPolicy")} | {"sandbox": "read-only"}
COME_BACK_SET = {name: SET[name] for name in ("cwd", "model", "approval_policy")}
COME_BACK_SET |= {"sandbox_policy": {"mode": "read-only"}}
OLD: dict[str, Any] = {
    "cwd": "/w/b",
    "approvalPolicy": "untrusted",
    "sandboxPolicy": {"mode": "workspace-write", "network_access": True},
    "model": "m2",
    "effort": "low",
    "summary": "detailed",
}
OLD_SET = {name: SET[name] for name in ("cwd", "approval_policy", "model", "effort", "summary")}
OLD_SET |= {"sandbox_policy": {"mode": "workspace-write", "network_access": True}}

HANDED_IN: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "turn/start",
        {"input": INPUT, "clientUserMessageId": "m", "outputSchema": {"type": "object"}},
        {
            "type": "user_input",
            "items": SAID,
            "delivery": "steer",
            "client_user_message_id": "m",
            "final_output_json_schema": {"type": "object"},
        },
    ),
    *[
        (
            "turn/start",
            {"input": INPUT, name: value},
            {
                "type": "user_input",
                "items": SAID,
                "delivery": "steer",
                "overrides": {"type": "override_turn_context", our: SET[our]},
            },
        )
        for (name, value), our in zip(NAMED.items(), SET, strict=True)
    ],
    (
        "turn/steer",
        {"input": INPUT, "expectedTurnId": "t", "clientUserMessageId": "m"},
        {
            "type": "user_input",
            "items": SAID,
            "delivery": "steer",
            "expected_turn_id": "t",
            "client_user_message_id": "m",
        },
    ),
    *[
        (
            "turn/interrupt",
            {"turnId": "t", **more},
            {"type": "interrupt", "expected_turn_id": "t", "tree": more.get("tree", False)},
        )
        for more in ({}, {"tree": True}, {"tree": False})
    ],
    (
        "thread/queue/add",
        {"input": INPUT, "clientUserMessageId": "m"},
        {"type": "user_input", "items": SAID, "client_user_message_id": "m", "delivery": "queue"},
    ),
    ("thread/queue/delete", {"queuedSubmissionId": "q"}, {"type": "remove_queued", "submission_id": "q"}),
    (
        "thread/queue/update",
        {"queuedSubmissionId": "q", "input": INPUT},
        {"type": "update_queued", "submission_id": "q", "items": SAID},
    ),
    *[
        ("thread/settings/update", {name: value}, {"type": "override_turn_context", our: SET[our]})
        for (name, value), our in zip(NAMED.items(), SET, strict=True)
    ],
    ("thread/settings/update", NAMED, {"type": "override_turn_context", **SET}),
    ("thread/resume", COME_BACK, {"type": "override_turn_context", **COME_BACK_SET}),
    ("thread/name/set", {"name": "new"}, {"type": "set_thread_name", "name": "new"}),
    ("thread/compact/start", {}, {"type": "compact"}),
    ("thread/shellCommand", {"command": "make"}, {"type": "run_user_shell_command", "command": "make"}),
    ("thread/inject_items", {"items": [NOTE, NOTE]}, {"type": "inject_items", "items": [NOTE, NOTE]}),
    ("thread/revert", {"beforeTurnId": "t"}, {"type": "thread_rollback", "num_turns": 3}),
    ("review/start", {"target": TARGET}, {"type": "review", "review_request": {"target": TARGET}}),
    ("sendUserMessage", {"items": V1_INPUT}, {"type": "user_input", "items": ITEMS}),
    ("sendUserTurn", {"items": V1_INPUT, **OLD}, {"type": "user_turn", "items": ITEMS, **OLD_SET}),
    ("resumeConversation", {"overrides": COME_BACK}, {"type": "override_turn_context", **COME_BACK_SET}),
    ("interruptConversation", {}, {"type": "interrupt"}),
]


def plain(value: Any) -> Any:
    """A value of the wire without the members that say what counts without them."""
    if isinstance(value, dict):
        return {
            name: plain(each) for name, each in value.items() if each not in (None, False, [], {}, "queue")
        }
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


class Keeps:
    """A client that keeps what it is handed, and to whom."""

    namespace = ""

    def __init__(self, *, at_rest: bool) -> None:
        self.at_rest = at_rest
        self.sent: list[tuple[SessionId, dict[str, Any]]] = []

    def known_as(self, client_id: str) -> Keeps:
        return self

    def calling_itself(self, name: str) -> None:
        """Nobody is told of the name."""

    async def head(self, session: SessionId) -> Any:
        status = "idle" if self.at_rest else "running"
        return SimpleNamespace(
            session=session, at_rest=self.at_rest, shelved=False, status=status, pool="p", agent_id=0,
            tree=session, summary={}, seq=1, holder=None, has_unread=False, sq_tip="1-0", cursor="1-0",
            quarantined=False,
        )  # fmt: skip

    async def history(self) -> Any:
        return SimpleNamespace(log_id=1, count=0)

    async def submit(self, to: Any, submission: Any) -> Any:
        self.sent.append((getattr(to, "session", to), written(submission.op)))
        return SimpleNamespace(holder="w", sq_id="2-0", duplicate=False)

    async def until(self, sessions: Any, look: Any, patience_s: float | None = None) -> Any:
        return True

    async def follow(self, session: SessionId, cursor: Any) -> AsyncIterator[Any]:
        events: tuple[Any, ...] = ()
        for event in events:
            yield event


def a_door(client: Keeps, monkeypatch: pytest.MonkeyPatch) -> Door:
    async def settings(*_: Any) -> TurnSettings:
        return TurnSettings("/w", "never", {"mode": "danger-full-access"}, "m")

    async def value(*_: Any) -> Any:
        return {}

    async def several(*_: Any) -> list[Any]:
        return []

    async def nothing(*_: Any) -> None:
        return None

    async def three(*_: Any) -> int:
        return 3

    async def answer(head: Any, client: Any, tells: Any, submit: Any, patience_s: float) -> None:
        await submit()

    for module, names, stand_in in (
        (turns, ("settings_of",), settings),
        (changes, ("settings_of",), settings),
        (turns, ("thread_of", "_tell_tokens"), value),
        (turns, ("_turn_with",), nothing),
        (changes, ("thread_of",), value),
        (turns, ("all_turns", "_running_below"), several),
        (queue, ("waiting_inputs",), several),
        (v1, ("past_events",), several),
        (v1, ("_path",), value),
        (changes, ("_said_since",), three),
    ):
        for name in names:
            monkeypatch.setattr(module, name, stand_in)
    monkeypatch.setattr(turns, "end_of", lambda head, kind: "")
    monkeypatch.setattr(changes, "end_of", lambda head, kind: "")
    at = Sent()
    ports, heard = cast(Any, at.door.ports), cast(Any, at.threads)
    ports.client, ports.random_bytes, ports.unserved_s = (lambda principal, via: client), bytes, 0.0
    ports.asks_auto_review = False
    heard.of, heard.answer = (lambda session: None), answer
    outbox = cast(Any, SimpleNamespace(put=at.lines.append))
    return Door(ports, heard, Principal("ann"), outbox)


@pytest.mark.parametrize(
    ("method", "given", "op"), HANDED_IN, ids=[f"{n}-{each[0]}" for n, each in enumerate(HANDED_IN)]
)
@pytest.mark.parametrize("thread", [ROOT, OTHER])
@pytest.mark.parametrize("at_rest", [True, False])
async def test_operation_has_all_that_the_client_said_and_is_handed_to_its_thread_once(
    method: str,
    given: dict[str, Any],
    op: dict[str, Any],
    thread: SessionId,
    at_rest: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, client = METHODS[method], Keeps(at_rest=at_rest)
    door = a_door(client, monkeypatch)
    if method == "interruptConversation":
        door.conversations._listening["listener"] = thread
        monkeypatch.setattr(v1, "INTERRUPT_S", 0.0)
        monkeypatch.setattr(v1, "TOLD_S", 0.0)
    params = found.params.model_validate({"threadId": thread, "conversationId": thread, **given})
    if at_rest and method in ("turn/steer", "turn/interrupt", "interruptConversation"):
        with pytest.raises(RpcError):
            await found.answer(door, params)
        assert client.sent == []
        return
    undecided = {
        *("turn/steer", "turn/interrupt", "thread/revert", "thread/inject_items", "interruptConversation"),
        *("thread/queue/delete", "thread/queue/update"),
    }
    # No worker is here to decide: what was handed in waits for one.
    with pytest.raises(RpcError) if method in undecided else nullcontext():
        await found.answer(door, params)
    ((session, handed_in),) = client.sent
    assert session == thread
    assert plain(handed_in) == plain(op)


async def test_methods_that_hand_something_in_are_all_tried_here() -> None:
    tried = {method for method, _, _ in HANDED_IN}
    submitting = {
        name
        for table in (turns.METHODS, changes.METHODS, queue.METHODS, threads.METHODS, v1.METHODS)
        for name, method in table.items()
        if method.scope.word in ("submit", "approve")
    }
    others = {
        # Threads and conversations are made, listed or put away: nothing is handed in to a session.
        *("thread/start", "thread/archive", "thread/unarchive", "newConversation", "archiveConversation"),
        # Tried with all that waits beside the words, and with processes that live.
        *("thread/queue/reorder", "thread/queue/start", "thread/backgroundTerminals/clean"),
    }
    assert submitting - others == tried - {"thread/resume"}


OUTSIDE: dict[str, dict[str, Any]] = {
    "turn/start": {"input": INPUT, "sandboxPolicy": {"type": "externalSandbox"}},
    "thread/settings/update": {"sandboxPolicy": {"type": "externalSandbox"}},
    "sendUserTurn": {"items": V1_INPUT, **OLD, "sandboxPolicy": {"mode": "external-sandbox"}},
    "command/exec": {"command": ["id"], "sandboxPolicy": {"type": "externalSandbox"}},
    "execOneOffCommand": {"command": ["id"], "sandboxPolicy": {"mode": "external-sandbox"}},
}


@pytest.mark.parametrize("method", OUTSIDE)
async def test_sandbox_that_is_not_dendros_is_refused_by_each_method_that_takes_a_policy(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, client = METHODS[method], Keeps(at_rest=True)
    door = a_door(client, monkeypatch)
    cast(Any, door.ports).jobs = None
    params = found.params.model_validate({"threadId": ROOT, "conversationId": ROOT, **OUTSIDE[method]})
    with pytest.raises(RpcError) as refused:
        await found.answer(door, params)
    assert refused.value.code == Code.BAD_PARAMS
    assert "sandboxPolicy" in refused.value.message
    assert client.sent == []


@pytest.mark.parametrize("member", ["tty", "streamStdin", "streamStdoutStderr"])
async def test_command_of_no_session_has_neither_terminal_nor_streams(
    member: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, door = METHODS["command/exec"], a_door(Keeps(at_rest=True), monkeypatch)
    cast(Any, door.ports).jobs = None
    with pytest.raises(RpcError) as refused:
        await found.answer(door, found.params.model_validate({"command": ["id"], member: True}))
    assert refused.value.code == Code.BAD_PARAMS


async def test_thread_is_taken_back_by_all_that_people_have_said_since_a_turn_began() -> None:
    logs, said = Logs(), {"a": ("1",), "b": ("2", "3"), "c": (), "d": ("4", "5", "6"), "e": ()}
    head = logs.add(LOGGED, [line for name, texts in said.items() for line in turn(name, *texts)])
    door = cast(Any, SimpleNamespace(ports=SimpleNamespace(found=logs)))
    texts = list(said.values())
    for place, name in enumerate(said):
        count = sum(map(len, texts[place:]))
        if count:
            assert await changes._said_since(door, head, name) == count
        else:
            with pytest.raises(RpcError, match="nobody spoke in turn e"):
                await changes._said_since(door, head, name)


@pytest.mark.parametrize("listed", [True, False])
async def test_agents_conversation_is_not_put_away_by_itself(
    listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    door, shelved = a_door(Keeps(at_rest=True), monkeypatch), list[SessionId]()

    async def enlist(session: SessionId, *, shelve: bool) -> bool:
        shelved.append(session)
        return listed

    async def at_rest(door: Any, head: Any) -> None: ...

    monkeypatch.setattr(v1, "tree_at_rest", at_rest)
    trees = SimpleNamespace(enlist=enlist)
    cast(Any, door.ports).found = SimpleNamespace(broker=SimpleNamespace(trees=trees))
    asked = v1.ArchiveConversation.model_validate({"conversationId": ROOT})
    with nullcontext() if listed else pytest.raises(RpcError, match="listed with its root"):
        assert await v1.archive_conversation(door, asked) == {}
    assert shelved == [ROOT]


class Writes:
    """A door that writes settings, and what it was to write."""

    def __init__(self) -> None:
        self.wanted: list[ConfigWrite] = []
        self.ports = SimpleNamespace(write_settings=self._write)

    async def _write(self, wanted: ConfigWrite) -> ConfigWritten:
        self.wanted.append(wanted)
        return ConfigWritten(Path("/f"), "1")


TABLE = {"a": {"b": {"c": 1, "d": 2}, "e": 3}, "f": {}}
LEAVES = [(("t", "a", "b", "c"), 1), (("t", "a", "b", "d"), 2), (("t", "a", "e"), 3), (("t", "f"), {})]


@pytest.mark.parametrize("method", ["config/value/write", "config/batchWrite"])
@pytest.mark.parametrize("meant", [{}, {"filePath": "/f"}, {"expectedVersion": "v"}])
@pytest.mark.parametrize(
    ("strategy", "value", "edits"),
    [
        ("replace", TABLE, [(("t",), TABLE)]),
        ("upsert", TABLE, LEAVES),
        ("upsert", 7, [(("t",), 7)]),
        ("upsert", None, [(("t",), None)]),
    ],
)
async def test_settings_are_written_to_the_file_and_the_version_that_the_client_means(
    method: str, meant: dict[str, Any], strategy: str, value: Any, edits: list[Any]
) -> None:
    found, door = METHODS[method], Writes()
    edit = {"keyPath": "t", "value": value, "mergeStrategy": strategy}
    other = {"keyPath": 'x."y.z"', "value": 1, "mergeStrategy": "replace"}
    several = method == "config/batchWrite"
    given = {"edits": [edit, other]} if several else edit
    await found.answer(cast(Any, door), found.params.model_validate({**given, **meant}))
    (wanted,) = door.wanted
    assert list(wanted.edits) == [*edits, *([(("x", "y.z"), 1)] if several else [])]
    assert (wanted.file, wanted.version) == (meant.get("filePath"), meant.get("expectedVersion"))
