"""`dendro demo` as a command; what happens in it is in `orchestrator.demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.invocation import DENDRO, Invocation


def demo(
    ctx: typer.Context,
    repository: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", exists=True, file_okay=False, help="A repository to survey."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the demo's folder.")] = False,
    window: Annotated[
        bool, typer.Option("--window", help="Show it in the window, too, which stays until Ctrl-C.")
    ] = False,
) -> None:
    """Shows a tree of agents that outlives a worker.

    Needs no model key and no server, and touches nothing of yours.

    \b
    dendro demo
    dendro demo --window
    dendro demo ~/src/project --keep
    """
    from orchestrator.terminal.demo_view import demo as play

    raise typer.Exit(play(Invocation.of(ctx).settings(), DENDRO, repository, keep=keep, window=window))
