"""The heap of a process that lives long."""

from __future__ import annotations

import gc

CYCLES_AFTER = 5_000
"""New objects after which Python looks for cycles among the young ones; its own 700 are a turn or two."""


def settle_heap() -> None:
    """Keeps the modules and models of the start out of later searches for cycles, and makes these rarer.

    The start leaves 80,000 objects, which live as long as the process: each full search would walk them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(CYCLES_AFTER)
