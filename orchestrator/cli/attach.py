"""`dendro attach`: a person joins an agent that works."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.invocation import AGENT_HELP, ID_HELP, Invocation


def attach(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help=ID_HELP)],
    agent: Annotated[int | None, typer.Argument(metavar="AGENT", min=0, help=AGENT_HELP)] = None,
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", metavar="N", min=1, help="Events of the past that are shown first."),
    ] = 20,
) -> None:
    """Follows an agent live, and takes what you type.

    A line is a message to it; /stop TEXT stops what it does first; /stop only
    stops it; a message that begins with a slash is written with two. At the
    root !COMMAND runs a command of yours, while nothing else runs there.
    Requests for approval are asked here: at the root those of the whole tree.
    Ctrl-C (or the end of input) leaves; the agent works on.

    \b
    dendro attach 0199a2b4
    dendro attach 0199a2b4 3
    """
    import uvloop

    uvloop.run(_attach(Invocation.of(ctx), (id, agent), limit))


async def _attach(invocation: Invocation, whom: tuple[str, int | None], limit: int) -> None:
    from orchestrator.cli.invocation import opened
    from orchestrator.terminal.attachment import Attachment
    from orchestrator.terminal.live import LiveView
    from orchestrator.terminal.notifications import Calling, notifications
    from orchestrator.views.agent_past import page_before
    from orchestrator.views.event_text import visible
    from orchestrator.views.find import addressed, labels

    async with opened(invocation.settings(), insists=True) as found:
        target = await addressed(found, *whom)
        view = LiveView(whole=True)
        view.know(await labels(found, target.tree))
        view.note(f"{target.name} of the tree {target.tree}; Ctrl-C leaves")
        for event in (await page_before(found, target.head, limit, visible)).events:
            view.event(event)
        calling = notifications(found.settings, target.session, view.note, target.head)
        await Attachment(found, target, Calling(view, calling)).run()
        await calling.end()
