"""Machines that vanish, and come back or not, while a session's changes are on one of them alone.

A part of the play `folders`: faults that are drawn at random meet that moment too seldom.
"""

from __future__ import annotations

import asyncio
from random import Random

from sim.machines import Machine
from sim.nemesis import Nemesis

LOOK_S, LOOKS = 0.2, 150


async def strands(nemesis: Nemesis, rng: Random) -> None:
    """Takes the store away, and then the workers of a machine that has unsaved changes; until peace."""
    while not nemesis.calm.is_set():
        await asyncio.sleep(rng.uniform(0.5, 4.0))
        if nemesis.calm.is_set():
            return
        _man(nemesis)
        nemesis.site.objects.away = True
        found = _unsaved(nemesis)
        for _ in range(LOOKS):
            if found:
                break
            await asyncio.sleep(LOOK_S)
            found = _unsaved(nemesis)
        await asyncio.sleep(rng.choice((0.0, 0.5, 3.0)) * rng.random())
        if found and not nemesis.calm.is_set():
            await _strikes(nemesis, rng, *rng.choice(found))
        # For longer than a lease, and sometimes for longer than heartbeats are waited for.
        await asyncio.sleep(rng.uniform(4.0, 25.0))
        nemesis.site.objects.away = False


def _man(nemesis: Nemesis) -> None:
    """Another machine is there, to which a session could go."""
    hosts = {nemesis.site.folders.host_of(machine.name) for machine in nemesis.living}
    if len(hosts) < 2 <= nemesis.site.folders.hosts - len(nemesis.site.folders.lost):
        nemesis.start_worker()


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
            "host dies",
            "host dies",
            "host vanishes",
            "holder leaves",
            "taken",
            "given up",
            "given up",
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
