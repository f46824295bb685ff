"""A connection as a door sees it, and the bounds that hold on every one.

Knows no framing and no protocol: whole messages come in and go out.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from orchestrator.gateways.principals import Principal
from orchestrator.tables.base import MIB

MESSAGE_LIMIT = 16 * MIB
"""The largest message that comes in. A WebSocket closes for more, with 1009; a longer line is skipped."""
OUTGOING_LIMIT = 8 * MIB
"""The most that may wait for one client to read. Its place is its last event: it comes back there."""
STALL_S = 15.0
"""A client that takes not a byte for so long, while as much waits as may, is dropped."""
HANDSHAKE_S = 10.0
"""From the connection to the end of its handshake, or of its first line."""
PING_S = 30.0
"""Between two pings of a silent WebSocket; a client that answers none for as long is gone."""


class CloseCode(IntEnum):
    """The reason of a wire's end, as RFC 6455 (section 7.4) and its registry number them."""

    DONE = 1000
    GOING_AWAY = 1001
    """The gateway leaves: the client comes back to another one."""
    NOT_PERMITTED = 1008
    """The token counts no more."""
    TOO_LARGE = 1009
    TOO_SLOW = 1013
    """The client did not read: it comes back, and goes on where it stopped."""


class WireClosed(Exception):
    """A message cannot be sent any more: the client left, or was dropped."""


class TooSlow(WireClosed):
    """The client was dropped, because it did not read."""


class Wire(Protocol):
    """A connection to a client, message by message."""

    @property
    def principal(self) -> Principal:
        """The one who speaks through it."""

    async def receive(self) -> bytes | None:
        """The next message; None when there will be none any more."""

    async def send(self, *messages: bytes) -> None:
        """Sends whole messages, in the order of the calls; waits while the client reads too slowly.

        Raises `WireClosed`, and `TooSlow` for a client that has not read for `STALL_S`.
        """

    async def close(self, code: CloseCode = CloseCode.DONE, reason: str = "") -> None:
        """Ends the connection; the reason is told where the framing can. A second call does nothing."""
