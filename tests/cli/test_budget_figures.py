"""`dendro budget`: each amount in its unit, and each budget's figures in their columns."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.broker.records import Account, BudgetKind, Registry
from orchestrator.cli.budget import COUNTS, _show, amounts
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.terminal.faults import ExitCode, Fault
from orchestrator.views.tree import amount, budget_value

KINDS: tuple[BudgetKind, ...] = ("tokens", "cost", "requests", "wall")
SECONDS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


@pytest.mark.parametrize("number", ["2", "1.5", "-3", "0"])
@pytest.mark.parametrize("unit", SECONDS)
def test_time_is_added_in_each_unit(unit: str, number: str) -> None:
    assert amounts(f"wall={number}{unit}") == {"wall": round(float(number) * SECONDS[unit] * 1_000)}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_added_as_they_are_and_no_part_of_one(name: str) -> None:
    assert amounts(f" {name}=7 , cost=-0.000001") == {name: 7, "cost": -1}
    for wrong in (f"{name}=1.5", f"{name}=7m", f"{name}=1,{name}=2"):
        with pytest.raises(Fault, match=name) as raised:
            amounts(wrong)
        assert raised.value.code is ExitCode.USAGE


def registry(**budget: Account) -> Registry:
    accounts = {kind: budget.get(kind, Account(kind, 0, 0, None)) for kind in KINDS}
    return Registry(
        TreeId("t"), 1, {}, {"slots": 3, "spawned": 9}, {"slots": 8}, accounts, {}, {SessionId("s"): "spent"}
    )


def rows(of: Registry, capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    _show(of)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["used", "held", "limit", "left"]
    assert lines[-1] == "1 agent waits for room in a budget"
    return {line.split()[0]: line.split()[1:] for line in lines[1:-1]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("spent", "held", "limit", "left"),
    [(700, 200, 1_000, 300), (1_000, 0, 1_000, 0), (1_200, 0, 1_000, 0), (700, 200, None, None)],
)
def test_row_of_a_budget_has_what_is_used_and_held_its_limit_and_what_is_left_of_it(
    kind: BudgetKind, spent: int, held: int, limit: int | None, left: int | None,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    unit = {"tokens": 1, "requests": 1, "cost": 1_000_000, "wall": 60_000}[kind]
    limits = None if limit is None else limit * unit
    found = registry(**{kind: Account(kind, spent * unit, held * unit, limits)})
    told = [amount(kind, spent * unit), *([amount(kind, held * unit)] if held else [])]
    told += ["none"] if limit is None else [amount(kind, limit * unit), amount(kind, (left or 0) * unit)]
    table = rows(found, capsys)
    assert table[kind] == told
    assert table["slots"] == ["3", "8", "5"]
    assert table["spawned"] == ["9", "none"]
    assert list(table) == [*KINDS, "slots", "spawned"]


def test_estimates_are_told_beside_what_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    table = rows(registry(tokens=Account("tokens", 1_500, 0, None, guessed=300)), capsys)
    assert " ".join(table["tokens"]) == "1,500 (300 by estimate) none"


def test_program_reads_each_account_and_who_waits() -> None:
    found: Any = budget_value(registry(wall=Account("wall", 5, 1, 9, 2)))
    assert found["budget"]["wall"] == {"kind": "wall", "spent": 5, "held": 1, "limit": 9, "guessed": 2}
    assert (found["counters"], found["limits"]) == ({"slots": 3, "spawned": 9}, {"slots": 8})
    assert (found["waiting"], set(found["budget"])) == ({"s": "spent"}, set(KINDS))
