"""A wait for a session that nobody serves any more ends, and says what to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.wiring.deployment import deployment
from tests.broker.actors import lease_runs_out
from tests.cli.machine import PATIENCE_S, SLEEP, Machine, dendro
from tests.servers import RedisServer
from tests.started import Started

pytestmark = [pytest.mark.realredis, pytest.mark.slow]

SAID = {"id": "1", "op": {"type": "user_input", "items": [{"type": "text", "text": "hi"}]}}


async def _five_workers_die_of(machine: Machine, session: str) -> None:
    settings = load_settings(SettingsSources(machine.folder, dict(machine.environ)))
    async with deployment(settings, machine.environ["DENDRO_REDIS_URL"]) as opened:
        for number in range(5):
            await opened.broker.claims.claim_session(SessionId(session), f"w{number}", f"c{number}")
            await lease_runs_out(opened.broker, SessionId(session))


@contextmanager
def _waiting(user: Machine, *words: str) -> Iterator[subprocess.Popen[str]]:
    with Started(
        dendro(*words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=user.folder,
        env=dict(user.environ),
    ) as waiting:
        try:
            yield waiting
        finally:
            waiting.kill()


def _due(machine: Machine) -> str:
    """The only session, when somebody has spoken to it."""
    while True:
        for row in machine.sessions():
            if row["status"] == "due":
                return str(row["session_id"])


@pytest.mark.parametrize("front", [("run", "hi"), ("proto",)], ids=lambda words: words[0])
async def test_whoever_waits_for_a_session_that_is_quarantined_is_told_and_leaves(
    machine: Machine, redis_server: RedisServer, front: tuple[str, ...]
) -> None:
    with machine.model() as user, _waiting(user, *front, "--no-worker") as waiting:
        assert waiting.stdin is not None
        if front == ("proto",):
            waiting.stdin.write(json.dumps(SAID) + "\n")
        waiting.stdin.close()
        waiting.stdin = None
        session = _due(user)
        await _five_workers_die_of(user, session)
        out, told = waiting.communicate(timeout=PATIENCE_S)
        assert waiting.returncode == 1
        assert "was quarantined" in out + told
        assert f"dendro revoke {session}" in told


def test_proto_whose_worker_was_killed_says_so_and_leaves(machine: Machine) -> None:
    with machine.model(SLEEP) as user, _waiting(user, "proto") as waiting:
        assert waiting.stdin is not None
        assert waiting.stdout is not None
        waiting.stdin.write(json.dumps(SAID) + "\n")
        waiting.stdin.flush()
        while "exec_command_begin" not in waiting.stdout.readline():
            pass
        children = Path("/proc", str(waiting.pid), "task", str(waiting.pid), "children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        _, told = waiting.communicate(timeout=PATIENCE_S)
        assert waiting.returncode == 1
        assert "the worker of this command ended with -9; go on with: dendro proto --resume" in told
