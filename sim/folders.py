"""Portable folders of a simulation: real files on hosts, packs in the store, and what both are to be.

Copies lie below a folder in memory, one for each host; a host has several workers, and what it keeps outlives
them. What makes, records, merges and stores them is the product's own (`sim/machine_folders.py`). Here is
where they are, what simulated commands write there, and a plain model of what each is to hold.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from orchestrator.core.calls import Call
from orchestrator.core.commands import FolderMerged, FolderNotMerged
from orchestrator.core.frozen import replace
from orchestrator.core.packs import Pack
from orchestrator.core.settings import FolderSetup, PortableFolder
from orchestrator.core.state import may_write
from orchestrator.protocol.ids import CallId
from orchestrator.tools.tool_context import CallSite
from orchestrator.workspaces.stored_packs import BIRTH
from sim.disk import Fault
from sim.folder_content import (
    BEGUN,
    FILE,
    NOTHING,
    PROGRAM,
    Content,
    Lacking,
    PackReader,
    changed,
    marked,
    merged,
    new_folders,
    not_taken_back,
    on_disk,
    same_files,
    slots_of,
    text_of,
)
from sim.keepers import STEPS, Owner, SimKeeper
from sim.ledger import Run
from sim.loop import Lane, SimLoop, current_lane
from sim.objects import SimObjects
from sim.pack_keys import SimKeys

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
MARKS = "marks/"
"""Files that calls write to show that they did are below it."""
_FAULTS = {"take": (0.07, 0.06), "make": (0.05, 0.06), "write_merge": (0.03, 0.25)}
MERGE_STEPS = 50
"""Changes of the disk by a merge, which writes all its files beside the folder before it moves any."""
_SELDOM = (0.01, 0.02)
"""How likely the disk is full, and the keeper killed, in a piece of work."""
HANGS, HANGS_S = 0.35, 1_000.0
"""How likely a merge takes longer than anybody waits for it, so that its keeper is killed in it."""
EDITS = 0.8
"""How likely a person changes a file that a merge has brought whose keeper was killed just then."""
WRITES = 0.5
"""How likely a command changes something, besides, that others change as well."""
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()
_WORLDS = count()


@dataclass(slots=True, eq=False)
class Copy:
    """A folder on a host."""

    path: Path
    holder: str
    """The claim that made it, or found it clean."""
    prepared: bool = False
    """Whether a set-up has run in it to its end, and none has begun since."""

    @property
    def content(self) -> Content:
        return on_disk(self.path)


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge that was written into a folder, or begun to be, and what was there before it."""

    work: tuple[str, str]
    """The snapshots whose difference it brings."""
    before: Content
    after: Content
    """The folder when all of it is written."""


@dataclass(slots=True)
class Folders:
    """All folders, as hosts and the store have them. Implements `keepers.Keeping`."""

    store: SimObjects
    loop: SimLoop
    rng: Random
    copies: dict[tuple[str, str], Copy] = field(default_factory=dict)
    """By host and session."""
    let_go: set[str] = field(default_factory=set)
    """Claims whose worker has given their copy back."""
    contents: dict[str | None, Content] = field(default_factory=lambda: {None: NOTHING})
    """The content of every snapshot that was ever taken."""
    shared: dict[str, Path] = field(default_factory=dict)
    """The folders that sessions work in as they are, by session; those of which agents have copies."""
    hosts: int = 2
    hosts_of: dict[str, str] = field(default_factory=dict)
    """By worker."""
    full: dict[str, float] = field(default_factory=dict)
    """Hosts with too little room for another folder, and since when."""
    lost: set[str] = field(default_factory=set)
    """Hosts that never come back."""
    deadly: float = 1.0
    """How much likelier than usual that is."""
    hangs: bool = True
    """Whether a merge may still take longer than anybody waits for it: one of a simulation does."""
    faulty: bool = True
    """Whether machines may fail to make a folder, and disks be full."""
    owners: dict[Lane, Owner] = field(default_factory=dict)
    """The process of each thread."""
    keepers: dict[str, list[SimKeeper]] = field(default_factory=dict)
    """The living ones, by worker."""
    merges: dict[str, Merge] = field(default_factory=dict)
    """The last merge into the folder of each session in which its keeper did not die."""
    broken_off: dict[str, Merge] = field(default_factory=dict)
    """The merge into the folder of each session in which a keeper died, until it is taken back."""
    edited: set[str] = field(default_factory=set)
    """Sessions in whose folders somebody has written since their last merge."""
    keys: SimKeys | None = None
    """The keys of packs, where there are any."""
    lost_packs: set[str] = field(default_factory=set)
    """Packs that the store has lost."""
    stops: Callable[[str], None] = lambda worker: None
    """Lets a worker stand still for longer than it may trust its claim."""
    met: Callable[[str, str, str, Copy | None], None] = lambda session, call_id, claim, copy: None
    """Told of a call that begins, and of the folder that it meets."""
    prepares: Callable[[str, str, Copy], bool] = lambda session, claim, copy: False
    """Told of a set-up that begins, and of the folder that it meets; says whether Redis has lost that."""
    made: Callable[[str, str, Copy | None], None] = lambda session, claim, before: None
    """Told of a claim that puts its copy in the place of another one."""
    cleaned: Callable[[str, Copy, str], None] = lambda session, copy, snapshot: None
    """Told of a copy that is taken for clean."""
    wrote: Callable[[str, str, Copy], None] = lambda session, claim, copy: None
    """Told of a mark that a run under a claim makes."""
    broken: Callable[[str, str], None] = lambda rule, seen: None
    """Told of a rule that a piece of work has broken."""
    forgets: Callable[[str, str], None] = lambda session, snapshot: None
    """Told of a machine that has a session's unsaved changes, by its log, and finds none."""
    saw: Callable[[str], None] = lambda case: None
    runs: int = 0
    most_packs: int = 3
    """Packs behind one that stands alone; the product adds more of them."""
    place: Path = field(default_factory=lambda: Path(_MEMORY, f"dendro-sim-{os.getpid()}-{next(_WORLDS)}"))
    """Where all of them are to lie."""
    _is_there: bool = False
    _reader: PackReader | None = None

    # ── places ────────────────────────────────────────────────────────────────────────────────

    @property
    def root(self) -> Path:
        """The folder of all of them, which is there as soon as somebody asks."""
        if not self._is_there:
            self.place.mkdir(0o700)
            self._is_there = True
        return self.place

    def close(self) -> None:
        """Removes everything."""
        for keeper in [keeper for keepers in self.keepers.values() for keeper in keepers]:
            keeper.close()
        if self._is_there:
            shutil.rmtree(self.place)

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

    def shares(self, session: str) -> None:
        """Gives a session a folder of a machine's to work in as it is."""
        self.shared[session] = self.root / "shared" / session
        self.shared[session].mkdir(parents=True)

    def shared_by(self, session: str) -> Path:
        """The folder that a session works in as it is; of an agent that nobody gave one, an empty one."""
        if session not in self.shared:
            self.shares(session)
        return self.shared[session]

    # ── keepers ───────────────────────────────────────────────────────────────────────────────

    def owner(self) -> Owner:
        return self.owners[current_lane()]

    def began(self, keeper: SimKeeper) -> None:
        self.keepers.setdefault(keeper.owner.name, []).append(keeper)

    def ended(self, keeper: SimKeeper) -> None:
        self.keepers[keeper.owner.name].remove(keeper)

    def killed(self, worker: str) -> None:
        """A worker is dead, and with it its keepers."""
        for keeper in list(self.keepers.get(worker, ())):
            keeper.die()

    def takes_s(self, keeper: SimKeeper, work: str) -> float:
        # A folder that a session works in as it is may take twenty minutes.
        hangs = work == "write_merge" and self.hangs and keeper.session not in self.shared
        if hangs and (self.faulty or self.deadly > 1.0) and self.rng.random() < HANGS:
            self.hangs = False
            return HANGS_S
        longest = {"take": (0.0, 0.0, 0.05, 0.5, 3.0), "write_merge": (0.0, 0.05, 1.0)}.get(
            work, (0.0, 0.0, 0.05)
        )
        return self.rng.choice(longest) * self.rng.random()

    def fault(self, keeper: SimKeeper, work: str) -> Fault | None:
        if not self.faulty and (work != "write_merge" or self.deadly == 1.0):
            # Merges come late: their keepers die in peace, too, where folders are looked into.
            return None
        full, killed = _FAULTS.get(work, _SELDOM)
        chance, full, killed = self.rng.random(), full * self.deadly, killed * self.deadly
        if chance >= full + killed:
            return None
        if work == "write_merge":
            return Fault(int(self.rng.random() * MERGE_STEPS), kills=chance >= full)
        return Fault(int(self.rng.random() ** 2 * STEPS), kills=chance >= full)

    def half(self, work: str) -> Fault | None:
        steps = MERGE_STEPS if work == "write_merge" else STEPS
        share = 0.9 if work == "write_merge" else 0.5
        return Fault(int(self.rng.random() * steps), kills=True) if self.rng.random() < share else None

    def broke_off(self, keeper: SimKeeper, words: dict[str, Any], before: Content) -> None:
        self.saw("keeper_killed")
        session = keeper.session
        if words["do"] != "write_merge" or session in self.broken_off:
            return
        wanted = self._way(words, before)
        after = before if wanted is None else wanted
        self.broken_off[session] = Merge((words["base"], words["theirs"]), before, after)
        self.edited.discard(session)
        if session in self.shared and self.rng.random() < EDITS:
            self._edits(session, before, after)

    def _edits(self, session: str, before: Content, after: Content) -> None:
        """A person changes a file that a merge has brought into the folder, which is the person's."""
        folder, now = self.shared[session], on_disk(self.shared[session])
        brought = [
            path
            for path, it in sorted(after.items())
            if it != before.get(path) and it == now.get(path) and not path.startswith(MARKS)
        ]
        brought = [path for path in brought if after[path][0] in (FILE, PROGRAM)]
        if not brought:
            return
        self.runs += 1
        path = self.rng.choice(brought)
        file, slots = folder / path, slots_of(after[path][1])
        words = f"person {self.runs}"
        file.write_bytes(text_of((words, *slots[1:])) if slots else b"\0" + words.encode())
        self._is_written(session)

    def did(self, keeper: SimKeeper, words: dict[str, Any], before: Content, told: dict[str, Any]) -> None:
        """Holds a piece of work against the model of what it is to do."""
        after, session, does = on_disk(keeper.place.folder), keeper.session, words["do"]
        refused = told["is"] == "error"
        if refused and told["kind"] == "failed" and "defect" in told["text"]:
            self.broken("no_crash", f"{session}: {told['text']}")
        if does == "make" and not refused:
            self._is_made(keeper, words["snapshot"], after)
        elif does == "write_merge" and not refused:
            self._is_merged(session, words, before, after, told)
        elif does == "take_back_merge" and not refused:
            self._is_taken_back(session, before, after)
        elif after != before and does != "make":
            self.broken(
                "folder", f"{session}: {does} changes the folder from {_short(before)} to {_short(after)}"
            )
        lacks = refused and told["kind"] in ("missing", "damaged")
        if does in ("plan_merge", "write_merge") and lacks and not self.lost_packs:
            self.broken("three_ways", f"{session}: {told['text']}")
        if does in ("take", "born") and not refused:
            # A session's first content is empty here, whatever an earlier life of it has left in the folder.
            taken = before if words.get("of_folder", True) else {}
            self._is_taken(session, words, taken, told)
        elif does == "adopt" and told.get("value") is True:
            self._has(keeper)
        elif does == "plan_merge" and not refused:
            self._is_planned(session, words, before, told)

    def _is_taken(self, session: str, words: dict[str, Any], content: Content, told: dict[str, Any]) -> None:
        snapshot = told["value"]["snapshot"]
        if told["is"] == "Unchanged":
            known = self.contents.get(snapshot)
            if known != content:
                self.broken(
                    "packed",
                    f"{session}: unchanged are {_short(content)}, and {snapshot} has {_short(known)}",
                )
            return
        if self.contents.setdefault(snapshot, content) != content:
            self.broken("packed", f"{session}: {snapshot} is of two contents")

    def _is_made(self, keeper: SimKeeper, snapshot: str, after: Content) -> None:
        if after != self.contents.get(snapshot):
            known = _short(self.contents.get(snapshot))
            self.broken("folder", f"{keeper.session}: {snapshot} is made as {_short(after)}, and was {known}")
        self.broken_off.pop(keeper.session, None)
        self.merges.pop(keeper.session, None)
        place = self._place_of(keeper)
        before = self.copies.get(place)
        self.made(keeper.session, keeper.claim, before)
        self.copies[place] = Copy(keeper.place.folder, keeper.claim)

    def _has(self, keeper: SimKeeper) -> None:
        copy = self.copies[self._place_of(keeper)]
        self.made(keeper.session, keeper.claim, copy)
        copy.holder = keeper.claim

    def _place_of(self, keeper: SimKeeper) -> tuple[str, str]:
        return self.host_of(keeper.owner.name), keeper.session

    def _way(self, words: dict[str, Any], before: Content) -> Content | None:
        return merged(self.contents[words["base"]], before, self.contents[words["theirs"]])

    def _is_planned(self, session: str, words: dict[str, Any], before: Content, told: dict[str, Any]) -> None:
        wanted = self._way(words, before)
        if wanted is None:
            self.saw("conflicts")
        if (wanted is None) != (told["is"] == "Conflicted"):
            base, theirs = (_short(self.contents[words[side]]) for side in ("base", "theirs"))
            sides = f"{base}, {_short(before)}, {theirs}"
            self.broken("three_ways", f"{session}: a merge of {sides} is {told['is']}: {str(told)[:300]}")

    def _is_merged(
        self, session: str, words: dict[str, Any], before: Content, after: Content, told: dict[str, Any]
    ) -> None:
        if told["is"] == "Conflicted":
            if after != before:
                self.broken("three_ways", f"{session}: a merge with conflicts has written {_short(after)}")
            return
        wanted = self._way(words, before)
        if wanted is None or not same_files(after, wanted):
            self.broken(
                "three_ways",
                f"{session}: {_short(before)} is merged to {_short(after)}, not {_short(wanted)}",
            )
        if words["base"] in self.contents and before != self.contents[words["base"]]:
            self.saw("merged_by_three_ways")
        self.merges[session] = Merge((words["base"], words["theirs"]), before, after)
        self.edited.discard(session)

    def _is_taken_back(self, session: str, now: Content, after: Content) -> None:
        last = self.merges.pop(session, None)
        merge = self.broken_off.pop(session, None) or last
        if merge is None:
            return
        if session in self.edited:
            wrong = not_taken_back(merge.before, merge.after, now, after)
        else:
            wrong = "" if same_files(after, merge.before) else "other files than before"
            wrong = wrong or ", ".join(new_folders(merge.before, after))
        if wrong:
            self.broken(
                "taken_back",
                f"{session}: what was {_short(merge.before)} is taken back as {_short(after)}: {wrong}",
            )
        self.saw("taken_back")

    def is_ended(self, session: str, merged: Iterable[str]) -> None:
        """Nothing may be left of a merge whose snapshot is not one of those that the log has as merged."""
        last = self.merges.get(session)
        if last is not None and last.work[1] in merged:
            del self.merges[session]
            last = None
        if session in self.broken_off or last is not None:
            self.broken("taken_back", f"{session}: a merge that the log has not got is left in the folder")

    def is_told(self, session: str, told: FolderMerged | FolderNotMerged) -> None:
        """A merge that is told as not written has left nothing; a portable one is never taken back."""
        if isinstance(told, FolderMerged) and session not in self.shared:
            self.merges.pop(session, None)
        if isinstance(told, FolderNotMerged) and not told.partly and session in self.broken_off:
            self.broken("taken_back", f"{session}: a merge is told as not written, and is not taken back")

    # ── what commands write ───────────────────────────────────────────────────────────────────

    def meets(self, run: Run, call: Call, site: CallSite) -> None:
        """Gives a run the folder that it meets, to mark its writes there if it may write."""
        state, session = site.state, str(site.session)
        if state.task is None:
            return
        if state.facts.portable is None:
            if session in self.shared and may_write(call.work, state.task.settings):
                self._meets_shared(run, call, session)
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
        name, marks, place = (
            f"{run.call_id}.{self.runs}",
            list[str](),
            (self.host_of(run.machine), run.session),
        )

        def mark(what: str) -> None:
            marks.append(f"{MARKS}{name}:{what}")
            if self.copies.get(place) is copy:
                # Else another folder is in its place: it writes to one that nobody sees any more.
                self._puts(copy.path, marks[-1])
            self._is_written(run.session)
            if run.call_id == SETUP:
                copy.prepared = what == "done"
            self.wrote(run.session, run.claim, copy)

        run.marks, run.mark = marks, mark

    def _puts(self, folder: Path, mark: str) -> None:
        marked(folder, mark)
        if self.rng.random() < WRITES or not (folder / BEGUN).exists():
            changed(folder, self.rng, mark.rpartition("/")[2])

    def _is_written(self, session: str) -> None:
        """A folder was written to: that stays as it is when a merge from before is taken back."""
        self.edited.add(session)

    def _meets_shared(self, run: Run, call: Call, session: str) -> None:
        """Has a command mark the folder that its session works in; the end of a process is not told."""
        if run.files or run.lasting:
            return
        self.runs += 1
        name, marks, folder = f"{call.call_id}.{self.runs}", list[str](), self.shared[session]

        def mark(what: str) -> None:
            marks.append(f"{MARKS}{name}:{what}")
            self._puts(folder, marks[-1])
            self._is_written(session)

        run.marks, run.mark = marks, mark

    # ── the store ─────────────────────────────────────────────────────────────────────────────

    def read(self, packs: Sequence[Pack], snapshot: str) -> Content:
        """The content that packs make of a snapshot, as the store has them; raises `Lacking`."""
        if self._reader is None:
            self._reader = PackReader(self._stored)
        if lost := [pack.name for pack in packs if not self.store.exists(pack.name)]:
            raise Lacking(f"the store has no {lost[0]}")
        return self._reader.content([pack.name for pack in packs], snapshot)

    def _stored(self, name: str) -> bytes:
        data = self.store.get(name) or b""
        if self.keys is not None:
            if f"/0-{BIRTH}-" not in name and not self.keys.is_sealed(data):
                self.broken("sealed", f"{name} is in the store as it was before")
            data = self.keys.opened(data, name)
        if hashlib.sha256(data).hexdigest() != name.rpartition("-")[2].removesuffix(".pack"):
            raise Lacking(f"{name} has other bytes than its name says")
        return data


def _short(content: Content | None) -> str:
    """A content as it is shown where a rule is broken."""
    if content is None:
        return "nothing"
    return str(
        {
            path: it[1][:60] if it[0] != "link" else it
            for path, it in content.items()
            if not path.startswith(MARKS)
        }
    )
