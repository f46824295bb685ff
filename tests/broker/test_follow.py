"""Following: nothing missed, nothing twice, and a gap is told and filled from the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from random import Random
from typing import Any

import pytest

from orchestrator.broker import logs as logs_module
from orchestrator.broker.broker import Broker
from orchestrator.broker.follow import (
    BEGINNING,
    CaughtUp,
    EqCursor,
    Followed,
    Gap,
    Item,
    Replayed,
    follow,
    hash8_of,
)
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import Claimed, Committed, Emitted, Place, StoredEvent
from orchestrator.core.commit_parts import NewEvent
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId
from tests.broker.actors import entries_after, step, working


async def take(broker: Broker, session: SessionId, cursor: EqCursor, count: int) -> list[Item]:
    items: list[Item] = []
    async with aclosing(follow(broker.logs, session, cursor, idle_s=5.0)) as following:
        async for item in following:
            items += singly(item)
            if len(items) >= count:
                break
    return items[:count]


def singly(item: Item) -> list[Item]:
    """An item; of several events, one for each."""
    return [Followed((event,)) for event in item.events] if isinstance(item, Followed) else [item]


def payloads(items: list[Item]) -> list[bytes]:
    return [event.payload for item in items if isinstance(item, Followed) for event in item.events]


async def commits(broker: Broker, held: Claimed, count: int) -> Committed:
    return await commits_after(broker, held, held, count)


async def commits_after(broker: Broker, held: Claimed, at: Claimed | Committed, count: int) -> Committed:
    for _ in range(count):
        done = await broker.commits.commit(
            step(at, held.claim, f"k{at.seq}", [f"entry {at.seq + 1}".encode()])
        )
        assert isinstance(done, Committed)
        at = done
    assert isinstance(at, Committed)
    return at


async def test_follower_gets_every_event_and_comes_back_with_its_cursor(broker: Broker) -> None:
    held = await working(broker)
    await commits(broker, held, 3)
    items = await take(broker, held.claim.session, BEGINNING, 3)
    assert [type(item) for item in items] == [Followed] * 3
    second = items[1]
    assert isinstance(second, Followed)
    later = await take(broker, held.claim.session, EqCursor.parse(str(second.cursor)), 1)
    assert later == items[2:]


async def test_follower_of_a_trimmed_queue_is_served_from_the_log_and_then_live(broker: Broker) -> None:
    held = await working(broker)
    done = await commits(broker, held, 4)
    session = held.claim.session
    first = (await take(broker, session, BEGINNING, 1))[0]
    assert isinstance(first, Followed)
    await broker.command("XTRIM", broker.keys.eq(session), "MINID", "4-0")
    items = await take(broker, session, first.cursor, 5)
    assert items[0] == Gap("trimmed", 1, 0)
    assert [i.entry.payload for i in items if isinstance(i, Replayed)] == [b"entry 2", b"entry 3", b"entry 4"]
    caught_up = items[-1]
    assert isinstance(caught_up, CaughtUp)
    await broker.commits.emit(held.claim, [NewEvent(b"delta", done.seq, hash8_of(done.head))])
    live = await take(broker, session, caught_up.cursor, 1)
    assert payloads(live) == [b"delta"]


async def test_follower_that_has_seen_all_survives_the_queue_s_expiry(broker: Broker) -> None:
    held = await working(broker)
    done = await commits(broker, held, 2)
    session = held.claim.session
    await broker.command("DEL", broker.keys.eq(session))
    head = await broker.logs.head(session)
    assert head is not None
    await broker.commits.emit(held.claim, [NewEvent(b"delta", done.seq, hash8_of(done.head))])
    live = await take(broker, session, EqCursor.at(head), 1)
    assert payloads(live) == [b"delta"]


async def test_follower_at_the_end_misses_nothing_of_a_commit_between_two_of_its_reads(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await working(broker)
    done = await commits(broker, held, 1)
    # The log's last entry has no event, as when a session parks: the cursor's hash is not its event's.
    silent = await broker.commits.commit(step(done, held.claim, "silent", [b"no event"], events=()))
    assert isinstance(silent, Committed)
    session = held.claim.session
    head = await broker.logs.head(session)
    assert head is not None
    read, worked = broker.logs.read_eq, False

    async def read_before_the_commit(*place: Any) -> tuple[StoredEvent, ...]:
        nonlocal worked
        found = await read(*place)
        if not worked:
            worked = True
            await broker.commits.commit(step(silent, held.claim, "meanwhile", [b"with an event"]))
        return found

    monkeypatch.setattr(broker.logs, "read_eq", read_before_the_commit)
    (found,) = await take(broker, session, EqCursor.at(head), 1)
    assert isinstance(found, Followed), found
    assert found.cursor.n == head.eq_n + 1


@pytest.mark.parametrize("seed", range(6))
async def test_follower_sees_each_event_once_wherever_commits_fall_between_its_reads(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng, held = Random(seed), await working(broker)
    session, at = held.claim.session, await commits(broker, held, 2)

    async def works(most: int) -> None:
        nonlocal at
        for _ in range(rng.randint(0, most)):
            shown = {} if rng.random() < 0.5 else {"events": ()}
            done = await broker.commits.commit(step(at, held.claim, f"{at.seq}", [b"entry"], **shown))
            assert isinstance(done, Committed)
            at = done

    def interrupted(read: Any) -> Any:
        async def reads(*place: Any) -> Any:
            await works(1)
            found = await read(*place)
            await works(1)
            return found

        return reads

    for _ in range(5):
        await works(2)
        head = await broker.logs.head(session)
        assert head is not None
        with monkeypatch.context() as between:
            for name in ("read_eq", "head", "read_rollout"):
                between.setattr(broker.logs, name, interrupted(getattr(broker.logs, name)))
            between.setattr(broker.logs, "wait_eq", partial(_some, broker, works))
            between.setattr(broker.logs, "wait_behind", partial(_some_behind, broker, works))
            items = await take(broker, session, EqCursor.at(head), 6)
        numbers = [item.cursor.n for item in items if isinstance(item, Followed)]
        assert numbers == list(range(head.eq_n + 1, head.eq_n + 7)), items


async def _some(
    broker: Broker, works: Callable[[int], Awaitable[None]], session: SessionId, after_n: int, _: float
) -> tuple[StoredEvent, ...]:
    """Waits for events while others work, and answers with a few of them."""
    found: tuple[StoredEvent, ...] = ()
    while not found:
        await works(2)
        found = tuple(await Logs.read_eq(broker.logs, session, after_n, 2))
    return found


async def _some_behind(
    broker: Broker,
    works: Callable[[int], Awaitable[None]],
    session: SessionId,
    at: EqCursor,
    timeout_s: float,
) -> tuple[StoredEvent, ...] | None:
    await works(1)
    if not any(map(at.names, await Logs.read_eq(broker.logs, session, at.n - 1, 1))):
        return None
    return await _some(broker, works, session, at.n, timeout_s)


async def test_follower_waits_only_behind_the_event_that_it_has_seen(broker: Broker) -> None:
    held = await working(broker)
    done = await commits(broker, held, 2)
    session = held.claim.session
    first, last = [EqCursor(e.n, e.seq, e.hash8) for e in await broker.logs.read_eq(session)]
    found = await broker.logs.wait_behind(session, first, 5.0)
    assert found is not None
    assert [event.n for event in found] == [2]
    assert await broker.logs.wait_behind(session, last, 0.001) == ()
    for other in (replace(last, hash8="deadbeef"), replace(last, seq=7), replace(last, n=7)):
        # At once: it would wait for an hour.
        assert await broker.logs.wait_behind(session, other, 3_600.0) is None
    waits = asyncio.create_task(broker.logs.wait_behind(session, last, 3_600.0))
    await broker.commits.emit(held.claim, [NewEvent(b"delta", done.seq, hash8_of(done.head))])
    found = await waits
    assert found is not None
    assert [event.payload for event in found] == [b"delta"]


async def test_follower_of_a_newborn_session_only_waits_until_it_has_seen_an_event(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await working(broker)
    done = await commits(broker, held, 1)
    session = held.claim.session

    async def looks(*place: Any) -> Any:
        raise AssertionError("a newborn session was looked at")

    with monkeypatch.context() as blind:
        for name in ("read_eq", "head", "read_rollout"):
            blind.setattr(broker.logs, name, looks)
        following = follow(broker.logs, session, BEGINNING, newborn=True)
        assert isinstance(await anext(following), Followed)
    async with aclosing(following):
        await commits_after(broker, held, done, 3)
        await broker.command("XTRIM", broker.keys.eq(session), "MINID", "4-0")
        assert await anext(following) == Gap("trimmed", 1, 0)


async def test_head_that_is_remembered_tells_place_and_namespace_without_a_read(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await working(broker)
    head = await broker.logs.head(held.claim.session)
    assert head is not None
    broker.logs.remember(replace(head, labels=replace(head.labels, namespace="acme")))
    assert await broker.logs.place(head.session) == Place(head.session, head.tree, head.pool)
    assert await broker.logs.namespace(head.session) == "acme"


async def test_follower_hears_of_a_gap_though_it_has_seen_events(broker: Broker) -> None:
    held = await working(broker)
    done = await commits(broker, held, 2)
    session = held.claim.session
    following = follow(broker.logs, session, BEGINNING)
    async with aclosing(following):
        seen = await anext(following)
        assert isinstance(seen, Followed)
        assert [event.n for event in seen.events] == [1, 2]
        await commits_after(broker, held, done, 3)
        await broker.command("XTRIM", broker.keys.eq(session), "MINID", "5-0")
        assert await anext(following) == Gap("trimmed", 2, 0)
        replayed = [await anext(following) for _ in range(3)]
    assert [item.entry.seq for item in replayed if isinstance(item, Replayed)] == [3, 4, 5]


async def test_follower_gets_what_happens_while_the_log_fills_its_gap(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await working(broker)
    at = await commits(broker, held, 4)
    session = held.claim.session
    (first,) = await take(broker, session, BEGINNING, 1)
    assert isinstance(first, Followed)
    await broker.command("XTRIM", broker.keys.eq(session), "MINID", "4-0")
    read = broker.logs.read_rollout

    async def read_before_the_commit(*place: Any) -> Any:
        nonlocal at
        found = await read(*place)
        at = await commits_after(broker, held, at, 1)
        return found

    monkeypatch.setattr(broker.logs, "read_rollout", read_before_the_commit)
    following = follow(broker.logs, session, first.cursor)
    async with aclosing(following):
        told = [await anext(following)]
        while not isinstance(told[-1], CaughtUp):
            told.append(await anext(following))
        monkeypatch.setattr(broker.logs, "read_rollout", read)
        at = await commits_after(broker, held, at, 1)
        live: list[StoredEvent] = []
        while not live or live[-1].seq < at.seq:
            found = await anext(following)
            assert isinstance(found, Followed)
            live += found.events
    replayed = [item.entry.seq for item in told if isinstance(item, Replayed)]
    assert replayed + [event.seq for event in live] == list(range(2, at.seq + 1))


async def test_follower_of_a_branch_that_never_happened_is_told_and_starts_over(broker: Broker) -> None:
    held = await working(broker)
    await commits(broker, held, 2)
    for lost in (EqCursor(2, 2, "deadbeef"), EqCursor(9, 7, "deadbeef"), EqCursor(9, 2, "deadbeef")):
        items = await take(broker, held.claim.session, lost, 4)
        assert items[0] == Gap("rewound", 0, 0)
        assert [i.entry.seq for i in items if isinstance(i, Replayed)] == [1, 2]
        assert isinstance(items[-1], CaughtUp)


async def test_follower_ahead_of_a_queue_that_lost_its_last_events_and_no_entry_is_told(
    broker: Broker,
) -> None:
    held = await working(broker)
    done = await commits(broker, held, 2)
    (gap,) = await take(broker, held.claim.session, EqCursor(9, done.seq, hash8_of(done.head)), 1)
    assert gap == Gap("trimmed", 2, 0)


async def test_follower_of_a_log_that_is_sealed_between_two_of_its_reads_is_told_of_no_going_back(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await working(broker)
    done = await commits(broker, held, 3)
    session, read = held.claim.session, broker.logs.read_rollout
    await broker.commits.snapshot(held.claim, done.seq, b"snapshot")
    seen = EqCursor.behind((await broker.logs.read_eq(session))[1])
    await broker.command("DEL", broker.keys.eq(session))

    async def sealed_before(*place: Any) -> Any:
        await broker.commits.seal(held.claim, done.seq, b"manifest")
        return await read(*place)

    monkeypatch.setattr(broker.logs, "read_rollout", sealed_before)
    (gap,) = await take(broker, session, seen, 1)
    assert isinstance(gap, Gap)
    assert gap.reason == "trimmed"


@pytest.mark.parametrize("text", ["", "1.2", "1.2.abc", "x.2.00000000", "1.2.zzzzzzzz", "-1.2.00000000"])
def test_client_s_broken_cursor_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        EqCursor.parse(text)


async def test_event_has_the_time_of_its_entry_and_a_delta_that_of_the_server(broker: Broker) -> None:
    held = await working(broker)
    entries = entries_after(held.head, held.seq, held.claim.epoch, [b"entry"])
    event = NewEvent(b"event", held.seq + 1, hash8_of(entries[0].chain), at_ms=1_700_000_000_123)
    done = await broker.commits.commit(step(held, held.claim, "timed", [b"entry"], events=(event,)))
    assert isinstance(done, Committed)
    emitted = await broker.commits.emit(held.claim, [NewEvent(b"delta", done.seq, hash8_of(done.head))])
    assert isinstance(emitted, Emitted)
    shown = await take(broker, held.claim.session, BEGINNING, 2)
    times = [event.at_ms for item in shown if isinstance(item, Followed) for event in item.events]
    assert times == [1_700_000_000_123, emitted.now_ms]


async def test_events_are_read_back_from_the_end_or_from_a_place(broker: Broker) -> None:
    held = await working(broker)
    await commits(broker, held, 6)
    session = held.claim.session

    async def numbers(before_n: int | None, count: int) -> list[int]:
        return [event.n for event in await broker.logs.read_eq_back(session, before_n, count)]

    assert await numbers(None, 2) == [6, 5]
    assert await numbers(5, 2) == [4, 3]
    assert await numbers(2, 9) == [1]
    assert await numbers(1, 9) == []
    assert [event.n for event in await broker.logs.read_eq(session, 4, 1)] == [5]
    await broker.command("XTRIM", broker.keys.eq(session), "MINID", "4-0")
    assert await numbers(None, 9) == [6, 5, 4]


async def test_logs_of_several_sessions_are_read_each_from_its_place_and_a_damaged_one_alone_is_missing(
    broker: Broker,
) -> None:
    held = [await working(broker) for _ in range(4)]
    for one in held[:3]:
        await commits(broker, one, 4)
    sessions = [one.claim.session for one in held]
    await broker.command("XADD", broker.keys.rollout(sessions[1]), "5-0", "p", "no entry")
    asks = [(sessions[0], 1, 2), (sessions[1], 2, 9), (sessions[3], 0, 9), (sessions[2], 3, 9)]
    found = await broker.logs.read_rollouts(asks)
    assert [None if one is None else [entry.seq for entry in one] for one in found] == [[2, 3], None, [], [4]]
    assert await broker.logs.read_rollouts([]) == []
    assert await broker.logs.ends([sessions[2], sessions[3], SessionId(sessions[0])]) == [4, 0, 4]


async def test_tip_of_each_session_is_told_and_none_of_one_that_is_not_there_or_cannot_be_read(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_module, "_HEADS", 3)
    held = [await working(broker) for _ in range(6)]
    done = [await commits(broker, one, number + 1) for number, one in enumerate(held)]
    sessions = [one.claim.session for one in held]
    await broker.command("HSET", broker.keys.session(sessions[1]), "seq", "many")
    await broker.command("DEL", broker.keys.session(sessions[2]))
    await broker.command("DEL", broker.keys.session(sessions[4]))
    await broker.command("SET", broker.keys.session(sessions[4]), "x")
    tips = await broker.logs.tips(sessions)
    assert {session: (tip.seq, tip.head, tip.tree) for session, tip in tips.items()} == {
        sessions[at]: (done[at].seq, done[at].head, held[at].claim.tree) for at in (0, 3, 5)
    }
