"""`python -m sim.mutation.hunt`: a process that runs the simulator with a change in the product.

Reads what to do from its input, one JSON object, and writes one: which rule was broken, by which seed; or
that none was. Ends itself when a seed takes more of the processor's time than any seed does.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import Any

from sim.mutation.overlay import plant

SEED_CPU_S = 25.0
MOST_BYTES = 4 << 30


def main() -> int:
    """Reads its task, and says how it ended."""
    asked = json.loads(sys.stdin.read())
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    # A process that hangs inside of a script receives no signal: the kernel ends it.
    cpu_s = int(asked["cpu_s"])
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    _answer(_hunted(asked))
    return 0


def _answer(told: dict[str, Any]) -> None:
    sys.__stdout__.write(json.dumps(told) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def _hunted(asked: dict[str, Any]) -> dict[str, Any]:
    if asked["script"]:
        # It answers looks in vain by itself, as long as their scripts are those that it knows.
        import sim.polls  # noqa: F401
    if asked["module"] or asked["script"]:
        plant(asked["module"], asked["script"], asked["source"])
    try:
        from sim.campaign import stories
    except BaseException as error:
        return {"rule": "import", "seen": f"{type(error).__name__}: {error}"[:300], "run": 0}
    if asked.get("stories"):
        return _retold(asked)
    run = 0
    told: dict[str, Any] = {}

    def too_long(signum: int, frame: object) -> None:
        _answer({**told, "rule": "timeout", "seen": "a seed never comes to its end", "run": run})
        os._exit(0)

    signal.signal(signal.SIGPROF, too_long)
    plan = [(workload or None, seed) for workload, seed in asked["plan"]]
    going = stories(plan)
    for workload, seed in plan:
        told = {"workload": workload or "", "seed": seed}
        run += 1
        signal.setitimer(signal.ITIMER_PROF, SEED_CPU_S)
        try:
            outcome = next(going)
        except Exception as error:
            seen = f"{type(error).__name__}: {error}"[:300]
            return {**told, "rule": "raises", "seen": seen, "run": run}
        signal.setitimer(signal.ITIMER_PROF, 0)
        if outcome.violation is not None:
            seen = outcome.violation.seen[:300]
            return {**told, "rule": outcome.violation.rule, "seen": seen, "run": run}
    return {"rule": "", "run": run}


def _retold(asked: dict[str, Any]) -> dict[str, Any]:
    """The first kept story or digest, of the runs that are named, that is another one."""
    from sim.stories.digests import digest, kept_digests
    from sim.stories.kept import difference, kept_runs, kept_stories
    from sim.stories.runs import stories

    plan = [(workload, seed) for workload, seed in asked["plan"]]
    kept = {workload: kept_stories(workload) for workload, _ in plan}
    whole, digests = set(kept_runs()), kept_digests()
    run, going = 0, stories(plan)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for workload, seed in plan:
        told = {"workload": workload, "seed": seed}
        run += 1
        signal.setitimer(signal.ITIMER_PROF, SEED_CPU_S)
        try:
            story = next(going)
        except Exception as error:
            return {**told, "rule": "raises", "seen": f"{type(error).__name__}: {error}"[:300], "run": run}
        signal.setitimer(signal.ITIMER_PROF, 0)
        if (workload, seed) not in whole:
            if story.broken or digest(story.lines) != digests[workload, seed]:
                who = story.broken.partition(":")[0] if story.broken else "digest"
                return {**told, "rule": "story", "who": who, "seen": story.broken[:2_000], "run": run}
        elif (seen := difference(kept[workload][seed], story)) is not None:
            return {**told, "rule": "story", "who": seen.who, "seen": str(seen)[:2_000], "run": run}
    return {"rule": "", "run": run}


if __name__ == "__main__":
    sys.exit(main())
