"""Two lines for an absence of Redis, however often it is met."""

from __future__ import annotations

import logging

from orchestrator.broker.connection import QUIET_S, Outage
from orchestrator.broker.errors import BrokerError, Unavailable
from orchestrator.runtime import OutageFilter

GONE = Unavailable("no answer")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def outage() -> tuple[Outage, list[str], Clock]:
    said, clock = list[str](), Clock()
    return Outage(said.append, clock), said, clock


def warning(*args: object) -> logging.LogRecord:
    return logging.LogRecord("dendro.runtime", logging.WARNING, "", 0, "not now: %s", args, None)


def test_an_absence_is_told_once_and_its_end_with_its_length() -> None:
    away, said, clock = outage()
    for _ in range(50):
        away.lost("", GONE)
    clock.now += 12
    away.back("")
    assert said == ["Redis is away (no answer); asking again until it answers", "Redis is back, after 12 s"]


def test_a_connection_that_comes_and_goes_is_told_once_in_a_while() -> None:
    away, said, clock = outage()
    for _ in range(10):
        away.lost("", GONE)
        away.back("")
        clock.now += 0.1
    assert len(said) == 2
    clock.now += QUIET_S
    away.lost("", GONE)
    assert len(said) == 3


def test_a_cluster_is_back_when_each_of_its_missing_parts_is() -> None:
    away, said, _ = outage()
    away.lost("{s1}", GONE)
    away.lost("{s2}", GONE)
    away.back("{s1}")
    away.back("{s3}")
    assert len(said) == 1
    away.back("{s2}")
    assert len(said) == 2


def test_warnings_about_what_was_told_go_unsaid_and_others_do_not() -> None:
    away, _, _ = outage()
    quiet = OutageFilter(away)
    away.lost("", GONE)
    assert not quiet.filter(warning(GONE))
    assert quiet.filter(warning(BrokerError("of another kind")))
    assert quiet.filter(warning())


def test_a_refusal_that_is_no_absence_is_said_twice_a_minute_at_most() -> None:
    away, _, _ = outage()
    quiet = OutageFilter(away)
    assert [quiet.filter(warning(GONE)) for _ in range(3)] == [True, False, False]
