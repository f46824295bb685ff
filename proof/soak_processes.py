"""Processes of a soak: `python -m proof.soak_processes upkeep [LEAK,…] KEY=VALUE…`, and `… dendro ARGUMENT…`.

The upkeep of a deployment, by its own jobs, whose day is a minute: what they wait for is in the settings, and
how often they look is here. A LEAK is what the soak has to find, planted beside the product. Ends with its
standard input. `dendro` is the command itself. Each tells what is in use of its heap (`bench.heap`).
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvloop

from bench.heap import tells
from orchestrator.cli import main as cli
from orchestrator.rollouts import archive as archives
from orchestrator.rollouts.archive import Archive, Storage
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.wiring.deployment import chain_key, deployment, redis_url
from orchestrator.wiring.gateway import settle_heap
from workers.upkeep import Context, archive, look, reap, retain, seal, seal_tree, timers, upkeep_of, verify

LOOK_S = 2.0
NOTED_MS = 10_000
VERIFIES = 15
"""Every so many looks some chains are verified."""
JOBS: dict[str, Callable[[Context, str], Awaitable[object]]] = {
    "seal": seal,
    "seal_tree": seal_tree,
    "archive": archive,
    "reap": reap,
}


class AtOnce:
    """In the place of the queue: a job is done when it is put there."""

    def __init__(self) -> None:
        self.ctx: Context = {"redis": self}

    async def enqueue_job(self, job: str, subject: str, **_: object) -> None:
        await JOBS[job](self.ctx, subject)


async def _upkeep(settings: Settings, url: str, leaks: Sequence[str]) -> None:
    key = chain_key(settings)
    secret = key.secret if key else b""
    # The notes of deletions would stay for longer than a soak waits for the end of all files.
    archives.NOTED_MS = NOTED_MS
    async with deployment(settings, url, kind="upkeep") as opened:
        storage = Storage(
            opened.broker, opened.blobs, Archive.at(settings.upkeep.archive_url, secret), secret
        )
        queue = AtOnce()
        queue.ctx["upkeep"] = upkeep_of(settings, storage, url)
        leaking = [asyncio.ensure_future(LEAKS[leak](settings, opened.broker)) for leak in leaks]
        settle_heap()
        print("ready", flush=True)
        ended = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
        looks = 0
        while not ended.done():
            for job in (timers, look, retain, *((verify,) if looks % VERIFIES == 0 else ())):
                await job(queue.ctx)
            looks += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(ended), LOOK_S)
        for leak in leaking:
            leak.cancel()


# ── leaks ─────────────────────────────────────────────────────────────────────────────────────────


async def _memory(settings: Settings, broker: Any) -> None:
    kept = []
    while True:
        kept.append(os.urandom(1 << 18))
        await asyncio.sleep(1)


async def _descriptors(settings: Settings, broker: Any) -> None:
    while True:
        os.open(os.devnull, os.O_RDONLY)
        await asyncio.sleep(2)


async def _keys(settings: Settings, broker: Any) -> None:
    number = 0
    while True:
        number += 1
        await broker.command("SET", broker.keys.of_shard(0, f"leaked:{number}"), 1)
        await asyncio.sleep(0.5)


async def _streams(settings: Settings, broker: Any) -> None:
    while True:
        for _ in range(20):
            await broker.command("XADD", broker.keys.of_shard(0, "queue"), "*", "leaked", 1)
        await asyncio.sleep(1)


async def _redis(settings: Settings, broker: Any) -> None:
    while True:
        await broker.command("APPEND", broker.keys.of_shard(0, "text"), os.urandom(1 << 18))
        await asyncio.sleep(1)


async def _latency(settings: Settings, broker: Any) -> None:
    began = time.monotonic()
    while True:
        pause_s = min(2.0, (time.monotonic() - began) * 0.006)
        await broker.command("CLIENT", "PAUSE", 1 + int(pause_s * 1000), "ALL")
        await asyncio.sleep(pause_s + 0.3)


async def _threads(settings: Settings, broker: Any) -> None:
    while True:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        await asyncio.sleep(2)


async def _disk(settings: Settings, broker: Any) -> None:
    with (Path(os.environ["HOME"]) / "leaked").open("ab") as file:
        while True:
            file.write(os.urandom(1 << 18))
            file.flush()
            await asyncio.sleep(1)


async def _temporary(settings: Settings, broker: Any) -> None:
    while True:
        descriptor, _ = tempfile.mkstemp()
        os.close(descriptor)
        await asyncio.sleep(0.5)


async def _files(settings: Settings, broker: Any) -> None:
    number = 0
    while True:
        number += 1
        (Path(os.environ["HOME"]) / f"leaked-{number}").touch()
        await asyncio.sleep(0.5)


async def _processes(settings: Settings, broker: Any) -> None:
    while True:
        os.posix_spawn("/bin/true", ["true"], {})  # noqa: ASYNC221  it is there at once, and nobody waits for it
        await asyncio.sleep(2)


LEAKS: dict[str, Callable[[Settings, Any], Awaitable[None]]] = {
    "memory": _memory,
    "descriptors": _descriptors,
    "threads": _threads,
    "processes": _processes,
    "keys": _keys,
    "streams": _streams,
    "redis": _redis,
    "files": _files,
    "temporary": _temporary,
    "disk": _disk,
    "latency": _latency,
}


def main(kind: str, given: Sequence[str]) -> None:
    """Runs the process of that kind."""
    tells()
    if kind == "dendro":
        sys.argv = ["dendro", *given]
        cli.main()
        return
    assert kind == "upkeep", kind
    leaks = given[0].split(",") if given and "=" not in given[0] else []
    settings = load_settings(SettingsSources.of_process(overrides=[one for one in given if "=" in one]))
    with redis_url(settings) as url:
        uvloop.run(_upkeep(settings, url, leaks))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
