"""One word for how a session stands, the same in every list.

Its hash tells where it stood at its last commit. What it says is true only as long as somebody serves
it, and of an agent that is at rest the registry of its tree knows more: what its task came to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.broker.records import SessionHead
    from orchestrator.broker.serving import Serving

DUE = "due"
"""It owes something, and is held by nobody."""
LOST = "lost"
"""The lease of the worker that holds it has run out, and no other has taken it."""
SET_ASIDE = ("quarantined", "archived")
"""Nobody serves it until it is readmitted, or spoken to."""


def session_status(head: SessionHead, serving: Serving) -> str:
    """What the session does, or what keeps it from doing anything."""
    if head.quarantined:
        return "quarantined"
    if head.archived:
        return "archived"
    if serving.lost_ms is not None:
        return LOST
    if serving.due:
        return DUE
    # The status of the last commit is that of a rest: whoever is held is at work.
    return "running" if serving.held and head.status in ("idle", "waiting") else head.status


def agent_status(standing: str, status: str) -> str:
    """Where an agent stands in its tree, and while it works, what its session does."""
    return status if standing == "running" and status != "idle" else standing


def status_of(head: SessionHead, serving: Serving, standing: str) -> str:
    """The one word of a list that knows no trees; `standing` is empty but for agents."""
    status = session_status(head, serving)
    return agent_status(standing, status) if standing and status not in SET_ASIDE else status


def wants_worker(head: SessionHead, serving: Serving) -> str:
    """What a session that nobody serves waits for; empty if somebody does, or if it owes nothing."""
    status = session_status(head, serving)
    if status not in (DUE, LOST):
        return ""
    since = f", since {head.holder} is lost" if status == LOST else ""
    return f"a worker of pool {head.pool}{since}"


def no_worker(pool: str) -> str:
    """What anybody is told whose session no worker has taken, and what can be done about it."""
    if pool.startswith("host:"):
        where = "on the machine that has its folder, under the same settings"
        return f"no worker has taken it yet; start one {where}: dendro worker"
    return f"no worker has taken it yet; start one: dendro worker --pool {pool}"
