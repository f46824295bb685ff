"""`dendro cancel`, the end of an agent or a tree with its proof; and `dendro revoke`, the end of a claim."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.invocation import AGENT_HELP, ID_HELP, Invocation
from orchestrator.terminal.faults import ExitCode, Fault


def cancel(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help=ID_HELP)],
    agent: Annotated[int | None, typer.Argument(metavar="AGENT", min=0, help=AGENT_HELP)] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why; the agent's parent is told.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", min=0, help="Seconds to wait for the proof.")
    ] = 60.0,
    force: Annotated[
        bool,
        typer.Option("--force", help="Take claims from workers that are alive and do not act."),
    ] = False,
    force_after: Annotated[
        float, typer.Option("--force-after", metavar="S", min=0, help="How long they may take before that.")
    ] = 10.0,
) -> None:
    """Cancels an agent and everything below it, for good; the root, and its tree.

    Waits until it is over. proved: every process was seen to be dead. presumed:
    its worker was lost, and the supervisor there has killed by its own clock. Where no
    worker serves the agents any more, this command ends them itself. A root is
    closed: its conversation can be resumed, its agents cannot.

    \b
    dendro cancel 0199a2b4 3 --reason "wrong track"
    dendro cancel 0199a2b4
    """
    import asyncio

    patience = (timeout, force_after if force else None)
    code = asyncio.run(_cancel(Invocation.of(ctx), (id, agent), reason, patience))
    raise typer.Exit(code)


async def _cancel(
    invocation: Invocation,
    whom: tuple[str, int | None],
    reason: str | None,
    how_long: tuple[float, float | None],
) -> ExitCode:
    from orchestrator.cli.invocation import opened
    from orchestrator.views.find import addressed
    from orchestrator.wiring.cancelling import Patience, end_agents, published_ends

    patience = Patience(*how_long)
    async with opened(invocation.settings()) as found:
        target = await addressed(found, *whom, certain=True)
        ended = await end_agents(found, target, reason, patience, typer.echo)
        if target.agent_id and not ended.agents:
            typer.echo(f"{target.name} and all below it have ended already: there is nothing to cancel")
            # Whoever gave up waiting for a cancel asks again, and wants to know how it went.
            for line in await published_ends(found, target, [target.agent_id], 0):
                typer.echo(line)
            return ExitCode.DONE
        for line in await published_ends(found, target, ended.agents, ended.after):
            typer.echo(line)
    if ended.left:
        left = ", ".join(ended.left)
        raise Fault(f"not over yet after {patience.most_s:g} s: {left}; `dendro tree` shows what runs")
    return ExitCode.DONE


def revoke(
    ctx: typer.Context,
    session: Annotated[str, typer.Argument(metavar="ID", help="A session id, or a part of one.")],
    abandon_unsaved: Annotated[
        bool,
        typer.Option(
            "--abandon-unsaved",
            help="Give up changes of its portable folder that are on one machine alone.",
        ),
    ] = False,
) -> None:
    """Takes a session away from its worker, or readmits a quarantined one.

    The worker that held it can write no more; another may claim it as soon as what
    that one had started is stopped, at the latest when its lease is over (6 s).
    With --abandon-unsaved any machine may: its folder goes on from what the store
    has, and its log says who gave the rest up, and of which calls that was.

    \b
    dendro revoke 0199a2b4
    dendro revoke 0199a2b4 --abandon-unsaved
    """
    import asyncio

    invocation = Invocation.of(ctx)
    asyncio.run(_abandon(invocation, session) if abandon_unsaved else _revoke(invocation, session))


async def _abandon(invocation: Invocation, text: str) -> None:
    from orchestrator.cli.invocation import opened
    from orchestrator.gateways.principals import machine_user

    async with opened(invocation.settings()) as found:
        head = await found.find_one(text)
        state = await found.broker.trees.abandon_unsaved(head.session, machine_user().name)
    if state.state == "saved":
        raise Fault(
            f"{head.session} has no unsaved changes: nothing was given up, and nothing taken from its worker"
        )
    machine = head.unsaved_on or "its machine"
    typer.echo(
        f"{head.session}: the changes that only machine {machine} has are given up; the session goes on from "
        f"what is stored, under epoch {state.epoch}"
    )


async def _revoke(invocation: Invocation, text: str) -> None:
    from orchestrator.cli.invocation import opened

    async with opened(invocation.settings()) as found:
        head = await found.find_one(text)
        epoch = await found.broker.trees.revoke(head.session)
    held = f"was held by {head.holder}" if head.holder else "was held by no worker"
    readmitted = ", was quarantined and is readmitted" if head.quarantined else ""
    typer.echo(f"{head.session} {held}{readmitted}; it goes on under epoch {epoch}")
