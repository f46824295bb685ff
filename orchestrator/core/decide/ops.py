"""Ops from the SQ, and what each leads to: input and its queue, settings, a rollback, what is looked up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, assert_never

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.birth import session_configured
from orchestrator.core.calls import command_fault
from orchestrator.core.commands import FileNotWritten, InstructionsRead, LookedUp, Submitted
from orchestrator.core.compaction import user_turns, was_compacted
from orchestrator.core.context import instructions_item
from orchestrator.core.decide.agent import cancel_children, stop_processes
from orchestrator.core.decide.agent_calls import cancel_agent, interrupt_below, message_agent
from orchestrator.core.decide.call import answer
from orchestrator.core.decide.draft import DoesNotFit, Draft, publish_input
from orchestrator.core.decide.folder_fault import folder_fault
from orchestrator.core.decide.task import (
    begin_failing,
    begin_task,
    bookmarked,
    bring_settings,
    change_settings,
    cut_back,
    fail,
    lies_before,
    stop,
    turn_away,
)
from orchestrator.core.decide.task import fault as unfit
from orchestrator.core.history import INJECTED, Item
from orchestrator.core.modes import mode_fault, settings_named
from orchestrator.core.sender import sender_wire
from orchestrator.core.state import MOST_EARLIER, PendingLookUp, Queued, State
from orchestrator.core.user_turns import UserTurn, fault, input_messages, items_fault, user_message_event
from orchestrator.protocol import events as ev
from orchestrator.protocol import ops
from orchestrator.protocol.events import CodexErrorKind, WarningEvent
from orchestrator.protocol.ids import ResponseId, SubmissionId
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.ops import ThreadRollback
from orchestrator.protocol.scalars import Delivered, Delivery, Refusal
from orchestrator.protocol.wire import tag_of, written

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
        case ops.MessageAgent():
            _message(draft, command, op)
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
        case ops.OverrideTurnContext() | ops.ConfigureSession() | ops.SetThreadName() | ops.GetPath():
            _about_session(draft, command, op)
        case ops.ThreadRollback():
            roll_back(draft, command, op)
        case ops.InjectItems():
            inject(draft, command, op)
        case ops.RemoveQueued() | ops.ReorderQueue() | ops.UpdateQueued():
            change_queue(draft, command, op)
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


def _message(draft: Draft, command: Submitted, op: ops.MessageAgent) -> None:
    """A message to an agent; one to the root itself, between tasks, begins a task as input does."""
    if not op.text.strip():
        error(draft, command.id, "there is nothing to say: the text is empty")
    elif op.agent_id == 0 and draft.state.facts.is_root and draft.state.task is None:
        said = ops.UserInput(items=(TextInput(text=op.text),))
        user_turn(draft, command, UserTurn.asked(said))
    else:
        message_agent(draft, command, op)


def _about_session(
    draft: Draft,
    command: Submitted,
    op: ops.OverrideTurnContext | ops.ConfigureSession | ops.SetThreadName | ops.GetPath,
) -> None:
    """Sets what people set of a session, or tells what they ask of it."""
    match op:
        case ops.OverrideTurnContext():
            change_settings(draft, settings_named(op) or {})
        case ops.ConfigureSession():
            _configure(draft, command, op)
        case ops.SetThreadName():
            _set_name(draft, command, op.name)
        case ops.GetPath():
            _get_path(draft, command)
        case _:
            assert_never(op)


def _configure(draft: Draft, command: Submitted, op: ops.ConfigureSession) -> None:
    """(Re)configures; what runs is aborted, the history stays."""
    stop_processes(draft)
    stop(draft, "replaced", command.id)
    change_settings(draft, settings_named(op) or {})
    if op.base_instructions is not None:
        draft.add(f.Instructed(op.base_instructions, draft.sender))
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
        draft.add(f.Named(shown, draft.sender), e.event(command.id, told))


def _get_path(draft: Draft, command: Submitted) -> None:
    draft.export = True
    facts = draft.state.facts
    told = ev.ConversationPath(conversation_id=facts.session_id, path=facts.rollout_path or "")
    draft.add(e.event(command.id, told))


def _shutdown(draft: Draft, command: Submitted) -> None:
    if (first := draft.state.closing) is not None:
        why = f"the session is being closed already, by {first}: it is closed at shutdown_complete of that"
        error(draft, command.id, why)
        return
    if draft.state.tree.canceling:
        error(draft, command.id, "this agent was cancelled: it ends by that, and is not closed besides")
        return
    draft.add(f.Closing(command.id, draft.sender, keeps_lookups=True))
    cancel_children(draft, "the session above was closed")
    stop_processes(draft)
    stop(draft, "interrupted", command.id)


# ── rollback ──────────────────────────────────────────────────────────────────────────────────────
# `thread_rollback`: the last messages of people, and all that followed them, leave the conversation.


_FURTHER_BACK = "input whose last_response_id names an earlier turn goes on from there"


def roll_back(draft: Draft, command: Submitted, op: ThreadRollback) -> None:
    """Takes the conversation back to before its n-th last message of a person; files stay as they are."""
    places = user_turns(draft.state.history)
    why = _rollback_refusal(draft, op.num_turns, len(places))
    if why is not None:
        draft.add(e.error(command.id, why, CodexErrorKind.THREAD_ROLLBACK_FAILED.value))
        return
    length = places[-op.num_turns]
    marks = [mark for mark, end in draft.state.bookmarks if end <= length]
    cut_back(draft, ResponseId(marks[-1] if marks else ""), length)
    draft.add(e.event(command.id, ev.ThreadRolledBack(num_turns=op.num_turns)))


def _rollback_refusal(draft: Draft, wanted: int, there: int) -> str | None:
    if draft.state.task is not None or draft.state.queue:
        return "not rolled back: a task runs or waits; interrupt it first"
    if wanted == 0:
        return "num_turns: 0 turns are nothing to roll back; say how many"
    if wanted > there:
        since = "began, or was compacted"
        why = f"num_turns: {wanted} are to go, and people said {there} things since the conversation {since}"
        return f"{why}; {_FURTHER_BACK}" if draft.state.earlier_turns else why
    return None


# ── user turn ─────────────────────────────────────────────────────────────────────────────────────
# Where a person's input goes: to a task of its own, into the running one, or behind it.
#
# The submission may say it (`delivery`), or name the turn that it is for (`expected_turn_id`); else the
# session's `on_user_input` does. Such a submission is answered in any case, so that a client can wait for
# the decision: by `task_started` under its own id, by `input_accepted`, or by an `error`, with a reason where
# the turn is why.


MOST_STEERED: Final = 100
"""Inputs that may wait in the state for the task's next request."""

MOST_QUEUED: Final = 100
"""Inputs that may wait in the state for the running task's end."""

SEND_AGAIN: Final = "send it again when they have been read"

MOST_NAMED: Final = 10
"""Apps that one warning names."""


def user_turn(draft: Draft, command: Submitted, turn: UserTurn) -> None:
    """Decides where input goes, and puts it there."""
    if draft.state.tree.canceling:
        _error(draft, command, "this agent was cancelled: it takes no more input")
        return
    earlier = lies_before(draft.state, turn)
    if turn.bookmark and not earlier and bookmarked(draft.state, turn.bookmark) is None:
        _error(draft, command, _no_such_turn(draft, turn.bookmark))
        return
    if turn.expected_turn_id is not None and refused_turn(draft, command, turn.expected_turn_id, "steer"):
        return
    if turn.expected_turn_id is not None and not _joinable(draft, turn):
        kind = draft.task.kind
        why = "only input alone joins a turn" if kind == "user" else f"a {kind} turn takes no input"
        _error(draft, command, f"not steered: {why}", Refusal.TURN_NOT_STEERABLE)
        return
    if turn.unknown_mentions:
        # The connectors of Codex's apps are its provider's own.
        named = ", ".join(turn.unknown_mentions[:MOST_NAMED])
        warning = f"no connector ID {named}: no MCP server of that name has tools, the text stays as it is"
        draft.add(e.event(command.id, ev.WarningEvent(message=warning)))
    if _steers(draft, turn):
        _steer(draft, command, turn)
    elif _is_free(draft) and not earlier:
        begin_task(draft, Queued(command.id, turn, command.client or None, draft.sender))
    else:
        _queue(draft, command, turn)


def _is_free(draft: Draft) -> bool:
    """Whether input begins a task at once: a session that is being closed is closed before it takes more."""
    return draft.state.task is None and not draft.state.queue and not draft.state.closing


def refused_turn(
    draft: Draft, command: Submitted, expected: str, verb: Literal["steer", "interrupt"]
) -> bool:
    """Whether another turn runs than the client means, or none; it is answered by an `error` then."""
    task = draft.state.task
    if task is None or (verb == "steer" and task.stopping):
        _error(draft, command, f"no active turn to {verb}", Refusal.NO_ACTIVE_TURN)
        return True
    if task.id != expected:
        found = f"expected active turn id `{expected}` but found `{task.id}`"
        _error(draft, command, found, Refusal.OTHER_TURN)
        return True
    return False


def _error(draft: Draft, command: Submitted, message: str, reason: Refusal | None = None) -> None:
    draft.add(e.event(command.id, ev.Error(message=message, codex_error_info=None, reason=reason)))


def _no_such_turn(draft: Draft, bookmark: str) -> str:
    if was_compacted(draft.state.history):
        return (
            f"no turn of this session ended with response {bookmark}, or it lies before a compaction too far "
            f"back: of those turns the newest {MOST_EARLIER:,} are known, and none that an earlier version "
            "summed up; `dendro run --fork` with --at finds each turn of the log"
        )
    return f"no turn of this session ended with response {bookmark}"


def _joinable(draft: Draft, turn: UserTurn) -> bool:
    """Whether the running task could take this input: a task of a person, and nothing but input."""
    task = draft.state.task
    if task is None or task.kind != "user" or task.stopping:
        return False
    return turn.is_input and not turn.bookmark and turn.output_schema is None


def _steers(draft: Draft, turn: UserTurn) -> bool:
    """Whether the input joins the running task."""
    if not _joinable(draft, turn):
        return False
    if turn.expected_turn_id is not None or turn.delivery is not None:
        return turn.expected_turn_id is not None or turn.delivery is Delivery.STEER
    return isinstance(turn.op, ops.UserInput) and draft.state.facts.on_user_input == "steer"


def _steer(draft: Draft, command: Submitted, turn: UserTurn) -> None:
    """Lets input join the running task, from its next request on; settings hold from the next task on."""
    if len(draft.task.steered) >= MOST_STEERED:
        _error(
            draft, command, f"not taken: {MOST_STEERED} inputs wait for the task's next request; {SEND_AGAIN}"
        )
        return
    bring_settings(draft, turn)
    _accepted(draft, command, turn, Delivered.STEERED)
    for message in input_messages(turn.items):
        draft.add(f.Steered(command.id, message, draft.sender))
    draft.event(user_message_event(turn.items, turn.client_id, draft.sender))
    publish_input(draft, turn.items)


def _queue(draft: Draft, command: Submitted, turn: UserTurn) -> None:
    """Lets input wait for the session; unless it is to wait, what runs is stopped for it."""
    if not turn.replaces and len(draft.state.queue) >= MOST_QUEUED:
        _error(draft, command, f"not taken: {MOST_QUEUED} inputs wait for the session; {SEND_AGAIN}")
        return
    draft.add(f.InputQueued(command.id, turn, command.client or None, draft.sender))
    _accepted(draft, command, turn, Delivered.QUEUED)
    if turn.replaces:
        stop(draft, "replaced", command.id)


def _accepted(draft: Draft, command: Submitted, turn: UserTurn, delivery: Delivered) -> None:
    """Tells the client that said where its input shall go where it went."""
    if turn.delivery is None and turn.expected_turn_id is None:
        return
    joined = draft.task.id if delivery is Delivered.STEERED else command.id
    draft.add(e.event(command.id, ev.InputAccepted(turn_id=joined, delivery=delivery)))


# ── inject ────────────────────────────────────────────────────────────────────────────────────────
# `inject_items`: messages that join the conversation without a turn.


MOST_INJECTED: Final = 16
MOST_INJECTED_BYTES: Final = 128 << 10
"""Their text together: with every byte of it escaped, a step fits one commit."""
_MODEL: Final = "assistant"


def inject(draft: Draft, command: Submitted, op: ops.InjectItems) -> None:
    """Adds the messages at once, or with the next request of the turn that runs."""
    why = injected_fault(op) or _injection_refusal(draft.state, op)
    if why is not None:
        draft.add(e.error(command.id, why))
        return
    running = draft.state.task is not None
    for message in op.items:
        item: Item = {**written(message), INJECTED: True}
        if running:
            draft.add(f.Steered(command.id, item, draft.sender))
        else:
            draft.add(e.item({**item, INJECTED: sender_wire(draft.sender) or True}))
    draft.add(e.event(command.id, ev.ItemsInjected(count=len(op.items))))


def injected_fault(op: ops.InjectItems) -> str | None:
    """The reason why no conversation can take the messages; None if one can."""
    if not op.items:
        return "items: at least one is needed; nothing was done"
    if len(op.items) > MOST_INJECTED:
        return (
            f"items: at most {MOST_INJECTED} messages, these are {len(op.items):,}; send the rest by itself"
        )
    size = sum(len(part.text.encode()) for message in op.items for part in message.content)
    if size > MOST_INJECTED_BYTES:
        most = f"at most {MOST_INJECTED_BYTES:,} bytes of text together"
        return f"items: {most}, these are {size:,}; send the rest by itself"
    for place, message in enumerate(op.items):
        wanted = "output_text" if message.role == _MODEL else "input_text"
        if any(part.type != wanted for part in message.content):
            return f"items[{place}].content: a message of the role {message.role} has parts of type {wanted}"
        if not any(part.text.strip() for part in message.content):
            return f"items[{place}].content: say something"
    return None


def _injection_refusal(state: State, op: ops.InjectItems) -> str | None:
    task = state.task
    if state.tree.canceling:
        return "this agent was cancelled: it takes no more input"
    if task is None:
        waits = "not taken: input waits for its turn; send it again when that has begun"
        return waits if state.queue else None
    if task.kind != "user" or task.stopping:
        being = "is being stopped" if task.stopping else "runs, whose conversation ends with it"
        return f"not taken: a {task.kind} turn {being}; send it again when that has ended"
    if any(message.role == _MODEL for message in op.items):
        return (
            "not taken: a turn runs, and a message in the model's name would pass for its answer; "
            "send it again when the turn has ended"
        )
    if len(task.steered) + len(op.items) > MOST_STEERED:
        return f"not taken: {MOST_STEERED} inputs wait for the task's next request; {SEND_AGAIN}"
    return None


# ── queue ─────────────────────────────────────────────────────────────────────────────────────────
# Changes of the inputs that wait: one is taken out, one says something else, or their order is another.


_BEGINS = "not changed: what waits first is about to begin"
REMOVED = "this input was taken out of the queue before its turn: nothing of it was said to the model"


def change_queue(
    draft: Draft, command: Submitted, op: ops.RemoveQueued | ops.ReorderQueue | ops.UpdateQueued
) -> None:
    """Decides a change of the inputs that wait."""
    match op:
        case ops.RemoveQueued():
            remove_queued(draft, command, op)
        case ops.ReorderQueue():
            reorder_queue(draft, command, op)
        case ops.UpdateQueued():
            update_queued(draft, command, op)


def remove_queued(draft: Draft, command: Submitted, op: ops.RemoveQueued) -> None:
    """Takes an input out of the queue, and tells so under the input's own id."""
    ids = [waiting.id for waiting in draft.state.queue]
    if op.submission_id not in ids:
        draft.add(e.error(command.id, _none_waits(op.submission_id)))
    elif _is_about_to_begin(draft.state):
        draft.add(e.error(command.id, _BEGINS))
    else:
        removed = SubmissionId(op.submission_id)
        # Two clients may use one id: the later input goes, and who stays keeps its place.
        del ids[len(ids) - 1 - ids[::-1].index(removed)]
        draft.add(e.event(removed, ev.WarningEvent(message=REMOVED)))
        _order(draft, command, ids)


def update_queued(draft: Draft, command: Submitted, op: ops.UpdateQueued) -> None:
    """Puts other words in the place of those that wait."""
    found = next((waiting for waiting in draft.state.queue if waiting.id == op.submission_id), None)
    if found is None:
        draft.add(e.error(command.id, _none_waits(op.submission_id)))
    elif not found.turn.is_input:
        draft.add(e.error(command.id, f"not changed: {op.submission_id} is a task of its own, and no words"))
    elif _is_about_to_begin(draft.state):
        draft.add(e.error(command.id, _BEGINS))
    else:
        read = command.items
        items = read if read is not None else tuple(item.model_dump(mode="json") for item in op.items)
        told = ev.QueueChanged(waiting=len(draft.state.queue))
        draft.add(f.QueuedEdited(found.id, items, draft.sender), e.event(command.id, told))


def _is_about_to_begin(state: State) -> bool:
    """Whether the first that waits has its turn; in a session that is closed, all wait for more input."""
    return state.task is None and (state.looks_for_turn or not (state.closing or state.closed))


def _none_waits(id: str) -> str:
    return f"no input {id} waits: it was begun, or taken out, or is none"


def reorder_queue(draft: Draft, command: Submitted, op: ops.ReorderQueue) -> None:
    """Gives the inputs that wait another order; a list that does not name each of them changes nothing."""
    wanted = [SubmissionId(id) for id in op.submission_ids]
    if sorted(wanted) != sorted(waiting.id for waiting in draft.state.queue):
        why = "not reordered: other inputs wait than the list names; look at the queue again"
        draft.add(e.error(command.id, why))
    elif not wanted:
        draft.add(e.error(command.id, "not reordered: no input waits"))
    elif _is_about_to_begin(draft.state):
        draft.add(e.error(command.id, _BEGINS))
    else:
        _order(draft, command, wanted)


def _order(draft: Draft, command: Submitted, ids: Sequence[SubmissionId]) -> None:
    draft.add(
        f.QueueOrdered(tuple(ids), draft.sender), e.event(command.id, ev.QueueChanged(waiting=len(ids)))
    )


# ── lookup ────────────────────────────────────────────────────────────────────────────────────────
# Look-ups: ops whose answer lies outside of the log, and the instructions of folders.
#
# A look-up is accepted at once and owed from then on, beside whatever runs: it holds up neither the queue
# nor a task. The worker does it and tells what came of it; after a crash the next one does it again.


LookUpOp = (
    ops.AddToHistory
    | ops.GetHistoryEntryRequest
    | ops.ListCustomPrompts
    | ops.ListSkills
    | ops.ListMcpTools
    | ops.ListModels
)

MOST_LOOKUPS = 100
"""Look-ups of a session that may wait to be answered."""
MOST_FOLDERS = 32
"""Folders that are kept in mind; one that fell out is told of again."""
MOST_PROMPT_BYTES = 32 << 10
"""Bytes of one entry of a person's history."""


def ask(draft: Draft, command: Submitted, op: LookUpOp) -> None:
    """Accepts a look-up, or says why not."""
    if draft.state.lookup(f"{command.client}|{command.id}") is not None:
        return
    why = _lookup_refusal(draft, op)
    if why is not None:
        draft.add(e.error(command.id, why))
        return
    draft.add(f.LookUpAsked(command.id, written(op), command.client or None, command.who, draft.sender))


def _lookup_refusal(draft: Draft, op: LookUpOp) -> str | None:
    if draft.state.closing:
        return f"{op.type} is not served: the session is closing; resume it and ask again"
    if len(draft.state.lookups) >= MOST_LOOKUPS:
        return f"{op.type} is not served: {MOST_LOOKUPS} look-ups wait for their answer; ask again later"
    if isinstance(op, ops.AddToHistory):
        size = len(op.text.encode("utf-8", "replace"))
        if size > MOST_PROMPT_BYTES:
            return f"text: an entry of the history has at most {MOST_PROMPT_BYTES:,} bytes, this has {size:,}"
    return None


def looked_up(draft: Draft, command: LookedUp) -> None:
    """Answers a look-up; one that was answered, or dropped by a shutdown, gets nothing."""
    asked = draft.state.lookup(command.key)
    if asked is None:
        return
    draft.add(f.LookUpEnded(asked.id, asked.client))
    if asked.turn is not None and draft.state.takes_nothing:
        turn_away(draft)
    elif asked.turn is not None:
        _turn_found(draft, asked, command)
    elif command.error is not None:
        draft.add(e.error(asked.id, command.error))
    elif command.message is not None:
        draft.add(e.event(asked.id, command.message))


def _turn_found(draft: Draft, asked: PendingLookUp, command: LookedUp) -> None:
    """Begins the task of the input that waited; without the conversation of before, the task fails."""
    waiting = draft.state.queue[0]
    if (waiting.id, waiting.client) != (asked.id, asked.client) or draft.state.task is not None:
        raise DoesNotFit("the input that goes on from an earlier turn is not the next one")
    if command.past is not None:
        begin_task(draft, waiting, command.past)
        return
    begin_failing(draft, waiting)
    fail(draft, f"the conversation at the end of turn {asked.turn} cannot be gone back to: {command.error}")


def instructions_read(draft: Draft, command: InstructionsRead) -> None:
    """Tells the model of a folder that the task has come to."""
    if command.folder in draft.state.told_folders:
        return
    told = (*draft.state.told_folders, command.folder)
    draft.add(f.FoldersTold(told[-MOST_FOLDERS:]))
    if command.text:
        draft.add(e.item(instructions_item(command.text)))
    for warning in command.warnings:
        draft.event(WarningEvent(message=warning))
