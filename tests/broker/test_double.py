"""Features that the double lacks. A feature whose line fails here has come, and may be used."""

from __future__ import annotations

from importlib.resources import files

import fakeredis
import pytest
from redis import exceptions as foreign

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Commands, Connection
from orchestrator.broker.records import BrokerConfig
from orchestrator.broker.scripts import load
from orchestrator.core.commit_parts import Timer
from tests.broker.actors import POOL, SHARD, Backend, step, working
from tests.broker.doubles import FakeClock, redis_time

LACKING = {
    "cmsgpack": "return cmsgpack.pack({1})",
    "struct": "return struct.pack('I', 1)",
    "bit": "return bit.band(1, 1)",
    "sha1hex": "return redis.sha1hex('x')",
}
"""Libraries that every server has and the double does not; so no script uses them."""


@pytest.mark.parametrize("name", LACKING)
async def test_double_lacks(name: str) -> None:
    client: Commands = fakeredis.FakeAsyncRedis()
    with pytest.raises(foreign.ResponseError):
        await client.execute_command("EVAL", LACKING[name], 0)
    await client.aclose()


@pytest.mark.parametrize("name", LACKING)
async def test_server_has(server: Backend, name: str) -> None:
    await server.look()[0].execute_command("EVAL", LACKING[name], 0)


async def test_double_takes_a_memory_limit_and_ignores_it() -> None:
    client: Commands = fakeredis.FakeAsyncRedis()
    await client.execute_command("CONFIG", "SET", "maxmemory", "1")
    assert await client.execute_command("SET", "key", "value")
    await client.aclose()


def _scripts() -> list[str]:
    names = (item.name for item in files("orchestrator.broker").joinpath("lua").iterdir())
    return sorted(name.removesuffix(".lua") for name in names if not name.startswith("_"))


@pytest.mark.parametrize("name", _scripts())
async def test_script_declares_itself_and_compiles_on_the_server(server: Backend, name: str) -> None:
    script = load(name)
    body = script.source.decode()
    assert script.gives.shapes
    assert "KEYS  1 " in body or "KEYS  none" in body
    assert await server.look()[0].execute_command("SCRIPT LOAD", body) == script.sha
    for library in ("cjson", "cmsgpack", "struct.", "bit.", "sha1hex"):
        assert library not in body, "the double lacks it, or it changes payloads"


async def test_clock_of_the_double_is_replaced_in_one_place() -> None:
    with redis_time(FakeClock()) as clock:
        client = fakeredis.FakeAsyncRedis()
        broker = Broker(Connection(client, client), BrokerConfig(lease_s=6.0), clock.monotonic)
        held = await working(broker)
        assert held.now_ms == clock.now_ms() == broker.now_ms()
        await broker.commits.commit(
            step(held, held.claim, "k", timers_set=(Timer("t", 1, clock.now_ms() + 5_000),))
        )
        assert await broker.claims.fire(SHARD) == ()
        assert await broker.claims.claim(POOL, "w2", "c2", SHARD) is None
        clock.advance(5.0)
        assert len(await broker.claims.fire(SHARD)) == 1
        assert await broker.claims.claim(POOL, "w2", "c2", SHARD) is None
        clock.advance(1.0)
        assert await broker.claims.claim(POOL, "w2", "c2", SHARD) is not None
        clock.advance(3_600.0)
        assert await broker.logs.read_eq(held.claim.session) == ()
        await broker.aclose()
