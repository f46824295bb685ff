"""`dendro revoke`: taking a session away from whoever holds it."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.invocation import Invocation


def revoke(
    ctx: typer.Context,
    session: Annotated[str, typer.Argument(metavar="ID", help="A session id, or a part of one.")],
) -> None:
    """Takes a session away from its worker, or readmits one set aside.

    The worker that held it can write no more; another may claim it as soon as what
    that one had started is stopped, at the latest when its lease is over (6 s).

    \b
    dendro revoke 0199a2b4
    """
    import asyncio

    asyncio.run(_revoke(Invocation.of(ctx), session))


async def _revoke(invocation: Invocation, text: str) -> None:
    from orchestrator.cli.invocation import opened

    async with opened(invocation.settings()) as found:
        head = await found.find_one(text)
        epoch = await found.broker.revoke(head.session)
    held = f"was held by {head.holder}" if head.holder else "was held by nobody"
    readmitted = ", was set aside and is readmitted" if head.quarantined else ""
    typer.echo(f"{head.session} {held}{readmitted}; it goes on under epoch {epoch}")
