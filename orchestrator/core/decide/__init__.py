"""`decide`: what happened to a session, turned into what is to be committed.

A decision is drafted: each entry that a rule adds is applied to the draft's state at once, so that the next
rule of the same decision sees it. Nothing outside is touched; a draft that raises leaves the caller's state
as it was. The command's own rule comes first, then `transitions.advance`.

    ops, agent_ops                submissions: input and settings, then what people ask of agents
    task, request, task_end       a task from its beginning to its end, and its model requests
    call, wait, ask, process      a tool call, the wait for agents, questions to a person, commands that last
    elicitation                   questions of MCP servers in the middle of a call
    answer, approval              which request an answer means, and what a decision about a call does
    agent_*, helper*              agents: calls about them, their creation, their status
    mail, mail_delivery, cancel   what sessions of a tree tell each other, and how they end each other
    workspace, folder_setup       the folder of a portable session, and the script that prepares it
    takeover, timer, refusal      a lost worker, a deadline, a commit that Redis refused
"""

from __future__ import annotations

from typing import assert_never

from orchestrator.core import commands as c
from orchestrator.core import folder_commands as folder
from orchestrator.core.decide.call import assessed, finished
from orchestrator.core.decide.cancel import end_next
from orchestrator.core.decide.child_folder import folder_copied
from orchestrator.core.decide.draft import Decision, DoesNotFit, Draft
from orchestrator.core.decide.elicitation import dropped, elicited
from orchestrator.core.decide.folder_setup import setup_begins, setup_ended
from orchestrator.core.decide.lookup import instructions_read, looked_up
from orchestrator.core.decide.mail import mail_arrived
from orchestrator.core.decide.ops import file_not_written, submitted
from orchestrator.core.decide.process import process_finished
from orchestrator.core.decide.refusal import commit_refused
from orchestrator.core.decide.request import (
    begin_request,
    item_completed,
    response_broken,
    response_completed,
    search_begun,
)
from orchestrator.core.decide.takeover import refused, stopped, took_over
from orchestrator.core.decide.task_end import go_on
from orchestrator.core.decide.timer import timer_fired
from orchestrator.core.decide.transitions import advance
from orchestrator.core.decide.workspace import (
    folder_changed,
    folder_failed,
    folder_made,
    folder_settled,
    folder_unsaved,
)
from orchestrator.core.state import State

__all__ = ["Decision", "IllegalCommand", "decide"]


class IllegalCommand(Exception):
    """The command does not fit the state that it met; nothing changed."""

    # No frozen dataclass: a context manager that passes an exception on sets its traceback.
    def __init__(self, command: str, state: str, detail: str = "") -> None:
        super().__init__(f"{command} cannot happen to a session that is {state}: {detail}")
        self.command = command
        self.state = state
        self.detail = detail


def decide(state: State, command: c.Command, moment: c.Moment) -> Decision:
    """Returns what to commit now that `command` has happened; raises `IllegalCommand` if it cannot have.

    Any other exception is a defect of a rule.
    """
    draft = Draft(state, moment)
    try:
        _apply(draft, command)
        advance(draft)
    except DoesNotFit as error:
        raise IllegalCommand(type(command).__name__, state.status, str(error)) from error
    return draft.decision()


def _apply(draft: Draft, command: c.Command) -> None:
    match command:
        case c.Submitted():
            submitted(draft, command)
        case c.BeginRequest():
            begin_request(draft)
        case c.SearchBegun():
            search_begun(draft, command)
        case c.ItemCompleted():
            item_completed(draft, command)
        case c.ResponseCompleted():
            response_completed(draft, command)
        case c.ResponseBroken():
            response_broken(draft, command)
        case c.CallAssessed():
            assessed(draft, command)
        case c.CallFinished():
            finished(draft, command)
        case c.ProcessFinished():
            process_finished(draft, command)
        case c.Elicited():
            elicited(draft, command)
        case c.ElicitationDropped(id):
            dropped(draft, id)
        case c.Stopped():
            stopped(draft, command)
        case c.CloseCalls():
            go_on(draft)
        case c.EndChildren():
            end_next(draft)
        case c.TookOver():
            took_over(draft, command)
        case c.TaskRefused():
            refused(draft, command)
        case c.LookedUp():
            looked_up(draft, command)
        case c.InstructionsRead():
            instructions_read(draft, command)
        case c.FileNotWritten():
            file_not_written(draft, command)
        case c.TimerFired():
            timer_fired(draft, command)
        case c.MailArrived():
            mail_arrived(draft, command)
        case c.CommitRefused():
            commit_refused(draft, command)
        case _:
            _apply_to_folder(draft, command)


def _apply_to_folder(draft: Draft, command: folder.FolderCommand) -> None:
    match command:
        case folder.FolderMade():
            folder_made(draft, command)
        case folder.FolderFailed():
            folder_failed(draft, command)
        case folder.FolderChanged():
            folder_changed(draft, command)
        case folder.FolderUnsaved():
            folder_unsaved(draft, command)
        case folder.FolderSettled():
            folder_settled(draft)
        case folder.SetupBegins():
            setup_begins(draft)
        case folder.SetupEnded():
            setup_ended(draft, command)
        case folder.FolderCopied():
            folder_copied(draft, command)
        case _:
            assert_never(command)
