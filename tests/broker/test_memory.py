"""What a parked session costs Redis: nothing but memory, and little of that."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import Approval, BrokerConfig, Committed, TimerSet
from tests.broker.actors import POOL, SHARD, Backend, created, everything, step, submitted

SESSIONS = 200
BYTES_EACH = 8 << 10


async def _parked_for_an_approval(broker: Broker) -> None:
    session = await created(broker, meta=b"m" * 300)
    await submitted(broker, session, "s1", b"o" * 300)
    held = await broker.claim(POOL, "w1", f"c-{session}", SHARD)
    assert held is not None
    waits = step(
        held,
        held.claim,
        "k",
        [b"e" * 300] * 8,
        cursor="1-0",
        approvals_open=(Approval("call", b"a" * 300),),
        timers_set=(TimerSet("approval", 1, 1 << 45),),
        release="park",
    )
    done = await broker.commit(replace(waits, events=waits.events * 4))
    assert isinstance(done, Committed)
    assert done.released


async def test_session_parked_for_an_approval_stays_under_its_budget(server: Backend) -> None:
    client = server.look()[0]
    async with aclosing(server.broker(BrokerConfig(lease_s=60.0))) as broker:
        await broker.command("CONFIG", "SET", "stream-node-max-bytes", "512")
        for _ in range(SESSIONS):
            await _parked_for_an_approval(broker)
        assert await broker.claim(POOL, "w2", "none", SHARD) is None
        keys = [key for key in await everything([client]) if b":rollout:" not in key]
        sizes = [await client.execute_command("MEMORY", "USAGE", key, "SAMPLES", 0) for key in keys]
    assert sum(sizes) / SESSIONS <= BYTES_EACH
