"""Texts that a process remembers: within their bounds, and not for longer than somebody uses them."""

from __future__ import annotations

from typing import Any, cast

from orchestrator.broker import blobs
from orchestrator.broker.blobs import Texts, digest_of
from orchestrator.core.ids import TreeId
from tests.broker.doubles import FakeClock

TREE = TreeId("0199a2b4-0000-7000-8000-000000000001")
ONE, TWO, THREE = (bytes([48 + n]) * 1_000 for n in range(3))


class Stored:
    """Blobs that are all there, with those that were read."""

    def __init__(self, *contents: bytes) -> None:
        self.contents = {digest_of(content): content for content in contents}
        self.read: list[bytes] = []

    async def put(self, tree: TreeId, content: bytes, *, unborn: bool = False) -> None: ...

    async def get(self, tree: TreeId, digest: str) -> bytes | None:
        self.read.append(self.contents[digest])
        return self.contents[digest]


def texts_of(stored: Stored, clock: FakeClock, most: int = 1 << 20) -> Texts:
    return Texts(cast(Any, stored), most, clock=clock.monotonic)


def known(texts: Texts, *contents: bytes) -> list[bool]:
    return [texts.get(digest_of(content)) == content.decode() for content in contents]


async def test_text_is_dropped_when_nobody_has_stored_or_fetched_it_for_a_while() -> None:
    stored, clock = Stored(ONE, TWO, THREE), FakeClock()
    texts = texts_of(stored, clock)
    await texts.store(TREE, {digest_of(ONE): ONE})
    await texts.fetch(TREE, [digest_of(TWO)])
    clock.advance(blobs.KEPT_S - 1)
    await texts.fetch(TREE, [digest_of(TWO)])
    assert known(texts, ONE, TWO) == [True, True]
    clock.advance(2)
    texts.remember({digest_of(THREE): THREE})
    assert known(texts, ONE, TWO, THREE) == [False, True, True]
    assert texts._known.bytes == 2_000


async def test_texts_that_were_dropped_are_fetched_again_all_of_them() -> None:
    stored, clock = Stored(ONE, TWO, THREE), FakeClock()
    texts = texts_of(stored, clock)
    digests = list(stored.contents)
    await texts.fetch(TREE, digests)
    clock.advance(2 * blobs.KEPT_S)
    await texts.fetch(TREE, digests)
    assert known(texts, ONE, TWO, THREE) == [True, True, True]


async def test_texts_beyond_the_bound_are_dropped_those_that_were_not_used_for_longest_first() -> None:
    stored, clock = Stored(ONE, TWO, THREE), FakeClock()
    texts = texts_of(stored, clock, most=2_500)
    await texts.fetch(TREE, [digest_of(ONE), digest_of(TWO)])
    await texts.fetch(TREE, [digest_of(ONE)])
    await texts.fetch(TREE, [digest_of(THREE)])
    assert known(texts, ONE, TWO, THREE) == [True, False, True]
    assert stored.read == [ONE, TWO, THREE]
