"""A few changes of each commit, looked for from end to end; and those that must always be found."""

from __future__ import annotations

import pytest

from sim.invariants import RULES
from sim.mutation.change import Change
from sim.mutation.python_operators import Group
from sim.mutation.sampling import SCOPES, all_changes, sample, scopes
from sim.mutation.table import figures, table
from sim.mutation.trial import failing_test, hunt
from sim.mutation.verdicts import Verdict, equivalents
from tests.commit_seed import base_seed

SEEDS = [("", seed) for seed in range(6)]
BEYOND_RULES = {"import", "raises", "timeout"}
PINNED = (
    ("lua", "if not s.tree then", "if not (not s.tree) then", "claim"),
    (
        "core",
        "draft.event(ev.task_complete(_as_it_stands(draft, left.message), bookmark))",
        "pass",
        "",
    ),
    (
        "runtime",
        "self._push(c.ItemCompleted(self._n, event.item, named, begun=begun))",
        "pass",
        "",
    ),
)
"""Scope, text before and after, and of a script its name."""


def _pinned(scope: str, before: str, after: str, script: str) -> Change:
    found = (change for change in all_changes(scope) if (change.before, change.after) == (before, after))
    return next(change for change in found if change.script == script)


@pytest.mark.slow
@pytest.mark.slice
@pytest.mark.timeout(300)
@pytest.mark.parametrize("pinned", PINNED, ids=[pinned[0] for pinned in PINNED])
def test_simulator_finds_a_change_that_it_has_always_found(pinned: tuple[str, str, str, str]) -> None:
    told = hunt(_pinned(*pinned), SEEDS, 120.0)
    assert told["rule"] in {*RULES, *BEYOND_RULES}


@pytest.mark.slow
@pytest.mark.slice
@pytest.mark.timeout(300)
def test_test_run_with_a_change_fails_and_without_it_does_not() -> None:
    test = "tests/core/test_core_tasks.py"
    assert failing_test(None, [test], 120.0) is None
    failed = failing_test(_pinned(*PINNED[1]), [test], 120.0)
    assert failed is not None
    assert failed.startswith(test)


@pytest.mark.slow
@pytest.mark.slice
@pytest.mark.always
@pytest.mark.timeout(300)
def test_sample_of_this_commit_comes_to_verdicts_and_figures() -> None:
    chosen = sample(len(SCOPES), base_seed())
    verdicts = {}
    for change in chosen:
        told = hunt(change, SEEDS, 120.0)
        assert told["rule"] in {"", *RULES, *BEYOND_RULES}, told
        by = "simulator" if told["rule"] else ""
        verdicts[change.id] = Verdict(change.id, by, told["rule"], seed=told.get("seed", -1))
    assert len(figures(chosen, verdicts).splitlines()) == 2 + len(SCOPES) + 1
    assert len(table(chosen, verdicts).splitlines()) == 2 + len(chosen)


def test_every_equivalent_change_is_one_of_the_product_as_it_is() -> None:
    groups: tuple[Group, ...] = ("turned", "forgotten")
    known = {
        (*change.key, change.twin)
        for group in groups
        for scope in scopes(group)
        for change in all_changes(scope, group)
    }
    assert [key for key in equivalents() if key not in known] == []


def test_test_that_is_not_there_any_more_finds_nothing() -> None:
    assert failing_test(None, ["tests/sim/test_mutation_run.py::test_gone"], 60.0) is None
