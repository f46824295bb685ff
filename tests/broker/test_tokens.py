"""Records of clients' tokens, kept beside all sessions."""

from __future__ import annotations

from orchestrator.broker.broker import Broker


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
