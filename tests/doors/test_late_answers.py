"""Answers that meet a full queue, or a full Redis, are handed in again while the request is the client's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from orchestrator.broker.errors import BrokerError, OutOfMemory, QueueFull, SessionArchived
from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server import door as door_module
from orchestrator.gateways.app_server.live_threads import Told
from orchestrator.gateways.app_server.messages import Answer
from orchestrator.views.event import Event
from orchestrator.views.turns.turn_records import ItemId, RequestResolved, TurnId
from tests.doors.test_door_of_several_threads import OTHER, ROOT, Sent, asked
from tests.doors.test_every_answer import EVERY, said
from tests.requests.test_answers import ASKS

RESULTS: dict[str, dict[str, Any]] = {
    **{kind: {"decision": "accept"} for kind in ("command", "patch", "prefix")},
    "choices": said("Redis"),
    "input": said("hunter2", name="key"),
    "plan": said("Approve", name="plan"),
    "elicitation": {"action": "accept"},
    "client_tool": {"success": True, "output": "x"},
}
RESOLVED = RequestResolved(TurnId("t"), ItemId("c"))


class Full:
    """A client whose sessions, or whose Redis, have no room for the first answers that they are handed."""

    def __init__(self, times: int) -> None:
        self.fault: BrokerError = QueueFull(ROOT, 3, 3)
        self.room_in = dict.fromkeys((ROOT, OTHER), times)
        self.kept: list[SessionId] = []

    async def submit(self, session: SessionId, submission: Any) -> None:
        if self.room_in[session]:
            self.room_in[session] -= 1
            raise self.fault
        self.kept.append(session)


class Client(Sent):
    """A connection of either version that is asked by two threads, and how long it waited."""

    def __init__(
        self, version: int, times: int, monkeypatch: pytest.MonkeyPatch, kind: str = "command"
    ) -> None:
        super().__init__(name="brings")
        self.version, self.full, self.waits = version, Full(times), list[float]()
        self.happens: Callable[[], None] = lambda: None
        cast(Any, self.door.asks)._client = self.door.conversations._answers = cast(Any, self.full)
        monkeypatch.setattr(asyncio, "sleep", self._sleep)
        for session in (ROOT, OTHER):
            if version == 2:
                self.hears(session)
                self.door.hear(asked(session, kind, client="brings"))
            else:
                self.door.conversations._listening[session] = session
                self.door.conversations.hear(Told(session, Event("t", EVERY[kind]), ()))

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        assert len(self.waits) < 50, "it is handed in for ever"
        self.happens()

    async def answers(self, number: int, result: dict[str, Any]) -> None:
        id: Any = number if self.version == 2 else f"{door_module.PREFIX}{number}"
        await self.door.answered(Answer(id, result))

    def settles(self, session: SessionId) -> None:
        if self.version == 2:
            self.door.hear(Told(session, Event("t", {"type": "request_resolved"}), ((RESOLVED, ()),)))
        else:
            message = {"type": "request_resolved", "call_id": "c", "decision": "denied"}
            self.door.conversations.hear(Told(session, Event("t", message), ()))


async def late(client: Client) -> None:
    await asyncio.gather(*client.threads.work)


@pytest.mark.parametrize("times", [0, 1, 2, 5])
@pytest.mark.parametrize(
    ("version", "kind"), [*((2, kind) for kind in ASKS), *((1, kind) for kind in ("command", "patch"))]
)
async def test_answer_is_handed_in_every_two_seconds_until_there_is_room_and_counts_once(
    version: int, kind: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(version, times, monkeypatch, kind)
    for _ in range(3):
        # A client that says it again meanwhile has said it already.
        await client.answers(0, RESULTS[kind])
        if times == 0:
            break
    await late(client)
    assert client.full.kept == [ROOT]
    assert client.waits == [2.0] * times
    assert client.full.room_in[OTHER] == times


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("decision", ["accept", "cancel"])
async def test_answer_that_redis_has_no_memory_for_is_not_settled_and_is_handed_in_once_it_has(
    version: int, decision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(version, 2, monkeypatch)
    client.full.fault = OutOfMemory("used memory > maxmemory")
    settled = list[list[bool]]()
    client.happens = lambda: settled.append([b"serverRequest/resolved" in line for line in client.lines])
    await client.answers(0, {"decision": decision})
    await late(client)
    assert client.full.kept == [ROOT]
    assert client.waits == [2.0] * 2
    assert not any(any(each) for each in settled)


async def test_cancel_that_its_session_never_takes_does_not_settle_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client(2, 1, monkeypatch)
    client.full.fault = SessionArchived(ROOT)
    for ended in (False, True):
        await client.answers(0, {"decision": "cancel"})
        assert any(b"serverRequest/resolved" in line for line in client.lines) is ended
    assert client.full.kept == [ROOT]


@pytest.mark.parametrize("version", [1, 2])
async def test_several_answers_that_wait_are_each_handed_in(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(version, 3, monkeypatch)
    for number in (0, 1):
        await client.answers(number, RESULTS["command"])
    await late(client)
    assert sorted(client.full.kept) == [ROOT, OTHER]
    assert client.waits == [2.0] * 6


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("end", ["settled", "left", "connection"])
async def test_answer_that_waits_is_dropped_where_its_request_is_not_the_clients_any_more(
    version: int, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(version, 10, monkeypatch)

    def ends() -> None:
        if len(client.waits) < 3:
            return
        match end:
            case "settled":
                client.settles(ROOT)
            case "connection":
                client.door.leave()
            case _ if version == 2:
                client.door.unsubscribe(ROOT)
            case _:
                client.door.conversations.stop(ROOT)

    client.happens = ends
    await client.answers(0, RESULTS["command"])
    await late(client)
    assert client.full.kept == []
    assert client.waits == [2.0] * 3
    assert client.full.room_in[ROOT] == 10 - 3


@pytest.mark.parametrize("kind", ASKS)
async def test_thread_that_a_client_has_left_takes_no_answer_of_it_and_asks_again_when_it_comes_back(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(2, 0, monkeypatch, kind)
    client.door.unsubscribe(ROOT)
    for number in (0, 1):
        await client.answers(number, RESULTS[kind])
    assert client.full.kept == [OTHER]
    client.lines.clear()
    back = await client.door.subscribe(ROOT)
    ((opened, _),) = asked(ROOT, kind, client="brings").changes
    cast(Any, back.live.projector).waiting = (opened,)
    for _ in range(2):
        client.door.ask_again(ROOT)
    assert [b'"id":2' in each for each in client.lines] == [True]
    await client.answers(2, RESULTS[kind])
    assert client.full.kept == [OTHER, ROOT]
