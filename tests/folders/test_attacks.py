"""Folders and packs that were made to do harm: what commands leave behind, and what a store hands out."""

from __future__ import annotations

import marshal
import os
import shutil
import socket
import subprocess
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.folders.build import remove
from orchestrator.folders.copy import Copy
from orchestrator.folders.delta import delta
from orchestrator.folders.git_objects import Entry, Snapshot, object_id, tree_data
from orchestrator.folders.merge import Side, Step, _Writer, take_back
from orchestrator.folders.names import FILE, FOLDER, LINK, MOST_PATH, refused_link, refused_name
from orchestrator.folders.outcomes import (
    Bounds,
    Branch,
    FolderError,
    FolderSnapshot,
    Joined,
    Place,
    Search,
    Taken,
)
from orchestrator.folders.packs import REF_DELTA, PackWriter, entry_head
from orchestrator.folders.stat_cache import Known
from tests.folders.workshop import AT_MS, Bench, content_of, git


def hostile(
    root: Path, entries: list[Entry], blobs: list[bytes], trees: list[bytes] | None = None
) -> tuple[Path, FolderSnapshot]:
    """A pack with a snapshot of any tree."""
    writer = PackWriter(root / "hostile.pack")
    for blob in blobs:
        writer.add("blob", object_id("blob", blob), blob)
    top = tree_data(entries)
    for tree in [*(trees or []), top]:
        writer.add("tree", object_id("tree", tree), tree)
    commit = Snapshot(object_id("tree", top), None, None).data(AT_MS)
    writer.add("commit", object_id("commit", commit), commit)
    return writer.finish().path, FolderSnapshot(object_id("commit", commit).hex())


def refused(root: Path, pack: Path, snapshot: FolderSnapshot, bounds: Bounds | None = None) -> str:
    """The kind of error by which a folder is not made; the folder that was there stays."""
    place = Place(root / "victim" / "folder", root / "victim" / "objects")
    place.folder.mkdir(parents=True, exist_ok=True)
    (place.folder / "mine").write_text("mine")
    with pytest.raises(FolderError) as error:
        Copy(place, bounds or Bounds()).make([pack], snapshot)
    assert [path.name for path in place.folder.iterdir()] == ["mine"]
    return error.value.kind


def joined(root: Path, pack: Path, snapshot: FolderSnapshot, bounds: Bounds | None = None) -> Joined:
    """The changes of a tree whose folders are this snapshot, as doors ask for them."""
    copy = Copy(Place(root / "joined" / "folder", root / "joined" / "objects"), bounds or Bounds())
    copy.give([pack])
    return copy.join([Branch(None, snapshot, snapshot), Branch(0, snapshot, snapshot)])


BLOB = b"#!/bin/sh\necho pwned\n"
SHA = object_id("blob", BLOB)


@pytest.mark.parametrize(
    "name",
    [
        b".git",
        b".GIT",
        b"git~1",
        b".git.",
        b".git ",
        b".g\xe2\x80\x8cit",
        b".git::$INDEX_ALLOCATION",
        b"..",
        b".",
        b"",
    ],
)
def test_name_that_is_a_repositorys_or_leads_out_is_never_made(tmp_path: Path, name: bytes) -> None:
    assert refused(tmp_path, *hostile(tmp_path, [Entry(name, FILE, SHA)], [BLOB])) == "refused"


def test_name_with_a_slash_is_never_made(tmp_path: Path) -> None:
    assert refused(tmp_path, *hostile(tmp_path, [Entry(b"../../up", FILE, SHA)], [BLOB])) == "refused"


@pytest.mark.parametrize(
    "target", [b"/etc/passwd", b"../outside", b"a/../../..", b"x/../y", b"", b"../../x", b"a\0b"]
)
def test_link_that_leads_out_is_never_made(tmp_path: Path, target: bytes) -> None:
    entries = [Entry(b"link", LINK, object_id("blob", target))]
    assert refused(tmp_path, *hostile(tmp_path, entries, [target])) == "refused"


@pytest.mark.parametrize("target", [b"/etc/passwd", b"../outside", b"x/../../y"])
def test_nothing_is_read_of_a_snapshot_with_a_link_that_leads_out(tmp_path: Path, target: bytes) -> None:
    entries = [Entry(b"a", FILE, SHA), Entry(b"link", LINK, object_id("blob", target))]
    pack, snapshot = hostile(tmp_path, entries, [target, BLOB])
    copy = Copy(Place(tmp_path / "folder", tmp_path / "objects"), Bounds())
    for read in (
        lambda: copy.read_files(snapshot, ["a", "link"], 100, [pack]),
        lambda: copy.find_files(snapshot, Search(("link",), "passwd", 4, 100, 100, 100), [pack]),
    ):
        with pytest.raises(FolderError) as error:
            read()
        assert error.value.kind == "refused"


def test_file_whose_path_no_program_could_name_is_not_found(tmp_path: Path) -> None:
    named = tree_data([Entry(b"F", FILE, SHA)])
    long = [Entry(b"n" * length, FOLDER, object_id("tree", named)) for length in (100, MOST_PATH)]
    pack, snapshot = hostile(tmp_path, long, [BLOB], [named])
    copy = Copy(Place(tmp_path / "folder", tmp_path / "objects"), Bounds())
    found = copy.find_files(snapshot, Search((".",), "F", 4, 100, 100, 100), [pack])
    assert [len(file.path) for file in found.files] == [100 + len("./" + "/F")]


def test_links_may_lead_about_inside() -> None:
    assert refused_link(b"../a/b", 1) is None
    assert refused_link(b"./a//b/.", 0) is None
    assert refused_link(b"..", 1) is None
    assert refused_link(b"../..", 1) is not None
    assert refused_name(b"gitignore") is None
    assert refused_name(b".gitignore") is None
    assert refused_name("Größe".encode()) is None


def test_same_name_twice_or_out_of_order_is_never_made(tmp_path: Path) -> None:
    twice = b"".join(b"100644 %b\0%b" % (name, SHA) for name in (b"a", b"a"))
    writer = PackWriter(tmp_path / "twice.pack")
    writer.add("blob", SHA, BLOB)
    writer.add("tree", object_id("tree", twice), twice)
    commit = Snapshot(object_id("tree", twice), None, None).data(AT_MS)
    writer.add("commit", object_id("commit", commit), commit)
    snapshot = FolderSnapshot(object_id("commit", commit).hex())
    assert refused(tmp_path, writer.finish().path, snapshot) == "damaged"


def test_tree_that_names_itself_many_times_is_counted_before_anything_is_made(tmp_path: Path) -> None:
    trees = [tree_data([Entry(b"f", FILE, SHA)])]
    for _ in range(12):
        below = object_id("tree", trees[-1])
        trees.append(tree_data([Entry(b"%d" % n, FOLDER, below) for n in range(10)]))
    top = [Entry(b"bomb", FOLDER, object_id("tree", trees[-1]))]
    pack, snapshot = hostile(tmp_path, top, [BLOB], trees)
    assert pack.stat().st_size < 10_000
    assert refused(tmp_path, pack, snapshot, Bounds(max_files=10_000)) == "too_many_files"
    with pytest.raises(FolderError, match="more than 10,000 files"):
        joined(tmp_path, pack, snapshot, Bounds(max_files=10_000))


def test_folders_without_end_are_refused(tmp_path: Path) -> None:
    trees = [tree_data([Entry(b"f", FILE, SHA)])]
    for _ in range(300):
        trees.append(tree_data([Entry(b"d", FOLDER, object_id("tree", trees[-1]))]))
    top = [Entry(b"deep", FOLDER, object_id("tree", trees[-1]))]
    made = hostile(tmp_path, top, [BLOB], trees)
    assert refused(tmp_path, *made) == "refused"
    with pytest.raises(FolderError, match="folders more than 100 deep"):
        joined(tmp_path, *made)


def test_object_that_inflates_beyond_the_bound_is_refused(tmp_path: Path) -> None:
    zeros = b"\0" * 5_000_000
    pack, snapshot = hostile(tmp_path, [Entry(b"z", FILE, object_id("blob", zeros))], [zeros])
    assert pack.stat().st_size < 30_000
    assert refused(tmp_path, pack, snapshot, Bounds(max_file=1_000_000)) == "too_large"
    assert refused(tmp_path, pack, snapshot, Bounds(max_bytes=4_000_000)) == "too_large"


def test_object_that_is_larger_than_it_says_is_refused(tmp_path: Path) -> None:
    pack, snapshot = _with_entry(tmp_path, entry_head(3, 10), zlib.compress(b"x" * 5000))
    assert refused(tmp_path, pack, snapshot) == "damaged"


def test_delta_of_nothing_of_itself_or_beyond_its_base_is_refused(tmp_path: Path) -> None:
    grows = b"\x15" + b"\xff\xff\xff\xff\x7f" + b"\x90\x15" * 3
    for base, changes in (
        (b"\1" * 20, b"\0\0"),
        (SHA, grows),
        (SHA, b"\x15\x05\x91\x50\x05"),
        (SHA, b"\x15"),
        (SHA, b"\x63\x05\x90\x05"),
    ):
        head = entry_head(REF_DELTA, len(changes)) + base
        pack, snapshot = _with_entry(tmp_path, head, zlib.compress(changes))
        assert refused(tmp_path, pack, snapshot) in ("damaged", "too_large")


def test_deltas_above_each_other_are_bounded(tmp_path: Path) -> None:
    writer = PackWriter(tmp_path / "hostile.pack")
    writer.add("blob", SHA, BLOB)
    content, base = BLOB, SHA
    for number in range(80):
        after = content + b"%d\n" % number
        changes, sha = delta(content, after), object_id("blob", after)
        writer.put(sha, len(after), entry_head(REF_DELTA, len(changes)) + base, zlib.compress(changes))
        content, base = after, sha
    tree = tree_data([Entry(b"a", FILE, base)])
    writer.add("tree", object_id("tree", tree), tree)
    commit = Snapshot(object_id("tree", tree), None, None).data(AT_MS)
    writer.add("commit", object_id("commit", commit), commit)
    snapshot = FolderSnapshot(object_id("commit", commit).hex())
    assert refused(tmp_path, writer.finish().path, snapshot) == "damaged"


def test_pack_with_an_object_twice_is_refused(tmp_path: Path) -> None:
    pack, snapshot = _with_entry(tmp_path, entry_head(3, len(BLOB)), zlib.compress(BLOB))
    assert refused(tmp_path, pack, snapshot) == "damaged"


@pytest.mark.parametrize("harm", ["cut", "bit", "sum", "count", "more", "empty"])
def test_damaged_pack_is_refused(bench: Bench, harm: str) -> None:
    bench.write({"a": b"1" * 1000, "b": b"2" * 1000})
    pack = bench.born().pack
    data = bytearray(pack.read_bytes())
    match harm:
        case "cut":
            data = data[:-30]
        case "bit":
            data[len(data) // 2] ^= 1
        case "sum":
            data[-1] ^= 1
        case "count":
            data[11] += 1
        case "more":
            data = data[:-20] + b"more" + data[-20:]
        case "empty":
            data = bytearray(b"PACK")
    bad = bench.root / "bad.pack"
    bad.write_bytes(data)
    assert refused(bench.root, bad, bench.at) == "damaged"


def test_pack_without_the_snapshot_is_told_as_missing(bench: Bench) -> None:
    bench.write({"a": b"1"})
    pack = bench.born().pack
    assert refused(bench.root, pack, FolderSnapshot("1" * 40)) == "missing"


def _with_entry(root: Path, head: bytes, packed: bytes) -> tuple[Path, FolderSnapshot]:
    (root / "hostile.pack").unlink(missing_ok=True)
    writer = PackWriter(root / "hostile.pack")
    writer.add("blob", SHA, BLOB)
    tree = tree_data([Entry(b"a", FILE, b"\2" * 20)])
    writer.put(b"\2" * 20, 1, head, packed)
    writer.add("tree", object_id("tree", tree), tree)
    commit = Snapshot(object_id("tree", tree), None, None).data(AT_MS)
    writer.add("commit", object_id("commit", commit), commit)
    return writer.finish().path, FolderSnapshot(object_id("commit", commit).hex())


def test_repository_in_the_folder_runs_nothing_and_is_left_out(bench: Bench) -> None:
    trap = bench.root / "trapped"
    script = f"#!/bin/sh\ntouch {trap}\n".encode()
    program = bench.folder / "trap.sh"
    config = f'[core]\n\tfsmonitor = {program}\n[filter "x"]\n\tclean = {program}\n'.encode()
    for folder in ("", "nested/", "deep/er/"):
        bench.write(
            {
                f"{folder}.git/config": config,
                f"{folder}.git/HEAD": b"ref: refs/heads/main\n",
                f"{folder}.git/hooks/post-index-change": script,
                f"{folder}.git/objects/info/alternates": b"/root/secret/.git/objects\n",
                f"{folder}.gitattributes": b"* filter=x working-tree-encoding=UTF-16\n",
                f"{folder}.gitmodules": b'[submodule "x"]\n\tpath = x\n\turl = ext::sh -c true\n',
                f"{folder}file": b"content\r\n",
            }
        )
    bench.write({"trap.sh": script})
    (bench.folder / "trap.sh").chmod(0o755)
    bench.born()
    assert not trap.exists()
    assert set(bench.left()) == {"nested/.git", "deep/er/.git"}
    made = content_of(bench.elsewhere())
    assert made[b"nested/file"] == ("file", b"content\r\n")
    assert not [path for path in made if b".git/" in path]


def test_repository_that_is_a_link_or_a_file_is_left_out(bench: Bench) -> None:
    secret = bench.root / "secret"
    git(bench.root, "init", "-q", str(secret))
    bench.write({".git": str(secret / ".git"), "sub/.git": b"gitdir: ../../secret/.git\n", "a": b"1"})
    assert set(bench.born().names) == {"A a"}
    assert set(bench.left()) == {"sub/.git"}


def test_folder_that_is_a_link_is_not_entered(bench: Bench) -> None:
    secret = bench.root / "secret"
    bench.write({"key": b"k"}, secret)
    bench.write({"out": str(secret), "in": "sub", "sub/up": "../..", "a": b"1"})
    assert set(bench.born().names) == {"A a", "A in"}
    assert set(bench.left()) == {"out", "sub/up"}


def test_fifos_sockets_and_unreadable_files_are_named_and_not_waited_for(bench: Bench) -> None:
    bench.write({"a": b"1"})
    os.mkfifo(bench.folder / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(bench.folder)
        try:
            listening.bind("socket")
        finally:
            os.chdir(here)
        assert set(bench.born().names) == {"A a"}
    assert bench.left() == {"fifo": "a fifo", "socket": "a socket"}
    (bench.folder / "a").unlink()
    os.mkfifo(bench.folder / "a")
    assert bench.taken().names == ("D a",)
    assert bench.left() == {"a": "a fifo"}


def test_bad_name_is_left_out_and_ends_nothing(bench: Bench) -> None:
    bench.write({"git~1": b"x", ".GIT/config": b"x", "a": b"1"})
    assert bench.born().names == ("A a",)
    assert bench.left() == {"git~1": "a repository's own folder", ".GIT": "a repository's own folder"}


def test_many_ignored_bytes_are_not_read(bench: Bench) -> None:
    bench.write({".gitignore": b"cache/\n*.bin\n", "a": b"1", "cache/x": b""})
    for name in ("cache/x", "huge.bin"):
        with (bench.folder / name).open("wb") as file:
            file.truncate(200 << 20)
    began = time.process_time()
    taken = bench.born()
    assert time.process_time() - began < 1.0
    assert taken.bytes < 1000


def test_endless_folders_cost_an_omission(bench: Bench) -> None:
    bench.folder.mkdir()
    fd = os.open(bench.folder, os.O_RDONLY)
    for _ in range(150):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    bench.born()
    assert list(bench.left().values()) == ["it cannot be read (its path is too deep)"]
    remove(bench.folder)
    assert not bench.folder.exists()


def test_folder_of_empty_folders_is_bounded(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Bounds(max_files=50))
    bench.write({f"{n}": None for n in range(60)})
    with pytest.raises(FolderError, match="more than 50 files"):
        bench.born()


def test_work_that_takes_too_long_is_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Bounds(seconds=0.0))
    bench.write({"a": b"1"})
    with pytest.raises(FolderError) as late:
        bench.born()
    assert late.value.kind == "time"


def test_file_that_changes_while_it_is_read_is_told_and_read_again_later(bench: Bench) -> None:
    bench.write({"log": b"", "still": b"1"})
    os.truncate(bench.folder / "log", 16 << 20)
    bench.born()
    with (bench.folder / "log").open("ab") as log:
        writer = subprocess.Popen(["sh", "-c", "while :; do printf y; done"], stdout=log)
    try:
        for _ in range(500):
            bench.take()
            if bench.left():
                break
        assert bench.left() == {"log": "it changed while it was read: a state in between is saved"}
    finally:
        writer.kill()
        writer.wait()
    bench.take()
    assert content_of(bench.elsewhere()) == content_of(bench.folder)


def test_write_in_the_same_tick_as_the_snapshot_is_seen_by_the_next(bench: Bench) -> None:
    bench.write({"a": b"00"})
    bench.born()
    for number in range(30):
        (bench.folder / "a").write_bytes(b"%02d" % (number + 1))
        taken = bench.take()
        assert isinstance(taken, Taken)
        assert content_of(bench.elsewhere(f"e{number}"))[b"a"] == ("file", b"%02d" % (number + 1))


def test_removal_of_a_folder_follows_no_link(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("kept")
    doomed = tmp_path / "doomed"
    (doomed / "locked").mkdir(parents=True)
    (doomed / "locked" / "file").write_text("")
    (doomed / "locked").chmod(0)
    (doomed / "link").symlink_to(kept)
    (doomed / "top").symlink_to("/")
    remove(doomed)
    assert not doomed.exists()
    assert (kept / "file").exists()


OTHER_DISK = Path("/dev/shm")
on_another_disk = pytest.mark.skipif(
    not OTHER_DISK.is_dir() or OTHER_DISK.stat().st_dev == Path(__file__).stat().st_dev,
    reason="there is no other file system to be had",
)


@pytest.fixture
def work() -> Iterator[Path]:
    """A place of ours on another disk than the folder's, so that a merge is staged in the folder."""
    made = Path(tempfile.mkdtemp(prefix="dendro-merge-", dir=OTHER_DISK))
    yield made
    shutil.rmtree(made)


@on_another_disk
def test_merge_that_is_taken_back_believes_no_steps_that_a_command_has_written(
    tmp_path: Path, work: Path
) -> None:
    """Where Dendro's folder is on another disk, what a merge has staged lies among the session's files."""
    folder, staging = tmp_path / "folder", tmp_path / "folder/.dendro-merge-0123456789ab"
    (folder / ".git/hooks").mkdir(parents=True)
    staging.mkdir()
    (work / "elsewhere").write_bytes(os.fsencode(staging))
    forged = [(b".git/hooks/pre-commit", True, None)]
    (staging / "steps").write_bytes(marshal.dumps((forged, [])))
    (staging / "old-0").write_bytes(BLOB)
    take_back(folder, work)
    assert list((folder / ".git/hooks").iterdir()) == []
    assert not staging.exists()


def broken_off(folder: Path, work: Path) -> Path:
    """A merge whose process was killed behind its first file; its staging folder."""
    staging = folder / ".dendro-merge-0123456789ab"
    staging.mkdir()
    (work / "elsewhere").write_bytes(os.fsencode(staging))
    old, new = (Side(FILE, object_id("blob", content)) for content in (b"old", b"new"))
    steps = tuple(Step(name, old, new, b"new") for name in (b"a", b"b"))
    writer = _Writer(steps, folder, Known(), staging, work)
    for number, step in enumerate(steps):
        writer._staged(f"new-{number}", step)
    writer._note_steps()
    writer._move(0, steps[0])
    return staging


@on_another_disk
def test_merge_that_was_staged_in_the_folder_is_taken_back(tmp_path: Path, work: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text("old")
    staging = broken_off(folder, work)
    assert (folder / "a").read_text() == "new"
    take_back(folder, work)
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"a": "old", "b": "old"}
    assert not staging.exists()
    assert list(work.iterdir()) == []


@on_another_disk
def test_staging_folder_that_a_command_exchanged_is_followed_nowhere_and_that_is_said_once(
    tmp_path: Path, work: Path
) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    for made in (folder, other):
        made.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text("old")
    staging = broken_off(folder, work)
    staging.rename(folder / "away")
    staging.symlink_to(other)
    with pytest.raises(FolderError, match="a part of it may be in the folder"):
        take_back(folder, work)
    assert list(other.iterdir()) == []
    take_back(folder, work)
