"""The demo on a console: the tree, drawn again and again, or one line after the other; and its summary.

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from orchestrator.broker.errors import Unavailable
from orchestrator.demo.play import DemoFailed, DemoView, Play, Story, WorkerProcess
from orchestrator.demo.proof import REPORT, Statement, claims
from orchestrator.demo.stage import Stage, both_alive, clone, environ, replay, stub, worker
from orchestrator.gateways.workspace import look_at
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.terminal.text import shown
from orchestrator.terminal.tree_view import drawing, headline
from orchestrator.views.event import Event
from orchestrator.views.event_text import lifecycle_text
from orchestrator.views.questions import ASKED
from orchestrator.views.tree import TreePicture, TreeReader, message_summary
from orchestrator.wiring import Deployment, deployment, guide, new_birth, redis_url
from orchestrator.wiring.open_deployment import Opened

REPORT_LINES = 30


def demo(
    settings: Settings, dendro: Sequence[str], repository: Path | None = None, *, keep: bool = False
) -> int:
    """Runs the demo in a folder of its own, its workers by the command `dendro`; answers the exit code."""
    console = Console(highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="dendro-demo-"))
    try:
        return asyncio.run(_demo(console, Stage(folder, settings, tuple(dendro)), repository))
    except DemoFailed as failed:
        console.print(f"[bold red]The demo failed:[/] {escape(str(failed))}")
        return 1
    finally:
        if keep:
            console.print(f"Kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


async def _demo(console: Console, stage: Stage, repository: Path | None) -> int:
    if source := clone(stage, repository or stage.outer.session_defaults.cwd):
        console.print(f"[dim]a clone of {escape(source)}[/]")
    with ExitStack() as stack:
        base_url = stack.enter_context(stub(stage))
        environment = environ(stage, base_url)
        settings = load_settings(SettingsSources(cwd=stage.workspace, environ=environment))
        url = stack.enter_context(redis_url(settings))
        workers = [stack.enter_context(worker(environment, stage)) for _ in range(2)]
        names = " and ".join(f"worker {worker.pid}" for worker in workers)
        cast = f"[dim]private Redis, model stub at {base_url}, {names}[/]"
        console.print(cast, soft_wrap=True)
        async with deployment(settings, url) as opened:
            await both_alive(opened, workers)
            story = await _play(console, stage, settings, opened, workers)
            found = Opened(settings, opened)
            held = await claims(found, story, stage.workspace)
        replayed = replay(stage, environment, story)
    return _summary(console, stage, story, held, replayed)


async def _play(
    console: Console, stage: Stage, settings: Settings, opened: Deployment, workers: list[WorkerProcess]
) -> Story:
    birth = new_birth(
        settings, look_at(stage.workspace, guide(settings)), time.time_ns() // 1_000_000, os.urandom
    )
    with _view(console) as view:
        return await Play(opened, workers, view).run(birth)


@contextmanager
def _view(console: Console) -> Iterator[DemoView]:
    """The tree on a terminal; lines anywhere else."""
    if not console.is_terminal:
        yield Lines(console)
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        yield Picture(live)


def _summary(
    console: Console,
    stage: Stage,
    story: Story,
    held: list[Statement],
    replayed: subprocess.CompletedProcess[str],
) -> int:
    report = stage.workspace / REPORT
    if report.is_file():
        lines = report.read_text().splitlines()
        more = ["…"] if len(lines) > REPORT_LINES else []
        shown = "\n".join([*lines[:REPORT_LINES], *more])
        console.print(Panel(escape(shown), title=REPORT, border_style="dim"))
    console.print(escape(replayed.stdout.rstrip() or replayed.stderr.rstrip()))
    table = Table(show_header=False, box=None, pad_edge=False)
    for claim in held:
        wrong = f" [red]({escape(claim.detail)})[/]" if claim.detail and not claim.true else ""
        table.add_row("[green]✓[/]" if claim.true else "[red]✗[/]", f"{escape(claim.text)}{wrong}")
    figures = f"{story.commands} commands ({story.in_doubt} in doubt), tree {story.root}"
    table.add_row("", f"[dim]{figures}[/]")
    console.print(table)
    return 0 if replayed.returncode == 0 and all(claim.true for claim in held) else 1


PAUSE_S = 0.1
"""Between two drawings: more often than that nobody sees."""
POLL_S = 0.4
"""A line that an agent said is no entry of the tree log, and is seen after this long."""
STYLES = {"error": "bold red", "agent_message": "bold", "agent_reasoning": "dim italic"}


class Lines:
    """For a pipe or a file: every event is a line, with the agent in front."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def event(self, who: str, event: Event) -> None:
        message = event.msg
        if event.type == "subagent_lifecycle":
            self.note(lifecycle_text(message), "blue")
        elif event.type == "exec_command_end" and message["exit_code"] == -1:
            self.note(f"[{who}] in doubt: its worker was lost while this command ran", "yellow")
        elif text := _line(message):
            self.note(f"[{who}] {text}", STYLES.get(event.type, ""))

    def note(self, text: str, style: str = "") -> None:
        if text:
            self._console.print(shown(text, style), soft_wrap=True)

    async def draw(self, reader: TreeReader) -> None:
        """Draws nothing: there is no terminal."""

    async def draw_last(self, reader: TreeReader) -> None:
        """Draws nothing: only the lines stay."""


def _line(message: Mapping[str, object]) -> str:
    """Prompts are told when an agent is made, requests for approval when they are answered."""
    hidden = ("user_message", "exec_approval_request", *ASKED)
    return "" if message["type"] in hidden else message_summary(message)


class Picture:
    """For a terminal: the tree as it is now; what the demo did stands above it."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def event(self, who: str, event: Event) -> None:
        """The picture shows it."""

    def note(self, text: str, style: str = "") -> None:
        self._live.console.print(shown(text, style), soft_wrap=True)

    async def draw(self, reader: TreeReader) -> None:
        while True:
            try:
                picture = await self._draw(reader)
                await reader.broker.wait_tree(reader.tree, picture.registry.tree_seq, POLL_S)
            except Unavailable as error:
                self.note(f"{error}; looking again", "dim")
            await asyncio.sleep(PAUSE_S)

    async def draw_last(self, reader: TreeReader) -> None:
        await self._draw(reader)

    async def _draw(self, reader: TreeReader) -> TreePicture:
        picture = await reader.picture()
        self._live.update(Group(headline(picture), drawing(picture)), refresh=True)
        return picture
