"""Packs in the store: what is stored under which name, and what of it is trusted."""

from __future__ import annotations

import hashlib
import os
import resource
from pathlib import Path

import pytest

from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId, TreeId, new_session_id
from orchestrator.rollouts.archive import Archive
from orchestrator.rollouts.object_store import ArchiveUnavailable, Objects
from orchestrator.workspaces.pack_keys import KeyUnavailable, PackKeys, new_file
from orchestrator.workspaces.stored_packs import HEADER, PIECE, BrokenPack, PackName, Packs

ROOT = new_session_id(1, 3, 7)
TREE, SESSION = TreeId(ROOT), SessionId(new_session_id(2, 3, 8))
MOST = 1 << 20


def name_of(content: bytes, epoch: int = 4, tree: TreeId = TREE) -> PackName:
    return PackName(tree, SESSION, epoch, "ab12", hashlib.sha256(content).hexdigest())


def file_with(tmp_path: Path, content: bytes) -> Path:
    file = tmp_path / "made.pack"
    file.write_bytes(content)
    return file


@pytest.fixture(params=["folder", "object store"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "folder":
        return Objects((tmp_path / "archive").as_uri())
    return Objects(f"memory://{tmp_path}")


async def test_worker_reads_the_pack_that_another_worker_stored(objects: Objects, tmp_path: Path) -> None:
    content = b"PACK" * 500_000
    name = name_of(content)
    await Packs(objects).put(name, file_with(tmp_path, content))
    await Packs(objects).fetch(name, tmp_path / "here.pack", 4 * MOST)
    assert (tmp_path / "here.pack").read_bytes() == content
    assert await Packs(objects).names(TREE, SESSION) == (name,)


async def test_entry_and_store_write_a_name_alike() -> None:
    name = name_of(b"x")
    assert PackName.of(str(name), TREE) == name


@pytest.mark.parametrize(
    "text",
    [
        "../../etc/passwd",
        f"{TREE}/workspaces/../../other/0-a-{'0' * 64}.pack",
        str(name_of(b"x", tree=TreeId(new_session_id(9, 3, 9)))),
        f"{name_of(b'x')}\n",
        f"{name_of(b'x')}.part",
        "",
    ],
)
async def test_name_that_is_none_of_the_tree_is_refused_before_the_store_is_asked(text: str) -> None:
    with pytest.raises(BrokenPack, match="none of tree"):
        PackName.of(text, TREE)


async def test_pack_with_other_bytes_than_its_name_says_is_not_read(objects: Objects, tmp_path: Path) -> None:
    name = name_of(b"what was stored")
    objects.put(str(name), b"what lies there now")
    with pytest.raises(BrokenPack, match="other bytes"):
        await Packs(objects).fetch(name, tmp_path / "here.pack", MOST)
    assert list(tmp_path.glob("here*")) == []


async def test_pack_that_is_missing_is_said_to_be_missing(objects: Objects, tmp_path: Path) -> None:
    with pytest.raises(BrokenPack, match="lacks"):
        await Packs(objects).fetch(name_of(b"never stored"), tmp_path / "here.pack", MOST)
    assert list(tmp_path.glob("here*")) == []


async def test_pack_of_more_bytes_than_a_worker_takes_is_left_in_the_store(
    objects: Objects, tmp_path: Path
) -> None:
    content = b"x" * (MOST + 1)
    await Packs(objects).put(name_of(content), file_with(tmp_path, content))
    with pytest.raises(BrokenPack, match=r"more than the 1,048,576 bytes"):
        await Packs(objects).fetch(name_of(content), tmp_path / "here.pack", MOST)
    assert list(tmp_path.glob("here*")) == []


async def test_disk_that_is_full_is_no_store_that_is_away(objects: Objects, tmp_path: Path) -> None:
    content = bytes(1 << 20)
    await Packs(objects).put(name_of(content), file_with(tmp_path, content))
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(content) // 2, usual[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            await Packs(objects).fetch(name_of(content), tmp_path / "here.pack", 2 * len(content))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert list(tmp_path.glob("*here*")) == []


async def test_file_that_changed_after_it_was_made_is_not_stored(objects: Objects, tmp_path: Path) -> None:
    with pytest.raises(BrokenPack, match="changed"):
        await Packs(objects).put(name_of(b"as it was made"), file_with(tmp_path, b"as it is now"))
    assert await Packs(objects).names(TREE, SESSION) == ()


async def test_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("a file where a folder should be")
    packs = Packs(Objects((tmp_path / "archive").as_uri()))
    with pytest.raises(ArchiveUnavailable, match="does not take"):
        await packs.put(name_of(b"x"), file_with(tmp_path, b"x"))


async def test_deleting_a_tree_deletes_its_packs(objects: Objects, tmp_path: Path) -> None:
    await Packs(objects).put(name_of(b"x"), file_with(tmp_path, b"x"))
    await Archive(objects).delete_tree(TREE, 0)
    assert await Packs(objects).names(TREE, SESSION) == ()


# --- under a key


@pytest.fixture
def keys(tmp_path: Path) -> PackKeys:
    new_file(tmp_path / "keys")
    return PackKeys(tmp_path / "keys")


async def test_pack_is_stored_sealed_and_read_by_a_worker_with_the_key(
    objects: Objects, keys: PackKeys, tmp_path: Path
) -> None:
    content = b"a line of a file\n" * 200_000
    packs, name = Packs(objects, keys), name_of(content)
    await packs.put(name, file_with(tmp_path, content))
    await packs.put(name, file_with(tmp_path, content))
    stored = objects.get(str(name))
    assert stored is not None
    assert b"a line" not in stored
    assert await packs.names(TREE, SESSION) == (name,), "its name is that of the pack as it was"
    await packs.fetch(name, tmp_path / "here.pack", len(content))
    assert (tmp_path / "here.pack").read_bytes() == content
    assert await packs.is_sealed(name)


async def test_pack_of_before_there_was_a_key_is_read_and_the_next_one_is_sealed(
    objects: Objects, keys: PackKeys, tmp_path: Path
) -> None:
    packs, old, new = Packs(objects, keys), name_of(b"old", 1), name_of(b"new", 2)
    await Packs(objects).put(old, file_with(tmp_path, b"old"))
    await packs.fetch(old, tmp_path / "here.pack", MOST)
    assert (tmp_path / "here.pack").read_bytes() == b"old"
    await packs.put(new, file_with(tmp_path, b"new"))
    assert [await packs.is_sealed(name) for name in (old, new)] == [False, True]


@pytest.mark.parametrize("change", ["flip", "cut", "lengthen", "exchange", "replace"])
async def test_sealed_pack_that_somebody_changed_in_the_store_is_broken(
    change: str, objects: Objects, keys: PackKeys, tmp_path: Path
) -> None:
    packs, name, other = Packs(objects, keys), name_of(b"x" * 5000), name_of(b"y" * 5000)
    for each, content in ((name, b"x"), (other, b"y")):
        await packs.put(each, file_with(tmp_path, content * 5000))
    stored, theirs = objects.get(str(name)) or b"", objects.get(str(other)) or b""
    changed = {
        "flip": stored[:-1] + bytes([stored[-1] ^ 1]),
        "cut": stored[:-16],
        "lengthen": stored + b"x",
        "exchange": theirs,
        "replace": b"another pack, not sealed",
    }
    objects.put(str(name), changed[change])
    with pytest.raises(BrokenPack, match="restore it from a backup"):
        await packs.fetch(name, tmp_path / "here.pack", MOST)
    assert list(tmp_path.glob("here*")) == []


async def test_worker_with_another_key_leaves_nothing_and_says_which_key_it_needs(
    objects: Objects, keys: PackKeys, tmp_path: Path
) -> None:
    name = name_of(b"x")
    await Packs(objects, keys).put(name, file_with(tmp_path, b"x"))
    new_file(tmp_path / "other")
    for without in (PackKeys(tmp_path / "other"), None):
        with pytest.raises(KeyUnavailable, match=keys.first().id):
            await Packs(objects, without).fetch(name, tmp_path / "here.pack", MOST)
        with pytest.raises(KeyUnavailable):
            await Packs(objects, without).is_sealed(name)
    assert list(tmp_path.glob("here*")) == []


async def test_nothing_is_stored_in_the_clear_when_the_key_is_gone(
    objects: Objects, keys: PackKeys, tmp_path: Path
) -> None:
    packs, name = Packs(objects, keys), name_of(b"x")
    (tmp_path / "keys").chmod(0o644)
    with pytest.raises(KeyUnavailable, match="chmod 600"):
        await packs.put(name, file_with(tmp_path, b"x"))
    assert not await packs.has(name)


async def test_sealed_pack_of_more_bytes_than_a_worker_takes_is_left_in_the_store(
    objects: Objects, keys: PackKeys, tmp_path: Path
) -> None:
    content = b"x" * (MOST + 1)
    await Packs(objects, keys).put(name_of(content), file_with(tmp_path, content))
    with pytest.raises(BrokenPack, match=r"more than the 1,048,576 bytes"):
        await Packs(objects, keys).fetch(name_of(content), tmp_path / "here.pack", MOST)


async def test_newest_pack_is_found_among_trees_sessions_and_other_names(
    objects: Objects, tmp_path: Path
) -> None:
    packs = Packs(objects)
    assert await packs.newest(10) is None
    later = TreeId(new_session_id(9, 3, 9))
    objects.put("condemned/x", b"")
    objects.put(f"{TreeId(new_session_id(10, 3, 1))}/blobs/x", b"")
    for name in (name_of(b"x"), name_of(b"y", tree=later)):
        await packs.put(name, file_with(tmp_path, b"x" if name.tree == TREE else b"y"))
    assert await packs.newest(10) == name_of(b"y", tree=later)
    await packs.remove(name_of(b"y", tree=later))
    assert await packs.newest(10) == name_of(b"x")


async def test_removed_pack_may_be_removed_again(objects: Objects, tmp_path: Path) -> None:
    packs = Packs(objects)
    await packs.put(name_of(b"x"), file_with(tmp_path, b"x"))
    await packs.remove(name_of(b"x"))
    await packs.remove(name_of(b"x"))
    assert not await packs.has(name_of(b"x"))


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE])
async def test_pack_is_tried_by_its_first_piece_whatever_its_size(
    objects: Objects, keys: PackKeys, tmp_path: Path, size: int
) -> None:
    content = b"x" * size
    packs, name = Packs(objects, keys), name_of(content)
    await packs.put(name, file_with(tmp_path, content))
    assert await packs.is_sealed(name) is True
    stored = objects.get(str(name)) or b""
    at = HEADER if size else -1
    objects.put(str(name), stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :] if size else stored[:-1])
    with pytest.raises(BrokenPack, match="does not open at piece 1"):
        await packs.is_sealed(name)
    assert await packs.is_sealed(name_of(b"not there")) is None


async def test_newest_pack_of_a_tree_is_that_which_was_written_last_by_any_of_its_sessions(
    tmp_path: Path,
) -> None:
    objects = Objects((tmp_path / "archive").as_uri())
    packs = Packs(objects)
    sessions = [SessionId(new_session_id(made, 3, made)) for made in (2, 3, 4)]
    written = [(session, number) for session in sessions for number in (1, 2)]
    names = [replace(name_of(b"x", number), session=session) for session, number in written]
    for name in names:
        await packs.put(name, file_with(tmp_path, b"x"))
    for newest in names:
        for name in names:
            os.utime(tmp_path / "archive" / str(name), (100, 200 if name == newest else 100))
        assert await packs.newest(10) == newest
    # The youngest of more sessions than are looked at.
    os.utime(tmp_path / "archive" / str(names[0]), (100, 300))
    found = await packs.newest(2)
    assert found is not None
    assert found.session in sessions[1:]
