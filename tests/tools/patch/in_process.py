"""Plans carried out in the test's own process, by what the supervisor's fork runs."""

from __future__ import annotations

import marshal

from orchestrator.tools.apply_patch import PatchRecord, applied, apply_job, tidy_job
from orchestrator.tools.patch import writer
from orchestrator.tools.patch.plan import PatchPlan, WritableRoots


def apply_plan(plan: PatchPlan, roots: WritableRoots | None) -> str:
    """Writes all files of the plan; answers the text for the model.

    Job and outcome go as they go to a supervisor and back.
    """
    job = marshal.loads(marshal.dumps(apply_job(plan, roots)))
    return applied(plan, marshal.loads(marshal.dumps(writer.carry_out(job))))


def remove_leftovers(record: PatchRecord) -> int:
    """Removes what a killed writer of the plan left; how many files that were."""
    job = tidy_job(record)
    return int(writer.carry_out(job)[1]) if job else 0
