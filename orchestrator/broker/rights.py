"""The rights that a user of Redis must have, and whether the user at hand has them.

The server checks each command of a script when the script comes to it. A right that is missing in the middle
of a commit would leave half of it behind, so a process asks before it does anything. Servers before Redis 7
cannot be asked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.broker.connection import Connection, call, connect
from orchestrator.broker.embedded import ServerVersion
from orchestrator.broker.errors import BrokerError, Misconfigured
from orchestrator.broker.redis_keys import Keys
from orchestrator.broker.replies import read_reply
from orchestrator.config_keys import RedisSettings
from orchestrator.core.frozen import record

if TYPE_CHECKING:
    from orchestrator.broker.replies import Rights

COMMANDS = (
    "DEL @",
    "EVAL 0 1 @",
    "EVALSHA 0 1 @",
    "EXISTS @",
    "EXPIRE @ 1",
    "GET @",
    "HDEL @ f",
    "HEXISTS @ f",
    "HGET @ f",
    "HGETALL @",
    "HINCRBY @ f 1",
    "HKEYS @",
    "HLEN @",
    "HMGET @ f",
    "HSET @ f v",
    "HSETNX @ f v",
    "PERSIST @",
    "PEXPIRE @ 1",
    "PING",
    "SADD @ m",
    "SET @ v",
    "SMEMBERS @",
    "TIME",
    "TYPE @",
    "WAIT 0 1",
    "XADD @ * f v",
    "XDEL @ 1-0",
    "XLEN @",
    "XRANGE @ - +",
    "XREAD STREAMS @ 0",
    "XREVRANGE @ + -",
    "XTRIM @ MINID 0",
    "ZADD @ 1 m",
    "ZCARD @",
    "ZCOUNT @ 0 1",
    "ZRANGE @ 0 1",
    "ZRANGEBYLEX @ - +",
    "ZRANGEBYSCORE @ 0 1",
    "ZRANK @ m",
    "ZREM @ m",
    "ZREMRANGEBYSCORE @ 0 1",
    "ZREVRANGE @ 0 1",
    "ZREVRANGEBYLEX @ + -",
    "ZSCORE @ m",
)
"""Every command that scripts and reads use, `@` in the place of a key."""


READS = (
    *("EVALSHA 0 1 @", "EVAL 0 1 @", "HGET @ f", "HGETALL @", "HMGET @ f", "XRANGE @ - +"),
    *("ZRANGEBYSCORE @ 0 1", "ZSCORE @ m"),
)
"""The commands of who reads logs alone: a notary."""


async def missing_rights(
    connection: Connection, keys: Keys, commands: Sequence[str] = COMMANDS
) -> tuple[str, ...]:
    """The commands that this connection's user may not run on keys of the deployment, as ACLs name them."""
    ask = call("rights", (), key=keys.confirmed(0), commands=commands)
    found: Rights = read_reply(ask, await connection.run(ask)).fields
    return tuple(command_names([commands[number - 1] for number in found["denied"]]))


async def require_rights(connection: Connection, keys: Keys, commands: Sequence[str] = COMMANDS) -> None:
    """Raises `Misconfigured` if the user may not do all that is needed."""
    if missing := await missing_rights(connection, keys, commands):
        raise Misconfigured(f"the Redis user has too few rights: {remedy(missing, keys)}")


def remedy(missing: Sequence[str], keys: Keys) -> str:
    """The ACL command that an administrator has to run."""
    on_keys = command_names([command for command in COMMANDS if "@" in command])
    if set(missing) >= set(on_keys):
        # A user who may not touch the keys may run nothing on them, whatever else is allowed.
        return f"ACL SETUSER NAME ~{keys.prefix}*"
    return f"ACL SETUSER NAME {' '.join(f'+{name}' for name in missing)}"


def command_names(commands: Sequence[str]) -> list[str]:
    """The names that ACLs give to commands: `HGET @ f` is `hget`."""
    return [command.split()[0].lower() for command in commands]


# ── server facts ──────────────────────────────────────────────────────────────────────────────────
# A server's version, setup and clock, for `doctor` and for start-up checks.
#
# Reads only; judges nothing: which setting is good for a deployment is the caller's business.


@record
class ServerFacts:
    """The facts that one look at one server found."""

    version: ServerVersion
    settings: Mapping[str, str] | None
    """The answer to CONFIG GET; None where the provider of the server forbids the command."""

    replicas: int
    clustered: bool
    clock_ahead_s: float
    """By how much the server's clock is ahead of this machine's, give or take half a round trip."""

    round_trip_s: float


async def examine(redis: RedisSettings) -> ServerFacts:
    """Asks a server about itself; raises `Unavailable` or `Misconfigured` if it does not answer."""
    connection = connect(redis)
    try:
        info: Mapping[str, Any] = await connection.command("INFO")
        before, began = time.time(), time.monotonic()
        seconds, microseconds = await connection.command("TIME")
        round_trip_s = time.monotonic() - began
        return ServerFacts(
            version=_version(info),
            settings=await _settings(connection.command("CONFIG GET", "*")),
            replicas=int(info.get("connected_slaves", 0)),
            clustered=bool(info.get("cluster_enabled", 0)),
            clock_ahead_s=seconds + microseconds / 1e6 - before - round_trip_s / 2,
            round_trip_s=round_trip_s,
        )
    finally:
        await connection.aclose()


async def _settings(asking: Any) -> Mapping[str, str] | None:
    try:
        found: Mapping[str, str] = await asking
    except Misconfigured:
        return None
    except BrokerError as error:
        # Managed services rename or remove the command instead of denying it.
        if "unknown command" in str(error).lower():
            return None
        raise
    return found


def _version(info: Mapping[str, Any]) -> ServerVersion:
    # Valkey reports a Redis version that it is compatible with, and its own beside it.
    flavor = "valkey" if "valkey_version" in info else "redis"
    text = f"{flavor} {info[f'{flavor}_version']}"
    version = ServerVersion.parse(text)
    if version is None:
        raise Misconfigured(f"the server says that it is {text!r}: Redis 6.2 or newer, or Valkey, is needed")
    return version
