"""Each script is stated a second time, and what it does otherwise is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sim.double import Double, encoded, opened
from sim.network import scripts
from sim.reference.check import STATEMENTS

NO_STATE = {"rights", "sign_in"}
"""Scripts without state in a simulated fleet: `rights` asks about the server's user; no browser signs in."""
KEYS = ("{s0}:workers", "{s0}:heard", "{s0}:drains", "{s0}:serving:default")
ARGS = ("w1", "state", "", 60_000, 15_000)


@pytest.fixture
def double() -> Iterator[Double]:
    with opened() as server:
        server.simulated = lambda: 100.0
        yield server


def unlike(server: Double, source: bytes) -> str:
    """The differences between a heartbeat script of this text and its statement."""
    server.know(source, "sha")
    words = ("EVALSHA", "sha", len(KEYS), *KEYS, *ARGS)
    command = encoded(words)
    stated = server.stated("heartbeat", command)
    assert stated is not None
    return stated.difference(server.take("EVALSHA", command))


def changed(old: bytes, new: bytes) -> bytes:
    source: bytes = scripts()["heartbeat"].source
    assert source.count(old) == 1
    return source.replace(old, new)


def test_every_script_that_has_keys_is_stated() -> None:
    assert set(scripts()) == set(STATEMENTS) | NO_STATE


def test_script_as_it_is_does_what_is_stated(double: Double) -> None:
    assert unlike(double, scripts()["heartbeat"].source) == ""
    assert unlike(double, scripts()["heartbeat"].source) == "", "it changes nothing of what is there"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (b"redis.call('ZADD', KEYS[2], text(now), worker)", b"", "{s0}:heard: w1 is None"),
        (b"redis.call('HSET', KEYS[1], worker, state)", b"", "{s0}:workers: w1 is None"),
        (b"return {'OK', now, drains, places}", b"return {'OK', now + 1, drains, places}", "the answer was"),
        (b"'NX', text(now)", b"'NX', text(now + 1)", "{s0}:serving:default: w1 is"),
        (b"text(now - forget_ms)", b"text(now)", "{s0}:workers: w1 is None"),
    ],
)
def test_script_that_does_otherwise_is_told_by_key(double: Double, old: bytes, new: bytes, told: str) -> None:
    assert told in unlike(double, changed(old, new))
