"""Counts of a campaign, which fails where a rule was not tested."""

from __future__ import annotations

from collections import Counter

import pytest

from sim import __main__ as command
from sim.campaign import Report, run_batch
from sim.invariants import CASES, RULES
from sim.reach import ENOUGH_SEEDS, LEAST, Reach, rare, table


def _everything() -> Counter[str]:
    cases = {**{name: rule.case for name, rule in RULES.items()}, **CASES}
    return Counter(source for name, case in cases.items() for source in case.sources or (f"case {name}",))


def _often(seeds: int) -> Counter[str]:
    """Each case as often as it is to occur in so many seeds."""
    return Counter(dict.fromkeys(_everything(), LEAST * seeds // 1_000))


def test_campaign_names_nothing_where_every_case_occurred_often_enough() -> None:
    assert rare(_often(1_000), 1_000) == {}


def test_campaign_names_what_occurred_less_often_than_it_is_to() -> None:
    counts = _often(2_000)
    counts["case stopped"] -= 1
    assert rare(counts, 2_000) == {"stopped": 2 * LEAST - 1}


@pytest.mark.parametrize("rule", RULES)
def test_campaign_names_the_rule_whose_case_did_not_occur(rule: str) -> None:
    counts = _often(1_000)
    for source in RULES[rule].case.sources or (f"case {rule}",):
        del counts[source]
    assert rare(counts, 1_000)[rule] == 0


def test_script_answers_are_counted_by_their_code_and_by_their_reason() -> None:
    reach = Reach()
    reach.replied("commit", [b"OK", 1])
    reach.replied("commit", [b"FENCED", 3, b"seq"])
    reach.replied("commit", [b"REFUSED", b"budget_spent", b"tokens", []])
    reach.replied("renew", [b"FENCED", 3])
    reach.replied("HMGET", [b"0190", None])
    assert reach.counts == {
        "reply commit OK": 1,
        "reply commit FENCED seq": 1,
        "reply commit REFUSED budget_spent": 1,
        "reply renew FENCED": 1,
    }


def test_simulation_tells_what_it_came_by() -> None:
    (outcome,), _ = run_batch([3])
    assert outcome.reach["op user_input"] > 0
    assert outcome.reach["fact task_ended"] > 0
    assert "user_input" in table(outcome.reach, 1)


@pytest.mark.parametrize(
    ("seeds", "code"), [(ENOUGH_SEEDS, 1), (ENOUGH_SEEDS - 1, 0)], ids=["enough seeds", "too few to tell"]
)
def test_large_campaign_without_a_failure_fails_where_a_case_is_rare(
    seeds: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = _often(ENOUGH_SEEDS)
    counts["case stopped"] = 2
    monkeypatch.setattr(command, "campaign", lambda *given: Report(outcomes=seeds, reach=counts))
    monkeypatch.setattr("sys.argv", ["sim", "--seeds", str(seeds)])
    assert command.main() == code
    assert ("the case of `stopped` occurred 2 times" in capsys.readouterr().out) == bool(code)
