"""Servers of an adapter's own, below it: Debian's PostgreSQL on a unix socket, and ports for others."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peers.wire import folder

START_S = 30.0


@contextmanager
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL with the settings that it comes with, on the data of an earlier one.

    One that has outlived its adapter goes on. Raises RuntimeError where none is installed.
    """
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not programs:
        raise RuntimeError("PostgreSQL is not installed (Debian's package postgresql)")
    place, data = folder() / "pg", folder() / "pg/data"
    address = f"postgresql://peer@/postgres?host={place}"
    if (place / ".s.PGSQL.5432").exists() and _takes(programs[-1], place):
        yield address
        return
    # It refuses to run as root.
    user = "nobody" if os.geteuid() == 0 else None
    if not data.exists():
        place.mkdir()
        if user:
            shutil.chown(place, user)
        argv: list[str | Path] = [programs[-1].with_name("initdb"), "-D", data, "-U", "peer", "--auth=trust"]
        subprocess.run(argv, check=True, user=user, stdout=subprocess.DEVNULL)
    (data / "postmaster.pid").unlink(missing_ok=True)
    argv = [programs[-1], "-D", data, "-k", place, "-h", ""]
    process = subprocess.Popen(argv, user=user, cwd=place)
    try:
        until = time.monotonic() + START_S
        while not (place / ".s.PGSQL.5432").exists() or not _takes(programs[-1], place):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("PostgreSQL did not start")
            time.sleep(0.02)
        yield address
    finally:
        process.terminate()
        process.wait()


def _takes(program: Path, place: Path) -> bool:
    """Whether it takes connections."""
    ready: list[str | Path] = [program.with_name("pg_isready"), "-q", "-h", place]
    return subprocess.run(ready).returncode == 0


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens at."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports
