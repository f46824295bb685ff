"""The runtime's logger: for operators; what users are to know is in events."""

from __future__ import annotations

import logging
import time

from orchestrator.broker.errors import OutOfMemory, Unavailable
from orchestrator.broker.outage import Outage

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
