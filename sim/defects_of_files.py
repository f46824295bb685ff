"""Defects of rollouts' files."""

from __future__ import annotations

from typing import Any

from orchestrator.broker.records import Claim
from orchestrator.rollouts import rollout_file as export
from orchestrator.rollouts.rollout_file import LogPart
from orchestrator.runtime.loader import Loaded, load
from orchestrator.runtime.runner import Copies, LateFiles, Runner
from sim.mutant import Mutant, swapped


def _at_rest_only_in_the_log(real: Any) -> Any:
    def nothing(self: LateFiles, claim: Claim, left: Loaded) -> None:
        return None

    return nothing


def _insistent(real: Any) -> Any:
    async def raising(self: Copies) -> str | None:
        if (fault := await real(self)) is not None:
            raise OSError(fault)
        return None

    return raising


def _silent(real: Any) -> Any:
    async def quiet(self: Copies) -> str | None:
        await real(self)
        return None

    return quiet


def _impatient(real: Any) -> Any:
    async def at_once(self: Runner) -> Any:
        return await load(self._ports, self._claimed, self._cache, self._writer.secret)

    return at_once


class _Uncut:
    """A file that is never cut."""

    def __init__(self, file: Any) -> None:
        self.seek, self.read = file.seek, file.read

    def truncate(self, size: int) -> None:
        return None


DEFECTS = (
    Mutant(
        "file is written behind what is torn",
        "a line that a crash tore stays in the file, and the next one follows it",
        swapped(export, "last_line", lambda real: lambda file: real(_Uncut(file))),
        "files",
    ),
    Mutant(
        "file is written from where its writer thinks it is",
        "a writer appends what it still has, whatever the file's last line is by now",
        swapped(export, "last_line", lambda real: lambda file: export.NOTHING),
        "files",
    ),
    Mutant(
        "file keeps what Redis has lost",
        "a file's last line is taken for an entry of the log as it is",
        swapped(LogPart, "joins", lambda real: lambda self, line, secret: True),
        "files",
    ),
    Mutant(
        "file is left behind",
        "a session that comes to rest does not bring its file up to date",
        swapped(LateFiles, "owe", _at_rest_only_in_the_log),
        "files",
    ),
    Mutant(
        "full disk ends the runner",
        "what a file cannot take fails whoever holds its session",
        swapped(Copies, "export", _insistent),
        "outages",
    ),
    Mutant(
        "file is said to be there",
        "who asks for the file is not told that it could not be written",
        swapped(Copies, "export", _silent),
        "outages",
    ),
    Mutant(
        "archive is not waited for",
        "a claim whose log cannot be read yet fails",
        swapped(Runner, "_load", _impatient),
        "outages",
    ),
)
