"""Ops from the SQ, and what each leads to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.birth import session_configured
from orchestrator.core.commands import FileNotWritten, Submitted
from orchestrator.core.compaction import user_turns
from orchestrator.core.context import instructions_item
from orchestrator.core.decide.agent_ops import cancel_agent, interrupt_below, message_agent
from orchestrator.core.decide.answer import answer
from orchestrator.core.decide.branch import fault as unfit
from orchestrator.core.decide.cancel import cancel_children
from orchestrator.core.decide.draft import Draft
from orchestrator.core.decide.lookup import ask
from orchestrator.core.decide.process import stop_processes
from orchestrator.core.decide.task import change_settings, cut_back
from orchestrator.core.decide.task_end import stop
from orchestrator.core.decide.user_turn import change_queue, inject, refused_turn, user_turn
from orchestrator.core.decide.workspace import folder_fault
from orchestrator.core.input_items import fault, items_fault
from orchestrator.core.modes import mode_fault, settings_named
from orchestrator.core.user_shell import command_fault
from orchestrator.core.user_turns import UserTurn
from orchestrator.protocol import events as ev
from orchestrator.protocol import ops
from orchestrator.protocol.faults import CodexErrorKind
from orchestrator.protocol.ids import ResponseId
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.ops import ThreadRollback
from orchestrator.protocol.wire import tag_of

MOST_NAME = 200
"""Characters of a session's name."""
_NOT_SERVED: Mapping[str, str] = {
    tag_of(ops.RefreshMcpServers): "MCP servers are the worker's settings, which no client changes",
    tag_of(ops.Undo): "thread_rollback takes back what was said; files are git's to take back",
}


def submitted(draft: Draft, command: Submitted) -> None:
    """Decides one submission, in the order of the SQ."""
    op = command.op
    if (why := _fault(draft, op)) is not None:
        error(draft, command.id, why)
        return
    match op:
        case ops.UserInput() | ops.UserTurn() | ops.Compact() | ops.Plan() | ops.Review():
            user_turn(draft, command, UserTurn.asked(op, command.items))
        case ops.RunUserShellCommand():
            _run_command(draft, command, op)
        case ops.Interrupt():
            _interrupt(draft, command, op)
        case ops.MessageAgent(agent_id=0) if draft.state.facts.is_root and draft.state.task is None:
            said = ops.UserInput(items=(TextInput(text=op.text),))
            user_turn(draft, command, UserTurn.asked(said))
        case ops.MessageAgent():
            message_agent(draft, command, op)
        case ops.CancelAgent():
            cancel_agent(draft, command, op)
        case (
            ops.ExecApproval()
            | ops.PatchApproval()
            | ops.ResolveAskUserQuestion()
            | ops.UserInputAnswer()
            | ops.ResolvePlanApproval()
            | ops.ResolveElicitation()
            | ops.DynamicToolResponse()
        ):
            answer(draft, command, op)
        case ops.OverrideTurnContext():
            change_settings(draft, settings_named(op) or {})
        case ops.ConfigureSession():
            _configure(draft, command, op)
        case ops.ThreadRollback():
            roll_back(draft, command, op)
        case ops.InjectItems():
            inject(draft, command, op)
        case ops.RemoveQueued() | ops.ReorderQueue() | ops.UpdateQueued():
            change_queue(draft, command, op)
        case ops.SetThreadName():
            _set_name(draft, command, op.name)
        case ops.GetPath():
            _get_path(draft, command)
        case (
            ops.AddToHistory()
            | ops.GetHistoryEntryRequest()
            | ops.ListCustomPrompts()
            | ops.ListSkills()
            | ops.ListMcpTools()
            | ops.ListModels()
        ):
            ask(draft, command, op)
        case ops.Shutdown():
            _shutdown(draft, command)
        case ops.RefreshMcpServers() | ops.Undo():
            error(draft, command.id, f"this version does not serve {op.type}: {_NOT_SERVED[op.type]}")
        case _:
            assert_never(op)


def _fault(draft: Draft, op: ops.Op) -> str | None:
    """The fault of an op that is wrong by itself, in a person's words; None if it can be decided."""
    match op:
        case ops.UserTurn() | ops.OverrideTurnContext() | ops.ConfigureSession() if (
            why := mode_fault(op.collaboration_mode)
        ) is not None:
            return why
        case ops.UserInput(overrides=ops.OverrideTurnContext() as changed) if (
            why := mode_fault(changed.collaboration_mode)
        ) is not None:
            return why
        case ops.UserInput() | ops.UserTurn():
            return fault(op) or folder_fault(draft.state, op)
        case ops.UpdateQueued():
            return items_fault(op.items)
        case ops.OverrideTurnContext() | ops.ConfigureSession():
            return folder_fault(draft.state, op)
        case ops.Plan() | ops.Review():
            return unfit(draft.state, op)
        case _:
            return None


def error(draft: Draft, id: str, message: str) -> None:
    draft.add(e.error(id, message))


def _interrupt(draft: Draft, command: Submitted, op: ops.Interrupt) -> None:
    """Stops the running task, or the very turn that the client means; another one goes on."""
    if op.expected_turn_id is not None and refused_turn(draft, command, op.expected_turn_id, "interrupt"):
        return
    if op.tree:
        interrupt_below(draft, f"interrupt:{command.client}:{command.id}")
    stop(draft, "interrupted", command.id)


def _run_command(draft: Draft, command: Submitted, op: ops.RunUserShellCommand) -> None:
    """Runs a person's command as a task of its own."""
    if not draft.state.facts.is_root:
        why = "people run commands in the root of a tree; message_agent speaks to its agents"
        error(draft, command.id, f"{op.type} is not served here: {why}")
    elif (why_not := command_fault(op.command)) is not None:
        error(draft, command.id, why_not)
    else:
        user_turn(draft, command, UserTurn(op))


def _configure(draft: Draft, command: Submitted, op: ops.ConfigureSession) -> None:
    """(Re)configures; what runs is aborted, the history stays."""
    stop_processes(draft)
    stop(draft, "replaced", command.id)
    change_settings(draft, settings_named(op) or {})
    if op.base_instructions is not None:
        draft.add(f.Instructed(op.base_instructions))
    if op.user_instructions:
        draft.add(e.item(instructions_item(op.user_instructions, replacing=True)))
    state = draft.state
    told = session_configured(
        command.id,
        state.facts,
        state.settings,
        state.name,
        history=command.history,
        forked_from=state.forked_from,
    )
    draft.add(told)


def file_not_written(draft: Draft, command: FileNotWritten) -> None:
    """Warns that the rollout's file is not up to date, before the op is answered.

    `command.by` asked for the file, or ends the session, and its client may look for the file.
    """
    message = (
        f"the rollout's file is not up to date: {command.reason}. Nothing is lost: the log has it all, "
        "`dendro export` writes it elsewhere, and the file is written when it can be"
    )
    draft.add(e.event(command.by, ev.WarningEvent(message=message)))


def _set_name(draft: Draft, command: Submitted, name: str) -> None:
    shown = " ".join(name.split())
    if not shown:
        error(draft, command.id, "not named: the name is empty")
    elif len(shown) > MOST_NAME:
        message = f"not named: a name has at most {MOST_NAME} characters, and this one has {len(shown):,}"
        error(draft, command.id, message)
    else:
        told = ev.ThreadNameUpdated(thread_id=draft.state.facts.session_id, thread_name=shown)
        draft.add(f.Named(shown), e.event(command.id, told))


def _get_path(draft: Draft, command: Submitted) -> None:
    draft.export = True
    facts = draft.state.facts
    told = ev.ConversationPath(conversation_id=facts.session_id, path=facts.rollout_path or "")
    draft.add(e.event(command.id, told))


def _shutdown(draft: Draft, command: Submitted) -> None:
    if draft.state.closing:
        return
    draft.add(f.Closing(command.id))
    cancel_children(draft, "the session above was closed")
    stop_processes(draft)
    stop(draft, "interrupted", command.id)


# ── rollback ──────────────────────────────────────────────────────────────────────────────────────
# `thread_rollback`: the last messages of people, and all that followed them, leave the conversation.


_FURTHER_BACK = "input whose last_response_id names an earlier turn goes on from there"


def roll_back(draft: Draft, command: Submitted, op: ThreadRollback) -> None:
    """Takes the conversation back to before its n-th last message of a person; files stay as they are."""
    places = user_turns(draft.state.history)
    why = _refusal(draft, op.num_turns, len(places))
    if why is not None:
        draft.add(e.error(command.id, why, CodexErrorKind.THREAD_ROLLBACK_FAILED.value))
        return
    length = places[-op.num_turns]
    marks = [mark for mark, end in draft.state.bookmarks if end <= length]
    cut_back(draft, ResponseId(marks[-1] if marks else ""), length)
    draft.add(e.event(command.id, ev.ThreadRolledBack(num_turns=op.num_turns)))


def _refusal(draft: Draft, wanted: int, there: int) -> str | None:
    if draft.state.task is not None or draft.state.queue:
        return "not rolled back: a task runs or waits; interrupt it first"
    if wanted == 0:
        return "num_turns: 0 turns are nothing to roll back; say how many"
    if wanted > there:
        since = "began, or was compacted"
        why = f"num_turns: {wanted} are to go, and people said {there} things since the conversation {since}"
        return f"{why}; {_FURTHER_BACK}" if draft.state.earlier_turns else why
    return None
