"""Garbage: objects that a part of the product leaves in memory when it is over."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def freed_at_once() -> Iterator[None]:
    """Inside, no object of the product may be left over that only a search for cycles would free.

    Such a one keeps all that it knows, a conversation perhaps, until Python looks for cycles among old ones;
    a process with a large heap does that rarely.
    """
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = {type(one) for one in gc.garbage}
        left = {
            kind.__qualname__ for kind in kinds if kind.__module__.startswith(("orchestrator.", "workers."))
        }
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == set()
