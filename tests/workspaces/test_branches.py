"""Branches of a person's repository, made from folders that are not to be trusted."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.workspaces.branches import PushRefused, Repository, Work

BRANCH = "dendro/7c1e95aa"


def git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=Ann", "-c", "user.email=ann@example.invalid"]
    done = subprocess.run(["git", *names, *words], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return os.fsdecode(done.stdout).strip()


@pytest.fixture
def person(tmp_path: Path) -> Path:
    """A repository with one commit, and a change that is not committed."""
    folder = tmp_path / "person"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "user.name", "Ann")
    git(folder, "config", "user.email", "ann@example.invalid")
    (folder / "kept.txt").write_text("kept\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "First")
    (folder / "kept.txt").write_text("kept, and being changed\n")
    return folder


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """The folder of a session, as it was made here."""
    folder = tmp_path / "made"
    (folder / "deep").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git/HEAD").write_text("of the copy\n")
    (folder / "kept.txt").write_text("kept\n")
    (folder / "deep/new.sh").write_text("echo new\r\n")
    (folder / "deep/new.sh").chmod(0o755)
    (folder / "link").symlink_to("deep/new.sh")
    (folder / "to folder").symlink_to("deep")
    (folder / "deep/nowhere").symlink_to("gone/since")
    (folder / "line\nbreak").write_text("odd\n")
    (folder / "Icon").write_text("plain\n")
    (folder / "Icon\r").write_text("of a Macintosh\n")
    (folder / os.fsdecode(b"bytes-\xff")).write_bytes(b"\xff\x00")
    return folder


def repository(person: Path) -> Repository:
    return Repository.at(person, {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"})


def work(person: Path, session: str = "session") -> Work:
    return Work(session, "the root", "5" * 40, git(person, "rev-parse", "HEAD"))


def test_a_branch_has_the_folders_files_on_the_commit_that_the_session_began_with(
    person: Path, made: Path
) -> None:
    status = git(person, "status", "--porcelain")
    done = repository(person).push(BRANCH, made, work(person))
    assert git(person, "rev-parse", BRANCH) == done.commit
    assert git(person, "log", "--format=%s", BRANCH).splitlines() == [
        "Work of the root of session session",
        "First",
    ]
    listed = git(person, "ls-tree", "-r", "-z", BRANCH).split("\0")
    modes = {line.split("\t")[1]: line.split()[0] for line in listed if line}
    assert modes == {
        "kept.txt": "100644",
        "deep/new.sh": "100755",
        "link": "120000",
        "to folder": "120000",
        "deep/nowhere": "120000",
        "line\nbreak": "100644",
        "Icon": "100644",
        "Icon\r": "100644",
        os.fsdecode(b"bytes-\xff"): "100644",
    }
    assert git(person, "show", f"{BRANCH}:Icon\r") == "of a Macintosh"
    assert git(person, "cat-file", "blob", f"{BRANCH}:deep/new.sh") == "echo new"
    for link, target in {"link": "deep/new.sh", "to folder": "deep", "deep/nowhere": "gone/since"}.items():
        assert git(person, "cat-file", "blob", f"{BRANCH}:{link}") == target
    assert git(person, "status", "--porcelain") == status, "the person's files and index are as they were"


def test_the_same_work_again_makes_no_commit_and_more_work_one_on_top(person: Path, made: Path) -> None:
    first = repository(person).push(BRANCH, made, work(person))
    again = repository(person).push(BRANCH, made, work(person))
    assert (first.new, again.new, again.commit) == (True, False, first.commit)
    (made / "more").write_text("more\n")
    second = repository(person).push(BRANCH, made, work(person))
    assert git(person, "rev-parse", f"{BRANCH}~1") == first.commit
    assert second.new


def test_a_branch_of_somebody_else_is_left_as_it_is(person: Path, made: Path) -> None:
    git(person, "branch", "theirs")
    before = git(person, "rev-parse", "theirs")
    with pytest.raises(PushRefused, match="--branch"):
        repository(person).push("theirs", made, work(person))
    assert git(person, "rev-parse", "theirs") == before
    repository(person).push(BRANCH, made, work(person))
    with pytest.raises(PushRefused, match="none of session other"):
        repository(person).push(BRANCH, made, work(person, "other"))


@pytest.mark.parametrize("name", ["main", "-x", "a..b", "a b", "@{-1}"])
def test_a_branch_that_is_checked_out_or_none_is_refused_before_anything_is_fetched(
    person: Path, name: str
) -> None:
    with pytest.raises(PushRefused):
        repository(person).check(name)


def test_a_repository_without_the_first_commit_is_refused(person: Path, made: Path) -> None:
    with pytest.raises(PushRefused, match="fetch that commit"):
        repository(person).push(BRANCH, made, replace(work(person), began_with="7" * 40))
    assert git(person, "branch", "--list", BRANCH) == ""


def test_work_without_a_first_commit_begins_a_history_of_its_own(person: Path, made: Path) -> None:
    repository(person).push(BRANCH, made, replace(work(person), began_with=None))
    assert len(git(person, "log", "--format=%s", BRANCH).splitlines()) == 1


def test_a_folder_without_a_repository_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(PushRefused, match="no git repository"):
        Repository.at(tmp_path, {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)})


def test_nothing_in_the_folder_starts_a_program_or_changes_contents(
    person: Path, made: Path, tmp_path: Path
) -> None:
    """Programs that an agent may have set in either repository, and filters of the person's."""
    ran = tmp_path / "ran"
    git(person, "config", "filter.x.clean", f"touch {ran}; tr a-z A-Z")
    (made / ".gitattributes").write_text("* filter=x text eol=crlf working-tree-encoding=UTF-16\n")
    hook = person / ".git/hooks/reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {ran}\n")
    hook.chmod(0o755)
    git(person, "config", "core.fsmonitor", f"touch {ran}")
    nested = made / "nested"
    nested.mkdir()
    git(nested, "init", "-q")
    git(nested, "config", "core.fsmonitor", f"touch {ran}")
    (nested / "file").write_text("file\n")
    with pytest.raises(PushRefused, match="does not take all paths"):
        # A copy that Dendro made has none: its makers refuse the name. So does git.
        repository(person).push(BRANCH, made, work(person))
    assert not ran.exists()
    subprocess.run(["rm", "-r", nested / ".git"], check=True)
    repository(person).push(BRANCH, made, work(person))
    assert not ran.exists()
    size = git(person, "cat-file", "-s", f"{BRANCH}:deep/new.sh")
    assert size == "10", "the line break is as it was"


def test_a_person_whom_git_does_not_know_is_told_what_to_set(
    person: Path, made: Path, tmp_path: Path
) -> None:
    git(person, "config", "--unset", "user.name")
    git(person, "config", "--unset", "user.email")
    # Else git may guess a name from the machine's.
    git(person, "config", "user.useConfigOnly", "true")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "EMAIL"))}
    nobody = Repository.at(person, {**environ, "HOME": str(tmp_path), "GIT_CONFIG_GLOBAL": "/dev/null"})
    with pytest.raises(PushRefused, match="in whose name to commit") as refused:
        nobody.push(BRANCH, made, work(person))
    assert 'git config --global user.name "Your Name"' in str(refused.value)
    assert "***" not in str(refused.value)
    assert not git(person, "branch", "--list", BRANCH)


@pytest.mark.parametrize("name", ["main", "one", "feature/two"])
def test_branch_that_is_checked_out_in_any_work_tree_is_refused(
    person: Path, tmp_path: Path, name: str
) -> None:
    for branch in ("one", "feature/two"):
        git(person, "worktree", "add", "-q", "-b", branch, str(tmp_path / branch.replace("/", "-")))
    git(person, "branch", "feature/twofold")
    for place in (person, tmp_path / "one"):
        with pytest.raises(PushRefused, match=f"^{name} is checked out"):
            repository(place).check(name)
    for free in ("feature/twofold", "feature/tw", "on", "two"):
        repository(person).check(free)


def test_branch_is_made_from_a_linked_work_tree(person: Path, made: Path, tmp_path: Path) -> None:
    git(person, "worktree", "add", "-q", "-b", "one", str(tmp_path / "one"))
    done = repository(tmp_path / "one").push(BRANCH, made, work(person))
    assert git(person, "rev-parse", BRANCH) == done.commit
    assert git(tmp_path / "one", "status", "--porcelain") == ""


@pytest.mark.parametrize("there", [True, False])
def test_branch_that_has_moved_meanwhile_is_left_as_it_is(
    person: Path, made: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    if there:
        repository(person).push(BRANCH, made, work(person))
        (made / "more").write_text("more\n")
    theirs = git(person, "commit-tree", "-m", "theirs", "HEAD^{tree}")
    committed = Repository._committed

    def meanwhile(self: Repository, tree: str, parent: str | None, message: str) -> str:
        git(person, "update-ref", f"refs/heads/{BRANCH}", theirs)
        return committed(self, tree, parent, message)

    monkeypatch.setattr(Repository, "_committed", meanwhile)
    with pytest.raises(PushRefused, match="update-ref"):
        repository(person).push(BRANCH, made, work(person))
    assert git(person, "rev-parse", BRANCH) == theirs
