"""The settings of Python's garbage collector in a turn worker, tried in a process of its own."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import gc, weakref
import orchestrator.wiring.gateway
from orchestrator.wiring.gateway import settle_heap

class Cycle:
    pass

settle_heap()
kept = gc.get_freeze_count()
lost = Cycle()
lost.itself = lost
seen = weakref.ref(lost)
del lost
young = [[] for _ in range(gc.get_threshold()[0] + 1)]
print(kept > 10_000, len(gc.get_objects()) < kept, seen() is None)
"""


def test_worker_walks_no_object_of_its_start_and_still_collects_cycles() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True"]
