"""A tree's past: at each entry it is the fold of the log up to there, and the timeline has every entry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import fakeredis
import orjson
import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.broker.records import BrokerConfig, Claimed, Committed
from orchestrator.core.commit_parts import TreeEvent
from orchestrator.core.entries import EVENT_MSG, Entry, encode_entry
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.registry import RegistryView, fold_tree
from orchestrator.rollouts.tree_log import tree_log
from orchestrator.views import tree_past
from orchestrator.views.tree_past import TreePast
from tests.broker.actors import session_id, step, working


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    double = fakeredis.FakeAsyncRedis()
    opened = Broker(Connection(double, double), BrokerConfig(lease_s=60.0), lambda: 0.0)
    await opened.open()
    yield opened
    await opened.aclose()


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_past, "RUNG", 4)
    monkeypatch.setattr(tree_past, "SLICE", 3)


def told(number: int, event: str, status: str, session: SessionId, root: SessionId) -> TreeEvent:
    """An event of an agent's life, with its record."""
    record = {
        "agent_id": number,
        "session_id": session,
        "parent_agent_id": 0,
        "parent_session_id": root,
        "origin": "spawn",
        "label": f"a{number}",
        "status": status,
        "turn": "",
        "agent_path": f"0/{number}",
        "started_at_ms": 1,
    }
    message = {
        "type": "subagent_lifecycle",
        "event": event,
        "status": status,
        "agent_id": number,
        "session_id": session,
    }
    payload = orjson.dumps({"id": "", "msg": message})
    return TreeEvent((payload,), (), about=orjson.dumps({"record": record}))


async def grown(broker: Broker, agents: int) -> tuple[Claimed, Committed]:
    """A tree whose agents are born, run and come to an end, one after the other."""
    held = await working(broker)
    at: Any = held
    root, born = held.claim.session, {number: session_id() for number in range(1, agents + 1)}
    for number, session in born.items():
        for event, status in (("created", "queued"), ("status", "running"), ("status", "ready")):
            line = encode_entry(
                Entry(EVENT_MSG, {"type": "agent_message", "message": f"{status} {number}"}),
                await broker.server_ms(),
                {},
            ).line
            events = (told(number, event, status, session, root),)
            at = await broker.commits.commit(
                step(at, held.claim, f"{number} {status}", [line], tree_events=events)
            )
            assert isinstance(at, Committed)
    return held, at


def facts(view: RegistryView) -> Any:
    return {number: (agent.status, agent.path) for number, agent in view.agents.items()}, view.spawned


async def test_tree_at_each_entry_is_the_fold_of_its_log_up_to_there(broker: Broker) -> None:
    held, at = await grown(broker, 3)
    tree = TreeId(held.claim.tree)
    past, log = TreePast(broker, tree), await tree_log(broker, tree)
    await past.read_on()
    assert past.read == len(log) == 9
    head = await broker.logs.head(held.claim.session)
    assert head is not None
    for seq in range(1, 10):
        found = await past.at(seq, head)
        assert facts(found.view) == facts(fold_tree(log[:seq]))
        assert found.tree_seq == seq
    for wrong in (0, 10):
        with pytest.raises(ValueError, match="entries 1 to 9"):
            await past.at(wrong, head)
    more = told(1, "deleted", "idle", session_id(), held.claim.session)
    await broker.commits.commit(step(at, held.claim, "more", tree_events=(more,)))
    await past.read_on()
    assert facts((await past.at(10, head)).view) == facts(fold_tree(await tree_log(broker, tree)))


async def test_root_s_line_and_place_are_those_of_then(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, _ = await grown(broker, 2)
    past = TreePast(broker, TreeId(held.claim.tree))
    await past.read_on()
    head = await broker.logs.head(held.claim.session)
    assert head is not None
    last = (await past.at(6, head)).agents[0]
    assert (last.seq, last.doing and last.doing.last) == (6, "ready 2")
    # Entries of one moment are told apart by no clock: the last of them counts.
    third = (await past.at(3, head)).agents[0]
    assert third.seq in range(3, 7)


async def test_timeline_counts_every_entry_once_and_marks_births_and_ends(broker: Broker) -> None:
    held, _ = await grown(broker, 4)
    past = TreePast(broker, TreeId(held.claim.tree))
    await past.read_on()
    for buckets in (1, 2, 400):
        found = past.timeline(buckets)
        assert sum(bar.entries for bar in found.buckets) == found.tree_seq == 12
        assert len(found.buckets) <= buckets
    kinds = [mark.kind for mark in past.timeline(10).marks]
    assert kinds == ["spawn", "end"] * 4
    assert past.timeline(10).gaps == ()


async def test_takeover_is_a_mark_with_words_of_its_own(broker: Broker) -> None:
    held, at = await grown(broker, 1)
    told = {"type": "subagent_lifecycle", "event": "updated", "agent_id": 1, "session_id": "s"}
    about = orjson.dumps({"agent_id": 1, "takeover": 2})
    event = TreeEvent((orjson.dumps({"id": "", "msg": told}),), (), about=about)
    await broker.commits.commit(step(at, held.claim, "takes over", tree_events=(event,)))
    past = TreePast(broker, TreeId(held.claim.tree))
    await past.read_on()
    mark = past.timeline(10).marks[-1]
    assert (mark.kind, mark.line.agent_id) == ("takeover", 1)
    assert mark.line.text == "agent 1: its worker was lost, and another took over"


async def test_pause_of_more_than_five_minutes_is_a_gap(broker: Broker) -> None:
    held, _ = await grown(broker, 2)
    key = broker.keys.tree(held.claim.tree)
    await broker.command("DEL", key)
    for number, at_ms in enumerate((1_000, 2_000, 400_000, 401_000), 1):
        event = told(number, "created", "queued", session_id(), held.claim.session)
        fields = ("p", event.parts[0], "s", held.claim.session, "q", 1, "h", "", "d", "", "t", at_ms)
        await broker.command("XADD", key, f"{number}-0", *fields, "a", event.about)
    past = TreePast(broker, TreeId(held.claim.tree))
    await past.read_on()
    found = past.timeline(3)
    assert (found.first_ms, found.last_ms, found.gaps) == (1_000, 401_000, ((2_000, 400_000),))
    assert [bar.entries for bar in found.buckets] == [2, 1, 1], "no bar goes over the gap"


async def test_past_is_read_anew_where_redis_was_put_back(broker: Broker) -> None:
    held, _ = await grown(broker, 2)
    tree = TreeId(held.claim.tree)
    past = TreePast(broker, tree)
    await past.read_on()
    for number in range(3, 7):
        await broker.command("XDEL", broker.keys.tree(tree), f"{number}-0")
    await past.read_on()
    assert past.read == 2
