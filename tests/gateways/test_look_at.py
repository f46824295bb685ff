"""The facts of a new session's folder."""

from __future__ import annotations

from pathlib import Path

from orchestrator.gateways.folder_facts import look_at
from orchestrator.instructions.project import ProjectDocs
from orchestrator.instructions.skills import Guide, Skills
from tests.gateways.test_workspace_mark import git, repository


def guide_of(home: Path) -> Guide:
    home.mkdir()
    return Guide(ProjectDocs(home, 1024), Skills(home, home, home))


def test_session_in_a_folder_below_a_repository_knows_it_and_its_instructions(tmp_path: Path) -> None:
    top = repository(tmp_path / "repo")
    git(top, "checkout", "--quiet", "-b", "feature/one")
    git(top, "remote", "add", "origin", "https://example.org/x.git")
    (top / "AGENTS.md").write_text("outer")
    (top / "sub").mkdir()
    found = look_at(top / "sub", guide_of(tmp_path / "home"))
    commit = git(top, "rev-parse", "HEAD").strip()
    url = "https://example.org/x.git"
    assert found.git == {"commit_hash": commit, "branch": "feature/one", "repository_url": url}
    assert found.instructions == "outer"


def test_session_in_a_repository_without_a_commit_knows_its_branch(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "-b", "trunk", str(tmp_path / "repo"))
    (tmp_path / "repo/AGENTS.md").write_text("outer")
    found = look_at(tmp_path / "repo", guide_of(tmp_path / "home"))
    assert (found.git, found.instructions) == ({"branch": "trunk"}, "outer")


def test_session_at_a_commit_of_no_branch_knows_the_commit(tmp_path: Path) -> None:
    top = repository(tmp_path / "repo")
    git(top, "checkout", "--quiet", "--detach")
    assert look_at(top, guide_of(tmp_path / "home")).git.keys() == {"commit_hash"}


def test_session_in_a_folder_of_two_lines_knows_its_repository(tmp_path: Path) -> None:
    top = repository(tmp_path / "two\nlines")
    assert look_at(top, guide_of(tmp_path / "home")).git["commit_hash"]
