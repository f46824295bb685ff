"""A refused step is taken apart, tried again, or decided in another way."""

from __future__ import annotations

from collections import deque

import pytest

from orchestrator.broker.records import Refused
from orchestrator.core import commands as c
from orchestrator.core.decide.draft import Note
from orchestrator.runtime.arrivals import Arrival, Bisect, RefusedTwice
from orchestrator.runtime.committing import Delta

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


NOTES: list[Arrival] = [(Note(), "4-0"), (Delta("t", {"type": "x"}), None), (Note(), "7-0")]


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("place", range(len(NOTES) + 1))
@pytest.mark.parametrize("reason", ["budget_spent", "budget_reserved", "slots", "marked"])
def test_refused_command_is_decided_in_another_way_whatever_words_stood_beside_it(
    reason: str, place: int, made: bool
) -> None:
    """A warning that a budget is nearly used up comes in the very step that finds no room in it."""
    behind: Arrival = (ARRIVED, "9-0")
    inbox, refused = deque([behind]), Refused(reason, "tokens")
    if made:
        bisect, words = Bisect(arrived=NOTES[:place], made=[MADE]), NOTES[:place]
        wanted: list[Arrival] = [*words, (c.CommitRefused(MADE, reason, "tokens", {}), None)]
    else:
        bisect = Bisect(arrived=[*NOTES[:place], (ARRIVED, "5-0"), *NOTES[place:]])
        instead: Arrival = (c.CommitRefused(ARRIVED, reason, "tokens", {}), "5-0")
        wanted = [*NOTES[:place], instead, *NOTES[place:]]
    bisect.refused(refused, inbox)
    assert list(inbox) == [*wanted, behind]
    assert not bisect.singly


@pytest.mark.parametrize("place", range(len(NOTES) + 1))
def test_words_beside_a_command_that_is_tried_once_more_stay(place: int) -> None:
    refused = c.CommitRefused(MADE, "budget_reserved", "tokens")
    inbox: deque[Arrival] = deque()
    Bisect(arrived=[*NOTES[:place], (refused, None), *NOTES[place:]]).refused(ROOM_AGAIN, inbox)
    assert list(inbox) == [*NOTES[:place], (MADE, None), *NOTES[place:]]


@pytest.mark.parametrize("arrived", [0, 1, 2])
@pytest.mark.parametrize("made", [0, 1, 2])
def test_step_of_several_commands_is_decided_one_by_one(arrived: int, made: int) -> None:
    came: list[Arrival] = [(c.TimerFired(f"t{number}", 1), f"{number}-0") for number in range(arrived)]
    if arrived + made < 2:
        return
    bisect, inbox = Bisect(arrived=[*came, NOTES[0]], made=[MADE] * made), deque[Arrival]()
    bisect.refused(Refused("slots", "8"), inbox)
    assert list(inbox) == [*came, NOTES[0]], "the runner makes its own commands again"
    assert bisect.singly == arrived + made + 1


def test_decision_in_the_place_of_a_refused_command_is_not_refused_in_silence() -> None:
    refused = c.CommitRefused(ARRIVED, "budget", "agents")
    with pytest.raises(RefusedTwice, match="budget, then budget agents"):
        Bisect(arrived=[(refused, None)]).refused(Refused("budget", "agents"), deque())
