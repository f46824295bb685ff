"""A person cancels what nobody serves any more: the command itself sees it to its end."""

from __future__ import annotations

import re

import pytest

from tests.cli.machine import Machine
from tests.cli.parked_tree import ASKER, WAITER, parked_tree

pytestmark = pytest.mark.realredis


def test_person_ends_a_tree_whose_last_worker_is_gone(machine: Machine) -> None:
    with parked_tree(machine) as served:
        left = served
    left.says("send", left.root, str(WAITER), "Count the tests.")
    drawn = left.says("tree", left.root).splitlines()
    assert re.match(r"0 root  due .* no worker serves it: it needs a worker of pool \S+( ·|$)", drawn[2])
    done = left.says("cancel", left.root)
    assert f"agent {ASKER} is cancelled: " in done
    assert "the root is closed" in done
    told = left.tree()
    assert told["counters"]["slots"] == 0
    assert [agent["agent_id"] for agent in told["agents"] if agent.get("status") == "running"] == []
