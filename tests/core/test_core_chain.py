"""The hash chain: every edit of a log is found, at its place; redaction is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.chain import (
    GENESIS,
    BrokenLink,
    ChainWalk,
    ExpectedHead,
    Link,
    first_broken,
    next_chain,
    payload_digest,
)

SALT = bytes(16)


def chained(payloads: list[bytes], first_seq: int = 1, secret: bytes = b"") -> list[Link]:
    """A log of `payloads`, as a writer chains it from the beginning."""
    links, head = [], GENESIS
    for seq, payload in enumerate(payloads, first_seq):
        digest = payload_digest(SALT, payload)
        head = next_chain(head, seq, 1, digest, secret)
        links.append(Link(seq, 1, digest, head))
    return links


OTHER = st.binary(min_size=21, max_size=30)
LOGS = st.lists(st.binary(max_size=20), min_size=1, max_size=8).map(chained)


@given(LOGS)
def test_untouched_log_verifies_whole_and_from_any_place(links: list[Link]) -> None:
    assert first_broken(links, GENESIS) is None
    for place in range(1, len(links)):
        assert first_broken(links[place:], links[place - 1].chain) is None


@given(LOGS, st.data())
def test_changed_byte_of_a_payload_is_found_at_its_entry(links: list[Link], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(links) - 1))
    forged = replace(links[place], digest=payload_digest(SALT, data.draw(OTHER)))
    broken = first_broken([*links[:place], forged, *links[place + 1 :]], GENESIS)
    assert broken is not None
    assert broken.seq == place + 1


@given(LOGS, st.data())
def test_changed_byte_of_a_chain_value_is_found_at_its_entry(links: list[Link], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(links) - 1))
    at, flip = data.draw(st.integers(0, 31)), data.draw(st.integers(1, 255))
    value = bytearray(links[place].chain)
    value[at] ^= flip
    links[place] = replace(links[place], chain=bytes(value))
    broken = first_broken(links, GENESIS)
    assert broken is not None
    assert broken.seq == place + 1


@given(LOGS, st.data())
def test_changed_epoch_is_found_at_its_entry(links: list[Link], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(links) - 1))
    epoch = data.draw(st.sampled_from([0, 2, 1 << 63, -1, 1 << 64]))
    links[place] = replace(links[place], epoch=epoch)
    broken = first_broken(links, GENESIS)
    assert broken is not None
    assert broken.seq == place + 1


@given(LOGS, st.data())
def test_omitted_entry_is_found_at_its_place(links: list[Link], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(links) - 1))
    rest = [*links[:place], *links[place + 1 :]]
    broken = first_broken(rest, GENESIS)
    if place == len(links) - 1:
        # A missing end looks like a shorter log: only its head, known elsewhere, tells.
        assert broken is None
    else:
        assert broken is not None
        assert broken.seq == (2 if place == 0 else place + 1)


@given(LOGS.filter(lambda links: len(links) > 1), st.data())
def test_exchanged_entries_are_found_at_the_first_of_them(links: list[Link], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(links) - 2))
    links[place], links[place + 1] = links[place + 1], links[place]
    broken = first_broken(links, GENESIS)
    assert broken is not None
    assert broken.seq in {place + 1, place + 2}
    if place:
        assert broken.seq == place + 1


@given(LOGS, st.data())
def test_entry_put_in_is_found(links: list[Link], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(links) - 1))
    broken = first_broken([*links[:place], links[place], *links[place:]], GENESIS)
    assert broken is not None
    assert broken.seq == place + 2


def test_log_renumbered_after_an_omission_is_found() -> None:
    links = chained([b"a", b"b", b"c"])
    renumbered = [links[0], replace(links[2], seq=2)]
    assert first_broken(renumbered, GENESIS) == BrokenLink(
        2, "its hash does not follow from its content and the entry before it"
    )


def test_redacted_entry_keeps_the_log_verifying() -> None:
    links = chained([b"a", b"secret", b"c"])
    # Payload and salt are gone; the digest is all that verification ever read of them.
    kept = [Link(link.seq, link.epoch, link.digest, link.chain) for link in links]
    assert first_broken(kept, GENESIS) is None


def test_salt_hides_a_payload_that_could_be_guessed() -> None:
    assert payload_digest(bytes(16), b"yes") != payload_digest(bytes(15) + b"\1", b"yes")


def test_keyed_log_cannot_be_forged_without_the_key() -> None:
    links = chained([b"a", b"b"], secret=b"key")
    assert first_broken(links, GENESIS, b"key") is None
    assert first_broken(links, GENESIS) == BrokenLink(
        1, "its hash does not follow from its content and the entry before it"
    )
    assert first_broken(chained([b"a", b"b"]), GENESIS, b"key") is not None


@pytest.mark.parametrize("seq", [-1, 1 << 64])
def test_number_that_no_entry_can_have_is_a_broken_link_not_a_crash(seq: int) -> None:
    broken = first_broken([replace(chained([b"a"])[0], seq=seq)], GENESIS)
    assert broken is not None
    assert broken.seq == seq


def test_empty_log_verifies() -> None:
    assert first_broken([], GENESIS) is None


def test_walk_in_pieces_stops_at_a_hole_between_two_of_them_and_goes_on_from_where_it_stood() -> None:
    links, walk = chained([b"one", b"two", b"three", b"four"]), ChainWalk(b"")
    assert walk.take(links[:2]) is None
    assert walk.take([]) is None
    assert walk.take(links[3:]) == BrokenLink(3, "missing: the next entry present is 4")
    assert (walk.seq, walk.head) == (2, links[1].chain)
    assert walk.take(links[2:]) is None
    assert (walk.seq, walk.head) == (4, links[3].chain)


def test_noted_head_is_met_by_its_own_entry_alone_whole_or_by_its_beginning() -> None:
    first, second = chained([b"one", b"two"])
    for noted in (second.chain, second.chain[:8]):
        head = ExpectedHead(2, noted)
        assert [head.is_met(link) for link in (first, second)] == [False, True]
    assert not ExpectedHead(2, first.chain).is_met(second)
