"""The answer to `initialize` that a client on stdio gets before the server has loaded what it serves."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.gateways.app_server.greeting import Greeter, early_answer
from orchestrator.gateways.principals import Principal
from orchestrator.gateways.wires.byte_wire import LineWire, StandardStreams
from tests.cli.machine import Machine, dendro
from tests.doors.peer import GOLDEN, connected, served
from tests.doors.ports import ports
from tests.servers import RedisServer

HOME = Path("/home/ann/.dendro")


def line(**changes: Any) -> bytes:
    message = {"id": 1, "method": "initialize", "params": {"clientInfo": GOLDEN}, **changes}
    return json.dumps(message).encode() + b"\n"


@pytest.mark.parametrize("id", [1, -3, "a", "é"])
async def test_early_answer_is_the_connections_own(id: int | str) -> None:
    early = early_answer(line(id=id) + b'{"id":2', "1.2.3", HOME)
    assert early is not None
    async with served(ports(), lambda session, change, root_turn: ()) as server, connected(server) as peer:
        peer.send(json.loads(line(id=id)))
        assert await peer.wire.outgoing.get() == json.loads(early)


@pytest.mark.parametrize(
    "early",
    [
        b"",
        line()[:-1],
        b"no json\n",
        b"[]\n",
        line(method="thread/start"),
        line(jsonrpc="2.0"),
        line(id=None),
        line(id=True),
        line(id=1 << 70),
        line(params=None),
        line(params={}),
        line(params={"clientInfo": {"name": "a"}}),
        line(params={"clientInfo": {"name": 1, "version": "1"}}),
        line(params={"clientInfo": {"name": "a\n", "version": "1"}}),
        line(params={"clientInfo": GOLDEN, "protocolVersion": "1"}),
        line(params={"clientInfo": GOLDEN, "capabilities": []}),
        line(params={"clientInfo": GOLDEN, "capabilities": {"experimentalApi": 1}}),
        line(params={"clientInfo": GOLDEN, "capabilities": {"optOutNotificationMethods": [1]}}),
    ],
)
def test_what_wants_a_closer_look_is_not_answered_early(early: bytes) -> None:
    assert early_answer(early, "1.2.3", HOME) is None


async def test_answer_that_a_client_has_is_not_sent_again_and_early_input_is_read_first() -> None:
    sent: list[bytes] = []

    async def write(data: bytes) -> None:
        sent.append(data)

    async def read(limit: int) -> bytes:
        return b"late"

    greeter = Greeter(read, write, b"early", answered=True)
    assert [await greeter.receive(3), await greeter.receive(9), await greeter.receive(9)] == [
        b"ear",
        b"ly",
        b"late",
    ]
    await greeter.send(b"the answer\n")
    await greeter.send(b"the next\n")
    assert sent == [b"the next\n"]


async def test_only_the_answer_that_a_client_has_is_kept_back_of_messages_that_are_sent_together() -> None:
    sent: list[bytes] = []

    async def write(data: bytes) -> None:
        sent.append(data)

    async def read(limit: int) -> bytes:
        return b""

    wire = LineWire(StandardStreams(read, Greeter(read, write, answered=True).send), Principal("ann"))
    await wire.send(b"the answer", b"the next", b"the last")
    assert b"".join(sent) == b"the next\nthe last\n"


@pytest.mark.realredis
@pytest.mark.always
def test_client_on_stdio_is_answered_once_and_goes_on(tmp_path: Path, redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        client.flushall()  # another test's deployment may have another shape
    machine = Machine.at(tmp_path, redis_server.url)
    asked = line() + json.dumps({"id": 2, "method": "thread/list", "params": {}}).encode() + b"\n"
    words = dendro("app-server", "--no-worker")
    done = subprocess.run(words, input=asked, capture_output=True, env=machine.environ)
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["result"]["codexHome"] == machine.environ["DENDRO_HOME"]
    assert (second["id"], second["result"]["data"]) == (2, [])
