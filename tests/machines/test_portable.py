"""Sessions with portable folders on two machines that have Redis and a store in common, and no folder.

Three defects were planted for the storm: it fails where a takeover keeps a dirty copy, and where a pack is
stored after its entry; a copy marked clean before the commit it passes over, and
`tests/workspaces/test_service.py` finds it.
"""

from __future__ import annotations

import json
import random
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.machine import Machine, dendro
from tests.commit_seed import NIGHT, base_seed
from tests.machines.conftest import Fleet
from tests.machines.host import Host

pytestmark = pytest.mark.realredis

QUICK = ("worker.lease_s=1.5", "worker.trust_s=1", "worker.renew_s=0.4")
"""Leases that a test can wait for."""
APPEND = (
    "line=$(date +%s%N)-$RANDOM; echo $line >> lines.txt; sleep 0.$((5 + RANDOM % 5)); "
    "echo $line > last.txt; echo $line"
)


def shell(script: str) -> dict[str, Any]:
    return {"items": [{"call": "shell", "args": {"command": ["bash", "-c", script], "timeout_ms": 60_000}}]}


@pytest.fixture
def portable(fleet: Fleet) -> Fleet:
    """The fleet, with a repository of one file at machine two, where the person is."""
    fleet = fleet.under(
        DENDRO_WORKSPACE_ROOT="/srv/workspaces",
        DENDRO_SANDBOX_MODE="workspace-write",
        DENDRO_APPROVAL_POLICY="never",
    )
    fleet.two.shell(
        "cd /srv/work && git init -q && echo first > README.md && git add . && "
        "git -c user.name=p -c user.email=p@example.com commit -qm First"
    )
    return fleet


@contextmanager
def scripted(tmp_path: Path, fleet: Fleet, *steps: dict[str, Any]) -> Iterator[Fleet]:
    folder = tmp_path / "model"
    folder.mkdir()
    scenario = {"steps": list(steps), "per_session": True, "after_end": "repeat_last"}
    with Machine.at(folder).buried.playing(json.dumps(scenario)) as stub:
        yield fleet.under(OPENAI_BASE_URL=stub.environ["OPENAI_BASE_URL"])


def begun(on: Host, prompt: str) -> subprocess.Popen[str]:
    """A person's task, followed as JSON."""
    words = dendro("run", "--portable", "--no-worker", "--json", prompt)
    return on.user.start(
        words,
        cwd=on.user.folder,
        env=on.user.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(following: subprocess.Popen[str], kind: str, text: str = "") -> dict[str, Any]:
    """The next event of a kind; fails with what the command said if it ends before."""
    assert following.stdout is not None
    for line in following.stdout:
        message: dict[str, Any] = json.loads(line)["msg"]
        if message["type"] == kind and text in line:
            return message
    raise AssertionError(f"no {kind} came: {following.communicate()}")


@pytest.mark.night
def test_a_session_goes_on_elsewhere_and_its_person_has_all_that_the_log_names(
    portable: Fleet, tmp_path: Path
) -> None:
    steps = (
        shell("echo kept > kept.txt; hostname > where.txt"),
        shell("echo half > half.txt; echo half >> kept.txt; echo began; sleep 60"),
        shell("cat kept.txt where.txt README.md; ls; hostname"),
        {"items": [{"text": "done"}]},
    )
    with scripted(tmp_path, portable, *steps) as fleet, ExitStack() as stack:
        stack.enter_context(fleet.one.worker(*QUICK))
        with begun(fleet.two, "Work.") as following:
            until(following, "exec_command_output_delta", "YmVnYW4K")
            fleet.one.lose()
            stack.enter_context(fleet.two.worker(*QUICK))
            seen = [until(following, "exec_command_end") for _ in range(2)]
            until(following, "task_complete")
        (session,) = fleet.two.user.session_ids()
        # The lost call's writes are gone, with the machine that has them.
        assert seen[-1]["stdout"] == ("kept\none\nfirst\nREADME.md\nkept.txt\nwhere.txt\ntwo\n")
        assert (seen[0]["exit_code"], "half" in seen[-1]["stdout"]) == (-1, False)
        assert fleet.two.says("diff", session, "--stat").endswith("+2 −0 in 2 files\n")
        assert "kept\n" in fleet.two.says("diff", session)
        fleet.two.says("apply", session)
        assert fleet.two.srv("work/kept.txt").read_text() == "kept\n"
        assert "are in the store, and whole" in fleet.two.says("verify", session, "--workspaces")


# ── a storm of kills ──────────────────────────────────────────────────────────────────────────

SESSIONS, CALLS, PAUSE_S = (8, 12, (2.0, 6.0)) if NIGHT else (2, 8, (1.0, 2.5))
"""The pauses let workers come to something: five that do not in a row are a quarantine."""


class Storm(threading.Thread):
    """Kills workers on both machines at random moments, and starts others, until it is told to end."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        super().__init__(daemon=True)
        self._hosts = (fleet.one, fleet.two)
        self._random = random.Random(seed)
        self._over = threading.Event()
        self.kills = 0
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            with ExitStack() as stack:
                workers = [stack.enter_context(on.worker(*QUICK)) for on in self._hosts]
                while not self._over.wait(self._random.uniform(*PAUSE_S)):
                    which = self._random.randrange(2)
                    workers[which].kill()
                    workers[which].wait()
                    self.kills += 1
                    workers[which] = stack.enter_context(self._hosts[which].worker(*QUICK))
        except BaseException as error:
            self.failed = error

    def end(self) -> None:
        self._over.set()
        self.join(60)
        assert self.failed is None, self.failed


def committed(events: Sequence[dict[str, Any]]) -> list[str]:
    """The lines that calls wrote whose end the log has as theirs, in order."""
    ended = [event for event in events if event["type"] == "exec_command_end"]
    return [event["stdout"].strip() for event in ended if event["exit_code"] == 0]


def folder_of(host: Host, session: str, name: str, *words: str) -> tuple[list[str], str]:
    """Makes a session's folder anew on a machine; answers its lines, and the last one that was written."""
    host.says("checkout", session, f"/srv/{name}", *words)
    made = host.srv(name)
    lines, last = made / "lines.txt", made / "last.txt"
    return (
        lines.read_text().split() if lines.exists() else [],
        last.read_text().strip() if last.exists() else "",
    )


@pytest.mark.night
@pytest.mark.timeout(600)
def test_folders_hold_what_committed_calls_wrote_once_and_in_order_in_a_storm_of_kills(
    portable: Fleet, tmp_path: Path
) -> None:
    steps = [*[shell(APPEND) for _ in range(CALLS)], {"items": [{"text": "done"}]}]
    with scripted(tmp_path, portable, *steps) as fleet:
        storm = Storm(fleet, base_seed())
        following = [begun(fleet.two, f"Work {number}.") for number in range(SESSIONS)]
        storm.start()
        try:
            for one in following:
                until(one, "task_complete")
                one.communicate()
        finally:
            storm.end()
        assert storm.kills
        for session in fleet.two.user.session_ids():
            audit(fleet, session)


def audit(fleet: Fleet, session: str) -> None:
    """Holds the folder against the log, at its end and at every entry that changed it."""
    told = fleet.two.says("logs", session, "--json", "--limit", "0")
    lines = committed([json.loads(line)["msg"] for line in told.splitlines()])
    assert len(lines) <= CALLS
    found, last = folder_of(fleet.one, session, f"{session}-end")
    assert (found, last) == (lines, lines[-1] if lines else "")
    moments = [line.split()[0] for line in fleet.two.says("diff", session, "--entries").splitlines()]
    for number, seq in enumerate(moments):
        found, last = folder_of(fleet.one, session, f"{session}-{seq}", "--at", seq)
        assert found == lines[: len(found)], f"entry {seq} of {session}"
        assert last == (found[-1] if found else "")
        assert len(found) == number, "each snapshot has one call's line more"
    assert "and whole" in fleet.one.says("verify", session, "--workspaces")
