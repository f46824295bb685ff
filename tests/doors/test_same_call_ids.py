"""Requests of one call id in several threads, or of several agents: each is settled for itself.

A provider gives ids to calls; two models, or one that is asked twice, may give the same one.
"""

from __future__ import annotations

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.broker.errors import QueueFull
from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server import door as door_module
from orchestrator.gateways.app_server.door import Conversations, Door
from orchestrator.gateways.app_server.live_threads import Told
from orchestrator.gateways.app_server.messages import Answer
from orchestrator.gateways.app_server.write_requests import Asks
from orchestrator.gateways.principals import Principal
from orchestrator.views.event import Event
from orchestrator.views.turns.projector import Projector
from orchestrator.views.turns.turn_records import RequestOpened, RequestResolved, TurnId

ONE = SessionId("0199a2b4-0000-7000-8000-000000000001")
OTHER = SessionId("0199a2b4-0000-7000-8000-000000000002")
REQUEST: dict[str, Any] = {
    "type": "exec_approval_request",
    "call_id": "call_1",
    "command": ["make"],
    "cwd": "/w",
    "parsed_cmd": [],
}
RESOLVED = {"type": "request_resolved", "call_id": "call_1", "decision": "approved"}


def opened(session: SessionId) -> RequestOpened:
    projector = Projector(session)
    projector.receive(Event("t", {"type": "task_started"}))
    changes = projector.receive(Event("t", REQUEST))
    return next(change for change in changes if isinstance(change, RequestOpened))


def test_request_settled_in_one_thread_stays_open_in_another() -> None:
    asks = Asks(cast(Any, None))
    first, second = (asks.open(session, opened(session), 1) for session in (ONE, OTHER))
    assert first is not None
    assert second is not None
    settled = RequestResolved(TurnId("t"), second.opened.item)
    assert asks.resolved(OTHER, settled) == [second.id]
    assert asks.resolved(ONE, settled) == [first.id]


async def test_request_settled_for_one_agent_stays_open_for_another() -> None:
    sent: list[Any] = []

    class Keeps:
        async def submit(self, session: SessionId, submission: Any) -> None:
            sent.append(submission.op)

    place = SimpleNamespace(
        tell=lambda line: None,
        principal=Principal("ann"),
        ports=SimpleNamespace(now_ms=lambda: 1),
        new_client=lambda: Keeps(),
    )
    conversations = Conversations(cast(Any, place), {"listener": ONE})
    for agent in ({}, {"agent_id": 1}, {"agent_id": 2}):
        conversations.hear(Told(ONE, Event("t", {**REQUEST, **agent}), ()))
    conversations.hear(Told(ONE, Event("t", {**RESOLVED, "agent_id": 1}), ()))
    for number in range(3):
        await conversations.answered(Answer(f"conversation-{number}", {"decision": "approved"}))
    assert [op.agent_id or 0 for op in sent] == [0, 2]


def test_request_that_was_asked_before_its_events_is_asked_once_behind_the_end_of_the_turn_before() -> None:
    asked: list[str] = []
    place = SimpleNamespace(
        tell=lambda line: asked.append(line.method),
        principal=Principal("ann"),
        ports=SimpleNamespace(now_ms=lambda: 1),
        new_client=lambda: None,
    )
    conversations = Conversations(cast(Any, place), {"listener": ONE})
    request = {**REQUEST, "turn_id": "u"}
    conversations._tell(ONE, "", request)
    conversations.hear(Told(ONE, Event("t", {"type": "turn_aborted", "reason": "replaced"}), ()))
    conversations.hear(Told(ONE, Event("u", request), ()))
    assert asked.count("execCommandApproval") == 1


async def test_request_that_was_answered_before_its_event_is_not_asked_again_until_it_was_settled() -> None:
    asked: list[str] = []
    sent: list[Any] = []

    class Keeps:
        async def submit(self, session: SessionId, submission: Any) -> None:
            sent.append(submission.op)

    place = SimpleNamespace(
        tell=lambda line: asked.append(line.method),
        principal=Principal("ann"),
        ports=SimpleNamespace(now_ms=lambda: 1),
        new_client=lambda: Keeps(),
    )
    conversations = Conversations(cast(Any, place), {"listener": ONE})
    conversations._tell(ONE, "", REQUEST)
    for _ in range(2):
        await conversations.answered(Answer("conversation-0", {"decision": "approved"}))
    conversations.hear(Told(ONE, Event("t", REQUEST), ()))
    assert asked.count("execCommandApproval") == 1
    assert len(sent) == 1
    conversations.hear(Told(ONE, Event("t", RESOLVED), ()))
    conversations.hear(Told(ONE, Event("t", REQUEST), ()))
    assert asked.count("execCommandApproval") == 2


@pytest.mark.parametrize("asked_as", ["conversation", "thread"])
@pytest.mark.parametrize("open_still", [True, False])
async def test_answer_to_a_full_queue_is_handed_in_once_there_is_room_while_its_request_is_open(
    asked_as: str, open_still: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []
    begun: list[Coroutine[Any, Any, None]] = []
    monkeypatch.setattr(door_module, "RETRY_MAX_S", 0)

    class FullTwice:
        async def submit(self, session: SessionId, submission: Any) -> None:
            tried.append(submission.op)
            if len(tried) < 3:
                raise QueueFull(session, 1, 1)

    ports = SimpleNamespace(now_ms=lambda: 1, client=lambda principal, via: FullTwice())
    outbox = SimpleNamespace(put=lambda data: None)
    door = Door(
        cast(Any, ports), cast(Any, SimpleNamespace(begin=begun.append)), Principal("ann"), cast(Any, outbox)
    )
    if asked_as == "conversation":
        door.conversations = Conversations(door, {"listener": ONE})
        door.conversations.hear(Told(ONE, Event("t", REQUEST), ()))
        answer = Answer("conversation-0", {"decision": "approved"})
    else:
        asked = door.asks.open(ONE, opened(ONE), 1)
        assert asked is not None
        answer = Answer(asked.id, {"decision": "accept"})
    for _ in range(2):
        await door.answered(answer)
    assert len(tried) == len(begun) == 1
    if not open_still:
        door.conversations.hear(Told(ONE, Event("t", RESOLVED), ()))
        door.asks.left(ONE)
    await begun[0]
    assert len(tried) == (3 if open_still else 1)
