"""The hashes of a plan tell a takeover whether the patch was applied."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.tools.apply_patch import PatchRecord, judge, record_of
from orchestrator.tools.patch.grammar import parse_patch
from orchestrator.tools.patch.plan import plan_patch

Make = Callable[..., Any]
LINES = ("*** Add File: n", "+n", "*** Update File: a", "-a", "+A", "*** Delete File: b")


@pytest.fixture
def files(memory: Make) -> Any:
    return memory(a="a\n", b="b\n")


def test_untouched_files_mean_none_and_changed_ones_all(files: Any, patch: Callable[..., str]) -> None:
    plan = plan_patch(parse_patch(patch(*LINES)), Path("/w"), files)
    record = record_of(plan)
    assert judge(record, files) == "none"
    files.put(plan)
    assert judge(record, files) == "all"


@pytest.mark.parametrize("done", [[0], [1], [2], [0, 1], [0, 2], [1, 2]])
def test_files_partly_changed_are_in_doubt(files: Any, patch: Callable[..., str], done: list[int]) -> None:
    plan = plan_patch(parse_patch(patch(*LINES)), Path("/w"), files)
    record = record_of(plan)
    part = type(plan)(tuple(plan.files[index] for index in done), {}, "")
    files.put(part)
    assert judge(record, files) == "in_doubt"


def test_file_changed_by_somebody_else_is_in_doubt(memory: Make, patch: Callable[..., str]) -> None:
    plan = plan_patch(parse_patch(patch("*** Update File: a", "-a", "+A")), Path("/w"), memory(a="a\n"))
    assert judge(record_of(plan), memory(a="other\n")) == "in_doubt"
    assert judge(record_of(plan), memory(**{"a/b": "a folder now\n"})) == "in_doubt"


def test_patch_that_changes_nothing_counts_as_applied(files: Any, patch: Callable[..., str]) -> None:
    plan = plan_patch(parse_patch(patch("*** Update File: a", "-a", "+a")), Path("/w"), files)
    assert judge(record_of(plan), files) == "all"


def test_record_survives_json_and_keeps_its_token(files: Any, patch: Callable[..., str]) -> None:
    record = record_of(plan_patch(parse_patch(patch(*LINES)), Path("/w"), files))
    read = PatchRecord.from_json(json.loads(json.dumps(record.to_json())))
    assert read == record
    assert read.token == record.token
    assert [(file.path, file.before is None, file.after is None) for file in read.files] == [
        ("/w/n", True, False),
        ("/w/a", False, False),
        ("/w/b", False, True),
    ]


@pytest.mark.parametrize("value", [[[None, "x", "y"]], [["path", "x"]], [["path", "x", "y", "z"]]])
def test_record_refuses_what_is_none(value: Any) -> None:
    with pytest.raises(ValueError):
        PatchRecord.from_json(value)
