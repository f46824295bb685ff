"""New sessions for clients of doors: the settings that a client names over those of the gateway."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import threading
import time
import tomllib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from orchestrator.broker.commits import Commits
from orchestrator.config_keys import SandboxPolicy, SessionDefaults, settings_of
from orchestrator.core.birth import Birth, ForkedFrom
from orchestrator.core.client_tools import BadTool, ClientTools, client_tools
from orchestrator.core.frozen import record
from orchestrator.core.ids import InvalidSessionId, SessionId, TreeId, parse_session_id
from orchestrator.core.sender import Via
from orchestrator.gateways.app_server.door_ports import (
    BadSetting,
    Born,
    ConfigWrite,
    ConfigWritten,
    NewThread,
    Offer,
    Ports,
    Saved,
)
from orchestrator.gateways.client import Client
from orchestrator.gateways.folder_facts import look_at
from orchestrator.gateways.fork import copy_texts
from orchestrator.gateways.permissions import OUTSIDE, Permissions, Policies, permits
from orchestrator.gateways.pool_jobs import PoolJobs
from orchestrator.gateways.principals import NotPermitted, Principal, Scope
from orchestrator.home import without_links
from orchestrator.instructions.project import Repository, repository
from orchestrator.private_files import make_folder, new_file
from orchestrator.protocol.bounds import PATH_BYTES
from orchestrator.protocol.ops import WorkspaceSource
from orchestrator.protocol.wire import JsonObject, JsonValue
from orchestrator.rollouts.deletion import delete_everywhere
from orchestrator.rollouts.full_log import head_of
from orchestrator.sandbox.git import in_git_thread
from orchestrator.sandbox.policy_paths import PROJECT_CONFIG
from orchestrator.sandbox.trusted_files import read_regular
from orchestrator.settings import Settings, SettingsError, SettingsSources, load_settings
from orchestrator.settings.layers import FILE_LIMIT_BYTES, CannotEdit, KeyPath, parse_override, with_edits
from orchestrator.settings.load import NO_EFFECT
from orchestrator.settings.sources import in_work_tree, of_object
from orchestrator.views import ViewError
from orchestrator.views.workers import serving_pools
from orchestrator.wiring.deployment import session_pool
from orchestrator.wiring.new_sessions import VERSION, forked_birth, guide, new_birth
from orchestrator.wiring.open_deployment import Opened
from orchestrator.wiring.person_sign_in import credential_store, sign_in

if TYPE_CHECKING:
    from orchestrator.broker.records import SessionHead
    from orchestrator.rollouts.bundle_receipts import Receipt
    from orchestrator.rollouts.verify import Report
    from orchestrator.views.workspaces import FolderDiffs

OWNERS = frozenset({"project_doc_max_bytes", "project_doc_fallback_filenames"})
"""Keys of new sessions that are the gateway's."""
POOL = "pool"
"""The key that clients of the machine's user set: a tenant learns of no pool."""
MORE = frozenset(
    {
        "agents.enabled",
        "model_context_window",
        "profile",
        "tools.apply_patch",
        "tools.apply_patch_freeform",
        "tools.unified_exec",
        "tools.update_plan",
        "tools.view_image",
        "tools.web_search",
    }
)
SHOWN_KEYS = 12
SHOWN_POOLS = 8
SHOWN_POOL = 80
TO_WORK_IN = "name one on the machine whose workers run the session"
TO_COPY = (
    "the session begins with a copy of a folder of the gateway's machine; name one there, or none to begin "
    "with an empty folder"
)


def keys_of_clients() -> frozenset[str]:
    """The keys that a client may set for a session that it makes."""
    own = {spec.key for record in (SessionDefaults, SandboxPolicy) for _, spec in settings_of(record)}
    return frozenset((own | MORE) - OWNERS)


@record
class NewThreads:
    """The maker of sessions of one gateway."""

    found: Opened
    sources: SettingsSources
    """The sources of the gateway's own settings: a session's folder and its client's words are laid over."""
    repositories: Repositories
    allowed: frozenset[str] = field(default_factory=keys_of_clients)

    async def create(self, client: Client, principal: Principal, wish: NewThread) -> Born:
        """Makes a root session as a client wishes it; raises `BadSetting`, `NotPermitted`."""
        wish = await self._placed(client, principal, wish)
        settings, warnings = await in_git_thread(self._seen, principal, wish)
        await self._check(principal, settings, wish)
        await self._check_pool(principal, settings, wish, portable=wish.workspace is not None)
        birth = await self._born(wish.workspace, settings)
        facts = replace(birth.facts, client_tools=self._brought(wish))
        birth = replace(birth, facts=facts, history=await client.history())
        session = await client.create(birth, ephemeral=wish.ephemeral)
        head, path = await head_of(self.found.broker.logs, session), birth.facts.rollout_path or ""
        self.found.broker.logs.remember(head)
        return Born(head, birth.settings, warnings, path, portable=wish.workspace is not None)

    def _brought(self, wish: NewThread) -> ClientTools | None:
        limit_ms = round(self.found.settings.gateway.client_tool_timeout_s * 1000)
        try:
            return client_tools(wish.client, limit_ms, wish.tools)
        except BadTool as error:
            raise BadSetting(f"dynamicTools: {error}") from None

    async def _placed(self, client: Client, principal: Principal, wish: NewThread) -> NewThread:
        """The wish with the first content of a portable folder, which its client may have; as it is where the
        session is to work in the folder `cwd` itself.

        A client that does not choose has what its token says, else the settings. It may name the path of
        a portable folder that it was told, which no machine has: the session begins with a copy.
        """
        source = wish.workspace
        if source is not None:
            if source.folder is not None:
                _check_copies(principal, "name a git address")
            if source.session is not None:
                await _check_seen(client, source.session)
            return wish
        settings = self.found.settings
        if (principal.workspace or settings.gateway.workspace) == "host":
            return wish
        if wish.cwd is None:
            return replace(wish, workspace=WorkspaceSource(empty=True))
        if (session := _root_of(wish.cwd, settings.workspace.root)) is not None:
            await _check_seen(client, session)
            return replace(wish, cwd=None, workspace=WorkspaceSource(session=session))
        _check_copies(principal, "leave `cwd` out to begin with an empty folder")
        folder = await asyncio.to_thread(_folder, wish.cwd, TO_COPY)
        return replace(wish, workspace=WorkspaceSource(folder=str(folder)))

    async def _born(self, source: WorkspaceSource | None, settings: Settings) -> Birth:
        if source is None:
            return await in_git_thread(self._birth, settings)
        from orchestrator.wiring.portable import portable_birth

        try:
            return await portable_birth(self.found, source, settings)
        except ViewError as error:
            raise BadSetting(f"workspace: {error}") from None

    async def _check(self, principal: Principal, settings: Settings, wish: NewThread) -> None:
        """Raises `NotPermitted` for policies beyond those of the person's files for the same folder."""
        if principal.may(Scope.APPROVE) or not (wish.settings or wish.config):
            return
        plain, _ = await in_git_thread(self._settings, NewThread(wish.cwd))
        asked, own = (each.session_defaults for each in (settings, plain))
        permissions = permissions_of(self.found.settings, principal)
        permissions.check_policies(_policies(asked, asked.sandbox), _policies(own, own.sandbox))

    async def _check_pool(
        self, principal: Principal, settings: Settings, wish: NewThread, *, portable: bool
    ) -> None:
        """Raises `BadSetting` for a pool that no worker serves, `NotPermitted` for who may choose none."""
        if principal.is_tenant or POOL not in _named(wish):
            return
        principal.require(Scope.APPROVE, "a choice of the pool")
        pool = session_pool(settings)
        shown = repr(pool[:SHOWN_POOL])
        if portable and pool.startswith("host:"):
            raise BadSetting(
                f"pool: {shown} is one machine's, and a portable session is for any: name no pool"
            )
        served = await serving_pools(self.found.broker.claims)
        if pool not in served:
            others = sorted(name for name in served if not (portable and name.startswith("host:")))
            these = ", ".join(name[:SHOWN_POOL] for name in others[:SHOWN_POOLS]) or "none"
            more = f" and {len(others) - SHOWN_POOLS} more" if len(others) > SHOWN_POOLS else ""
            raise BadSetting(f"pool: no worker serves {shown}; pools that have workers: {these}{more}")

    async def fork(self, client: Client, principal: Principal, source: ForkedFrom, wish: NewThread) -> Born:
        """Makes a root session that goes on where `source` stands; raises `BadSetting`, `NotPermitted`.

        Only what the client names is new: the gateway's own command line is not about this session.
        """
        settings, warnings = await in_git_thread(self._seen, principal, wish)
        portable = source.state.facts.portable is not None
        await self._check_pool(principal, settings, wish, portable=portable)
        own = replace(await in_git_thread(self._birth, settings), history=await client.history())
        named = _named(wish) - {POOL} if principal.is_tenant else _named(wish)
        birth = await _forked(self.found.broker.commits, replace(settings, named=named), source, own)
        permissions = permissions_of(self.found.settings, principal)
        permissions.check_policies(Policies.of(birth.settings), Policies.of(source.state.settings))
        tree = TreeId(birth.facts.tree_id)
        session = await client.create(
            birth, ephemeral=wish.ephemeral, copies=lambda: copy_texts(self.found, source, tree)
        )
        return Born(await head_of(self.found.broker.logs, session), birth.settings, warnings)

    def _birth(self, settings: Settings) -> Birth:
        cwd = settings.session_defaults.cwd
        workspace = look_at(cwd, guide(settings), self.repositories.repository)
        return new_birth(settings, workspace, time.time_ns() // 1_000_000, os.urandom)

    def _seen(self, principal: Principal, wish: NewThread) -> tuple[Settings, tuple[str, ...]]:
        """The settings as a client wishes them; a tenant learns nothing of folders elsewhere."""
        if not principal.is_tenant:
            return self._settings(wish)
        if wish.cwd is not None and not _lies_in(wish.cwd, tenants_folder(self.found.settings, self.sources)):
            raise BadSetting(f"cwd: {OUTSIDE}")
        home = str(self.sources.home)
        try:
            settings, warnings = self._settings(wish, self.allowed - {POOL})
        except BadSetting as error:
            raise BadSetting(str(error).replace(home, "…")) from None
        return settings, tuple(warning.replace(home, "…") for warning in warnings)

    def _settings(
        self, wish: NewThread, allowed: frozenset[str] | None = None
    ) -> tuple[Settings, tuple[str, ...]]:
        try:
            overrides, unknown = _known(of_object(wish.config), self.allowed if allowed is None else allowed)
            settings = load_settings(self._sources(wish, overrides))
        except SettingsError as error:
            raise BadSetting(str(error)) from None
        own = set(self.found.settings.warnings)
        new = [warning for warning in settings.warnings if warning not in own]
        return settings, (*_ignored(unknown), *new)

    def _sources(self, wish: NewThread, overrides: Iterable[str]) -> SettingsSources:
        ours = self.sources
        flags: dict[str, object] = {**ours.flags, "home": str(ours.home), **wish.settings}
        file = None if ours.config_file is None else ours.cwd / ours.config_file
        folder = ours.session_cwd
        chosen = wish.cwd if wish.cwd is not None else self.found.settings.gateway.cwd
        if chosen is not None:
            folder = _folder(str(chosen))
            flags["cwd"] = str(folder)
        said = (*ours.overrides, *overrides)
        return replace(ours, cwd=folder, config_file=file, flags=flags, overrides=said)


def _known(overrides: Iterable[str], allowed: frozenset[str]) -> tuple[list[str], list[str]]:
    """The overrides that are acted on, and the keys of the others."""
    known: list[str] = []
    unknown: list[str] = []
    for override in overrides:
        path, _ = parse_override(override)
        key = ".".join(path)
        (known if key in allowed else unknown).append(override if key in allowed else key)
    return known, unknown


def tenants_folder(settings: Settings, sources: SettingsSources) -> Path:
    """The folder that tenants' sessions work in, or below."""
    return settings.gateway.cwd or sources.session_cwd


def _lies_in(text: str, folder: Path) -> bool:
    """Whether a path leads into a folder; what is there elsewhere makes no difference to the answer."""
    try:
        return Path(text).is_absolute() and without_links(Path(text)).is_relative_to(without_links(folder))
    except (OSError, ValueError):
        return False


def _policies(defaults: SessionDefaults, sandbox: SandboxPolicy) -> Policies:
    policy: JsonObject = dict(sandbox.wire())
    return Policies(defaults.approval_policy, policy)


def permissions_of(settings: Settings, principal: Principal, folder: str = "") -> Permissions:
    """The permissions of a principal at a deployment with these settings; `folder` is that of tenants.

    Where no mode was chosen, a session may write into its folder, repository or not.
    """
    defaults, sandbox = settings.session_defaults, settings.session_defaults.sandbox
    if not sandbox.chosen:
        sandbox = sandbox.model_copy(update={"mode": "workspace-write"})
    return Permissions(principal, replace(_policies(defaults, sandbox), cwd=folder))


def _root_of(cwd: str, root: Path | None) -> SessionId | None:
    """The root session of the tree in whose portable folder a path lies; None for all other paths."""
    path = Path(os.path.normpath(cwd))
    if root is None or not path.is_relative_to(root) or path == root:
        return None
    try:
        return parse_session_id(path.relative_to(root).parts[0])
    except InvalidSessionId:
        return None


def _check_copies(principal: Principal, instead: str) -> None:
    """Raises `NotPermitted` for one that may copy no folder of this machine."""
    if principal.is_tenant:
        raise NotPermitted(f"folders of the gateway's machine are its user's: {instead}")
    try:
        principal.require(Scope.APPROVE, "a copy of a folder of the gateway's machine")
    except NotPermitted as error:
        raise NotPermitted(f"{error}, or {instead}") from None


async def _check_seen(client: Client, text: str) -> None:
    """Raises `BadSetting` for a session that is not named whole, or is of another namespace."""
    try:
        seen = await client.head(parse_session_id(text)) is not None
    except InvalidSessionId:
        seen = False
    if not seen:
        raise BadSetting(f"workspace: there is no session {text[:80]}")


async def _forked(commits: Commits, settings: Settings, source: ForkedFrom, own: Birth) -> Birth:
    if source.state.facts.portable is None:
        return forked_birth(settings, source, own)
    from orchestrator.wiring.portable import forked_folder

    try:
        return await forked_folder(commits, settings, source, own)
    except ViewError as error:
        raise BadSetting(f"workspace: {error}") from None


def _named(wish: NewThread) -> frozenset[str]:
    """The keys that a client set."""
    said = (parse_override(override)[0] for override in of_object(wish.config))
    folder = {"cwd"} if wish.cwd is not None else set()
    return frozenset(folder.union(wish.settings, map(".".join, said)))


def _folder(text: str, instead: str = TO_WORK_IN) -> Path:
    if (size := len(text.encode(errors="surrogatepass"))) > PATH_BYTES:
        raise BadSetting(f"cwd: at most {PATH_BYTES:,} bytes, this has {size:,}")
    folder = Path(text)
    if not folder.is_absolute():
        raise BadSetting(f"cwd: {text!r} is no absolute path")
    try:
        there = folder.is_dir()
    except OSError as error:
        raise BadSetting(f"cwd: {text} cannot be looked at: {error.strerror}") from None
    if not there:
        raise BadSetting(f"cwd: there is no folder {text}: {instead}")
    return folder


def _ignored(keys: list[str]) -> Iterator[str]:
    if keys:
        more = len(keys) - SHOWN_KEYS
        named = ", ".join(keys[:SHOWN_KEYS]) + (f" and {more} more" if more > 0 else "")
        yield f"config: not acted on: {named}"


def door_ports(found: Opened, sources: SettingsSources) -> Ports:
    """The app-server's view of a deployment."""
    from orchestrator.gateways.app_server.methods import METHODS

    repositories = Repositories(sources.environ)
    remembering = replace(sources, in_work_tree=repositories.in_work_tree)
    makes = NewThreads(found, remembering, repositories)

    def client(principal: Principal, via: Via) -> Client:
        folder = str(tenants_folder(found.settings, sources))
        checked = permits(found, permissions_of(found.settings, principal, folder))
        return found.client(principal.sender(via), principal.namespace, checked)

    offered = offer(found.settings)
    return Ports(
        found=found,
        client=client,
        create=makes.create,
        fork=makes.fork,
        delete=lambda members, by: delete_everywhere(found.storage(), members, by=by),
        home=found.settings.home,
        version=VERSION,
        now_ms=lambda: time.time_ns() // 1_000_000,
        random_bytes=os.urandom,
        offer=offered,
        credentials=credential_store(found.settings),
        sign_in=sign_in(found.settings),
        asks_auto_review=found.settings.gateway.auto_review == "ask",
        jobs=PoolJobs(found.broker, session_pool(found.settings), lambda: uuid.uuid4().hex),
        write_settings=SavedSettings(found.settings, sources).write,
        read_settings=partial(asyncio.to_thread, _saved, offered, remembering),
        verify=partial(_verified, found),
        receipt=partial(_receipt, url) if (url := found.settings.receipts.url) is not None else None,
        key_id=found.settings.chain.key_id if found.secret else "",
        folder_diffs=cache(lambda: _folder_diffs(found)),
        server_id=uuid.uuid4().hex,
        features=sorted(
            {name.partition("/")[0] for name, one in METHODS.items() if not one.before_initialize}
        ),
    )


async def _verified(found: Opened, tree: TreeId) -> tuple[Sequence[SessionHead], Sequence[Report]]:
    from orchestrator.rollouts.verify import sessions_by_tree, tree_reports

    (heads,) = [heads async for heads in sessions_by_tree(found, tree)]
    return heads, await tree_reports(found, heads)


async def _receipt(url: str, head: SessionHead) -> Receipt | None:
    from orchestrator.rollouts.object_store import Objects
    from orchestrator.rollouts.register import Register, receipt_of, register_of

    def read() -> Receipt | None:
        register = Register(Objects(url), register_of(head.labels.namespace))
        return receipt_of(register, register.newest(), f"session:{head.session}")

    return await asyncio.to_thread(read)


def _folder_diffs(found: Opened) -> FolderDiffs:
    from orchestrator.views.workspaces import FolderDiffs

    return FolderDiffs(found.packs, found.folder_bounds)


def _saved(running: Offer, sources: SettingsSources) -> Saved:
    """The settings as a session would get them now; those of the start where they cannot be read."""
    try:
        now = load_settings(sources)
    except SettingsError:
        return Saved(running)
    fresh = replace(
        running,
        defaults=now.session_defaults,
        models=now.model,
        tools=now.tools,
        servers=now.mcp_servers,
    )
    return Saved(fresh, *saved_tables(now, sources))


def offer(settings: Settings) -> Offer:
    """The settings as the app-server tells of them."""
    return Offer(
        settings.session_defaults,
        settings.model,
        settings.tools,
        guide(settings).skills,
        settings.mcp_servers,
    )


# ── repositories ──────────────────────────────────────────────────────────────────────────────────
# Git's answers about folders, remembered for a second while the repository around them stays as it is.
#
# A gateway makes sessions in the same few folders, and git is five processes for each. What shows a
# change is read anew each time: `HEAD`, the branch that it names, the packed ones, the configuration. The
# second bounds what is not looked at, as the person's own configuration and files that a repository's
# includes.


MOST_AGE_S: Final = 1.0
MOST_FOLDERS: Final = 64
"""More are forgotten, the oldest first: a client chooses the folders."""
REF_BYTES: Final = 1024
FILES: Final = ("config", "config.worktree", "packed-refs", "commondir", "reftable/tables.list")

T = TypeVar("T")
Signs: TypeAlias = tuple[object, ...]


class Repositories:
    """The repositories around the folders of new sessions; methods block, and threads may share them."""

    def __init__(self, environ: Mapping[str, str], now_s: Callable[[], float] = time.monotonic) -> None:
        self._trees = _Answers(lambda folder: in_work_tree(folder, environ), now_s)
        self._facts = _Answers(repository, now_s)

    def in_work_tree(self, folder: Path, environ: Mapping[str, str]) -> bool:
        """Whether git works in a folder. `environ` is that of this process, which does not change."""
        return self._trees.of(folder)

    def repository(self, cwd: Path) -> Repository:
        """The repository around a folder."""
        return self._facts.of(cwd)


@dataclass(slots=True)
class _Kept(Generic[T]):
    """The last answer about a folder; its lock is held while git is asked."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    signs: Signs | None = None
    at_s: float = 0.0
    answer: list[T] = field(default_factory=list)


class _Answers(Generic[T]):
    """The answers to one question."""

    def __init__(self, ask: Callable[[Path], T], now_s: Callable[[], float]) -> None:
        self._ask = ask
        self._now_s = now_s
        self._kept: dict[Path, _Kept[T]] = {}
        self._choosing = threading.Lock()

    def of(self, folder: Path) -> T:
        """The answer about a folder: the last one, or a new one."""
        kept = self._place(folder)
        with kept.lock:
            signs, now_s = signs_of(folder), self._now_s()
            if signs is None:
                return self._ask(folder)
            if signs != kept.signs or now_s - kept.at_s >= MOST_AGE_S:
                kept.answer = [self._ask(folder)]
                kept.signs, kept.at_s = signs, now_s
            return kept.answer[0]

    def _place(self, folder: Path) -> _Kept[T]:
        with self._choosing:
            found = self._kept.get(folder)
            if found is None:
                if len(self._kept) >= MOST_FOLDERS:
                    del self._kept[next(iter(self._kept))]
                found = self._kept[folder] = _Kept()
            return found


def signs_of(folder: Path) -> Signs | None:
    """All that changes when git's answers do; None for a `.git` that leads elsewhere: git is always asked."""
    own = without_links(folder)
    found: list[object] = [own]
    for above in (own, *own.parents):
        place = above / ".git"
        try:
            about = place.lstat()
        except OSError:
            continue
        if not stat.S_ISDIR(about.st_mode):
            return None
        found.append((place, about.st_ino, about.st_uid, about.st_mode, *_signs_in(place)))
    return tuple(found)


def _signs_in(place: Path) -> Signs:
    head = _content(place / "HEAD")
    name = head.removeprefix(b"ref: ").strip().decode("utf-8", "surrogateescape")
    is_branch = name.startswith("refs/") and ".." not in name and "\0" not in name
    return head, _content(place / name) if is_branch else b"", *(_about(place / file) for file in FILES)


def _content(file: Path) -> bytes:
    try:
        return read_regular(file, REF_BYTES)
    except OSError:
        return b""


def _about(file: Path) -> Signs | None:
    try:
        about = file.stat()
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


# ── saved settings ────────────────────────────────────────────────────────────────────────────────
# The person's own settings file, written by a door.


@record
class SavedSettings:
    """The file of the person whose gateway this is."""

    settings: Settings
    sources: SettingsSources
    """The sources of the gateway's settings: what the changed file makes of them is checked first."""
    _writing: threading.Lock = field(default_factory=threading.Lock, compare=False)
    """Held from the look at the file to its change: several clients write at the same time."""

    async def write(self, write: ConfigWrite) -> ConfigWritten:
        """Sets keys, and takes out those that are None, all or none; raises `BadSetting`."""
        return await asyncio.to_thread(self._one_by_one, write)

    def _one_by_one(self, write: ConfigWrite) -> ConfigWritten:
        with self._writing:
            return self._write(write)

    def _write(self, write: ConfigWrite) -> ConfigWritten:
        file = self.settings.config_file or self.settings.home / PROJECT_CONFIG
        if write.file is not None and Path(write.file) != file:
            raise BadSetting(f"filePath: the settings stand in {file}, and no other file is written")
        try:
            text = file.read_text(encoding="utf-8") if file.exists() else ""
            if write.version not in (None, _version(text)):
                raise BadSetting(f"{file} has changed since that version: config/read tells what is in force")
            changed = with_edits(text, write.edits)
            if len(changed.encode()) > FILE_LIMIT_BYTES:
                raise BadSetting(f"{file} would be larger than {FILE_LIMIT_BYTES:,} bytes")
            self._replace(file, changed)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, CannotEdit) as error:
            raise BadSetting(f"{file} was not changed: {error}") from None
        hidden = tuple(".".join(path) for path, _ in write.edits if self._overrides(path))
        return ConfigWritten(file, _version(changed), hidden)

    def _overrides(self, path: KeyPath) -> bool:
        """Whether the command line of this gateway counts before its file."""
        key = ".".join(path)
        return any(key == named or key.startswith(f"{named}.") for named in self.settings.named)

    def _replace(self, file: Path, text: str) -> None:
        """Puts the new content in the place of the old, whole or not at all, if it makes settings."""
        make_folder(file.parent)
        with _draft(file, text) as checked:
            self._check(checked, file)
            # A link to where a person keeps such files stays one.
            place = file.resolve() if file.is_symlink() else file
            with nullcontext(checked) if place == file else _draft(place, text) as draft:
                if place.exists() and not place.is_relative_to(self.settings.home):
                    # A file that other users of the machine share stays theirs to read.
                    draft.chmod(place.stat().st_mode & 0o777)
                draft.replace(place)

    def _check(self, draft: Path, file: Path) -> None:
        """Raises `BadSetting` for a value that cannot be, and for a key that nobody knows."""
        try:
            settings = load_settings(replace(self.sources, config_file=draft))
        except SettingsError as error:
            raise BadSetting(str(error).replace(str(draft), str(file))) from None
        warnings = [warning.replace(str(draft), str(file)) for warning in settings.warnings]
        for warning in warnings:
            if warning not in self.settings.warnings and not warning.endswith(NO_EFFECT):
                raise BadSetting(warning)


@contextmanager
def _draft(file: Path, text: str) -> Iterator[Path]:
    """A file with the text beside another one, which is gone behind the block."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        with os.fdopen(new_file(draft), "w", encoding="utf-8") as opened:
            opened.write(text)
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _version(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def saved_tables(
    settings: Settings, sources: SettingsSources
) -> tuple[str | None, Mapping[str, Mapping[str, JsonValue]], Mapping[str, str]]:
    """The chosen profile, the profiles, and the folders with a terminal's trust, as the file has them."""
    file = settings.config_file or settings.home / PROJECT_CONFIG
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        table = {}
    profiles, projects = (_tables(table.get(name)) for name in ("profiles", "projects"))
    trust = {
        path: level for path, one in projects.items() if isinstance(level := one.get("trust_level"), str)
    }
    chosen = _chosen_profile(sources) or table.get("profile")
    return (chosen if isinstance(chosen, str) else None), profiles, trust


def _chosen_profile(sources: SettingsSources) -> object:
    """The profile that the command line or the environment names."""
    said = dict(parse_override(override) for override in sources.overrides)
    return sources.flags.get("profile") or said.get(("profile",)) or sources.environ.get("DENDRO_PROFILE")


def _tables(value: object) -> dict[str, dict[str, JsonValue]]:
    named = value.items() if isinstance(value, dict) else ()
    return {name: table for name, table in named if isinstance(table, dict)}
