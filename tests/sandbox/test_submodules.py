"""Submodules by the index of a repository, and what commands may not do to them."""

from __future__ import annotations

import struct
import subprocess
import time
from pathlib import Path

import pytest

from orchestrator.sandbox.policy_paths import MOST_SUBMODULES, resolve, submodules
from orchestrator.sandbox.probe import Preference, probe
from orchestrator.tools.exec.command import Command
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorConfig

POLICY = {"mode": "workspace-write", "exclude_slash_tmp": True, "exclude_tmpdir_env_var": True}


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def repository(folder: Path, *words: str) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "-q", *words)
    (folder / "file").write_text("x")
    git(folder, "add", "file")
    git(folder, "commit", "-qm", "first")
    return folder


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A repository with a submodule that has one itself, and one whose folder is empty."""
    repository(tmp_path / "inner")
    outer = repository(tmp_path / "outer")
    git(outer, "submodule", "add", "-q", "../inner", "deep/inner")
    git(outer, "commit", "-qm", "inner")
    made = repository(tmp_path / "top")
    for name in ("lib/outer", "empty"):
        git(made, "submodule", "add", "-q", "../outer", name)
    git(made, "submodule", "update", "-q", "--init", "--recursive", "lib/outer")
    git(made, "commit", "-qm", "submodules")
    git(made, "submodule", "deinit", "-q", "empty")
    return made


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_submodules_are_found_in_every_version_of_an_index(top: Path, version: str) -> None:
    for number in range(40):
        (top / f"{number:03}-{'long' * number * 40}"[:250]).write_text("x")
    git(top, "add", "-A")
    (top / "new").write_text("x")
    git(top, "add", "-N", "new")
    git(top, "update-index", "--index-version", version)
    assert submodules(top / ".git/index") == ("empty", "lib/outer")


def test_submodules_of_a_repository_with_names_of_sha256_are_found(tmp_path: Path) -> None:
    made = repository(tmp_path / "made", "--object-format=sha256")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=made, capture_output=True, text=True)
    git(made, "update-index", "--add", "--cacheinfo", f"160000,{commit.stdout.strip()},sub")
    assert submodules(made / ".git/index") == ("sub",)


@pytest.mark.parametrize(
    "data", [b"", b"DIRC", b"DIRC\0\0\0\2\xff\xff\xff\xff\0\0\xe0\0", b"\0\0\xe0\0" * 99]
)
def test_file_that_is_no_index_names_no_submodules(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "index").write_bytes(data)
    assert submodules(tmp_path / "index") == ()
    assert submodules(tmp_path / "absent") == ()


def test_repositories_of_submodules_are_not_written_and_none_is_made_in_an_empty_one(top: Path) -> None:
    """`git status` at the top runs git in each of them, and git the programs that its settings name."""
    found = resolve(POLICY, top, None)
    assert {top / "lib/outer/.git", top / "lib/outer/deep/inner/.git"} <= {*found.read_only_subpaths}
    assert top / "empty/.git" in found.missing
    assert {top / "lib", top / "lib/outer", top / "lib/outer/deep/inner", top / "empty"} <= {*found.passed}


def test_submodules_are_looked_at_up_to_a_number(tmp_path: Path) -> None:
    made = repository(tmp_path / "made")
    lines = "".join(f"160000 {'1' * 40}\tsub{number:04}\n" for number in range(MOST_SUBMODULES + 10))
    subprocess.run(["git", "update-index", "--index-info"], cwd=made, input=lines, text=True, check=True)
    for number in range(MOST_SUBMODULES + 10):
        (made / f"sub{number:04}").mkdir()
    assert len(resolve(POLICY, made, None).missing) == MOST_SUBMODULES


def index_of(*names: bytes) -> bytes:
    """An index of submodules that git would never write."""
    rows = b""
    for name in names:
        row = struct.pack(">6I", *[0] * 6) + struct.pack(">I", 0o160000) + b"\0" * 12 + b"\1" * 20
        row += struct.pack(">H", len(name)) + name
        rows += row + b"\0" * (8 - len(row) % 8)
    return struct.pack(">4sII", b"DIRC", 2, len(names)) + rows + b"\0" * 20


@pytest.mark.parametrize(
    "name", ["{}/other", "../other", "link", "link/x", "./sub/../../other", ".", "a\0b", "x" * 300]
)
def test_index_of_a_strangers_names_no_folder_elsewhere_in_which_a_guard_would_be_made(
    tmp_path: Path, name: str
) -> None:
    made, other = repository(tmp_path / "made"), tmp_path / "other"
    (other / "x").mkdir(parents=True)
    (made / "sub").mkdir()
    (made / "link").symlink_to(other)
    (made / ".git/index").write_bytes(index_of(name.format(tmp_path).encode(), b"sub"))
    found = resolve(POLICY, made, None)
    assert found.missing == (made / "sub/.git",)
    assert found.read_only_subpaths == (made / ".git",)


SWAPS = """
plant() { git init -q . && printf '[core]\\n\\tfsmonitor = "touch %s; false"\\n' "$MARK" >> .git/config; }
(cd lib/outer; mv .git away; rm -f .git; plant)
(cd lib/outer/deep/inner; rm -f .git; plant)
(cd empty; plant; git add -A; touch x)
mv lib moved; mkdir -p lib/outer && cd lib/outer && plant
"""


@pytest.mark.sandbox
@pytest.mark.parametrize("prefer", ["bubblewrap", "landlock"])
async def test_git_status_at_the_top_runs_no_program_that_a_command_has_named_in_a_submodule(
    top: Path, tmp_path: Path, prefer: Preference
) -> None:
    support = probe()
    if (support.bubblewrap is None) if prefer == "bubblewrap" else not support.can_mount:
        pytest.skip("; ".join(support.why))
    mark = tmp_path / "mark"
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "MARK": str(mark), "HOME": str(tmp_path)}
    command = Command("claim", "call", ("bash", "-c", SWAPS), top, env, resolve(POLICY, top, None))
    supervisor = await Supervisor.start(SupervisorConfig(support, prefer))
    try:
        supervisor.extend("claim", time.clock_gettime(time.CLOCK_BOOTTIME) + 60)
        finished = await supervisor.run(command, lambda *_: None)
    finally:
        await supervisor.close()
    assert finished.error is None
    subprocess.run(["git", "status"], cwd=top, check=True, capture_output=True)
    assert not mark.exists()
