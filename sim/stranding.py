"""Machines that vanish while a session's changes are on one of them alone, or that lack room for a while.

Parts of the play `folders`: faults that are drawn at random meet these moments too seldom.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from sim.machines import Machine
from sim.nemesis import Nemesis

LOOK_S, LOOKS = 0.1, 200


async def strands(nemesis: Nemesis, rng: Random) -> None:
    """Takes the store away, and then the workers of a machine that has unsaved changes; until peace."""
    while not nemesis.calm.is_set():
        await asyncio.sleep(rng.uniform(0.5, 2.0))
        await _seen(nemesis, _at_work)
        if nemesis.calm.is_set():
            return
        _man(nemesis)
        nemesis.site.objects.away = True
        found = await _seen(nemesis, _unsaved)
        await asyncio.sleep(rng.choice((0.0, 0.5, 3.0)) * rng.random())
        if found and not nemesis.calm.is_set():
            await _strikes(nemesis, rng, *rng.choice(found))
        # For longer than a lease, and sometimes for longer than heartbeats are waited for.
        await asyncio.sleep(rng.uniform(4.0, 25.0))
        nemesis.site.objects.away = False


async def crowds(nemesis: Nemesis, rng: Random) -> None:
    """Leaves a host too little room for folders, for longer than its workers need to say so; until peace."""
    full = nemesis.site.folders.full
    while not nemesis.calm.is_set():
        host = f"h{rng.randrange(nemesis.site.folders.hosts) + 1}"
        nemesis.site.trace.note("nemesis", "crowds", host)
        full[host] = nemesis.site.loop.time()
        await asyncio.sleep(rng.uniform(5.0, 40.0))
        full.pop(host, None)
        await asyncio.sleep(rng.uniform(0.5, 5.0))


def _man(nemesis: Nemesis) -> None:
    """Another machine is there, to which a session could go."""
    hosts = {nemesis.site.folders.host_of(machine.name) for machine in nemesis.living}
    if len(hosts) < 2 <= nemesis.site.folders.hosts - len(nemesis.site.folders.lost):
        nemesis.start_worker()


async def _seen(nemesis: Nemesis, look: Callable[[Nemesis], list[tuple[str, str]]]) -> list[tuple[str, str]]:
    """Sessions that a look finds, as soon as it finds any; none if that takes too long, or there is peace."""
    for _ in range(LOOKS):
        if (found := look(nemesis)) or nemesis.calm.is_set():
            return found
        await asyncio.sleep(LOOK_S)
    return []


def _at_work(nemesis: Nemesis) -> list[tuple[str, str]]:
    """Sessions with calls that run in a folder, and their machines."""
    known = [(session, seen.state) for session, seen in sorted(nemesis.site.watch.sessions.items())]
    return [
        (session, state.workspace.machine)
        for session, state in known
        if state.workspace.epoch and state.task is not None and state.task.running
    ]


def _unsaved(nemesis: Nemesis) -> list[tuple[str, str]]:
    """Sessions with unsaved changes, and their machines."""
    sessions = sorted(nemesis.site.watch.sessions.items())
    known = ((session, seen.state.workspace.unsaved) for session, seen in sessions)
    return [(session, unsaved.machine) for session, unsaved in known if unsaved is not None]


async def _strikes(nemesis: Nemesis, rng: Random, session: str, host: str) -> None:
    there = [one for one in nemesis.living if nemesis.site.folders.host_of(one.name) == host]
    what = rng.choice(
        (
            "holder dies",
            *("host dies",) * 4,
            "host vanishes",
            "holder leaves",
            "taken",
            *("given up",) * 5,
        )
    )
    nemesis.site.trace.note("nemesis", "strands", session, what)
    nemesis.site.watch.reach.met("fault", what.replace(" ", "_"))
    holders = [one for one in there if any(each.claim.session == session for each in one.runners)]
    match what:
        case "holder dies":
            _die(holders)
        case "host dies":
            nemesis.site.folders.lost.add(host)
            _die(there)
        case "host vanishes":
            # For longer than a lease, and sometimes for longer than its heartbeats are waited for.
            lasts_s = rng.uniform(5.0, 25.0)
            for machine in there:
                machine.pause(lasts_s)
        case "holder leaves":
            for machine in holders:
                machine.drain()
        case "taken":
            await nemesis.takes(session)
        case _:
            await nemesis.gives_up(session)


def _die(machines: list[Machine]) -> None:
    """Kills workers; others come in their place as soon as anybody else is missed, or there is peace."""
    for machine in machines:
        machine.kill()
