"""Notes about sessions: kept by name, replaced by whoever knows them, gone with the session."""

from __future__ import annotations

import fakeredis
import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.open_requests import MOST_NOTES, TooManyNotes
from orchestrator.broker.records import BrokerConfig
from tests.broker.actors import created, session_id
from tests.broker.doubles import FakeClock, redis_time


async def test_note_is_kept_for_each_session_by_its_name(broker: Broker) -> None:
    one, other = await created(broker, session_id(1)), await created(broker, session_id(2))
    assert await broker.requests.note(one, "read:ann", b"1", b"") == b"1"
    assert await broker.requests.notes("read:ann", [one, other]) == [b"1", b""]
    assert await broker.requests.notes("read:ben", [one]) == [b""]


async def test_note_that_another_replaced_meanwhile_stays_and_is_told(broker: Broker) -> None:
    session = await created(broker)
    await broker.requests.note(session, "git", b"main", b"")
    assert await broker.requests.note(session, "git", b"mine", b"") == b"main"
    assert await broker.requests.notes("git", [session]) == [b"main"]
    assert await broker.requests.note(session, "git", b"mine", b"main") == b"mine"
    assert await broker.requests.note(session, "git", b"mine", b"main") == b"mine", "sent again"


async def test_session_that_there_is_not_gets_no_note(broker: Broker) -> None:
    with pytest.raises(UnknownSession):
        await broker.requests.note(session_id(1), "git", b"main", b"")


async def test_session_keeps_so_many_notes_and_goes_on_changing_them(broker: Broker) -> None:
    session = await created(broker)
    for number in range(MOST_NOTES):
        await broker.requests.note(session, f"n{number}", b"x", b"")
    with pytest.raises(TooManyNotes, match="256"):
        await broker.requests.note(session, "one more", b"x", b"")
    assert await broker.requests.note(session, "n0", b"y", b"x") == b"y"


async def test_notes_go_with_their_session(broker: Broker) -> None:
    session = await created(broker)
    await broker.requests.note(session, "git", b"main", b"")
    await broker.trees.delete_session(session)
    assert await broker.requests.notes("git", [session]) == [b""]


async def test_notes_of_sessions_are_told_in_the_order_that_was_asked_for(broker: Broker) -> None:
    sessions = [await created(broker, session_id(shard)) for shard in (3, 1, 3, 15)]
    for number, session in enumerate(sessions):
        await broker.requests.note(session, "read:ann", b"%d" % number, b"")
    asked = [sessions[2], sessions[0], session_id(3), sessions[3], sessions[1]]
    assert await broker.requests.notes("read:ann", asked) == [b"2", b"0", b"", b"3", b"1"]
    assert await broker.requests.notes("read:ann", []) == []


async def test_news_are_told_by_one_process_at_a_time_until_they_are_told_and_then_by_none_for_a_week() -> (
    None
):
    with redis_time(FakeClock()) as clock:
        client = fakeredis.FakeAsyncRedis()
        one, other = [Broker(Connection(client, client), BrokerConfig(), clock.monotonic) for _ in range(2)]
        assert await one.requests.take_news("n1", "one", 10_000) == "ours"
        assert await other.requests.take_news("n1", "other", 10_000) == "theirs"
        assert await other.requests.take_news("n2", "other", 10_000) == "ours", "each news for itself"
        clock.advance(6.0)
        await one.requests.keep_news("n1", "one", 10_000)
        clock.advance(6.0)
        assert await other.requests.take_news("n1", "other", 10_000) == "theirs", "its lease was renewed"
        assert await one.requests.take_news("n2", "one", 10_000) == "ours", "its lease was over"
        clock.advance(6.0)
        assert await other.requests.take_news("n1", "other", 10_000) == "ours"
        await other.requests.settle_news("n1")
        clock.advance(7 * 86_400.0 - 1.0)
        for broker in (one, other):
            assert await broker.requests.take_news("n1", "again", 10_000) == "told"
        clock.advance(2.0)
        assert await one.requests.take_news("n1", "one", 10_000) == "ours"
        await one.aclose()
