"""A deployment as readers of logs see it, and sessions that are put there."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.broker.blobs import Texts
from orchestrator.broker.broker import Broker
from orchestrator.broker.records import SessionHead, StoredEntry
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.birth import Birth, first_entries
from orchestrator.core.calls import Phase, work_of
from orchestrator.core.entries import Entry
from orchestrator.core.evolve import fold
from orchestrator.core.ids import SessionId, TreeId, new_session_id
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.state import State
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.rollouts.archive import Storage
from orchestrator.rollouts.export import Tally, exported, header_of
from orchestrator.rollouts.full_log import full_log
from orchestrator.rollouts.imports import ImportPlan, Newcomer, store

NOW_MS = 1_790_000_000_000
_numbers = itertools.count(1)
SETTINGS = TurnSettings("/repo", "on-request", {"mode": "workspace-write"}, "gpt-5")


@dataclass
class Kept:
    """Sessions in Redis and an archive, for those who read, export, import and verify them."""

    stored: Storage
    texts: Texts
    rollout_files: Path
    redis: Any
    """Redis itself, for those who damage it."""

    @property
    def broker(self) -> Broker:
        return self.stored.broker

    @property
    def secret(self) -> bytes:
        return self.stored.secret

    def storage(self) -> Storage:
        return self.stored

    def log(self, session: SessionId, through: int, after: int = 0) -> AsyncIterator[StoredEntry]:
        return full_log(self.broker.logs, self.stored.archive, session, after, through)

    async def large_texts(self, tree: TreeId, digests: Iterable[str]) -> dict[str, str]:
        found = {digest: await self.stored.blobs.get(tree, digest) for digest in digests}
        return {digest: text.decode() for digest, text in found.items() if text is not None}

    async def head(self, session: SessionId) -> SessionHead:
        head = await self.broker.logs.head(session)
        assert head is not None
        return head

    async def has(self, *entries: Entry, **facts: Any) -> SessionId:
        """A new session with these entries behind its first ones, as an import makes it."""
        return await store(self, plan_of(*entries, **facts), {}, NOW_MS, "an importer")

    async def make_due(self, session: SessionId) -> None:
        """As a worker leaves a session whose turn it yields to others."""
        held = await self.broker.claims.claim_session(session, "a worker", f"yields-{session}", parked=True)
        assert held is not None
        await self.broker.claims.release(held.claim)

    async def is_due(self, session: SessionId) -> bool:
        place = await self.broker.logs.place(session)
        keys = self.broker.keys
        return await self.redis.zscore(keys.due(keys.shard_of(place.tree), place.pool), session) is not None

    async def file(self, session: SessionId, *, full: bool = True) -> list[bytes]:
        """The lines of the session's export."""
        head, lines = await self.head(session), list[bytes]()
        async for chunk in exported(self, head, full, Tally()):
            lines += chunk.splitlines(keepends=True)
        return [header_of(head, "").encode(self.secret) + b"\n", *lines] if full else lines


def new_facts(**facts: Any) -> SessionFacts:
    session = new_session_id(NOW_MS, 3, next(_numbers))
    return SessionFacts(session, TreeId(session), rollout_path=f"/data/{session}.jsonl", **facts)


def newcomer(**facts: Any) -> Newcomer:
    return Newcomer(new_facts(**facts), SETTINGS, "0", NOW_MS)


def plan_of(*entries: Entry, **facts: Any) -> ImportPlan:
    """A session with these entries behind its first ones, still to be stored."""
    born = Birth(new_facts(**facts), SETTINGS, "0", NOW_MS)
    whole = (*first_entries(born), *entries)
    return ImportPlan(tuple((entry, NOW_MS) for entry in whole), fold(State(), whole, 1), born.facts)


def said(words: str) -> Entry:
    """Input of a person without a task: the state remembers it."""
    return e.item({"type": "message", "role": "user", "content": [{"type": "input_text", "text": words}]})


def output(text: str) -> Entry:
    return e.item({"type": "function_call_output", "call_id": "c", "output": text})


def asking(asked: str = "call_id", timer: int | None = None) -> list[Entry]:
    """A task whose one command waits for a person; `asked` is how the event names the call."""
    call = "c1"
    spec: dict[str, Any] = {
        "kind": "exec",
        "keys": ["k"],
        "command": ["touch", "x"],
        "cwd": "/w",
        "parsed_cmd": [],
        "timeout_ms": None,
        "env": {},
        "sandboxed": False,
        "timer": timer,
    }
    return [
        e.fact(f.TaskBegun(SubmissionId("1"), "user", SETTINGS)),
        said("go"),
        e.fact(f.RequestBegun(1, "turn", 1)),
        e.item({"type": "function_call", "name": "shell", "arguments": "{}", "call_id": call}),
        e.fact(f.RequestCompleted(1)),
        Entry(
            e.EVENT_MSG,
            {"type": "exec_approval_request", asked: call, "command": ["touch", "x"], "cwd": "/w"},
            "1",
        ),
        e.fact(f.CallMoved(CallId(call), Phase.AWAITING_APPROVAL, work=work_of(spec))),
    ]
