"""Requests of a session whose Redis went back: they are taken back, and put anew if they are made anew."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from orchestrator.broker.follow import EqCursor
from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server import door as conversations_module
from orchestrator.gateways.app_server import door as door_module
from orchestrator.gateways.app_server import live_threads as live_module
from orchestrator.gateways.app_server.door import Conversations, Door, Subscription
from orchestrator.gateways.app_server.live_threads import LiveThread, LiveThreads, Told
from orchestrator.gateways.app_server.messages import Answer
from orchestrator.gateways.app_server.outbox import Outbox
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.gateways.client import GAP_TEXTS
from orchestrator.gateways.principals import Principal
from orchestrator.protocol.events import RequestResolved
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.wire import written
from orchestrator.views.event import Event

SESSION = SessionId("0199a2b4-0000-7000-8000-000000000001")
REQUEST: dict[str, Any] = {
    "type": "exec_approval_request",
    "call_id": "call_1",
    "command": ["make"],
    "cwd": "/w",
    "parsed_cmd": [],
}
RESOLVED = written(
    RequestResolved(
        call_id=CallId("call_1"), turn_id="turn_1", decision="approved", who="a", resolved_at_ms=1
    )
)
WENT_BACK = Event("", {"type": "warning", "message": GAP_TEXTS["rewound"]})


def _nobody(live: LiveThread, child: SessionId, newborn: bool) -> None:
    """Hears no agents."""


class Listening:
    """A connection of version 2 that hears one thread, and what it was sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        ports = cast(Any, SimpleNamespace(now_ms=lambda: 1, client=lambda principal, via: None))
        outbox = cast(Any, SimpleNamespace(put=self._put))
        self.door = Door(ports, cast(Any, None), Principal("ann"), cast(Outbox, outbox))
        self.live = LiveThread(ports, notifications, cast(Any, None), SESSION, _nobody)
        self.live.listeners.append(self.door)
        self.door.subscriptions[SESSION] = Subscription(self.live)
        self.tells({"type": "task_started"})

    def _put(self, data: bytes) -> None:
        kinds = ("requestApproval", "resolved", "put back")
        self.sent += [kind for kind in kinds if kind.encode() in data]

    def tells(self, message: dict[str, Any]) -> None:
        self.live._take(Event("t", message))


def test_open_request_is_taken_back_before_the_client_hears_that_redis_went_back() -> None:
    client = Listening()
    client.tells(REQUEST)
    client.live._take(WENT_BACK)
    assert client.sent == ["requestApproval", "resolved", "put back"]
    for message in ({"type": "task_started"}, REQUEST):
        client.tells(message)
    assert client.sent[3:] == ["requestApproval"]


def test_request_that_was_settled_while_a_thread_is_resumed_is_not_put_again() -> None:
    client = Listening()
    client.tells(REQUEST)
    with client.door.response_first():
        client.tells(RESOLVED)
        client.door.ask_again(SESSION)
    assert client.sent == ["requestApproval", "resolved"]


def test_request_that_is_open_where_a_thread_is_resumed_is_put_to_who_comes() -> None:
    client = Listening()
    client.tells(REQUEST)
    client.door.asks.left(SESSION)
    client.door.ask_again(SESSION)
    assert client.sent == ["requestApproval", "requestApproval"]


def _conversations() -> tuple[Conversations, list[str]]:
    asked: list[str] = []
    place = SimpleNamespace(
        tell=lambda line: asked.append(line.method),
        principal=Principal("ann"),
        ports=SimpleNamespace(now_ms=lambda: 1),
        new_client=lambda: None,
    )
    return Conversations(cast(Any, place), {"listener": SESSION}), asked


def test_client_of_version_1_is_asked_once_about_a_request_that_is_told_again_behind_a_gap() -> None:
    conversations, asked = _conversations()
    for _ in range(2):
        conversations.hear(Told(SESSION, Event("t", REQUEST), ()))
    assert asked.count("execCommandApproval") == 1


@pytest.mark.parametrize("live", [True, False])
def test_decision_that_only_the_log_tells_settles_a_request_of_version_1_and_is_no_event(live: bool) -> None:
    conversations, told = _conversations()
    conversations.hear(Told(SESSION, Event("t", REQUEST), ()))
    conversations.hear(Told(SESSION, Event("t", RESOLVED, EqCursor(9, 9, "0" * 8) if live else None), ()))
    assert not conversations._asked
    assert ("codex/event/request_resolved" in told) is live


def test_client_of_version_1_is_asked_anew_where_redis_went_back() -> None:
    conversations, asked = _conversations()
    for event in (Event("t", REQUEST), WENT_BACK, Event("t", REQUEST)):
        conversations.hear(Told(SESSION, event, ()))
    assert asked.count("execCommandApproval") == 2


async def test_thread_that_failed_to_be_resumed_tells_the_client_nothing() -> None:
    client = Listening()
    heard = client.door.subscriptions.pop(SESSION)

    async def hear(*given: Any, newborn: bool) -> LiveThread:
        return heard.live

    threads = SimpleNamespace(hear=hear, leave=lambda session, door: heard.live.listeners.clear())
    client.door.threads = cast(Any, threads)
    with (
        pytest.raises(RuntimeError, match="lost"),
        client.door.response_first(),
        client.door.heard_if_answered(),
    ):
        await client.door.subscribe(SESSION)
        client.tells(REQUEST)
        client.door.notify("thread/started", {"thread": {"id": SESSION}, "words": "put back"})
        raise RuntimeError("the connection was lost")
    assert client.sent == []
    assert client.door.subscriptions == {}


def test_thread_that_is_heard_already_is_heard_on_where_it_fails_to_be_resumed() -> None:
    client = Listening()
    with pytest.raises(RuntimeError, match="lost"), client.door.heard_if_answered():
        raise RuntimeError("the connection was lost")
    client.tells(REQUEST)
    assert client.sent == ["requestApproval"]


def test_client_that_leaves_a_thread_is_told_nothing_of_it_behind_the_answer() -> None:
    client = Listening()
    client.door.threads = cast(Any, SimpleNamespace(leave=lambda session, door: False))
    with client.door.response_first():
        client.door.notify("warning", {"threadId": SESSION, "message": "put back"})
        client.tells(REQUEST)
        client.door.unsubscribe(SESSION)
    assert client.sent == []


async def test_conversation_that_failed_to_be_listened_to_tells_the_client_nothing() -> None:
    dropped: list[Any] = []

    async def hear(*given: Any) -> None:
        return None

    async def fails(*given: Any) -> Any:
        raise RuntimeError("the connection was lost")

    conversations, _ = _conversations()
    place: Any = conversations.door
    place.client, place.drop_held = None, dropped.append
    place.threads = SimpleNamespace(hear=hear, leave=lambda session, listener: True)
    place.ports.found = SimpleNamespace(broker=SimpleNamespace())
    conversations._listening.clear()
    with (
        patch.object(conversations_module, "open_requests", fails),
        pytest.raises(RuntimeError, match="lost"),
    ):
        await conversations.listen(cast(Any, SimpleNamespace(session=SESSION)))
    assert not conversations.hears(SESSION)
    assert dropped == [(SESSION,)]


async def test_answer_of_version_1_is_not_that_of_the_client_that_begins_turns() -> None:
    sent: list[Any] = []

    class Answers:
        async def submit(self, session: SessionId, submission: Any) -> None:
            sent.append(submission.op)

    place = SimpleNamespace(
        tell=lambda line: None,
        principal=Principal("ann"),
        client=None,
        ports=SimpleNamespace(now_ms=lambda: 1),
        new_client=lambda: Answers(),
    )
    conversations = Conversations(cast(Any, place), {"listener": SESSION})
    conversations.hear(Told(SESSION, Event("t", REQUEST), ()))
    await conversations.answered(Answer("conversation-0", {"decision": "approved"}))
    assert [op.type for op in sent] == ["exec_approval"]


AGENT = SessionId("0192f0c1-2c3d-7e4f-8a5b-6c7d8e9f0a1b")
WORKS_AGAIN = {"type": "subagent_lifecycle", "event": "status", "status": "running", "session_id": AGENT}


class OfAnAgentAtWork(LiveThreads):
    """The followed sessions of a gateway, one of which has an agent that asks for something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        head = SimpleNamespace(agent_id=1, tree=SESSION, status="awaiting_approval")
        thread = SimpleNamespace(id=AGENT, spawned=SimpleNamespace(parent=SESSION), root=SESSION)

        async def found(*given: Any) -> Any:
            return head

        async def shown(*given: Any) -> Any:
            return [thread]

        async def read(live: LiveThread, head: Any) -> None:
            live.projector.receive(Event("t", {"type": "task_started"}))
            live.projector.receive(Event("t", REQUEST))

        monkeypatch.setattr(live_module, "threads", shown)
        monkeypatch.setattr(LiveThread, "read", read)
        monkeypatch.setattr(LiveThread, "follow", lambda live, **how: None)
        monkeypatch.setattr(door_module, "thread_json", lambda thread: {"id": thread.id})
        ports = SimpleNamespace(now_ms=lambda: 1, found=SimpleNamespace(broker=None))
        super().__init__(cast(Any, ports), notifications)
        reader = cast(Any, SimpleNamespace(head=found))
        self.root = LiveThread(cast(Any, ports), notifications, reader, SESSION, self._born)

    async def tell(self, message: dict[str, Any]) -> None:
        self.root._take(Event("t", message))
        await asyncio.gather(*self._tasks)


async def test_client_of_a_root_is_asked_by_an_agent_that_was_at_rest_when_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, threads = Listening(), OfAnAgentAtWork(monkeypatch)
    threads.root.listeners.append(client.door)
    await threads.tell(WORKS_AGAIN)
    assert client.sent == ["requestApproval"]
    await threads.tell(WORKS_AGAIN)
    assert client.sent == ["requestApproval"]


async def test_client_that_has_left_an_agent_does_not_hear_it_when_it_works_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, threads = Listening(), OfAnAgentAtWork(monkeypatch)
    client.door.threads = threads
    threads.root.listeners.append(client.door)
    await threads.tell(WORKS_AGAIN)
    assert client.door.part_with(AGENT)
    client.sent.clear()
    await threads.tell(WORKS_AGAIN)
    assert client.sent == []
