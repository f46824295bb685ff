"""Durations and numbers as people read them."""

from __future__ import annotations

import pytest

from orchestrator.core.counts import age


@pytest.mark.parametrize(
    ("seconds", "read"),
    [(-3, "0s"), (59.9, "59s"), (60, "1m"), (3599, "59m"), (3600, "1h"), (86_399, "23h"), (900_000, "10d")],
)
def test_person_reads_a_duration_in_its_largest_unit(seconds: float, read: str) -> None:
    assert age(seconds) == read
