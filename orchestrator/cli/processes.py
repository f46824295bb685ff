"""The processes of a deployment: `dendro worker`, `dendro upkeep`, `dendro model-stub`.

And the worker that `run` and `proto` bring along: a fork of them that ends when they do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from orchestrator.cli.faults import ExitCode, Fault, worker_ended
from orchestrator.cli.forked import Forked, forked
from orchestrator.cli.invocation import Invocation

if TYPE_CHECKING:
    from orchestrator.stub import StubConfig


def worker(
    ctx: typer.Context,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", metavar="N", help="Sessions to run at once.")
    ] = None,
    pool: Annotated[
        list[str] | None,
        typer.Option("--pool", metavar="POOL", help="A pool to serve beside this host's; may be repeated."),
    ] = None,
) -> None:
    """Claims sessions and runs their turns, until it is told to drain.

    SIGTERM or SIGINT drains it: sessions are given back at the next step, a
    running command gets its grace. A second one ends it at once.

    \b
    dendro worker
    dendro worker --concurrency 64 --pool default --pool gpu
    """
    from workers.turns import run_turns

    flags = {"worker.concurrency": concurrency, "worker.pools": pool or None}
    raise typer.Exit(run_turns(Invocation.of(ctx).settings(flags)))


def upkeep(ctx: typer.Context) -> None:
    """Keeps a deployment tidy: archiving, retention, late timers.

    One per deployment is enough; several do no harm, and none for an hour
    loses nothing.

    \b
    dendro upkeep
    """
    from workers.upkeep import run_upkeep

    raise typer.Exit(run_upkeep(Invocation.of(ctx).settings()))


# ── the model stub ────────────────────────────────────────────────────────────────────────────


def model_stub(
    scenario: Annotated[
        Path | None, typer.Option("--scenario", metavar="FILE", help="JSON file of steps to answer with.")
    ] = None,
    behaviour: Annotated[
        str | None,
        typer.Option("--behaviour", metavar="NAME", help="echo (default), survey, tree, instant or shell:N."),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="A loopback address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0 takes a free one.", min=0, max=65535)] = 0,
    delta_delay_ms: Annotated[float, typer.Option(min=0, help="Pause before every delta.")] = 0,
    think_ms: Annotated[float, typer.Option(min=0, help="Pause before every answer.")] = 0,
) -> None:
    """Serves the Responses API and chat completions without a model, for tests and demos.

    Answers come from a scenario file or a built-in behaviour, and name their
    model `stub:…`. The first line that it prints is the base URL. A scenario is
    a JSON list of steps, or an object with steps for some agents of a tree, too.

    \b
    dendro model-stub --behaviour survey --delta-delay-ms 15
    dendro model-stub --scenario steps.json --port 6390
    OPENAI_BASE_URL=http://127.0.0.1:6390/v1 dendro run "hello"
    """
    import asyncio
    from contextlib import suppress

    from orchestrator.stub import Pace, Scenario, StubConfig
    from orchestrator.stub import behaviour as built_in

    if scenario is not None and behaviour is not None:
        raise Fault("give a --scenario or a --behaviour, not both", ExitCode.USAGE)
    script = Scenario.read(scenario) if scenario is not None else built_in(behaviour or "echo")
    pace = Pace(think_ms=think_ms, delta_delay_ms=delta_delay_ms)
    with suppress(asyncio.CancelledError):
        asyncio.run(_serve(StubConfig(script, host, port, pace, _warn)))


def _warn(text: str) -> None:
    print(f"dendro model-stub: {text}", file=sys.stderr, flush=True)


async def _serve(config: StubConfig) -> None:
    """Until SIGINT or SIGTERM."""
    import asyncio
    import signal

    from orchestrator.stub import serve

    loop, serving = asyncio.get_running_loop(), asyncio.current_task()
    assert serving is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, serving.cancel)
    await serve(config, lambda stub: print(stub.base_url, flush=True))


T = TypeVar("T")

WORKER_NAME = "dendro-worker"
LEAVE_S = 15.0
"""A worker that is told to leave gives running commands 10 s; then it is no use to wait for it."""


@dataclass(slots=True)
class Companion:
    """A child worker. `dismiss` tells it to leave; leaving the context waits until it has."""

    _process: Forked
    _pipe: int
    _started: bool = False
    _abandoned: bool = False

    @classmethod
    def forked(cls, invocation: Invocation, *, imported: bool = True) -> Companion:
        """A worker that waits to be started; this process has no thread yet and no loop.

        What it needs is imported here, unless this process has to answer before that is done.
        """
        if imported:
            import workers.turns  # noqa: F401

        theirs, ours = os.pipe()

        def serve() -> int:
            from workers.turns import run_turns

            # `ps` shows it beside the command that both are forks of.
            Path("/proc/self/comm").write_text(WORKER_NAME)
            return run_turns(invocation.settings(quiet=True), theirs)

        try:
            return cls(forked(serve, theirs), ours)
        finally:
            os.close(theirs)

    def start(self) -> None:
        """Starts the worker, once."""
        if not self._started:
            self._started = True
            # It may have been killed: whoever waits for its end learns that.
            with suppress(BrokenPipeError):
                os.write(self._pipe, b"\n")

    def dismiss(self) -> None:
        """Drains the worker without waiting for its end."""
        self._abandoned = True
        self._close()

    def kill(self) -> None:
        """Ends the worker at once, and with it what it runs."""
        self._process.kill()

    def _close(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    async def ended(self) -> int:
        """Returns the worker's exit code when it has ended."""
        import asyncio

        loop, done = asyncio.get_running_loop(), asyncio.Event()
        watch = os.pidfd_open(self._process.pid)
        loop.add_reader(watch, done.set)
        try:
            await done.wait()
        finally:
            loop.remove_reader(watch)
            os.close(watch)
        return self._process.wait()

    async def outliving(self, work: Coroutine[Any, Any, T], how_to_go_on: str) -> T:
        """The result of `work`; raises `Fault` if the worker ends first: no other may serve the session."""
        import asyncio

        working, dying = asyncio.create_task(work), asyncio.create_task(self.ended())
        try:
            await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise worker_ended(dying.result(), how_to_go_on)
            return working.result()
        finally:
            for task in (working, dying):
                task.cancel()
            await asyncio.gather(working, dying, return_exceptions=True)

    def leave(self) -> None:
        """Closes the pipe and waits for the end, unless it was abandoned."""
        self._close()
        if self._abandoned:
            return
        try:
            self._process.wait(LEAVE_S)
        except TimeoutError:
            self._process.kill()
            self._process.wait()


@contextmanager
def companion(
    invocation: Invocation, wanted: bool = True, *, imported: bool = True
) -> Iterator[Companion | None]:
    """A worker under the same settings, to be started beside this process; or none."""
    worker = Companion.forked(invocation, imported=imported) if wanted else None
    try:
        yield worker
    finally:
        if worker is not None:
            worker.leave()
