"""Packs as the store holds them under a key: opened as they were sealed, or not at all."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import pytest

from orchestrator.rollouts.object_store import TooLarge
from orchestrator.workspaces.pack_keys import KeyUnavailable, PackKeys, new_file
from orchestrator.workspaces.stored_packs import (
    HEADER,
    MAGIC,
    PIECE,
    TAG,
    NotOpened,
    Opening,
    seal,
    sealed_bytes,
)

NAME = "a tree/workspaces/a session/1-a-0.pack"
WHOLE = PIECE + TAG
PLAIN = bytes(range(256)) * (2 * PIECE // 256) + b"the end"


@pytest.fixture
def keys(tmp_path: Path) -> PackKeys:
    new_file(tmp_path / "keys")
    return PackKeys(tmp_path / "keys")


def sealed(content: bytes, keys: PackKeys, name: str = NAME) -> bytes:
    return b"".join(seal(io.BytesIO(content), name, keys.first()))


def opened(parts: Iterable[bytes], keys: PackKeys | None, name: str = NAME, most: int = 4 * PIECE) -> bytes:
    found = bytearray()
    opening = Opening(found.extend, name, keys, most)
    for part in parts:
        opening.write(part)
    opening.finish()
    return bytes(found)


def cut(content: bytes, size: int) -> list[bytes]:
    return [content[at : at + size] for at in range(0, len(content), size)]


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 9])
def test_pack_of_any_size_opens_as_it_was_in_whatever_parts_it_comes(keys: PackKeys, size: int) -> None:
    plain = (PLAIN * 2)[:size]
    stored = sealed(plain, keys)
    assert len(stored) <= sealed_bytes(size)
    for parts in ([stored], cut(stored, 65_537), [stored[:3], stored[3:HEADER], stored[HEADER:]]):
        assert opened(parts, keys) == plain


def test_nothing_of_a_pack_can_be_read_in_what_is_stored(keys: PackKeys) -> None:
    plain = b"a line of a file" * 1000
    stored = sealed(plain, keys)
    assert b"a line" not in stored
    assert stored != sealed(plain, keys), "two packs of one content are not seen to be alike"
    assert keys.first().secret not in stored


def test_large_pack_is_sealed_and_opened_piece_by_piece(keys: PackKeys) -> None:
    source = io.BytesIO(PLAIN * 4)
    parts = seal(source, NAME, keys.first())
    assert len(next(parts)) == HEADER
    given: list[int] = []
    opening = Opening(lambda plain: given.append(len(plain)), NAME, keys, 16 * PIECE)
    opening.write(b"".join(seal(io.BytesIO(PLAIN * 4), NAME, keys.first())))
    assert max(given) == PIECE
    assert len(next(parts)) == WHOLE
    assert source.tell() <= 2 * PIECE


@pytest.mark.parametrize("at", [HEADER - 40, HEADER - 1, HEADER, HEADER + WHOLE - 1, HEADER + 2 * WHOLE, -1])
def test_pack_in_which_one_bit_was_changed_does_not_open(keys: PackKeys, at: int) -> None:
    stored = bytearray(sealed(PLAIN, keys))
    stored[at] ^= 1
    # A key id that nobody has is not told from a pack of another deployment.
    with pytest.raises((NotOpened, KeyUnavailable)):
        opened([bytes(stored)], keys)


@pytest.mark.parametrize(
    "size", [len(MAGIC), HEADER - 1, HEADER, HEADER + 5, HEADER + WHOLE, HEADER + 2 * WHOLE, -1]
)
def test_pack_that_was_cut_does_not_open(keys: PackKeys, size: int) -> None:
    with pytest.raises(NotOpened):
        opened([sealed(PLAIN, keys)[:size]], keys)


def test_pack_whose_pieces_were_exchanged_repeated_or_lengthened_does_not_open(keys: PackKeys) -> None:
    stored, other = sealed(PLAIN, keys), sealed(PLAIN, keys)
    head, first, second, last = stored[:HEADER], *cut(stored[HEADER:], WHOLE)
    for parts in (
        (head, second, first, last),
        (head, first, first, last),
        (head, first, last),
        (head, first, second, last, last),
        (head, first, second, second, last),
        (head, first, second, last, b"x"),
        (other[:HEADER], first, second, last),
        (head, first, second, other[HEADER + 2 * WHOLE :]),
    ):
        with pytest.raises(NotOpened):
            opened(parts, keys)


def test_pack_under_the_name_of_another_does_not_open(keys: PackKeys) -> None:
    stored = sealed(PLAIN, keys)
    with pytest.raises(NotOpened, match="cut, changed or another pack"):
        opened([stored], keys, name=NAME.replace("1-a", "2-a"))


def test_pack_of_another_deployments_key_is_named_with_the_keys_that_are_here(
    keys: PackKeys, tmp_path: Path
) -> None:
    other = new_file(tmp_path / "other")
    with pytest.raises(KeyUnavailable, match="lacks") as refused:
        opened([sealed(PLAIN, PackKeys(tmp_path / "other"))], keys)
    assert other.id in str(refused.value)
    assert keys.first().id in str(refused.value)


def test_process_without_a_key_is_told_what_to_set(keys: PackKeys) -> None:
    with pytest.raises(KeyUnavailable, match=r"set `workspace\.key_file`"):
        opened([sealed(PLAIN, keys)], None)


def test_pack_of_a_later_form_is_left_to_a_newer_version(keys: PackKeys) -> None:
    stored = bytearray(sealed(b"x", keys))
    stored[len(MAGIC)] = 2
    with pytest.raises(KeyUnavailable, match="use a newer one"):
        opened([bytes(stored)], keys)


@pytest.mark.parametrize("content", [b"", b"PACK", MAGIC[:3], PLAIN])
def test_pack_of_before_there_was_a_key_is_handed_on_as_it_is(keys: PackKeys, content: bytes) -> None:
    for found in (keys, None):
        assert opened(cut(content, 2 if len(content) < 9 else 1 << 20), found) == content


def test_sealed_pack_with_more_in_it_than_may_be_read_ends_there(keys: PackKeys) -> None:
    found = bytearray()
    opening = Opening(found.extend, NAME, keys, PIECE + 5)
    with pytest.raises(TooLarge):
        opening.write(sealed(PLAIN, keys))
    assert len(found) <= PIECE + 5
