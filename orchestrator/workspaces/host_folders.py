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
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from orchestrator.broker.records import Claim
from orchestrator.config_keys import WorkspaceSettings
from orchestrator.core.calls import MergeWork
from orchestrator.core.calls.patch import GUARDED, writable_folders
from orchestrator.core.commands import FolderCopied, FolderMerged, FolderNotCopied, FolderNotMerged
from orchestrator.core.frozen import record, replace
from orchestrator.core.packs import Pack
from orchestrator.core.settings import PortableFolder
from orchestrator.core.state import State
from orchestrator.core.workspace import Copied
from orchestrator.folders.keeper import Keeper
from orchestrator.folders.merge import settle
from orchestrator.folders.outcomes import Bounds, FolderError, Guard, Place
from orchestrator.folders.repository_head import excludes_of
from orchestrator.home import without_links
from orchestrator.protocol.ids import CallId, SnapshotId
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.sandbox.git import GitFailed, in_git_thread, run_git, work_tree
from orchestrator.sandbox.policy_paths import InvalidPolicy, resolve
from orchestrator.workspaces.claimed_folder import Held, merge, told_omissions
from orchestrator.workspaces.copies import Copy, Deadlines, MachineConfig, boot_id
from orchestrator.workspaces.stored_packs import BrokenPack, PackName, Packs

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
            if isinstance(error, FolderError) and error.kind == "half":
                return FolderNotMerged(error.text, partly=True)
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


# ── host births ───────────────────────────────────────────────────────────────────────────────────
# Folders of this machine that portable ones begin with: what is copied of them, and under which rules.


IGNORED_BYTES = 16 << 10
"""Bytes of a person's own rules: the first entry of the log holds them."""
BIRTH_S = 600.0
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


class UnfitFolder(ValueError):
    """A folder that no portable one can begin with; the text says why and what to do."""


@record
class HostFolder:
    """A folder of this machine, whole: the repository that a working folder is in, or that one itself."""

    top: Path
    within: str
    """The working folder's path in it."""
    portable: PortableFolder


def host_folder(
    folder: Path,
    settings: WorkspaceSettings,
    home: Path | None,
    environ: Mapping[str, str],
    archive: Path | None = None,
) -> HostFolder:
    """The folder to copy for a working folder; blocking. Raises `UnfitFolder`.

    `archive` is the folder of the archive, where that lies outside of the home.
    """
    real = without_links(folder)
    if not real.is_dir():
        raise UnfitFolder(f"there is no folder {folder} on this machine")
    root = settings.root
    assert root is not None, "filled in with the settings"
    top = _top_of(real)
    for kept in (without_links(root if home is None else home), without_links(root)):
        if kept.is_relative_to(top) or top.is_relative_to(kept):
            raise UnfitFolder(
                f"{top} and Dendro's own folder {kept} contain each other; name a folder of work"
            )
    if settings.key_file is not None and without_links(settings.key_file).is_relative_to(top):
        raise UnfitFolder(
            f"{settings.key_file} (`workspace.key_file`) lies in {top}, and would be stored with it; keep it "
            "elsewhere"
        )
    if archive is not None and without_links(archive).is_relative_to(top):
        raise UnfitFolder(
            f"{archive} (`upkeep.archive_url`) lies in {top}, and agents with copies of that would read the "
            "logs of all sessions; keep it elsewhere"
        )
    hidden = tuple(it for it in (home, root, settings.key_file, archive) if it is not None)
    repository = repository_of(top)
    if repository is not None and any(
        without_links(repository).is_relative_to(without_links(it)) for it in hidden
    ):
        raise UnfitFolder(f"the repository of {top} lies in Dendro's own folder: no copy is made of it")
    try:
        ignored = _own_ignores(environ, top, repository, hidden)
    except FolderError as error:
        raise UnfitFolder(error.text) from error
    return HostFolder(top, str(real.relative_to(top)), portable_folder(settings, top.name, ignored=ignored))


def portable_folder(settings: WorkspaceSettings, name: str, **more: object) -> PortableFolder:
    """A portable folder under these settings; a name that is no plain word becomes one."""
    plain = name if _NAME.fullmatch(name) else "work"
    globs: dict[str, object] = {"include": settings.include, "exclude": settings.exclude, **more}
    return PortableFolder(str(settings.root), plain, **globs)  # type: ignore[arg-type]


def _own_ignores(
    environ: Mapping[str, str], top: Path, repository: Path | None, hidden: tuple[Path, ...]
) -> tuple[str, ...]:
    """The person's own rules, which no other machine has: what they hide must not be uploaded from there."""
    lines: list[str] = []
    size = 0
    for line in excludes_of(environ, repository, hidden):
        size += len(os.fsencode(line))
        if size > IGNORED_BYTES:
            raise UnfitFolder(
                f"the rules of your own for {top} (`core.excludesFile`, `.git/info/exclude`) travel "
                f"with the session, and have more than {IGNORED_BYTES:,} bytes; shorten them"
            )
        if line.strip():
            lines.append(line)
    return tuple(lines)


def birth_bounds(settings: WorkspaceSettings, portable: PortableFolder) -> Bounds:
    """The bounds of the first snapshot."""
    return Bounds(
        max_file=settings.max_file,
        max_files=settings.max_files,
        max_bytes=settings.max_bytes,
        seconds=max(settings.seconds, BIRTH_S),
        include=portable.include,
        exclude=portable.exclude,
        ignored=portable.ignored,
    )


def commit_of(top: Path) -> tuple[str, Path | None]:
    """The commit that a folder's repository is at, and the repository; none outside of one. Blocking.

    Raises `UnfitFolder` where git does not answer.
    """
    repository = repository_of(top)
    if repository is None:
        return "", None
    commit = _asked(top, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    return (commit, repository) if commit else ("", None)


def repository_of(top: Path) -> Path | None:
    """The repository of a folder that has one of its own: the `.git` that all its work trees share."""
    if not os.path.lexists(top / ".git"):
        return None
    common = _asked(top, "rev-parse", "--path-format=absolute", "--git-common-dir")
    return Path(common) if common else None


def _asked(folder: Path, *words: str) -> str:
    try:
        return run_git(folder, *words).text
    except GitFailed as error:
        raise UnfitFolder(str(error)) from error


def _top_of(folder: Path) -> Path:
    """The top of the repository around a folder, else the folder."""
    try:
        return work_tree(folder) or folder
    except GitFailed as error:
        raise UnfitFolder(str(error)) from error
