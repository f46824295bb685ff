"""Changes of a folder as they are told: counted whole, and named up to bounds in bytes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import pytest

from orchestrator.folders import copy as copies
from orchestrator.folders import keeper as keepers
from orchestrator.folders.copy import Copy
from orchestrator.folders.outcomes import NAMED_OMISSIONS, NAMES_BYTES, Bounds, Counts, Place
from orchestrator.folders.stat_cache import Change, Known, Left, changes, omissions, told
from tests.folders.test_joined import START, Tree
from tests.folders.test_keeper import _place, kept
from tests.folders.workshop import Bench, Content

What = Literal["A", "M", "D"]


@pytest.mark.parametrize("letter", ["a", "é", "界"])
@pytest.mark.parametrize("spare", [0, 1])
def test_names_of_a_change_fill_their_room_to_the_last_byte_and_all_are_counted(
    letter: str, spare: int
) -> None:
    """Each with its line's end; behind one that has no room none is named, however short."""
    room = NAMES_BYTES - len("M short\n")
    size = len(letter.encode())
    long = letter * ((room - len("A \n")) // size)
    long += "x" * (room - len(f"A {long}\n".encode()) + spare)
    found: list[tuple[What, str]] = [("A", long), ("M", "short"), ("D", "s"), ("M", "t")]
    counts, names = told(Change(what, path.encode(), None, None) for what, path in found)
    assert counts == Counts(1, 2, 1)
    assert names == (f"A {long}", *(() if spare else ("M short",)))


def known(**left: str) -> Known:
    """A folder with files that were left out, the reasons for that, and a folder below with the same."""
    top, below = Known(), Known()
    top.left = {name: Left(why, 1) for name, why in left.items()}
    below.left = dict(top.left)
    top.folders["below"] = below
    return top


@pytest.mark.parametrize(
    ("before", "after", "new"),
    [
        ({}, {}, []),
        ({}, {"a": "large"}, ["a", "below/a"]),
        ({"a": "large"}, {"a": "large"}, []),
        ({"a": "large"}, {"a": "a fifo"}, ["a", "below/a"]),
        ({"a": "large"}, {"a": "large", "b": "large"}, ["b", "below/b"]),
        ({"a": "large", "b": "large"}, {"b": "large"}, []),
        ({"a": "large"}, {"b": "large"}, ["b", "below/b"]),
    ],
)
def test_file_is_left_out_anew_where_it_was_not_or_for_another_reason(
    before: dict[str, str], after: dict[str, str], new: list[str]
) -> None:
    found = omissions(known(**before), known(**after))
    assert ([one.path for one in found.named], found.new, found.all) == (new, len(new), 2 * len(after))
    same = known(**after)
    again = omissions(same, same)
    assert (again.named, again.new, again.all) == ((), 0, 2 * len(after))


@pytest.mark.parametrize("more", [-1, 0, 1, 5])
def test_first_files_that_are_left_out_are_named_and_all_are_counted(more: int) -> None:
    before, after = Known(), Known()
    before.left = {"old": Left("large", 1)}
    names = [f"{number:02}" for number in range(NAMED_OMISSIONS + more)]
    after.left = {**before.left, **{name: Left("large", 1) for name in names}}
    found = omissions(before, after)
    assert [one.path for one in found.named] == names[:NAMED_OMISSIONS]
    assert (found.new, found.all) == (len(names), len(names) + 1)


# ── texts of differences ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("letter", ["a", "é"])
@pytest.mark.parametrize("spare", [0, 1])
def test_text_of_a_difference_is_cut_behind_a_whole_file_and_its_figures_are_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, letter: str, spare: int
) -> None:
    bench = Bench(tmp_path)
    bench.write({"a": b"1\n", "b": b"1\n", "c": b"1\n"})
    first = bench.born().snapshot
    bench.write({"a": letter.encode() * 100 + b"\n", "b": b"2\n2\n", "c": b"3\n"})
    second = bench.taken().snapshot
    alone = [bench.copy.diff(first, second, path=name).text for name in ("a", "b", "c")]
    assert bench.copy.diff(first, second).text == "".join(alone)
    monkeypatch.setattr(copies, "MOST_TEXT", len("".join(alone[:2]).encode()) - spare)
    found = bench.copy.diff(first, second)
    assert found.text == "".join(alone[: 2 - spare]), "and nothing behind the first that has no room"
    assert found.truncated
    assert (found.counts, found.insertions, found.deletions) == (Counts(0, 3, 0), 4, 3)
    assert [file.path for file in found.files] == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["é/ü", b"caf\xe9", 'with "quotes"', "a b", "new\nline"])
def test_lines_of_one_file_are_asked_for_by_the_name_that_the_figures_have(
    tmp_path: Path, name: str | bytes
) -> None:
    files: dict[str | bytes, Content] = {name: b"1\n", "other": b"1\n"}
    bench = Bench(tmp_path)
    bench.write(files)
    first = bench.born().snapshot
    bench.write({**dict.fromkeys(files, b"2\n")})
    second = bench.taken().snapshot
    figures = bench.copy.diff(first, second, stat=True).files
    (path,) = (file.path for file in figures if file.path != "other")
    found = bench.copy.diff(first, second, path=path)
    assert ([file.path for file in found.files], found.counts) == ([path], Counts(0, 1, 0))
    assert "-1\n+2\n" in found.text


def test_changes_are_told_in_the_order_of_git_also_where_a_folder_and_a_file_change_places(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    bench.write({"a/x": b"1", "b": b"1", "a.b": b"1", "a0": b"1"})
    bench.born()
    before = list(bench.copy._states.values())[-1].root
    (bench.folder / "a/x").unlink()
    (bench.folder / "a").rmdir()
    (bench.folder / "b").unlink()
    bench.write({"a": b"file", "b/y": b"2", "a.b": b"2", "a0": b"2"})
    bench.taken()
    after = list(bench.copy._states.values())[-1].root
    told_ones = [(one.what, os.fsdecode(one.path)) for one in changes(before, after)]
    assert told_ones == [("A", "a"), ("M", "a.b"), ("D", "a/x"), ("M", "a0"), ("D", "b"), ("A", "b/y")]


# ── all agents of a tree ──────────────────────────────────────────────────────────────────────────


async def test_packs_of_many_agents_are_handed_to_the_process_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path / "tree", START)
    for number in range(4):
        tree.write(tree.agent(), **{f"new{number}": b"x\n"})
    wanted = tree.joined()
    assert len(tree.packs) == 5
    rows: list[Any] = [
        type(branch)(branch.parent, branch.base, bench.at, branch.merged)
        for branch, bench in zip(tree.branches, tree.benches, strict=True)
    ]
    monkeypatch.setattr(keepers, "MOST_DESCRIPTORS", 2)
    async with kept(_place(tmp_path / "kept")) as keeper:
        assert await keeper.join(rows, tree.packs) == wanted


def test_pack_that_is_given_twice_is_read_once(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "tree")
    tree.write(tree.agent(), new=b"x\n")
    wanted = tree.joined()
    copy = Copy(Place(tmp_path / "f", tmp_path / "o"), Bounds())
    for _ in range(2):
        copy.give([*tree.packs, tree.packs[0]])
    assert len(copy._given) == len(tree.packs)
    rows = [
        type(branch)(branch.parent, branch.base, bench.at, branch.merged)
        for branch, bench in zip(tree.branches, tree.benches, strict=True)
    ]
    assert copy.join(rows) == wanted
