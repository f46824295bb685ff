"""Requests in a run of `dendro exec`: refused, whoever of its session asks, or left to the queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.errors import OutOfMemory, QueueFull
from orchestrator.broker.follow import BEGINNING, EqCursor
from orchestrator.core.decide.call import reply_of
from orchestrator.core.ids import SessionId
from orchestrator.gateways import exec_json
from orchestrator.gateways.exec_json import ExecWriter, OneTurn, Run
from orchestrator.protocol import ops
from orchestrator.requests import known_request_of
from orchestrator.views.event import Event
from tests.requests.test_answers import ASKS

SESSION = SessionId("0199a2b4-0000-7000-8000-000000000001")
AGENT = {"agent_id": 3, "session_id": "0199a2b4-0000-7000-8000-000000000003", "agent_path": "0/3"}
REFUSED = {
    **dict.fromkeys(("command", "patch"), "denied"),
    **dict.fromkeys(("choices", "input"), "cancelled"),
    "plan": "rejected",
    "elicitation": "decline",
    "client_tool": "failed",
}


class Client:
    """A client of a session that asks, and the answers that it was given."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events
        self.sent: list[Any] = []

    async def submit(self, session: SessionId, submission: Any) -> None:
        self.sent.append(submission.op)

    async def follow(self, session: SessionId, cursor: Any) -> AsyncIterator[Event]:
        for event in self.events:
            yield event


@pytest.mark.parametrize("asks_people", [True, False])
@pytest.mark.parametrize("asker", ["own turn", "turn before", "agent"])
@pytest.mark.parametrize("kind", ASKS)
async def test_request_of_every_kind_is_refused_whoever_asks_unless_people_are_asked(
    kind: str, asker: str, asks_people: bool
) -> None:
    before = [Event("before", {"type": "task_started"})] if asker == "turn before" else []
    turn = {"own turn": "own", "turn before": "before", "agent": "t-agent"}[asker]
    named = "turnId" if "callId" in ASKS[kind] else "turn_id"
    asked = {**ASKS[kind], named: turn, **(AGENT if asker == "agent" else {})}
    asking = Event("own" if asker == "agent" else turn, asked)
    over = [Event("before", {"type": "task_complete", "last_agent_message": "x"})] if before else []
    begins = Event("own", {"type": "task_started"})
    events = [*before, asking, *over, begins] if before else [begins, asking]
    client = Client([*events, Event("own", {"type": "task_complete", "last_agent_message": "ok"})])
    told: list[str] = []

    async def write(data: bytes) -> None:
        pass

    run = Run(cast(Any, client), SESSION, write, told.append, asks_people)
    turn_of_run = OneTurn(run, ExecWriter(), "own")
    assert await turn_of_run.hold(ops.Compact(), BEGINNING)
    # Agents have no tools that a client brings.
    agent = 3 if asker == "agent" and kind != "client_tool" else None
    replies = [reply_of(op) for op in client.sent[1:]]
    assert told == (["waits for a person: dendro approvals"] if asks_people else [])
    assert [(one.id, one.agent_id, one.decision) for one in replies] == (
        [] if asks_people else [("c", agent, REFUSED[kind])]
    )


class Stuck(Client):
    """A client of a session that stands as it does when its events were told."""

    def __init__(self, events: list[Event], status: str, *below: str) -> None:
        super().__init__(events)
        self.status, self.below = status, below
        self.looked = asyncio.Event()

    async def head(self, session: SessionId) -> Any:
        return self._stands(self.status if self.sent else "idle")

    async def family(self, head: Any) -> Any:
        return (head, *map(self._stands, self.below))

    def _stands(self, status: str) -> Any:
        set_aside = status == "quarantined"
        status = "running" if set_aside else status
        return SimpleNamespace(status=status, parked=True, pending_messages=0, quarantined=set_aside)

    async def until(self, sessions: Any, look: Any) -> Any:
        while not (answer := await look()):
            self.looked.set()
            await asyncio.Event().wait()
        return answer

    async def follow(self, session: SessionId, cursor: Any) -> AsyncIterator[Event]:
        async for event in super().follow(session, cursor):
            yield event
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("stands", "why"),
    [
        (("paused",), f"dendro budget {SESSION}"),
        (("paused", "idle"), f"dendro budget {SESSION}"),
        (("waiting", "quarantined"), f"dendro tree {SESSION}"),
        (("paused", "running"), None),
        (("waiting", "running", "quarantined"), None),
        (("waiting", "idle"), None),
    ],
)
async def test_run_whose_tree_only_a_person_can_move_ends_behind_what_happened_and_says_how(
    stands: tuple[str, ...], why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the turn as it is, and waits for an agent that works: it may give room back."""
    monkeypatch.setattr(exec_json, "BEHIND_S", 0.01)
    begins = Event("own", {"type": "task_started"})
    client = Stuck([begins, Event("own", {"type": "agent_message", "message": "so far"})], *stands)
    lines: list[dict[str, Any]] = []

    async def write(data: bytes) -> None:
        lines.extend(map(orjson.loads, data.splitlines()))

    turn = OneTurn(Run(cast(Any, client), SESSION, write, lambda _: None), ExecWriter(), "own")
    run = asyncio.ensure_future(turn.unless_stuck(turn.hold(ops.Compact(), BEGINNING)))
    stays = asyncio.ensure_future(client.looked.wait())
    async with asyncio.timeout(20):
        await asyncio.wait((run, stays), return_when=asyncio.FIRST_COMPLETED)
    assert run.done() is (why is not None)
    if why is not None:
        assert run.result() is False
        assert [line["type"] for line in lines] == ["turn.started", "item.completed", "error", "turn.failed"]
        assert why in lines[-1]["error"]["message"]
    for task in (run, stays):
        task.cancel()
    await asyncio.gather(run, stays, return_exceptions=True)
    assert len(client.sent) == 1, "nothing is interrupted"
    assert turn.over.is_set()


@pytest.mark.parametrize("full", [OutOfMemory("no room"), QueueFull(SESSION, 1_000, 1)])
async def test_refusal_is_handed_in_again_until_there_is_room(
    full: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(Client):
        tries = 0

        async def submit(self, session: SessionId, submission: Any) -> None:
            await super().submit(session, submission)
            self.tries += not isinstance(submission.op, ops.Compact)
            if 0 < self.tries < 3:
                raise full

    async def write(data: bytes) -> None:
        pass

    monkeypatch.setattr(exec_json, "RETRY_MAX_S", 0.0)
    asked = Event("own", {**ASKS["command"], "turn_id": "own"})
    over = Event("own", {"type": "task_complete", "last_agent_message": "ok"})
    client = Full([Event("own", {"type": "task_started"}), asked, over])
    run = Run(cast(Any, client), SESSION, write, lambda text: None)
    assert await OneTurn(run, ExecWriter(), "own").hold(ops.Compact(), BEGINNING)
    assert [reply_of(op).decision for op in client.sent[1:]] == ["denied"] * 3


@pytest.mark.parametrize("asks_people", [True, False])
@pytest.mark.parametrize("asker", ["own turn", "agent"])
async def test_request_that_was_open_before_the_run_came_is_refused_once_as_is_a_later_one(
    asker: str, asks_people: bool
) -> None:
    known = {**ASKS["command"], "turn_id": "t", **(AGENT if asker == "agent" else {})}
    waiting = known_request_of({**AGENT, **known} if asker == "agent" else {**known, "agent_id": 0})
    assert waiting is not None
    accepted = {"type": "input_accepted", "turn_id": "t", "delivery": "steered"}
    # The event of the request comes behind the head from which the run follows, and an answer behind that.
    events = [Event("own", accepted, EqCursor(6, 6, "0" * 8)), Event("t", known, EqCursor(7, 7, "0" * 8))]
    resolved: dict[str, Any] = {
        "type": "request_resolved",
        "call_id": "c",
        "turn_id": "t",
        "decision": "denied",
    }
    resolved |= {"who": "ada", "resolved_at_ms": 1, **(AGENT if asker == "agent" else {})}
    again = [Event("t", resolved), Event("t", known, EqCursor(9, 9, "0" * 8))]
    client = Client([*events, *again, Event("t", {"type": "task_complete", "last_agent_message": "ok"})])
    told: list[str] = []

    async def write(data: bytes) -> None:
        pass

    turn = OneTurn(Run(cast(Any, client), SESSION, write, told.append, asks_people), ExecWriter(), "own")
    turn.know([Event("t", {"type": "task_started"})], [waiting], last_event=7)
    assert await turn.hold(ops.Compact(), BEGINNING)
    replies = [reply_of(op) for op in client.sent[1:]]
    agent = 3 if asker == "agent" else None
    assert told == ["waits for a person: dendro approvals"] * (2 if asks_people else 0)
    assert [(one.id, one.agent_id, one.decision) for one in replies] == (
        [] if asks_people else [("c", agent, "denied")] * 2
    )


@pytest.mark.parametrize("fails", [True, False])
async def test_run_that_waits_behind_another_turn_has_lines_of_its_own_turn_alone(fails: bool) -> None:
    def turn(id: str) -> list[Event]:
        said: list[dict[str, Any]] = [{"type": "agent_message", "message": f"of {id}"}]
        said += [{"type": "error", "message": f"of {id}"}] if fails else []
        over = {"type": "task_complete", "last_agent_message": None if fails else f"of {id}"}
        return [Event(id, one) for one in ({"type": "task_started"}, *said, over)]

    lines = list[dict[str, Any]]()

    async def write(data: bytes) -> None:
        lines.append(orjson.loads(data))

    client = Client([*turn("before"), *turn("own"), *turn("behind")])
    run = Run(cast(Any, client), SESSION, write, lambda text: None)
    assert await OneTurn(run, ExecWriter(), "own").hold(ops.Compact(), BEGINNING) is not fails
    end = ["error", "turn.failed"] if fails else ["turn.completed"]
    assert [one["type"] for one in lines] == ["turn.started", "item.completed", *end]
    assert {one["item"]["text"] for one in lines if "item" in one} == {"of own"}
