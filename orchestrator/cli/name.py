"""`dendro name`: a session's name for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import ID_HELP, Invocation

if TYPE_CHECKING:
    from orchestrator.views.event import Event


def name(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help=ID_HELP)],
    text: Annotated[str, typer.Argument(metavar="NAME", help="At most 200 characters, on one line.")],
) -> None:
    """Names a session; lists show the name instead of its first words.

    The name is an entry of the session's log, with who gave it. Where no
    worker serves the session, this command reads the name in by itself; it
    begins nothing else.

    \b
    dendro name 7c1e95aa "Parser for the new format"
    """
    import asyncio

    asyncio.run(_name(Invocation.of(ctx), id, text))


async def _name(invocation: Invocation, id: str, text: str) -> None:
    from orchestrator.cli.invocation import opened
    from orchestrator.cli.text import one_line
    from orchestrator.gateways.submit import unread
    from orchestrator.protocol.ops import SetThreadName
    from orchestrator.views.short_ids import short_id
    from orchestrator.wiring.parked import tell_parked

    async with opened(invocation.settings()) as found:
        head = await found.find(id)
        told = await tell_parked(found, head, SetThreadName(name=text), _named)
    if told.answer is None:
        typer.echo(unread(head.pool))
    else:
        typer.echo(f"{short_id(head.session)} is named {one_line(told.answer.msg['thread_name'])}")


def _named(event: Event, id: str) -> bool:
    return event.type == "thread_name_updated" and event.id == id
