"""A process of the supervisor writes patches: it has the right to write, or is killed, as a command is."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.calls import ApplyPatch, Call
from orchestrator.core.settings import TurnSettings
from orchestrator.core.state import State, Task
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.tools import apply_patch
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorConfig
from orchestrator.tools.tool_context import CallSite, ToolConfig
from orchestrator.tools.toolbox import Toolbox, built_in
from tests.supervisors import booting, holding

SUPPORT = SandboxSupport(None, 0, ())
TWO_FILES = "*** Begin Patch\n*** Add File: a.txt\n+one\n*** Add File: b.txt\n+two\n*** End Patch"

MUCH = "é\n".encode() * 500_000


def _from_now(seconds: float) -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) + seconds


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    started = await Supervisor.start(SupervisorConfig(SUPPORT))
    yield started
    await started.close()


class Author:
    """A worker's hand: a patch that was accepted, to be run under the claim `c`."""

    def __init__(self, supervisor: Supervisor, folder: Path) -> None:
        self.supervisor = supervisor
        self.folder = folder
        self.toolbox = Toolbox(built_in(ToolConfig(SUPPORT, {}), supervisor))
        settings = TurnSettings(str(folder), "never", {"mode": "danger-full-access"}, "gpt-5")
        self.site = CallSite("c", State(task=Task(SubmissionId("u1"), "user", settings)), lambda _: None)

    async def call(self, patch: str = TWO_FILES) -> Call:
        item = {"type": "custom_tool_call", "name": "apply_patch", "input": patch, "call_id": "p1"}
        call = Call(CallId("p1"), "apply_patch", item)
        assessed = await self.toolbox.assess(call, self.site)
        assert isinstance(assessed, ApplyPatch)
        return replace(call, work=assessed.work(sandboxed=False))

    async def run(self, call: Call) -> Any:
        return await self.toolbox.run(call, self.site)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if not path.name.startswith("."))

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if path.name.startswith("."))


class Held:
    """A writer that waits behind a switch."""

    def __init__(self, fifo: Path) -> None:
        self._fifo = fifo
        self._end = -1

    async def met(self) -> None:
        """Returns when it is there."""
        self._end = await asyncio.to_thread(os.open, self._fifo, os.O_WRONLY)

    def let_go(self) -> None:
        os.close(self._end)

    def is_dead(self) -> bool:
        """Whether nobody is at the other end any more."""
        os.close(self._end)
        try:
            os.close(os.open(self._fifo, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            return error.errno == errno.ENXIO
        return False


HoldBehind = Callable[[int], Any]


@pytest.fixture
def hold_behind(tmp_path: Path) -> HoldBehind:
    """Starts an author whose writer waits behind the nth switch."""

    @asynccontextmanager
    async def hold(nth: int) -> AsyncIterator[tuple[Author, Held]]:
        fifo, folder = tmp_path / "fifo", tmp_path / "w"
        os.mkfifo(fifo)
        folder.mkdir()
        with booting(holding, str(fifo), nth):
            supervisor = await Supervisor.start(SupervisorConfig(SUPPORT))
        supervisor.extend("c", _from_now(60))
        try:
            yield Author(supervisor, folder), Held(fifo)
        finally:
            await supervisor.close()

    return hold


async def test_patch_of_a_worker_that_woke_up_behind_its_deadline_writes_nothing(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    supervisor.extend("c", _from_now(-0.001))
    author = Author(supervisor, tmp_path)
    late = await author.run(await author.call())
    assert not late.applied
    assert "nothing was written: the worker no longer had the right to work on the session" in late.output
    assert list(tmp_path.iterdir()) == []


async def test_patch_within_the_deadline_is_written(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.extend("c", _from_now(60))
    author = Author(supervisor, tmp_path)
    done = await author.run(await author.call())
    assert done.applied
    assert (tmp_path / "a.txt").read_text() == "one\n"
    assert [event.type for event in done.events] == ["patch_apply_end", "turn_diff"]


async def test_patch_without_a_supervisor_writes_nothing(supervisor: Supervisor, tmp_path: Path) -> None:
    author = Author(supervisor, tmp_path)
    call = await author.call()
    await supervisor.close()
    refused = await author.run(call)
    assert "nothing was written: the supervisor was closed" in refused.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("nth", "files", "told", "verdict"),
    [
        (0, [], "nothing was written: its writer was killed", "none"),
        (1, ["a.txt"], "the patch is written in part: its writer was killed", "in_doubt"),
        (2, ["a.txt", "b.txt"], "Success. Updated the following files", "all"),
    ],
)
async def test_writer_dies_at_the_deadline_wherever_it_is_and_what_is_told_is_true(
    hold_behind: HoldBehind, nth: int, files: list[str], told: str, verdict: str
) -> None:
    async with hold_behind(nth) as (author, writer):
        call = await author.call()
        running = asyncio.create_task(author.run(call))
        await writer.met()
        author.supervisor.extend("c", _from_now(0))
        ended = await running
        assert writer.is_dead()
        assert author.files() == files
        assert told in ended.output
        assert ended.applied == (verdict == "all")
        # It had no right any more to remove anything: that is the next holder's.
        assert author.leftovers()
        author.supervisor.extend("d", _from_now(60))
        assert await author.toolbox.judge(call, "d") == verdict
        assert author.leftovers() == []
        assert author.files() == files


async def test_takeover_without_the_right_to_write_removes_nothing(hold_behind: HoldBehind) -> None:
    async with hold_behind(1) as (author, writer):
        call = await author.call()
        running = asyncio.create_task(author.run(call))
        await writer.met()
        author.supervisor.extend("c", _from_now(0))
        await running
        left = author.leftovers()
        assert await author.toolbox.judge(call, "of nobody") == "in_doubt"
        assert author.leftovers() == left


async def test_cancelled_patch_comes_to_its_end(hold_behind: HoldBehind) -> None:
    async with hold_behind(1) as (author, writer):
        running = asyncio.create_task(author.run(await author.call()))
        await writer.met()
        running.cancel()
        writer.let_go()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert author.files() == ["a.txt", "b.txt"]
        assert author.leftovers() == []


async def test_cancelled_patch_that_does_not_end_is_killed_and_cleared_away(
    hold_behind: HoldBehind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply_patch, "WRITE_GRACE_S", 0.0)
    async with hold_behind(1) as (author, writer):
        running = asyncio.create_task(author.run(await author.call()))
        await writer.met()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert writer.is_dead()
        assert author.files() == ["a.txt"]
        assert author.leftovers() == []


async def test_writer_dies_with_its_shim(hold_behind: HoldBehind) -> None:
    async with hold_behind(1) as (author, writer):
        running = asyncio.create_task(author.run(await author.call()))
        await writer.met()
        children = Path(f"/proc/{author.supervisor.pid}/task/{author.supervisor.pid}/children").read_text()
        os.kill(int(children), 9)
        assert "written in part" in (await running).output
        assert writer.is_dead()


async def test_paths_that_are_no_text_and_contents_of_megabytes_arrive_as_they_are(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    supervisor.extend("c", _from_now(60))
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "old").write_bytes(b"x\n" + MUCH)
    (folder / "old").chmod(0o640)
    author = Author(supervisor, folder)
    done = await author.run(
        await author.call("*** Begin Patch\n*** Update File: old\n@@\n-x\n+y\n*** End Patch")
    )
    assert done.applied, done.output
    assert (folder / "old").read_bytes() == b"y\n" + MUCH
    assert (folder / "old").stat().st_mode & 0o777 == 0o640


async def test_patch_of_more_folders_than_the_worker_may_open_files_is_written(tmp_path: Path) -> None:
    """A patch may change thousands of files, each in a folder of its own, all held open at once."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, limit[1]))
    try:
        supervisor = await Supervisor.start(SupervisorConfig(SUPPORT))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    try:
        supervisor.extend("c", _from_now(60))
        author = Author(supervisor, tmp_path)
        hunks = "".join(f"*** Add File: d{number}/f\n+x\n" for number in range(200))
        done = await author.run(await author.call(f"*** Begin Patch\n{hunks}*** End Patch"))
        assert done.applied, done.output
        assert len(list(tmp_path.glob("d*/f"))) == 200
    finally:
        await supervisor.close()


async def test_path_outside_is_told_by_where_a_link_leads(supervisor: Supervisor, tmp_path: Path) -> None:
    """A link in the folder has a harmless name; who is asked reads what would be written."""
    (tmp_path / "elsewhere/.ssh").mkdir(parents=True)
    (tmp_path / "w").mkdir()
    (tmp_path / "w/docs").symlink_to("../elsewhere/.ssh")
    author = Author(supervisor, tmp_path / "w")
    policy = {"mode": "workspace-write", "exclude_slash_tmp": True, "exclude_tmpdir_env_var": True}
    settings = TurnSettings(str(tmp_path / "w"), "on-request", policy, "gpt-5")
    author.site = CallSite("c", State(task=Task(SubmissionId("u1"), "user", settings)), lambda _: None)
    patch = "*** Begin Patch\n*** Add File: docs/authorized_keys\n+x\n*** Add File: a.txt\n+x\n*** End Patch"
    item = {"type": "custom_tool_call", "name": "apply_patch", "input": patch, "call_id": "p1"}
    assessed = await author.toolbox.assess(Call(CallId("p1"), "apply_patch", item), author.site)
    assert isinstance(assessed, ApplyPatch)
    assert assessed.outside == (str(tmp_path / "elsewhere/.ssh/authorized_keys"),)
    assert f"patch:{tmp_path}/elsewhere/.ssh/authorized_keys" in assessed.keys
