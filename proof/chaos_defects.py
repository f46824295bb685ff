"""Defects that a chaos run has to find: each changes one place of the product, in a copy of it.

They show under faults alone: a deployment that nothing happens to does its work with any of them.
`python -m proof.chaos --planted` runs seeds of each until a rule refuses one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("orchestrator", "workers", "proof", "bench")
PATIENCE_S = 1800.0
"""Of runs of one defect; the last one may end later."""
SECONDS = 100
"""Of faults, a run."""
_FOUND = re.compile(r"^(\w+): ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Defect:
    """A text of one file that stands there once, and what stands there instead."""

    name: str
    wrong: str
    servers: str
    path: str
    old: str
    new: str
    finds: tuple[str, ...]
    """Rules, one of which refuses a run with it."""
    odd: bool = False
    """Whether odd seeds alone can show it: a server that forgets, or `effects = "wait"`."""
    often: tuple[str, ...] = ()
    """Kinds of faults under which it shows, and which are rare: they come ten times as often."""

    def plant(self, root: Path) -> None:
        """Changes the file below `root`; raises ValueError if its text is not there, or not alone."""
        file = root / self.path
        text = file.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {text.count(self.old)} places of {self.path} have its text")
        file.write_text(text.replace(self.old, self.new), encoding="utf-8")

    def seeds(self) -> range:
        """Seeds in the order in which they are run."""
        return range(1, 1000, 2) if self.odd else range(1000)


DEFECTS = (
    Defect(
        "deadlines-of-claims-are-forgotten",
        "commands of a frozen worker live on behind its claim",
        "single",
        "orchestrator/tools/exec/supervisor_process.py",
        "for claim in [c for c, deadline in self._deadlines.items() if deadline <= now]:",
        "for claim in [c for c, deadline in self._deadlines.items() if deadline <= 0]:",
        ("none_beside", "killed_is_dead"),
    ),
    Defect(
        "resubmission-is-done-again",
        "a submission that is sent again, as nobody heard its answer, is done twice",
        "single",
        "orchestrator/broker/lua/submit.lua",
        "  if first then\n",
        "  if first and box.archived then\n",
        ("one_outcome", "live_as_replayed"),
    ),
    Defect(
        "session-that-is-given-back-is-not-due",
        "a worker that leaves gives a session back, and its unread submission wakes nobody",
        "single",
        "orchestrator/broker/lua/release.lua",
        "if not parks then make_due(session, pool, KEYS[2]) end",
        "if not parks and revoked then make_due(session, pool, KEYS[2]) end",
        ("one_outcome",),
    ),
    Defect(
        "commands-begin-unconfirmed",
        'under `effects = "wait"` a command begins before replicas have its begin',
        "sentinel",
        "orchestrator/wiring/worker_parts.py",
        "confirm_effects=_confirmation(settings, broker.claims),",
        "confirm_effects=None,",
        ("begun_once",),
        odd=True,
    ),
    Defect(
        "connection-stays-with-an-old-primary",
        "who has a connection to a primary that became a replica keeps it",
        "sentinel",
        "orchestrator/broker/sockets.py",
        "    return isinstance(error, foreign.ReadOnlyError) or bool(_DEMOTED.search(str(error)))",
        '    return isinstance(error, foreign.ReadOnlyError) and "is a replica" in str(error)',
        ("one_outcome", "at_rest", "leaves_in_time", "nobody_dies", "live_as_replayed", "asked_again"),
    ),
    Defect(
        "follower-is-not-told-that-redis-went-back",
        "a follower goes on at a number that another event has now",
        "single",
        "orchestrator/broker/follow.py",
        "    if not await _in_log(reader, session, at, head):\n",
        "    if at.seq > head.seq + 10_000:\n",
        ("live_as_replayed",),
        odd=True,
    ),
    Defect(
        "requests-are-not-put-to-who-comes-later",
        "a client that comes to another gateway is not asked what is open",
        "single",
        "orchestrator/gateways/app_server/door.py",
        "        for opened in found.live.projector.waiting if found is not None else ():\n",
        "        for opened in found.live.projector.waiting[1:] if found is not None else ():\n",
        ("asked_again",),
    ),
    Defect(
        "upkeep-ends-where-redis-is-full",
        "upkeep takes a server without memory for a reason to end",
        "single",
        "workers/upkeep.py",
        "if not isinstance(told, Unavailable | OutOfMemory | foreign.WatchError):",
        "if not isinstance(told, Unavailable):",
        ("nobody_dies",),
    ),
    Defect(
        "worker-ends-where-redis-is-full",
        "a worker whose heartbeat is refused for want of memory ends",
        "single",
        "orchestrator/runtime/worker.py",
        '            except BrokerError as error:\n                log.warning("no heartbeat: %s", error)\n',
        "            except BrokerError as error:\n"
        '                if type(error).__name__ == "OutOfMemory":\n'
        "                    raise\n"
        '                log.warning("no heartbeat: %s", error)\n',
        ("nobody_dies",),
    ),
    Defect(
        "renewal-that-failed-counts",
        "a worker that Redis does not answer trusts its claims all the same",
        "single",
        "orchestrator/runtime/renewal.py",
        "            answers = [error] * len(held)\n",
        "            answers = [error] * len(held)\n"
        "            for claim in claims:\n"
        "                self._sent_at[claim.claim_id] = sent_at\n"
        "                self._extend(claim.claim_id, sent_at + self._settings.trust_s)\n",
        ("none_beside", "begun_once"),
        often=("network away",),
    ),
    Defect(
        "claims-are-shorter-than-trust-in-them",
        "another worker may take a session while its holder still trusts its claim",
        "single",
        "orchestrator/broker/claims.py",
        "        lease_ms = int(self.config.lease_s * 1000)\n",
        "        lease_ms = int(self.config.lease_s * 250)\n",
        ("none_beside",),
    ),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What runs with a defect came to; `rules` is empty if none refused one."""

    defect: Defect
    rules: tuple[str, ...]
    seeds: int
    took_s: float

    @property
    def found(self) -> bool:
        """Whether one of its own rules refused a run: another one may have its own reasons."""
        return bool(set(self.rules) & set(self.defect.finds))


def hunted(defect: Defect) -> Outcome:
    """Runs seeds with it, one after the other, until a rule of its own refuses one or time is over."""
    began, tried, rules = time.monotonic(), 0, set[str]()
    with TemporaryDirectory(prefix="dendro-chaos-planted-") as name:
        root = Path(name)
        for part in PARTS:
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        defect.plant(root)
        for seed in defect.seeds():
            if time.monotonic() - began > PATIENCE_S:
                break
            tried += 1
            rules |= set(_refused(root, defect, seed))
            if rules & set(defect.finds):
                break
    return Outcome(defect, tuple(sorted(rules)), tried, time.monotonic() - began)


def _refused(root: Path, defect: Defect, seed: int) -> list[str]:
    words = ["--servers", defect.servers, *(("--often", *defect.often) if defect.often else ())]
    words += ["--seed", str(seed), "--runs", "1", "--seconds", str(SECONDS)]
    run = subprocess.run(
        [sys.executable, "-m", "proof.chaos", *words, "--kept", str(root / "kept")],
        env={**os.environ, "PYTHONPATH": str(root)},
        cwd=root,
        check=False,
        capture_output=True,
        text=True,
    )
    if run.returncode not in (0, 1) or "Traceback" in run.stderr:
        print(run.stderr[-4000:], file=sys.stderr, flush=True)
    found = _FOUND.findall(run.stderr) if run.returncode else []
    for line in run.stderr.splitlines():
        if line.partition(":")[0] in found:
            print(f"{defect.name}, seed {seed}: {line[:300]}", file=sys.stderr, flush=True)
    return found


def named(names: Sequence[str]) -> list[Defect]:
    """The defects of these names, or all; raises ValueError for a name that none has."""
    if unknown := set(names) - {defect.name for defect in DEFECTS}:
        raise ValueError(f"no such defect: {', '.join(sorted(unknown))}")
    return [defect for defect in DEFECTS if not names or defect.name in names]


def page(outcomes: Sequence[Outcome], under: str) -> str:
    """The page, as Markdown."""
    rows = [
        f"| {one.defect.wrong} | {one.defect.servers} | "
        f"{', '.join(one.rules) if one.found else '**not found**'} | {one.seeds} | {one.took_s / 60:.1f} |"
        for one in outcomes
    ]
    return "\n".join(
        (
            "# Defects that chaos finds",
            "",
            "`python -m proof.chaos --planted` writes this page. Each defect is in a copy of the product;",
            f"runs of {SECONDS} s of faults follow one another until one of its own rules refuses one.",
            "",
            under,
            "",
            "| what is wrong | servers | refused by | runs | minutes |",
            "|---|---|---|---:|---:|",
            *rows,
            "",
        )
    )
