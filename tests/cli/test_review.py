"""The words by which a person has a change reviewed, at the command line and in a conversation."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.invocation import Invocation
from orchestrator.cli.run import reviewing_with
from orchestrator.protocol.wire import JsonObject, written
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


@pytest.mark.parametrize(("model", "reviewer"), [("mine", "mine"), (None, "theirs")])
def test_model_of_the_command_line_reviews_whatever_a_file_says(
    tmp_path: Path, model: str | None, reviewer: str
) -> None:
    (tmp_path / "config.toml").write_text('review_model = "theirs"\n')
    settings = reviewing_with(model, Invocation(tmp_path / "config.toml", home=tmp_path)).settings(quiet=True)
    assert settings.model.review_model == reviewer
