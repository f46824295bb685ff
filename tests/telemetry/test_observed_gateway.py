"""Gateways that are watched: connections by their door, on a port of its own."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from websockets.asyncio.client import connect

from orchestrator.gateways.wires.addresses import parse_address
from orchestrator.gateways.wires.listeners import Doors
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.wiring.gateway import gateway, observed_doors
from orchestrator.wiring.open_deployment import Opened, opened
from tests.servers import RedisServer, plain_http
from tests.telemetry.samples import figures


class Door:
    """A door whose connections last until they are told to end."""

    def __init__(self) -> None:
        self.begun, self.end, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def serve(self, connection: object) -> None:
        self.begun.set()
        await self.end.wait()
        self.ended.set()


def sources(tmp_path: Path, url: str, *overrides: str) -> SettingsSources:
    environ = {"HOME": str(tmp_path), "DENDRO_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    return SettingsSources(
        tmp_path, environ, overrides=(f'redis.url="{url}"', "redis.prefix=gateways:", *overrides)
    )


async def test_gateway_counts_the_connections_of_each_door_where_the_settings_say(
    redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = ("gateway.metrics_port=0", 'gateway.metrics_host="127.0.0.3"')
    settings = load_settings(sources(tmp_path, redis_server.url, *overrides))
    messages, lines = Door(), Door()
    places = [parse_address("ws://127.0.0.1:0"), parse_address("tcp://127.0.0.1:0")]
    async with (
        opened(settings) as found,
        gateway(found, places, lambda *_: Doors(messages.serve, lines.serve)) as (ws, tcp),
    ):
        (line,) = [record.getMessage() for record in caplog.records]
        assert line.startswith("metrics at http://127.0.0.3:")
        url = line.removeprefix("metrics at ").removesuffix("/metrics")
        async with plain_http(url) as client, connect(str(ws)):
            _, writer = await asyncio.open_connection(tcp.host, tcp.port)
            await messages.begun.wait()
            await lines.begun.wait()
            now = figures((await client.get("/metrics")).content)
            assert now["dendro_door_connections", "app-server"] == 1
            assert now["dendro_door_connections", "sq-eq"] == 1
            messages.end.set()
            lines.end.set()
            await messages.ended.wait()
            await lines.ended.wait()
            await asyncio.sleep(0)
            later = figures((await client.get("/metrics")).content)
            assert later["dendro_door_connections", "app-server"] == 0
            assert later["dendro_door_connections_opened_total", "app-server"] == 1
            assert later["dendro_queue_depth", "default"] == 0
            assert (await client.get("/readyz")).status_code == 200
            writer.close()


async def test_gateway_that_nobody_watches_has_its_doors_as_they_are(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    settings = load_settings(sources(tmp_path, redis_server.url))
    doors = Doors(Door().serve)
    async with observed_doors(cast(Opened, _Settings(settings)), doors, print) as same:
        assert same is doors


async def test_gateway_whose_port_is_taken_says_so_and_serves(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    said: list[str] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        settings = load_settings(sources(tmp_path, redis_server.url, f"gateway.metrics_port={port}"))
        async with opened(settings) as found, observed_doors(found, Doors(), said.append) as doors:
            await doors.messages(cast(Any, None))
    (line,) = said
    assert "gateway.metrics_port" in line


class _Settings:
    """A deployment of which only the settings are asked for."""

    def __init__(self, settings: object) -> None:
        self.settings = settings
