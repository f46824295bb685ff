"""The first content of a portable folder, as a client names it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from orchestrator.protocol.codec import encode_submission, parse_submission
from orchestrator.protocol.submission import MalformedSubmission


def configured(workspace: Any) -> bytes:
    return orjson.dumps({"id": "1", "op": {"type": "configure_session", "workspace": workspace}})


@pytest.mark.parametrize(
    "workspace",
    [
        {"folder": "/work"},
        {"git": "https://git.example/a.git"},
        {"git": "https://git.example/a.git", "ref": "main"},
        {"session": "0199a2b4", "at": 7},
        {"empty": True},
    ],
)
def test_source_is_read_and_written_as_it_was_said(workspace: Any) -> None:
    line = configured(workspace)
    assert orjson.loads(encode_submission(parse_submission(line)))["op"]["workspace"] == workspace


@pytest.mark.parametrize(
    ("workspace", "why"),
    [
        ({}, "one of folder, git, session and empty"),
        ({"empty": False}, "one of folder, git, session and empty"),
        ({"folder": "/work", "empty": True}, "one of folder, git, session and empty"),
        ({"folder": "/work", "ref": "main"}, "ref"),
        ({"git": "https://x/a.git", "at": 1}, "at"),
        ({"session": "s", "at": -1}, "at"),
        ({"folder": ""}, "folder"),
        ({"folder": "/" + "a" * 4096}, "4,096 bytes"),
        ({"git": "https://" + "a" * 4096}, "4,096 bytes"),
        ({"git": "https://x/a.git", "ref": "a" * 1025}, "1,024 bytes"),
        ({"session": "s" * 1025}, "1,024 bytes"),
        ("/work", "workspace"),
    ],
)
def test_source_that_says_too_much_or_too_little_is_refused_by_name(workspace: Any, why: str) -> None:
    with pytest.raises(MalformedSubmission, match=why):
        parse_submission(configured(workspace))
