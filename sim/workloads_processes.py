"""Workloads about commands that go on behind their calls."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from orchestrator.core.settings import TreeRules
from orchestrator.protocol import ops
from orchestrator.views.event import Event
from sim.fixture import Fixture, kept_busy, new_session, perhaps_agents, used
from sim.folders import PORTABLE
from sim.people import FREE, Person

LONG_S = (0.6, 3.0, 12.0, 40.0, 120.0)


async def left_running(fixture: Fixture) -> None:
    """A session, often with agents, that leaves processes running: its person types to it under one policy
    and another, replaces what runs and interrupts at once, and closes it while its worker is lost."""
    rng, person, odds = fixture.rng, fixture.person(), fixture.site.model.odds
    odds.processes, odds.calls, odds.patches, odds.plans = 0.95, rng.choice((0.75, 0.9)), 0.03, 0.02
    odds.asks, odds.lives_s, odds.dies_s = rng.choice((0.0, 0.2)), LONG_S, rng.choice((0.2, 1.5))
    fixture.nemesis.weights |= {
        "end_at": 12,
        "kill_at": 12,
        "drain": 8,
        "lose_processes": 15,
        "freeze_at": 40,
    }
    kind = rng.choice(("hasty", "fickle", "closed"))
    person.habits |= {"turn": 8, "say": 8, "interrupt": 1, "configure": 1, "message": 3, "back": 0}
    person.fickle = kind == "fickle"
    facts: dict[str, Any] = {"on_user_input": "replace" if kind == "hasty" else "steer"}
    if kind == "closed":
        # Agents that are done soon, and leave something behind.
        odds.calls, odds.lives_s = rng.choice((0.4, 0.6)), (12.0, 40.0, 120.0)
        odds.opening = ("subagent_spawn",) * rng.choice((1, 2))
    if kind == "closed" or rng.random() < 0.3:
        odds.agents = 0.3
        odds.verbs |= {"subagent_spawn": 25, "subagent_cancel": 4, "subagent_await": 3}
        rules = TreeRules(slots=3, spawned=4, depth=2, await_floor_s=1.0, await_cap_s=20.0)
        facts |= {"agents": True, "tree_rules": rules}
    elif kind == "fickle" and rng.random() < 0.6:
        facts["portable"] = PORTABLE
    mode = rng.choice((FREE, "workspace-write"))
    policy = rng.choice(("never", "never", "untrusted"))
    session = await new_session(fixture, person, policy, mode=mode, unified_exec=True, **facts)
    if kind == "fickle":
        odds.types, odds.lives_s = 0.7, LONG_S[2:]
    if kind == "hasty":
        odds.yields_ms = (0, 250, 1_000, 1_000)
        hasty = fixture.person()
        hasty.does(hasty.follows(session, partial(is_hasty, fixture, hasty, session)), "follows")
    await person.says(session)
    for _ in range(rng.choice((2, 3))):
        await asyncio.sleep(rng.choice((0.5, 2.0, 6.0)) * rng.uniform(0.5, 1.5))
        if kind == "closed":
            await asyncio.sleep(rng.choice((0.0, 3.0, 9.0)))
            await _ends(fixture, person, session)
        else:
            await person.submits(session, person._turn(session))
    await used(fixture, person, session, rng.choice((1, 2)))


async def thawed(fixture: Fixture) -> None:
    """A session whose supervisors stand still as calls are to start, and go on behind their deadlines."""
    rng, person, odds = fixture.rng, fixture.person(), fixture.site.model.odds
    odds.calls, odds.asks, odds.plans, odds.patches = 0.95, 0.0, 0.0, 0.1
    odds.processes, odds.lives_s = rng.choice((0.0, 0.9)), LONG_S
    fixture.nemesis.weights |= {"freeze_at": 300}
    person.habits |= {"say": 14, "interrupt": 2}
    steers = rng.choice(("replace", "steer"))
    session = await new_session(
        fixture, person, "never", unified_exec=odds.processes > 0, on_user_input=steers
    )
    await kept_busy(fixture, person, session, 12)


async def scripts(fixture: Fixture) -> None:
    """A session whose commands are scripts, and whose workers lose the processes that read them."""
    rng, person, other, odds = fixture.rng, fixture.person(), fixture.person(), fixture.site.model.odds
    odds.calls, odds.patches, odds.plans, odds.large = 0.9, 0.0, 0.0, 0.0
    odds.asks, odds.dangerous, odds.escalated, odds.denied = 0.5, 0.4, 0.1, 0.1
    odds.scripts, odds.readers = 1.0, rng.choice((0.05, 0.2, 0.4))
    odds.prefixes = rng.choice((0.0, 0.3))
    person.habits |= {"interrupt": 4, "turn": 8}
    facts: dict[str, Any] = {
        "approval_timeout_ms": rng.choice((None, 5_000, 3_600_000)),
        "mode": rng.choice((FREE, "workspace-write")),
        **perhaps_agents(rng, 0.2),
    }
    policy = rng.choice(("untrusted", "on-request", "on-failure", "never", "never"))
    session = await new_session(fixture, person, policy, **facts)
    other.does(other.follows(session, partial(other.answers, session)), "follows")
    await used(fixture, person, session, rng.choice((2, 4)))


async def is_hasty(fixture: Fixture, person: Person, session: str, event: Event) -> None:
    """Replaces what runs when another process begins, and interrupts before that has stopped."""
    rng = fixture.rng
    number = int(event.msg.get("process_id") or 0) if event.type == "exec_command_begin" else 0
    if number < 2:
        return
    await person.says(session)
    await asyncio.sleep(rng.choice((0.0, 0.01, 0.05)) * rng.random())
    for _ in range(50):
        # An interrupt overtakes words that their worker has not read yet.
        seen = fixture.site.watch.sessions.get(session)
        if seen is not None and seen.state.task is not None and seen.state.task.stopping:
            break
        await asyncio.sleep(0.01)
    await person.submits(session, ops.Interrupt(tree=rng.random() < 0.3))


async def types_under_others(fixture: Fixture, person: Person, session: str) -> None:
    """Leaves processes running under one policy, and types to them in turns under others."""
    odds, person.fickle, policy = fixture.site.model.odds, False, person._policies[session][0]
    for types, mode in ((0.2, FREE), (1.0, "read-only"), (1.0, "workspace-write")):
        odds.types, person._policies[session] = types, (policy, mode)
        await person.submits(session, person._turn(session))
        await asyncio.sleep(fixture.rng.uniform(2.0, 6.0))


async def _ends(fixture: Fixture, person: Person, session: str) -> None:
    """Closes the session while its worker is lost, or cancels an agent of it, and speaks again."""
    rng = fixture.rng
    if not fixture.nemesis.calm.is_set():
        await fixture.nemesis._lose_processes()
    await (person.shuts(session) if rng.random() < 0.6 else person.cancels(session, rng.choice((1, 1, 2))))
    await person.submits(session, person._turn(session))
