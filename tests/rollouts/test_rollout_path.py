"""Files of rollouts stand where Codex looks for them, an agent's beside its root's."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from orchestrator.rollouts.rollout_file import path_beside, rollout_path

NOON_MS = int(datetime(2026, 3, 9, 12, 30, 5).timestamp() * 1000)
NEXT_DAY_MS = NOON_MS + 24 * 3_600_000


def test_file_stands_in_its_day_under_its_time_and_id() -> None:
    path = rollout_path(Path("/home/ann/sessions"), "s1", NOON_MS)
    assert str(path) == "/home/ann/sessions/2026/03/09/rollout-2026-03-09T12-30-05-s1.jsonl"


def test_agent_made_on_another_day_has_its_file_in_the_same_store() -> None:
    root = str(rollout_path(Path("/home/ann/sessions"), "s1", NOON_MS))
    beside = path_beside(root, "s2", NEXT_DAY_MS)
    assert beside == str(rollout_path(Path("/home/ann/sessions"), "s2", NEXT_DAY_MS))
    assert path_beside(None, "s2", NEXT_DAY_MS) is None
