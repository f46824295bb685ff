"""Work of a pool without a session, with a real worker: under its sandbox, lost with it, never done twice."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.errors import OutOfMemory, Unavailable
from orchestrator.broker.job_queue import Ends, JobLook, JobState
from orchestrator.gateways.pool_jobs import JobError, PoolJobs
from orchestrator.protocol import jobs as j
from orchestrator.protocol.policy import DangerFullAccess, WorkspaceWrite
from orchestrator.protocol.wire import written
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.wiring.deployment import session_pool
from orchestrator.wiring.open_deployment import opened
from tests.cli.machine import Machine, dendro
from tests.servers import RedisServer, start_redis
from tests.started import Started


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def machine(tmp_path: Path, redis_server: RedisServer) -> Machine:
    with redis_server.client() as client:
        client.flushall()
    return Machine.at(tmp_path, redis_server.url)


@contextmanager
def worker(machine: Machine) -> Iterator[subprocess.Popen[bytes]]:
    with Started(dendro("worker"), cwd=machine.folder, env=machine.environ) as process:
        try:
            yield process
        finally:
            process.terminate()


@asynccontextmanager
async def jobs_of(machine: Machine, patience_s: float = 30.0) -> AsyncIterator[PoolJobs]:
    """A door on the machine; it waits longer for a worker than doors do, which starts beside it."""
    settings = load_settings(SettingsSources(machine.folder, machine.environ))
    async with opened(settings) as found:
        yield PoolJobs(found.broker, session_pool(settings), lambda: uuid.uuid4().hex, patience_s)


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def repository(machine: Machine) -> str:
    """A repository with a remote, a commit that it does not have, a change, a new file."""
    folder, remote = machine.folder, machine.folder.parent / "remote.git"
    git(folder.parent, "init", "-q", "--bare", str(remote))
    git(folder, "init", "-q")
    for number in (1, 2):
        (folder / "a.txt").write_text(f"{number}\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", str(number))
        if number == 1:
            git(folder, "remote", "add", "origin", str(remote))
            git(folder, "push", "-q", "origin", "main")
            pushed = git(folder, "rev-parse", "HEAD")
    (folder / "a.txt").write_text("3\n")
    (folder / "new.txt").write_text("new\n")
    return pushed


@pytest.mark.realredis
async def test_door_has_a_worker_look_and_run_under_the_sandbox_for_as_long_as_it_is_there(
    machine: Machine,
) -> None:
    pushed, folder = repository(machine), str(machine.folder)
    with worker(machine):
        async with jobs_of(machine) as pool:
            said = await pool.do(
                j.RunCommand(
                    command=("bash", "-c", "echo out; echo err >&2; touch in.txt; exit 3"), cwd=folder
                ),
                j.CommandResult,
            )
            assert (said.exit_code, said.stdout, said.stderr) == (3, "out\n", "err\n")
            outside = machine.folder.parent / "out.txt"
            no_tmp = WorkspaceWrite(exclude_slash_tmp=True)
            touch = j.RunCommand(command=("touch", str(outside)), cwd=folder, sandbox_policy=no_tmp)
            ran = await pool.do(touch, j.CommandResult)
            assert ran.exit_code != 0
            assert not outside.exists()
            late = j.RunCommand(command=("sleep", "60"), cwd=folder, timeout_ms=50)
            assert (await pool.do(late, j.CommandResult)).exit_code == 124
            with pytest.raises(JobError, match="asks for danger-full-access"):
                full = DangerFullAccess()
                await pool.do(j.RunCommand(command=("id",), cwd=folder, sandbox_policy=full), j.CommandResult)
            diff = await pool.do(j.DiffToRemote(cwd=folder), j.DiffResult)
            assert diff.sha == pushed
            assert "-1\n+3\n" in diff.diff
            assert "+++ b/new.txt\n@@ -0,0 +1 @@\n+new\n" in diff.diff
            with pytest.raises(JobError, match="no git repository"):
                await pool.do(j.DiffToRemote(cwd=folder + "/.."), j.DiffResult)
            git(machine.folder, "config", "core.worktree", str(machine.folder.parent))
            with pytest.raises(JobError, match="names another folder as its own"):
                await pool.do(j.DiffToRemote(cwd=folder), j.DiffResult)
            read = await pool.do(j.ReadFile(path=folder + "/a.txt"), j.FileContent)
            assert base64.b64decode(read.data_base64) == b"3\n"
            with pytest.raises(JobError, match="No such file"):
                await pool.do(j.ReadFile(path=folder + "/none"), j.FileContent)
            found = await pool.do(j.SearchFiles(query="new", roots=(folder,)), j.FoundFiles)
            assert [one.path for one in found.files] == ["new.txt"]
            mark = machine.folder / "mark"
            asking = asyncio.create_task(pool.do(sleeping(machine, mark), j.CommandResult))
            while not (mark.exists() and mark.read_text().strip()):
                await asyncio.sleep(0.02)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            while sleepers(machine):
                await asyncio.sleep(0.05)
            home = machine.environ["DENDRO_HOME"]
            with pytest.raises(JobError, match="Permission denied"):
                await pool.do(j.ReadDirectory(path=home), j.Directory)


@pytest.mark.realredis
async def test_asker_learns_that_its_worker_was_killed_and_nobody_begins_its_job_again(
    machine: Machine,
) -> None:
    marks = machine.folder / "marks"
    git(machine.folder, "init", "-q")
    job = sleeping(machine, marks)
    async with jobs_of(machine) as pool:
        with worker(machine) as process:
            asking = asyncio.create_task(pool.do(job, j.CommandResult))
            while not marks.exists():
                await asyncio.sleep(0.02)
            process.kill()
            with worker(machine), pytest.raises(JobError, match="worker was lost while it was at it"):
                await asking
        assert len(marks.read_text().split()) == 1


def sleeping(machine: Machine, marks: Path) -> j.RunCommand:
    """A job that leaves its mark and sleeps on."""
    script = f"echo $$ >> {marks}; exec sleep 60"
    return j.RunCommand(command=("bash", "-c", script), cwd=str(machine.folder), timeout_ms=60_000)


def sleepers(machine: Machine) -> list[str]:
    """Processes that sleep in the machine's folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if words[:2] == [b"sleep", b"60"] and (process / "cwd").readlink() == machine.folder:
                found.append(process.name)
        except OSError:
            continue
    return found


async def test_door_without_a_worker_names_the_pool(machine: Machine) -> None:
    async with jobs_of(machine, patience_s=0.1) as pool:
        with pytest.raises(JobError, match=rf"no worker of pool {pool.pool} has taken it within 0.1 s"):
            await pool.do(j.ReadFile(path="/etc/hostname"), j.FileContent)
        assert await pool.broker.jobs.waiting_jobs(pool.pool, 10) == []


class Looks:
    """The jobs of a Redis that cannot answer the first looks."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.ended = list(errors), list[Ends]()
        self.jobs = self

    async def offer_job(self, pool: str, job: str, payload: bytes, wait_ms: int) -> None:
        pass

    async def look_at_job(self, pool: str, job: str, ends: Ends = Ends.NONE) -> JobLook:
        if self.errors:
            raise self.errors.pop(0)
        self.ended.append(ends)
        return JobLook(
            JobState.DONE, orjson.dumps(written(j.CommandResult(exit_code=3, stdout="", stderr="")))
        )


async def test_asker_of_a_job_asks_again_while_redis_does_not_answer_or_is_full() -> None:
    looks, slept = Looks(Unavailable("away"), OutOfMemory("full"), Unavailable("away")), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    pool = PoolJobs(cast(Any, looks), "default", lambda: "one", sleep=sleep)
    said = await pool.do(j.RunCommand(command=("true",), cwd="/"), j.CommandResult)
    assert said.exit_code == 3
    assert len(slept) == 3
    assert looks.ended == [Ends.NONE, Ends.ANY]
