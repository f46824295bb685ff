"""Events that many connections follow: read once, and the same for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.follow import EqCursor
from orchestrator.broker.records import Labels, SessionHead, StoredEvent
from orchestrator.core.blobs import REFERENCE
from orchestrator.core.ids import SessionId
from orchestrator.gateways.bursts import Messages
from orchestrator.gateways.client import Client, ClientPorts
from orchestrator.gateways.ndjson import Ending, LineOptions, NdjsonConnection, Streams
from orchestrator.gateways.sq_eq import number_after
from orchestrator.views import event as read_events
from orchestrator.views.event import Event, Message
from tests.views.test_threads import ROOT, head

DIGEST = "0" * 64
NAMESPACE = "acme"
PLAIN = LineOptions()


def payload(n: int, text: object = "größer") -> bytes:
    kind = "shutdown_complete" if n == 3 else "agent_message"
    return orjson.dumps({"id": f"t{n}", "msg": {"type": kind, "message": text}})


class Queue:
    """An event queue of three events, which stays as it is."""

    def __init__(self, payloads: Iterable[bytes]) -> None:
        self.events = tuple(StoredEvent(n, p, n, "0" * 8, 0, 7) for n, p in enumerate(payloads, 1))

    async def head(self, session: SessionId) -> SessionHead:
        count = len(self.events)
        return head(session=session, seq=count, eq_n=count, labels=Labels(NAMESPACE))

    async def read_eq(self, session: SessionId, after: int = 0, count: int = 9) -> tuple[StoredEvent, ...]:
        return self.events[after : after + count]

    async def wait_eq(self, session: SessionId, after: int, timeout_s: float) -> tuple[StoredEvent, ...]:
        return self.events[after:]

    async def wait_behind(
        self, session: SessionId, at: EqCursor, timeout_s: float
    ) -> tuple[StoredEvent, ...]:
        await asyncio.Event().wait()
        return ()


class Texts:
    """A large text."""

    async def fetch(self, tree: str, digests: Iterable[str]) -> None:
        assert set(digests) == {DIGEST}

    def get(self, digest: str) -> str | None:
        return "a large text"


class Broker:
    @property
    def logs(self) -> Broker:
        return self

    async def place(self, session: SessionId) -> Any:
        return head(session=session)

    async def namespace(self, session: SessionId) -> str:
        return NAMESPACE


def client(queue: Queue, messages: Messages | None, namespace: str | None = None) -> Client:
    broker, texts = cast(Any, Broker()), cast(Any, Texts())
    ports = ClientPorts(broker, texts, bytes, events=cast(Any, queue), messages=messages)
    return Client(ports, "client", namespace=namespace)


async def told(client: Client, options: LineOptions = PLAIN) -> bytes:
    """All that a connection of lines is sent."""
    sent: list[bytes] = []

    async def read(limit: int) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def write(data: bytes) -> None:
        sent.append(data)

    connection = NdjsonConnection(client, ROOT, Streams(read, write), 1 << 20, options)
    assert await connection.serve() is Ending.SHUT_DOWN
    return b"".join(sent)


async def test_connections_that_share_messages_are_told_what_one_alone_is_told() -> None:
    queue, messages = Queue(map(payload, (1, 2, 3))), Messages()
    alone = await told(client(queue, None))
    assert alone == b"".join(event.payload + b"\n" for event in queue.events)
    assert [await told(client(queue, messages)) for _ in range(3)] == [alone] * 3
    numbered = await told(client(queue, messages), LineOptions(number_after))
    assert [orjson.loads(line) for line in numbered.splitlines()] == [
        {**orjson.loads(event.payload), "seq": event.n * 100_000_000 + event.n} for event in queue.events
    ]


PLACE = "10.1.2.3"
KINDS = ("agent_message", "error", "agent_message", "warning", "stream_error", "agent_message")


@pytest.mark.parametrize("kinds", [KINDS, KINDS[1:], KINDS[::-1]], ids=str)
@pytest.mark.parametrize(
    "tenants", [(True, False), (False, True), (True, False, True, False), (False, True, False)]
)
@pytest.mark.parametrize("options", [PLAIN, LineOptions(number_after)], ids=["plain", "numbered"])
async def test_tenant_gets_no_address_and_others_get_it_whoever_shares_the_messages_before(
    options: LineOptions, tenants: Iterable[bool], kinds: Iterable[str]
) -> None:
    said = [{"type": kind, "message": f"cannot reach {PLACE}:6391"} for kind in kinds]
    messages = [*said, {"type": "shutdown_complete"}]
    queue, shared = Queue(orjson.dumps({"id": "t", "msg": each}) for each in messages), Messages()
    for tenant in tenants:
        lines = (await told(client(queue, shared, NAMESPACE if tenant else None), options)).splitlines()
        found = [orjson.loads(line)["msg"] for line in lines]
        assert [each["type"] for each in found] == [each["type"] for each in messages]
        for each in found[:-1]:
            own = not tenant or each["type"] == "agent_message"
            assert each["message"] == (f"cannot reach {PLACE}:6391" if own else "cannot reach …")


async def test_event_is_read_and_written_once_for_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting:
        calls: list[str] = []  # noqa: RUF012

        def loads(self, data: bytes) -> Any:
            self.calls.append("loads")
            return orjson.loads(data)

        def dumps(self, value: Any) -> bytes:
            self.calls.append("dumps")
            return orjson.dumps(value)

    queue, messages, counting = Queue(map(payload, (1, 2, 3))), Messages(), Counting()
    monkeypatch.setattr(read_events, "orjson", counting)
    for options in (PLAIN, LineOptions(number_after)) * 5:
        await told(client(queue, messages), options)
    assert sorted(counting.calls) == ["dumps"] * 3 + ["loads"] * 3


async def test_large_text_is_put_back_in_for_each_connection() -> None:
    queue = Queue([payload(1, {REFERENCE: DIGEST, "bytes": 12}), payload(2), payload(3)])
    messages = Messages()
    for _ in range(2):
        first = orjson.loads((await told(client(queue, messages))).splitlines()[0])
        assert first["msg"]["message"] == "a large text"


def test_messages_are_kept_up_to_a_bound_and_the_oldest_go_first() -> None:
    messages = Messages(most_bytes=2 * len(payload(1)))
    first, second = messages.of(payload(1)), messages.of(payload(2))
    assert messages.of(payload(1)) is first
    third = messages.of(payload(3)[:-1] + b" }")
    assert (third.id, third.msg["type"]) == ("t3", "shutdown_complete")
    assert messages.of(payload(1)) is not first
    assert messages.of(payload(2)) is not second


def test_payload_beyond_the_bound_is_read_each_time_and_displaces_nothing() -> None:
    messages = Messages(most_bytes=200)
    small = messages.of(payload(1))
    large = payload(2, "x" * 200)
    assert messages.of(large) is not messages.of(large)
    assert messages.of(payload(1)) is small


def test_event_of_a_shared_message_is_the_event() -> None:
    assert Event("t1", {"type": "x"}, shared=Message(b'{"id":"t1","msg":{"type":"x"}}')) == Event(
        "t1", {"type": "x"}
    )
