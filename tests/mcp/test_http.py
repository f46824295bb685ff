"""Servers behind a URL: the SDK's own on loopback, and one that sends more than it may."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.config_keys import McpServerSettings, Secret
from orchestrator.mcp.server_records import Answer
from orchestrator.mcp.servers import END_S, Servers
from orchestrator.protocol.mcp import CallToolResult, ElicitationAction
from tests.mcp.serving import Heard, servers

seen_headers: list[dict[str, str]] = []


class Nothing(BaseModel):
    """The answer to a question for yes or no."""


def honest() -> ASGIApp:
    """A server of the SDK's own, whose requests' headers are kept."""
    server = MCPServer("honest")

    @server.tool()
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool()
    async def sleep() -> str:
        await asyncio.Event().wait()
        return "never"

    @server.tool()
    async def permit(context: Context[Any]) -> str:
        return (await context.elicit("May I?", Nothing)).action

    app = server.streamable_http_app()

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            seen_headers.append({key.decode(): value.decode() for key, value in scope["headers"]})
        await app(scope, receive, send)

    return noting


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


@asynccontextmanager
async def at(app: ASGIApp) -> AsyncIterator[str]:
    """The URL of an application on loopback."""
    config = uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=1, lifespan="on")
    server = _Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.should_exit = True
        await serving


def web(url: str, **more: Any) -> McpServerSettings:
    return McpServerSettings(**{"id": "web", "url": url, **more})


async def call(made: Servers, tool: str, folder: Path, heard: Heard | None = None) -> Answer:
    return await made.call(("web", tool), {"a": 2, "b": 3}, folder, (heard or Heard()).ask)


async def test_a_server_behind_a_url_is_listed_and_called_with_its_headers(tmp_path: Path) -> None:
    seen_headers.clear()
    more = {"http_headers": {"Team": "a"}, "secret_headers": {"X-Key": "k"}, "bearer_token": Secret("t0ken")}
    async with at(honest()) as url, servers(web(url, **more)) as made:
        started = await made.start("s1", tmp_path, Heard().report)
        assert started.ready == ("web",), started.failed
        answer = await call(made, "add", tmp_path)
    assert json.loads(str(answer.output)) == {"result": 5}
    assert seen_headers
    for headers in seen_headers:
        assert (headers["team"], headers["x-key"], headers["authorization"]) == ("a", "k", "Bearer t0ken")


async def test_a_call_of_a_url_that_is_not_answered_in_time_costs_itself(tmp_path: Path) -> None:
    async with at(honest()) as url, servers(web(url, tool_timeout_s=0.3)) as made:
        answer = await call(made, "sleep", tmp_path)
        assert "it did not answer within 0.3 s" in str(answer.result)
        assert isinstance((await call(made, "add", tmp_path)).result, CallToolResult)


async def test_a_question_over_http_gets_the_persons_decision(tmp_path: Path) -> None:
    heard = Heard(ElicitationAction.ACCEPT)
    async with at(honest()) as url, servers(web(url)) as made:
        answer = await call(made, "permit", tmp_path, heard)
    assert [question.message for question in heard.questions] == ["May I?"]
    assert "accept" in str(answer.output)


async def test_a_server_that_is_not_there_says_so(tmp_path: Path) -> None:
    async with servers(web("http://127.0.0.1:1/mcp")) as made:
        started = await made.start("s1", tmp_path, Heard().report)
    assert "ConnectError: All connection attempts failed" in started.failed["web"]


async def test_a_server_that_was_restarted_is_connected_again_by_the_next_call(tmp_path: Path) -> None:
    """A session that the server does not know any more ends the connection."""
    apps: list[ASGIApp] = [honest()]
    begun: list[str] = []

    async def latest(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") == "POST" and b"mcp-session-id" not in dict(scope["headers"]):
            begun.append(scope["path"])
        await apps[-1](scope, receive, send)

    async with at(latest) as url, servers(web(url)) as made:
        assert isinstance((await call(made, "add", tmp_path)).result, CallToolResult)
        once = len(begun)
        forget = bad_app(lambda request, body: Response(status_code=404))
        apps.append(forget)
        lost = await call(made, "add", tmp_path)
        assert isinstance(lost.result, str)
        apps.pop()
        assert isinstance((await call(made, "add", tmp_path)).result, CallToolResult)
        assert len(begun) == 2 * once, "by a session of its own"


async def test_a_server_that_does_not_end_its_session_keeps_no_worker_from_leaving(tmp_path: Path) -> None:
    app, asked = honest(), asyncio.Event()

    async def lasting(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") == "DELETE":
            asked.set()
            await asyncio.Event().wait()
        await app(scope, receive, send)

    async with at(lasting) as url:
        async with servers(web(url)) as made:
            assert isinstance((await call(made, "add", tmp_path)).result, CallToolResult)
            began = asyncio.get_running_loop().time()
        assert asked.is_set()
        assert asyncio.get_running_loop().time() - began < END_S


async def test_a_server_that_quotes_its_key_does_not_get_it_into_the_log(tmp_path: Path) -> None:
    def refuse(request: Request, body: dict[str, Any]) -> Response:
        told = f"bad key {request.headers['authorization']}"
        error = {"jsonrpc": "2.0", "id": body["id"], "error": {"code": -32001, "message": told}}
        return _json(json.dumps(error).encode())

    heard = Heard()
    async with at(bad_app(refuse)) as url, servers(web(url, bearer_token=Secret("t0ken"))) as made:
        started = await made.start("s1", tmp_path, heard.report)
        answer = await call(made, "add", tmp_path)
    assert "bad key Bearer [redacted]" in started.failed["web"]
    assert "bad key Bearer [redacted]" in str(answer.result)


# ── a bad one ─────────────────────────────────────────────────────────────────────────────────

Bad = Callable[[Request, dict[str, Any]], Response]


def bad_app(answer: Bad) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        request = Request(scope, receive)
        body = await request.body()
        await answer(request, json.loads(body) if body else {})(scope, receive, send)

    return app


def _json(content: bytes, **headers: str) -> Response:
    return Response(content, media_type="application/json", headers=headers)


async def _endless() -> AsyncIterator[bytes]:
    yield b"event: message\ndata: "
    while True:
        yield b"x" * 65_536
        await asyncio.sleep(0)  # the client has the same loop


async def _pings() -> AsyncIterator[bytes]:
    for number in range(100_000):
        yield b'event: message\ndata: {"jsonrpc": "2.0", "id": %d, "method": "ping"}\n\n' % number
        await asyncio.sleep(0)


def _pinging(request: Request, body: dict[str, Any]) -> Response:
    if body.get("method") == "initialize":
        return StreamingResponse(_pings(), media_type="text/event-stream")
    return Response(status_code=202)


BAD: dict[str, tuple[Bad, str]] = {
    "a body beyond the bound": (
        lambda request, body: _json(b'{"jsonrpc": "' + b"x" * (5 << 20) + b'"}'),
        "more than 4,194,304 bytes",
    ),
    "a small body that unpacks to a large one": (
        lambda request, body: _json(gzip.compress(b"x" * (50 << 20)), **{"content-encoding": "gzip"}),
        "more than 0 bytes that can be read",
    ),
    "an event without an end": (
        lambda request, body: StreamingResponse(_endless(), media_type="text/event-stream"),
        "SSE",
    ),
    "a redirect to another place": (
        lambda request, body: RedirectResponse("http://127.0.0.2:1/elsewhere", 307),
        "not followed",
    ),
    "a page for people": (
        lambda request, body: Response("<html>", media_type="text/html"),
        "Unexpected content type: text/html",
    ),
    "a failure": (lambda request, body: Response(status_code=500), "Server returned an error response"),
    "questions without an end": (_pinging, "the server asked more than "),
    "no JSON": (lambda request, body: _json(b"{]"), "Failed to parse JSON response"),
}


@pytest.mark.parametrize("kind", sorted(BAD))
async def test_a_url_that_sends_what_it_should_not_fails_alone(kind: str, tmp_path: Path) -> None:
    answer, why = BAD[kind]
    async with at(bad_app(answer)) as url, servers(web(url, startup_timeout_s=5)) as made:
        started = await made.start("s1", tmp_path, Heard().report)
    assert why in started.failed["web"]
