"""Authentication: the principal at the other end of a connection, by its token or its user.

A token always counts, also where it narrows what the user could do. Without one, a process of this machine's
user is known on unix sockets and on loopback, as long as no sandbox holds it: a command of an agent, which
runs as the same user, could else approve itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from orchestrator.core.frozen import record
from orchestrator.gateways.principals import Principal, machine_user

ROOT_UID = 0
REVOKED_S = 3.0
"""Between two looks whether the tokens of open connections still count."""
TokenLookUp = Callable[[str], Awaitable[Principal | None]]
"""The principal of a token that is known and in force."""
NEEDED = (
    'a token is needed ("Authorization: Bearer …", or "auth" in the first line): dendro token new makes one'
)
UNSEEN = (
    "the process at the other end cannot be looked at, so nobody knows whether a sandbox holds it: it is in "
    "another pid or user namespace (a container), or has dropped rights, like an sshd that forwards a port "
    "(ssh -L). Come with a token (codex --remote … --remote-auth-token-env NAME; dendro token new makes it), "
    "or forward the gateway's unix socket (ssh -L /tmp/d.sock:SOCKET, codex --remote unix:///tmp/d.sock)"
)
NOTED_S = 60.0
"""Between two lines of the log about the same refusal."""
log = logging.getLogger("dendro.gateway")


class Unauthenticated(Exception):
    """The peer is not known; the message says what would make it known."""


class NotServed(Exception):
    """A connection whose holder is known is not served, or no more; the message says why."""


class Revoked(NotServed):
    """The token of an open connection counts no more."""


class Crowded(NotServed):
    """The token's holder, or its namespace, has as many connections as one may have."""


async def no_tokens(token: str) -> Principal | None:
    """The look-up of a door that has no tokens."""
    return None


class Authentication:
    """Finds out who connects."""

    def __init__(
        self,
        look_up: TokenLookUp = no_tokens,
        *,
        loopback_needs_token: bool = False,
        peer_of: Callable[[socket.socket | None], Peer | None] | None = None,
    ) -> None:
        self._look_up = look_up
        self._loopback_needs_token = loopback_needs_token
        self._peer_of = peer_of or PeerFinder().peer_of
        self._noted: dict[str, float] = {}
        """The refusals of this machine's processes that were logged lately."""

    async def principal(self, token: str | None, connected: socket.socket | None) -> Principal:
        """The principal at the other end of a socket; raises `Unauthenticated`."""
        if token == "":
            raise Unauthenticated(f"the Authorization header holds no token: {NEEDED}")
        if token is not None:
            found = await self._look_up(token)
            if found is None:
                raise Unauthenticated("the token is not known, or its time is over: dendro token new")
            return found
        if connected is None or (self._loopback_needs_token and connected.family != socket.AF_UNIX):
            raise Unauthenticated(NEEDED)
        peer = None
        with suppress(OSError):
            peer = await asyncio.to_thread(self._peer_of, connected)
        try:
            return _of_peer(peer)
        except Unauthenticated as error:
            self._note(f"a connection was refused: {error}")
            raise

    def _note(self, refusal: str) -> None:
        """Logs a refusal; whoever connects again and again fills no log."""
        now = time.monotonic()
        if now - self._noted.get(refusal, -NOTED_S) >= NOTED_S:
            self._noted = {text: at for text, at in self._noted.items() if now - at < NOTED_S}
            self._noted[refusal] = now
            log.warning("%s", refusal)


def _of_peer(peer: Peer | None) -> Principal:
    if peer is None:
        raise Unauthenticated(NEEDED)
    if peer.uid not in (os.geteuid(), ROOT_UID):
        raise Unauthenticated(f"user {peer.uid} is not the user of this gateway; {NEEDED}")
    if not peer.is_seen:
        raise Unauthenticated(UNSEEN)
    if peer.is_confined:
        raise Unauthenticated(f"a process in a sandbox is nobody here; {NEEDED}")
    return machine_user()


class TokenWatch:
    """Ends what is served under a token as soon as the token counts no more."""

    def __init__(
        self,
        in_force: Callable[[], Awaitable[frozenset[str]]],
        every_s: float = REVOKED_S,
        most: int | None = None,
    ) -> None:
        """`most`: connections of one namespace, or of one token of the machine's user; None: no bound."""
        self._in_force = in_force
        self._every_s = every_s
        self._most = most
        self._serving: dict[asyncio.Task[None], str] = {}
        self._holders: Counter[str] = Counter()
        self._revoked: set[asyncio.Task[None]] = set()

    async def serve(self, principal: Principal, serving: Coroutine[Any, Any, None]) -> None:
        """Runs `serving` to its end; raises `Revoked` when the token ends before, `Crowded` at once."""
        if not principal.token:
            await serving
            return
        holder = f"of {principal.namespace}" if principal.is_tenant else principal.token
        if self._most is not None and self._holders[holder] >= self._most:
            serving.close()
            raise Crowded(f"{self._most} connections are open under this token's name: close one")
        task = asyncio.ensure_future(serving)
        self._serving[task] = principal.token
        self._holders[holder] += 1
        try:
            await task
        except asyncio.CancelledError:
            if task not in self._revoked:
                task.cancel()
                raise
            raise Revoked("the token was revoked, or its time is over") from None
        finally:
            del self._serving[task]
            self._revoked.discard(task)
            self._holders[holder] -= 1
            self._holders += Counter()  # without those at zero

    async def run(self) -> None:
        """Looks again and again, for ever; a look that fails is made up for by the next one."""
        while True:
            await asyncio.sleep(self._every_s)
            if not self._serving:
                continue
            with suppress(Exception):
                await self.look()

    async def look(self) -> None:
        """Ends whatever is served under a token that counts no more."""
        # Those of before the look: a token that was made since is not among what it finds.
        serving = tuple(self._serving.items())
        in_force = await self._in_force()
        for task, token in serving:
            if token not in in_force and task in self._serving:
                self._revoked.add(task)
                task.cancel()


# ── peers ─────────────────────────────────────────────────────────────────────────────────────────
# Processes at the other end of a connection on this machine: their user, and whether a sandbox holds
# them.
#
# On a unix socket the kernel names the process (SO_PEERCRED, unix(7)); on loopback its table of sockets
# names the user, and the process that has the socket's inode open is looked for (proc(5)). A command of
# an agent runs as the same user. It is told apart by what it cannot shed: no new privileges, and more
# seccomp filters than we have.


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
