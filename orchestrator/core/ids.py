"""Session ids: UUIDv7 (RFC 9562, section 5.7) whose `rand_a` bits name the shard.

Pure: the millisecond clock and the random bits come from the caller. The
keys of a session can be found from its id alone, because the 12 bits after the
version nibble are the number of the shard that the whole tree lives in.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NewType

SessionId = NewType("SessionId", str)
"""A session's UUIDv7, lower case with hyphens."""

TreeId = NewType("TreeId", str)
"""The `SessionId` of the tree's root, used where the tree is meant."""

AgentId = NewType("AgentId", int)
"""A session's number in its tree; 0 is the root; never reused."""

MAX_SHARDS = 1 << 12
_VERSION_7 = 0x7
_VARIANT_RFC = 0b10


class InvalidSessionId(ValueError):
    """The text is not a UUIDv7 in canonical form; the message quotes it."""


def new_session_id(unix_ms: int, shard: int, random_62: int) -> SessionId:
    """Builds the id of a session of `shard` from the caller's clock and randomness.

    `random_62` supplies 62 bits: two sessions of one shard created in one millisecond
    differ by them alone.
    """
    if not 0 <= shard < MAX_SHARDS:
        raise ValueError(f"shard {shard} does not fit the 12 bits of a session id")
    value = (unix_ms & ((1 << 48) - 1)) << 80
    value |= _VERSION_7 << 76 | shard << 64
    value |= _VARIANT_RFC << 62 | random_62 & ((1 << 62) - 1)
    digits = f"{value:032x}"
    return SessionId("-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])))


def parse_session_id(text: str) -> SessionId:
    """Checks a client's text; raises `InvalidSessionId` for anything but a UUIDv7."""
    lowered = text.strip().lower()
    parts = lowered.split("-")
    well_formed = [len(part) for part in parts] == [8, 4, 4, 4, 12] and all(
        digit in "0123456789abcdef" for part in parts for digit in part
    )
    if not well_formed or parts[2][0] != "7" or parts[3][0] not in "89ab":
        raise InvalidSessionId(f"not a session id (a UUIDv7 is expected): {text!r}")
    return SessionId(lowered)


@lru_cache(maxsize=1024)  # every key that is built asks for it
def shard_of(session: SessionId | TreeId | str, shards: int) -> int:
    """The shard that holds every key of this session's tree."""
    shard = int(session[15:18], 16)
    if shard >= shards:
        raise InvalidSessionId(f"session {session} names shard {shard}, but there are {shards}")
    return shard


def created_ms(session: SessionId | str) -> int:
    """The Unix millisecond that the id was made in."""
    return int(session[:8] + session[9:13], 16)
