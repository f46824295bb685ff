"""Copies of a session's own folder, for agents that are to work in one: taken before they are made."""

from __future__ import annotations

from typing import ClassVar, Literal

from orchestrator.core.frozen import record


@record
class CopyWork:
    """A copy that is being taken, for all agents that one response makes; the folder stays as it is."""

    kind: ClassVar[Literal["copy"]] = "copy"
    request: int
    """The number of the model's response."""
