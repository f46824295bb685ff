"""The window as a person sees it: how soon it is drawn, a request is there, and an answer is in the log.

A real Chromium before a gateway of its own. Left out, with a line that says so, where Debian's
`chromium-headless-shell` is missing.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
from playwright.async_api import Browser, Page, async_playwright

from bench import window_past
from bench.door_clients import dendro, environ, go
from bench.figures import Figure, at_most, spread
from bench.fleet_index import fill
from bench.lab import Fleet, Lab, fleet
from bench.trees import WIDE
from bench.window_scale import crowd, scale
from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection, connect
from orchestrator.broker.records import BrokerConfig
from orchestrator.config_keys import RedisSettings

CHROMIUM = Path("/usr/bin/chromium-headless-shell")
REQUESTS, QUICK = 60, 10
TREES, QUICK_TREES = 10_000, 1_000
PAGES = 30
STARTS = 5
ASKS: dict[str, Any] = {
    "per_session": True,
    "steps": [
        {"items": [{"call": "shell", "args": {"command": ["touch", "made"]}}]},
        {"items": [{"text": "Done."}]},
    ],
}
_SAID = re.compile(r"window at (\S+)/#c=(\S+)")
# Notes when each request's row is in the page, by its thread.
_WATCH = """() => {
  window.seen = {};
  const look = () => { for (const row of document.querySelectorAll('[data-testid=request]'))
    window.seen[row.dataset.thread] ??= [Date.now(), Number(row.dataset.openedMs)]; };
  new MutationObserver(look).observe(document.body, {childList: true, subtree: true}); look();
  window.pressed = [];
  const chosen = () => document.querySelector('[data-testid=request][aria-selected=true]')?.dataset.thread;
  addEventListener('keydown', (event) => { if (event.key === 'a') window.pressed.push(
    [chosen(), Date.now()]); }, true);
}"""


@dataclass(slots=True)
class Served:
    """A gateway with a window, and a program that begins sessions in it."""

    url: str
    code: str
    program: httpx.AsyncClient
    pid: int

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A method's result."""
        answer = await self.program.post(f"/api/{method}", json=params)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found


async def run(lab: Lab, quick: bool) -> list[Figure]:
    """Measures with one gateway, one worker and one browser."""
    scenario = lab.folder / "asks.json"
    scenario.write_bytes(orjson.dumps(ASKS))
    async with fleet(lab, str(scenario), *WIDE) as running:
        running.hire(8)
        async with _served(running) as served:
            figures = []
            if await asyncio.to_thread(CHROMIUM.exists):
                async with async_playwright() as playwright:
                    browser = await playwright.chromium.launch(
                        executable_path=CHROMIUM, args=["--no-sandbox"]
                    )
                    figures += await _seen(running, served, browser, quick)
                    await browser.close()
            else:
                print(f"NO BROWSER: {CHROMIUM} is missing; the page itself is not measured", flush=True)
            figures += await crowd(running, served.url, dict(served.program.headers), served.pid)
            async with _store(lab) as (broker, connection):
                await fill(broker, connection, QUICK_TREES if quick else TREES, namespace="")
            figures += await _listed(served, QUICK_TREES if quick else TREES)
            size = window_past.QUICK if quick else window_past.SIZE
            async with _store(lab) as (broker, connection):
                root = await window_past.fill(broker, connection, size)
            figures += await window_past.measured(served.call, root, size)
    return figures


@asynccontextmanager
async def _served(running: Fleet) -> AsyncIterator[Served]:
    process = await asyncio.create_subprocess_exec(
        *dendro("serve", "--listen", "http://127.0.0.1:0"),
        stderr=asyncio.subprocess.PIPE,
        env=environ(running),
        cwd=running.lab.workspace,
    )
    assert process.stderr is not None
    said = _SAID.search((await process.stderr.readline()).decode())
    assert said is not None
    await process.stderr.readline()
    try:
        token = await _dendro(running, "token", "new", "bench", "--scope", "admin")
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=said[1], headers=headers, timeout=60) as program:
            yield Served(said[1], said[2], program, process.pid)
    finally:
        process.terminate()
        await process.wait()


async def _dendro(running: Fleet, *words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *dendro(*words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environ(running),
        cwd=running.lab.workspace,
    )
    told, _ = await process.communicate()
    return told.decode().split()[0]


async def _seen(running: Fleet, served: Served, browser: Browser, quick: bool) -> list[Figure]:
    count = QUICK if quick else REQUESTS
    # The policy lets no expression be evaluated, which is how Playwright waits for one.
    context = await browser.new_context(viewport={"width": 1440, "height": 900}, bypass_csp=True)
    page = await context.new_page()
    await page.goto(f"{served.url}/#c={served.code}")
    await page.wait_for_selector("[data-testid=needs-empty]")
    starts, sizes = [], []
    for _ in range(STARTS):
        started, size = await _started(served, browser, await context.storage_state())
        starts.append(started)
        sizes.append(size)
    await page.evaluate(_WATCH)
    threads = [await _asks(served) for _ in range(count)]
    await page.wait_for_function(f"Object.keys(window.seen).length >= {count}")
    seen = await page.evaluate("window.seen")
    rows = [(at - opened) / 1000 for at, opened in seen.values()]
    answered = await _answered(served, page, threads)
    await page.close()
    at_scale = await scale(running, served.url, context, quick)
    await context.close()
    return [
        Figure("window: start to the queue drawn", min(starts), "ms", at_most(500), note=f"best of {STARTS}"),
        Figure("&emsp;bytes over the wire", max(sizes) / 1000, "kB", at_most(100), note="with fonts"),
        spread("window: a request opened → its row", rows, at_most(150, p99=500), f"{count} sessions"),
        spread("window: key → answer in the log", answered, at_most(100), "allowed by `a`, one by one"),
        *at_scale,
    ]


async def _started(served: Served, browser: Browser, state: Any) -> tuple[float, int]:
    """A new profile that is signed in: milliseconds until the queue is drawn, and bytes transferred."""
    context = await browser.new_context(storage_state=state)
    page = await context.new_page()
    await page.goto(served.url)
    await page.wait_for_selector("[data-testid=needs-empty]")
    ready = await page.evaluate("performance.getEntriesByName('window-ready')[0].startTime")
    # Without what comes while nothing else is to be done, for pages that nobody has opened.
    size = await page.evaluate(
        "(() => { const [rest] = performance.getEntriesByName('window-rest');"
        " return [...performance.getEntriesByType('resource'), ...performance.getEntriesByType('navigation')]"
        ".filter((one) => !one.name.includes('/api/') && !(rest && one.startTime > rest.startTime))"
        ".reduce((sum, one) => sum + one.transferSize, 0); })()"
    )
    await context.close()
    return float(ready), int(size)


async def _asks(served: Served) -> str:
    """A session whose first call waits for a person."""
    made = await served.call("thread/start", approvalPolicy="untrusted", sandbox="danger-full-access")
    thread = str(made["thread"]["id"])
    await served.call("turn/start", threadId=thread, input=go(), clientUserMessageId=secrets.token_hex(8))
    return thread


async def _answered(served: Served, page: Page, threads: list[str]) -> list[float]:
    """Seconds from each key to the answer's entry, by the clock that this machine's processes share."""
    for left in range(len(threads), 0, -1):
        await page.wait_for_function(f"document.querySelectorAll('[data-testid=request]').length === {left}")
        # Keys are deaf for a while after a row has moved under the selection.
        await page.wait_for_timeout(450)
        await page.keyboard.press("a")
    await page.wait_for_selector("[data-testid=needs-empty]")
    pressed = dict(await page.evaluate("window.pressed"))
    at = {}
    for thread in threads:
        told = await served.call("approval/history", treeId=thread, limit=1)
        at[thread] = told["data"][0]["atMs"]
    return [max(0, at[thread] - pressed[thread]) / 1000 for thread in threads]


@asynccontextmanager
async def _store(lab: Lab) -> AsyncIterator[tuple[Broker, Connection]]:
    connection = connect(RedisSettings(url=lab.redis_url))
    broker = Broker(connection, BrokerConfig(), time.monotonic)
    try:
        yield broker, connection
    finally:
        await broker.aclose()


async def _listed(served: Served, count: int) -> list[Figure]:
    """The first page of the fleet, for which all of it is read, and those behind it, one behind the other."""
    times, cursor = [], dict[str, Any]()
    for _ in range(PAGES):
        began = time.perf_counter()
        told = await served.call("fleet/list", limit=100, **cursor)
        times.append(time.perf_counter() - began)
        cursor = {"cursor": told["nextCursor"]} if told.get("nextCursor") else {}
    note = f"of {count:,} trees at rest, over HTTP"
    return [
        Figure(
            "window: first fleet/list of a gateway", times[0] * 1000, "ms", note=f"{note}; reads all heads"
        ),
        spread("window: fleet/list of 100 trees", times[1:], at_most(30), note),
    ]
