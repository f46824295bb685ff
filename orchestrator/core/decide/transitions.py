"""State-triggered transitions: what follows from the state itself, whatever command led to it.

A rule reacts to its command and leaves the state as that makes it. Then `advance` asks, once for each
decision and in this order, whether

    a wait is over       news came that the waiting call returns, or none can come    → the call is done
    the turn is over     the response is complete and its last call is done           → the task may be over
    something is next    no task holds the session, and input, mail or a shutdown     → a task, or the end
                         waits for it
    the agent is at rest its task ended and none follows, or all below a cancelled    → its parent is told
                         agent has ended

Each may make the next one true and none an earlier one, so one pass reaches the fixpoint. What takes more
than one commit carries (calls to close, children to tell) is no transition: the state owes it
(`outstanding`), and the pieces come as commands of their own.
"""

from __future__ import annotations

from orchestrator.core.decide.agent import come_to_rest
from orchestrator.core.decide.agent_calls import end_wait
from orchestrator.core.decide.draft import Draft
from orchestrator.core.decide.task import end_turn, start_next


def advance(draft: Draft) -> None:
    """Brings the draft's state to its fixpoint."""
    end_wait(draft)
    end_turn(draft)
    start_next(draft)
    come_to_rest(draft)
