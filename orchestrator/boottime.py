"""The clock by which claims and their deadlines count, alike in all processes of a machine."""

from __future__ import annotations

import time


def boottime() -> float:
    """Seconds since boot, also while the machine sleeps: a lease runs on then."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
