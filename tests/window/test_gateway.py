"""The window in a whole gateway: beside other doors, over TLS, counted, and within its bounds."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.gateways.app_server.methods import METHODS
from orchestrator.gateways.bearer_tokens import TokenWish, new_token
from orchestrator.gateways.principals import Scope
from orchestrator.gateways.wires import http_requests
from orchestrator.gateways.wires.addresses import Address, BadAddress, parse_address
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.wiring.gateway import serving, window_links
from orchestrator.wiring.open_deployment import Opened, opened
from tests.certs import make_authority, make_certificate
from tests.servers import RedisServer

pytestmark = pytest.mark.realredis


@dataclass
class Gateway:
    """A gateway in this process, and its deployment."""

    found: Opened
    addresses: tuple[Address, ...]

    async def token(self, scope: Scope = Scope.ADMIN, namespace: str = "") -> str:
        wish = TokenWish("ana", namespace, scope)
        text, _ = await new_token(self.found.broker.requests, wish, time.time_ns() // 1_000_000, os.urandom)
        return text


@asynccontextmanager
async def gateway(
    folder: Path, redis: RedisServer, *listen: str, settings: tuple[str, ...] = ()
) -> AsyncIterator[Gateway]:
    with redis.client() as client:
        client.flushall()
    (folder / "home").mkdir()
    environ = {
        "HOME": str(folder),
        "DENDRO_HOME": str(folder / "home"),
        "PATH": "/usr/bin:/bin",
        "DENDRO_REDIS_URL": redis.url,
    }
    sources = SettingsSources(folder, environ, overrides=settings)
    places = [parse_address(text) for text in listen or ("http://127.0.0.1:0",)]
    async with (
        opened(load_settings(sources), insists=True) as found,
        serving(found, sources, places) as addresses,
    ):
        yield Gateway(found, addresses)


async def test_window_is_served_beside_other_doors_and_signs_in_by_the_link_to_each_address(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    listen = ("ws://127.0.0.1:0", "http://127.0.0.1:0", "http://127.0.0.1:0")
    async with gateway(tmp_path, redis_server, *listen) as gate:
        links = [link.split("/#c=") for link in await window_links(gate.found, gate.addresses)]
        assert [url for url, _ in links] == [str(address) for address in gate.addresses[1:]]
        servers = set[str]()
        for url, code in links:
            async with httpx.AsyncClient(base_url=url, headers={"Origin": url}) as browser:
                assert (await browser.get("/")).status_code == 200
                login = await browser.post("/api/login", json={"code": code})
                assert login.status_code == 200, "each address has a code of its own"
                state = (await browser.post("/api/window/state", json={})).json()
                assert (state["scope"], state["namespace"]) == ("admin", "")
                assert {"approval", "thread", "turn", "window"} <= set(state["features"])
                again = (await browser.post("/api/window/state", json={})).json()
                assert again["serverId"] == state["serverId"] != ""
                servers.add(state["serverId"])
        assert len(servers) == 1


async def test_every_method_of_the_table_is_served_to_windows_but_those_of_a_connection(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    async with gateway(tmp_path, redis_server) as gate:
        url, headers = str(gate.addresses[0]), {"Authorization": f"Bearer {await gate.token()}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as program:
            for name, method in METHODS.items():
                # A member of another type than any takes: what is served says so, and does nothing.
                answer = await program.post(f"/api/{name}", json={"threadId": 7, "limit": "x", "path": 7})
                told = answer.json()
                unknown = told.get("error", {}).get("code") == -32601
                assert unknown == (method.before_initialize or method.of_connection), name
                assert answer.status_code != 500, name
                assert unknown == (answer.status_code == 404), name


async def test_browser_under_tls_gets_a_cookie_that_goes_nowhere_else(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    make_authority(tmp_path)
    make_certificate(tmp_path, "server")
    settings = (
        f'gateway.tls_certificate="{tmp_path}/server.pem"',
        f'gateway.tls_key="{tmp_path}/server.key"',
    )
    async with gateway(tmp_path, redis_server, "https://127.0.0.1:0", settings=settings) as gate:
        url = str(gate.addresses[0])
        (link,) = await window_links(gate.found, gate.addresses)
        trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        async with httpx.AsyncClient(base_url=url, verify=trusted, headers={"Origin": url}) as browser:
            answer = await browser.post("/api/login", json={"code": link.partition("#c=")[2]})
            cookie = answer.headers["set-cookie"]
            assert cookie.startswith("__Host-dendro=dendro_")
            assert "Secure" in cookie
            assert "Path=/;" in cookie
            assert (await browser.post("/api/window/state", json={})).status_code == 200


async def test_window_without_a_certificate_is_for_this_machine_alone(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    with pytest.raises(BadAddress, match="unencrypted"):
        parse_address("http://0.0.0.0:4600")
    with pytest.raises(BadAddress, match=r"gateway\.tls_certificate"):
        async with gateway(tmp_path, redis_server, "https://127.0.0.1:0"):
            pass


async def test_connections_of_windows_are_counted_as_those_of_a_door(
    tmp_path: Path, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with gateway(tmp_path, redis_server, settings=("gateway.metrics_port=0",)) as gate:
        (said,) = [one.getMessage() for one in caplog.records if "metrics at" in one.getMessage()]
        async with (
            httpx.AsyncClient(base_url=str(gate.addresses[0])) as browser,
            httpx.AsyncClient() as operator,
        ):
            await browser.get("/")
            page = (await operator.get(said.removeprefix("metrics at "))).text
            found = {
                (sample.name, sample.labels.get("door")): sample.value
                for family in text_string_to_metric_families(page)
                for sample in family.samples
            }
            assert found["dendro_door_connections", "window"] == 1
            assert found["dendro_door_connections_opened_total", "window"] == 1


async def _hold(address: Address, first: bytes) -> bytes:
    """All that comes back to a client that says no more than this."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(first)
    try:
        async with asyncio.timeout(20):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("first", [b"", b"G", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
async def test_request_that_does_not_begin_is_not_waited_for(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(http_requests, "HANDSHAKE_S", 0.1)
    async with gateway(tmp_path, redis_server) as gate:
        assert await _hold(gate.addresses[0], first) == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: " + b"a" * (80 << 10) + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000,
        b"\x16\x03\x01\x02\x00" * 100,
        b"\x00" * 4096,
        b"GET http:// HTTP/9\r\n\r\n",
    ],
)
async def test_head_that_is_none_or_too_long_ends_its_connection_alone(
    tmp_path: Path, redis_server: RedisServer, sent: bytes
) -> None:
    async with gateway(tmp_path, redis_server) as gate:
        answer = await _hold(gate.addresses[0], sent)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
        async with httpx.AsyncClient(base_url=str(gate.addresses[0])) as browser:
            assert (await browser.get("/")).status_code == 200


async def test_connection_too_many_is_refused_and_others_go_on(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    async with gateway(tmp_path, redis_server, settings=("gateway.max_connections=3",)) as gate:
        address = gate.addresses[0]
        held = [socket.create_connection((address.host, address.port)) for _ in range(3)]
        async with httpx.AsyncClient(base_url=str(address)) as browser:
            answer = await browser.get("/")
            assert answer.status_code == 503
            assert "content-security-policy" in answer.headers
        for one in held:
            one.close()


async def test_page_of_a_name_that_leads_here_by_chance_is_refused(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    settings = ('gateway.hosts=["dendro.example"]',)
    async with gateway(tmp_path, redis_server, settings=settings) as gate, httpx.AsyncClient() as browser:
        url = str(gate.addresses[0])
        for host, status in (
            ("evil.example", 421),
            ("dendro.example", 200),
            ("localhost:80", 200),
            ("evil.example@127.0.0.1", 421),
        ):
            assert (await browser.get(url, headers={"Host": host})).status_code == status, host
        foreign = await browser.post(
            f"{url}/api/login",
            json={"code": "x"},
            headers={"Host": "evil.example", "Origin": "http://evil.example"},
        )
        assert foreign.status_code == 421
