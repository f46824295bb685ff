"""Connections of the app-server: the handshake, what is refused with which code, and what is ignored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, ClassVar, cast

import pytest
from pydantic import ValidationError

from orchestrator.config_keys import MIB
from orchestrator.gateways.app_server.client_connection import Connection
from orchestrator.gateways.app_server.messages import Code, notification
from orchestrator.gateways.app_server.methods import METHODS
from orchestrator.gateways.app_server.outbox import BURST_BYTES, LARGE_MOST, Outbox
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.gateways.wires.authentication import Revoked, TokenWatch
from orchestrator.gateways.wires.byte_wire import CloseCode
from orchestrator.rollouts import ArchiveUnavailable
from tests.doors.peer import GOLDEN, MemoryWire, Peer, connected, served
from tests.doors.ports import ports
from tests.doors.schema import assert_valid
from tests.garbage import freed_at_once


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with served(ports(), lambda session, change, root_turn: ()) as server, connected(server) as peer:
        yield peer


async def test_a_client_that_greets_learns_the_protocol_level_and_the_home_folder(peer: Peer) -> None:
    told = await peer.greet()
    assert told["userAgent"].startswith("golden/0.169.0 (dendro 1.2.3; ")
    assert told["codexHome"] == "/home/ann/.dendro"
    assert_valid("InitializeResponse", told)


async def test_a_client_that_leaves_leaves_memory_at_once() -> None:
    async with served(ports(), lambda session, change, root_turn: ()) as server:
        with freed_at_once():
            async with connected(server) as peer:
                await peer.greet()
            del peer


async def test_a_client_that_has_not_greeted_is_refused_everything_else(peer: Peer) -> None:
    assert await peer.refused("thread/start", {}) == (Code.REFUSED, "Not initialized")
    assert await peer.refused("no/method") == (Code.REFUSED, "Not initialized")


async def test_a_client_that_greets_twice_is_refused(peer: Peer) -> None:
    await peer.greet()
    refused = await peer.refused("initialize", {"clientInfo": GOLDEN})
    assert refused == (Code.REFUSED, "Already initialized")


async def test_a_client_without_a_name_is_told_what_is_missing(peer: Peer) -> None:
    code, message = await peer.refused("initialize", {})
    assert (code, message) == (Code.BAD_PARAMS, "Invalid request: missing field `clientInfo`")
    await peer.greet()


async def test_a_client_that_asks_for_what_is_not_served_learns_the_way_there_is(peer: Peer) -> None:
    await peer.greet()
    code, message = await peer.refused("thread/realtime/start", {})
    assert code == Code.UNKNOWN_METHOD
    assert message.startswith("`thread/realtime/start` is not offered by this server: ")
    assert "turn/start" in message
    code, message = await peer.refused("no/such/method", {})
    assert message == "`no/such/method` is not offered by this server"


@pytest.mark.parametrize("name", METHODS)
def test_parameters_of_every_method_are_read_whatever_was_imported_before(name: str) -> None:
    with suppress(ValidationError):
        METHODS[name].params.model_validate({})


async def test_a_request_whose_reading_fails_inside_the_server_ends_no_connection(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.greet()
    monkeypatch.setattr(METHODS["thread/fork"].params, "model_validate", int)
    code, _ = await peer.refused("thread/fork", {})
    assert code == Code.INTERNAL
    monkeypatch.undo()
    code, _ = await peer.refused("thread/fork", {})
    assert code == Code.BAD_PARAMS


async def test_an_answer_that_meets_a_fault_inside_the_server_ends_no_connection(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def answered(answer: Any) -> None:
        raise ArchiveUnavailable("the archive does not answer")

    monkeypatch.setattr(peer.door, "answered", answered)
    peer.send({"id": 0, "result": {"decision": "accept"}})
    await peer.greet()
    assert "a client's answer was not taken" in caplog.text


async def test_a_client_that_leaves_params_out_is_told_so(peer: Peer) -> None:
    await peer.greet()
    peer.send({"id": "x", "method": "turn/start"})
    answer = await peer.answer("x")
    assert answer["error"]["message"] == "Invalid request: missing field `params`"


@pytest.mark.parametrize("params", [[], "text", 7, True])
async def test_a_client_whose_params_are_no_object_is_told_so(peer: Peer, params: Any) -> None:
    await peer.greet()
    code, message = await peer.refused("turn/start", params)
    assert (code, message) == (Code.BAD_PARAMS, "Invalid params: an object is expected")


async def test_a_client_whose_params_are_wrong_learns_which(peer: Peer) -> None:
    await peer.greet()
    code, message = await peer.refused("turn/start", {"threadId": 7, "input": []})
    assert code == Code.BAD_PARAMS
    assert message.startswith("Invalid params: threadId: ")


async def test_a_client_without_the_experimental_capability_is_refused_its_fields(peer: Peer) -> None:
    await peer.greet()
    refused = await peer.refused("thread/start", {"dynamicTools": []})
    assert refused == (Code.REFUSED, "thread/start.dynamicTools requires experimentalApi capability")


@pytest.mark.parametrize(
    "message",
    [
        b"no json",
        b"[1, 2]",
        b"7",
        {"id": 99, "result": {"decision": "accept"}},
        {"id": "nobody asked", "error": {"code": 1, "message": "no"}},
        {"id": True, "method": "initialize", "params": {}},
        {"id": {}, "method": "initialize", "params": {}},
        {"id": 1.5, "method": 7},
        {"method": "a/notification/that/nobody/knows"},
        {},
        b"[" * 100_000,
        {"id": "x" * 2000, "method": "initialize", "params": {}},
    ],
)
async def test_a_client_that_sends_what_means_nothing_is_not_answered(peer: Peer, message: Any) -> None:
    peer.send(message)
    await peer.greet()
    assert len(peer.heard) == 1


async def test_a_client_whose_first_message_carries_the_version_gets_it_on_every_answer(peer: Peer) -> None:
    peer.send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"clientInfo": GOLDEN}})
    assert (await peer.answer(1))["jsonrpc"] == "2.0"
    assert (await peer.ask("no/method"))["jsonrpc"] == "2.0"


async def test_a_client_whose_first_message_carries_no_version_gets_none(peer: Peer) -> None:
    await peer.greet()
    peer.send({"jsonrpc": "2.0", "id": 77, "method": "no/method", "params": {}})
    assert "jsonrpc" not in await peer.answer(77)


async def test_a_principal_that_may_only_read_begins_nothing() -> None:
    reader = Principal("ben", scope=Scope.READ)
    async with (
        served(ports(), lambda session, change, root_turn: ()) as server,
        connected(server, reader) as peer,
    ):
        await peer.greet()
        code, message = await peer.refused("thread/start", {})
    assert code == Code.REFUSED
    assert "ben" in message
    assert "submit" in message


# ── what waits to be read ─────────────────────────────────────────────────────────────────────


def delta(outbox: Outbox, item: str, text: str) -> None:
    params = {"itemId": item, "delta": text}
    outbox.put_delta(notification("d", params, 1), ("d", item), "d", params, 1)


async def sent(outbox: Outbox) -> list[dict[str, Any]]:
    wire = MemoryWire()
    outbox.close()
    await outbox.send_to(wire)
    return [wire.outgoing.get_nowait() for _ in range(wire.outgoing.qsize())]


async def test_deltas_of_one_item_that_wait_are_sent_as_one() -> None:
    outbox = Outbox()
    for text in ("one ", "two ", "three"):
        delta(outbox, "a", text)
    delta(outbox, "b", "other")
    assert [message["params"] for message in await sent(outbox)] == [
        {"itemId": "a", "delta": "one two three"},
        {"itemId": "b", "delta": "other"},
    ]


async def test_merged_deltas_carry_the_version_where_the_clients_messages_do() -> None:
    outbox = Outbox()
    outbox.versioned = True
    for text in ("one ", "two"):
        delta(outbox, "a", text)
    delta(outbox, "b", "other")
    assert [(message.get("jsonrpc"), message["params"]["delta"]) for message in await sent(outbox)] == [
        ("2.0", "one two"),
        ("2.0", "other"),
    ]


async def test_deltas_that_two_connections_share_are_merged_for_each_by_itself() -> None:
    boxes = Outbox(), Outbox()
    for text in ("one ", "two ", "three"):
        params = {"itemId": "a", "delta": text}
        for outbox in boxes:
            outbox.put_delta(notification("item/delta", params, 1), ("a",), "item/delta", params, 1)
    told = [[message["params"]["delta"] for message in await sent(outbox)] for outbox in boxes]
    assert told == [["one two three"]] * 2


async def test_deltas_are_not_merged_across_another_message() -> None:
    outbox = Outbox()
    delta(outbox, "a", "one")
    outbox.put(notification("item/completed", {}, 2))
    delta(outbox, "a", "two")
    assert [message["params"].get("delta") for message in await sent(outbox)] == ["one", None, "two"]


async def test_messages_that_wait_are_handed_over_together_and_only_so_many() -> None:
    class Counting(MemoryWire):
        calls: ClassVar[list[int]] = []

        async def send(self, *messages: bytes) -> None:
            self.calls.append(len(messages))
            await super().send(*messages)

    outbox, wire = Outbox(), Counting()
    for n in range(40):
        outbox.put(notification("n", {"n": n, "text": "x" * (BURST_BYTES // 16)}, n))
    outbox.close()
    await outbox.send_to(wire)
    assert [wire.outgoing.get_nowait()["params"]["n"] for _ in range(40)] == list(range(40))
    assert wire.calls == [16, 16, 8]


async def test_merged_deltas_count_against_the_limit() -> None:
    outbox = Outbox(limit=1_000)
    for _ in range(9):
        delta(outbox, "a", "x" * 100)
    assert not outbox.overflowed.is_set()
    delta(outbox, "a", "x" * 100)
    assert outbox.overflowed.is_set()


async def test_large_messages_go_out_whole_and_only_a_few_may_wait() -> None:
    outbox = Outbox()
    for n in range(LARGE_MOST):
        outbox.put(notification("item/completed", {"text": "x" * 12 * MIB}, n))
    assert not outbox.overflowed.is_set()
    outbox.put(notification("item/completed", {"text": "x" * 12 * MIB}, 9))
    assert outbox.overflowed.is_set()


async def test_large_message_that_was_sent_leaves_room_for_the_next() -> None:
    outbox, wire = Outbox(), MemoryWire()
    sending = asyncio.create_task(outbox.send_to(wire))
    for _ in range(2 * LARGE_MOST):
        delta(outbox, "a", "x" * 2 * MIB)
        delta(outbox, "a", "y")
        await asyncio.wait_for(wire.outgoing.get(), 5)
    assert not outbox.overflowed.is_set()
    sending.cancel()


async def test_a_client_that_does_not_read_is_dropped_at_the_limit_and_told_why() -> None:
    wire = MemoryWire()
    connection = Connection(ports(), cast(Any, None), wire, outgoing=1_000)
    wire.reads.clear()
    serving = asyncio.create_task(connection.serve())
    connection.door.notify("warning", {"message": "x" * 800})
    await asyncio.sleep(0)
    assert not serving.done()
    for _ in range(2):
        connection.door.notify("warning", {"message": "x" * 800})
    await serving
    assert wire.closed is CloseCode.TOO_SLOW


async def test_connection_whose_token_ends_is_closed_by_its_watch_with_the_reason() -> None:
    in_force = frozenset({"t"})

    async def look() -> frozenset[str]:
        return in_force

    watch, wire = TokenWatch(look), MemoryWire(Principal("ben", token="t"))
    async with served(ports(), lambda session, change, root_turn: ()) as server:
        connection = server.connection(wire)
        serving = asyncio.create_task(watch.serve(wire.principal, connection.serve()))
        await Peer(wire, connection.door).greet()
        in_force = frozenset()
        await watch.look()
        with pytest.raises(Revoked):
            await serving
    # A close of its own would hide the code 1008 that is to come.
    assert wire.closed is None
