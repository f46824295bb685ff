"""Rules of `.gitignore`, each compared with what git says."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.folders import copy as copying
from orchestrator.folders.build import clock_ns
from orchestrator.folders.ignore import MOST_BYTES, Rules
from orchestrator.folders.outcomes import Bounds, FolderError, Unchanged
from tests.folders.workshop import Bench, Content, content_of, git

_PIECES = st.sampled_from(
    [
        "a",
        "b",
        "*",
        "?",
        "/",
        "**/",
        "/**",
        "/**/",
        "[ab]",
        "[!a]",
        "[^b]",
        "[a-c]",
        "[]a]",
        "[[:alpha:]]",
        "\\a",
        "!",
        " ",
        "\\ ",
        ".",
        "-",
        "#",
    ]
)
_LINES = st.lists(st.lists(_PIECES, min_size=1, max_size=5).map("".join), min_size=1, max_size=4)
_FOLDERS = ("a", "b", "a.b")
_PATHS = [
    *(f"{one}/{two}" for one in _FOLDERS for two in (*_FOLDERS, "c")),
    "a/b/c",
    "a/a/b",
    "b/a.b/a",
    "c",
    "-",
    "a/b/a/b",
]


@settings(max_examples=30, deadline=None)
@given(_LINES)
def test_rules_ignore_what_git_ignores(lines: list[str]) -> None:
    content = "\n".join(_without_glued_stars(line) for line in lines).encode()
    with tempfile.TemporaryDirectory() as name:
        git(Path(name), "init", "-q")
        Path(name, ".gitignore").write_bytes(content)
        asked = b"\0".join(path.encode() for path in _PATHS) + b"\0"
        words = ("check-ignore", "--no-index", "--stdin", "-z", "-v", "-n")
        answers = git(Path(name), *words, given=asked, fits=(0, 1)).split(b"\0")
    rules = Rules.first(()).with_file(content, 0)
    for at, path in enumerate(_PATHS):
        source, _, pattern, _ = answers[4 * at : 4 * at + 4]
        ignored = bool(source) and not pattern.startswith(b"!")
        assert _ignored(rules, path.encode()) == ignored, (content, path)


def _without_glued_stars(line: str) -> str:
    """The line with single stars where two stand beside a letter: git 2.39 compares stray pointers there."""
    while "***" in line:
        line = line.replace("***", "**")
    parts = line.removeprefix("!").split("/")
    kept = "/".join(part if part == "**" else part.replace("**", "*") for part in parts)
    return ("!" if line.startswith("!") else "") + kept


def _ignored(rules: Rules, path: bytes) -> bool:
    parts = path.split(b"/")
    steps = ((b"/".join(parts[:depth]), depth < len(parts)) for depth in range(1, len(parts) + 1))
    return any(rules.ignores(step, is_folder) for step, is_folder in steps)


@pytest.mark.parametrize(
    "pattern", [b"*a" * 100 + b"b", b"**/" * 100 + b"*a*a*b", b"a*" * 60 + b"/" + b"a*" * 60 + b"x"]
)
def test_pattern_that_is_made_to_take_long_does_not(pattern: bytes) -> None:
    rules = Rules.first(()).with_file(pattern, 0)
    began = time.process_time()
    assert not rules.ignores(b"/".join([b"a" * 200] * 15), False)
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize(
    ("before", "why"),
    [
        (b"# a comment\n" * 40_000, "more than 262,144 bytes"),
        (b"*.o\n" * 5_000, "more than 5,000 rules"),
        (b"a" * 2_049 + b"\n", "a line of more than 2,048 bytes"),
    ],
)
def test_folder_with_more_rules_than_are_read_is_not_saved(bench: Bench, before: bytes, why: str) -> None:
    """The last of them may hide a secret."""
    bench.write({"a": b"1"})
    bench.born()
    bench.write({"sub/.gitignore": before + b"token\n", "sub/token": b"swordfish"})
    with pytest.raises(FolderError, match=f"sub/.gitignore names .*{why}"):
        bench.take()
    bench.write({"sub/.gitignore": b"token\n"})
    assert bench.taken().names == ("A sub/.gitignore",)


def test_rules_up_to_the_bounds_are_all_read(bench: Bench) -> None:
    line = b"*." + b"o" * 2_046 + b"\n"
    rules = b"*.o\n" * 4_990 + line * 9 + b"token"
    rules = b"#" * (MOST_BYTES - len(rules) - 1) + b"\n" + rules
    bench.write({".gitignore": rules, "token": b"swordfish", "a": b"1"})
    assert set(bench.born().names) == {"A .gitignore", "A a"}


def test_folder_whose_rules_cannot_be_read_is_not_saved(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.write({".gitignore": b"token\n", "token": b"swordfish"})
    opened = os.open

    def refuses(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == ".gitignore":
            raise PermissionError(13, "Permission denied", path)
        return opened(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuses)
    with pytest.raises(FolderError, match=r"\.gitignore names .*Permission denied"):
        bench.born()


def test_link_in_the_place_of_rules_ignores_nothing(bench: Bench) -> None:
    bench.write({"rules": b"token\n", ".gitignore": "rules", "token": b"1"})
    assert "A token" in bench.born().names


def test_nested_rules_outdo_those_above(bench: Bench) -> None:
    bench.write(
        {
            ".gitignore": b"*.log\nbuild/\n",
            "sub/.gitignore": b"!keep.log\n",
            "sub/keep.log": b"1",
            "sub/other.log": b"2",
            "build/keep.log": b"3",
            "build/.gitignore": b"!*\n",
        }
    )
    assert set(bench.born().names) == {"A .gitignore", "A sub/.gitignore", "A sub/keep.log"}


def test_tracked_file_stays_when_a_rule_comes_to_ignore_it(bench: Bench) -> None:
    bench.write({"out/a.o": b"1", "b.o": b"1"})
    bench.born()
    bench.write({".gitignore": b"*.o\nout/\n", "out/new": b"2", "c.o": b"3"})
    assert bench.taken().names == ("A .gitignore",)
    bench.write({"out/a.o": b"9"})
    assert bench.taken().names == ("M out/a.o",)
    (bench.folder / "out" / "a.o").unlink()
    (bench.folder / "b.o").unlink()
    assert set(bench.taken().names) == {"D out/a.o", "D b.o"}
    bench.write({"b.o": b"1"})
    bench.take()
    assert bench.last is not None
    assert bench.last.omitted.all == 0


def test_rule_that_goes_lets_files_in(bench: Bench) -> None:
    bench.write({".gitignore": b"*.o\n", "a.o": b"1", "d/b.o": b"2"})
    bench.born()
    bench.write({".gitignore": b"# nothing\n"})
    assert set(bench.taken().names) == {"M .gitignore", "A a.o", "A d/b.o"}


def test_glob_of_the_settings_includes_ignored_files(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Bounds(include=("build/keep/*.bin", "dist/", "*.so")))
    bench.write(
        {
            ".gitignore": b"build/\ndist/\n*.so\nnode_modules/\n",
            "build/keep/a.bin": b"1",
            "build/keep/a.txt": b"2",
            "build/other": b"3",
            "dist/deep/.gitignore": b"*\n",
            "dist/deep/x": b"4",
            "lib.so": b"5",
            "node_modules/lib.so": b"6",
        }
    )
    names = set(bench.born().names)
    assert names == {
        "A .gitignore",
        "A build/keep/a.bin",
        "A dist/deep/.gitignore",
        "A dist/deep/x",
        "A lib.so",
    }


@pytest.mark.parametrize("there", ["build/o", "build/deep/o", "build/.git/o", None])
def test_included_file_that_comes_into_an_ignored_folder_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str | None
) -> None:
    """Though no name came or went beside that folder, and all times are old enough to be believed."""
    monkeypatch.setattr(copying, "clock_ns", lambda place: clock_ns(place) + 10**9)
    bench = Bench(tmp_path, Bounds(include=("build/deep/keep", "build/big"), max_file=9))
    bench.write({".gitignore": b"build/\n", "a": b"1", **({there: b"2"} if there else {"build/deep": None})})
    assert (bench.born().names, bench.left()) == (("A .gitignore", "A a"), {})
    bench.write({"build/big": b"0123456789"})
    assert isinstance(bench.take(), Unchanged)
    assert bench.left() == {"build/big": "larger than workspace.max_file"}
    bench.write({"build/deep/keep": b"3"})
    assert bench.taken().names == ("A build/deep/keep",)
    (bench.folder / "build/deep/keep").unlink()
    assert bench.taken().names == ("D build/deep/keep",)
    assert isinstance(bench.take(), Unchanged)


def test_ignored_folder_that_an_include_reaches_into_is_excluded_once_no_rule_ignores_it(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, Bounds(include=("build/keep",), exclude=("build/",)))
    bench.write({".gitignore": b"build/\n", "build/secret": b"1"})
    assert (bench.born().names, bench.left()) == (("A .gitignore",), {})
    bench.write({".gitignore": b"#\n"})
    assert bench.taken().names == ("M .gitignore",)
    assert bench.left() == {"build": "excluded (workspace.exclude)"}


def test_folder_whose_tracked_folder_is_emptied_and_ignored_is_not_recorded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a copy elsewhere, which knows of what is recorded alone, does not record it."""
    monkeypatch.setattr(copying, "clock_ns", lambda place: clock_ns(place) + 10**9)
    bench.write({"a/build/b": b"1", "c": b"2"})
    bench.born()
    bench.write({".gitignore": b"build/\n"})
    bench.taken()
    (bench.folder / "a/build/b").unlink()
    assert bench.taken().names == ("D a/build/b",)
    assert content_of(bench.elsewhere()) == {b"c": ("file", b"2"), b".gitignore": ("file", b"build/\n")}
    bench.write({"a/build/b": b"3"})
    assert isinstance(bench.take(), Unchanged), "it is tracked no more"


@pytest.mark.parametrize("ignored", ["", ".env\n", "*.env\n", "config/\n", "config/deep/\n"])
@pytest.mark.parametrize("included", ["config/", "config/**", "config/deep/.env", "**/.env"])
def test_excluded_file_is_never_recorded_whatever_includes_or_ignores_it(
    tmp_path: Path, ignored: str, included: str
) -> None:
    bench = Bench(tmp_path, Bounds(include=(included,), exclude=(".env",)))
    files: dict[str | bytes, Content] = {"config/.env": b"1", "config/deep/.env": b"2", "config/a": b"3"}
    bench.write({".gitignore": ignored.encode(), **files} if ignored else files)
    assert not [name for name in bench.born().names if name.endswith(".env")]
    bench.write({"config/new/.env": b"4", "other": b"5"})
    assert not [name for name in bench.taken().names if name.endswith(".env")]


def test_excluded_file_is_left_out_and_named_unless_rules_ignore_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Bounds(exclude=("*.pem", "!public.pem", "secrets/")))
    bench.write(
        {
            ".gitignore": b"private/\nold.pem\n",
            "a.pem": b"1",
            "old.pem": b"ignored",
            "public.pem": b"2",
            "secrets/x": b"3",
            "private/b.pem": b"4",
        }
    )
    assert set(bench.born().names) == {"A .gitignore", "A public.pem"}
    assert bench.left() == {
        "a.pem": "excluded (workspace.exclude)",
        "secrets": "excluded (workspace.exclude)",
    }
    bench.write({"other": b"5"})
    assert bench.taken().names == ("A other",)


def test_rules_of_the_person_are_weaker_than_those_of_the_folder(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Bounds(ignored=(".env", "*.swp")))
    bench.write(
        {".gitignore": b"!keep.swp\n", ".env": b"secret", "keep.swp": b"1", "d/.env": b"2", "d/x.swp": b"3"}
    )
    assert set(bench.born().names) == {"A .gitignore", "A keep.swp"}


def test_folder_of_ignored_files_alone_is_not_recorded(bench: Bench) -> None:
    bench.write({".gitignore": b"*.pyc\n", "cache/a.pyc": b"1", "empty": None})
    bench.born()
    assert set(content_of(bench.elsewhere())) == {b".gitignore", b"empty"}
    (bench.folder / "cache" / "b.pyc").write_bytes(b"2")
    bench.take()
    assert bench.last is not None
    assert not hasattr(bench.last, "pack")
