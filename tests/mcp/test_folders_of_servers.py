"""Servers of several folders and sessions: which are started, told of, replaced and closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import httpx2
import orjson
import pytest

from orchestrator.config_keys import McpServerSettings, Secret
from orchestrator.mcp import server_records
from orchestrator.mcp import servers as servers_module
from orchestrator.mcp.server_records import (
    BLOCKS,
    IMAGES,
    MESSAGE_BYTES,
    NOISE_LINES,
    OPEN_EXCHANGES,
    RESULT_BYTES,
    McpFault,
    Misbehaved,
    ServerTool,
    StartFailed,
    ToolFault,
)
from orchestrator.mcp.servers import Bounded, Lines, Servers, ServersConfig, _headers, answered
from orchestrator.protocol.mcp import Tool
from tests.mcp.serving import Heard

HERE, THERE = Path("/here"), Path("/there")


def tool(server: str, name: str, words: str = "") -> ServerTool:
    return ServerTool(server, name, words, {}, Tool(name=name, description=words, input_schema={}))


class Wire:
    """A connection to a server that is there by name alone."""

    made: list[Wire]
    starts: Callable[[str], None]

    def __init__(self, settings: McpServerSettings, streams: Any, version: str) -> None:
        self.settings = settings
        self.fault = ""
        self.stale = False
        self.idle = True
        self.closed = False
        self.tools = (tool(settings.id, "old"),)
        self.fails: Exception | None = None
        Wire.made.append(self)

    async def start(self) -> None:
        Wire.starts(self.settings.id)

    async def relist(self) -> None:
        self.stale, self.tools = False, (tool(self.settings.id, "new"),)

    async def call(self, name: str, arguments: Any, ask: Any) -> dict[str, Any]:
        if self.fails is not None:
            raise self.fails
        return {"content": [{"type": "text", "text": name}]}

    async def drain(self) -> None:
        self.closed = True

    close = drain


@pytest.fixture(autouse=True)
def wires(monkeypatch: pytest.MonkeyPatch) -> list[Wire]:
    monkeypatch.setattr(servers_module, "Connection", Wire)
    Wire.made, Wire.starts = [], lambda name: None
    return Wire.made


def fails(*names: str) -> None:
    def start(name: str) -> None:
        if name in names:
            raise StartFailed(f"{name} is not there")

    Wire.starts = start


def served(*names: str, idle_s: float = 0.0, **more: Any) -> Servers:
    settings = {name: McpServerSettings(id=name, command="x", **more) for name in names}
    return Servers(ServersConfig(settings, cast(Any, None), lambda text: text, "1", idle_s))


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_session_is_told_of_each_server_whether_it_is_ready() -> None:
    fails("b")
    made, heard = served("c", "a", "b"), Heard()
    started = await made.start("s", HERE, heard.report)
    assert (started.ready, dict(started.failed)) == (("a", "c"), {"b": "b is not there"})
    assert sorted(heard.starts) == [
        *(("a", "ready"), ("a", "starting"), ("b", "failed"), ("b", "starting")),
        *(("c", "ready"), ("c", "starting")),
    ]
    assert [each.full_name for each in made.offered(HERE)] == ["mcp__a__old", "mcp__c__old"]


async def test_servers_of_a_folder_start_all_at_once() -> None:
    heard = Heard()
    await served("a", "b", "c").start("s", HERE, heard.report)
    assert heard.starts[:3] == [("a", "starting"), ("b", "starting"), ("c", "starting")]


async def test_connections_of_every_server_and_folder_end_with_the_worker(wires: list[Wire]) -> None:
    made = served("a", "b", "c")
    for session, folder in (("s", HERE), ("t", HERE / "x"), ("u", HERE / "y")):
        await made.start(session, folder, Heard().report)
    made.let_go("t")
    await made.aclose()
    assert len(wires) == 9
    assert all(wire.closed for wire in wires)


async def test_server_that_is_disabled_is_not_started_and_its_call_says_so(wires: list[Wire]) -> None:
    made = served("a", enabled=False)
    assert (await made.start("s", HERE, Heard().report)).ready == ()
    assert "removed from the settings, or disabled" in str(
        (await made.call(("a", "x"), None, HERE, Heard().ask)).output
    )
    assert wires == []


@pytest.mark.parametrize("again_s", [0.0, 60.0])
@pytest.mark.parametrize("anew", [True, False])
async def test_server_that_failed_is_tried_again_for_a_session_that_comes_anew_and_not_at_once(
    monkeypatch: pytest.MonkeyPatch, wires: list[Wire], again_s: float, anew: bool
) -> None:
    monkeypatch.setattr(servers_module, "FAILED_AGAIN_S", again_s)
    fails("a")
    made = served("a")
    await made.start("s", HERE, Heard().report)
    Wire.starts = lambda name: None
    started = await made.start("other" if anew else "s", HERE, Heard().report)
    tried = anew and again_s == 0.0
    assert (len(wires), started.ready) == (2 if tried else 1, ("a",) if tried else ())


async def test_fault_of_one_server_replaces_its_connection_and_no_other(wires: list[Wire]) -> None:
    made = served("a", "b")
    for folder in (HERE, THERE):
        await made.start(str(folder), folder, Heard().report)
    broken = next(wire for wire in wires if wire.settings.id == "a")
    broken.fails = McpFault("it ended")
    answer = await made.call(("a", "x"), None, HERE, Heard().ask)
    assert answer.output == "tool call failed: MCP server a: it ended"
    await settled()
    assert [wire.closed for wire in wires] == [wire is broken for wire in wires]
    assert "x" in str((await made.call(("a", "x"), None, HERE, Heard().ask)).output)
    assert len(wires) == 5


async def test_error_of_a_tool_replaces_nothing(wires: list[Wire]) -> None:
    made = served("a")
    await made.start("s", HERE, Heard().report)
    wires[0].fails = ToolFault("no such thing")
    assert (await made.call(("a", "x"), None, HERE, Heard().ask)).output == "tool call error: no such thing"
    await settled()
    assert not wires[0].closed


async def test_call_that_fails_late_leaves_the_connection_that_has_replaced_its_own(
    wires: list[Wire],
) -> None:
    made = served("a")
    await made.start("s", HERE, Heard().report)
    asked, told = asyncio.Event(), asyncio.Event()

    async def late(name: str, arguments: Any, ask: Any) -> Any:
        asked.set()
        await told.wait()
        raise McpFault("it ended")

    cast(Any, wires[0]).call = late
    calling = asyncio.create_task(made.call(("a", "x"), None, HERE, Heard().ask))
    await asked.wait()
    wires[0].fault = "it ended"
    await made.call(("a", "y"), None, HERE, Heard().ask)
    told.set()
    await calling
    await settled()
    assert [wire.closed for wire in wires] == [True, False]


async def test_tools_that_changed_are_offered_before_the_next_request(wires: list[Wire]) -> None:
    made = served("a")
    await made.start("s", HERE, Heard().report)
    wires[0].stale = True
    await made.start("s", HERE, Heard().report)
    assert [each.full_name for each in made.offered(HERE)] == ["mcp__a__new"]


async def test_tools_of_all_servers_are_offered_up_to_a_bound_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = served("a", "b", "c")
    sizes = {"a": 40, "b": 400, "c": 40}
    monkeypatch.setattr(Wire, "start", _described(sizes))
    one = len(tool("a", "old", "x" * 40).record.model_dump_json())
    monkeypatch.setattr(server_records, "OFFERED_BYTES", 2 * one)
    await made.start("s", HERE, Heard().report)
    # What stands behind a tool that does not fit is left out as well: the list has no gaps.
    assert [each.tool.server for each in made.offered(HERE)] == ["a"]


def _described(sizes: dict[str, int]) -> Any:
    async def start(wire: Wire) -> None:
        wire.tools = (tool(wire.settings.id, "old", "x" * sizes[wire.settings.id]),)

    return start


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("calls", [True, False])
@pytest.mark.parametrize("rests", [True, False])
async def test_server_is_closed_that_nobody_holds_or_calls_and_that_has_rested(
    wires: list[Wire], held: bool, calls: bool, rests: bool
) -> None:
    made = served("a", idle_s=0.0 if rests else 60.0)
    await made.start("s", HERE, Heard().report)
    await made.start("other", THERE, Heard().report)
    if not held:
        made.let_go("s")
    wires[0].idle = not calls
    made._close_idle()
    await settled()
    assert wires[0].closed is (rests and not held and not calls)
    assert not wires[1].closed
    await made.aclose()


@pytest.mark.parametrize("leaves", ["lets go", "goes elsewhere"])
async def test_server_rests_from_when_its_last_session_has_left_it(wires: list[Wire], leaves: str) -> None:
    made = served("a", idle_s=30.0)
    await made.start("s", HERE, Heard().report)
    slot = made._folders[HERE].slots["a"]
    slot.last_used -= 60
    if leaves == "lets go":
        made.let_go("s")
        made._close_idle()
        await settled()
        assert not wires[0].closed
    else:
        await made.start("s", THERE, Heard().report)
    assert made._folders[HERE].holders == set()
    await made.aclose()


SECRETS: dict[str, Any] = {
    "bearer_token": Secret("the-token"),
    "secret_headers": {"X-Key": Secret("the-header")},
    "given_env": {"KEY": "the-variable", "MORE": "the-token-of-the-site"},
}


@pytest.mark.parametrize("where", ["start", "call", "tool"])
@pytest.mark.parametrize(
    "quoted",
    [["the-token"], ["the-header"], ["the-variable"], ["the-token-of-the-site", "the-variable", "the-token"]],
)
async def test_fault_of_a_server_quotes_none_of_its_secrets(
    wires: list[Wire], where: str, quoted: list[str]
) -> None:
    made = served("a", **SECRETS)
    words = f"{' '.join(quoted)} is refused"
    if where == "start":

        def start(name: str) -> None:
            raise StartFailed(words)

        Wire.starts = start
        (told,) = (await made.start("s", HERE, Heard().report)).failed.values()
    else:
        await made.start("s", HERE, Heard().report)
        wires[0].fails = McpFault(words) if where == "call" else ToolFault(words)
        told = str((await made.call(("a", "x"), None, HERE, Heard().ask)).output)
    assert f"{' '.join(['[redacted]'] * len(quoted))} is refused" in told


def test_token_of_a_server_counts_before_its_headers_and_secret_ones_before_others() -> None:
    headers = {"Authorization": "open", "X-Both": "open", "Accept-Encoding": "gzip"}
    secret = {"X-Both": Secret("secret"), "Authorization": Secret("secret")}
    given = McpServerSettings(
        id="a", url="http://x", http_headers=headers, secret_headers=secret, bearer_token=Secret("t")
    )
    found = _headers(given)
    assert (found["Authorization"], found["X-Both"], found["Accept-Encoding"]) == (
        "Bearer t",
        "secret",
        "gzip",
    )


# ── results ───────────────────────────────────────────────────────────────────────────────────────

IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def shown(content: list[Any], **more: Any) -> tuple[list[dict[str, Any]], Any]:
    answer = answered({"content": content, **more}, lambda text: text)
    result = cast(Any, answer.result)
    return [dict(block) for block in result.content], answer.output


@pytest.mark.parametrize("images", [0, 1, IMAGES, IMAGES + 1])
def test_result_has_as_many_images_as_it_may_and_its_texts_before_them(images: int) -> None:
    blocks, output = shown([text("a"), *[IMAGE] * images, text("b")])
    assert sum(block["type"] == "image" for block in blocks) == min(images, IMAGES)
    if images:
        said, *pictures = output
        left = f"\n[an image beyond the first {IMAGES}]" if images > IMAGES else ""
        assert said.text == f"a{left}\nb"
        assert len(pictures) == min(images, IMAGES)


@pytest.mark.parametrize("count", [BLOCKS - 1, BLOCKS, BLOCKS + 1, BLOCKS + 2])
def test_result_has_as_many_blocks_as_it_may_and_says_how_many_more_there_were(count: int) -> None:
    blocks, _ = shown([text(str(n)) for n in range(count)])
    left = [] if count <= BLOCKS else [f"[{count - BLOCKS} more blocks]"]
    assert [block["text"] for block in blocks] == [*map(str, range(min(count, BLOCKS))), *left]


def test_texts_of_an_event_share_its_room_and_images_take_none_of_it() -> None:
    large = {**IMAGE, "data": "A" * (RESULT_BYTES * 2)}
    whole = text("x" * (RESULT_BYTES // 2))
    blocks, _ = shown([large, whole, large, whole])
    assert [block["type"] for block in blocks] == ["image", "text", "image", "text"]
    assert blocks[1]["text"] == whole["text"]
    kept, _, told = blocks[3]["text"].partition("\n")
    assert set(kept) == {"x"}
    size = len(orjson.dumps(whole))
    assert told == f"[{2 * size - RESULT_BYTES} more bytes]"


@pytest.mark.parametrize(("structured", "read"), [({"a": 1}, '{"a":1}'), ({}, "{}"), ([], "[]"), (0, "0")])
def test_model_reads_what_a_server_gives_beside_its_texts_also_where_it_is_empty(
    structured: Any, read: str
) -> None:
    _, output = shown([text("a")], structuredContent=structured)
    assert output == read


@pytest.mark.parametrize(("given", "told"), [(True, True), (False, None), (None, None)])
def test_result_says_that_it_is_an_error(given: bool | None, told: bool | None) -> None:
    answer = answered({"content": [], "isError": given}, lambda text: text)
    assert cast(Any, answer.result).is_error is told


# ── lines ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("more", [0, 1])
def test_line_is_as_long_as_a_message_may_be_whatever_came_before_it(more: int) -> None:
    lines, longest = Lines("a"), b"x" * (MESSAGE_BYTES + more)
    assert lines.of(b"y" * 9 + b"\n") == [b"y" * 9]
    if more:
        with pytest.raises(Misbehaved):
            lines.of(longest)
    else:
        assert lines.of(longest + b"\n") == [longest]


def test_server_may_say_so_many_lines_that_are_no_message() -> None:
    lines = Lines("a")
    for _ in range(NOISE_LINES):
        lines.count_noise(b"starting")
    with pytest.raises(Misbehaved):
        lines.count_noise(b"starting")


# ── responses ─────────────────────────────────────────────────────────────────────────────────────


class Answers(httpx2.AsyncBaseTransport):
    """A server that answers each request, or breaks it off."""

    def __init__(self) -> None:
        self.breaks: BaseException | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.breaks is not None:
            raise self.breaks
        return httpx2.Response(200, stream=httpx2.ByteStream(b"{}"))


class Told:
    """The reproaches to a server."""

    def __init__(self) -> None:
        self.why: list[str] = []

    def fail(self, why: str) -> None:
        self.why.append(why)


@pytest.mark.parametrize("breaks", [httpx2.ConnectError("no"), asyncio.CancelledError(), OSError("no")])
async def test_request_that_was_broken_off_leaves_no_response_open(breaks: BaseException) -> None:
    answers, told = Answers(), Told()
    transport = Bounded(answers, cast(Any, told))
    answers.breaks = breaks
    for _ in range(OPEN_EXCHANGES + 1):
        with pytest.raises(type(breaks)):
            await transport.handle_async_request(httpx2.Request("POST", "http://x"))
    assert told.why == []


async def test_server_has_as_many_responses_open_as_it_may_and_one_that_is_closed_counts_once() -> None:
    answers, told = Answers(), Told()
    transport = Bounded(answers, cast(Any, told))
    request = httpx2.Request("POST", "http://x")
    found = [await transport.handle_async_request(request) for _ in range(OPEN_EXCHANGES)]
    for _ in range(2):
        await found[0].aclose()
        await cast(Any, found[0].stream).aclose()
    await transport.handle_async_request(request)
    with pytest.raises(httpx2.RequestError):
        await transport.handle_async_request(request)
    assert told.why == [f"the server leaves more than {OPEN_EXCHANGES} responses open"]
