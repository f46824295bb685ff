"""Health: what a process answers to those that watch it, by itself and over HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.broker.errors import BrokerError, Unavailable
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.telemetry import listener as health_module
from orchestrator.telemetry.listener import Health, listening
from orchestrator.telemetry.metrics import Metrics
from orchestrator.wiring.worker_parts import running_worker
from tests.servers import RedisServer, plain_http


async def well() -> str:
    return ""


async def drains() -> str:
    return "it drains"


async def without_redis() -> str:
    raise Unavailable("Redis at localhost does not answer")


async def never() -> str:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        (well, 200, "ready"),
        (drains, 503, "it drains"),
        (without_redis, 503, "does not answer"),
        (never, 503, "did not answer within"),
    ],
)
async def test_process_is_ready_only_if_it_can_take_work(
    fault: Callable[[], Awaitable[str]], status: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_module, "PATIENCE_S", 0.01)
    answer = await Health(Metrics("1"), fault).answer("/readyz")
    assert answer is not None
    assert (answer.status, words in answer.body.decode()) == (status, True)


async def away() -> None:
    raise BrokerError("away")


async def hangs() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("look", [away, hangs])
async def test_process_without_redis_is_healthy_and_tells_its_own_figures(
    look: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_module, "PATIENCE_S", 0.01)
    health = Health(Metrics("7"), without_redis, look)
    alive, metrics = await health.answer("/healthz"), await health.answer("/metrics")
    assert alive is not None
    assert alive.status == 200
    assert metrics is not None
    assert b'dendro_build_info{version="7"} 1.0' in metrics.body


async def test_listener_answers_get_and_head_of_three_paths() -> None:
    async with (
        listening(Health(Metrics("1"), well), "127.0.0.1", 0) as url,
        plain_http(url) as client,
    ):
        answers = [await client.get(path) for path in ("/healthz", "/readyz", "/metrics", "/", "/metrics/x")]
        head, post = await client.head("/metrics"), await client.post("/metrics", content=b"x" * 100_000)
    assert [answer.status_code for answer in answers] == [200, 200, 200, 404, 404]
    assert answers[2].headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 0
    assert post.status_code == 405


async def test_listener_outlives_garbage_and_connections_that_say_nothing() -> None:
    async with listening(Health(Metrics("1"), well), "127.0.0.1", 0) as url:
        host, port = url.removeprefix("http://").split(":")
        for content in (b"\x00" * 70_000, b"GET /metrics", b"GET / HTTP/9.9\r\n\r\n", b""):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(content)
            writer.close()
        async with plain_http() as client:
            assert (await client.get(f"{url}/healthz")).status_code == 200


async def test_worker_serves_its_metrics_where_the_settings_say(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    said: list[str] = []
    settings = load_settings(
        settings_with(tmp_path, "worker.metrics_port=0", 'worker.metrics_host="127.0.0.2"')
    )
    async with running_worker(settings, redis_server.url, say=said.append) as worker:
        (line,) = said
        url = line.removeprefix("metrics at ").removesuffix("/metrics")
        assert url.startswith("http://127.0.0.2:")
        running = asyncio.create_task(worker.run())
        async with plain_http(url) as client:
            assert (await client.get("/readyz")).text == "ready\n"
            figures = (await client.get("/metrics")).text
            assert f"dendro_worker_concurrency {settings.worker.concurrency}.0" in figures
            assert 'dendro_queue_depth{pool="default"} 0.0' in figures
            worker.drain()
            draining = await client.get("/readyz")
        await running
    assert (draining.status_code, "drains" in draining.text) == (503, True)


async def test_worker_whose_port_is_taken_says_so_and_serves_without(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    said: list[str] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        settings = load_settings(settings_with(tmp_path, f"worker.metrics_port={port}"))
        async with running_worker(settings, redis_server.url, say=said.append) as worker:
            running = asyncio.create_task(worker.run())
            worker.drain()
            await running
    (line,) = said
    assert f"127.0.0.1:{port}" in line
    assert "worker.metrics_port" in line


def settings_with(tmp_path: Path, *overrides: str) -> SettingsSources:
    environ = {"HOME": str(tmp_path), "DENDRO_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    return SettingsSources(tmp_path, environ, overrides=("redis.prefix=health:", *overrides))
