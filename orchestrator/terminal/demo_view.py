"""The demo on a console: the tree, drawn again and again, or one line after the other; and its summary.

Everything is real but the model: a private Redis, two machines with a worker each, a root with
agents of two generations, real commands in copies of a real clone, merges, a patch. Half-way a machine is
lost while an agent's command runs; the other one takes over all that it held. The exit code is 0 only if
every claim that is printed in the end held. Where namespaces cannot be had, both workers run on this
machine; where bubblewrap does not work, all agents work in one folder; the demo says so.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from orchestrator.broker.errors import Unavailable
from orchestrator.core.entries import EventKind
from orchestrator.demo import (
    OWN_FOLDERS,
    PROMPT,
    REPORT,
    DemoFailed,
    DemoView,
    DemoWorker,
    Play,
    Shown,
    Site,
    Stage,
    Statement,
    Story,
    both_alive,
    check_by_example,
    claims,
    clone,
    environ,
    site,
    stub,
    worker,
)
from orchestrator.demo import window as served
from orchestrator.gateways.folder_facts import look_at
from orchestrator.protocol.events import (
    AgentMessage,
    AgentReasoning,
    Error,
    ExecCommandEnd,
    SubagentLifecycle,
    UserMessage,
)
from orchestrator.protocol.ops import WorkspaceSource
from orchestrator.requests import TO_PEOPLE, PatchRequest
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.terminal.text import shown
from orchestrator.terminal.tree_view import drawing, headline
from orchestrator.views.event import Event
from orchestrator.views.event_text import lifecycle_text
from orchestrator.views.tree import TreePicture, TreeReader, message_summary
from orchestrator.wiring.deployment import deployment, redis_url
from orchestrator.wiring.new_sessions import guide, new_birth
from orchestrator.wiring.open_deployment import Opened
from orchestrator.wiring.portable import portable_birth

REPORT_LINES = 30


def demo(
    settings: Settings,
    dendro: Sequence[str],
    repository: Path | None = None,
    *,
    keep: bool = False,
    window: bool = False,
) -> int:
    """Runs the demo in a folder of its own, its workers by the command `dendro`; answers the exit code.

    With `window` it is shown in the window as well, which stays until SIGINT or SIGTERM.
    """
    console = Console(highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="dendro-demo-"))
    try:
        return asyncio.run(_demo(console, Stage(folder, settings, tuple(dendro)), repository, window=window))
    except DemoFailed as failed:
        console.print(f"[bold red]The demo failed:[/] {escape(str(failed))}")
        return 1
    finally:
        if keep:
            console.print(f"Kept in {folder}")
            _in_the_window(
                console, f"DENDRO_HOME={folder}/home dendro window --no-worker", "look at this run"
            )
        else:
            shutil.rmtree(folder, ignore_errors=True)
            if not window:
                _in_the_window(console, "dendro demo --window", "see it in the window, as it goes on")


def _in_the_window(console: Console, command: str, what: str) -> None:
    console.print(f"[dim]To {what}:[/] {escape(command)}", soft_wrap=True)


async def _demo(console: Console, stage: Stage, repository: Path | None, *, window: bool) -> int:
    if source := clone(stage, repository or stage.outer.session_defaults.cwd):
        console.print(f"[dim]a clone of {escape(source)}[/]")
    here = site(stage)
    with ExitStack() as stack:
        base_url = stack.enter_context(stub(stage))
        environment = environ(stage, base_url)
        settings = load_settings(SettingsSources(cwd=stage.workspace, environ=environment))
        url = stack.enter_context(redis_url(settings))
        # A server of this machine's own is no other machine's, unless it is named.
        environment["DENDRO_REDIS_URL"] = url
        places = here.machines or (None, None)
        workers = [stack.enter_context(worker(environment, stage, each)) for each in places]
        _introduce(console, base_url, here, workers)
        if window:
            address, code = stack.enter_context(served(environment, stage))
            console.print(f"window at {address}/#c={code}", soft_wrap=True)
        async with deployment(settings, url) as opened:
            await both_alive(opened, workers)
            found = Opened(settings, opened)
            story = await _play(console, found, stage, workers, own=not here.shared, seen=window)
            shown = [] if here.shared else _shown(stage, environment, story, console.is_terminal)
            held = await claims(found, story, stage.workspace, shown)
        shown.append(_run(stage, environment, ("replay", story.root)))
        shown += _bundled(stage, environment, story)
        if window:
            exit_code = _summary(console, stage, story, held, shown)
            await _told_to_end(console, stage.run(environment, "token", "code", "--at", address), story)
            return exit_code
    return _summary(console, stage, story, held, shown)


async def _told_to_end(console: Console, link: CompletedProcess[str], story: Story) -> None:
    """Waits until a person has looked enough; `link` signs another browser in."""
    told, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    again = f" Another browser: {link.stdout.strip()}" if link.returncode == 0 else ""
    said = f"The window stays, with this run at /tree/{story.root}. Ctrl-C ends it.{again}"
    console.print(said, soft_wrap=True)
    await told.wait()


def _introduce(console: Console, base_url: str, here: Site, workers: Sequence[DemoWorker]) -> None:
    names = " and ".join(each.named() for each in workers)
    console.print(f"[dim]private Redis, model stub at {base_url}, {names}[/]", soft_wrap=True)
    if here.lacking:
        console.print(f"[dim]both workers are on this machine: {escape(here.lacking)}[/]", soft_wrap=True)
    if here.shared:
        console.print(f"[dim]all agents work in one folder: {escape(here.shared)}[/]", soft_wrap=True)


async def _play(
    console: Console,
    found: Opened,
    stage: Stage,
    workers: Sequence[DemoWorker],
    *,
    own: bool,
    seen: bool,
) -> Story:
    settings = found.settings
    if own:
        wish = WorkspaceSource(folder=str(stage.workspace))
        birth = await portable_birth(found, wish, settings)
    else:
        looked_at = look_at(stage.workspace, guide(settings))
        birth = new_birth(settings, looked_at, time.time_ns() // 1_000_000, os.urandom)
    with _view(console) as view:
        play = Play(found.deployment, workers, view, seen=seen)
        return await play.run(birth, PROMPT + (OWN_FOLDERS if own else ""))


def _shown(stage: Stage, environ: dict[str, str], story: Story, colours: bool) -> list[Shown]:
    """The commands with which a person looks at the folders, and takes or leaves them."""
    environ = {**environ, "FORCE_COLOR": "1"} if colours else environ
    diffs: list[tuple[str, ...]] = [("diff", story.root, "--stat")]
    diffs += [("diff", story.root, str(role.number)) for role in story.surveyors[:1]]
    applied = ("apply", story.root, "--to", str(stage.workspace))
    asked = [*diffs, applied, ("verify", story.root, "--workspaces")]
    # They read the log and the packs, and one alone writes, into the clone: in any order they say the same.
    with ThreadPoolExecutor(max_workers=len(asked)) as together:
        return list(together.map(partial(_run, stage, environ), asked))


def _bundled(stage: Stage, environ: dict[str, str], story: Story) -> list[Shown]:
    """The run as one file, checked by the program that strangers have; by Dendro where that is not here."""
    file = os.path.relpath(stage.folder / "run.zip", stage.workspace)
    made = _run(stage, environ, ("bundle", story.root, "-o", file))
    example = Path(__file__).parents[2] / "examples" / "check_bundle.py"
    if not example.is_file():
        return [made, _run(stage, environ, ("verify", file))]
    return [made, check_by_example(stage, environ, example, file)]


def _run(stage: Stage, environ: dict[str, str], words: Sequence[str]) -> Shown:
    done = stage.run(environ, *words)
    return Shown(" ".join(("dendro", *words)), done.stdout + done.stderr, done.returncode != 0)


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
    shown: list[Shown],
) -> int:
    report = stage.workspace / REPORT
    if report.is_file():
        lines = report.read_text().splitlines()
        more = ["…"] if len(lines) > REPORT_LINES else []
        begin = "\n".join([*lines[:REPORT_LINES], *more])
        console.print(Panel(escape(begin), title=REPORT, border_style="dim"))
    for each in shown:
        console.print(f"[bold]$ {escape(each.words)}[/]", soft_wrap=True)
        console.print(Text.from_ansi(each.text.rstrip()), soft_wrap=True)
    table = Table(show_header=False, box=None, pad_edge=False)
    for claim in held:
        wrong = f" [red]({escape(claim.detail)})[/]" if claim.detail and not claim.true else ""
        table.add_row("[green]✓[/]" if claim.true else "[red]✗[/]", f"{escape(claim.text)}{wrong}")
    figures = f"{story.commands} commands ({story.in_doubt} in doubt), tree {story.root}"
    table.add_row("", f"[dim]{figures}[/]")
    console.print(table)
    return 0 if all(claim.true for claim in held) and not any(each.failed for each in shown) else 1


PAUSE_S = 0.1
"""Between two drawings: more often than that nobody sees."""
POLL_S = 0.4
"""A line that an agent said is no entry of the tree log, and is seen after this long."""
STYLES: Mapping[EventKind, str] = {
    Error: "bold red",
    AgentMessage: "bold",
    AgentReasoning: "dim italic",
}


class Lines:
    """For a pipe or a file: every event is a line, with the agent in front."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def event(self, who: str, event: Event) -> None:
        match event.told:
            case SubagentLifecycle() as told:
                self.note(lifecycle_text(told), "blue")
            case ExecCommandEnd(exit_code=-1):
                self.note(f"[{who}] in doubt: its worker was lost while this command ran", "yellow")
            case _ if text := _line(event):
                self.note(f"[{who}] {text}", STYLES.get(event.kind, ""))
            case _:
                pass

    def note(self, text: str, style: str = "") -> None:
        if text:
            self._console.print(shown(text, style), soft_wrap=True)

    async def draw(self, reader: TreeReader) -> None:
        """Draws nothing: there is no terminal."""

    async def draw_last(self, reader: TreeReader) -> None:
        """Draws nothing: only the lines stay."""


def _line(event: Event) -> str:
    """Prompts are told when an agent is made, requests for approval when they are answered."""
    answered = event.type in TO_PEOPLE - {PatchRequest.tag}
    return "" if answered or event.kind is UserMessage else message_summary(event.msg)


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
                await reader.broker.logs.wait_tree(reader.tree, picture.registry.tree_seq, POLL_S)
            except Unavailable as error:
                self.note(f"{error}; looking again", "dim")
            await asyncio.sleep(PAUSE_S)

    async def draw_last(self, reader: TreeReader) -> None:
        await self._draw(reader)

    async def _draw(self, reader: TreeReader) -> TreePicture:
        picture = await reader.picture()
        self._live.update(Group(headline(picture), drawing(picture)), refresh=True)
        return picture
