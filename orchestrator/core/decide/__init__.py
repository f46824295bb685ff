"""`decide`: what happened to a session, turned into what is to be committed.

A decision is drafted: each entry that a rule adds is applied to the draft's state at once, so that the next
rule of the same decision sees it. Nothing outside is touched; a draft that raises leaves the caller's state
as it was. The command's own rule comes first, then `transitions.advance`.

    ops           submissions: input, the queue that it waits in, settings, what else people ask of a session
    task          a task from its beginning to its end; planning sessions and reviews, which are tasks with a
                  conversation of their own; its wait for the tree's budget
    request       model requests: their answers, item by item, and what follows when one breaks
    call          a tool call: assessed, approved or answered, run, finished
    call_end      the end of a call; commands that outlive it; questions of MCP servers in its middle
    agent         an agent itself: its status, its folder, how it is cancelled
    agent_calls   calls about agents: creation, words, the wait for them; the same by people
    mail_arrival  what comes from other sessions of the tree
    mail_delivery what of it a model reads, and how
    folder        the folder of a portable session with the script that prepares it; `folder_fault` says which
                  settings it does not go with
    takeover      stops, and what a lost worker has left behind
    transitions   what follows from the state itself, whatever command led to it

A deadline that passed, and a commit that Redis refused, are decided below.
"""

from __future__ import annotations

from typing import assert_never

from orchestrator.core import commands as c
from orchestrator.core import commands as fc
from orchestrator.core import commit_parts as parts
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import AwaitWork, Phase, timer_of
from orchestrator.core.commands import TimerFired
from orchestrator.core.decide.agent import come_to_rest, folder_copied, pass_over
from orchestrator.core.decide.agent_calls import arm, end_wait, timed_out, watchdog_fired
from orchestrator.core.decide.call import BY_TIMER, assessed, finished, give_up, resolve
from orchestrator.core.decide.call_end import (
    UNANSWERED,
    close,
    decide_elicitation,
    dropped,
    elicited,
    process_finished,
)
from orchestrator.core.decide.draft import Decision, DoesNotFit, Draft
from orchestrator.core.decide.folder import (
    folder_changed,
    folder_failed,
    folder_made,
    folder_settled,
    folder_timer_fired,
    folder_unsaved,
    setup_begins,
    setup_ended,
)
from orchestrator.core.decide.mail_arrival import end_agent, end_next, mail_arrived
from orchestrator.core.decide.mail_delivery import leave_unread
from orchestrator.core.decide.ops import file_not_written, instructions_read, looked_up, submitted
from orchestrator.core.decide.request import (
    begin_request,
    item_completed,
    request_sent,
    response_broken,
    response_completed,
    search_begun,
)
from orchestrator.core.decide.takeover import refused, stopped, took_over
from orchestrator.core.decide.task import (
    ENDED,
    end_turn,
    fail,
    go_on,
    pause,
    resume,
    start_next,
    unpriced,
)
from orchestrator.core.state import State, Task
from orchestrator.core.tree import pruned_flag
from orchestrator.protocol.ops import CancelAgent, MessageAgent

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
        draft.sender = None
        advance(draft)
    except DoesNotFit as error:
        raise IllegalCommand(type(command).__name__, state.status, str(error)) from error
    return draft.decision()


def _apply(draft: Draft, command: c.Command) -> None:
    match command:
        case c.Submitted():
            draft.sender = command.by
            submitted(draft, command)
        case (
            c.BeginRequest()
            | c.RequestSent()
            | c.SearchBegun()
            | c.ItemCompleted()
            | c.ResponseCompleted()
            | c.ResponseBroken()
        ):
            _apply_to_request(draft, command)
        case (
            c.CallAssessed() | c.CallFinished() | c.ProcessFinished() | c.Elicited() | c.ElicitationDropped()
        ):
            _apply_to_call(draft, command)
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


def _apply_to_request(
    draft: Draft,
    command: c.BeginRequest
    | c.RequestSent
    | c.SearchBegun
    | c.ItemCompleted
    | c.ResponseCompleted
    | c.ResponseBroken,
) -> None:
    match command:
        case c.BeginRequest():
            begin_request(draft)
        case c.RequestSent():
            request_sent(draft, command)
        case c.SearchBegun():
            search_begun(draft, command)
        case c.ItemCompleted():
            item_completed(draft, command)
        case c.ResponseCompleted():
            response_completed(draft, command)
        case c.ResponseBroken():
            response_broken(draft, command)
        case _:
            assert_never(command)


def _apply_to_call(
    draft: Draft,
    command: c.CallAssessed | c.CallFinished | c.ProcessFinished | c.Elicited | c.ElicitationDropped,
) -> None:
    match command:
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
        case _:
            assert_never(command)


def _apply_to_folder(draft: Draft, command: fc.FolderCommand | f.WorkspaceSaved) -> None:
    match command:
        case fc.FolderMade():
            folder_made(draft, command)
        case fc.FolderFailed():
            folder_failed(draft, command)
        case f.WorkspaceSaved():
            folder_changed(draft, command)
        case fc.FolderUnsaved():
            folder_unsaved(draft, command)
        case fc.FolderSettled():
            folder_settled(draft)
        case fc.SetupBegins():
            setup_begins(draft)
        case fc.SetupEnded():
            setup_ended(draft, command)
        case fc.FolderCopied():
            folder_copied(draft, command)
        case _:
            assert_never(command)


# ── refusal ───────────────────────────────────────────────────────────────────────────────────────
# Refused commits: the decision in place of a command of which nothing was written.
#
# A refusal comes from what only the tree knows at that moment: a slot, a budget, a cancel flag, a target.
# A call's refusal is its output, which the model reads; a cancel flag ends the agent.


_WHY = {
    parts.SLOTS: (
        "no slot is free: {detail} agents of this tree are at work; wait for one to finish, or cancel one"
    ),
    parts.SPAWNED: "this tree may make {detail} agents in all, and it has; go on with those that there are",
    "unknown_target": "no such agent; refresh with subagent_list",
    "archived_target": "that agent is archived: nothing can be sent to it",
    "budget_spent": "the tree's budget of {detail} is spent: no agent can be made until more is added",
    "queue_full": "that agent's queue is full; try again later",
}


_UNREACHABLE = frozenset({"unknown_target", "archived_target"})
"""Refusals of messages that their session cannot be given."""
_TOLD = (c.CallAssessed, c.TimerFired, c.EndChildren, c.BeginRequest)
"""Commands that have an answer of their own where a message of theirs reaches nobody."""


def _is_told(refused: c.Command) -> bool:
    """Whether a person meant the very session that nothing reaches."""
    said_to_one = c.AnswerOp | MessageAgent | CancelAgent
    return isinstance(refused, c.Submitted) and isinstance(refused.op, said_to_one)


def commit_refused(draft: Draft, command: c.CommitRefused) -> None:
    """Decides anew, in the state that the refused command met."""
    refused = command.command
    if command.reason == "marked":
        _ended(draft, refused, command.detail)
        return
    if command.reason in _UNREACHABLE and not isinstance(refused, _TOLD) and not _is_told(refused):
        # What else it decides does not wait for a session that nothing reaches.
        draft.apart, draft.tree.unreachable = True, command.detail
        _apply(draft, refused)
        return
    match refused:
        case c.CallAssessed(call_id):
            _call_refused(draft, call_id, _why(command))
        case c.TimerFired(id):
            _watchdog_refused(draft, id, command.reason)
        case c.EndChildren():
            pass_over(draft, command.detail)
        case c.BeginRequest() if command.reason in {"budget_spent", "budget_reserved"}:
            pause(draft, command)
        case c.BeginRequest() if command.reason == "budget_unpriced":
            fail(draft, unpriced(draft.task.settings.model))
        case c.BeginRequest():
            fail(draft, _why(command))
        case c.Submitted(id):
            # A word to an agent that is gone, or too busy to be told.
            draft.add(e.error(id, _why(command)))
        case _:
            raise DoesNotFit(f"{type(refused).__name__} was refused: {_why(command)}")


def _why(command: c.CommitRefused) -> str:
    text = _WHY.get(command.reason)
    return text.format(detail=command.detail) if text else f"refused: {command.reason} {command.detail}"


def _ended(draft: Draft, refused: c.Command, mark: str) -> None:
    """An agent that was cancelled ends; one that was only taken off the list stays as it is."""
    draft.apart = True
    if draft.state.task is None and mark == pruned_flag(draft.state.facts.agent_id):
        draft.add(f.AgentChanged({"pruned": True}))
        leave_unread(draft)
    else:
        end_agent(draft, "cancelled from above")
    if isinstance(refused, c.Submitted):
        draft.add(e.error(refused.id, ENDED))
    elif isinstance(refused, c.LookedUp):
        # The input that waited for it begins nothing any more.
        looked_up(draft, refused)
    elif isinstance(refused, c.MailArrived):
        # It starts nothing any more, but what it brought (a slot, a place in the inbox) is given back.
        mail_arrived(draft, refused)
    elif isinstance(refused, c.TookOver):
        # What the lost holder had begun is in doubt all the same, and nobody saw it end.
        took_over(draft, refused)


def _call_refused(draft: Draft, call_id: str, text: str) -> None:
    call = draft.task.call(call_id)
    if call is None or call.phase is not Phase.PROPOSED:
        raise DoesNotFit(f"call {call_id} cannot be refused now")
    close(draft, call, text)


def _watchdog_refused(draft: Draft, timer: str, reason: str) -> None:
    """A watchdog whose target is gone ends; one whose target has a full queue skips this message."""
    for agent_id, watchdog in draft.state.tree.watchdogs.items():
        if timer == parts.watchdog_timer(agent_id):
            if reason == "queue_full":
                arm(draft, watchdog)
            else:
                draft.add(f.WatchdogEnded(agent_id))
            return


# ── timer ─────────────────────────────────────────────────────────────────────────────────────────
# A deadline has passed; a stale generation means that it was set anew or no longer matters.


def timer_fired(draft: Draft, command: TimerFired) -> None:
    """Decides the timer of a retry, an approval, a wait, a watchdog, a budget, a reap or a folder."""
    if command.id == parts.FOLDER_TIMER:
        folder_timer_fired(draft)
        return
    if command.id == parts.BUDGET_TIMER:
        resume(draft)
        return
    if command.id in (parts.REAP_TIMER, parts.REAP_BELOW_TIMER):
        # Claims were taken from those that did not act; the next workers may be lost as well, so it stands.
        left = draft.state.tree.ending_children if command.id == parts.REAP_TIMER else command.left
        if not left:
            draft.clear_timer(command.id)
        return
    for watchdog in draft.state.tree.watchdogs.values():
        if (
            command.id == parts.watchdog_timer(watchdog.agent_id)
            and command.generation == watchdog.generation
        ):
            watchdog_fired(draft, watchdog, command.parent, over=command.over)
            return
    if draft.state.task is not None:
        _timer_of_task(draft, draft.state.task, command)


def _timer_of_task(draft: Draft, task: Task, command: TimerFired) -> None:
    waiting = task.waiting
    if waiting is not None and command.id == parts.wait_timer(waiting.call_id):
        wait = waiting.work
        if isinstance(wait, AwaitWork) and wait.timer == command.generation and not task.stopping:
            timed_out(draft, waiting, wait)
        return
    if command.id == parts.RETRY_TIMER:
        if task.wait == command.generation:
            draft.add(f.RetryDue())
        return
    for asked in task.open_elicitations:
        if command.id == parts.approval_timer(asked.id) and asked.timer == command.generation:
            decide_elicitation(draft, asked, UNANSWERED, BY_TIMER)
            return
    for call in task.requests:
        if command.id != parts.approval_timer(call.call_id) or timer_of(call.work) != command.generation:
            continue
        if task.stopping and call.phase is Phase.ASKING:
            # Its task ends it; an approval is denied all the same, which starts nothing.
            continue
        if call.phase is Phase.ASKING:
            give_up(draft, call)
        else:
            resolve(draft, call, "denied", BY_TIMER)


# ── transitions ───────────────────────────────────────────────────────────────────────────────────
# State-triggered transitions: what follows from the state itself, whatever command led to it.
#
# A rule reacts to its command and leaves the state as that makes it. Then `advance` asks, once for each
# decision and in this order, whether
#
#     a wait is over       news came that the waiting call returns, or none can come    → the call is done
#     the turn is over     the response is complete and its last call is done           → the task may be over
#     something is next    no task holds the session, and input, mail or a shutdown     → a task, or the end
#                          waits for it
#     the agent is at rest its task ended and none follows, or all below a cancelled    → its parent is told
#                          agent has ended
#
# Each may make the next one true and none an earlier one, so one pass reaches the fixpoint. What takes
# more than one commit carries (calls to close, children to tell) is no transition: the state owes it
# (`outstanding`), and the pieces come as commands of their own.


def advance(draft: Draft) -> None:
    """Brings the draft's state to its fixpoint."""
    end_wait(draft)
    end_turn(draft)
    start_next(draft)
    come_to_rest(draft)
