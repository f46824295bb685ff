"""`dendro demo`: a tree of agents that outlives a worker, for all to see.

Everything is real but the model: a private Redis, two worker processes, a root with agents of
two generations, real commands in a real clone, a patch. Half-way a worker is killed with
SIGKILL while an agent's command runs; the other one takes over all that it held. The exit code
is 0 only if every claim that is printed in the end held.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from orchestrator.cli.demo_play import DemoFailed, Play, Story, WorkerProcess
from orchestrator.cli.demo_proof import REPORT, Claim, claims
from orchestrator.cli.demo_view import DemoView, Lines, Picture
from orchestrator.cli.invocation import DENDRO
from orchestrator.gateways.workspace import look_at
from orchestrator.sandbox.reading import find_program
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.wiring import Deployment, deployment, new_birth, redis_url
from orchestrator.wiring.opening import Opened

START_S = 20.0
SMALL_PROJECT = {
    "README.md": "# A small project\n\nTODO: say what it is for.\n",
    "hello/main.py": "from hello.words import GREETING\n\nprint(GREETING)\n",
    "hello/words.py": 'GREETING = "hello"\n',
    "tests/test_words.py": "from hello.words import GREETING\n\n\ndef test_greets():\n    assert GREETING\n",
}
REPORT_LINES = 30


def demo(settings: Settings, repository: Path | None = None, keep: bool = False) -> int:
    """Runs the demo in a folder of its own; answers the exit code."""
    console = Console(highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="dendro-demo-"))
    try:
        return asyncio.run(_demo(_Stage(console, folder, settings), repository))
    except DemoFailed as failed:
        console.print(f"[bold red]The demo failed:[/] {escape(str(failed))}")
        return 1
    finally:
        if keep:
            console.print(f"Kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Stage:
    console: Console
    folder: Path
    outer: Settings

    @property
    def workspace(self) -> Path:
        return self.folder / "checkout"


async def _demo(stage: _Stage, repository: Path | None) -> int:
    _clone(stage, repository or stage.outer.session_defaults.cwd)
    with ExitStack() as stack:
        base_url = stack.enter_context(_stub(stage))
        environ = _environ(stage, base_url)
        settings = load_settings(SettingsSources(cwd=stage.workspace, environ=environ))
        url = stack.enter_context(redis_url(settings))
        workers = [stack.enter_context(_worker(environ, stage)) for _ in range(2)]
        names = " and ".join(f"worker {worker.pid}" for worker in workers)
        cast = f"[dim]private Redis, model stub at {base_url}, {names}[/]"
        stage.console.print(cast, soft_wrap=True)
        async with deployment(settings, url) as opened:
            await _both_alive(opened, workers)
            story = await _play(stage, settings, opened, workers)
            found = Opened(settings, opened)
            held = await claims(found, story, stage.workspace)
        replayed = _replay(stage, environ, story)
    return _summary(stage, story, held, replayed)


async def _play(stage: _Stage, settings: Settings, opened: Deployment, workers: list[WorkerProcess]) -> Story:
    birth = new_birth(
        settings, look_at(stage.workspace, settings.home), time.time_ns() // 1_000_000, os.urandom
    )
    with _view(stage.console) as view:
        return await Play(opened, workers, view).run(birth)


@contextmanager
def _view(console: Console) -> Iterator[DemoView]:
    """The tree on a terminal; lines anywhere else."""
    if not console.is_terminal:
        yield Lines(console)
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        yield Picture(live)


# ── the cast ──────────────────────────────────────────────────────────────────────────────────


def _clone(stage: _Stage, around: Path) -> None:
    """A clone of the repository around a folder; a small repository of our own if there is none."""
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
            stage.console.print(f"[dim]a clone of {escape(source)}[/]")
            return
    shutil.rmtree(stage.workspace, ignore_errors=True)
    stage.workspace.mkdir()
    for name, text in SMALL_PROJECT.items():
        path = stage.workspace / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "Begin"]):
        subprocess.run([*git, "-C", str(stage.workspace), *words], check=True, capture_output=True)


def _environ(stage: _Stage, base_url: str) -> dict[str, str]:
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
    words: list[str], environ: dict[str, str], stage: _Stage, stdout: int = subprocess.DEVNULL
) -> Iterator[WorkerProcess]:
    log = (stage.folder / f"{words[0]}.log").open("a")
    process = subprocess.Popen(
        [*DENDRO, *words],
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
def _stub(stage: _Stage) -> Iterator[str]:
    words = ["model-stub", "--behaviour", "tree", "--think-ms", "250", "--delta-delay-ms", "40"]
    environ = _environ(stage, "http://127.0.0.1:9/v1")
    with _process(words, environ, stage, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        base_url = process.stdout.readline().strip()
        if not base_url.startswith("http"):
            raise DemoFailed(f"the model stub did not start: {base_url or 'it said nothing'}")
        yield base_url


@contextmanager
def _worker(environ: dict[str, str], stage: _Stage) -> Iterator[subprocess.Popen[str]]:
    with _process(["worker"], environ, stage) as process:
        yield process


async def _both_alive(opened: Deployment, workers: list[subprocess.Popen[str]]) -> None:
    async with asyncio.timeout(START_S):
        while True:
            alive = {state.worker for state in await opened.broker.workers()}
            if all(any(f"-{worker.pid}-" in name for name in alive) for worker in workers):
                return
            for worker in workers:
                if worker.poll() is not None:
                    raise DemoFailed(f"a worker ended at its start with {worker.returncode}")
            await asyncio.sleep(0.05)


# ── the proof ─────────────────────────────────────────────────────────────────────────────────


def _replay(stage: _Stage, environ: dict[str, str], story: Story) -> subprocess.CompletedProcess[str]:
    """As a person would ask for it, to be shown."""
    words = [*DENDRO, "replay", story.root]
    return subprocess.run(words, env=environ, cwd=stage.workspace, capture_output=True, text=True)


def _summary(
    stage: _Stage, story: Story, held: list[Claim], replayed: subprocess.CompletedProcess[str]
) -> int:
    report = stage.workspace / REPORT
    if report.is_file():
        lines = report.read_text().splitlines()
        more = ["…"] if len(lines) > REPORT_LINES else []
        shown = "\n".join([*lines[:REPORT_LINES], *more])
        stage.console.print(Panel(escape(shown), title=REPORT, border_style="dim"))
    stage.console.print(escape(replayed.stdout.rstrip() or replayed.stderr.rstrip()))
    table = Table(show_header=False, box=None, pad_edge=False)
    for claim in held:
        wrong = f" [red]({escape(claim.detail)})[/]" if claim.detail and not claim.true else ""
        table.add_row("[green]✓[/]" if claim.true else "[red]✗[/]", f"{escape(claim.text)}{wrong}")
    figures = f"{story.commands} commands ({story.in_doubt} in doubt), tree {story.root}"
    table.add_row("", f"[dim]{figures}[/]")
    stage.console.print(table)
    return 0 if replayed.returncode == 0 and all(claim.true for claim in held) else 1
