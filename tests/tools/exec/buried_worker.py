"""A worker process for tests to kill: runs one command under a supervisor that tells of its death.

Usage: python buried_worker.py FOLDER WORD, where WORD is the writing end of a pipe. A line on stdin says
what the worker does then: `close` its socket to the supervisor, `kill` that one, `leave` in good order, or
start a `child` that writes, whose process id it prints.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from orchestrator.boottime import boottime
from orchestrator.sandbox import git
from orchestrator.sandbox.policy_paths import resolve
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.tools.exec.command import Command
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorConfig

CHILD = "import os, sys, time; os.write(int(sys.argv[1]), b'b'); print('up', flush=True); time.sleep(600)"


class Told:
    """The worker's part, whose word goes to the test."""

    def __init__(self, word: int) -> None:
        self.descriptors = (os.pidfd_open(os.getpid()), git.ends()[0], word)

    def forbid(self) -> None:
        print("forbidden", flush=True)


async def main(folder: Path, word: int) -> None:
    config = SupervisorConfig(SandboxSupport(None, 0, ()), burial=Told(word))
    supervisor = await Supervisor.start(config)
    # The supervisor has its own, as it has beside the process that waits.
    os.close(word)
    supervisor.extend("claim", boottime() + 60)
    command = Command(
        claim="claim",
        call_id="call",
        argv=("sh", "-c", "setsid sh -c 'trap \"\" TERM; echo $$ > fifo; sleep 600' & sleep 600"),
        cwd=folder,
        env={"PATH": os.defpath},
        confinement=resolve({"mode": "danger-full-access"}, folder, None),
        timeout_s=None,
    )
    running = asyncio.create_task(supervisor.run(command, lambda *_: None))
    while told := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if told == "close":
            supervisor._loop.remove_reader(supervisor._socket)
            supervisor._socket.close()
        elif told == "kill":
            supervisor._process.kill()
        elif told == "leave":
            await supervisor.close()
            await running
        else:
            argv = [sys.executable, "-c", CHILD, *map(str, git.passed())]
            child = subprocess.Popen(argv, pass_fds=git.passed(), stdout=subprocess.PIPE)
            assert child.stdout is not None
            child.stdout.readline()
            print(child.pid, flush=True)
            continue
        print("done", flush=True)


asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
