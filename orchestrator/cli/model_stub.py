"""`dendro model-stub`: the Responses API without a model, on loopback."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.faults import ExitCode, Fault

if TYPE_CHECKING:
    from orchestrator.stub import StubConfig


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
    """Serves the Responses API without a model, for tests and demos.

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
