"""Every recorded conversation of version 1, held again with the app-server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from orchestrator.gateways.app_server.client_connection import AppServer
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.wiring.embedded_worker import run_worker
from orchestrator.wiring.new_threads import door_ports
from orchestrator.wiring.open_deployment import Opened, opened
from tests.acceptance.conversation import environment, scene
from tests.doors.peer import connected, served
from tests.doors.v1_recordings import RECORDINGS, Player, connections
from tests.servers import RedisServer, start_redis


@pytest.fixture(scope="module")
def deployment_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


def _served(found: Opened, sources: SettingsSources) -> AbstractAsyncContextManager[AppServer]:
    return served(door_ports(found, sources), notifications)


@pytest.mark.slow
@pytest.mark.realredis
@pytest.mark.parametrize("name", sorted(folder.name for folder in RECORDINGS.iterdir()))
async def test_client_of_version_1_is_served_as_the_peer_served_it(
    name: str, tmp_path: Path, deployment_server: RedisServer
) -> None:
    with deployment_server.client() as client:
        client.flushall()
    folder = RECORDINGS / name
    model = json.loads((folder / "model.json").read_text())
    async with scene(tmp_path, (folder / "config.toml").read_text(), model) as place:
        environ = {**environment(place.setup, place.base_url), "DENDRO_REDIS_URL": deployment_server.url}
        sources = SettingsSources(place.setup.workspace, environ)
        settings = load_settings(sources)
        async with opened(settings) as found, run_worker(settings), _served(found, sources) as server:
            bindings = place.setup.bindings()
            for lines in connections(name):
                async with connected(server) as peer:
                    player = Player(peer, bindings)
                    await player.play(lines)
                    assert not player.found, "\n".join(map(str, player.found))
