"""Pages of lists that stand in memory: every row once, and a place behind all of them but the last."""

from __future__ import annotations

import pytest

from orchestrator.gateways.app_server.method import MOST, PageParams, page


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
