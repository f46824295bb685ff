"""`dendro logs`: what an agent did, read from its log, and what it does from here on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import AGENT_HELP, ID_HELP, Invocation
from orchestrator.terminal.faults import ExitCode, Fault, deleted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.views.agent_past import Place
    from orchestrator.views.event import Event


def logs(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help=ID_HELP)],
    agent: Annotated[int | None, typer.Argument(metavar="AGENT", min=0, help=AGENT_HELP)] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=0, help="The last so many events; 0 is all.")
    ] = 200,
    before: Annotated[
        str | None, typer.Option("--before", metavar="PLACE", help="Those before a page that was shown.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="And what comes, until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Events as NDJSON.")] = False,
) -> None:
    """Shows what an agent did, without disturbing it: commands, text, patches, its children,
    the messages that it sent and got.

    A page that is not the first names the place where it begins; with --before
    the page that comes before it is shown. However long the log is, a page costs
    what it shows.

    \b
    dendro logs 0199a2b4 3
    dendro logs 0199a2b4 3 --limit 20 --follow
    dendro logs 0199a2b4 3 --limit 20 --before 1234.567
    dendro logs 0199a2b4 --json | jq 'select(.msg.type == "error")'
    """
    import asyncio

    place = _place(before)
    if place is not None and follow:
        raise Fault("either --before a place, or --follow what comes", ExitCode.USAGE)
    asyncio.run(_logs(Invocation.of(ctx), (id, agent), (limit, place), (follow, json)))


async def _logs(
    invocation: Invocation,
    whom: tuple[str, int | None],
    which: tuple[int, Place | None],
    how: tuple[bool, bool],
) -> None:
    from orchestrator.broker.errors import UnknownSession
    from orchestrator.broker.follow import EqCursor
    from orchestrator.cli.invocation import opened
    from orchestrator.requests import TO_PEOPLE, request_of
    from orchestrator.terminal.live import JsonView, LiveView
    from orchestrator.terminal.streams import ctrl_c
    from orchestrator.views.agent_past import everything, page_before, with_messages
    from orchestrator.views.event_text import GIVEN, visible
    from orchestrator.views.find import addressed, labels

    follow, json = how
    view = JsonView() if json else LiveView(streaming=False, whole=True)
    async with opened(invocation.settings()) as found:
        target = await addressed(found, *whom)
        if isinstance(view, LiveView):
            view.know(await labels(found, target.tree))
        shows = everything if json else lambda message: visible(message) or message["type"] == GIVEN
        page = await page_before(found, target.head, which[0], shows, which[1])

        def show(event: Event) -> None:
            view.event(event)
            if event.type in TO_PEOPLE:
                view.ask(request_of(event.msg))

        if not follow:
            for event in page.events:
                show(event)
            if page.before is not None:
                view.note(f"there is more: --before {page.before}")
            return
        with ctrl_c() as left:
            for event in page.events:
                show(event)
            heard = found.client().follow(target.session, EqCursor.at(target.head))
            events = with_messages(found, target.head, heard)
            try:
                while (event := await left.unless(_next(events))) is not None:
                    show(event)
            except UnknownSession as error:
                raise Fault(deleted(target.session)) from error


def _place(text: str | None) -> Place | None:
    from orchestrator.views.agent_past import BadPlace, Place

    try:
        return None if text is None else Place.of(text)
    except BadPlace:
        raise Fault(
            f"--before {text}: that is no place in a log; the end of a page names one", ExitCode.USAGE
        ) from None


async def _next(events: AsyncIterator[Event]) -> Event:
    return await anext(events)
