"""The past by an entry of a tree's log: snapshots that a client compares, and a thread as it was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.entries import EVENT_MSG, Entry, encode_entry
from orchestrator.gateways.app_server.messages import RpcError
from orchestrator.gateways.app_server.methods import METHODS, workspace
from orchestrator.gateways.app_server.methods.threads import as_it_was
from orchestrator.gateways.app_server.methods.workspace import Between
from orchestrator.protocol.ids import SnapshotId
from orchestrator.views import workspaces
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


@given(STEPS, st.integers(8, 22), st.none() | st.integers(1, 40), st.none() | st.integers(1, 30))
async def test_folder_at_an_entry_of_its_tree_is_the_last_that_is_not_later(
    steps: list[tuple[int, int]], at_ms: int, from_: int | None, own: int | None
) -> None:
    """An entry that the folder's own session wrote has a place in its log: milliseconds tell no two apart."""

    async def tree_entry_at(*_: Any) -> Any:
        return SimpleNamespace(at_ms=at_ms, session="other" if own is None else "s", seq=own or 99)

    known, patch = past(steps), pytest.MonkeyPatch()
    asked = Between.model_validate({"threadId": "s", "at": 3, "from": from_})
    with patch.context() as patched:
        patched.setattr(workspace, "tree_entry_at", tree_entry_at)
        if from_ is not None and from_ < known.moments[0].seq:
            with pytest.raises(RpcError, match="not recorded yet"):
                await workspace._moments(cast(Any, None), HEAD, known, asked)
            return
        before, after = await workspace._moments(cast(Any, None), HEAD, known, asked)
    there = [one for one in known.moments if (one.at_ms <= at_ms if own is None else one.seq <= own)]
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


@pytest.mark.parametrize(
    ("to", "machine"), [(None, "m"), (3, None), (7, None), (11, None), (12, "m"), (40, "m")]
)
async def test_folder_lacks_its_newest_changes_from_the_entry_on_at_which_they_were_not_saved(
    to: int | None, machine: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = replace(past([(3, 1), (4, 1)]), unsaved=cast(Any, SimpleNamespace(machine="m")), unsaved_from=12)
    counts = SimpleNamespace(added=0, modified=0, deleted=0)

    async def recorded_past(*_: Any) -> FolderPast:
        return known

    async def between(*_: Any) -> Any:
        return SimpleNamespace(files=(), counts=counts, insertions=0, deletions=0)

    async def head(thread: str) -> Any:
        return HEAD

    monkeypatch.setattr(workspaces, "recorded_past", recorded_past)
    monkeypatch.setattr(workspace, "_diffs", lambda door: SimpleNamespace(between=between))
    door = cast(Any, SimpleNamespace(head=head, ports=SimpleNamespace(found=None)))
    asked = workspace.Changed.model_validate({"threadId": "s", "to": to})
    assert (await workspace.changes(door, asked))["unsaved"] == machine


async def test_place_of_a_folder_is_said_by_one_log_alone() -> None:
    asked = Between.model_validate({"threadId": "s", "at": 3, "to": 3})
    with pytest.raises(RpcError, match="one of them"):
        await workspace._moments(cast(Any, None), HEAD, past([(3, 1)]), asked)


@dataclass
class Head:
    session: str
    seq: int
    tree: str = "t"


@given(st.lists(st.integers(0, 2), min_size=1, max_size=9), st.data())
async def test_thread_as_it_was_ends_with_its_own_entry_or_with_the_last_that_is_not_later(
    steps: list[int], data: st.DataObject
) -> None:
    times = list(accumulate(steps, initial=100))[1:]
    own = data.draw(st.none() | st.integers(1, len(times)))
    at_ms = times[own - 1] if own is not None else data.draw(st.integers(99, times[-1] + 1))
    lines = [encode_entry(Entry(EVENT_MSG, {"type": "background_event"}), ms, {}).line for ms in times]

    async def read_tree_back(tree: str, before: int, count: int) -> list[Any]:
        session, seq = ("other", 77) if own is None else ("s", own)
        return [SimpleNamespace(tree_seq=before - 1, session=session, seq=seq, at_ms=at_ms)]

    async def log(session: str, upto: int, after: int) -> AsyncIterator[Any]:
        for seq in range(after + 1, upto + 1):
            yield SimpleNamespace(seq=seq, payload=lines[seq - 1])

    found = SimpleNamespace(
        broker=SimpleNamespace(logs=SimpleNamespace(read_tree_back=read_tree_back)), log=log
    )
    door = cast(Any, SimpleNamespace(ports=SimpleNamespace(found=found)))
    then = await as_it_was(door, cast(Any, Head("s", len(times))), 5)
    assert then.seq == (own if own is not None else sum(ms <= at_ms for ms in times))


def test_methods_that_show_the_past_are_those_whose_places_are_tried_here() -> None:
    """`tree/read` has the place of each agent's log by the tree's entries (tests/views/test_tree_past.py)."""
    named = {name for name, method in METHODS.items() if "at" in method.params.model_fields}
    by_head = {"thread/items/list", "thread/turns/list", "thread/fork"}
    assert named == {*by_head, "workspace/changes", "workspace/diff", "tree/read"}
