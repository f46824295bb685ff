"""Workloads whose people make sessions that go on where others stand."""

from __future__ import annotations

import asyncio

from sim.fixture import Fixture, new_session, perhaps_agents, used


async def heirs(fixture: Fixture) -> None:
    """A session that is compacted, and forks of it that people make while it works, and of those."""
    rng, person = fixture.rng, fixture.person()
    fixture.site.model.odds.large = 0.3
    person.habits |= {"compact": 6, "back": 3}
    session = await new_session(fixture, person, "never", **perhaps_agents(rng, 0.3))
    working = person.does(used(fixture, person, session, rng.choice((2, 4))), "uses")
    for _ in range(rng.choice((1, 2, 3))):
        await asyncio.sleep(rng.uniform(0.0, 60.0))
        if rng.random() < 0.7:
            fixture.nemesis.forgets_birth()
        forking = person.does(person.forks(session), "forks")
        await asyncio.wait([forking])
        if (heir := forking.result()) is None:
            continue
        session = heir
        await used(fixture, person, session, 2)
    await asyncio.wait([working])
