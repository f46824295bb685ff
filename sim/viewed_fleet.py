"""Rows of the fleet, pictures, decisions and pasts of trees, held against a plain reading of the logs.

A part of the rule `viewed` (`sim/viewed.py`). Nothing here goes by the product's folds of the tree's log: an
agent's status, mark and turns are read from the messages of that log one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any

import orjson

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import SessionHead, TreeEntry
from orchestrator.broker.replies import tree_entry
from orchestrator.core.entries import DENDRO, EVENT_MSG
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.requests import TO_PEOPLE, call_id_of
from orchestrator.rollouts.log_source import LogSource
from orchestrator.views.approvals import Decided
from orchestrator.views.decided_requests import decided_of
from orchestrator.views.fleet import Fleet, FleetFilter, FleetPage, Sort, TreeRow
from orchestrator.views.tree import TAIL
from orchestrator.views.tree_past import PastTree, Timeline, TreePast
from sim.double import Double
from sim.seen import Seen

Same = Callable[[str, str, Any, Any], None]
MOST_DECIDED = 100
"""Of more a list has the last ones alone."""
WORKING = frozenset({"working", "waiting", "paused", "needs", "lost", "due"})
"""States of trees that are not at rest."""


class UnfollowedFleet(Fleet):
    """The fleet's trees read once: nothing is asked to tell of changes."""

    __slots__ = ()

    async def follow(self, timeout_s: float) -> frozenset[SessionId] | None:
        if self._anew:
            await self._read_all()
            self._anew = False
        return frozenset()


def moved_ms(seen: Seen, moves: Callable[[Mapping[str, Any]], bool]) -> int | None:
    """When an agent last came to do something else, by the end of its log; None where that does not say."""
    readable = seen.readable
    for at in range(len(readable) - 1, max(-1, len(readable) - 1 - TAIL), -1):
        entry = readable[at]
        if entry.type == DENDRO and moves(entry.payload):
            return line_ms_of(seen.stored[at][1][b"p"])
    return None


def line_ms_of(line: bytes) -> int:
    """The time of an entry's line, in milliseconds."""
    told = orjson.loads(line)["timestamp"].replace("Z", "+00:00")
    return round(datetime.fromisoformat(told).timestamp() * 1000)


def awaited_of(call: Mapping[str, Any]) -> tuple[tuple[int, ...], int | None]:
    """The agents that a waiting call names, and until when it waits for them."""
    spec = call.get("spec", {})
    if call["phase"] == "waiting" and spec.get("kind") == "helper":
        return (spec["agent_id"],), None
    if call["phase"] == "waiting" and spec.get("kind") == "await":
        return tuple(spec["agent_ids"]), spec["until_ms"]
    if call["phase"] == "waiting" and spec.get("kind") == "variants":
        return tuple(spec["agent_ids"]), None
    return (), None


class Trees:
    """The trees of a simulation, as they are shown."""

    def __init__(self, broker: Broker, double: Double, rng: Random, same: Same) -> None:
        self._broker, self._double, self._rng, self._same = broker, double, rng, same

    # ── rows of the fleet ─────────────────────────────────────────────────────────────────────

    async def pages(
        self, namespace: str, wanted: FleetFilter, sort: Sort, limit: int
    ) -> tuple[list[TreeRow], FleetPage]:
        """All rows, so many at a time, and the first page."""
        fleet = UnfollowedFleet(self._broker, namespace)
        first = page = await fleet.page(wanted, (), "somebody", sort, None, limit)
        rows = [*page.rows]
        while page.more:
            page = await fleet.page(wanted, (), "somebody", sort, fleet.place(rows[-1], sort), limit)
            rows += page.rows
        return rows, first

    def rows(
        self,
        namespace: str,
        told: tuple[list[TreeRow], FleetPage],
        sort: Sort,
        heads: Mapping[str, SessionHead],
        roots: Sequence[str],
        silent: Collection[str],
    ) -> None:
        """The rows of a list are those of `roots`, in their order, and are counted by their states.

        Of those that are `silent` nobody has said anything: they may be there.
        """
        rows, page = told
        what = f"rows of {namespace or 'the fleet'} by {sort}"
        keys: dict[str, int] = {}
        for row in rows:
            root = str(row.tree)
            head = heads[root]
            used = head.recency_ms or head.created_ms
            keys[root] = {
                "created": head.created_ms,
                "cost": spent_of(self._fields(root), "cost"),
                "activity": used,
            }[sort]
        ordered = sorted(roots, key=lambda root: (keys.get(root, -1), root), reverse=True)
        told_now = [str(row.tree) for row in rows if str(row.tree) not in silent]
        self._same(namespace, what, told_now, ordered)
        counts = Counter(row.state for row in rows)
        self._same(namespace, f"{what}, counted", dict(page.counts), dict(counts))

    def row(self, row: TreeRow, members: Mapping[str, Seen], *, rests: bool) -> None:
        """A row has what the logs of its tree say."""
        root, seen = str(row.tree), members[str(row.tree)]
        asking = sum(open_of(one) for one in members.values())
        # Of a task that is stopped the open ones leave the list with its end.
        leaving = sum(waiting_of(one) for one in members.values()) - asking
        if not asking <= row.requests <= asking + leaving:
            self._same(root, "how many requests its row has", row.requests, asking)
        own = {kind: spent_of(self._fields(root), kind) for kind in ("tokens", "cost", "requests")}
        used = row.account.used
        told = {"tokens": used.tokens, "cost": used.cost, "requests": used.requests}
        self._same(root, "what its row has used", told, own)
        if not row.head.sealed_seq:
            self._same(root, "its last entry's time", row.last_ms, line_ms_of(seen.stored[-1][1][b"p"]))
        ended = [
            e.payload["outcome"]
            for e in seen.readable
            if e.type == DENDRO and e.payload["kind"] == "task_ended"
        ]
        self._same(root, "whether it has an end that nobody has read", row.unread, bool(ended))
        if row.state in ("quarantined", "lost", "due") or row.requests != asking:
            return
        if asking:
            self._same(root, "the state of its row", row.state, "needs")
        elif rests:
            state = "idle" if not ended else "failed" if ended[-1] == "failed" else "ready"
            self._same(root, "the state of its row", row.state, state)
        elif seen.state.task is not None:
            self._same(root, "whether its row is at work", row.state in WORKING, True)

    def _fields(self, tree: str) -> Mapping[bytes, bytes]:
        return self._double.hash(self._broker.keys.agents(TreeId(tree)))

    # ── decisions ─────────────────────────────────────────────────────────────────────────────

    def log(self, tree: str) -> list[TreeEntry]:
        """The tree's log."""
        found = self._double.tree_after(self._broker.keys, tree, 0)
        return [tree_entry(place, fields) for place, fields in found]

    async def decisions(self, found: LogSource, root: SessionHead) -> list[Decided]:
        """The requests of a tree that were decided, the last one first."""
        return await decided_of(found, root, within=0)

    def decided(self, tree: str, told: Sequence[Decided], seen: Seen) -> None:
        """Requests are told with the decisions on them, once each, in the order of the log and the tree's."""
        own = list[tuple[int, str, str, str]]()
        asked = set[tuple[int, str]]()
        for message in self._told_at_root(tree, seen):
            if message["type"] in TO_PEOPLE:
                asked.add((message.get("agent_id") or 0, call_id_of(message)))
                continue
            key = (message.get("agent_id") or 0, message["call_id"])
            if key in asked:
                asked.discard(key)
                own.append((*key, message["decision"], message.get("who") or ""))
        found = [(one.asked.agent_id, str(one.asked.call_id), one.decision, one.who or "") for one in told]
        if len(own) < MOST_DECIDED:
            self._same(tree, "its decisions", sorted(found), sorted(own))

    def _told_at_root(self, tree: str, seen: Seen) -> Iterator[Mapping[str, Any]]:
        """Requests and decisions: those of agents by the tree's log, the root's own by its own."""
        for entry in seen.readable:
            fact = entry.payload
            if entry.type == EVENT_MSG and fact["type"] in TO_PEOPLE and not fact.get("agent_id"):
                yield fact
            elif entry.type == DENDRO and fact["kind"] == "answer" and fact.get("agent_id") is None:
                yield {**fact, "type": "request_resolved"}
        for line in self.log(tree):
            message = orjson.loads(line.payload)["msg"]
            if message.get("agent_id") and (
                message["type"] in TO_PEOPLE or message["type"] == "request_resolved"
            ):
                yield message

    # ── the past ──────────────────────────────────────────────────────────────────────────────

    async def past(self, tree: str, at: int) -> tuple[Timeline, PastTree | None, Timeline]:
        """A tree's timeline, the tree behind one of its entries, and the timeline in a few stretches."""
        past = TreePast(self._broker, TreeId(tree))
        await past.read_on()
        then = await past.at(at) if at else None
        return past.timeline(1_000), then, past.timeline(4)

    def went(
        self, tree: str, told: tuple[Timeline, PastTree | None, Timeline], lines: Sequence[TreeEntry]
    ) -> None:
        """A timeline has every entry of the tree's log in its stretch, and the marks that the log tells."""
        for timeline in (told[0], told[2]):
            self._same(tree, "its timeline's entries", timeline.tree_seq, len(lines))
            seq = 1
            for bucket in timeline.buckets:
                self._same(tree, "where a stretch of its timeline begins", bucket.seq, seq)
                seq += bucket.entries
            self._same(tree, "the entries of its timeline's stretches", seq - 1, len(lines))
        marks = Counter((mark.seq, mark.kind) for mark in told[0].marks)
        own = Counter((line.tree_seq, kind) for line in lines if (kind := _mark_of(line)))
        self._same(tree, "its timeline's marks", sorted(marks.elements()), sorted(own.elements()))
        if told[1] is not None:
            self._then(tree, told[1], [line for line in lines if line.tree_seq <= told[1].tree_seq])

    def _then(self, tree: str, past: PastTree, lines: Sequence[TreeEntry]) -> None:
        """The agents behind an entry of the tree's log, each at what it was told to be at last."""
        status, turns, read = dict[int, str](), dict[int, int](), dict[int, int]()
        for line in lines:
            message = orjson.loads(line.payload)["msg"]
            about = orjson.loads(line.about) if line.about else {}
            record, agent = about.get("record"), about.get("agent_id", message.get("agent_id"))
            if record is not None and (message.get("event") == "created" or record["agent_id"] in status):
                status[record["agent_id"]], turns[record["agent_id"]] = record["status"], record["turn"]
            elif message.get("event") == "deleted":
                status.pop(agent, None)
            elif about.get("read"):
                read[agent] = about["read"]
        for agent, turn in read.items():
            # Its parent has read what came of that very turn.
            if status.get(agent) == "ready" and turn == turns[agent]:
                status[agent] = "idle"
        told = {one.agent_id: one.agent.status for one in past.agents if one.agent is not None}
        self._same(tree, f"its agents behind entry {past.tree_seq}", told, status)


def open_of(seen: Seen) -> int:
    """How many requests of a session wait for a person."""
    task = seen.state.task
    return 0 if task is None or task.stopping else waiting_of(seen)


def waiting_of(seen: Seen) -> int:
    """The same; those of a task that is stopped, too."""
    task = seen.state.task
    if task is None:
        return 0
    return len(task.requests) + sum(not one.decision for one in task.elicitations)


def spent_of(fields: Mapping[bytes, bytes], kind: str) -> int:
    return int(fields.get(b"spent:" + kind.encode(), b"0"))


def _mark_of(line: TreeEntry) -> str:
    """The mark of an entry by its words alone; empty for none."""
    message = orjson.loads(line.payload)["msg"]
    about = orjson.loads(line.about) if line.about else {}
    if message["type"] == "request_resolved":
        return "decision"
    if message["type"] in TO_PEOPLE:
        return "approval"
    if message["type"] in ("background_event", "warning"):
        return "budget"
    if message["type"] != "subagent_lifecycle":
        return ""
    if "takeover" in about:
        return "takeover"
    if message["event"] == "created":
        return "spawn"
    if message["event"] == "status" and message.get("status") in ("ready", "canceled"):
        return "end"
    return "failure" if message.get("status") == "failed" else ""
