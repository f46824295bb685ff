"""Workloads for what others seldom come by: two answers to one call, workers that stand still, refusals."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from orchestrator.core.settings import TreeRules
from sim.fixture import Fixture, kept_busy, new_session, used


async def reruns(fixture: Fixture) -> None:
    """A session whose commands are asked about, stopped by their sandbox, and asked about again; three people
    answer, late and by the call."""
    rng, person, odds = fixture.rng, fixture.person(), fixture.site.model.odds
    odds.calls, odds.asks, odds.patches, odds.plans, odds.dangerous, odds.denied = (
        0.95,
        1.0,
        0.0,
        0.0,
        0.9,
        0.9,
    )
    person.habits = {"say": 1}
    facts: dict[str, Any] = {"on_user_input": "steer", "mode": "workspace-write"}
    session = await new_session(fixture, person, rng.choice(("untrusted", "on-failure")), **facts)
    for other in (fixture.person(), fixture.person()):
        other.does(other.follows(session, partial(other.answers, session)), "follows")
    await used(fixture, person, session, rng.choice((2, 4)))


async def zombies(fixture: Fixture) -> None:
    """A session with commands and patches whose workers and their supervisors stand still, in the middle of a
    start, of a stop, of anything, and wake up behind their deadlines."""
    rng, person, odds = fixture.rng, fixture.person(), fixture.site.model.odds
    odds.calls, odds.asks, odds.plans, odds.patches = 0.95, 0.0, 0.0, 0.2
    odds.long_s = 20.0
    fixture.nemesis.weights |= {
        "pause_at": 60,
        "frozen_supervisor": 30,
        "frozen_host": 150,
        "end_at": 20,
    }
    person.habits |= {"interrupt": 8, "say": 14}
    facts: dict[str, Any] = {"on_user_input": rng.choice(("replace", "steer"))}
    await kept_busy(fixture, person, await new_session(fixture, person, "never", **facts), 12)


async def lapses(fixture: Fixture) -> None:
    """A session with long commands whose workers lose their leases: they stand still or reach nobody, while
    their supervisors have so much to do that they kill late."""
    rng, person, odds = fixture.rng, fixture.person(), fixture.site.model.odds
    odds.calls, odds.asks, odds.plans, odds.patches = 0.95, 0.0, 0.0, 0.1
    odds.long_s = 30.0
    fixture.site.ledger.busy_s = rng.uniform(0.8, 1.0)
    for machine in fixture.nemesis.living:
        machine.supervisor.hurries()
    fixture.nemesis.weights |= {"pause": 120, "pause_at": 60, "cut": 120}
    await kept_busy(fixture, person, await new_session(fixture, person, "never"), 8)


async def burials(fixture: Fixture) -> None:
    """Sessions with commands whose workers are killed again and again, while supervisors are slow, stand
    still or cannot kill, and the word that a worker is dead is late."""
    rng, odds = fixture.rng, fixture.site.model.odds
    odds.calls, odds.asks, odds.plans, odds.patches = 0.95, 0.0, 0.0, 0.1
    odds.long_s = 20.0
    odds.processes = rng.choice((0.0, 0.0, 0.9))
    fixture.nemesis.weights |= {
        "slow_death": 40,
        "stuck_death": 30,
        "cut_socket": 30,
        "late_burial": 40,
        "revoked_death": 40,
        "kill": 30,
        "kill_at": 30,
        "revoke": 10,
        "late_stopped": 10,
        "rewind_1s": 4,
    }
    plays = []
    for _ in range(rng.choice((1, 2))):
        person = fixture.person()
        person.habits |= {"say": 14, "interrupt": 2}
        steers = rng.choice(("replace", "steer"))
        session = await new_session(
            fixture, person, "never", unified_exec=odds.processes > 0, on_user_input=steers
        )
        plays.append(person.does(kept_busy(fixture, person, session, 12), "is busy"))
    await asyncio.wait(plays)


async def refusals(fixture: Fixture) -> None:
    """Sessions whose Redis is out of memory, read-only or loading again and again while people speak."""
    fixture.nemesis.weights |= {"refuses": 60, "forgets_scripts": 10}
    plays = []
    for _ in range(2):
        person = fixture.person()
        steer = fixture.rng.choice(("replace", "steer"))
        session = await new_session(fixture, person, "never", on_user_input=steer)
        plays.append(person.does(person.works(session, 8), "works"))
    await asyncio.wait(plays)


async def lineages(fixture: Fixture) -> None:
    """A tree of depth three, whose agents list, watch, interrupt, cancel and prune each other across it."""
    rng, person, odds = fixture.rng, fixture.person(), fixture.site.model.odds
    odds.calls, odds.asks, odds.agents, odds.strangers = 0.85, 0.1, 0.85, 5
    odds.opening = ("subagent_spawn",) * 3
    odds.verbs |= {
        "subagent_spawn": 10,
        "subagent_send_message": 8,
        "subagent_watchdog": 4,
        "subagent_await": 7,
        "subagent_cancel": 3,
        "subagent_list": 4,
        "spawn_subagent": 4,
    }
    person.habits |= {"message": 8, "change": 5, "turn": 4, "say": 6, "back": 0}
    rules = TreeRules(
        slots=7,
        spawned=7,
        depth=3,
        autosubmit=rng.random() < 0.8,
        await_floor_s=6.0,
        await_cap_s=40.0,
        watchdog_floor_s=3.0,
        watchdogs=1,
    )
    policy = rng.choice(("never", "on-request"))
    steer = rng.choice(("replace", "steer", "steer"))
    session = await new_session(fixture, person, policy, agents=True, tree_rules=rules, on_user_input=steer)
    await used(fixture, person, session, rng.choice((3, 5)))
