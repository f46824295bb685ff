"""Births that carry packs: clients that die before their session is there, and days that pass."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import Any

from sim.archive_moves import NEVER, UpkeepRules
from sim.births import DAY_S, Founder
from sim.fixture import Fixture
from sim.folders import PORTABLE, SCRIPTED
from sim.held_messages import LateAnnouncement
from sim.nemesis import Nemesis

LOOK_S, LOOKS = 0.5, 120
LATE_SEEDS = 0.6
"""The share of seeds under which most clients sleep before they make their session."""
OVERSLEPT_SEEDS = 0.15
"""The share of seeds under which they sleep for three days, and their packs are removed meanwhile."""
LATE_S = 13.0
"""Longer than a command is late."""
ROUNDS_S = 601.0
"""A little more than from one look of upkeep at packs to the next."""


async def births(fixture: Fixture) -> None:
    """Clients that make sessions with a folder in the store, and die, sleep and come back meanwhile."""
    rng, nemesis = fixture.rng, fixture.nemesis
    nemesis.weights |= {"archive_away": 6, "rewind_1s": 6, "rewind": 3}
    nemesis.keep_up(UpkeepRules(rng.choice((1, 2)), seal_after=20, archive_after_s=NEVER, packs=True))
    # Drawn beside the others: clients come back about when they are given up, and a replica is promoted then.
    late = Random(f"late:{rng.getstate()[1][:4]}").random() < LATE_SEEDS
    if late and nemesis.failover is not None:
        nemesis.failover.gives_up = 1.0
    overslept = Random(f"overslept:{rng.getstate()[1][:4]}").random() < OVERSLEPT_SEEDS
    if Random(f"announced:{rng.getstate()[1][:4]}").random() < 0.75:
        nemesis.lie_in_wait(LateAnnouncement)
    founders = []
    for _ in range(rng.choice((2, 3, 4))):
        facts: dict[str, Any] = {"portable": rng.choice((PORTABLE, PORTABLE, SCRIPTED))}
        if overslept:
            founders.append(Founder(fixture, facts, sleeps=0.7, days=3.0))
        else:
            founders.append(Founder(fixture, facts, sleeps=0.6) if late else Founder(fixture, facts))
    plays = [one.does(_founds(one), "founds") for one in founders]
    passing = _days(nemesis, Random(rng.getrandbits(64)), rounds=overslept)
    days = fixture.site.loop.start(nemesis.lane, passing, "days")
    await asyncio.wait(plays)
    days.cancel()
    await nemesis.calm.wait()
    await _sweeps(fixture)


async def _founds(person: Founder) -> None:
    """Makes a session, and uses it a little."""
    session = await person.founds()
    if session is None:
        return
    person.does(person.follows(session, partial(person.answers, session)), "follows")
    await person.says(session)
    await person.works(session, person.acts())


async def _days(nemesis: Nemesis, rng: Random, *, rounds: bool) -> None:
    """Lets days pass for everybody, whenever nobody holds a session; and `rounds` of upkeep in between."""
    while True:
        await asyncio.sleep(rng.choice((1.0, 5.0, 15.0)) * rng.uniform(0.5, 1.0))
        await _passes(nemesis, DAY_S * rng.choice((0.3, 0.95, 1.01)))
        if rounds:
            await asyncio.sleep(LATE_S)
            await _passes(nemesis, ROUNDS_S)


async def _passes(nemesis: Nemesis, seconds: float) -> None:
    for _ in range(LOOKS):
        # Redis may have lost a claim whose holder is still at work.
        if not nemesis.site.watch.leased() and not any(machine.runners for machine in nemesis.living):
            nemesis.site.trace.note("nemesis", "passes", round(seconds), "s")
            nemesis.passes(seconds)
            return
        await asyncio.sleep(LOOK_S)


async def _sweeps(fixture: Fixture) -> None:
    """Lets two days pass in peace, and upkeep look at packs behind each."""
    await asyncio.sleep(LATE_S)
    for _ in range(2):
        await _passes(fixture.nemesis, DAY_S * 1.01)
        for _ in range(2):
            await asyncio.sleep(LATE_S)
            await _passes(fixture.nemesis, ROUNDS_S)
    await asyncio.sleep(LATE_S)
    folders = fixture.site.watch.folders
    assert folders is not None
    folders.unborn.swept = True
