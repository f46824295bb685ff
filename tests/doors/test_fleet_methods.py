"""The fleet over the app-server: trees in a list, one tree with its agents, its log, budgets and ends."""

from __future__ import annotations

import uuid
from typing import Any

import orjson
import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import (
    BudgetPart,
    Claimed,
    Committed,
    Labels,
    NewTree,
    Settlement,
    Spend,
    day_of,
)
from orchestrator.core.commit_parts import Approval, NewSession
from orchestrator.core.entries import EVENT_MSG, Entry, encode_entry
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.gateways.app_server.client_connection import AppServer
from orchestrator.gateways.app_server.messages import Code
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.model.prompt import TextDelta
from orchestrator.runtime.runner import Ended
from orchestrator.views import spend
from tests.broker.actors import new_session, session_id, step, submitted
from tests.doors.peer import Peer, connected, served
from tests.doors.test_app_server_threads import other, peer, talked
from tests.doors.test_app_server_turns import ports_of, said, server
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends, message
from tests.runtime.test_takeover import lost_during

__all__ = ["other", "peer", "server"]
pytestmark = pytest.mark.realredis
SAID_MS = 1_800_000_000_000
LINE = encode_entry(Entry(EVENT_MSG, {"type": "agent_message", "message": "it is done"}), SAID_MS, {}).line
NOWHERE = "elsewhere"
"""A pool that no worker serves."""


def meta(**more: Any) -> bytes:
    return orjson.dumps({"title": "fix it", "model": "m", "cwd": "/work", "updated_ms": 1_000, **more})


async def tree(broker: Broker, **labels: Any) -> SessionId:
    """A tree of a person, of a pool that nobody serves, in which somebody has spoken."""
    born = new_session(session_id(1), pool=NOWHERE, meta=meta())
    await broker.commits.create(NewTree(born, {"limit:tokens": b"100"}, labels=Labels(**labels)))
    return born.session


async def held(broker: Broker, root: SessionId) -> Claimed:
    await submitted(broker, root, uuid.uuid4().hex)
    found = await broker.claims.claim_session(root, "host-1-w1", uuid.uuid4().hex)
    assert found is not None
    return found


async def does(broker: Broker, at: Claimed | Committed, own: Claimed, **more: Any) -> Committed:
    done = await broker.commits.commit(step(at, own.claim, uuid.uuid4().hex, [LINE], **more))
    assert isinstance(done, Committed)
    return done


async def rests(broker: Broker, at: Claimed | Committed, own: Claimed, **more: Any) -> Committed:
    given = {"status": "idle", "cursor": own.sq_tip, "release": "park", "meta": meta()} | more
    return await does(broker, at, own, **given)


def agent(own: Claimed, number: int, **changes: Any) -> tuple[NewSession, dict[str, bytes]]:
    """An agent that a step makes, and what the step writes of it."""
    child = new_session(
        session_id(1),
        tree=own.claim.tree,
        agent_id=AgentId(number),
        parent=own.claim.session,
        pool=NOWHERE,
        **changes,
    )
    record = {
        "agent_id": number,
        "session_id": child.session,
        "parent_agent_id": 0,
        "parent_session_id": own.claim.session,
        "origin": "spawn",
        "label": "scout",
        "status": "running",
        "turn": "",
        "agent_path": f"0/{number}",
        "started_at_ms": 1,
    }
    return child, {f"a:{number}": orjson.dumps(record)}


async def listed(peer: Peer, **asked: Any) -> dict[str, dict[str, Any]]:
    found = await peer.call("fleet/list", asked)
    return {row["treeId"]: row for row in found["data"]}


async def test_list_shows_each_tree_with_its_agents_as_they_are_now(peer: Peer, harness: Harness) -> None:
    broker = harness.broker
    root = await tree(broker, who="ann")
    assert (await listed(peer))[root]["state"] == "idle"
    own = await held(broker, root)
    (child, said) = agent(own, 1)
    at = await does(broker, own, own, status="running", children=(child,), summary=said)
    row = (await listed(peer))[root]
    assert (row["title"], row["who"], row["pool"], row["model"]) == ("fix it", "ann", NOWHERE, "m")
    assert (row["state"], row["agents"]) == (
        "working",
        {"total": 2, "working": 1, "byState": {"working": 1, "idle": 1}},
    )
    assert row["shape"] == [[0, None, "working"], [1, 0, "idle"]]
    assert (row["last"], row["lastAtMs"]) == ("it is done", SAID_MS)
    assert row["budget"] == {"kind": "tokens", "spent": 0, "limit": 100}
    await rests(broker, at, own, ended_seq=at.seq)
    row = (await listed(peer))[root]
    assert (row["state"], row["unread"]) == ("ready", True)
    seen = (await peer.call("thread/read", {"threadId": root}))["readState"]
    asked = {"threadId": root, "operation": {"type": "read"}, "expectedRevision": seen["revision"]}
    await peer.call("thread/readState/update", asked)
    row = (await listed(peer))[root]
    assert (row["state"], row["unread"]) == ("idle", False)


async def test_list_says_what_needs_people_what_is_lost_due_and_failed(peer: Peer, harness: Harness) -> None:
    broker = harness.broker
    asks, lost, due, failed = [await tree(broker) for _ in range(4)]
    own = await held(broker, asks)
    opens = (Approval("c1", b"{}"),)
    await does(broker, own, own, status="awaiting_approval", approvals_open=opens, release="park")
    own = await held(broker, lost)
    await does(broker, own, own, status="running")
    shard = broker.keys.shard_of(lost)
    await broker.command("ZADD", broker.keys.leases(shard, NOWHERE), "XX", 1_000, lost)
    await submitted(broker, due)
    own = await held(broker, failed)
    await rests(broker, own, own, meta=meta(outcome="failed"), ended_seq=1)
    found = await listed(peer)
    wanted = {asks: "needs", lost: "lost", due: "due", failed: "failed"}
    assert {root: row["state"] for root, row in found.items()} == wanted
    assert (found[asks]["requests"], found[lost]["lostAtMs"]) == (1, 1_000)
    counts = (await peer.call("fleet/list", {"states": ["lost"], "limit": 1}))["counts"]
    assert counts == {"needs": 1, "lost": 1, "due": 1, "failed": 1}


async def test_tree_whose_log_is_damaged_hides_no_other(peer: Peer, harness: Harness) -> None:
    broker = harness.broker
    root, good = await tree(broker), await tree(broker)
    own = await held(broker, root)
    done = await broker.commits.commit(step(own, own.claim, "k", [b"no entry"], status="running"))
    assert isinstance(done, Committed)
    found = await listed(peer)
    assert (found[root]["last"], set(found)) == ("", {root, good})


async def test_list_is_filtered_ordered_and_paged(peer: Peer, harness: Harness) -> None:
    broker = harness.broker
    roots = [await tree(broker, who="ann" if number % 2 else "ben") for number in range(5)]
    first = await peer.call("fleet/list", {"sort": "created", "limit": 2})
    second = await peer.call("fleet/list", {"sort": "created", "limit": 9, "cursor": first["nextCursor"]})
    pages = [row["treeId"] for page in (first, second) for row in page["data"]]
    assert sorted(pages) == sorted(roots)
    assert second["nextCursor"] is None
    assert set(await listed(peer, who="ann")) == set(roots[1::2])
    assert await listed(peer, text="FIX", pool="other") == {}
    assert set(await listed(peer, text="FIX", states=["idle"], sort="cost")) == set(roots)
    await broker.trees.enlist(roots[0], shelve=True)
    assert set(await listed(peer)) == set(roots[1:])
    (away,) = (await listed(peer, archived=True)).values()
    assert (away["treeId"], away["state"]) == (roots[0], "archived")
    await broker.trees.delete_session(roots[1])
    assert set(await listed(peer)) == set(roots[2:])


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"sort": "size"}, "sort"),
        ({"states": ["dancing"]}, "states"),
        ({"limit": 101}, "limit"),
        ({"text": "x" * 201}, "text"),
        ({"cursor": "?"}, "cursor"),
        ({"cursor": "Zi5jb3N0LjEueA=="}, "cursor"),
    ],
)
async def test_parameter_of_the_list_that_cannot_be_used_is_named(
    peer: Peer, asked: dict[str, Any], named: str
) -> None:
    code, text = await peer.refused("fleet/list", asked)
    assert (code, named in text) == (Code.BAD_PARAMS, True)


async def test_trees_of_another_namespace_are_not_there(harness: Harness, server: AppServer) -> None:
    theirs, ours = await tree(harness.broker), await tree(harness.broker, namespace="ours")
    async with connected(server, Principal("ben", namespace="ours", scope=Scope.ADMIN)) as ben:
        await ben.greet(experimentalApi=True)
        found = await ben.call("fleet/list")
        assert [row["treeId"] for row in found["data"]] == [ours]
        assert found["counts"] == {"idle": 1}
        for method, asked in (
            ("tree/read", {"treeId": theirs}),
            ("tree/read", {"treeId": theirs, "at": 1}),
            ("tree/timeline", {"treeId": theirs}),
            ("tree/log", {"treeId": theirs}),
            ("budget/add", {"treeId": theirs, "requestId": "r", "add": {"tokens": 1}}),
        ):
            assert (await ben.refused(method, asked))[1] == f"no rollout found for thread id {theirs}"
        assert (await ben.refused("agent/cancel", {"threadId": theirs}))[1] == f"thread not found: {theirs}"
        assert await ben.call("worker/list") == {"data": []}
        stats = await ben.call("fleet/stats")
        assert (stats["trees"], stats["pools"], "workers" in stats) == (1, [], False)


async def test_tree_is_read_with_what_each_agent_does_and_waits_for(peer: Peer, harness: Harness) -> None:
    broker = harness.broker
    root = await tree(broker)
    own = await held(broker, root)
    (child, said) = agent(own, 1, status="awaiting_approval")
    at = await does(broker, own, own, status="running", children=(child,), summary=said)
    await submitted(broker, child.session)
    found = await peer.call("tree/read", {"treeId": root})
    assert (found["treeId"], found["state"], found["limits"]) == (root, "working", {"tokens": 100})
    first, second = found["agents"]
    assert (first["agentId"], first["state"], first["holder"]) == (0, "working", "host-1-w1")
    assert (first["machine"], first["parentId"]) == ("host", None)
    assert (second["agentId"], second["parentId"], second["label"]) == (1, 0, "scout")
    assert (second["state"], second["waitsFor"]["kind"]) == ("due", "worker")
    code, text = await peer.refused("tree/read", {"treeId": child.session})
    assert (code, "root" in text) == (Code.BAD_PARAMS, True)
    await rests(broker, at, own)


async def test_budget_is_added_to_once_and_the_log_says_by_whom(peer: Peer, harness: Harness) -> None:
    root = await talked(peer, harness, "one")
    asked = {"treeId": root, "requestId": "r1", "add": {"slots": 3}}
    before = (await harness.broker.trees.registry(TreeId(root))).limits
    for _ in range(2):
        found = await peer.call("budget/add", asked)
        assert found["limits"]["slots"] == before["slots"] + 3
    (line,) = (await peer.call("tree/log", {"treeId": root}))["data"]
    assert "added to the tree's limits: 3 slots" in line["text"]
    for wrong in ({}, {"tokens": 1 << 60}):
        code, _ = await peer.refused("budget/add", {**asked, "add": wrong})
        assert code == Code.BAD_PARAMS


async def test_tree_is_read_as_it_was_and_its_timeline_has_the_places(peer: Peer, harness: Harness) -> None:
    root = await talked(peer, harness, "one")
    empty = await peer.call("tree/timeline", {"treeId": root})
    assert (empty["treeSeq"], empty["buckets"], empty["marks"]) == (0, [], [])
    before = dict((await harness.broker.trees.registry(TreeId(root))).limits)
    for number, add in enumerate(({"slots": 1}, {"tokens": 5_000}, {"slots": 2, "tokens": 100}), 1):
        await peer.call("budget/add", {"treeId": root, "requestId": f"r{number}", "add": add})
    found = await peer.call("tree/timeline", {"treeId": root, "buckets": 10})
    assert (found["treeSeq"], sum(bar["entries"] for bar in found["buckets"])) == (3, 3)
    assert [(mark["seq"], mark["kind"]) for mark in found["marks"]] == [(n, "budget") for n in (1, 2, 3)]
    assert found["reading"] is None
    again = await peer.call("tree/timeline", {"treeId": root, "marksAfter": 2})
    assert ([mark["seq"] for mark in again["marks"]], again["treeSeq"]) == ([3], 3)
    now = dict((await harness.broker.trees.registry(TreeId(root))).limits)
    used = now["tokens"] - 5_100
    for at, slots, tokens in ((3, 3, now["tokens"]), (2, 1, now["tokens"] - 100)):
        past = await peer.call("tree/read", {"treeId": root, "at": at})
        assert past["limits"] == {**now, "slots": before["slots"] + slots, "tokens": tokens}
        spent = past["agents"][0]["tokens"]
        assert past["budget"]["tokens"] == {"spent": spent, "held": None, "limit": tokens, "guessed": None}
        assert used > 0
        assert spent > 0
    past = await peer.call("tree/read", {"treeId": root, "at": 1})
    assert (past["treeSeq"], past["reading"]) == (1, None)
    assert past["limits"] == {**before, "slots": before["slots"] + 1}, "there was no budget of tokens yet"
    assert past["budget"] == {}
    (agent,) = past["agents"]
    head = await harness.broker.logs.head(SessionId(root))
    assert head is not None
    assert (agent["agentId"], agent["threadId"], agent["seq"], agent["state"]) == (0, root, head.seq, "idle")
    code, text = await peer.refused("tree/read", {"treeId": root, "at": 4})
    assert (code, "entries 1 to 3" in text) == (Code.BAD_PARAMS, True)
    for wrong in ({"at": 0}, {"at": "now"}):
        assert (await peer.refused("tree/read", {"treeId": root, **wrong}))[0] == Code.BAD_PARAMS


async def test_timeline_marks_what_people_said_each_time_it_is_asked(peer: Peer, harness: Harness) -> None:
    root = await talked(peer, harness, "one")
    await peer.call("budget/add", {"treeId": root, "requestId": "r", "add": {"slots": 1}})
    for number in (1, 2):
        harness.models.will([message("two"), ends()])
        await said(peer, root, "and now")
        await peer.until("turn/completed")
        marks = (await peer.call("tree/timeline", {"treeId": root, "marksAfter": 1}))["marks"]
        told = [(mark["kind"], mark["seq"], mark["agentId"], mark["text"]) for mark in marks]
        assert told == [("person", 1, 0, "words for the root")] * number
        assert all(mark["who"] for mark in marks)


@pytest.mark.parametrize("doing", ["command", "response"])
async def test_takeover_of_a_root_without_agents_is_told_before_all_entries(
    harness: Harness, doing: str
) -> None:
    """Nothing has happened between agents: the root's own log alone tells of it."""
    session, silence = await harness.session(), Gate()
    if doing == "command":
        harness.tools.gates["c1"] = Gate()
        harness.models.will([calls("c1"), ends()])
    else:
        harness.models.will([TextDelta("void"), silence], [message("Whole."), ends()])
    await harness.say(session)
    begun = harness.tools.began("c1") if doing == "command" else silence.reached
    await lost_during(harness, session, begun)
    assert await harness.run(session) is Ended.PARKED
    async with served(ports_of(harness), notifications) as server, connected(server) as peer:
        await peer.greet()
        told = await peer.call("tree/timeline", {"treeId": session, "marksBefore": True})
        assert "marksBefore" not in await peer.call("tree/timeline", {"treeId": session})
        items = (await peer.call("thread/items/list", {"threadId": session}))["data"]
    assert (told["treeSeq"], told["marks"]) == (0, [])
    assert [(one["kind"], one["agentId"]) for one in told["marksBefore"]] == [("takeover", 0)]
    doubts = [words[:29] for one in items if (words := one["item"].get("inDoubt"))]
    assert doubts == (["in doubt: the worker was lost"] if doing == "command" else [])


async def test_workers_and_figures_are_told_to_the_machine_s_user(peer: Peer, harness: Harness) -> None:
    await talked(peer, harness, "one")
    (worker,) = (await peer.call("worker/list"))["data"]
    assert (worker["status"], worker["machine"]) == ("serving", worker["machine"])
    stats = await peer.call("fleet/stats")
    assert (stats["trees"], stats["agents"], stats["workers"]) == (1, 1, 1)
    await tree(harness.broker)
    assert await peer.call("fleet/stats") == stats, "it is looked at once in some seconds"


async def test_spend_is_told_by_day_model_and_person_of_the_client_s_namespace(
    peer: Peer, harness: Harness, server: AppServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = harness.broker
    now_ms = await broker.server_ms()
    today = day_of(now_ms)
    for who, namespace, model in (("jo", "", "large"), ("ana", "", "large"), ("ben", "ours", "small")):
        root = await tree(broker, who=who, namespace=namespace)
        own = await held(broker, root)
        budget = BudgetPart(settlements=(Settlement("1", Spend(7, 5, 1), model),))
        await rests(broker, own, own, budget=budget)
    figures = {"tokens": 14, "costMicro": 10, "requests": 2}
    found = await peer.call("spend/list", {"days": 2})
    assert found == {
        "from": day_of(now_ms - 86_400_000),
        "to": today,
        "data": [{"day": today, "model": "large", **figures}],
    }
    by_who = await peer.call("spend/list", {"by": ["who"]})
    assert [(row["who"], row["tokens"]) for row in by_who["data"]] == [("ana", 7), ("jo", 7)]
    assert (await peer.call("spend/list", {"by": []}))["data"] == [figures]
    async with connected(server, Principal("ben", namespace="ours", scope=Scope.READ)) as ben:
        await ben.greet(experimentalApi=True)
        (row,) = (await ben.call("spend/list", {"by": ["model", "who"]}))["data"]
        assert row == {"model": "small", "who": "ben", "tokens": 7, "costMicro": 5, "requests": 1}
    for wrong in ({"days": 0}, {"days": 401}, {"by": ["tree"]}, {"by": ["day"] * 4}):
        assert (await peer.refused("spend/list", wrong))[0] == Code.BAD_PARAMS
    monkeypatch.setattr(spend, "MOST_ROWS", 1)
    assert "ask for fewer days" in (await peer.refused("spend/list", {"by": ["who"]}))[1]


async def test_list_shows_what_each_tree_did_in_the_last_hour(peer: Peer, harness: Harness) -> None:
    broker = harness.broker
    root = await tree(broker)
    assert (await listed(peer))[root]["activity"] is None
    own = await held(broker, root)
    settled = BudgetPart(settlements=(Settlement("1", Spend(7, 5, 1)), Settlement("2", Spend(1, 1, 1))))
    await rests(broker, own, own, budget=settled)
    found = (await listed(peer))[root]["activity"]
    assert (found["slotMs"], found["requests"]) == (300_000, [*[0] * 11, 2])
    now_ms = await broker.server_ms()
    assert found["lastAtMs"] <= now_ms < found["lastAtMs"] + 600_000


async def test_root_that_is_cancelled_is_closed(peer: Peer, harness: Harness) -> None:
    root = await talked(peer, harness, "one")
    found = await peer.call("agent/cancel", {"threadId": root, "reason": "enough"})
    assert found == {"agents": [], "closed": True}
