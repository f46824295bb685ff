"""Reports on a process: the looks that a model reads, and the event of its end for clients."""

from __future__ import annotations

import asyncio
from typing import Final

from orchestrator.core.calls.exec import cut_output, look_output
from orchestrator.core.commands import ProcessEnd
from orchestrator.core.processes import Process
from orchestrator.protocol.events import ExecCommandEnd
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.scalars import Duration, ExecCommandSource
from orchestrator.protocol.wire import JsonObject
from orchestrator.tools.exec.command import Finished
from orchestrator.tools.exec.output import for_model, formatted_output
from orchestrator.tools.exec.processes import UNSEEN_S, LiveProcess, LiveProcesses

OUTPUT_TOKENS: Final = 10_000
"""The most output that the model reads of one look, and what it gets when it names no limit."""
YIELD: Final = "Milliseconds to wait for its end before the output so far is returned; "
MAX_TOKENS: Final[JsonObject] = {
    "type": "number",
    "description": f"The most output to return, in tokens; default and most {OUTPUT_TOKENS}.",
}
UNSEEN = f"killed: nobody looked at it for {UNSEEN_S / 60:g} minutes"
UNKNOWN = Finished(exit_code=-1, error="this worker does not keep the process")


def within(value: int, least: int, most: int) -> int:
    """The nearest number within the bounds."""
    return max(least, min(value, most))


def look_of(
    process: LiveProcess,
    seconds: float,
    max_tokens: int,
    *,
    running: int | None = None,
    finished: Finished | None = None,
) -> str:
    """The text of a look, which takes what the process has said since the last one."""
    said = process.take().decode("utf-8", "replace")
    if finished is not None and finished.error is not None:
        said = f"{finished.error}\n{said}"
    code = 0 if finished is None else finished.exit_code
    return look_output(cut_output(said, max_tokens), seconds, running=running, exit_code=code)


def unread_end(process: Process, living: LiveProcess, finished: Finished) -> ProcessEnd:
    """The end of a process at which no call looked, with what it said last."""
    said = for_model(living.take())
    notes = [note for note in (UNSEEN if living.unseen else None, finished.error, said) if note]
    end = process_end(process.call_id, process.number, finished, unseen=living.unseen)
    return ProcessEnd(process.number, end, "\n".join(notes))


def process_end(call_id: CallId, number: int, finished: Finished, *, unseen: bool = False) -> ExecCommandEnd:
    """The event of a process's end; `unseen`: it was killed because nobody looked."""
    return ExecCommandEnd(
        call_id=call_id,
        process_id=str(number),
        source=ExecCommandSource.UNIFIED_EXEC_STARTUP,
        stdout=finished.stdout.decode("utf-8", "replace"),
        stderr=UNSEEN if unseen else finished.stderr.decode("utf-8", "replace"),
        aggregated_output=finished.aggregated.decode("utf-8", "replace"),
        exit_code=finished.exit_code,
        duration=Duration.cut(finished.duration_s),
        formatted_output=formatted_output(finished),
    )


async def follow(processes: LiveProcesses, process: Process, claim: str) -> ProcessEnd:
    """Returns at the end of a process; cancelling it kills it and waits for the proof."""
    living = processes.get(claim, process.number)
    if living is None:
        return ProcessEnd(process.number, process_end(process.call_id, process.number, UNKNOWN))
    try:
        finished = await living.ended()
    except asyncio.CancelledError:
        await living.stop()
        raise
    finally:
        processes.remove(claim, process.number)
    return unread_end(process, living, finished)
