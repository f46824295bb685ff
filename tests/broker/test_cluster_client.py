"""The client of a cluster without a cluster: where a command goes, and what a node's refusal leads to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis import exceptions as foreign
from redis.crc import key_slot

from orchestrator.broker import cluster as cluster_module
from orchestrator.broker.cluster import Cluster
from orchestrator.broker.sockets import Address, Era

HALF = 8_192
OPTIONS = {"shown_name": "", "socket_timeout": 1.0, "socket_connect_timeout": 1.0}
LOW, HIGH = "{s7}:key", "{s4}:key"
"""Keys of a slot of the first half, and of the second."""


class Nodes:
    """The nodes of a cluster, each with what it does with a command beside telling the slots."""

    def __init__(self, *owners: Address) -> None:
        self.owners = list(owners)
        self.asked: list[tuple[Address, Any]] = []
        self.refuses: Callable[[Address, Any], Exception | None] = lambda address, word: None
        self.told_by: list[Address] = []
        self.hidden = False
        """Whether nodes tell no address of their own."""
        self.cluster = Cluster("redis://one:7000/0", Era(), OPTIONS)
        self.cluster._wire = self._wire  # type: ignore[method-assign]

    def _wire(self, address: Address) -> Any:
        nodes = self

        class Wire:
            async def execute_command(self, *words: Any) -> Any:
                error = nodes.refuses(address, words[0])
                if words[0] == "CLUSTER" and error is None:
                    nodes.told_by.append(address)
                    return nodes.slots(address)
                nodes.asked.append((address, words[-1]))
                if error is not None:
                    raise error
                return b"done"

        return Wire()

    def slots(self, asked: Address) -> list[Any]:
        width = 2 * HALF // len(self.owners)
        rows: list[Any] = []
        for place, (host, port) in enumerate(self.owners):
            told = None if self.hidden and (host, port) == asked else host.encode()
            rows.append([place * width, (place + 1) * width - 1, [told, port, b"id"]])
        return rows


ONE, TWO, THREE = ("one", 7000), ("two", 7000), ("three", 7000)


def refusal(name: str, said: str) -> Exception:
    """An error of the client library's, whose constructors have no types."""
    error: Exception = getattr(foreign, name)(said)
    return error


def test_keys_of_these_tests_are_in_the_halves_that_they_name() -> None:
    assert key_slot(LOW.encode()) < HALF <= key_slot(HIGH.encode())


@pytest.mark.parametrize("key", [LOW, HIGH, LOW.encode(), HIGH.encode()])
@pytest.mark.parametrize(
    "words",
    [
        lambda key: ("GET", key),
        lambda key: ("EVALSHA", "sha", 2, key, "{s1}:other", "argument"),
        lambda key: ("EVAL", "source", 1, key),
        lambda key: ("XREAD", "COUNT", 10, "BLOCK", 5, "STREAMS", key, "0-0"),
    ],
)
async def test_command_goes_to_the_node_that_has_its_first_key(key: Any, words: Callable[[Any], Any]) -> None:
    nodes = Nodes(ONE, TWO)
    for _ in range(2):
        assert await nodes.cluster.execute_command(*words(key)) == b"done"
    high = key_slot(key if isinstance(key, bytes) else key.encode()) >= HALF
    assert [address for address, _ in nodes.asked] == [TWO if high else ONE] * 2
    assert nodes.told_by == [ONE], "where the slots are is asked once"


@pytest.mark.parametrize("words", [("PING",), ("EVAL", "source", 0, HIGH), ("EVALSHA", "sha", 0)])
async def test_command_without_a_key_goes_where_the_first_slot_is(words: tuple[Any, ...]) -> None:
    nodes = Nodes(TWO, ONE)
    assert await nodes.cluster.execute_command(*words) == b"done"
    assert [address for address, _ in nodes.asked] == [TWO]


@pytest.mark.parametrize(
    "error",
    [foreign.ConnectionError("gone"), foreign.TimeoutError("late"), refusal("ClusterDownError", "down")],
)
async def test_node_that_does_not_serve_is_told_and_the_slots_are_looked_up_anew_at_any_other(
    error: Exception,
) -> None:
    nodes = Nodes(ONE, TWO)
    assert await nodes.cluster.execute_command("GET", LOW) == b"done"
    nodes.refuses = lambda address, word: error if address == ONE else None
    with pytest.raises(type(error)):
        await nodes.cluster.execute_command("GET", LOW)
    nodes.owners = [THREE, TWO]
    assert await nodes.cluster.execute_command("GET", LOW) == b"done"
    assert nodes.asked[-1][0] == THREE
    assert nodes.told_by == [ONE, TWO]
    await nodes.cluster.aclose()


async def test_slots_of_others_are_not_looked_up_anew_where_one_node_does_not_serve() -> None:
    nodes = Nodes(ONE, TWO)
    for key in (LOW, HIGH):
        await nodes.cluster.execute_command("GET", key)
    told_by = list(nodes.told_by)
    nodes.refuses = lambda address, word: foreign.ConnectionError("gone") if address == ONE else None
    with pytest.raises(foreign.ConnectionError):
        await nodes.cluster.execute_command("GET", LOW)
    assert await nodes.cluster.execute_command("GET", HIGH) == b"done"
    assert nodes.told_by == told_by
    # Where the slots of the first are is asked of the second, whichever came first before.
    with pytest.raises(foreign.ConnectionError):
        await nodes.cluster.execute_command("GET", LOW)
    assert nodes.told_by == [*told_by, TWO]


async def test_late_node_lets_nothing_wait_any_more_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "AGAIN_S", 0.0)
    nodes, probed, thaws = Nodes(ONE, TWO), asyncio.Event(), asyncio.Event()
    for key in (LOW, HIGH):
        await nodes.cluster.execute_command("GET", key)
    wire = nodes.cluster._wire

    class Frozen:
        async def execute_command(self, *words: Any) -> Any:
            if words[0] == "PING":
                probed.set()
                await thaws.wait()
                return b"PONG"
            raise foreign.TimeoutError("the server does not answer")

    monkeypatch.setattr(nodes.cluster, "_wire", lambda address: Frozen() if address == ONE else wire(address))
    with pytest.raises(foreign.TimeoutError):
        await nodes.cluster.execute_command("GET", LOW)
    await probed.wait()
    monkeypatch.setattr(nodes.cluster, "_wire", wire)
    for ask in (nodes.cluster.execute_command("GET", LOW), nodes.cluster.together([("GET", LOW)])):
        with pytest.raises(foreign.TimeoutError, match="one:7000 does not answer"):
            await ask
    assert await nodes.cluster.execute_command("GET", HIGH) == b"done"
    assert [address for address, _ in nodes.asked] == [ONE, TWO, TWO]
    thaws.set()
    while nodes.cluster._late:
        await asyncio.sleep(0)
    assert await nodes.cluster.execute_command("GET", LOW) == b"done"
    await nodes.cluster.aclose()


@pytest.mark.parametrize("how", ["it is left", "it refuses connections", "the client is closed"])
async def test_late_node_is_asked_no_more_once_nobody_would_wait_for_it(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "AGAIN_S", 0.0)
    nodes = Nodes(ONE, TWO)
    await nodes.cluster.execute_command("GET", LOW)
    nodes.refuses = lambda address, word: foreign.TimeoutError("late") if address == ONE else None
    with pytest.raises(foreign.TimeoutError):
        await nodes.cluster.execute_command("GET", LOW)
    for _ in range(10):
        await asyncio.sleep(0)
    assert nodes.cluster._late, "it is asked for as long as it is late"
    match how:
        case "it is left":
            nodes.owners = [THREE, TWO]
            assert await nodes.cluster.execute_command("GET", LOW) == b"done"
        case "it refuses connections":
            nodes.refuses = lambda address, word: foreign.ConnectionError("gone") if address == ONE else None
        case _:
            await nodes.cluster.aclose()
    while nodes.cluster._late:
        await asyncio.sleep(0)
    await nodes.cluster.aclose()


async def test_slot_that_moved_is_found_where_it_is_now_and_asked_for_there_from_then_on() -> None:
    nodes = Nodes(ONE, TWO)
    moved = refusal("MovedError", f"{key_slot(LOW.encode())} three:7000")
    nodes.refuses = lambda address, word: moved if address == ONE and word == "GET" else None
    for _ in range(2):
        assert await nodes.cluster.execute_command("GET", LOW) == b"done"
    assert await nodes.cluster.execute_command("GET", HIGH) == b"done"
    assert [address for address, _ in nodes.asked] == [ONE, THREE, THREE, TWO]


async def test_slot_that_nodes_send_to_each_other_is_given_up_and_so_is_one_that_nobody_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_module, "REDIRECTIONS", 3)
    nodes, slot = Nodes(ONE, TWO), key_slot(LOW.encode())
    others = {ONE: "two:7000", TWO: "one:7000"}
    nodes.refuses = lambda address, word: (
        refusal("MovedError", f"{slot} {others[address]}") if word == "GET" else None
    )
    with pytest.raises(foreign.ClusterError, match=f"do not agree on who has slot {slot}"):
        await nodes.cluster.execute_command("GET", LOW)
    assert [address for address, _ in nodes.asked] == [ONE, TWO, ONE]
    bare = Nodes(ONE, TWO)
    bare.slots = lambda asked: Nodes.slots(bare, asked)[1:]  # type: ignore[method-assign]
    for times in (1, 2):
        with pytest.raises(foreign.ClusterError, match=f"no node has slot {slot}"):
            await bare.cluster.execute_command("GET", LOW)
        assert len(bare.told_by) == times, "it may have one by the next time"


async def test_node_that_tells_no_address_of_its_own_is_reached_by_the_one_that_was_asked() -> None:
    nodes = Nodes(ONE, TWO)
    nodes.hidden = True
    for key, address in ((LOW, ONE), (HIGH, TWO)):
        assert await nodes.cluster.execute_command("GET", key) == b"done"
        assert nodes.asked[-1][0] == address


@pytest.mark.parametrize("error", [None, foreign.ConnectionError("gone"), foreign.TimeoutError("late")])
async def test_commands_that_go_together_go_where_their_slot_moved_between_them_or_is_served_again(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, asked = Nodes(ONE, TWO), list[Address]()
    moved = refusal("MovedError", f"{key_slot(LOW.encode())} three:7000")

    async def piped(node: Any, rows: Any) -> list[Any]:
        asked.append(node)
        if node == ONE and error is not None:
            raise error
        return [b"done", moved if node == ONE else b"too"]

    monkeypatch.setattr(cluster_module, "_piped", piped)
    monkeypatch.setattr(nodes.cluster, "_node", lambda address: address)
    if error is not None:
        with pytest.raises(type(error)):
            await nodes.cluster.together([("GET", LOW), ("TTL", LOW)])
        nodes.owners = [THREE, TWO]
        assert await nodes.cluster.together([("GET", LOW), ("TTL", LOW)]) == [b"done", b"too"]
        assert asked == [ONE, THREE]
    else:
        for _ in range(2):
            assert await nodes.cluster.together([("GET", LOW), ("TTL", LOW)]) == [b"done", b"too"]
        assert asked == [ONE, THREE, THREE]
