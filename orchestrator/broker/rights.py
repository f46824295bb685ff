"""The rights that a user of Redis must have, and whether the user at hand has them.

The server checks each command of a script when the script comes to it. A right that is missing in the middle
of a commit would leave half of it behind, so a process asks before it does anything. Servers before Redis 7
cannot be asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.broker.connection import Connection, call
from orchestrator.broker.errors import Misconfigured
from orchestrator.broker.keys import Keys
from orchestrator.broker.replies import read_reply

if TYPE_CHECKING:
    from orchestrator.broker.reply_fields import Rights

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
    "HMGET @ f",
    "HSET @ f v",
    "HSETNX @ f v",
    "PERSIST @",
    "PEXPIRE @ 1",
    "SADD @ m",
    "SET @ v",
    "SMEMBERS @",
    "TIME",
    "TYPE @",
    "WAIT 0 1",
    "XADD @ * f v",
    "XLEN @",
    "XRANGE @ - +",
    "XREAD STREAMS @ 0",
    "XREVRANGE @ + -",
    "XTRIM @ MINID 0",
    "ZADD @ 1 m",
    "ZCARD @",
    "ZRANGE @ 0 1",
    "ZRANGEBYSCORE @ 0 1",
    "ZREM @ m",
    "ZREVRANGE @ 0 1",
    "ZSCORE @ m",
)
"""Every command that scripts and reads use, `@` in the place of a key."""


async def missing_rights(connection: Connection, keys: Keys) -> tuple[str, ...]:
    """The commands that this connection's user may not run on keys of the deployment, as ACLs name them."""
    ask = call("rights", (), key=keys.confirmed(0), commands=COMMANDS)
    found: Rights = read_reply(ask, await connection.run(ask)).fields
    return tuple(command_names([COMMANDS[number - 1] for number in found["denied"]]))


async def require_rights(connection: Connection, keys: Keys) -> None:
    """Raises `Misconfigured` if the user may not do all that is needed."""
    if missing := await missing_rights(connection, keys):
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
