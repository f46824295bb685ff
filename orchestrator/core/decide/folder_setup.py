"""The set-up of a portable folder: begun once the folder is made, and over before a call uses the folder.

It is a command with effects, so the log says that it begins before it does. Cut short by a stop it is owed
again under the same claim; cut short by a fall it is owed again in a folder that is made anew.
"""

from __future__ import annotations

from orchestrator.core import facts as f
from orchestrator.core.decide.draft import DoesNotFit, Draft
from orchestrator.core.decide.workspace import fail_for_folder
from orchestrator.core.folder_commands import SetupEnded
from orchestrator.core.folder_use import lacks_setup
from orchestrator.core.settings import FolderSetup
from orchestrator.protocol import events as ev

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
