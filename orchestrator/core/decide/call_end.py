"""The end of a call: its output joins the conversation.

Behind it: questions of MCP servers in the middle of a call, what a call would reach if it were approved, how
requests of agents are shown at the root, and commands that outlive their call.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, assert_never

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.agent_views import one_line
from orchestrator.core.calls import (
    Call,
    CustomWork,
    ExecWork,
    McpWork,
    MergeWork,
    PatchWork,
    Phase,
    RunnableWork,
    answer_item,
)
from orchestrator.core.calls.approval_policy import Ask
from orchestrator.core.calls.ask import digest_of
from orchestrator.core.calls.exec import (
    NOTHING_SHOWN,
    CallKey,
    Lasting,
    Shown,
    StdinWork,
    WriteStdin,
    cut_output,
    look_output,
    unseen_end,
)
from orchestrator.core.calls.patch import writable_folders
from orchestrator.core.commands import CallFinished, Elicited, ProcessEnd, ProcessFinished, Signature
from orchestrator.core.commit_parts import WITHDRAWN, OpenRequest, TreeNote, approval_timer
from orchestrator.core.context import PROCESS_GONE
from orchestrator.core.decide.draft import DoesNotFit, Draft, publish_call, show_activity
from orchestrator.core.frozen import record, replace
from orchestrator.core.history import user_message
from orchestrator.core.modes import plans
from orchestrator.core.settings import TurnSettings
from orchestrator.core.state import (
    COMMAND_CHARS,
    FOLDER_CHARS,
    MOST_PROCESSES,
    Elicitation,
    Process,
    State,
    rights_of,
)
from orchestrator.protocol import events as ev
from orchestrator.protocol import ops
from orchestrator.protocol.events import ElicitationRequest, Reach, RequestResolved
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.items import ToolOutput
from orchestrator.protocol.scalars import LargeText
from orchestrator.protocol.wire import EventModel, JsonObject, written


def close(
    draft: Draft,
    call: Call,
    output: ToolOutput,
    *,
    events: tuple[EventModel, ...] = (),
    baselines: JsonObject | None = None,
    sent: f.SentMessage | None = None,
    with_task: bool = False,
) -> None:
    """Gives the call its output, behind the `events` that tell of its end.

    `baselines` are what the task's diff counts from after an applied patch, `sent` the message that the call
    wrote. A call that ends `with_task` needs no entry that tells its phase.
    """
    if draft.task.elicitations:
        withdraw(draft, call, with_task=with_task)
    for event in events:
        draft.event(event)
    # Denied, withdrawn or timed out: the run in the sandbox is what there is.
    answer = answer_item(call.item, call.unapproved(output))
    draft.add(e.item(answer))
    publish_call(draft, call.name, answer)
    if not with_task:
        draft.add(f.CallMoved(call.call_id, Phase.DONE, baselines=baselines or None, sent=sent))


# ── elicitation ───────────────────────────────────────────────────────────────────────────────────
# Questions of MCP servers in the middle of a call: the call runs on, and its server waits for the
# decision.
#
# A decision, the deadline, the server or the end of the call settles one, and only the first of them. The
# worker holds the session meanwhile; one that is lost takes the call and its questions along.


KIND = "elicitation"
UNANSWERED = "cancel"
"""The decision on a question that nobody has answered in time."""


def elicited(draft: Draft, command: Elicited) -> None:
    """Puts a server's question to the person."""
    call = draft.task.call(command.call_id)
    if call is None or call.phase is not Phase.RUNNING or draft.task.stopping:
        raise DoesNotFit(f"call {command.call_id} does not run any more")
    reach = server_reach(draft, call, command.server)
    request = written(
        ElicitationRequest(server_name=command.server, id=command.id, message=command.message, reach=reach)
    )
    draft.event(request)
    timeout, timer = draft.state.facts.approval_timeout_ms, None
    if timeout is not None:
        timer = draft.set_timer(approval_timer(command.id), draft.moment.at_ms + timeout)
    digest = e.request_digest(draft.task.id, request)
    draft.add(f.ElicitationOpened(call.call_id, command.id, command.server, timer, digest))
    open_request(draft, command.id, KIND, request, digest)


def dropped(draft: Draft, id: str) -> None:
    """Withdraws a question that its server does not wait for any more."""
    task = draft.state.task
    for asked in task.open_elicitations if task is not None else ():
        if asked.id == id:
            _withdraw(draft, asked, told=True)


def response_of(decision: str) -> JsonObject:
    """The response that an answer is known by."""
    return {"decision": decision}


def open_elicitation(draft: Draft, id: str) -> Elicitation | None:
    """The open question of this id."""
    task = draft.state.task
    asked = task.open_elicitations if task is not None else ()
    return next((one for one in asked if one.id == id), None)


@record
class Seen:
    """The request as a person's client has shown it, and their signature under the answer."""

    shown: ops.Shown | None = None
    signature: Signature | None = None

    @property
    def is_signed(self) -> bool:
        """Whether somebody whom the worker knows has signed."""
        return self.signature is not None and self.signature.known

    def told(self, answer: f.Answered) -> f.Answered:
        """The fact of an answer, with both."""
        if (shown := self.shown) is not None:
            answer = replace(answer, shown=shown.text, surface=shown.surface, opened_ms=shown.opened_ms)
        if (given := self.signature) is None:
            return answer
        return replace(
            answer, answered_ms=given.answered_ms, sig=given.sig, key=given.key, request=given.request
        )


NOTHING_SEEN: Final = Seen()


def decide_elicitation(
    draft: Draft,
    asked: Elicitation,
    decision: str,
    who: str,
    client: str = "",
    seen: Seen = NOTHING_SEEN,
) -> None:
    """Hands a decision on to the server that waits for it."""
    digest, key = digest_of(response_of(decision)), CallId(asked.id)
    answer = f.Answered(key, draft.task.id, decision, who, draft.moment.at_ms, digest=digest)
    draft.add(seen.told(replace(answer, by=draft.sender)), f.ElicitationClosed(asked.id, decision))
    draft.close_approval(asked.id)
    draft.clear_timer(approval_timer(asked.id))
    resolved(draft, asked.id, decision, who, client, digest=digest)


def withdraw(draft: Draft, call: Call, *, with_task: bool) -> None:
    """Withdraws the questions of a call that ends; the end of a root's turn tells of them by itself."""
    for asked in draft.task.elicitations:
        if asked.call_id == call.call_id and not asked.decision:
            _withdraw(draft, asked, told=not (with_task and draft.state.facts.is_root))


def _withdraw(draft: Draft, asked: Elicitation, *, told: bool) -> None:
    draft.add(f.ElicitationClosed(asked.id, WITHDRAWN))
    draft.close_approval(asked.id)
    draft.clear_timer(approval_timer(asked.id))
    if told:
        resolved(draft, asked.id, WITHDRAWN, "")


# ── reach ─────────────────────────────────────────────────────────────────────────────────────────
# Where a call would run if a person allows it, and what it could do there, in Dendro's own words.
#
# A model's justification is one line of bounded length: it cannot be taken for a line of ours.


MOST_SAID: Final = 2_000
"""Characters of a justification that a request shows."""
MOST_NAMED: Final = 5
"""Paths that one line names."""
OUTSIDE: Final = "OUTSIDE THE SANDBOX"
ALL_RIGHTS: Final = "with all rights of the user who runs the worker: every file of theirs, and the network"


def reach_of(draft: Draft, work: RunnableWork, asked: Ask) -> Reach:
    """The reach of a call that is about to be asked about."""
    confined = work.confined(asked)
    return Reach(
        sandboxed=confined,
        text=printable_line(_text(draft.state, draft.task.settings, work, asked, draft.moment.machine)),
        machine=draft.moment.machine,
        why=printable_line(asked.reason or ""),
        says=said(asked.says),
        by_link=work.by_link(asked) or None,
    )


def server_reach(draft: Draft, call: Call, server: str) -> Reach:
    """Where the server of a call works that asks a person in the middle of it."""
    folder = call.work.cwd if isinstance(call.work, McpWork) else draft.state.in_force.cwd
    where, gains = _at(draft.state, folder, draft.moment.machine), "lets nothing run in Dendro"
    text = f"{OUTSIDE}, {where}, the MCP server {server} works: an answer goes to it, and {gains}"
    return Reach(sandboxed=False, text=printable_line(text), machine=draft.moment.machine)


def _text(state: State, settings: TurnSettings, work: RunnableWork, asked: Ask, machine: str) -> str:
    where = _where(state, work, machine)
    match work:
        case ExecWork():
            lasts = "; it may go on running behind its call" if work.lasting is not None else ""
            return f"{_command(state, settings, work.sandboxed, where)}{lasts}"
        case PatchWork() | MergeWork() if asked.outside:
            return f"{OUTSIDE}, {where}: Dendro writes {named(asked.outside)}"
        case PatchWork() | MergeWork():
            return f"inside of the folders that the sandbox lets it write, {where}: Dendro writes the files"
        case McpWork():
            return f"{OUTSIDE}, {where}: the MCP server {work.server} does it, {ALL_RIGHTS}"
        case CustomWork():
            return f"{OUTSIDE}, {where}: the worker's own program does it, {ALL_RIGHTS}"
        case _:
            assert_never(work)


def _where(state: State, work: RunnableWork, machine: str) -> str:
    return _at(state, work.cwd or state.in_force.cwd, machine)


def _at(state: State, folder: LargeText, machine: str) -> str:
    place = f"in {folder if isinstance(folder, str) else '[a long path]'}"
    if state.facts.portable is not None:
        return f"{place} on a worker of the pool {state.facts.pool}"
    return f"{place} on {machine}" if machine else place


def _command(state: State, settings: TurnSettings, sandboxed: bool, where: str) -> str:
    if not sandboxed:
        granted = ": the session has full access" if settings.full_access else ""
        return f"{OUTSIDE}, {where}{granted}, {ALL_RIGHTS}"
    policy = settings.sandbox_policy
    if policy["mode"] != "workspace-write":
        return f"in the sandbox, {where}: it can read files, and write none; it has no network"
    network = "it has the network" if policy.get("network_access") else "it has no network"
    roots = dict.fromkeys((*writable_folders(settings), *state.granted_roots))
    temporary = policy.get("exclude_slash_tmp") and policy.get("exclude_tmpdir_env_var")
    also = "" if temporary else " and temporary folders"
    return f"in the sandbox, {where}: it can read files, and write in {named(roots)}{also}; {network}"


def named(paths: Iterable[str]) -> str:
    """Paths in a line, the first few of them."""
    found = [posixpath.normpath(path) for path in paths]
    more = len(found) - MOST_NAMED
    return ", ".join(found[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def said(text: str) -> str:
    """A model's justification as a request shows it: it cannot end the quotation marks around it."""
    line = printable_line(text).replace("“", '"').replace("”", '"')
    return line if len(line) <= MOST_SAID else f"{line[:MOST_SAID]}…"


def printable_line(text: str) -> str:
    """A text without what begins a new line or steers a screen."""
    return "".join(char if char.isprintable() else _escaped(char) for char in " ".join(text.split()))


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}"


# ── approval events ───────────────────────────────────────────────────────────────────────────────
# Agents' requests to people, shown at the root as well, where people look, and taken away there.
#
# The root's queue has the root's own requests already; decisions on them are added, unless the task's
# client made them in a session without agents.


def open_request(
    draft: Draft,
    call_id: str,
    kind: str,
    request: JsonObject,
    digest: str,
    sandboxed: bool | None = None,
) -> None:
    """Puts a request, as the session's own log has its event, into the fleet's queue and before the root."""
    facts = draft.state.facts
    asked = OpenRequest(
        digest=digest,
        event=request,
        kind=kind,
        turn=draft.task.id,
        sandboxed=sandboxed,
        tree=facts.tree_id,
        agent_id=facts.agent_id,
        agent_path=facts.agent_path,
    )
    draft.open_approval(call_id, asked.value())
    _publish_at_root(draft, request)


def _publish_at_root(draft: Draft, request: JsonObject) -> None:
    """Shows at the root a request that an agent has made in its own log."""
    facts = draft.state.facts
    if not facts.is_root:
        asker = {
            "agent_id": facts.agent_id,
            "session_id": facts.session_id,
            "agent_path": facts.agent_path,
        }
        draft.tree.publish(draft.task.id, {**request, **asker}, (facts.tree_id,))


def resolved(draft: Draft, id: str, decision: str, who: str, client: str = "", *, digest: str = "") -> None:
    """Tells the root, and clients of the agent, that the request needs no answer any more.

    `id` is the call's, or that of a server's question in it. The tree log has the `digest` of a response, so
    that the root knows a second one that says the same.
    """
    facts = draft.state.facts
    if facts.is_root and _knows_alone(draft, client):
        return
    message = RequestResolved(
        call_id=CallId(id),
        turn_id=draft.task.id,
        decision=decision,
        who=who,
        resolved_at_ms=draft.moment.at_ms,
        agent_id=facts.agent_id,
        session_id=facts.session_id,
        agent_path=facts.agent_path,
    )
    about: TreeNote = {"response": digest} if digest else {}
    targets = (facts.tree_id, facts.session_id)
    draft.tree.publish(draft.task.id, message, targets, about=about)


def _knows_alone(draft: Draft, client: str) -> bool:
    """Whether the client that gave the task has answered itself, in a session without agents.

    The recorded Codex has one client, and writes no event for what that has just said.
    """
    return bool(client) and client == draft.task.client and not draft.state.tree.children


def withdrawn(draft: Draft, call: Call) -> None:
    """Withdraws the request of a call that ends with its turn: a client said so, or the turn ended."""
    if draft.state.facts.is_root:
        # The end of the turn stands on the same queue.
        return
    told = (call.call_id, draft.task.id, "abort")
    by = [one.who for one in draft.state.answers if (one.call_id, one.turn, one.decision) == told]
    resolved(draft, call.call_id, "abort" if by else WITHDRAWN, by[-1] if by else "")


# ── process ───────────────────────────────────────────────────────────────────────────────────────
# Processes: when one outlives its call, what is typed to it, and its end.
#
#     exec_command ──► RUNNING ──► it ended within its time: an ordinary command
#                         └──────► it goes on: the call is done, the session has a process
#     a process    ──► it ends by itself │ it is killed with the turn, the session or its claim
#
# The end of a task leaves processes alone. An interrupt of a running task, a shutdown, a cancel and
# `configure_session` kill them: they are `stopping` until the worker has proved their end, and nothing
# that stops is over before that.


WORKER_LOST = "its worker was lost"


# ── processes: the begin ──────────────────────────────────────────────────────────────────────────


def no_room(draft: Draft) -> str | None:
    """The refusal of one process too many; None if there is room."""
    living = draft.state.processes.living
    if len(living) < MOST_PROCESSES:
        return None
    numbers = ", ".join(str(process.number) for process in living)
    return (
        f"not started: {MOST_PROCESSES} processes of this session run already ({numbers}); "
        "let one end, or end one with write_stdin"
    )


def numbered(draft: Draft, work: ExecWork, lasting: Lasting) -> ExecWork:
    """The command with the number of its process."""
    number = draft.state.processes.taken + 1
    draft.add(f.ProcessNumbered(number))
    return replace(work, lasting=replace(lasting, number=number))


def keep_process(draft: Draft, call: Call) -> None:
    """Makes a command that goes on behind its call a process of the session."""
    work = call.work
    if not isinstance(work, ExecWork) or work.lasting is None:
        raise DoesNotFit(f"call {call.call_id} runs no command that may outlive it")
    number, task = work.lasting.number, draft.task
    words = [word if isinstance(word, str) else "[a long text]" for word in work.command]
    draft.add(
        f.ProcessKept(
            number,
            call.call_id,
            task.id,
            one_line(words[-1] if len(words) == SHELL_WORDS else " ".join(words), COMMAND_CHARS) or "",
            str(work.cwd)[:FOLDER_CHARS],
            call.epoch,
            rights_of(task.settings),
            work.lasting.tty,
            work.sandboxed,
        )
    )
    if task.stopping or draft.state.closing or draft.state.tree.canceling:
        # It is a command of the very turn that is being stopped.
        draft.add(f.ProcessesStopping((number,)))


SHELL_WORDS = 3
"""The shell, its option and the script, which alone is shown."""


# ── processes: looking and typing ─────────────────────────────────────────────────────────────────


def write_stdin(draft: Draft, call: Call, asked: WriteStdin) -> None:
    """Lets the call type to a process, or look at it; what an ended one said last is read at once."""
    processes = draft.state.processes
    ended = processes.unread(asked.number)
    if ended is not None:
        shown = cut_output(ended.unread, asked.max_tokens)
        draft.add(f.ProcessRead(asked.number))
        close(draft, call, look_output(shown, 0.0, exit_code=ended.exit_code))
        return
    process = processes.get(asked.number)
    if process is None or process.stopping:
        close(draft, call, no_process(asked.number, [one.number for one in processes.living]))
        return
    if asked.chars and (why := _not_writable(draft, process)):
        close(draft, call, why)
        return
    draft.guard()
    work = StdinWork(asked.number, process.call_id, asked.chars, asked.yield_ms, asked.max_tokens)
    show_activity(draft, f"looks at process {asked.number}")
    if (typed := work.begin()) is not None:
        draft.event(typed)
    draft.add(f.CallMoved(call.call_id, Phase.RUNNING, epoch=draft.moment.epoch, work=work))


def no_process(number: int, living: Sequence[int]) -> str:
    """The refusal of a number that no process has."""
    there = f"; these do: {', '.join(map(str, living))}" if living else ""
    return f"no process {number} runs{there}"


def _not_writable(draft: Draft, process: Process) -> str | None:
    """The reason why this task may not type to the process; None if it may."""
    if not process.tty:
        return (
            f"process {process.number} has no terminal, and so no input: start it with tty = true to type "
            "to it, or leave chars empty to read its output"
        )
    settings, beside = draft.task.settings, draft.task.branch is not None
    reads_only = beside or plans(settings) or draft.state.facts.helper_call is not None
    if process.rights != rights_of(settings) or (reads_only and not process.sandboxed):
        return (
            f"process {process.number} was started under other policies than this turn's: its output can be "
            "read, and nothing typed to it; start another one"
        )
    return None


# ── processes: the end ────────────────────────────────────────────────────────────────────────────


def seen_ending(draft: Draft, finished: CallFinished) -> None:
    """The end of a process that a call has read to its end."""
    if finished.over is not None and draft.state.processes.get(finished.over.number) is not None:
        _over(draft, finished.over)
        draft.add(f.ProcessOver(finished.over.number))


def process_finished(draft: Draft, command: ProcessFinished) -> None:
    """A process has ended while no call looked at it, or with its worker."""
    process = draft.state.processes.get(command.over.number)
    if process is None:
        raise DoesNotFit(f"process {command.over.number} is over already")
    if command.lost:
        lose(draft, (process,), command.lost, command.over)
        return
    _over(draft, command.over)
    draft.add(f.ProcessOver(process.number, command.over.end.exit_code, command.over.unread))


def _over(draft: Draft, over: ProcessEnd) -> None:
    process = draft.state.processes.get(over.number)
    if process is not None:
        draft.add(e.event(process.turn, over.end))


def lose(
    draft: Draft,
    lost: Sequence[Process],
    why: str,
    over: ProcessEnd | None = None,
    shown: Mapping[CallKey, Shown] = MappingProxyType({}),
) -> None:
    """Processes are gone with their worker: their clients are told, and the model.

    The model has read a part of what they had `shown`, and nobody knows which: the ends alone repeat it.
    """
    if not lost:
        return
    lines = [f"process {one.number} ({one.command}) is gone: {why}" for one in lost]
    for process, line in zip(lost, lines, strict=True):
        seen = shown.get((process.turn, process.call_id), NOTHING_SHOWN)
        ended = over.end if over is not None else unknown_end(process, line, seen)
        draft.add(e.event(process.turn, ended), f.ProcessOver(process.number))
    message = "\n".join(lines)
    draft.add(e.event(draft.task_id or lost[0].turn, ev.WarningEvent(message=message)))
    say_to_model(draft, PROCESS_GONE.format(message), SubmissionId(f"process-{lost[0].number}"))
    ends = draft.state.task is not None or draft.state.tree.canceling
    if ends and over is None and not draft.state.facts.is_root:
        # The supervisor has killed them, by its own clock; no worker saw it.
        draft.add(f.AgentChanged({"evidence": "presumed"}))


def unknown_end(process: Process, text: str, shown: Shown = NOTHING_SHOWN) -> ev.ExecCommandEnd:
    """The end of a process that nobody saw; `shown` is what clients had seen of it."""
    return unseen_end(process.call_id, str(process.number), None, text, shown=shown)


def say_to_model(draft: Draft, text: str, id: SubmissionId) -> None:
    """The text joins the running task's next request: a call and its output stand together."""
    item = user_message(text)
    task = draft.state.task
    if task is not None and task.kind not in ("compact", "shell"):
        draft.add(f.Steered(id, written(item)))
    else:
        draft.add(e.item(item))


def lost_processes(processes: Iterable[Process], epoch: int) -> tuple[Process, ...]:
    """The processes that an earlier claim has left."""
    return tuple(process for process in processes if process.epoch != epoch)
