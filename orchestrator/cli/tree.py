"""`dendro tree`: who is in a tree, what each does or waits for, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import ID_HELP, Invocation
from orchestrator.terminal.faults import Fault, deleted

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.views.tree import TreePicture, TreeReader

POLL_S = 1.0
"""A change that the tree log does not tell of (a line said) is seen after this long."""
PLAIN_WIDTH = 400


def tree(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help=ID_HELP)],
    once: Annotated[bool, typer.Option("--once", help="Draw it once and leave.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The registry as JSON, once.")] = False,
) -> None:
    """Draws a tree of agents, live until Ctrl-C.

    Each agent with its number, what it does or waits for and since when, mail
    that it has not read (✉ messages, ⚡ interrupts), tokens, cost, and the last
    thing it said. due: no worker has taken it yet; lost: its worker is gone.
    Without a terminal it is drawn once.

    \b
    dendro tree 0199a2b4
    dendro tree 0199a2b4 --once
    dendro tree 0199a2b4 --json | jq '.agents[] | select(.waits_for)'
    """
    import asyncio

    asyncio.run(_show(Invocation.of(ctx), id, once=once, json=json))


async def _show(invocation: Invocation, text: str, *, once: bool, json: bool) -> None:
    from rich.console import Console

    from orchestrator.cli.invocation import opened
    from orchestrator.views.tree import TreeReader

    console = Console(highlight=False)
    async with opened(invocation.settings()) as found:
        reader = TreeReader(found.broker, await found.find_tree(text))
        picture = await reader.picture()
        if json:
            import orjson

            from orchestrator.terminal.text import json_for_stdout
            from orchestrator.terminal.tree_view import as_value

            typer.echo(json_for_stdout(orjson.dumps(as_value(picture), option=orjson.OPT_INDENT_2)))
        elif once or not console.is_terminal:
            show(picture, console if console.is_terminal else Console(width=PLAIN_WIDTH, highlight=False))
        else:
            await _watch(reader, picture, console)


def show(picture: TreePicture, console: Console) -> None:
    """Draws the picture once."""
    from orchestrator.terminal.tree_view import drawing, headline

    console.print(headline(picture))
    console.print(drawing(picture))


async def _watch(reader: TreeReader, picture: TreePicture, console: Console) -> None:
    """Draws again whenever the tree log grows, and every second for what it does not tell."""
    import asyncio

    from rich.console import Group
    from rich.live import Live

    from orchestrator.broker.errors import Unavailable, UnknownSession
    from orchestrator.terminal.streams import ctrl_c
    from orchestrator.terminal.tree_view import drawing, headline

    live = Live(console=console, auto_refresh=False, vertical_overflow="ellipsis")
    with ctrl_c() as left, live:
        while not left.is_set():
            live.update(Group(headline(picture), drawing(picture)), refresh=True)
            try:
                await left.unless(
                    reader.broker.logs.wait_tree(reader.tree, picture.registry.tree_seq, POLL_S)
                )
                picture = await reader.picture()
            except UnknownSession as error:
                raise Fault(deleted(reader.tree)) from error
            except Unavailable as error:
                live.console.print(f"{error}; looking again", style="dim", markup=False)
                await left.unless(asyncio.sleep(POLL_S))
