"""Authentication: the principal at the other end of a connection, by its token or its user.

A token always counts, also on a unix socket, where it may narrow what the user could do. Without one
only a process of this machine's user on a unix socket is known (peer credentials, unix(7)).
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

from orchestrator.gateways.principals import Principal, machine_user

ROOT_UID = 0
TokenLookUp = Callable[[str], Awaitable[Principal | None]]
"""The principal of a token that is known and in force."""


class Unauthenticated(Exception):
    """Nobody known is at the other end; the message says what would make it known."""


async def no_tokens(token: str) -> Principal | None:
    """The look-up of a door that has no tokens."""
    return None


class Authentication:
    """Finds out who connects."""

    def __init__(self, look_up: TokenLookUp = no_tokens, *, on_loopback: bool = False) -> None:
        self._look_up = look_up
        self.on_loopback = on_loopback
        """Whether the machine's user is known on loopback, too: the kernel lists whose a connection is."""

    async def principal(self, token: str | None, uid: int | None) -> Principal:
        """The principal; `uid` is that of a peer on a unix socket. Raises `Unauthenticated`."""
        if token is not None:
            found = await self._look_up(token)
            if found is None:
                raise Unauthenticated("the token is not known, or its time is over: dendro token new")
            return found
        if uid is not None and uid in (os.geteuid(), ROOT_UID):
            return machine_user()
        if uid is not None:
            raise Unauthenticated(f"user {uid} is not the user of this gateway: a token is needed")
        raise Unauthenticated("a token is needed (Authorization: Bearer …): dendro token new makes one")
