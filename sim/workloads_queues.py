"""Workloads about what waits for a session and joins it without a turn."""

from __future__ import annotations

from typing import Any

from sim.fixture import Fixture, new_session, perhaps_agents, used


async def queues(fixture: Fixture) -> None:
    """A session whose person says where input goes, takes it back or puts it in another order while it waits,
    and adds messages, between turns and in them."""
    rng, person, odds = fixture.rng, fixture.person(), fixture.site.model.odds
    odds.calls, odds.asks, odds.patches = 0.6, 0.2, 0.1
    person.habits |= {
        "add": 8,
        "requeue": 8,
        "say": 14,
        "interrupt": 4,
        "compact": 2,
        "plan": 1,
        "review": 1,
        "run": 1,
    }
    person.delivers, person.two_clients = True, rng.random() < 0.8
    # Kept stories are calm, and stay as they are.
    person.looks_twice = person.two_clients and not fixture.site.network.instant
    facts: dict[str, Any] = {"on_user_input": rng.choice(("replace", "steer")), **perhaps_agents(rng, 0.3)}
    session = await new_session(fixture, person, rng.choice(("never", "untrusted")), **facts)
    await used(fixture, person, session, rng.choice((3, 6)))
