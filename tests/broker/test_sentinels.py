"""Servers that Sentinels name: found, asked for their role, and left when they lose it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, aclosing, closing
from pathlib import Path

import pytest

from orchestrator.broker.connection import Connection, connect
from orchestrator.broker.errors import Misconfigured, Unavailable
from orchestrator.broker.sockets import SentinelUrl
from orchestrator.config_keys import RedisSettings
from tests.servers import RedisServer, Sentinel, free_ports, start_redis, start_sentinel


def test_a_sentinel_url_is_taken_apart() -> None:
    url = "rediss+sentinel://dendro:p%40ss@one,[::1]:7/main/3?sentinel_password=s%26&ssl_ca_certs=/ca.pem"
    assert SentinelUrl.parse(url) == SentinelUrl(
        sentinels=(
            "rediss://one:26379?ssl_ca_certs=%2Fca.pem&password=s%26",
            "rediss://[::1]:7?ssl_ca_certs=%2Fca.pem&password=s%26",
        ),
        service="main",
        server="rediss://dendro:p%40ss@/3?ssl_ca_certs=%2Fca.pem",
    )


def test_other_urls_are_left_alone() -> None:
    assert SentinelUrl.parse("redis://host:6379/0") is None


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://host:26379",
        "redis+sentinel:///main",
        "redis+sentinel://host:port/main",
        "redis+sentinel://a,,b/main",
        "redis+sentinel://host/main?nonsense",
    ],
)
def test_a_sentinel_url_that_names_nothing_is_refused_without_a_password_in_the_message(url: str) -> None:
    with pytest.raises(Misconfigured, match=r"redis\+sentinel://host") as refused:
        connect(RedisSettings(url=url.replace("://", "://user:hidden@")))
    assert "hidden" not in str(refused.value)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[RedisServer, Sentinel]]:
    """A primary, and who watches it."""
    (port,) = free_ports(1)
    with ExitStack() as stack:
        primary = stack.enter_context(start_redis(tmp_path / "primary", port=port))
        yield primary, stack.enter_context(start_sentinel(tmp_path / "sentinel", port))


def dial(url: str) -> Connection:
    return connect(RedisSettings(url=url, connect_timeout_s=1.0, command_timeout_s=2.0))


@pytest.mark.realredis
async def test_the_primary_is_found_through_the_first_sentinel_that_answers(
    watched: tuple[RedisServer, Sentinel],
) -> None:
    primary, sentinel = watched
    (silent,) = free_ports(1)
    hosts = f"127.0.0.1:{silent},127.0.0.1:{sentinel.port}"
    async with aclosing(dial(f"redis+sentinel://{hosts}/main/2")) as connection:
        await connection.command("SET", "found", "yes")
    with closing(primary.client()) as look:
        assert look.execute_command("SELECT", 2)
        assert look.get("found") == b"yes"
    async with aclosing(dial(f"redis+sentinel://{hosts}/other")) as connection:
        with pytest.raises(Unavailable, match="knows no 'other'"):
            await connection.command("PING")


@pytest.mark.realredis
async def test_a_server_that_is_no_primary_is_left_whatever_the_sentinel_says(
    watched: tuple[RedisServer, Sentinel],
) -> None:
    primary, sentinel = watched
    async with aclosing(dial(f"redis+sentinel://127.0.0.1:{sentinel.port}/main")) as connection:
        await connection.command("SET", "key", "value")
        await connection.command("REPLICAOF", "127.0.0.1", 1)
        with pytest.raises(Unavailable):
            await connection.command("SET", "key", "value")
        # Reading would do there; but what is read is old, and who reads would never learn of the failover.
        with pytest.raises(Unavailable, match="no primary"):
            await connection.command("GET", "key")
        with closing(primary.client()) as operator:
            operator.execute_command("REPLICAOF", "NO", "ONE")
        assert await connection.command("GET", "key") == b"value"


@pytest.mark.realredis
async def test_a_sentinel_with_a_password_is_told_it_or_named(watched: tuple[RedisServer, Sentinel]) -> None:
    _, sentinel = watched
    with closing(sentinel.client()) as operator:
        operator.execute_command("ACL", "SETUSER", "default", "resetpass", ">open")
    url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main"
    async with aclosing(dial(url)) as connection:
        with pytest.raises(Misconfigured, match="sentinel_password"):
            await connection.command("PING")
    async with aclosing(dial(f"{url}?sentinel_password=open")) as connection:
        assert await connection.command("PING")


@pytest.mark.realredis
async def test_a_connection_to_a_server_that_was_demoted_is_given_up(tmp_path: Path) -> None:
    with start_redis(tmp_path) as server:
        async with aclosing(dial(server.url)) as connection:
            before = await connection.command("CLIENT", "ID")
            await connection.command("REPLICAOF", "127.0.0.1", 1)
            with pytest.raises(Unavailable):
                await connection.command("SET", "key", "value")
            # Behind a name that leads to the new primary by now, the next one would be there.
            assert await connection.command("CLIENT", "ID") != before
