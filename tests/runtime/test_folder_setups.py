"""A runner and the set-up of a portable folder: decided, run once, recorded, and over before a call."""

from __future__ import annotations

import dataclasses

import pytest

from orchestrator.core.commands import SetupEnded
from orchestrator.core.ids import SessionId
from orchestrator.core.settings import FolderSetup, PortableFolder
from orchestrator.core.workspace import SetupOutcome
from orchestrator.protocol import ops
from orchestrator.runtime.runner import Ended
from tests.runtime.connections import Gate
from tests.runtime.folders import ScriptedFolders
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends
from tests.runtime.test_portable_folders import kinds, running


@pytest.fixture
def folders(harness: Harness) -> ScriptedFolders:
    made = ScriptedFolders()
    harness.ports = dataclasses.replace(harness.ports, folders=made)
    return made


async def prepared(harness: Harness) -> SessionId:
    """A session with a set-up, whose model asks for a command."""
    folder = PortableFolder("/workspaces", "repo", setup=FolderSetup("make"))
    session = await harness.session(portable=folder)
    harness.models.will([calls("c1"), ends()])
    await harness.say(session)
    return session


async def test_setup_is_run_once_and_recorded_before_the_first_call(
    harness: Harness, folders: ScriptedFolders
) -> None:
    session = await prepared(harness)
    assert await harness.run(session) is Ended.PARKED
    asked = [each for each in folders.asked if not each.startswith("recorded")]
    assert asked == ["make", "writing", "changed ", "writing", "changed c1", "release"]
    found = await kinds(harness, session)
    begun, ended = found.index("workspace_setup_begun"), found.index("workspace_setup_ended")
    assert begun < found.index("workspace") < ended < found.index("call")
    first, second = await harness.facts(session, "workspace")
    assert (first.get("setup"), second.get("setup")) == (True, None)
    harness.models.will([calls("c2"), ends()])
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert harness.tools.started == {"setup": 1, "c1": 1, "c2": 1}


@pytest.mark.parametrize(("outcome", "clean"), [("done", True), ("failed", False)])
async def test_copy_counts_as_clean_only_when_its_setup_has_run_to_its_end(
    harness: Harness, folders: ScriptedFolders, outcome: SetupOutcome, *, clean: bool
) -> None:
    session = await prepared(harness)
    harness.tools.setup = SetupEnded(outcome)
    await harness.run(session)
    marked = [each for each in folders.asked if each.startswith("recorded")]
    assert ("resting" in marked[-1]) is clean
    before = folders.asked.index("changed ")
    assert not any("resting" in each for each in folders.asked[:before])


async def test_failing_setup_fails_the_task_and_no_call_is_run(
    harness: Harness, folders: ScriptedFolders
) -> None:
    session = await prepared(harness)
    harness.tools.setup = SetupEnded("failed", 1.0, "exit code 3: no such package")
    assert await harness.run(session) is Ended.PARKED
    assert harness.tools.started == {"setup": 1}
    (told,) = await harness.logged_events(session, "error")
    assert "no such package" in told["message"]


async def test_setup_that_breaks_down_fails_the_task(harness: Harness, folders: ScriptedFolders) -> None:
    session = await prepared(harness)
    harness.tools.fails["setup"] = RuntimeError("broken")
    assert await harness.run(session) is Ended.PARKED
    (told,) = await harness.logged_events(session, "error")
    assert "RuntimeError: broken" in told["message"]
    assert "changed " in folders.asked


async def test_interrupt_kills_the_setup_and_records_what_it_has_written(
    harness: Harness, folders: ScriptedFolders
) -> None:
    session = await prepared(harness)
    harness.tools.gates["setup"] = Gate()
    runner, task = await running(harness, session)
    await harness.tools.began("setup").wait()
    await harness.submit(session, ops.Interrupt())
    runner.notify()
    assert await task is Ended.PARKED
    assert harness.tools.killed == ["setup"]
    assert "changed  within 1" in folders.asked
    found = await kinds(harness, session)
    assert found.index("stopping") < found.index("workspace") < found.index("workspace_setup_ended")
    assert found.index("workspace_setup_ended") < found.index("task_ended")


async def test_leaving_worker_kills_the_setup_and_the_next_one_runs_it_again(
    harness: Harness, folders: ScriptedFolders
) -> None:
    session = await prepared(harness)
    harness.tools.gates["setup"] = Gate()
    runner, task = await running(harness, session, drain_grace_s=0.01)
    await harness.tools.began("setup").wait()
    runner.drain()
    assert await task is Ended.YIELDED
    assert harness.tools.killed == ["setup"]
    assert "workspace_setup_ended" not in await kinds(harness, session)
    assert not folders.asked[-2].endswith("resting"), "half a set-up is no known snapshot"
    harness.tools.gates["setup"].open()
    assert await harness.run(session) is Ended.PARKED
    assert harness.tools.started == {"setup": 2, "c1": 1}
    (lost,) = await harness.logged_events(session, "warning")
    assert "broken off with its worker" in lost["message"]


async def test_setup_whose_decision_a_failover_could_forget_is_not_run(
    harness: Harness, folders: ScriptedFolders
) -> None:
    async def unconfirmed(*_: object) -> bool:
        return False

    session = await prepared(harness)
    assert await harness.run(session, confirm_effects=unconfirmed) is Ended.PARKED
    assert harness.tools.started == {}
    (told,) = await harness.logged_events(session, "error")
    assert "replicas did not confirm" in told["message"]
