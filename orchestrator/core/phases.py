"""The phases of a task and the statuses of an agent, and what may follow what.

A call's phase is a field (`core.turn_calls.Phase`, with its table `TRANSITIONS`). A task's is read from its
fields, which say more than the phase; an agent's status is a fact of its own log. A decision that leaves the
tables raises: a rule is wrong. `docs/states.md` draws the three.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from orchestrator.core.state import State, Task
from orchestrator.core.tree import AgentStatus
from orchestrator.core.turn_calls import IllegalTransition


class TaskPhase(StrEnum):
    """The phase of a task; `None` in the table is a session that no task holds."""

    OWING = "owing"
    """A model request is owed: it is begun as soon as it is due and the tree's budget permits."""
    REQUESTING = "requesting"
    """A model request is in flight; calls that its response has made so far may run beside it."""
    DELAYED = "delayed"
    """The request is tried again when a timer has fired; nobody holds the session meanwhile."""
    CALLING = "calling"
    """No request is in flight, and calls are to be decided, wait or run."""
    TURN_OVER = "turn_over"
    """The response is complete and its calls are done: the task goes on with a request, or is over.

    A person's command is over with its call."""
    STOPPING = "stopping"
    """The work is being stopped; nothing new begins."""
    ENDING = "ending"
    """Nothing runs any more: the open calls are closed piece by piece, and the last piece ends the task."""


def task_phase(task: Task) -> TaskPhase:
    if task.ending:
        return TaskPhase.ENDING
    if task.stopping:
        return TaskPhase.STOPPING
    if task.request is not None:
        return TaskPhase.REQUESTING
    if task.calls.any_open:
        return TaskPhase.CALLING
    if task.response_complete or task.kind == "shell":
        return TaskPhase.TURN_OVER
    return TaskPhase.DELAYED if task.wait else TaskPhase.OWING


TASK: Mapping[TaskPhase | None, frozenset[TaskPhase | None]] = {
    None: frozenset({TaskPhase.OWING, TaskPhase.CALLING}),
    TaskPhase.OWING: frozenset({TaskPhase.REQUESTING, TaskPhase.STOPPING, None}),
    TaskPhase.REQUESTING: frozenset(
        {
            TaskPhase.OWING,
            TaskPhase.DELAYED,
            TaskPhase.CALLING,
            TaskPhase.TURN_OVER,
            TaskPhase.STOPPING,
        }
    ),
    TaskPhase.DELAYED: frozenset({TaskPhase.OWING, TaskPhase.STOPPING, None}),
    TaskPhase.CALLING: frozenset(
        {TaskPhase.OWING, TaskPhase.DELAYED, TaskPhase.TURN_OVER, TaskPhase.STOPPING, None}
    ),
    TaskPhase.TURN_OVER: frozenset({TaskPhase.REQUESTING, TaskPhase.OWING, TaskPhase.STOPPING, None}),
    TaskPhase.STOPPING: frozenset({TaskPhase.ENDING, None}),
    TaskPhase.ENDING: frozenset({None}),
}

AGENT: Mapping[AgentStatus, frozenset[AgentStatus]] = {
    "queued": frozenset({"running", "canceled"}),
    "running": frozenset({"ready", "failed", "canceled"}),
    "ready": frozenset({"running", "idle"}),
    "idle": frozenset({"running"}),
    "failed": frozenset({"running"}),
    "canceled": frozenset(),
}
"""`idle` is the parent's word for an agent whose result was read: its own log goes on saying `ready`."""


def check(before: State, after: State) -> None:
    """Raises `IllegalTransition` if a fact has moved a task or an agent as no table permits."""
    if before.task is not after.task:
        was, now = _phase(before), _phase(after)
        if was is not now and now not in TASK[was]:
            raise IllegalTransition(f"a task is {was or 'over'}, it cannot become {now or 'over'}")
    old, new = before.tree.status, after.tree.status
    if old != new and old is not None and new not in AGENT[old]:
        raise IllegalTransition(f"an agent is {old}, it cannot become {new}")


def _phase(state: State) -> TaskPhase | None:
    return None if state.task is None else task_phase(state.task)
