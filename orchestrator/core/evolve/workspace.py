"""`evolve` for the folder of a portable session."""

from __future__ import annotations

from typing import assert_never

from orchestrator.core import facts as f
from orchestrator.core.frozen import replace
from orchestrator.core.workspace import Merged, Unsaved, Workspace
from orchestrator.protocol.ids import CallId


def evolve_workspace(known: Workspace, fact: f.WorkspaceFact) -> Workspace:
    """The folder after a fact about it."""
    match fact:
        case f.WorkspaceBegun(snapshot, packs, omitted):
            begun = replace(known, snapshot=snapshot, base=snapshot, packs=packs, omitted=omitted)
            return replace(begun, base_packs=packs)
        case f.WorkspaceMade(epoch, machine, anew):
            # Of another machine's copy nobody knows whether the set-up has run in it to its end.
            set_up = known.set_up and not anew and machine == known.machine
            made = replace(known, epoch=epoch, machine=machine, failures=0)
            return replace(made, set_up=set_up, setting_up=0)
        case f.WorkspaceSetupBegun(epoch):
            return replace(known, set_up=False, setting_up=epoch)
        case f.WorkspaceSetupEnded(result):
            return replace(known, set_up=result == "done", setting_up=0)
        case f.WorkspaceNotMade():
            return replace(known, failures=known.failures + 1)
        case f.WorkspaceSaved():
            return _saved(known, fact)
        case f.WorkspaceUnsaved(since_ms, machine, _, call_ids, snapshot, blocked, trying, at_ms):
            kept = Unsaved(since_ms, machine, call_ids, snapshot, blocked, trying, at_ms)
            return replace(known, unsaved=kept)
        case f.WorkspaceTried():
            unsaved = replace(known.unsaved, trying=True) if known.unsaved is not None else None
            return replace(known, unsaved=unsaved)
        case f.WorkspaceSettled():
            return replace(known, unsaved=None)
        case f.WorkspaceRolledBack(to):
            stands = known.unsaved is not None and to is not None and to == known.unsaved.snapshot
            return replace(known, epoch=0, unsaved=known.unsaved if stands else None)
        case f.WorkspaceMerged(agent_id=agent_id, snapshot=snapshot, packs=packs):
            return replace(known, merged={**known.merged, str(agent_id): Merged(snapshot, packs)})
        case f.WorkspaceCopied(copied=copied):
            return replace(known, copied=copied)
        case f.WorkspaceGiven(agent_id, _, folder):
            return replace(known, given={**known.given, str(agent_id): folder})
        case f.WorkspaceOffered(agent_id, offer):
            return replace(known, offered={**known.offered, str(agent_id): offer})
        case _:
            assert_never(fact)


def _saved(known: Workspace, fact: f.WorkspaceSaved) -> Workspace:
    packs = (fact.pack,) if fact.pack.whole else (*known.packs, fact.pack)
    return replace(
        known,
        snapshot=fact.snapshot,
        packs=packs,
        unsaved=None,
        change=fact.change,
        recorded=fact.call_ids,
        omitted=fact.omitted,
    )


def runs_again(known: Workspace, call_id: CallId) -> Workspace:
    """The folder as a call begins to run: nothing that it will write is recorded."""
    return replace(known, recorded=tuple(one for one in known.recorded if one != call_id))
