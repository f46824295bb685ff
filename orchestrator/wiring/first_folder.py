"""The folder that a new portable session begins with."""

from __future__ import annotations

from pathlib import Path

from orchestrator.core.frozen import record
from orchestrator.core.settings import PortableFolder
from orchestrator.core.state import State


@record
class FirstFolder:
    """The folder that a new session begins with."""

    portable: PortableFolder
    within: str = "."
    """The working folder inside of it."""
    top: Path | None = None
    """The folder on this machine that it is a copy of."""
    source: tuple[State, str] | None = None
    """The state of the session whose folder it is a copy of, and that session's name for people."""
    warning: str = ""
    """News of the folder for people, before its first call; empty: none."""
