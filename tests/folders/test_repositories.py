"""The repository of a folder: taken from a person's, and made again for whoever works in the copy."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from orchestrator.folders.copy import Copy
from orchestrator.folders.names import MOST_DEPTH
from orchestrator.folders.outcomes import Bounds, Counts, FolderError, FolderSnapshot, Place, Taken
from orchestrator.folders.repository_head import excludes_of
from orchestrator.folders.stat_cache import MOST_PACKS
from tests.folders.workshop import AT_MS, Bench, Content, content_of, git


def committed(bench: Bench, files: dict[str | bytes, Content]) -> str:
    """Makes the folder a repository with a commit of these files, on a branch with a history."""
    bench.write(files)
    git(bench.folder, "init", "-q", "-b", "work/topic")
    git(bench.folder, "commit", "-q", "--allow-empty", "-m", "Begin")
    git(bench.folder, "add", "-A", "-f")
    git(bench.folder, "commit", "-q", "-m", "Add everything")
    return git(bench.folder, "rev-parse", "HEAD").decode().strip()


def test_git_in_the_made_folder_shows_what_it_showed_the_person(bench: Bench) -> None:
    head = committed(
        bench, {"a": b"1\n", "src/b.py": b"2\n", "run": b"#!/bin/sh\n", "link": "a", "gone": b"g"}
    )
    bench.write({"a": b"changed\n", "new": b"n", ".gitignore": b"*.log\n", "x.log": b"log"})
    (bench.folder / "run").chmod(0o755)
    (bench.folder / "gone").unlink()
    bench.born(bench.folder / ".git")
    made = bench.elsewhere()
    for words in (("status", "--porcelain", "-b"), ("diff",), ("rev-parse", "HEAD"), ("ls-files", "-s")):
        assert git(made, *words) == git(bench.folder, *words), words
    assert git(made, "log", "--format=%H %s").decode() == f"{head} Add everything\n"
    git(made, "fsck", "--full", "--strict")
    assert not (made / "x.log").exists()
    assert not (made / ".git" / "hooks").exists()


@pytest.mark.parametrize("earlier", [False, True])
def test_history_of_a_made_folder_is_cut_only_where_the_commit_has_one(bench: Bench, earlier: bool) -> None:
    """Words that its message begins a line with cut nothing."""
    if earlier:
        committed(bench, {"a": b"1"})
    bench.write({"a": b"2"})
    git(bench.folder, "init", "-q")
    git(bench.folder, "commit", "-q", "--allow-empty", "-m", "First", "-m", "parent of all")
    bench.born(bench.folder / ".git")
    made = bench.elsewhere()
    assert git(made, "rev-parse", "--is-shallow-repository").decode().strip() == str(earlier).lower()
    assert git(made, "log", "--format=%H") == git(bench.folder, "log", "-1", "--format=%H")


def test_git_of_a_made_folder_reads_no_file_that_did_not_change(bench: Bench) -> None:
    committed(bench, {f"d/{n}": b"%d\n" % n for n in range(20)})
    bench.born(bench.folder / ".git")
    made = bench.elsewhere()
    told = re.findall(
        rb"mtime: (\d+):(\d+)\n.*ino: (\d+)\n.*\n  size: (\d+)", git(made, "ls-files", "--debug")
    )
    stats = [(made / "d" / name).stat() for name in sorted(map(str, range(20)))]
    expected = [(it.st_mtime_ns, it.st_ino & 0xFFFFFFFF, it.st_size) for it in stats]
    assert [(int(s) * 10**9 + int(ns), int(ino), int(size)) for s, ns, ino, size in told] == expected


def test_tracked_files_are_taken_although_rules_ignore_or_settings_exclude_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Bounds(exclude=(".env*",)))
    committed(bench, {".gitignore": b"build/\n", "build/kept": b"1", ".env.example": b"2"})
    bench.write({"build/other": b"3", ".env": b"secret"})
    assert set(bench.born(bench.folder / ".git").names) == {"A .gitignore", "A build/kept", "A .env.example"}
    assert bench.left() == {".env": "excluded (workspace.exclude)"}


def test_repository_survives_later_snapshots_and_whole_packs(bench: Bench) -> None:
    head = committed(bench, {"a": b"1\n", "gone": b"2\n"})
    bench.born(bench.folder / ".git")
    (bench.folder / "gone").unlink()
    for number in range(33):
        bench.write({"a": b"%d\n" % number})
        bench.take()
    assert len(bench.packs) == 2
    made = bench.elsewhere()
    assert git(made, "rev-parse", "HEAD", "--abbrev-ref", "HEAD").decode().split() == [head, "work/topic"]
    assert git(made, "show", "HEAD:gone") == b"2\n"
    git(made, "fsck", "--full", "--strict")


def test_commit_becomes_a_folder_where_there_is_none(bench: Bench) -> None:
    files: dict[str | bytes, Content] = {
        "a": b"1\n",
        "src/run.sh": b"x",
        "src/link": "../a",
        "out": "/etc/passwd",
    }
    head = committed(bench, files)
    bare = bench.root / "bare.git"
    git(bench.root, "clone", "-q", "--bare", str(bench.folder), str(bare))
    place = Place(bench.root / "w" / "folder", bench.root / "w" / "objects")
    copy = Copy(place, Bounds())
    taken = copy.born(bare, "work/topic", AT_MS)
    assert taken.counts == Counts(added=3)
    assert copy.make([taken.pack], taken.snapshot).head == head
    # The commit's link to an absolute path is in its history, and in no folder.
    assert git(place.folder, "status", "--porcelain").decode().split() == ["D", "out"]
    assert set(content_of(place.folder)) == {b"a", b"src/run.sh", b"src/link"}


def test_same_repository_gives_the_same_snapshot_from_folder_and_from_clone(bench: Bench) -> None:
    committed(bench, {"a": b"1\n", "b/c": b"2\n"})
    bare = bench.root / "bare.git"
    git(bench.root, "clone", "-q", "--bare", str(bench.folder), str(bare))
    clone = Copy(Place(bench.root / "w" / "folder", bench.root / "w" / "objects"), Bounds())
    assert clone.born(bare, "work/topic", AT_MS).snapshot == bench.born(bench.folder / ".git").snapshot


def test_repository_without_a_commit_counts_as_none(bench: Bench) -> None:
    bench.write({"a": b"1"})
    git(bench.folder, "init", "-q")
    assert bench.born(bench.folder / ".git").counts == Counts(added=1)
    assert not (bench.elsewhere() / ".git").exists()


def test_repository_of_sha_256_is_refused_by_name(bench: Bench) -> None:
    bench.write({"a": b"1"})
    git(bench.folder, "init", "-q", "--object-format=sha256")
    git(bench.folder, "add", "-A")
    git(bench.folder, "commit", "-q", "-m", "Add")
    with pytest.raises(FolderError, match="SHA-256"):
        bench.born(bench.folder / ".git")


def test_unknown_ref_and_large_commit_are_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Bounds(max_files=5))
    committed(bench, {f"{n}": b"x" for n in range(5)})
    with pytest.raises(FolderError) as missing:
        bench.born(bench.folder / ".git", "nowhere")
    assert missing.value.kind == "missing"
    with pytest.raises(FolderError) as dashed:
        bench.born(bench.folder / ".git", "--all")
    assert dashed.value.kind == "refused"
    bench.write({"6": b"x"})
    git(bench.folder, "add", "-A")
    git(bench.folder, "commit", "-q", "-m", "More")
    with pytest.raises(FolderError) as large:
        bench.born(bench.folder / ".git")
    assert large.value.kind == "too_many_files"


def test_rules_of_the_person_hold_for_git_in_the_made_folder(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Bounds(ignored=("*.swp", "caf\udce9")))
    committed(bench, {"a": b"1"})
    bench.born(bench.folder / ".git")
    made = bench.elsewhere()
    bench.write({"x.swp": b"1", b"caf\xe9": b"2"}, made)
    assert git(made, "status", "--porcelain") == b""


def test_submodule_stays_a_commit_and_its_files_are_not_taken(bench: Bench) -> None:
    commit = "1234567890" * 4
    bench.write({"a": b"1", "sub/file": b"2"})
    git(bench.folder, "init", "-q")
    git(bench.folder, "update-index", "--add", "--cacheinfo", f"160000,{commit},sub")
    git(bench.folder, "add", "a")
    git(bench.folder, "commit", "-q", "-m", "Add")
    assert bench.born(bench.folder / ".git").names == ("A a",)
    assert bench.left() == {"sub": "a repository of its own (submodule): only its commit is named"}
    made = bench.elsewhere()
    assert git(made, "ls-files", "-s", "sub").split()[1].decode() == commit
    assert list((made / "sub").iterdir()) == []


def test_file_of_the_commit_over_the_bound_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Bounds(max_file=1000))
    committed(bench, {"large": b"l" * 2000, "a": b"1"})
    shutil.move(bench.folder / ".git", bench.root / "bare.git")
    shutil.rmtree(bench.folder)
    taken = bench.born(bench.root / "bare.git")
    assert taken.names == ("A a",)
    assert bench.left() == {"large": "larger than workspace.max_file"}
    assert content_of(bench.elsewhere()) == {b"a": ("file", b"1")}


def test_hooks_and_configuration_of_the_persons_repository_run_nothing(bench: Bench) -> None:
    committed(bench, {"a": b"1"})
    trap = bench.root / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {bench.root}/trapped\n")
    trap.chmod(0o755)
    for key in ("core.fsmonitor", "core.sshCommand", "core.alternateRefsCommand", "filter.x.smudge"):
        git(bench.folder, "config", key, str(trap))
    git(bench.folder, "config", "remote.origin.url", f"ext::{trap}")
    git(bench.folder, "config", "remote.origin.promisor", "true")
    blob = git(bench.folder, "rev-parse", "HEAD:a").decode().strip()
    (bench.folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(FolderError) as broken:
        bench.born(bench.folder / ".git")
    assert broken.value.kind == "damaged"
    assert not (bench.root / "trapped").exists()


def test_excludes_of_the_person_are_read_as_git_reads_them(bench: Bench) -> None:
    git(bench.root, "init", "-q", str(bench.folder))
    home = bench.root / "home"
    (home / ".config" / "git").mkdir(parents=True)
    (home / ".config" / "git" / "ignore").write_text("*.swp\n# a comment\n\n")
    (bench.folder / ".git" / "info" / "exclude").write_text(".env\n")
    environ = {"HOME": str(home), "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"}
    assert excludes_of(environ, bench.folder / ".git") == ("*.swp", ".env")
    (home / "own").write_text("*.own\n")
    (home / ".gitconfig").write_text("[core]\n\texcludesFile = ~/own\n")
    assert excludes_of(environ, bench.folder / ".git") == ("*.own", ".env")


@pytest.mark.parametrize("comments", [b"# a comment\n" * 6_000, b"# a comment\n" * 40_000, b"*.o\n" * 5_000])
def test_excludes_of_the_person_are_read_whole_or_refused(bench: Bench, comments: bytes) -> None:
    git(bench.root, "init", "-q", str(bench.folder))
    home = bench.root / "home"
    home.mkdir()
    environ = {"HOME": str(home), "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"}
    exclude = bench.folder / ".git" / "info" / "exclude"
    exclude.write_bytes(comments + b"token\n")
    if len(comments) == 72_000:
        assert excludes_of(environ, bench.folder / ".git") == ("token",)
        return
    with pytest.raises(FolderError, match=r"info/exclude names .*more than .*: correct or remove it"):
        excludes_of(environ, bench.folder / ".git")


def test_repository_names_no_file_of_excludes(bench: Bench) -> None:
    """The lines of the file would stand in the log, and in the copy that the agent reads."""
    git(bench.root, "init", "-q", str(bench.folder))
    home = bench.root / "home"
    home.mkdir()
    (home / "pack.keys").write_text("swordfish\n")
    git(bench.folder, "config", "core.excludesFile", str(home / "pack.keys"))
    exclude = bench.folder / ".git" / "info" / "exclude"
    exclude.write_text("")
    environ = {"HOME": str(home)}
    assert excludes_of(environ, bench.folder / ".git") == ()
    exclude.unlink()
    exclude.symlink_to(home / "pack.keys")
    with pytest.raises(FolderError, match="link leads out"):
        excludes_of(environ, bench.folder / ".git")
    (home / ".gitconfig").write_text("[core]\n\texcludesFile = ~/pack.keys\n")
    with pytest.raises(FolderError, match=r"pack\.keys"):
        excludes_of(environ, None, (home / "pack.keys",))


def test_diff_of_snapshots_is_that_of_git(bench: Bench) -> None:
    text = b"".join(b"line %d\n" % n for n in range(30))
    bench.write({"a": text, "b": b"1\n", "bin": b"\0\1", "mode": b"m\n", "link": "a", "no newline": b"x"})
    first = bench.born().snapshot
    bench.write(
        {
            "a": text.replace(b"line 3\n", b"LINE 3\n").replace(b"line 25\n", b""),
            "c/d": b"2\n",
            "bin": b"\0\2",
        }
    )
    bench.write({"no newline": b"y"})
    (bench.folder / "b").unlink()
    (bench.folder / "mode").chmod(0o755)
    second = bench.taken().snapshot
    found = bench.copy.diff(first, second)
    store = bench.repository()
    expected = git(store, "diff", "--no-renames", "--abbrev=7", first, second)
    assert found.text.encode() == re.sub(rb"(?m)^(@@ .* @@) .*$", rb"\1", expected)
    assert (found.counts, found.insertions, found.deletions) == (Counts(1, 4, 1), 3, 4)
    assert {it.path: (it.insertions, it.deletions, it.binary) for it in found.files}["a"] == (1, 2, False)
    assert bench.copy.diff(first, second, stat=True).text == ""
    assert [(it.path, it.what) for it in found.files if it.what != "M"] == [("b", "D"), ("c/d", "A")]
    alone = bench.copy.diff(first, second, path="c/d")
    assert (alone.counts, [it.path for it in alone.files]) == (Counts(added=1), ["c/d"])
    assert alone.text in found.text
    assert not bench.copy.diff(first, second, path="d").files
    assert bench.copy.diff(None, first).counts == Counts(added=6)
    assert bench.copy.diff(FolderSnapshot(first), FolderSnapshot(first)).text == ""


def of_commit(bench: Bench, commit: str = "HEAD") -> Taken:
    """The first snapshot of a clone: of the commit, where no folder stands."""
    taken = bench.copy.born(bench.folder / ".git", commit, AT_MS, of_folder=False)
    bench.packs, bench.at, bench.last = [taken.pack], taken.snapshot, taken
    return taken


def test_all_that_a_commit_has_and_its_folder_has_not_is_named_with_the_reason(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Bounds(max_file=1000))
    committed(bench, {
        "a": b"1", "large": b"l" * 1001, "fits": b"f" * 1000, "in/side": "../a", "out": "/etc/passwd",
        "in/up": "../../a", "in/a/through": "a/../../..",
    })  # fmt: skip
    (blob,) = git(bench.folder, "rev-parse", "HEAD:a").split()
    inner = git(bench.folder, "mktree", given=b"100644 blob %s\tconfig\n" % blob).strip()
    rows = git(bench.folder, "ls-tree", "HEAD") + b"040000 tree %s\tgit~1\n" % inner
    tree = git(bench.folder, "mktree", given=rows).strip().decode()
    commit = git(bench.folder, "commit-tree", "-m", "x", tree).strip().decode()
    taken = of_commit(bench, commit)
    out = "a link that leads out of the folder"
    assert bench.left() == {
        "large": "larger than workspace.max_file",
        "out": "a link to an absolute path",
        "in/up": out,
        "in/a/through": out,
        "git~1": "a repository's own folder",
    }
    assert (taken.omitted.new, taken.omitted.all) == (5, 5)
    assert set(content_of(bench.elsewhere())) == {b"a", b"fits", b"in/side", b"in/a"}


@pytest.mark.parametrize("count", [10, 11])
def test_first_parts_of_a_commit_that_are_left_out_are_named_and_all_are_counted(
    bench: Bench, count: int
) -> None:
    committed(bench, {"a": b"1", **{f"link{number:02}": "/out" for number in range(count)}})
    omitted = of_commit(bench).omitted
    assert [omission.path for omission in omitted.named] == [f"link{number:02}" for number in range(10)]
    assert (omitted.new, omitted.all) == (count, count)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("of_folder", [True, False])
def test_first_snapshot_holds_as_many_bytes_as_it_may_and_large_files_are_none_of_them(
    tmp_path: Path, of_folder: bool, more: int
) -> None:
    """Of a repository with large files the rest is taken, also where they are more than it may hold."""
    bench = Bench(tmp_path, Bounds(max_file=1000, max_bytes=1500))
    committed(bench, {"a": b"1" * 1000, "b": b"2" * (500 + more), "large": b"l" * 1501})
    if more:
        with pytest.raises(FolderError) as refused:
            bench.born(bench.folder / ".git") if of_folder else of_commit(bench)
        assert refused.value.kind == "too_large"
        return
    taken = bench.born(bench.folder / ".git") if of_folder else of_commit(bench)
    assert taken.names == ("A a", "A b")
    assert bench.left() == {"large": "larger than workspace.max_file"}


@pytest.mark.parametrize("whole", [False, True])
def test_folder_that_is_as_large_as_it_may_be_is_made_beside_its_commit_which_is_too(
    tmp_path: Path, whole: bool
) -> None:
    """Its pack holds both: what the commit has, and what became of it since."""
    bench = Bench(tmp_path, Bounds(max_bytes=2000, max_file=1500))
    committed(bench, {"a": os.urandom(1500), "b": os.urandom(500)})
    bench.write({"a": os.urandom(1500), "b": os.urandom(500)})
    bench.born(bench.folder / ".git")
    for number in range(MOST_PACKS * whole):
        bench.write({"b": b"%3d" % number + os.urandom(497)})
        assert bench.taken().whole is (number == MOST_PACKS - 1)
    assert content_of(bench.elsewhere()) == content_of(bench.folder)


def test_pack_of_more_than_a_folder_and_its_commit_is_not_believed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Bounds(max_bytes=2000))
    committed(bench, {"a": os.urandom(1500)})
    bench.write({"a": os.urandom(1501)})
    bench.born(bench.folder / ".git")
    for most in (1501, 1500):
        bench.bounds = Bounds(max_bytes=most)
        if most == 1501:
            assert content_of(bench.elsewhere(f"{most}")) == content_of(bench.folder)
        else:
            with pytest.raises(FolderError) as refused:
                bench.elsewhere(f"{most}")
            assert refused.value.kind == "too_large"


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("of_folder", [True, False])
def test_commit_has_folders_as_deep_as_a_folder_may_have(bench: Bench, of_folder: bool, more: int) -> None:
    deep = "d/" * (MOST_DEPTH + more) + "file"
    committed(bench, {"a": b"1", deep: b"2"})
    if more:
        with pytest.raises(FolderError, match="more than 100 deep: no workspace") as refused:
            bench.born(bench.folder / ".git") if of_folder else of_commit(bench)
        assert refused.value.kind == "refused"
    else:
        bench.born(bench.folder / ".git") if of_folder else of_commit(bench)
        made = bench.elsewhere()
        assert set(content_of(made)) == {b"a", deep.encode()}
        assert git(made, "status", "--porcelain") == b""
