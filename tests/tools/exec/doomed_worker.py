"""A worker process for tests to kill or to stop: runs one command that leaves a grandchild behind.

Usage: python doomed_worker.py <mechanism> <folder> mark:<mark>

The right to run it ends in a minute, or as many seconds from then as a line on stdin says.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

from orchestrator.sandbox.kernel import CLOCK_BOOTTIME
from orchestrator.sandbox.policy_paths import resolve
from orchestrator.sandbox.probe import probe
from orchestrator.tools.exec.command import Command
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorConfig


def now() -> float:
    return time.clock_gettime(CLOCK_BOOTTIME)


async def main(mechanism: str, folder: Path, mark: str) -> None:
    supervisor = await Supervisor.start(
        SupervisorConfig(probe(), "landlock" if mechanism == "landlock" else "auto")
    )
    supervisor.extend("claim", now() + 60)
    mode = "danger-full-access" if mechanism == "none" else "workspace-write"
    script = f"""
        setsid sh -c 'sh -c "exec sleep {mark}" {mark} &' &
        setsid setsid sh -c 'trap "" TERM HUP; echo up > fifo; sleep {mark}' {mark} &
        sleep {mark}
    """
    command = Command(
        claim="claim",
        call_id="call",
        argv=("sh", "-c", script, mark),
        cwd=folder,
        env={"PATH": os.defpath},
        confinement=resolve({"mode": mode, "exclude_slash_tmp": True}, folder, None),
        timeout_s=None,
    )
    running = asyncio.create_task(supervisor.run(command, lambda *_: None))
    if told := await asyncio.to_thread(sys.stdin.readline):
        supervisor.extend("claim", now() + float(told))
        print("told", flush=True)
    finished = await running
    print("finished", finished.exit_code, finished.killed, flush=True)
    await supervisor.close()


asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3].removeprefix("mark:")))
