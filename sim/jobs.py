"""The rules of a pool's jobs, as Redis, the askers and the workers' benches tell of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.broker.job_queue import KEPT_MS, LEASE_MS, Ends
from orchestrator.runtime.worker import TRUST_S
from sim.commits import reply_fields
from sim.ledger import Ledger, Run
from sim.observer import Observer

SCRIPTS = frozenset(("offer_job", "take_job", "keep_job", "answer_job", "settle_job"))
LATE_S = 1.2
"""The time that a slow supervisor takes to kill, and by which clocks differ meanwhile."""


@dataclass(slots=True)
class Known:
    """A job: what became of it, and when."""

    since_s: float
    until_ms: float = 0.0
    """Until when it may be taken, by Redis's clock."""
    worker: str = ""
    heard_s: float = 0.0
    heard_ms: float = 0.0
    """When its worker was heard from last: simulated, and by Redis's clock."""
    result: bytes | None = None
    answered_ms: float = 0.0
    over_s: float | None = None
    """When its asker gave it up, or was told that the worker was lost."""
    runs: int = 0


class Jobs:
    """All jobs of a simulation."""

    def __init__(self, watch: Observer, ledger: Ledger) -> None:
        self._watch = watch
        self._ledger = ledger
        self._known: dict[str, Known] = {}

    def wrote(self, name: str, args: Sequence[Any], reply: Sequence[Any]) -> None:
        """A script of jobs took effect."""
        job, words = str(args[3]).rpartition(":job:")[2], args[3 + int(args[2]) :]
        code, known = reply[0], self._known.setdefault(job, Known(self._watch.now_s))
        if self._went_back(known):
            return
        match name:
            case "offer_job" if code == b"OK" and not known.until_ms:
                known.until_ms = self._now_ms + int(words[2])
            case "take_job" if code == b"OK":
                self._taken(job, known, str(words[1]))
            case "keep_job" if code == b"OK":
                self._is_wanted(job, known, str(words[0]), "kept")
                self._heard(known)
            case "answer_job" if code == b"OK":
                self._is_wanted(job, known, str(words[0]), "answered")
                self._answered(job, known, words[1])
            case "settle_job":
                self._looked_at(job, known, reply, str(words[1]))

    @property
    def _now_ms(self) -> float:
        return self._watch.redis_s * 1000

    def _went_back(self, known: Known) -> bool:
        """Whether Redis may have forgotten something of the job."""
        return self._watch.went_back_s >= known.since_s

    def _heard(self, known: Known) -> None:
        known.heard_s, known.heard_ms = self._watch.now_s, self._now_ms

    def _taken(self, job: str, known: Known, worker: str) -> None:
        self._is_wanted(job, known, known.worker or worker, "taken")
        if known.worker not in ("", worker):
            self._watch.broken("jobs", f"{job} was given to {known.worker}, and to {worker}")
        if not known.worker:
            self._heard(known)
        known.worker = worker

    def _is_wanted(self, job: str, known: Known, worker: str, what: str) -> None:
        if known.over_s is not None:
            ago_s = self._watch.now_s - known.over_s
            self._watch.broken("jobs", f"{job} was {what}, and had been over for {ago_s:.3f} s")
        if known.worker and known.worker != worker:
            self._watch.broken("jobs", f"{job} is {known.worker}'s, and was {what} by {worker}")

    def _answered(self, job: str, known: Known, result: bytes) -> None:
        if known.result is not None and known.result != result:
            self._watch.broken("jobs", f"{job} was answered twice: {known.result!r}, {result!r}")
        known.result, known.answered_ms = result, self._now_ms

    def _looked_at(self, job: str, known: Known, reply: Sequence[Any], ends: str) -> None:
        code = reply[0]
        if code == b"GONE" and known.over_s is None and self._is_kept(known):
            self._watch.broken("jobs_kept", f"{job} is nowhere, and nobody gave it up")
        if code == b"DONE" and (came := reply_fields("settle_job", reply)["result"]) != known.result:
            self._watch.broken("jobs", f"{job} was answered with {known.result!r}, and {came!r} came")
        if code == b"LOST" and known.over_s is None:
            self._lost(job, known)
        if known.over_s is None and _is_over(code, ends):
            if known.worker:
                self._watch.reach.saw("jobs")
            known.over_s = self._watch.now_s

    def _is_kept(self, known: Known) -> bool:
        if not known.until_ms:
            return False
        if known.result is not None:
            return self._now_ms < known.answered_ms + KEPT_MS
        if known.worker:
            return self._now_ms < known.heard_ms + KEPT_MS
        return self._now_ms < known.until_ms

    def _lost(self, job: str, known: Known) -> None:
        if self._now_ms < known.heard_ms + LEASE_MS:
            self._watch.broken("jobs_kept", f"{job} is lost, and its worker was heard from")
        running = [run for run in self._running(job) if self._ledger.kept(run)]
        # A clock that is set makes the lease shorter than the trust.
        if running and self._watch.now_s - known.heard_s > TRUST_S + LATE_S:
            self._watch.broken("jobs_end", f"{job} is lost, and runs at {running[0].machine}")

    def _running(self, job: str) -> list[Run]:
        return [run for run in self._ledger.by_call["", job] if run.state == "running"]

    # ── at its worker, and at its asker ───────────────────────────────────────────────────────

    def begins(self, job: str) -> None:
        """A bench begins what a job asks for."""
        known = self._known[job]
        known.runs += 1
        if known.runs > 1 and not self._went_back(known):
            self._watch.broken("jobs", f"{job} was begun {known.runs} times")

    def ended(self, run: Run) -> None:
        """Called when a bench's command has ended, before that is answered."""
        known = self._known[run.call_id]
        if known.over_s is None or self._went_back(known) or not self._ledger.kept(run):
            return
        self._watch.reach.saw("jobs_end")
        if (late_s := self._watch.now_s - known.over_s) > TRUST_S + LATE_S:
            self._watch.broken("jobs_end", f"{run.call_id} ran for {late_s:.1f} s behind its end")

    def heard(self, job: str, output: str) -> None:
        """An asker has the output of its job."""
        self._watch.reach.saw("jobs_kept")
        outputs = [run.output for run in self._ledger.by_call["", job]]
        if output not in outputs:
            self._watch.broken("jobs", f"{job} gave {outputs}, and its asker heard {output!r}")

    def left(self) -> list[str]:
        """Jobs that run."""
        return [f"job {run.call_id} runs" for run in self._ledger.running() if not run.session]


def _is_over(code: bytes, ends: str) -> bool:
    """Whether a look ended its job, or found that it had ended."""
    if code in (b"QUEUED", b"GONE"):
        return ends in (Ends.WAITING, Ends.ANY)
    return code == b"LOST" or (code == b"TAKEN" and ends == Ends.ANY)
