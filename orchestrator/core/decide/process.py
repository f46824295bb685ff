"""Processes: when one outlives its call, what is typed to it, and its end.

    exec_command ──► RUNNING ──► it ended within its time: an ordinary command
                        └──────► it goes on: the call is done, the session has a process
    a process    ──► it ends by itself │ it is killed with the turn, the session or its claim

The end of a task leaves processes alone. An interrupt of a running task, a shutdown, a cancel and
`configure_session` kill them: they are `stopping` until the worker has proved their end, and nothing that
stops is over before that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.agent_views import one_line
from orchestrator.core.calls import ExecWork
from orchestrator.core.calls.exec import (
    NOTHING_SHOWN,
    Lasting,
    Shown,
    StdinWork,
    WriteStdin,
    cut_output,
    look_output,
    unseen_end,
)
from orchestrator.core.commands import CallFinished, ProcessEnd, ProcessFinished
from orchestrator.core.context import PROCESS_GONE
from orchestrator.core.decide.call_end import close
from orchestrator.core.decide.draft import DoesNotFit, Draft
from orchestrator.core.decide.helper_activity import activity
from orchestrator.core.frozen import replace
from orchestrator.core.history import user_message
from orchestrator.core.modes import plans
from orchestrator.core.processes import (
    COMMAND_CHARS,
    FOLDER_CHARS,
    MOST_PROCESSES,
    Process,
    rights_of,
)
from orchestrator.core.turn_calls import Call, Phase
from orchestrator.protocol import events as ev
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.wire import written

WORKER_LOST = "its worker was lost"


# ── beginning ─────────────────────────────────────────────────────────────────────────────────


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


def keep(draft: Draft, call: Call) -> None:
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


# ── looking and typing ────────────────────────────────────────────────────────────────────────


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
    activity(draft, f"looks at process {asked.number}")
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


# ── the end ───────────────────────────────────────────────────────────────────────────────────


def stop_processes(draft: Draft) -> None:
    """Lets every process be killed; what stops waits for the proof."""
    living = [one.number for one in draft.state.processes.living if not one.stopping]
    if living:
        draft.add(f.ProcessesStopping(tuple(living)))


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
    shown: Mapping[str, Shown] = MappingProxyType({}),
) -> None:
    """Processes are gone with their worker: their clients are told, and the model.

    The model has read a part of what they had `shown`, and nobody knows which: the ends alone repeat it.
    """
    if not lost:
        return
    lines = [f"process {one.number} ({one.command}) is gone: {why}" for one in lost]
    for process, line in zip(lost, lines, strict=True):
        seen = shown.get(process.call_id, NOTHING_SHOWN)
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
