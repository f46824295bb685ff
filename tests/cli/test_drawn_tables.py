"""Tables of `dendro stats` and `dendro workers`: each figure in its column, and names as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest

from orchestrator.broker.records import PoolQueue, Spend
from orchestrator.broker.worker_state import MachineFacts, Pace, WorkerState
from orchestrator.cli import stats, workers
from orchestrator.views.spend import GROUPS, SpendRow, SpendTable
from orchestrator.views.workers import FleetStats, PoolStats, SeenWorker

NAMES = ["default", "[gpu]", "a[/b]", "[bold red]x", "llama [/INST]", "host:\x1b[31m", "名前", "two\nlines"]
"""Names that sessions, models and pools may have: none of them is markup."""
SHOWN = {"host:\x1b[31m": "host:␛[31m", "two\nlines": "two␊lines"}
NOW = 1_800_000_000_000


def cells(text: str) -> list[list[str]]:
    """The cells of printed rows."""
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()]


# ── spend ─────────────────────────────────────────────────────────────────────────────────────────


def spent(*rows: tuple[Mapping[Any, str], Spend]) -> SpendTable:
    empty = dict.fromkeys(("day", "namespace", "model", "who"), "")
    made = [SpendRow(**{**empty, **names}, spend=spend) for names, spend in rows]
    return SpendTable("2026-11-01", "2026-11-30", made)


@pytest.mark.parametrize("by", GROUPS)
def test_each_group_of_what_was_spent_has_a_row_of_its_own_figures(
    by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [({by: name}, Spend(10**n + 1, 2_500 * n, n + 1)) for n, name in enumerate(NAMES)]
    stats._draw_spent(spent(*rows), [by])
    head, *drawn, total = cells(capsys.readouterr().out)
    assert head == [by, "cost", "tokens", "requests"]
    for n, (name, row) in enumerate(zip(NAMES, drawn, strict=True)):
        cost = [f"${n * 0.0025:,.4f}"] if n else []
        assert row == [SHOWN.get(name, name), *cost, f"{10**n + 1:,}", str(n + 1)]
    tokens = sum(spend.tokens for _, spend in rows)
    assert total == [f"2026-11-01 to 2026-11-30: $0.0700, {tokens:,} tokens, 36 requests"]


def test_groups_of_several_kinds_stand_in_their_columns_and_what_has_no_name_is_a_dash(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = {name: f"its {name}" for name in GROUPS}
    stats._draw_spent(spent((one, Spend(1, 0, 1)), ({}, Spend(0, 0, 0))), list(GROUPS))
    head, first, nobody, total = cells(capsys.readouterr().out)
    assert head[:4] == list(GROUPS)
    assert first == [*(f"its {name}" for name in GROUPS), "1", "1"]
    assert nobody == ["-"] * 4 + ["0", "0"]
    assert total == ["2026-11-01 to 2026-11-30: 1 tokens, 1 request"]
    stats._draw_spent(spent(), ["day"])
    assert capsys.readouterr().out == "Nothing was spent from 2026-11-01 to 2026-11-30.\n"


# ── pools ─────────────────────────────────────────────────────────────────────────────────────────


def pool(name: str, n: int = 0, **more: Any) -> PoolStats:
    own = PoolStats(
        name, PoolQueue(1_000 + n, 2_000 + n, 180_000), 3 + n, 4_000 + n, Pace(1.25 + n, 2.5, 6_000)
    )
    return replace(own, **more)


def fleet(*pools: PoolStats, **more: Any) -> FleetStats:
    return replace(FleetStats(pools, 1, 0, 0, 0, 1, 1), **more)


def test_each_pool_has_a_row_of_its_own_figures(capsys: pytest.CaptureFixture[str]) -> None:
    parked = {"awaiting_approval": 1_200, "idle": 7}
    found = [pool(name, n, parked=parked if n % 2 else {}) for n, name in enumerate(NAMES)]
    stats._draw(fleet(*found, pool("rests", queue=PoolQueue(0, 0, 180_000))))
    head, *drawn, rests, _ = cells(capsys.readouterr().out)
    assert head == list(stats.COLUMNS)
    for n, (name, row) in enumerate(zip(NAMES, drawn, strict=True)):
        figures = [f"{1_000 + n:,}", "3m", f"{2_000 + n:,}", f"{4_000 + n:,}", str(3 + n)]
        paces = [f"{1.25 + n:.1f}", "2.5", "6,000"]
        waits = ["1,200 awaiting_approval, 7 idle"] if n % 2 else []
        assert row == [SHOWN.get(name, name), *figures, *paces, *waits]
    assert rests[:3] == ["rests", "0", "0"], "of a queue that is empty no age is told"


SUMMARIES: list[tuple[dict[str, int], str]] = [
    ({}, "1 worker; 0 requests waiting for a person; 1 session"),
    ({"workers": 1_200, "silent": 2}, "1,200 workers; 2 silent; 0 requests waiting for a person; 1 session"),
    ({"draining": 3}, "1 worker; 3 draining; 0 requests waiting for a person; 1 session"),
    ({"open_requests": 1}, "1 worker; 1 request waiting for a person; 1 session"),
    ({"sessions": 5_000, "looked": 5_000}, "1 worker; 0 requests waiting for a person; 5,000 sessions"),
    (
        {"sessions": 5_001, "looked": 5_000},
        "1 worker; 0 requests waiting for a person; 5,001 sessions; parked is counted among the newest 5,000",
    ),
]


@pytest.mark.parametrize(("figures", "said"), SUMMARIES)
def test_summary_of_a_fleet_has_all_that_there_is(
    figures: dict[str, int], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stats._draw(fleet(**figures))
    assert capsys.readouterr().out.splitlines() == [said]


def test_each_machine_that_sessions_wait_for_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    stats._draw(fleet(waiting={"build-1": ["s1"], "[build-2]": ["s2", "s3"]}))
    _, one, other = capsys.readouterr().out.splitlines()
    assert one.startswith("1 session due, and left to machine build-1, where no worker is: s1. The last ")
    assert other.startswith("2 sessions due, and left to machine [build-2], where no worker is: s2, s3. The ")
    assert "start `dendro worker` on [build-2]" in other


def test_program_reads_each_figure_of_a_fleet_under_its_name() -> None:
    found = fleet(pool("a", 1, parked={"idle": 7}), pool("b", 2), workers=11, silent=12, draining=13)
    told = json.loads(json.dumps(stats._for_programs(replace(found, open_requests=14, looked=15))))
    first, second = told.pop("pools")
    assert first == {
        "pool": "a",
        "due": 1_001,
        "oldest_s": 180.0,
        "held": 2_001,
        "slots": 4_001,
        "workers": 4,
        "claims_per_s": 2.25,
        "turns_per_s": 2.5,
        "tokens_per_min": 6_000,
        "parked": {"idle": 7},
    }
    assert (second["pool"], second["due"], second["parked"]) == ("b", 1_002, {})
    figures = {"workers": 11, "silent": 12, "draining": 13, "open_requests": 14, "sessions": 1, "looked": 15}
    assert told == {**figures, "waiting": {}}


# ── workers ───────────────────────────────────────────────────────────────────────────────────────

FACTS = MachineFacts("build-3", 4711, "0.1.0", 7, NOW - 7_200_000, NOW, 0.514)


def worker(name: str, n: int = 0, facts: MachineFacts | None = FACTS, **more: Any) -> SeenWorker:
    state = WorkerState((name, "default"), n, 8 + n, facts=facts)
    return SeenWorker(f"w{n}", state, NOW - 4_000, silent=False, **more)


def test_each_worker_has_a_row_of_its_own_figures_and_a_line_for_each_remark(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = [worker(name, n) for n, name in enumerate(NAMES)]
    found[1] = replace(found[1], remarks=("is [/old]", "its clock is off\nby much"))
    found[2] = replace(found[2], remarks=("is full",), silent=True)
    found[3] = replace(found[3], state=replace(found[3].state, facts=None, draining=True))
    workers._draw(found, NOW)
    head, *drawn = cells(capsys.readouterr().out)
    assert head == list(workers.COLUMNS)
    status = {2: "silent", 3: "draining"}
    for n, (name, row) in enumerate(zip(NAMES, drawn[: len(NAMES)], strict=True)):
        serves = f"{SHOWN.get(name, name)}, default"
        known = ["0.51", "2h", "4s", "0.1.0"] if n != 3 else ["4s"]
        assert row == [f"w{n}", status.get(n, "serving"), serves, f"{n}/{8 + n}", *known]
    remarks = [" ".join(line) for line in drawn[len(NAMES) :]]
    assert remarks == ["w1: is [/old]", "w1: its clock is off␊by much", "w2: is full"]


def test_person_without_workers_is_told_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    workers._draw([], NOW)
    assert capsys.readouterr().out == "no worker is there: `dendro worker` starts one\n"


def test_program_reads_each_figure_of_a_worker_under_its_name() -> None:
    told = workers._for_programs(worker("gpu", 5, remarks=("is old", "is full")))
    own = {"worker": "w5", "status": "serving", "pools": ("gpu", "default"), "held": 5, "room": 13}
    assert told == {**own, "heard_ms": NOW - 4_000, **asdict(FACTS), "remarks": ("is old", "is full")}
    older = workers._for_programs(worker("gpu", 5, facts=None))
    assert older == {**own, "heard_ms": NOW - 4_000, "remarks": ()}
