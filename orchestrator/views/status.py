"""The status of a session in one word, the same in every list.

The session's hash holds the status of its last commit. The status is true only while a worker serves
the session, and for an agent at rest the registry of its tree knows more: the result of its task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.broker.pool_service import Serving
    from orchestrator.broker.records import SessionHead

DUE = "due"
"""The session owes something, and no worker holds it."""
LOST = "lost"
"""The lease of the worker that holds the session has run out, and no other has taken it."""
PROCESS_RUNNING = "process_running"
"""The session is idle, and a process that its agent has started lives on: its worker keeps it."""
NOT_SERVED = ("quarantined", "archived")
"""No worker takes such a session until it is readmitted, or gets a submission."""


def session_status(head: SessionHead, serving: Serving) -> str:
    """The session's activity, or the condition that blocks it."""
    if head.quarantined:
        return "quarantined"
    if head.archived:
        return "archived"
    if serving.lost_ms is not None:
        return LOST
    if serving.due:
        return DUE
    if not serving.held or head.status not in ("idle", "waiting"):
        return head.status
    if head.status == "idle" and not head.has_unread and processes_of(head):
        return PROCESS_RUNNING
    # The status of the last commit is that of a rest: whoever is held is at work.
    return "running"


def processes_of(head: SessionHead) -> int:
    """The number of processes that lived when the session's last turn ended."""

    return int(head.summary.get("processes") or 0)


def agent_status(standing: str, status: str) -> str:
    """The agent's status in its tree, and while it works, its session's status."""
    return status if standing == "running" and status != "idle" else standing


def status_of(head: SessionHead, serving: Serving, standing: str) -> str:
    """The one word of a list that knows no trees; `standing` is empty but for agents."""
    status = session_status(head, serving)
    return agent_status(standing, status) if standing and status not in NOT_SERVED else status


def wants_worker(head: SessionHead, serving: Serving) -> str:
    """The worker that an unserved session waits for; empty if the session is served or owes nothing."""
    status = session_status(head, serving)
    if status not in (DUE, LOST):
        return ""
    since = f", since {head.holder} is lost" if status == LOST else ""
    where = f" on machine {head.unsaved_on}, which alone has its unsaved changes" if head.unsaved_on else ""
    return f"a worker of pool {head.pool}{where}{since}"


def no_worker(pool: str) -> str:
    """The message about a session that no worker has taken, with the remedy."""
    if pool.startswith("host:"):
        where = "on the machine that has its folder, under the same settings"
        return f"no worker has taken it yet; start one {where}: dendro worker"
    return f"no worker has taken it yet; start one: dendro worker --pool {pool}"
