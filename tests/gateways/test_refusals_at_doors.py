"""Refusals of what a client hands in: whatever the reason, the client is told, and its connection goes on."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.errors import (
    BrokerError,
    QueueFull,
    SessionArchived,
    SubmissionConflict,
    Unavailable,
    UnknownSession,
)
from orchestrator.broker.follow import BEGINNING
from orchestrator.core.secrets import MOST_SECRET_BYTES
from orchestrator.gateways.client import Client, ClientPorts
from orchestrator.gateways.mcp_server import Answer, FollowedTurn
from orchestrator.gateways.ndjson import NdjsonConnection, Streams
from orchestrator.gateways.principals import NotPermitted
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import MalformedSubmission
from orchestrator.views.event import Event
from tests.doors.test_same_call_ids import ONE, REQUEST
from tests.gateways.mcp_server.test_mcp_turns import Door

REFUSALS: list[Exception] = [
    QueueFull(ONE, 3, 3),
    SessionArchived(ONE),
    SubmissionConflict("s"),
    Unavailable("Redis is away"),
    UnknownSession(ONE),
    NotPermitted("interrupt needs the scope submit"),
    MalformedSubmission("op.response: too much", SubmissionId("s")),
]


async def lines(client: Any, *said: bytes) -> list[dict[str, Any]]:
    """The lines that a client is told, until they are as many as it has said."""
    given, told, enough = list(said), list[dict[str, Any]](), asyncio.Event()

    async def read(limit: int) -> bytes:
        if given:
            return given.pop(0) + b"\n"
        await asyncio.Event().wait()
        return b""

    async def write(data: bytes) -> None:
        told.extend(map(orjson.loads, data.splitlines()))
        if len(told) == len(said):
            enough.set()

    serving = asyncio.create_task(NdjsonConnection(client, ONE, Streams(read, write), 1 << 22).serve())
    waiting = asyncio.create_task(enough.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    for task in (serving, waiting):
        task.cancel()
    await asyncio.gather(serving, waiting, return_exceptions=True)
    return told


async def never(*_: Any) -> Any:
    await asyncio.Event().wait()
    yield None


@pytest.mark.parametrize("why", REFUSALS, ids=lambda why: type(why).__name__)
async def test_line_that_is_refused_is_answered_under_its_id_and_the_next_one_is_served(
    why: Exception,
) -> None:
    async def submit(*_: Any) -> None:
        raise why

    client = SimpleNamespace(submit=submit, bursts=never, keeps=lambda op: True, namespace=None)
    told = await lines(client, *(b'{"id":"%d","op":{"type":"interrupt"}}' % number for number in range(2)))
    assert [(one["id"], one["msg"]["type"], one["msg"]["message"]) for one in told] == [
        (str(number), "error", str(why)) for number in range(2)
    ]


async def test_answer_whose_texts_are_too_long_to_be_set_apart_is_refused_and_ends_no_connection() -> None:
    client = Client(cast(ClientPorts, SimpleNamespace(keeps_history=True, random_bytes=bytes)), "c")
    cast(Any, client).bursts = never
    op = {"type": "user_input_answer", "id": "c1", "response": {"answers": {"key": {"answers": ["x"]}}}}
    long = orjson.dumps({"id": "1", "op": op}).replace(b'"x"', b'"%s"' % (b"x" * MOST_SECRET_BYTES))
    told = await lines(client, long, b"no json")
    assert [one["id"] for one in told] == ["1", ""]
    assert told[0]["msg"]["message"].startswith(f"op.response: at most {MOST_SECRET_BYTES:,} bytes")


class Asked:
    """A person who answers each form at once, and what they were shown and told."""

    can_be_asked = True

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.told: list[str] = []

    async def tell(self, line: str) -> None:
        self.told.append(line)

    async def ask(self, message: str, schema: dict[str, Any]) -> Answer | None:
        self.shown.append(message)
        return "accept", {"decision": "approved"}


@pytest.mark.parametrize("why", REFUSALS, ids=lambda why: type(why).__name__)
async def test_person_before_a_client_is_told_that_the_request_waits_where_the_answer_is_not_taken(
    why: Exception,
) -> None:
    if isinstance(why, NotPermitted):
        return  # The client of this door is the machine's user.
    person, door, handed = Asked(), Door(), list[Any]()

    async def submit(session: Any, submission: Any) -> None:
        handed.append(submission)
        raise why

    cast(Any, door).submit = submit
    turn = asyncio.create_task(FollowedTurn(cast(Any, door), ONE, "t", person).outcome(BEGINNING))
    door.events.put_nowait(Event("t", REQUEST))
    waits = "waits for a person: dendro approvals lists 0:call_1"
    async with asyncio.timeout(20):
        while waits not in person.told:
            await asyncio.sleep(0)
        door.events.put_nowait(Event("t", {"type": "task_complete", "last_agent_message": "ok"}))
        assert (await turn).status == "completed"
    # One that may be said better is asked for again, with the reason.
    tries = 1 if isinstance(why, BrokerError) else 3
    assert len(handed) == len(person.shown) == tries
    assert all(shown.startswith(str(why)) for shown in person.shown[1:])
