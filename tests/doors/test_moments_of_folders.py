"""Two snapshots that a client compares: by entries of the folder's own log, or of its tree's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.gateways.app_server.messages import RpcError
from orchestrator.gateways.app_server.methods import workspace
from orchestrator.gateways.app_server.methods.workspace import Between
from orchestrator.protocol.ids import SnapshotId
from orchestrator.views.workspaces import FolderPast, Moment

HEAD = cast(Any, SimpleNamespace(session="s", seq=40, tree="t"))
STEPS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2)), min_size=1, max_size=5)
"""Of each snapshot the entries and the milliseconds behind the one before."""


def past(steps: list[tuple[int, int]]) -> FolderPast:
    moments, seq, at_ms = list[Moment](), 0, 10
    for number, (more, later) in enumerate(steps):
        seq, at_ms = seq + more, at_ms + later
        moments.append(Moment(seq, cast(Any, SnapshotId(f"{number:06x}")), (), at_ms=at_ms))
    return FolderPast(HEAD, tuple(moments))


@given(STEPS, st.integers(8, 22), st.none() | st.integers(1, 40))
async def test_folder_at_an_entry_of_its_tree_is_the_last_that_is_not_later(
    steps: list[tuple[int, int]], at_ms: int, from_: int | None
) -> None:
    async def tree_entry_at(*_: Any) -> Any:
        return SimpleNamespace(at_ms=at_ms)

    known, patch = past(steps), pytest.MonkeyPatch()
    asked = Between.model_validate({"threadId": "s", "at": 3, "from": from_})
    with patch.context() as patched:
        patched.setattr(workspace, "tree_entry_at", tree_entry_at)
        if from_ is not None and from_ < known.moments[0].seq:
            with pytest.raises(RpcError, match="not recorded yet"):
                await workspace._moments(cast(Any, None), HEAD, known, asked)
            return
        before, after = await workspace._moments(cast(Any, None), HEAD, known, asked)
    there = [moment for moment in known.moments if moment.at_ms <= at_ms]
    begun = [moment for moment in known.moments if from_ is None or moment.seq <= from_]
    base = known.moments[0] if from_ is None or not there else begun[-1]
    assert (before, after) == (base, there[-1] if there else known.moments[0])


@given(STEPS, st.none() | st.integers(1, 40), st.none() | st.integers(1, 40))
async def test_folder_at_an_entry_of_its_own_log_is_that_of_the_last_snapshot_up_to_it(
    steps: list[tuple[int, int]], from_: int | None, to: int | None
) -> None:
    known = past(steps)
    asked = Between.model_validate({"threadId": "s", "from": from_, "to": to})
    first = known.moments[0].seq
    if any(place is not None and place < first for place in (from_, to)):
        with pytest.raises(RpcError, match="not recorded yet"):
            await workspace._moments(cast(Any, None), HEAD, known, asked)
        return
    before, after = await workspace._moments(cast(Any, None), HEAD, known, asked)
    wanted = [
        usual if place is None else [one for one in known.moments if one.seq <= place][-1]
        for place, usual in ((from_, known.moments[0]), (to, known.moments[-1]))
    ]
    assert [before, after] == wanted
