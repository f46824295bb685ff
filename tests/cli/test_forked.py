"""The process that a command forks from itself: what it has of the command, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

PARENT = """
import json, os, signal, sys
from orchestrator.terminal.faults import Fault, report
from workers.forked import forked

foreign = os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY)

def tell():
    links = [f"/proc/self/fd/{number}" for number in sorted(map(int, os.listdir("/proc/self/fd")))]
    held = [os.readlink(link) for link in links if os.path.lexists(link)]
    fact = {"session": os.getsid(0), "pid": os.getpid(), "held": held, "in": sys.stdin.read()}
    with open(sys.argv[1], "w") as file:
        json.dump(fact, file)
    return 7

def fail():
    raise Fault("the work failed")

def die():
    os.kill(os.getpid(), signal.SIGTERM)

def begin(work):
    theirs, ours = os.pipe()
    child = forked(work, theirs, report)
    os.close(theirs)
    return child, ours

def end(work):
    child, ours = begin(work)
    os.write(ours, b"!")
    return child.wait()

print("not twice", end="")
codes = [end(tell), end(fail), end(die)]
unwanted, ours = begin(tell)
os.close(ours)
codes.append(unwanted.wait())
late, ours = begin(tell)
try:
    late.wait(0)
except TimeoutError:
    late.kill()
codes.append(late.wait())
late.kill()
print(json.dumps(codes))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, str]:
    """Facts that a fork wrote down; output and errors of the process that it was forked from."""
    facts = tmp_path_factory.mktemp("forked") / "facts"
    words = [sys.executable, "-c", PARENT, str(facts)]
    done = subprocess.run(words, input="for the parent", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(facts.read_text()), done.stdout, done.stderr


Told = tuple[dict[str, Any], str, str]


def test_fork_keeps_its_pipe_and_stderr_of_what_the_command_had_open(told: Told) -> None:
    facts, _, _ = told
    assert [path.split(":")[0] for path in facts["held"]] == ["/dev/null", "/dev/null", "pipe", "pipe"]
    assert facts["in"] == ""


def test_fork_is_out_of_reach_of_the_commands_terminal(told: Told) -> None:
    facts, _, _ = told
    assert facts["session"] == facts["pid"]


def test_command_learns_how_its_fork_ended(told: Told) -> None:
    _, output, errors = told
    begun = [7, 1, -15]
    assert output == f"not twice{json.dumps([*begun, 0, -9])}\n", "one was not wanted, one was killed"
    assert errors == "dendro: the work failed\n"
