"""The `apply_patch` tool: checked when it is the call's turn, written exactly as it was checked.

What was approved is what is applied: before a patch is written it is planned again, and
if a file has changed since, its record differs and nothing is written.

The worker reads; what writes is a process of its supervisor. A worker can be stopped between
any two renames for longer than its lease, and would finish the patch beside the next
holder; the supervisor's clock goes on, and ends the writer with the right to write.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import orjson

from orchestrator.core.calls import ApplyPatch, Call, PatchWork
from orchestrator.core.commands import Assessment, CallFinished, Immediate
from orchestrator.core.frozen import record
from orchestrator.core.modes import plans
from orchestrator.core.record_json import whole
from orchestrator.core.state import State, Task
from orchestrator.folders.linediff import unified_diff
from orchestrator.folders.names import quoted
from orchestrator.protocol.events import PatchApplyEnd, TurnDiff
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.scalars import StoredText
from orchestrator.protocol.wire import JsonObject, JsonValue
from orchestrator.sandbox.policy_paths import Confinement
from orchestrator.tools.arguments import Arguments, parsed
from orchestrator.tools.exec.command import Written
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorLost
from orchestrator.tools.patch.grammar import PatchSyntaxError, parse_patch
from orchestrator.tools.patch.plan import (
    INLINE_BYTES,
    MOST_LINES,
    DiskFiles,
    FileImage,
    FileReader,
    PatchCheckError,
    PatchPlan,
    PlacedFiles,
    PlannedFile,
    WritableRoots,
    cut,
    display_root,
    outside,
    plan_patch,
    refusal_text,
    shown,
    weight,
)
from orchestrator.tools.patch.writer import PREFIX
from orchestrator.tools.tool import Judgement, Tool, function, string, task_of, unsupported
from orchestrator.tools.tool_context import CallSite, ToolConfig, confinement_of, place_of, roots_of

if TYPE_CHECKING:
    from orchestrator.tools.patch.writer import File, Job, Outcome

NOT_IN_PLAN_MODE = "apply_patch is not allowed in Plan mode"
CHANGED_SINCE = "files changed since the patch was checked; read them again and send a new patch"
WHOLE = ""
"""The place, among baselines, of a text that holds them all."""
MOST_STORED = 16 << 20
"""Characters of such a text, all of them ASCII; a quarter of what one stored text may have."""
WRITE_GRACE_S = 2.0
"""Grace for a cancelled patch: writing takes milliseconds, and half a patch is worse than a whole one."""


APPLY_PATCH = function(
    "apply_patch",
    "Edits files. The input is one patch:\n"
    "*** Begin Patch\n"
    "*** Add File: <path>            every following line begins with +\n"
    "*** Delete File: <path>\n"
    "*** Update File: <path>         optionally followed by *** Move to: <path>\n"
    "@@ <a line above the change>    then lines beginning with a space (kept), - (removed) or + (added)\n"
    "*** End Patch\n"
    "Keep about three lines around each change. Paths are relative. Either every hunk is applied or none.",
    {"input": string("The whole patch.")},
    ["input"],
)
GRAMMAR: Final = r"""start: "*** Begin Patch" LF hunk+ "*** End Patch" LF?
hunk: add | delete | update
add: "*** Add File: " NAME LF ("+" TEXT? LF)+
delete: "*** Delete File: " NAME LF
update: "*** Update File: " NAME LF move? change*
move: "*** Move to: " NAME LF
change: heading* line+ end?
heading: "@@" (" " TEXT)? LF
line: ("+" | "-" | " ") TEXT? LF
end: "*** End of File" LF
NAME: /[^\r\n]+/
TEXT: /[^\r\n]+/
%import common.LF
"""
FREEFORM_PATCH: Final[JsonObject] = {
    "type": "custom",
    "name": "apply_patch",
    "description": APPLY_PATCH["description"],
    "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR},
}
"""The same tool as one of free text, which the provider holds to the grammar of a patch."""


class PatchArguments(Arguments):
    input: str


@record
class PatchRequest:
    """A patch as the model asked for it; `workdir` is relative to the session's folder."""

    patch: str
    workdir: str | None = None


class ApplyPatchTool(Tool):
    """The tool of patches."""

    names = ("apply_patch",)

    def __init__(self, config: ToolConfig, supervisor: Supervisor) -> None:
        self._config = config
        self._supervisor = supervisor

    def offered(self, state: State) -> JsonObject | None:
        if not state.facts.apply_patch or (state.task is not None and plans(state.task.settings)):
            return None
        return FREEFORM_PATCH if state.facts.patch_freeform else APPLY_PATCH

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        item = call.item
        if not site.state.facts.apply_patch:
            return unsupported(call)
        if item["type"] == "custom_tool_call":
            patch = str(item["input"])
        else:
            patch = parsed(PatchArguments, item["arguments"]).input
        return await self.assess_request(PatchRequest(patch), site)

    async def assess_request(self, request: PatchRequest, site: CallSite) -> Assessment:
        """The assessment of a patch, in whatever form the model has given it."""
        task = task_of(site.state)
        if task.kind == "plan" or plans(task.settings):
            return Immediate(NOT_IN_PLAN_MODE)
        return await asyncio.to_thread(_assessed, request, site.state, self._config)

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        if not isinstance(call.work, PatchWork):
            return await super().run(call, site)
        return await _run(call, call.work, site, self._config, self._supervisor)

    async def judge(self, call: Call, claim: str) -> Judgement:
        """Judges by the files whether a patch was applied; removes its temporary files."""
        if not isinstance(call.work, PatchWork):
            return "in_doubt"
        verdict = await asyncio.to_thread(judge, _recorded(call.work), DiskFiles())
        await _tidy(call.work, claim, self._supervisor)
        return verdict


def _assessed(request: PatchRequest, state: State, config: ToolConfig) -> ApplyPatch | Immediate:
    """The patch checked against the files as they are; a failed check names file and hunk to the model."""
    task = task_of(state)
    cwd = Path(task.settings.cwd, request.workdir or ".")
    try:
        confinement = confinement_of(state, config, sandboxed=True)
        files = _files(state, confinement)
        plan = _in_its_folder(plan_patch(parse_patch(request.patch), cwd, files), state)
        refused = _led_to(plan, outside(plan, roots_of(confinement)), state)
    except (PatchSyntaxError, PatchCheckError) as error:
        return Immediate(refusal_text(error))
    except OSError as error:
        return Immediate(f"apply_patch verification failed: {error}")
    record = record_of(plan)
    changes, left_out = shown(plan.changes)
    return ApplyPatch(
        patch=request.patch,
        cwd=str(cwd),
        changes=changes,
        summary=plan.summary,
        record=_as_recorded(record),
        outside=refused,
        baselines=_baseline_changes(task, plan),
        left_out=left_out,
        token=record.token if left_out else "",
    )


def _led_to(plan: PatchPlan, refused: Sequence[Path], state: State) -> tuple[str, ...]:
    """Where the paths lead, for people who decide on them: a link's name says nothing of it."""
    place, named = place_of(state.facts), frozenset(refused)
    real = (file.target for file in plan.files if file.path in named)
    return tuple(str(path if place is None else place.for_commands(path)) for path in real)


def _files(state: State, confinement: Confinement) -> FileReader:
    """The files as the session may see them, also where a person lets a patch leave the sandbox."""
    place, hidden = place_of(state.facts), confinement.hidden
    return DiskFiles(hidden) if place is None else PlacedFiles(place, hidden)


def _in_its_folder(plan: PatchPlan, state: State) -> PatchPlan:
    """The plan; raises `PatchCheckError` if it leads out of a portable folder: no snapshot has such files."""
    place = place_of(state.facts)
    out = [str(file.path) for file in plan.files if place is not None and not place.holds(file.target)]
    if place is not None and out:
        raise PatchCheckError(
            f"Nothing was written: {out[0]} is outside of {place.seen}; files elsewhere are not recorded, "
            "and lost when the session goes on on another machine"
        )
    return plan


def _as_recorded(record: PatchRecord) -> list[list[str | None]] | str:
    """The record's rows; of very many files as a text, which is stored beside the call's entry."""
    # The standard encoder: a path may be no Unicode.
    text = json.dumps(record.to_json())
    return text if len(text) > INLINE_BYTES else record.to_json()


def _baseline_changes(task: Task, plan: PatchPlan) -> JsonObject:
    """How the task's baselines change once the plan is applied.

    Of very many files they are one text, under no path; and none at all if even that is more than can be
    stored, so that the task's diff begins anew.
    """
    before = task.baselines
    after = {path: asdict(baseline) for path, baseline in with_plan(_baselines(before), plan).items()}
    if WHOLE in before or weight(after) > INLINE_BYTES:
        text = json.dumps(after)
        return {"set": {WHOLE: text} if len(text) <= MOST_STORED else {}, "drop": list(before)}
    return {
        "set": {path: data for path, data in after.items() if before.get(path) != data},
        "drop": [path for path in before if path not in after],
    }


def _baselines(data: Mapping[str, JsonValue]) -> dict[str, Baseline]:
    whole = json.loads(data[WHOLE]) if WHOLE in data else data
    return {path: Baseline(**fields) for path, fields in whole.items()}


async def _run(
    call: Call, work: PatchWork, site: CallSite, config: ToolConfig, supervisor: Supervisor
) -> CallFinished:
    """Writes the patch, all of it or nothing; a cancelled patch gets `WRITE_GRACE_S` to finish."""
    try:
        plan, job, files = await asyncio.to_thread(_planned, work, site.state, config)
        written = await _write(work, job, site.claim, supervisor)
        return await asyncio.to_thread(_told, call, work, site.state, plan, written, files)
    except (PatchSyntaxError, PatchCheckError, PatchApplyError) as error:
        return _failed(call, error.message)
    except SupervisorLost as error:
        return _failed(call, f"nothing was written: {error}")
    except OSError as error:
        return _failed(call, str(error))


def _planned(work: PatchWork, state: State, config: ToolConfig) -> tuple[PatchPlan, Job, FileReader]:
    confinement = confinement_of(state, config, sandboxed=True)
    roots = roots_of(confinement) if work.sandboxed else None
    files = _files(state, confinement)
    plan = plan_patch(parse_patch(whole(work.patch)), Path(whole(work.cwd)), files)
    if record_of(plan) != _recorded(work):
        raise PatchApplyError(CHANGED_SINCE)
    return plan, apply_job(plan, roots), files


def _recorded(work: PatchWork) -> PatchRecord:
    return PatchRecord.from_json(whole(work.record) if isinstance(work.record, StoredText) else work.record)


async def _write(work: PatchWork, job: Job, claim: str, supervisor: Supervisor) -> Written:
    """Has the job carried out, and what a killed writer left removed, as long as that is permitted."""
    writing = asyncio.ensure_future(supervisor.write(claim, job))
    try:
        written = await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait({writing}, timeout=WRITE_GRACE_S)
        killed = writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        if killed:
            await _tidy(work, claim, supervisor)
        raise
    if written.begun and written.outcome is None:
        await _tidy(work, claim, supervisor)
    return written


async def _tidy(work: PatchWork, claim: str, supervisor: Supervisor) -> None:
    if job := await asyncio.to_thread(tidy_job, _recorded(work)):
        # Without a supervisor or the right to write, it is left to the next holder.
        with suppress(SupervisorLost, OSError):
            await supervisor.write(claim, job)


def _told(
    call: Call, work: PatchWork, state: State, plan: PatchPlan, written: Written, files: FileReader
) -> CallFinished:
    """The result of the writing; if the writer left no outcome, the files decide."""
    if written.outcome is not None:
        summary = applied(plan, written.outcome)
    elif (verdict := judge(record_of(plan), DiskFiles()) if written.begun else "none") == "all":
        summary = plan.summary
    else:
        raise PatchApplyError(_unfinished(verdict, written.why))
    end = PatchApplyEnd(call_id=CallId(call.call_id), stdout=summary, stderr="", success=True)
    diff = TurnDiff(unified_diff=_turn_diff(work, state, files))
    return CallFinished(call.call_id, _output(summary, 0), (end, diff), applied=True)


def _unfinished(verdict: PatchVerdict, why: str) -> str:
    if verdict == "none":
        return f"nothing was written: {why}"
    return f"the patch is written in part: {why}; read its files before you go on"


def _turn_diff(work: PatchWork, state: State, files: FileReader) -> str:
    task, place = task_of(state), place_of(state.facts)
    changed = work.baselines
    kept = {path: data for path, data in task.baselines.items() if path not in changed["drop"]}
    root, named = (
        (display_root(Path(task.settings.cwd)), Path) if place is None else (place.here, place.for_commands)
    )
    return cut(turn_diff(_baselines({**kept, **changed["set"]}), root, files, named))


def _failed(call: Call, message: str) -> CallFinished:
    end = PatchApplyEnd(call_id=CallId(call.call_id), stdout="", stderr=message, success=False)
    return CallFinished(call.call_id, _output(message, 1), (end,))


def _output(text: str, exit_code: int) -> str:
    metadata = {"exit_code": exit_code, "duration_seconds": 0.0}
    return orjson.dumps({"output": text, "metadata": metadata}).decode()


# ── apply ─────────────────────────────────────────────────────────────────────────────────────────
# A plan on its way to the disk and back: the job for who writes it, and what came of it.
#
# Nothing is written here. `writing` does what a job says, in a process that dies with the right to write:
# see `apply_patch`. It must not know who permitted the patch.


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


# ── record ────────────────────────────────────────────────────────────────────────────────────────
# The patch record: it lets a takeover find out whether a patch was applied.
#
# A worker that dies while it applies a patch leaves files behind and no event. The record of the plan,
# stored before the first write, holds a hash of each file before and after; the files themselves then
# show that none of it was applied, or all, or neither.
#
# This module must not know how files are written; `apply` names its temporary files by the record's
# token, so that a takeover can remove what the dead worker left.


PatchVerdict: TypeAlias = Literal["none", "all", "in_doubt"]


@record
class FileHashes:
    """SHA-256 of one file before and after; None where it is absent."""

    path: str
    before: str | None
    after: str | None


@record
class PatchRecord:
    """The hashes of every file of one plan, in the plan's order."""

    files: tuple[FileHashes, ...]

    @property
    def token(self) -> str:
        """A short name of this plan, the same in every process that reads the record."""
        text = "\0".join(f"{file.path}\0{file.before}\0{file.after}" for file in self.files)
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def to_json(self) -> list[list[str | None]]:
        """Plain lists `[path, before, after]`."""
        return [[file.path, file.before, file.after] for file in self.files]

    @classmethod
    def from_json(cls, value: Sequence[Sequence[str | None]] | str) -> PatchRecord:
        """The inverse of `to_json`, or of its text; raises ValueError for anything else."""
        files = []
        for path, before, after in json.loads(value) if isinstance(value, str) else value:
            if path is None:
                raise ValueError("a patch record names a file without a path")
            files.append(FileHashes(path, before, after))
        return cls(tuple(files))


def record_of(plan: PatchPlan) -> PatchRecord:
    """The record to be stored before `apply_plan` is called."""
    return PatchRecord(
        tuple(
            FileHashes(
                str(file.target),
                image_hash(file.before),
                None if file.after is None else content_hash(file.after),
            )
            for file in plan.files
        )
    )


def judge(record: PatchRecord, files: FileReader) -> PatchVerdict:
    """Whether the files are as before the patch, as after it, or neither.

    A patch that changes nothing counts as applied: there is nothing to repeat.
    """
    now = _hashes_now(record, files)
    if all(now[file.path] == (file.after,) for file in record.files):
        return "all"
    if all(now[file.path] == (file.before,) for file in record.files):
        return "none"
    return "in_doubt"


def content_hash(content: bytes) -> str:
    """SHA-256 of a regular file's content."""
    return hashlib.sha256(content).hexdigest()


def image_hash(image: FileImage | None) -> str | None:
    """The hash of a file or symlink; a symlink never equals a file that holds its target's name."""
    if image is None:
        return None
    digest = content_hash(image.content)
    return f"link:{digest}" if stat.S_ISLNK(image.mode) else digest


def _hashes_now(record: PatchRecord, files: FileReader) -> Mapping[str, tuple[str | None, ...]]:
    """A hash per path; an empty tuple for what is neither a file nor absent, which equals nothing."""
    found: dict[str, tuple[str | None, ...]] = {}
    for file in record.files:
        try:
            found[file.path] = (image_hash(files.read(Path(file.path))),)
        except OSError:
            found[file.path] = ()
    return found


# ── turn diff ─────────────────────────────────────────────────────────────────────────────────────
# The accumulated diff of a task: every file that its patches touched, then and now.
#
# A baseline is what a file was when the task first touched it; baselines live in the session's state, so
# a takeover continues the same diff. Whatever changed the file since (a patch, a command, a person) shows
# up, because "now" is read from the disk.
#
# The form is git's with full blob ids; a file that was moved is shown as one diff from its old name to
# its new one.
#
# It must not write, and must not know how a patch is applied.


_ABSENT_ID = "0" * 40


@record
class Baseline:
    """A file when the task first touched it; fields are plain JSON values.

    `origin` is its path then. `mode` is git's ("100644"); mode and content are None for a
    file that was absent. `encoding` tells how `content` holds the bytes.
    """

    origin: str
    mode: str | None = None
    content: str | None = None
    encoding: Literal["utf-8", "base64"] = "utf-8"

    @classmethod
    def of(cls, origin: Path, image: FileImage | None) -> Baseline:
        if image is None:
            return cls(str(origin))
        try:
            return cls(str(origin), image.git_mode, image.content.decode("utf-8"))
        except UnicodeDecodeError:
            content = base64.b64encode(image.content).decode("ascii")
            return cls(str(origin), image.git_mode, content, "base64")

    def content_bytes(self) -> bytes | None:
        if self.content is None:
            return None
        if self.encoding == "base64":
            return base64.b64decode(self.content)
        return self.content.encode("utf-8")


def with_plan(baselines: Mapping[str, Baseline], plan: PatchPlan) -> dict[str, Baseline]:
    """The baselines after a plan was applied, by the path where each file is now."""
    result = dict(baselines)
    by_path = {file.path: file for file in plan.files}
    # Who is looked for among thousands of baselines is mostly not there: only moves take one away.
    away = {baseline.origin for path, baseline in result.items() if baseline.origin != path}
    for file in plan.files:
        if file.moved_from is None:
            dest = by_path.get(file.move_to) if file.move_to else None
            _remember(result, file, dest, away)
    return result


def _remember(
    result: dict[str, Baseline], file: PlannedFile, dest: PlannedFile | None, away: set[str]
) -> None:
    path = str(file.target)
    if path not in result:
        back = _given_back(result, path) if path in away else None
        result[path] = back or Baseline.of(file.target, file.before)
    if dest is not None and _follow(result, path, dest):
        return
    if file.after is None and result[path].origin != path:
        # A file that was moved and is gone now is a deletion where it was at first.
        _send_home(result, result.pop(path))


def _send_home(result: dict[str, Baseline], baseline: Baseline) -> None:
    """Puts a baseline back to its origin; one that a move had put there goes home in turn."""
    if baseline.content is None:
        # Made and gone again: nothing to tell, and no reason to part another file from its move.
        result.setdefault(baseline.origin, baseline)
        return
    displaced = result.get(baseline.origin)
    result[baseline.origin] = baseline
    if displaced is not None and displaced.origin != baseline.origin:
        _send_home(result, displaced)


def _given_back(result: dict[str, Baseline], path: str) -> Baseline | None:
    """The baseline that a move took away from `path`, where there is a file again.

    What the move led to counts as a new file from then on, as in git.
    """
    for other, baseline in result.items():
        if baseline.origin == path:
            result[other] = Baseline(other)
            return baseline
    return None


def _follow(result: dict[str, Baseline], path: str, dest: PlannedFile) -> bool:
    """Takes the baseline of `path` along to where its file was moved; false if it stays behind."""
    end = str(dest.target)
    if dest.before is None and end not in result:
        result[end] = result.pop(path)
        return True
    # The move's end was a file of its own: two stories, not one.
    result.setdefault(end, Baseline.of(dest.target, dest.before))
    return False


def turn_diff(
    baselines: Mapping[str, Baseline],
    root: Path,
    files: FileReader,
    named: Callable[[Path], Path] = Path,
) -> str:
    """Diffs of all files that differ from their baselines, sorted by path; "" if none does.

    Paths under `root` are shown relative to it, others whole, as they are `named` to people.
    """
    base = files.resolve(root)

    def name_of(path: str) -> str:
        file = Path(path)
        return str(file.relative_to(base) if file.is_relative_to(base) else named(file))

    shown = sorted((name_of(path), path) for path in baselines)
    return "".join(
        text
        for name, path in shown
        for text in _file_diff(
            baselines[path], name_of(baselines[path].origin), name, _read(files, Path(path))
        )
    )


def _read(files: FileReader, path: Path) -> FileImage | None:
    try:
        return files.read(path)
    except OSError:
        # A folder or a device stands there now: for the diff the file is gone.
        return None


def _file_diff(baseline: Baseline, old_name: str, name: str, now: FileImage | None) -> Iterator[str]:
    before, after = baseline.content_bytes(), now.content if now else None
    mode = now.git_mode if now else None
    if (before, baseline.mode) == (after, mode) and (old_name == name or before is None):
        return
    # A folder may have a line break in its name, and lines of a diff are read as what was done.
    yield f"diff --git {_side('a/', old_name)} {_side('b/', name)}\n"
    yield from _mode_lines(baseline.mode, mode)
    if before == after:
        if old_name != name:
            yield f"similarity index 100%\nrename from {_side('', old_name)}\nrename to {_side('', name)}\n"
        return
    yield f"index {_blob_id(before)}..{_blob_id(after)}\n"
    old_header = "/dev/null" if before is None else _side("a/", old_name)
    new_header = "/dev/null" if after is None else _side("b/", name)
    yield from _body(before or b"", after or b"", f"--- {old_header}\n+++ {new_header}\n")


def _side(side: str, name: str) -> str:
    return quoted(os.fsencode(f"{side}{name}"))


def _mode_lines(before: str | None, after: str | None) -> Iterator[str]:
    if before is None:
        yield f"new file mode {after}\n"
    elif after is None:
        yield f"deleted file mode {before}\n"
    elif before != after:
        yield f"old mode {before}\nnew mode {after}\n"


def _body(before: bytes, after: bytes, headers: str) -> Iterator[str]:
    old, new = _text(before), _text(after)
    if old is None or new is None:
        yield f"{headers}Binary files differ\n"
    elif diff := unified_diff(old, new):
        yield headers + diff


def _text(content: bytes) -> str | None:
    # A command may have made millions of lines of a file since a patch changed it.
    if b"\0" in content or content.count(b"\n") > MOST_LINES:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _blob_id(content: bytes | None) -> str:
    if content is None:
        return _ABSENT_ID
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
