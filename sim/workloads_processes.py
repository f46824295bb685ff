"""Workloads about commands that go on behind their calls."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from orchestrator.core.settings import TreeRules
from orchestrator.protocol import ops
from orchestrator.views.event import Event
from sim.fixture import Fixture, new_session, used
from sim.people import FREE, Person

LONG_S = (0.6, 3.0, 12.0, 40.0, 120.0)


async def left_running(fixture: Fixture) -> None:
    """A session, often with agents, that leaves processes running: its person types to it under one policy
    and another, replaces what runs and interrupts at once, and closes it while its worker is lost."""
    rng, person, odds = fixture.rng, fixture.person(), fixture.site.model.odds
    odds.processes, odds.calls, odds.patches, odds.plans = 0.95, 0.9, 0.03, 0.02
    odds.asks, odds.lives_s = rng.choice((0.0, 0.2)), LONG_S
    fixture.nemesis.weights |= {"end_at": 25, "kill_at": 12, "drain": 8}
    person.habits |= {"turn": 10, "say": 6, "interrupt": 5, "configure": 3, "message": 4, "back": 0}
    person.fickle = True
    facts: dict[str, Any] = {"on_user_input": rng.choice(("replace", "replace", "steer"))}
    if rng.random() < 0.6:
        odds.agents = 0.3
        odds.verbs |= {"subagent_spawn": 25, "subagent_cancel": 4, "subagent_await": 3}
        rules = TreeRules(slots=3, spawned=4, depth=2, await_floor_s=1.0, await_cap_s=20.0)
        facts |= {"agents": True, "tree_rules": rules}
    mode = rng.choice((FREE, "workspace-write"))
    policy = rng.choice(("never", "never", "untrusted"))
    session = await new_session(fixture, person, policy, mode=mode, unified_exec=True, **facts)
    hasty = fixture.person()
    hasty.does(hasty.follows(session, partial(_is_hasty, fixture, hasty, session)), "follows")
    await person.says(session)
    for _ in range(rng.choice((1, 2))):
        await used(fixture, person, session, rng.choice((1, 2)))
        await asyncio.sleep(rng.choice((0.5, 2.0, 6.0)) * rng.uniform(0.5, 1.5))
        await _ends(fixture, person, session)


async def _is_hasty(fixture: Fixture, person: Person, session: str, event: Event) -> None:
    """Replaces what runs when a process is typed to, and interrupts before that has stopped."""
    rng = fixture.rng
    if event.type != "terminal_interaction" or rng.random() > 0.25:
        return
    await person.says(session)
    await asyncio.sleep(rng.choice((0.0, 0.01, 0.05)) * rng.random())
    await person.submits(session, ops.Interrupt(tree=rng.random() < 0.3))


async def _ends(fixture: Fixture, person: Person, session: str) -> None:
    """Ends what runs in some way: closes it while the worker goes, or cancels; or leaves it alone."""
    rng = fixture.rng
    how = rng.choice(("shut", "shut", "cancel", "peace"))
    if how == "peace":
        await asyncio.sleep(rng.uniform(3.0, 20.0))
    else:
        if not fixture.nemesis.calm.is_set() and rng.random() < 0.7:
            await fixture.nemesis._end_at()
        await (person.shuts(session) if how == "shut" else person.cancels(session, rng.choice((1, 1, 2))))
    await person.says(session)
