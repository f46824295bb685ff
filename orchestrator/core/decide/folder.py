"""The folder of a portable session: made, changed, not saved, not made, and what a fall loses of it.

    a claim ──► made ──► a call that may write ──► changed: its snapshot is in the store, then the call ends
                  │                                   │
                  │                                   └──► unsaved: the store is away, or the disk is full
                  └──► not made: another machine tries; after `MOST_TRIES` claims the task fails

What is recorded of the folder is decided before whatever ends the calls that wrote to it, in whatever state
the session is by then: a command that was interrupted has changed it, too. A new holder goes on from the last
snapshot, and says so before it does anything else.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import Call
from orchestrator.core.commands import (
    FolderFailed,
    FolderMade,
    FolderUnsaved,
    SetupEnded,
    TookOver,
)
from orchestrator.core.commit_parts import FOLDER_MS, FOLDER_TIMER
from orchestrator.core.context import FOLDER_CHANGED
from orchestrator.core.decide.call_end import say_to_model
from orchestrator.core.decide.draft import DoesNotFit, Draft
from orchestrator.core.decide.task import FAILED, fail
from orchestrator.core.frozen import replace
from orchestrator.core.settings import FolderSetup
from orchestrator.core.state import lacks_setup, may_write
from orchestrator.core.workspace import MOST_TRIES, MOST_UNSAVED_CALLS, Unsaved, fitting
from orchestrator.protocol import events as ev
from orchestrator.protocol.ids import CallId, SnapshotId, SubmissionId

OF_NO_TASK = "folder"
"""The id of warnings between tasks."""
MOST_TOLD = 10
"""Files that a warning names."""
GONE = (
    "The files that are recorded are as they were. Ignored files, files that are left out, and what was in "
    "/tmp are gone"
)
SETUP_AGAIN = "Its set-up script runs again before your next call that needs the folder."
SETUP_LOST = "the set-up of the folder was broken off with its worker, and begins again"
NOT_SAVED = (
    "the folder's changes are not stored: {}. They are on machine {} alone, which keeps the session and "
    "tries again; until they are stored nothing can be forked, pushed or checked out from here"
)


def folder_made(draft: Draft, command: FolderMade) -> None:
    """The folder is there. What the last machine had beside the recorded files is gone: the model is told."""
    known = draft.state.workspace
    if command.fetched is not None and command.snapshot is not None:
        draft.add(f.WorkspaceBegun(command.snapshot, (command.fetched,), fitting(command.omitted)))
        _tell_omitted(draft, command.omitted)
        if command.warning:
            _warn(draft, command.warning)
    elif command.snapshot != known.standing:
        if known.unsaved is None or command.snapshot != known.snapshot:
            raise ValueError(f"made at {command.snapshot}, and the log says {known.standing}")
        _roll_back(draft, known.snapshot, known.unsaved.call_ids)
    if known.setting_up:
        _warn(draft, SETUP_LOST)
    draft.add(f.WorkspaceMade(draft.moment.epoch, command.machine, command.anew))
    if known.machine and (command.anew or known.machine != command.machine):
        where = "again" if known.machine == command.machine else "on another machine"
        left_out = f": {', '.join(known.omitted[:MOST_TOLD])}" if known.omitted else ""
        again = f" {SETUP_AGAIN}" if lacks_setup(draft.state) else ""
        _say(draft, "moved", f"Your folder was made {where}. {GONE}{left_out}.{again}")


def folder_failed(draft: Draft, command: FolderFailed) -> None:
    """The folder could not be made here: another machine is to try, or the task fails."""
    known, task = draft.state.workspace, draft.state.task
    draft.add(f.WorkspaceNotMade(command.machine, command.reason))
    if command.elsewhere and known.failures + 1 < MOST_TRIES:
        _warn(draft, f"machine {command.machine} could not make the folder: {command.reason}; another is to")
    elif task is None:
        _warn(draft, f"the folder could not be made: {command.reason}")
        if known.unsaved is not None:
            _keep_unsaved(draft, known.unsaved, command.reason)
    else:
        fail_for_folder(draft, f"the folder could not be made: {command.reason}")


def fail_for_folder(draft: Draft, message: str) -> None:
    """Fails the task, whose calls have no folder to run in; one that is being stopped ends as it is."""
    task = draft.task
    if task.stopping is not None:
        return
    if task.request is not None:
        draft.add(f.Failing(message), f.Stopping(FAILED))
    else:
        fail(draft, message, output=f"not run: {message}")


def folder_changed(draft: Draft, command: f.WorkspaceSaved) -> None:
    """The folder has another content, and the store has it."""
    known = draft.state.workspace
    if command.parent != known.snapshot:
        raise ValueError(f"a snapshot after {command.parent}, and the log's last is {known.snapshot}")
    calls = command.call_ids[-MOST_UNSAVED_CALLS:]
    draft.add(
        replace(command, names=fitting(command.names), call_ids=calls, omitted=fitting(command.omitted))
    )
    _tell_omitted(draft, [name for name in command.omitted if name not in known.omitted])
    if known.unsaved is not None:
        _tell_saved(draft)


def folder_settled(draft: Draft) -> None:
    """Nothing of the folder is unsaved: it is as the store has it, for instance because it was taken back."""
    if draft.state.workspace.unsaved is not None:
        draft.add(f.WorkspaceSettled())
        _tell_saved(draft)


def folder_unsaved(draft: Draft, command: FolderUnsaved) -> None:
    """The store has not got the folder's changes: the session goes on, and people are told once."""
    before = draft.state.workspace.unsaved
    calls = dict.fromkeys((*(before.call_ids if before is not None else ()), *command.call_ids))
    unsaved = Unsaved(
        before.since_ms if before is not None else command.at_ms,
        command.machine,
        tuple(calls)[-MOST_UNSAVED_CALLS:],
        command.snapshot,
        command.blocked,
        command.trying,
        command.at_ms,
    )
    if command.trying:
        _record_unsaved(draft, unsaved, command.reason)
    else:
        _keep_unsaved(draft, unsaved, command.reason)
    if before is None:
        _warn(draft, NOT_SAVED.format(command.reason, command.machine))


def folder_timer_fired(draft: Draft) -> None:
    """The store is tried again, by whoever has the folder's changes."""
    unsaved = draft.state.workspace.unsaved
    if unsaved is not None and not unsaved.trying:
        draft.add(f.WorkspaceTried())


def fall_back(draft: Draft, lost: Sequence[Call], processes: Sequence[CallId], command: TookOver) -> None:
    """The folder goes on from its last snapshot; `lost` ran when the last holder was lost.

    Unsaved changes stay if this machine has them, and nobody has given them up.
    """
    known, task = draft.state.workspace, draft.state.task
    settings = draft.state.settings if task is None else task.settings
    calls = [call.call_id for call in lost if may_write(call.work, settings)]
    calls = [call_id for call_id in calls if call_id not in known.recorded]
    calls += [call_id for call_id in processes if call_id not in calls]
    unsaved = known.unsaved
    here = unsaved is not None and unsaved.snapshot is not None and command.folder == unsaved.snapshot
    if unsaved is not None and (command.abandoned or not here):
        _roll_back(draft, known.snapshot, (*unsaved.call_ids, *calls), command.abandoned)
        return
    if calls:
        draft.add(f.WorkspaceRolledBack(known.standing, tuple(calls)))
    if unsaved is not None and not unsaved.trying:
        draft.add(f.WorkspaceTried())


def _roll_back(draft: Draft, to: SnapshotId | None, lost: Sequence[CallId], by: str = "") -> None:
    """Changes that no store had are lost, with calls whose outputs the model has read; `by` gave them up."""
    unsaved = draft.state.workspace.unsaved
    machine = unsaved.machine if unsaved is not None else ""
    draft.add(f.WorkspaceRolledBack(to, tuple(dict.fromkeys(lost)), by))
    draft.clear_timer(FOLDER_TIMER)
    named = ", ".join(lost[:MOST_TOLD]) + (f" and {len(lost) - MOST_TOLD} more" if lost[MOST_TOLD:] else "")
    given_up = f", and {by} has given it up" if by else ", and is lost"
    message = (
        f"The folder is as it was recorded last: what these calls changed in it was stored nowhere but on "
        f"machine {machine}{given_up}: {named or 'none of this log'}. What they did elsewhere has happened"
    )
    _warn(draft, message)
    _say(draft, "lost", f"{message}.")


def _record_unsaved(draft: Draft, unsaved: Unsaved, reason: str) -> None:
    draft.add(
        f.WorkspaceUnsaved(
            unsaved.since_ms,
            unsaved.machine,
            reason,
            unsaved.call_ids,
            unsaved.snapshot,
            unsaved.blocked,
            unsaved.trying,
            unsaved.at_ms,
        )
    )


def _keep_unsaved(draft: Draft, unsaved: Unsaved, reason: str) -> None:
    """Gives the claim up without the changes; a timer wakes the session to try the store again."""
    _record_unsaved(draft, replace(unsaved, trying=False), reason)
    draft.set_timer(FOLDER_TIMER, draft.moment.at_ms + FOLDER_MS)


def _tell_saved(draft: Draft) -> None:
    draft.clear_timer(FOLDER_TIMER)
    if draft.state.task is not None:
        draft.event(ev.BackgroundEvent(message="the folder's changes are stored again"))


def _tell_omitted(draft: Draft, omitted: Sequence[str]) -> None:
    if omitted:
        more = f" and {len(omitted) - MOST_TOLD} more" if omitted[MOST_TOLD:] else ""
        _warn(draft, f"not recorded, and lost with this machine: {', '.join(omitted[:MOST_TOLD])}{more}")


def _warn(draft: Draft, message: str) -> None:
    draft.add(e.event(draft.task_id or OF_NO_TASK, ev.WarningEvent(message=message)))


def _say(draft: Draft, what: str, message: str) -> None:
    id = SubmissionId(f"folder-{draft.moment.seq}-{what}")
    say_to_model(draft, FOLDER_CHANGED.format(message), id)


# ── folder setup ──────────────────────────────────────────────────────────────────────────────────
# The set-up of a portable folder: begun once the folder is made, and over before a call uses the folder.
#
# It is a command with effects, so the log says that it begins before it does. Cut short by a stop it is
# owed again under the same claim; cut short by a fall it is owed again in a folder that is made anew.


REMEDY = (
    "Send the input again if what it needs was away; else mend the script and begin a new session: this one "
    "keeps the script that it was made with"
)


def setup_begins(draft: Draft) -> None:
    """The script is to run; people are told, for it may take minutes."""
    known, portable = draft.state.workspace, draft.state.facts.portable
    under_way = known.setting_up == draft.moment.epoch
    if portable is None or portable.setup is None or not lacks_setup(draft.state) or under_way:
        raise DoesNotFit("no set-up is owed")
    if known.epoch != draft.moment.epoch or draft.task.stopping:
        raise DoesNotFit("the folder is not made under this claim, or nothing waits for it any more")
    draft.guard()
    draft.add(f.WorkspaceSetupBegun(draft.moment.epoch))
    draft.event(ev.BackgroundEvent(message=f"setting up the folder: {described(portable.setup)}"))


def described(setup: FolderSetup) -> str:
    """The set-up in words for people: where its script is from, and what it may."""
    name, network = setup.origin or "its script", "with" if setup.network else "without"
    return f"{name} runs {network} the network, for {setup.timeout_ms / 1000:g} s at most"


def setup_ended(draft: Draft, command: SetupEnded) -> None:
    """The script has ended: calls may begin, or the task fails with what it said."""
    if draft.state.workspace.setting_up != draft.moment.epoch:
        raise DoesNotFit("no set-up was under way")
    draft.add(f.WorkspaceSetupEnded(command.outcome))
    if draft.state.task is None:
        return
    if command.outcome == "done":
        draft.event(ev.BackgroundEvent(message=f"the folder is set up ({command.seconds:.1f} s)"))
    elif command.outcome == "failed":
        fail_for_folder(draft, f"the folder could not be set up: {command.message}\n{REMEDY}")
