"""A turn worker as a process of its own: `python -m bench.worker_process CONCURRENCY [PROFILE]`.

Configured by its environment as `dendro worker` is. Says `ready` when it begins to claim, drains when
its standard input ends. With PROFILE it writes cProfile's account of itself there.
"""

from __future__ import annotations

import cProfile
import sys

from bench.heap import tells
from orchestrator.settings import SettingsSources, load_settings
from workers.turns import run_turns


def main(concurrency: str, profile: str = "") -> int:
    """Runs one worker; answers its exit code."""
    settings = load_settings(SettingsSources.of_process(overrides=[f"worker.concurrency={concurrency}"]))

    def ready() -> None:
        print("ready", flush=True)

    tells()
    if not profile:
        return run_turns(settings, sys.stdin.fileno(), ready)
    profiler = cProfile.Profile()
    code = profiler.runcall(run_turns, settings, sys.stdin.fileno(), ready)
    profiler.dump_stats(profile)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
