"""The changes of a tree's folders, as if all were merged: whose they are, and where two are at odds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.folders import merge as module
from orchestrator.folders.copy import Copy
from orchestrator.folders.outcomes import Bounds, Branch, FolderError, Joined, JoinedFile, Place
from tests.folders.workshop import Bench, Content

LINES = b"".join(b"line %d\n" % n for n in range(20))
START: Mapping[str | bytes, Content] = {"a": LINES, "deep/er/b": b"1\n", "gone": b"2\n", "same": b"3\n"}


class Tree:
    """Folders of agents, each of which began with the one above it."""

    def __init__(self, root: Path, start: Mapping[str | bytes, Content] = START) -> None:
        self.root = root
        first = Bench(root / "0")
        first.write(start)
        self.benches = [first]
        self.branches = [Branch(None, first.born().snapshot, None)]
        self.packs = list(first.packs)

    def agent(self, parent: int = 0) -> int:
        """Another one, below `parent`."""
        number, above = len(self.benches), self.benches[parent]
        self.save(parent)
        place = above.elsewhere(f"child-{number}")
        bench = Bench(place.parent)
        assert bench.copy.adopt((), above.at)
        bench.at, bench.packs = above.at, list(above.packs)
        self.benches.append(bench)
        self.branches.append(Branch(parent, above.at, None))
        return number

    def save(self, number: int) -> None:
        self.benches[number].take()
        self.packs += [pack for pack in self.benches[number].packs if pack not in self.packs]

    def write(self, number: int, **files: bytes | None) -> None:
        """Writes files by their stems, or removes them."""
        bench = self.benches[number]
        for name, content in files.items():
            if content is None:
                (bench.folder / name).unlink()
            else:
                bench.write({name: content})

    def merge(self, number: int) -> None:
        """Merges what an agent has made into the folder above, as its parent's call does."""
        self.save(number)
        branch, bench = self.branches[number], self.benches[number]
        assert branch.parent is not None
        above, base = self.benches[branch.parent].copy, branch.merged or branch.base
        assert base is not None
        planned = above.plan_merge(base, bench.at, bench.packs)
        above.write_merge(base, bench.at, bench.packs, planned.digest)  # type: ignore[union-attr]
        self.branches[number] = Branch(branch.parent, branch.base, None, bench.at)

    def joined(self) -> Joined:
        for number in range(len(self.benches)):
            self.save(number)
        copy = Copy(Place(self.root / "f", self.root / "o"), Bounds())
        copy.give(self.packs)
        rows = zip(self.branches, self.benches, strict=True)
        return copy.join([Branch(it.parent, it.base, bench.at, it.merged) for it, bench in rows])

    def files(self) -> dict[str, JoinedFile]:
        return {file.path: file for file in self.joined().files}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def by(file: JoinedFile) -> list[int]:
    assert file.of == len(file.shares)
    return [share.branch for share in file.shares]


def test_files_of_all_agents_are_told_once_with_whose_they_are(tree: Tree) -> None:
    one, two = tree.agent(), tree.agent()
    three = tree.agent(one)
    tree.write(0, same=b"of the root\n")
    tree.write(one, new=b"x\ny\n")
    tree.write(two, gone=None)
    tree.write(three, other=b"z\n")
    found = tree.joined()
    assert [(file.path, file.what, by(file), file.conflict) for file in found.files] == [
        ("gone", "D", [two], ""),
        ("new", "A", [one], ""),
        ("other", "A", [three], ""),
        ("same", "M", [0], ""),
    ]
    assert (found.all, found.insertions, found.deletions, found.conflicts) == (4, 4, 2, 0)


def test_file_that_several_have_changed_in_other_lines_has_the_lines_of_all(tree: Tree) -> None:
    one, two = tree.agent(), tree.agent()
    tree.write(one, a=LINES.replace(b"line 3\n", b"LINE 3\nand\n"))
    tree.write(two, a=LINES.replace(b"line 15\n", b"LINE 15\n"))
    (file,) = tree.joined().files
    assert (by(file), file.insertions, file.deletions, file.conflict) == ([one, two], 3, 2, "")
    assert [(share.insertions, share.deletions) for share in file.shares] == [(2, 1), (1, 1)]


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ({"a": LINES.replace(b"3", b"x")}, {"a": LINES.replace(b"3", b"y")}, "the same lines"),
        ({"a": None}, {"a": LINES + b"more\n"}, "deleted on one side"),
        ({"new": b"1"}, {"new": b"2"}, "two new files"),
        ({"a": b"\0one"}, {"a": b"\0two"}, "a binary file"),
        ({"dir": b"a file"}, {"dir/in": b"in a folder"}, "a folder on one side"),
        ({"dir/in": b"in a folder"}, {"dir": b"a file"}, "a folder on one side"),
    ],
)
def test_conflict_of_two_agents_is_told_with_both(
    tree: Tree, ours: dict[str, bytes | None], theirs: dict[str, bytes | None], words: str
) -> None:
    one, two = tree.agent(), tree.agent()
    three = tree.agent(two)
    tree.write(one, **ours)
    tree.write(three, **theirs)
    found = tree.joined()
    (file,) = [file for file in found.files if file.conflict]
    assert words in file.conflict
    assert file.path in theirs
    assert file.between is not None
    assert (file.between[1], found.conflicts) == (three, 1)
    # Of a file in the way of a folder it is not known whose the way is.
    assert file.between[0] in (one, 0)


SHAPES = [(0, *parents) for parents in itertools.product(range(2), range(3))]
"""The trees of a root and three agents: whom each agent is below."""


@pytest.mark.parametrize("parents", SHAPES, ids=str)
def test_conflict_is_between_agents_that_have_changed_the_file(tree: Tree, parents: tuple[int, ...]) -> None:
    ways: list[tuple[int, ...]] = [(0,)]
    for parent in parents:
        ways.append((*ways[parent], tree.agent(parent)))
    numbers = range(len(ways))
    for changed in (one for count in (2, 3, 4) for one in itertools.combinations(numbers, count)):
        for number in numbers:
            there = (tree.benches[number].folder / "new").exists()
            if number in changed or there:
                tree.write(number, new=b"of %d\n" % number if number in changed else None)
        (file,) = tree.joined().files
        # Who is above or before another has the lines that the other one's are held against.
        in_order = sorted(changed, key=ways.__getitem__)
        pairs = list(itertools.combinations(in_order, 2))
        assert by(file) == list(changed)
        assert file.between in pairs, (changed, in_order)
        assert file.conflict == "two new files of this name"


@pytest.mark.parametrize("parents", SHAPES, ids=str)
def test_conflict_with_a_file_of_several_is_with_one_of_them(tree: Tree, parents: tuple[int, ...]) -> None:
    for parent in parents:
        tree.agent(parent)
    others = [LINES.replace(b"line 9\n", b"of all\n"), LINES + b"more\n", b"start\n" + LINES]
    for odd in range(4):
        aside = (odd + 1) % 4
        changed = [number for number in range(4) if number != aside]
        for number, content in zip(changed, others, strict=True):
            tree.write(number, a=content)
        tree.write(aside, a=LINES)
        (file,) = tree.joined().files
        assert (by(file), file.conflict, file.between) == (changed, "", None)
        # The odd one changes the lines of the two others.
        tree.write(odd, a=b"another\n")
        (file,) = tree.joined().files
        assert by(file) == changed
        assert file.between is not None
        assert odd in file.between
        assert {*file.between} < {*changed}


@pytest.mark.parametrize("ours", [LINES.replace(b"line 3\n", b"of two\n"), b"\0two", None])
def test_conflict_of_a_file_from_further_below_names_who_changed_it(tree: Tree, ours: bytes | None) -> None:
    one = tree.agent()
    two, three = tree.agent(one), tree.agent()
    tree.write(two, a=ours)
    tree.write(three, a=LINES.replace(b"line 3\n", b"of three\n"))
    (file,) = tree.joined().files
    assert (by(file), file.between) == ([two, three], (two, three))


def test_what_is_merged_is_its_agents_and_not_also_the_one_s_that_took_it(tree: Tree) -> None:
    one, two = tree.agent(), tree.agent()
    tree.write(one, a=LINES.replace(b"line 3\n", b"LINE 3\n"), new=b"x\n")
    tree.merge(one)
    tree.write(two, a=LINES.replace(b"line 15\n", b"LINE 15\n"))
    tree.merge(two)
    files = tree.files()
    assert {path: by(file) for path, file in files.items()} == {"a": [one, two], "new": [one]}
    assert (files["a"].insertions, files["a"].deletions) == (2, 2)
    # What its parent changes in it later is the parent's, and what it changes later is merged again.
    tree.write(0, new=b"x\nof the root\n")
    tree.write(one, new=b"of one\n")
    file = tree.files()["new"]
    assert (by(file), file.conflict) == ([0, one], "the same lines changed on both sides")
    tree.write(0, new=b"x\n")
    file = tree.files()["new"]
    assert (by(file), file.conflict, file.insertions) == ([one], "", 1)


def test_folder_that_no_log_has_is_as_what_its_agents_began_with(tree: Tree) -> None:
    one, two = tree.agent(), tree.agent()
    tree.write(one, a=LINES.replace(b"line 3\n", b"LINE 3\n"))
    tree.write(two, a=LINES.replace(b"line 3\n", b"another\n"), new=b"x\n")
    for number in (one, two):
        tree.save(number)
    copy = Copy(Place(tree.root / "f", tree.root / "o"), Bounds())
    copy.give(tree.packs)
    base = tree.branches[0].base
    found = copy.join(
        [Branch(None, None, None), *(Branch(0, base, tree.benches[it].at) for it in (one, two))]
    )
    assert [(file.path, by(file), bool(file.conflict)) for file in found.files] == [
        ("a", [one, two], True),
        ("new", [two], False),
    ]


def test_more_files_than_are_told_are_counted_and_conflicts_are_told_first(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 3)
    monkeypatch.setattr(module, "MOST_SHARES", 1)
    one, two = tree.agent(), tree.agent()
    tree.write(one, b=b"1", c=b"1", d=b"1", z=b"1", y=b"same")
    tree.write(two, z=b"2", y=b"same")
    found = tree.joined()
    assert ([file.path for file in found.files], found.all, found.insertions) == (["b", "y", "z"], 5, 5)
    assert [(len(file.shares), file.of) for file in found.files] == [(1, 1), (1, 2), (1, 2)]
    monkeypatch.setattr(module, "MOST_FILES", 1)
    tree.write(two, **{"d/in": b"in a folder"})
    tree.write(one, z=None)
    tree.write(two, z=None)
    (file,) = tree.joined().files
    assert (file.path, file.of, bool(file.conflict)) == ("d/in", 1, True)


def test_contents_are_merged_up_to_a_bound(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_MERGES", 0)
    one, two = tree.agent(), tree.agent()
    tree.write(one, a=LINES + b"end\n")
    tree.write(two, a=b"begin\n" + LINES)
    (file,) = tree.joined().files
    assert "not compared behind 0 such files" in file.conflict
    monkeypatch.setattr(module, "MOST_MERGES", 1)
    monkeypatch.setattr(module, "MOST_MERGED", 10)
    (file,) = tree.joined().files
    assert "a large file" in file.conflict
    tree.write(one, a=b"line 0\n")
    tree.write(two, a=b"line 1\n")
    (file,) = tree.joined().files
    assert "a large file" in file.conflict, "what both began with is read, too"


def test_folders_are_joined_up_to_the_files_that_one_may_have(tree: Tree) -> None:
    tree.agent()
    count = tree.benches[0].copy.make(tree.packs, tree.benches[0].at).files
    for most in (count, count - 1):
        copy = Copy(Place(tree.root / "f", tree.root / "o"), Bounds(max_files=most))
        copy.give(tree.packs)
        with pytest.raises(FolderError) if most < count else nullcontext():
            copy.join(tree.branches[:1])


@pytest.mark.parametrize("parent", [1, 2, -1])
def test_branch_that_merges_into_none_before_it_is_refused(tree: Tree, parent: int) -> None:
    copy = Copy(Place(tree.root / "f", tree.root / "o"), Bounds())
    copy.give(tree.packs)
    base = tree.branches[0].base
    with pytest.raises(FolderError, match="merges into none before it"):
        copy.join([Branch(None, base, base), Branch(parent, base, base)])


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trees")


CHANGE = st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.sampled_from([b"1\n", b"2\n", None]))


@settings(max_examples=25, deadline=None)
@given(st.lists(CHANGE, max_size=8))
def test_a_tree_without_conflicts_joins_to_what_merging_all_of_it_makes(
    numbered: Path, steps: list[tuple[int, str, bytes | None]]
) -> None:
    root = numbered / str(len(list(numbered.iterdir())))
    tree = Tree(root, {"a": b"0\n", "b": b"0\n", "keep": b"k\n"})
    one, two = tree.agent(), tree.agent()
    tree.agent(one)
    for number, name, content in steps:
        if content is not None or (tree.benches[number].folder / name).exists():
            tree.write(number, **{name: content})
    found = tree.joined()
    if found.conflicts:
        return
    for number in (3, two, one):
        tree.merge(number)
    tree.save(0)
    first, last = tree.branches[0].base, tree.benches[0]
    assert first is not None
    merged = last.copy.diff(first, last.at, tree.packs, stat=True)
    assert {(it.path, it.what, it.insertions, it.deletions) for it in merged.files} == {
        (it.path, it.what, it.insertions, it.deletions) for it in found.files
    }
