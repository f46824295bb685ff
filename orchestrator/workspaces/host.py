"""Folders of this machine that sessions work in as they are: copied for agents, and merged into.

The session's folder is the person's. So nothing of it is kept here but packs, and, while a merge is not in
the log yet, the files that it has replaced. They lie where the session's copy would:

    <root>/copies/<session>/objects   packs; `merging`: how the last merge is taken back
                            state     `unsaved` names that merge until the log has it

A process per piece of work does it, below the lock of that place, and dies with the claim. What a lost
process has left of a merge is taken back before anything else is done.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import posixpath
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from orchestrator.broker.records import Claim
from orchestrator.core.calls import MergeWork
from orchestrator.core.calls.merge import GUARDED, writable_folders
from orchestrator.core.folder_commands import FolderCopied, FolderMerged, FolderNotCopied, FolderNotMerged
from orchestrator.core.frozen import replace
from orchestrator.core.packs import Pack
from orchestrator.core.settings import PortableFolder
from orchestrator.core.state import State
from orchestrator.core.workspace import Copied
from orchestrator.folders.keeper import Keeper
from orchestrator.folders.merge import settle
from orchestrator.folders.records import Bounds, FolderError, Guard, Place
from orchestrator.protocol.ids import CallId, SnapshotId
from orchestrator.rollouts.objects import ArchiveUnavailable
from orchestrator.sandbox.git import in_git_thread
from orchestrator.sandbox.policy import InvalidPolicy, resolve
from orchestrator.workspaces.copies import Copy, boot_id
from orchestrator.workspaces.held import Held, merge, told_omissions
from orchestrator.workspaces.host_births import (
    HostFolder,
    UnfitFolder,
    birth_bounds,
    commit_of,
    host_folder,
)
from orchestrator.workspaces.machine import Deadlines, MachineConfig
from orchestrator.workspaces.packs import BrokenPack, PackName, Packs

SHARE = "Leave `workspace` out, and the agent works in your folder"
MOST_PATH = 2048
"""Bytes of the path of a folder that is merged into: the place's state names it."""


class HostFolders:
    """The part of `runtime.folders.Folders` that such a session needs, on a real machine."""

    def __init__(
        self, config: MachineConfig, packs: Packs, now_ms: Callable[[], int], deadlines: Deadlines
    ) -> None:
        self._config, self._packs, self._now_ms = config, packs, now_ms
        self._boot = boot_id()
        self._deadlines = deadlines
        self._keepers: dict[str, Keeper] = {}
        self._written: dict[str, MergeWork] = {}
        """The merge of each claim that the log may not have yet."""
        self._settling: set[asyncio.Task[None]] = set()

    def extend(self, claim: str, deadline_boottime: float) -> None:
        """Tells the claim's keeper of its new deadline; from any thread, and never blocks."""
        keeper = self._keepers.get(claim)
        if keeper is not None:
            keeper.extend(deadline_boottime)

    # ── copying ───────────────────────────────────────────────────────────────────────────────

    async def copy(self, state: State, claim: Claim, call_id: CallId) -> FolderCopied | FolderNotCopied:
        cwd = state.in_force.cwd
        try:
            config = self._config
            known = (config.settings, config.home, config.environ, config.archive)
            found = await in_git_thread(host_folder, Path(cwd), *known)
            if fault := await asyncio.to_thread(config.fault, found.portable):
                return FolderNotCopied(f"this machine makes no copies of folders: {fault}. {SHARE}")
            setup, warning = await asyncio.to_thread(config.setup_of, found.top)
            found = dataclasses.replace(found, portable=replace(found.portable, setup=setup))
            theirs = await asyncio.to_thread(self._warning_of, state, found)
            copied = await self._copied(state, claim, found)
            return FolderCopied(call_id, copied, ". ".join(filter(None, (theirs, warning))))
        except (FolderError, UnfitFolder, BrokenPack) as error:
            return FolderNotCopied(f"the folder {cwd} cannot be copied: {error}. {SHARE}")
        except ArchiveUnavailable as error:
            why = f"the store of folders (`upkeep.archive_url`) did not take the copy: {error}"
            return FolderNotCopied(f"{why}; try again when it is back. {SHARE}")
        except OSError as error:
            return FolderNotCopied(f"this machine refused a copy of the folder {cwd}: {error}. {SHARE}")

    def _warning_of(self, state: State, found: HostFolder) -> str:
        """A word about a repository that the session's commands may have made; with full access, none."""
        settings, environ = state.in_force, self._config.environ
        place = found.top / ".git"
        try:
            allowed = resolve(settings.sandbox_policy, Path(settings.cwd), environ.get("TMPDIR"))
        except InvalidPolicy:
            return ""  # nothing runs under it
        if not os.path.lexists(place) or not allowed.may_write(place):
            return ""
        return (
            f"commands of this session may write {place}, so what the agents' copies have of it (the commit, "
            "what is ignored) may be made up by an agent; begin sessions in "
            f"{found.top} itself, and it is out of their reach"
        )

    async def _copied(self, state: State, claim: Claim, found: HostFolder) -> Copied:
        facts, bounds = state.facts, birth_bounds(self._config.settings, found.portable)
        commit, repository = await in_git_thread(commit_of, found.top)
        async with self._keeping(state, claim, found.top, bounds) as held:
            taken = await held.keeper.born(repository, commit, self._now_ms())
            name = PackName(facts.tree_id, facts.session_id, claim.epoch, claim.claim_id, taken.sha256)
            await self._packs.put(name, taken.pack)
            held.keeper.settle(taken)
        return Copied(
            folder=str(found.top),
            cwd=state.in_force.cwd,
            within=found.within,
            request=0,
            portable=found.portable,
            snapshot=SnapshotId(taken.snapshot),
            pack=Pack(str(name), taken.sha256, taken.bytes, whole=True),
            omitted=told_omissions((), taken.omitted),
        )

    # ── merging ───────────────────────────────────────────────────────────────────────────────

    async def merge(self, state: State, claim: Claim, work: MergeWork) -> FolderMerged | FolderNotMerged:
        merging = asyncio.ensure_future(self._merged_or_not(state, claim, work))
        try:
            return await asyncio.shield(merging)
        except asyncio.CancelledError:
            # Nobody is told how it ends: nothing of it may be there.
            await asyncio.wait((merging,))
            self._written.pop(claim.claim_id, None)
            with suppress(FolderError, OSError):
                await self._end_left(state, claim)
            raise

    async def _merged_or_not(
        self, state: State, claim: Claim, work: MergeWork
    ) -> FolderMerged | FolderNotMerged:
        if len(os.fsencode(work.folder)) > MOST_PATH:
            return FolderNotMerged(f"the path of the folder has more than {MOST_PATH:,} bytes: move it")
        try:
            return await self._merge(state, claim, work)
        except (FolderError, OSError) as error:
            return await self._taken_back(state, claim, str(error))

    async def _merge(self, state: State, claim: Claim, work: MergeWork) -> FolderMerged | FolderNotMerged:
        # Of the person's rules, merges need none: they look at the paths that the agent has changed.
        bounds = birth_bounds(self._config.settings, PortableFolder(str(self._config.root), "work"))
        guard = await asyncio.to_thread(self._guard_of, state, work)
        async with self._keeping(state, claim, Path(work.folder), bounds) as held:
            held.copy.unsaved(_mark(work))
            found = await merge(held, self._packs, work, guard)
            if isinstance(found, FolderMerged):
                self._written[claim.claim_id] = work
            else:
                held.copy.unsaved("")
        return found

    async def _taken_back(self, state: State, claim: Claim, why: str) -> FolderNotMerged:
        try:
            await self._end_left(state, claim)
        except (FolderError, OSError) as error:
            return FolderNotMerged(f"{why}; {error}", partly=True)
        return FolderNotMerged(f"{why}; merge again")

    def _guard_of(self, state: State, work: MergeWork) -> Guard:
        """The paths that the sandbox lets be written; an approval, or full access, lets all of them."""
        settings = state.in_force
        if not work.sandboxed or settings.full_access:
            return Guard()
        top = Path(work.folder)
        roots = [Path(os.path.realpath(root)) for root in writable_folders(settings)]
        within = ["" if top.is_relative_to(root) else _below(root, top) for root in roots]
        kept = [_below(Path(os.path.realpath(path)), top) for path in self._config.guarded]
        return Guard(
            tuple(one for one in within if one is not None),
            tuple(one for one in kept if one),
            tuple(sorted(GUARDED)),
        )

    async def judge(self, state: State, claim: Claim, work: MergeWork) -> str:
        left = await asyncio.to_thread(lambda: self._copy(state).state().unsaved)
        if left != _mark(work):
            # Elsewhere another machine of the pool may have begun it.
            mine = not left and state.facts.pool == f"host:{self._config.machine}"
            return "none" if mine else "in_doubt"
        try:
            await self._end_left(state, claim)
        except (FolderError, OSError):
            return "in_doubt"
        return "none"

    def recorded(self, state: State, claim: Claim) -> None:
        work = self._written.get(claim.claim_id)
        if work is None or not _is_recorded(state, _mark(work)):
            return
        del self._written[claim.claim_id]
        task = asyncio.ensure_future(asyncio.to_thread(_forget, self._copy(state)))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    # ── keepers ───────────────────────────────────────────────────────────────────────────────

    def _copy(self, state: State) -> Copy:
        return Copy(self._config.root, state.facts.session_id, self._boot)

    @asynccontextmanager
    async def _keeping(self, state: State, claim: Claim, top: Path, bounds: Bounds) -> AsyncIterator[Held]:
        """A keeper of the folder, once what a lost one left is taken back."""
        await self._end_left(state, claim)
        async with self._kept(state, claim, top, bounds) as held:
            yield held

    async def _end_left(self, state: State, claim: Claim) -> None:
        """Ends the last merge: it stays if the log has it, and else it is taken back."""
        copy = self._copy(state)
        left = (await asyncio.to_thread(copy.state)).unsaved
        if not left:
            return
        if _is_recorded(state, left):
            await asyncio.to_thread(_forget, copy)
            return
        bounds = birth_bounds(self._config.settings, PortableFolder(str(self._config.root), "work"))
        async with self._kept(state, claim, Path(left.split(":", 2)[2]), bounds) as held:
            await held.keeper.take_back_merge()
            held.copy.unsaved("")

    @asynccontextmanager
    async def _kept(self, state: State, claim: Claim, top: Path, bounds: Bounds) -> AsyncIterator[Held]:
        copy = self._copy(state)
        await asyncio.to_thread(copy.prepare)
        keeper = await self._deadlines.keeper(Place(top, copy.objects, copy.lock), bounds, claim)
        self._keepers[claim.claim_id] = keeper
        keeper.extend(self._deadlines.of(claim))
        copy.touch()
        try:
            yield Held(claim, state.facts, copy, keeper, bounds)
        finally:
            self._keepers.pop(claim.claim_id, None)
            await keeper.break_off()


def _mark(work: MergeWork) -> str:
    """The name of a merge in the state of its place."""
    return f"{work.agent_id}:{work.snapshot}:{work.folder}"


def _is_recorded(state: State, mark: str) -> bool:
    agent, snapshot, _ = mark.split(":", 2)
    merged = state.workspace.merged.get(agent)
    return merged is not None and merged.snapshot == snapshot


def _forget(copy: Copy) -> None:
    """Forgets how a merge that the log has would be taken back; blocking."""
    copy.unsaved("")
    settle(copy.objects / "merging")


def _below(path: Path, top: Path) -> str | None:
    """The path of something in a folder, relative to that; None for what is elsewhere."""
    return posixpath.normpath(path.relative_to(top)) if path != top and path.is_relative_to(top) else None
