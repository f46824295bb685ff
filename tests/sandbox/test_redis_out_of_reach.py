"""A running command does not reach Redis: not when the server comes back, not when it first comes."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from orchestrator.sandbox.kernel import CLOCK_BOOTTIME
from orchestrator.sandbox.policy_paths import Confinement, resolve
from orchestrator.sandbox.probe import Preference, SandboxSupport, probe
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.tools.exec.command import Command, Finished
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorConfig
from orchestrator.wiring.new_sessions import guide
from orchestrator.wiring.worker_parts import hidden_paths
from tests.servers import RedisServer, debian_redis, required

pytestmark = pytest.mark.sandbox

MECHANISMS: tuple[Preference, ...] = ("bubblewrap", "landlock")
CONNECT = """
import socket, sys
open("up", "w").write("up")
open("go").read()
redis = socket.socket(socket.AF_UNIX)
redis.connect(sys.argv[1])
redis.sendall(b"SET reached 1\\r\\n")
print(redis.recv(100))
"""


@pytest.fixture(scope="session")
def machine() -> SandboxSupport:
    return probe()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path / "data", required(debian_redis(), "redis-server"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    for name in ("up", "go"):
        os.mkfifo(folder / name)
    return folder


def settings(folder: Path, *overrides: str) -> Settings:
    return load_settings(SettingsSources(folder, {"HOME": str(folder / "home")}, overrides=overrides))


def confinement(workspace: Path, url: str, mode: str = "workspace-write", **fields: object) -> Confinement:
    hidden = hidden_paths(settings(workspace.parent, f"redis.url={url!r}"), url)
    policy = {"mode": mode, **fields}
    return resolve(policy, workspace, None, hidden=hidden, unix_sockets=True)


async def tried(
    machine: SandboxSupport, prefer: Preference, bounds: Confinement, server: RedisServer, change: object
) -> Finished:
    """Runs the command, changes the server while it runs, and lets it connect."""
    if not (machine.bubblewrap if prefer == "bubblewrap" else machine.landlock_abi):
        pytest.skip("; ".join(machine.why))
    supervisor = await Supervisor.start(SupervisorConfig(machine, prefer))
    supervisor.extend("claim", time.clock_gettime(CLOCK_BOOTTIME) + 60)
    argv = (sys.executable, "-I", "-c", CONNECT, str(server.socket))
    command = Command("claim", "call", argv, bounds.cwd, {"PATH": os.defpath}, bounds, 30.0)
    try:
        running = asyncio.ensure_future(supervisor.run(command, lambda *_: None))
        async with asyncio.timeout(30):
            await asyncio.to_thread((bounds.cwd / "up").read_text)
            assert callable(change)
            await asyncio.to_thread(change)
            await asyncio.to_thread((bounds.cwd / "go").write_text, "go")
            return await running
    finally:
        await supervisor.close()


def is_untouched(server: RedisServer) -> bool:
    with Redis.from_url(server.url) as client:
        return client.get("reached") is None


@pytest.mark.parametrize("prefer", MECHANISMS)
async def test_command_does_not_reach_a_server_that_starts_again_while_it_runs(
    prefer: Preference, machine: SandboxSupport, server: RedisServer, workspace: Path
) -> None:
    server.start()
    finished = await tried(machine, prefer, confinement(workspace, server.url), server, server.restart)
    assert finished.exit_code != 0
    assert is_untouched(server)


@pytest.mark.parametrize("prefer", MECHANISMS)
async def test_command_does_not_reach_a_server_that_was_away_when_it_began(
    prefer: Preference, machine: SandboxSupport, server: RedisServer, workspace: Path
) -> None:
    bounds = confinement(workspace, server.url)
    finished = await tried(machine, prefer, bounds, server, server.start)
    assert finished.exit_code != 0
    assert is_untouched(server)


@pytest.mark.parametrize("prefer", MECHANISMS)
async def test_no_socket_in_a_folder_that_cannot_be_hidden_is_reached(
    prefer: Preference, machine: SandboxSupport, server: RedisServer, workspace: Path
) -> None:
    bounds = dataclasses.replace(confinement(workspace, "unix:///tmp/redis.sock"), hidden=())
    assert not bounds.unix_sockets, "although they are set"
    finished = await tried(machine, prefer, bounds, server, server.start)
    assert b"Operation not permitted" in finished.stderr
    assert is_untouched(server)


def test_private_servers_folders_are_hidden_wherever_it_goes(tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    environ = {"HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": str(runtime)}
    found = hidden_paths(load_settings(SettingsSources(tmp_path, environ)), f"unix://{runtime}/dendro-1.sock")
    home = tmp_path / "home/.local/share/dendro"
    assert found == (home, Path(f"/tmp/dendro-{os.geteuid()}"), runtime)
    assert Path(f"/tmp/dendro-{os.geteuid()}").is_dir(), "a command must not be the first to make it"


def test_archive_of_other_sessions_is_hidden_wherever_it_is(tmp_path: Path) -> None:
    archive = tmp_path / "a b"
    archive.mkdir()
    found = hidden_paths(settings(tmp_path, f"upkeep.archive_url='{archive.as_uri()}'"), "redis://h/0")
    assert archive in found
    assert Path("/") not in hidden_paths(
        settings(tmp_path, "upkeep.archive_url='s3://bucket/x'"), "redis://h/0"
    )


def test_archive_that_is_not_there_yet_is_made_and_hidden_from_the_first_command_on(tmp_path: Path) -> None:
    archive = tmp_path / "srv" / "archive"
    found = hidden_paths(settings(tmp_path, f"upkeep.archive_url='{archive.as_uri()}'"), "redis://h/0")
    assert archive in found
    assert stat.S_IMODE(archive.stat().st_mode) == 0o700
    (tmp_path / "file").write_text("no folder")
    blocked = tmp_path / "file" / "archive"
    assert blocked in hidden_paths(
        settings(tmp_path, f"upkeep.archive_url='{blocked.as_uri()}'"), "redis://h/0"
    ), "it may be mounted later"


def test_folder_that_commands_need_is_not_hidden_with_the_socket_in_it(tmp_path: Path) -> None:
    for url, path in (("unix:///run/redis.sock", "/run/redis.sock"), ("unix:///run/redis/s", "/run/redis")):
        assert hidden_paths(settings(tmp_path, f"redis.url={url!r}"), url)[-1] == Path(path)


def test_keys_of_packs_are_hidden_with_their_folder_unless_commands_need_it(tmp_path: Path) -> None:
    for file, hidden in (
        ("/srv/dendro/pack.keys", "/srv/dendro"),
        ("/etc/pack.keys", "/etc/pack.keys"),
        (f"{tmp_path}/pack.keys", f"{tmp_path}/pack.keys"),
        (f"{tmp_path.parent}/pack.keys", f"{tmp_path.parent}/pack.keys"),
    ):
        found = hidden_paths(settings(tmp_path, f"workspace.key_file={file!r}"), "redis://h/0")
        assert found[-1] == Path(hidden)


def test_key_state_and_registers_of_a_notary_are_hidden_wherever_they_are(tmp_path: Path) -> None:
    for name in ("keys", "state", "register"):
        (tmp_path / name).mkdir()
    told = (
        f"receipts.key_file='{tmp_path}/keys/notary.key'",
        f"receipts.state='{tmp_path}/state'",
        f"receipts.url='{(tmp_path / 'register').as_uri()}'",
    )
    found = hidden_paths(settings(tmp_path, *told), "redis://h/0")
    assert {tmp_path / name for name in ("keys", "state", "register")} <= set(found)
    elsewhere = f"receipts.url='{tmp_path.as_uri()}/none'"
    assert tmp_path / "none" not in hidden_paths(settings(tmp_path, elsewhere), "redis://h/0")


def test_copies_of_workspaces_are_hidden_wherever_their_root_is(tmp_path: Path) -> None:
    root = tmp_path / "elsewhere/workspaces"
    found = hidden_paths(settings(tmp_path, f"workspace.root='{root}'"), "redis://h/0")
    assert root / "copies" in found
    assert (root / "copies").stat().st_mode & 0o077 == 0
    inside = hidden_paths(settings(tmp_path), "redis://h/0")
    assert not any("copies" in path.parts for path in inside)


@pytest.mark.parametrize("kept", ["keys/pack.keys", "archive/other-session.jsonl", "copies/other/file.md"])
def test_link_of_a_strangers_repository_gives_no_model_what_is_hidden(tmp_path: Path, kept: str) -> None:
    """`AGENTS.md` is read before any command runs, by Dendro and outside of every sandbox."""
    secret, repository = tmp_path / kept, tmp_path / "repository"
    secret.parent.mkdir(parents=True)
    secret.write_text("swordfish-4711")
    (repository / ".git").mkdir(parents=True)
    (repository / "AGENTS.md").symlink_to(secret)
    archive = (tmp_path / "archive").as_uri()
    found = settings(
        tmp_path,
        f"workspace.key_file='{tmp_path}/keys/pack.keys'",
        f"workspace.root='{tmp_path}/copies'",
        f"upkeep.archive_url='{archive}'",
    )
    assert "swordfish" not in (guide(found).first(repository).text or "")
    (repository / "AGENTS.md").unlink()
    (repository / "AGENTS.md").symlink_to("README.md")
    (repository / "README.md").write_text("Read this.")
    assert guide(found).first(repository).text == "Read this."
