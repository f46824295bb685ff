"""Git's answers about folders at a gateway: asked once while nothing changes, anew when something does."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import rmtree

import pytest

from orchestrator.gateways.folder_facts import look_at
from orchestrator.sandbox.git import git_words
from orchestrator.wiring.new_threads import MOST_AGE_S, MOST_FOLDERS, Repositories
from tests.gateways.test_look_at import guide_of
from tests.gateways.test_workspace_mark import git, repository


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def now_s(self) -> float:
        return self.at_s


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Counts the processes of git since it was last called: each makes its command line once."""
    lines: list[tuple[str, ...]] = []

    def noted(*words: str) -> list[str]:
        lines.append(words)
        return git_words(*words)

    monkeypatch.setattr("orchestrator.sandbox.git.git_words", noted)

    def count() -> int:
        found = len(lines)
        lines.clear()
        return found

    return count


def test_second_session_in_a_folder_asks_git_nothing(tmp_path: Path, asked: Callable[[], int]) -> None:
    top, guide = repository(tmp_path / "repo"), guide_of(tmp_path / "home")
    remembered = Repositories(os.environ, Clock().now_s)
    asked()
    first = (look_at(top, guide, remembered.repository), remembered.in_work_tree(top, os.environ))
    assert asked() > 0
    second = (look_at(top, guide, remembered.repository), remembered.in_work_tree(top, os.environ))
    assert (asked(), second) == (0, first)
    assert first == (look_at(top, guide), True)


CHANGES: dict[str, tuple[str, ...]] = {
    "a commit": ("commit", "--quiet", "--allow-empty", "-m", "second"),
    "another branch": ("checkout", "--quiet", "-b", "other"),
    "no branch": ("checkout", "--quiet", "--detach"),
    "a remote": ("remote", "add", "origin", "https://example.org/x.git"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_session_made_at_once_after_a_change_knows_of_it(tmp_path: Path, change: tuple[str, ...]) -> None:
    top = repository(tmp_path / "repo")
    git(top, "pack-refs", "--all")
    remembered = Repositories(os.environ, Clock().now_s)
    before = remembered.repository(top)
    git(top, *change)
    after = remembered.repository(top)
    assert after != before
    assert after == Repositories(os.environ).repository(top)


def test_commit_of_a_branch_that_is_packed_at_once_is_seen(tmp_path: Path) -> None:
    top = repository(tmp_path / "repo")
    git(top, "pack-refs", "--all")
    remembered = Repositories(os.environ, Clock().now_s)
    before = remembered.repository(top).commit
    git(top, "commit", "--quiet", "--allow-empty", "-m", "second")
    git(top, "pack-refs", "--all")
    assert remembered.repository(top).commit not in ("", before)


def test_folder_that_becomes_a_repository_or_ceases_to_be_one_is_seen(tmp_path: Path) -> None:
    remembered = Repositories(os.environ, Clock().now_s)
    folder = tmp_path / "one"
    folder.mkdir()
    found = [remembered.in_work_tree(folder, os.environ)]
    git(folder, "init", "--quiet")
    found.append(remembered.in_work_tree(folder, os.environ))
    rmtree(folder / ".git")
    found.append(remembered.in_work_tree(folder, os.environ))
    assert found == [False, True, False]


def test_answer_is_a_second_old_at_most(tmp_path: Path, asked: Callable[[], int]) -> None:
    top, clock = repository(tmp_path / "repo"), Clock()
    remembered = Repositories(os.environ, clock.now_s)
    remembered.in_work_tree(top, os.environ)
    asked()
    clock.at_s += MOST_AGE_S
    assert (remembered.in_work_tree(top, os.environ), asked()) == (True, 1)


def test_work_tree_of_another_repository_is_always_asked(tmp_path: Path, asked: Callable[[], int]) -> None:
    top, beside = repository(tmp_path / "repo"), tmp_path / "beside"
    git(top, "worktree", "add", "--quiet", str(beside))
    remembered = Repositories(os.environ, Clock().now_s)
    before = remembered.repository(beside).commit
    git(beside, "commit", "--quiet", "--allow-empty", "-m", "second")
    assert remembered.repository(beside).commit not in ("", before)


def test_sessions_made_at_once_in_one_folder_ask_git_once(tmp_path: Path, asked: Callable[[], int]) -> None:
    top = repository(tmp_path / "repo")
    remembered = Repositories(os.environ, Clock().now_s)
    asked()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: remembered.in_work_tree(top, os.environ), range(24)))
    assert (set(found), asked()) == ({True}, 1)


@pytest.mark.parametrize("head", [b"ref: refs/heads/../../../x\n", b"ref: refs/\0\n", b"\xff" * 5000])
def test_head_that_an_agent_wrote_leads_nowhere(tmp_path: Path, head: bytes) -> None:
    top = repository(tmp_path / "repo")
    (top / ".git/HEAD").write_bytes(head)
    assert Repositories(os.environ).repository(top) == Repositories(os.environ).repository(top)


def test_branch_that_nobody_ends_to_write_is_given_up(tmp_path: Path) -> None:
    top = repository(tmp_path / "repo")
    os.mkfifo(top / ".git/refs/heads/pipe")
    (top / ".git/HEAD").write_bytes(b"ref: refs/heads/pipe\n")
    assert Repositories(os.environ).repository(top).commit == ""


def test_gateway_remembers_a_bounded_number_of_folders(tmp_path: Path, asked: Callable[[], int]) -> None:
    top, clock = repository(tmp_path / "repo"), Clock()
    remembered = Repositories(os.environ, clock.now_s)
    remembered.in_work_tree(top, os.environ)
    for number in range(MOST_FOLDERS):
        remembered.in_work_tree(tmp_path / f"none-{number}", os.environ)
    asked()
    remembered.in_work_tree(top, os.environ)
    assert asked() == 1
