"""Differences of folders for doors: few at once, each made once, and failures that are told and not kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from difflib import unified_diff
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.ids import TreeId
from orchestrator.folders.outcomes import Bounds, Counts, Difference, FolderError, FolderSnapshot
from orchestrator.views import workspaces
from orchestrator.views.view_errors import ViewError
from orchestrator.views.workspaces import AT_ONCE, FolderDiffs, Moment, hunks

TREE = TreeId("t")


def moment(seq: int) -> Moment:
    return Moment(seq, FolderSnapshot(f"{seq:040x}"), ())


@dataclass(slots=True)
class Work:
    """Stands for the process that compares: says when it is asked, and waits to be let on."""

    asked: list[str] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None
    text: str = ""

    @asynccontextmanager
    async def fetched(self, *_: object) -> AsyncIterator[Any]:
        yield self

    @property
    def keeper(self) -> Any:
        return self

    packs: tuple[()] = ()

    async def diff(self, before: str, after: str, _: object, **words: Any) -> Difference:
        self.asked.append(after)
        self.news.set()
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return Difference(self.text, False, Counts(), 0, 0)

    async def until(self, number: int) -> None:
        while len(self.asked) < number:
            self.news.clear()
            await self.news.wait()


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    found = Work()
    monkeypatch.setattr(workspaces, "fetched", found.fetched)
    return found


def diffs() -> FolderDiffs:
    return FolderDiffs(lambda: cast(Any, None), lambda: Bounds(1, 1, 1, 60.0))


async def test_difference_that_several_ask_for_is_made_once_and_kept(work: Work) -> None:
    made = diffs()
    asking = [asyncio.create_task(made.between(TREE, moment(1), moment(2))) for _ in range(3)]
    await work.until(1)
    asking[0].cancel()
    work.go.set()
    assert await asking[1] is await asking[2]
    assert await made.between(TREE, moment(1), moment(2)) is await asking[1]
    await made.between(TREE, moment(1), moment(2), "a file")
    assert len(work.asked) == 2


async def test_no_more_than_a_few_folders_are_compared_at_once(work: Work) -> None:
    made = diffs()
    asking = [
        asyncio.create_task(made.between(TREE, moment(1), moment(seq))) for seq in range(2, 4 + AT_ONCE)
    ]
    await work.until(AT_ONCE)
    await asyncio.sleep(0)
    assert len(work.asked) == AT_ONCE
    work.go.set()
    await asyncio.gather(*asking)
    assert len(work.asked) == AT_ONCE + 2


async def test_failure_is_told_to_all_who_asked_and_the_next_one_asks_again(work: Work) -> None:
    made = diffs()
    work.error = FolderError("damaged", "an object is not what its name says")
    work.go.set()
    for _ in range(2):
        with pytest.raises(ViewError, match="cannot be compared: an object is not"):
            await made.between(TREE, moment(1), moment(2))
    work.error = None
    await made.between(TREE, moment(1), moment(2))
    assert len(work.asked) == 3


async def test_who_waits_too_long_for_a_turn_is_told_so(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspaces, "DIFF_S", 0.01)
    made = diffs()
    made._room = asyncio.Semaphore(0)
    with pytest.raises(ViewError, match="many compare folders"):
        await made.between(TREE, moment(1), moment(2))
    made._room = asyncio.Semaphore(1)
    with pytest.raises(ViewError, match="not compared within"):
        await made.between(TREE, moment(1), moment(2))
    monkeypatch.setattr(workspaces, "DIFF_S", 20.0)
    work.go.set()
    await made.between(TREE, moment(1), moment(2))


async def test_long_texts_push_out_what_was_asked_for_long_ago(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspaces, "MOST_KEPT_BYTES", 1_000)
    made, work.text = diffs(), "x" * 240
    work.go.set()
    for seq in (2, 3, 2, 4, 2, 3):
        await made.between(TREE, moment(1), moment(seq))
    assert [int(snapshot, 16) for snapshot in work.asked] == [2, 3, 4, 3]
    assert made._bytes <= 1_000


LINES = st.lists(st.sampled_from(["a", "b", "", "-c", "+d", "@@ -1 +1 @@", "\\ no"]), max_size=12)


@given(LINES, LINES)
def test_hunks_hold_the_lines_of_a_diff_at_their_places(old: list[str], new: list[str]) -> None:
    text = "\n".join(unified_diff(old, new, "a/x", "b/x", lineterm=""))
    found = hunks(text)
    for hunk in found:
        before = [line for sign, line in hunk.lines if sign != "+"]
        after = [line for sign, line in hunk.lines if sign != "-"]
        assert before == (old[hunk.old_start - 1 :][: len(before)] if before else [])
        assert after == (new[hunk.new_start - 1 :][: len(after)] if after else [])
    changed = [line for hunk in found for line in hunk.lines if line[0] != " "]
    assert bool(changed) == (old != new)
