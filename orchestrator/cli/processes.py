"""`dendro worker` and `dendro upkeep`: the process types that serve a deployment."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.invocation import Invocation


def worker(
    ctx: typer.Context,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", metavar="N", help="Sessions to run at once.")
    ] = None,
    pool: Annotated[
        list[str] | None,
        typer.Option("--pool", metavar="POOL", help="A pool to serve beside this host's; may be repeated."),
    ] = None,
    parent_pipe: Annotated[int | None, typer.Option("--parent-pipe", hidden=True)] = None,
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
    # The process that started this one as its companion has said the warnings already.
    settings = Invocation.of(ctx).settings(flags, quiet=parent_pipe is not None)
    raise typer.Exit(run_turns(settings, parent_pipe))


def upkeep(ctx: typer.Context) -> None:
    """Keeps a deployment tidy: archiving, retention, late timers.

    One per deployment is enough; several do no harm, and none for an hour
    loses nothing.

    \b
    dendro upkeep
    """
    from workers.upkeep import run_upkeep

    raise typer.Exit(run_upkeep(Invocation.of(ctx).settings()))
