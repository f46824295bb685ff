"""The demo's environment: a clone, a home of its own, a model stub and two workers as processes."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.demo.play import DemoFailed, Story, WorkerProcess
from orchestrator.sandbox.trusted_files import find_program
from orchestrator.settings import Settings
from orchestrator.wiring import Deployment

START_S = 20.0
SMALL_PROJECT = {
    "README.md": "# A small project\n\nTODO: say what it is for.\n",
    "hello/main.py": "from hello.words import GREETING\n\nprint(GREETING)\n",
    "hello/words.py": 'GREETING = "hello"\n',
    "tests/test_words.py": "from hello.words import GREETING\n\n\ndef test_greets():\n    assert GREETING\n",
}


@dataclass(frozen=True, slots=True)
class Stage:
    """The folder in which the demo runs, and the command line by which its processes start."""

    folder: Path
    outer: Settings
    dendro: Sequence[str]
    """The command line of `dendro`."""

    @property
    def workspace(self) -> Path:
        return self.folder / "checkout"


def clone(stage: Stage, around: Path) -> str:
    """Clones the repository around a folder, and answers where that is.

    Where there is none, it makes a small one of its own and answers nothing.
    """
    git = [find_program("git") or "git", "-c", "user.name=Dendro", "-c", "user.email=dendro@localhost"]
    root = subprocess.run(
        [*git, "-C", str(around), "rev-parse", "--show-toplevel"], capture_output=True, text=True
    )
    if root.returncode == 0:
        source = root.stdout.strip()
        done = subprocess.run(
            [*git, "clone", "--quiet", source, str(stage.workspace)], capture_output=True, text=True
        )
        if done.returncode == 0 and any(stage.workspace.glob("[!.]*")):
            return source
    shutil.rmtree(stage.workspace, ignore_errors=True)
    stage.workspace.mkdir()
    for name, text in SMALL_PROJECT.items():
        path = stage.workspace / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "Begin"]):
        subprocess.run([*git, "-C", str(stage.workspace), *words], check=True, capture_output=True)
    return ""


def environ(stage: Stage, base_url: str) -> dict[str, str]:
    """A home of its own: neither the user's sessions nor the user's settings are touched."""
    kept = {name: value for name, value in stage.outer.host.environ.items() if not name.startswith("DENDRO_")}
    return {
        **kept,
        "DENDRO_HOME": str(stage.folder / "home"),
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": "the stub needs none",
    }


@contextmanager
def _process(
    words: list[str], environ: dict[str, str], stage: Stage, stdout: int = subprocess.DEVNULL
) -> Iterator[WorkerProcess]:
    log = (stage.folder / f"{words[0]}.log").open("a")
    process = subprocess.Popen(
        [*stage.dendro, *words],
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
def worker(environ: dict[str, str], stage: Stage) -> Iterator[subprocess.Popen[str]]:
    with _process(["worker"], environ, stage) as process:
        yield process


async def both_alive(opened: Deployment, workers: list[subprocess.Popen[str]]) -> None:
    async with asyncio.timeout(START_S):
        while True:
            alive = {state.worker for state in await opened.broker.workers()}
            if all(any(f"-{worker.pid}-" in name for name in alive) for worker in workers):
                return
            for worker in workers:
                if worker.poll() is not None:
                    raise DemoFailed(f"a worker ended at its start with {worker.returncode}")
            await asyncio.sleep(0.05)


def replay(stage: Stage, environ: dict[str, str], story: Story) -> subprocess.CompletedProcess[str]:
    """As a person would ask for it, to be shown."""
    words = [*stage.dendro, "replay", story.root]
    return subprocess.run(words, env=environ, cwd=stage.workspace, capture_output=True, text=True)
