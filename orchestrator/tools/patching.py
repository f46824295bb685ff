"""The `apply_patch` tool: checked when it is the call's turn, written exactly as it was checked.

What was approved is what is applied: before a patch is written it is planned again, and
if a file has changed since, its record differs and nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from orchestrator.core.commands import ApplyPatch, CallFinished, Immediate
from orchestrator.core.state import Call, State, Task
from orchestrator.tools.confinement import writable_roots
from orchestrator.tools.patch.apply import PatchApplyError, apply_plan, remove_leftovers
from orchestrator.tools.patch.files import DiskFiles, display_root
from orchestrator.tools.patch.grammar import PatchSyntaxError, parse_patch
from orchestrator.tools.patch.plan import PatchCheckError, PatchPlan, plan_patch, refusal_text
from orchestrator.tools.patch.record import PatchRecord, judge, record_of
from orchestrator.tools.patch.turn_diff import Baseline, turn_diff, with_plan
from orchestrator.tools.patch.writable import outside

if TYPE_CHECKING:
    from orchestrator.tools.toolbox import ToolConfig

CHANGED_SINCE = "files changed since the patch was checked; read them again and send a new patch"
LATE = "nothing was written: the worker no longer had the right to work on the session"


@dataclass(frozen=True, slots=True)
class PatchRequest:
    """A patch as the model asked for it; `workdir` is relative to the session's folder."""

    patch: str
    workdir: str | None = None


def assess_patch(request: PatchRequest, state: State, config: ToolConfig) -> ApplyPatch | Immediate:
    """The patch checked against the files as they are; a failed check names file and hunk to the model."""
    task = _task(state)
    cwd = Path(task.settings.cwd, request.workdir or ".")
    try:
        plan = plan_patch(parse_patch(request.patch), cwd, DiskFiles())
        refused = outside(plan, writable_roots(state, config))
    except (PatchSyntaxError, PatchCheckError) as error:
        return Immediate(refusal_text(error))
    except OSError as error:
        return Immediate(f"apply_patch verification failed: {error}")
    return ApplyPatch(
        patch=request.patch,
        cwd=str(cwd),
        changes=plan.changes,
        summary=plan.summary,
        record=record_of(plan).to_json(),
        outside=tuple(map(str, refused)),
        baselines=_baseline_changes(task, plan),
    )


def _baseline_changes(task: Task, plan: PatchPlan) -> dict[str, Any]:
    """How the task's baselines change once the plan is applied."""
    before = task.baselines
    after = {path: asdict(baseline) for path, baseline in with_plan(_baselines(before), plan).items()}
    return {
        "set": {path: data for path, data in after.items() if before.get(path) != data},
        "drop": [path for path in before if path not in after],
    }


def _baselines(data: Mapping[str, Any]) -> dict[str, Baseline]:
    return {path: Baseline(**fields) for path, fields in data.items()}


def run_patch(call: Call, state: State, config: ToolConfig) -> CallFinished:
    """Writes the patch, all of it or nothing."""
    spec = call.spec
    roots = writable_roots(state, config) if spec["sandboxed"] else None
    try:
        plan = plan_patch(parse_patch(spec["patch"]), Path(spec["cwd"]), DiskFiles())
        if record_of(plan).to_json() != spec["record"]:
            raise PatchApplyError(CHANGED_SINCE)
        applied = apply_plan(plan, roots)
    except (PatchSyntaxError, PatchCheckError, PatchApplyError) as error:
        return _failed(call, error.message)
    except OSError as error:
        return _failed(call, str(error))
    end = _end(call, stdout=applied.summary, stderr="", success=True)
    diff = {"type": "turn_diff", "unified_diff": _turn_diff(call, _task(state))}
    return CallFinished(call.call_id, _output(applied.summary, 0), (end, diff), applied=True)


def late_patch(call: Call) -> CallFinished:
    """What is told of a patch whose worker came to it behind the end of its right to write."""
    return _failed(call, LATE)


def _turn_diff(call: Call, task: Task) -> str:
    changed = call.spec["baselines"]
    kept = {path: data for path, data in task.baselines.items() if path not in changed["drop"]}
    root = display_root(Path(task.settings.cwd))
    return turn_diff(_baselines({**kept, **changed["set"]}), root, DiskFiles())


def _failed(call: Call, message: str) -> CallFinished:
    end = _end(call, stdout="", stderr=message, success=False)
    return CallFinished(call.call_id, _output(message, 1), (end,))


def _end(call: Call, **fields: Any) -> dict[str, Any]:
    return {"type": "patch_apply_end", "call_id": call.call_id, **fields}


def _output(text: str, exit_code: int) -> str:
    metadata = {"exit_code": exit_code, "duration_seconds": 0.0}
    return orjson.dumps({"output": text, "metadata": metadata}).decode()


def judge_patch_call(call: Call) -> str:
    """What the files say of a patch whose worker was lost; a trace of its temporary files is removed."""
    record = PatchRecord.from_json(call.spec["record"])
    verdict = judge(record, DiskFiles())
    remove_leftovers(record)
    return verdict


def _task(state: State) -> Task:
    assert state.task is not None
    return state.task
