"""Words of a file, a log or somebody else stand on the line that tells of them, and steer no terminal."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from rich.console import Console

from orchestrator.cli import audit, notary, redact, replay, verify
from orchestrator.cli import bundle as bundles
from orchestrator.cli.invocation import Invocation
from orchestrator.core.chain import BrokenLink
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.state import State
from orchestrator.rollouts.bundle_check import BundleReport, Finding, LogSeen
from orchestrator.rollouts.redaction import Copy, Plan
from orchestrator.rollouts.replay import Folded
from orchestrator.rollouts.verify import Report
from orchestrator.terminal.live import LiveView
from orchestrator.views.audit_questions import Answer
from orchestrator.views.event import Event
from orchestrator.views.workspaces import FolderReport
from tests.cli.test_bundle_lines import manifest

FORGED = "a\nFORGED all of it holds\x1b[2J\r\x9b\u202e\u2028FORGED"
SETTINGS: Any = SimpleNamespace(chain=SimpleNamespace(key=None, key_id=""))
CTX: Any = SimpleNamespace(find_object=lambda kind: Invocation())
LOGS: Any = SimpleNamespace(faults=[], unchecked="")


def verified(**more: Any) -> None:
    told = {"shown": ("whole",), "findings": (), **more}
    verify._print(verify._lines(SETTINGS, Report("run.jsonl", 3, b"\1", **told)))


def replayed(**more: Any) -> None:
    async def folded(*_: object) -> Folded:
        return Folded("full", **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "_folded", folded)
        with pytest.raises(typer.Exit):
            replay.replay(CTX, "run.jsonl")


def stated() -> None:
    told = SimpleNamespace(kind="changed", text=FORGED, ms=1)
    state: Any = SimpleNamespace(registers={}, alarms={FORGED: told}, origin=str)
    for line in notary._standing(state):
        print(line)


def forged_state() -> State:
    own = State()
    settings = replace(own.settings, cwd=FORGED, model=FORGED)
    return replace(own, settings=settings)


def bundled(**more: Any) -> None:
    told = BundleReport(**{"manifest": manifest(), **more})
    for line in (*bundles._overview(told), *bundles._verdict(told, trusted=True)):
        print(bundles_line(line))


def bundles_line(line: str) -> str:
    """A line as `verify_bundle` prints it."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundles, "_checked", lambda *_: BundleReport())
        patch.setattr(bundles, "_verdict", lambda *_, **__: [line])
        patch.setattr("sys.stdout", printed)
        bundles.verify_bundle(SETTINGS, cast(Any, None), None)
    return printed.getvalue().removesuffix("\n")


PRINTERS: dict[str, Callable[[], None]] = {
    "verify: finding": lambda: verified(findings=[BrokenLink(2, FORGED)]),
    "verify: what holds": lambda: verified(shown=(FORGED,)),
    "verify: why it cannot be checked": lambda: verified(unchecked=FORGED),
    "verify: folder": lambda: verify._print(
        verify._folder_lines(SessionId("s"), FolderReport(1, 1, ((3, FORGED),)))
    ),
    "replay: state": lambda: replayed(state=forged_state()),
    "replay: chain": lambda: replayed(broken=BrokenLink(2, FORGED)),
    "replay: unchecked": lambda: replayed(unchecked=FORGED),
    "notary: alarm": lambda: stated(),
    "redact: copy": lambda: redact._list(Plan(TreeId("t"), copies=[Copy(FORGED, FORGED)])),
    "bundle: label": lambda: bundled(logs={"a": LogSeen("session:a", 1, label=FORGED)}),
    "bundle: times": lambda: bundled(logs={"a": LogSeen("session:a", 1, first=FORGED, last=FORGED)}),
    "bundle: finding": lambda: bundled(findings=[Finding("chain", FORGED, FORGED)]),
    "bundle: redaction": lambda: bundled(redacted={(FORGED, FORGED): 1}),
    "bundle: note": lambda: bundled(notes=[FORGED]),
    "audit: answer": lambda: audited(Answer(FORGED, {}, ["s:1"], proved=True)),
    "audit: answer that begins as JSON does": lambda: audited(Answer("{" + FORGED, {}, ["s:1"])),
    "logs: input": lambda: LiveView(Console(width=200), whole=True).event(
        Event("1", {"type": "user_message", "message": FORGED})
    ),
    "note in a pipe": lambda: LiveView(Console(width=200)).event(
        Event("1", {"type": "warning", "message": FORGED})
    ),
}


def audited(one: Answer) -> None:
    audit._show(iter([f"{one.text}  {audit._entries(one.entries)} stated"]), json=False)


@pytest.mark.parametrize("printer", PRINTERS.values(), ids=PRINTERS)
def test_no_text_of_a_file_begins_a_line_or_steers_the_terminal(
    printer: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    printer()
    captured = capsys.readouterr()
    told = captured.out + captured.err
    assert "FORGED" in told, "it is told"
    assert [line for line in told.splitlines() if line.startswith("FORGED")] == []
    steering = {char for char in told if unicodedata.category(char) in ("Cc", "Cf", "Cs")} - {"\n"}
    assert steering == set()
    assert "\u2028" not in told


def test_columns_of_a_table_of_an_audit_stay_apart(capsys: pytest.CaptureFixture[str]) -> None:
    audit._show(iter(["a\tb\x1b\t\tc"]), json=False)
    audit._show(iter(['{"a": "\\u001b"}']), json=True)
    assert capsys.readouterr().out.splitlines() == ["a\tb␛\t\tc", '{"a": "\\u001b"}']
