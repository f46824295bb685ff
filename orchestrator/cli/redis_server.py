"""The server that the settings mean: the one that they name, else the user's private one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from orchestrator.broker.connection import WireConfig
from orchestrator.broker.embedded import EmbeddedConfig, EmbeddedRedis
from orchestrator.settings import Settings


def embedded_config(settings: Settings) -> EmbeddedConfig:
    """The private server that these settings mean; equal in every process, or they would not share it."""
    return EmbeddedConfig(
        home=settings.home,
        search_path=settings.host.search_path,
        host=settings.host.machine_id,
        runtime_dir=settings.host.runtime_dir,
        temp_dir=Path("/tmp"),
        appendfsync=settings.redis.appendfsync,
    )


def wire_config(settings: Settings, url: str) -> WireConfig:
    """How to reach a server at `url`, with the patience that the settings ask for."""
    redis = settings.redis
    return WireConfig(url, redis.cluster, redis.connect_timeout_s, redis.command_timeout_s)


@asynccontextmanager
async def redis_url(settings: Settings) -> AsyncIterator[str]:
    """The server's URL; a private server is shared for as long as the context is open.

    Raises `EmbeddedError` if a private server is needed and cannot be had.
    """
    if settings.redis.url is not None:
        yield settings.redis.url
        return
    server = await asyncio.to_thread(EmbeddedRedis.acquire, embedded_config(settings))
    try:
        yield server.url
    finally:
        await asyncio.to_thread(server.release)
