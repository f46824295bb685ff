"""A session's whole rollout after a crash run: as stored, as read, and what it says."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import orjson

from orchestrator.broker.blobs import Texts
from orchestrator.broker.records import SessionHead, StoredEntry
from orchestrator.core.blobs import references, resolve
from orchestrator.core.entries import DENDRO, EVENT_MSG, RESPONSE_ITEM, Entry, decode_entry
from orchestrator.core.evolve import evolve
from orchestrator.core.ids import SessionId
from orchestrator.core.state import State
from orchestrator.wiring.deployment import Deployment


@dataclass(frozen=True, slots=True)
class Log:
    """A session's whole rollout, as stored and as read."""

    session: SessionId
    head: SessionHead
    stored: tuple[StoredEntry, ...]
    entries: tuple[Entry, ...]
    texts: Texts
    """Holds every large text that the log refers to."""

    def facts(self, kind: str) -> list[Any]:
        return [fact for _, fact in self.numbered(kind)]

    def numbered(self, kind: str) -> list[tuple[int, Any]]:
        """(seq, fact) of one kind."""
        numbered = enumerate(self.entries, 1)
        return [(n, e.payload) for n, e in numbered if e.type == DENDRO and e.payload["kind"] == kind]

    def events(self) -> list[tuple[str, Any]]:
        return [(e.id, e.payload) for e in self.entries if e.type == EVENT_MSG]

    def said(self) -> list[tuple[int, Any]]:
        """(seq, item) of the conversation's own part, large texts in their places."""
        return [
            (seq, resolve(entry.payload, self.texts.get))
            for seq, entry in enumerate(self.entries, 1)
            if entry.type == RESPONSE_ITEM
        ]

    def outputs(self) -> list[tuple[int, str, str]]:
        """(seq, call id, text) of every tool output."""
        return [
            (seq, item["call_id"], orjson.dumps(item["output"]).decode())
            for seq, item in self.said()
            if str(item.get("type")).endswith("_output")
        ]

    def state(self) -> State:
        """The state that a fold over the log gives."""
        state = State()
        for seq, entry in enumerate(self.entries, 1):
            state = evolve(state, entry, seq)
        return state

    def decisions(self) -> Counter[str]:
        """How often each call was decided to run."""
        return Counter(fact["call_id"] for fact in self.facts("call") if fact["phase"] == "running")


async def read_log(deployment: Deployment, session: SessionId) -> Log:
    head = await deployment.broker.logs.head(session)
    assert head is not None
    stored = await deployment.broker.logs.read_rollout(session, 0, 1_000_000)
    entries = tuple(decode_entry(entry.payload) for entry in stored)
    wanted = [sha for entry in entries if entry.type == RESPONSE_ITEM for sha in references(entry.payload)]
    await deployment.texts.fetch(head.tree, wanted)
    return Log(session, head, stored, entries, deployment.texts)
