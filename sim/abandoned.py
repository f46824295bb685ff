"""A workload whose workers leave for good."""

from __future__ import annotations

import asyncio

from orchestrator.core.settings import TreeRules
from sim.archive_moves import NEVER, UpkeepRules
from sim.fixture import Fixture, new_session
from sim.machines import POOL

FAR = "far"
"""A pool with workers of its own."""
REAPED_WITHIN_S = 420.0
"""A job of upkeep that its process did not survive is taken up again after five minutes."""


async def abandoned(fixture: Fixture) -> None:
    """A tree whose workers are gone for good while it is cancelled; others are left, or upkeep alone."""
    rng, nemesis, person = fixture.rng, fixture.nemesis, fixture.person()
    odds = fixture.site.model.odds
    odds.calls, odds.asks, odds.agents = 0.95, 0.0, 0.7
    odds.verbs |= {"subagent_spawn": 30, "subagent_cancel": 0}
    nemesis.start_worker((FAR,))
    only_upkeep = rng.random() < 0.5
    if only_upkeep or rng.random() < 0.3:
        nemesis.keep_up(UpkeepRules(processes=1, seal_after=1_000, archive_after_s=NEVER))
    rules = TreeRules(slots=4, spawned=4, depth=2, await_floor_s=1.0)
    session = await new_session(fixture, person, "never", pool=FAR, agents=True, tree_rules=rules)
    await asyncio.wait([person.does(person.says(session), "says")])
    await asyncio.sleep(rng.choice((0.5, 2.0, 6.0)) * rng.uniform(0.5, 1.5))
    nemesis.abandon((FAR, POOL) if only_upkeep else (FAR,), within_s=15.0)
    ending = person.shuts(session) if rng.random() < 0.5 else person.cancels(session, rng.choice((1, 2)))
    await asyncio.wait([person.does(ending, "ends")])
    await nemesis.abandoned.wait()
    await _reaped(fixture)
    nemesis.man(FAR)


async def _reaped(fixture: Fixture) -> None:
    """Waits until what is to end has ended, though nobody serves it."""
    watch, since_s = fixture.site.watch, fixture.site.loop.time()
    while not watch.peace_s or (left := watch.ending()):
        if watch.peace_s and watch.now_s - max(watch.peace_s, since_s) > REAPED_WITHIN_S:
            watch.broken("reaped", "; ".join(left))
        await asyncio.sleep(1.0)
    if fixture.nemesis.abandoned_a_cancel:
        watch.reach.saw("reaped")
