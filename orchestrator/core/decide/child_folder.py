"""The folder of an agent: at first a copy of its parent's, and what it offers to its parent in the end."""

from __future__ import annotations

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.commands import ChildSpec
from orchestrator.core.entries import Entry
from orchestrator.core.state import State
from orchestrator.core.workspace import Offer

NOT_SHARED = (
    "workspace: the agents of this tree work in a folder each, and none writes to another's; leave "
    '`workspace` out, or say "own"'
)
NOT_OWN = (
    "workspace: this session's folder is one of its machine's, and agents of its tree share it. A copy for "
    "each agent needs a portable folder (`dendro run --portable`); leave `workspace` out"
)
NOT_STORED = (
    "not made: the last changes of the folder are not stored yet, so no copy of it can be made. Try again "
    "when they are; a background event tells of it"
)


def unfit_folder(state: State, spec: ChildSpec) -> str | None:
    """The reason why an agent cannot be given such a folder now; None if it can."""
    if state.facts.portable is None:
        return NOT_OWN if spec.workspace == "own" else None
    if spec.workspace == "shared":
        return NOT_SHARED
    return NOT_STORED if state.workspace.unsaved is not None else None


def began_with(parent: State) -> tuple[Entry, ...]:
    """The entry that names the content of a new agent's folder: the packs are its parent's, within one
    tree."""
    known = parent.workspace
    if parent.facts.portable is None or known.snapshot is None:
        return ()
    return (e.fact(f.WorkspaceBegun(known.snapshot, known.packs, known.omitted)),)


def offered(state: State) -> Offer | None:
    """The folder that an agent tells its parent of as it comes to rest; None if it has none to merge."""
    known, facts = state.workspace, state.facts
    if facts.portable is None or facts.helper_call is not None or known.snapshot is None:
        return None
    packs = tuple(dict.fromkeys((*known.base_packs, *known.packs)))
    return Offer(known.snapshot, known.base, packs, known.change, known.unsaved is not None)
