"""The connection that all commands of a process share: who gets which reply, and what fails when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import hiredis
import pytest

from orchestrator.broker.connection import Connection, connect
from orchestrator.broker.errors import BrokerError, Unavailable
from orchestrator.broker.sockets import SMALL_BYTES
from orchestrator.config_keys import RedisSettings

Answer = Callable[[list[bytes]], bytes | None]
"""The reply to a command as bytes of the protocol; None keeps it back."""


def echoed(words: list[bytes]) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(words[-1]), words[-1])


@dataclass(slots=True)
class Server:
    """Answers commands as a test says; knows nothing of Redis but its protocol."""

    path: Path
    answer: Answer = echoed
    batches: list[list[bytes]] = field(default_factory=list)
    """The last words of the commands of each piece that was read at once."""
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        parser = hiredis.Reader()
        while data := await reader.read(1 << 20):
            parser.feed(data)
            read = []
            while (words := parser.gets()) is not False:
                read.append(words)
            self.batches.append([words[-1] for words in read])
            self.news.set()
            writer.write(b"".join(reply for words in read if (reply := self.answer(words)) is not None))

    async def reads(self, word: bytes) -> None:
        """Waits until a command that ends with the word was read."""
        while not any(word in batch for batch in self.batches):
            self.news.clear()
            await self.news.wait()

    def says(self, data: bytes) -> None:
        self.writers[-1].write(data)

    def hangs_up(self) -> None:
        for writer in self.writers:
            writer.close()


@asynccontextmanager
async def serving(path: Path, timeout_s: float = 5.0) -> AsyncIterator[tuple[Server, Connection]]:
    server = Server(path / "redis.sock")
    listening = await asyncio.start_unix_server(server.serve, server.path)
    connection = connect(RedisSettings(url=f"unix://{server.path}", command_timeout_s=timeout_s))
    try:
        yield server, connection
    finally:
        await connection.aclose()
        listening.close()
        server.hangs_up()


def holding(*held: bytes) -> Answer:
    return lambda words: None if words[-1] in held else echoed(words)


async def test_commands_that_are_sent_together_get_each_its_own_reply(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, connection):
        assert await connection.command("ECHO", "first") == b"first"
        words = [str(number) for number in range(20)]
        replies = await asyncio.gather(*(connection.command("ECHO", word) for word in words))
        assert replies == [word.encode() for word in words]
        assert [len(batch) for batch in server.batches if b"7" in batch] == [20]
        assert await connection.commands([("ECHO", "a"), ("ECHO", "b")]) == [b"a", b"b"]
        assert len(server.writers) == 1


async def test_error_fails_its_own_command_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, connection):
        server.answer = lambda words: b"-ERR no\r\n" if words[-1] == b"bad" else echoed(words)
        found = await asyncio.gather(
            *(connection.command("ECHO", word) for word in ("a", "bad", "b")), return_exceptions=True
        )
        assert (found[0], found[2]) == (b"a", b"b")
        assert isinstance(found[1], BrokerError)
        with pytest.raises(BrokerError, match="no"):
            await connection.commands([("ECHO", "a"), ("ECHO", "bad")])
        assert len(server.writers) == 1


async def test_reply_to_a_command_that_nobody_waits_for_any_more_goes_to_no_other(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, connection):
        server.answer = holding(b"given-up")
        left = asyncio.create_task(connection.command("ECHO", "given-up"))
        await server.reads(b"given-up")
        left.cancel()
        await asyncio.wait([left])
        after = asyncio.create_task(connection.command("ECHO", "after"))
        server.answer = lambda words: b"$8\r\ngiven-up\r\n" + echoed(words)
        assert await after == b"after"


async def test_command_that_blocks_has_a_connection_until_it_is_answered_and_then_leaves_it_to_the_next(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (server, connection):
        server.answer = holding(b"first", b"second")
        waiting = [asyncio.create_task(connection.wait("ECHO", word)) for word in ("first", "second")]
        for word in (b"first", b"second"):
            await server.reads(word)
        assert len(server.writers) == 2
        for number, writer in enumerate(server.writers):
            writer.write(b":%d\r\n" % number)
        assert sorted(await asyncio.gather(*waiting)) == [0, 1]
        server.answer = lambda words: b"-ERR no\r\n" if words[-1] == b"bad" else echoed(words)
        with pytest.raises(BrokerError, match="no"):
            await connection.wait("ECHO", "bad")
        assert await connection.wait("ECHO", "third") == b"third"
        assert len(server.writers) == 2


async def test_late_reply_to_a_wait_that_was_given_up_goes_to_no_other(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, connection):
        server.answer = holding(b"given-up")
        left = asyncio.create_task(connection.wait("ECHO", "given-up"))
        await server.reads(b"given-up")
        left.cancel()
        await asyncio.wait([left])
        server.says(echoed([b"given-up"]))
        assert await connection.wait("ECHO", "after") == b"after"
        assert len(server.writers) == 2


async def test_wait_behind_the_end_of_its_connection_has_a_new_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, connection):
        server.answer = holding(b"lost")
        lost = asyncio.create_task(connection.wait("ECHO", "lost"))
        await server.reads(b"lost")
        server.hangs_up()
        with pytest.raises(Unavailable):
            await lost
        assert await connection.wait("ECHO", "after") == b"after"


async def test_late_reply_fails_all_that_waits_and_the_next_command_has_a_new_connection(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, timeout_s=0.1) as (server, connection):
        server.answer = holding(b"late", b"behind")
        waiting = [asyncio.create_task(connection.command("ECHO", word)) for word in ("late", "behind")]
        for task in waiting:
            with pytest.raises(Unavailable, match="does not answer"):
                await task
        assert await connection.command("ECHO", "again") == b"again"
        assert len(server.writers) == 2


@pytest.mark.parametrize("said", [b"", b"?\r\n", b"$3\r\nodd\r\n"], ids=["hangs up", "garbage", "unasked"])
async def test_server_that_leaves_or_says_nonsense_fails_what_waits_there(
    tmp_path: Path, said: bytes
) -> None:
    async with serving(tmp_path) as (server, connection):
        assert await connection.command("ECHO", "there") == b"there"
        server.answer = holding(b"kept")
        kept = asyncio.create_task(connection.command("ECHO", "kept"))
        await server.reads(b"kept")
        if said.startswith(b"$"):
            # The first reply answers the command, the second nobody.
            server.says(said + said)
            assert await kept == b"odd"
        else:
            server.says(said)
            server.hangs_up()
            with pytest.raises(Unavailable):
                await kept
        assert await connection.command("ECHO", "again") == b"again"
        assert len(server.writers) == 2


async def test_former_primary_gets_no_further_command_and_still_answers_those_before(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, connection):
        assert await connection.wait("ECHO", "waits") == b"waits"
        server.answer = lambda words: {b"write": b"-READONLY replica\r\n", b"read": None}.get(
            words[-1], echoed(words)
        )
        written, read = (asyncio.create_task(connection.command("ECHO", word)) for word in ("write", "read"))
        with pytest.raises(Unavailable, match="cannot write"):
            await written
        assert await connection.command("ECHO", "next") == b"next"
        assert await connection.wait("ECHO", "waits") == b"waits"
        assert len(server.writers) == 4
        server.writers[1].write(b"$4\r\nread\r\n")
        assert await read == b"read"


async def test_very_long_command_holds_up_none_behind_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, connection):
        long = "x" * (SMALL_BYTES + 1)
        server.answer = holding(long.encode())
        held = asyncio.create_task(connection.command("ECHO", long))
        await server.reads(long.encode())
        assert await connection.command("ECHO", "short") == b"short"
        assert len(server.writers) == 2
        server.writers[0].write(echoed([long.encode()]))
        assert await held == long.encode()


async def test_all_that_wait_for_a_connection_share_one_attempt_and_its_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(RedisSettings(url=f"unix://{tmp_path}/nobody.sock"))
    client: Any = connection._client
    attempts = []
    made = client.connection_pool.connection_class

    def counted(**options: Any) -> Any:
        attempts.append(1)
        return made(**options)

    client.connection_pool.connection_class = counted
    found = await asyncio.gather(
        *(connection.command("ECHO", "x") for _ in range(30)), return_exceptions=True
    )
    assert all(isinstance(error, Unavailable) for error in found)
    assert len(attempts) == 1
    await connection.aclose()


async def test_command_that_is_given_up_while_it_connects_fails_no_other(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, connection):
        first = asyncio.create_task(connection.command("ECHO", "first"))
        second = asyncio.create_task(connection.command("ECHO", "second"))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == b"second"


CLOSED = RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")


def closed(*_: object) -> None:
    """As a transport of uvloop writes between its end and its word of that."""
    raise CLOSED


async def test_transport_of_the_library_that_closes_under_a_command_is_a_server_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "x" * (SMALL_BYTES + 1)
    async with serving(tmp_path) as (_, connection):
        with monkeypatch.context() as patched:
            patched.setattr(asyncio.StreamWriter, "writelines", closed)
            with pytest.raises(Unavailable, match="the handler is closed"):
                await connection.command("ECHO", long)
        assert await connection.command("ECHO", long) == long.encode()


async def test_transport_that_closes_under_a_command_fails_it_and_the_next_has_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as (server, connection):
        assert await connection.command("ECHO", "first") == b"first"
        link = cast(Any, connection)._client._link
        monkeypatch.setattr(link._transport, "writelines", closed)
        with pytest.raises(Unavailable, match="the handler is closed"):
            await connection.command("ECHO", "lost")
        assert await connection.command("ECHO", "second") == b"second"
        assert len(server.writers) == 2
