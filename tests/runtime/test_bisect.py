"""A refused step is taken apart, tried again, or decided in another way."""

from __future__ import annotations

from collections import deque

import pytest

from orchestrator.broker.records import Refused
from orchestrator.core import commands as c
from orchestrator.runtime.arrivals import Arrival, Bisect, RefusedTwice

ROOM_AGAIN = Refused("budget_free", "agents")
MADE, ARRIVED = c.BeginRequest(), c.TimerFired("t1", 1)


@pytest.mark.parametrize(("singly", "full"), [(0, False), (2, True)])
def test_step_is_full_with_one_command_only_while_commands_are_decided_singly(
    singly: int, full: bool
) -> None:
    assert not Bisect(singly=singly).full
    assert Bisect([(ARRIVED, None)], singly=singly).full is full
    assert Bisect(made=[MADE], singly=singly).full is full


def test_command_is_tried_once_more_where_room_was_made_for_it() -> None:
    refused = c.CommitRefused(ARRIVED, "budget", "agents")
    behind: Arrival = (MADE, None)
    inbox = deque([behind])
    Bisect(arrived=[(refused, "5-0")]).refused(ROOM_AGAIN, inbox)
    assert list(inbox) == [(ARRIVED, "5-0"), behind]


def test_decision_in_the_place_of_a_refused_command_is_not_refused_in_silence() -> None:
    refused = c.CommitRefused(ARRIVED, "budget", "agents")
    with pytest.raises(RefusedTwice, match="budget, then budget agents"):
        Bisect(arrived=[(refused, None)]).refused(Refused("budget", "agents"), deque())
