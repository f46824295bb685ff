"""Programs that Dendro starts itself and ends behind their time: nothing that they have started goes on."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.broker.follow import BEGINNING
from orchestrator.config_keys import FrontSettings
from orchestrator.folders.keeper import Keeper
from orchestrator.sandbox import git
from orchestrator.terminal import notifications
from orchestrator.views.event import Event
from orchestrator.workspaces import service

ENDED_MS = 10_000
ENVIRON = {"PATH": "/usr/bin:/bin"}


async def notified(words: tuple[str, ...], seconds: float) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(notifications, "PROGRAM_S", seconds)
        settings = FrontSettings(notify=words)
        person = notifications.Notifications(settings, "thread", "/home/me", None, lambda _: None)
        person.receive(Event("t1", {"type": "task_complete", "last_agent_message": None}, BEGINNING))
        await person.end()


async def git_ran(words: tuple[str, ...], seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.to_thread(git._finished, lambda start: start(), list(words), ENVIRON, b"", seconds)


async def cloned(words: tuple[str, ...], seconds: float) -> None:
    with Path(os.devnull).open("r+b") as nowhere, suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await service._git_ended(words, ENVIRON, nowhere, nowhere)


async def kept(words: tuple[str, ...], seconds: float) -> None:
    keeper = object.__new__(Keeper)
    keeper._process = subprocess.Popen(words, env=ENVIRON, start_new_session=True)
    with suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(keeper._process.wait, seconds)
    keeper._kill()
    await asyncio.to_thread(keeper._process.wait)


@pytest.mark.parametrize("ran", [notified, git_ran, cloned, kept])
async def test_program_that_is_late_ends_with_all_that_it_has_started(
    tmp_path: Path, ran: Callable[[tuple[str, ...], float], Awaitable[None]]
) -> None:
    told = tmp_path / "child"
    script = f"sleep 600 & echo $! > {told}.part; mv {told}.part {told}; wait"
    # A machine with much to do may not have come to the child by then.
    for seconds in (0.3, 3.0, 30.0):
        await ran(("sh", "-c", script, "sh"), seconds)
        if told.exists():
            break
    child = int(told.read_text())
    try:
        ended = os.pidfd_open(child)
    except ProcessLookupError:
        return
    waits = select.poll()
    waits.register(ended, select.POLLIN)
    has_ended = bool(waits.poll(ENDED_MS))
    os.close(ended)
    if not has_ended:
        os.kill(child, signal.SIGKILL)
    assert has_ended, "a child goes on"
