"""Processes at the other end of a connection on this machine: their user, and whether a sandbox holds them.

On a unix socket the kernel names the process (SO_PEERCRED, unix(7)); on loopback its table of sockets names
the user, and the process that has the socket's inode open is looked for (proc(5)). A command of an agent
runs as the same user. It is told apart by what it cannot shed: no new privileges, and more seccomp filters
than we have.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import deque
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

from orchestrator.core.frozen import record

PROC = Path("/proc")
_CREDENTIALS = struct.Struct("=iII")
"""struct ucred: pid, uid, gid."""
_LOCAL, _REMOTE, _UID, _INODE = 1, 2, 7, 9
"""Columns of /proc/net/tcp."""
MOST_LATELY = 16
_CONFINEMENT = ("NoNewPrivs", "Seccomp", "Seccomp_filters")


@record
class Peer:
    """A process of this machine that has connected."""

    uid: int
    is_confined: bool
    """Whether a sandbox holds it that does not hold this process."""
    is_seen: bool = True
    """Whether it can be looked at; of another one nobody can tell what holds it."""


class PeerFinder:
    """Finds processes at the other end, and looks first at those that it has found lately."""

    def __init__(self) -> None:
        self._lately: deque[int] = deque(maxlen=MOST_LATELY)

    def peer_of(self, connected: socket.socket | None) -> Peer | None:
        """The process at the other end; None for another machine. Blocking: it may look through /proc."""
        if connected is None:
            return None
        if connected.family == socket.AF_UNIX:
            return _unix_peer(connected)
        return self._loopback_peer(connected.getsockname(), connected.getpeername())

    def _loopback_peer(self, ours: tuple[str, int], theirs: tuple[str, int]) -> Peer | None:
        if not ip_address(theirs[0]).is_loopback:
            return None
        table = PROC / "net" / ("tcp6" if ":" in theirs[0] else "tcp")
        here, there = _in_table(*ours[:2]), _in_table(*theirs[:2])
        for line in table.read_text().splitlines()[1:]:
            row = line.split()
            if row[_LOCAL] == there and row[_REMOTE] == here:
                uid = int(row[_UID])
                return _looked_at(uid, self._holder(uid, f"socket:[{row[_INODE]}]"))
        return None

    def _holder(self, uid: int, link: str) -> int:
        """A process of a user that has a socket open; 0 if none is found."""
        if uid != os.geteuid():
            return 0
        for pid in (*self._lately, *_processes()):
            if _holds(pid, uid, link):
                if pid not in self._lately:
                    self._lately.appendleft(pid)
                return pid
        return 0


def _processes() -> Iterator[int]:
    yield from (int(each.name) for each in PROC.iterdir() if each.name.isdigit())


def _holds(pid: int, uid: int, link: str) -> bool:
    process = PROC / str(pid)
    try:
        # What is another user's, or is over by now, cannot be looked into.
        if process.stat().st_uid != uid:
            return False
        opened = sorted((int(each.name) for each in (process / "fd").iterdir()), reverse=True)
    except OSError:
        return False
    # The newest first: it has just connected.
    return any(_leads_to(process / "fd" / str(each), link) for each in opened)


def _unix_peer(connected: socket.socket) -> Peer:
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return _looked_at(uid, pid)


def _in_table(host: str, port: int) -> str:
    """An address as the kernel's table shows it: each word in the machine's byte order."""
    packed = ip_address(host).packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"


def _leads_to(descriptor: Path, link: str) -> bool:
    try:
        return str(descriptor.readlink()) == link
    except OSError:
        # It was closed while we looked.
        return False


def _looked_at(uid: int, pid: int) -> Peer:
    """A process by its number; 0 is one of another pid namespace, or one whose files are not shown to us."""
    if pid <= 0:
        return Peer(uid, is_confined=False, is_seen=False)
    try:
        theirs, ours = _confinement(str(pid)), _confinement("self")
    except OSError:
        return Peer(uid, is_confined=False, is_seen=False)
    return Peer(uid, any(theirs[name] > ours[name] for name in _CONFINEMENT))


def _confinement(process: str) -> dict[str, int]:
    found = dict.fromkeys(_CONFINEMENT, 0)
    for line in (PROC / process / "status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in found:
            found[name] = int(value)
    return found
