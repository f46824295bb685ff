"""The feed of the fleet: sessions that lists show otherwise are told, whatever happened to the notices."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import pytest

from orchestrator.broker import fleet_feed
from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import Unavailable
from orchestrator.broker.fleet_feed import FleetFeed
from orchestrator.broker.records import Claimed, Committed, Labels, NewTree
from orchestrator.core.commit_parts import Approval, OutboundMessage
from orchestrator.core.ids import AgentId, SessionId
from tests.broker.actors import SHARD, claimed, created, new_session, session_id, step, submitted, working


async def following(broker: Broker, namespace: str | None = None) -> FleetFeed:
    feed = broker.fleet_feed(namespace)
    assert (await feed.changes()).anew
    return feed


async def told(feed: FleetFeed, timeout_s: float = 30.0) -> dict[SessionId, tuple[str, str]]:
    """The status and the holder of each session that was told of; `gone` of one that is not there."""
    changes = await feed.changes(timeout_s)
    assert not changes.anew
    found = {head.session: (head.status, head.holder or "") for head in changes.heads}
    return found | dict.fromkeys(changes.gone, ("gone", ""))


async def notices(broker: Broker) -> int:
    found = await broker.command("XLEN", broker.keys.changed(SHARD))
    assert isinstance(found, int)
    return found


async def commits(broker: Broker, at: Claimed | Committed, held: Claimed, id: str, **more: Any) -> Committed:
    done = await broker.commits.commit(step(at, held.claim, id, **more))
    assert isinstance(done, Committed)
    return done


async def test_follower_is_told_of_each_step_of_a_session_s_life(broker: Broker) -> None:
    feed = await following(broker)
    session = await created(broker)
    assert await told(feed) == {session: ("idle", "")}
    waiting = asyncio.create_task(told(feed))
    await submitted(broker, session)
    assert await waiting == {session: ("idle", "")}
    held = await claimed(broker, session)
    assert await told(feed) == {session: ("idle", "w1")}
    at = await commits(broker, held, held, "works", status="running")
    assert await told(feed) == {session: ("running", "w1")}
    at = await commits(broker, at, held, "rests", status="idle", cursor=held.sq_tip, release="park")
    assert await told(feed) == {session: ("idle", "")}
    await broker.trees.enlist(session, shelve=True)
    (head,) = (await feed.changes()).heads
    assert head.shelved
    await broker.trees.delete_session(session)
    assert await told(feed) == {session: ("gone", "")}
    await feed.aclose()


async def test_session_that_cannot_be_read_hides_no_other_and_is_not_told_gone(broker: Broker) -> None:
    feed = await following(broker)
    damaged, sound = await created(broker), await created(broker)
    key = broker.keys.session(damaged)
    await broker.command("HSET", key, "seq", "many")
    assert await told(feed) == {sound: ("idle", "")}
    await submitted(broker, sound)
    assert await told(feed) == {sound: ("idle", "")}, "the feed goes on"
    await broker.command("HSET", key, "seq", "0")
    await submitted(broker, damaged)
    assert await told(feed) == {damaged: ("idle", "")}
    await feed.aclose()


async def test_follower_is_told_of_a_name_and_a_title_and_of_no_step_that_lists_do_not_show(
    broker: Broker,
) -> None:
    held = await working(broker)
    at = await commits(broker, held, held, "begins", status="running")
    feed = await following(broker)
    at = await commits(broker, at, held, "works on", status="running", approvals_open=(Approval("c", b"?"),))
    assert await notices(broker) == 1, "the birth's"
    at = await commits(broker, at, held, "is named", status="running", name="The name")
    assert [head.name for head in (await feed.changes()).heads] == ["The name"]
    await commits(broker, at, held, "has a title", status="running", meta=b'{"title":"words"}')
    assert [head.summary for head in (await feed.changes()).heads] == [{"title": "words"}]
    await feed.aclose()


async def test_follower_is_told_of_agents_that_are_made_and_written_to(broker: Broker) -> None:
    held = await working(broker)
    root = held.claim.session
    child = new_session(tree=held.claim.tree, agent_id=AgentId(1), parent=root)
    feed = await following(broker)
    at = await commits(broker, held, held, "makes", children=(child,))
    assert await told(feed) == {child.session: ("idle", "")}
    mail = OutboundMessage(child.session, "message", b"do", "m1")
    await commits(broker, at, held, "writes", outbox=(mail,))
    assert await told(feed) == {child.session: ("idle", "")}
    assert (await broker.logs.serving(await broker.logs.heads([child.session])))[child.session].due
    await feed.aclose()


async def test_claims_and_steps_write_no_notice_where_nobody_follows(broker: Broker) -> None:
    held = await working(broker)
    at = await commits(broker, held, held, "works", status="running", name="The name")
    await commits(broker, at, held, "rests", status="idle", cursor=held.sq_tip, release="park")
    assert await notices(broker) == 1, "the birth's"


async def test_scripts_believe_a_follower_for_a_minute(broker: Broker) -> None:
    session = await created(broker)
    now_ms = await broker.server_ms()
    watched = broker.keys.watched(SHARD)
    await broker.command("XADD", watched, f"{now_ms - 61_000}-0", "f", "1")
    await submitted(broker, session)
    assert await notices(broker) == 1
    await broker.command("XADD", watched, f"{now_ms - 30_000}-0", "f", "1")
    await claimed(broker, session)
    assert await notices(broker) == 2


async def test_follower_says_again_and_again_that_it_follows(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, watched = await following(broker), broker.keys.watched(SHARD)
    before = await broker.command("XREVRANGE", watched, "+", "-")
    await created(broker)
    await feed.changes()
    assert await broker.command("XREVRANGE", watched, "+", "-") == before
    monkeypatch.setattr(fleet_feed, "WATCH_S", 0.0)
    await created(broker)
    await feed.changes()
    again = await broker.command("XREVRANGE", watched, "+", "-")
    assert isinstance(again, list)
    assert again != before
    assert len(again) == 1
    await feed.aclose()


async def test_follower_finds_what_a_worker_of_an_earlier_version_did(broker: Broker) -> None:
    held = await working(broker)
    feed = await following(broker)
    assert await told(feed, 0.05) != {}, "its birth and its claim are not long ago"
    await commits_silently(broker, held)
    assert held.claim.session in await told(feed, 0.05)
    await feed.aclose()


async def test_follower_that_does_not_wait_finds_it_too_and_looks_now_and_then(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await working(broker)
    feed = await following(broker)
    monkeypatch.setattr(fleet_feed, "GROWN_S", 0.0)
    await commits_silently(broker, held)
    assert held.claim.session in await told(feed, 0.0)
    monkeypatch.setattr(fleet_feed, "GROWN_S", 3600.0)
    await commits_silently(broker, held)
    assert await told(feed, 0.0) == {}
    await feed.aclose()


async def commits_silently(broker: Broker, held: Claimed) -> None:
    """As a worker does that knows of no followers: its session is among the last that were changed."""
    session, key = held.claim.session, broker.keys.sessions(SHARD)
    await broker.command("ZADD", key, await broker.server_ms(), session)


async def test_follower_reads_anew_where_redis_went_back(broker: Broker) -> None:
    session = await created(broker)
    feed = await following(broker)
    await submitted(broker, session)
    assert await told(feed) == {session: ("idle", "")}
    (newest,) = await entries(broker, 1)
    await broker.command("XDEL", broker.keys.changed(SHARD), newest)
    assert (await feed.changes(0.05)).anew
    await created(broker)
    assert not (await feed.changes()).anew
    await feed.aclose()


async def entries(broker: Broker, count: int) -> list[bytes]:
    found = await broker.command("XREVRANGE", broker.keys.changed(SHARD), "+", "-", "COUNT", count)
    assert isinstance(found, list)
    return [entry[0] for entry in found]


async def test_feed_of_a_namespace_tells_of_no_other(broker: Broker) -> None:
    feed = await following(broker, "ours")
    for namespace in ("theirs", "ours"):
        await broker.commits.create(NewTree(new_session(), labels=Labels(namespace)))
    found = (await feed.changes()).heads
    if not found:
        found = (await feed.changes()).heads
    assert [head.labels.namespace for head in found] == ["ours"]
    await feed.aclose()


@pytest.mark.parametrize("shard", [0, 3, 15])
@pytest.mark.parametrize("how", ["changed", "released", "asked"])
async def test_follower_is_told_by_each_stream_of_each_shard(broker: Broker, how: str, shard: int) -> None:
    sessions = [await created(broker, session_id(at)) for at in (shard, shard, 7)]
    for session in sessions:
        await submitted(broker, session)
    held = [await claimed(broker, session, "w1", f"claim of {session}") for session in sessions[:2]]
    feed = await following(broker)
    for one in held:
        if how == "released":
            await broker.claims.release(one.claim)
        elif how == "asked":
            await commits(broker, one, one, "asks", approvals_open=(Approval("c", b"?"),))
        else:
            await broker.requests.note(one.claim.session, "git", b'{"branch":"main"}', b"")
    found = await feed.changes(5.0)
    assert (found.told, {head.session for head in found.heads}, found.gone) == (True, set(sessions[:2]), ())
    assert await told(feed, 0.0) == {}
    await feed.aclose()


async def test_follower_that_was_cut_off_or_was_silent_for_long_reads_anew(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [0.0]
    feed = FleetFeed(broker._connection, broker.keys, broker.logs, lambda: seconds[0], None)
    assert (await feed.changes()).anew
    session = await created(broker)

    async def is_away(*_: object) -> NoReturn:
        raise Unavailable("it is away")

    with monkeypatch.context() as away:
        away.setattr(broker.logs, "heads", is_away)
        with pytest.raises(Unavailable):
            await feed.changes()
    assert (await feed.changes()).anew
    await submitted(broker, session)
    seconds[0] = fleet_feed.BELIEVED_S
    assert session in await told(feed)
    await created(broker)
    seconds[0] = 2 * fleet_feed.BELIEVED_S + 0.1
    assert (await feed.changes()).anew, "nobody believed any more that it follows"
    await feed.aclose()
