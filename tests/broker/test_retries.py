"""A connection that waits for a server that is not there yet, and rights that a user lacks on a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import fakeredis
import pytest

from orchestrator.broker import connection as connection_module
from orchestrator.broker.connection import Connection, RetryingConnection, ScriptCall, call
from orchestrator.broker.errors import Misconfigured, Unavailable
from orchestrator.broker.redis_keys import Keys
from orchestrator.broker.rights import COMMANDS, remedy


class Starting(Connection):
    """A server that answers from the third time on."""

    def __init__(self, error: Exception) -> None:
        client = fakeredis.FakeAsyncRedis()
        super().__init__(client, client)
        self.error, self.asked = error, 0

    def _refuse_at_first(self) -> None:
        self.asked += 1
        if self.asked < 3:
            raise self.error

    async def command(self, *args: Any) -> Any:
        self._refuse_at_first()
        return await super().command(*args)

    async def together(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        self._refuse_at_first()
        return await super().together(rows)

    async def commands(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        self._refuse_at_first()
        return await super().commands(rows)

    async def run(self, call: ScriptCall) -> list[Any]:
        self._refuse_at_first()
        return await super().run(call)

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[list[Any]]:
        self._refuse_at_first()
        return await super().run_all(calls)


async def test_command_is_sent_again_until_the_server_answers() -> None:
    starting = Starting(Unavailable("nobody listens"))
    connection = RetryingConnection(starting, 20.0)
    assert await connection.command("SET", "key", "value") is True
    assert (await connection.command("GET", "key"), starting.asked) == (b"value", 4)
    await connection.aclose()


SENT: dict[str, Callable[[Connection], Awaitable[Any]]] = {
    "a command": lambda connection: connection.command("SET", "key", "value"),
    "commands": lambda connection: connection.commands([("SET", "key", "value"), ("GET", "key")]),
    "commands together": lambda connection: connection.together([("SET", "key", "value")]),
    "a script": lambda connection: connection.run(call("timers_due", ["timers"], count=1)),
    "scripts": lambda connection: connection.run_all([call("timers_due", ["timers"], count=1)]),
}


@pytest.mark.parametrize("sent", SENT)
async def test_each_way_to_send_is_tried_again_and_a_server_that_never_will_answer_is_named_at_once(
    sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "AGAIN_S", 0.001)
    looks: list[str] = []

    async def look() -> str:
        looks.append(sent)
        return ""

    starting = Starting(Unavailable("nobody listens"))
    connection = RetryingConnection(starting, 20.0, look)
    assert await SENT[sent](connection)
    assert (starting.asked >= 3, looks) == (True, [sent]), "it is looked at once"

    async def speaks_tls() -> str:
        return "it speaks TLS"

    never = Starting(Unavailable("nobody listens"))
    with pytest.raises(Misconfigured, match="it speaks TLS"):
        await SENT[sent](RetryingConnection(never, 20.0, speaks_tls))
    assert never.asked == 1


async def test_whatever_is_sent_waits_for_the_server() -> None:
    starting = Starting(Unavailable("nobody listens"))
    connection = RetryingConnection(starting, 20.0)
    assert await connection.together([("SET", "key", "value"), ("GET", "key")]) == [True, b"value"]
    starting.asked = 0
    (due,) = await connection.run_all([call("timers_due", ["timers"], count=1)])
    assert due[1] == []
    assert starting.asked >= 3, "it was refused twice"
    await connection.aclose()


async def test_person_whose_server_does_not_come_is_told_how_long_it_was_waited_for_and_what_to_do() -> None:
    starting = Starting(Unavailable("nobody listens"))
    connection = RetryingConnection(starting, 0.0)
    with pytest.raises(Unavailable, match=r"nobody listens; waited 0 s for it: start the server") as caught:
        await connection.command("PING")
    assert (starting.asked, "DENDRO_REDIS_URL" in str(caught.value)) == (1, True)
    await connection.aclose()


async def test_mistake_in_the_settings_is_not_waited_out() -> None:
    starting = Starting(Misconfigured("wrong password"))
    connection = RetryingConnection(starting, 20.0)
    with pytest.raises(Misconfigured):
        await connection.command("PING")
    assert starting.asked == 1
    await connection.aclose()


def test_administrator_reads_which_rights_are_missing() -> None:
    keys = Keys("dendro:", 16)
    assert remedy(["xlen", "zadd"], keys) == "ACL SETUSER NAME +xlen +zadd"
    of_keys = [command.split()[0].lower() for command in COMMANDS if "@" in command]
    assert remedy(of_keys, keys) == "ACL SETUSER NAME ~dendro:*"
