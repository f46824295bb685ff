"""What holds for every test: what a file leaves unclosed is found in that file."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


def pytest_collection_finish() -> None:
    """What the imports made stays: no collection needs to look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _nothing_left_unclosed() -> Iterator[None]:
    """Collects behind each file.

    A connection or a loop that was not closed warns when it is collected; without this the
    warning, which is an error, lands in whatever test runs then.
    """
    yield
    gc.collect()
