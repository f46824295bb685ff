"""A portable session's folder as its log has it: its snapshots, the entries that name them, their packs."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import get_args

from orchestrator.boottime import boottime
from orchestrator.broker.records import SessionHead
from orchestrator.core import facts as f
from orchestrator.core.entries import decode_entry, line_ms, stored_kind
from orchestrator.core.evolve import evolve_workspace
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.packs import FolderChange, Pack
from orchestrator.core.workspace import NO_WORKSPACE, Unsaved
from orchestrator.folders.keeper import Keeper
from orchestrator.folders.outcomes import Bounds, Difference, FolderError, FolderSnapshot, Place
from orchestrator.private_files import make_folder
from orchestrator.rollouts.objects import ArchiveUnavailable
from orchestrator.rollouts.source import LogSource
from orchestrator.views.view_errors import ViewError
from orchestrator.workspaces.stored_packs import BrokenPack, PackName, Packs

PATIENCE_S = 3_600.0
"""The time for all work on one copy of a person's."""
_FACTS = frozenset(get_args(f.WorkspaceFact))


@record
class Moment:
    """A snapshot, and the packs that it is made from, oldest first."""

    seq: int
    """The entry from which on the folder was so."""
    snapshot: FolderSnapshot
    packs: tuple[Pack, ...]
    files: int = 0
    """Files that differ from the snapshot before."""
    names: tuple[str, ...] = ()
    """Their paths, quoted, as many as the entry names."""
    at_ms: int = 0


@record
class FolderPast:
    """The snapshots of one session's folder, in the order of their entries."""

    head: SessionHead
    moments: tuple[Moment, ...]
    unsaved: Unsaved | None = None
    change: FolderChange | None = None

    @property
    def base(self) -> Moment:
        """The folder that the session began with."""
        return self.moments[0]

    def at(self, seq: int | None) -> Moment:
        """The folder as it was at an entry; now, without one. Raises `ViewError`."""
        if seq is None:
            return self.moments[-1]
        if not 1 <= seq <= self.head.seq:
            raise ViewError(f"session {self.head.session} has entries 1 to {self.head.seq}, and no {seq}")
        found = [moment for moment in self.moments if moment.seq <= seq]
        if not found:
            first = self.base.seq
            raise ViewError(
                f"at entry {seq} the folder of session {self.head.session} was not recorded yet: "
                f"it is from entry {first} on"
            )
        return found[-1]

    def settled(self, seq: int | None) -> Moment:
        """The same, for what is to be made of it; raises `ViewError` while the newest changes are unsaved."""
        if seq is None and self.unsaved is not None:
            raise ViewError(
                f"the newest changes of this folder are on machine {self.unsaved.machine} only, because the "
                "store did not take them: try again when it has them, or name an entry before them (--at)"
            )
        return self.at(seq)


async def folder_past(source: LogSource, head: SessionHead) -> FolderPast:
    """Reads a session's log for its folder; raises `ViewError` for one that has no portable folder."""
    found = await recorded_past(source, head)
    if found is None:
        raise ViewError(
            f"the folder of session {head.session} is not in its log: only portable folders are "
            '(`dendro run --portable "…"`), from the first call on that needs one'
        )
    return found


async def recorded_past(source: LogSource, head: SessionHead) -> FolderPast | None:
    """The same, and None for a session that has none."""
    known, moments = NO_WORKSPACE, list[Moment]()
    async for stored in source.log(head.session, head.seq):
        if stored_kind(stored.payload) not in _FACTS:
            continue
        fact = f.decode(decode_entry(stored.payload).payload)
        assert fact.of == "workspace"
        known = evolve_workspace(known, fact)
        snapshot = None if known.snapshot is None else FolderSnapshot(known.snapshot)
        if snapshot is not None and (not moments or moments[-1].snapshot != snapshot):
            files, names = (fact.files.total, fact.names) if isinstance(fact, f.WorkspaceSaved) else (0, ())
            moments.append(Moment(stored.seq, snapshot, known.packs, files, names, line_ms(stored.payload)))
    if not moments:
        return None
    return FolderPast(head, tuple(moments), known.unsaved, known.change)


def packs_of(moments: Iterable[Moment]) -> tuple[Pack, ...]:
    """The packs that all of these snapshots are made from, each once, in the order of their entries."""
    by_entry = sorted(moments, key=lambda moment: moment.seq)
    return tuple({pack.name: pack for moment in by_entry for pack in moment.packs}.values())


async def copied_to(
    store: Packs,
    tree: TreeId,
    session: SessionId,
    packs: Sequence[Pack],
    given: Callable[[str, Path], bool] = lambda sha256, target: False,
) -> int:
    """Stores packs of other sessions as this one's own; answers how many the store has not.

    `given` copies a pack that came with the session to a file. Raises `ArchiveUnavailable`.
    """
    lacking = 0
    with tempfile.TemporaryDirectory(prefix=".dendro-") as spool:
        file = Path(spool, "pack")
        for pack in packs:
            try:
                old = PackName.of(pack.name, TreeId(pack.name.partition("/")[0]))
                if not await asyncio.to_thread(given, pack.sha256, file):
                    await store.fetch(old, file, pack.bytes)
                await store.put(replace(old, tree=tree, session=session), file)
            except BrokenPack:
                lacking += 1
    return lacking


@record
class FetchedFolder:
    """Packs on this machine, and the confined process that reads them."""

    keeper: Keeper
    packs: Sequence[Path]
    folder: Path


@record
class FolderReport:
    """The packs of a folder, read again: what its entries name is in the store and whole, or what is not."""

    snapshots: int
    packs: int
    findings: tuple[tuple[int, str], ...]
    """The number of an entry, and what is wrong with its snapshot."""


async def folder_report(store: Packs, past: FolderPast, bounds: Bounds) -> FolderReport:
    """Reads each snapshot as far as it differs from the one before; raises `ArchiveUnavailable`."""
    before, findings = None, list[tuple[int, str]]()
    for moment in past.moments:
        packs = packs_of((moment,) if before is None else (before, moment))
        known = None if before is None else before.snapshot
        try:
            async with fetched(store, past.head.tree, packs, bounds) as copy:
                await copy.keeper.diff(known, moment.snapshot, copy.packs, stat=True)
            before = moment
        except (BrokenPack, FolderError) as error:
            # The next one is read whole: nothing is known of what it adds to.
            before = None
            findings.append((moment.seq, str(error)))
    return FolderReport(len(past.moments), len(packs_of(past.moments)), tuple(findings))


@asynccontextmanager
async def fetched(
    store: Packs,
    tree: TreeId,
    packs: Sequence[Pack],
    bounds: Bounds,
    folder: Path | None = None,
    near: Path | None = None,
) -> AsyncIterator[FetchedFolder]:
    """Fetches packs, for work on `folder`, or on one that is made and goes with the block.

    All that is written beside it lies in a folder of its own, in `near`, which goes with the block, too.
    Raises `BrokenPack`, `ArchiveUnavailable`, `FolderError`.
    """
    with tempfile.TemporaryDirectory(prefix=".dendro-", dir=near) as spool:
        objects = Path(spool, "objects")
        await asyncio.to_thread(make_folder, objects)
        files = [await _fetched(store, PackName.of(pack.name, tree), pack, Path(spool)) for pack in packs]
        deadline = boottime() + PATIENCE_S
        place = Place(folder or Path(spool, "folder"), objects)
        keeper = await Keeper.start(place, bounds, deadline)
        try:
            yield FetchedFolder(keeper, files, place.folder)
        finally:
            await keeper.end()


async def _fetched(store: Packs, name: PackName, pack: Pack, folder: Path) -> Path:
    file = folder / f"{name.sha256}.pack"
    await store.fetch(name, file, pack.bytes)
    return file


# ── differences for doors ─────────────────────────────────────────────────────────────────────────
# What clients of doors ask of folders: few at once, for a short time, and kept by the snapshots' hashes.


AT_ONCE = 2
"""Comparisons that run at once: each has a process of its own, and up to all packs of two snapshots."""
DIFF_S = 20.0
"""A comparison that takes longer is given up, as is one that waits so long for its turn."""
MOST_KEPT = 256
MOST_KEPT_BYTES = 32 << 20


class FolderDiffs:
    """Differences of snapshots, shared by all who ask this process."""

    def __init__(self, store: Callable[[], Packs], bounds: Callable[[], Bounds]) -> None:
        self._store = store
        self._bounds = bounds
        self._room = asyncio.Semaphore(AT_ONCE)
        self._kept: OrderedDict[tuple[str, str, str | None], Difference] = OrderedDict()
        self._bytes = 0
        self._under_way: dict[tuple[str, str, str | None], asyncio.Task[Difference]] = {}

    async def between(
        self, tree: TreeId, before: Moment, after: Moment, path: str | None = None
    ) -> Difference:
        """The figures of all files that differ, or with `path` (as these figures name it) one file's lines.

        Raises `ViewError` where they cannot be had now.
        """
        key = (before.snapshot, after.snapshot, path)
        if (known := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return known
        if (task := self._under_way.get(key)) is None:
            task = asyncio.create_task(self._compared(tree, before, after, path))
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(task)

    async def _compared(self, tree: TreeId, before: Moment, after: Moment, path: str | None) -> Difference:
        packs = packs_of((before, after))
        bounds = self._bounds()
        bounds = replace(bounds, seconds=min(bounds.seconds, DIFF_S))
        try:
            async with asyncio.timeout(DIFF_S):
                await self._room.acquire()
        except TimeoutError:
            raise ViewError("many compare folders at the moment: ask again in a while") from None
        try:
            async with asyncio.timeout(2 * DIFF_S), fetched(self._store(), tree, packs, bounds) as copy:
                return await copy.keeper.diff(
                    before.snapshot, after.snapshot, copy.packs, stat=path is None, path=path
                )
        except TimeoutError:
            raise ViewError(f"the folder was not compared within {2 * DIFF_S:.0f} s: {INSTEAD}") from None
        except (BrokenPack, FolderError, ArchiveUnavailable, OSError) as error:
            raise ViewError(f"the folder cannot be compared: {error}") from None
        finally:
            self._room.release()

    def _keep(self, key: tuple[str, str, str | None], done: asyncio.Task[Difference]) -> None:
        del self._under_way[key]
        if done.cancelled() or done.exception() is not None:
            return
        self._kept[key] = done.result()
        self._bytes += _size(done.result())
        while len(self._kept) > MOST_KEPT or self._bytes > MOST_KEPT_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= _size(oldest)


INSTEAD = "`dendro diff` takes its time"


def _size(difference: Difference) -> int:
    return 2 * len(difference.text) + sum(100 + len(file.path) for file in difference.files)


@record
class Hunk:
    """Lines of a file that stand together in a difference."""

    old_start: int
    new_start: int
    lines: tuple[tuple[str, str], ...]
    """Each with ` `, `+` or `-`, and its text without the line's end."""


_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


def hunks(text: str) -> tuple[Hunk, ...]:
    """The hunks of one file's unified diff."""
    found: list[tuple[int, int, list[tuple[str, str]]]] = []
    for line in text.split("\n"):
        if head := _HUNK.match(line):
            found.append((int(head[1]), int(head[2]), []))
        elif found and line[:1] in (" ", "+", "-"):
            found[-1][2].append((line[0], line[1:]))
    return tuple(Hunk(old, new, tuple(lines)) for old, new, lines in found)
