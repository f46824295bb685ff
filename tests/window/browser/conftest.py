"""A browser before a window of real processes: one browser and one deployment for all tests of a process.

Each test has a context of its own (cookies, storage), in which nothing may go wrong unseen: a console error,
an error of a script, a dialog, a violation of the policy or a request to elsewhere fails it.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, StorageState, expect, sync_playwright

from tests.cli.machine import Machine
from tests.servers import start_redis
from tests.window.browser.scripts import SCENARIO
from tests.window.conftest import Served, serving, working

CHROMIUM = Path("/usr/bin/chromium-headless-shell")
"""Debian's package `chromium-headless-shell`."""
WITHIN_MS = 20_000
DESKTOP, PHONE = (1440, 900), (390, 844)
UNTRUSTED = {"approvalPolicy": "untrusted", "sandbox": "danger-full-access"}


@pytest.fixture(scope="session")
def installed() -> None:
    """Without a browser these tests are left out, and in CI they fail."""
    if not CHROMIUM.exists():
        text = f"NO BROWSER: the window is not tested; install chromium-headless-shell ({CHROMIUM})"
        if os.environ.get("CI"):
            pytest.fail(text)
        warnings.warn(text, pytest.PytestWarning, stacklevel=1)
        pytest.skip(text)


@pytest.fixture(scope="package")
def chromium(installed: None) -> Iterator[Browser]:
    """The browser, for the tests of this folder alone: while it is there, its driver runs an event loop in
    this thread, and tests of another folder that run one of their own would fail.
    """
    expect.set_options(timeout=WITHIN_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        LOOPS[browser] = loop
        yield browser
        asyncio._set_running_loop(loop)
        browser.close()


LOOPS: dict[Browser, asyncio.AbstractEventLoop] = {}


@contextmanager
def driving(browser: Browser) -> Iterator[None]:
    """Lets the browser's library go on while the block lasts.

    Its loop runs as long as the browser, below the functions that tests call: beside a loop that counts as
    running, an asynchronous test in the same process could begin none of its own.
    """
    asyncio._set_running_loop(LOOPS[browser])
    try:
        yield
    finally:
        asyncio._set_running_loop(None)


@dataclass
class Deployment:
    """A window of real processes, and a program that begins sessions in it."""

    served: Served
    token: str
    client: httpx.Client
    signed: dict[str, StorageState] = field(default_factory=dict)
    """By scope: what a browser keeps that has signed in. A command for a code costs more than most tests."""

    @property
    def url(self) -> str:
        """The window's address."""
        return self.served.url

    def call(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """A method's result."""
        answer = self.client.post(f"/api/{method}", json=params or {})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def asks(self, script: str, name: str = "") -> str:
        """A new session whose model follows a script of `scripts.py`; its thread's id."""
        thread = self.begins(name)
        self.say(thread, script)
        return thread

    def begins(self, name: str = "", **more: Any) -> str:
        """A new session in which nothing is said yet; its thread's id."""
        asked = {**UNTRUSTED, "cwd": str(self.served.machine.folder), **more}
        thread = str(self.call("thread/start", asked)["thread"]["id"])
        if name:
            self.call("thread/name/set", {"threadId": thread, "name": name})
        return thread

    def until_at_rest(self, thread: str) -> None:
        """Waits until the thread's first turn has ended."""
        with self.client.stream("GET", "/api/stream", params={"topic": "fleet"}) as told:
            for line in told.iter_lines():
                if line.startswith("data:") and thread in line and self._rests(thread):
                    return

    def _rests(self, thread: str) -> bool:
        return self.call("tree/read", {"treeId": thread})["state"] in ("ready", "idle", "failed")

    def say(self, thread: str, text: str) -> None:
        """Words for a thread."""
        words = [{"type": "text", "text": text}]
        self.call("turn/start", {"threadId": thread, "input": words, "clientUserMessageId": uuid.uuid4().hex})


def portable(deployment: Deployment, script: str, **files: str) -> str:
    """A session in a portable folder, whose turn is over; it begins with `files`, by their stems."""
    folder = deployment.served.machine.folder
    there = [(folder / f"{stem}.txt", text) for stem, text in files.items()]
    try:
        for path, text in there:
            path.write_text(text)
        ran = deployment.served.machine.run("run", "--portable", script, "--json")
    finally:
        for path, _ in there:
            path.unlink()
    assert ran.returncode == 0, ran.stderr
    return str(json.loads(ran.stdout.splitlines()[0])["msg"]["session_id"])


@pytest.fixture(scope="session")
def deployment(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The deployment that all tests of this process look at: each begins sessions of its own."""
    with ExitStack() as stack:
        redis = stack.enter_context(start_redis(tmp_path_factory.mktemp("redis")))
        machine = Machine.at(tmp_path_factory.mktemp("window"), redis.url)
        user = stack.enter_context(machine.playing(json.dumps(SCENARIO)))
        stack.enter_context(working(user))
        served = stack.enter_context(serving(user))
        token = user.run("token", "new", "program", "--scope", "admin").stdout.split()[0]
        headers = {"Authorization": f"Bearer {token}"}
        client = stack.enter_context(httpx.Client(base_url=served.url, headers=headers, timeout=40.0))
        yield Deployment(served, token, client)


@dataclass
class Visitor:
    """A person's browser before the deployment."""

    deployment: Deployment
    chromium: Browser
    wrong: list[str] = field(default_factory=list)
    """The faults of all pages."""
    allowed: set[str] = field(default_factory=set)
    """Words of console errors that a test causes on purpose."""
    elsewhere: set[str] = field(default_factory=set)
    """Addresses of other gateways that a test starts."""
    contexts: list[BrowserContext] = field(default_factory=list)

    def context(self, size: tuple[int, int] = DESKTOP, scheme: str = "light", **more: Any) -> BrowserContext:
        """A browser profile of its own."""
        found = self.chromium.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if scheme == "dark" else "light",
            reduced_motion="reduce",
            has_touch=size == PHONE,
            **more,
        )
        found.set_default_timeout(WITHIN_MS)
        self.contexts.append(found)
        return found

    def page(self, context: BrowserContext | None = None, **more: Any) -> Page:
        """A page that nothing may go wrong in."""
        page = (context or self.context(**more)).new_page()
        page.on("console", lambda message: self._said(message.type, message.text, message.location["url"]))
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("dialog", self._interrupted)
        page.on("request", lambda request: self._asked(request.url))
        return page

    def signed_in(self, path: str = "/", scope: str = "approve", **more: Any) -> Page:
        """A page of a person who has signed in: by a code, or in a browser that has since the first test."""
        signed = self.deployment.signed
        if scope not in signed:
            first = self.page()
            first.goto(f"{self.deployment.url}/#c={self.deployment.served.new_code('--scope', scope)}")
            expect(first.get_by_test_id("connection")).to_be_visible()
            signed[scope] = first.context.storage_state()
            first.context.close()
        page = self.page(storage_state=signed[scope], **more)
        page.goto(f"{self.deployment.url}{path}")
        shown = "tabbar" if more.get("size") == PHONE else "connection"
        expect(page.get_by_test_id(shown)).to_be_visible()
        # A page has a file of its own; keys count from when it is there.
        expect(page.locator("main:not(:empty)")).to_be_visible()
        return page

    def _said(self, kind: str, text: str, where: str) -> None:
        if kind in ("error", "warning") and not any(words in f"{text} {where}" for words in self.allowed):
            self.wrong.append(f"console: {text} {where}")

    def _interrupted(self, dialog: Dialog) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _asked(self, url: str) -> None:
        known = (self.deployment.url, *self.elsewhere)
        if urlsplit(url).scheme != "data" and not url.startswith(known):
            self.wrong.append(f"request to elsewhere: {url}")


@pytest.fixture
def visitor(chromium: Browser, deployment: Deployment) -> Iterator[Visitor]:
    """A person with a browser; what went wrong in it fails the test."""
    with driving(chromium):
        found = Visitor(deployment, chromium)
        yield found
        for context in found.contexts:
            context.close()
    assert found.wrong == []
