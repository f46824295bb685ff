"""Threads: sessions as clients of the app-server protocol know them.

A thread is read from a session's head, and for an agent from its tree's registry too; the log is asked for
the first words of a session that has never rested, and for nothing else. Knows nothing of JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import orjson

from orchestrator.broker.broker import Broker
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import AT_REST, SessionHead
from orchestrator.core.agent_views import one_line
from orchestrator.core.entries.stored import decode_entry, stored_kind
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.registry import Agent, projected
from orchestrator.core.tree import ROOT
from orchestrator.protocol.events import SessionConfigured, UserMessage
from orchestrator.rollouts.summary import PREVIEW_CHARS

FIRST_ENTRIES = 64
"""Entries of a log among which the first words of a person stand."""

ThreadStatus: TypeAlias = Literal["not_loaded", "idle", "active", "system_error"]
Waits: TypeAlias = Literal["approval", "user_input"]
Source: TypeAlias = Literal["cli", "exec"]
"""The program that a person began a session by: one in which people talk, or one that runs a prompt."""


@record
class Spawned:
    """The place of an agent's thread in its tree."""

    parent: SessionId
    path: str
    """The agents' numbers from the root down, joined by `/`."""
    nickname: str | None = None
    role: str | None = None

    @property
    def depth(self) -> int:
        """Generations below the root."""
        return self.path.count("/")


@record
class Thread:
    """A session in a list. Times are milliseconds."""

    id: SessionId
    root: SessionId
    """The root's session, its own for a root."""
    status: ThreadStatus
    created_ms: int
    updated_ms: int
    """Its last rest; its creation before the first one."""
    recency_ms: int = 0
    """Its last change, as far as an index tells; 0 if none does."""
    waits: Waits | None = None
    """A person's part that an active thread waits for."""
    preview: str = ""
    name: str | None = None
    cwd: str = "/"
    model: str = ""
    model_provider: str = ""
    effort: str | None = None
    path: str | None = None
    """The rollout's file, if there is to be one."""
    git: Mapping[str, str] | None = None
    """`commit_hash`, `branch`, `repository_url`, as far as there are any."""
    forked_from: SessionId | None = None
    source: Source = "cli"
    ephemeral: bool = False
    begun: bool = True
    """Whether a person has said, named or done anything in it, or it came from another thread."""
    spawned: Spawned | None = None
    """None for a root."""


_WAITS: Mapping[str, Waits] = {"awaiting_approval": "approval", "awaiting_answer": "user_input"}


def thread_status(head: SessionHead, outcome: str | None = None) -> ThreadStatus:
    """Whether a thread is at work, as its last commit says; `outcome` is that of its last task."""
    if head.archived or head.shelved:
        return "not_loaded"
    if head.quarantined:
        return "system_error"
    if head.status not in AT_REST:
        return "active"
    return "system_error" if outcome == "failed" else "idle"


def thread(head: SessionHead, agent: Agent | None = None, preview: str = "") -> Thread:
    """The thread of a session; `agent` is its record in the tree's registry, if it is an agent's."""
    meta = head.summary
    forked_from = meta.get("forked_from")
    words = preview or meta.get("preview") or meta.get("title") or ""
    name = head.name or meta.get("name") or None
    return Thread(
        id=head.session,
        root=SessionId(head.tree),
        status=thread_status(head, meta.get("outcome")),
        waits=_WAITS.get(head.status),
        created_ms=head.created_ms,
        updated_ms=meta.get("updated_ms") or head.created_ms,
        preview=words,
        name=name,
        cwd=meta.get("cwd") or "/",
        model=meta.get("model") or "",
        model_provider=meta.get("model_provider") or "",
        effort=meta.get("effort"),
        # The tenant of a namespace learns no path of the machine.
        path=None if head.labels.namespace else meta.get("rollout_path") or None,
        git=orjson.loads(head.git_note) if head.git_note else meta.get("git"),
        recency_ms=head.recency_ms,
        source="exec" if head.labels.source == "exec" else "cli",
        ephemeral=head.labels.ephemeral,
        forked_from=None if forked_from is None else SessionId(forked_from),
        # A task that has ended counts for its words: those of an image alone, or of a log that was compacted.
        begun=bool(words or name or forked_from or meta.get("outcome")) or _is_used(head),
        spawned=None if head.agent_id == ROOT else _spawned(head, agent),
    )


def _is_used(head: SessionHead) -> bool:
    """Whether a session works, waits, or has something in its queue."""
    return not head.at_rest or head.agent_id != ROOT


def _spawned(head: SessionHead, agent: Agent | None) -> Spawned:
    parent = head.parent or SessionId(head.tree)
    if agent is None:
        # It was pruned: its tree's registry does not name it any more.
        return Spawned(parent, f"{ROOT}/{head.agent_id}")
    return Spawned(parent, agent.path, agent.record.get("label") or None, agent.record.get("origin"))


async def threads(broker: Broker, heads: Sequence[SessionHead]) -> list[Thread]:
    """The threads of some sessions, in their order."""
    agents = await _agents(broker, [head.tree for head in heads if head.agent_id != ROOT])
    return [
        thread(head, agents.get(head.tree, {}).get(head.agent_id), await _first_words(broker.logs, head))
        for head in heads
    ]


async def path_at_birth(logs: Logs, head: SessionHead) -> str:
    """Where the rollout of a session is to be, as its log begins; its head says so once it has rested."""
    if head.labels.namespace or head.archived:
        return ""
    for stored in await logs.read_rollout(head.session, 0, FIRST_ENTRIES):
        if stored_kind(stored.payload) is SessionConfigured:
            return str(decode_entry(stored.payload).payload.get("rollout_path") or "")
    return ""


async def _agents(broker: Broker, trees: Sequence[TreeId]) -> Mapping[TreeId, Mapping[int, Agent]]:
    ordered = list(dict.fromkeys(trees))
    found = await broker.trees.registries(ordered)
    return {tree: projected(fields).agents for tree, fields in zip(ordered, found, strict=True)}


async def _first_words(logs: Logs, head: SessionHead) -> str:
    """The first words of a person in a session that has never rested; later its head says them."""
    if head.archived or head.status in AT_REST or "updated_ms" in head.summary:
        return ""
    for stored in await logs.read_rollout(head.session, 0, FIRST_ENTRIES):
        if stored_kind(stored.payload) is UserMessage:
            said = decode_entry(stored.payload).payload.get("message")
            return (one_line(said, PREVIEW_CHARS) or "") if isinstance(said, str) else ""
    return ""
