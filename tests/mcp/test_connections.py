"""A connection that several sessions of a folder share, to a server that answers as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp.types import CONNECTION_CLOSED, jsonrpc_message_adapter

from orchestrator.config_keys import McpServerSettings
from orchestrator.mcp.servers import Connection, Servers, ServersConfig, Traffic
from tests.mcp.serving import Heard, until

HERE = Path("/here")
Message = dict[str, Any]


class Spoken:
    """Servers in this process, one for each connection, and what came to them."""

    def __init__(self) -> None:
        self.came: list[tuple[int, Message]] = []
        self.open: list[bool] = []
        self.lists: Callable[[int, Message], None] = lambda server, asked: self.has(server, asked, "old")
        self.listed: list[int] = []
        """The connection that each list was asked of."""
        self._sends: list[anyio.streams.memory.MemoryObjectSendStream[Any]] = []
        self._waits: dict[str, asyncio.Event] = {}

    @asynccontextmanager
    async def streams(self, slot: object, traffic: Traffic) -> AsyncIterator[Any]:
        to_client, from_server = anyio.create_memory_object_stream[Any](100)
        to_server, from_client = anyio.create_memory_object_stream[SessionMessage](100)
        number = len(self.open)
        self.open.append(True)
        self._sends.append(to_client)
        serving = asyncio.create_task(self._serve(number, from_client))
        try:
            async with to_client, from_server, to_server, from_client:
                yield from_server, to_server
        finally:
            self.open[number] = False
            serving.cancel()

    async def _serve(self, number: int, received: Any) -> None:
        async for sent in received:
            message = sent.message.model_dump(by_alias=True, exclude_none=True)
            self.came.append((number, message))
            match message.get("method"):
                case "initialize":
                    version = message["params"]["protocolVersion"]
                    about = {"name": "a", "version": "1"}
                    self.answers(
                        number, message, protocolVersion=version, capabilities={"tools": {}}, serverInfo=about
                    )
                case "tools/list":
                    self.listed.append(number)
                    self.lists(number, message)
                case "tools/call":
                    self._waiting(message["params"]["name"]).set()

    def says(self, number: int, **message: Any) -> None:
        said = jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **message})
        self._sends[number].send_nowait(SessionMessage(said))

    def answers(self, number: int, asked: Message, **result: Any) -> None:
        self.says(number, id=asked["id"], result=result)

    def changed(self, number: int) -> None:
        self.says(number, method="notifications/tools/list_changed")

    def has(self, number: int, asked: Message, *names: str, more: str | None = None) -> None:
        """Answers a list of tools."""
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
        self.answers(number, asked, tools=tools, **({"nextCursor": more} if more else {}))

    def _waiting(self, tool: str) -> asyncio.Event:
        return self._waits.setdefault(tool, asyncio.Event())

    async def called(self, tool: str) -> tuple[int, Message]:
        """The first call of the tool, once it has come, and the connection that it came by."""
        await self._waiting(tool).wait()
        return next(
            (number, message)
            for number, message in self.came
            if message.get("method") == "tools/call" and message["params"]["name"] == tool
        )

    async def ends(self, tool: str) -> int:
        """Answers the tool's call; the connection that it came by."""
        number, asked = await self.called(tool)
        self.answers(number, asked, content=[{"type": "text", "text": f"{tool} is done"}])
        return number


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> Spoken:
    found = Spoken()
    monkeypatch.setattr(Servers, "_streams", lambda self, slot, traffic: found.streams(slot, traffic))
    return found


def connection_of(made: Servers) -> Connection:
    """The connection in use."""
    found = made._folders[HERE].slots["a"].connection
    assert found is not None
    return found


async def handled() -> None:
    """Waits until what a server has said is heard."""
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[Servers]:
    server = McpServerSettings(id="a", command="x", **settings)
    made = Servers(ServersConfig({"a": server}, cast(Any, None), lambda text: text, "1"))
    try:
        yield made
    finally:
        await made.aclose()


def calls(made: Servers, tool: str) -> asyncio.Task[Any]:
    return asyncio.create_task(made.call(("a", tool), None, HERE, Heard().ask))


async def names(made: Servers, session: str = "s") -> list[str]:
    """The tools that a session's next request offers."""
    await made.start(session, HERE, Heard().report)
    return [each.tool.name for each in made.offered(HERE)]


@pytest.mark.parametrize("others", [1, 2])
@pytest.mark.parametrize("how", ["late", "nonsense", "gone"])
async def test_call_that_costs_its_connection_leaves_calls_of_other_sessions_to_their_ends(
    spoken: Spoken, how: str, others: int
) -> None:
    async with served() as made:
        running = [calls(made, f"long{n}") for n in range(others)]
        for n in range(others):
            await spoken.called(f"long{n}")
        connection = connection_of(made)
        if how == "late":
            connection.settings = connection.settings.model_copy(update={"tool_timeout_s": 0.02})
        failing = calls(made, "fails")
        number, asked = await spoken.called("fails")
        if how == "nonsense":
            spoken.answers(number, asked, content="nothing")
        elif how == "gone":
            spoken.says(number, id=asked["id"], error={"code": CONNECTION_CLOSED, "message": "no more"})
        assert "tool call failed" in str((await failing).result)
        following = calls(made, "next")
        assert await spoken.ends("next") == 1, "the next call has a new connection"
        await following
        assert spoken.open == [True, True]
        for n, call in enumerate(running):
            assert await spoken.ends(f"long{n}") == 0
            assert f"long{n} is done" in str((await call).output)
        await until(lambda: not spoken.open[0])
        assert spoken.open == [False, True]


@pytest.mark.parametrize("page", [1, 2])
@pytest.mark.parametrize("at", [1, 2, 3])
async def test_tools_that_change_while_they_are_listed_are_listed_once_more_before_the_next_request(
    spoken: Spoken, at: int, page: int
) -> None:
    """The first list is that of the start."""
    lists = 0

    def listed(server: int, asked: Message) -> None:
        nonlocal lists
        second = "cursor" in asked.get("params", {})
        lists += not second
        if lists == at and second is (page == 2):
            spoken.changed(server)
        spoken.has(server, asked, f"{'y' if second else 'x'}{lists}", more=None if second else "2")

    spoken.lists = listed
    async with served() as made:
        found = await names(made)
        for _ in range(at - 1):
            spoken.changed(0)
            await until(lambda: connection_of(made).stale)
            found = await names(made)
        assert found == [f"x{at}", f"y{at}"]
        await handled()
        assert await names(made) == [f"x{at + 1}", f"y{at + 1}"]
        await handled()
        assert await names(made) == [f"x{at + 1}", f"y{at + 1}"]
        assert lists == at + 1


@pytest.mark.parametrize("told", ["a list", "an error"])
async def test_list_of_a_connection_that_was_replaced_meanwhile_changes_nothing_at_the_new_one(
    spoken: Spoken, told: str
) -> None:
    asked_of_old: list[Message] = []

    def listed(server: int, asked: Message) -> None:
        if spoken.listed == [0, 0]:
            asked_of_old.append(asked)
        else:
            spoken.has(server, asked, f"of {server}")

    spoken.lists = listed
    async with served() as made:
        assert await names(made) == ["of 0"]
        running = calls(made, "long")
        await spoken.called("long")
        spoken.changed(0)
        await until(lambda: connection_of(made).stale)
        listing = asyncio.create_task(names(made))
        await until(lambda: bool(asked_of_old))
        failing = calls(made, "fails")
        number, asked = await spoken.called("fails")
        spoken.answers(number, asked, content="nothing")
        await failing
        following = calls(made, "next")
        assert await spoken.ends("next") == 1
        await following
        if told == "a list":
            spoken.has(0, asked_of_old[0], "older")
        else:
            spoken.says(0, id=asked_of_old[0]["id"], error={"code": -1, "message": "no list"})
        assert await listing == ["of 1"]
        assert spoken.open == [True, True]
        again = calls(made, "again")
        assert await spoken.ends("again") == 1
        await again
        await spoken.ends("long")
        await running


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("leaves", [None, 0, 1, 2])
async def test_sessions_that_come_while_tools_are_listed_anew_wait_for_that_list(
    spoken: Spoken, leaves: int | None, fails: bool
) -> None:
    """A session that leaves takes no list from the others; what is listed for it counts for nobody."""
    waiting: list[Message] = []

    def listed(server: int, asked: Message) -> None:
        if len(spoken.listed) == 1:
            spoken.has(server, asked, "old")
        else:
            waiting.append(asked)

    spoken.lists = listed
    async with served() as made:
        assert await names(made) == ["old"]
        spoken.changed(0)
        await until(lambda: connection_of(made).stale)
        coming = [asyncio.create_task(names(made, session)) for session in ("s", "t", "u")]
        await until(lambda: bool(waiting))
        await handled()
        assert len(waiting) == 1, "of all of them the server is asked once"
        if leaves is not None:
            coming[leaves].cancel()
            await asyncio.wait({coming[leaves]})
        if leaves == 0:
            await until(lambda: len(waiting) == 2)
        if fails:
            spoken.says(0, id=waiting[-1]["id"], error={"code": -1, "message": "no list"})
        else:
            spoken.has(0, waiting[-1], "new")
        stay = [each for at, each in enumerate(coming) if at != leaves]
        assert [await each for each in stay] == [["old" if fails else "new"]] * len(stay)
        await until(lambda: spoken.open == [not fails])


async def test_tools_are_listed_at_the_next_request_where_the_session_that_listed_them_has_left(
    spoken: Spoken,
) -> None:
    waiting: list[Message] = []

    def listed(server: int, asked: Message) -> None:
        if len(spoken.listed) == 2:
            waiting.append(asked)
        else:
            spoken.has(server, asked, f"tool{len(spoken.listed)}")

    spoken.lists = listed
    async with served() as made:
        assert await names(made) == ["tool1"]
        spoken.changed(0)
        await until(lambda: connection_of(made).stale)
        coming = asyncio.create_task(names(made))
        await until(lambda: bool(waiting))
        coming.cancel()
        await asyncio.wait({coming})
        assert await names(made, "t") == ["tool3"]
        assert await names(made) == ["tool3"]
        assert len(spoken.listed) == 3
