"""Turns of a root that had begun at a time: in which of them an agent was told to work."""

from __future__ import annotations

from typing import Any, cast

import pytest

from orchestrator.views.thread_log import begun_since, turn_at
from tests.views.test_thread_log import Line, Logs, event, turn
from tests.views.test_threads import ROOT


def begins(number: int, second: int) -> list[Line]:
    """A turn that begins at a second, and is at work for ten."""
    at = (second, second, *[second + 10] * 9)
    return [
        {"timestamp": f"2026-01-02T03:{at[place] // 60:02}:{at[place] % 60:02}Z"} | line
        for place, line in enumerate(turn(f"t{number}", "go"))
    ]


def at_ms(second: int) -> int:
    return 1_767_322_800_000 + 1_000 * second


async def begun(logs: Logs, second: int) -> list[str]:
    found = await begun_since(cast(Any, logs), logs.heads[ROOT], at_ms(second))
    assert [ms for ms, _ in found] == sorted((ms for ms, _ in found), reverse=True)
    return [name for _, name in found]


@pytest.mark.parametrize(
    ("second", "turns"),
    [
        (500, ["t4"]), (400, ["t4"]), (399, ["t4", "t3"]), (300, ["t4", "t3"]),
        (299, ["t4", "t3", "t2"]), (100, ["t4", "t3", "t2", "t1"]), (0, ["t4", "t3", "t2", "t1", "t0"]),
        (-5, ["t4", "t3", "t2", "t1", "t0"]),
    ],
)  # fmt: skip
async def test_turns_are_looked_for_back_to_the_one_that_ran_at_a_time(second: int, turns: list[str]) -> None:
    logs = Logs()
    logs.add(ROOT, [line for number in range(5) for line in begins(number, 100 * number)])
    found = await begun_since(cast(Any, logs), logs.heads[ROOT], at_ms(second))
    assert [name for _, name in found] == turns
    ran = {499: "t4", 400: "t4", 399: "t3", 300: "t3", 100: "t1", 0: "t0"}
    whole = await begun_since(cast(Any, logs), logs.heads[ROOT], at_ms(-5))
    assert {at: turn_at(whole, at_ms(at)) for at in ran} == ran
    assert turn_at(whole, at_ms(-1)) is None, "no turn had begun"
    assert turn_at([], at_ms(0)) is None


async def test_turns_that_were_taken_back_are_none_that_an_agent_was_told_in() -> None:
    logs = Logs()
    back = event("thread_rolled_back", "", num_turns=1) | {"timestamp": "2026-01-02T03:05:00Z"}
    logs.add(ROOT, [*begins(0, 0), *begins(1, 100), back, *begins(2, 400)])
    assert await begun(logs, 0) == ["t2", "t0"]
    assert await begun(logs, 300) == ["t2", "t0"]
