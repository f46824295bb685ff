"""The folder of a portable session, as its log knows it.

Such a folder belongs to its session alone, and is part of its log: after each call that may have written, an
entry names a snapshot of it, beside the call's output. A snapshot is made from packs, which lie in the store
before an entry names them: the newest one that stands alone, and all that were added since. So any machine
can make the folder as it was at any entry, and a new holder begins with the last snapshot, whatever its
predecessor did behind it.

    made      the holder of a claim has the folder on its machine; only under that claim it is written
    set up    the session's script has run in the folder that this machine has
    unsaved   the store did not take the last snapshot: it is on one machine, or nowhere
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal, TypeAlias

from orchestrator.core.frozen import record
from orchestrator.core.packs import (
    CHANGE,
    PACKS,
    FolderChange,
    Pack,
    read_change,
    read_pack,
    read_packs,
    write_pack,
)
from orchestrator.core.record_json import LIST, form, reader_of, writer_of
from orchestrator.core.settings import PortableFolder, portable_wire, read_portable
from orchestrator.protocol.ids import CallId, SnapshotId
from orchestrator.protocol.wire import JsonMapping, JsonObject

SetupOutcome: TypeAlias = Literal["done", "failed", "stopped"]
MOST_UNSAVED_CALLS = 64
"""Calls that an unsaved folder names, the newest."""
NAMES_BYTES = 2048
"""Bytes of paths that one entry names."""
MOST_TRIES = 3
"""Claims that may fail to make the folder before the task does."""


# ── a folder, and those of children ───────────────────────────────────────────────────────────────


@record
class Offer:
    """The folder of a child as the child told it when it came to rest last."""

    snapshot: SnapshotId
    base: SnapshotId | None = None
    """The snapshot that the child began with."""
    packs: tuple[Pack, ...] = field(default=(), metadata=PACKS)
    """The packs that make both."""
    change: FolderChange | None = field(default=None, metadata=CHANGE)
    unsaved: bool = False
    """The child's last changes are not stored, and not in it."""


@record
class Merged:
    """The snapshot of a child that was merged last, and the packs that make it."""

    snapshot: SnapshotId
    packs: tuple[Pack, ...] = field(default=(), metadata=PACKS)


@record
class Unsaved:
    """Changes of the folder that the store does not have."""

    since_ms: int
    machine: str
    """The machine that has them."""
    call_ids: tuple[CallId, ...] = field(default=(), metadata=LIST)
    """The calls whose changes they are, the newest `MOST_UNSAVED_CALLS`."""
    snapshot: SnapshotId | None = None
    """Their snapshot on that machine; None if not even that could be made."""
    blocked: bool = False
    """No call that needs the folder begins until it is saved: the machine's disk is full."""
    trying: bool = True
    """The claim is kept, and the store is tried again."""
    at_ms: int = 0
    """The time in their snapshot: taken again, nothing else having changed, it is the same."""


read_unsaved = reader_of(Unsaved)
read_merged = reader_of(Merged)
read_offer, _write_offer = reader_of(Offer), writer_of(Offer)


def write_offer(offer: Offer) -> JsonObject:
    return _write_offer(offer)


OFFER = form(read=read_offer, write=write_offer)


@record
class Copied:
    """A copy of a folder of one machine: what agents begin with that are to work in copies of it."""

    folder: str
    """The folder on the machine that was copied: the repository's, or the working folder."""
    cwd: str
    """The working folder of the task that had it copied."""
    within: str
    """That one's path in the copy."""
    request: int
    """The response whose calls it is for."""
    portable: PortableFolder
    snapshot: SnapshotId
    pack: Pack
    omitted: tuple[str, ...] = ()
    """Files that were left out of it, quoted."""

    @classmethod
    def of(cls, wire: JsonMapping) -> Copied:
        given = {**wire, "portable": read_portable(wire["portable"]), "pack": read_pack(wire["pack"])}
        return cls(**{**given, "omitted": tuple(wire["omitted"])})

    def wire(self) -> JsonObject:
        plain = {name: getattr(self, name) for name in ("folder", "cwd", "within", "request", "snapshot")}
        written = {"portable": portable_wire(self.portable), "pack": write_pack(self.pack)}
        return {**plain, **written, "omitted": list(self.omitted)}


COPIED = form(read=Copied.of, write=Copied.wire)


@record
class Workspace:
    """A session's folder: a portable one, or one of a machine of which agents have copies."""

    snapshot: SnapshotId | None = None
    """The last one that the store has; None for a folder that was empty so far."""
    base: SnapshotId | None = None
    """The snapshot that the session began with."""
    packs: tuple[Pack, ...] = ()
    """The packs that `snapshot` is made from, oldest first."""
    epoch: int = 0
    """The claim under which the folder was made last; 0: it never was."""
    machine: str = ""
    """The machine on which it was made last."""
    unsaved: Unsaved | None = None
    change: FolderChange | None = None
    """The difference to `base`."""
    omitted: tuple[str, ...] = ()
    """The files that are not recorded, as people were told last."""
    offered: Mapping[str, Offer] = field(default_factory=dict)
    """The folders of children that came to rest, by the number of the child."""
    merged: Mapping[str, Merged] = field(default_factory=dict)
    """The last merge of each child."""
    base_packs: tuple[Pack, ...] = ()
    """The packs that `base` is made from."""
    failures: int = 0
    """Claims in a row that could not make the folder."""
    recorded: tuple[CallId, ...] = ()
    """The calls whose writes the last snapshot holds; one that runs again is none of them."""
    set_up: bool = False
    """The session's set-up has run in the folder, as `machine` has it."""
    setting_up: int = 0
    """The claim under which the set-up was begun and has not ended; 0: none was."""
    copied: Copied | None = None
    """The last copy of a folder of one machine, for as long as nothing may have changed the folder."""
    given: Mapping[str, str] = field(default_factory=dict)
    """The folder of one machine that an agent began with a copy of, by the number of the agent."""
    partly: tuple[CallId, ...] = ()
    """The calls that ran when the folder's last content was named: it may hold a part of what they write."""

    @property
    def standing(self) -> SnapshotId | None:
        """The snapshot that the folder is to be at, wherever its changes are."""
        if self.unsaved is not None and self.unsaved.snapshot is not None:
            return self.unsaved.snapshot
        return self.snapshot

    @classmethod
    def of(cls, wire: JsonMapping) -> Workspace:
        return cls(
            wire["snapshot"],
            wire["base"],
            read_packs(wire["packs"]),
            wire["epoch"],
            wire["machine"],
            read_unsaved(wire["unsaved"]) if wire["unsaved"] else None,
            read_change(wire["change"]),
            tuple(wire["omitted"]),
            {id: read_offer(offer) for id, offer in wire["offered"].items()},
            {id: read_merged(merged) for id, merged in wire["merged"].items()},
            read_packs(wire["base_packs"]),
            wire["failures"],
            tuple(wire["recorded"]),
            wire.get("set_up", False),
            wire.get("setting_up", 0),
            Copied.of(wire["copied"]) if wire.get("copied") else None,
            wire.get("given", {}),
            tuple(wire.get("partly", ())),
        )


NO_WORKSPACE = Workspace()
USUAL_COPIES: Mapping[str, object] = {"copied": None, "given": {}, "partly": ()}
"""Fields that snapshots of a portable session leave out: those of earlier versions have none."""
USUAL_WORKSPACE: Mapping[str, Workspace] = {"workspace": NO_WORKSPACE}
"""A field that snapshots of sessions without a portable folder leave out: those of earlier versions have
none."""


def fitting(names: Sequence[str]) -> tuple[str, ...]:
    """The first of the names, as many as an entry has room for."""
    size, kept = 0, []
    for name in names:
        size += len(name.encode("utf-8", "surrogatepass")) + 4
        if size > NAMES_BYTES:
            break
        kept.append(name)
    return tuple(kept)
