"""`dendro send` and `dendro interrupt`: a word to an agent that works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import AGENT_HELP, ID_HELP, Invocation, prompt_text
from orchestrator.core.counts import counted
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from orchestrator.gateways.submit import OpAnswer
    from orchestrator.views.event import Event
    from orchestrator.views.find import Addressed
    from orchestrator.wiring.open_deployment import Opened


def send(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help=ID_HELP)],
    agent: Annotated[int, typer.Argument(metavar="AGENT", min=0, help=AGENT_HELP)],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say; `-` reads it from stdin.")],
    interrupt: Annotated[
        bool, typer.Option("--interrupt", help="Stop what it does first, instead of waiting for its turn.")
    ] = False,
) -> None:
    """Writes to an agent, which reads it as an instruction when its turn is over.

    An agent that is done starts again, whether a slot is free or not.

    \b
    dendro send 0199a2b4 3 "look at the tests too"
    dendro send 0199a2b4 3 "stop, and write down what you have" --interrupt
    """
    import asyncio

    said = prompt_text(text)
    if not said.strip():
        raise Fault("there is nothing to say: the text is empty", ExitCode.USAGE)
    asyncio.run(_send(Invocation.of(ctx), (id, agent), said, interrupt=interrupt))


async def _send(invocation: Invocation, whom: tuple[str, int], text: str, *, interrupt: bool) -> None:
    from orchestrator.cli.invocation import opened
    from orchestrator.views.find import addressed

    async with opened(invocation.settings()) as found:
        target = await addressed(found, *whom)
        told = await say(found, target, text, interrupt=interrupt)
    typer.echo(_sent(target, told))


async def say(found: Opened, target: Addressed, text: str, *, interrupt: bool) -> OpAnswer:
    """Hands the text to the root, which writes to the agent; raises `Fault` if that is refused."""
    from orchestrator.gateways.submit import submit_op, under_its_id
    from orchestrator.protocol.ops import MessageAgent

    op = MessageAgent(agent_id=target.agent_id, text=text, interrupt=interrupt)
    return await submit_op(found.client(), target.root, op, under_its_id)


def _sent(target: Addressed, told: OpAnswer) -> str:
    from orchestrator.gateways.submit import unread
    from orchestrator.protocol.events import AgentInbox

    if told.answer is None:
        return unread(target.head)
    match told.answer.told:
        case AgentInbox(pending_messages=messages, pending_interrupts=interrupts):
            return f"{target.name} has it; {messages + interrupts} in its inbox"
        case _:
            return f"{target.name} begins with it now"


def interrupt(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help=ID_HELP)],
    agent: Annotated[int | None, typer.Argument(metavar="AGENT", min=0, help=AGENT_HELP)] = None,
    tree: Annotated[bool, typer.Option("--tree", help="And everything below it.")] = False,
    message: Annotated[
        str | None, typer.Option("--message", metavar="TEXT", help="What to do instead.")
    ] = None,
) -> None:
    """Stops what an agent does: its commands are killed, its model request ends.

    Nobody is cancelled: an interrupted agent waits for the next word. With a
    message it goes on with that.

    \b
    dendro interrupt 0199a2b4
    dendro interrupt 0199a2b4 3 --message "the unit tests only"
    dendro interrupt 0199a2b4 --tree
    """
    import asyncio

    if message is not None and (tree or not message.strip()):
        raise Fault("--message takes a text for one agent, and does not go with --tree", ExitCode.USAGE)
    asyncio.run(_interrupt(Invocation.of(ctx), (id, agent), message, tree=tree))


async def _interrupt(
    invocation: Invocation, whom: tuple[str, int | None], message: str | None, *, tree: bool
) -> None:
    from orchestrator.cli.invocation import opened
    from orchestrator.views.find import addressed

    async with opened(invocation.settings()) as found:
        target = await addressed(found, *whom, certain=True)
        if message is not None:
            typer.echo(_sent(target, await say(found, target, message, interrupt=True)))
            return
        typer.echo(await _stop(found, target, tree=tree))


async def _stop(found: Opened, target: Addressed, *, tree: bool) -> str:
    from orchestrator.gateways.submit import interrupt_tree, submit_op, unread
    from orchestrator.protocol.events import TurnAborted
    from orchestrator.protocol.ops import Interrupt

    head = target.head
    # Who keeps a process holds an idle session.
    if head.at_rest and not tree:
        return nothing_to_stop(target)
    if tree:
        below = await interrupt_tree(found, found.client(), target)
        if below is None:
            return unread(head)
        return f"{target.name} and {counted(below, 'agent')} below: nothing of them runs"
    told = await submit_op(found.client(), target.session, Interrupt(), _ends)
    if told.answer is None:
        return unread(head)
    ended = "was interrupted" if told.answer.kind is TurnAborted else "had just come to its end"
    return f"{target.name} {ended}"


def nothing_to_stop(target: Addressed) -> str:
    """The answer to an interrupt of an agent that does nothing."""
    from orchestrator.views.sessions import processes_of

    head = target.head
    living = processes_of(head) if head.holder else 0
    if not living:
        return f"{target.name} does nothing: there is nothing to interrupt"
    agent = f" {head.agent_id}" if head.agent_id else ""
    return (
        f"{target.name} is idle, and {counted(living, 'process')} of it still running: an interrupt leaves "
        f"those alone; `dendro cancel {head.tree}{agent}` ends them, and the agent with them"
    )


def _ends(event: Event, id: str) -> bool:
    from orchestrator.protocol.events import TURN_ENDS

    return event.kind in TURN_ENDS
