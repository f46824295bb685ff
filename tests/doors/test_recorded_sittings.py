"""Recorded sittings of the terminal and of the Python SDK, over several connections, held with a server."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.acceptance.conversation import Setup, Stuck
from tests.doors.comparator import Message, compare, unsound
from tests.doors.conversation import NOT_IN_TMP, Held, bind, expected_of, normalised
from tests.doors.peer import Peer, connected
from tests.doors.results import compare_answers
from tests.doors.schema import faults
from tests.doors.sittings import SITTINGS, Connection, Sitting, connections, model_of
from tests.doors.whole import whole
from tests.servers import RedisServer, start_redis

OWN = frozenset({"account/bedrock/checkGovCloudRequirements", "thread/readState/update"})


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@dataclass
class Player:
    """The client of a sitting: it sends each message when all before it has come."""

    setup: Setup
    bound: dict[str, str]
    recorded: list[Message] = field(default_factory=list)
    heard: list[Message] = field(default_factory=list)
    different: list[str] = field(default_factory=list)

    async def play(self, peer: Peer, connection: Connection) -> None:
        """Holds one connection, and takes what it was told."""
        held, before = Held(peer.heard, bound=self.bound), list[Message]()
        lines, early, skipped = connection.lines, connection.unseen, 0
        for place, line in enumerate(lines):
            if "server" in line:
                before.append(line["server"])
                continue
            if line["client"].get("method") == "thread/readState/update":
                # The client marks as read what it has seen to its end.
                self.end_commands()
            await self._come(peer, before, held)
            if place == early:
                before, skipped = [], len(peer.heard)
            peer.send(self._bound(line["client"]))
        await self._come(peer, before, held)
        got = normalised(peer.heard[skipped:], self.setup)
        self.different += compare_answers([line for line in lines[early:] if not _own(line)], got)
        self.recorded += before
        self.heard += got

    def end_commands(self) -> None:
        """Lets the command end that waits for it."""
        (self.setup.workspace / "go").touch()

    async def _come(self, peer: Peer, recorded: Sequence[Message], held: Held) -> None:
        while missing := expected_of(recorded) - expected_of(peer.heard):
            try:
                await peer.next()
            except TimeoutError:
                raise Stuck(f"never came: {dict(missing)}\n{held.report()}") from None
        bind(recorded, held)

    def _bound(self, message: Message) -> Message:
        text = json.dumps(message).replace("@WORKSPACE@", str(self.setup.workspace))
        filled = re.sub(r"@ID\d+@", lambda found: self.bound.get(found[0], str(uuid.uuid4())), text)
        found: Message = json.loads(filled)
        return found

    def judged(self) -> list[str]:
        """Differences of the whole sitting, in words."""
        told = [message for message in self.heard if "method" in message and "id" not in message]
        wrong = [fault for message in told for fault in faults("ServerNotification", message)]
        return [*compare(self.recorded, self.heard), *self.different, *unsound(self.heard), *wrong]


def _own(line: Message) -> bool:
    """Whether a line is about what the peer alone has, or has not: its clouds, a thread from before.

    A thread that was told nothing yet is in lists here, so that other clients find it; the peer hides it.
    """
    message = line.get("client", {})
    params = message.get("params", {})
    earlier = message.get("method") == "thread/read" and params["threadId"] == "@ID22@"
    hidden = "not materialized" in line.get("server", {}).get("error", {}).get("message", "")
    return message.get("method") in OWN or earlier or hidden or params.get("sortKey") == "recency_at"


@pytest.mark.slow
@pytest.mark.realredis
@pytest.mark.parametrize("sitting", SITTINGS, ids=lambda sitting: sitting.recording.split("/")[-1])
async def test_client_of_several_connections_is_told_what_the_peer_told_it(
    sitting: Sitting, tmp_path: Path, redis: RedisServer
) -> None:
    bound: dict[str, str] = {}
    model = model_of(sitting, str(tmp_path / "outside"))
    async with whole(tmp_path, redis, NOT_IN_TMP, model) as (server, place):
        player = Player(place.setup, bound)
        if len(sitting.before) > 1:
            player.end_commands()
        for connection in connections(sitting, bound):
            async with connected(server) as peer:
                await player.play(peer, connection)
    different = player.judged()
    assert not different, "\n".join(map(str, different))
