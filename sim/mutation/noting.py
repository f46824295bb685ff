"""A plugin of pytest that measures which test comes to which line: `-p sim.mutation.noting`, into
$MUTATION_MAP.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.mutation.maps import Measuring

_MEASURING = Measuring(Path(os.environ["MUTATION_MAP"]))
_MEASURING.start()


def pytest_collection_finish() -> None:
    _MEASURING.note_scripts()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test with its fixtures is one context."""
    _MEASURING.context(item.nodeid)
    yield


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    took_s = _MEASURING.took_s
    took_s[report.nodeid] = took_s.get(report.nodeid, 0.0) + report.duration
    if report.outcome != "passed":
        _MEASURING.failed.append(report.nodeid)


def pytest_sessionfinish() -> None:
    _MEASURING.save()
