"""The window's door in this process, and a client of it without a browser."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from orchestrator.gateways.app_server.client_connection import AppServer
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.gateways.bearer_tokens import PrincipalLookUp, TokenWish, new_token
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.gateways.window.door import Window, WindowPorts
from orchestrator.gateways.window.pages import Pages, read_pages
from orchestrator.gateways.window.sign_in import Windows, new_code
from orchestrator.gateways.wires.addresses import HttpRules, parse_address
from orchestrator.gateways.wires.authentication import Authentication, TokenWatch
from orchestrator.gateways.wires.listeners import Doors, ListenerConfig, listening
from tests.doors.peer import served
from tests.doors.test_app_server_turns import ports_of
from tests.runtime.harness import Harness

WITHIN_S = 20.0
KEY = "k" * 43
PAGES = read_pages()


@dataclass
class Site:
    """A window of a harness's deployment."""

    harness: Harness
    url: str
    window: Window
    server: AppServer
    watch: TokenWatch
    is_ready: list[bool] = field(default_factory=lambda: [True])
    now: list[float] = field(default_factory=list)
    """The seconds of the door's own clock, where a test has stopped it."""
    clients: list[httpx.AsyncClient] = field(default_factory=list)

    async def token(self, scope: Scope = Scope.ADMIN, namespace: str = "", name: str = "ana") -> str:
        """A new token of somebody."""
        wish = TokenWish(name, namespace, scope)
        text, _ = await new_token(self.harness.broker.requests, wish, time.time_ns() // 1_000_000, os.urandom)
        return text

    async def code(self, scope: Scope = Scope.ADMIN) -> str:
        """A code for one sign-in."""
        return await new_code(self.harness.broker.requests, Principal("ann@host"), scope, os.urandom)

    def browser(self) -> Browser:
        """A browser that is not signed in."""
        return Browser(self.url, self._client())

    def program(self, token: str) -> Browser:
        """A program with a token."""
        return Browser(self.url, self._client(Authorization=f"Bearer {token}"))

    def _client(self, **headers: str) -> httpx.AsyncClient:
        self.clients.append(httpx.AsyncClient(base_url=self.url, timeout=WITHIN_S, headers=headers))
        return self.clients[-1]

    async def signed_in(self, scope: Scope = Scope.ADMIN, namespace: str = "", name: str = "ana") -> Browser:
        """A browser that has signed in with a new token."""
        browser = self.browser()
        answer = await browser.post("login", {"token": await self.token(scope, namespace, name), "key": KEY})
        assert answer.status_code == 200, answer.text
        return browser


@dataclass
class Browser:
    """A browser's requests, as the page makes them."""

    url: str
    client: httpx.AsyncClient
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "Authorization" not in self.client.headers:
            self.headers = {"Origin": self.url, "Sec-Fetch-Site": "same-origin", "Dendro-Key": KEY}

    async def post(self, name: str, params: Any = None, **headers: str) -> httpx.Response:
        """A method's whole answer."""
        body = json.dumps({} if params is None else params)
        sent = {"Content-Type": "application/json", **self.headers, **headers}
        return await self.client.post(f"/api/{name}", content=body, headers=sent)

    async def call(self, name: str, params: Any = None) -> dict[str, Any]:
        """A method's result."""
        answer = await self.post(name, params)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def refused(self, name: str, params: Any = None, **headers: str) -> tuple[int, int, str]:
        """A method's error: its status, code and text."""
        answer = await self.post(name, params, **headers)
        error = answer.json()["error"]
        return answer.status_code, error["code"], error["message"]

    @asynccontextmanager
    async def stream(self, *topics: str, **headers: str) -> AsyncIterator[Stream]:
        """The events of a stream, until the block ends."""
        sent = {"Sec-Fetch-Site": "same-origin", **self.headers, **headers}
        sent.pop("Origin", None)
        asked = {"topic": list(topics)}
        async with self.client.stream("GET", "/api/stream", params=asked, headers=sent) as answer:
            yield Stream(answer)


@dataclass
class Told:
    """An event of a stream."""

    topic: str
    cursor: str
    data: dict[str, Any]


class Stream:
    """The events of a stream, one by one."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.comments = 0
        self._lines = answer.aiter_lines()

    async def next(self) -> Told | None:
        """The next event; None at the end."""
        named: dict[str, str] = {}
        async with asyncio.timeout(WITHIN_S):
            async for line in self._lines:
                if line.startswith(":"):
                    self.comments += 1
                elif line:
                    name, _, value = line.partition(": ")
                    named[name] = value
                elif named:
                    return Told(named["event"], named.get("id", ""), json.loads(named["data"]))
        return None

    async def until(self, holds: Callable[[Told], bool]) -> Told:
        """The next event of which this holds."""
        while (told := await self.next()) is not None:
            if holds(told):
                return told
        raise AssertionError("the stream has ended")


@asynccontextmanager
async def site(
    harness: Harness, pages: Pages = PAGES, rules: HttpRules | None = None, **changes: Any
) -> AsyncIterator[Site]:
    """The window of a harness, until the block ends; `changes` are of its ports."""
    store, ports = harness.broker.requests, ports_of(harness, **changes)
    tokens = PrincipalLookUp(store, ports.now_ms)
    watch = TokenWatch(tokens.in_force)
    is_ready, now = [True], list[float]()
    async with served(ports, notifications) as server:
        window = Window(
            WindowPorts(
                ports,
                server.threads,
                tokens,
                Windows(store, tokens, ports.now_ms, os.urandom),
                watch,
                lambda: is_ready[0],
                lambda: now[0] if now else time.monotonic(),
            ),
            pages,
        )
        config = ListenerConfig(Authentication(), rules or HttpRules(), is_ready=lambda: is_ready[0])
        where = [parse_address("http://127.0.0.1:0")]
        async with listening(where, Doors(pages=window), config) as (address,):
            found = Site(harness, str(address), window, server, watch, is_ready, now)
            try:
                yield found
            finally:
                for client in found.clients:
                    await client.aclose()
