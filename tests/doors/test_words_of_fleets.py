"""Trees, agents, workers and figures as clients are told of them, word for word: each member has a value."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from orchestrator.broker.records import (
    Account,
    AgentStates,
    Labels,
    PoolQueue,
    Recent,
    Registry,
    Spend,
    TreeAccount,
    TreeEntry,
)
from orchestrator.broker.worker_state import MachineFacts, Pace, WorkerState
from orchestrator.core.commit_parts import WITHDRAWN
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.registry import Agent, RegistryView
from orchestrator.gateways.app_server.methods import fleet
from orchestrator.gateways.app_server.methods.approvals import ended_json
from orchestrator.views.fleet import TreeRow
from orchestrator.views.spend import SpendRow, SpendTable
from orchestrator.views.tree import AgentPicture, Doing, TreeLine, TreePicture
from orchestrator.views.tree_past import Bucket, Mark, PastAgent, PastTree, Timeline
from orchestrator.views.workers import SeenWorker
from tests.views.test_threads import CHILD, ROOT, head

WAITS = {
    "an approval": "approval",
    "an answer": "answer",
    "its helper": "helper",
    "its helpers": "helper",
    "agents": "agents",
    "room in the tree's budget": "budget",
}
LONG = "long " * 100
CUT = LONG[:200]


# ── budgets ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        ({"tokens": 10_000, "cost": 10, "requests": 100}, "cost"),
        ({"tokens": 1_000, "cost": 10}, "tokens"),
        ({"tokens": 10_000, "requests": 6}, "requests"),
        ({"tokens": 10_000, "cost": 0}, "cost"),
        ({"tokens": 10_000}, "tokens"),
    ],
)
def test_list_shows_the_budget_of_which_the_largest_share_is_spent(limits: dict[str, int], kind: str) -> None:
    used = {"tokens": 999, "cost": 9, "requests": 5}
    account = TreeAccount(Spend(*used.values()), cast(Any, limits))
    shown = fleet._budget(replace(ROW, account=account))
    assert shown == {"kind": kind, "spent": used[kind], "limit": limits[kind]}


# ── rows of trees ─────────────────────────────────────────────────────────────────────────────────


META = {
    "title": "t", "cwd": "/w", "model": "m", "change": {"files": 1, "insertions": 2, "deletions": 3}
}  # fmt: skip
ROW = TreeRow(
    head(META, status="running", labels=Labels(who="ann"), tree=TreeId(SessionId("tree")), created_ms=31,
         portable=True),
    "needs",
    AgentStates(((0, None, "running"), (3, 0, "idle"), (4, 3, "waiting")),
                {"running": 2, "tool_calls": 1, "idle": 4, "retrying": 1, "waiting": 1}),
    TreeAccount(Spend(41, 42, 43), {"requests": 44}, Recent(45, (3, 2, 1))),
    Doing(tokens=40, waits_for="an answer", last="said"),
    32, unread=True, requests=33, lost_ms=34,
)  # fmt: skip
TOLD: dict[str, Any] = {
    "treeId": "tree", "title": "t", "state": "needs",
    "agents": {"total": 9, "working": 3, "byState": {"working": 3, "idle": 4, "waiting": 2}},
    "shape": [[0, None, "working"], [3, 0, "idle"], [4, 3, "waiting"]],
    "waitsFor": {"kind": "answer", "text": "an answer"}, "last": "said", "lastAtMs": 32, "createdAtMs": 31,
    "tokens": 41, "costMicro": 42, "budget": {"kind": "requests", "spent": 43, "limit": 44},
    "activity": {"lastAtMs": 45, "slotMs": 300_000, "requests": [1, 2, 3]}, "model": "m", "pool": "p",
    "who": "ann", "cwd": "/w", "unread": True, "requests": 33, "lostAtMs": 34,
    "change": {"files": 1, "added": 2, "removed": 3}, "portable": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("head_has", "row_has", "told"),
    [
        ({}, {}, {}),
        ({"meta": b""}, {}, {"title": "", "model": "", "cwd": "", "change": None}),
        ({"name": LONG}, {"doing": Doing(last=LONG)}, {"title": CUT, "last": CUT, "waitsFor": None}),
        ({"status": "idle"}, {}, {"waitsFor": None}),
        ({"status": "closed"}, {}, {"waitsFor": None}),
        ({"labels": Labels("acme", who="ben")}, {}, {"who": "ben", "cwd": ""}),
        ({"portable": False}, {"unread": False, "requests": 0}, {
            "portable": False, "unread": False, "requests": 0
        }),
        ({}, {"lost_ms": None, "state": "archived"}, {"lostAtMs": None, "state": "archived"}),
        ({}, {"account": TreeAccount(Spend())}, {
            "tokens": 40, "costMicro": None, "budget": None, "activity": None
        }),
        ({}, {"agents": AgentStates((), {})}, {
            "agents": {"total": 1, "working": 0, "byState": {}}, "shape": []
        }),
        *(({}, {"doing": Doing(tokens=40, waits_for=text, last="said")},
           {"waitsFor": {"kind": kind, "text": text}}) for text, kind in WAITS.items()),
    ],
)  # fmt: skip
def test_row_of_a_tree_has_each_member_of_it(
    head_has: dict[str, Any], row_has: dict[str, Any], told: dict[str, Any]
) -> None:
    row = replace(ROW, head=replace(ROW.head, **head_has), **row_has)
    assert fleet.tree_row(row) == {**TOLD, **told}


# ── trees as they are ─────────────────────────────────────────────────────────────────────────────


AGENT = AgentPicture(
    7, 5, CHILD,
    {"label": "tests", "origin": "fork", "status": "running", "pending_messages": 51,
     "pending_interrupts": 52},
    "tool_calls", "host-12-ab", Spend(53, 54, 55), Doing(since_ms=56, last="said", tokens=57),
    canceling=True, lost_ms=None, change={"files": 1, "insertions": 2, "deletions": 3}, copy_on="other",
)  # fmt: skip
AGENT_TOLD: dict[str, Any] = {
    "agentId": 7, "parentId": 5, "threadId": CHILD, "label": "tests", "origin": "fork", "state": "working",
    "status": "tool_calls", "standing": "running", "sinceAtMs": 56, "waitsFor": None, "last": "said",
    "tokens": 57, "costMicro": 54, "pending": 51, "interrupts": 52, "holder": "host-12-ab",
    "machine": "host", "lostAtMs": None, "canceling": True,
    "change": {"files": 1, "added": 2, "removed": 3},
}  # fmt: skip
RETRY = {"kind": "retry", "text": "the next try of a model request"}


@pytest.mark.parametrize(
    ("has", "told"),
    [
        ({}, {}),
        ({"parent": None, "summary": {}}, {
            "parentId": None, "label": None, "origin": None, "standing": "tool_calls", "pending": 0,
            "interrupts": 0,
        }),
        ({"summary": {**AGENT.summary, "label": LONG}}, {"label": CUT}),
        ({"summary": {**AGENT.summary, "label": ""}}, {"label": None}),
        ({"doing": Doing(since_ms=56, last=LONG)}, {"last": CUT, "tokens": 53}),
        ({"lost_ms": 58}, {"lostAtMs": 58, "sinceAtMs": 58}),
        ({"holder": None}, {"holder": None, "machine": "other"}),
        ({"holder": None, "copy_on": ""}, {"holder": None, "machine": None}),
        ({"used": Spend(), "change": None, "canceling": False}, {
            "costMicro": None, "change": None, "canceling": False
        }),
        ({"status": "retrying"}, {"status": "retrying", "state": "waiting", "waitsFor": RETRY}),
        ({"status": "retrying", "wants_worker": "one of the pool gpu"}, {
            "status": "retrying", "state": "waiting",
            "waitsFor": {"kind": "worker", "text": "one of the pool gpu"},
        }),
        *(({"status": status, "doing": Doing(waits_for="agents", tokens=57)}, {
            "status": status, "state": "idle", "sinceAtMs": 0, "last": "",
        }) for status in ("idle", "closed")),
        *(({"status": "waiting", "doing": Doing(waits_for=text, awaited=ids, until_ms=until, tokens=57)}, {
            "status": "waiting", "state": "waiting", "sinceAtMs": 0, "last": "",
            "waitsFor": {"kind": kind, "text": text, **({"agentIds": [*ids]} if ids else {}),
                         **({} if until is None else {"untilAtMs": until})},
        }) for (text, kind), ids, until in product(WAITS.items(), [(), (8, 9)], [None, 0, 60])),
    ],
)  # fmt: skip
def test_agent_of_a_tree_has_each_member_of_it(has: dict[str, Any], told: dict[str, Any]) -> None:
    assert fleet.agent_json(replace(AGENT, **has), owner=True) == {**AGENT_TOLD, **told}


def test_tree_has_its_agents_by_their_numbers_and_each_figure_of_its_budgets() -> None:
    root = replace(AGENT, agent_id=0, parent=None, status="paused", summary={})
    registry = Registry(
        TreeId(ROOT), 61, {}, {"slots": 62, "spawned": 63}, {"slots": 64, "tokens": 65},
        {"tokens": Account("tokens", 66, 67, 68, 69), "wall": Account("wall", 70, 71, None)}, {}, {},
    )  # fmt: skip
    shown = head({"title": "t"}, tree=TreeId(SessionId("tree")))
    told = {
        "treeId": "tree", "treeSeq": 61, "atMs": 72, "title": "t", "state": "paused",
        "agents": [fleet.agent_json(root, owner=True), AGENT_TOLD],
        "budget": {"tokens": {"spent": 66, "held": 67, "limit": 68, "guessed": 69},
                   "wall": {"spent": 70, "held": 71, "limit": None, "guessed": 0}},
        "counters": {"slots": 62, "spawned": 63}, "limits": {"slots": 64, "tokens": 65}, "leftBehind": 73,
    }  # fmt: skip
    assert fleet.tree_json(shown, TreePicture(registry, {7: AGENT, 0: root}, 72, 73)) == told
    alone = fleet.tree_json(replace(shown, name=LONG), TreePicture(registry, {7: AGENT}, 72))
    assert alone == {**told, "title": CUT, "state": "idle", "agents": [AGENT_TOLD], "leftBehind": 0}
    # One of a namespace tells of no machine, whoever asks.
    theirs = replace(shown, labels=replace(shown.labels, namespace="acme"))
    (agent,) = fleet.tree_json(theirs, TreePicture(registry, {7: AGENT}, 72))["agents"]
    assert agent == {**AGENT_TOLD, "holder": None, "machine": None}


# ── trees as they were ────────────────────────────────────────────────────────────────────────────


RECORD = {
    "agent_id": 7, "agent_path": "0/5/7", "label": "tests", "origin": "fork", "status": "running", "turn": 1,
    "session_id": CHILD,
}  # fmt: skip
PAST = PastAgent(
    7, CHILD, Agent(RECORD, 0, (81, 82), marked=True), 83, Doing(since_ms=84, last="said", tokens=85)
)
NO_LOG: dict[str, Any] = {
    "costMicro": None,
    "holder": None,
    "machine": None,
    "lostAtMs": None,
    "change": None,
}
PAST_TOLD: dict[str, Any] = {
    "agentId": 7, "threadId": CHILD, "seq": 83, "state": "working", "sinceAtMs": 84, "waitsFor": None,
    "last": "said", "tokens": 85, "parentId": 5, "label": "tests", "origin": "fork", "standing": "running",
    "pending": 81, "interrupts": 82, "canceling": True, **NO_LOG,
}  # fmt: skip
UNKNOWN = dict.fromkeys(("parentId", "label", "origin", "standing", "pending", "interrupts", "canceling"))
STANDINGS = {
    "queued": "waiting", "running": "working", "ready": "ready", "idle": "idle", "failed": "failed",
    "canceled": "idle", "of tomorrow": "idle",
}  # fmt: skip
WAITING = {
    "an approval": "needs", "an answer": "needs", "its helper": "waiting", "its helpers": "waiting",
    "agents": "waiting", "room in the tree's budget": "paused",
}  # fmt: skip


def recorded(**changes: Any) -> Agent:
    return Agent({**RECORD, **changes}, 0, (81, 82), marked=True)


@pytest.mark.parametrize(
    ("has", "told"),
    [
        ({}, {}),
        ({"seq": None, "doing": None}, {"seq": None, "sinceAtMs": None, "last": None, "tokens": None}),
        ({"doing": Doing()}, {"sinceAtMs": None, "last": "", "tokens": None}),
        ({"doing": Doing(last=LONG)}, {"sinceAtMs": None, "last": CUT, "tokens": None}),
        ({"agent": recorded(label=LONG, agent_path="7")}, {"label": CUT, "parentId": None}),
        ({"agent": recorded(label="", origin=None, agent_path="0/7")}, {
            "label": None, "origin": None, "parentId": 0
        }),
        ({"agent": Agent(RECORD, 0, (0, 0))}, {"pending": 0, "interrupts": 0, "canceling": False}),
        *(({"agent": recorded(status=standing)}, {"standing": standing, "state": state})
          for standing, state in STANDINGS.items()),
        ({"agent": Agent({**RECORD, "status": "ready"}, 1, (81, 82), marked=True)}, {
            "standing": "idle", "state": "idle"
        }),
        *(({"agent": None, "at_work": at_work}, {**UNKNOWN, "state": state})
          for at_work, state in ((None, None), (True, "working"), (False, "idle"))),
        *(({"doing": Doing(since_ms=84, last="said", tokens=85, waits_for=text, awaited=(8, 9))}, {
            "state": state, "waitsFor": {"kind": WAITS[text], "text": text, "agentIds": [8, 9]},
        }) for text, state in WAITING.items()),
        *(({"agent": recorded(status=standing), "doing": Doing(84, 84, "agents", last="said", tokens=85)}, {
            "standing": standing, "state": state
        }) for standing, state in STANDINGS.items() if state != "working"),
    ],
)  # fmt: skip
def test_agent_as_it_was_has_each_member_that_a_log_tells(has: dict[str, Any], told: dict[str, Any]) -> None:
    assert fleet.past_agent_json(replace(PAST, **has)) == {**PAST_TOLD, **told}


@pytest.mark.parametrize("limits", [None, {}, {"wall": 91, "tokens": 92, "slots": 93}])
@pytest.mark.parametrize("known", [True, False])
def test_tree_as_it_was_has_its_agents_and_the_limits_of_then(
    limits: dict[str, int] | None, known: bool
) -> None:
    root = PastAgent(0, ROOT, None, 86, Doing(tokens=15) if known else None, at_work=True)
    view = RegistryView({7: recorded(), 8: recorded(), 9: recorded(status="idle")}, 1)
    tree = SessionId("tree")
    told = fleet.past_json(
        head({"title": LONG}, tree=TreeId(tree)), PastTree(94, 95, view, (root, PAST), limits)
    )
    one = {"held": None, "guessed": None}
    assert told == {
        "treeId": "tree", "treeSeq": 94, "atMs": 95, "title": CUT, "state": "working",
        "agents": [fleet.past_agent_json(root), PAST_TOLD],
        "counters": {"spawned": 1, "slots": 2}, "limits": limits,
        "budget": None if limits is None else {} if not limits else {
            "tokens": {"spent": 100 if known else None, "limit": 92, **one},
            "wall": {"spent": None, "limit": 91, **one},
        },
    }  # fmt: skip


# ── logs of trees ─────────────────────────────────────────────────────────────────────────────────


LINE = TreeLine("error", LONG, 7, "ann")
DECIDED = TreeLine("request_resolved", "words", 7, "ann", "call-1", "approved")
MARKS: list[tuple[TreeLine, dict[str, Any]]] = [
    (LINE, {"text": CUT, "who": "ann"}),
    (TreeLine("error", "words", None), {"agentId": None, "text": "words"}),
    (DECIDED, {
        "text": "words", "who": "ann", "callId": "call-1", "decision": "accept",
        "outcome": ended_json("approved", "ann", 0)["text"],
    }),
    (replace(DECIDED, decision=WITHDRAWN, who=""), {
        "text": "words", "callId": "call-1", "decision": None, "outcome": "withdrawn: its turn ended first",
    }),
]  # fmt: skip


async def test_timeline_has_its_bars_pauses_and_marks_and_those_before_on_demand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    marks = tuple(Mark(seq, 100 + seq, "failure", line) for seq, (line, _) in enumerate(MARKS, 1))
    shown = [
        {"seq": seq, "atMs": 100 + seq, "kind": "failure", "agentId": 7, **told}
        for seq, (_, told) in enumerate(MARKS, 1)
    ]
    found = Timeline(1, 2, 3, (Bucket(4, 5, 6), Bucket(7, 8, 9)), ((10, 11), (12, 13)), marks, more=True)
    before = Mark(0, 99, "takeover", LINE)
    past = SimpleNamespace(
        read=21, end=22, read_on=AsyncMock(return_value=False), timeline=lambda buckets: found,
        marks_of_sessions=AsyncMock(side_effect=lambda *, takeovers: (
            [before] if takeovers else [], [replace(marks[0], kind="person")])),
    )  # fmt: skip
    monkeypatch.setattr(fleet, "_root", AsyncMock(return_value=head()))
    monkeypatch.setattr(fleet, "_past", lambda door, root: past)

    async def asked(**params: Any) -> Any:
        return await fleet.tree_timeline(cast(Any, None), fleet.TreeTimeline(treeId=ROOT, **params))

    person = {**shown[0], "kind": "person"}
    told = {
        "firstAtMs": 1, "lastAtMs": 2, "treeSeq": 3,
        "buckets": [{"seq": 4, "atMs": 5, "entries": 6}, {"seq": 7, "atMs": 8, "entries": 9}],
        "gaps": [{"fromMs": 10, "toMs": 11}, {"fromMs": 12, "toMs": 13}],
        "marks": [shown[0], person, *shown[1:]], "more": True, "reading": {"read": 21, "of": 22},
    }  # fmt: skip
    assert await asked() == told
    assert await asked(marksAfter=2) == {**told, "marks": [person, *shown[2:]]}
    of_before = {"atMs": 99, "kind": "takeover", "agentId": 7, "text": CUT, "who": "ann"}
    assert await asked(marksBefore=True) == {**told, "marksBefore": [of_before]}
    past.read_on.return_value = True
    assert (await asked())["reading"] is None


@pytest.mark.parametrize(("line", "shown"), [(LINE, (7, CUT, "ann")), (TreeLine("", ""), (None, "", None))])
def test_row_of_a_trees_log_has_both_numbers_of_its_entry(
    line: TreeLine, shown: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "tree_line", lambda entry: line)
    agent, text, who = shown
    assert fleet._log_row(TreeEntry(111, b"", CHILD, 112, b"", (), 113)) == {
        "treeSeq": 111, "atMs": 113, "threadId": CHILD, "seq": 112, "agentId": agent, "kind": line.kind,
        "text": text, "who": who,
    }  # fmt: skip


# ── workers and figures ───────────────────────────────────────────────────────────────────────────


STATE = WorkerState(
    ("gpu", "cpu"), 121, 122, paces={"gpu": Pace(1.5, 2.5, 3), "cpu": Pace()},
    facts=MachineFacts("host", pid=123, version="9.9", core=5, started_ms=124, clock_ms=125, load=0.5),
)  # fmt: skip
WORKER = SeenWorker("w", STATE, 126, silent=False, remarks=("an old core", "a slow clock"))
WORKER_TOLD: dict[str, Any] = {
    "worker": "w", "status": "serving", "heardAtMs": 126, "pools": ["gpu", "cpu"], "held": 121, "room": 122,
    "machine": "host", "version": "9.9", "startedAtMs": 124, "load": 0.5,
    "paces": {"gpu": {"claimsPerS": 1.5, "turnsPerS": 2.5, "tokensPerMin": 3},
              "cpu": {"claimsPerS": 0.0, "turnsPerS": 0.0, "tokensPerMin": 0}},
    "remarks": ["an old core", "a slow clock"],
}  # fmt: skip
OLD = {"machine": None, "version": None, "startedAtMs": None, "load": None}


@pytest.mark.parametrize(
    ("has", "told"),
    [
        ({}, {}),
        ({"silent": True, "remarks": ()}, {"status": "silent", "remarks": []}),
        ({"state": replace(STATE, draining=True)}, {"status": "draining"}),
        ({"state": replace(STATE, draining=True), "silent": True}, {"status": "silent"}),
        ({"state": WorkerState((), 0, 0)}, {"pools": [], "held": 0, "room": 0, "paces": {}, **OLD}),
    ],
)
def test_worker_has_each_member_of_its_heartbeat(has: dict[str, Any], told: dict[str, Any]) -> None:
    assert fleet.worker_json(replace(WORKER, **has)) == {**WORKER_TOLD, **told}


def figures_of(namespace: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A door whose client is of the namespace, in a deployment with workers of three states."""
    workers = [
        WORKER,
        replace(WORKER, name="w2", state=replace(STATE, room=5)),
        replace(WORKER, name="w3", state=replace(STATE, draining=True)),
        replace(WORKER, name="w4", silent=True),
        replace(WORKER, name="w5", silent=True, state=replace(STATE, pools=("far",))),
    ]
    queues = {"cpu": PoolQueue(1, 2, 3), "far": PoolQueue(4, 5, 6), "gpu": PoolQueue(7, 8, 9)}
    queues["own"] = PoolQueue(10, 11, 12)
    counts = {"working": 131, "idle": 132}
    statuses = {"own": {"running": 133, "idle": 134}, "gpu": {"waiting": 135}}
    kept = SimpleNamespace(
        page=AsyncMock(return_value=SimpleNamespace(counts=counts)), statuses=lambda: statuses
    )
    broker = SimpleNamespace(
        now_ms=lambda: 136,
        claims=SimpleNamespace(queue_of=AsyncMock(side_effect=queues.__getitem__)),
        requests=SimpleNamespace(count_open_requests=AsyncMock(return_value=137)),
        logs=SimpleNamespace(count_sessions=AsyncMock(return_value=138)),
    )
    monkeypatch.setattr(fleet, "_fleet", AsyncMock(return_value=kept))
    monkeypatch.setattr(fleet, "workers_of", AsyncMock(return_value=workers))
    principal = SimpleNamespace(namespace=namespace, name="ann", is_tenant=bool(namespace))
    return SimpleNamespace(ports=SimpleNamespace(found=SimpleNamespace(broker=broker)), principal=principal)


@pytest.mark.parametrize("namespace", ["", "acme"])
async def test_figures_are_of_the_clients_trees_and_for_the_machines_user_of_each_pool(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = figures_of(namespace, monkeypatch)
    own = {
        "atMs": 136, "states": {"working": 131, "idle": 132}, "trees": 131 + 132, "agents": 133 + 134 + 135
    }  # fmt: skip
    pools = [
        {"pool": "cpu", "due": 1, "held": 2, "ageMs": 3, "workers": 2, "slots": 127, "agents": {}},
        {"pool": "far", "due": 4, "held": 5, "ageMs": 6, "workers": 0, "slots": 0, "agents": {}},
        {"pool": "gpu", "due": 7, "held": 8, "ageMs": 9, "workers": 2, "slots": 127,
         "agents": {"waiting": 135}},
        {"pool": "own", "due": 10, "held": 11, "ageMs": 12, "workers": 0, "slots": 0,
         "agents": {"running": 133, "idle": 134}},
    ]  # fmt: skip
    of_all = {"workers": 5, "silent": 2, "draining": 1, "openRequests": 137, "sessions": 138, "pools": pools}
    assert await fleet._stats(door) == {**own, **({"pools": []} if namespace else of_all)}
    listed: Any = await fleet.worker_list(door, cast(Any, None))
    assert [one["worker"] for one in listed["data"]] == ([] if namespace else ["w", "w2", "w3", "w4", "w5"])


@pytest.mark.parametrize("by", [(), ("day",), ("model",), ("who",), ("who", "day", "model")])
async def test_spend_has_the_members_that_it_is_grouped_by_and_each_figure(
    by: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (
        SpendRow("2026-01-02", "acme", "m", "ann", Spend(141, 142, 143)),
        SpendRow("2026-01-01", "acme", "", "", Spend()),
    )
    spend_of = AsyncMock(return_value=SpendTable(first="2026-01-01", last="2026-01-03", rows=rows))
    monkeypatch.setattr(fleet, "spend_of", spend_of)
    ports = SimpleNamespace(found=SimpleNamespace(broker="the broker"))
    door = SimpleNamespace(ports=ports, principal=SimpleNamespace(namespace="acme"))
    told = await fleet.spend_list(cast(Any, door), fleet.SpendList(days=3, by=cast(Any, by)))
    named: list[dict[str, Any]] = [
        {"day": "2026-01-02", "model": "m", "who": "ann"},
        {"day": "2026-01-01", "model": None, "who": None},
    ]
    figures = [(141, 142, 143), (0, 0, 0)]
    assert told == {
        "from": "2026-01-01", "to": "2026-01-03",
        "data": [
            {**{name: one[name] for name in by}, "tokens": tokens, "costMicro": cost, "requests": requests}
            for one, (tokens, cost, requests) in zip(named, figures, strict=True)
        ],
    }  # fmt: skip
    spend_of.assert_awaited_once_with("the broker", 3, by, "acme")


ADDS = {"tokens": "tokens", "costMicro": "cost", "requests": "requests", "wallMs": "wall", "slots": "slots"}
ADDS["spawned"] = "spawned"


@pytest.mark.parametrize("amount", [0, -3, 5])
@pytest.mark.parametrize("named", ADDS)
def test_each_amount_is_added_to_the_limit_of_its_name(named: str, amount: int) -> None:
    assert fleet.Added(**{named: amount}).amounts() == {ADDS[named]: amount}
    assert fleet.Added(**{name: number for number, name in enumerate(ADDS)}).amounts() == {
        name: number for number, name in enumerate(ADDS.values())
    }
