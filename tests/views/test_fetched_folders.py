"""Packs that are fetched for work on a folder, and the report on all snapshots of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.broker.records import SessionHead
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.packs import Pack
from orchestrator.folders.outcomes import Bounds, FolderError, FolderSnapshot
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.views import workspaces
from orchestrator.views.workspaces import FETCHED_AT_ONCE, FolderPast, Moment, fetched, folder_report
from orchestrator.workspaces.stored_packs import BrokenPack, PackName, Packs

TREE = "01a1f8a1-c5d0-7001-97bc-c80be6a60f79"
NOTHING: Any = None


def pack(number: int) -> Pack:
    name = PackName(TreeId(TREE), SessionId(TREE), 1, "c", f"{number:064x}")
    return Pack(str(name), name.sha256, 100 + number, whole=number == 0)


def moment(number: int) -> Moment:
    """A snapshot that needs all packs up to its own."""
    packs = tuple(pack(each) for each in range(number + 1))
    return Moment(10 * number + 1, FolderSnapshot(f"s{number}"), packs)


# ── all snapshots of a folder ─────────────────────────────────────────────────────────────────────


class Work:
    """Stands for the process that compares; some snapshots, and some packs, are damaged."""

    def __init__(self, snapshots: Sequence[int] = (), packs: Sequence[int] = ()) -> None:
        self.damaged, self.lost = {f"s{number}" for number in snapshots}, set(packs)
        self.asked: list[tuple[str | None, str]] = []
        self.keeper, self.packs = self, ()

    @asynccontextmanager
    async def fetched(
        self, store: object, tree: TreeId, packs: Sequence[Pack], bounds: Bounds
    ) -> AsyncIterator[Any]:
        assert tree == TREE
        names = [each.name for each in packs]
        assert len(set(names)) == len(names), "each is fetched once"
        for number in sorted(self.lost):
            if pack(number) in packs:
                raise BrokenPack(f"the store lacks {number}")
        yield self

    async def diff(self, before: str | None, after: str, packs: object, *, stat: bool) -> None:
        assert stat
        self.asked.append((before, after))
        if after in self.damaged:
            raise FolderError("damaged", f"{after} is damaged")


@pytest.mark.parametrize(
    ("snapshots", "packs", "asked", "found"),
    [
        ((), (), [(None, 0), (0, 1), (1, 2), (2, 3)], {}),
        ((1,), (), [(None, 0), (0, 1), (None, 2), (2, 3)], {1: "s1 is damaged"}),
        ((0, 1), (), [(None, 0), (None, 1), (None, 2), (2, 3)], {0: "s0 is damaged", 1: "s1 is damaged"}),
        ((3,), (), [(None, 0), (0, 1), (1, 2), (2, 3)], {3: "s3 is damaged"}),
        ((0, 2), (), [(None, 0), (None, 1), (1, 2), (None, 3)], {0: "s0 is damaged", 2: "s2 is damaged"}),
        ((), (2,), [(None, 0), (0, 1)], {2: "the store lacks 2", 3: "the store lacks 2"}),
        ((), (0, 3), [], dict.fromkeys(range(4), "the store lacks 0")),
    ],
)
async def test_each_snapshot_is_read_and_one_behind_a_broken_one_is_read_whole(
    monkeypatch: pytest.MonkeyPatch,
    snapshots: tuple[int, ...],
    packs: tuple[int, ...],
    asked: list[tuple[int | None, int]],
    found: dict[int, str],
) -> None:
    work = Work(snapshots, packs)
    monkeypatch.setattr(workspaces, "fetched", work.fetched)
    head = cast(SessionHead, SimpleNamespace(session=TREE, tree=TreeId(TREE), seq=99))
    past = FolderPast(head, tuple(moment(number) for number in range(4)))
    report = await folder_report(NOTHING, past, Bounds())
    assert work.asked == [(None if before is None else f"s{before}", f"s{after}") for before, after in asked]
    assert report.findings == tuple((10 * number + 1, said) for number, said in found.items())
    assert (report.snapshots, report.packs) == (4, 4)


async def test_store_that_is_away_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    class Away:
        async def __aenter__(self) -> None:
            raise ArchiveUnavailable("no route")

        async def __aexit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(workspaces, "fetched", lambda *_: Away())
    head = cast(SessionHead, SimpleNamespace(session=TREE, tree=TreeId(TREE), seq=99))
    with pytest.raises(ArchiveUnavailable):
        await folder_report(NOTHING, FolderPast(head, (moment(0),)), Bounds())


# ── packs ─────────────────────────────────────────────────────────────────────────────────────────


class Store:
    """A store that gives packs when it is let, and says how many are asked for at once."""

    def __init__(self, *broken: int) -> None:
        self.broken = {pack(number).sha256 for number in broken}
        self.most = self.under_way = 0
        self.ended: list[str] = []

    async def fetch(self, name: PackName, target: Path, most: int) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        # One that is broken says so first.
        for _ in range(1 if name.sha256 in self.broken else 3):
            await asyncio.sleep(0)
        self.under_way -= 1
        assert target.parent.is_dir(), "the folder is there until all have ended"
        if name.sha256 in self.broken:
            raise BrokenPack(f"{name.sha256[-1]} is broken")
        assert most == 100 + int(name.sha256, 16)
        target.write_text(name.sha256)
        self.ended.append(name.sha256)


class Process:
    """Stands for a keeper."""

    ends = 0

    @classmethod
    async def start(cls, place: Any, bounds: Bounds, deadline: float) -> Process:
        made = cls()
        made.place = place  # type: ignore[attr-defined]
        return made

    async def end(self) -> None:
        Process.ends += 1


@pytest.mark.parametrize("count", [0, 1, FETCHED_AT_ONCE, FETCHED_AT_ONCE + 1, 3 * FETCHED_AT_ONCE])
async def test_packs_are_fetched_some_at_once_and_handed_on_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(workspaces, "Keeper", Process)
    store, some = Store(), [pack(number) for number in range(count)]
    Process.ends = 0
    async with fetched(cast(Packs, store), TreeId(TREE), some, Bounds(), near=tmp_path) as copy:
        assert [file.read_text() for file in copy.packs] == [each.sha256 for each in some]
        assert all(file.is_relative_to(tmp_path) for file in (*copy.packs, copy.folder))
        assert Process.ends == 0
    assert store.most == min(count, FETCHED_AT_ONCE)
    assert (list(tmp_path.iterdir()), Process.ends) == ([], 1), "all goes with the block"


@pytest.mark.parametrize("broken", [(0,), (3,), (2, 5), (FETCHED_AT_ONCE,)])
async def test_pack_that_does_not_come_leaves_nothing_and_no_work_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: tuple[int, ...]
) -> None:
    monkeypatch.setattr(workspaces, "Keeper", Process)
    store, some = Store(*broken), [pack(number) for number in range(FETCHED_AT_ONCE + 2)]
    Process.ends = 0
    with pytest.raises(BrokenPack, match=f"{broken[0]} is broken"):
        async with fetched(cast(Packs, store), TreeId(TREE), some, Bounds(), near=tmp_path):
            pytest.fail("it was opened")
    assert (store.under_way, list(tmp_path.iterdir()), Process.ends) == (0, [], 0)
    first = len(some) if broken[0] >= FETCHED_AT_ONCE else FETCHED_AT_ONCE
    assert len(store.ended) == first - len(broken), "those beside it ended first"
