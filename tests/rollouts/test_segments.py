"""Segments and manifests: every way in which one can be wrong is named."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import orjson
import pytest
import zstandard

from orchestrator.broker.records import StoredEntry
from orchestrator.core.chain import GENESIS
from orchestrator.rollouts.segments import (
    BrokenArchive,
    Manifest,
    Segment,
    decode_segment,
    encode_entries,
    last_of,
    links_of,
    pack,
    segment_of,
    unpack,
)
from tests.workers.test_archive import chained

LOG = chained([b'{"n":1}', b'{"n":2}', b"\xff\x00", b'{"n":4}'])


def sealed(entries: list[StoredEntry], follows: bytes = GENESIS, **other: Any) -> tuple[Segment, bytes]:
    plain = encode_entries(entries)
    return replace(segment_of("tree/session", follows, entries, plain), **other), pack(plain)


def test_segment_says_what_it_holds() -> None:
    segment, packed = sealed(LOG[1:], LOG[0].chain)
    plain = unpack("x", packed)
    assert segment == Segment(
        name=f"tree/session/2-4-{LOG[3].chain.hex()[:8]}.jsonl.zst",
        first=2,
        last=4,
        before=LOG[0].chain.hex(),
        after=LOG[3].chain.hex(),
        sha256=hashlib.sha256(plain).hexdigest(),
        bytes=len(plain),
    )
    assert decode_segment(segment, packed, b"") == tuple(LOG[1:])
    assert [link.seq for link in links_of(LOG)] == [1, 2, 3, 4]


def test_entry_that_is_no_text_stands_in_its_segment_as_numbers() -> None:
    lines = [orjson.loads(line) for line in encode_entries(LOG).splitlines()]
    assert [line.get("payload_hex") for line in lines] == [None, None, "ff00", None]
    assert [line.get("payload") for line in lines] == ['{"n":1}', '{"n":2}', None, '{"n":4}']
    assert [line["epoch"] for line in lines] == [7] * 4


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"sha256": "0" * 64}, "is not what was sealed: its hash differs"),
        ({"before": "00" * 31 + "01"}, ": entry 1: its hash does not follow"),
        ({"first": 2}, "does not hold 2-4"),
        ({"last": 5}, "does not hold 1-5"),
        ({"after": "00" * 32}, "does not hold 1-4"),
    ],
)
def test_segment_that_is_not_what_the_manifest_says_is_refused(other: dict[str, Any], said: str) -> None:
    segment, packed = sealed(LOG, **other)
    with pytest.raises(BrokenArchive, match=said):
        decode_segment(segment, packed, b"")


def test_segment_without_entries_or_with_a_line_that_is_none_is_refused() -> None:
    segment, _ = sealed(LOG)
    for plain, said in (
        (b"", "does not hold 1-4"),
        (b"nonsense\n", "has a line that is no entry"),
        (b'{"seq":1}\n', "has a line that is no entry"),
    ):
        named = replace(segment, sha256=hashlib.sha256(plain).hexdigest())
        with pytest.raises(BrokenArchive, match=said):
            decode_segment(named, pack(plain), b"")
    with pytest.raises(BrokenArchive, match=f"archive object {segment.name} cannot be unpacked"):
        decode_segment(segment, b"nonsense", b"")


def test_segment_with_another_key_is_refused() -> None:
    keyed = chained([b"{}"], b"a key")
    segment, packed = sealed(keyed)
    assert decode_segment(segment, packed, b"a key") == tuple(keyed)
    with pytest.raises(BrokenArchive, match="entry 1"):
        decode_segment(segment, packed, b"")


def test_object_that_unpacks_to_more_than_a_segment_may_hold_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.rollouts.segments.MAX_SEGMENT_BYTES", 10_000)
    # As a stream, which does not say how much it holds.
    stream = zstandard.ZstdCompressor().compressobj()
    packed = stream.compress(b"x" * 1_000_000) + stream.flush()
    with pytest.raises(BrokenArchive, match="cannot be unpacked"):
        unpack("tree/session/1-1-00000000.jsonl.zst", packed)
    with pytest.raises(BrokenArchive, match="has more than 10,000 bytes"):
        unpack("tree/session/1-1-00000000.jsonl.zst", pack(b"x" * 10_001))
    assert unpack("tree/session/1-1-00000000.jsonl.zst", pack(b"x" * 10_000)) == b"x" * 10_000


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("1-16384-0123abcd.jsonl.zst", 16384),
        ("5-7-0123abcd.jsonl.zst", 7),
        ("5-7-0123abcd.jsonl.zst.part", 0),
        ("x5-7-0123abcd.jsonl.zst", 0),
        ("5-7-0123abcg.jsonl.zst", 0),
        ("5-1234567890123456789-0123abcd.jsonl.zst", 0),
        ("blobs", 0),
    ],
)
def test_name_of_a_segment_says_its_last_entry(name: str, last: int) -> None:
    assert last_of(name) == last


def test_manifest_is_read_as_it_was_written() -> None:
    first, second = sealed(LOG[:2])[0], sealed(LOG[2:], LOG[1].chain)[0]
    manifest = Manifest().with_segment(first).with_segment(second)
    assert Manifest.decode(manifest.encode()) == manifest
    assert (manifest.last, manifest.head) == (4, LOG[3].chain)
    assert (Manifest().last, Manifest().head, Manifest.decode(b"")) == (0, GENESIS, Manifest())


@pytest.mark.parametrize("other", [{"first": 4}, {"before": "00" * 32}])
def test_manifest_whose_segments_do_not_follow_is_refused(other: dict[str, Any]) -> None:
    first, second = sealed(LOG[:2])[0], sealed(LOG[2:], LOG[1].chain, **other)[0]
    with pytest.raises(BrokenArchive, match=f"segment {second.name} does not follow from {first.name}"):
        Manifest.decode(Manifest((first, second)).encode())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"nonsense", "cannot be read"),
        (b"[]", "cannot be read"),
        (b'{"version":1,"segments":[{}]}', "cannot be read"),
        (b'{"version":2,"segments":[]}', "the manifest has version 2; a newer Dendro wrote it"),
    ],
)
def test_manifest_that_cannot_be_read_says_why(data: bytes, said: str) -> None:
    with pytest.raises(BrokenArchive, match=said):
        Manifest.decode(data)


@pytest.mark.parametrize("after", range(7))
async def test_entries_from_one_to_another_are_read_from_the_segments_that_have_them_alone(
    after: int,
) -> None:
    log = chained([b"{}"] * 6)
    stretches = [log[:3], log[3:4], log[4:]]
    follows = [GENESIS, log[2].chain, log[3].chain]
    pairs = [sealed(entries, before) for entries, before in zip(stretches, follows, strict=True)]
    manifest = Manifest(tuple(segment for segment, _ in pairs))
    for through in (None, *range(8)):
        asked: list[int] = []

        async def read(segment: Segment, asked: list[int] = asked) -> list[StoredEntry]:
            asked.append(segment.first)
            return log[segment.first - 1 : segment.last]

        found = [entry.seq async for entry in manifest.entries(read, after, through)]
        last = 6 if through is None else through
        assert found == [seq for seq in range(1, 7) if after < seq <= last]
        if found:
            assert asked == [at[0].seq for at in stretches if {entry.seq for entry in at} & {*found}]
        elif after >= last:
            assert len(asked) <= 1
