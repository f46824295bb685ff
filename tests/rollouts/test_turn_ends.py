"""Where a turn ended, found in a log of many pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from orchestrator.broker.records import StoredEntry
from orchestrator.core import entries as e
from orchestrator.core.entries import Entry
from orchestrator.protocol.events import AgentMessage
from orchestrator.rollouts.full_log import PAGE, end_of_turn
from tests.rollouts.test_file_format import SECRET, stored


async def _each(log: Sequence[StoredEntry]) -> AsyncIterator[StoredEntry]:
    for entry in log:
        yield entry


def _ended(response: str) -> Entry:
    return Entry(e.EVENT_MSG, {"type": "token_count", "info": None, "response_id": response}, "t")


@pytest.mark.parametrize(
    ("response", "seq"), [(None, PAGE + 2), ("resp_1", 1), ("resp_2", PAGE + 2), ("no", 0)]
)
async def test_last_turn_that_ended_is_found_behind_the_first_page_of_a_log(
    response: str | None, seq: int
) -> None:
    said = [e.event("t", AgentMessage(message="word"))]
    log, _ = stored([_ended("resp_1"), *said * PAGE, _ended("resp_2"), *said])
    found = await end_of_turn(_each(log), SECRET, response)
    assert (found.seq, found.last, found.broken) == (seq, PAGE + 3, None)
