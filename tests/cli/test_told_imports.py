"""The words about an import: how much came along, what does not count, and what is lacking."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from orchestrator.broker.errors import Unavailable
from orchestrator.cli.export import _import, _import_summary, _text_path
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.packs import Pack
from orchestrator.rollouts.imports import ImportPlan
from orchestrator.settings import SettingsSources, load_settings
from tests.rollouts.deployments import asking, plan_of, said

BASE = plan_of(said("one"), said("two"))


def told(plan: ImportPlan, lacking: int = 0) -> list[str]:
    return _import_summary(plan, lacking)


def test_person_reads_how_many_entries_came_from_the_file_and_which_notes_there_are() -> None:
    count = len(BASE.entries)
    (line,) = told(replace(BASE, lines=1_234))
    assert line.startswith(f"a session of {count} entries, from 1,234 that stand in the file; status idle")
    first, *notes = told(replace(BASE, lines=3, left_out=2_000, notes=("one note", "another note")))
    assert "(2,000 are left out of it but for their digests); status idle, model gpt-5" in first
    assert notes == ["one note", "another note"]


@pytest.mark.parametrize("lacking", [0, 1, 2])
@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("works", [False, True])
def test_person_reads_what_does_not_count_what_is_lacking_and_what_was_under_way(
    lacking: int, bounded: bool, works: bool
) -> None:
    plan: Any = plan_of(*asking()) if works else BASE
    lines = told(replace(plan, bounded=bounded), lacking)[1:]
    words = [
        *(["it permits more than your own settings do here, and that is not taken over"] if bounded else []),
        *([f"lacks {lacking} pack{'s' if lacking > 1 else ''} of its portable folder"] if lacking else []),
        *(["a task was under way: calls that had begun are in doubt"] if works else []),
    ]
    assert len(lines) == len(words)
    assert all(word in line for word, line in zip(words, lines, strict=True))


def test_policies_that_are_in_force_are_told_where_those_of_the_file_do_not_count() -> None:
    state = BASE.state
    strict = replace(state.settings, approval_policy="untrusted", sandbox_policy={"mode": "read-only"})
    free = replace(state.settings, approval_policy="never", sandbox_policy={"mode": "danger-full-access"})
    lines = [
        told(replace(BASE, bounded=True, state=replace(state, settings=each)))[1] for each in (strict, free)
    ]
    assert lines[0] != lines[1]
    assert "read-only" in lines[0]
    assert all("--trust" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "named"), [("a.jsonl", True), ("é 界.jsonl", True), ("a\nb", False), ("a\udcff", False)]
)
def test_file_is_named_by_its_whole_path_where_that_is_a_text(name: str, named: bool) -> None:
    assert _text_path(Path("/w") / name) == (f"/w/{name}" if named else None)
    assert _text_path(Path(name)) == (str(Path.cwd() / name) if named else None)


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("packs", range(4))
async def test_session_of_a_file_is_announced_before_the_store_has_its_packs_and_made_behind_them(
    packs: int, away: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packs that nobody announced would stay for ever if the import broke off behind them."""
    seen: list[Any] = []
    plan = replace(BASE, packs=tuple(Pack(f"p{number}", "ab", 1, whole=True) for number in range(packs)))

    async def announce(session: SessionId) -> int:
        seen.append(("announced", session))
        if away:
            raise Unavailable("no Redis")
        return 7

    async def copied(store: object, tree: TreeId, session: SessionId, given: Any, *more: object) -> int:
        seen.extend([("stored", session)] * len(given))
        return 0

    async def made(
        found: object, made: ImportPlan, blobs: object, now: int, who: str, at_ms: int
    ) -> SessionId:
        seen.append(("made", made.facts.session_id, at_ms))
        return made.facts.session_id

    @asynccontextmanager
    async def opens(*_: object) -> AsyncIterator[Any]:
        commits = SimpleNamespace(announce=announce)
        yield SimpleNamespace(
            broker=SimpleNamespace(commits=commits), may_create=AsyncMock(), packs=lambda: None
        )

    monkeypatch.setattr("orchestrator.cli.invocation.opened", opens)
    monkeypatch.setattr("orchestrator.rollouts.imports.plan_import", lambda *_, **__: plan)
    monkeypatch.setattr("orchestrator.rollouts.imports.store", made)
    monkeypatch.setattr("orchestrator.rollouts.file_format.read_rollout", lambda *_: None)
    monkeypatch.setattr("orchestrator.views.workspaces.copied_to", copied)
    file = tmp_path / "session.jsonl"
    file.write_text("{}\n")
    settings = load_settings(SettingsSources(tmp_path, {"HOME": str(tmp_path), "DENDRO_HOME": str(tmp_path)}))
    own = plan.facts.session_id
    if away and packs:
        with pytest.raises(Unavailable):
            await _import(settings, file, False, trust=True)
        assert seen == [("announced", own)]
        return
    await _import(settings, file, False, trust=True)
    before = [("announced", own), *[("stored", own)] * packs] if packs else []
    assert seen == [*before, ("made", own, 7 if packs else 0)]
