"""Each script is stated a second time, and what it does otherwise is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from redis.exceptions import ResponseError

from sim.double import Double, encoded, opened
from sim.network import scripts
from sim.reference.check import STATEMENTS
from tests.stated import StatedRedis

NO_STATE = {"rights", "sign_in"}
"""Scripts without state in a simulated fleet: `rights` asks about the server's user; no browser signs in."""
KEYS = ("{s0}:workers", "{s0}:heard", "{s0}:drains", "{s0}:serving:default")
ARGS = ("w1", "state", "", 60_000, 15_000)


@pytest.fixture
def double() -> Iterator[Double]:
    with opened() as server:
        server.simulated = lambda: 100.0
        yield server


def unlike(server: Double, source: bytes) -> str:
    """The differences between a heartbeat script of this text and its statement."""
    server.know(source, "sha")
    words = ("EVALSHA", "sha", len(KEYS), *KEYS, *ARGS)
    command = encoded(words)
    stated = server.stated("heartbeat", command)
    assert stated is not None
    return stated.difference(server.take("EVALSHA", command))


def changed(old: bytes, new: bytes) -> bytes:
    source: bytes = scripts()["heartbeat"].source
    assert source.count(old) == 1
    return source.replace(old, new)


def test_every_script_that_has_keys_is_stated() -> None:
    assert set(scripts()) == set(STATEMENTS) | NO_STATE


def test_script_as_it_is_does_what_is_stated(double: Double) -> None:
    assert unlike(double, scripts()["heartbeat"].source) == ""
    assert unlike(double, scripts()["heartbeat"].source) == "", "it changes nothing of what is there"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (b"redis.call('ZADD', KEYS[2], text(now), worker)", b"", "{s0}:heard: w1 is None"),
        (b"redis.call('HSET', KEYS[1], worker, state)", b"", "{s0}:workers: w1 is None"),
        (b"return {'OK', now, drains, places}", b"return {'OK', now + 1, drains, places}", "the answer was"),
        (b"'NX', text(now)", b"'NX', text(now + 1)", "{s0}:serving:default: w1 is"),
        (b"text(now - forget_ms)", b"text(now)", "{s0}:workers: w1 is None"),
    ],
)
def test_script_that_does_otherwise_is_told_by_key(double: Double, old: bytes, new: bytes, told: str) -> None:
    assert told in unlike(double, changed(old, new))


async def test_client_of_tests_tells_when_it_is_closed_what_a_script_did_otherwise() -> None:
    client = StatedRedis()
    words = (len(KEYS), *KEYS, *ARGS)
    await client.execute_command("EVAL", scripts()["heartbeat"].source, *words)
    await client.aclose()
    await client.execute_command("HSET", KEYS[0], "gone", "state")
    await client.execute_command("ZADD", KEYS[1], 1, "gone")
    client._double.know(changed(b"redis.call('HDEL', KEYS[1], gone)", b""), scripts()["heartbeat"].sha)
    await client.execute_command("EVALSHA", scripts()["heartbeat"].sha, *words)
    with pytest.raises(AssertionError, match=r"heartbeat: .*workers: gone is"):
        await client.aclose()


async def test_client_of_tests_states_nothing_of_data_that_no_script_leaves() -> None:
    client = StatedRedis()
    await client.execute_command("SET", KEYS[0], "a text in the place of a hash")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await client.execute_command("EVAL", b"return redis.call('HGET', KEYS[1], 'x')", 1, KEYS[0])
    told = await client.execute_command("EVAL", scripts()["heartbeat"].source, len(KEYS), *KEYS, *ARGS)
    assert told[0] == b"CORRUPT"
    await client.aclose()


async def test_client_of_tests_waits_for_an_entry_that_is_written_meanwhile() -> None:
    client = StatedRedis()
    waits = asyncio.create_task(client.execute_command("XREAD", "BLOCK", 60_000, "STREAMS", "s", "0-0"))
    await asyncio.sleep(0)
    await client.execute_command("XADD", "s", "*", "k", "v")
    assert await waits
    assert not await client.execute_command("XREAD", "BLOCK", 1, "STREAMS", "t", "0-0")


def test_entries_of_one_moment_are_read_to_their_end(double: Double) -> None:
    for number in range(450):
        double.run("XADD", "{s0}:ready:default", "*", "s", str(number))
    found = double.stream_after("{s0}:ready:default", 0)
    assert [fields[b"s"] for _, fields in found] == [str(number).encode() for number in range(450)]
