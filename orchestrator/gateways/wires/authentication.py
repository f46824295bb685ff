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
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from orchestrator.gateways.principals import Principal, machine_user
from orchestrator.gateways.wires.peers import Peer, PeerFinder

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
        in_force = await self._in_force()
        for task, token in tuple(self._serving.items()):
            if token not in in_force:
                self._revoked.add(task)
                task.cancel()
