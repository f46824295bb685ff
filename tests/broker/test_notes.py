"""Notes about sessions: kept by name, replaced by whoever knows them, gone with the session."""

from __future__ import annotations

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.open_requests import MOST_NOTES, TooManyNotes
from tests.broker.actors import created, session_id


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
