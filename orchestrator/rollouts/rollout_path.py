"""The path of a session's rollout file: in a folder for its day, under its time and id."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path


def rollout_path(sessions: Path, session: str, at_ms: int) -> Path:
    """`<sessions>/YYYY/MM/DD/rollout-<time>-<session id>.jsonl`, in local time as Codex has it."""
    moment = datetime.fromtimestamp(at_ms / 1000)
    day = sessions / f"{moment:%Y}" / f"{moment:%m}" / f"{moment:%d}"
    return day / f"rollout-{moment:%Y-%m-%dT%H-%M-%S}-{session}.jsonl"


def path_beside(path: str | None, session: str, at_ms: int) -> str | None:
    """The path of another session's file in the same place; None if there is none."""
    return str(rollout_path(Path(path).parents[3], session, at_ms)) if path else None
