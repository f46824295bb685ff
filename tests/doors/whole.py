"""A server with its worker, its Redis and a scripted model, for clients over wires in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from orchestrator.gateways.app_server.client_connection import AppServer
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.wiring.embedded_worker import run_worker
from orchestrator.wiring.new_threads import door_ports
from orchestrator.wiring.open_deployment import opened
from tests.acceptance.conversation import Scene, environment, scene
from tests.doors.comparator import Message
from tests.doors.peer import served
from tests.servers import RedisServer


@asynccontextmanager
async def whole(
    root: Path, redis: RedisServer, config: str, model: Sequence[Message]
) -> AsyncIterator[tuple[AppServer, Scene]]:
    """The server and its folders, until the block ends; Redis is emptied first."""
    with redis.client() as client:
        client.flushall()
    async with scene(root, config, model) as place:
        environ = {**environment(place.setup, place.base_url), "DENDRO_REDIS_URL": redis.url}
        sources = SettingsSources(place.setup.workspace, environ)
        settings = load_settings(sources)
        async with (
            opened(settings) as found,
            run_worker(settings),
            served(door_ports(found, sources), notifications) as server,
        ):
            yield server, place
