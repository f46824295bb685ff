"""Set-ups of portable folders as real commands: what they may do, what they are given, and how they fail."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.core.commands import SetupEnded
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.settings import FolderSetup, PortableFolder, SessionFacts, TurnSettings
from orchestrator.core.state import State, Task
from orchestrator.protocol.ids import SubmissionId
from orchestrator.sandbox.policy_paths import Place
from orchestrator.sandbox.probe import probe
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorConfig
from orchestrator.tools.folder_setup import OUTPUT_BYTES, SetupRunner
from orchestrator.tools.tool_context import CallSite, ToolConfig

SUPPORT = probe()
pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(SUPPORT.bubblewrap is None, reason="bubblewrap does not work here"),
]
ENVIRON = {"PATH": os.environ["PATH"], "OPENAI_API_KEY": "hush", "LANG": "C.UTF-8"}


class Machine:
    """A machine that has the folder of one session, whose own sandbox only reads."""

    def __init__(self, supervisor: Supervisor, tmp_path: Path) -> None:
        self.root = tmp_path / "home/workspaces"
        self.place = Place.of(self.root, "t", "s", "work")
        for folder in (self.place.here, self.place.temporary, self.place.seen):
            folder.mkdir(parents=True, exist_ok=True)
        config = ToolConfig(SUPPORT, ENVIRON, hidden=(tmp_path / "home",))
        self._runner = SetupRunner(config, supervisor)

    async def runs(self, script: str, **setup: object) -> SetupEnded:
        made = FolderSetup(script, origin="setup.sh", **setup)  # type: ignore[arg-type]
        folder = PortableFolder(str(self.root), "work", setup=made)
        facts = SessionFacts(session_id=SessionId("s"), tree_id=TreeId("t"), portable=folder)
        settings = TurnSettings(str(self.place.seen), "never", {"mode": "read-only"}, "gpt-5")
        state = State(facts=facts, task=Task(SubmissionId("u1"), "user", settings))
        return await self._runner.run(CallSite("claim", state, lambda _: None))


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    supervisor = await Supervisor.start(SupervisorConfig(SUPPORT))
    supervisor.extend("claim", time.clock_gettime(time.CLOCK_BOOTTIME) + 120)
    try:
        yield Machine(supervisor, tmp_path)
    finally:
        await supervisor.close()


async def test_setup_writes_the_folder_of_a_session_that_only_reads_and_nothing_else(
    machine: Machine,
) -> None:
    script = 'pwd > where; echo x > /tmp/mine; env > given; echo y > /srv/out || echo "$0" > refused'
    ended = await machine.runs(script)
    here = machine.place.here
    assert (ended.outcome, ended.message) == ("done", "")
    assert (here / "where").read_text() == f"{machine.place.seen}\n"
    assert (machine.place.temporary / "mine").exists()
    assert (here / "refused").read_text() == "setup\n"

    assert "hush" not in (here / "given").read_text()
    assert "LANG=C.UTF-8" in (here / "given").read_text()


@pytest.mark.parametrize("network", [True, False])
async def test_setup_reaches_the_network_only_if_it_may(machine: Machine, *, network: bool) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        ended = await machine.runs(f"exec 3<>/dev/tcp/127.0.0.1/{port}", network=network)
    assert ended.outcome == ("done" if network else "failed")


async def test_failing_setup_says_how_it_ended_and_the_end_of_its_output(machine: Machine) -> None:
    ended = await machine.runs("yes noise | head -c 300000; echo no such package >&2; exit 3")
    assert ended.outcome == "failed"
    assert ended.message.startswith("setup.sh ended with exit code 3. It said:")
    assert ended.message.endswith("no such package")
    assert len(ended.message) < OUTPUT_BYTES + 200


async def test_setup_that_does_not_end_is_killed_and_the_setting_is_named(machine: Machine) -> None:
    ended = await machine.runs("echo waiting; sleep 600", timeout_ms=300)
    assert ended.outcome == "failed"
    assert "did not end within 0.3 s (`workspace.setup_timeout_s`)" in ended.message
    assert "waiting" in ended.message
