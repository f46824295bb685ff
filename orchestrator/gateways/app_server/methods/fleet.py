"""Methods of the fleet: trees and their agents as they are, workers, figures, budgets, the end of agents."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal
from uuid import UUID, uuid5
from weakref import WeakKeyDictionary

from pydantic import Field

from orchestrator.broker.broker import Broker
from orchestrator.broker.notices import until
from orchestrator.broker.records import AT_REST, BUDGET_KINDS, RECENT_MS, SPEND_DAYS, Recent, SessionHead
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.registry import Agent, projected
from orchestrator.core.tree import ROOT
from orchestrator.gateways.app_server.messages import RpcError, bad_params
from orchestrator.gateways.app_server.method import CursorText, Method, NoParams, Params, Result
from orchestrator.gateways.app_server.methods.approvals import ended_json
from orchestrator.gateways.app_server.methods.threads import head_to_read
from orchestrator.gateways.principals import Scope
from orchestrator.gateways.submit import new_submission_id, raise_limits, require_limits, require_prices
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import Submission
from orchestrator.protocol.wire import JsonObject
from orchestrator.rollouts.tree_log import tree_log
from orchestrator.views import ViewError
from orchestrator.views.fleet import Fleet, FleetFilter, Sort, State, TreeRow, state_of_status
from orchestrator.views.spend import USUAL_DAYS, SpendRow, spend_of
from orchestrator.views.tree import AgentPicture, Doing, TreeLine, TreePicture, TreeReader, tree_line
from orchestrator.views.tree_past import Mark, PastAgent, Pasts, PastTree, TreePast
from orchestrator.views.workers import SeenWorker, workers_of

if TYPE_CHECKING:
    from orchestrator.broker.broker import Broker
    from orchestrator.broker.records import TreeEntry
    from orchestrator.gateways.app_server.door import Door

MOST_TREES = 100
MOST_STATES = 11
MOST_TEXT = 200
MOST_SHOWN = 200
"""Characters of a title, a label or a line: agents choose them."""
MOST_LOG = 200
MOST_AMOUNT = 1 << 53
MOST_READERS = 64
"""Trees whose logs' ends are kept at hand."""
MOST_BUCKETS = 400
SOON_S = 0.05
PATIENCE_S = 0.25
"""A timeline whose log takes longer to be read is told as far as it is."""
STATS_S = 5.0
IDLE_S = 600.0
"""A fleet that nobody has asked for in this time is not kept."""
END_S = 15.0
"""For agents to end whose workers act; those of others end later, and are told of as not ended."""
_ADDED = UUID("5c3d0a63-2c2e-4e55-a1a5-3d2f6a4a6b17")
"""The space of the ids of changes of limits, by the ids that clients give them."""
Id = Annotated[str, Field(max_length=1_024)]
Text = Annotated[str, Field(max_length=MOST_TEXT)]
Amount = Annotated[int, Field(ge=-MOST_AMOUNT, le=MOST_AMOUNT)]


# ── what is at hand ───────────────────────────────────────────────────────────────────────────────


class _AtHand:
    """The readers that the methods of a process keep for all of its clients."""

    def __init__(self) -> None:
        self.fleets: dict[str, tuple[Fleet, float]] = {}
        self.readers: dict[str, TreeReader] = {}
        self.pasts = Pasts()
        self.stats: dict[tuple[str, str], tuple[float, JsonObject]] = {}
        """By namespace and person: a tree is ready for who has not read it."""


_AT_HAND: WeakKeyDictionary[Broker, _AtHand] = WeakKeyDictionary()


def _at_hand(broker: Broker) -> _AtHand:
    return _AT_HAND.setdefault(broker, _AtHand())


async def _fleet(door: Door) -> Fleet:
    """The trees of the client's namespace; those of namespaces that nobody asks for are let go."""
    broker, namespace, now_s = door.ports.found.broker, door.principal.namespace, time.monotonic()
    fleets = _at_hand(broker).fleets
    fleet = fleets[namespace][0] if namespace in fleets else Fleet(broker, namespace)
    fleets[namespace] = fleet, now_s
    # All are taken out before the first is closed: another client comes meanwhile.
    idle = [name for name, (_, used_s) in fleets.items() if now_s - used_s > IDLE_S]
    for closing in [fleets.pop(name)[0] for name in idle]:
        await closing.aclose()
    return fleet


# ── trees ─────────────────────────────────────────────────────────────────────────────────────────


class FleetList(Params):
    """The trees that are wanted, and their order."""

    sort: Sort = "activity"
    states: Annotated[tuple[State, ...], Field(max_length=MOST_STATES)] | None = None
    text: Text = ""
    pool: Text = ""
    who: Text = ""
    archived: bool = False
    cursor: CursorText | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_TREES)] = MOST_TREES


async def fleet_list(door: Door, params: FleetList) -> Result:
    """The trees of the client's namespace, a page at a time, and how many there are of each state."""
    fleet = await _fleet(door)
    found = await fleet.page(
        FleetFilter(params.text, params.pool, params.who, params.archived),
        params.states or (),
        door.principal.name,
        params.sort,
        _place(params.cursor, params.sort),
        params.limit,
    )
    last = fleet.place(found.rows[-1], params.sort) if found.more and found.rows else None
    return {
        "data": [tree_row(row) for row in found.rows],
        "nextCursor": None if last is None else _cursor(last, params.sort),
        "counts": dict(found.counts),
        "damaged": list(found.damaged),
    }


def _cursor(place: tuple[int, str], sort: Sort) -> str:
    return base64.urlsafe_b64encode(f"f.{sort}.{place[0]}.{place[1]}".encode()).decode()


def _place(cursor: str | None, sort: Sort) -> tuple[int, str] | None:
    if cursor is None:
        return None
    try:
        mark, order, at, root = base64.b64decode(cursor, b"-_", validate=True).decode("ascii").split(".")
        place = int(at), root
    except (ValueError, binascii.Error):
        raise bad_params("cursor: this is no place of a list; give one that the list answered") from None
    if mark != "f" or order != sort:
        raise bad_params("cursor: this is a place in another order; list again without a cursor")
    return place


def tree_row(row: TreeRow) -> JsonObject:
    """A tree as lists of clients show it."""
    head, meta, account = row.head, row.head.summary, row.account
    by_state: dict[str, int] = {}
    for status, number in row.agents.counts.items():
        by_state[state_of_status(status)] = by_state.get(state_of_status(status), 0) + number
    cost = account.used.cost
    return {
        "treeId": head.tree,
        "title": head.title[:MOST_SHOWN],
        "state": row.state,
        "agents": {
            "total": max(1, sum(by_state.values())),
            "working": by_state.get("working", 0),
            "byState": by_state,
        },
        "shape": [[agent, parent, state_of_status(status)] for agent, parent, status in row.agents.first],
        "waitsFor": {"kind": _waits_kind(row.doing.waits_for), "text": row.doing.waits_for}
        if row.doing.waits_for and head.status not in AT_REST
        else None,
        "last": row.doing.last[:MOST_SHOWN],
        "lastAtMs": row.last_ms,
        "createdAtMs": head.created_ms,
        "tokens": max(account.used.tokens, row.doing.tokens),
        "costMicro": cost or None,
        "budget": _budget(row),
        "activity": _activity(row.account.recent),
        "model": meta.get("model") or "",
        "pool": head.pool,
        "who": head.labels.who,
        "cwd": "" if head.labels.namespace else meta.get("cwd") or "",
        "unread": row.unread,
        "requests": row.requests,
        "lostAtMs": row.lost_ms,
        "change": change_json(meta.get("change")),
        "portable": head.portable,
    }


def _budget(row: TreeRow) -> JsonObject | None:
    """Of a tree's limits the one that is nearest."""
    used = {"tokens": row.account.used.tokens, "cost": row.account.used.cost}
    used["requests"] = row.account.used.requests
    limits = row.account.limits
    if not limits:
        return None
    kind = max(limits, key=lambda name: used[name] / max(1, limits[name]))
    return {"kind": kind, "spent": used[kind], "limit": limits[kind]}


def _activity(recent: Recent | None) -> JsonObject | None:
    """The model requests that ended in each five minutes of an hour, the oldest first, up to the last one."""
    if recent is None:
        return None
    return {"lastAtMs": recent.from_ms, "slotMs": RECENT_MS, "requests": list(recent.requests[::-1])}


def change_json(change: Mapping[str, int] | None) -> JsonObject | None:
    """The size of what was changed in a portable folder."""
    if change is None:
        return None
    return {"files": change["files"], "added": change["insertions"], "removed": change["deletions"]}


# ── a tree ────────────────────────────────────────────────────────────────────────────────────────


class TreeRead(Params):
    """A tree, by its root's thread; as it is, or as it was behind an entry of its log."""

    tree_id: Id
    at: Annotated[int, Field(ge=1, le=MOST_AMOUNT)] | None = None


async def tree_read(door: Door, params: TreeRead) -> Result:
    """The agents of a tree, its budgets and limits, as they are now; or the agents as they were."""
    head = await _root(door, params.tree_id)
    if params.at is not None:
        registry = await door.ports.found.broker.trees.registry(head.tree)
        past = _past(door, head)
        await past.reach(params.at)
        # The limits of now are followed back from the entry that they stand at.
        whole = past.read >= registry.tree_seq or await past.read_on(SOON_S)
        try:
            then = await past.at(params.at, registry.limits if whole else None)
            return {**past_json(head, then), "reading": _reading(past, whole=whole)}
        except ValueError as error:
            raise bad_params(f"at: {error}") from None
    picture = await reader_of(door.ports.found.broker, head.tree).picture()
    return tree_json(head, picture)


def reader_of(broker: Broker, tree: str) -> TreeReader:
    """The reader of a tree that the process keeps for all."""
    readers = _at_hand(broker).readers
    if tree not in readers and len(readers) >= MOST_READERS:
        del readers[next(iter(readers))]
    return readers.setdefault(tree, TreeReader(broker, tree))  # type: ignore[arg-type]


async def _root(door: Door, tree: str) -> SessionHead:
    """The root of a tree that the client may see; raises `RpcError`."""
    head = await head_to_read(door, tree)
    if head.agent_id == ROOT:
        return head
    raise bad_params("treeId: this thread is an agent's: give its root's")


def tree_json(head: SessionHead, picture: TreePicture) -> JsonObject:
    """A tree as clients draw it; one of a namespace tells of no machine."""
    registry, agents, owner = picture.registry, picture.agents, not head.labels.namespace
    root = agents.get(ROOT)
    return {
        "treeId": head.tree,
        "treeSeq": registry.tree_seq,
        "atMs": picture.now_ms,
        "title": head.title[:MOST_SHOWN],
        "state": _agent_state(root) if root is not None else "idle",
        "agents": [agent_json(agents[number], owner=owner) for number in sorted(agents)],
        "budget": {
            kind: {"spent": one.spent, "held": one.held, "limit": one.limit, "guessed": one.guessed}
            for kind, one in registry.budget.items()
        },
        "counters": dict(registry.counters),
        "limits": dict(registry.limits),
        "leftBehind": picture.left_behind,
    }


def agent_json(agent: AgentPicture, *, owner: bool) -> JsonObject:
    """An agent of a tree as clients draw it; where it runs is for the machine's user."""
    summary, doing = agent.summary, agent.doing
    label = summary.get("label")
    return {
        "agentId": agent.agent_id,
        "parentId": agent.parent,
        "threadId": agent.session,
        "label": str(label)[:MOST_SHOWN] if label else None,
        "origin": summary.get("origin"),
        "state": _agent_state(agent),
        "status": agent.status,
        "standing": agent.standing,
        "sinceAtMs": agent.since_ms,
        "waitsFor": _waits_for(agent),
        "last": doing.last[:MOST_SHOWN],
        "tokens": agent.tokens,
        "costMicro": agent.used.cost or None,
        "pending": int(summary.get("pending_messages") or 0),
        "interrupts": int(summary.get("pending_interrupts") or 0),
        "holder": agent.holder if owner else None,
        "machine": agent.machine or None if owner else None,
        "lostAtMs": agent.lost_ms,
        "canceling": agent.canceling,
        "change": change_json(agent.change),
    }


def _agent_state(agent: AgentPicture) -> str:
    if agent.standing == "failed":
        return "failed"
    if agent.standing == "ready" and agent.agent_id != ROOT:
        return "ready"
    return state_of_status(agent.status)


_KINDS: Mapping[str, str] = {
    "an approval": "approval",
    "an answer": "answer",
    "its helper": "helper",
    "its helpers": "helper",
    "agents": "agents",
    "room in the tree's budget": "budget",
}


def _waits_kind(text: str) -> str:
    return _KINDS.get(text, "agents")


def _waits_for(agent: AgentPicture) -> JsonObject | None:
    """The cause of the agent's wait; None while it works, or is at rest."""
    if agent.wants_worker:
        return {"kind": "worker", "text": agent.wants_worker}
    if agent.status == "retrying":
        return {"kind": "retry", "text": "the next try of a model request"}
    doing = agent.doing
    if not doing.waits_for or agent.status in AT_REST:
        return None
    told: JsonObject = {"kind": _waits_kind(doing.waits_for), "text": doing.waits_for}
    if doing.awaited:
        told["agentIds"] = list(doing.awaited)
    if doing.until_ms is not None:
        told["untilAtMs"] = doing.until_ms
    return told


def past_json(head: SessionHead, past: PastTree) -> JsonObject:
    """A tree as it was, as clients draw it: what no log tells is null."""
    agents = [past_agent_json(one) for one in past.agents]
    return {
        "treeId": head.tree,
        "treeSeq": past.tree_seq,
        "atMs": past.at_ms,
        "title": head.title[:MOST_SHOWN],
        "state": agents[0]["state"],
        "agents": agents,
        "budget": _budget_then(past),
        "counters": {"spawned": past.view.spawned, "slots": past.view.slots},
        "limits": None if past.limits is None else dict(past.limits),
    }


def _budget_then(past: PastTree) -> JsonObject | None:
    """The budgets' limits of then, and of what was spent the tokens, which the agents' logs tell."""
    if past.limits is None:
        return None
    spent = {"tokens": past.tokens}
    return {
        kind: {"spent": spent.get(kind), "held": None, "limit": past.limits[kind], "guessed": None}
        for kind in BUDGET_KINDS
        if kind in past.limits
    }


def _reading(past: TreePast, *, whole: bool) -> JsonObject | None:
    """How far a tree's log is read; None if all of it is."""
    return None if whole else {"read": past.read, "of": past.end}


_STANDINGS: Mapping[str, State] = {
    "queued": "waiting",
    "running": "working",
    "ready": "ready",
    "idle": "idle",
    "failed": "failed",
    "canceled": "idle",
}


def past_agent_json(one: PastAgent) -> JsonObject:
    """An agent as it was; `seq` is where its thread's log stood then."""
    doing = one.doing or Doing()
    if one.agent is not None:
        state: str | None = _STANDINGS.get(one.agent.status, "idle")
    else:
        state = None if one.at_work is None else "working" if one.at_work else "idle"
    waits = doing.waits_for if state == "working" else ""
    waits_for = {"kind": _waits_kind(waits), "text": waits, "agentIds": list(doing.awaited)}
    return {
        "agentId": one.agent_id,
        "threadId": one.session,
        "seq": one.seq,
        "state": _state_of_wait(waits) if waits else state,
        "sinceAtMs": doing.since_ms or None,
        "waitsFor": waits_for if waits else None,
        "last": None if one.doing is None else doing.last[:MOST_SHOWN],
        "tokens": doing.tokens or None,
        **_registered(one.agent),
        **dict.fromkeys(("costMicro", "holder", "machine", "lostAtMs", "change")),
    }


def _state_of_wait(text: str) -> State:
    kind = _waits_kind(text)
    return "needs" if kind in ("approval", "answer") else "paused" if kind == "budget" else "waiting"


def _registered(agent: Agent | None) -> JsonObject:
    """The facts of an agent's record in the tree; a root has none."""
    if agent is None:
        names = ("parentId", "label", "origin", "standing", "pending", "interrupts", "canceling")
        return dict.fromkeys(names)
    label, above = agent.record.get("label"), agent.path.split("/")[:-1]
    return {
        "parentId": int(above[-1]) if above else None,
        "label": str(label)[:MOST_SHOWN] if label else None,
        "origin": agent.record.get("origin"),
        "standing": agent.status,
        "pending": agent.pending[0],
        "interrupts": agent.pending[1],
        "canceling": agent.marked,
    }


def _past(door: Door, head: SessionHead) -> TreePast:
    broker = door.ports.found.broker
    return _at_hand(broker).pasts.of(broker, head.tree)


class TreeTimeline(Params):
    """The log of a tree as a slider shows it."""

    tree_id: Id
    buckets: Annotated[int, Field(ge=1, le=MOST_BUCKETS)] = MOST_BUCKETS
    marks_after: Annotated[int, Field(ge=0, le=MOST_AMOUNT)] = 0
    """Only marks behind this entry are told: who comes again knows the others. Of the kinds `person` and
    `snapshot` the newest are told each time."""
    marks_before: bool = False
    """Whether to tell what the agents' own logs have of the time before the tree's log begins, in
    `marksBefore`, and takeovers of the root that its own log alone has."""


async def tree_timeline(door: Door, params: TreeTimeline) -> Result:
    """A tree's log as bars, with its long pauses, and marks where something began, ended or was decided.

    A long log that nobody has looked at lately is told as far as it is read, with `reading`: ask again.
    """
    head = await _root(door, params.tree_id)
    past = _past(door, head)
    whole = await past.read_on(PATIENCE_S)
    found = past.timeline(params.buckets)
    marks = [mark for mark in found.marks if mark.seq > params.marks_after]
    before, beside = await past.marks_of_sessions(takeovers=params.marks_before)
    marks = sorted([*marks, *beside], key=lambda mark: mark.seq)
    return {
        "firstAtMs": found.first_ms,
        "lastAtMs": found.last_ms,
        "treeSeq": found.tree_seq,
        "buckets": [{"seq": one.seq, "atMs": one.at_ms, "entries": one.entries} for one in found.buckets],
        "gaps": [{"fromMs": begin, "toMs": end} for begin, end in found.gaps],
        "marks": [{"seq": mark.seq, **_mark(mark)} for mark in marks],
        **({"marksBefore": [_mark(mark) for mark in before]} if params.marks_before else {}),
        "more": found.more,
        "reading": _reading(past, whole=whole),
    }


def _mark(mark: Mark) -> JsonObject:
    return {
        "atMs": mark.at_ms,
        "kind": mark.kind,
        "agentId": mark.line.agent_id,
        "text": mark.line.text[:MOST_SHOWN],
        **({"who": mark.line.who} if mark.line.who else {}),
        **_decision(mark.line),
    }


def _decision(line: TreeLine) -> JsonObject:
    """The request that a mark tells the end of, and how it ended, as `approval/history` says it."""
    if not line.call_id:
        return {}
    ended = ended_json(line.decision, line.who, 0)
    return {"callId": line.call_id, "decision": ended["decision"], "outcome": ended["text"]}


class TreeLog(Params):
    """A page of a tree's log, the newest entries first."""

    tree_id: Id
    before: Annotated[int, Field(ge=1, le=MOST_AMOUNT)] | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_LOG)] = 50


async def tree_log_page(door: Door, params: TreeLog) -> Result:
    """The events of several agents of a tree, in words, the last first."""
    head = await _root(door, params.tree_id)
    logs = door.ports.found.broker.logs
    found = await logs.read_tree_back(head.tree, params.before, params.limit)
    more = len(found) == params.limit and found[-1].tree_seq > 1
    return {
        "data": [_log_row(entry) for entry in found],
        "nextBefore": found[-1].tree_seq if more else None,
    }


def _log_row(entry: TreeEntry) -> JsonObject:
    line = tree_line(entry)
    return {
        "treeSeq": entry.tree_seq,
        "atMs": entry.at_ms,
        "threadId": entry.session,
        "seq": entry.seq,
        "agentId": line.agent_id,
        "kind": line.kind,
        "text": line.text[:MOST_SHOWN],
        "who": line.who or None,
    }


# ── workers and figures ───────────────────────────────────────────────────────────────────────────


async def worker_list(door: Door, params: NoParams) -> Result:
    """The workers of the last day; a namespace's client learns of no machine."""
    if door.principal.is_tenant:
        return {"data": []}
    return {"data": [worker_json(one) for one in await workers_of(door.ports.found.broker.claims)]}


def worker_json(one: SeenWorker) -> JsonObject:
    """A worker as clients draw it."""
    state, facts = one.state, one.state.facts
    return {
        "worker": one.name,
        "status": one.status,
        "heardAtMs": one.heard_ms,
        "pools": list(state.pools),
        "held": state.held,
        "room": state.room,
        "machine": facts.machine if facts is not None else None,
        "version": facts.version if facts is not None else None,
        "startedAtMs": facts.started_ms if facts is not None else None,
        "load": facts.load if facts is not None else None,
        "paces": {
            pool: {
                "claimsPerS": pace.claims_per_s,
                "turnsPerS": pace.turns_per_s,
                "tokensPerMin": pace.tokens_per_min,
            }
            for pool, pace in state.paces.items()
        },
        "remarks": list(one.remarks),
    }


async def fleet_stats(door: Door, params: NoParams) -> Result:
    """The figures of the client's trees and, for the machine's user, of the pools; seconds old at most."""
    at_hand, now_s = _at_hand(door.ports.found.broker), time.monotonic()
    whose = door.principal.namespace, door.principal.name
    at_hand.stats = {one: told for one, told in at_hand.stats.items() if now_s - told[0] < STATS_S}
    if whose not in at_hand.stats:
        at_hand.stats[whose] = now_s, await _stats(door)
    return at_hand.stats[whose][1]


async def _stats(door: Door) -> JsonObject:
    broker, fleet = door.ports.found.broker, await _fleet(door)
    found = await fleet.page(FleetFilter(), (), door.principal.name, limit=1)
    statuses = fleet.statuses()
    told: JsonObject = {
        "atMs": broker.now_ms(),
        "states": dict(found.counts),
        "trees": sum(found.counts.values()),
        "agents": sum(number for of_pool in statuses.values() for number in of_pool.values()),
        "pools": [],
    }
    if door.principal.is_tenant:
        return told
    workers = await workers_of(broker.claims)
    told["workers"] = len(workers)
    told["silent"] = sum(one.status == "silent" for one in workers)
    told["draining"] = sum(one.status == "draining" for one in workers)
    told["openRequests"] = await broker.requests.count_open_requests()
    told["sessions"] = await broker.logs.count_sessions()
    for pool in sorted({*statuses, *(pool for one in workers for pool in one.state.pools)}):
        queue = await broker.claims.queue_of(pool)
        serving = [one for one in workers if pool in one.state.pools and one.status == "serving"]
        told["pools"].append(
            {
                "pool": pool,
                "due": queue.due,
                "held": queue.leased,
                "ageMs": queue.age_ms,
                "workers": len(serving),
                "slots": sum(one.state.room for one in serving),
                "agents": dict(statuses.get(pool, {})),
            }
        )
    return told


# ── spend ─────────────────────────────────────────────────────────────────────────────────────────


class SpendList(Params):
    """The days that are wanted, up to today, and what their spend is grouped by."""

    days: Annotated[int, Field(ge=1, le=SPEND_DAYS)] = USUAL_DAYS
    by: Annotated[tuple[Literal["day", "model", "who"], ...], Field(max_length=3)] = ("day", "model")


async def spend_list(door: Door, params: SpendList) -> Result:
    """The spend of the client's namespace by day (in UTC), model and person."""
    try:
        found = await spend_of(door.ports.found.broker, params.days, params.by, door.principal.namespace)
    except ViewError as error:
        raise RpcError(str(error)) from None
    return {"from": found.first, "to": found.last, "data": [_spend_row(row, params.by) for row in found.rows]}


def _spend_row(row: SpendRow, by: Sequence[str]) -> JsonObject:
    spend = row.spend
    named: JsonObject = {"day": row.day, "model": row.model or None, "who": row.who or None}
    figures: JsonObject = {"tokens": spend.tokens, "costMicro": spend.cost, "requests": spend.requests}
    return {name: value for name, value in named.items() if name in by} | figures


# ── budgets and ends ──────────────────────────────────────────────────────────────────────────────


class Added(Params):
    """Amounts that are added to a tree's limits."""

    tokens: Amount | None = None
    cost_micro: Amount | None = None
    requests: Amount | None = None
    wall_ms: Amount | None = None
    slots: Amount | None = None
    spawned: Amount | None = None

    def amounts(self) -> dict[str, int]:
        named = {
            "tokens": self.tokens,
            "cost": self.cost_micro,
            "requests": self.requests,
            "wall": self.wall_ms,
            "slots": self.slots,
            "spawned": self.spawned,
        }
        return {name: value for name, value in named.items() if value is not None}


class BudgetAdd(Params):
    """An addition to a tree's limits, under an id by which it counts once."""

    tree_id: Id
    request_id: Annotated[str, Field(min_length=1, max_length=200)]
    add: Added


async def budget_add(door: Door, params: BudgetAdd) -> Result:
    """Adds to a tree's limits, once, and wakes the agents that wait for room in them."""
    head = await _root(door, params.tree_id)
    found, add = door.ports.found, params.add.amounts()
    if not add:
        raise bad_params("add: name at least one of tokens, costMicro, requests, wallMs, slots, spawned")
    registry = await found.broker.trees.registry(head.tree)
    try:
        require_limits(registry, add)
        if "cost" in add and "cost" not in registry.limits:
            await require_prices(found, registry, door.ports.offer.models.prices)
    except ViewError as error:
        raise RpcError(str(error)) from None
    change = uuid5(_ADDED, f"{door.principal.name}\0{head.tree}\0{params.request_id}")
    await raise_limits(found, door.client.known_as(str(change)), registry, add)
    return {"limits": dict((await found.broker.trees.registry(head.tree)).limits)}


class AgentCancel(Params):
    """An agent that is to end, with all below it; of a root, the whole tree."""

    thread_id: Id
    reason: Annotated[str, Field(max_length=2_000)] | None = None


async def agent_cancel(door: Door, params: AgentCancel) -> Result:
    """Ends an agent and all below it, waits for that, and tells how surely each has ended."""
    head = await door.head(params.thread_id)
    broker, target = door.ports.found.broker, int(head.agent_id)
    root = head if head.agent_id == ROOT else await door.head(head.tree)
    ending = projected(await broker.trees.agents(head.tree)).at_work_from(target)
    if target and not ending:
        return {"agents": [{"agentId": target, "death": "none"}]}
    after = (await broker.trees.registry(head.tree)).tree_seq
    op: ops.Op = ops.CancelAgent(agent_id=target, reason=params.reason) if target else ops.Shutdown()
    await door.client.submit(root, Submission(SubmissionId(new_submission_id()), op))

    async def ended() -> bool:
        view = projected(await broker.trees.agents(head.tree))
        # Until the root has taken it, agents may be made or woken.
        ending.update(view.at_work_from(target))
        if any(number in view.agents and view.agents[number].active for number in ending):
            return False
        now = None if target else await broker.logs.head(root.session)
        return now is None or now.status == "closed"

    sessions = [root.session, *(SessionId(agent.session) for agent in ending.values())]
    await until(broker, sessions, ended, END_S)
    deaths = await _deaths(broker, head.tree, after)
    agents = [{"agentId": number, "death": deaths.get(number, "none")} for number in sorted(ending)]
    if target:
        return {"agents": agents}
    now = await broker.logs.head(root.session)
    return {"agents": agents, "closed": now is None or now.status == "closed"}


async def _deaths(broker: Broker, tree: TreeId, after: int) -> dict[int, str]:
    """How surely the agents have ended that were cancelled behind this entry of the tree's log."""
    messages = [fact.message for fact in await tree_log(broker, tree, after)]
    return {
        int(message["agent_id"]): str(message.get("cancel") or "proved")
        for message in messages
        if message.get("status") == "canceled"
    }


METHODS: Mapping[str, Method] = {
    "fleet/list": Method(FleetList, fleet_list, Scope.READ),
    "fleet/stats": Method(NoParams, fleet_stats, Scope.READ),
    "tree/read": Method(TreeRead, tree_read, Scope.READ),
    "tree/timeline": Method(TreeTimeline, tree_timeline, Scope.READ),
    "tree/log": Method(TreeLog, tree_log_page, Scope.READ),
    "spend/list": Method(SpendList, spend_list, Scope.READ),
    "worker/list": Method(NoParams, worker_list, Scope.READ),
    "budget/add": Method(BudgetAdd, budget_add, Scope.APPROVE),
    "agent/cancel": Method(AgentCancel, agent_cancel, Scope.SUBMIT, waits=True),
}
