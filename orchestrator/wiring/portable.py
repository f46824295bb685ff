"""Portable folders from settings: a worker's way to them, and the first content of a new session's.

A folder of this machine is packed here, by a confined process, and its pack is in the store before the
session is made. A repository is cloned by the worker that needs it first. The folder of another session is
its packs, copied under the new tree's name.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from orchestrator.boottime import boottime
from orchestrator.broker.commits import Commits
from orchestrator.config_keys import WorkspaceSettings
from orchestrator.core import facts as f
from orchestrator.core.birth import Birth, ForkedFrom
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.lines import without_sign_in
from orchestrator.core.packs import Pack
from orchestrator.core.settings import FolderSetup, PortableFolder
from orchestrator.core.state import State
from orchestrator.folders.outcomes import FolderError, Found, Place
from orchestrator.gateways.folder_facts import Workspace, look_at
from orchestrator.gateways.fork import fork_at, to_fork
from orchestrator.instructions.skills import recorded_skills, search_of
from orchestrator.private_files import make_folder
from orchestrator.protocol.ids import SnapshotId
from orchestrator.protocol.ops import WorkspaceSource
from orchestrator.rollouts.log_source import LogSource
from orchestrator.rollouts.object_store import ArchiveUnavailable, Objects
from orchestrator.sandbox.git import in_git_thread
from orchestrator.sandbox.probe import SandboxSupport, cannot_mount
from orchestrator.sandbox.trusted_files import read_regular
from orchestrator.settings import FOLDER_SETUP, Settings, TrustList
from orchestrator.settings.private_home import archive_outside
from orchestrator.views import ViewError
from orchestrator.views.find import find_one
from orchestrator.wiring.new_sessions import FirstFolder, forked_birth, guide, new_birth
from orchestrator.workspaces.claimed_folder import told_omissions
from orchestrator.workspaces.copies import MachineConfig
from orchestrator.workspaces.host_folders import (
    BIRTH_S,
    UnfitFolder,
    birth_bounds,
    commit_of,
    host_folder,
    portable_folder,
)
from orchestrator.workspaces.pack_keys import KeyUnavailable, PackKeys
from orchestrator.workspaces.service import MachineFolders, check_source, folders_around
from orchestrator.workspaces.stored_packs import BIRTH, BrokenPack, PackName, Packs


class NoWorkspace(ViewError):
    """The first content of a session's folder cannot be had; the text says why and what to do."""


# ── workers ───────────────────────────────────────────────────────────────────────────────────────


def machine_config(
    settings: Settings, support: SandboxSupport, guarded: tuple[Path, ...] = ()
) -> MachineConfig:
    """The machine as its folders need it; `guarded` is what no command may write."""
    return MachineConfig(
        settings.workspace,
        settings.host.machine_id,
        settings.worker.trust_s,
        cannot_mount(support, settings.sandbox.mechanism),
        guide(settings).docs,
        settings.host.environ,
        settings.home,
        archive_outside(settings),
        guarded,
        partial(_setup_of_copy, settings),
    )


def _setup_of_copy(settings: Settings, top: Path) -> tuple[FolderSetup | None, str]:
    try:
        return setup_of(settings, top)
    except BadSetup as error:
        raise UnfitFolder(str(error)) from error


def machine_folders(
    settings: Settings, support: SandboxSupport, guarded: tuple[Path, ...] = ()
) -> MachineFolders:
    """The folders of this machine, for one worker; `guarded` is what no command may write."""
    config = machine_config(settings, support, guarded)
    with suppress(OSError):
        # MCP servers of portable sessions begin there, before the first folder is made.
        make_folder(config.root)
    return MachineFolders(config, pack_store(settings), lambda: time.time_ns() // 1_000_000)


# ── new sessions ──────────────────────────────────────────────────────────────────────────────────


def first_folder(
    settings: Settings, wish: WorkspaceSource, source: tuple[State, str] | None = None
) -> FirstFolder:
    """The folder that a client wishes for; blocking. Raises `NoWorkspace`."""
    if settings.session_defaults.sandbox.writable_roots:
        raise NoWorkspace(
            "sandbox_workspace_write.writable_roots: a portable session writes its folder and its own /tmp "
            "only, because nothing else is recorded; leave it out"
        )
    if wish.folder is not None:
        return _of_folder(settings, Path(wish.folder))
    if wish.git is not None:
        return FirstFolder(_of_repository(settings, wish.git, wish.ref or ""))
    if source is not None:
        return _of_session(settings, source)
    return FirstFolder(_portable(settings, "work"))


def _portable(settings: Settings, name: str, **more: object) -> PortableFolder:
    return portable_folder(settings.workspace, name, setup=_setup(settings), **more)


def _setup(settings: Settings) -> FolderSetup | None:
    try:
        return named_setup(settings.workspace)
    except BadSetup as error:
        raise NoWorkspace(str(error)) from error


def _of_folder(settings: Settings, folder: Path) -> FirstFolder:
    try:
        known = (settings.workspace, settings.home, settings.host.environ, archive_outside(settings))
        found = host_folder(folder, *known)
    except UnfitFolder as error:
        raise NoWorkspace(f"folder: {error}") from error
    try:
        setup, warning = setup_of(settings, found.top)
    except BadSetup as error:
        raise NoWorkspace(str(error)) from error
    portable = replace(found.portable, setup=setup)
    return FirstFolder(portable, found.within, found.top, warning=warning)


def _of_repository(settings: Settings, url: str, ref: str) -> PortableFolder:
    try:
        check_source(url, ref, settings.workspace.git_protocols)
    except ValueError as error:
        raise NoWorkspace(str(error)) from None
    if without_sign_in(url) != url:
        raise NoWorkspace(
            "git: the address has a name and password in it, which the session's log would keep: "
            "leave them out, and give the workers credentials of their own (git's `credential.helper`)"
        )
    name = url.rstrip("/").removesuffix(".git").rpartition("/")[2].rpartition(":")[2]
    source: Mapping[str, str] = {"git": url, **({"ref": ref} if ref else {})}
    return _portable(settings, name, source=source, untold=True)


def _of_session(settings: Settings, source: tuple[State, str]) -> FirstFolder:
    state, name = source
    theirs = state.facts.portable
    if theirs is None:
        raise NoWorkspace(f"session: {name} has no portable folder to begin with")
    if state.workspace.unsaved is not None:
        raise NoWorkspace(
            f"session: the folder of {name} has changes that no store has yet; try again when it says that "
            "they are stored, or name an earlier entry with `at`"
        )
    root = str(settings.workspace.root)
    return FirstFolder(replace(theirs, root=root, untold=True), source=source)


async def with_folder(commits: Commits, settings: Settings, birth: Birth, first: FirstFolder) -> Birth:
    """The birth with its first snapshot, whose packs the store has; raises `NoWorkspace`.

    `commits` hears of the session before the store does: packs of one that is never made are removed by it.
    """
    try:
        if first.top is not None:
            announced_ms = await commits.announce(SessionId(birth.facts.session_id))
            folder, found = await _packed(settings, birth, first.top, first.within)
            offer = await in_git_thread(_offer, settings, birth, found)
            told = "\n\n".join(text for text in (birth.user_instructions, offer) if text)
            return replace(birth, announced_ms=announced_ms, folder=folder, user_instructions=told or None)
        if first.source is not None and first.source[0].workspace.snapshot is not None:
            announced_ms = await commits.announce(SessionId(birth.facts.session_id))
            folder = await _copied(settings, birth, first.source[0])
            return replace(birth, announced_ms=announced_ms, folder=folder)
        return birth
    except FolderError as error:
        raise NoWorkspace(f"folder: {error.text}") from error
    except KeyUnavailable as error:
        raise NoWorkspace(str(error)) from error
    except (ArchiveUnavailable, BrokenPack) as error:
        raise NoWorkspace(f"the store of workspaces (`upkeep.archive_url`): {error}") from error


async def _packed(settings: Settings, birth: Birth, top: Path, within: str) -> tuple[f.WorkspaceBegun, Found]:
    """The first snapshot of a folder of this machine: what is there now, on its repository's commit.

    And the files of skills in it, for its folder `within`.
    """
    from orchestrator.folders.keeper import Keeper

    portable = birth.facts.portable
    assert portable is not None
    commit, repository = await in_git_thread(commit_of, top)
    with tempfile.TemporaryDirectory(prefix="dendro-birth-") as objects:
        place, bounds = Place(top, Path(objects)), birth_bounds(settings.workspace, portable)
        deadline = boottime() + BIRTH_S
        keeper = await Keeper.start(place, bounds, deadline)
        try:
            taken = await keeper.born(repository, commit, birth.at_ms)
            name = _pack_name(birth, taken.sha256)
            await pack_store(settings).put(name, taken.pack)
            found = await keeper.find_files(taken.snapshot, search_of(folders_around(within)))
        finally:
            await keeper.end()
    pack = Pack(str(name), taken.sha256, taken.bytes, whole=True)
    begun = f.WorkspaceBegun(SnapshotId(taken.snapshot), (pack,), told_omissions((), taken.omitted))
    return begun, found


def _offer(settings: Settings, birth: Birth, found: Found) -> str | None:
    """The skills of a new session's folder, as it will have them, and those of the person."""
    portable = birth.facts.portable
    assert portable is not None
    recorded = recorded_skills(portable.path(birth.facts.tree_id), found)
    return guide(settings).skills.offer("", recorded=recorded.skills)


async def _copied(settings: Settings, birth: Birth, source: State) -> f.WorkspaceBegun:
    """The packs of another session's folder under the new tree's name: it may outlive the other one."""
    store, packs = pack_store(settings), []
    theirs = TreeId(source.facts.tree_id)
    with tempfile.TemporaryDirectory(prefix="dendro-birth-") as folder:
        file = Path(folder, "pack")
        for pack in source.workspace.packs:
            await store.fetch(PackName.of(pack.name, theirs), file, pack.bytes)
            name = _pack_name(birth, pack.sha256)
            await store.put(name, file)
            packs.append(replace(pack, name=str(name)))
    snapshot = source.workspace.snapshot
    assert snapshot is not None
    return f.WorkspaceBegun(snapshot, tuple(packs), source.workspace.omitted)


def _pack_name(birth: Birth, sha256: str) -> PackName:
    facts = birth.facts
    return PackName(TreeId(facts.tree_id), SessionId(facts.session_id), 0, BIRTH, sha256)


async def portable_birth(found: LogSource, wish: WorkspaceSource, settings: Settings) -> Birth:
    """The birth of a session whose folder is portable; raises `NoWorkspace`, `ViewError`."""
    source = None if wish.session is None else await _state_of(found, wish.session, wish.at)
    first = await in_git_thread(first_folder, settings, wish, source)
    looked_at = await in_git_thread(_looked_at, settings, first.top, first.within)
    birth = new_birth(settings, looked_at, time.time_ns() // 1_000_000, os.urandom, first)
    if first.warning:
        birth = replace(birth, warnings=(*birth.warnings, first.warning))
    return await with_folder(found.broker.commits, settings, birth, first)


def _looked_at(settings: Settings, top: Path | None, within: str) -> Workspace:
    """The words that the model is told at first; of a folder that is elsewhere, the person's own alone."""
    if top is not None:
        # Its skills are told by the paths that they will have in the session's own folder.
        return look_at(top / within, guide(settings), skills=False)
    return Workspace(instructions=guide(settings).own())


async def _state_of(found: LogSource, session: str, at: int | None) -> tuple[State, str]:
    head = await find_one(found, session)
    if at is not None and not 1 <= at <= head.seq:
        raise NoWorkspace(f"at: session {head.session} has entries 1 to {head.seq:,}, and no {at:,}")
    source = await (to_fork(found, head.session, None) if at is None else fork_at(found, head, at))
    return source.state, str(head.session)


async def forked_folder(commits: Commits, settings: Settings, source: ForkedFrom, own: Birth) -> Birth:
    """The birth of a fork whose source has a portable folder: it begins with a copy, in a tree of its own.

    `own` is what the session would be without a source. Raises `NoWorkspace`.
    """
    state = source.state
    if "cwd" in settings.named:
        raise NoWorkspace(
            f"session {source.session} works in a portable folder, and its fork in a copy of it: leave the "
            "folder out, or begin a new session"
        )
    first = await asyncio.to_thread(_of_session, settings, (state, str(source.session)))
    cwd = _moved(state, first.portable.path(TreeId(own.facts.tree_id)))
    birth = forked_birth(settings, source, own)
    pool = own.facts.pool if "pool" in settings.named else state.facts.pool
    facts = replace(birth.facts, portable=first.portable, workspace=None, pool=pool)
    moved = replace(birth, facts=facts, settings=replace(birth.settings, cwd=cwd))
    return await with_folder(commits, settings, moved, first)


def _moved(source: State, folder: str) -> str:
    """The working folder of a session in a copy of its folder."""
    theirs = source.facts.portable
    assert theirs is not None, "it was looked at"
    within = os.path.relpath(source.settings.cwd, theirs.path(TreeId(source.facts.tree_id)))
    return os.path.normpath(f"{folder}/{within}")


# ── folder setups ─────────────────────────────────────────────────────────────────────────────────
# The script that prepares a new session's portable folder: of the settings, or of the folder if trusted.
#
# The folder's own script may be a stranger's, or an agent's. It counts only while a person trusts it as
# it is, in that place; its text then goes into the session's first entry, and nothing reads the file
# again.


SCRIPT_BYTES = 16 << 10
"""Bytes of a script: the first entry of the log holds it, and every snapshot of the state."""


class BadSetup(Exception):
    """A script cannot be a set-up; the text says why and what to do."""


def named_setup(workspace: WorkspaceSettings) -> FolderSetup | None:
    """The set-up that the settings name, None without one; raises `BadSetup`."""
    if workspace.setup_script:
        return _checked_setup(workspace.setup_script.encode(), "workspace.setup_script", workspace)
    if workspace.setup is None:
        return None
    try:
        content = read_regular(workspace.setup, SCRIPT_BYTES + 1)
    except OSError as error:
        raise BadSetup(f"workspace.setup: {workspace.setup} cannot be read ({error}): name a file") from error
    return _checked_setup(content, f"workspace.setup ({workspace.setup})", workspace)


def setup_of(settings: Settings, top: Path) -> tuple[FolderSetup | None, str]:
    """The set-up of a folder of this machine, and a warning; raises `BadSetup`."""
    named = named_setup(settings.workspace)
    return (named, "") if named is not None else trusted_setup(settings, top)


def trusted_setup(settings: Settings, top: Path) -> tuple[FolderSetup | None, str]:
    """The folder's own set-up if a person trusts it as it is; else none, with a warning if there is one."""
    file = top / FOLDER_SETUP
    try:
        content = read_regular(file, SCRIPT_BYTES + 1, below=top)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"the folder's own set-up is not run: {file} cannot be read ({error})"
    if len(content) <= SCRIPT_BYTES and not TrustList(settings.home).trusts(file, content):
        remedy = f"Read it, then: dendro trust {shlex.quote(str(file))}, and begin a new session"
        return None, f"the folder's own set-up {file} is not run: you have not trusted it as it is. {remedy}"
    try:
        return _checked_setup(content, FOLDER_SETUP, settings.workspace), ""
    except BadSetup as error:
        return None, f"the folder's own set-up is not run: {error}"


def _checked_setup(content: bytes, origin: str, workspace: WorkspaceSettings) -> FolderSetup:
    if len(content) > SCRIPT_BYTES:
        raise BadSetup(
            f"{origin}: a set-up has at most {SCRIPT_BYTES:,} bytes, for the log holds it; let it call a "
            "program of the folder"
        )
    try:
        script = content.decode()
    except UnicodeDecodeError as error:
        raise BadSetup(f"{origin}: a set-up is a script in UTF-8 ({error})") from error
    if not script.strip() or "\0" in script:
        raise BadSetup(f"{origin}: a set-up is a script, and this one is empty or holds a NUL")
    return FolderSetup(script, workspace.setup_network, round(workspace.setup_timeout_s * 1000), origin)


# ── pack store ────────────────────────────────────────────────────────────────────────────────────
# The store of the packs of portable folders, as settings name it.


def pack_store(settings: Settings) -> Packs:
    """The archive's store, with this process's keys."""
    keys = settings.workspace.key_file
    return Packs(Objects(settings.upkeep.archive_url), None if keys is None else PackKeys(keys))
