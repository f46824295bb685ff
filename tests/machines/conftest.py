"""Two machines with nothing in common but a Redis by TCP, a model, and one folder of the test."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.cli.machine import Machine
from tests.machines.host import Host, Network, host
from tests.servers import RedisServer, free_ports, start_redis

NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Fleet:
    """The machines, and what they share."""

    one: Host
    two: Host
    common: Path
    """The folder that all machines see as `/mnt`: a mount, or the place of a store."""
    redis: RedisServer

    def under(self, **more: str) -> Fleet:
        """The same fleet with more environment variables everywhere."""
        return Fleet(self.one.under(**more), self.two.under(**more), self.common, self.redis)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    (port,) = free_ports(1)
    with start_redis(tmp_path_factory.mktemp("redis"), port=port) as server:
        yield server


@pytest.fixture
def fleet(tmp_path: Path, redis_server: RedisServer) -> Iterator[Fleet]:
    with redis_server.client() as client:
        client.flushall()
    common = tmp_path / "common"
    common.mkdir()
    environ = {
        "DENDRO_REDIS_URL": redis_server.url,
        "DENDRO_POOL": "default",
        "DENDRO_WORKER_POOLS": "default",
        "DENDRO_UPKEEP_ARCHIVE_URL": "file:///mnt/archive",
        "OPENAI_API_KEY": "none",
    }
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(host(tmp_path / name, name, environ, common)) for name in ("one", "two")
        )
        yield Fleet(one, two, common, redis_server)


MEET = "hostname > {label}; until [ -s {other} ]; do sleep 0.02; done; cat {other}"
"""A command that ends when another machine's has begun: each worker of the fleet has room for one session."""


def fleet_model(
    tmp_path: Path, meet: str = MEET, said: Mapping[str, str] = NOTHING, on: Network | None = None
) -> AbstractContextManager[Machine]:
    """A model of a root and two agents with a command each, and of who is asked for something `said`."""
    labels = ("left", "right")
    spawn = [{"call": "subagent_spawn", "args": {"label": one, "prompt": f"Be {one}."}} for one in labels]
    wait = {"items": [{"call": "subagent_await", "args": {}}]}
    agents = []
    for label, other in (labels, labels[::-1]):
        command = ["bash", "-c", meet.format(label=label, other=other)]
        steps = [{"items": [{"call": "shell", "args": {"command": command}}]}, {"items": [{"text": label}]}]
        agents.append({"label": label, "steps": steps})
    root = [{"items": spawn}, wait, wait, {"items": [{"text": "both have met"}]}]
    answers = [{"prompt": asked, "steps": [{"items": [{"text": text}]}]} for asked, text in said.items()]
    folder = tmp_path / "model"
    folder.mkdir()
    machine = Machine.at(folder).buried
    if on is not None:
        machine = replace(machine, start=on.started)
    scenario = {"steps": root, "agents": [*answers, *agents], "after_end": "repeat_last"}
    return machine.playing(json.dumps(scenario))
