"""The archive's objects: byte-exact, proved on reading, whole or not there."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.broker.records import StoredEntry
from orchestrator.core.chain import GENESIS, next_chain, payload_digest
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.rollouts import archive as archives
from orchestrator.rollouts.archive import NOTED_MS, Archive, stretches
from orchestrator.rollouts.object_store import ArchiveUnavailable, Objects
from orchestrator.rollouts.segments import BrokenArchive, Manifest, Segment

TREE, SESSION = TreeId("tree"), SessionId("session")
KEY = b"a secret"


def chained(payloads: list[bytes], secret: bytes = b"", after: int = 0) -> list[StoredEntry]:
    head, found = GENESIS, []
    for seq, payload in enumerate(payloads, after + 1):
        salt = seq.to_bytes(16, "big")
        head = next_chain(head, seq, 7, payload_digest(salt, payload), secret)
        found.append(StoredEntry(seq, 7, payload, salt, head))
    return found


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive.at(tmp_path.as_uri())


async def _written(archive: Archive, entries: list[StoredEntry]) -> Manifest:
    return Manifest((await archive.write_segment(TREE, SESSION, GENESIS, entries),))


async def _read(archive: Archive, manifest: Manifest, after: int = 0) -> list[StoredEntry]:
    return [entry async for entry in archive.read_entries(manifest, after)]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.binary(max_size=40), st.text(max_size=40).map(str.encode)), min_size=1))
async def test_any_payload_is_read_byte_for_byte(tmp_path: Path, payloads: list[bytes]) -> None:
    archive = Archive.at(tmp_path.as_uri())
    entries = chained(payloads)
    manifest = Manifest.decode((await _written(archive, entries)).encode())
    assert await _read(archive, manifest) == entries
    assert await _read(archive, manifest, after=1) == entries[1:]


async def test_segment_is_named_after_its_entries_and_the_chain(archive: Archive, tmp_path: Path) -> None:
    entries = chained([b"{}"] * 3)
    (segment,) = (await _written(archive, entries)).segments
    assert segment.name == f"tree/session/1-3-{entries[-1].chain[:4].hex()}.jsonl.zst"
    assert [path.name for path in (tmp_path / "tree" / "session").iterdir()] == [Path(segment.name).name]


async def test_segments_that_are_written_at_once_do_not_take_memory_at_once(archive: Archive) -> None:
    entries = chained([b'{"n":"' + secrets.token_hex(32_000).encode() + b'"}' for _ in range(64)])
    size = sum(len(entry.payload) for entry in entries)
    tracemalloc.start()
    try:
        written = (
            archive.write_segment(TREE, SessionId(f"{SESSION}{n}"), GENESIS, entries) for n in range(6)
        )
        await asyncio.gather(*written)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * size, "each alone takes its text, what that is packed to, and what it is read back to"


async def test_stretch_of_a_sealed_log_is_read_without_the_segments_around_it(
    archive: Archive, tmp_path: Path
) -> None:
    entries = chained([b"{}"] * 30)
    manifest = await _written(archive, entries[:10])
    for start in (10, 20):
        part = entries[start : start + 10]
        manifest = manifest.with_segment(await archive.write_segment(TREE, SESSION, manifest.head, part))
    for segment in (manifest.segments[0], manifest.segments[2]):
        (tmp_path / segment.name).unlink()
    found = [entry async for entry in archive.read_entries(manifest, 12, 17)]
    assert found == entries[12:17]


async def test_segment_of_a_forgotten_branch_does_not_replace_another(archive: Archive) -> None:
    kept, other = chained([b"kept"] * 3), chained([b"other"] * 3)
    manifest = await _written(archive, kept)
    await _written(archive, other)
    assert await _read(archive, manifest) == kept


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "removed", "replaced"])
async def test_damaged_segment_is_refused(archive: Archive, tmp_path: Path, damage: str) -> None:
    manifest = await _written(archive, chained([b'{"n":1}'] * 50))
    (segment,) = manifest.segments
    file = tmp_path / segment.name
    packed = bytearray(file.read_bytes())
    match damage:
        case "cut":
            file.write_bytes(packed[:-5])
        case "flipped":
            packed[len(packed) // 2] ^= 1
            file.write_bytes(packed)
        case "emptied":
            file.write_bytes(b"")
        case "removed":
            file.unlink()
        case "replaced":
            (other,) = (await _written(archive, chained([b'{"n":2}'] * 50))).segments
            file.write_bytes((tmp_path / other.name).read_bytes())
    with pytest.raises(BrokenArchive, match="tree/session/1-50"):
        await _read(archive, manifest)


async def test_segment_with_a_forged_manifest_fails_by_the_key(tmp_path: Path) -> None:
    """A forger who can write the manifest and the objects, but has no key, cannot forge a log."""
    forger, owner = Archive.at(tmp_path.as_uri()), Archive.at(tmp_path.as_uri(), KEY)
    manifest = await _written(forger, chained([b"forged"] * 3))
    with pytest.raises(BrokenArchive, match="entry 1"):
        await _read(owner, manifest)
    true = chained([b"true"] * 3, KEY)
    assert await _read(owner, await _written(owner, true)) == true


async def test_entries_that_do_not_follow_are_not_stored(archive: Archive, tmp_path: Path) -> None:
    entries = chained([b"a", b"b", b"c"])
    altered = [entries[0], replace(entries[1], payload=b"B"), entries[2]]
    for wrong in (altered, [entries[0], entries[2]]):
        with pytest.raises(BrokenArchive):
            await _written(archive, wrong)
    assert list(tmp_path.iterdir()) == []


async def test_manifest_with_a_gap_is_refused(archive: Archive) -> None:
    (first,) = (await _written(archive, chained([b"a"] * 3))).segments
    gap = Manifest((first, replace(first, first=5, last=7)))
    with pytest.raises(BrokenArchive, match="does not follow"):
        Manifest.decode(gap.encode())
    for text in (b"{", b"[]", b'{"version":1}', b'{"version":2,"segments":[]}'):
        with pytest.raises(BrokenArchive):
            Manifest.decode(text)
    assert Manifest.decode(b"") == Manifest()


async def test_blob_is_kept_once_and_proved(archive: Archive, tmp_path: Path) -> None:
    content = b"line\n" * 1000
    digest = hashlib.sha256(content).hexdigest()
    assert await archive.read_blob(TREE, digest) is None
    await archive.write_blob(TREE, digest, content)
    await archive.write_blob(TREE, digest, content)
    assert await archive.read_blob(TREE, digest) == content
    await archive.write_blob(TREE, "0" * 64, content)
    with pytest.raises(BrokenArchive, match="another hash"):
        await archive.read_blob(TREE, "0" * 64)


async def test_archive_may_be_any_store_that_fsspec_knows() -> None:
    archive = Archive.at("memory://dendro-test")
    entries = chained([b"{}"] * 3)
    manifest = await _written(archive, entries)
    assert await _read(archive, manifest) == entries
    await archive.condemn(TREE, NOTED_MS)
    assert await archive.condemned() == (TREE,)
    await archive.delete_tree(TREE, 2 * NOTED_MS)
    assert await archive.condemned() == ()
    with pytest.raises(BrokenArchive, match="missing"):
        await _read(archive, manifest)


def test_object_is_never_seen_half_written(tmp_path: Path) -> None:
    objects = Objects(tmp_path.as_uri())
    objects.put("name", b"first")
    with (tmp_path / "name").open("rb") as reader:
        objects.put("name", b"second")
        assert reader.read() == b"first"
    assert objects.get("name") == b"second"


def test_object_that_cannot_be_synced_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = Objects(tmp_path.as_uri())
    objects.put("folder/name", b"first")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("orchestrator.private_files.os.fsync", full_disk)
    with pytest.raises(ArchiveUnavailable, match=r"does not take folder/name: .*No space"):
        objects.put("folder/name", b"second")
    assert objects.get("folder/name") == b"first"
    assert objects.names("folder") == ["name"]
    assert len(list((tmp_path / "folder").iterdir())) == 1


async def test_an_archive_that_is_not_mounted_is_away_and_not_damaged(
    archive: Archive, tmp_path: Path
) -> None:
    manifest = await _written(archive, chained([b"{}"] * 3))
    mounted, away = tmp_path / "tree", tmp_path.with_name("away")
    mounted.rename(away)
    with pytest.raises(ArchiveUnavailable, match=r"holds nothing.*is it mounted"):
        await _read(archive, manifest)
    away.rename(mounted)
    assert len(await _read(archive, manifest)) == 3


@pytest.mark.parametrize(
    "error", [PermissionError(13, "denied"), TimeoutError(), KeyError("store"), EOFError()]
)
def test_whatever_a_store_raises_says_that_the_archive_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    objects = Objects(tmp_path.as_uri())
    objects.put("folder/name", b"first")

    def broken(*_: object, **__: object) -> None:
        raise error

    for method in ("cat_file", "exists", "ls", "rm"):
        monkeypatch.setattr(objects._fs, method, broken)
    for ask in (
        lambda: objects.get("folder/name"),
        lambda: objects.exists("folder/name"),
        lambda: objects.names("folder"),
        lambda: objects.remove("folder"),
    ):
        with pytest.raises(ArchiveUnavailable, match="folder"):
            ask()


async def test_stretches_are_cut_by_entries_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "SEGMENT_ENTRIES", 3)
    monkeypatch.setattr(archives, "SEGMENT_BYTES", 10)

    async def sizes_of(*payloads: bytes) -> list[int]:
        async def entries() -> object:
            for entry in chained(list(payloads)):
                yield entry

        return [len(stretch) async for stretch in stretches(entries())]  # type: ignore[arg-type]

    assert await sizes_of(*[b"x"] * 7) == [3, 3, 1]
    assert await sizes_of(b"x" * 6, b"x" * 6, b"x" * 40, b"x") == [1, 1, 1, 1]
    assert await sizes_of() == []


def test_manifest_of_a_newer_version_may_say_more_of_a_segment() -> None:
    segment = Segment("n", 1, 2, "00" * 32, "11" * 32, "sha", 5)
    text = Manifest((segment,)).encode().replace(b'"bytes":5', b'"bytes":5,"packed":3')
    assert Manifest.decode(text).segments == (segment,)


def test_store_of_any_kind_takes_a_second_object_into_a_folder() -> None:
    objects = Objects("memory://dendro-second")
    for content in (b"first", b"second"):
        objects.put(f"folder/{content.decode()}", content)
        assert objects.get(f"folder/{content.decode()}") == content
