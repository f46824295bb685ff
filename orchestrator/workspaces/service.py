"""The folders of one worker's machine: the runtime's port, over copies, keepers and the store.

    make      a copy that is known to be clean is taken as it is; any other one is built beside it and put in
              its place, from packs of the store
    changed   the keeper takes a snapshot, its pack goes to the store, and only then the log hears of it
    release   the keeper ends, and with it the right to touch the copy

Whatever a folder, a disk or a store does becomes a command for the core, in words for people. A snapshot
whose pack the store did not take within `workspace.store_s` stays here, with its pack beside the copy.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from orchestrator.boottime import boottime
from orchestrator.broker.records import Claim
from orchestrator.config_keys import FOLDER_SETUP
from orchestrator.core import commands as c
from orchestrator.core.calls import MergeWork
from orchestrator.core.facts import WorkspaceSaved
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.core.packs import Pack
from orchestrator.core.settings import PortableFolder
from orchestrator.core.state import State
from orchestrator.folders.keeper import Keeper
from orchestrator.folders.outcomes import (
    Bounds,
    FolderError,
    FolderSnapshot,
    Place,
    ReadFile,
    Taken,
    Unchanged,
)
from orchestrator.instructions.skills import RecordedSkills, offered, recorded_skills, search_of
from orchestrator.private_files import make_folder
from orchestrator.protocol.ids import CallId, SnapshotId
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.sandbox.git import git_environment
from orchestrator.sandbox.trusted_files import find_program, named_folders
from orchestrator.workspaces.claimed_folder import (
    UNSAVED,
    Held,
    change_since_birth,
    changed_folder,
    fetch_all,
    forget_incoming,
    forget_unsaved,
    keep_unsaved,
    merge,
    place_of,
    told_omissions,
)
from orchestrator.workspaces.copies import RETRY_S, Copy, Deadlines, MachineConfig, boot_id, remove_tree
from orchestrator.workspaces.host_folders import HostFolders
from orchestrator.workspaces.pack_keys import KeyUnavailable
from orchestrator.workspaces.stored_packs import BrokenPack, PackName, Packs

STORE_PATIENCE_S = 60.0
"""The wait for a store that is away while a folder is made."""
LOST = frozenset({"lost", "time"})
"""Kinds of errors behind which there is no keeper any more."""
ELSEWHERE = frozenset({"no_space", "busy", "lost", "time", "failed"})
"""Kinds of errors that another machine may well not have."""
SOURCE = "source.git"
NOT_RUN = (
    f"the repository's own set-up {FOLDER_SETUP} is not run: a worker has cloned it, and nobody has read it. "
    "Read it, then begin a session with it: --setup FILE, or `workspace.setup` in the settings"
)
T = TypeVar("T")


class MachineFolders:
    """Implements `runtime.folders.Folders` on a real machine.

    Of a session that works in a folder of the machine as it is, `workspaces.host` has the work.
    """

    def __init__(
        self,
        config: MachineConfig,
        packs: Packs,
        now_ms: Callable[[], int],
        boottime: Callable[[], float] = boottime,
    ) -> None:
        self._config = config
        self._packs = packs
        self._now_ms = now_ms
        self._boottime = boottime
        self._boot = boot_id()
        self._held: dict[str, Held] = {}
        self._saving: set[asyncio.Task[WorkspaceSaved | c.FolderUnsaved | None]] = set()
        """Snapshots under way, also those that nobody waits for any more."""
        self._deadlines = Deadlines(boottime, config.trust_s)
        self._hosts = HostFolders(config, packs, now_ms, self._deadlines)
        self._reading = asyncio.Semaphore(MOST_READING)

    @property
    def machine(self) -> str:
        return self._config.machine

    # ── the claim ─────────────────────────────────────────────────────────────────────────────

    def extend(self, claim: str, deadline_boottime: float) -> None:
        """Writes a claim's deadline, in seconds of CLOCK_BOOTTIME; from any thread, and never blocks."""
        self._deadlines.extend(claim, deadline_boottime)
        held = self._held.get(claim)
        if held is not None:
            held.keeper.extend(deadline_boottime)
        self._hosts.extend(claim, deadline_boottime)

    async def release(self, session: SessionId, claim: Claim) -> None:
        held = self._held.pop(claim.claim_id, None)
        if held is None:
            return
        self._deadlines.forget(claim)
        async with held.working:
            await _ended(held.keeper)
        held.copy.touch()

    @property
    def holding(self) -> frozenset[SessionId]:
        """The sessions whose folders are held here."""
        return frozenset(held.copy.session for held in self._held.values())

    # ── making ────────────────────────────────────────────────────────────────────────────────

    async def unfit(self) -> str:
        return await asyncio.to_thread(self._config.unfit)

    async def has(self, state: State) -> SnapshotId | None:
        copy = Copy(self._config.root, state.facts.session_id, self._boot)
        unsaved = await asyncio.to_thread(lambda: copy.state().unsaved)
        kept = bool(unsaved) and (copy.path / UNSAVED).exists()
        return SnapshotId(unsaved) if kept else None

    async def make(self, state: State, claim: Claim) -> c.FolderMade | c.FolderFailed:
        portable, machine = state.facts.portable, self._config.machine
        assert portable is not None
        if fault := await asyncio.to_thread(self._config.fault, portable):
            return c.FolderFailed(machine, fault, elsewhere=True)
        try:
            held = await self._hold(state, claim, portable)
            async with held.working:
                return await self._made(state, held, portable)
        except FolderError as error:
            return c.FolderFailed(machine, error.text, elsewhere=error.kind in ELSEWHERE)
        except BrokenPack as error:
            return c.FolderFailed(machine, str(error))
        except CloneFailed as error:
            return c.FolderFailed(machine, str(error))
        except KeyUnavailable as error:
            return c.FolderFailed(machine, str(error), elsewhere=True)
        except ArchiveUnavailable as error:
            return c.FolderFailed(machine, f"the store did not give it: {error}", elsewhere=True)
        except OSError as error:
            return c.FolderFailed(machine, f"this machine refused it: {error}", elsewhere=True)

    async def _hold(self, state: State, claim: Claim, portable: PortableFolder) -> Held:
        """The folder's keeper under this claim: the one there is, or a new one."""
        if (held := self._held.get(claim.claim_id)) is not None:
            return held
        copy = Copy(self._config.root, state.facts.session_id, self._boot)
        await asyncio.to_thread(self._prepare, copy, Path(portable.path(state.facts.tree_id)))
        bounds = self.bounds(portable)
        keeper = await self._deadlines.keeper(place_of(copy), bounds, claim)
        held = Held(claim, state.facts, copy, keeper, bounds)
        self._held[claim.claim_id] = held
        keeper.extend(self._deadlines.of(claim))
        return held

    def _prepare(self, copy: Copy, seen: Path) -> None:
        copy.prepare()
        copy.touch()
        copy.note_seen(seen)
        # Commands see the copy there, and a mount needs a folder to stand on.
        make_folder(seen)

    def bounds(self, portable: PortableFolder) -> Bounds:
        """The bounds of a session's snapshots: its own globs, this machine's limits."""
        settings = self._config.settings
        return Bounds(
            max_file=settings.max_file,
            max_files=settings.max_files,
            max_bytes=settings.max_bytes,
            seconds=settings.seconds,
            include=portable.include,
            exclude=portable.exclude,
            ignored=portable.ignored,
        )

    async def _made(self, state: State, held: Held, portable: PortableFolder) -> c.FolderMade:
        known, machine = state.workspace, self._config.machine
        if known.snapshot is None:
            return await self._fetched(held, portable)
        standing = known.standing
        assert standing is not None
        # The next snapshot follows the last stored one, also where the folder is further on.
        clean = held.copy.is_clean(standing, known.epoch)
        if clean and await held.keeper.adopt((), FolderSnapshot(known.snapshot)):
            self._stands(held, state, standing)
            return c.FolderMade(machine, standing)
        held.copy.dirty(held.claim.claim_id)
        try:
            await self._build(held, state, standing)
        except FolderError as error:
            if error.kind not in {"damaged", "missing"}:
                raise
            # What a machine keeps may be damaged where the store's is not.
            await asyncio.to_thread(remove_tree, held.copy.objects / "packs")
            make_folder(held.copy.objects / "packs")
            await self._build(held, state, standing)
        self._stands(held, state, standing)
        return c.FolderMade(machine, standing, anew=True)

    async def _build(self, held: Held, state: State, standing: SnapshotId) -> None:
        packs = list(state.workspace.packs)
        files = await self._patiently(lambda: fetch_all(self._packs, held.copy, packs, held.facts))
        stored = state.workspace.snapshot
        if standing == stored:
            await held.keeper.make(files, FolderSnapshot(standing))
        else:
            assert stored is not None
            await held.keeper.make((*files, held.copy.path / UNSAVED), FolderSnapshot(standing))
            await held.keeper.adopt(files, FolderSnapshot(stored))
        await asyncio.to_thread(forget_incoming, held.copy)

    def _stands(self, held: Held, state: State, standing: SnapshotId) -> None:
        known = state.workspace
        held.stored = None if known.snapshot is None else FolderSnapshot(known.snapshot)
        held.standing = FolderSnapshot(standing)
        if known.unsaved is None:
            forget_unsaved(held.copy)

    async def _fetched(self, held: Held, portable: PortableFolder) -> c.FolderMade:
        """The first content of a folder: of the repository that it comes from, or empty."""
        source, repository, ref = portable.source, held.copy.objects / SOURCE, ""
        held.copy.dirty(held.claim.claim_id)
        if source is not None:
            url, asked = str(source.get("git", "")), str(source.get("ref") or "")
            try:
                check_source(url, asked, self._config.settings.git_protocols)
            except ValueError as error:
                raise CloneFailed(str(error)) from error
            await asyncio.to_thread(remove_tree, repository)
            seconds = self._config.settings.clone_s
            ref = await clone(url, asked, repository, self._config.environ, seconds)
        try:
            # A folder that stands there may be of the next holder by now. The keeper, which does not outlive
            # the claim, puts another one in its place below.
            there = repository if source is not None else None
            taken = await held.keeper.born(there, ref, self._now_ms(), of_folder=False)
        finally:
            if source is not None:
                await asyncio.to_thread(remove_tree, repository)
        await held.keeper.make((taken.pack,), taken.snapshot)
        pack = await self._patiently(lambda: self._stored(held, taken))
        held.stored = held.standing = taken.snapshot
        forget_unsaved(held.copy)
        omitted, warning = told_omissions((), taken.omitted), await _own_setup(held, portable)
        return c.FolderMade(self._config.machine, SnapshotId(taken.snapshot), True, pack, omitted, warning)

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Does what needs the store, again while it is away."""
        until = self._boottime() + STORE_PATIENCE_S
        while True:
            try:
                return await work()
            except KeyUnavailable:
                raise
            except ArchiveUnavailable:
                if self._boottime() > until:
                    raise
            await asyncio.sleep(RETRY_S)

    # ── changing ──────────────────────────────────────────────────────────────────────────────

    async def writing(self, state: State, claim: Claim) -> None:
        held = self._held.get(claim.claim_id)
        if held is not None:
            async with held.working:
                held.copy.dirty(claim.claim_id)

    async def changed(
        self,
        state: State,
        claim: Claim,
        call_ids: Sequence[CallId],
        at_ms: int,
        within_s: float | None = None,
    ) -> WorkspaceSaved | c.FolderUnsaved | None:
        held = self._held.get(claim.claim_id)
        if held is None:
            return None
        loop = asyncio.get_running_loop()
        until = None if within_s is None else loop.time() + within_s
        late = self._unsaved(f"it was not recorded within {within_s or 0:g} s", tuple(call_ids), at_ms)
        try:
            async with asyncio.timeout_at(until):
                await held.asking.acquire()
        except TimeoutError:
            return late
        try:
            # Cancelled, it goes on: half a snapshot is of no use, and the next one has the same parent.
            saving = asyncio.ensure_future(self._saved(held, state, tuple(call_ids), at_ms))
            self._saving.add(saving)
            saving.add_done_callback(self._saving.discard)
            left_s = None if until is None else max(0.0, until - loop.time())
            done, _ = await asyncio.wait((saving,), timeout=left_s)
            if not done:
                return late
            result = saving.result()
            if isinstance(result, WorkspaceSaved):
                if held.untold:
                    held.untold = result.snapshot
                held.stored = FolderSnapshot(result.snapshot)
                held.standing = held.stored
            elif isinstance(result, c.FolderUnsaved) and result.snapshot is not None:
                held.standing = FolderSnapshot(result.snapshot)
            return result
        finally:
            held.asking.release()

    async def _saved(
        self, held: Held, state: State, calls: tuple[CallId, ...], at_ms: int
    ) -> WorkspaceSaved | c.FolderUnsaved | None:
        async with held.working:
            try:
                taken = await self._taken(held, at_ms, live=bool(state.processes.living))
            except FolderError as error:
                return self._unsaved(error.text, calls, at_ms, blocked=error.kind == "no_space")
            except OSError as error:
                return self._unsaved(str(error), calls, at_ms, blocked=False)
            if isinstance(taken, Unchanged):
                held.standing, held.untold = taken.snapshot, ""
                return None
            try:
                pack = await asyncio.wait_for(self._stored(held, taken), self._config.settings.store_s)
            except (ArchiveUnavailable, BrokenPack, TimeoutError) as error:
                return await self._kept(held, taken, error, calls, at_ms)
            change = await change_since_birth(held, state, taken)
            return changed_folder(state, taken, pack, calls, at_ms, change)

    async def _taken(self, held: Held, at_ms: int, *, live: bool) -> Taken | Unchanged:
        """A snapshot after the last stored one; by another keeper if the first one is lost."""
        parent = held.stored
        assert parent is not None, "the folder was made before a call could change it"
        try:
            return await held.keeper.take(parent, at_ms, live=live)
        except FolderError as error:
            if error.kind != "lost":
                raise
        await self._replace_keeper(held)
        return await held.keeper.take(parent, at_ms, live=live)

    async def _stored(self, held: Held, taken: Taken) -> Pack:
        """The pack of a snapshot, once the store has it."""
        claim = held.claim
        name = PackName(held.facts.tree_id, held.facts.session_id, claim.epoch, claim.claim_id, taken.sha256)
        await self._packs.put(name, taken.pack)
        held.keeper.settle(taken)
        return Pack(str(name), taken.sha256, taken.bytes, taken.whole)

    async def _kept(
        self, held: Held, taken: Taken, error: Exception, calls: tuple[CallId, ...], at_ms: int
    ) -> c.FolderUnsaved:
        """Keeps a snapshot that the store did not take."""
        why = str(error) or f"the store did not take it within {self._config.settings.store_s:g} s"
        if self._is_over(held.claim):
            return self._unsaved(why, calls, at_ms)
        before, held.untold = held.untold, taken.snapshot
        try:
            await asyncio.to_thread(keep_unsaved, held.copy, taken)
        except OSError as broken:
            held.untold = before
            return self._unsaved(f"{why}; {broken}", calls, at_ms, blocked=broken.errno == 28)
        return self._unsaved(why, calls, at_ms, snapshot=SnapshotId(taken.snapshot))

    def _unsaved(
        self,
        reason: str,
        calls: tuple[CallId, ...],
        at_ms: int,
        *,
        snapshot: SnapshotId | None = None,
        blocked: bool = False,
    ) -> c.FolderUnsaved:
        return c.FolderUnsaved(self.machine, reason, calls, at_ms, snapshot, blocked)

    async def copy(self, state: State, claim: Claim, call_id: CallId) -> c.FolderCopied | c.FolderNotCopied:
        return await self._hosts.copy(state, claim, call_id)

    async def judge(self, state: State, claim: Claim, work: MergeWork) -> str:
        return await self._hosts.judge(state, claim, work)

    async def merge(self, state: State, claim: Claim, work: MergeWork) -> c.FolderMerged | c.FolderNotMerged:
        if state.facts.portable is None:
            return await self._hosts.merge(state, claim, work)
        held = self._held.get(claim.claim_id)
        if held is None:
            return c.FolderNotMerged("the folder is not on this machine any more")
        merging = asyncio.ensure_future(self._merge(held, work))
        try:
            return await asyncio.shield(merging)
        except asyncio.CancelledError:
            # Half a merge is none: it is ended before anybody looks at the folder.
            await asyncio.wait((merging,))
            raise

    async def _merge(self, held: Held, work: MergeWork) -> c.FolderMerged | c.FolderNotMerged:
        async with held.working:
            try:
                return await merge(held, self._packs, work)
            except FolderError as error:
                if error.kind not in LOST:
                    return c.FolderNotMerged(error.text, partly=error.kind == "half")
                return await self._taken_back(held, error.text)

    async def _taken_back(self, held: Held, why: str) -> c.FolderNotMerged:
        """Takes a merge back whose keeper was lost, by another keeper."""
        try:
            await self._replace_keeper(held)
            await held.keeper.take_back_merge()
        except (FolderError, OSError) as error:
            return c.FolderNotMerged(f"{why}; {error}", partly=True)
        return c.FolderNotMerged(f"{why}; merge again")

    async def _replace_keeper(self, held: Held) -> None:
        await _ended(held.keeper)
        held.keeper = await self._deadlines.keeper(place_of(held.copy), held.bounds, held.claim)

    def recorded(self, state: State, claim: Claim, *, resting: bool) -> None:
        if state.facts.portable is None:
            self._hosts.recorded(state, claim)
            return
        held = self._held.get(claim.claim_id)
        if held is None or self._is_over(claim):
            return
        known = state.workspace
        if held.untold == known.standing:
            held.untold = ""
        if known.unsaved is None and not held.untold:
            forget_unsaved(held.copy)
        if resting and known.standing is not None and held.standing == FolderSnapshot(known.standing):
            held.copy.clean(known.standing, claim.epoch)

    def _is_over(self, claim: Claim) -> bool:
        """Whether the claim's keeper has ended: the copy may be another's, and so may what is unsaved."""
        return self._boottime() >= self._deadlines.of(claim)

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    async def instructions(self, state: State, folder: str) -> str | None:
        docs, portable = self._config.docs, state.facts.portable
        if docs is None or portable is None or state.workspace.snapshot is None:
            return None
        inner = state.facts.within(folder)
        told = [state.facts.within(other) for other in state.told_folders]
        known = {name for other in told if other is not None for name in folders_around(other)}
        folders = [name for name in folders_around(inner) if name not in known] if inner is not None else []
        if not folders:
            return None
        paths = [f"{name}/{file}" if name else file for name in folders for file in docs.names]
        # One step of a session asks; what people ask for at once does not hold it up.
        async with self._recorded(state, nullcontext()) as recorded:
            files = await recorded.read(paths, INSTRUCTIONS_BYTES) if docs.most_bytes else ()
            found = await recorded.skills(state, folders)
        contents = {file.path: file.content for file in files if file.content is not None}
        parts = docs.of_contents(folders, contents), offered(found.skills)
        return "\n\n".join(part for part in parts if part) or None

    async def read(self, state: State, paths: Sequence[str], most: int) -> Mapping[str, bytes | str]:
        async with self._recorded(state, self._reading) as recorded:
            files = await recorded.read(paths, most)
        return {file.path: file.why if file.content is None else file.content for file in files}

    async def skills(self, state: State, folder: str) -> RecordedSkills:
        inner = state.facts.within(folder)
        if inner is None:
            return RecordedSkills()
        async with self._recorded(state, self._reading) as recorded:
            return await recorded.skills(state, folders_around(inner))

    @asynccontextmanager
    async def _recorded(
        self, state: State, turn: AbstractAsyncContextManager[object]
    ) -> AsyncIterator[_Recorded]:
        """The session's folder as it was recorded last; everything raises `OSError`, with words for people.

        Read by the keeper of the session's copy, if there is one; else in its `turn` from the store's packs.
        """
        portable = state.facts.portable
        assert portable is not None
        if state.workspace.snapshot is None:
            raise OSError(EMPTY if portable.source is None else NOT_CLONED)
        try:
            async with asyncio.timeout(READ_S):
                if (held := self._here(state)) is not None:
                    yield held
                else:
                    async with turn, _from_store(state, self._packs) as recorded:
                        yield recorded
        except TimeoutError:
            raise OSError(LATE) from None
        except (FolderError, BrokenPack, ArchiveUnavailable) as error:
            raise OSError(str(error)) from error

    def _here(self, state: State) -> _Recorded | None:
        """The folder under a claim of this machine, if that has it as the log says."""
        known = state.workspace
        for held in self._held.values():
            if held.copy.session != state.facts.session_id:
                continue
            for here, wanted in ((held.standing, known.standing), (held.stored, known.snapshot)):
                if here is not None and wanted is not None and str(here) == str(wanted):
                    return _Recorded(held.keeper, here)
        return None


async def _own_setup(held: Held, portable: PortableFolder) -> str:
    """The warning about a set-up of the repository's own, which nobody has read; empty without one."""
    if portable.setup is not None or held.standing is None:
        return ""
    (found,) = await held.keeper.read_files(held.standing, (FOLDER_SETUP,), INSTRUCTIONS_BYTES)
    return NOT_RUN if found.content is not None else ""


async def _ended(keeper: Keeper) -> None:
    try:
        await keeper.end()
    except FolderError:
        # It is gone: so is its right to the copy.
        return


# ── reading ───────────────────────────────────────────────────────────────────────────────────────
# Files of a portable folder, read from a snapshot: the folder itself may not be here.


READ_S = 9.0
"""The time for it: a step of the session waits, or a look-up, which has ten seconds."""
MOST_READING = 2
"""Folders that people have read from the store at once: their packs come here, and may be large."""
INSTRUCTIONS_BYTES = 1 << 20
"""Bytes of a file of instructions; a larger one is passed over."""
EMPTY = "the session's folder is empty so far: nothing was recorded in it yet"
NOT_CLONED = (
    "the session's folder has no content yet: a worker clones its repository when the agent first runs a "
    "command or writes a file. Send it again after that, or ask the agent to look at the file itself"
)
LATE = (
    f"the files of the session's folder were not read within {READ_S:g} s: its store is slow, or its packs "
    "are large. Send it again while the agent works there, or ask the agent to look at the file itself"
)


@record
class _Recorded:
    """A snapshot of a folder, and a keeper that reads it from its copy, or from these packs."""

    keeper: Keeper
    snapshot: FolderSnapshot
    packs: Sequence[Path] = ()

    async def read(self, paths: Sequence[str], most: int) -> tuple[ReadFile, ...]:
        return await self.keeper.read_files(self.snapshot, paths, most, self.packs)

    async def skills(self, state: State, folders: Sequence[str]) -> RecordedSkills:
        portable = state.facts.portable
        assert portable is not None
        found = await self.keeper.find_files(self.snapshot, search_of(folders), self.packs)
        return await asyncio.to_thread(recorded_skills, portable.path(state.facts.tree_id), found)


@asynccontextmanager
async def _from_store(state: State, packs: Packs) -> AsyncIterator[_Recorded]:
    snapshot = state.workspace.snapshot
    assert snapshot is not None
    with tempfile.TemporaryDirectory(prefix="dendro-read-") as folder:
        files = []
        for number, pack in enumerate(state.workspace.packs):
            files.append(Path(folder, f"{number}.pack"))
            await packs.fetch(PackName.of(pack.name, state.facts.tree_id), files[-1], pack.bytes)
        place = Place(Path(folder, "folder"), Path(folder, "objects"))
        keeper = await Keeper.start(place, Bounds(seconds=READ_S), boottime() + READ_S)
        try:
            yield _Recorded(keeper, FolderSnapshot(snapshot), files)
        finally:
            with suppress(FolderError):
                await keeper.end()


def folders_around(folder: str) -> list[str]:
    """The folders of a snapshot from its top down to one of them, by their paths in it."""
    parts = [part for part in folder.split("/") if part not in ("", ".")]
    return ["/".join(parts[:depth]) for depth in range(len(parts) + 1)]


# ── clones ────────────────────────────────────────────────────────────────────────────────────────
# Clones of repositories that a session's first content comes from.
#
# The URL is a client's and the repository a stranger's: git is asked for one commit, without hooks,
# submodules or filters, by protocols that the machine's owner permits, with the worker's own credentials,
# for a limited time.


URL_BYTES = 2048
REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./@+-]{0,254}")
_SCP = re.compile(r"[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:[^:]")
WORDS_BYTES = 2000


class CloneFailed(Exception):
    """The repository could not be cloned; the text says why, without what a URL may hold of secrets."""


def check_source(url: str, ref: str, protocols: tuple[str, ...]) -> None:
    """Raises `ValueError` for what is no address of a repository, or of a protocol that is not permitted."""
    if len(url) > URL_BYTES or not url.isprintable() or url.startswith("-"):
        raise ValueError(f"git: a URL has at most {URL_BYTES:,} printable characters, and begins with no `-`")
    scheme, separator, _ = url.partition("://")
    named = scheme if separator else ("ssh" if _SCP.match(url) else "")
    if named not in protocols:
        allowed = ", ".join(f"{each}://" for each in protocols) or "none"
        raise ValueError(
            f"git: a repository is cloned by {allowed} here, and {without_secrets(url)} is of another kind. "
            "`workspace.git_protocols` of the workers permits others"
        )
    try:
        urlsplit(url)
    except ValueError:
        # Its words repeat the host, with a password before it perhaps.
        raise ValueError(f"git: {without_secrets(url)} names no host that can be read") from None
    if ref and (not REF.fullmatch(ref) or ".." in ref or "@{" in ref):
        raise ValueError(f"ref: {ref[:80]!r} is no branch, tag or commit")


def without_secrets(url: str) -> str:
    """A URL without the name and password in it; a password may hold an `@`."""
    return re.sub(r"://[^/]*@", "://", url)[:200]


async def clone(url: str, ref: str, target: Path, environ: Mapping[str, str], seconds: float) -> str:
    """Clones the commit of a ref (of `HEAD` if it is empty) into a bare repository; returns its id.

    Raises `CloneFailed`. Cancelling it kills git.
    """
    protocol = url.partition("://")[0] if "://" in url else "ssh"
    env = _environment(environ, protocol)
    address = _signed_in(url, env)
    options = ("core.hooksPath=/dev/null", "gc.auto=0", "maintenance.auto=false", "transfer.fsckObjects=true")
    git = (_program(), "--no-pager", *(part for option in options for part in ("-c", option)))
    try:
        async with asyncio.timeout(seconds):
            await _run((*git, "init", "--quiet", "--bare", str(target)), env, url)
            fetch = (*git, "-C", str(target), "fetch", "--quiet", "--no-tags", "--depth=1", "--", address)
            await _run((*fetch, ref or "HEAD"), env, url)
            words = (*git, "-C", str(target), "rev-parse", "--verify", "FETCH_HEAD^{commit}")
            return (await _run(words, env, url)).strip()
    except TimeoutError:
        raise CloneFailed(
            f"{without_secrets(url)} was not cloned within {seconds:g} s (`workspace.clone_s`)"
        ) from None


def _signed_in(url: str, env: dict[str, str]) -> str:
    """The address without a name and password, which git gets by its variables.

    Every user of the machine reads the words of a command line, and nobody else's variables.
    """
    parts = urlsplit(url)
    named, at, host = parts.netloc.rpartition("@")
    if parts.scheme not in ("http", "https") or not at:
        return url
    name, _, password = map(unquote, named.partition(":"))
    signed = base64.b64encode(f"{name}:{password}".encode()).decode()
    given = int(env.get("GIT_CONFIG_COUNT") or 0)
    env[f"GIT_CONFIG_KEY_{given}"] = f"http.{parts.scheme}://{host}/.extraHeader"
    env[f"GIT_CONFIG_VALUE_{given}"] = f"Authorization: Basic {signed}"
    env["GIT_CONFIG_COUNT"] = str(given + 1)
    return urlunsplit(parts._replace(netloc=host))


def _program() -> str:
    if (program := find_program("git")) is None:
        raise CloneFailed("git is not installed on this machine, or only where sessions may write")
    return program


def _environment(environ: Mapping[str, str], protocol: str) -> dict[str, str]:
    """The worker's own, with its configuration and credentials of git, without the keys of providers.

    Programs that this configuration names (`ssh`, a helper of credentials) are found where no project is.
    """
    kept = {name: value for name, value in environ.items() if not _is_others(name)}
    folders = named_folders(environ.get("PATH", os.defpath))
    ours = git_environment(person=environ, allow=protocol)
    # Credentials may be named in the machine's configuration; the new repository has none of its own.
    del ours["GIT_CONFIG_NOSYSTEM"]
    return {**kept, **ours, "PATH": ":".join(folders)}


def _is_others(name: str) -> bool:
    """Whether a variable leads git to another repository, or is a key of the worker's and none of git's."""
    if name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR"):
        return True
    return name.startswith("DENDRO_") or name.endswith("_API_KEY")


async def _run(words: tuple[str, ...], env: Mapping[str, str], url: str) -> str:
    # Files, and no pipes: a helper that git leaves behind would keep a pipe open.
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
        code = await _git_ended(words, env, said, complained)
        if code:
            complained.seek(0)
            text = complained.read(WORDS_BYTES).decode("utf-8", "replace")
            why = " ".join(text.replace(url, without_secrets(url)).split())
            raise CloneFailed(
                f"{without_secrets(url)} could not be cloned: {why or f'git ended with {code}'}"
            )
        said.seek(0)
        return said.read(WORDS_BYTES).decode("utf-8", "replace")


async def _git_ended(words: tuple[str, ...], env: Mapping[str, str], out: IO[bytes], err: IO[bytes]) -> int:
    """The exit code of a git that ran to its end; cancelled, it is killed with its helpers."""
    try:
        git = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=dict(env),
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise CloneFailed(f"git cannot be started: {error.strerror}") from None
    try:
        return await git.wait()
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(git.pid, signal.SIGKILL)
        await git.wait()
        raise
