"""`dendro workers` and `dendro stats`: who is there and what there is to do; one that is sent home."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.broker.worker_state import SILENT_MS
from orchestrator.cli import invocation
from orchestrator.cli.invocation import Invocation
from orchestrator.cli.workers import _drain
from orchestrator.gateways import pool_jobs
from orchestrator.terminal.faults import Fault
from orchestrator.views.workers import SeenWorker
from tests.cli.machine import Machine
from tests.cli.parked_tree import worker
from tests.views.test_workers import STATE, seen

pytestmark = pytest.mark.realredis


def test_person_sees_a_worker_and_sends_it_home(machine: Machine) -> None:
    assert "dendro worker` starts one" in machine.run("workers").stdout
    with machine.behaving("echo") as user, worker(user) as process:
        done = user.run("run", "--no-worker", "hello")
        assert done.returncode == 0, "the worker is there"
        (row,) = json.loads(user.run("workers", "--json").stdout)
        assert (row["status"], row["pid"], row["remarks"]) == ("serving", process.pid, [])
        assert row["worker"] in user.run("workers").stdout
        told = json.loads(user.run("stats", "--json").stdout)
        pool = next(pool for pool in told["pools"] if pool["parked"])
        assert (pool["parked"], pool["due"], pool["held"], pool["workers"]) == ({"idle": 1}, 0, 0, 1)
        assert (told["workers"], told["sessions"], told["open_requests"]) == (1, 1, 0)
        assert pool["pool"] in row["pools"]
        assert "1 idle" in user.run("stats").stdout
        spent = json.loads(user.run("stats", "--by", "day", "--by", "who", "--json").stdout)
        (day,) = spent["spend"]
        assert (day["day"], day["requests"], "@" in day["who"]) == (spent["to"], 1, True)
        drawn = user.run("stats", "--by", "model", "--days", "1").stdout
        assert f"{spent['to']} to {spent['to']}: {day['tokens']:,} tokens, 1 request" in drawn
        assert user.run("stats", "--by", "tree").returncode == 2
        drained = user.run("workers", "drain", row["worker"][:-1], "--wait")
        assert (drained.returncode, drained.stdout) == (0, ""), drained.stderr
        assert process.wait(20) == 0
        assert user.run("workers", "drain", row["worker"]).returncode == 1


@pytest.mark.parametrize("wait", [True, False])
async def test_person_who_drains_a_silent_worker_is_told_that_it_is_silent_and_no_time(
    wait: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (lost,) = seen(STATE, ago_ms=SILENT_MS)

    async def found(*_: object) -> SeenWorker:
        return lost

    @asynccontextmanager
    async def opened(_: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(broker=SimpleNamespace(claims=None))

    monkeypatch.setattr(Invocation, "settings", lambda _: None)
    monkeypatch.setattr(invocation, "opened", opened)
    monkeypatch.setattr(pool_jobs, "drain", found)
    monkeypatch.setattr(pool_jobs, "until_left", found)
    with pytest.raises(Fault, match="w0 has not left: not heard from") if wait else nullcontext():
        await _drain(Invocation(), "w0", wait=wait)
    told = capsys.readouterr().err
    assert "within 5 s" not in told
    assert wait or told.startswith("w0 is told to drain if it comes back: not heard from for")
