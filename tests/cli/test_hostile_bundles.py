"""Bundles that are made to harm who opens, imports or audits them: bounded, in words, nothing outside."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.cli import bundle as bundles
from orchestrator.cli.audit import audit
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.bundle_export import OpenBundle
from orchestrator.terminal.faults import Fault
from tests.commit_seed import NIGHT
from tests.rollouts import bundles as b
from tests.rollouts.bundles import ROOT, Draft, run

NO_KEY: Any = SimpleNamespace(chain=SimpleNamespace(key=None, key_id="", secret=None))
ESCAPES = "a\x1b]0;owned\x07\x1b[2J\u202eb"
QUESTIONS = (
    *(("who", "*"), ("file", "a.py"), ("cost",), ("context", "5"), ("secrets",), ("egress",)),
    *(("redactions",), ("sql", "SELECT count(*) FROM entries")),
)
PEAK_BYTES = 192 << 20


def bomb(folder: Path) -> Path:
    members = run().sealed()
    return b.zipped({**members, f"texts/{b.hexed(b.TEXT)}": bytes(64 << 20)}, folder / "run.zip")


def many(folder: Path) -> Path:
    """A ZIP whose directory names a million members."""
    head = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 0, 20, *[0] * 8, 1, *[0] * 6)
    directory = (head + b"x") * 100_001
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, len(directory), 4, 0)
    (folder / "run.zip").write_bytes(b"PK\3\4" + directory + end)
    return folder / "run.zip"


def spoiled(change: Callable[[dict[str, bytes]], object]) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        draft = run()
        draft.members = change
        return b.zipped(draft.sealed(), folder / "run.zip")

    return made


def entry(text: str, seq: int = 5) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        draft: Draft = run()
        draft.logs[ROOT].entries[seq] = text
        return b.zipped(draft.sealed(), folder / "run.zip")

    return made


def half(members: dict[str, bytes]) -> None:
    name = f"logs/session-{ROOT}.jsonl"
    members[name] = members[name].replace(b'"p":"{', b'"p":"\\ud800{')


LOG = f"logs/session-{ROOT}.jsonl"
HOSTILE: dict[str, Callable[[Path], Path]] = {
    "a bomb": bomb,
    "a million members": many,
    "a line without an end": spoiled(lambda members: members.update({LOG: b" " * (17 << 20)})),
    "a line that is no JSON": spoiled(lambda members: members.update({LOG: b"[1]\n{}\nx\n"})),
    "half of a surrogate pair": spoiled(half),
    "JSON that is nested deep": entry("[" * 100_000),
    "an entry that is a list": entry("[]"),
    "an entry that is a number": entry("7"),
    "a payload that is a list": entry('{"timestamp":"x","type":"dendro","payload":[1]}'),
    "a kind that is an object": entry('{"timestamp":"x","type":"dendro","payload":{"kind":{}}}'),
    "a fact without its fields": entry('{"timestamp":"x","type":"dendro","payload":{"kind":"call"}}'),
    "a redaction of nothing": entry(
        '{"timestamp":"x","type":"dendro","payload":{"kind":"redacted","log":5,"seq":"x","digest":1,'
        '"who":{},"why":[],"instead":{"type":"dendro","payload":{"kind":"task"}}}}'
    ),
    "an item that is a text": entry('{"timestamp":"x","type":"response_item","payload":"call"}'),
    "an item with an id that is a list": entry(
        '{"timestamp":"x","type":"response_item","payload":{"type":"function_call","call_id":[]}}'
    ),
    "names with escapes": spoiled(lambda members: members.update({f"texts/{ESCAPES}": b"x"})),
    "a name above the folder": spoiled(lambda members: members.update({"../outside": b"x"})),
}


DAILY = frozenset({"a line that is no JSON", "a fact without its fields", "names with escapes"})
"""Those that are tried at each change; the others at night."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in DAILY else [pytest.mark.night]) for name in HOSTILE]
)
def test_hostile_bundle_is_opened_imported_and_audited_within_bounds_and_in_words(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DENDRO_HOME", str(tmp_path / "home"))
    inside = tmp_path / "inside"
    inside.mkdir()
    path = HOSTILE[name](inside)
    if NIGHT:
        # It makes all ten times slower.
        tracemalloc.start()
    with pytest.raises(RolloutError, match="does not hold"):
        OpenBundle(path, None)
    for line in bundles._overview(bundles._checked(NO_KEY, path, None)):
        assert line
    with pytest.raises(typer.Exit):
        bundles.verify_bundle(NO_KEY, path, None)
    shown = capsys.readouterr().out
    for question in QUESTIONS if NIGHT else QUESTIONS[:4]:
        done = CliRunner().invoke(audit, [question[0], str(path), *question[1:]])
        assert isinstance(done.exception, Fault | SystemExit), f"{question}: {done.exception!r}"
        assert done.exit_code in (1, 2)
        shown += done.stdout + str(done.exception)
    assert not NIGHT or tracemalloc.get_traced_memory()[1] < PEAK_BYTES
    tracemalloc.stop()
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert [path.name for path in inside.iterdir()] == ["run.zip"]
    assert not (tmp_path / "outside").exists()
