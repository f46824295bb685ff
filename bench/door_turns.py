"""Turns through a door: how soon the model is asked, how soon the end is told, many of them at once."""

from __future__ import annotations

import time
from typing import Any

from bench.accounts import cpu_of, resident_mib
from bench.door_clients import Caller, Served, caller, gateway, go
from bench.figures import Figure, at_most, spread
from bench.lab import Fleet, Lab, fleet
from bench.latency import marks

WARM = 3
COMMANDS = 3
SANDBOX = {"sandbox": "workspace-write", "approvalPolicy": "never"}


async def turns(running: Fleet, served: Served, quick: bool) -> list[Figure]:
    """Turns of one thread, then first turns of new threads, each when the last one has ended."""
    count = 20 if quick else 100
    async with caller(served) as client:
        thread = (await client.call("thread/start"))["thread"]["id"]
        sent = [await _turn(client, thread) for _ in range(count + WARM)]
        seen = marks(running)[thread]
        began = [await _first_turn(client) for _ in range(count + WARM)]
    asked = [mark[0] - at for (at, _), mark in zip(sent, seen, strict=True)][WARM:]
    told = [end - mark[1] for (_, end), mark in zip(sent, seen, strict=True)][WARM:]
    known = marks(running)
    first = [known[thread][0][0] - at for at, thread in began][WARM:]
    note = f"{count} turns of a thread over a WebSocket, one at a time"
    return [
        spread("`turn/start` → request at the stub", asked, at_most(6), note),
        spread(
            "`thread/start`, `turn/start` → request at the stub", first, at_most(12), f"{count} new threads"
        ),
        spread("last SSE byte → `turn/completed`", told, at_most(4), note),
        spread("`turn/start` → `turn/completed`", [end - at for at, end in sent][WARM:], None, note),
    ]


async def _turn(client: Caller, thread: str) -> tuple[float, float]:
    """When a turn was handed in, and when its end was told."""
    began = time.monotonic()
    await client.send("turn/start", threadId=thread, input=go())
    await client.until(lambda message: message.get("method") == "turn/completed")
    return began, time.monotonic()


async def _first_turn(client: Caller) -> tuple[float, str]:
    began = time.monotonic()
    thread: str = (await client.call("thread/start"))["thread"]["id"]
    await client.send("turn/start", threadId=thread, input=go())
    await client.until(lambda message: message.get("method") == "turn/completed")
    await client.call("thread/unsubscribe", threadId=thread)
    return began, thread


async def crowd(lab: Lab, quick: bool) -> list[Figure]:
    """Threads of one connection, all at once, each a turn with three sandboxed commands."""
    count = 20 if quick else 50
    async with fleet(lab, f"shell:{COMMANDS}") as running:
        for _ in range(2):
            running.hire(count)
        async with gateway(running) as served, caller(served) as client:
            await _all_at_once(client, 4)
            before = cpu_of(served.process.pid).own_s
            wall_s = await _all_at_once(client, count)
            own_s = cpu_of(served.process.pid).own_s - before
            processes = (served.process.pid, *(worker.pid for worker in running.workers))
            resident = sum(map(resident_mib, processes))
    note = f"{COMMANDS} commands each (bash -c, workspace-write), 2 workers; with their `thread/start`"
    return [
        Figure(f"{count} threads of one connection: wall time", wall_s, "s", at_most(3), note=note),
        Figure("&emsp;CPU of the gateway per thread", own_s / count * 1000, "ms"),
        Figure("&emsp;memory of gateway, workers, supervisors", resident, "MiB", note="Pss, after the run"),
    ]


async def _all_at_once(client: Caller, count: int) -> float:
    """Seconds from the first request to the end of the last turn; every command has to have ended well."""
    began = time.monotonic()
    for _ in range(count):
        await client.send("thread/start", **SANDBOX)
    left, done = count, 0
    while left:
        message = await client.until(_matters)
        match message.get("method"):
            case None:
                await client.send("turn/start", threadId=message["result"]["thread"]["id"], input=go())
            case "turn/completed":
                left -= 1
            case _:
                done += 1
    if done != COMMANDS * count:
        raise RuntimeError(f"{done} of {COMMANDS * count} commands ended with 0")
    return time.monotonic() - began


def _matters(message: dict[str, Any]) -> bool:
    if message.get("method") == "item/completed":
        return bool(message["params"]["item"].get("exitCode") == 0)
    return message.get("method") == "turn/completed" or "thread" in message.get("result", {})
