"""Rules of a chaos run: a run that is fine passes, and each rule refuses its spoiled one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from orchestrator.core.chain import GENESIS, next_chain, payload_digest
from proof.chaos_faults import COMMON, FORGETS, KINDS, pairs, schedule
from proof.chaos_rules import (
    RULES,
    SPOILED,
    Entry,
    Fault,
    Log,
    Mark,
    Promise,
    Record,
    Return,
    Shown,
    deaf,
    judge,
)
from tests.commit_seed import chosen

ROOT = Path(__file__).parents[2]


def log_of(*ids: str) -> Log:
    """A log of two entries and a turn with a command for each id."""
    entries, head = [], GENESIS
    for seq in (1, 2):
        head = next_chain(head, seq, 1, payload_digest(b"salt", b"%d" % seq))
        entries.append(Entry(seq, 1, b"salt", b"%d" % seq, head))
    told = tuple((type, id) for id in ids for type in ("task_started", "task_complete"))
    return Log(tuple(entries), head, told, frozenset(ids))


def fine() -> Record:
    """Two turns of one session; a third one's command was killed with its worker."""
    log = log_of("s/1", "s/2", "s/3")
    log = replace(log, ended_well=frozenset(("s/1", "s/2")))
    done = [Mark(f"s/{n}", what, n, n + at) for n in (1, 2) for what, at in (("begin", 0.0), ("end", 0.5))]
    return Record(
        tuple(Promise("s", f"s/{n}", float(n)) for n in (1, 2, 3)),
        {"s": log.told},
        (Fault("worker killed", "0", 3.1, 3.2),),
        (*done, Mark("s/3", "begin", 3, 3.0)),
        {"s": log},
        2.0,
        returns=(Return("s", "item", 1.0, 2.0, asked=True),),
        drained=(0.5,),
        parts=5,
    )


def test_run_that_is_fine_breaks_no_rule() -> None:
    assert judge(fine()).broken == []


def test_each_rule_judges_something_and_refuses_its_spoiled_run() -> None:
    assert set(judge(fine()).judged) == {rule.__name__ for rule in RULES} == set(SPOILED)
    assert deaf(fine()) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_spoiled_run_is_refused_by_its_rule_alone(rule: object) -> None:
    name = rule.__name__  # type: ignore[attr-defined]
    assert {line.partition(":")[0] for line in judge(SPOILED[name](fine())).broken} == {name}


def test_rule_that_judged_nothing_fails_the_run() -> None:
    assert "begun_once: judged nothing" in judge(replace(fine(), done=())).broken
    assert judge(replace(fine(), seen={}), seldom=frozenset(("live_as_replayed",))).broken == []


def test_what_redis_was_made_to_forget_may_be_lost_and_begun_again() -> None:
    record = fine()
    told = tuple(event for event in record.logs["s"].told if event[1] != "s/3")
    spoiled = replace(record, logs={"s": replace(record.logs["s"], told=told)})
    again = replace(spoiled, seen={}, done=(*record.done, Mark("s/3", "begin", 9, 5.0)))
    seldom = frozenset(("live_as_replayed",))
    assert len(judge(again, seldom=seldom).broken) == 2
    forgets = Fault(FORGETS, "0", 3.5, 4.0, loses=True)
    assert judge(replace(again, injected=(forgets,)), seldom=seldom).broken == []


def test_two_commands_may_be_there_at_once_right_behind_a_server_that_forgot_their_holder() -> None:
    marks = [
        ("s/4", "begin", 4, 20.0),
        ("s/4", "begin", 5, 21.0),
        ("s/4", "end", 4, 21.5),
        ("s/4", "end", 5, 22.0),
    ]
    record = replace(fine(), done=(*fine().done, *(Mark(*mark) for mark in marks)))
    assert any(line.startswith("none_beside") for line in judge(record).broken)
    forgets = replace(record, injected=(Fault(FORGETS, "0", 20.5, 20.9, loses=True),))
    assert not any(line.startswith(("none_beside", "begun_once")) for line in judge(forgets).broken)


def test_follower_that_was_told_that_redis_went_back_counts_what_it_is_told_from_then_on() -> None:
    shown = Shown("the beginning")
    for event, place in (("task_started", 1), ("task_complete", 2), ("task_started", 3)):
        shown.takes(event, "s/1", place)
    shown.begins_anew()
    shown.takes("task_started", "s/1", None)
    shown.comes_back()
    assert (shown.events, shown.place) == ([], 3)
    shown.begins_anew()
    for event in ("task_started", "session_configured", "task_complete"):
        shown.takes(event, "s/1", None)
    shown.takes("task_started", "s/2", 9)
    shown.takes("exec_command_begin", "s/2", None)
    shown.comes_back()
    assert shown.events == [("task_started", "s/1"), ("task_complete", "s/1"), ("task_started", "s/2")]
    assert shown.place == 9


def test_follower_that_missed_an_event_or_was_told_one_twice_is_refused() -> None:
    told = log_of("s/1", "s/2", "s/3").told
    for seen in (told[:-1], told[1:], (*told[:1], *told), told[::-1]):
        assert any(
            line.startswith("live_as_replayed") for line in judge(replace(fine(), seen={"s": seen})).broken
        )


def test_schedule_is_the_seeds_alone_and_has_every_pair_of_the_commonest_kinds() -> None:
    assert schedule(4, 60.0) == schedule(4, 60.0) != schedule(5, 60.0)
    for seed in range(6):
        plan = schedule(seed, 480.0)
        assert {due.kind for due in plan} - {FORGETS} == set(KINDS)
        assert any(due.kind == FORGETS for due in plan) is bool(seed % 2)
        found = pairs([Fault(due.kind, str(due.target), due.at, due.at + due.lasts) for due in plan])
        assert set(found) >= set(combinations(sorted(COMMON), 2))
        assert len(plan) >= 300


@pytest.mark.slice
@pytest.mark.timeout(200)
def test_deployment_keeps_its_promises_under_faults_that_the_commit_draws() -> None:
    """Real processes: they are what is tried."""
    run_is_fine("--seconds", "6", "--runs", "1", "--seed", str(chosen("chaos", 4)))


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_deployment_keeps_its_promises_under_faults() -> None:
    """Real processes: they are what is tried."""
    run_is_fine("--seconds", "60", "--runs", "2")


def run_is_fine(*words: str) -> None:
    argv = [sys.executable, "-m", "proof.chaos", *words]
    ran = subprocess.run(argv, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
