"""Bounds of a job: its policy, its size, the files that it is shown."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.config_keys import SandboxPolicy
from orchestrator.protocol import jobs
from orchestrator.tools import job_bench as bench
from orchestrator.tools.job_bench import Commands, JobRefused, permitted, search

WORK = Path("/work/space")


def own(**fields: Any) -> SandboxPolicy:
    return SandboxPolicy(**{"mode": "workspace-write", **fields})


def test_job_without_a_policy_gets_the_worker_s_own() -> None:
    assert permitted(None, own(network_access=True), WORK)["network_access"] is True
    assert permitted(None, own(mode="read-only"), WORK)["mode"] == "read-only"
    assert permitted(None, own(mode="read-only", chosen=False), WORK)["mode"] == "workspace-write"


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        ({"mode": "danger-full-access"}, "sandbox_mode"),
        ({"mode": "workspace-write", "network_access": True}, "network_access"),
        ({"mode": "workspace-write", "writable_roots": ["/elsewhere"]}, "writable_roots"),
        ({"mode": "workspace-write", "writable_roots": [".."]}, "writable_roots"),
        (
            {"mode": "workspace-write", "writable_roots": ["out", "/work/space", "/elsewhere"]},
            "writable_roots",
        ),
        ({"mode": "workspace-write", "writable_roots": ["/elsewhere", "out"]}, "writable_roots"),
    ],
)
def test_job_that_asks_for_more_than_the_worker_gives_is_refused_with_the_setting(
    asked: dict[str, Any], key: str
) -> None:
    with pytest.raises(JobRefused, match=key):
        permitted(asked, own(), WORK)
    free = own(mode="danger-full-access", network_access=True, writable_roots=(Path("/"),))
    assert permitted(asked, free, WORK) == asked


FLAGS = ("exclude_tmpdir_env_var", "exclude_slash_tmp")
ASKED: list[Mapping[str, Any] | None] = [
    None,
    {"mode": "read-only"},
    {"mode": "workspace-write"},
    {"mode": "workspace-write", FLAGS[0]: False, FLAGS[1]: False},
    {"mode": "workspace-write", FLAGS[0]: True, FLAGS[1]: False},
    {"mode": "workspace-write", FLAGS[1]: True},
]


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("mode", ["read-only", "workspace-write", "danger-full-access"])
def test_job_writes_no_temporary_folder_that_the_worker_keeps_read_only(
    mode: str, asked: Mapping[str, Any] | None, *, chosen: bool
) -> None:
    for kept in itertools.product((False, True), repeat=2):
        flags = dict(zip(FLAGS, kept, strict=True))
        given = own(mode=mode, chosen=chosen, **flags)
        if mode == "read-only" and chosen and (asked or {}).get("mode") == "workspace-write":
            continue
        found = permitted(asked, given, WORK)
        bound = mode != "danger-full-access" or not chosen
        for flag in FLAGS if found["mode"] == "workspace-write" else ():
            assert bool(found.get(flag)) is ((bound and flags[flag]) or bool((asked or {}).get(flag)))


def test_job_may_ask_for_less_and_an_outer_sandbox_is_none_here() -> None:
    assert permitted({"mode": "read-only"}, own(), WORK) == {"mode": "read-only"}
    assert permitted({"mode": "external-sandbox"}, own(), WORK)["mode"] == "read-only"
    below = {"mode": "workspace-write", "writable_roots": ["/work/space/out"]}
    assert permitted(below, own(), WORK) == below
    with pytest.raises(JobRefused, match="asks for workspace-write"):
        permitted(below, own(mode="read-only"), WORK)


@pytest.mark.parametrize(
    "job",
    [
        {"kind": "run_command", "command": []},
        {"kind": "run_command", "command": ["a"] * 1001},
        {"kind": "run_command", "command": ["a"], "timeout_ms": 0},
        {"kind": "run_command", "command": ["a"], "timeout_ms": 600_001},
        {"kind": "run_command", "command": ["a"], "env": {str(n): "" for n in range(101)}},
        {"kind": "read_file", "path": ""},
        {"kind": "read_file", "path": "/a\0b"},
        {"kind": "read_file", "path": "/" + "a" * 4096},
        {"kind": "search_files", "query": "a" * 201, "roots": ["/"]},
        {"kind": "search_files", "query": "a", "roots": ["/"] * 21},
        {"kind": "write_file", "path": "/a"},
    ],
)
def test_job_beyond_its_bounds_is_none(job: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        jobs.JOB.validate_python(job)


def test_asker_reads_files_folders_and_times(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "link").symlink_to("a.txt")
    read = bench.read_file(str(tmp_path / "a.txt"), ())
    assert base64.b64decode(read.data_base64) == b"one\n"
    entries = bench.read_directory(str(tmp_path), ()).entries
    assert [(e.file_name, e.is_directory, e.is_file) for e in entries] == [
        ("a.txt", False, True),
        ("b", True, False),
        ("link", False, True),
    ]
    link = bench.metadata(str(tmp_path / "link"), ())
    assert (link.is_symlink, link.is_file, link.is_directory) == (True, True, False)
    assert link.modified_at_ms == (tmp_path / "a.txt").stat().st_mtime_ns // 1_000_000


@pytest.mark.parametrize("look", [bench.read_file, bench.read_directory, bench.metadata])
def test_asker_is_shown_nothing_that_is_hidden_from_commands(look: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("hush")
    (tmp_path / "way").symlink_to(secret / "key" if look is bench.read_file else secret)
    for path in (tmp_path / "way", secret / "key" if look is bench.read_file else secret):
        with pytest.raises(PermissionError):
            look(str(path), (secret,))
    with pytest.raises(JobRefused, match="absolute"):
        look("secret", ())
    assert not search("key", [str(tmp_path)], (secret,)).files


def test_file_or_folder_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "FILE_BYTES", 3)
    monkeypatch.setattr(bench, "MOST_ENTRIES", 1)
    for name, text in (("fits", "abc"), ("large", "abcd")):
        (tmp_path / name).write_text(text)
    assert bench.read_file(str(tmp_path / "fits"), ())
    with pytest.raises(JobRefused, match="more than 3 bytes"):
        bench.read_file(str(tmp_path / "large"), ())
    with pytest.raises(JobRefused, match="more than 1 entries"):
        bench.read_directory(str(tmp_path), ())


def test_search_finds_letters_in_their_order_and_prefers_the_file_s_own_name(tmp_path: Path) -> None:
    for path in ("src/parser.py", "parse/other.txt", "prose/a/rx.md", ".git/parser.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    found = search("PARSE", [str(tmp_path)], ()).files
    assert [one.path for one in found[:2]] == ["parse", "src/parser.py"]
    assert found[0].match_type == "directory"
    found = found[1:]
    assert (found[0].file_name, found[0].match_type, found[0].indices) == (
        "parser.py",
        "file",
        (4, 5, 6, 7, 8),
    )
    assert not any(".git" in one.path for one in found)
    assert search("zz", [str(tmp_path)], ()).files == search("", [str(tmp_path)], ()).files == ()
    assert search("a", ["relative", str(tmp_path / "none")], ()).files == ()


def test_search_stops_in_a_folder_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.tools.job_bench.MOST_PATHS", 5)
    for number in range(9):
        (tmp_path / f"a{number}").write_text("")
    assert len(search("a", [str(tmp_path)], ()).files) == 5


class _Repository:
    """The git of a job over a repository with three files that it does not know, each of a diff of `size`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.compared = 0

    async def git(self, claim: str, cwd: Path, *words: str, differs: bool = False) -> bytes:
        if not differs:
            return b"a\0b\0c\0"
        self.compared += 1
        return b"x" * self.size


@pytest.mark.parametrize(("size", "room", "compared"), [(5, 15, 3), (5, 14, 3), (5, 4, 1), (5, -1, 0)])
async def test_untracked_files_are_compared_until_their_changes_are_more_than_may_be_answered(
    monkeypatch: pytest.MonkeyPatch, size: int, room: int, compared: int
) -> None:
    repository = _Repository(size)
    monkeypatch.setattr(Commands, "_git", lambda _, *words, **more: repository.git(*words, **more))
    commands = Commands(None, None, None)  # type: ignore[arg-type]
    asking = commands._untracked("claim", Path("/w"), room)
    if 3 * size <= room:
        assert await asking == b"x" * 3 * size
    else:
        with pytest.raises(JobRefused, match="the changes have more than"):
            await asking
    assert repository.compared == compared


def test_folder_is_listed_up_to_its_bound_of_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MOST_ENTRIES", 2)
    for name in ("b", "a"):
        (tmp_path / name).write_text("")
    assert [entry.file_name for entry in bench.read_directory(str(tmp_path), ()).entries] == ["a", "b"]
    (tmp_path / "c").write_text("")
    with pytest.raises(JobRefused, match="more than 2 entries"):
        bench.read_directory(str(tmp_path), ())


@pytest.mark.parametrize(
    ("path", "query", "indices"),
    [
        ("İstanbul/x", "x", (9,)),
        ("İİİİ/İx.md", "x", (6,)),
        ("İa", "i̇a", (0, 1)),
        ("straße", "straße", (0, 1, 2, 3, 4, 5)),
        ("straße", "STRASSE", (0, 1, 2, 3, 4, 5)),
        ("ﬁx", "fix", (0, 1)),
        ("Ärger", "ärg", (0, 1, 2)),
    ],
)
def test_letters_that_fold_into_several_move_no_place_behind_them(
    tmp_path: Path, path: str, query: str, indices: tuple[int, ...]
) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("")
    (found,) = (one for one in search(query, [str(tmp_path)], ()).files if one.path == path)
    assert found.indices == indices


def test_best_of_all_roots_are_found_and_each_root_is_looked_at_up_to_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "MOST_PATHS", 3)
    monkeypatch.setattr(bench, "MOST_FOUND", 5)
    roots = [tmp_path / name for name in ("one", "two", "three")]
    for root in roots:
        root.mkdir()
        for number in range(4):
            (root / f"a{number}").write_text("")
    (roots[2] / "a0").rename(roots[2] / "a")
    found = search("a", [str(root) for root in roots], ()).files
    # All score alike: by path, then by root.
    assert [(one.path, Path(one.root).name) for one in found] == [
        ("a", "three"),
        ("a0", "one"),
        ("a0", "two"),
        ("a1", "one"),
        ("a1", "three"),
    ]
    monkeypatch.setattr(bench, "MOST_FOUND", 50)
    assert len(search("a", [str(root) for root in roots], ()).files) == 9


@pytest.mark.parametrize("more", [0, 1])
def test_search_goes_down_to_its_bound_and_follows_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    monkeypatch.setattr(bench, "MOST_DEPTH", 3)
    deep = tmp_path / "work/x/y" / ("z" * more)
    deep.mkdir(parents=True)
    (deep / "needle").write_text("")
    (tmp_path / "away").mkdir()
    (tmp_path / "away/needle").write_text("")
    (tmp_path / "work/link").symlink_to("../away")
    found = search("needle", [str(tmp_path / "work")], ()).files
    assert [one.path for one in found] == ([] if more else ["x/y/needle"])


@pytest.mark.parametrize("kept", range(3))
def test_search_finds_nothing_in_any_of_several_hidden_folders(tmp_path: Path, kept: int) -> None:
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders:
        folder.mkdir()
        (folder / "key").write_text("")
    hidden = tuple(folder for number, folder in enumerate(folders) if number != kept)
    assert [one.path for one in search("key", [str(tmp_path)], hidden).files] == [f"{folders[kept].name}/key"]
    with pytest.raises(PermissionError):
        bench.read_file(str(hidden[1] / "key"), hidden)
    assert bench.read_file(str(folders[kept] / "key"), hidden)
