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

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import orjson

from orchestrator.core.frozen import record
from orchestrator.core.ids import InvalidSessionId, SessionId, parse_session_id
from orchestrator.private_files import make_folder, open_file, own_folder, write_file
from orchestrator.sandbox.place import COPIES, copy_of

STATE_BYTES = 4096
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
