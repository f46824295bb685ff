"""A server's version, setup and clock, for `doctor` and for start-up checks.

Reads only; judges nothing: which setting is good for a deployment is the caller's business.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from orchestrator.broker.connection import connect
from orchestrator.broker.errors import BrokerError, Misconfigured
from orchestrator.broker.server_binary import ServerVersion
from orchestrator.core.frozen import record
from orchestrator.tables import RedisSettings


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
