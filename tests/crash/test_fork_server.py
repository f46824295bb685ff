"""The news of a launcher, in whatever order they come."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.crash.fork_server import ForkServer


class Launcher:
    """Answers each order with the lines that a test put down for it."""

    def __init__(self, *answers: bytes) -> None:
        self.stdout = asyncio.StreamReader()
        self.stdin = SimpleNamespace(write=self._write, drain=self._drain)
        self._answers = list(answers)

    def _write(self, _: bytes) -> None:
        self.stdout.feed_data(self._answers.pop(0))

    async def _drain(self) -> None:
        pass


async def test_a_worker_may_die_while_another_one_is_being_started() -> None:
    launcher = Launcher(b'{"pid":1}\n', b'{"pid":1,"status":-9}\n{"pid":2}\n')
    fork_server = ForkServer(cast(Any, launcher), Path(), {}, Path())
    reading = asyncio.create_task(fork_server._read())
    async with asyncio.timeout(10):
        first = await fork_server.start()
        second = await fork_server.start()
        assert await first.ended == -9
    assert (second.pid, second.ended.done()) == (2, False)
    launcher.stdout.feed_eof()
    await reading


async def test_a_worker_may_be_dead_before_its_start_was_noticed() -> None:
    launcher = Launcher(b'{"pid":1}\n{"pid":1,"status":0}\n')
    fork_server = ForkServer(cast(Any, launcher), Path(), {}, Path())
    reading = asyncio.create_task(fork_server._read())
    async with asyncio.timeout(10):
        assert await (await fork_server.start()).ended == 0
    launcher.stdout.feed_eof()
    await reading
