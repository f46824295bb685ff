"""Records of clients' tokens, kept beside all sessions."""

from __future__ import annotations

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.broker.records import BrokerConfig
from tests.broker.actors import Backend, everything
from tests.broker.doubles import FakeClock, redis_time
from tests.stated import StatedRedis


async def test_record_of_a_token_is_kept_until_it_is_removed(broker: Broker) -> None:
    assert await broker.requests.add_token("a", b"one")
    assert await broker.requests.add_token("b", b"two")
    assert await broker.requests.token("a") == b"one"
    assert await broker.requests.tokens() == {"a": b"one", "b": b"two"}
    assert await broker.requests.remove_tokens(("a", "none")) == 1
    assert await broker.requests.remove_tokens(("a",)) == 0
    assert await broker.requests.token("a") is None


async def test_id_that_is_taken_keeps_its_record(broker: Broker) -> None:
    assert await broker.requests.add_token("a", b"one")
    assert not await broker.requests.add_token("a", b"two")
    assert await broker.requests.token("a") == b"one"


async def test_code_lets_one_browser_in_and_takes_tokens_that_are_over_with_it(broker: Broker) -> None:
    asks = broker.requests
    for token in ("old", "older", "kept"):
        await asks.add_token(token, token.encode())
    await asks.add_code("one", b"rights", 60_000)
    await asks.add_code("two", b"rights", 60_000)
    assert (await asks.code("one"), await asks.code("none")) == (b"rights", None)
    assert await asks.sign_in("t", b"t", ("one", b"other rights"), ["old"]) == "USED"
    assert await asks.sign_in("kept", b"t", ("one", b"rights"), ["old"]) == "TAKEN"
    assert await asks.tokens() == {token: token.encode() for token in ("old", "older", "kept")}
    assert await asks.code("one") == b"rights", "it was not used up by a sign-in that came to nothing"
    assert await asks.sign_in("t1", b"first", ("one", b"rights"), ["old", "none", "older"]) == "OK"
    assert await asks.sign_in("t2", b"second", ("one", b"rights"), ["kept"]) == "USED"
    assert await asks.tokens() == {"kept": b"kept", "t1": b"first"}
    assert (await asks.code("one"), await asks.code("two")) == (None, b"rights")


async def test_browser_that_comes_by_another_way_uses_up_no_code(broker: Broker) -> None:
    await broker.requests.add_code("one", b"rights", 60_000)
    assert await broker.requests.sign_in("t1", b"first", None, []) == "OK"
    assert await broker.requests.sign_in("t1", b"second", None, []) == "TAKEN"
    assert await broker.requests.sign_in("t2", b"second", None, ["t1"]) == "OK"
    assert await broker.requests.tokens() == {"t2": b"second"}
    assert await broker.requests.code("one") == b"rights"


async def test_code_that_nobody_used_is_over_in_time() -> None:
    with redis_time(FakeClock()) as clock:
        client = StatedRedis()
        broker = Broker(Connection(client, client), BrokerConfig(), clock.monotonic)
        await broker.requests.add_code("one", b"rights", 60_000)
        clock.advance(59.0)
        assert await broker.requests.code("one") == b"rights"
        clock.advance(2.0)
        assert await broker.requests.code("one") is None
        assert await broker.requests.sign_in("t", b"t", ("one", b"rights"), []) == "USED"
        assert await broker.requests.tokens() == {}
        await broker.aclose()


@pytest.mark.parametrize("code", [None, ("one", b"rights")])
async def test_browser_whose_answer_was_lost_asks_again_and_is_let_in(
    backend: Backend, code: tuple[str, bytes] | None
) -> None:
    broker = backend.broker()
    await broker.requests.add_code("one", b"rights", 60_000)
    await broker.requests.add_token("old", b"old")
    assert await broker.requests.sign_in("t1", b"first", code, ["old"]) == "OK"
    before = await everything(backend.look())
    assert await broker.requests.sign_in("t1", b"first", code, ["old"]) == "OK"
    assert await everything(backend.look()) == before
    assert await broker.requests.sign_in("t1", b"another", code, []) == ("USED" if code else "TAKEN")
    await broker.aclose()
