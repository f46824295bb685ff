"""Sessions put into Redis as their hashes tell of them, for tests of lists: many, and at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from orchestrator.core.ids import SessionId
from orchestrator.wiring.open_deployment import Opened


async def planted_tree(
    found: Opened, sessions: Sequence[SessionId], statuses: Sequence[str] = (), **meta: Any
) -> Sequence[SessionId]:
    """A root and its agents, which stand in the tree as `statuses` say."""
    await plant(found, ((session, sessions[0]) for session in sessions), **meta)
    keys = found.broker.keys
    fields: list[str | bytes] = ["root", sessions[0]]
    for number, session in enumerate(sessions[1:], 1):
        status = statuses[number - 1] if number <= len(statuses) else "ready"
        fields += [f"a:{number}", orjson.dumps(record(number, session, status)), f"s:{number}", session]
    await found.broker.command("HSET", keys.agents(sessions[0]), *fields)
    return sessions


def record(number: int, session: SessionId, status: str) -> Mapping[str, Any]:
    """An agent's record, as its parent writes it."""
    return {
        "agent_id": number,
        "parent_agent_id": 0,
        "session_id": session,
        "agent_path": f"0/{number}",
        "status": status,
        "label": f"a{number}",
        "turn": 1,
    }


async def plant(found: Opened, born: Iterable[tuple[SessionId, SessionId]], **meta: Any) -> None:
    """Sessions of trees; the numbers of agents follow the order in their tree."""
    numbers: dict[SessionId, int] = {}
    keys = found.broker.keys
    for at, (session, tree) in enumerate(born):
        number = numbers[tree] = numbers.get(tree, -1) + 1
        told = {
            "title": f"task {session[-4:]}",
            "cwd": "/work",
            "model": "gpt-5",
            "updated_ms": 1_000 + at,
            **meta,
        }
        hash = {
            "tree": tree, "pool": "default", "agent_id": number, "status": told.pop("status", "idle"),
            "meta": orjson.dumps(told), "created_ms": 1_000,
        }  # fmt: skip
        await found.broker.command("HSET", keys.session(session), *[v for pair in hash.items() for v in pair])
        score = told["updated_ms"]
        await found.broker.command("ZADD", keys.sessions(keys.shard_of(session)), score, session)
