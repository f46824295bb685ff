"""A turn that an MCP client began: what its person is asked while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.broker.errors import QueueFull
from orchestrator.broker.follow import BEGINNING, EqCursor
from orchestrator.core.ids import SessionId
from orchestrator.gateways import mcp_server
from orchestrator.gateways.client import AWAITING
from orchestrator.gateways.mcp_server import Answer, FollowedTurn, McpDoor
from orchestrator.protocol.submission import MalformedSubmission
from orchestrator.views.event import Event
from tests.doors.test_same_call_ids import ONE as ROOT
from tests.doors.test_same_call_ids import REQUEST
from tests.requests.test_answers import ASKS


class Door:
    """A client whose session tells what a test gives, and which keeps what it is handed."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.sent: list[Any] = []
        self.ids: list[str] = []

    async def head(self, session: SessionId) -> None:
        return None

    async def submit(self, session: SessionId, submission: Any) -> None:
        self.sent.append(submission.op)
        self.ids.append(submission.id)

    async def follow(self, session: SessionId, cursor: EqCursor) -> AsyncIterator[Event]:
        while True:
            yield await self.events.get()


class Person:
    """A person who is shown forms, and answers when the test says so."""

    can_be_asked = True

    def __init__(self) -> None:
        self.shown: asyncio.Queue[str] = asyncio.Queue()
        self.open = 0
        self.may_answer = asyncio.Event()
        self.told: list[str] = []

    async def tell(self, line: str) -> None:
        self.told.append(line)

    async def ask(self, message: str, schema: dict[str, Any]) -> Answer | None:
        self.open += 1
        self.shown.put_nowait(message)
        try:
            await self.may_answer.wait()
        finally:
            self.open -= 1
        return "accept", {"decision": "approved"}


async def test_person_is_asked_for_each_agent_whose_calls_have_one_id() -> None:
    door, person = Door(), Person()
    turn = asyncio.create_task(FollowedTurn(cast(Any, door), ROOT, "t", person).outcome(BEGINNING))
    for agent in (1, 2):
        of = {"agent_id": agent, "session_id": f"s{agent}", "agent_path": f"/{agent}"}
        door.events.put_nowait(Event("t", {**REQUEST, **of}))
    async with asyncio.timeout(20):
        for _ in range(2):
            await person.shown.get()
        person.may_answer.set()
        while len(door.sent) < 2:
            await asyncio.sleep(0)
        door.events.put_nowait(Event("t", {"type": "task_complete", "last_agent_message": "ok"}))
        assert (await turn).status == "completed"
    assert sorted(op.agent_id for op in door.sent) == [1, 2]


async def test_form_of_one_agent_stays_where_the_other_ones_request_is_settled() -> None:
    door, person = Door(), Person()
    turn = asyncio.create_task(FollowedTurn(cast(Any, door), ROOT, "t", person).outcome(BEGINNING))
    about = [{"agent_id": agent, "session_id": f"s{agent}", "agent_path": f"/{agent}"} for agent in (1, 2)]
    async with asyncio.timeout(20):
        for of in about:
            door.events.put_nowait(Event("t", {**REQUEST, **of}))
            await person.shown.get()
        resolved = {"type": "request_resolved", "call_id": "call_1", "turn_id": "x", "decision": "denied"}
        door.events.put_nowait(Event("t", {**resolved, **about[0]}))
        while person.open > 1:
            await asyncio.sleep(0)
        assert person.open == 1
        person.may_answer.set()
        while not door.sent:
            await asyncio.sleep(0)
        door.events.put_nowait(Event("t", {"type": "task_complete", "last_agent_message": "ok"}))
        await turn
    assert [op.agent_id for op in door.sent] == [2]


async def test_all_forms_whose_requests_are_over_at_once_are_taken_back() -> None:
    door, person = Door(), Person()
    turn = asyncio.create_task(FollowedTurn(cast(Any, door), ROOT, "t", person).outcome(BEGINNING))
    async with asyncio.timeout(20):
        for call in ("c1", "c2", "c3"):
            door.events.put_nowait(Event("t", {**ASKS["choices"], "callId": call}))
            await person.shown.get()
        assert person.open == 3
        # The calls of the turn are over, by answers of which no event tells.
        door.events.put_nowait(Event("t", {"type": "token_count", "info": None}))
        while person.open:
            await asyncio.sleep(0)
        door.events.put_nowait(Event("t", {"type": "task_complete", "last_agent_message": "ok"}))
        await turn


async def test_client_hears_why_its_turn_stands_still() -> None:
    door, person = Door(), Person()
    turn = asyncio.create_task(FollowedTurn(cast(Any, door), ROOT, "t", person).outcome(BEGINNING))
    spent = "the tree's budget of tokens is spent: it is paused until more is added"
    for id, type, message in (
        ("t", "warning", spent), ("t", "stream_error", "again in 5 s"), ("t", "agent_reasoning_delta", "…"),
    ):  # fmt: skip
        door.events.put_nowait(Event(id, {"type": type, "message": message, "delta": message}))
    door.events.put_nowait(Event("t", {"type": "task_complete", "last_agent_message": "ok"}))
    async with asyncio.timeout(20):
        assert (await turn).text == "ok"
    assert person.told == [spent, "again in 5 s"]


async def test_client_is_told_where_an_answer_is_refused_and_its_request_stays_open() -> None:
    door, person = Door(), Person()
    turn = asyncio.create_task(FollowedTurn(cast(Any, door), ROOT, "t", person).outcome(BEGINNING))
    async with asyncio.timeout(20):
        door.events.put_nowait(Event("t", REQUEST))
        person.may_answer.set()
        while not door.sent:
            await asyncio.sleep(0)
        why = "call_1 was not answered: answers have to be signed here; it stays open"
        for id in ("another", door.ids[0]):
            door.events.put_nowait(Event(id, {"type": "error", "message": why}))
        door.events.put_nowait(Event("t", {"type": "task_complete", "last_agent_message": "ok"}))
        assert (await turn).status == "completed"
    waits = "waits for a person: dendro approvals lists 0:call_1"
    assert [line for line in person.told if line in (why, waits)] == [why, waits]


class Answering(Person):
    """A person whose answers are given, one for each form."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__()
        self.answers = [*answers]

    async def ask(self, message: str, schema: dict[str, Any]) -> Answer | None:
        self.shown.put_nowait(message)
        return self.answers.pop(0)


NONE, APPROVED = ("accept", {"decision": "maybe"}), ("accept", {"decision": "approved"})


@pytest.mark.parametrize(
    ("answers", "refused", "forms", "handed_in"),
    [
        ([APPROVED], [], 1, 1),
        ([NONE, NONE, APPROVED], [], 3, 1),
        ([NONE, NONE, NONE], [], 3, 0),
        ([APPROVED, NONE, APPROVED], [MalformedSubmission("too long")], 3, 2),
        ([APPROVED], [QueueFull(ROOT, 3, 3)], 1, 1),
    ],
    ids=["at once", "third", "never", "too long", "full queue"],
)
async def test_person_is_asked_three_times_for_an_answer_and_told_why_each_one_was_none(
    answers: list[Answer], refused: list[Exception], forms: int, handed_in: int
) -> None:
    door, person = Door(), Answering(*answers)
    submit, faults = door.submit, [*refused]

    async def submitted(session: SessionId, submission: Any) -> None:
        await submit(session, submission)
        if faults:
            raise faults.pop(0)

    cast(Any, door).submit = submitted
    turn = asyncio.create_task(FollowedTurn(cast(Any, door), ROOT, "t", person).outcome(BEGINNING))
    async with asyncio.timeout(20):
        door.events.put_nowait(Event("t", REQUEST))
        while person.shown.qsize() < forms or (len(door.sent) == len(refused) and not person.told):
            await asyncio.sleep(0)
        door.events.put_nowait(Event("t", {"type": "task_complete", "last_agent_message": "ok"}))
        await turn
    shown = [person.shown.get_nowait() for _ in range(person.shown.qsize())]
    assert (len(shown), len(door.sent)) == (forms, handed_in)
    whys = {"maybe": "decision: one of", "approved": "too long"}
    for (_, given), message in zip(answers, shown[1:], strict=False):
        assert message.startswith(whys[given["decision"]])
        assert message.endswith(shown[0])
    waits = "waits for a person: dendro approvals lists 0:call_1"
    assert (waits in person.told) is (handed_in == len(refused))


def stands(status: str, unread: bool = False) -> Any:
    facts = {"has_unread": unread, "parked": not unread, "pending_messages": 0, "quarantined": False}
    return SimpleNamespace(status=status, **facts)


@pytest.mark.parametrize("below", [(), (stands("paused"),), (stands("awaiting_answer"), stands("running"))])
@pytest.mark.parametrize("status", ["running", "idle", "waiting", "paused", *AWAITING])
@pytest.mark.parametrize("unread", [True, False])
@pytest.mark.parametrize("beside", ["nothing", "gone", "waits", "runs"])
async def test_server_whose_client_left_stays_until_every_turn_waits_for_a_person_who_has_not_answered(
    status: str, unread: bool, beside: str, below: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_server, "REST_POLL_S", 0)
    heads: dict[str, Any] = {"one": stands(status, unread)}
    if beside != "nothing":
        heads["two"] = {"gone": None, "waits": stands("awaiting_answer"), "runs": stands("running")}[beside]
    looks = 0

    async def head(session: str) -> Any:
        nonlocal looks
        looks += 1
        return heads[session]

    async def family(root: Any) -> Any:
        return (root, *below)

    door = McpDoor(cast(Any, SimpleNamespace(client=SimpleNamespace(head=head, family=family))))
    turns = {asyncio.create_task(asyncio.Event().wait()): SimpleNamespace(session=one) for one in heads}
    cast(Any, door)._following = turns
    resting = asyncio.create_task(door.rest())
    async with asyncio.timeout(20):
        while not resting.done() and looks < 6:
            await asyncio.sleep(0)
    moves = [one.status for one in below] == ["awaiting_answer", "running"]
    waits = {*AWAITING, *(() if moves else ("paused",)), *(("waiting",) if below and not moves else ())}
    leaves = status in waits and not unread and beside != "runs"
    assert resting.done() is leaves
    resting.cancel()
    await asyncio.gather(resting, return_exceptions=True)
    await door.close()
