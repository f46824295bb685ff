"""The folder of an agent: at first a copy of its parent's, and what it offers to its parent in the end.

In a portable tree the copy is what the log names last. A folder of one machine is in no log: it is copied
first, by a call that runs, and then the agents of that response are made, all from one copy.

    to be made ──► running: the folder is copied, the store has the copy ──► to be made ──► made
"""

from __future__ import annotations

import posixpath

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import CopyWork
from orchestrator.core.commands import ChildSpec
from orchestrator.core.decide.draft import DoesNotFit, Draft
from orchestrator.core.entries import Entry
from orchestrator.core.folder_commands import FolderCopied
from orchestrator.core.frozen import replace
from orchestrator.core.ids import AgentId, TreeId
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.state import State
from orchestrator.core.turn_calls import Call, Phase
from orchestrator.core.workspace import Copied, Offer
from orchestrator.protocol import events as ev

NOT_SHARED = (
    "workspace: the agents of this tree work in a folder each, and none writes to another's; leave "
    '`workspace` out, or say "own"'
)
NOT_STORED = (
    "not made: the last changes of the folder are not stored yet, so no copy of it can be made. Try again "
    "when they are; a background event tells of it"
)


def unfit_folder(state: State, spec: ChildSpec) -> str | None:
    """The reason why an agent cannot be given such a folder now; None if it can."""
    if state.facts.portable is None:
        return None
    if spec.workspace == "shared":
        return NOT_SHARED
    return NOT_STORED if state.workspace.unsaved is not None else None


# ── copies of a folder of one machine ─────────────────────────────────────────────────────────


def _is_copied(state: State, spec: ChildSpec) -> bool:
    """Whether the agent is to have a copy of a folder that only a machine has."""
    return state.facts.portable is None and spec.workspace == "own"


def copy_for(state: State, spec: ChildSpec) -> Copied | None:
    """The copy that the agent begins with: one that this response had taken; None where it needs none."""
    known, task = state.workspace.copied, state.task
    if not _is_copied(state, spec) or known is None or task is None:
        return None
    return known if (known.request, known.cwd) == (state.requests, task.settings.cwd) else None


def lacks_copy(state: State, spec: ChildSpec) -> bool:
    """Whether the folder is to be copied before the agent can be made."""
    return _is_copied(state, spec) and copy_for(state, spec) is None


def begin_copy(draft: Draft, call: Call) -> None:
    """Has the folder copied; the call is looked at again when the store has the copy."""
    draft.guard()
    work = CopyWork(draft.state.requests)
    draft.add(f.CallMoved(call.call_id, Phase.RUNNING, epoch=draft.moment.epoch, work=work))


def folder_copied(draft: Draft, command: FolderCopied) -> None:
    """The store has a copy of the folder: the call that asked for it is to be assessed again."""
    call = draft.task.call(command.call_id)
    if call is None or call.phase is not Phase.RUNNING or not isinstance(call.work, CopyWork):
        raise DoesNotFit(f"call {command.call_id} copies no folder")
    if draft.task.stopping:
        raise DoesNotFit(f"call {command.call_id} makes no agent: the task is being stopped")
    copied = replace(command.copied, request=call.work.request)
    draft.add(f.WorkspaceCopied(call.call_id, copied))
    if command.warning:
        draft.event(ev.WarningEvent(message=command.warning))
    draft.add(f.CallMoved(call.call_id, Phase.PROPOSED))


def moved(path: str, copied: Copied, tree: TreeId) -> str:
    """The path in an agent's copy of a path in the folder that was copied; others stay."""
    if path != copied.folder and not path.startswith(f"{copied.folder.rstrip('/')}/"):
        return path
    top = copied.portable.path(tree)
    return posixpath.normpath(f"{top}/{posixpath.relpath(path, copied.folder)}")


def facts_in_copy(facts: SessionFacts, copied: Copied) -> SessionFacts:
    return replace(facts, portable=copied.portable, workspace=None)


def settings_in_copy(settings: TurnSettings, copied: Copied, tree: TreeId) -> TurnSettings:
    """The settings of an agent in its copy: nothing outside of it is recorded, and nothing is written."""
    policy = {name: value for name, value in settings.sandbox_policy.items() if name != "writable_roots"}
    cwd = posixpath.normpath(f"{copied.portable.path(tree)}/{copied.within}")
    return replace(settings, cwd=cwd, sandbox_policy=policy)


# ── content and offers ────────────────────────────────────────────────────────────────────────


def began_with(parent: State, copied: Copied | None) -> tuple[Entry, ...]:
    """The entry that names the content of a new agent's folder: the packs are its parent's, within one
    tree."""
    known = parent.workspace
    if copied is not None:
        return (e.fact(f.WorkspaceBegun(copied.snapshot, (copied.pack,), copied.omitted)),)
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


def takes_offers(state: State, child: AgentId) -> bool:
    """Whether what a child has changed can be merged into this session's folder."""
    return state.facts.portable is not None or str(child) in state.workspace.given
