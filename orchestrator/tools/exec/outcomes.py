"""The outcome of a command or of a patch's job, from what its shim and its supervisor reported."""

from __future__ import annotations

import errno
import marshal
import os

from orchestrator.tools.exec.command import Finished, Written
from orchestrator.tools.exec.running_command import Exit, Running


def finished(running: Running, duration_s: float) -> Finished:
    # A command that could not be started has no exit code, although the fork that tried has one.
    end = Exit(-1) if running.exit is None or running.failure else running.exit
    return Finished(
        exit_code=end.code,
        stdout=running.kept("stdout"),
        stderr=running.kept("stderr"),
        aggregated=running.aggregated(),
        duration_s=duration_s,
        timed_out=end.why == "timeout",
        killed=end.why == "killed",
        error=_error(running),
    )


def written(running: Running) -> Written:
    if running.exit == Exit(0):
        return Written(marshal.loads(running.kept("stdout")))
    # Without a failure to start, or with one that says that nobody knows, it may have written.
    begun = running.failure is None or running.failure[0] == "proof"
    if running.failure == ("right", 0):
        return Written(None, begun, "the worker no longer had the right to work on the session")
    return Written(None, begun, _error(running) or "its writer was killed")


def _error(running: Running) -> str | None:
    if running.survivors:
        return f"{running.survivors} processes of another user could not be killed"
    if running.failure is None:
        return None if running.exit else "the command's shim was killed before it could report"
    what, number = running.failure
    match what:
        case "right":
            return "the right to run this command has ended"
        case "proof":
            return "supervisor and shim were killed: processes of this command may still run"
        case "cwd":
            return f"the working directory cannot be entered: {os.strerror(number)}"
        case "program" if number in (errno.ENOENT, errno.EACCES, errno.ENOEXEC):
            return f"{os.strerror(number)} (os error {number})"
        case _:
            return f"the command could not be started ({what}): {os.strerror(number)}"
