"""Pages of lists that stand in memory: every row once, and a place behind all of them but the last."""

from __future__ import annotations

from typing import Any, cast

import pytest

from orchestrator.gateways.app_server.method import MOST, PageParams, page
from orchestrator.gateways.app_server.methods import threads
from tests.doors.test_door_of_several_threads import Sent
from tests.views.test_thread_log import Logs, turn
from tests.views.test_threads import ROOT


@pytest.mark.parametrize("limit", [None, 0, 1, 2, 3, 7, MOST + 1])
def test_pages_have_each_row_once_and_the_last_one_leads_nowhere(limit: int | None) -> None:
    for count in (*range(9), MOST, MOST + 1, 2 * MOST):
        rows, cursor, found, pages = list(range(count)), None, list[int](), 0
        while True:
            told = page(rows, PageParams(limit=limit, cursor=cursor))
            found += told["data"]
            pages += 1
            if (cursor := told["nextCursor"]) is None:
                break
        most = min(limit or MOST, MOST)
        assert found == rows
        assert pages == max(1, -(-count // most))


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("bound", ["bytes", "turns"])
async def test_newest_turn_is_told_however_long_it_is_and_a_warning_says_so_where_others_are_left_out(
    count: int, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "MOST_BYTES" if bound == "bytes" else "MOST_INCLUDED", 1)
    logs, at = Logs(), Sent()
    head = logs.add(ROOT, [line for n in range(count) for line in turn(f"t{n}", "go")])
    cast(Any, at.door.ports).found = logs
    told = await threads.all_turns(at.door, head)
    assert [one["id"] for one in told] == [f"t{count - 1}"]
    assert [b"only the last 1 turns" in line for line in at.lines] == [True] * (count > 1)


def test_one_row_fits_an_answer_however_large_it_is_and_several_only_within_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "MOST_BYTES", 20)
    large, small = {"a": "x" * 99}, {"a": 1}
    assert threads.fits([large])
    assert threads.fits([small, small])
    assert not threads.fits([large, small])
