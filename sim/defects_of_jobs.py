"""Defects of a pool's jobs: who may begin one, for how long it runs, and what is left of it."""

from __future__ import annotations

from orchestrator.runtime.worker import JobServer
from sim.mutant import Mutant, lua, text

DEFECTS = (
    Mutant(
        "late offers are begun",
        "an offer of a job that comes when its asker has given the job up is put into the queue",
        lua("settle_job", "state == 'taken' or not found.state", "state == 'taken'"),
        "jobs",
    ),
    Mutant(
        "jobs are taken twice",
        "a worker that has read of a waiting job is given it although another one was",
        lua("take_job", "found.state ~= 'queued'", "found.state ~= 'queued' and found.state ~= 'taken'"),
        "jobs",
    ),
    Mutant(
        "jobs outlive their askers",
        "a worker that hears that nobody wants its job goes on with it",
        text(JobServer, "_keep", "                return", "                pass"),
        "jobs",
    ),
)
