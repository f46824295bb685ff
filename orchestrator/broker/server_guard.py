"""A process beside the private server: it ends the server that nobody uses any more.

    python -I -S server_guard.py FOLDER PID IDLE_S

When all users were killed, nobody is left who could stop the server; nor can anybody find one whose data
folder was removed. The guard asks the kernel every second, by the same locks as users (see `embedded`), and
ends with the server. It imports the standard library alone, and nothing of Dendro.
"""

# Started by its file, without an environment: pathlib would double its memory.
# ruff: noqa: PTH116

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
import time

LOOK_S = 1.0
END_S = 30.0
LOCK = "guard.lock"


def main(folder: str, pid: int, idle_s: float) -> None:
    """Guards a server until it has ended, in a process of its own; returns once that can miss nothing."""
    server = os.pidfd_open(pid)
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        mine = os.open(LOCK, os.O_RDWR | os.O_NOFOLLOW, dir_fd=place)
    except FileNotFoundError:
        _end(server)
        return
    # The guard of a server that has ended ends, too; whoever starts the next server may come before that.
    fcntl.flock(mine, fcntl.LOCK_EX)
    os.ftruncate(mine, 0)
    os.pwrite(mine, str(pid).encode(), 0)
    # Nobody waits for it: its parent ends at once.
    if os.fork() == 0:
        os.setsid()
        _guard(folder, place, server, idle_s)


def _guard(folder: str, place: int, server: int, idle_s: float) -> None:
    idle_since: float | None = None
    while not _ended(server, min(LOOK_S, idle_s)):
        if not _is_there(folder, place):
            _end(server)
            return
        start = _locked("start.lock", place)
        if start is None:
            continue  # somebody comes or goes
        users = _locked("users.lock", place)
        if users is None:
            idle_since = None
        elif idle_since is None:
            idle_since = time.monotonic()
        elif time.monotonic() - idle_since >= idle_s:
            _end(server)
            _note_end(place)
            return
        for lock in (users, start):
            if lock is not None:
                os.close(lock)


def _ended(server: int, seconds: float) -> bool:
    return bool(select.select([server], [], [], seconds)[0])


def _end(server: int) -> None:
    """SIGTERM, with which the server syncs its log; SIGKILL for one that does not obey."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            signal.pidfd_send_signal(server, how)
        except ProcessLookupError:
            return
        if _ended(server, END_S):
            return


def _is_there(folder: str, place: int) -> bool:
    try:
        return os.path.samestat(os.stat(folder), os.fstat(place))
    except OSError:
        return False


def _locked(name: str, place: int) -> int | None:
    try:
        lock = os.open(name, os.O_RDWR | os.O_NOFOLLOW, dir_fd=place)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _note_end(place: int) -> None:
    """No host uses the data now. Readers hold start.lock, as this process does."""
    record = os.open("server.json", os.O_RDWR | os.O_NOFOLLOW, dir_fd=place)
    with os.fdopen(record, "r+b") as file:
        changed = {**json.loads(file.read()), "host": ""}
        file.seek(0)
        file.write(json.dumps(changed).encode())
        file.truncate()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
