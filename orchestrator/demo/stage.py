"""The demo's environment: a clone, a home of its own, a model stub, and two machines with a worker each."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from orchestrator.core.frozen import record
from orchestrator.demo.machines import DemoWorker, LocalMachine, machine_at
from orchestrator.demo.play import DemoFailed
from orchestrator.private_files import make_folder, open_file
from orchestrator.sandbox.git import run_git
from orchestrator.sandbox.probe import cannot_mount, probe
from orchestrator.settings import Settings
from orchestrator.wiring.deployment import Deployment

START_S = 20.0
CLONE_S = 120.0
MACHINES = ("north", "south")
WORKSPACES = "workspaces"
SMALL_PROJECT = {
    "README.md": "# A small project\n\nTODO: say what it is for.\n",
    "hello/main.py": "from hello.words import GREETING\n\nprint(GREETING)\n",
    "hello/words.py": 'GREETING = "hello"\n',
    "tests/test_words.py": "from hello.words import GREETING\n\n\ndef test_greets():\n    assert GREETING\n",
}


@record
class Stage:
    """The folder in which the demo runs, and the command line by which its processes start."""

    folder: Path
    outer: Settings
    dendro: Sequence[str]
    """The command line of `dendro`."""

    @property
    def workspace(self) -> Path:
        return self.folder / "checkout"

    def run(self, environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a `dendro` command as a person would, to be shown."""
        return subprocess.run(
            [*self.dendro, *words], env=environ, cwd=self.workspace, capture_output=True, text=True
        )


@record
class Site:
    """The machines that the demo can have here, and the folders that its agents can have."""

    machines: tuple[LocalMachine, ...] = ()
    """None: both workers run on this machine."""
    lacking: str = ""
    """The reason why there are none."""
    shared: str = ""
    """The reason why all agents work in one folder; empty if each has its own."""


def site(stage: Stage) -> Site:
    """Two machines with folders of their own, or what this computer has of that."""
    root = stage.folder / WORKSPACES
    make_folder(root)
    shared = cannot_mount(probe(), stage.outer.sandbox.mechanism)
    made = tuple(machine_at(stage.folder / name, name, [(WORKSPACES, root)]) for name in MACHINES)
    lacking = next((why for machine in made if (why := machine.lacking())), "")
    return Site(() if lacking else made, lacking, shared)


def clone(stage: Stage, around: Path) -> str:
    """Clones the repository around a folder, and answers where that is.

    Where there is none, it makes a small one of its own and answers nothing.
    """
    made = (stage.folder,)
    if source := run_git(around, "rev-parse", "--show-toplevel").text:
        cloning = ("clone", "--quiet", "--no-hardlinks", source, str(stage.workspace))
        done = run_git(stage.folder, *cloning, writable=made, allow="file", seconds=CLONE_S)
        if done.code == 0 and any(stage.workspace.glob("[!.]*")):
            return source
    shutil.rmtree(stage.workspace, ignore_errors=True)
    stage.workspace.mkdir()
    for name, text in SMALL_PROJECT.items():
        path = stage.workspace / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "Begin"]):
        named = ("-c", "user.name=Dendro", "-c", "user.email=dendro@localhost")
        done = run_git(stage.workspace, *named, *words, writable=made)
        if done.code:
            raise DemoFailed(f"git {words[0]} failed: {done.why}")
    return ""


def environ(stage: Stage, base_url: str) -> dict[str, str]:
    """A home of its own: neither the user's sessions nor the user's settings are touched."""
    kept = {name: value for name, value in stage.outer.host.environ.items() if not name.startswith("DENDRO_")}
    return {
        **kept,
        "DENDRO_HOME": str(stage.folder / "home"),
        "DENDRO_UPKEEP_ARCHIVE_URL": (stage.folder / "archive").as_uri(),
        "DENDRO_WORKSPACE_ROOT": str(stage.folder / WORKSPACES),
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": "the stub needs none",
    }


@contextmanager
def _process(
    words: list[str],
    environ: dict[str, str],
    stage: Stage,
    stdout: int = subprocess.DEVNULL,
    machine: LocalMachine | None = None,
) -> Iterator[subprocess.Popen[str]]:
    log = os.fdopen(open_file(stage.folder / f"{words[0]}.log", os.O_WRONLY | os.O_APPEND), "a")
    words = [*stage.dendro, *words]
    process = subprocess.Popen(
        words if machine is None else machine.words(*words),
        env=environ,
        cwd=stage.workspace,
        stderr=log,
        text=True,
        start_new_session=True,
        stdout=stdout,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


@contextmanager
def stub(stage: Stage) -> Iterator[str]:
    words = ["model-stub", "--behaviour", "tree", "--think-ms", "250", "--delta-delay-ms", "40"]
    environment = environ(stage, "http://127.0.0.1:9/v1")
    with _process(words, environment, stage, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        base_url = process.stdout.readline().strip()
        if not base_url.startswith("http"):
            raise DemoFailed(f"the model stub did not start: {base_url or 'it said nothing'}")
        yield base_url


@contextmanager
def worker(
    environ: dict[str, str], stage: Stage, machine: LocalMachine | None = None
) -> Iterator[DemoWorker]:
    with _process(["worker"], environ, stage, machine=machine) as process:
        yield DemoWorker(process, machine.name if machine else "")


async def both_alive(opened: Deployment, workers: Sequence[DemoWorker]) -> None:
    async with asyncio.timeout(START_S):
        while True:
            alive = {state.worker for state in await opened.broker.claims.workers()}
            if all(any(f"-{worker.process.pid}-" in name for name in alive) for worker in workers):
                return
            for worker in workers:
                if worker.process.poll() is not None:
                    raise DemoFailed(f"a worker ended at its start with {worker.process.returncode}")
            await asyncio.sleep(0.05)
