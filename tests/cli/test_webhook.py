"""The webhook of a deployment, with a real upkeep process and a real worker."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.machine import TOUCH, Machine, dendro, says
from tests.cli.parked_tree import worker
from tests.receiver import SECRET, Receiver, receiver

pytestmark = pytest.mark.realredis
UNTRUSTED = ("-c", "approval_policy=untrusted", "-c", "sandbox_mode=danger-full-access")
BROKEN = {"failed": {"code": "invalid_prompt", "message": "no"}}


@contextmanager
def upkeep(machine: Machine, server: Receiver) -> Iterator[None]:
    told = machine.under(DENDRO_WEBHOOK_URL=server.url, DENDRO_WEBHOOK_SECRET=SECRET)
    with told.start(
        dendro("upkeep"), cwd=told.folder, env=told.environ, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.terminate()


async def run(user: Machine, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command while the receiver goes on serving."""
    return await asyncio.to_thread(user.run, *words)


async def test_owner_is_called_when_a_session_needs_them_and_when_it_is_done(machine: Machine) -> None:
    with machine.model(TOUCH, says("done")) as user:
        async with receiver() as server:
            with upkeep(user, server):
                assert (await run(user, "run", "make it", *UNTRUSTED)).returncode == 3
                [asks] = await server.got(1)
                [session] = user.session_ids()
                with worker(user):
                    done = await run(user, "approvals", session, "--allow", "*")
                    assert done.returncode == 0, done.stderr
                    asks, ends = await server.got(2)
    assert (asks.value["type"], ends.value["type"]) == ("needs_you", "done")
    assert asks.value["data"]["subject"] == "touch made.txt"
    assert asks.value["data"]["cwd"] == str(machine.folder)
    assert "OUTSIDE THE SANDBOX" in asks.value["data"]["where"]
    assert ends.value["data"]["title"] == "make it"
    assert {call.value["data"]["session_id"] for call in server.calls} == {session}
    assert all(call.is_signed() for call in server.calls)


async def test_owner_is_called_when_a_task_fails_and_not_when_a_session_is_named(machine: Machine) -> None:
    with machine.model(BROKEN, says("fine")) as user:
        async with receiver() as server:
            with upkeep(user, server):
                assert (await run(user, "run", "break")).returncode == 1
                [fails] = await server.got(1)
                [session] = user.session_ids()
                assert (await run(user, "name", session, "Broken")).returncode == 0
                assert (await run(user, "run", "--resume", session, "again")).returncode == 0
                fails, done = await server.got(2)
    assert (fails.value["type"], done.value["type"]) == ("failed", "done")
    assert done.value["data"]["title"] == "Broken"


def test_upkeep_that_cannot_sign_does_not_start(machine: Machine) -> None:
    refused = machine.under(DENDRO_WEBHOOK_URL="https://host/hook").run("upkeep")
    assert refused.returncode == 2
    assert "set DENDRO_WEBHOOK_SECRET" in refused.stderr
