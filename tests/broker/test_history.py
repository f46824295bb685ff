"""The history of prompts that all sessions of a person share."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.broker import open_requests
from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import Corrupt
from orchestrator.broker.open_requests import KeptPrompt, person_of
from tests.broker.actors import Backend, session_id

NOISE = b"\x01\x02\x03\x04\x05\x06\x07\x08"


async def add(broker: Broker, text: str, key: str = "", who: str = "anna@one") -> bool:
    return await broker.requests.add_to_history(who, key or text, (session_id(), text), NOISE)


async def texts(broker: Broker, who: str = "anna@one") -> list[str | None]:
    head = await broker.requests.history_head(who, NOISE)
    found = [await broker.requests.history_entry(who, head.log_id, at) for at in range(head.count)]
    return [kept.text if kept else None for kept in found]


async def test_sessions_of_a_person_on_two_machines_share_a_history(broker: Broker) -> None:
    session = session_id()
    await broker.requests.add_to_history("anna@one", "k1", (session, "first"), NOISE)
    head = await broker.requests.history_head("anna@two", NOISE)
    kept = await broker.requests.history_entry("anna@two", head.log_id, 0)
    assert kept is not None
    assert kept == KeptPrompt(session, kept.at_ms, "first")
    assert abs(kept.at_ms - broker.now_ms()) < 10_000
    assert head.count == 1


async def test_another_person_reads_nothing_of_it(broker: Broker) -> None:
    await add(broker, "secret")
    mine = await broker.requests.history_head("anna@one", NOISE)
    assert await broker.requests.history_entry("bob@one", mine.log_id, 0) is None
    assert (await broker.requests.history_head("bob@one", NOISE)).count == 0


NAMESAKES = (
    "anna@host",
    "openid:anna@one",
    "openid:anna@two",
    "openid:anna",
    "acme/openid:anna@one",
    "acme/anna",
)


async def test_each_of_several_namesakes_has_a_history_of_their_own(broker: Broker) -> None:
    for who in NAMESAKES:
        await add(broker, f"of {who}", who=who)
    for who in NAMESAKES:
        assert await texts(broker, who) == [f"of {who}"]
    assert await broker.requests.forget_prompts("openid:anna@two", bool) == 1
    assert [await texts(broker, who) for who in NAMESAKES] == [
        [None if who == "openid:anna@two" else f"of {who}"] for who in NAMESAKES
    ]


async def test_prompt_that_is_added_twice_under_one_key_is_kept_once(broker: Broker) -> None:
    assert await add(broker, "once", "k")
    assert not await add(broker, "once", "k")
    assert await texts(broker) == ["once"]


async def test_two_that_add_one_prompt_at_the_same_time_keep_it_once(broker: Broker) -> None:
    done = await asyncio.gather(*(add(broker, "once", "k") for _ in range(8)))
    assert sorted(done) == [False] * 7 + [True]
    assert await texts(broker) == ["once"]


async def test_place_in_another_log_holds_nothing(broker: Broker) -> None:
    await add(broker, "here")
    head = await broker.requests.history_head("anna@one", NOISE)
    assert await broker.requests.history_entry("anna@one", head.log_id + 1, 0) is None
    for beyond in (1, 2**63, 2**64):
        assert await broker.requests.history_entry("anna@one", head.log_id, beyond) is None


async def test_log_keeps_the_id_that_it_was_first_seen_with(broker: Broker) -> None:
    before = await broker.requests.history_head("anna@one", b"\0" * 8)
    await add(broker, "first")
    after = await broker.requests.history_head("anna@one", b"\xff" * 8)
    assert (before.log_id, before.count) == (1, 0)
    assert (after.log_id, after.count) == (1, 1)


async def test_oldest_prompts_go_and_the_others_keep_their_places(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_requests, "MOST_ENTRIES", 3)
    for number in range(5):
        await add(broker, f"prompt {number}")
    assert await texts(broker) == [None, None, "prompt 2", "prompt 3", "prompt 4"]
    # Its key went with it: the log's memory of keys is as short as the log.
    assert await add(broker, "prompt 0")


async def test_prompts_take_no_more_bytes_than_a_history_may(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_requests, "MOST_BYTES", 100)
    for number in range(5):
        await add(broker, f"{number}" * 30)
    assert await texts(broker) == [None, None, "2" * 30, "3" * 30, "4" * 30]
    await add(broker, "5" * 100)
    assert await texts(broker) == [None] * 5 + ["5" * 100]


async def test_forgotten_prompts_leave_their_room_and_keys_and_others_their_places(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_requests, "MOST_BYTES", 100)
    monkeypatch.setattr(open_requests, "_FORGOTTEN_AT_ONCE", 2)
    for number in range(1, 6):
        await add(broker, f"{number}" * 20)
    assert await broker.requests.forget_prompts("anna@one", lambda text: "3" not in text) == 4
    assert await texts(broker) == [None, None, "3" * 20, None, None]
    assert await broker.requests.forget_prompts("anna@two", lambda text: "3" not in text) == 0
    assert await add(broker, "1" * 20)
    assert await add(broker, "6" * 60)
    assert await texts(broker) == [None, None, "3" * 20, None, None, "1" * 20, "6" * 60]


@pytest.mark.parametrize("left", [0, 5])
async def test_history_that_an_earlier_version_forgot_takes_prompts_again(
    left: int, backend: Backend, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on counting the bytes of what it forgot."""
    monkeypatch.setattr(open_requests, "MOST_BYTES", 100)
    await add(broker, "1" * (100 - left))
    if left:
        await add(broker, "2" * left)
    connection = backend.connect()
    await connection.command("XDEL", broker.keys.history("anna")[0], "1-0")
    await connection.aclose()
    assert await add(broker, "3" * 20)
    assert await add(broker, "4" * 80)
    assert (await texts(broker))[-2:] == ["3" * 20, "4" * 80]


async def test_history_under_a_key_of_another_type_is_damaged(backend: Backend, broker: Broker) -> None:
    log, _ = broker.keys.history("anna")
    connection = backend.connect()
    await connection.command("SET", log, "x")
    await connection.aclose()
    with pytest.raises(Corrupt):
        await add(broker, "first")


@pytest.mark.parametrize("who", ["}{s0}:x@host", "a" * 10_000 + "@host", "ä\udcff@host"])
async def test_name_with_anything_in_it_has_a_history(who: str, broker: Broker) -> None:
    await add(broker, "mine", who=who)
    assert await texts(broker, who) == ["mine"]


def test_person_is_the_sender_without_the_machine() -> None:
    senders = ("anna@host", "a@b@host", "anna", "", "openid@host", "a/openid@host", "acme/ci")
    people = ["anna", "a@b", "anna", "", "openid", "a/openid", "acme/ci"]
    assert [person_of(who) for who in senders] == people
