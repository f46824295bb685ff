"""The simulated server tells of a script that raises, and not of one that it refuses to run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from random import Random

import pytest
from redis import exceptions as foreign

from sim.double import Double, opened
from sim.loop import Lane, SimLoop
from sim.network import Line, Network, scripts
from sim.trace import Trace

SHA = scripts()["heartbeat"].sha
HEARTBEAT = ("EVALSHA", SHA, 2, "{s0}:workers", "{s0}:heard", "w1", "state")
"""Without its last argument: the script raises."""


@pytest.fixture
def double() -> Iterator[Double]:
    with opened() as server:
        yield server


def told_of(server: Network, loop: SimLoop) -> tuple[list[str], foreign.RedisError]:
    """The server's reports on a heartbeat that lacks a word, and the error that its sender gets."""
    told: list[str] = []
    heard: list[foreign.RedisError] = []
    server.misstated = lambda name, unlike: told.append(f"{name}: {unlike}")

    async def beats() -> None:
        with pytest.raises(foreign.RedisError) as raised:
            await Line(server, "w1").execute_command(*HEARTBEAT)
        heard.append(raised.value)

    with closing(loop):
        loop.start(Lane("w1"), beats(), "beats")
        loop.run(1_000)
    assert not loop.failures
    return told, heard[0]


def a_server(double: Double) -> tuple[Network, SimLoop]:
    loop = SimLoop(Random(1))
    double.reset(loop.time)
    return Network(loop, double, Random(2), Trace(loop.time)), loop


def test_script_that_raises_is_told_of_and_its_sender_hears_the_error(double: Double) -> None:
    server, loop = a_server(double)
    told, heard = told_of(server, loop)
    assert type(heard) is foreign.ResponseError
    assert [text.partition(" and an answer")[0] for text in told] == [f"heartbeat: it raised {heard},"]


def test_script_that_is_refused_or_not_known_raises_nothing_of_its_own(double: Double) -> None:
    server, loop = a_server(double)
    server.refuses = lambda: foreign.OutOfMemoryError("used memory > 'maxmemory'")
    told, heard = told_of(server, loop)
    assert (told, type(heard)) == ([], foreign.OutOfMemoryError)
    server, loop = a_server(double)
    double.forget_scripts()
    told, heard = told_of(server, loop)
    assert (told, type(heard)) == ([], foreign.NoScriptError)
