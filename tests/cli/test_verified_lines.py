"""The lines and the exit code of `dendro verify`, for each kind of result, and options without effect."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.invocation import Invocation
from orchestrator.cli.verify import FINDINGS_SHOWN, _folder_lines, _lines, _outcome, verify
from orchestrator.core.chain import NOT_FOLLOWING, BrokenLink
from orchestrator.core.ids import SessionId
from orchestrator.rollouts.verify import Report
from orchestrator.terminal.faults import ExitCode, Fault
from orchestrator.views.workspaces import FolderReport

NO_KEY: Any = SimpleNamespace(chain=SimpleNamespace(key=None, key_id=""))
KEYED: Any = SimpleNamespace(chain=SimpleNamespace(key="k", key_id="2026-01"))
FIRST = BrokenLink(1, NOT_FOLLOWING)
SESSION = SessionId("s")
WHOLE = FolderReport(1, 1, ())
LOST = FolderReport(1, 1, ((3, "lost"),))


def report(*findings: BrokenLink, **more: Any) -> Report:
    return Report("session s", **{"seq": 3, "head": b"\1", "shown": ("whole",), "findings": findings, **more})


KINDS = {
    "sound": (report(), ExitCode.DONE),
    "unchecked": (report(unchecked="keyed"), ExitCode.USAGE),
    "broken": (report(FIRST), ExitCode.FAILED),
    "changed": (report(FIRST, unchecked="keyed"), ExitCode.FAILED),
}
WORST = [ExitCode.FAILED, ExitCode.USAGE, ExitCode.DONE]


@pytest.mark.parametrize("folders", [(), (WHOLE,), (LOST,), (WHOLE, LOST), (LOST, WHOLE)])
@pytest.mark.parametrize("kinds", list(product(KINDS, repeat=2)))
def test_exit_code_is_that_of_the_worst_log_or_folder(
    kinds: tuple[str, ...], folders: tuple[FolderReport, ...]
) -> None:
    codes = {KINDS[kind][1] for kind in kinds} | ({ExitCode.FAILED} if LOST in folders else set())
    reports = [KINDS[kind][0] for kind in kinds]
    assert _outcome(reports, [(SESSION, one) for one in folders]) is next(
        one for one in WORST if one in codes
    )


HINTS = [(FIRST,), (BrokenLink(2, "lost"), FIRST), (BrokenLink(1, f"in a segment: {NOT_FOLLOWING}"),)]
NO_HINTS = [(BrokenLink(2, NOT_FOLLOWING),), (BrokenLink(1, "lost"),), (BrokenLink(0, NOT_FOLLOWING),)]


@pytest.mark.parametrize("settings", [NO_KEY, KEYED])
@pytest.mark.parametrize("key_id", ["", "2025-07"])
@pytest.mark.parametrize("findings", [*HINTS, *NO_HINTS])
def test_log_that_breaks_at_its_first_entry_and_only_such_a_one_may_be_keyed_otherwise(
    findings: tuple[BrokenLink, ...], key_id: str, settings: Any
) -> None:
    first, *_ = _lines(settings, report(*findings, key_id=key_id))
    there = f"the log was keyed by {key_id!r}" if key_id else "the log may be keyed otherwise"
    here = "the key '2026-01' is configured" if settings is KEYED else "no key is configured"
    hint = f" ({there}, and here {here}: see chain.secret)" if findings in HINTS else ""
    assert first == f"session s: BROKEN{hint}"


def test_lines_say_what_holds_what_cannot_be_said_and_what_is_broken() -> None:
    told = {
        "sound": ["session s: 3 entries follow from each other; whole", "head       3:01"],
        "unchecked": ["session s: keyed"],
        "changed": ["session s: CHANGED; and keyed", f"  at entry 1: {NOT_FOLLOWING}"],
    }
    assert {kind: list(_lines(NO_KEY, KINDS[kind][0])) for kind in told} == told
    assert list(_lines(NO_KEY, report(head=b""))) == ["session s: 3 entries of its log; whole"]
    assert list(_lines(NO_KEY, report(BrokenLink(0, "gone")))) == ["session s: BROKEN", "  gone"]


@pytest.mark.parametrize("more", [-1, 0, 1, 7])
def test_so_many_findings_are_named_and_the_others_are_counted(more: int) -> None:
    count = FINDINGS_SHOWN + more
    _, *of_log = _lines(NO_KEY, report(*(BrokenLink(at + 2, "lost") for at in range(count))))
    found = FolderReport(count, 1, tuple((at + 2, "lost") for at in range(count)))
    _, *of_folder = _folder_lines(SESSION, found)
    named = [f"  at entry {at + 2}: lost" for at in range(min(count, FINDINGS_SHOWN))]
    assert of_log == of_folder == [*named, *([f"  and {more} more"] if more > 0 else [])]


@pytest.mark.parametrize(
    ("snapshots", "packs", "told"),
    [
        (1, 1, "1 snapshot from 1 pack is"),
        (2, 1, "2 snapshots from 1 pack are"),
        (0, 0, "0 snapshots from 0 packs are"),
    ],
)
def test_folder_that_is_whole_is_counted(snapshots: int, packs: int, told: str) -> None:
    line = f"folder     s: {told} in the store, and whole"
    assert list(_folder_lines(SESSION, FolderReport(snapshots, packs, ()))) == [line]


CTX: Any = SimpleNamespace(find_object=lambda kind: Invocation())
FILE = "run.jsonl"


@pytest.mark.parametrize(
    ("source", "options", "why"),
    [
        ("", {}, "give an ID or a FILE"),
        ("0199", {"all_": True}, "give an ID or a FILE"),
        ("", {"all_": True, "expect_head": f"1:{'0' * 16}"}, "--expect-head is of one log"),
        ("0199", {"tree": True, "expect_head": f"1:{'0' * 16}"}, "--expect-head is of one log"),
        (FILE, {"tree": True}, "--tree needs a session"),
        (FILE, {"workspaces": True}, "--workspaces needs a session"),
        ("0199", {"accept_old_header": True}, "--accept-old-header is for a file"),
        ("", {"all_": True, "accept_old_header": True}, "--accept-old-header is for a file"),
        ("0199", {"tree_from": Path("run.zip")}, "--tree-from is for a file"),
        ("0199", {"trust": Path("a")}, "are for a bundle"),
        (FILE, {"receipt": Path("a")}, "are for a bundle"),
        ("run.zip", {"tree": True}, "a bundle is checked as it is"),
        ("run.zip", {"workspaces": True}, "a bundle is checked as it is"),
        ("run.zip", {"expect_head": f"1:{'0' * 16}"}, "a bundle is checked as it is"),
        ("run.zip", {"tree_from": Path("run.zip")}, "a bundle is checked as it is"),
        ("run.zip", {"accept_old_header": True}, "a bundle is checked as it is"),
    ],
)
def test_option_that_would_have_no_effect_is_refused_before_anything_is_checked(
    source: str,
    options: dict[str, Any],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(FILE).write_text("no log")
    Path("run.zip").write_bytes(b"PK\5\6" + bytes(18))
    given = {"tree": False, "all_": False, "workspaces": False, "expect_head": None, **options}
    given = {"accept_old_header": False, "tree_from": None, "trust": None, "receipt": None, **given}
    with pytest.raises(Fault, match=why) as refused:
        verify(CTX, source, **given)
    assert refused.value.code is ExitCode.USAGE
    assert capsys.readouterr().out == ""
