"""Tools that clients of the app-server bring along: offered to the model, called at the client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.gateways.app_server.client_connection import AppServer
from orchestrator.gateways.app_server.messages import Code
from orchestrator.gateways.principals import Principal, Scope
from tests.doors.peer import Peer, connected
from tests.doors.schema import assert_valid
from tests.doors.whole import whole
from tests.servers import RedisServer, plain_http, start_redis

pytestmark = [pytest.mark.realredis, pytest.mark.slow]

SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
PLAIN = {"type": "function", "name": "weather", "description": "Tells.", "inputSchema": SCHEMA}
LATER = {**PLAIN, "name": "later", "deferLoading": True}
LOOKUP = {**PLAIN, "name": "lookup"}
SHOP = {"type": "namespace", "name": "shop", "description": "Shop", "tools": [LOOKUP, LATER]}
TOOLS: list[Mapping[str, Any]] = [PLAIN, SHOP]
CALL = {"items": [{"call": "shop__lookup", "args": {"id": "x"}, "call_id": "c1"}]}
DONE = {"items": [{"text": "Done."}]}
CONFIG = 'approval_policy = "never"\n'
PNG = f"data:image/png;base64,iVBORw0KGgoA{'A' * 8_000}"
IMAGE = {"type": "inputImage", "imageUrl": PNG}
ANSWER = {"contentItems": [{"type": "inputText", "text": "found it"}], "success": True}


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@asynccontextmanager
async def client(server: AppServer, name: str = "mine", **who: Any) -> AsyncIterator[Peer]:
    async with connected(server, **who) as peer:
        info = {"name": name, "version": "1"}
        await peer.call("initialize", {"clientInfo": info, "capabilities": {"experimentalApi": True}})
        yield peer


async def thread(peer: Peer, tools: Sequence[Mapping[str, Any]] = TOOLS) -> str:
    """A thread with a turn that calls the client's tool."""
    made = await peer.call("thread/start", {"dynamicTools": list(tools)})
    id: str = made["thread"]["id"]
    said = [{"type": "text", "text": "go"}]
    await peer.call("turn/start", {"threadId": id, "input": said})
    return id


async def asked(peer: Peer) -> dict[str, Any]:
    """The request to call a tool."""
    while True:
        message = await peer.next()
        if message.get("method") == "item/tool/call":
            return message


async def item_of(peer: Peer, kind: str = "dynamicToolCall") -> dict[str, Any]:
    """The next item of a kind that is completed."""
    while True:
        found: dict[str, Any] = (await peer.until("item/completed"))["item"]
        if found["type"] == kind:
            return found


def image(*urls: str) -> dict[str, Any]:
    """An answer of images."""
    parts = [{"type": "inputImage", "imageUrl": url} for url in urls]
    return {"result": {"success": True, "contentItems": parts}}


async def requests(base_url: str) -> list[dict[str, Any]]:
    async with plain_http() as http:
        exchanges = (await http.get(base_url.removesuffix("/v1") + "/requests")).json()
    return [exchange["body"] for exchange in exchanges]


async def test_model_calls_the_clients_tool_and_reads_its_answer(tmp_path: Path, redis: RedisServer) -> None:
    async with whole(tmp_path, redis, CONFIG, [CALL, DONE]) as (server, place), client(server) as peer:
        id = await thread(peer)
        request = await asked(peer)
        assert_valid("DynamicToolCallParams", request["params"])
        names = ("threadId", "callId", "namespace", "tool", "arguments")
        told = [request["params"][name] for name in names]
        assert told == [id, "c1", "shop", "lookup", {"id": "x"}]
        peer.send({"id": request["id"], "result": ANSWER})
        item = await item_of(peer)
        done = await peer.until("turn/completed")
        listed = await peer.call("thread/items/list", {"threadId": id})
        first, second = await requests(place.base_url)
    assert (item["tool"], item["success"], item["contentItems"]) == ("lookup", True, ANSWER["contentItems"])
    assert done["turn"]["status"] == "completed"
    assert item in [one["item"] for one in listed["data"]]
    offered = {tool.get("name"): tool for tool in first["tools"]}
    assert offered["shop__lookup"]["parameters"] == SCHEMA
    assert "weather" in offered
    assert "shop__later" not in offered
    assert "tool_search" in offered
    assert [one["output"] for one in second["input"] if one["type"].endswith("output")] == ["found it"]


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_images_of_an_answer_are_shown_to_the_model_and_kept_for_who_comes_later(
    api: str, tmp_path: Path, redis: RedisServer
) -> None:
    parts = [{"type": "inputText", "text": "before"}, IMAGE, {"type": "inputText", "text": "behind"}]
    config = f'{CONFIG}[model_providers.openai]\nwire_api = "{api}"\n'
    async with whole(tmp_path, redis, config, [CALL, DONE]) as (server, place):
        async with client(server) as peer:
            id = await thread(peer)
            peer.send({"id": (await asked(peer))["id"], "result": {"success": True, "contentItems": parts}})
            item = await item_of(peer)
            assert (await peer.until("turn/completed"))["turn"]["status"] == "completed"
        async with client(server, "another") as later:
            resumed = await later.call("thread/resume", {"threadId": id})
        _, second = await requests(place.base_url)
    assert item["contentItems"] == parts
    assert_valid("ThreadItem", item)
    assert item in resumed["thread"]["turns"][0]["items"]
    if api == "chat":
        output, shown = second["messages"][-2:]
        assert output["content"] == "before\nbehind"
        assert shown["content"][-1] == {"type": "image_url", "image_url": {"url": PNG}}
        return
    (output,) = [one["output"] for one in second["input"] if one["type"].endswith("output")]
    assert output == [
        {"type": "input_text", "text": "before"},
        {"type": "input_image", "image_url": PNG},
        {"type": "input_text", "text": "behind"},
    ]


async def test_tool_that_is_deferred_is_offered_once_the_model_has_searched_for_it(
    tmp_path: Path, redis: RedisServer
) -> None:
    search = {"items": [{"call": "tool_search", "args": {"query": "later things"}, "call_id": "s1"}]}
    call = {"items": [{"call": "shop__later", "args": {"id": "x"}, "call_id": "c1"}]}
    async with (
        whole(tmp_path, redis, CONFIG, [search, call, DONE]) as (server, place),
        client(server) as peer,
    ):
        await thread(peer)
        request = await asked(peer)
        assert (request["params"]["namespace"], request["params"]["tool"]) == ("shop", "later")
        peer.send({"id": request["id"], "result": ANSWER})
        await peer.until("turn/completed")
        bodies = await requests(place.base_url)
    offers = [[tool.get("name") for tool in body["tools"]] for body in bodies]
    assert ["shop__later" in names for names in offers] == [False, True, True]
    # What was offered before keeps its place: a provider knows the beginning of the request again.
    assert offers[1][: len(offers[0])] == offers[0]
    (found,) = [one["output"] for one in bodies[1]["input"] if one["type"].endswith("output")]
    assert "shop__later" in found


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"error": {"code": 1, "message": "no such thing"}}, "no such thing"),
        ({"error": "nonsense"}, "its client answered with an error"),
        ({"result": {"success": False, "contentItems": []}}, "the tool failed"),
        (image("data:image/png;base64,aGk="), "contentItems[0].imageUrl: it is no PNG"),
    ],
    ids=["error", "no-error", "failed", "no-image"],
)
async def test_call_whose_client_fails_or_makes_no_sense_has_failed_and_the_turn_goes_on(
    answer: dict[str, Any], told: str, tmp_path: Path, redis: RedisServer
) -> None:
    async with whole(tmp_path, redis, CONFIG, [CALL, DONE]) as (server, _), client(server) as peer:
        await thread(peer)
        peer.send({"id": (await asked(peer))["id"], **answer})
        item = await item_of(peer)
        done = await peer.until("turn/completed")
    assert (item["status"], item["success"]) == ("failed", False)
    assert told in item["contentItems"][0]["text"]
    assert done["turn"]["status"] == "completed"


async def test_call_is_put_to_its_program_alone_and_to_each_of_its_connections(
    tmp_path: Path, redis: RedisServer
) -> None:
    reader = Principal("ann", scope=Scope.READ)
    async with (
        whole(tmp_path, redis, CONFIG, [CALL, DONE]) as (server, _),
        client(server) as one,
        client(server) as two,
        client(server, "another") as other,
        client(server, principal=reader) as looks,
    ):
        id = await thread(one)
        request = await asked(one)
        for peer in (two, other, looks):
            await peer.call("thread/resume", {"threadId": id})
        again = await asked(two)
        assert again["params"] == request["params"]
        two.send({"id": again["id"], "result": ANSWER})
        settled = await one.until("serverRequest/resolved")
        assert settled["requestId"] == request["id"]
        one.send({"id": request["id"], "error": {"code": 1, "message": "late"}})
        for peer in (one, other, looks):
            assert (await item_of(peer))["success"] is True
            await peer.until("turn/completed")
        assert "item/tool/call" not in [*other.methods(), *looks.methods()]


async def test_call_waits_for_a_client_that_left_and_ends_with_its_turn(
    tmp_path: Path, redis: RedisServer
) -> None:
    async with whole(tmp_path, redis, CONFIG, [CALL, DONE]) as (server, _):
        async with client(server) as gone:
            id = await thread(gone)
            before = await asked(gone)
        async with client(server) as back:
            await back.call("thread/resume", {"threadId": id})
            assert (await asked(back))["params"] == before["params"]
            turn = before["params"]["turnId"]
            back.send({"id": "stop", "method": "turn/interrupt", "params": {"threadId": id, "turnId": turn}})
            assert (await back.until("turn/completed"))["turn"]["status"] == "interrupted"


async def test_client_that_does_not_answer_within_the_setting_has_failed(
    tmp_path: Path, redis: RedisServer
) -> None:
    config = f"{CONFIG}[gateway]\nclient_tool_timeout_s = 1\n"
    async with whole(tmp_path, redis, config, [CALL, DONE]) as (server, _), client(server) as peer:
        await thread(peer)
        item = await item_of(peer)
        assert "has not answered in time" in item["contentItems"][0]["text"]
        assert (await peer.until("turn/completed"))["turn"]["status"] == "completed"


@pytest.mark.parametrize(
    ("tools", "told"),
    [
        ([{**PLAIN, "name": "shell"}], "dynamicTools: shell is the name of a built-in tool"),
        ([PLAIN, PLAIN], "dynamicTools: weather is the name of two tools"),
        ([{**PLAIN, "inputSchema": 3}], "dynamicTools: the inputSchema of weather describes no object"),
        ([{"type": "function", "name": "x"}], "dynamicTools.0.function.description"),
        ([{"type": "other"}], "dynamicTools.0"),
        ([{**SHOP, "tools": [LOOKUP] * 65}], "dynamicTools.0.namespace.tools"),
    ],
    ids=["taken", "twice", "schema", "half", "kind", "many"],
)
async def test_tool_that_cannot_be_offered_is_refused_with_its_field(
    tools: list[Any], told: str, tmp_path: Path, redis: RedisServer
) -> None:
    async with whole(tmp_path, redis, CONFIG, [DONE]) as (server, _), client(server) as peer:
        code, text = await peer.refused("thread/start", {"dynamicTools": tools})
    assert code == Code.BAD_PARAMS
    assert told in text
