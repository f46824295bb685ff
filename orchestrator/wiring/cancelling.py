"""The end of an agent, or of a tree: submitted, waited for, and proved by the tree's log.

Where no worker serves the agents any more, a worker of this process ends them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.registry import RegistryView, projected
from orchestrator.gateways.submit import OpRefused, patience, submit_op
from orchestrator.protocol.agents import LifecycleChange
from orchestrator.protocol.events import ShutdownComplete, SubagentLifecycle
from orchestrator.protocol.ops import CancelAgent, Op, Shutdown
from orchestrator.rollouts.tree_log import tree_log
from orchestrator.runtime.unserved_cancels import GRACE_MS, forsaken
from orchestrator.runtime.worker import Worker
from orchestrator.views.event import Event
from orchestrator.views.find import Addressed
from orchestrator.wiring.deployment import redis_url
from orchestrator.wiring.embedded_worker import reaping
from orchestrator.wiring.open_deployment import Opened

POLL_S = 0.1
FORCE_AFTER_S = 10.0
"""A worker that is alive stops what runs within this time; one that is not is taken its claim."""


@record
class Patience:
    """How long a person waits, in seconds, and when they take claims by force; None: never."""

    most_s: float
    force_s: float | None


@record
class Ended:
    """The agents that were to end, and how far they have."""

    agents: Sequence[int] = ()
    after: int = 0
    """The place in the tree's log behind which it tells of their ends."""
    left: Sequence[str] = ()
    """The agents, and the root, that have not ended in time."""


async def end_tree(found: Opened, root: Addressed, say: Callable[[str], None]) -> Sequence[str]:
    """Closes a root, and its tree before it; answers who has not ended in time."""
    return (await end_agents(found, root, None, Patience(60.0, FORCE_AFTER_S), say)).left


async def end_agents(
    found: Opened, target: Addressed, reason: str | None, patience: Patience, say: Callable[[str], None]
) -> Ended:
    """Ends an agent and all below it, or a root and its tree.

    Submits nothing if the agent and all below it have ended already; the answer has no `agents` then.
    """
    ending = await agents_to_end(found, target)
    if target.agent_id and not ending:
        return Ended()
    after = (await found.broker.trees.registry(target.tree)).tree_seq
    await submit_end(found, target, reason, patience.most_s)
    # Until the root has taken it, agents may have been made or woken; none are after it.
    ending = sorted({*ending, *await agents_to_end(found, target)})
    return Ended(ending, after, await wait_for_ends(found, target, ending, patience, say))


async def agents_to_end(found: Opened, target: Addressed) -> list[int]:
    """The agents at work, from the target down."""
    return list((await _registry(found, target)).at_work_from(target.agent_id))


async def agents_at_work(found: Opened, tree: TreeId) -> list[int]:
    """The agents of a tree, beside its root, that are active or have messages to begin with."""
    agents = projected(await found.broker.trees.agents(tree)).agents
    return [number for number, agent in agents.items() if number and agent.at_work]


async def _registry(found: Opened, target: Addressed) -> RegistryView:
    return projected(await found.broker.trees.agents(target.tree))


async def submit_end(found: Opened, target: Addressed, reason: str | None, timeout_s: float) -> None:
    """Submits the cancel, or the shutdown of a root, and waits until the root has taken it."""

    def heard(event: Event, id: str) -> bool:
        """The mark that the root sets, or the root's own end."""
        match event.told:
            case SubagentLifecycle(event=LifecycleChange.UPDATED, agent_id=target.agent_id):
                return True
            case told:
                return isinstance(told, ShutdownComplete)

    op: Op = CancelAgent(agent_id=target.agent_id, reason=reason) if target.agent_id else Shutdown()
    most_s = await patience(found, [target.head.pool])
    try:
        await submit_op(found.client(), target.root, op, heard, min(timeout_s, most_s))
    except OpRefused:
        # A root refuses a shutdown where it is being closed by another one: the end is the same.
        if target.agent_id:
            raise


async def wait_for_ends(
    found: Opened,
    target: Addressed,
    ending: Sequence[int],
    patience: Patience,
    say: Callable[[str], None],
) -> list[str]:
    """Waits for the ends; answers who has not ended in time."""
    began, forced = time.monotonic(), False
    worker: Worker | None = None
    async with AsyncExitStack() as stack:
        while left := await _left(found, target, ending):
            waited = time.monotonic() - began
            if waited > patience.most_s:
                break
            if patience.force_s is not None and not forced and waited > patience.force_s:
                forced = True
                await _take_claims(found, target, ending, say)
            if waited * 1000 > GRACE_MS and (lying := (await forsaken(found.broker, target.tree)).lying):
                if worker is None:
                    url = stack.enter_context(redis_url(found.settings))
                    worker = await stack.enter_async_context(reaping(found.settings, url))
                worker.adopt(lying)
            await asyncio.sleep(POLL_S)
    return left


async def _left(found: Opened, target: Addressed, ending: Sequence[int]) -> list[str]:
    known = (await _registry(found, target)).agents
    left = [f"agent {number}" for number in ending if number in known and known[number].active]
    if not target.agent_id:
        head = await found.broker.logs.head(target.root)
        left += ["the root"] if head is not None and head.status != "closed" else []
    return left


async def _take_claims(
    found: Opened, target: Addressed, ending: Sequence[int], say: Callable[[str], None]
) -> None:
    """Revokes claims whose workers renew but do not act; the next worker finds the mark, ends the agent."""
    known = (await _registry(found, target)).agents
    sessions = [SessionId(known[number].session) for number in ending if number in known]
    sessions += [] if target.agent_id else [target.root]
    for state in await found.broker.trees.revoke_tree(target.tree, sessions):
        if state.state == "revoked":
            say(f"taken from worker {state.worker}: {state.session}")


async def published_ends(found: Opened, target: Addressed, ending: Sequence[int], after: int) -> list[str]:
    """How each agent ended, by the events of the tree log."""
    proofs: dict[int, str] = {}
    for fact in await tree_log(found.broker, target.tree, after):
        if fact.message.get("status") == "canceled":
            proofs[fact.message["agent_id"]] = str(fact.message.get("cancel", "proved"))
    known = (await _registry(found, target)).agents
    lines = []
    for number in ending:
        if number in proofs:
            lines.append(f"agent {number} is cancelled: {proofs[number]}")
        elif number in known and not known[number].active:
            lines.append(f"agent {number} had come to its end before: {known[number].status}")
    if not target.agent_id:
        head = await found.broker.logs.head(target.root)
        if head is not None and head.status == "closed":
            lines.append(f"the root is closed; resume it with: dendro run --resume {target.root}")
    return lines
