"""A user of Redis with just the rights that the operator's page names, and users with fewer."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.broker.errors import Misconfigured
from orchestrator.broker.rights import COMMANDS, command_names
from orchestrator.broker.trees import Listed
from orchestrator.doctor import check_redis
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.wiring.deployment import deployment
from orchestrator.wiring.open_deployment import opened
from tests.cli.machine import Machine, dendro
from tests.crash.driver import House, Play, harness_on, rested, violations
from tests.crash.people import watching
from tests.servers import RedisServer, free_ports, start_redis
from tests.workers.actors import Author, some_entries
from tests.workers.upkeep_process import environment_for, running_upkeep

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
ORCHESTRATOR = Path(__file__).parents[2] / "orchestrator"
OTHERS = ("`dendro upkeep`", "`dendro doctor`", "a cluster")
WITHIN_S = 60.0
NAMES = "names in `CLIENT LIST`"


def documented() -> list[str]:
    """The rights of workers and clients."""
    (found,) = re.findall(r"ACL SETUSER dendro on >PASSWORD (.*?)\n\n", PAGE, re.DOTALL)
    return str(found).split()


def documented_for(what: str) -> list[str]:
    (found,) = re.findall(rf"^\| {re.escape(what)} \| (.*) \|$", PAGE, re.MULTILINE)
    rights = " ".join(re.findall("`(.*?)`", found))
    return rights.replace("\\|", "|").split()


def test_the_page_names_what_processes_ask_for() -> None:
    assert documented() == ["resetchannels", "~dendro:*", *(f"+{name}" for name in command_names(COMMANDS))]


def sent_words() -> set[str]:
    """Words that may be commands: those of scripts, and the first ones of what Python sends."""
    scripts = (ORCHESTRATOR / "broker" / "lua").glob("*.lua")
    words = {name for path in scripts for name in re.findall(r"redis\.call\W+([A-Z]+)'", path.read_text())}
    for path in ORCHESTRATOR.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            first: list[ast.expr] = []
            if isinstance(node, ast.Tuple):
                first = node.elts[:1]
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "command":
                first = node.args[:1]
            words |= {str(each.value) for each in first if isinstance(each, ast.Constant)}
    return {word.lower() for word in words if word.isupper()}


@pytest.mark.realredis
def test_processes_ask_for_every_command_that_they_use(server: RedisServer) -> None:
    with closing(server.client()) as admin:
        known: set[str] = set(admin.execute_command("COMMAND"))
    used = sent_words() & known
    assert {"zremrangebyscore", "ping"} <= used
    of_others = {right.lstrip("+") for what in OTHERS for right in documented_for(what)}
    assert used - set(command_names(COMMANDS)) <= of_others


@pytest.mark.realredis
async def test_lists_counts_and_jobs_need_no_more_rights_than_the_page_names(
    server: RedisServer, tmp_path: Path
) -> None:
    settings = settings_of(as_user(server, *documented(), *documented_for(NAMES)), tmp_path)
    async with deployment(settings, settings.redis.url or "") as found:
        broker = found.broker
        for descending in (True, False):
            assert await broker.trees.listed(Listed(descending=descending)) == ()
        assert await broker.requests.count_open_requests() == 0
        await broker.jobs.offer_job("default", "j1", b"look", 60_000)
    assert denied(server) == []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    (port,) = free_ports(1)
    with start_redis(tmp_path / "redis", port=port) as server:
        yield server


def as_user(server: RedisServer, *rights: str) -> str:
    """The URL of a user who has these rights and no others."""
    with closing(server.client()) as admin:
        admin.execute_command("ACL", "SETUSER", "dendro", "reset", "on", ">secret", *rights)
    return f"redis://dendro:secret@127.0.0.1:{server.port}"


def denied(server: RedisServer) -> list[object]:
    with closing(server.client()) as admin:
        return list(admin.execute_command("ACL LOG"))


@pytest.mark.realredis
@pytest.mark.slow
async def test_a_tree_lives_and_is_sealed_under_the_rights_that_the_page_names(
    server: RedisServer, tmp_path: Path
) -> None:
    url = as_user(server, *documented(), *documented_for("`dendro upkeep`"), *documented_for(NAMES))
    (tmp_path / "house").mkdir()
    house = House(tmp_path / "house", server, url)
    async with (
        asyncio.timeout(WITHIN_S),
        harness_on(house, Play(seed=2, sessions=1, trees=True)) as harness,
        watching(harness.people),
    ):
        await harness.fork_server.start()
        (person,) = harness.people
        await person.ask("tree 1: leaf exec fork down look end gather")
        await rested(harness)
        assert await violations(harness) == []
        environ = {**harness.fork_server.environ, "DENDRO_UPKEEP_SEAL_AFTER": "10"}
        async with running_upkeep(environ) as upkeep:
            await upkeep.saw("sealed through")
            assert await upkeep.is_told_to_end() == 0
    assert denied(server) == []


def settings_of(url: str, tmp_path: Path) -> Settings:
    return load_settings(SettingsSources(tmp_path, {"HOME": str(tmp_path), "DENDRO_REDIS_URL": url}))


@pytest.mark.realredis
@pytest.mark.parametrize(
    ("rights", "told", "diagnosed"),
    [
        (
            "~dendro:* +@all -zrem -xadd",
            r"rights: ACL SETUSER NAME \+xadd \+zrem$",
            "may not run xadd, zrem on",
        ),
        ("~other:* +@all", r"rights: ACL SETUSER NAME ~dendro:\*$", "may not run del, "),
        ("~dendro:* +@all -evalsha", "'evalsha' command; docs/operations.md", "'evalsha'"),
    ],
)
async def test_missing_rights_are_told_before_anything_is_done(
    server: RedisServer, tmp_path: Path, rights: str, told: str, diagnosed: str
) -> None:
    settings = settings_of(as_user(server, *rights.split()), tmp_path)
    with pytest.raises(Misconfigured, match=told):
        async with deployment(settings, settings.redis.url or ""):
            pass
    found = [finding for finding in await check_redis(settings) if finding.level == "missing"]
    assert [diagnosed in finding.detail for finding in found] == [True]
    with closing(server.client()) as admin:
        assert admin.keys() == []


@pytest.mark.realredis
def test_a_missing_right_is_one_line_at_the_terminal(server: RedisServer, tmp_path: Path) -> None:
    done = Machine.at(tmp_path, as_user(server, "~dendro:*", "+@all", "-zrem")).buried.run("sessions")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "ACL SETUSER NAME +zrem (`dendro doctor`" in done.stderr


@pytest.mark.realredis
async def test_the_doctor_needs_no_more_than_the_page_says(server: RedisServer, tmp_path: Path) -> None:
    rights = (*documented(), *documented_for("`dendro doctor`"), *documented_for(NAMES))
    settings = settings_of(as_user(server, *rights), tmp_path)
    assert "missing" not in {finding.level for finding in await check_redis(settings)}
    assert denied(server) == []


# ── names of connections ──────────────────────────────────────────────────────────────────────


def _connections(server: RedisServer) -> set[str]:
    """The names in `CLIENT LIST` but for that of who asks."""
    with closing(server.client()) as admin:
        found: Any = admin.client_list()
        return {client["name"] for client in found} - {""}


def _started(machine: Machine, *words: str) -> subprocess.Popen[str]:
    return machine.start(
        dendro(*words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=machine.folder,
        env=machine.environ,
    )


@pytest.mark.realredis
@pytest.mark.slow
async def test_client_list_says_what_each_process_is_and_where_it_runs(
    server: RedisServer, tmp_path: Path
) -> None:
    machine = Machine.at(tmp_path, url := f"redis://127.0.0.1:{server.port}").buried
    with ExitStack() as running:
        worker, gateway = (
            running.enter_context(_started(machine, word)) for word in ("worker", "app-server")
        )
        for process in (worker, gateway):
            running.callback(process.kill)
        assert worker.stderr is not None
        assert gateway.stdin is not None
        assert gateway.stdout is not None
        assert "serving" in worker.stderr.readline()
        hello = {"id": 1, "method": "initialize", "params": {"clientInfo": {"name": "t", "version": "1"}}}
        gateway.stdin.write(json.dumps(hello) + "\n")
        gateway.stdin.flush()
        assert "result" in gateway.stdout.readline()
        async with (
            running_upkeep(environment_for(url, tmp_path)) as upkeep,
            opened(settings_of(url, tmp_path)) as found,
        ):
            await (await (await Author(found.storage()).is_born()).writes(some_entries(40))).snapshots()
            await upkeep.saw("sealed through")
            pids = {"worker": worker.pid, "gateway": gateway.pid, "cli": os.getpid()}
            host = socket.gethostname()
            named = {f"dendro-{kind}-{host}-{pid}" for kind, pid in pids.items()}
            assert named <= _connections(server)
            assert f"dendro-upkeep-{host}-{upkeep.process.pid}" in _connections(server)


@pytest.mark.realredis
async def test_who_may_not_name_connections_works_without_names(server: RedisServer, tmp_path: Path) -> None:
    settings = settings_of(as_user(server, *documented()), tmp_path)
    async with deployment(settings, settings.redis.url or "") as found:
        assert await found.broker.logs.count_sessions() == 0
        assert _connections(server) == set()
    named = load_settings(
        SettingsSources(
            tmp_path,
            {"HOME": str(tmp_path), "DENDRO_REDIS_URL": f"redis://127.0.0.1:{server.port}?client_name=mine"},
        )
    )
    async with deployment(named, named.redis.url or ""):
        assert _connections(server) == {"mine"}, "a name in the URL counts"
