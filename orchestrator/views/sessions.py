"""Lists of sessions: trees with their agents, filtered, newest first, and how many were left out.

Reads no further than the list needs. Knows nothing of tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import takewhile
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from orchestrator.broker.broker import Broker
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import SessionHead
from orchestrator.broker.worker_state import Serving
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.registry import Agent, listed_agents
from orchestrator.protocol.agents import SubagentStatus
from orchestrator.views import SetAside
from orchestrator.views.readable import readable

if TYPE_CHECKING:
    from orchestrator.broker.records import SessionHead
    from orchestrator.broker.worker_state import Serving

PAGE = 250
LOOKED_THROUGH = 10_000
"""Sessions that are looked at for a list that is not `--all`."""
META = (
    "name",
    "title",
    "cwd",
    "model",
    "blended_total",
    "context_left",
    "updated_ms",
    "outcome",
    "forked_from",
    "rollout_path",
    "change",
)


@record
class Filter:
    """A person's filter of a list; empty texts and no statuses match everything."""

    text: str = ""
    statuses: frozenset[str] = frozenset()
    folder: str = ""

    def wants(self, row: Mapping[str, Any]) -> bool:
        return self._stands(row) and self._lies(row) and self._matches_text(row)

    def _stands(self, row: Mapping[str, Any]) -> bool:
        return not self.statuses or row["status"] in self.statuses

    def _lies(self, row: Mapping[str, Any]) -> bool:
        if not self.folder:
            return True
        return row["cwd"] is not None and PurePath(row["cwd"]).is_relative_to(self.folder)

    def _matches_text(self, row: Mapping[str, Any]) -> bool:
        texts = (row["name"], row["title"], row["label"], row["cwd"])
        return not self.text or any(self.text.casefold() in (text or "").casefold() for text in texts)


@record
class ListedTree:
    """A root, and the statuses of its agents."""

    root: Mapping[str, Any]
    agents: Mapping[str, int] = field(default_factory=dict)
    """The number of agents at each status."""


class LeftOut(Enum):
    """The reason why a tree that fits is not shown."""

    UNSPOKEN = auto()
    SHELVED = auto()


@dataclass(slots=True)
class Listing:
    """The newest sessions or trees that are wanted."""

    total: int
    """Sessions that there are."""
    looked: int = 0
    """Sessions that were looked at."""
    trees: list[ListedTree] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    unspoken: int = 0
    """Sessions that are left out because nobody has said anything in them yet."""
    shelved: int = 0
    """Trees that are left out because a client has put them away."""

    @property
    def whole(self) -> bool:
        """Whether nothing more could be found."""
        return self.looked >= self.total


def row(head: SessionHead, serving: Serving, agent: Agent | None = None) -> dict[str, Any]:
    """A session for programs; figures that are recorded only at rest are null before the first rest."""
    meta = head.summary
    return {
        "session_id": head.session,
        "tree_id": head.tree,
        "agent_id": head.agent_id,
        "label": agent.record.get("label") if agent is not None else None,
        "status": status_of(head, serving, agent.status if agent is not None else ""),
        "nobody_serves": bool(wants_worker(head, serving)),
        "unsaved_on": head.unsaved_on or None,
        "put_away": head.shelved,
        "created_ms": head.created_ms,
        **{name: meta.get(name) for name in META},
        "pool": head.pool,
        "holder": head.holder,
        "seq": head.seq,
    }


async def sessions_listed(broker: Broker, wanted: Filter, limit: int, *, all: bool) -> Listing:
    """Single sessions, agents too, for programs."""
    listing = Listing(await broker.logs.count_sessions())
    async for page in _pages(broker, listing.total if all else max(limit, LOOKED_THROUGH)):
        heads = [head for _, head in page]
        without = set() if all else await _unspoken(broker, heads) | await put_away(broker, heads)
        for found, head in page:
            listing.looked += 1
            if head.tree in without or not wanted.wants(found) or (head.labels.ephemeral and not all):
                continue
            listing.rows.append(found)
            if len(listing.rows) == limit and not all:
                return listing
    return listing


async def _unspoken(broker: Broker, heads: Sequence[SessionHead]) -> set[TreeId]:
    """The trees of these sessions that are a root alone, to which nobody has spoken yet."""
    found = {head.tree for head in heads if not head.agent_id and nobody_spoke(head)}
    agents = await _agents(broker, found)
    return {tree for tree in found if not agents[tree]}


async def put_away(broker: Broker, heads: Sequence[SessionHead]) -> set[TreeId]:
    """The trees of these sessions that a client has put away, as their roots tell."""
    roots = {head.tree: head for head in heads if not head.agent_id}
    others = sorted({head.tree for head in heads} - roots.keys())
    roots |= {head.tree: head for head in await readable(broker.logs, [SessionId(tree) for tree in others])}
    return {tree for tree, root in roots.items() if root.shelved}


async def listed_rows(
    broker: Broker, most: int, *, shelved: bool = False
) -> AsyncIterator[tuple[dict[str, Any], SessionHead]]:
    """The newest sessions without those that were put away; or those alone."""
    async for page in _pages(broker, most):
        away = await put_away(broker, [head for _, head in page])
        for found, head in page:
            if (head.tree in away) is shelved:
                yield found, head


async def found_rows(broker: Broker, most: int) -> AsyncIterator[tuple[dict[str, Any], SessionHead]]:
    """The newest sessions, read a page at a time."""
    async for page in _pages(broker, most):
        for found in page:
            yield found


async def _pages(broker: Broker, most: int) -> AsyncIterator[Sequence[tuple[dict[str, Any], SessionHead]]]:
    ids = await broker.logs.newest(most)
    for start in range(0, len(ids), PAGE):
        heads = await readable(broker.logs, ids[start : start + PAGE])
        agents = await _agents(broker, {head.tree for head in heads if head.agent_id})
        yield tuple(zip(await _rows(broker.logs, heads, agents), heads, strict=True))


Agents = Mapping[TreeId, Mapping[int, Agent]]


async def _agents(broker: Broker, trees: set[TreeId]) -> Agents:
    """The agents of some trees as their registries have them; pruned agents are on no list."""
    ordered = sorted(trees)
    found = await broker.trees.registries(ordered)
    return {tree: listed_agents(fields) for tree, fields in zip(ordered, found, strict=True)}


async def _rows(logs: Logs, heads: Sequence[SessionHead], agents: Agents) -> list[dict[str, Any]]:
    served = await logs.serving(heads)
    return [row(head, served[head.session], agents.get(head.tree, {}).get(head.agent_id)) for head in heads]


# ── trees ─────────────────────────────────────────────────────────────────────────────────────────


async def trees_listed(broker: Broker, wanted: Filter, limit: int, *, all: bool) -> Listing:
    """Whole trees; one is wanted if its root or one of its agents is."""
    listing, seen = Listing(await broker.logs.count_sessions()), set[TreeId]()
    most = listing.total if all else limit
    ids = await broker.logs.newest(listing.total if all else LOOKED_THROUGH)
    for start in range(0, len(ids), PAGE):
        page = await readable(broker.logs, ids[start : start + PAGE])
        if len(listing.trees) < most:
            await _list_more(broker, listing, page, seen, wanted, most, all=all)
        # A full list is read on over the agents of its trees: they are no others.
        looked = len([*takewhile(lambda head: head.tree in seen, page)])
        if looked < len(page):
            listing.looked += looked
            return listing
        listing.looked += len(ids[start : start + PAGE])
    return listing


async def _list_more(
    broker: Broker,
    listing: Listing,
    page: Sequence[SessionHead],
    seen: set[TreeId],
    wanted: Filter,
    most: int,
    *,
    all: bool,
) -> None:
    """Lists the wanted trees of a page, up to `most` in all; `seen` are those that were looked at."""
    new = [tree for tree in dict.fromkeys(head.tree for head in page) if tree not in seen]
    for tree in await _trees(broker, new, wanted, all=all):
        if tree is LeftOut.UNSPOKEN:
            listing.unspoken += 1
            continue
        if tree is LeftOut.SHELVED:
            listing.shelved += 1
            continue
        listing.trees.append(tree)
        if len(listing.trees) == most:
            new = new[: new.index(tree.root["tree_id"]) + 1]
            break
    seen.update(new)


async def _trees(
    broker: Broker, trees: Sequence[TreeId], wanted: Filter, *, all: bool
) -> list[ListedTree | LeftOut]:
    """The wanted ones of these trees, or why one of them is not shown unless `all` are."""
    agents = await _agents(broker, set(trees))
    members = [SessionId(tree) for tree in trees]
    members += [SessionId(agent.session) for tree in trees for agent in agents[tree].values()]
    rows: dict[str, list[dict[str, Any]]] = {}
    unspoken, shelved, ephemeral = set[str](), set[str](), set[str]()
    for start in range(0, len(members), PAGE):
        heads = await readable(broker.logs, members[start : start + PAGE])
        unspoken.update(head.tree for head in heads if not head.agent_id and nobody_spoke(head))
        shelved.update(head.tree for head in heads if not head.agent_id and head.shelved)
        ephemeral.update(head.tree for head in heads if not all and head.labels.ephemeral)
        for found in await _rows(broker.logs, heads, agents):
            rows.setdefault(found["tree_id"], []).append(found)
    found_trees = (
        tree
        for tree in trees
        if tree in rows and tree not in ephemeral and any(map(wanted.wants, rows[tree]))
    )

    def shown(tree: TreeId) -> ListedTree | LeftOut:
        if tree in shelved and not all:
            return LeftOut.SHELVED
        if tree in unspoken and len(rows[tree]) == 1 and not all:
            return LeftOut.UNSPOKEN
        return _tree(rows[tree])

    return [*map(shown, found_trees)]


def nobody_spoke(head: SessionHead) -> bool:
    """Whether a client has opened the session, and that is all."""
    if head.has_unread or head.name or head.quarantined:
        return False
    meta = head.summary
    # Before its first rest a session has what it was born with.
    newborn = not meta.get("updated_ms") and not meta.get("title") and not meta.get("forked_from")
    return bool(meta.get("unspoken", newborn))


def _tree(rows: Sequence[dict[str, Any]]) -> ListedTree:
    root = next((found for found in rows if not found["agent_id"]), rows[0])
    others = [found for found in rows if found is not root]
    changed = max(found["updated_ms"] or found["created_ms"] for found in rows)
    nobody = any(found["nobody_serves"] for found in rows)
    statuses = Counter(str(found["status"]) for found in others)
    return ListedTree({**root, "updated_ms": changed, "nobody_serves": nobody}, statuses)


# ── status ────────────────────────────────────────────────────────────────────────────────────────
# The status of a session in one word, the same in every list.
#
# The session's hash holds the status of its last commit. The status is true only while a worker serves
# the session, and for an agent at rest the registry of its tree knows more: the result of its task.


STATUSES = (
    *("idle", "running", "waiting", "retrying", "awaiting_approval", "awaiting_answer", "paused", "closed"),
    *("due", "lost", "process_running", "quarantined", "archived"),
    *SubagentStatus,
)
"""All that a list may say of a session, or of an agent in its tree."""
DUE = "due"
"""The session owes something, and no worker holds it."""
LOST = "lost"
"""The lease of the worker that holds the session has run out, and no other has taken it."""
PROCESS_RUNNING = "process_running"
"""The session is idle, and a process that its agent has started lives on: its worker keeps it."""
NOT_SERVED = ("quarantined", "archived")
"""No worker takes such a session until it is readmitted, or gets a submission."""


def session_status(head: SessionHead, serving: Serving) -> str:
    """The session's activity, or the condition that blocks it."""
    if head.quarantined:
        return "quarantined"
    if head.archived:
        return "archived"
    if serving.lost_ms is not None:
        return LOST
    if serving.due:
        return DUE
    if not serving.held or head.status not in ("idle", "waiting"):
        return head.status
    if head.status == "idle" and not head.has_unread and processes_of(head):
        return PROCESS_RUNNING
    # The status of the last commit is that of a rest: whoever is held is at work.
    return "running"


def processes_of(head: SessionHead) -> int:
    """The number of processes that lived when the session's last turn ended."""
    return head.summary.get("processes", 0)


def agent_status(standing: str, status: str) -> str:
    """The agent's status in its tree, and while it works, its session's status."""
    return status if standing == "running" and status != "idle" else standing


def status_of(head: SessionHead, serving: Serving, standing: str) -> str:
    """The one word of a list that knows no trees; `standing` is empty but for agents."""
    status = session_status(head, serving)
    return agent_status(standing, status) if standing and status not in NOT_SERVED else status


def wants_worker(head: SessionHead, serving: Serving) -> str:
    """The worker that an unserved session waits for; empty if the session is served or owes nothing."""
    status = session_status(head, serving)
    if status not in (DUE, LOST):
        return ""
    since = f", since {head.holder} is lost" if status == LOST else ""
    where = f" on machine {head.unsaved_on}, which alone has its unsaved changes" if head.unsaved_on else ""
    return f"a worker of pool {head.pool}{where}{since}"


def unserved(head: SessionHead) -> str:
    """The message of `not_taken` if nobody holds the session and its queue has unread entries; else empty."""
    return not_taken(head) if head.holder is None and head.has_unread else ""


def not_taken(head: SessionHead) -> str:
    """The message about a session that no worker has taken; of one that none may take, with that remedy."""
    return str(SetAside(head.session)) if head.quarantined else no_worker(head.pool)


def no_worker(pool: str) -> str:
    """The message about a session that no worker has taken, with the remedy."""
    if pool.startswith("host:"):
        where = "on the machine that has its folder, under the same settings"
        return f"no worker has taken it yet; start one {where}: dendro worker"
    return f"no worker has taken it yet; start one: dendro worker --pool {pool}"
