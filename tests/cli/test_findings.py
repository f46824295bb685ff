"""Findings of the doctor at the bounds of what it judges, and of several things of a kind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import doctor
from orchestrator.broker.embedded import OLDEST, ServerVersion
from orchestrator.broker.rights import ServerFacts
from orchestrator.broker.worker_state import WorkerState
from orchestrator.doctor import (
    Finding,
    check_fleet,
    check_redis,
    judge_clock,
    judge_mcp_servers,
    judge_model,
    judge_server,
    without_credentials,
)
from orchestrator.sandbox import probe
from orchestrator.settings import FolderConfig, Settings, SettingsSources, load_settings
from orchestrator.views.workers import FleetStats, SeenWorker

Load = Callable[..., Settings]
GOOD = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "maxmemory-policy": "noeviction",
    "min-replicas-to-write": "1",
    "min-replicas-max-lag": "2",
}
FACTS = ServerFacts(ServerVersion("redis", (7, 0, 15)), GOOD, 0, False, 0.0, 0.001)


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def loading(*overrides: str, **environ: str) -> Settings:
        base = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "OPENAI_API_KEY": "hush"}
        return load_settings(SettingsSources(tmp_path, {**base, **environ}, overrides=overrides))

    return loading


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://me:secret@h:6379/0", "redis://h:6379/0"),
        ("redis://:sec@ret@h/0", "redis://h/0"),
        ("rediss://h/0?password=secret&ssl_certfile=/c", "rediss://h/0"),
        ("redis+sentinel://a,b/name/0?password=sec@ret", "redis+sentinel://a,b/name/0"),
        ("https://h/v1#secret", "https://h/v1"),
        ("unix://:secret@/run/redis@2.sock", "unix://…"),
        ("file:///home/ann@example/archive", "file:///home/ann@example/archive"),
        # A password that holds what ends the host for whoever reads a URL.
        ("redis://:secret#secret@h/0", "redis://…"),
        ("redis://me:secret/secret@h/0", "redis://…"),
        ("redis://:secret?secret@h/0", "redis://…"),
        ("s3://key:secret/secret@bucket/place", "s3://…"),
        ("redis://me:secret@[::1", "redis://…"),
    ],
)
def test_address_is_shown_without_what_may_be_a_secret(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


@pytest.mark.parametrize("url", ["redis://me:secret@[::1", "reddis://h"])
async def test_address_that_names_no_server_is_a_finding_among_others(load: Load, url: str) -> None:
    settings = load(f"redis.url={url}")
    (finding,) = await check_redis(settings)
    assert finding.level == "missing"
    assert finding.detail.startswith(f"{without_credentials(url)}: redis.url names no server")
    assert await check_fleet(settings) == []


@pytest.mark.parametrize(
    ("changes", "name", "level"),
    [
        ({"clock_ahead_s": 1.0}, "clock", None),
        ({"clock_ahead_s": -1.0}, "clock", None),
        ({"clock_ahead_s": 1.01}, "clock", "warn"),
        ({"clock_ahead_s": -1.01}, "clock", "warn"),
        ({"version": ServerVersion("redis", (*OLDEST, 0))}, "redis", "ok"),
        ({"settings": {"stream-node-max-bytes": "1024"}}, "redis memory", None),
        ({"settings": {"stream-node-max-bytes": "1023"}}, "redis memory", "warn"),
        ({"settings": {"stream-node-max-bytes": "2049"}}, "redis memory", "warn"),
        ({"settings": {"hash-max-ziplist-value": "511"}}, "redis memory", "warn"),
        ({"settings": {"hash-max-listpack-value": "511"}}, "redis memory", "warn"),
        # Of the two names of one setting the newer one counts.
        (
            {"settings": {"hash-max-listpack-value": "512", "hash-max-ziplist-value": "64"}},
            "redis memory",
            None,
        ),
        (
            {"settings": {"hash-max-listpack-value": "64", "hash-max-ziplist-value": "512"}},
            "redis memory",
            "warn",
        ),
        ({"settings": {"timeout": "1"}}, "redis connections", "warn"),
        ({"settings": {"appendfsync": "always"}}, "redis log", "ok"),
        ({"replicas": 1}, "redis failover", None),
        ({"replicas": 1, "settings": {"min-replicas-max-lag": "3"}}, "redis failover", "warn"),
        ({"replicas": 1, "settings": {"min-replicas-to-write": "2"}}, "redis failover", None),
    ],
)
def test_server_is_judged_at_each_bound(
    load: Load, changes: dict[str, Any], name: str, level: str | None
) -> None:
    settings = {**GOOD, **changes.get("settings", {})}
    found = {
        one.name: one for one in judge_server(replace(FACTS, **{**changes, "settings": settings}), load())
    }
    assert (found[name].level if name in found else None) == level
    assert all(one.level == "ok" for other, one in found.items() if other != name)


def test_each_harm_of_a_server_is_a_finding_of_its_own(load: Load) -> None:
    harmful = {
        "appendonly": "no",
        "maxmemory-policy": "allkeys-lru",
        "timeout": "5",
        "stream-node-max-bytes": "1",
        "hash-max-ziplist-value": "1",
        "min-replicas-to-write": "0",
    }
    facts = replace(FACTS, settings=harmful, replicas=1, clock_ahead_s=5.0)
    found = [(one.name, one.level) for one in judge_server(facts, load()) if one.level != "ok"]
    assert sorted(found) == [
        ("clock", "warn"),
        ("redis connections", "warn"),
        ("redis failover", "warn"),
        ("redis log", "warn"),
        *[("redis memory", "warn")] * 3,
    ]


@pytest.mark.parametrize(("effects", "replicas", "missing"), [("wait", 1, True), ("wait", 2, False)])
def test_replicas_are_wanted_where_effects_wait_for_them(
    load: Load, effects: str, replicas: int, missing: bool
) -> None:
    facts = replace(FACTS, replicas=replicas)
    given = ("redis.wait_replicas=2", f"effects={effects}")
    assert ("redis replicas" in {one.name for one in judge_server(facts, load(*given))}) is missing
    assert "redis replicas" not in {one.name for one in judge_server(facts, load("redis.wait_replicas=2"))}


@pytest.mark.parametrize(
    ("free", "level"),
    [
        (doctor.LITTLE_SPACE, "ok"),
        (doctor.LITTLE_SPACE - 1, "warn"),
        (doctor.TOO_LITTLE_SPACE, "warn"),
        (doctor.TOO_LITTLE_SPACE - 1, "missing"),
    ],
)
def test_space_is_judged_at_each_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)
    assert doctor._judge_space(tmp_path / "to/be/made").level == level


@pytest.mark.parametrize("more", [0, 1])
def test_room_for_portable_folders_is_enough_at_its_bound(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    monkeypatch.setattr(probe, "probe", lambda: probe.SandboxSupport("/usr/bin/bwrap", 0, ()))
    usage = shutil.disk_usage(tmp_path)._replace(free=5_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)
    settings = load(f"workspace.root={tmp_path.resolve()}/copies", f"workspace.min_free={5_000 + more}")
    (found,) = doctor._check_workspaces(settings)
    assert found.level == ("warn" if more else "ok")


def test_clock_is_set_from_its_bound_on() -> None:
    (before,), (at,) = (judge_clock(doctor.EARLIEST_TIME_S - 0.5), judge_clock(doctor.EARLIEST_TIME_S))
    assert (before.level, at.level) == ("missing", "ok")


# --- the deployment


def worker(name: str, *remarks: str, silent: bool = False, draining: bool = False) -> SeenWorker:
    return SeenWorker(name, WorkerState(("default",), 0, 1, draining=draining), 0, silent, remarks)


@pytest.mark.parametrize(
    ("workers", "none"),
    [
        ((), True),
        ((worker("a", silent=True), worker("b", draining=True)), True),
        ((worker("a", silent=True), worker("b", draining=True), worker("c")), False),
        ((worker("c"), worker("a", silent=True)), False),
    ],
)
def test_deployment_lacks_a_worker_unless_one_of_them_serves(
    workers: tuple[SeenWorker, ...], none: bool
) -> None:
    found = [one for one in doctor._of_workers(workers) if "none serves" in one.detail]
    assert bool(found) is none


@pytest.mark.parametrize("more", [0, 1])
def test_each_remark_about_a_worker_that_is_heard_from_is_told_up_to_a_bound(more: int) -> None:
    workers = [
        worker("gone", "not heard from", silent=True),
        worker("first", "one", "two"),
        *(worker(f"w{number}", "old") for number in range(doctor.MOST - 2 + more)),
    ]
    found = [one.detail for one in doctor._of_workers(workers)]
    told = ["first: one", "first: two", *(f"w{number}: old" for number in range(doctor.MOST - 2))]
    assert found == told


@pytest.mark.parametrize("more", [0, 1])
def test_sessions_that_wait_are_told_of_each_machine_up_to_a_bound(more: int) -> None:
    waiting = {f"m{number}": [f"s{number}", "other"] for number in range(doctor.MOST + more)}
    found = list(doctor._of_sessions(FleetStats((), 0, 0, 0, 0, 0, 0, waiting)))
    assert len(found) == doctor.MOST
    for number, one in enumerate(found):
        assert f"machine m{number}, where no worker is: s{number}, other" in one.detail
        assert f"dendro revoke s{number} " in one.remedy


# --- servers of tools, models, settings


def test_each_variable_that_a_server_of_tools_needs_is_named(load: Load) -> None:
    found = load(
        'mcp_servers.all={command="/bin/sh", env_vars=["ONE", "EMPTY", "TWO"]}',
        'mcp_servers.web={url="http://x/mcp", bearer_token_env_var="TOKEN", env_http_headers={A="HEAD"}}',
        'mcp_servers.own={command="/bin/sh", env_vars=["IS"]}',
        'mcp_servers.here={command="./tools/run"}',
        EMPTY="",
        IS="there",
    )
    shown = {one.detail.partition(":")[0]: one for one in judge_mcp_servers(found)}
    assert shown["all"].detail.endswith("but ONE, EMPTY, TWO is not set")
    assert shown["all"].remedy == "export ONE=…"
    assert shown["web"].detail.endswith("but HEAD, TOKEN is not set")
    assert (shown["own"].level, shown["here"].level) == ("ok", "ok")


def test_program_of_a_server_is_looked_for_on_the_path_that_the_server_gets(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []

    def find(name: str, search_path: str) -> None:
        looked.append((name, search_path))

    monkeypatch.setattr(doctor, "find_named_program", find)
    settings = load(
        'mcp_servers.own={command="one", env={PATH="/opt/bin"}}', 'mcp_servers.plain={command="two"}'
    )
    assert [one.level for one in judge_mcp_servers(settings)] == ["warn", "warn"]
    assert looked == [("one", "/opt/bin"), ("two", "/usr/bin:/bin")]


@pytest.mark.parametrize(
    ("given", "environ", "level", "words", "remedy"),
    [
        ((), {}, "ok", "key from OPENAI_API_KEY", ""),
        ((), {"OPENAI_API_KEY": ""}, "warn", "OPENAI_API_KEY is not set", "export OPENAI_API_KEY=…"),
        (
            ("model_providers.openai.env_key_instructions='ask Ann'",),
            {"OPENAI_API_KEY": ""},
            "warn",
            "OPENAI_API_KEY is not set",
            "ask Ann",
        ),
        (
            ("model_providers.mine={name='Mine', base_url='http://127.0.0.1:1/v1'}", "model_provider='mine'"),
            {},
            "ok",
            "127.0.0.1:1/v1 (Mine), no key needed",
            "",
        ),
    ],
)
def test_key_of_the_model_is_told_by_where_it_comes_from(
    load: Load, given: tuple[str, ...], environ: dict[str, str], level: str, words: str, remedy: str
) -> None:
    (found,) = judge_model(load(*given, **environ))
    assert (found.level, found.remedy) == (level, remedy)
    assert words in found.detail
    assert "hush" not in found.detail


@pytest.mark.parametrize(
    ("trusted", "ignored"), [(True, ()), (False, ()), (False, ("model",)), (False, ("model", "notify"))]
)
def test_settings_of_the_folder_are_told_with_what_they_may_not_set(
    load: Load, tmp_path: Path, trusted: bool, ignored: tuple[str, ...]
) -> None:
    place = tmp_path / "a folder/dendro.toml"
    settings = replace(load(), folder_config=FolderConfig(place, trusted, ignored))
    (_, found, *_) = doctor._judge_settings(settings)
    if ignored:
        assert found.detail == f"{place} is not trusted and may not set {', '.join(ignored)}"
        assert (found.level, found.remedy) == ("warn", f"read it, then: dendro trust '{place}'")
    else:
        assert found == Finding("settings", "ok", f"{place}, {'trusted' if trusted else 'this folder'}")
