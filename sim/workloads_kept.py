"""Workloads whose sessions leave Redis or are kept in files: archives, failing disks, lost copies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from orchestrator.protocol import ops
from sim.archive_moves import NEVER, UpkeepRules
from sim.fixture import Fixture, kept_busy, new_session, perhaps_agents, used, visits
from sim.folders import PORTABLE, SCRIPTED
from sim.held_messages import LateWord
from sim.pack_keys import exchanges
from sim.people import FREE, Person
from sim.stranding import crowds, strands

MERGING = (
    *("subagent_spawn", "shell", "subagent_spawn", "subagent_await", "subagent_await"),
    *("subagent_merge", "subagent_merge"),
)
"""A response that makes two agents, with a command between them, and takes over what they have done."""
LOOKS_AT_S = 10.0
"""Upkeep looks for what is to be moved some seconds before that, each minute."""
DELETES_AT_S = 1_060.0
"""Seventeen minutes and forty seconds past the hour at which a simulation begins."""


async def archives(fixture: Fixture) -> None:
    """Sessions and trees that are closed, go to the archive, and come back when somebody speaks to them."""
    rng, disk = fixture.rng, Random(fixture.rng.getrandbits(64))
    slow_s = rng.choice((0.001, 0.1, 1.0))
    fixture.site.loop.thread_s = lambda: slow_s * disk.random()
    fixture.nemesis.keep_up(
        UpkeepRules(
            processes=rng.choice((1, 1, 2)),
            seal_after=rng.choice((5, 20)),
            archive_after_s=rng.choice((0.0, 30.0)),
            retention_s=rng.choice((None, 90.0, 90.0, 600.0)),
        )
    )
    odds = fixture.site.model.odds
    odds.large = 0.3
    grown = disk.random() < 0.4
    if grown:
        # Trees whose sessions go to the archive one by one, and are deleted together.
        odds.opening = ("subagent_spawn",) * 2
        odds.verbs |= {"subagent_spawn": 10, "subagent_watchdog": 0}
    plays = []
    for _ in range(rng.choice((1, 2))):
        person = fixture.person()
        person.habits |= {"compact": 3}
        facts: dict[str, Any] = {
            "on_user_input": rng.choice(("replace", "steer")),
            **perhaps_agents(rng, 1.0 if grown else 0.5),
        }
        session = await new_session(fixture, person, "never", **facts)
        plays.append(person.does(_comes_back(fixture, person, session), "comes back"))
    await asyncio.wait(plays)


async def _comes_back(fixture: Fixture, person: Person, session: str) -> None:
    """Leaves for so long that the session may be archived, or deleted, and speaks to it again."""
    for _ in range(fixture.rng.choice((1, 2, 3))):
        await person.works(session, fixture.rng.choice((1, 2, 4)))
        await person.shuts(session)
        until_deletions = fixture.rng.random() < 0.3
        if until_deletions or fixture.rng.random() < 0.5:
            fixture.nemesis.lie_in_wait(LateWord)
        awhile_s = fixture.rng.choice((1.0, 60.0, 120.0)) * fixture.rng.uniform(0.5, 1.5)
        if until_deletions:
            # Shortly before upkeep looks for what is to be deleted, once an hour.
            awhile_s = (DELETES_AT_S - fixture.site.loop.time()) % 3_600.0 - fixture.rng.uniform(0.0, 30.0)
        await asyncio.sleep(awhile_s)


async def resting(fixture: Fixture) -> None:
    """Sessions that wait for so long that their logs leave Redis, and go on with an answer or with words."""
    rng, person, odds = fixture.rng, fixture.person(), fixture.site.model.odds
    odds.asks, odds.calls, odds.questions, odds.large = 0.6, 0.8, 0.3, 0.2
    person.habits |= {"compact": 2}
    fixture.nemesis.weights |= {"kill_at": 12, "archive_away": 4}
    fixture.nemesis.keep_up(
        UpkeepRules(
            processes=rng.choice((1, 1, 2)),
            seal_after=rng.choice((5, 1_000)),
            archive_after_s=NEVER,
            seal_idle_s=20.0,
        )
    )
    facts: dict[str, Any] = {"on_user_input": rng.choice(("replace", "steer")), **perhaps_agents(rng, 0.6)}
    plays = [person.does(_rests(fixture, person, facts), "rests") for _ in range(rng.choice((1, 2)))]
    await asyncio.wait(plays)


async def _rests(fixture: Fixture, person: Person, facts: dict[str, Any]) -> None:
    """Leaves what was asked open until upkeep has looked, and answers some of it."""
    rng = fixture.rng
    # Nobody follows it: a follower answers within seconds.
    creation = person.does(person.creates(rng.choice(("never", "untrusted")), **facts), "creates")
    await asyncio.wait([creation])
    session: str = creation.result()
    for _ in range(rng.choice((2, 3))):
        await person.works(session, rng.choice((1, 2)))
        await asyncio.sleep(rng.uniform(60.0, 130.0))
        for open_in, call, kind in fixture.open_requests():
            if rng.random() < 0.8:
                await person.settles(open_in, call, kind)


async def files(fixture: Fixture) -> None:
    """Sessions whose rollouts are kept in files, on disks that lose what was written last."""
    fixture.nemesis.weights |= {"kill": 20, "kill_at": 20}
    await _keeps_files(fixture, _speaks_again)


async def _keeps_files(
    fixture: Fixture, uses: Callable[[Fixture, Person, str], Coroutine[Any, Any, None]]
) -> None:
    """Sessions whose rollouts are asked for, one or two, each with a person."""
    rng, plays = fixture.rng, []
    for _ in range(rng.choice((1, 2))):
        person = fixture.person()
        person.habits |= {"path": 6, "compact": 2}
        steer = rng.choice(("replace", "steer"))
        facts = {"kept": True, "on_user_input": steer, **perhaps_agents(rng, 0.4)}
        session = await new_session(fixture, person, "never", **facts)
        plays.append(person.does(uses(fixture, person, session), "uses"))
    await asyncio.wait(plays)


async def _speaks_again(fixture: Fixture, person: Person, session: str) -> None:
    """Says something in peace, too."""
    await visits(fixture, person, session)
    await fixture.nemesis.calm.wait()
    await person.works(session, 1)


async def folders(fixture: Fixture) -> None:
    """Sessions whose folders go along with them from machine to machine, and whose store is away at times."""
    rng, person, odds = fixture.rng, fixture.person(), fixture.site.model.odds
    fixture.nemesis.weights |= {"archive_away": 12, "kill": 14, "kill_at": 14, "drain": 6, "pause": 14}
    odds.calls, odds.asks, odds.patches, odds.denied = 0.9, rng.choice((0.0, 0.3)), 0.25, 0.2
    odds.processes = rng.choice((0.0, 0.0, 0.4))
    person.habits |= {"interrupt": 6, "compact": 2, "run": 4}
    facts: dict[str, Any] = {
        "on_user_input": rng.choice(("replace", "steer")),
        "portable": rng.choice((PORTABLE, PORTABLE, SCRIPTED)),
        "unified_exec": bool(odds.processes),
        "mode": rng.choice((FREE, "workspace-write")),
        **perhaps_agents(rng, 0.6),
    }
    odds.verbs |= {"subagent_spawn": 10, "subagent_await": 10, "subagent_merge": 12}
    # Drawn beside the others: what else happens is as it is without.
    drawn = Random(f"copies:{rng.getstate()[1][:4]}")
    copies = drawn.random() < 0.4
    if copies:
        odds.opening = MERGING if drawn.random() < 0.6 else ()
        facts |= {"portable": None, "agents": True, "unified_exec": False}
        odds.own, odds.patches, odds.processes = 0.9, 0.05, 0.0
        odds.verbs |= {"subagent_merge": 20, "subagent_watchdog": 0, "subagent_list": 0, "subagent_prune": 0}
    odds.agents = (0.45 if copies else 0.6) if "agents" in facts else 0.0
    session = await new_session(fixture, person, rng.choice(("never", "untrusted")), **facts)
    if copies:
        fixture.site.folders.shares(session)
    if fixture.site.folders.keys is not None:
        exchanging = exchanges(fixture.nemesis, Random(f"keys:{rng.getstate()[1][:4]}"))
        fixture.site.loop.start(fixture.nemesis.lane, exchanging, "exchanges")
    room = Random(f"room:{rng.getstate()[1][:4]}")
    if room.random() < 0.4:
        fixture.site.loop.start(fixture.nemesis.lane, crowds(fixture.nemesis, room), "crowds")
    hasty = Random(f"hasty:{rng.getstate()[1][:4]}")
    stops = not copies and hasty.random() < 0.5
    if stops:
        # The store is there: what a stopped call wrote is recorded at once.
        person.does(interrupts_writers(fixture, person, session, hasty), "interrupts")
    if rng.random() < 0.8 and not stops:
        stranding = strands(fixture.nemesis, Random(rng.getrandbits(64)))
        fixture.site.loop.start(fixture.nemesis.lane, stranding, "strands")
    await used(fixture, person, session, rng.choice((3, 6)))
    await fixture.nemesis.calm.wait()
    await person.works(session, 1)


async def interrupts_writers(fixture: Fixture, person: Person, session: str, rng: Random) -> None:
    """Stops turns whose calls have written to the folder and are to write more; until peace."""
    while not fixture.nemesis.calm.is_set():
        await asyncio.sleep(rng.uniform(0.05, 0.5))
        if any(run.marks for run in fixture.site.ledger.running(session)):
            await person.submits(session, ops.Interrupt())
            await asyncio.sleep(rng.uniform(5.0, 20.0))


async def outages(fixture: Fixture) -> None:
    """Sessions with files, sealed and archived, where disks are full, archives away, and copies lost."""
    after_s = fixture.rng.choice((0.0, 20.0))
    fixture.nemesis.weights |= {"full_disk": 15, "archive_away": 15, "lost_snapshot": 8, "kill_keeper": 5}
    fixture.nemesis.keep_up(UpkeepRules(processes=1, seal_after=5, archive_after_s=after_s))
    await _keeps_files(fixture, _speaks_up)


async def _speaks_up(fixture: Fixture, person: Person, session: str) -> None:
    """Says something to a session that cannot be read just then, too."""
    await visits(fixture, person, session)
    if fixture.rng.random() < 0.5:
        # By then upkeep has moved what it may.
        await asyncio.sleep((LOOKS_AT_S - fixture.site.loop.time()) % 60.0)
        hiding = fixture.nemesis.hides(session, fixture.rng.uniform(1.0, 20.0))
        fixture.site.loop.start(fixture.nemesis.lane, hiding, "hides")
        await person.works(session, 1)
    await fixture.nemesis.calm.wait()
    await person.works(session, 1)


async def texts(fixture: Fixture) -> None:
    """A session with long outputs, whose Redis forgets a text whose commit is on its way."""
    person, odds = fixture.person(), fixture.site.model.odds
    fixture.nemesis.weights |= {"rewind_text": 60}
    odds.calls, odds.asks, odds.large, odds.patches, odds.plans = 0.9, 0.0, 1.0, 0.0, 0.0
    person.habits = {"say": 1}
    session = await new_session(fixture, person, "never", on_user_input="steer")
    await kept_busy(fixture, person, session, 8)
