"""A workload's fixture: the objects that its play works with, and the acts that many plays share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from orchestrator.core.calls import Call, ClientToolWork
from orchestrator.core.settings import TreeRules
from orchestrator.core.state import State
from sim.machines import Site
from sim.nemesis import Nemesis
from sim.people import Diary, Person

ENOUGH = {"tokens": 5_000, "cost": 50_000, "requests": 20, "wall": 3_600_000}
"""Amounts that are added to budgets at the end, as often as they are spent."""
SOON_MS = 60_000


@dataclass
class Fixture:
    """The objects that a play works with."""

    site: Site
    diary: Diary
    rng: Random
    nemesis: Nemesis
    people: list[Person] = field(default_factory=list)
    janitor: Person | None = None

    def person(self) -> Person:
        rng = self.site.drawn(self.rng.getrandbits(64))
        person = Person(self.site, f"p{len(self.people) + 1}", rng, self.diary)
        self.people.append(person)
        return person

    def open_requests(self) -> list[tuple[str, str, str]]:
        """(session, call, kind) of every open request, as the fleet's queue has them."""
        watch = self.site.watch
        found: list[tuple[str, str, str]] = []
        for session, seen in watch.sessions.items():
            task, limit_ms = seen.state.task, seen.state.facts.approval_timeout_ms or SOON_MS
            # Nobody answers in its timer's place.
            asked = [call for call in task.requests if _limit(call, limit_ms) >= SOON_MS] if task else []
            found += [(session, call.call_id, call.work.kind if call.work else "") for call in asked]
            if limit_ms < SOON_MS:
                continue
            found += [(session, one.id, "elicitation") for one in (task.open_elicitations if task else ())]
        return found

    async def answer_all(self) -> None:
        """Answers all that waits for people: approvals, budgets, an end of trees where a watchdog barks."""
        if self.janitor is None:
            rng = self.site.drawn(self.rng.getrandbits(64))
            self.janitor = Person(self.site, "janitor", rng, self.diary)
        janitor, told = self.janitor, []
        told += [janitor.settles(session, call, kind) for session, call, kind in self.open_requests()]
        told += [janitor.adds(tree, ENOUGH) for tree in self.trees_that(lambda state: state.tree.paused)]
        told += [janitor.shuts(tree) for tree in self.trees_that(lambda state: state.tree.watchdogs)]
        watch = self.site.watch
        told += [self.nemesis.readmits(session) for session in watch.quarantined()]
        for act in told:
            await asyncio.wait([janitor.does(act, "answers")])

    def trees_that(self, hold: Callable[[State], object]) -> list[str]:
        """Trees some session of which is in such a state, unless they are closed or being closed."""
        watch = self.site.watch
        found = dict.fromkeys(seen.tree for seen in watch.sessions.values() if hold(seen.state))
        return [tree for tree in found if not watch.sessions[tree].state.closing]


def perhaps_agents(rng: Random, share: float) -> dict[str, Any]:
    """Facts that let a new session make agents, for this share of sessions."""
    rules = TreeRules(slots=3, spawned=4, depth=2, await_floor_s=1.0)
    return {"agents": True, "tree_rules": rules} if rng.random() < share else {}


async def visits(fixture: Fixture, person: Person, session: str) -> None:
    await person.works(session, fixture.rng.choice((1, 3, 5)))
    if fixture.rng.random() < 0.4:
        await person.shuts(session)
        await person.works(session, fixture.rng.choice((0, 1)))


def _limit(call: Call, limit_ms: int) -> int:
    """The milliseconds after which a request ends by itself; `limit_ms` is that of requests to people."""
    return call.work.limit_ms if isinstance(call.work, ClientToolWork) else limit_ms


async def new_session(fixture: Fixture, person: Person, policy: str, **facts: Any) -> str:
    creation = person.does(person.creates(policy, **facts), "creates")
    await asyncio.wait([creation])
    session: str = creation.result()
    person.does(person.follows(session, partial(person.answers, session)), "follows")
    return session


async def used(fixture: Fixture, person: Person, session: str, acts: int) -> None:
    used = [person.does(person.works(session, acts), "works")]
    if fixture.rng.random() < 0.3:
        second = fixture.person()
        used.append(second.does(second.works(session, 2), "works"))
    await asyncio.wait(used)


async def kept_busy(fixture: Fixture, person: Person, session: str, most: int) -> None:
    """Uses a session, at most so often, for as long as there are faults: they meet one that is at work."""
    for _ in range(most):
        if fixture.nemesis.calm.is_set():
            return
        await asyncio.wait([person.does(person.works(session, 1), "works")])
        await asyncio.sleep(fixture.rng.uniform(0.5, 4.0))
