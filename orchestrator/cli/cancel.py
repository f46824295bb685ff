"""`dendro cancel`: the end of an agent, or of a tree, and the proof that nothing of it is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.faults import ExitCode, Fault
from orchestrator.cli.invocation import AGENT_HELP, ID_HELP, Invocation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.core.registry import Agent
    from orchestrator.runtime.worker import Worker
    from orchestrator.views.agents import Addressed
    from orchestrator.views.event import Event
    from orchestrator.wiring.opening import Opened

LOOK_S = 0.1
FORCE_AFTER_S = 10.0
"""A worker that is alive stops what runs within this time; one that is not is taken its claim."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a person waits, in seconds, and when they take claims by force; None: never."""

    most_s: float
    force_s: float | None


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
    ] = FORCE_AFTER_S,
) -> None:
    """Cancels an agent and everything below it, for good; the root, and its tree.

    Waits until it is over. proved: every process was seen to be dead. presumed:
    its worker was lost, and the keeper there has killed by its own clock. Where no
    worker serves the agents any more, this command ends them itself. A root is
    closed: its conversation can be resumed, its agents cannot.

    \b
    dendro cancel 0199a2b4 3 --reason "wrong track"
    dendro cancel 0199a2b4
    """
    import asyncio

    patience = Patience(timeout, force_after if force else None)
    code = asyncio.run(_cancel(Invocation.of(ctx), (id, agent), reason, patience))
    raise typer.Exit(code)


async def _cancel(
    invocation: Invocation,
    whom: tuple[str, int | None],
    reason: str | None,
    patience: Patience,
) -> ExitCode:
    from orchestrator.cli.invocation import opened
    from orchestrator.views.agents import addressed

    async with opened(invocation.settings()) as found:
        target = await addressed(found, *whom, certain=True)
        ending = await _ending(found, target)
        seq = (await found.broker.registry(target.tree)).tree_seq
        if target.agent_id and not ending:
            typer.echo(f"{target.name} and all below it have ended already: there is nothing to cancel")
            # Whoever gave up waiting for a cancel asks again, and wants to know how it went.
            for line in await _report(found, target, [target.agent_id], 0):
                typer.echo(line)
            return ExitCode.DONE
        await _hand_in(found, target, reason, patience.most_s)
        left = await _wait(found, target, ending, patience)
        for line in await _report(found, target, ending, seq):
            typer.echo(line)
    if left:
        raise Fault(
            f"not over yet after {patience.most_s:g} s: {', '.join(left)}; `dendro tree` shows what runs"
        )
    return ExitCode.DONE


async def end_tree(found: Opened, root: Addressed) -> list[str]:
    """Closes a root, and its tree before it; answers who has not ended in time."""
    ending = await _ending(found, root)
    patience = Patience(60.0, FORCE_AFTER_S)
    await _hand_in(found, root, None, patience.most_s)
    return await _wait(found, root, ending, patience)


async def _ending(found: Opened, target: Addressed) -> list[int]:
    """The agents that are to end: those at work, from the target down."""
    return [
        number
        for number, agent in (await _agents(found, target)).items()
        if agent.at_work and (number == target.agent_id or agent.below(target.agent_id))
    ]


async def _agents(found: Opened, target: Addressed) -> Mapping[int, Agent]:
    from orchestrator.core.registry import projected

    return projected(await found.broker.agents(target.tree)).agents


async def _hand_in(found: Opened, target: Addressed, reason: str | None, timeout_s: float) -> None:
    from orchestrator.gateways.submit import PATIENCE_S, tell
    from orchestrator.protocol.ops import CancelAgent, Op, Shutdown

    def heard(event: Event, id: str) -> bool:
        """The mark that the root sets, or the root's own end."""
        marked = event.type == "subagent_lifecycle" and event.msg.get("agent_id") == target.agent_id
        return event.type == "shutdown_complete" or (marked and event.msg["event"] == "updated")

    op: Op = CancelAgent(agent_id=target.agent_id, reason=reason) if target.agent_id else Shutdown()
    await tell(found.client(), target.root, op, heard, min(timeout_s, PATIENCE_S))


async def _wait(found: Opened, target: Addressed, ending: Sequence[int], patience: Patience) -> list[str]:
    """Waits for the ends; answers who has not ended in time."""
    import asyncio
    import time
    from contextlib import AsyncExitStack

    from orchestrator.runtime.reaping import GRACE_MS, forsaken
    from orchestrator.wiring import redis_url
    from orchestrator.wiring.embedding import reaping

    began, forced = time.monotonic(), False
    worker: Worker | None = None
    async with AsyncExitStack() as stack:
        while left := await _left(found, target, ending):
            waited = time.monotonic() - began
            if waited > patience.most_s:
                break
            if patience.force_s is not None and not forced and waited > patience.force_s:
                forced = True
                await _take_claims(found, target, ending)
            if waited * 1000 > GRACE_MS and (lying := (await forsaken(found.broker, target.tree)).lying):
                if worker is None:
                    url = stack.enter_context(redis_url(found.settings))
                    worker = await stack.enter_async_context(reaping(found.settings, url))
                worker.adopt(lying)
            await asyncio.sleep(LOOK_S)
    return left


async def _left(found: Opened, target: Addressed, ending: Sequence[int]) -> list[str]:
    known = await _agents(found, target)
    left = [f"agent {number}" for number in ending if number in known and known[number].active]
    if not target.agent_id:
        head = await found.broker.head(target.root)
        left += ["the root"] if head is not None and head.status != "closed" else []
    return left


async def _take_claims(found: Opened, target: Addressed, ending: Sequence[int]) -> None:
    """From whoever renews its lease and does not act; the next worker finds the mark and ends the agent."""
    from orchestrator.core.ids import SessionId

    known = await _agents(found, target)
    sessions = [SessionId(known[number].session) for number in ending if number in known]
    sessions += [] if target.agent_id else [target.root]
    for standing in await found.broker.revoke_tree(target.tree, sessions):
        if standing.state == "revoked":
            typer.echo(f"taken from worker {standing.worker}: {standing.session}")


async def _report(found: Opened, target: Addressed, ending: Sequence[int], after: int) -> list[str]:
    """How each agent ended, by the events of the tree log."""
    from orchestrator.rollouts.tree_log import tree_log

    proofs: dict[int, str] = {}
    for fact in await tree_log(found.broker, target.tree, after):
        if fact.message.get("status") == "canceled":
            proofs[fact.message["agent_id"]] = str(fact.message.get("cancel", "proved"))
    known = await _agents(found, target)
    lines = []
    for number in ending:
        if number in proofs:
            lines.append(f"agent {number} is cancelled: {proofs[number]}")
        elif number in known and not known[number].active:
            lines.append(f"agent {number} had come to its end before: {known[number].status}")
    if not target.agent_id:
        head = await found.broker.head(target.root)
        if head is not None and head.status == "closed":
            lines.append(f"the root is closed; resume it with: dendro run --resume {target.root}")
    return lines
