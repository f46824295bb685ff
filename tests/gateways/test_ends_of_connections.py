"""Connections of lines whose input has ended: each ends when nothing runs any more, and says what is open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.errors import UnknownSession
from orchestrator.core.ids import SessionId
from orchestrator.gateways import ndjson
from orchestrator.gateways.bursts import Burst
from orchestrator.gateways.ndjson import Ending, NdjsonConnection, Streams
from orchestrator.views.event import Event
from tests.requests.test_answers import ASKS

ONE = SessionId("0199a2b4-0000-7000-8000-000000000001")
LOOKS = 3
AT_WORK = ("running", "waiting", "retrying", "blocked")
AWAITING = {"awaiting_approval": "an approval", "awaiting_answer": "a question"}
STANDS = (*AWAITING, "paused")


class Client:
    """A client of a session that stands as a test says, and has told these events."""

    namespace = ""

    def __init__(self, head: Any, events: list[dict[str, Any]], below: tuple[Any, ...]) -> None:
        self._head = head
        self._below = below
        self._events = events
        self.told = asyncio.Event()
        self.looked = asyncio.Event()

    async def head(self, session: SessionId) -> Any:
        return self._head

    async def family(self, head: Any) -> Any:
        return (head, *self._below)

    async def bursts(self, session: SessionId, cursor: Any) -> AsyncIterator[Burst]:
        for event in self._events:
            yield Burst((Event("t", event),))
        self.told.set()
        await asyncio.Event().wait()

    async def until(self, sessions: Any, look: Callable[[], Awaitable[bool]]) -> None:
        await self.told.wait()
        for _ in range(LOOKS):
            if await look():
                return
        self.looked.set()
        await asyncio.Event().wait()


async def ending(
    head: Any, *events: dict[str, Any], below: tuple[Any, ...] = ()
) -> tuple[Ending | None, list[str]]:
    """How a connection ends whose input is over, None where it stays; and the warnings that it was sent."""
    client, sent = Client(head, list(events), below), list[dict[str, Any]]()

    async def read(limit: int) -> bytes:
        return b""

    async def write(data: bytes) -> None:
        sent.extend(map(orjson.loads, data.splitlines()))

    connection = NdjsonConnection(cast(Any, client), ONE, Streams(read, write), 1 << 20)
    serving = asyncio.ensure_future(connection.serve())
    stays = asyncio.ensure_future(client.looked.wait())
    async with asyncio.timeout(20):
        await asyncio.wait((serving, stays), return_when=asyncio.FIRST_COMPLETED)
    found = serving.result() if serving.done() else None
    for task in (serving, stays):
        task.cancel()
    await asyncio.gather(serving, stays, return_exceptions=True)
    return found, [each["msg"]["message"] for each in sent if each["msg"]["type"] == "warning"]


def head_of(status: str, **more: Any) -> Any:
    facts = {
        "quarantined": False,
        "has_unread": False,
        "holder": "",
        "eq_n": 0,
        "pending_messages": 0,
        **more,
    }
    return SimpleNamespace(status=status, parked=not facts["holder"] and not facts["has_unread"], **facts)


async def test_connection_stays_as_long_as_its_session_is_held_has_mail_or_owes_events() -> None:
    for status, unread, holder, owes in product(
        ("idle", "closed", *STANDS, *AT_WORK), (False, True), ("", "w1"), (False, True)
    ):
        found, _ = await ending(head_of(status, has_unread=unread, holder=holder, eq_n=5 if owes else 0))
        stays = unread or holder or owes or status in AT_WORK
        wanted = None if stays else Ending.WAITING if status in STANDS else Ending.AT_REST
        assert found is wanted, (status, unread, holder, owes)


@pytest.mark.parametrize(
    ("below", "said"),
    [
        ((), None),
        ((("idle", {}),), None),
        ((("awaiting_approval", {}),), "while an approval is open"),
        ((("awaiting_answer", {}), ("idle", {})), "while a question is open"),
        ((("waiting", {}), ("awaiting_answer", {})), "while a question is open"),
        ((("paused", {}), ("awaiting_approval", {})), "while the tree's budget is spent"),
        ((("awaiting_approval", {}), ("running", {"holder": "w1"})), None),
        ((("awaiting_approval", {}), ("retrying", {})), None),
        ((("paused", {}), ("running", {"holder": "w1"})), None),
        ((("awaiting_approval", {"has_unread": True}),), None),
        ((("awaiting_approval", {}), ("idle", {"pending_messages": 1})), None),
        ((("running", {"quarantined": True, "has_unread": True}),), "while an agent is quarantined"),
        ((("awaiting_answer", {}), ("running", {"quarantined": True})), "while a question is open"),
        ((("running", {"quarantined": True}), ("running", {"holder": "w1"})), None),
    ],
)
@pytest.mark.parametrize("told", [True, False])
async def test_root_that_waits_for_agents_ends_the_connection_when_only_a_person_can_move_any_of_them(
    below: tuple[tuple[str, dict[str, Any]], ...], said: str | None, told: bool
) -> None:
    """Also where one of them asks: another one may be at work."""
    heads = tuple(head_of(status, **more) for status, more in below)
    asking = any(head.status in AWAITING for head in heads)
    events = [asked("command" if "an approval" in (said or "") else "input", "c1")] if told and asking else []
    found, warnings = await ending(head_of("waiting"), *events, below=heads)
    assert found is (None if said is None else Ending.WAITING)
    assert len(warnings) == (said is not None)
    assert all(f"{said}" in each and f"session {ONE} stays parked" in each for each in warnings)
    assert all("dendro budget" in each for each in warnings if "budget" in (said or ""))


async def test_session_that_is_set_aside_ends_the_connection_when_all_was_sent() -> None:
    for status, unread in product(("idle", *AWAITING, *AT_WORK), (False, True)):
        aside = head_of(status, quarantined=True, has_unread=unread)
        assert (await ending(aside))[0] is Ending.QUARANTINED
        assert (await ending(head_of(status, quarantined=True, has_unread=unread, eq_n=5)))[0] is None


BEGUN = {"type": "exec_command_begin", "call_id": "p1", "process_id": "7", "command": [], "cwd": "/"}
OVER = {"type": "exec_command_end", "call_id": "p1", "exit_code": 0}


async def test_session_that_only_keeps_processes_ends_the_connection_once_it_is_quiet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = {**BEGUN, "turn_id": "t", "parsed_cmd": []}
    for quiet_s, kept, status in product((0.0, 1_000.0), (True, False), ("idle", *AWAITING, "running")):
        monkeypatch.setattr(ndjson, "QUIET_S", quiet_s)
        found, _ = await ending(head_of(status, holder="w1"), *([begun] if kept else []))
        ends = kept and not quiet_s and status != "running"
        wanted = None if not ends else Ending.WAITING if status in AWAITING else Ending.AT_REST
        assert found is wanted, (quiet_s, kept, status)


async def test_connection_whose_session_is_deleted_says_so() -> None:
    class Gone(Client):
        async def bursts(self, session: SessionId, cursor: Any) -> AsyncIterator[Burst]:
            yield Burst((Event("t", {"type": "background_event", "message": "last words"}),))
            raise UnknownSession(session)

    async def read(limit: int) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def write(data: bytes) -> None:
        """Nobody reads it."""

    connection = NdjsonConnection(
        cast(Any, Gone(head_of("running"), [], ())), ONE, Streams(read, write), 1 << 20
    )
    with pytest.raises(UnknownSession, match=f"session {ONE} was deleted"):
        await connection.serve()


@pytest.mark.parametrize("status", AWAITING)
async def test_request_that_left_the_queue_before_the_connection_came_is_named_by_its_kind(
    status: str,
) -> None:
    found, (told,) = await ending(head_of(status))
    assert found is Ending.WAITING
    assert f"while {AWAITING[status]} is open; session {ONE} stays parked" in told


APPROVALS, QUESTIONS = ("command", "patch", "plan"), ("choices", "input", "elicitation")


def asked(kind: str, call: str) -> dict[str, Any]:
    key = next(key for key in ("call_id", "callId", "id") if ASKS[kind].get(key) == "c")
    return {**ASKS[kind], key: call}


@pytest.mark.parametrize(("first", "second"), list(product((*APPROVALS, *QUESTIONS), repeat=2)))
async def test_connection_that_ends_beside_open_requests_names_each_of_them(first: str, second: str) -> None:
    below = (head_of("awaiting_approval"),)
    found, (told,) = await ending(head_of("waiting"), asked(first, "c1"), asked(second, "c2"), below=below)
    assert found is Ending.WAITING
    kinds = {"an approval" if kind in APPROVALS else "a question" for kind in (first, second)}
    verb = "are" if len(kinds) > 1 else "is"
    assert f"while {' and '.join(sorted(kinds))} {verb} open (c1, c2); session {ONE} stays" in told


async def test_two_looks_that_meet_tell_once_who_is_waited_for() -> None:
    """Behind a burst, and behind a notice: each reads the tree before it tells."""
    sent: list[dict[str, Any]] = []
    both = asyncio.Barrier(2)

    class Meets(Client):
        async def family(self, head: Any) -> Any:
            await both.wait()
            return await super().family(head)

    async def write(data: bytes) -> None:
        await asyncio.sleep(0)
        sent.extend(map(orjson.loads, data.splitlines()))

    async def read(limit: int) -> bytes:
        return b""

    client = Meets(head_of("waiting"), [], (head_of("awaiting_approval"),))
    connection = NdjsonConnection(cast(Any, client), ONE, Streams(read, write), 1 << 20)
    async with asyncio.timeout(20):
        looks = (connection._leave_if_at_rest(), connection._leave_if_at_rest())
        assert True in await asyncio.gather(*looks)
    assert [each["msg"]["type"] for each in sent] == ["warning"]
