"""The mark by which a folder is known again: the same on every path to it, another in every copy by git."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.settings import SessionFacts
from orchestrator.gateways.folder_facts import mark
from orchestrator.runtime.same_folder import check_workspace


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    command = ["git", *identity, "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def repository(folder: Path) -> Path:
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "a.txt").write_text("a\n")
    git(folder, "add", "a.txt")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


async def test_worker_knows_the_folder_that_was_marked(tmp_path: Path) -> None:
    for folder in (repository(tmp_path / "repo"), tmp_path):
        found = mark(folder, "0123")
        assert found is not None
        assert await check_workspace(SessionFacts(workspace=found), str(folder)) is None


def test_second_session_finds_the_mark_of_the_first(tmp_path: Path) -> None:
    first, second = mark(tmp_path, "0123"), mark(tmp_path, "4567")
    assert first == second
    assert first is not None
    assert first.id == "0123"


def test_clone_of_a_repository_has_a_mark_of_its_own(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    mark(repo, "0123")
    git(tmp_path, "clone", "--quiet", str(repo), str(tmp_path / "clone"))
    other = mark(tmp_path / "clone", "4567")
    assert other is not None
    assert other.id == "4567"


def test_folder_below_a_repository_has_the_repository_s_mark(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    below = repo / "below"
    below.mkdir()
    found, root = mark(below, "0123"), mark(repo, "4567")
    assert found is not None
    assert root is not None
    assert (found.id, found.file) == (root.id, root.file)
    assert found.path == str(below)


def test_mark_shows_in_no_status_also_when_the_folder_becomes_a_repository(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    mark(repo, "0123")
    assert git(repo, "status", "--porcelain") == ""
    plain = tmp_path / "plain"
    plain.mkdir()
    mark(plain, "0123")
    git(plain, "init", "--quiet")
    assert git(plain, "status", "--porcelain") == ""


def test_folder_that_cannot_be_marked_has_none(tmp_path: Path) -> None:
    (tmp_path / ".dendro").write_text("a file in the way")
    assert mark(tmp_path, "0123") is None


def test_sessions_born_at_once_agree_on_one_mark(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: mark(repo, f"id{n}"), range(8)))
    assert None not in found
    assert len(set(found)) == 1
    assert [path.name for path in (repo / ".git").glob("dendro-workspace*")] == ["dendro-workspace"]


def test_mark_that_is_a_link_tells_nothing_of_what_it_leads_to(tmp_path: Path) -> None:
    """A stranger's repository: the first bytes of a key would stand in the session's log."""
    (tmp_path / "pack.keys").write_text("swordfish-4711")
    repo = repository(tmp_path / "repo")
    (repo / ".git/dendro-workspace").symlink_to(tmp_path / "pack.keys")
    assert mark(repo, "0123") is None
    plain = tmp_path / "plain"
    (plain / ".dendro").mkdir(parents=True)
    (plain / ".dendro/workspace").symlink_to(tmp_path / "pack.keys")
    assert mark(plain, "0123") is None


async def test_mark_that_became_a_link_tells_nothing_of_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "pack.keys").write_text("swordfish-4711")
    plain = tmp_path / "plain"
    plain.mkdir()
    made = mark(plain, "0123")
    assert made is not None
    Path(made.file).unlink()
    Path(made.file).symlink_to(tmp_path / "pack.keys")
    facts = SessionFacts(session_id=SessionId("s"), tree_id=TreeId("s"), workspace=made)
    told = await check_workspace(facts, str(plain))
    assert told is not None
    assert "it cannot be read" in told
    assert "swordfish" not in told


def test_link_in_the_place_of_the_mark_s_folder_has_nothing_put_where_it_leads(tmp_path: Path) -> None:
    """An agent may have made it."""
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "work"
    for each in (elsewhere, folder):
        each.mkdir()
    (folder / ".dendro").symlink_to(elsewhere)
    assert mark(folder, "0123") is None
    assert list(elsewhere.iterdir()) == []
