"""Waiting for work without asking for it: one blocking read over streams of hints.

A hint says "look", never "this is yours": it may be lost or doubled. The truth is in `due`,
`leases` and the queues, which a worker looks at every second anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from orchestrator.broker.connection import Wire
from orchestrator.broker.keys import Keys
from orchestrator.broker.records import START, Hints
from orchestrator.core.ids import SessionId


async def wait_for_hints(
    wire: Wire, keys: Keys, who: tuple[str, str], cursors: Mapping[str, str], timeout_s: float
) -> Hints:
    """Waits for a hint in the pool's streams or the worker's own; `who` is (pool, worker)."""
    pool, worker = who
    ready = {keys.ready(shard, pool): shard for shard in range(keys.shards)}
    control = keys.control(worker)
    streams = [*ready, control]
    if any(key not in cursors for key in streams):
        return Hints(tuple(ready.values()), (), await _tips(wire, streams))
    found = await _read(wire, {key: cursors[key] for key in streams}, timeout_s)
    later = {**cursors, **{key: entries[-1][0].decode() for key, entries in found.items()}}
    named = {ready[key]: _session(entries[0]) for key, entries in found.items() if key in ready}
    pokes = dict.fromkeys(map(_session, found.get(control, ())))
    return Hints(tuple(named), tuple(pokes), later, named)


def _session(hint: tuple[bytes, dict[bytes, bytes]]) -> SessionId:
    return SessionId(hint[1][b"s"].decode())


async def _tips(wire: Wire, streams: list[str]) -> dict[str, str]:
    rows = [("XREVRANGE", key, "+", "-", "COUNT", 1) for key in streams]
    newest = await wire.commands(rows)
    return {
        key: entries[0][0].decode() if entries else START
        for key, entries in zip(streams, newest, strict=True)
    }


async def _read(wire: Wire, cursors: Mapping[str, str], timeout_s: float) -> dict[str, list[Any]]:
    if not wire.clustered:
        return await _xread(wire, cursors, timeout_s)
    # A cluster refuses one read over several slots, so each stream gets its own.
    waits = [asyncio.ensure_future(_xread(wire, {key: at}, timeout_s)) for key, at in cursors.items()]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        found: dict[str, list[Any]] = {}
        for wait in done:
            found.update(wait.result())
        return found
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _xread(wire: Wire, cursors: Mapping[str, str], timeout_s: float) -> dict[str, list[Any]]:
    block_ms = max(1, int(timeout_s * 1000))
    reply = await wire.wait("XREAD", "COUNT", 100, "BLOCK", block_ms, "STREAMS", *cursors, *cursors.values())
    return {key.decode(): entries for key, entries in reply or ()}
