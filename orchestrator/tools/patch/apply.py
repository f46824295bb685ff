"""A plan on its way to the disk and back: the job for who writes it, and what came of it.

Nothing is written here. `writing` does what a job says, in a process that dies with the
right to write: see `apply_patch`. It must not know who permitted the patch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.tools.patch.plan import PatchPlan, PlannedFile
from orchestrator.tools.patch.record import PatchRecord, record_of
from orchestrator.tools.patch.writable import WritableRoots, outside
from orchestrator.tools.patch.writer import PREFIX

if TYPE_CHECKING:
    from orchestrator.tools.patch.writer import File, Job, Outcome


class PatchApplyError(Exception):
    """The plan was not carried out.

    `changed` lists the paths that could not be put back: empty means that every file is as
    it was.
    """

    def __init__(self, message: str, changed: tuple[Path, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.changed = changed


def apply_job(plan: PatchPlan, roots: WritableRoots | None) -> Job:
    """The job that writes all files of the plan; its temporary files carry the record's token.

    `roots` is asked again here: None permits every path. Raises `PatchApplyError` for a
    plan that leads outside.
    """
    if refused := outside(plan, roots):
        names = ", ".join(str(path) for path in refused)
        raise PatchApplyError(f"Failed to write outside of the writable roots: {names}")
    return "apply", record_of(plan).token, tuple(_row(file) for file in plan.files)


def _row(file: PlannedFile) -> File:
    before = None if file.before is None else (file.before.content, file.before.mode)
    return os.fsencode(file.target), os.fsencode(file.path), before, file.after, file.mode


def applied(plan: PatchPlan, outcome: Outcome) -> str:
    """The text for the model once an `apply` job has written the plan; raises `PatchApplyError` if not."""
    match outcome:
        case ("failed", what, where, changed):
            paths = tuple(plan.files[index].path for index in changed)
            raise PatchApplyError(_failure(what, where, paths), paths)
        case _:
            return plan.summary


def _failure(what: str, where: bytes | None, changed: tuple[Path, ...]) -> str:
    at = f" ({os.fsdecode(where)})" if where else ""
    if not changed:
        return f"Failed to apply the patch: {what}{at}. Nothing was written."
    names = ", ".join(str(path) for path in changed)
    return f"Failed to apply the patch: {what}{at}. These files could not be put back: {names}"


def tidy_job(record: PatchRecord) -> Job | None:
    """The job that removes what a killed writer of this plan left; None if there is nothing.

    Never to be carried out while that plan may still be being applied.
    """
    prefix = f"{PREFIX}{record.token}-"
    folders = sorted({Path(file.path).parent for file in record.files})
    littered = tuple(os.fsencode(folder) for folder in folders if _holds(folder, prefix))
    return ("tidy", record.token, littered) if littered else None


def _holds(folder: Path, prefix: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(entry.name.startswith(prefix) for entry in entries)
    except OSError:
        return False
