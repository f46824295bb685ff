"""Running sessions: claims, the step loop, side tasks, renewal, drain.

One story, by module:

    worker          takes claims and jobs while it has room, fires due timers, hands sessions to runners
    runner          one claimed session: gather → decide → commit → start what is owed → park
    runner_context  the claim, journal and configuration that the parts of one runner share
    arrivals        what came and is not decided yet: the SQ's entries, results of effects; a step that
                    the tree refused is decided again part by part
    sq_entries      an entry of the SQ as a command, with what has to be looked up for it
    step            what one step decides, and what becomes of commands that no step can hold
    journal         what the runner knows of the log: state, seq, chain head; drafts steps on it
    committing      a step sent until it is answered, and the deltas between two of them
    lookups         what calls look up in their tree
    request_costs   what requests cost their tree, and room for them at a provider
    side_work       what runs beside the loop, from what the log owes to its grace in a drain
    model_request   the model request that a state owes, and that request as it runs
    renewal         keeps claims alive from a thread of its own, and stops when the loop is stuck
    loader          the state of a session from cache, snapshot, tail or archive
    unserved_cancels
                    cancelled agents that no worker serves, seen to their end

The runtime touches the outside only through `ports.Ports`: clock, sleep, randomness, task
start, broker, model, tools, supervisor, files. That is what a simulator replaces.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from orchestrator.broker.errors import OutOfMemory, Unavailable

if TYPE_CHECKING:
    # The process that waits for a worker's death loads this file, and not Redis's client.
    from orchestrator.broker.connection import Outage

# ── logger ────────────────────────────────────────────────────────────────────────────────────────
# The runtime's logger: for operators; what users are to know is in events.


log = logging.getLogger("dendro.runtime")

SAME_AGAIN_S = 30.0


class OutageFilter(logging.Filter):
    """Keeps warnings about a Redis that does not serve from filling the screen.

    While the outage itself has been said, they go unsaid; else the same words come twice a minute at most.
    """

    def __init__(self, outage: Outage) -> None:
        super().__init__()
        self._outage = outage
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args if isinstance(record.args, tuple) else ()
        if record.levelno > logging.WARNING or not any(_not_served(arg) for arg in args):
            return True
        now, before = time.monotonic(), self._said.get(str(record.msg))
        if self._outage.told or (before is not None and now - before < SAME_AGAIN_S):
            return False
        self._said[str(record.msg)] = now
        return True


def _not_served(arg: object) -> bool:
    return isinstance(arg, Unavailable | OutOfMemory)
