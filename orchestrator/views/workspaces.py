"""A portable session's folder as its log has it: its snapshots, the entries that name them, their packs."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, get_args

from orchestrator.boottime import boottime
from orchestrator.broker.records import SessionHead, StoredEntry
from orchestrator.core import facts as f
from orchestrator.core.entries import decode_entry, line_ms, stored_kind
from orchestrator.core.evolve import evolve_workspace
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.packs import FolderChange, Pack
from orchestrator.core.workspace import NO_WORKSPACE, Unsaved, Workspace
from orchestrator.folders import outcomes
from orchestrator.folders.keeper import Keeper
from orchestrator.private_files import make_folder
from orchestrator.recent import Recent
from orchestrator.rollouts.log_source import LogSource
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.views import ViewError
from orchestrator.workspaces.stored_packs import BrokenPack, PackName, Packs

PATIENCE_S = 3_600.0
"""The time for all work on one copy of a person's."""
FETCHED_AT_ONCE = 8
"""Packs that are fetched side by side."""
_FACTS = frozenset(get_args(f.WorkspaceFact))


@record
class Moment:
    """A snapshot, and the packs that it is made from, oldest first."""

    seq: int
    """The entry from which on the folder was so."""
    snapshot: outcomes.FolderSnapshot
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
    unsaved_from: int = 0
    """The entry from which on there are changes that the store does not have, if there are any."""

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

    def lacks(self, seq: int | None) -> bool:
        """Whether the folder had changes at an entry, or has them now, that the store does not have."""
        return self.unsaved is not None and (seq is None or seq >= self.unsaved_from)

    def settled(self, seq: int | None) -> Moment:
        """The same, for what is to be made of it; raises `ViewError` where its newest changes are unsaved."""
        found = self.at(seq)
        if self.unsaved is not None and self.lacks(seq):
            raise ViewError(
                f"the newest changes of this folder are on machine {self.unsaved.machine} only, because the "
                "store did not take them: try again when it has them, or name an entry before them (--at)"
            )
        return found


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
    read = _Read()
    await read.on(source, head)
    return read.past(head)


@record
class MergedChild:
    """A snapshot of a child that was merged into a session's folder."""

    at_ms: int
    agent_id: int
    snapshot: outcomes.FolderSnapshot
    packs: tuple[Pack, ...]


@dataclass(slots=True)
class _Read:
    """A log, as far as it was read for its folder."""

    seq: int = 0
    last: tuple[bytes, bytes] = (b"", b"")
    """The last entry: its link of the chain, and its line."""
    known: Workspace = NO_WORKSPACE
    moments: list[Moment] = field(default_factory=list)
    merges: list[MergedChild] = field(default_factory=list)
    unsaved_from: int = 0

    async def on(self, source: LogSource, head: SessionHead) -> bool:
        """Reads what is new; False if the log is not the one that was read: it was put back."""
        if self.seq > head.seq:
            return False
        if self.seq == head.seq:
            return self.last[0] == head.head
        async for stored in source.log(head.session, head.seq, max(0, self.seq - 1)):
            if stored.seq > self.seq:
                self._take(stored)
            elif (stored.chain, stored.payload) != self.last:
                return False
        return True

    def _take(self, stored: StoredEntry) -> None:
        self.seq, self.last = stored.seq, (stored.chain, stored.payload)
        if stored_kind(stored.payload) not in _FACTS:
            return
        fact = f.decode(decode_entry(stored.payload).payload)
        assert fact.of == "workspace"
        was_saved = self.known.unsaved is None
        self.known = known = evolve_workspace(self.known, fact)
        if was_saved and known.unsaved is not None:
            self.unsaved_from = stored.seq
        at_ms = line_ms(stored.payload)
        if isinstance(fact, f.WorkspaceMerged):
            merged = MergedChild(
                at_ms, int(fact.agent_id), outcomes.FolderSnapshot(fact.snapshot), fact.packs
            )
            self.merges.append(merged)
        snapshot = None if known.snapshot is None else outcomes.FolderSnapshot(known.snapshot)
        if snapshot is not None and (not self.moments or self.moments[-1].snapshot != snapshot):
            files, names = (fact.files.total, fact.names) if isinstance(fact, f.WorkspaceSaved) else (0, ())
            self.moments.append(Moment(stored.seq, snapshot, known.packs, files, names, at_ms))

    def past(self, head: SessionHead) -> FolderPast | None:
        """The snapshots; None if the log has none."""
        if not self.moments:
            return None
        known = self.known
        return FolderPast(head, tuple(self.moments), known.unsaved, known.change, self.unsaved_from)


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


async def folder_report(store: Packs, past: FolderPast, bounds: outcomes.Bounds) -> FolderReport:
    """Reads each snapshot as far as it differs from the one before; raises `ArchiveUnavailable`."""
    before, findings = None, list[tuple[int, str]]()
    for moment in past.moments:
        packs = packs_of((moment,) if before is None else (before, moment))
        known = None if before is None else before.snapshot
        try:
            async with fetched(store, past.head.tree, packs, bounds) as copy:
                await copy.keeper.diff(known, moment.snapshot, copy.packs, stat=True)
            before = moment
        except (BrokenPack, outcomes.FolderError) as error:
            # The next one is read whole: nothing is known of what it adds to.
            before = None
            findings.append((moment.seq, str(error)))
    return FolderReport(len(past.moments), len(packs_of(past.moments)), tuple(findings))


@asynccontextmanager
async def fetched(
    store: Packs,
    tree: TreeId,
    packs: Sequence[Pack],
    bounds: outcomes.Bounds,
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
        files = list[Path]()
        for first in range(0, len(packs), FETCHED_AT_ONCE):
            some = packs[first : first + FETCHED_AT_ONCE]
            fetching = (_fetched(store, PackName.of(pack.name, tree), pack, Path(spool)) for pack in some)
            # Nothing is written to the folder any more when it goes.
            for done in await asyncio.gather(*fetching, return_exceptions=True):
                if isinstance(done, BaseException):
                    raise done
                files.append(done)
        deadline = boottime() + PATIENCE_S
        place = outcomes.Place(folder or Path(spool, "folder"), objects)
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
MOST_AGENTS = 1_000
"""Agents whose changes are joined."""
MOST_PACKS = 3_000
"""Packs that are joined: each is mapped by one process."""
MOST_LOGS = 2_048
"""Logs that are kept as far as they were read for their folders."""
LOGS_AT_ONCE = 16
_Key: TypeAlias = tuple[object, ...]
_Kept: TypeAlias = outcomes.Difference | outcomes.Joined


@record
class Member:
    """An agent of a tree whose folder may be joined with others."""

    agent_id: int
    head: SessionHead
    above: tuple[int, ...] = ()
    """The agents that it is below, the nearest last."""


@record
class JoinedAgent:
    """An agent whose folder was joined, between two snapshots of it."""

    agent_id: int
    head: SessionHead
    base: Moment
    now: Moment
    unsaved: str = ""
    """The machine that alone has its newest changes."""


@record
class TreeChanges:
    """The changes of all agents of a tree. Branches of `joined` are numbers of `agents`."""

    agents: tuple[JoinedAgent | None, ...]
    """None for one whose folder no log has."""
    joined: outcomes.Joined
    left_out: int
    """Agents with changes beyond the bounds."""


class FolderDiffs:
    """Differences of snapshots, shared by all who ask this process."""

    def __init__(self, store: Callable[[], Packs], bounds: Callable[[], outcomes.Bounds]) -> None:
        self._store = store
        self._bounds = bounds
        self._room = asyncio.Semaphore(AT_ONCE)
        self._kept = Recent[_Key, _Kept](MOST_KEPT_BYTES, most=MOST_KEPT)
        self._under_way: dict[_Key, asyncio.Task[_Kept]] = {}
        self._logs: OrderedDict[str, _Read] = OrderedDict()

    async def between(
        self, tree: TreeId, before: Moment, after: Moment, path: str | None = None
    ) -> outcomes.Difference:
        """The figures of all files that differ, or with `path` (as these figures name it) one file's lines.

        Raises `ViewError` where they cannot be had now.
        """
        key = (before.snapshot, after.snapshot, path)
        found = await self._once(key, lambda: self._compared(tree, before, after, path))
        assert isinstance(found, outcomes.Difference)
        return found

    async def of_tree(
        self, source: LogSource, members: Sequence[Member], at_ms: int | None = None
    ) -> TreeChanges:
        """The changes of agents, as if all were merged into the first; each stands behind those above it.

        As they were at a time, with `at_ms`. Raises `ViewError` where they cannot be had now.
        """
        gate = asyncio.Semaphore(LOGS_AT_ONCE)
        reads = await asyncio.gather(*(self._read(source, member.head, gate) for member in members))
        found = _branches(members, reads, at_ms)
        key = tuple((one.parent, one.base, one.now, one.merged) for one in found.branches)
        if all(one.base == one.now for one in found.branches):
            return TreeChanges(found.agents, outcomes.Joined((), 0, 0, 0, 0), 0)
        done = await self._once(key, lambda: self._joined(members[0].head.tree, found))
        assert isinstance(done, outcomes.Joined)
        return TreeChanges(found.agents, done, found.left_out)

    async def _read(self, source: LogSource, head: SessionHead, gate: asyncio.Semaphore) -> _Read:
        """A session's log, read for its folder; only what is new of it is read again."""
        async with gate:
            read = self._logs.pop(head.session, None) or _Read()
            if not await read.on(source, head):
                read = _Read()
                await read.on(source, head)
            self._logs[head.session] = read
            if len(self._logs) > MOST_LOGS:
                self._logs.popitem(last=False)
            return read

    async def _once(self, key: _Key, make: Callable[[], Coroutine[None, None, _Kept]]) -> _Kept:
        """The answer that is kept, or is being made, or is made now."""
        if (known := self._kept.use(key)) is not None:
            return known
        if (task := self._under_way.get(key)) is None:
            task = asyncio.create_task(make())
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(task)

    async def _compared(
        self, tree: TreeId, before: Moment, after: Moment, path: str | None
    ) -> outcomes.Difference:
        async with self._copy(tree, packs_of((before, after))) as copy:
            return await copy.keeper.diff(
                before.snapshot, after.snapshot, copy.packs, stat=path is None, path=path
            )

    async def _joined(self, tree: TreeId, found: _Branches) -> outcomes.Joined:
        async with self._copy(tree, found.packs) as copy:
            return await copy.keeper.join(found.branches, copy.packs)

    @asynccontextmanager
    async def _copy(self, tree: TreeId, packs: Sequence[Pack]) -> AsyncIterator[FetchedFolder]:
        """Packs and a process that reads them, in its turn and for a short time. Raises `ViewError`."""
        bounds = self._bounds()
        bounds = replace(bounds, seconds=min(bounds.seconds, DIFF_S))
        try:
            async with asyncio.timeout(DIFF_S):
                await self._room.acquire()
        except TimeoutError:
            raise ViewError("many compare folders at the moment: ask again in a while") from None
        try:
            async with asyncio.timeout(2 * DIFF_S), fetched(self._store(), tree, packs, bounds) as copy:
                yield copy
        except TimeoutError:
            raise ViewError(f"the folder was not compared within {2 * DIFF_S:.0f} s: {INSTEAD}") from None
        except (BrokenPack, outcomes.FolderError, ArchiveUnavailable, OSError) as error:
            raise ViewError(f"the folder cannot be compared: {error}") from None
        finally:
            self._room.release()

    def _keep(self, key: _Key, done: asyncio.Task[_Kept]) -> None:
        del self._under_way[key]
        if not done.cancelled() and done.exception() is None:
            self._kept.put(key, done.result(), _size(done.result()))


INSTEAD = "`dendro diff` takes its time"


def _size(kept: _Kept) -> int:
    if isinstance(kept, outcomes.Joined):
        return sum(200 + len(file.path) + 50 * len(file.shares) for file in kept.files)
    return 2 * len(kept.text) + sum(100 + len(file.path) for file in kept.files)


@record
class _Branches:
    """Folders of agents that are joined, and the packs that make them, in the order of their chains."""

    agents: tuple[JoinedAgent | None, ...]
    branches: tuple[outcomes.Branch, ...]
    packs: tuple[Pack, ...]
    left_out: int


def _branches(members: Sequence[Member], reads: Sequence[_Read], at_ms: int | None) -> _Branches:
    """The branches of those agents that have changed something, or stand above one that has."""
    pasts = {one.agent_id: _cut(read, at_ms) for one, read in zip(members, reads, strict=True)}
    wanted, packs, left_out = _wanted(members, pasts)
    agents, branches, place = list[JoinedAgent | None](), list[outcomes.Branch](), dict[int, int]()
    for member, read in zip(members, reads, strict=True):
        if member.agent_id not in wanted:
            continue
        place[member.agent_id] = len(branches)
        moments, _ = pasts[member.agent_id]
        above = next((number for number in reversed(member.above) if number in place), members[0].agent_id)
        parent = None if not branches else place[above]
        if not moments:
            agents.append(None)
            branches.append(outcomes.Branch(parent, None, None))
            continue
        # A folder that no log has is as what its agents began with: all of theirs is open.
        merged = _merged(member, pasts) if parent is not None and agents[parent] is not None else None
        unsaved = read.known.unsaved if at_ms is None else None
        machine = "" if unsaved is None else unsaved.machine
        agents.append(JoinedAgent(member.agent_id, member.head, moments[0], moments[-1], machine))
        last = None if merged is None else merged.snapshot
        branches.append(outcomes.Branch(parent, moments[0].snapshot, moments[-1].snapshot, last))
    return _Branches(tuple(agents), tuple(branches), tuple(packs.values()), left_out)


_Past: TypeAlias = tuple[Sequence[Moment], Sequence[MergedChild]]


def _wanted(members: Sequence[Member], pasts: Mapping[int, _Past]) -> tuple[set[int], dict[str, Pack], int]:
    """The agents that are joined, the packs that make their folders, and how many agents had no room."""
    by_id = {member.agent_id: member for member in members}
    wanted, packs, left_out = {members[0].agent_id}, dict[str, Pack](), 0
    for member in members:
        moments, _ = pasts[member.agent_id]
        if not moments or moments[0].snapshot == moments[-1].snapshot:
            continue
        above = (number for number in member.above if number in by_id and pasts[number][0])
        line = (*above, member.agent_id)
        more = {pack.name: pack for number in line for pack in _packs(number, pasts, by_id)}
        if len(wanted.union(line)) > MOST_AGENTS or len(packs | more) > MOST_PACKS:
            left_out += 1
            continue
        wanted.update(line)
        packs |= more
    return wanted, packs, left_out


def _cut(read: _Read, at_ms: int | None) -> _Past:
    if at_ms is None:
        return read.moments, read.merges
    moments = [moment for moment in read.moments if moment.at_ms <= at_ms]
    return moments, [merge for merge in read.merges if merge.at_ms <= at_ms]


def _merged(member: Member, pasts: Mapping[int, _Past]) -> MergedChild | None:
    """The last merge of an agent by one above it."""
    above = (pasts[number] for number in reversed(member.above) if number in pasts)
    merges = (merge for _, known in above for merge in reversed(known))
    return next((merge for merge in merges if merge.agent_id == member.agent_id), None)


def _packs(number: int, pasts: Mapping[int, _Past], by_id: Mapping[int, Member]) -> Iterator[Pack]:
    moments, _ = pasts[number]
    merged = _merged(by_id[number], pasts)
    yield from moments[0].packs
    yield from () if merged is None else merged.packs
    yield from moments[-1].packs


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
