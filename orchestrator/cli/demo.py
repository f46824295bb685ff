"""`dendro demo`: a session that outlives its worker, for all to see.

Everything is real but the model: a private Redis, two worker processes, real commands in a
real clone, a patch. Half-way the worker that holds the session is killed with SIGKILL while a
command runs; the other one takes over. The exit code is 0 only if the session finished, the
report is there, and a replay of the log gives the state that the workers had.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from orchestrator.cli.live import Live
from orchestrator.core.ids import SessionId
from orchestrator.gateways.client import Client, ClientPorts, Event
from orchestrator.gateways.workspace import look_at
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.submission import Submission
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.wiring import Deployment, deployment, new_birth, redis_url

PROMPT = "Survey this repository and write what you find into REPORT.md."
REPORT = "REPORT.md"
KILL_AT_COMMAND = 3
"""The worker is killed while this command runs: about half-way through the survey."""
START_S = 20.0
WHOLE_S = 55.0


class DemoFailed(Exception):
    """Something that the demo is to show did not hold; the message says what."""


@dataclass(slots=True)
class Story:
    """What happened, for the summary."""

    commands: int = 0
    killed: str = ""
    killed_at: float = 0.0
    resumed_after_s: float | None = None
    in_doubt: int = 0
    tokens: int = 0
    finished: bool = False
    holders: list[str] = field(default_factory=list)


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
        stage.console.print(f"[dim]private Redis, model stub at {base_url}, {names}[/]")
        async with deployment(settings, url) as opened:
            session, story = await _run(stage, settings, opened, workers)
        replayed = _replay(stage, environ, session)
    return _summary(stage, session, story, replayed)


# ── the cast ──────────────────────────────────────────────────────────────────────────────────


def _clone(stage: _Stage, around: Path) -> None:
    """A clone of the repository around a folder; a small repository of our own if there is none."""
    git = ["git", "-c", "user.name=Dendro", "-c", "user.email=dendro@localhost"]
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
    (stage.workspace / "README.md").write_text("# A small project\n\nTODO: say what it is for.\n")
    (stage.workspace / "main.py").write_text('print("hello")\n')
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
) -> Iterator[subprocess.Popen[str]]:
    log = (stage.folder / f"{words[0]}.log").open("a")
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", *words],
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
    words = ["model-stub", "--behaviour", "survey", "--think-ms", "250", "--delta-delay-ms", "40"]
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


# ── the play ──────────────────────────────────────────────────────────────────────────────────


async def _run(
    stage: _Stage, settings: Settings, opened: Deployment, workers: list[subprocess.Popen[str]]
) -> tuple[SessionId, Story]:
    ports = ClientPorts(opened.broker, opened.texts, secrets.token_bytes)
    client = Client(ports, f"demo-{os.getpid()}", "demo")
    await _both_alive(opened, workers)
    birth = new_birth(settings, look_at(stage.workspace), int(time.time() * 1000), secrets.token_bytes)
    session = await client.create(birth)
    text = TextInput(text=PROMPT)
    await client.submit(session, Submission(SubmissionId("demo-1"), ops.UserInput(items=(text,))))
    story, live = Story(), Live(stage.console)
    try:
        async with asyncio.timeout(WHOLE_S):
            async for event in client.follow(session):
                await _tell_takeover(stage, client, session, story, workers)
                live.show(event)
                await _act(stage, client, session, event, story, workers)
                if event.type in ("task_complete", "turn_aborted"):
                    story.finished = event.type == "task_complete" and bool(event.msg["last_agent_message"])
                    break
    except TimeoutError:
        raise DemoFailed(f"the session was not finished after {WHOLE_S:.0f} s") from None
    await _at_rest(client, session)
    return session, story


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


async def _at_rest(client: Client, session: SessionId) -> None:
    """File and digest are written when the session has come to rest, a moment after its last event."""
    async with asyncio.timeout(10):
        while True:
            head = await client.head(session)
            if head is None or not head.holder:
                return
            await asyncio.sleep(0.02)


async def _tell_takeover(
    stage: _Stage, client: Client, session: SessionId, story: Story, workers: list[subprocess.Popen[str]]
) -> None:
    """The first event after the kill is the other worker's."""
    if not story.killed or story.resumed_after_s is not None:
        return
    story.resumed_after_s = time.monotonic() - story.killed_at
    holder = await _holder(client, session, workers)
    took = f"worker {holder.pid}" if holder else "the other worker"
    stage.console.print(f"[bold green]↺ {took} took over after {story.resumed_after_s:.1f} s[/]")


async def _act(
    stage: _Stage,
    client: Client,
    session: SessionId,
    event: Event,
    story: Story,
    workers: list[subprocess.Popen[str]],
) -> None:
    match event.type:
        case "exec_command_begin":
            story.commands += 1
            if story.commands == KILL_AT_COMMAND:
                await _kill(stage, client, session, story, workers)
        case "exec_command_end" if event.msg["exit_code"] == -1:
            story.in_doubt += 1
        case "token_count" if event.msg["info"]:
            story.tokens = event.msg["info"]["total_token_usage"]["total_tokens"]


async def _kill(
    stage: _Stage, client: Client, session: SessionId, story: Story, workers: list[subprocess.Popen[str]]
) -> None:
    holder = await _holder(client, session, workers)
    if holder is None:
        raise DemoFailed("nobody held the session while a command of it ran")
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    story.killed, story.killed_at = str(holder.pid), time.monotonic()
    stage.console.print(f"[bold red]✗ worker {holder.pid} holds the session: killed with SIGKILL[/]")


async def _holder(
    client: Client, session: SessionId, workers: list[subprocess.Popen[str]]
) -> subprocess.Popen[str] | None:
    head = await client.head(session)
    name = head.holder if head else None
    return next((worker for worker in workers if name and f"-{worker.pid}-" in name), None)


# ── the proof ─────────────────────────────────────────────────────────────────────────────────


def _replay(stage: _Stage, environ: dict[str, str], session: SessionId) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "orchestrator.cli.main", "replay", session]
    return subprocess.run(words, env=environ, cwd=stage.workspace, capture_output=True, text=True)


def _summary(
    stage: _Stage, session: SessionId, story: Story, replayed: subprocess.CompletedProcess[str]
) -> int:
    report = stage.workspace / REPORT
    held = {
        "the session finished": story.finished,
        "its worker was killed and another took over": story.resumed_after_s is not None,
        f"{REPORT} was written": report.is_file(),
        "a replay of the log gives the live state": replayed.returncode == 0,
    }
    if report.is_file():
        stage.console.print(
            Panel(escape(report.read_text()[:1500].rstrip()), title=REPORT, border_style="dim")
        )
    stage.console.print(escape(replayed.stdout.rstrip() or replayed.stderr.rstrip()))
    table = Table(show_header=False, box=None, pad_edge=False)
    for claim, true in held.items():
        table.add_row("[green]✓[/]" if true else "[red]✗[/]", claim)
    table.add_row(
        "", f"[dim]{story.commands} commands ({story.in_doubt} in doubt), {story.tokens} tokens, {session}[/]"
    )
    stage.console.print(table)
    return 0 if all(held.values()) else 1
