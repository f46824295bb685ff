"""The copies of portable folders on this machine: where they lie, and what is known of each.

    <root>/copies/<session>/folder    what commands see, under another path
                            tmp       their `/tmp`
                            objects   a keeper's own: packs, the index of the folder
                            lock      held by the keeper while it lives
                            state     what the copy is, below

A copy is trusted because of what stands in `state`, not because it is there. `dirty` is written before a
call that may write, `clean` when the log has the snapshot and nothing runs. A death in between leaves
`dirty`. The kernel writes files when it likes, so a copy of before its last start is none: `state` names the
start. And a holder that stood still may write `clean` behind its claim, while the next one has the folder:
only the word of the claim counts that made the folder last, as the log has it.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import orjson

from orchestrator.broker.records import Claim
from orchestrator.config_keys import WorkspaceSettings
from orchestrator.core.frozen import record
from orchestrator.core.ids import InvalidSessionId, SessionId, parse_session_id
from orchestrator.core.settings import FolderSetup, PortableFolder
from orchestrator.folders.keeper import Keeper
from orchestrator.folders.outcomes import Bounds, FolderError, Place
from orchestrator.instructions.project import ProjectDocs
from orchestrator.private_files import make_folder, open_file, own_folder, write_file
from orchestrator.sandbox.policy_paths import COPIES, copy_of

STATE_BYTES = 16 << 10
"""A path of 2,048 bytes takes up to six times as much in JSON."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@record
class CopyState:
    """The knowledge about a copy."""

    kind: Literal["none", "dirty", "clean"] = "none"
    snapshot: str = ""
    """The snapshot that a clean copy is of."""
    epoch: int = 0
    """The epoch of the claim that left it clean."""
    claim: str = ""
    """The claim under which a dirty one was written."""
    boot: str = ""
    unsaved: str = ""
    """The snapshot of changes that no store has; the copy is all that is left of them."""


class Copy:
    """The copy of a session; only the holder of its lock changes it."""

    def __init__(self, root: Path, session: SessionId, boot: str) -> None:
        self.path = copy_of(root, session)
        self.session = session
        self._boot = boot
        self._state: CopyState | None = None

    @property
    def folder(self) -> Path:
        return self.path / "folder"

    @property
    def temporary(self) -> Path:
        return self.path / "tmp"

    @property
    def objects(self) -> Path:
        return self.path / "objects"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    def prepare(self) -> None:
        """Makes the folders around the copy; its own folder is the keeper's to make."""
        own_folder(self.path)
        make_folder(self.objects)
        make_folder(self.temporary)

    def state(self) -> CopyState:
        """The state as it was written; `none` for one that cannot be read."""
        if self._state is None:
            self._state = self._read()
        return self._state

    def _read(self) -> CopyState:
        try:
            with (self.path / "state").open("rb") as file:
                found = CopyState(**orjson.loads(file.read(STATE_BYTES)))
        except (OSError, ValueError, TypeError):
            return CopyState()
        return found

    def is_clean(self, snapshot: str, epoch: int) -> bool:
        """Whether the claim of this epoch left the copy as this snapshot, since the machine was started."""
        found = self.state()
        known = found.kind, found.snapshot, found.epoch, found.boot
        return known == ("clean", snapshot, epoch, self._boot)

    def dirty(self, claim: str) -> None:
        """Notes that it is no known snapshot any more."""
        found = self.state()
        if (found.kind, found.claim) != ("dirty", claim):
            self._write(CopyState("dirty", claim=claim, boot=self._boot, unsaved=found.unsaved))

    def clean(self, snapshot: str, epoch: int) -> None:
        """Notes that it is a snapshot that the log has, and that nothing of this claim's runs in it."""
        if not self.is_clean(snapshot, epoch):
            self._write(CopyState("clean", snapshot, epoch, boot=self._boot, unsaved=self.state().unsaved))

    def unsaved(self, snapshot: str) -> None:
        """Notes the snapshot of changes that are only here; none any more if it is empty."""
        found = self.state()
        if found.unsaved != snapshot:
            self._write(replace(found, unsaved=snapshot))

    def _write(self, state: CopyState) -> None:
        write_file(self.path / "state", orjson.dumps(asdict(state)), sync=False)
        self._state = state

    def note_seen(self, place: Path) -> None:
        """Notes the path at which commands see the copy: a folder for mounts stands there."""
        write_file(self.path / "seen", os.fsencode(place), sync=False)

    def seen(self) -> Path | None:
        """That path; None for a copy that was never made."""
        try:
            return Path((self.path / "seen").read_text(encoding="utf-8", errors="surrogateescape"))
        except OSError:
            return None

    def touch(self) -> None:
        """Notes that the copy was used now: upkeep of the machine looks at the time of its lock."""
        with suppress(OSError):
            os.utime(self.lock)

    def last_used(self) -> float:
        """The time of the last use, as a Unix time; 0 where nothing tells."""
        try:
            return self.lock.stat().st_mtime
        except OSError:
            return 0.0

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Whether nobody else has the copy; if so, nobody gets it until the context ends."""
        try:
            descriptor = open_file(self.lock, os.O_RDWR)
        except OSError:
            yield False
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            yield False
            return
        try:
            yield True
        finally:
            os.close(descriptor)

    def remove(self) -> None:
        """Removes the copy, under its lock. What a command has made unreadable is made readable first."""
        doomed = self.path.with_name(f"{self.session}.gone")
        with suppress(FileNotFoundError):
            remove_tree(doomed)
            self.path.rename(doomed)
            remove_tree(doomed)


def remove_tree(folder: Path) -> None:
    """Removes a folder with all that is in it, also where a command has taken its owner's rights away.

    Follows no link.
    """

    def opened(function: object, path: str, error: object) -> None:
        with suppress(OSError):
            Path(path).parent.chmod(0o700)
            target = Path(path)
            if target.is_symlink() or not target.is_dir():
                target.unlink(missing_ok=True)
            else:
                target.chmod(0o700)
                shutil.rmtree(path, ignore_errors=True)

    shutil.rmtree(folder, onerror=opened)


def copies_below(root: Path, boot: str) -> tuple[Copy, ...]:
    """The copies of a machine; what has no session's name is none."""
    try:
        names = sorted(path.name for path in (root / COPIES).iterdir())
    except OSError:
        return ()
    found = []
    for name in names:
        with suppress(InvalidSessionId):
            found.append(Copy(root, parse_session_id(name), boot))
    return tuple(found)


def boot_id() -> str:
    """The id of the machine's last start."""
    return BOOT_ID.read_text("ascii").strip()


# ── sweep ─────────────────────────────────────────────────────────────────────────────────────────
# Upkeep of one machine's copies: those that nobody uses are removed, least recently used first.
#
# A copy costs disk and saves the next claim here the making of it: it is kept for a time, and no longer
# than there is room. What is held, or holds changes that no store has, stays. Whoever finds a copy gone
# makes it.


log = logging.getLogger("dendro.worker")
SWEEP_S = 60.0


@record
class Swept:
    """The copies that were removed, and those that were to be and could not be."""

    removed: int = 0
    failed: int = 0


def sweep(config: MachineConfig, boot: str, now: float) -> Swept:
    """Removes copies that have been out of use for too long, or take too much; blocking."""
    settings, removed, failed = config.settings, 0, 0
    copies = sorted(copies_below(config.root, boot), key=lambda copy: copy.last_used())
    left = settings.max_disk
    sizes = {copy.session: _bytes_of(copy.path) for copy in copies} if left is not None else {}
    taken = sum(sizes.values())
    for copy in copies:
        beyond = left is not None and taken > left
        if not beyond and now - copy.last_used() <= settings.keep_s:
            continue
        match _removed(copy, now, settings.keep_s, beyond=beyond):
            case True:
                removed += 1
                taken -= sizes.get(copy.session, 0)
            case False:
                failed += 1
    _finish(config.root)
    return Swept(removed, failed)


def _removed(copy: Copy, now: float, keep_s: float, *, beyond: bool) -> bool | None:
    """Whether a copy was removed; None if it is in use, or holds what no store has."""
    with copy.locked() as mine:
        # Looked at again under the lock: a claim may have come and gone.
        if not mine or copy.state().unsaved or (not beyond and now - copy.last_used() <= keep_s):
            return None
        try:
            copy.remove()
        except OSError as error:
            log.warning("the copy of session %s could not be removed: %s", copy.session, error)
            return False
        return True


def _finish(root: Path) -> None:
    """Removes what a sweep that died has left, and the places of mounts that no copy has any more."""
    with suppress(OSError):
        for gone in (root / "copies").glob("*.gone"):
            remove_tree(gone)
    named = {place for copy in copies_below(root, "") if (place := copy.seen()) is not None}
    with suppress(OSError):
        for tree in root.iterdir():
            with suppress(InvalidSessionId):
                parse_session_id(tree.name)
                _without_places(tree, named)


def _without_places(tree: Path, named: set[Path]) -> None:
    for place in tree.iterdir():
        if place not in named:
            with suppress(OSError):
                place.rmdir()
    with suppress(OSError):
        tree.rmdir()


def _bytes_of(folder: Path) -> int:
    """The disk that a folder takes; of what cannot be looked at, nothing."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(f"{path}/{name}").st_blocks * 512
    return total


def _log(done: Swept) -> None:
    if done.removed:
        log.info("copies of portable folders that were removed: %d", done.removed)


@asynccontextmanager
async def sweeping(
    config: MachineConfig,
    boot: str,
    clock: Callable[[], float] = time.time,
    told: Callable[[Swept], None] = _log,
) -> AsyncIterator[None]:
    """Sweeps at regular times for as long as the context is open; `told` hears of each time."""

    async def regularly() -> None:
        while True:
            try:
                told(await asyncio.to_thread(sweep, config, boot, clock()))
            except OSError as error:
                log.warning("copies of workspaces were not looked at: %s", error)
            await asyncio.sleep(SWEEP_S)

    task = asyncio.create_task(regularly(), name="worker:copies")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


# ── machine ───────────────────────────────────────────────────────────────────────────────────────
# A machine that folders of sessions lie on: its settings, and the claims that keepers work under.


BUSY_S = 10.0
"""The wait for the keeper of a claim that is over: it ends at that claim's deadline."""
RETRY_S = 0.2
MOST_KEPT = 4096


@dataclass(frozen=True, slots=True)
class MachineConfig:
    """The machine and the settings that its folders obey; `root` is resolved."""

    settings: WorkspaceSettings
    machine: str
    """Its stable name (`host:<machine>` of pools)."""
    trust_s: float
    cannot_mount: str = ""
    """Why commands cannot see a portable folder at its path here; empty if they can."""
    docs: ProjectDocs | None = None
    """The rule by which a folder's instructions are found; None where none are told."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment in which repositories are cloned."""
    home: Path | None = None
    """Dendro's own folder, which is in no session's."""
    archive: Path | None = None
    """The folder of the archive, where it lies outside of that; in no session's either."""
    guarded: tuple[Path, ...] = ()
    """Files and folders that no sandboxed command writes."""
    setup_of: Callable[[Path], tuple[FolderSetup | None, str]] = lambda top: (None, "")
    """The script that prepares copies of a folder of this machine, and a warning; raises `UnfitFolder`."""

    @property
    def root(self) -> Path:
        assert self.settings.root is not None, "filled in with the settings"
        return self.settings.root

    def fault(self, portable: PortableFolder) -> str:
        """The reason why no folder of this session can be made on this machine; empty if one can."""
        root = self.root
        if Path(portable.root) != root and not self.cannot_mount:
            return (
                f"`workspace.root` is {root} on this machine, and the session's folder lies below "
                f"{portable.root}: set it alike for all workers of the session's pool"
            )
        if why := self.unfit():
            return why
        make_folder(root)
        return ""

    def unfit(self) -> str:
        """The reason why no folder can be made on this machine now; empty if one can. Writes nothing."""
        root, least = self.root, self.settings.min_free
        if self.cannot_mount:
            return self.cannot_mount
        if Path(os.path.realpath(root)) != root:
            return f"`workspace.root` ({root}) leads through a symbolic link or `..`: name the folder itself"
        try:
            free = os.statvfs(next(place for place in (root, *root.parents) if place.exists()))
        except OSError as error:
            return f"`workspace.root` ({root}) cannot be looked at: {error.strerror}"
        if free.f_bavail * free.f_frsize < least:
            return (
                f"the disk of {root} has less than {least:,} bytes free (`workspace.min_free`): "
                "make room there"
            )
        return ""


class Deadlines:
    """The time until which each claim is trusted, in seconds of CLOCK_BOOTTIME; from any thread."""

    def __init__(self, now: Callable[[], float], trust_s: float) -> None:
        self._now, self._trust_s = now, trust_s
        self._guard = threading.Lock()
        """Guards the deadlines: claims are extended by the thread that renews them."""
        self._ends: dict[str, float] = {}

    def extend(self, claim: str, deadline_boottime: float) -> None:
        """Writes a claim's deadline; never blocks."""
        with self._guard:
            self._ends[claim] = deadline_boottime
            if len(self._ends) > MOST_KEPT:
                now = self._now()
                self._ends = {name: ends for name, ends in self._ends.items() if ends > now}

    def of(self, claim: Claim) -> float:
        with self._guard:
            return self._ends.get(claim.claim_id, self._now() + self._trust_s)

    def forget(self, claim: Claim) -> None:
        with self._guard:
            self._ends.pop(claim.claim_id, None)

    async def keeper(self, place: Place, bounds: Bounds, claim: Claim) -> Keeper:
        """Starts a keeper; waits for the one of a claim that is over, which its deadline ends."""
        until = self._now() + BUSY_S
        while True:
            try:
                return await Keeper.start(place, bounds, self.of(claim))
            except FolderError as error:
                if error.kind != "busy" or self._now() > until:
                    raise
            await asyncio.sleep(RETRY_S)
