"""Sessions whose folders are looked into: agents and their parents change the same files, and merge."""

from __future__ import annotations

from random import Random
from typing import Any

from sim.fixture import Fixture, new_session, perhaps_agents, used
from sim.folders import PORTABLE, SCRIPTED
from sim.pack_keys import exchanges, loses_a_pack
from sim.people import FREE

MERGING = (
    *("shell", "subagent_spawn", "subagent_spawn", "shell", "subagent_await", "subagent_await"),
    *("subagent_merge", "shell", "subagent_merge", "subagent_spawn", "subagent_await", "subagent_merge"),
    *("subagent_merge", "subagent_send_message", "subagent_await", "subagent_merge", "subagent_merge"),
)
"""A response that makes agents, writes meanwhile, and takes over what they have done, and do later."""
MERGES_IN_PEACE = 0.5
"""The share of seeds under which such a response comes behind the last fault, too."""


async def contents(fixture: Fixture) -> None:
    """A portable session, or one that works in a folder as it is, whose agents change the same files as it
    does and are merged; or a portable one whose processes are read to their ends. Keepers die of it."""
    rng, person, odds = fixture.rng, fixture.person(), fixture.site.model.odds
    fixture.nemesis.weights |= {"kill": 14, "kill_at": 14, "archive_away": 6, "pause": 8}
    folders, drawn = fixture.site.folders, Random(rng.getrandbits(32))
    folders.deadly = 2.5
    if folders.keys is not None:
        fixture.site.loop.start(fixture.nemesis.lane, exchanges(fixture.nemesis, drawn), "exchanges")
    if drawn.random() < 0.35:
        fixture.site.loop.start(fixture.nemesis.lane, loses_a_pack(fixture.nemesis, drawn), "loses")
    odds.calls, odds.asks, odds.patches, odds.plans = 0.95, 0.0, 0.25, 0.0
    reads = rng.random() < 0.25
    facts: dict[str, Any] = {"on_user_input": "steer", "mode": rng.choice((FREE, "workspace-write"))}
    if reads:
        odds.processes, odds.agents, odds.reads = 0.8, 0.0, 0.9
        person.habits |= {"interrupt": 3}
        facts |= {"portable": PORTABLE, "unified_exec": True}
        await used(fixture, person, await new_session(fixture, person, "never", **facts), rng.choice((2, 4)))
        return
    odds.opening, odds.rounds, odds.agents, odds.own = MERGING, 0.7, 0.1, 0.95
    odds.verbs |= {"subagent_spawn": 8, "subagent_await": 12, "subagent_merge": 25, "subagent_cancel": 1}
    odds.verbs |= {"subagent_watchdog": 0, "subagent_list": 0, "subagent_prune": 0}
    portable = rng.choice((None, None, None, PORTABLE, PORTABLE, SCRIPTED))
    facts |= {**perhaps_agents(rng, 1.0), "portable": portable}
    session = await new_session(fixture, person, "never", **facts)
    if portable is None:
        fixture.site.folders.shares(session)
    await used(fixture, person, session, rng.choice((2, 3)))
    await fixture.nemesis.calm.wait()
    odds.rounds, calm = 0.3, Random(rng.random())
    acts = calm.choice((1, 2))
    if calm.random() < MERGES_IN_PEACE:
        # Agents change little, and nothing breaks off their merges beside what their parent has changed.
        odds.calls, odds.rounds = 0.3, 1.0
        await person.says(session)
    await person.works(session, acts)
