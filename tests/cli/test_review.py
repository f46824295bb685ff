"""The words by which a person has a change reviewed, at the command line and in a conversation."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from orchestrator.cli.invocation import Invocation
from orchestrator.cli.run import check_names, reviewing_with
from orchestrator.protocol.review import BaseBranch, Commit, ReviewRequest, ReviewTarget, UncommittedChanges
from orchestrator.protocol.wire import JsonObject, written
from orchestrator.terminal.faults import Fault
from orchestrator.terminal.origin import typed_request
from tests.cli.machine import Machine


@pytest.mark.parametrize(
    ("words", "target"),
    [
        ("", {"type": "uncommittedChanges"}),
        (" uncommitted ", {"type": "uncommittedChanges"}),
        ("main", {"type": "baseBranch", "branch": "main"}),
        ("feature/cafe", {"type": "baseBranch", "branch": "feature/cafe"}),
        ("1a2b3c4", {"type": "commit", "sha": "1a2b3c4", "title": None}),
        (" 1A2B3C4", {"type": "commit", "sha": "1A2B3C4", "title": None}),
        ("1a2b3c", {"type": "baseBranch", "branch": "1a2b3c"}),
        (" main ", {"type": "baseBranch", "branch": "main"}),
        ("a\tb", {"type": "custom", "instructions": "a\tb"}),
        ("only the parser", {"type": "custom", "instructions": "only the parser"}),
    ],
)
def test_words_of_a_person_mean_a_target(words: str, target: JsonObject) -> None:
    assert written(typed_request(words)) == {"target": target}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--base", "main", "--uncommitted"), "give one of"),
        (("--commit", " "), "sha: it is blank"),
        ((" ",), "instructions: it is blank"),
    ],
)
def test_command_line_that_names_no_single_subject_is_refused(
    tmp_path_factory: pytest.TempPathFactory, words: tuple[str, ...], says: str
) -> None:
    done = Machine.at(tmp_path_factory.mktemp("machine")).run("review", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def branch(name: str) -> BaseBranch:
    return BaseBranch(branch=name)


def repository(folder: Path) -> None:
    """A repository with a branch, a tag, and a branch that only its remote has."""
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (
        ("init", "-q", "-b", "main"),
        (*who, "commit", "-qm", "One", "--allow-empty"),
        ("tag", "v1"),
        ("update-ref", "refs/remotes/origin/theirs", "HEAD"),
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (branch("nowhere"), "--base nowhere: no branch, tag or commit of the repository"),
        (branch("-main"), "--base -main: no branch"),
        (branch("ma*n"), r"--base ma\*n: no branch"),
        (branch("main^{tree}"), "no branch"),
        (branch("no where"), "no branch"),
        (Commit(sha="1a2b3c4"), "--commit 1a2b3c4: no commit of the repository"),
        (Commit(sha="theirs"), "--commit theirs: no commit"),
        (branch("main"), None),
        (branch("v1"), None),
        (branch("HEAD"), None),
        (branch("theirs"), None),
        (Commit(sha="v1"), None),
        (UncommittedChanges(), None),
    ],
)
def test_name_that_the_repository_does_not_have_is_refused(
    tmp_path: Path, target: ReviewTarget, says: str | None
) -> None:
    repository(tmp_path)
    if says is None:
        check_names(ReviewRequest(target=target), tmp_path)
        return
    with pytest.raises(Fault, match=says):
        check_names(ReviewRequest(target=target), tmp_path)


@pytest.mark.parametrize(
    ("words", "refused"),
    [((), True), (("--resume", "0199a2b4", "--cwd", "."), True), (("--resume", "0199a2b4"), False)],
)
def test_name_is_looked_for_in_the_folder_that_the_command_line_means(
    tmp_path_factory: pytest.TempPathFactory, words: tuple[str, ...], refused: bool
) -> None:
    machine = Machine.at(tmp_path_factory.mktemp("machine"))
    repository(machine.folder)
    # What is not refused comes to the next question: the key of the provider.
    done = machine.run("review", "--base", "nowhere", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert ("--base nowhere: no branch" in done.stderr, "is not set" in done.stderr) == (refused, not refused)


@pytest.mark.parametrize("fault", ["no repository", "a pipe for its HEAD"])
def test_name_is_left_to_the_reviewer_where_git_cannot_tell(tmp_path: Path, fault: str) -> None:
    if fault != "no repository":
        (tmp_path / ".git").mkdir()
        os.mkfifo(tmp_path / ".git/HEAD")
    check_names(ReviewRequest(target=branch("nowhere")), tmp_path)


@pytest.mark.parametrize(("model", "reviewer"), [("mine", "mine"), (None, "theirs")])
def test_model_of_the_command_line_reviews_whatever_a_file_says(
    tmp_path: Path, model: str | None, reviewer: str
) -> None:
    (tmp_path / "config.toml").write_text('review_model = "theirs"\n')
    settings = reviewing_with(model, Invocation(tmp_path / "config.toml", home=tmp_path)).settings(quiet=True)
    assert settings.model.review_model == reviewer
