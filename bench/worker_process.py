"""A turn worker as a process of its own: `python -m bench.worker_process CONCURRENCY [PROFILE]`.

Configured by its environment as `dendro worker` is. Says `ready` when it begins to claim, drains when
its standard input ends. With PROFILE it writes cProfile's account of itself there. With the variable
`BENCH_HEAP`, a folder, it writes into a file of its pid every few seconds what is in use of its heap.
"""

from __future__ import annotations

import cProfile
import ctypes
import os
import sys
import threading
import time
from pathlib import Path

from orchestrator.settings import SettingsSources, load_settings
from workers.turns import run_turns

HEAP_S = 5.0


class _Mallinfo(ctypes.Structure):
    """The answer of `mallinfo2` (glibc, since 2.33): ten sizes."""

    _fields_ = tuple((f"size_{n}", ctypes.c_size_t) for n in range(10))


def heap() -> tuple[int, int]:
    """Blocks that Python's objects take, and bytes that are in use beside them."""
    asked = ctypes.CDLL(None).mallinfo2
    asked.restype = _Mallinfo
    found = asked()
    return sys.getallocatedblocks(), found.size_7 + found.size_4


def _tells(folder: Path) -> None:
    file = folder / str(os.getpid())
    while True:
        blocks, held = heap()
        new = file.with_suffix(".new")
        new.write_text(f"{blocks} {held}")
        new.rename(file)
        time.sleep(HEAP_S)


def main(concurrency: str, profile: str = "") -> int:
    """Runs one worker; answers its exit code."""
    settings = load_settings(SettingsSources.of_process(overrides=[f"worker.concurrency={concurrency}"]))

    def ready() -> None:
        print("ready", flush=True)

    if folder := os.environ.get("BENCH_HEAP"):
        threading.Thread(target=_tells, args=(Path(folder),), daemon=True).start()
    if not profile:
        return run_turns(settings, sys.stdin.fileno(), ready)
    profiler = cProfile.Profile()
    code = profiler.runcall(run_turns, settings, sys.stdin.fileno(), ready)
    profiler.dump_stats(profile)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
