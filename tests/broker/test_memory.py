"""A parked session costs Redis nothing but memory, and little of that."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import BrokerConfig, Committed, Settlement, Spend
from orchestrator.core.commit_parts import Approval, Timer, TreeEvent
from tests.broker.actors import POOL, SHARD, Backend, created, everything, step, submitted
from tests.broker.families import letter, root_of

SESSIONS = 200
BYTES_EACH = 8 << 10
LOGS = ("rollout", "tree")
"""Keys that grow with the work, not with the waiting."""


async def _parked_for_an_approval(broker: Broker) -> None:
    session = await created(broker, meta=b"m" * 300)
    await submitted(broker, session, "s1", b"o" * 300)
    held = await broker.claims.claim(POOL, "w1", f"c-{session}", SHARD)
    assert held is not None
    waits = step(
        held,
        held.claim,
        "k",
        [b"e" * 300] * 8,
        cursor="1-0",
        approvals_open=(Approval("call", b"a" * 300),),
        timers_set=(Timer("approval", 1, 1 << 45),),
        release="park",
    )
    done = await broker.commits.commit(replace(waits, events=waits.events * 4))
    assert isinstance(done, Committed)
    assert done.released


async def test_session_parked_for_an_approval_stays_under_its_budget(server: Backend) -> None:
    client = server.look()[0]
    async with aclosing(server.broker(BrokerConfig(lease_s=60.0))) as broker:
        await broker.command("CONFIG", "SET", "stream-node-max-bytes", "2048")
        await broker.command("CONFIG", "SET", "hash-max-ziplist-value", "512")
        for _ in range(SESSIONS):
            await _parked_for_an_approval(broker)
        assert await broker.claims.claim(POOL, "w2", "none", SHARD) is None
        keys = [key for key in await everything([client]) if b":rollout:" not in key]
        sizes = [await client.execute_command("MEMORY", "USAGE", key, "SAMPLES", 0) for key in keys]
    assert sum(sizes) / SESSIONS <= BYTES_EACH


AGENTS = 100
SUMMARY = b"s" * 450
"""About what the twelve keys of a SubagentSummary take."""


async def _tree_of_waiting_agents(broker: Broker) -> None:
    """Every agent was spawned, announced to the root, and waits for others until a deadline."""
    root = await root_of(broker)
    for number in range(1, AGENTS):
        child = await root.spawns(number)
        announced = tuple(TreeEvent((b"l" * 300,), (root.session,)) for _ in range(3))
        await root.does(summary={f"a:{number}": SUMMARY}, tree_events=announced)
        await child.parks(
            payloads=(b"e" * 300,) * 8,
            timers_set=(Timer("await", 1, 1 << 45),),
            outbox=(letter(root.session, f"m{number}"),),
            settlements=(Settlement("1", Spend(10_000, 20_000, 1)),),
        )
    await root.does(cursor=f"{AGENTS}-0", taken=(AGENTS - 1, 0))


async def test_agent_that_waits_in_a_tree_stays_under_the_same_budget(server: Backend) -> None:
    client = server.look()[0]
    async with aclosing(server.broker(BrokerConfig(lease_s=60.0))) as broker:
        await broker.command("CONFIG", "SET", "stream-node-max-bytes", "2048")
        await broker.command("CONFIG", "SET", "hash-max-ziplist-value", "512")
        await _tree_of_waiting_agents(broker)
        assert await broker.claims.claim(POOL, "w2", "none", SHARD) is None
        sizes: dict[str, int] = {}
        for key in await everything([client]):
            kind = key.decode().split(":")[2]
            size = await client.execute_command("MEMORY", "USAGE", key, "SAMPLES", 0)
            sizes[kind] = sizes.get(kind, 0) + size
    assert sum(size for kind, size in sizes.items() if kind not in LOGS) / AGENTS <= BYTES_EACH
