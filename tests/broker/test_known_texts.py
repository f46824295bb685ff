"""Texts that a process remembers: within their bounds, and not for longer than somebody uses them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from orchestrator.broker import blobs
from orchestrator.broker.blobs import Texts, digest_of
from orchestrator.core.ids import TreeId
from tests.broker.doubles import FakeClock

TREE, OTHER = (TreeId(f"0199a2b4-0000-7000-8000-00000000000{n}") for n in (1, 2))
ONE, TWO, THREE = (bytes([48 + n]) * 1_000 for n in range(3))


class Stored:
    """Blobs that are all there, with those that were put and read."""

    def __init__(self, *contents: bytes) -> None:
        self.contents = {digest_of(content): content for content in contents}
        self.puts: list[tuple[TreeId, bytes]] = []
        self.read: list[bytes] = []

    async def put(self, tree: TreeId, content: bytes, *, unborn: bool = False) -> None:
        self.puts.append((tree, content))

    async def get(self, tree: TreeId, digest: str) -> bytes | None:
        content = self.contents.get(digest)
        if content is not None:
            self.read.append(content)
        return content


def texts_of(stored: Stored, clock: FakeClock, most: int = 1 << 20, **more: Any) -> Texts:
    return Texts(cast(Any, stored), most, clock=clock.monotonic, **more)


def named(*contents: bytes) -> dict[str, bytes]:
    return {digest_of(content): content for content in contents}


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


async def test_each_text_is_stored_once_for_each_tree_that_names_it() -> None:
    stored, clock = Stored(), FakeClock()
    texts = texts_of(stored, clock)
    await texts.store_new(TREE, named(ONE, TWO))
    await texts.store_new(OTHER, named(TWO))
    await texts.store_new(TREE, named(TWO, THREE, ONE))
    await texts.store_new(OTHER, named(ONE, TWO))
    assert stored.puts == [(TREE, ONE), (TREE, TWO), (OTHER, TWO), (TREE, THREE), (OTHER, ONE)]
    clock.advance(2 * blobs.KEPT_S)
    await texts.store_new(TREE, named(ONE, TWO))
    assert len(stored.puts) == 5
    assert known(texts, ONE, TWO) == [True, True], "what is stored already is at hand again, too"
    await texts.store(TREE, named(ONE))
    assert stored.puts[5:] == [(TREE, ONE)], "Redis has lost it, and it is stored again"


async def test_text_that_was_stored_long_before_many_others_is_stored_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blobs, "STORED_KEPT", 2)
    stored, clock = Stored(), FakeClock()
    texts = texts_of(stored, clock)
    for content in (ONE, TWO):
        await texts.store_new(TREE, named(content))
    await texts.store(TREE, named(ONE))
    await texts.store_new(TREE, named(THREE))
    await texts.store_new(TREE, named(ONE, TWO, THREE))
    assert [content for _, content in stored.puts] == [ONE, TWO, ONE, THREE, TWO]


async def test_each_text_that_left_redis_is_had_from_the_archive_and_no_other() -> None:
    stored, clock = Stored(TWO), FakeClock()
    asked: list[tuple[TreeId, str]] = []

    async def archived(tree: TreeId, digest: str) -> bytes | None:
        asked.append((tree, digest))
        return {digest_of(ONE): ONE, digest_of(THREE): THREE}.get(digest)

    texts, lost = texts_of(stored, clock, archived=archived), b"lost"
    await texts.fetch(OTHER, [digest_of(content) for content in (ONE, TWO, lost, THREE)])
    assert known(texts, ONE, TWO, lost, THREE) == [True, True, False, True]
    assert asked == [(OTHER, digest_of(content)) for content in (ONE, lost, THREE)]
