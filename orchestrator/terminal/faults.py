"""From an error to one line on stderr and an exit code.

Fault          what a command itself found wrong; it carries its exit code
SETUP          something is missing or set wrongly: 2, `dendro doctor` names it
FAILURES       the wish was clear and could not be granted: 1
anything else  a defect: 1, and how to see where
"""

from __future__ import annotations

import sys
import traceback
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes that a caller's script can tell apart."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    WAITING = 3
    """Left waiting for a person."""
    INTERRUPTED = 130


class Fault(Exception):
    """A command cannot go on; the message is for a person and names the remedy."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code = code


def refuse(*uses: tuple[bool, str]) -> None:
    """Raises the first wrong use of a command; each is whether it was used so, and what to say then."""
    for wrong, message in uses:
        if wrong:
            raise Fault(message, ExitCode.USAGE)


def deleted(session: str) -> str:
    """The message about a session that was deleted while it was followed."""
    return (
        f"session {session} was deleted, by `dendro rm` or by retention: nothing of it is left to go on with"
    )


def report(error: Exception) -> int:
    """Prints the fault for a person; returns the exit code."""
    if _is_interrupt(error):
        return ExitCode.INTERRUPTED
    if _debugs():
        traceback.print_exception(error)
    from orchestrator.terminal.text import plain

    told = explain(error)
    print(f"dendro: {plain(told[0])}", file=sys.stderr)
    return told[1]


def explain(error: Exception) -> tuple[str, ExitCode]:
    """The line for an error, and the exit code that goes with it."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, Fault):
        return _one_line(error), error.code
    if isinstance(error, _misuse()):
        return _one_line(error), ExitCode.USAGE
    if isinstance(error, _failures()):
        return _one_line(error), ExitCode.FAILED
    if isinstance(error, _misuse_of_the_stub()):
        return _one_line(error), ExitCode.USAGE
    if isinstance(error, _setup()):
        return f"{_one_line(error)}{_doctor(error)}", ExitCode.USAGE
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{error.strerror or error}", ExitCode.FAILED
    kind = type(error).__name__
    where = "set DENDRO_DEBUG=1 to see where, and please report it"
    return f"internal error: {kind}: {_one_line(error)} ({where})", ExitCode.FAILED


def _debugs() -> bool:
    from orchestrator.settings import SettingsError, SettingsSources

    try:
        return bool(SettingsSources.of_process().environ.get("DENDRO_DEBUG"))
    except SettingsError:
        return False  # the folder of the process was removed


def _is_interrupt(error: BaseException) -> bool:
    """Ctrl-C while a class is made: Python 3.11 makes an error of its own of what `__set_name__` meets."""
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _doctor(error: Exception) -> str:
    from orchestrator.settings import SettingsError

    return "" if isinstance(error, SettingsError) else " (`dendro doctor` says what is missing)"


def _setup() -> tuple[type[Exception], ...]:
    from orchestrator.broker.embedded import EmbeddedError
    from orchestrator.broker.errors import BrokerError
    from orchestrator.model.connections import InvalidProvider
    from orchestrator.sandbox.probe import NoConfinement
    from orchestrator.settings import SettingsError

    return (SettingsError, EmbeddedError, BrokerError, InvalidProvider, NoConfinement)


def _misuse() -> tuple[type[Exception], ...]:
    from orchestrator.gateways.wires.addresses import BadAddress
    from orchestrator.rollouts.object_store import UnknownStore
    from orchestrator.views import Contradiction
    from orchestrator.workspaces.pack_keys import KeyUnavailable

    return (Contradiction, BadAddress, KeyUnavailable, UnknownStore)


def _misuse_of_the_stub() -> tuple[type[Exception], ...]:
    from orchestrator.stub import CannotListen, ScenarioError, UnknownBehaviour

    return (CannotListen, ScenarioError, UnknownBehaviour)


def _failures() -> tuple[type[Exception], ...]:
    """Errors about one session: the deployment itself is well."""
    from orchestrator import rollouts as rollouts
    from orchestrator import views as views
    from orchestrator.broker import errors as broker
    from orchestrator.folders import outcomes as folders
    from orchestrator.gateways import submit
    from orchestrator.protocol import submission
    from orchestrator.rollouts import object_store, segments
    from orchestrator.runtime import loader
    from orchestrator.workspaces import branches, stored_packs
    from workers import companion

    return (
        broker.BirthGivenUp,
        broker.Corrupt,
        broker.QueueFull,
        broker.SessionArchived,
        broker.SessionHeld,
        broker.SubmissionConflict,
        broker.UnknownSession,
        views.ViewError,
        submit.OpRefused,
        submit.StillAtWork,
        submission.ProtocolError,
        rollouts.RolloutError,
        loader.BrokenLog,
        segments.BrokenArchive,
        object_store.ArchiveUnavailable,
        stored_packs.BrokenPack,
        folders.FolderError,
        branches.PushRefused,
        companion.LostWorker,
    )
