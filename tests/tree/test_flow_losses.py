"""Workers die at every commit of each flow, before it and behind it; the flow comes to the same end."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import pytest

from tests.tree.flows import FLOWS
from tests.tree.harness import TreeHarness
from tests.tree.lived import Account, Flow, Life

pytestmark = pytest.mark.realredis


def differences(lived: Account, undisturbed: Account) -> list[str]:
    """Names all that a death changed and may not change."""
    found = list(lived.violations())
    apart = lived.doubts | lived.lost
    if lived.lost or "c1" in lived.doubts:
        # What is typed to a process that is gone is refused.
        apart |= {"w1"}
    for name in ("told", "said", "asked"):
        was, should = getattr(lived, name)(apart), getattr(undisturbed, name)(apart)
        found += [
            f"{name} of {whose}: {_first(was.get(whose), should[whose])}"
            for whose in should
            if was.get(whose) != should[whose]
        ]
    return found


def _first(was: Any, should: Any) -> str:
    """The first place in which two lists differ."""
    pairs = enumerate(zip_longest(was or (), should))
    return next(f"{place}: {a}\n  instead of {b}" for place, (a, b) in pairs if a != b)


@pytest.mark.parametrize("told", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
async def test_flow_whose_workers_die_at_any_commit_ends_as_it_would_have(
    trees: TreeHarness, flow: Flow, told: bool
) -> None:
    undisturbed = Life(trees.harness, flow, 0)
    should = await undisturbed.lived()
    assert not list(should.violations())
    for commit in range(1, undisturbed.commits + 1):
        was = await Life(trees.harness, flow, commit).lived(commit, told=told)
        found = differences(was, should)
        assert not found, f"commit {commit} of {undisturbed.commits}: " + "\n".join(found)
