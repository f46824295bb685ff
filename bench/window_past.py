"""How soon the window shows a large tree as it was: with the views of its log at hand, and without them.

The tree is in Redis as if its agents had worked: births, ends, mail, requests and decisions in its log, and
in each agent's own log what it said then. Nobody runs them.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import orjson

from bench.figures import Figure, at_most, spread
from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.core.entries import EVENT_MSG, Entry, encode_entry, fact
from orchestrator.core.facts import TaskBegun, TaskEnded
from orchestrator.core.ids import SessionId, new_session_id
from orchestrator.core.settings import TurnSettings
from orchestrator.protocol.ids import SubmissionId

SIZE, QUICK = (100_000, 1_000), (10_000, 100)
"""Entries of the tree's log, and agents."""
PLACES = 60
AT_ONCE = 2_000
STEP_MS = 700
SETTINGS = TurnSettings("/work", "never", {"mode": "workspace-write"}, "gpt-5")
TIMELINE_S, PLACE_MS = 2.0, 100.0
Call = Callable[..., Awaitable[dict[str, Any]]]
Row = tuple[str | bytes | int, ...]


async def fill(broker: Broker, connection: Connection, size: tuple[int, int]) -> SessionId:
    """Makes the tree; answers its root."""
    entries, agents = size
    began_ms = int(time.time() * 1000) - entries * STEP_MS
    shard = secrets.randbelow(broker.config.shards)
    sessions = [new_session_id(began_ms + n, shard, secrets.randbits(62)) for n in range(agents + 1)]
    rows = list[Row]()
    for row in _rows(broker, sessions, entries, began_ms):
        rows.append(row)
        if len(rows) == AT_ONCE:
            await connection.commands(rows)
            rows = []
    await connection.commands(rows)
    return sessions[0]


def _rows(broker: Broker, sessions: list[SessionId], entries: int, began_ms: int) -> Iterator[Row]:
    keys, root, chosen = broker.keys, sessions[0], random.Random(1)
    ends, states = dict.fromkeys(range(len(sessions)), 0), dict[int, tuple[str, int]]()
    for tree_seq in range(1, entries + 1):
        at_ms, number = began_ms + tree_seq * STEP_MS, chosen.randrange(1, len(sessions))
        status, turn = states.get(number, ("", 0))
        change = {"": "queued", "queued": "running", "running": "ready", "ready": "running"}[status]
        states[number] = change, turn + (change == "running")
        for line in _lines(change, at_ms, f"{change} {tree_seq}"):
            ends[number] += 1
            entry = ("e", 1, "p", line, "s", "", "h", b"\0" * 32)
            yield ("XADD", keys.rollout(sessions[number]), f"{ends[number]}-0", *entry)
        record = {
            "agent_id": number,
            "session_id": sessions[number],
            "parent_agent_id": 0,
            "parent_session_id": root,
            "origin": "spawn",
            "label": f"agent-{number}",
            "summary": "Move the callers of one service to the new ledger, and run its tests",
            "status": change,
            "turn": turn,
            "agent_path": f"0/{number}",
            "started_at_ms": began_ms,
        }
        event = "created" if not status else "status"
        told = {"type": "subagent_lifecycle", "event": event, "status": change, "subagent": None}
        message = {**told, "agent_id": number, "session_id": sessions[number]}
        about = orjson.dumps({"record": record})
        fields = ("p", orjson.dumps({"id": "", "msg": message}), "s", sessions[number], "q", ends[number])
        rest = ("h", "", "d", f"{sessions[number]}:1:0", "t", at_ms, "a", about)
        yield ("XADD", keys.tree(root), f"{tree_seq}-0", *fields, *rest)
    for number, session in enumerate(sessions):
        head = ("tree", root, "pool", "bench", "agent_id", number, "status", "idle", "seq", ends[number])
        parent = ("parent", root) if number else ("source", "cli", "recency", began_ms)
        yield ("HSET", keys.session(session), *head, "created_ms", began_ms, "meta", b"{}", *parent)
    named = [word for number, session in enumerate(sessions) for word in (f"s:{number}", session)]
    yield ("HSET", keys.agents(root), "root", root, "tree_seq", tree_seq, *named)


def _lines(change: str, at_ms: int, text: str) -> Iterator[bytes]:
    """An agent's own entries about a change: a turn begins, asks its model twice, and ends."""
    said = Entry(EVENT_MSG, {"type": "agent_message", "message": f"{text}: the callers are moved"})
    used = {"input_tokens": 900, "cached_input_tokens": 0, "output_tokens": 90, "reasoning_output_tokens": 0}
    info = {name: {**used, "total_tokens": 990} for name in ("total_token_usage", "last_token_usage")}
    counted = Entry(EVENT_MSG, {"type": "token_count", "info": info, "rate_limits": None})
    began, ended = fact(TaskBegun(SubmissionId("u1"), "user", SETTINGS)), fact(TaskEnded("completed"))
    of_change = {"running": (began, said, counted), "ready": (said, said, counted, ended)}
    for entry in of_change.get(change, (said,)):
        yield encode_entry(entry, at_ms, {}).line


async def measured(call: Call, root: str, size: tuple[int, int]) -> list[Figure]:
    """The first picture of a log that nobody has read, and places in random order behind that."""
    entries, agents = size
    began = time.perf_counter()
    told = await call("tree/timeline", treeId=root)
    first_s = time.perf_counter() - began
    while told.get("reading"):
        await asyncio.sleep(0.05)
        told = await call("tree/timeline", treeId=root)
    whole_s = time.perf_counter() - began
    assert told["treeSeq"] == entries
    times = []
    for at in random.Random(2).sample(range(1, entries + 1), PLACES):
        began = time.perf_counter()
        past = await call("tree/read", treeId=root, at=at)
        times.append(time.perf_counter() - began)
        assert past["treeSeq"] == at
    note = f"{entries:,} entries, {agents:,} agents, over HTTP"
    return [
        Figure(
            "window: a tree's past, first picture",
            first_s,
            "s",
            at_most(TIMELINE_S),
            note="tree/timeline of a log that nobody has read",
        ),
        Figure("&emsp;whole log read", whole_s, "s", note="beside other requests"),
        spread("window: a place not seen before", times, at_most(PLACE_MS), note),
    ]
