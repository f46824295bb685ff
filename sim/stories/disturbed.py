"""Disturbances of the product that nobody outside may see: a round trip more, a turn of the loop more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from orchestrator.broker.connection import Connection, ScriptCall
from orchestrator.gateways.app_server.outbox import Outbox
from sim.network import Line

NOTHING = "dendro:nothing"


@contextmanager
def round_trips() -> Iterator[None]:
    """Each script is run behind a command that reads a key which is not there."""
    run, run_all = Connection.run, Connection.run_all

    async def later(self: Connection, call: ScriptCall) -> list[Any]:
        await _asks(self)
        return await run(self, call)

    async def all_later(self: Connection, calls: Sequence[ScriptCall]) -> list[list[Any]]:
        await _asks(self)
        return await run_all(self, calls)

    with patch.object(Connection, "run", later), patch.object(Connection, "run_all", all_later):
        yield


@contextmanager
def round_trips_behind_commits() -> Iterator[None]:
    """A worker that has committed, or claimed, asks for something once more before it goes on."""
    run = Connection.run

    async def asks_again(self: Connection, call: ScriptCall) -> list[Any]:
        reply = await run(self, call)
        if call.script.name in ("commit", "claim"):
            await _asks(self)
        return reply

    with patch.object(Connection, "run", asks_again):
        yield


@contextmanager
def turns_of_the_loop() -> Iterator[None]:
    """A sender of a command lets all else of its process go first, and again behind the answer."""
    run, command, send_to = Connection.run, Connection.command, Outbox.send_to

    async def later(self: Connection, call: ScriptCall) -> list[Any]:
        await _turns(self)
        reply = await run(self, call)
        await _turns(self)
        return reply

    async def command_later(self: Connection, *args: Any) -> Any:
        await _turns(self)
        return await command(self, *args)

    async def sends_later(self: Outbox, wire: Any) -> None:
        await asyncio.sleep(0)
        await send_to(self, wire)

    with (
        patch.object(Connection, "run", later),
        patch.object(Connection, "command", command_later),
        patch.object(Outbox, "send_to", sends_later),
    ):
        yield


DISTURBANCES: tuple[Callable[[], Any], ...] = (round_trips, round_trips_behind_commits, turns_of_the_loop)


async def _asks(wire: Connection) -> None:
    if _is_simulated(wire):
        await wire.command("EXISTS", NOTHING)


async def _turns(wire: Connection) -> None:
    if _is_simulated(wire):
        await asyncio.sleep(0)


def _is_simulated(wire: Connection) -> bool:
    """Not one that reads the double outside of the simulation's time."""
    return isinstance(getattr(wire, "_client", None), Line)
