"""Servers that speak TLS: whom a client believes, what it shows, and what it says when that fails."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import RetryingConnection, connect
from orchestrator.broker.errors import BrokerError, Misconfigured
from orchestrator.broker.records import BrokerConfig
from orchestrator.broker.sockets import Tls, other_scheme
from orchestrator.config_keys import RedisSettings
from tests.broker.actors import working
from tests.certs import make_authority, make_certificate
from tests.servers import free_ports, start_redis


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A private authority, and what it has signed for a server and for a client."""
    folder = tmp_path_factory.mktemp("certs")
    make_authority(folder)
    make_certificate(folder, "server")
    make_certificate(folder, "client")
    return folder


@pytest.fixture(scope="module")
def port(certs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Where a server listens that lets in who shows a certificate of the authority."""
    (port,) = free_ports(1)
    config = {
        "tls-port": str(port),
        "tls-cert-file": str(certs / "server.pem"),
        "tls-key-file": str(certs / "server.key"),
        "tls-ca-cert-file": str(certs / "ca.pem"),
        "tls-auth-clients": "yes",
    }
    with start_redis(tmp_path_factory.mktemp("server"), config=config):
        yield port


@pytest.fixture(scope="module")
def plain_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Where a server listens that speaks no TLS."""
    (port,) = free_ports(1)
    with start_redis(tmp_path_factory.mktemp("plain"), config={"port": str(port)}):
        yield port


def options(certs: Path) -> str:
    files = {"ca_certs": "ca.pem", "certfile": "client.pem", "keyfile": "client.key"}
    return "&".join(f"ssl_{name}={certs / file}" for name, file in files.items())


@pytest.mark.realredis
async def test_a_session_is_worked_on_over_tls(certs: Path, port: int) -> None:
    connection = connect(RedisSettings(url=f"rediss://127.0.0.1:{port}/0?{options(certs)}"))
    async with aclosing(Broker(connection, BrokerConfig(), lambda: 0.0)) as broker:
        assert (await working(broker)).claim.worker == "w1"


@pytest.mark.realredis
@pytest.mark.parametrize(
    ("host", "query", "words"),
    [
        ("127.0.0.1", "", "certificate was refused: self-signed.*ssl_ca_certs"),
        ("127.0.0.1", "ssl_ca_certs={}/ca.pem", "may want a certificate"),
        ("localhost", "ssl_ca_certs={}/ca.pem", "not valid for 'localhost'; "),
        ("127.0.0.1", "ssl_ca_certs={}/missing.pem", "cannot use .*missing.pem"),
        ("127.0.0.1", "ssl_certfile={0}/client.pem&ssl_keyfile={0}/server.key", "cannot use .*server.key"),
    ],
)
async def test_what_is_wrong_with_certificates_is_told(
    certs: Path, port: int, host: str, query: str, words: str
) -> None:
    connection = connect(RedisSettings(url=f"rediss://{host}:{port}/0?{query.format(certs)}"))
    async with aclosing(connection):
        with pytest.raises(BrokerError, match=words):
            await connection.command("PING")


@pytest.mark.realredis
async def test_a_name_may_differ_for_who_says_so(certs: Path, port: int) -> None:
    url = f"rediss://localhost:{port}/0?{options(certs)}"
    for said in ("ssl_check_hostname=false", "ssl_cert_reqs=none"):
        async with aclosing(connect(RedisSettings(url=f"{url}&{said}"))) as connection:
            assert await connection.command("PING")


@pytest.mark.realredis
@pytest.mark.parametrize(
    ("scheme", "says"),
    [("redis", "speaks TLS.*write rediss://"), ("rediss", "speaks no TLS.*write redis://")],
)
async def test_server_that_speaks_otherwise_than_its_url_is_told_before_it_is_asked_again(
    port: int, plain_port: int, scheme: str, says: str
) -> None:
    url = f"{scheme}://ann:hidden@127.0.0.1:{port if scheme == 'redis' else plain_port}/0"
    settings, look = RedisSettings(url=url, connect_timeout_s=0.3), partial(other_scheme, url, 5.0)
    async with aclosing(RetryingConnection(connect(settings), 3_600.0, look)) as connection:
        with pytest.raises(Misconfigured, match=says) as told:
            await connection.command("PING")
    assert "hidden" not in str(told.value)


async def _closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _is_no_redis(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


async def _is_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@pytest.mark.parametrize("server", [_closes, _is_no_redis, _is_silent])
@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+sentinel"])
async def test_server_of_which_nobody_can_say_how_it_speaks_is_asked_again(server: Any, scheme: str) -> None:
    async with await asyncio.start_server(server, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        assert await other_scheme(f"{scheme}://127.0.0.1:{port}/0", 0.2) == ""
    assert await other_scheme(f"{scheme}://127.0.0.1:{port}/0", 5.0) == "", "nobody listens"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("ssl_cert_reqs=perhaps", "ssl_cert_reqs"),
        ("ssl_authority=x", "ssl_ca_certs"),
        ("colour=red", "colour"),
    ],
)
def test_an_option_that_nobody_knows_is_told(query: str, words: str) -> None:
    for scheme, service in (("rediss", ""), ("rediss+sentinel", "main/")):
        with pytest.raises(Misconfigured, match=words):
            connect(RedisSettings(url=f"{scheme}://:hidden@host/{service}0?{query}"))


def test_renewed_certificates_count_from_the_next_connection_on(tmp_path: Path) -> None:
    make_authority(tmp_path)
    file = tmp_path / "ca.pem"
    tls = Tls({"ca_certs": str(file)})
    first = tls.get()
    assert tls.get() is first
    os.utime(file, ns=(1, 1))
    second = tls.get()
    assert second is not first
    file.write_text("half of it")
    assert tls.get() is second, "as long as the new one is not whole"


@pytest.mark.parametrize("renewed", ["ca_certs", "certfile", "keyfile"])
def test_certificates_behind_links_are_read_again_each_time_that_one_leads_elsewhere(
    certs: Path, tmp_path: Path, renewed: str
) -> None:
    files = {"ca_certs": "ca.pem", "certfile": "client.pem", "keyfile": "client.key"}
    for number in range(3):
        (tmp_path / f"..{number}").mkdir()
        for name in files.values():
            shutil.copy(certs / name, tmp_path / f"..{number}" / name)
            os.utime(tmp_path / f"..{number}" / name, ns=(number, number))
    for name, file in files.items():
        (tmp_path / f"data-{name}").symlink_to("..0")
        (tmp_path / file).symlink_to(f"data-{name}/{file}")
    tls = Tls({name: str(tmp_path / file) for name, file in files.items()})
    read = [tls.get()]
    for number in (1, 2, 0):
        (tmp_path / "new").symlink_to(f"..{number}")
        (tmp_path / "new").rename(tmp_path / f"data-{renewed}")
        assert tls.get() not in read, "of each of the files, also of an earlier time"
        read.append(tls.get())
        assert tls.get() is read[-1]
