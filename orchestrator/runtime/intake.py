"""From an SQ entry to the command that it is, and what a worker has to look at first."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from orchestrator.broker.records import Claim, SqEntry
from orchestrator.core import commands as c
from orchestrator.core import entries as e
from orchestrator.core.blobs import references, resolve
from orchestrator.core.calls import CustomWork, MergeWork, PatchWork, RunnableWork, spec_of, work_of
from orchestrator.core.decide.draft import Note
from orchestrator.core.decide.process import unknown_end
from orchestrator.core.frozen import replace
from orchestrator.core.ids import TreeId
from orchestrator.core.processes import Process
from orchestrator.core.state import State
from orchestrator.core.turn_calls import Call
from orchestrator.protocol import events as ev
from orchestrator.protocol.codec import parse_submission, short_id
from orchestrator.protocol.submission import MalformedSubmission
from orchestrator.protocol.wire import UNSET, JsonObject
from orchestrator.runtime.ports import Ports
from orchestrator.runtime.workspace import FolderFaults


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An SQ entry that could not be made a command: deciding it raises `error`."""

    submission: str
    error: Exception


def command_of(entry: SqEntry) -> c.Command | Note:
    """The command of an entry; an op that this version cannot read is answered by an `error`."""
    if entry.kind == "timer":
        return c.TimerFired(entry.submission, entry.generation)
    if entry.kind == "mail":
        body: JsonObject = orjson.loads(entry.payload)
        number = int(entry.id.partition("-")[0])
        return c.MailArrived(body.pop("kind"), body, entry.submission, number, entry.interrupt)
    try:
        submission = parse_submission(entry.payload)
    except MalformedSubmission as error:
        return Note((_unread(entry, error),))
    return c.Submitted(submission.id, submission.op, entry.client, entry.sender, entry.seq)


def _unread(entry: SqEntry, error: Exception) -> e.Entry:
    told = ev.Error(message=str(error), codex_error_info=UNSET)
    return e.event(short_id(entry.submission), told)


async def judged_running(
    ports: Ports, state: State, claim: Claim, workspace: FolderFaults
) -> dict[str, str] | None:
    """Judges each call that a lost worker left running; None if nothing had been begun."""
    task = state.task
    if task is None or not (task.running or task.request or task.stopping):
        return {} if state.processes.living or state.workspace.unsaved is not None else None
    if state.facts.portable is not None or (task.running and await workspace.fault(state)):
        # Another folder's files say nothing of a patch: what is not judged is in doubt.
        return {}
    lost = [call for call in task.running if call.epoch != claim.epoch]
    return {call.call_id: await _judged(ports, state, call, claim) for call in lost}


async def _judged(ports: Ports, state: State, call: Call, claim: Claim) -> str:
    if isinstance(call.work, MergeWork):
        return await ports.host_folders.judge(state, claim, call.work)
    return await ports.tools.judge(await _with_record(ports, state, call), claim.claim_id)


async def _with_record(ports: Ports, state: State, call: Call) -> Call:
    """The call with what it is judged by, which stands beside the log if it is very large."""
    match call.work:
        case PatchWork():
            name = "record"
        case CustomWork():
            name = "payload"
        case _:
            return call
    spec = spec_of(call.work)
    needed = set(references(spec[name]))
    if not needed:
        return call
    await ports.texts.fetch(TreeId(state.facts.tree_id), needed)
    return replace(call, work=work_of({**spec, name: resolve(spec[name], ports.texts.get)}))


def drained_call(call: Call, elapsed_s: float) -> c.CallFinished:
    """The end of a command that outlived its worker's grace: killed, and recorded as killed."""
    return _ended_early(
        call, f"killed after {elapsed_s:.1f}s: the worker was shut down; it may have had effects", elapsed_s
    )


def refused_call(call: Call, why: str) -> c.CallFinished:
    """The end of a call that was decided to start, and was not."""
    return _ended_early(call, why, 0.0)


def failed_call(call: Call, why: str) -> c.CallFinished:
    """The end of a call whose tool broke down: how far it came is unknown."""
    return _ended_early(call, f"{why}; it may have had effects", 0.0)


def failed_process(process: Process, why: str) -> c.ProcessEnd:
    """The end of a process whose wait broke down: what became of it is unknown."""
    return c.ProcessEnd(process.number, unknown_end(process, f"{why}; it may have had effects"))


def _ended_early(call: Call, text: str, elapsed_s: float) -> c.CallFinished:
    work = call.work
    ends = (work.broken_off(call.call_id, text, elapsed_s),) if isinstance(work, RunnableWork) else ()
    return c.CallFinished(call.call_id, text, ends)
