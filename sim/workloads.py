"""What people do in a simulation: each workload is a name and a play.

A play is a coroutine over a `Stage`. It starts people and returns when they have said what
they have to say; what comes of it is watched by others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from orchestrator.core.settings import TreeRules
from sim.machines import Site
from sim.nemesis import Nemesis
from sim.people import Diary, Person


@dataclass
class Stage:
    """What a play has to work with."""

    site: Site
    diary: Diary
    rng: Random
    nemesis: Nemesis
    people: list[Person] = field(default_factory=list)
    answering: bool = False
    """At the end somebody answers every question at once."""
    janitor: Person | None = None

    def person(self) -> Person:
        person = Person(self.site, f"p{len(self.people) + 1}", Random(self.rng.getrandbits(64)), self.diary)
        self.people.append(person)
        return person

    def open_approvals(self) -> list[tuple[str, str]]:
        """(session, call) of every open request, as the fleet's queue has them."""
        watch, found = self.site.watch, []
        for session, seen in watch.sessions.items():
            task = seen.state.task
            found += [(session, call.call_id) for call in (task.awaiting if task else ())]
        return found

    async def answer_all(self) -> None:
        if self.janitor is None:
            self.janitor = Person(self.site, "janitor", Random(self.rng.getrandbits(64)), self.diary)
        for session, call_id in self.open_approvals():
            task = self.janitor.does(self.janitor.decides(session, "exec", call_id, "denied"), "answers")
            await asyncio.wait([task])


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    play: Callable[[Stage], Awaitable[None]]


async def single(stage: Stage) -> None:
    """One session, one person, commands that need no approval."""
    person = stage.person()
    stage.site.mind.appetite.asks = 0.0
    await _used(stage, person, await _born(stage, person, "never"), stage.rng.choice((1, 3, 6)))


async def approvals(stage: Stage) -> None:
    """One session whose commands need approval; two people answer, late and twice."""
    person, other = stage.person(), stage.person()
    stage.site.mind.appetite.asks = 0.7
    expires = stage.rng.choice((None, None, 5_000, 3_600_000))
    session = await _born(stage, person, "on-request", approval_timeout_ms=expires)
    other.does(other.follows(session, partial(other.answers, session)), "follows")
    await _used(stage, person, session, stage.rng.choice((2, 4)))


async def several(stage: Stage) -> None:
    """Several sessions at once, each with a person; some shut down and go on."""
    plays = []
    for _ in range(stage.rng.choice((2, 3))):
        person = stage.person()
        policy = stage.rng.choice(("never", "on-request", "untrusted"))
        steer = stage.rng.choice(("replace", "steer"))
        session = await _born(stage, person, policy, on_user_input=steer)
        plays.append(person.does(_visits(stage, person, session), "visits"))
    await asyncio.wait(plays)


async def tree(stage: Stage) -> None:
    """A session that makes agents, forks itself, writes to them, waits for them and cancels them."""
    rng, person = stage.rng, stage.person()
    rules = TreeRules(
        slots=rng.choice((1, 2, 4)),
        spawned=rng.choice((3, 6)),
        depth=rng.choice((1, 2)),
        autosubmit=rng.random() < 0.8,
        await_floor_s=1.0,
        await_cap_s=rng.choice((20.0, 7_200.0)),
    )
    policy = rng.choice(("never", "never", "on-request"))
    session = await _born(stage, person, policy, agents=True, tree_rules=rules)
    await _used(stage, person, session, rng.choice((1, 3, 5)))
    if rng.random() < 0.2:
        await asyncio.wait([person.does(person.shuts(session), "shuts")])


async def _visits(stage: Stage, person: Person, session: str) -> None:
    await person.works(session, stage.rng.choice((1, 3, 5)))
    if stage.rng.random() < 0.4:
        await person.shuts(session)
        await person.works(session, stage.rng.choice((0, 1)))


async def _born(stage: Stage, person: Person, policy: str, **facts: object) -> str:
    born = person.does(person.creates(policy, **facts), "creates")
    await asyncio.wait([born])
    session: str = born.result()
    person.does(person.follows(session, partial(person.answers, session)), "follows")
    return session


async def _used(stage: Stage, person: Person, session: str, acts: int) -> None:
    used = [person.does(person.works(session, acts), "works")]
    if stage.rng.random() < 0.3:
        second = stage.person()
        used.append(second.does(second.works(session, 2), "works"))
    await asyncio.wait(used)


WORKLOADS = {play.__name__: Workload(play.__name__, play) for play in (single, approvals, several, tree)}
