"""Portable folders of a simulation: copies on hosts, packs in the store, and the runtime's port over both.

What a folder holds is a list of marks: one where a call begins to write, one where it has written all. A host
has several workers; what it keeps of a folder outlives them. Nothing here judges.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import orjson

from orchestrator.broker.records import Claim
from orchestrator.core.calls import MergeWork
from orchestrator.core.folder_commands import (
    FolderChanged,
    FolderFailed,
    FolderMade,
    FolderMerged,
    FolderNotMerged,
    FolderUnsaved,
)
from orchestrator.core.folder_use import may_write
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId
from orchestrator.core.packs import FileCounts, Pack
from orchestrator.core.settings import FolderSetup, PortableFolder
from orchestrator.core.state import State
from orchestrator.core.turn_calls import Call
from orchestrator.protocol.ids import CallId, SnapshotId
from orchestrator.rollouts.objects import ArchiveUnavailable
from orchestrator.tools.site import CallSite
from orchestrator.workspaces.deadlines import BUSY_S, RETRY_S
from sim.ledger import Run
from sim.loop import SimLoop
from sim.objects import SimObjects

PORTABLE = PortableFolder("/sim", "folder", untold=True)
SCRIPTED = replace(PORTABLE, setup=FolderSetup("install"))
"""The same with a set-up."""
COPIED = PortableFolder("/sim", "folder")
SCRIPTED_COPY = replace(COPIED, setup=FolderSetup("install"))
RULES = "rules of the folder"
UNTRUSTED = "the folder's own set-up is not run"
"""The warning about each first content without a set-up."""
SETUP = CallId("set-up")
"""The name of set-ups among calls."""
MOST_ADDED = 3
"""Packs behind one that stands alone; the product adds more of them."""
STORE_PATIENCE_S = 20.0
Content = tuple[str, ...]


@dataclass(slots=True, eq=False)
class Copy:
    """A folder on a host."""

    content: list[str]
    holder: str
    """The claim that made it, or found it clean."""
    clean: str = ""
    """The snapshot that it is known to be at; empty: nobody knows."""
    left_by: int = 0
    """The epoch of the claim by which it is known."""
    prepared: bool = False
    """Whether a set-up has run in it to its end, and none has begun since."""


@dataclass(frozen=True, slots=True)
class Keeper:
    """The process that alone touches a copy, under a claim, while it lives."""

    claim: str
    lives: Callable[[], bool]


@dataclass(slots=True)
class Folders:
    """All folders, as hosts and the store have them."""

    store: SimObjects
    copies: dict[tuple[str, str], Copy] = field(default_factory=dict)
    """By host and session."""
    keepers: dict[tuple[str, str], Keeper] = field(default_factory=dict)
    """The last one that had the lock of each copy."""
    let_go: set[str] = field(default_factory=set)
    """Claims whose worker has given their copy back."""
    unsaved: dict[tuple[str, str], SnapshotId] = field(default_factory=dict)
    """The snapshot that a host took and the store did not."""
    contents: dict[str | None, Content] = field(default_factory=lambda: {None: ()})
    """The content of every snapshot that was ever taken."""
    shared: dict[str, list[str]] = field(default_factory=dict)
    """The folders that sessions work in as they are, by session; those of which agents have copies."""
    unsettled: dict[str, tuple[MergeWork, list[str]]] = field(default_factory=dict)
    """The merge into such a folder that the log may not have, with its marks."""
    hosts: int = 2
    hosts_of: dict[str, str] = field(default_factory=dict)
    """By worker."""
    full: dict[str, float] = field(default_factory=dict)
    """Hosts with too little room for another folder, and since when."""
    lost: set[str] = field(default_factory=set)
    """Hosts that never come back."""
    faulty: bool = True
    """Whether machines may fail to make a folder, and disks be full."""
    stops: Callable[[str], None] = lambda worker: None
    """Lets a worker stand still for longer than it may trust its claim."""
    met: Callable[[str, str, str, Copy | None], None] = lambda session, call_id, claim, copy: None
    """Told of a call that begins, and of the folder that it meets."""
    prepares: Callable[[str, str, Copy], bool] = lambda session, claim, copy: False
    """Told of a set-up that begins, and of the folder that it meets; says whether Redis has lost that."""
    made: Callable[[str, str, Copy | None], None] = lambda session, claim, before: None
    """Told of a claim that puts its copy in the place of another one."""
    cleaned: Callable[[str, Copy], None] = lambda session, copy: None
    """Told of a copy that is taken for clean."""
    wrote: Callable[[str, str, Copy], None] = lambda session, claim, copy: None
    """Told of a mark that a run under a claim makes."""
    runs: int = 0

    def host_of(self, worker: str) -> str:
        """The host that a worker, or one inside of an upkeep process (`u1/reaper`), runs on.

        A new one is none of those that are lost.
        """
        if worker not in self.hosts_of:
            hosts = [f"h{number + 1}" for number in range(self.hosts)]
            there = [host for host in hosts if host not in self.lost] or hosts
            number = int(worker.partition("/")[0][1:])
            self.hosts_of[worker] = there[number % len(there)]
        return self.hosts_of[worker]

    def meets(self, run: Run, call: Call, site: CallSite) -> None:
        """Gives a run the folder that it meets, to mark its writes there if it may write."""
        state, session = site.state, str(site.session)
        if state.task is None:
            return
        if state.facts.portable is None:
            if session in self.shared and may_write(call.work, state.task.settings):
                self._meets_shared(run, call, self.shared[session])
            return
        copy = self.copies.get((self.host_of(run.machine), session))
        self.met(session, call.call_id, site.claim, copy)
        if copy is None or not may_write(call.work, state.task.settings):
            return
        self._writes(run, copy)

    def sets_up(self, run: Run, site: CallSite) -> bool:
        """Gives a set-up the folder that it prepares; False where there is none."""
        copy = self.copies.get((self.host_of(run.machine), run.session))
        if copy is None:
            return False
        run.lost = self.prepares(run.session, site.claim, copy)
        self._writes(run, copy)
        return True

    def _writes(self, run: Run, copy: Copy) -> None:
        self.runs += 1
        name, marks = f"{run.call_id}/{self.runs}", list[str]()

        def mark(what: str) -> None:
            marks.append(f"{name}:{what}")
            copy.content.append(marks[-1])
            if run.call_id == SETUP:
                copy.prepared = what == "done"
            self.wrote(run.session, run.claim, copy)

        run.marks, run.mark = marks, mark

    def _meets_shared(self, run: Run, call: Call, folder: list[str]) -> None:
        """Has a command mark the folder that its session works in; the end of a process is not told."""
        if run.files or run.lasting:
            return
        self.runs += 1
        name, marks = f"{call.call_id}/{self.runs}", list[str]()

        def mark(what: str) -> None:
            marks.append(f"{name}:{what}")
            folder.append(marks[-1])

        run.marks, run.mark = marks, mark

    def taken(self, content: Content, parent: SnapshotId | None, at_ms: int) -> SnapshotId:
        """The snapshot of a content."""
        named = orjson.dumps([content, parent, at_ms])
        snapshot = SnapshotId(hashlib.sha1(named, usedforsecurity=False).hexdigest())
        self.contents[snapshot] = content
        return snapshot

    def put(self, state: State, claim: Claim, marks: Content, *, whole: bool) -> Pack:
        """Stores a pack; raises `ArchiveUnavailable`."""
        data = orjson.dumps({"marks": marks})
        sha256 = hashlib.sha256(data).hexdigest()
        facts = state.facts
        name = f"{facts.tree_id}/workspaces/{facts.session_id}/{claim.epoch}-{claim.claim_id}-{sha256}.pack"
        if self.store.away:
            raise ArchiveUnavailable("the store is away")
        self.store.put(name, data)
        return Pack(name, sha256, len(data), whole)

    def read(self, packs: Sequence[Pack]) -> Content:
        """The content that packs make, as the store has them."""
        content: Content = ()
        for pack in packs:
            data = self.store.get(pack.name)
            if data is None or hashlib.sha256(data).hexdigest() != pack.sha256:
                raise ValueError(f"the store has no {pack.name}")
            made = orjson.loads(data)
            content = tuple(made["marks"]) if pack.whole else (*content, *made["marks"])
        return content


@dataclass(slots=True)
class _Held:
    copy: Copy
    stored: SnapshotId | None
    standing: SnapshotId | None
    packs: tuple[Pack, ...]
    one_by_one: asyncio.Lock = field(default_factory=asyncio.Lock)


class SimFolders:
    """The port of one worker."""

    def __init__(
        self,
        loop: SimLoop,
        rng: Random,
        folders: Folders,
        worker: str,
        trusted_until_s: Callable[[str], float],
    ) -> None:
        self._loop, self._rng, self._folders = loop, rng, folders
        self._worker = worker
        self._trusted_until_s = trusted_until_s
        self._held: dict[str, _Held] = {}

    @property
    def machine(self) -> str:
        return self._folders.host_of(self._worker)

    def _permits(self, claim: Claim) -> bool:
        """Whether the keeper of this claim lives: nothing else touches the copy."""
        return self._loop.time() < self._trusted_until_s(claim.claim_id)

    async def unfit(self) -> str:
        return "too little room" if self.machine in self._folders.full else ""

    async def has(self, state: State) -> SnapshotId | None:
        return self._has(state)

    def _has(self, state: State) -> SnapshotId | None:
        return self._folders.unsaved.get((self.machine, str(state.facts.session_id)))

    async def make(self, state: State, claim: Claim) -> FolderMade | FolderFailed:
        await asyncio.sleep(self._rng.choice((0.0, 0.05, 1.0, 4.0)) * self._rng.random())
        if self._folders.faulty and self._rng.random() < 0.15:
            self._folders.stops(self._worker)
            await asyncio.sleep(0.1)
        place, known = (self.machine, str(claim.session)), state.workspace
        if self.machine in self._folders.full or (self._folders.faulty and self._rng.random() < 0.05):
            return FolderFailed(self.machine, "no space left", elsewhere=True)
        if not await self._locks(place, claim):
            return FolderFailed(self.machine, "another process works on the copy", elsewhere=True)
        if known.snapshot is None:
            return await self._first(state, claim)
        copy, anew = self._folders.copies.get(place), False
        standing = known.standing
        if standing != known.snapshot and self._has(state) != standing:
            standing = known.snapshot
        if copy is None or (copy.clean, copy.left_by) != (standing, known.epoch):
            try:
                content = await self._content(state)
            except ArchiveUnavailable as error:
                return FolderFailed(self.machine, str(error), elsewhere=True)
            # It counts as clean when the log has it, and not before.
            copy, anew = Copy(list(content), claim.claim_id), True
        if not self._permits(claim):
            return FolderFailed(self.machine, "the claim is over", elsewhere=True)
        copy.holder = claim.claim_id
        self._folders.made(claim.session, claim.claim_id, self._folders.copies.get(place))
        self._folders.copies[place] = copy
        self._held[claim.claim_id] = _Held(copy, known.snapshot, standing, known.packs)
        return FolderMade(self.machine, standing, anew)

    async def _locks(self, place: tuple[str, str], claim: Claim) -> bool:
        """Whether the claim's keeper has the copy; waits for another one's end, as the product does."""
        until_s = self._loop.time() + BUSY_S
        while (other := self._folders.keepers.get(place)) is not None and other.claim != claim.claim_id:
            if not other.lives():
                break
            if self._loop.time() > until_s:
                return False
            await asyncio.sleep(RETRY_S)
        self._folders.keepers[place] = Keeper(claim.claim_id, lambda: self._permits(claim))
        return True

    async def _first(self, state: State, claim: Claim) -> FolderMade | FolderFailed:
        snapshot = self._folders.taken((), None, 0)
        try:
            pack = self._folders.put(state, claim, (), whole=True)
        except ArchiveUnavailable as error:
            return FolderFailed(self.machine, str(error), elsewhere=True)
        if not self._permits(claim):
            return FolderFailed(self.machine, "the claim is over", elsewhere=True)
        copy = Copy([], claim.claim_id)
        self._folders.copies[self.machine, str(claim.session)] = copy
        self._held[claim.claim_id] = _Held(copy, snapshot, snapshot, (pack,))
        assert state.facts.portable is not None
        warning = UNTRUSTED if state.facts.portable.setup is None else ""
        return FolderMade(self.machine, snapshot, anew=True, fetched=pack, warning=warning)

    async def _content(self, state: State) -> Content:
        """The content of the standing snapshot: of this host alone, or of the store's packs."""
        known = state.workspace
        if known.standing != known.snapshot and self._has(state) == known.standing:
            return self._folders.contents[known.standing]
        until_s = self._loop.time() + STORE_PATIENCE_S
        while self._folders.store.away:
            if self._loop.time() > until_s:
                raise ArchiveUnavailable("the store is away")
            await asyncio.sleep(1.0)
        return self._folders.read(known.packs)

    async def writing(self, state: State, claim: Claim) -> None:
        held = self._held.get(claim.claim_id)
        if held is not None:
            async with held.one_by_one:
                held.copy.clean = ""

    async def changed(
        self,
        state: State,
        claim: Claim,
        call_ids: Sequence[CallId],
        at_ms: int,
        within_s: float | None = None,
    ) -> FolderChanged | FolderUnsaved | None:
        held = self._held.get(claim.claim_id)
        if held is None:
            return None
        async with held.one_by_one:
            return await self._recorded(held, state, claim, tuple(call_ids), at_ms, within_s)

    async def _recorded(
        self,
        held: _Held,
        state: State,
        claim: Claim,
        call_ids: tuple[CallId, ...],
        at_ms: int,
        within_s: float | None,
    ) -> FolderChanged | FolderUnsaved | None:
        folders, content = self._folders, tuple(held.copy.content)
        before = folders.contents[held.stored]
        if content == before:
            return None
        if folders.faulty and self._rng.random() < 0.1:
            return FolderUnsaved(self.machine, "no space left", call_ids, at_ms, blocked=True)
        snapshot = self._folders.taken(content, held.stored, at_ms)
        needs_s = self._rng.choice((0.0, 0.05, 0.5, 3.0)) * self._rng.random()
        await asyncio.sleep(needs_s if within_s is None else min(needs_s, within_s))
        late = within_s is not None and needs_s > within_s
        added = len(held.packs) - 1
        whole = added >= MOST_ADDED or content[: len(before)] != before
        try:
            if late or not self._permits(claim):
                raise ArchiveUnavailable("it is late")
            marks = content if whole else content[len(before) :]
            pack = self._folders.put(state, claim, marks, whole=whole)
        except ArchiveUnavailable as error:
            held.standing = snapshot
            if self._permits(claim):
                folders.unsaved[self.machine, str(claim.session)] = snapshot
            return FolderUnsaved(self.machine, str(error), call_ids, at_ms, snapshot)
        parent, held.stored, held.standing = held.stored, snapshot, snapshot
        held.packs = (pack,) if whole else (*held.packs, pack)
        counts = FileCounts(0, 1, 0)
        return FolderChanged(snapshot, parent, pack, counts, content[-1:], call_ids, at_ms)

    async def merge(self, state: State, claim: Claim, work: MergeWork) -> FolderMerged | FolderNotMerged:
        await asyncio.sleep(self._rng.choice((0.0, 0.05, 1.0)) * self._rng.random())
        held = self._held.get(claim.claim_id)
        if held is None or not self._permits(claim):
            return FolderNotMerged("the claim is over")
        base, theirs = self._folders.contents[work.base], self._folders.contents[work.snapshot]
        news = [mark for mark in theirs if mark not in base and mark not in held.copy.content]
        held.copy.content += news
        return FolderMerged(FileCounts(0, len(news), 0), ())

    def recorded(self, state: State, claim: Claim, *, resting: bool) -> None:
        held = self._held.get(claim.claim_id)
        if held is None or not self._permits(claim):
            # Its keeper has ended, and another one may have the copy.
            return
        if resting and held.standing == state.workspace.standing:
            copy = self._folders.copies[self.machine, str(claim.session)]
            copy.clean, copy.left_by = str(held.standing), claim.epoch
            self._folders.cleaned(claim.session, copy)

    async def instructions(self, state: State, folder: str) -> str | None:
        assert state.workspace.snapshot is not None, "a folder that nobody has made holds no instructions"
        return RULES

    async def release(self, session: SessionId, claim: Claim) -> None:
        self._held.pop(claim.claim_id, None)
        self._folders.let_go.add(claim.claim_id)
        place = self.machine, str(session)
        if (keeper := self._folders.keepers.get(place)) is not None and keeper.claim == claim.claim_id:
            del self._folders.keepers[place]
