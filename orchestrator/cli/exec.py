"""`dendro exec`: one turn a process, for the programs that start Codex so (`@openai/codex-sdk`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.invocation import Invocation, prompt_text
from orchestrator.core.frozen import record
from orchestrator.home import without_links
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from orchestrator.broker.records import SessionHead
    from orchestrator.core.ids import SessionId
    from orchestrator.gateways.client import Client
    from orchestrator.gateways.exec_json import OneTurn
    from orchestrator.protocol.ops import UserInput, UserTurn
    from orchestrator.settings import Settings
    from orchestrator.wiring.open_deployment import Opened
    from workers.companion import Companion

RESUME = "resume"
SCHEMA_BYTES = 1 << 20
UNSERVED_S = 3.0
"""The time for a worker to take the turn, until a person is told that there may be none."""
STOP_S = 2.0
"""The time that a turn gets to end when the process is told to."""
ORIGINATOR = "CODEX_INTERNAL_ORIGINATOR_OVERRIDE"


@record
class Order:
    """The wish of the command line."""

    prompt: str
    thread: str | None
    """The thread that goes on; None for a new one, empty for the newest of the folder."""
    images: tuple[Path, ...] = ()
    schema: Any = None
    originator: str | None = None


Images = Annotated[
    list[Path] | None, typer.Option("--image", "-i", metavar="FILE", help="Shown to the model.")
]
Folders = Annotated[list[Path] | None, typer.Option("--add-dir", metavar="DIR", help="May be written, too.")]


def exec_(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[resume THREAD_ID] [PROMPT]", help="Without a prompt, or with `-`: stdin."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--experimental-json", "--json", help="Events of exec-json on stdout.")
    ] = False,
    model: Annotated[str | None, typer.Option("--model", "-m", metavar="MODEL")] = None,
    sandbox: Annotated[
        str | None, typer.Option("--sandbox", "-s", metavar="MODE", help="As `sandbox_mode`.")
    ] = None,
    cd: Annotated[
        Path | None, typer.Option("--cd", "-C", metavar="DIR", help="Where to work, instead of here.")
    ] = None,
    add_dir: Folders = None,
    image: Images = None,
    output_schema: Annotated[
        Path | None, typer.Option("--output-schema", metavar="FILE", help="JSON Schema of the answer.")
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="With resume: the newest thread here.")] = False,
    skip_git_repo_check: Annotated[
        bool, typer.Option("--skip-git-repo-check", help="Work outside of a git repository, too.")
    ] = False,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Start no worker: others serve the session's pool.")
    ] = False,
    _thread_source: Annotated[str | None, typer.Option("--thread-source", hidden=True)] = None,
    _program: Annotated[str | None, typer.Option("--cyber-access-program", hidden=True)] = None,
) -> None:
    """Runs one turn, and writes what happens as lines of JSON.

    It is what Codex's TypeScript SDK starts: give the SDK this program as its
    `codexPathOverride`. The session stays, and `resume` goes on with it.
    Nobody is asked: what needs a person is refused (`exec.approvals`).

    \b
    echo "fix the failing test" | dendro exec --experimental-json
    echo "now the changelog" | dendro exec --json resume 0199a2b4
    dendro exec --json --config model=gpt-5-mini "what is here?"
    """
    if not json:
        raise Fault(
            "dendro exec writes events: give --experimental-json; for a person there is dendro run",
            ExitCode.USAGE,
        )
    thread, prompt = _read(words or (), last=last)
    invocation = _invocation(Invocation.of(ctx))
    flags = {"model": model, "sandbox_mode": sandbox, "cwd": str(cd) if cd else None}
    settings = _as_run(invocation.settings(flags, quiet=True), tuple(add_dir or ()))
    _check_folder(settings, skipped=skip_git_repo_check)
    order = Order(
        _prompt(prompt),
        thread,
        tuple(map(without_links, image or ())),
        None if output_schema is None else _schema(output_schema),
        _originator(settings),
    )
    _carry_out(invocation, settings, order, own_worker=not no_worker)


def _read(words: Sequence[str], *, last: bool) -> tuple[str | None, str | None]:
    """The thread and the prompt of the positional words; raises `Fault` for too many of them."""
    rest = list(words)
    thread: str | None = None
    if rest[:1] == [RESUME]:
        del rest[0]
        if last:
            thread = ""
        elif rest:
            thread = rest.pop(0)
        else:
            raise Fault("resume which thread? give its id, or --last", ExitCode.USAGE)
    elif last:
        raise Fault("--last says which thread to resume: write resume --last", ExitCode.USAGE)
    if len(rest) > 1:
        raise Fault(f"one prompt, in quotes: {rest[1]!r} is too much", ExitCode.USAGE)
    return thread, rest[0] if rest else None


def _invocation(given: Invocation) -> Invocation:
    """With the overrides in our words, and the key that the SDK hands over."""
    from orchestrator.settings import SettingsSources
    from orchestrator.settings.sources import translated
    from orchestrator.wiring.deployment import HANDED_KEY

    overrides = translated(given.overrides)
    if SettingsSources.of_process().environ.get(HANDED_KEY):
        overrides = (f'model_providers.openai.env_key="{HANDED_KEY}"', *overrides)
    return replace(given, overrides=overrides)


def _as_run(settings: Settings, add_dirs: tuple[Path, ...]) -> Settings:
    """The settings of a run that has nobody to ask, unless the fleet's queue is to be asked."""
    defaults = settings.session_defaults
    named = set(settings.named)
    update: dict[str, Any] = {}
    if add_dirs:
        roots = (*defaults.sandbox.writable_roots, *map(without_links, add_dirs))
        update["sandbox"] = defaults.sandbox.model_copy(update={"writable_roots": roots})
        named.add("sandbox_mode")
    if settings.exec.approvals == "refuse":
        update["approval_policy"] = "never"
        named.add("approval_policy")
    defaults = defaults.model_copy(update=update)
    return replace(settings, session_defaults=defaults, named=frozenset(named))


def _check_folder(settings: Settings, *, skipped: bool) -> None:
    from orchestrator.sandbox.git import git_fault
    from orchestrator.settings.sources import in_work_tree

    folder = settings.session_defaults.cwd
    if not folder.is_dir():
        raise Fault(f"no folder {folder}")
    if not skipped and not in_work_tree(folder, settings.host.environ):
        if fault := git_fault(folder):
            raise Fault(fault)
        raise Fault(
            f"{folder} is in no git repository, where changes could be seen and taken back; "
            "to work there all the same: --skip-git-repo-check"
        )


def _prompt(given: str | None) -> str:
    text = prompt_text("-" if given is None else given)
    if not text.strip():
        raise Fault("the prompt is empty: give one as an argument or on stdin", ExitCode.USAGE)
    return text


def _schema(file: Path) -> Any:
    import orjson

    from orchestrator.protocol.bounds import check_op_bounds
    from orchestrator.protocol.ops import UserInput
    from orchestrator.protocol.submission import MalformedSubmission

    with file.open("rb") as stream:
        content = stream.read(SCHEMA_BYTES + 1)
    try:
        schema = orjson.loads(content) if len(content) <= SCHEMA_BYTES else None
    except orjson.JSONDecodeError as error:
        raise Fault(f"{file} is no JSON Schema: {error}") from error
    if not isinstance(schema, dict):
        raise Fault(f"{file} is no JSON Schema: a JSON object of at most {SCHEMA_BYTES:,} bytes is one")
    try:
        check_op_bounds(UserInput(items=(), final_output_json_schema=schema))
    except MalformedSubmission as error:
        # Before a session is made for it.
        raise Fault(f"{file} is too much for a schema: {str(error).partition(': ')[2]}") from error
    return schema


def _originator(settings: Settings) -> str | None:
    """The name of the program that started us; None for one that cannot be a name."""
    name = settings.host.environ.get(ORIGINATOR, "")
    return name if 0 < len(name) <= 64 and name.isascii() and name.isprintable() else None


# ── the run ───────────────────────────────────────────────────────────────────────────────────────


def _carry_out(invocation: Invocation, settings: Settings, order: Order, *, own_worker: bool) -> None:
    """Ends the process: with an exit code, or by the signal that stopped the turn."""
    import os
    import signal

    import uvloop

    from orchestrator.cli.processes import companion

    stopped: list[int] = []
    with companion(invocation, wanted=own_worker) as worker:
        if worker is not None and order.thread is None:
            worker.start()
        try:
            code = uvloop.run(_run(settings, order, worker, stopped))
        except BrokenPipeError:
            # The program has gone. What runs goes on with whoever serves the pool.
            code = ExitCode.FAILED
        if worker is not None and (stopped or code is ExitCode.FAILED):
            worker.dismiss()
    for number in stopped:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    raise typer.Exit(code)


async def _run(settings: Settings, order: Order, worker: Companion | None, stopped: list[int]) -> ExitCode:
    from orchestrator.broker.follow import BEGINNING, EqCursor
    from orchestrator.cli.invocation import opened, print_on_stderr
    from orchestrator.gateways.app_server.live_threads import events_of_running_turn
    from orchestrator.gateways.exec_json import ExecWriter, OneTurn, Run
    from orchestrator.gateways.resume import open_requests
    from orchestrator.terminal.streams import write_json
    from orchestrator.wiring.new_sessions import resumed_turn
    from orchestrator.wiring.open_deployment import new_session

    async with opened(settings, insists=True) as found:
        client = found.client()
        if order.thread is None:
            session = await new_session(settings, client, order.originator, source="exec")
            op: UserInput | UserTurn = await _input(client, session, order)
            cursor, used = BEGINNING, None
        else:
            head = await _to_resume(found, order.thread)
            if worker is not None:
                _check_pool(settings, head)
                worker.start()
            said = await _input(client, head.session, order)
            op, used = await resumed_turn(found, settings, head, said)
            session, cursor = head.session, EqCursor.at(head)
        run = Run(client, session, write_json, print_on_stderr, settings.exec.approvals == "queue")
        turn = OneTurn(run, ExecWriter(used))
        if order.thread is not None:
            waiting = await open_requests(found, head)
            last = await client.head(session) or head
            turn.know(await events_of_running_turn(found, head), waiting, last.eq_n)
        await turn.open(_without_effect(settings))
        holding = turn.hold(op, cursor)
        if not run.asks_people:
            holding = turn.unless_stuck(holding)
        if worker is not None:
            holding = worker.outliving(holding, f"go on with: dendro exec --json resume {session}")
        async with telling_unserved(client, session):
            return await _until_stopped(turn, holding, worker, stopped)


@asynccontextmanager
async def telling_unserved(client: Client, session: SessionId) -> AsyncIterator[None]:
    """Says once on stderr, and in no line for the program, that no worker has taken the turn."""
    import asyncio

    from orchestrator.cli.invocation import print_on_stderr
    from orchestrator.views.sessions import unserved

    async def tell() -> None:
        await asyncio.sleep(UNSERVED_S)
        head = await client.head(session)
        if head is not None and (warning := unserved(head)):
            print_on_stderr(warning)

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


def _without_effect(settings: Settings) -> tuple[str, ...]:
    """The keys of the command line that nothing obeys; those of files are told on stderr."""
    from orchestrator.cli.invocation import print_on_stderr

    told = tuple(warning for warning in settings.warnings if warning.startswith("-c: "))
    for warning in settings.warnings:
        if warning not in told:
            print_on_stderr(f"warning: {warning}")
    return told


async def _input(client: Client, session: SessionId, order: Order) -> UserInput:
    from orchestrator.protocol.inputs import TextInput
    from orchestrator.protocol.ops import UserInput
    from orchestrator.terminal.origin import image_items

    images = await image_items(client, session, order.images)
    return UserInput(items=(TextInput(text=order.prompt), *images), final_output_json_schema=order.schema)


async def _to_resume(found: Opened, thread: str) -> SessionHead:
    """The thread that goes on; raises `Fault` if there is none."""
    from orchestrator.gateways.resume import to_resume
    from orchestrator.views import SetAside, ViewError
    from orchestrator.wiring.new_sessions import newest_in

    folder = str(without_links(found.settings.session_defaults.cwd))
    wanted = thread or await newest_in(found.broker, folder)
    if wanted is None:
        raise Fault(f"no thread was begun in {folder}: begin one without resume")
    try:
        return await to_resume(found, wanted)
    except SetAside:
        raise
    except ViewError as error:
        raise Fault(f"no rollout found for thread id {thread}: {error}") from error


def _check_pool(settings: Settings, head: SessionHead) -> None:
    """Raises `Fault` where the key of this process would not serve the thread."""
    import orjson

    from orchestrator.wiring.deployment import HANDED_KEY, worker_pools

    if not settings.host.environ.get(HANDED_KEY) or head.pool in worker_pools(settings):
        return
    pools = orjson.dumps([head.pool]).decode()
    raise Fault(
        f"thread {head.session} was begun under another key, or without one (pool {head.pool}), and the key "
        f"in {HANDED_KEY} pays for threads that were begun with it alone; go on under the other key, with "
        f"--no-worker where a worker serves that pool, or let this key pay for all of that pool: "
        f"-c 'worker.pools={pools}'"
    )


async def _until_stopped(
    turn: OneTurn, holding: Any, worker: Companion | None, stopped: list[int]
) -> ExitCode:
    """The exit code of the turn; after a signal, of a turn that was interrupted or left."""
    import asyncio
    import signal

    loop, told = asyncio.get_running_loop(), asyncio.Event()

    def stop(number: int) -> None:
        stopped[:] = [number]
        told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    running, waiting = asyncio.create_task(holding), asyncio.create_task(told.wait())
    try:
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not running.done() and not await _interrupted(turn) and worker is not None:
            # Its supervisor sees the end of the worker, and kills the command.
            worker.kill()
        if not running.done():
            return ExitCode.FAILED
        return ExitCode.DONE if running.result() else ExitCode.FAILED
    finally:
        for task in (running, waiting):
            task.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)


async def _interrupted(turn: OneTurn) -> bool:
    """Whether the turn ended when it was asked to."""
    import asyncio

    try:
        async with asyncio.timeout(STOP_S):
            await turn.interrupt()
    except TimeoutError:
        return False
    return True
