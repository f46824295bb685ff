"""The window before a thousand agents and a hundred thousand items, and many windows at once.

Logs, agents and events are made by the decisions and commits of real ones and go through Redis and a real
gateway; the page is a real Chromium's.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx
import orjson
from playwright.async_api import BrowserContext, CDPSession, Page
from playwright.async_api import TimeoutError as PlaywrightTimeout

from bench.accounts import resident_mib
from bench.families import family
from bench.figures import Figure, at_most, spread
from bench.lab import Fleet
from bench.scripted import ANSWER, USAGE, Hand, begun, step_of, user_input
from bench.shares import POOL, position_of
from orchestrator.core import commands as c
from orchestrator.core.commit_parts import NewEvent
from orchestrator.core.ids import SessionId
from orchestrator.protocol.codec import parse_submission
from orchestrator.rollouts.session_summary import Position

AGENTS, QUICK_AGENTS = 1_000, 100
ITEMS, QUICK_ITEMS = 100_000, 2_000
SCROLLED, QUICK_SCROLLED = 6_000, 600
"""Items that are scrolled through: more than a window keeps."""
PHASE_S, QUICK_PHASE_S = 6.0, 2.0
A_FRAME = 20
"""Events of one thread in a frame's time, none of which another takes up: output of as many commands."""
FRAME_S = 1 / 60
PATIENCE_MS = 15_000
WINDOWS = 100
CHANGES = 20
_OF_TURN = 40
"""Messages of one scripted turn: its entries fit one commit."""
WORDS = "Looked at **one** file, `src/app.py`, and changed a line of it. "

_FRAMES = """() => { window.frames = []; window.running = true; let last = 0;
  const on = (at) => { if (last) window.frames.push(at - last); last = at;
    if (window.running) requestAnimationFrame(on); };
  requestAnimationFrame(on);
  window.told = 0;
  window.hears ??= new BroadcastChannel('dendro');
  window.hears.onmessage = ({data}) => {
    if (data.kind === 'events') window.told += data.events.length; }; }"""
_ENDS = "() => { window.running = false; return [window.frames, window.told]; }"
# Scrolls a box for some seconds, a notch of the wheel in each frame, and turns round at its ends.
_SCROLL = """([where, ms, by]) => new Promise((done) => {
  const box = document.querySelector(where), end = performance.now() + ms;
  const on = () => { const before = box.scrollTop; box.scrollTop += by;
    if (box.scrollTop === before) by = -by;
    if (performance.now() < end) requestAnimationFrame(on); else done(); }; on(); })"""
# Reads back until so many items have been seen, kept or dropped.
_BACK = """(wanted) => new Promise((done) => {
  const box = document.querySelector('.items'), seen = new Set();
  const on = () => {
    for (const row of box.querySelectorAll('[data-item-id]')) seen.add(row.dataset.itemId);
    if (seen.size >= wanted) { done(seen.size); return; }
    box.scrollTop = Math.max(0, box.scrollTop - box.clientHeight); requestAnimationFrame(on); }; on(); })"""
_TO_THE_END = "() => { const box = document.querySelector('.items'); box.scrollTop = box.scrollHeight; }"
_MARKS = """() => { window.drawn = {};
  new MutationObserver(() => { const words = document.querySelector('.items')?.textContent ?? '';
    for (const [mark] of words.slice(-4000).matchAll(/mark-\\d+-/g)) if (!(mark in window.drawn)) {
      window.drawn[mark] = 0; requestAnimationFrame(() => { window.drawn[mark] = Date.now(); }); }
  }).observe(document.body, {childList: true, subtree: true, characterData: true}); }"""


async def scale(running: Fleet, url: str, context: BrowserContext, quick: bool) -> list[Figure]:
    """Frames, heap and nodes of a page, and how soon a piece of a text is drawn."""
    agents, items, scrolled, phase_s = (
        (QUICK_AGENTS, QUICK_ITEMS, QUICK_SCROLLED, QUICK_PHASE_S)
        if quick
        else (AGENTS, ITEMS, SCROLLED, PHASE_S)
    )
    root, children = await family(running, POOL, agents - 1)
    hand, position = await _long(running, children[0], items)
    page = await context.new_page()
    devtools = await context.new_cdp_session(page)
    await page.goto(f"{url}/tree/{root}/1")
    await page.wait_for_selector("[data-testid=item]")
    await page.wait_for_selector(f"text=of {agents}")
    seen = await page.evaluate(_BACK, scrolled)
    frames, told = await _busy(page, hand, position, phase_s)
    heap, nodes = await _weight(devtools)
    late = await _pieces(page, hand, position, 40 if quick else 200)
    await page.close()
    what = f"{agents:,} agents, {items:,} items, {seen:,} of them scrolled through"
    flow = f"{A_FRAME} events a frame at the gateway, {told / len(frames):.1f} in the page"
    return [
        spread("window: a frame at scale", frames, at_most(17, p99=50), f"{what}; {flow}"),
        Figure("&emsp;heap", heap / 1e6, "MB", at_most(150), note="after a collection"),
        Figure("&emsp;nodes of the page", nodes, "", at_most(5_000), note="elements and texts"),
        spread("window: a piece of text at the gateway → drawn", late, at_most(50, p99=100), what),
    ]


async def _long(running: Fleet, session: SessionId, items: int) -> tuple[Hand, Position]:
    """A child's log of so many messages, with a turn under way behind them."""
    broker = running.opened.broker
    hand = await Hand.take(broker, session)
    (entry,) = await broker.logs.read_sq(session)
    submission = parse_submission(entry.payload)
    told = c.Submitted(submission.id, submission.op, "script")
    step = step_of(await position_of(running, session), hand.epoch, told, c.BeginRequest())
    await hand.commit(step)
    for first in range(0, items, _OF_TURN):
        n = step.position.state.requests
        said = [c.ItemCompleted(n, _message(first + number)) for number in range(_OF_TURN - 1)]
        await hand.commit(step := step_of(step.position, hand.epoch, *said, _end(n)))
        await hand.commit(step := begun(step.position, hand.epoch, user_input(first + _OF_TURN)))
    return hand, step.position


def _message(number: int) -> dict[str, Any]:
    words = f"Message {number}. " + WORDS * (1 + number % 4)
    return {**ANSWER, "id": f"msg_{number}", "content": [{"type": "output_text", "text": words}]}


def _end(n: int) -> c.Command:
    return c.ResponseCompleted(n, f"resp_{n}", USAGE)


def _event(position: Position, **message: Any) -> NewEvent:
    task = position.state.task
    assert task is not None
    payload = orjson.dumps({"id": task.id, "msg": message})
    return NewEvent(payload, position.seq, position.head[:4].hex())


async def _busy(page: Page, hand: Hand, position: Position, phase_s: float) -> tuple[list[float], int]:
    """Seconds of each frame while events come: at the conversation's end, back in it, over the agents."""
    calls = [f"run-{number}" for number in range(A_FRAME)]
    turn = {"parsed_cmd": [], "cwd": "/work", "command": ["make", "test"]}
    await hand.emit([_event(position, type="exec_command_begin", call_id=call, **turn) for call in calls])
    newest = page.locator(".newer")
    if await newest.count():
        await newest.click()
    await page.evaluate(
        "() => { const box = document.querySelector('.items'); box.scrollTop = box.scrollHeight; }"
    )
    await page.wait_for_selector("[data-type=commandExecution]")
    flow = asyncio.create_task(_flow(hand, position, calls))
    try:
        await page.evaluate(_FRAMES)
        await page.wait_for_timeout(phase_s * 1000)
        await page.evaluate(_SCROLL, [".items", phase_s * 1000, -60])
        await page.evaluate(_SCROLL, [".agents", phase_s * 1000, 60])
        frames, told = await page.evaluate(_ENDS)
    finally:
        flow.cancel()
        await asyncio.gather(flow, return_exceptions=True)
    await page.evaluate(
        "() => { const box = document.querySelector('.items'); box.scrollTop = box.scrollHeight; }"
    )
    return [ms / 1000 for ms in frames], told


async def _flow(hand: Hand, position: Position, calls: Sequence[str]) -> None:
    """A piece of each command's output in each frame's time, by the clock."""
    began, number = time.monotonic(), 0
    while True:
        number += 1
        chunk = b64encode(f"line {number} of the output\n".encode()).decode()
        told = {"type": "exec_command_output_delta", "stream": "stdout", "chunk": chunk}
        await hand.emit([_event(position, call_id=call, **told) for call in calls])
        await asyncio.sleep(max(0.0, began + number * FRAME_S - time.monotonic()))


async def _weight(devtools: CDPSession) -> tuple[float, int]:
    """Bytes of the heap after a collection, and nodes that the document has."""
    await devtools.send("HeapProfiler.collectGarbage")
    used = await devtools.send("Runtime.getHeapUsage")
    count = (
        "(() => { const walk = document.createTreeWalker(document); let n = 1; while (walk.nextNode()) n++;"
        " return n; })()"
    )
    nodes = await devtools.send("Runtime.evaluate", {"expression": count})
    return float(used["usedSize"]), int(nodes["result"]["value"])


async def _pieces(page: Page, hand: Hand, position: Position, count: int) -> list[float]:
    """Seconds from a piece's way into Redis to the frame that shows it, by the clock of this machine."""
    await page.evaluate(_MARKS)
    # A gateway that was behind with the events before has told them by then.
    await hand.emit([_event(position, type="agent_message_delta", delta="mark-0- ")])
    await page.wait_for_function("window.drawn['mark-0-'] > 0", timeout=4 * PATIENCE_MS)
    sent = {}
    for number in range(1, count + 1):
        mark = f"mark-{number}-"
        sent[mark] = time.time()
        await hand.emit([_event(position, type="agent_message_delta", delta=f"{mark} and a few words. ")])
        # A line that was lost comes back without the pieces of the gap, which the finished item has.
        with suppress(PlaywrightTimeout):
            await page.wait_for_function(f"window.drawn['{mark}'] > 0", timeout=PATIENCE_MS)
    drawn = await page.evaluate("window.drawn")
    seen = [max(0.0, drawn[mark] / 1000 - at) for mark, at in sent.items() if drawn.get(mark)]
    if len(seen) < 0.95 * count:
        raise RuntimeError(f"{count - len(seen)} of {count} pieces of a text were not drawn")
    return seen


# ── many windows ──────────────────────────────────────────────────────────────────────────────────


async def crowd(running: Fleet, url: str, headers: dict[str, str], gateway: int) -> list[Figure]:
    """The cost of a hundred windows at one gateway, and how often it asks Redis for what they all see."""
    root, _ = await family(running, POOL, 3)
    one = await _asked(running, url, headers, root, 1)
    before = resident_mib(gateway)
    async with _windows(url, headers, root, WINDOWS):
        grown = resident_mib(gateway) - before
    many = await _asked(running, url, headers, root, WINDOWS)
    note = "streams of `needs`, `fleet` and a tree; Pss of the gateway, grown"
    asks = f"commands to Redis a change of a tree, with {one:.1f} for one window"
    return [
        Figure(f"{WINDOWS} windows at one gateway", grown, "MiB", at_most(150), note=note),
        Figure(
            "&emsp;commands to Redis of a change, against one window",
            many / one,
            "x",
            at_most(1.5),
            note=asks,
        ),
    ]


async def _asked(running: Fleet, url: str, headers: dict[str, str], root: SessionId, windows: int) -> float:
    """Commands that Redis runs for one change while so many windows look."""
    async with (
        httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as program,
        _windows(url, headers, root, windows) as streams,
    ):
        before = await _commands(running)
        for _ in range(CHANGES):
            params = {"treeId": root, "requestId": secrets.token_hex(8), "add": {"tokens": 1_000_003}}
            answer = await program.post("/api/budget/add", json=params)
            answer.raise_for_status()
            limit = answer.json()["limits"]["tokens"]
            await asyncio.gather(*(_until(stream, str(limit).encode()) for stream in streams))
        after = await _commands(running)
    return (after - before) / CHANGES


async def _commands(running: Fleet) -> int:
    told: Any = await running.opened.broker.command("INFO", "stats")
    return int(told["total_commands_processed"])


@asynccontextmanager
async def _windows(
    url: str, headers: dict[str, str], root: SessionId, count: int
) -> AsyncIterator[list[AsyncIterator[bytes]]]:
    """So many streams, each of which has been told all."""
    async with AsyncExitStack() as stack:
        limits = httpx.Limits(max_connections=None)
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=url, headers=headers, timeout=60, limits=limits)
        )
        streams = []
        for _ in range(count):
            query = {"topic": ["needs", "fleet", f"tree:{root}"]}
            answer = await stack.enter_async_context(client.stream("GET", "/api/stream", params=query))
            streams.append(answer.aiter_raw())
        await asyncio.gather(*(_until(stream, b"event: tree:") for stream in streams))
        yield streams


async def _until(stream: AsyncIterator[bytes], words: bytes) -> None:
    seen = b""
    async for piece in stream:
        seen = seen[-len(words) :] + piece
        if words in seen:
            return
    raise RuntimeError("the stream ended")
