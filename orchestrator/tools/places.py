"""The place of a portable session's folder, for tools: what commands call it, and where it is here."""

from __future__ import annotations

from pathlib import Path

from orchestrator.core.settings import SessionFacts
from orchestrator.sandbox.place import Place


def place_of(facts: SessionFacts) -> Place | None:
    """The place of a portable session's folder on this machine; None for a folder that is where it says."""
    portable = facts.portable
    if portable is None:
        return None
    return Place.of(Path(portable.root), facts.tree_id, facts.session_id, portable.name)


def on_machine(facts: SessionFacts, path: Path) -> Path:
    """The path on this machine of what the session calls `path`."""
    place = place_of(facts)
    return path if place is None else place.on_machine(path)
