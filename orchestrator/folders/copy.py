"""A copy of a workspace: snapshots of its folder, and folders made from snapshots.

The work is done here, in the process that calls. Where the folder or a pack may be hostile, that process
is a keeper's (`keeper.py`), which offers the same.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from orchestrator.folders import outcomes, stat_cache
from orchestrator.folders.build import Build, clock_ns, doubted, remove
from orchestrator.folders.git_objects import (
    EMPTY_TREE,
    Entry,
    Head,
    foreign_entries,
    snapshot_of,
    tree_of_commit,
)
from orchestrator.folders.linediff import unified_diff
from orchestrator.folders.merge import (
    MOST_CONFLICTS,
    AllObjects,
    Plan,
    Planner,
    joined,
    settle,
    take_back,
    write,
)
from orchestrator.folders.names import COMMIT, FOLDER, LINK, MOST_DEPTH, MOST_LINK, MOST_PATH, quoted
from orchestrator.folders.packs import Pack, PackWriter, index_data
from orchestrator.folders.repository_head import HeadImport, read_head
from orchestrator.folders.scan import Scan
from orchestrator.folders.store import Indexed, Objects, checked, keep, kept, own

_FORMAT = 1
MOST_FOLLOWED = 40
"""Links on the way to one file."""
MOST_READ_TOGETHER = 40 * 1024 * 1024
"""Bytes of all files that are read at once: an answer of the keeper's process has room for them."""


PackSource = Path | int
"""A pack's file: its path, or a descriptor, which stays open: whoever opened it closes it."""


class Copy:
    """A copy of a workspace. Not for two threads at once. Everything raises `FolderError`."""

    def __init__(self, place: outcomes.Place, bounds: outcomes.Bounds) -> None:
        self.place = place
        self.bounds = bounds
        self._given: list[Indexed] = []
        """Packs of other copies, for branches that are joined."""
        self._states: dict[outcomes.FolderSnapshot, stat_cache.State] = {}
        """The last snapshot, and the one before: the last one may never be recorded."""
        for folder in (self._packs, self.place.objects / "spool"):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def _packs(self) -> Path:
        return self.place.objects / "packs"

    def take(
        self, parent: outcomes.FolderSnapshot, at_ms: int, *, live: bool = False
    ) -> outcomes.Taken | outcomes.Unchanged:
        """Takes a snapshot of the folder as it is, behind `parent`.

        `live` says that processes work in it. A file that one of them has mapped may change without a new
        time, as long as the kernel has not written the page: what is read now is read again next time.
        """
        with stat_cache.system_errors("the snapshot"):
            settle(self._work)
            state = self._state(parent)
            writer = self._writer()
            try:
                return self._take(state, writer, at_ms, live)
            except BaseException:
                writer.discard()
                raise

    def _take(
        self, state: stat_cache.State, writer: PackWriter, at_ms: int, live: bool
    ) -> outcomes.Taken | outcomes.Unchanged:
        assert state.snapshot is not None
        sink = stat_cache.NewObjects(writer, state.objects)
        sure_ns = 0 if live else clock_ns(self.place.objects)
        root = Scan(self.bounds, sink, sure_ns).root(self.place.folder, state.root)
        omitted = stat_cache.omissions(state.root, root)
        if root.tree == state.root.tree:
            writer.discard()
            if root is not state.root:
                self._states[state.snapshot] = stat_cache.State(
                    state.snapshot, root, state.objects, state.head
                )
            return outcomes.Unchanged(state.snapshot, omitted)
        snapshot = sink.commit(state, root, at_ms)
        pack = writer.finish()
        objects = Objects((*state.objects.packs, self._kept(pack, state.objects)))
        whole = stat_cache.wants_whole(objects)
        if whole:
            writer = self._writer()
            stat_cache.write_whole(
                writer, objects, stat_cache.closure(objects, bytes.fromhex(snapshot), state.head)
            )
            pack = writer.finish()
            objects = Objects((self._kept(pack, Objects()),))
        self._remember(stat_cache.State(snapshot, root, objects, state.head), state)
        counts, names = stat_cache.told(stat_cache.changes(state.root, root))
        return outcomes.Taken(
            snapshot,
            state.snapshot,
            root.tree.hex(),
            self._spooled(pack),
            pack.sha256,
            pack.bytes,
            whole,
            counts,
            names,
            omitted,
        )

    def born(
        self, repository: Path | None, ref: str, at_ms: int, *, of_folder: bool = True
    ) -> outcomes.Taken:
        """Takes the first snapshot: of the folder, or of a commit where there is none, or none is meant."""
        with stat_cache.system_errors("the first snapshot"):
            writer = self._writer()
            try:
                return self._born(writer, repository, ref, at_ms, of_folder=of_folder)
            except BaseException:
                writer.discard()
                raise

    def _born(
        self, writer: PackWriter, repository: Path | None, ref: str, at_ms: int, *, of_folder: bool
    ) -> outcomes.Taken:
        head = read_head(repository, ref) if repository is not None else None
        sink, nothing = stat_cache.NewObjects(writer, Objects()), stat_cache.Known()
        tracked, left = nothing, outcomes.Omissions()
        if repository is not None and head is not None:
            taken = HeadImport(repository, head, self.bounds, writer)
            tracked = taken.run()
            named = tuple(
                outcomes.Omission(quoted(line.path)[:512], why, line.size)
                for line, why in taken.left[: outcomes.NAMED_OMISSIONS]
            )
            left = outcomes.Omissions(named, len(taken.left), len(taken.left))
        root, omitted = tracked, left
        if of_folder and self.place.folder.is_dir():
            root = Scan(self.bounds, sink, clock_ns(self.place.objects)).root(self.place.folder, tracked)
            omitted = stat_cache.omissions(tracked, root)
        state = stat_cache.State(None, nothing, Objects(), head)
        snapshot = sink.commit(state, root, at_ms)
        pack = writer.finish()
        self._remember(stat_cache.State(snapshot, root, Objects((self._kept(pack, Objects()),)), head), None)
        counts, names = stat_cache.told(stat_cache.changes(nothing, root))
        tree, spooled = root.tree.hex(), self._spooled(pack)
        return outcomes.Taken(
            snapshot, None, tree, spooled, pack.sha256, pack.bytes, True, counts, names, omitted
        )

    def settle(self, taken: outcomes.Taken) -> None:
        """Removes an uploaded pack from the spool."""
        taken.pack.unlink(missing_ok=True)

    def make(self, packs: Sequence[PackSource], snapshot: outcomes.FolderSnapshot) -> outcomes.Made:
        """Makes the folder of a snapshot beside the one that is there, and puts it in its place."""
        with stat_cache.system_errors("the folder"):
            objects = self._received(packs)
            root, head = self._walked(objects, snapshot)
            beside = self.place.objects / "making"
            remove(beside)
            build = Build(objects)
            made = build.folder(beside, root)
            if head is not None:
                write_repository(beside / ".git", objects, head, made, build.stats, self.bounds)
            doubted(made, clock_ns(self.place.objects))
            self._put_in_place(beside)
            self._states = {snapshot: stat_cache.State(snapshot, made, objects, head)}
            self._note_packs()
            self._sweep()
        return outcomes.Made(root.count, root.bytes, head.commit.hex() if head is not None else None)

    def _put_in_place(self, beside: Path) -> None:
        """Two renames: a fall between them leaves no folder, and the next holder makes one."""
        old = self.place.objects / "replaced"
        remove(old)
        with suppress(FileNotFoundError):
            self.place.folder.rename(old)
        self.place.folder.parent.mkdir(parents=True, exist_ok=True)
        beside.rename(self.place.folder)
        remove(old)

    def adopt(self, packs: Sequence[PackSource], snapshot: outcomes.FolderSnapshot) -> bool:
        """Goes on with the folder as it is, which was left at this snapshot.

        What `leave` kept is used where it fits; else all files are read again, where the packs that make
        the snapshot are here, or given. False if they are not, or if there is no folder.
        """
        with stat_cache.system_errors("to go on with the folder"):
            if not self.place.folder.is_dir():
                return False
            state = self._left(snapshot) or self._recovered(snapshot)
            if state is None and packs:
                objects = self._received(packs)
                state = self._unread(snapshot, objects)
            if state is not None:
                self._states = {snapshot: state}
                self._note_packs()
            return state is not None

    def _left(self, snapshot: outcomes.FolderSnapshot) -> stat_cache.State | None:
        """The state that `leave` kept."""
        try:
            version, last, settings, names, row = marshal.loads((self.place.objects / "index").read_bytes())
            if (version, last, settings) != (_FORMAT, snapshot, repr(self.bounds)):
                return None
            objects = self._kept_objects(names)
            commit = snapshot_of(objects.read(bytes.fromhex(snapshot), "commit"))
            return stat_cache.State(snapshot, stat_cache.loaded(row), objects, commit.head)
        except (OSError, ValueError, EOFError, TypeError, outcomes.FolderError):
            return None

    def _recovered(self, snapshot: outcomes.FolderSnapshot) -> stat_cache.State | None:
        """The state after a keeper that was killed: its packs are here, and nothing is known of the files."""
        try:
            names = marshal.loads((self.place.objects / "last").read_bytes())[snapshot]
            return self._unread(snapshot, self._kept_objects(names))
        except (OSError, ValueError, EOFError, TypeError, KeyError, outcomes.FolderError):
            return None

    def _kept_objects(self, names: Sequence[str]) -> Objects:
        found = [kept(self._packs / name) for name in names]
        return Objects([pack for pack in found if pack is not None])

    def _unread(self, snapshot: outcomes.FolderSnapshot, objects: Objects) -> stat_cache.State:
        root, head = self._walked(objects, snapshot)
        return stat_cache.State(snapshot, root, objects, head)

    def leave(self) -> None:
        """Keeps what is known of the folder for the next claim on this machine."""
        with stat_cache.system_errors("the index"):
            if not self._states:
                return
            state = list(self._states.values())[-1]
            names = [pack.file.path.name for pack in state.objects.packs]
            row = (_FORMAT, state.snapshot, repr(self.bounds), names, stat_cache.dumped(state.root))
            stat_cache.replace(self.place.objects / "index", marshal.dumps(row))

    def plan_merge(
        self,
        base: outcomes.FolderSnapshot,
        theirs: outcomes.FolderSnapshot,
        packs: Sequence[PackSource],
        guard: outcomes.Guard = outcomes.ANYWHERE,
    ) -> outcomes.Planned | outcomes.Conflicted:
        """Plans what brings the changes from `base` to `theirs` into the folder as it is now."""
        with stat_cache.system_errors("the merge"):
            return self._merge(base, theirs, packs, guard)[0].told()

    def write_merge(
        self,
        base: outcomes.FolderSnapshot,
        theirs: outcomes.FolderSnapshot,
        packs: Sequence[PackSource],
        digest: str,
        guard: outcomes.Guard = outcomes.ANYWHERE,
    ) -> outcomes.Merged | outcomes.Conflicted:
        """Plans the merge again, and writes it if it is still the one that was planned."""
        with stat_cache.system_errors("the merge"):
            plan, new = self._merge(base, theirs, packs, guard)
            if plan.conflicts:
                return outcomes.Conflicted(plan.conflicts[:MOST_CONFLICTS], len(plan.conflicts))
            if plan.digest != digest:
                return outcomes.Conflicted(
                    (outcomes.Conflict(".", "files changed since the merge was planned"),), 1
                )
            write(plan, self.place.folder, new, self._work)
            return outcomes.Merged(*plan.counted())

    def take_back_merge(self) -> None:
        """Takes back the merge in which another process of this place was lost, as far as it came."""
        with stat_cache.system_errors("the way back from a merge"):
            take_back(self.place.folder, self._work)

    def _merge(
        self,
        base: outcomes.FolderSnapshot,
        theirs: outcomes.FolderSnapshot,
        packs: Sequence[PackSource],
        guard: outcomes.Guard,
    ) -> tuple[Plan, stat_cache.Known]:
        objects = self._with(packs)
        old, new = self._walked(objects, base)[0], self._walked(objects, theirs)[0]
        self._work.mkdir(exist_ok=True)
        planner = Planner(self.place.folder, objects, self.bounds, self._work, guard)
        return planner.plan(old, new), new

    @property
    def _work(self) -> Path:
        return self.place.objects / "merging"

    def diff(
        self,
        before: outcomes.FolderSnapshot | None,
        after: outcomes.FolderSnapshot,
        packs: Sequence[PackSource] = (),
        *,
        stat: bool = False,
        path: str | None = None,
    ) -> outcomes.Difference:
        """The difference of two snapshots, or of one file in them; None is the empty folder."""
        with stat_cache.system_errors("the comparison"):
            objects = self._with(packs)
            old = self._walked(objects, before)[0] if before is not None else stat_cache.Known()
            return difference(old, self._walked(objects, after)[0], objects, text=not stat, path=path)

    def give(self, packs: Sequence[PackSource]) -> None:
        """Reads packs that make branches: those that others build on come first."""
        with stat_cache.system_errors("the comparison"):
            had = {pack.file.path for pack in self._given}
            for source in packs:
                path = self._received_file(source)
                if path not in had:
                    had.add(path)
                    self._given.append(kept(path) or checked(path, Objects(self._given), self.bounds))

    def join(self, branches: Sequence[outcomes.Branch]) -> outcomes.Joined:
        """The files that branches have changed, whose packs were given, as if all were merged."""
        with stat_cache.system_errors("the comparison"):
            self._work.mkdir(exist_ok=True)
            objects = AllObjects(self._given)
            return joined(branches, objects, self.bounds, self._work, lambda *change: _compared(*change)[1])

    def read_files(
        self,
        snapshot: outcomes.FolderSnapshot,
        paths: Sequence[str],
        most: int,
        packs: Sequence[PackSource] = (),
    ) -> tuple[outcomes.ReadFile, ...]:
        """Files of a snapshot of up to `most` bytes, also by its links, none of which leads out of it."""
        objects = self._with(packs)
        reader = _Reader(objects, self._walked(objects, snapshot)[0], most)
        return tuple(map(reader.read, paths))

    def find_files(
        self,
        snapshot: outcomes.FolderSnapshot,
        search: outcomes.Search,
        packs: Sequence[PackSource] = (),
    ) -> outcomes.Found:
        """Files of one name below folders of a snapshot, also by its links, folder by folder."""
        objects = self._with(packs)
        reader = _Reader(objects, self._walked(objects, snapshot)[0], search.bytes)
        files: list[outcomes.ReadFile] = []
        cut = []
        for folder in search.folders:
            bound = _found(reader, folder, search, files)
            if bound is not None:
                cut.append(outcomes.Cut(folder, bound))
            if bound == "files":
                break
        return outcomes.Found(tuple(files), tuple(cut))

    def _state(self, parent: outcomes.FolderSnapshot) -> stat_cache.State:
        state = self._states.get(parent) or self._recovered(parent)
        if state is None:
            raise outcomes.FolderError(
                "missing", f"the copy is not at snapshot {parent}: it has to be made first"
            )
        return state

    def _remember(self, state: stat_cache.State, before: stat_cache.State | None) -> None:
        assert state.snapshot is not None
        kept_before = {before.snapshot: before} if before is not None and before.snapshot is not None else {}
        self._states = {**kept_before, state.snapshot: state}
        self._note_packs()
        self._sweep()

    def _note_packs(self) -> None:
        """Writes which packs make which snapshot: a keeper that is killed writes nothing more."""
        names = {
            snapshot: [pack.file.path.name for pack in state.objects.packs]
            for snapshot, state in self._states.items()
        }
        stat_cache.replace(self.place.objects / "last", marshal.dumps(names))

    def _sweep(self) -> None:
        """Removes packs of this place that no state needs."""
        needed = {pack.file.path.stem for state in self._states.values() for pack in state.objects.packs}
        for path in self._packs.iterdir():
            if path.stem not in needed:
                path.unlink()

    def _walked(
        self, objects: Objects, snapshot: outcomes.FolderSnapshot
    ) -> tuple[stat_cache.Known, Head | None]:
        commit = snapshot_of(objects.read(bytes.fromhex(snapshot), "commit"))
        if commit.tree == EMPTY_TREE:
            return stat_cache.Known(), commit.head
        return stat_cache.Walk(objects, self.bounds).folder(commit.tree), commit.head

    def _writer(self) -> PackWriter:
        path = self.place.objects / "spool" / "writing"
        path.unlink(missing_ok=True)
        return PackWriter(path)

    def _kept(self, pack: Pack, before: Objects) -> Indexed:
        """Moves a finished pack to the others of this place."""
        path = self._packs / f"{pack.sha256}.pack"
        pack.path.replace(path)
        indexed = own(pack, path, before)
        keep(indexed)
        return indexed

    def _spooled(self, pack: Pack) -> Path:
        path = self.place.objects / "spool" / f"{pack.sha256}.pack"
        path.unlink(missing_ok=True)
        kept_here = self._packs / f"{pack.sha256}.pack"
        try:
            os.link(kept_here, path)
        except OSError:
            shutil.copyfile(kept_here, path)  # a file system without hard links
        return path

    def _with(self, packs: Sequence[PackSource]) -> Objects:
        """The objects of this copy, and those of other packs."""
        mine = list(self._states.values())[-1].objects.packs if self._states else ()
        return self._received(packs, mine) if packs else Objects(mine)

    def _received(self, packs: Sequence[PackSource], before: Sequence[Indexed] = ()) -> Objects:
        """Copies packs to this place, unless they are there, and checks them before they are believed."""
        found = list(before)
        for source in packs:
            path = self._received_file(source)
            if any(pack.file.path == path for pack in found):
                continue
            pack = kept(path)
            if pack is None:
                pack = checked(path, Objects(found), self.bounds)
                keep(pack)
            found.append(pack)
        return Objects(found)

    def _received_file(self, source: PackSource) -> Path:
        """Copies a pack to this place, under the name that its content gives it."""
        with open(source, "rb", closefd=not isinstance(source, int)) as file:
            path = self._packs / f"{hashlib.file_digest(file, 'sha256').hexdigest()}.pack"
            if not path.exists():
                file.seek(0)
                beside = path.with_suffix(".new")
                with beside.open("wb") as target:
                    shutil.copyfileobj(file, target, 1 << 20)
                beside.replace(path)
        return path


# ── files of a snapshot ───────────────────────────────────────────────────────────────────────────


class _Reader:
    """Files and folders of a snapshot by their paths, and what is left of the room for contents."""

    def __init__(self, objects: Objects, root: stat_cache.Known, most: int) -> None:
        self._objects = objects
        self._root = root
        self._most = most
        self._room = MOST_READ_TOGETHER

    def read(self, path: str) -> outcomes.ReadFile:
        """The file at a path, or why it is not read."""
        file = self.at(path)
        if not isinstance(file, stat_cache.File):
            return outcomes.ReadFile(path, None, "it is a folder" if file is not None else _NOT_THERE)
        if file.size > self._most:
            return outcomes.ReadFile(
                path, None, f"it has {file.size:,} bytes, and at most {self._most:,} are read"
            )
        if file.size > self._room:
            why = f"with those before it, it has more than {MOST_READ_TOGETHER:,} bytes, the most at once"
            return outcomes.ReadFile(path, None, why)
        self._room -= file.size
        return outcomes.ReadFile(path, self._objects.read(file.sha, "blob"))

    def at(self, path: str) -> stat_cache.File | stat_cache.Known | None:
        """The file or folder at a path, through links of the snapshot; None if it has none."""
        todo, at, links = _names(path), [self._root], 0
        while todo:
            name = todo.pop()
            if name == ".." and links:
                if len(at) == 1:
                    return None
                at.pop()
            elif (below := at[-1].folders.get(name)) is not None:
                at.append(below)
            elif (file := at[-1].files.get(name)) is not None and file.mode != LINK:
                return None if todo else file
            elif file is not None and links < MOST_FOLLOWED and file.size <= MOST_LINK:
                links += 1
                target = os.fsdecode(self._objects.read(file.sha, "blob"))
                if target.startswith("/"):
                    return None
                todo += _names(target)
            else:
                return None
        return at[-1]


_NOT_THERE = (
    "it is not among the files of the folder as it was recorded last; what the folder ignores is not recorded"
)


def _names(path: str) -> list[str]:
    """The names of a path, the last one first."""
    return [name for name in path.split("/") if name not in ("", ".")][::-1]


def _found(
    reader: _Reader, top: str, search: outcomes.Search, files: list[outcomes.ReadFile]
) -> Literal["files", "entries"] | None:
    """Adds what is found below one folder; the bound at which that ended, if one did."""
    looked, waiting = 0, [(top, 0)]
    while waiting:
        path, depth = waiting.pop()
        folder = reader.at(path)
        if not isinstance(folder, stat_cache.Known):
            continue
        names = sorted((*folder.files, *folder.folders))
        cut = len(names) > search.entries - looked
        del names[search.entries - looked :]
        looked += len(names)
        if search.name in names:
            if len(files) == search.files:
                return "files"
            files.append(reader.read(f"{path}/{search.name}"))
        if cut:
            return "entries"
        if depth < search.depth:
            below = (f"{path}/{name}" for name in reversed(names))
            waiting += [(it, depth + 1) for it in below if len(os.fsencode(it)) <= MOST_PATH]
    return None


# ── difference ────────────────────────────────────────────────────────────────────────────────────
# The difference of two snapshots, as `git diff` writes it, cut at a bound.


MOST_TEXT = 1024 * 1024
"""Bytes of the whole text."""
_MOST_FILE = 1024 * 1024
"""Bytes of a file whose lines are compared; a larger one is told as a binary one is."""
_MOST_LISTED = 1000
_SNIFFED = 8000
"""Bytes in which git looks for a zero, which makes a file binary."""
_NOTHING = "0" * 40
_ABSENT = "/dev/null"


def difference(
    before: stat_cache.Known,
    after: stat_cache.Known,
    objects: Objects,
    *,
    text: bool,
    path: str | None = None,
) -> outcomes.Difference:
    """Compares two folders whose files are in `objects`; of one file alone, whose `path` is quoted."""
    counts = {"A": 0, "M": 0, "D": 0}
    stats: list[outcomes.FileStat] = []
    parts: list[str] = []
    inserted = deleted = size = 0
    truncated = False
    for change in stat_cache.changes(before, after):
        if path is not None and quoted(change.path) != path:
            continue
        counts[change.what] += 1
        body, stat = _compared(change, objects)
        inserted, deleted = inserted + stat.insertions, deleted + stat.deletions
        if len(stats) < _MOST_LISTED:
            stats.append(stat)
        if not text:
            continue
        part = "".join((*_header(change), *body))
        size += len(part.encode())
        truncated |= size > MOST_TEXT
        if not truncated:
            parts.append(part)
    figures = outcomes.Counts(counts["A"], counts["M"], counts["D"])
    return outcomes.Difference("".join(parts), truncated, figures, inserted, deleted, tuple(stats))


def _compared(change: stat_cache.Change, objects: Objects) -> tuple[list[str], outcomes.FileStat]:
    """The lines below the header, and the figures."""
    path = quoted(change.path)
    old, new = _text(change.before, objects), _text(change.after, objects)
    if change.before and change.after and change.before.sha == change.after.sha:
        return [], outcomes.FileStat(path, 0, 0, what=change.what)
    sides = _side("a", change, change.before), _side("b", change, change.after)
    if old is None or new is None:
        large = any(file is not None and file.size > _MOST_FILE for file in (change.before, change.after))
        stat = outcomes.FileStat(path, 0, 0, binary=True, what=change.what, too_large=large)
        return [f"Binary files {sides[0]} and {sides[1]} differ\n"], stat
    diff = unified_diff(old, new)
    if not diff:
        return [], outcomes.FileStat(path, 0, 0, what=change.what)
    hunks = diff.split("\n")
    added = sum(line.startswith("+") for line in hunks)
    removed = sum(line.startswith("-") for line in hunks)
    # A tab behind a name with spaces, by which patch(1) sees where it ends.
    tab = "\t" if b" " in change.path else ""
    old_name, new_name = (side + tab * (side != _ABSENT) for side in sides)
    return [f"--- {old_name}\n+++ {new_name}\n", diff], outcomes.FileStat(
        path, added, removed, what=change.what
    )


def _text(file: stat_cache.File | None, objects: Objects) -> str | None:
    """The content as text; None for a file that is not shown by lines."""
    if file is None:
        return ""
    if file.mode == COMMIT or file.size > _MOST_FILE:
        return None
    content = objects.read(file.sha, "blob")
    if b"\0" in content[:_SNIFFED]:
        return None
    return content.decode("utf-8", "replace")


def _side(letter: str, change: stat_cache.Change, file: stat_cache.File | None) -> str:
    return _ABSENT if file is None else quoted(letter.encode() + b"/" + change.path)


def _header(change: stat_cache.Change) -> Iterator[str]:
    old, new = change.before, change.after
    yield f"diff --git {quoted(b'a/' + change.path)} {quoted(b'b/' + change.path)}\n"
    if old is None and new is not None:
        yield f"new file mode {new.mode:o}\n"
    elif new is None and old is not None:
        yield f"deleted file mode {old.mode:o}\n"
    elif old is not None and new is not None and old.mode != new.mode:
        yield f"old mode {old.mode:o}\nnew mode {new.mode:o}\n"
    ids = [file.sha.hex() if file is not None else _NOTHING for file in (old, new)]
    if ids[0] != ids[1]:
        same_mode = f" {new.mode:o}" if old is not None and new is not None and old.mode == new.mode else ""
        yield f"index {ids[0][:7]}..{ids[1][:7]}{same_mode}\n"


# ── repository ────────────────────────────────────────────────────────────────────────────────────
# The `.git` of a folder: made by us for `git status`, `git diff` and `git log` inside, and never read
# again.
#
# It is shallow: one commit, its files and an index. It has no hooks, and no configuration but these
# lines.


_CONFIG = """[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = false
\thooksPath = /dev/null
\tfsmonitor = false
[gc]
\tauto = 0
"""
_FULL_NAME = 0xFFF


def write_repository(
    path: Path,
    objects: Objects,
    head: Head,
    made: stat_cache.Known,
    stats: Mapping[bytes, os.stat_result],
    bounds: outcomes.Bounds,
) -> None:
    """Makes the repository of a folder that was just made. `stats` has its files, by their paths."""
    packs = path / "objects" / "pack"
    for folder in (packs, path / "refs" / "tags", path / "objects" / "info", path / "info"):
        folder.mkdir(parents=True)
    _write_pack(packs, objects, head)
    commit = head.commit.hex()
    (path / "HEAD").write_text(f"ref: refs/heads/{head.branch}\n")
    branch = path / "refs" / "heads" / head.branch
    branch.parent.mkdir(parents=True, exist_ok=True)
    branch.write_text(f"{commit}\n")
    (path / "config").write_text(_CONFIG)
    rules = "".join(f"{line}\n" for line in bounds.ignored)
    (path / "info" / "exclude").write_bytes(rules.encode("utf-8", "surrogateescape"))
    if b"\nparent " in objects.read(head.commit, "commit").partition(b"\n\n")[0]:
        (path / "shallow").write_text(f"{commit}\n")
    tracked = _Tracked(objects, bounds)
    tracked.walk(tree_of_commit(objects.read(head.commit, "commit")), b"", 0)
    (path / "index").write_bytes(_index(tracked.entries, made, stats))


def _write_pack(packs: Path, objects: Objects, head: Head) -> None:
    writer = PackWriter(packs / "new")
    stat_cache.write_whole(writer, objects, stat_cache.closure(objects, head.commit, None))
    pack = writer.finish()
    name = f"pack-{pack.sha1.hex()}"
    pack.path.rename(packs / f"{name}.pack")
    (packs / f"{name}.idx").write_bytes(index_data(pack))


class _Tracked:
    """The files of a commit, by their paths, counted."""

    def __init__(self, objects: Objects, bounds: outcomes.Bounds) -> None:
        self.entries: list[Entry] = []
        self._objects = objects
        self._bounds = bounds

    def walk(self, tree: bytes, path: bytes, depth: int) -> None:
        if depth > MOST_DEPTH or len(self.entries) > self._bounds.max_files:
            raise outcomes.FolderError(
                "too_many_files", "the folder's commit has too many files: nothing is made of it"
            )
        for entry in foreign_entries(self._objects.read(tree, "tree")):
            below = path + entry.name
            if entry.mode == FOLDER:
                self.walk(entry.sha, below + b"/", depth + 1)
            else:
                self.entries.append(Entry(below, entry.mode, entry.sha))


def _index(entries: list[Entry], made: stat_cache.Known, stats: Mapping[bytes, os.stat_result]) -> bytes:
    """An index of git, version 2, in which what stands in the folder as it is in the commit is known so."""
    now = dict(_files(made, b""))
    rows = [struct.pack(">4sII", b"DIRC", 2, len(entries))]
    for entry in sorted(entries):
        same = entry.mode != COMMIT and now.get(entry.name) == (entry.mode, entry.sha)
        head = _stat_row(stats.get(entry.name) if same else None, entry)
        body = entry.sha + struct.pack(">H", min(len(entry.name), _FULL_NAME)) + entry.name
        rows.append(head + body + b"\0" * (8 - (len(head) + len(body)) % 8))
    data = b"".join(rows)
    return data + hashlib.sha1(data, usedforsecurity=False).digest()


def _files(folder: stat_cache.Known, path: bytes) -> list[tuple[bytes, tuple[int, bytes]]]:
    found = [(path + os.fsencode(name), (file.mode, file.sha)) for name, file in folder.files.items()]
    for name, below in folder.folders.items():
        found += _files(below, path + os.fsencode(name) + b"/")
    return found


def _stat_row(now: os.stat_result | None, entry: Entry) -> bytes:
    if now is None:
        return struct.pack(">10I", 0, 0, 0, 0, 0, 0, entry.mode, 0, 0, 0)
    times = (*divmod(now.st_ctime_ns, 10**9), *divmod(now.st_mtime_ns, 10**9))
    numbers = (*times, now.st_dev, now.st_ino, entry.mode, now.st_uid, now.st_gid, now.st_size)
    return struct.pack(">10I", *(number & 0xFFFFFFFF for number in numbers))
