"""The doctor: names what is missing and the remedy, with the exit code that scripts rely on."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from rich.console import Console

from orchestrator import doctor as doctor
from orchestrator.broker.embedded import EmbeddedConfig, EmbeddedRedis, ServerVersion
from orchestrator.broker.rights import ServerFacts
from orchestrator.broker.worker_state import WorkerState, encoded
from orchestrator.cli.doctor import render
from orchestrator.doctor import (
    Finding,
    as_json,
    check_fleet,
    check_pack_keys,
    diagnose,
    exit_code,
    judge_access,
    judge_clock,
    judge_data,
    judge_mcp_servers,
    judge_model,
    judge_rules,
    judge_server,
)
from orchestrator.rollouts.object_store import Objects
from orchestrator.sandbox import probe
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.wiring.deployment import open_broker
from orchestrator.workspaces.pack_keys import PackKeys, new_file
from orchestrator.workspaces.stored_packs import Packs
from tests.workers.upkeep_process import environment_for, running_upkeep
from tests.workspaces.test_packs import file_with, name_of

GOOD = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
    "stream-node-max-bytes": "2048",
    "hash-max-ziplist-value": "512",
    "timeout": "0",
}
FACTS = ServerFacts(ServerVersion("redis", (7, 0, 15)), GOOD, 0, False, 0.0, 0.001)

Load = Callable[..., Settings]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def loading(*overrides: str, **environ: str) -> Settings:
        base = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "OPENAI_API_KEY": "hush"}
        return load_settings(SettingsSources(tmp_path, {**base, **environ}, overrides=overrides))

    return loading


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A server that does not belong to the user whom the doctor looks at."""
    with EmbeddedRedis.acquire(EmbeddedConfig(tmp_path / "other", os.environ["PATH"], "here")) as running:
        yield running


def _by_name(findings: list[Finding], name: str) -> Finding:
    (found,) = (finding for finding in findings if finding.name == name)
    return found


def _judged(asked: Settings, **changes: object) -> list[Finding]:
    return list(judge_server(replace(FACTS, **changes), asked))  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["redis://127.0.0.1:6379/0", "redis://me@h/0", "redis+sentinel://a,b/name/0"])
def test_server_without_a_password_is_a_risk(load: Load, url: str) -> None:
    (found,) = judge_access(load(f"redis.url={url!r}"))
    assert (found.level, "asks for no password" in found.detail) == ("warn", True)
    assert "network_access" not in found.detail


def test_server_without_a_password_belongs_to_agents_that_have_the_network(load: Load) -> None:
    given = ("redis.url='redis://h/0'", "sandbox_mode='workspace-write'")
    (found,) = judge_access(load(*given, "sandbox_workspace_write.network_access=true"))
    assert "so can commands of agents" in found.detail


@pytest.mark.parametrize(
    "url",
    ["unix:///run/redis/s", "redis://:secret@h/0", "rediss://me:secret@h/0", "rediss://h/0?ssl_certfile=/c"],
)
def test_server_that_asks_who_comes_is_no_finding(load: Load, url: str) -> None:
    assert list(judge_access(load(f"redis.url={url!r}"))) == []


# --- the model


def test_way_to_the_model_is_shown_without_its_password(load: Load) -> None:
    (found,) = judge_model(load(HTTPS_PROXY="http://me:hidden@gate:3128"))
    assert found.level == "ok"
    assert "through the proxy http://gate:3128" in found.detail
    assert "hidden" not in found.detail


def test_model_that_is_asked_by_chat_completions_is_named_so(load: Load) -> None:
    (responses,), (chat,) = (
        judge_model(load(*given)) for given in ((), ("model_providers.openai.wire_api='chat'",))
    )
    assert "by chat completions" in chat.detail
    assert "by chat completions" not in responses.detail


@pytest.mark.parametrize(
    ("environ", "words"),
    [({"ALL_PROXY": "socks5://gate"}, "SOCKS"), ({"SSL_CERT_FILE": "/missing.pem"}, "/missing.pem")],
)
def test_way_to_the_model_that_leads_nowhere_is_named(
    load: Load, environ: dict[str, str], words: str
) -> None:
    (found,) = judge_model(load(**environ))
    assert found.level == "warn"
    assert words in found.remedy


# --- Redis


def test_good_server_needs_nothing(load: Load) -> None:
    assert {finding.level for finding in _judged(load())} == {"ok"}


@pytest.mark.parametrize(
    ("found", "name", "level", "remedy"),
    [
        ({"appendonly": "no"}, "redis log", "warn", "appendonly yes"),
        ({"appendfsync": "no"}, "redis log", "warn", "appendfsync everysec"),
        ({"maxmemory-policy": "allkeys-lru"}, "redis memory", "warn", "noeviction"),
        ({"maxmemory-policy": "allkeys-lru", "maxmemory": "1"}, "redis memory", "missing", "noeviction"),
        ({"stream-node-max-bytes": "4096"}, "redis memory", "warn", "stream-node-max-bytes 2048"),
        ({"stream-node-max-bytes": "512"}, "redis memory", "warn", "stream-node-max-bytes 2048"),
        ({"stream-node-max-bytes": "0"}, "redis memory", "warn", "stream-node-max-bytes 2048"),
        ({"hash-max-ziplist-value": "64"}, "redis memory", "warn", "hash-max-ziplist-value 512"),
        ({"hash-max-listpack-value": "64"}, "redis memory", "warn", "hash-max-ziplist-value 512"),
        ({"timeout": "60"}, "redis connections", "warn", "timeout 0"),
    ],
)
def test_each_harmful_setting_is_named_with_its_remedy(
    load: Load, found: dict[str, str], name: str, level: str, remedy: str
) -> None:
    finding = _by_name(_judged(load(), settings={**GOOD, **found}), name)
    assert finding.level == level
    assert remedy in finding.remedy


def test_server_of_a_version_that_was_never_tried_is_refused(load: Load) -> None:
    old = _by_name(_judged(load(), version=ServerVersion("redis", (6, 0, 16))), "redis")
    assert (old.level, "6.2" in old.remedy) == ("missing", True)
    valkey = _by_name(_judged(load(), version=ServerVersion("valkey", (8, 0, 1))), "redis")
    assert valkey.level == "ok"


def test_server_that_hides_its_settings_is_a_warning(load: Load) -> None:
    assert _by_name(_judged(load(), settings=None), "redis settings").level == "warn"


def test_waiting_for_replicas_that_are_not_there_is_refused(load: Load) -> None:
    settings = load("effects=wait", "redis.wait_replicas=2")
    assert _by_name(_judged(settings, replicas=1), "redis replicas").level == "missing"
    guarded = {**GOOD, "min-replicas-to-write": "1", "min-replicas-max-lag": "2"}
    assert {finding.level for finding in _judged(settings, replicas=2, settings=guarded)} == {"ok"}


@pytest.mark.parametrize(
    "found",
    [
        {"min-replicas-to-write": "0"},
        {"min-replicas-to-write": "1", "min-replicas-max-lag": "10"},
    ],
)
def test_primary_that_serves_on_when_it_is_cut_off_is_a_warning(load: Load, found: dict[str, str]) -> None:
    settings = {**GOOD, **found}
    finding = _by_name(_judged(load(), settings=settings, replicas=1), "redis failover")
    assert finding.level == "warn"
    assert "min-replicas-max-lag 2" in finding.remedy
    assert {one.level for one in _judged(load(), settings=settings)} == {"ok"}, (
        "it has nobody to be cut off from"
    )


def test_cluster_must_be_declared(load: Load) -> None:
    undeclared = _by_name(_judged(load(), clustered=True), "redis")
    assert (undeclared.level, undeclared.remedy) == ("missing", "set redis.cluster = true")
    declared = load("redis.cluster=true", "upkeep.url=redis://one")
    assert _by_name(_judged(declared, clustered=True), "redis").level == "ok"
    assert _by_name(_judged(declared), "redis").remedy == "set redis.cluster = false"


def test_clock_that_differs_from_the_servers_is_a_warning(load: Load) -> None:
    assert _by_name(_judged(load(), clock_ahead_s=-2.5), "clock").detail.startswith("the server's is -2.5 s")


@pytest.mark.realredis
async def test_private_server_is_started_judged_and_stopped(load: Load) -> None:
    settings = load()
    findings = await diagnose(settings)
    assert _by_name(findings, "redis").level == "ok"
    assert "private server" in _by_name(findings, "redis").detail
    assert _by_name(findings, "redis log").level == "ok"
    assert json.loads((settings.home / "redis/server.json").read_text())["host"] == ""


@pytest.mark.realredis
async def test_settings_of_a_running_server_are_judged(load: Load, server: EmbeddedRedis) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.config_set("appendonly", "no")
        client.config_set("stream-node-max-bytes", "4096")
    findings = await diagnose(load(DENDRO_REDIS_URL=server.url))
    assert _by_name(findings, "redis").level == "ok"
    assert _by_name(findings, "redis log").level == "warn"
    assert _by_name(findings, "redis memory").level == "warn"


@pytest.mark.realredis
async def test_user_who_may_not_read_the_settings_is_told_so(load: Load, server: EmbeddedRedis) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "limited", "on", ">pw", "~*", "+@all", "-config")
    url = server.url.replace("unix://", "unix://limited:pw@")
    findings = await diagnose(load(DENDRO_REDIS_URL=url))
    assert _by_name(findings, "redis settings").level == "warn"
    assert "pw@" not in as_json(findings)


async def test_unreachable_server_is_missing_and_its_password_not_shown(load: Load, tmp_path: Path) -> None:
    url = f"unix://:hush@{tmp_path}/nobody.sock"
    findings = await diagnose(load(DENDRO_REDIS_URL=url))
    found = _by_name(findings, "redis")
    assert found.level == "missing"
    assert "DENDRO_REDIS_URL" in found.remedy
    assert exit_code(findings) == 2
    assert "hush" not in as_json(findings)


async def test_machine_without_a_server_is_told_how_to_install_one(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.broker.embedded.importlib.util.find_spec", lambda name: None)
    findings = await diagnose(load(PATH="/nowhere"))
    assert "apt install redis-server" in _by_name(findings, "redis").remedy
    assert _by_name(findings, "git").level == "warn"


@pytest.mark.realredis
async def test_upkeep_server_that_is_down_stops_nothing_else(
    load: Load, server: EmbeddedRedis, tmp_path: Path
) -> None:
    settings = load(DENDRO_REDIS_URL=server.url, DENDRO_UPKEEP_URL=f"unix://{tmp_path}/nobody.sock")
    findings = await diagnose(settings)
    assert _by_name(findings, "upkeep").level == "warn"
    assert _by_name(findings, "redis").level == "ok"
    up = await diagnose(load(DENDRO_REDIS_URL=server.url, DENDRO_UPKEEP_URL=server.url + "?db=1"))
    assert _by_name(up, "upkeep").level == "ok"


@pytest.mark.realredis
async def test_deployment_without_a_worker_or_upkeep_is_told_so(
    load: Load, server: EmbeddedRedis, tmp_path: Path
) -> None:
    settings = load(DENDRO_REDIS_URL=server.url)
    alone = {finding.name: finding for finding in await check_fleet(settings)}
    assert {name: finding.level for name, finding in alone.items()} == {
        "workers": "warn",
        "upkeep process": "warn",
    }
    assert "none serves" in alone["workers"].detail
    assert "dendro worker" in alone["workers"].remedy
    assert "dendro upkeep" in alone["upkeep process"].remedy
    broker = open_broker(settings, server.url, 5)
    await broker.claims.heartbeat("w-1", encoded(WorkerState(("default",), 0, 1)))
    await broker.aclose()
    assert not any("none serves" in finding.detail for finding in await check_fleet(settings))
    async with running_upkeep(environment_for(server.url, tmp_path)), asyncio.timeout(90):
        while "upkeep process" in {finding.name for finding in await check_fleet(settings)}:
            # A key tells nobody that it was made.
            await asyncio.sleep(0.05)


# --- The machine


def _sandbox(monkeypatch: pytest.MonkeyPatch, bubblewrap: str | None, abi: int, *why: str) -> None:
    monkeypatch.setattr(probe, "probe", lambda: probe.SandboxSupport(bubblewrap, abi, why))


@pytest.mark.parametrize(
    ("bubblewrap", "abi", "mechanism", "level"),
    [
        ("/usr/bin/bwrap", 0, "auto", "ok"),
        (None, 4, "auto", "ok"),
        (None, 0, "auto", "missing"),
        (None, 4, "bubblewrap", "missing"),
        ("/usr/bin/bwrap", 0, "landlock", "missing"),
    ],
)
async def test_confinement_is_judged_by_what_the_settings_ask_for(
    load: Load,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    bubblewrap: str | None,
    abi: int,
    mechanism: str,
    level: str,
) -> None:
    _sandbox(monkeypatch, bubblewrap, abi, "user namespaces are switched off")
    settings = load(f"sandbox.mechanism={mechanism}", DENDRO_REDIS_URL=f"unix://{tmp_path}/nobody.sock")
    found = _by_name(await diagnose(settings), "sandbox")
    assert found.level == level
    assert "switched off" in found.detail
    assert bool(found.remedy) is (level == "missing")


async def test_what_landlock_cannot_hold_here_is_named(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _sandbox(monkeypatch, None, 7)
    url = f"unix://{tmp_path}/nobody.sock"
    gaps = [
        found.detail for found in await diagnose(load(DENDRO_REDIS_URL=url)) if found.name == "sandbox gap"
    ]
    assert any(".git and dendro.toml" in gap for gap in gaps)
    _sandbox(monkeypatch, "/usr/bin/bwrap", 7)
    assert all(found.name != "sandbox gap" for found in await diagnose(load(DENDRO_REDIS_URL=url)))


async def test_unconfined_sessions_need_no_sandbox(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _sandbox(monkeypatch, None, 0)
    settings = load("sandbox_mode=danger-full-access", DENDRO_REDIS_URL=f"unix://{tmp_path}/nobody.sock")
    assert _by_name(await diagnose(settings), "sandbox").level == "warn"


async def test_missing_key_is_a_warning_with_the_command_to_set_it(load: Load, tmp_path: Path) -> None:
    nowhere = f"unix://{tmp_path}/nobody.sock"
    without = _by_name(await diagnose(load(OPENAI_API_KEY="", DENDRO_REDIS_URL=nowhere)), "model")
    assert (without.level, without.remedy) == ("warn", "export OPENAI_API_KEY=…")
    findings = await diagnose(load(DENDRO_REDIS_URL=nowhere))
    assert _by_name(findings, "model").level == "ok"
    assert "hush" not in as_json(findings)


async def test_folders_that_cannot_be_written_are_named(load: Load, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    settings = load(
        f"upkeep.archive_url=file://{blocked}/archive",
        DENDRO_HOME=str(blocked / "home"),
        DENDRO_REDIS_URL=f"unix://{tmp_path}/nobody.sock",
    )
    findings = await diagnose(settings)
    assert "DENDRO_HOME" in _by_name(findings, "home").remedy
    assert "archive_url" in _by_name(findings, "archive").remedy
    assert exit_code(findings) == 2
    unknown = await diagnose(
        load("upkeep.archive_url=foo://x", DENDRO_REDIS_URL=f"unix://{tmp_path}/no.sock")
    )
    assert _by_name(unknown, "archive").level == "missing"
    assert "correct upkeep.archive_url" in _by_name(unknown, "archive").remedy


async def test_machine_that_can_make_no_portable_folder_says_why(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def found(*overrides: str) -> Finding:
        (finding,) = doctor._check_workspaces(load(*overrides))
        return finding

    _sandbox(monkeypatch, "/usr/bin/bwrap", 0)
    root = f"workspace.root={tmp_path}/workspaces"
    assert found(root, "workspace.min_free=0").level == "ok"
    assert "workspace.min_free" in found(root, "workspace.min_free=9000000000000000").detail
    (tmp_path / "link").symlink_to(tmp_path)
    assert "symbolic link" in found(f"workspace.root={tmp_path}/link/workspaces").detail
    (tmp_path / "file").write_text("no folder")
    assert "cannot be written" in found(f"workspace.root={tmp_path}/file/workspaces").detail
    assert "set it to auto" in found(root, "sandbox.mechanism=landlock").detail
    _sandbox(monkeypatch, None, 7, "no bwrap on PATH")
    assert "no bwrap on PATH" in found(root).detail


async def test_little_space_is_named_before_it_is_none(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = load(DENDRO_REDIS_URL=f"unix://{tmp_path}/nobody.sock")
    for free, level in ((10 * doctor.GIB, "ok"), (doctor.GIB, "warn"), (1000, "missing")):
        usage = shutil.disk_usage(tmp_path)._replace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda place, usage=usage: usage)
        assert _by_name(await diagnose(settings), "disk").level == level


def test_clock_that_was_never_set_is_missing() -> None:
    assert [finding.level for finding in judge_clock(0.0)] == ["missing"]
    assert [finding.level for finding in judge_clock(2e9)] == ["ok"]


async def test_warnings_of_the_settings_are_shown(load: Load, tmp_path: Path) -> None:
    findings = await diagnose(load("modle=x", DENDRO_REDIS_URL=f"unix://{tmp_path}/nobody.sock"))
    assert any("did you mean model?" in finding.detail for finding in findings)


# --- What is shown


def test_findings_are_shown_with_their_remedies_below() -> None:
    console = Console(file=io.StringIO(), width=60)
    render([Finding("redis", "missing", "[no] answer", "start it"), Finding("git", "ok", "2.39")], console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"✗\s+redis\s+\[no\] answer\s*\n\s+→ start it\s*\n✓\s+git\s+2\.39", shown)


@pytest.mark.parametrize("char", ["\x1b", "\x9b", "\u202e", "\r", "\ud800"])
@pytest.mark.parametrize("place", ["name", "detail", "remedy"])
def test_no_text_of_a_finding_steers_the_terminal_or_begins_a_line(place: str, char: str) -> None:
    """It may name a key of a stranger's file, or a worker's word."""
    console = Console(file=io.StringIO(), width=60)
    texts = {"name": "rules", "detail": "is odd", "remedy": "mend it", place: f"a{char}\n✗ forged"}
    render([Finding(texts["name"], "warn", texts["detail"], texts["remedy"])], console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert char not in "".join(lines)
    assert any("forged" in line for line in lines)
    assert not any(line.startswith("✗") for line in lines)


def test_paths_longer_than_a_line_are_shown_whole() -> None:
    console = Console(file=io.StringIO(), width=60)
    detail = f"[Errno 16] Device or resource busy: '/sys/{'deep/' * 30}cgroup.procs'"
    render([Finding("sandbox", "ok", detail)], console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.sub(r"\s", "", detail) in re.sub(r"\s", "", shown)


def test_programs_get_json() -> None:
    assert json.loads(as_json([Finding("git", "ok", "2.39")])) == [
        {"name": "git", "level": "ok", "detail": "2.39", "remedy": ""}
    ]


def test_only_what_is_missing_makes_the_doctor_fail() -> None:
    assert exit_code([Finding("a", "ok", ""), Finding("b", "warn", "")]) == 0
    assert exit_code([Finding("a", "ok", ""), Finding("b", "missing", "")]) == 2


def test_doctor_names_what_an_mcp_server_lacks_and_starts_none(load: Load, tmp_path: Path) -> None:
    made = tmp_path / "made.txt"
    found = load(
        f'mcp_servers.good={{command="/bin/sh", args=["-c", "touch {made}"]}}',
        'mcp_servers.gone={command="no-such-program"}',
        'mcp_servers.lost={command="/no/such/program"}',
        'mcp_servers.off={command="no-such-program", enabled=false}',
        'mcp_servers.web={url="http://ann:hush@x/mcp", bearer_token_env_var="WEB_TOKEN"}',
    )
    shown = [(each.level, each.detail, each.remedy) for each in judge_mcp_servers(found)]
    assert shown == [
        ("ok", "good: /bin/sh", ""),
        (
            "warn",
            "gone: no-such-program, but it is not on PATH outside of projects and temporary folders",
            "install it, or name it by its path in mcp_servers.gone.command",
        ),
        (
            "warn",
            "lost: /no/such/program, but it is not there, or cannot be run",
            "install it, or correct mcp_servers.lost.command",
        ),
        ("ok", "off: no-such-program, not enabled", ""),
        ("warn", "web: http://x/mcp, but WEB_TOKEN is not set", "export WEB_TOKEN=…"),
    ]
    assert not made.exists()


def test_each_rule_file_with_an_error_is_shown_with_its_line(load: Load) -> None:
    found = load()
    assert list(judge_rules(found)) == []
    (found.home / "rules").mkdir(parents=True)
    (found.home / "rules" / "a.rules").write_text("prefix_rule(pattern=['a'])\nprefix_rule(pattern=['b'])")
    (found.home / "rules" / "b.rules").write_text("\nnonsense")
    (found.home / "rules" / "c.rules").write_text("prefix_rule()")
    shown = [(each.level, each.detail) for each in judge_rules(found)]
    assert [level for level, _ in shown] == ["warn", "warn", "ok"]
    for (_, detail), place in zip(shown, ("b.rules: line 2", "c.rules: line 1"), strict=False):
        assert f"{found.home}/rules/{place}: " in detail
    assert shown[2][1] == "2 rules about commands"


# --- keys of packs


async def test_keys_of_packs_are_tried_on_the_newest_pack(load: Load, tmp_path: Path) -> None:
    file = tmp_path / "pack.keys"
    given = (f"workspace.key_file='{file}'", f"upkeep.archive_url='{(tmp_path / 'archive').as_uri()}'")
    settings = load(*given)
    assert await check_pack_keys(load()) == []

    async def found(level: str) -> str:
        (finding,) = await check_pack_keys(settings)
        assert (finding.name, finding.level) == ("workspace keys", level), finding
        assert bool(finding.remedy) == (level != "ok")
        return finding.detail

    assert "there is no file" in await found("missing")
    key = new_file(file)
    assert f"key {key.id} writes; the store has no pack" in await found("ok")
    objects = Objects(settings.upkeep.archive_url)
    await Packs(objects, PackKeys(file)).put(name_of(b"x"), file_with(tmp_path, b"x"))
    assert "the newest pack opens" in await found("ok")
    await Packs(objects).put(name_of(b"x"), file_with(tmp_path, b"x"))
    assert "is not encrypted" in await found("warn")
    await Packs(objects, PackKeys(file)).put(name_of(b"x"), file_with(tmp_path, b"x"))
    file.unlink()
    new_file(file)
    assert f"is encrypted with key {key.id}" in await found("warn")
    file.chmod(0o644)
    assert f"chmod 600 {file}" in await found("missing")


def test_server_that_passes_over_a_newer_log_in_its_folder_is_named(load: Load, tmp_path: Path) -> None:
    log = tmp_path / "appendonlydir"
    log.mkdir()
    (log / "appendonly.aof.1.base.rdb").write_bytes(
        b"REDIS0010\xfa\tredis-ver\x067.0.15\xfa\nredis-bits\xc0@"
    )
    facts = replace(
        FACTS, version=ServerVersion("redis", (6, 2, 14)), settings={**GOOD, "dir": str(tmp_path)}
    )
    (found,) = judge_data(facts)
    assert (found.level, found.name) == ("missing", "redis data")
    assert f"{tmp_path} holds the data of redis 7.0.15, which redis 6.2.14 cannot read" in found.detail
    assert "start redis 7.0.15 or newer" in found.remedy
    assert list(judge_data(replace(facts, version=ServerVersion("redis", (7, 0, 0))))) == []
    assert list(judge_data(replace(facts, settings=None))) == []
