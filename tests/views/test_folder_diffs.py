"""Differences of folders for doors: few at once, each made once, and failures that are told and not kept."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from difflib import unified_diff
from hashlib import sha256
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.broker.records import SessionHead, StoredEntry
from orchestrator.core import facts as f
from orchestrator.core.entries import Entry, encode_entry, fact
from orchestrator.core.ids import AgentId, TreeId
from orchestrator.folders.outcomes import (
    Bounds,
    Branch,
    Counts,
    Difference,
    FolderError,
    FolderSnapshot,
    Joined,
)
from orchestrator.protocol.ids import CallId, SnapshotId
from orchestrator.rollouts.log_source import LogSource
from orchestrator.views import ViewError, workspaces
from orchestrator.views.workspaces import AT_ONCE, FolderDiffs, Member, Moment, TreeChanges, hunks
from tests.views.test_workspaces import SAID, begun, pack, saved

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
    branches: list[tuple[Branch, ...]] = field(default_factory=list)

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

    async def join(self, branches: Sequence[Branch], _: object) -> Joined:
        self.branches.append(tuple(branches))
        self.news.set()
        await self.go.wait()
        return Joined((), 0, 0, 0, 0)

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
    assert made._kept.bytes <= 1_000


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


# ── all agents of a tree ──────────────────────────────────────────────────────────────────────────


def merged(agent: int, number: int) -> Entry:
    packs = (pack(0, whole=True), pack(number))
    return fact(f.WorkspaceMerged(CallId("c3"), AgentId(agent), None, SnapshotId(f"s{number}"), packs))


class Logs:
    """Logs of sessions, by their names; each entry a second behind the one before."""

    def __init__(self, **logs: Sequence[Entry]) -> None:
        self.logs: dict[str, Sequence[Entry]] = dict(logs)
        self.read: list[tuple[str, int]] = []

    async def log(self, session: str, through: int, after: int = 0) -> AsyncIterator[StoredEntry]:
        self.read.append((session, through - after))
        for seq in range(after + 1, min(through, len(self.logs[session])) + 1):
            yield StoredEntry(seq, 1, self.line(session, seq), b"", self.link(session, seq))

    def line(self, session: str, seq: int) -> bytes:
        return encode_entry(self.logs[session][seq - 1], 1_000 * seq, {}).line

    def link(self, session: str, seq: int) -> bytes:
        """The link of an entry in the chain: over all lines up to it."""
        return sha256(b"".join(self.line(session, one) for one in range(1, seq + 1))).digest()

    async def changes(
        self, made: FolderDiffs, above: Mapping[str, tuple[int, ...]], at_ms: int | None = None
    ) -> TreeChanges:
        members = [
            Member(number, cast(SessionHead, Head(name, TREE, last, self.link(name, last))), line)
            for number, (name, line) in enumerate(above.items())
            for last in (len(self.logs[name]),)
        ]
        return await made.of_tree(cast(LogSource, self), members, at_ms)


@dataclass
class Head:
    session: str
    tree: TreeId
    seq: int
    head: bytes


FAMILY = {"root": (), "one": (0,), "two": (0,), "low": (0, 1)}


async def test_agents_are_joined_behind_those_that_they_merge_into_without_those_that_did_nothing(
    work: Work,
) -> None:
    work.go.set()
    logs = Logs(
        root=[begun(0), merged(3, 6), SAID],
        one=[begun(0), merged(3, 5)],
        two=[begun(0)],
        low=[begun(0), saved(5)],
    )
    found = await logs.changes(diffs(), FAMILY)
    assert [one.agent_id for one in found.agents if one is not None] == [0, 1, 3]
    first, above, low = work.branches[0]
    assert (first.parent, above.parent, low.parent) == (None, 0, 1)
    assert (low.base, low.now, low.merged) == ("s0", "s5", "s5"), "the nearest agent's merge counts"
    # Before that entry's time the agent had its first snapshot, and nothing was to be joined.
    assert (await logs.changes(diffs(), FAMILY, 1_500)).joined.files == ()
    assert len(work.branches) == 1


@pytest.mark.parametrize("at", [None, 2, 3, 4, 5])
async def test_last_merge_of_each_agent_up_to_that_moment_counts_however_many_there_were(
    work: Work, at: int | None
) -> None:
    """By the nearest agent above that has merged it; others are merged before, between and behind."""
    work.go.set()
    by_root = [some for count in range(4) for some in itertools.product((1, 2, 3), repeat=count)]
    by_one = [some for count in range(3) for some in itertools.product((3, 9), repeat=count)]
    for root, one in itertools.product(by_root, by_one):
        logs = Logs(
            root=[begun(0), saved(4), *(merged(agent, 10 + n) for n, agent in enumerate(root))],
            one=[begun(0), saved(1), *(merged(agent, 20 + n) for n, agent in enumerate(one))],
            two=[begun(0), saved(2)],
            low=[begun(0), saved(3)],
        )
        work.branches.clear()
        found = await logs.changes(diffs(), FAMILY, None if at is None else 1_000 * at)
        assert [one and one.agent_id for one in found.agents] == [0, 1, 2, 3]
        until = 9 if at is None else at - 2
        by_first = {agent: f"s{10 + n}" for n, agent in enumerate(root[:until])}
        by_second = {agent: f"s{20 + n}" for n, agent in enumerate(one[:until])}
        wanted = [None, by_first.get(1), by_first.get(2), by_second.get(3, by_first.get(3))]
        assert [branch.merged for branch in work.branches[0]] == wanted, (root, one)


async def test_folder_of_the_root_that_no_log_has_is_told_as_none(work: Work) -> None:
    work.go.set()
    logs = Logs(root=[SAID, merged(1, 1)], one=[begun(0), saved(1)])
    found = await logs.changes(diffs(), {"root": (), "one": (0,)})
    assert found.agents[0] is None
    assert work.branches[0] == (
        Branch(None, None, None),
        Branch(0, FolderSnapshot("s0"), FolderSnapshot("s1")),
    )


async def test_only_what_is_new_of_a_log_is_read_again_and_one_that_was_put_back_anew(work: Work) -> None:
    work.go.set()
    logs, made, alone = Logs(root=[begun(0), saved(1), SAID]), diffs(), {"root": ()}
    await logs.changes(made, alone)
    await logs.changes(made, alone)
    assert logs.read == [("root", 3)]
    logs.logs["root"] = [*logs.logs["root"], saved(2)]
    await logs.changes(made, alone)
    assert logs.read[1:] == [("root", 2)], "the last one that was read, to see that it is the same"
    logs.logs["root"] = [begun(0), saved(7)]
    await logs.changes(made, alone)
    logs.logs["root"] = [begun(0), saved(7), saved(8)]
    await logs.changes(made, alone)
    logs.logs["root"] = [begun(0), saved(7), saved(9), saved(4)]
    await logs.changes(made, alone)
    assert [branches[0].now for branches in work.branches] == ["s1", "s2", "s7", "s8", "s4"]


@pytest.mark.parametrize("more", [0, 1, 2])
@pytest.mark.parametrize("other", [0, 1, 2], ids=["first", "second", "last"])
async def test_log_that_was_put_back_and_is_as_long_again_is_read_anew(
    work: Work, other: int, more: int
) -> None:
    """Another entry stands at one place, and behind it the same lines as before, or more of them."""
    work.go.set()
    logs, made, alone = Logs(root=[begun(0), saved(1), SAID]), diffs(), {"root": ()}
    await logs.changes(made, alone)
    changed = [begun(0), saved(1), SAID]
    changed[other] = saved(9)
    logs.logs["root"] = [*changed, *[SAID] * more]
    found = await logs.changes(made, alone)
    assert [one.now.snapshot for one in found.agents if one is not None] == [["s1", "s9", "s9"][other]]
    assert logs.read[-1] == ("root", 3 + more), "from its first entry on"


@pytest.mark.parametrize("bound", [{"MOST_AGENTS": 2}, {"MOST_PACKS": 2}])
async def test_agents_beyond_the_bounds_are_counted(
    work: Work, monkeypatch: pytest.MonkeyPatch, bound: dict[str, int]
) -> None:
    for name, most in bound.items():
        monkeypatch.setattr(workspaces, name, most)
    work.go.set()
    changed = [begun(0), saved(1)]
    logs = Logs(root=[begun(0)], one=changed, two=[begun(0), saved(2)], low=[begun(0), saved(3)])
    found = await logs.changes(diffs(), FAMILY)
    assert ([one and one.agent_id for one in found.agents], found.left_out) == ([0, 1], 2)
