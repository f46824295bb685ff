"""Servers of several folders and sessions: which are started, told of, replaced and closed."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx2
import orjson
import pytest

from orchestrator.config_keys import McpServerSettings, Secret
from orchestrator.core.settings import TurnSettings
from orchestrator.core.state import State
from orchestrator.mcp import server_records
from orchestrator.mcp import servers as servers_module
from orchestrator.mcp.server_records import (
    BLOCKS,
    IMAGES,
    MESSAGE_BYTES,
    NOISE_LINES,
    OPEN_EXCHANGES,
    RESULT_BYTES,
    SCHEMA_BYTES,
    TOOLS,
    McpFault,
    Misbehaved,
    ServerTool,
    StartFailed,
    ToolFault,
)
from orchestrator.mcp.servers import Bounded, Lines, Servers, ServersConfig, _headers, answered, cleaned
from orchestrator.protocol.mcp import ElicitationAction, Tool
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.tools.mcp_tools import McpToolbox
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
        self.stale = self.lists = False
        self.idle = True
        self.closed = False
        self.server_version = ""
        self.tools: tuple[ServerTool, ...] = (tool(settings.id, "old"),)
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


@pytest.mark.parametrize("write", [str.lower, str.upper])
def test_header_of_a_server_is_one_in_whatever_letters_it_is_written(write: Callable[[str], str]) -> None:
    headers = {write(name): "open" for name in ("Authorization", "X-Both", "Accept-Encoding")}
    secret = {"x-both": Secret("secret")}
    given = McpServerSettings(
        id="a", url="http://x", http_headers=headers, secret_headers=secret, bearer_token=Secret("t")
    )
    found = [(name.lower(), value) for name, value in _headers(given).items()]
    assert sorted(found) == [("accept-encoding", "open"), ("authorization", "Bearer t"), ("x-both", "secret")]


# ── results ───────────────────────────────────────────────────────────────────────────────────────

PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n and more").decode()
IMAGE = {"type": "image", "data": PICTURE, "mimeType": "image/png"}


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


@pytest.mark.parametrize(
    ("data", "called", "kind"),
    [
        (PICTURE, "image/png", "png"),
        (PICTURE, "image/jpeg", "png"),
        (f"{PICTURE[:8]}\r\n{PICTURE[8:]}\n", "image/png", "png"),
        (base64.b64encode(b"RIFF1234WEBPVP8 ").decode(), "image/jpg", "webp"),
        (PICTURE[:-1], "image/png", None),
        ("====", "image/png", None),
        ("", "image/png", None),
        ("AAAA", "image/png", None),
        (f"{PICTURE}é", "image/png", None),
        (5, "image/png", None),
    ],
)
def test_model_is_shown_an_image_as_what_its_bytes_are_and_nothing_else_as_one(
    data: Any, called: str, kind: str | None
) -> None:
    """A provider refuses each request of a session in whose history is one that it cannot read."""
    blocks, output = shown([{"type": "image", "data": data, "mimeType": called}])
    if kind is None:
        assert blocks == [text(f"[an image that cannot be shown: {called}]")]
        return
    assert output[0].image_url == f"data:image/{kind};base64,{''.join(data.split())}"
    assert blocks == [{"type": "image", "data": "".join(data.split()), "mimeType": f"image/{kind}"}]


@pytest.mark.parametrize("count", [BLOCKS - 1, BLOCKS, BLOCKS + 1, BLOCKS + 2])
def test_result_has_as_many_blocks_as_it_may_and_says_how_many_more_there_were(count: int) -> None:
    blocks, _ = shown([text(str(n)) for n in range(count)])
    left = [] if count <= BLOCKS else [f"[{count - BLOCKS} more blocks]"]
    assert [block["text"] for block in blocks] == [*map(str, range(min(count, BLOCKS))), *left]


def test_texts_of_an_event_share_its_room_and_images_take_none_of_it() -> None:
    large = {**IMAGE, "data": f"{PICTURE[:12]}{'A' * (RESULT_BYTES * 2)}"}
    whole = text("x" * (RESULT_BYTES // 2))
    blocks, _ = shown([large, whole, large, whole])
    assert [block["type"] for block in blocks] == ["image", "text", "image", "text"]
    assert blocks[1]["text"] == whole["text"]
    kept, _, told = blocks[3]["text"].partition("\n")
    assert set(kept) == {"x"}
    size = len(orjson.dumps(whole))
    assert told == f"[{2 * size - RESULT_BYTES} more bytes]"
    blocks, _ = shown([text("x" * RESULT_BYTES), text("y"), text("z" * RESULT_BYTES)])
    assert [block["text"].partition("\n")[0].strip("x") for block in blocks] == ["", "", ""], "none is left"


@pytest.mark.parametrize(("structured", "read"), [({"a": 1}, '{"a":1}'), ({}, "{}"), ([], "[]"), (0, "0")])
def test_model_reads_what_a_server_gives_beside_its_texts_also_where_it_is_empty(
    structured: Any, read: str
) -> None:
    _, output = shown([text("a")], structuredContent=structured)
    assert output == read


@pytest.mark.parametrize("structured", [{"a": 1}, {}, [], None])
@pytest.mark.parametrize("words", [["a"], ["a", "b"], []])
def test_model_reads_the_structured_result_beside_images_too(structured: Any, words: list[str]) -> None:
    content = [*map(text, words), IMAGE]
    answer = answered({"content": content, "structuredContent": structured}, lambda text: f"<{text}>")
    *said, image = cast(Any, answer.output)
    assert image.image_url == f"data:image/png;base64,{PICTURE}"
    told = orjson.dumps(structured).decode() if structured is not None else "\n".join(words)
    assert [item.text for item in said] == ([f"<{told}>"] if told else [])
    # Clients are shown all of it.
    result = cast(Any, answer.result)
    assert (len(result.content), result.structured_content) == (len(content), structured)


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


def test_server_may_say_so_many_lines_that_are_no_message_and_its_secrets_are_told_to_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = Lines("a", lambda text: text.replace("the-token", "…"))
    for _ in range(NOISE_LINES):
        lines.count_noise(b"starting with the-token")
    with pytest.raises(Misbehaved, match="it sent 'starting with …' and the like"):
        lines.count_noise(b"starting with the-token")
    assert [record.getMessage() for record in caplog.records] == [
        "MCP server a: its output holds more than messages: 'starting with …'"
    ]


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


# ── starts, words and secrets ─────────────────────────────────────────────────────────────────────


async def test_server_that_works_again_is_told_of_as_ready_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers_module, "FAILED_AGAIN_S", 0.0)
    fails("a", "b")
    made = served("a", "b")
    first = await made.start("s", HERE, Heard().report)
    assert (first.ready, set(first.failed)) == ((), {"a", "b"})
    fails("b")
    again = await made.start("t", HERE, Heard().report)
    assert (again.ready, set(again.failed)) == (("a",), {"b"})


@pytest.mark.parametrize("leaves", [0, 1, None])
async def test_sessions_that_come_at_once_wait_for_one_start_also_where_one_of_them_leaves(
    monkeypatch: pytest.MonkeyPatch, wires: list[Wire], leaves: int | None
) -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def start(wire: Wire) -> None:
        begun.set()
        await goes_on.wait()

    monkeypatch.setattr(Wire, "start", start)
    made = served("a")
    starts = [asyncio.create_task(made.start(s, HERE, Heard().report)) for s in ("s", "t")]
    await begun.wait()
    await settled()
    if leaves is not None:
        starts[leaves].cancel()
        await asyncio.wait({starts[leaves]})
    goes_on.set()
    stay = [each for at, each in enumerate(starts) if at != leaves]
    assert [(await each).ready for each in stay] == [("a",)] * len(stay)
    assert len(wires) == 1
    await made.aclose()


async def test_server_that_does_not_list_its_tools_any_more_is_replaced_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch, wires: list[Wire]
) -> None:
    async def relist(wire: Wire) -> None:
        raise McpFault("no list")

    made = served("a", "b")
    await made.start("s", HERE, Heard().report)
    monkeypatch.setattr(Wire, "relist", relist)
    wires[0].stale = True
    await made.start("s", HERE, Heard().report)
    await settled()
    assert [wire.closed for wire in wires] == [True, False]
    assert "x" in str((await made.call(("a", "x"), None, HERE, Heard().ask)).output)
    assert [wire.settings.id for wire in wires] == ["a", "b", "a"]


async def test_server_rests_from_its_last_call_where_no_session_holds_it(wires: list[Wire]) -> None:
    made = served("a", idle_s=30.0)
    await made.start("s", HERE, Heard().report)
    made.let_go("s")
    slot = made._folders[HERE].slots["a"]
    for waited_s, closed in ((60, False), (0, False), (60, True)):
        slot.last_used -= waited_s
        if not closed:
            await made.call(("a", "x"), None, HERE, Heard().ask)
        made._close_idle()
        await settled()
        assert wires[0].closed is closed
    await made.aclose()


@pytest.mark.parametrize("more", [0, 1])
async def test_tools_are_offered_up_to_a_bound_of_bytes_whatever_letters_they_have(
    monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    words = {"a": "x" * 40, "b": "é" * 40, "c": "😀" * 40}

    async def start(wire: Wire) -> None:
        wire.tools = (tool(wire.settings.id, "old", words[wire.settings.id]),)

    monkeypatch.setattr(Wire, "start", start)
    sizes = [len(tool(name, "old", said).record.model_dump_json().encode()) for name, said in words.items()]
    monkeypatch.setattr(server_records, "OFFERED_BYTES", sum(sizes) - more)
    made = served(*words)
    await made.start("s", HERE, Heard().report)
    assert [each.tool.server for each in made.offered(HERE)] == ["a", "b", "c"][: 3 - more]


async def test_short_value_of_a_variable_stays_in_what_is_told_of_a_fault(wires: list[Wire]) -> None:
    made = served("a", given_env={"DEBUG": "1", "MODE": "abc", "KEY": "abcd"}, bearer_token=Secret("x"))
    await made.start("s", HERE, Heard().report)
    wires[0].fails = McpFault("it took 10 s for abc, abcd and x")
    told = str((await made.call(("a", "x"), None, HERE, Heard().ask)).output)
    assert told.endswith("it took 10 s for abc, [redacted] and x")


@pytest.mark.parametrize(
    ("stated", "secret"),
    [
        ({"url": "https://x/mcp?exaApiKey=sk-1&team=blue"}, "sk-1"),
        ({"url": "https://u:sk-1@x/mcp"}, "sk-1"),
        ({"url": "https://x/mcp", "http_headers": {"Authorization": "Bearer sk-1", "X": "blue"}}, "sk-1"),
        ({"url": "https://x/mcp", "http_headers": {"X-Session-Token": "sk-1"}}, "sk-1"),
        ({"url": "https://x/mcp", "proxy": "http://u:sk-1@y"}, "sk-1"),
        ({"url": "https://x/mcp"}, ""),
    ],
)
def test_fault_of_a_server_quotes_no_secret_of_its_address_and_headers(
    stated: dict[str, Any], secret: str
) -> None:
    server = McpServerSettings(id="a", **stated)
    told = servers_module._redacted(server, McpFault(f"blue: {secret or 'sk-2'} of https://x is refused"))
    assert told == f"blue: {'[redacted]' if secret else 'sk-2'} of https://x is refused"


def test_variables_that_look_secret_in_the_table_of_a_server_are_secrets_of_it(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "dendro.toml").write_text(
        '[mcp_servers.a]\ncommand = "x"\nenv_vars = ["HANDED", "NOT_SET", "BOTH_KEY"]\n'
        'env = {API_KEY = "sk-written", LEVEL = "high", DB = "pg://u:secret@h/x", BOTH_KEY = "sk-other"}\n'
    )
    environ = {
        "HOME": str(tmp_path),
        "DENDRO_HOME": str(tmp_path / "home"),
        "HANDED": "to-it",
        "BOTH_KEY": "sk-handed",
        "OTHER_KEY": "sk-none",
    }
    server = load_settings(SettingsSources(cwd=tmp_path, environ=environ)).mcp_servers["a"]
    assert server.given_env == {
        "API_KEY": "sk-written",
        "DB": "pg://u:secret@h/x",
        "HANDED": "to-it",
        "BOTH_KEY": "sk-handed",
    }
    fault = McpFault("sk-written, pg://u:secret@h/x, to-it and high are refused")
    assert (
        servers_module._redacted(server, fault) == "[redacted], [redacted], [redacted] and high are refused"
    )


# ── what the log is told ──────────────────────────────────────────────────────────────────────────


def session_in(folder: Path) -> State:
    return State(settings=TurnSettings(str(folder), "never", {"mode": "read-only"}, "m"))


async def test_each_server_of_a_folder_is_in_the_log_with_its_version_and_the_digest_of_its_tools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed: dict[str, tuple[ServerTool, ...]] = {}

    async def start(wire: Wire) -> None:
        Wire.starts(wire.settings.id)
        wire.server_version = f"{wire.settings.id}.1"
        wire.tools = listed[wire.settings.id]

    monkeypatch.setattr(Wire, "start", start)
    digests: list[str] = []
    for tools in (
        (tool("a", "x", "X"), tool("a", "y")),
        (tool("a", "y"), tool("a", "x", "X")),
        (tool("a", "x", "other"), tool("a", "y")),
        (tool("a", "x", "X"),),
        (tool("a", "x", "X"), replace(tool("a", "y"), parameters={"type": "object"})),
        (tool("a", "x", "X"), tool("a", "z")),
    ):
        listed |= {"a": tools, "b": (tool("b", "x"),), "c": (), "d": (tool("d", "x"),)}
        fails("d")
        made = served("b", "a", "c", "d")
        box = McpToolbox(made)
        names = ("a", "b", "c", "d")
        # Nothing is started for it, and another folder's servers are others.
        assert box.told(session_in(HERE)) == tuple({"name": n, "version": "", "tools": ""} for n in names)
        await made.start("s", HERE, Heard().report)
        found = {each["name"]: each for each in box.told(session_in(HERE))}
        assert [found[name]["version"] for name in names] == ["a.1", "b.1", "c.1", ""]
        assert [bool(found[name]["tools"]) for name in names] == [True, True, False, False]
        assert found["a"]["tools"] != found["b"]["tools"]
        assert box.told(session_in(THERE)) == tuple({"name": n, "version": "", "tools": ""} for n in names)
        digests.append(str(found["a"]["tools"]))
        await made.aclose()
    assert digests[0] == digests[1]
    assert len(set(digests)) == len(digests) - 1


# ── lists of tools ────────────────────────────────────────────────────────────────────────────────


def raw(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("beside", ["not offered", "wrong"])
def test_server_has_as_many_tools_as_it_may_whatever_stands_between_them(more: int, beside: str) -> None:
    settings = McpServerSettings(id="a", command="x", disabled_tools=("off0", "off1", "off2"))
    other = {"not offered": "off{}", "wrong": "\x00{}"}[beside]
    between = [raw(other.format(at)) for at in range(3)]
    good = [raw(f"t{at}") for at in range(TOOLS + more)]
    found, why = cleaned([*between[:1], *good[:64], *between[1:], *good[64:]], settings)
    assert [each.name for each in found] == [f"t{at}" for at in range(TOOLS)]
    assert (f"it has more than {TOOLS} tools" in why) is bool(more)


@pytest.mark.parametrize("key", ["inputSchema", "outputSchema"])
@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("letter", ["x", "é"])
def test_schema_has_as_many_bytes_as_it_may(key: str, more: int, letter: str) -> None:
    room = SCHEMA_BYTES - len(orjson.dumps({"title": ""})) + more
    width = len(letter.encode())
    schema = {"title": letter * (room // width) + "x" * (room % width)}
    found, why = cleaned([raw("t", **{key: schema}), raw("u")], McpServerSettings(id="a", command="x"))
    assert [each.name for each in found] == (["u"] if more else ["t", "u"])
    assert len(why) == more


def test_of_two_tools_of_one_name_the_first_counts_and_believed_words_are_those_of_the_server() -> None:
    listed = [
        raw("t", description="first", annotations={"readOnlyHint": True}),
        raw("t", description="second"),
        raw("u", annotations={"readOnlyHint": "yes"}),
        raw("v", annotations={"readOnlyHint": False, "destructiveHint": False}),
    ]
    for believed in (True, False):
        settings = McpServerSettings(id="a", command="x", trust_annotations=believed)
        found, why = cleaned(listed, settings)
        assert [(each.name, each.description) for each in found] == [("t", "first"), ("u", ""), ("v", "")]
        # A text in the place of a yes is none.
        assert [each.read_only for each in found] == [believed, False, False]
        assert len(why) == 1


# ── questions ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
@pytest.mark.parametrize("gone", [None, 0, 2])
async def test_time_limit_of_a_call_stands_until_the_last_of_its_questions_is_answered(
    order: list[int], gone: int | None
) -> None:
    """A question that the server takes back is over as well."""
    answers = [asyncio.get_running_loop().create_future() for _ in order]

    async def ask(question: server_records.Question) -> ElicitationAction:
        decision: ElicitationAction = await answers[int(question.request_id)]
        return decision

    loop = asyncio.get_running_loop()
    running = servers_module._Call(ask, 60.0)
    async with asyncio.timeout(60.0) as running.limit:
        asked = [
            asyncio.create_task(running.asks(server_records.Question("a", at, "?", True)))
            for at in range(len(order))
        ]
        await asyncio.sleep(0)
        for left, at in enumerate(reversed(range(len(order)))):
            assert running.limit.when() is None
            number = order[left]
            if number == gone:
                asked[number].cancel()
            else:
                answers[number].set_result(ElicitationAction.ACCEPT)
            await asyncio.wait({asked[number]})
            assert (running.limit.when() is None) is (at > 0)
        ends = running.limit.when()
        assert ends is not None
        assert loop.time() < ends <= loop.time() + 60
