"""The processes of a deployment: `dendro worker`, `dendro upkeep`, `dendro model-stub`.

And the worker that `run`, `proto` and the doors bring along: a fork of them that ends when they do.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation
from orchestrator.terminal.faults import ExitCode, Fault, report

if TYPE_CHECKING:
    from orchestrator.stub import StubConfig
    from workers.companion import Companion


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


def companion(
    invocation: Invocation, wanted: bool = True, *, imported: bool = True
) -> AbstractContextManager[Companion | None]:
    """A worker under the same settings, to be started beside this process; or none."""
    from workers import companion as companions

    return companions.companion(
        lambda: invocation.settings(quiet=True), report, wanted=wanted, imported=imported
    )


# ── the model stub ────────────────────────────────────────────────────────────────────────────────


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
