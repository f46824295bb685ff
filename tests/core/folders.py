"""A portable session and what happens to its folder, for the tests of its rules."""

from __future__ import annotations

from typing import Any

from orchestrator.core import facts as f
from orchestrator.core.commands import FolderMade, FolderUnsaved
from orchestrator.core.entries import fact
from orchestrator.core.facts import WorkspaceSaved
from orchestrator.core.packs import FileCounts, Pack
from orchestrator.core.settings import PortableFolder, Rules, portable_wire
from orchestrator.protocol.ids import CallId, SnapshotId
from tests.core.driver import Session

FOLDER = PortableFolder("/workspaces", "repo")
RULES = Rules(folder_free=frozenset({"update_plan"}))


def portable(**fields: Any) -> Session:
    """A session that any worker makes the folder of."""
    session = Session(facts={"portable": portable_wire(FOLDER)}, rules=RULES, **fields)
    session.record(fact(f.WorkspaceBegun(SnapshotId("s0"), (a_pack(0, whole=True),))))
    return session


def a_pack(number: int, *, whole: bool = False, bytes: int = 100) -> Pack:
    return Pack(f"tree/workspaces/session/{number}.pack", f"{number:064x}", bytes, whole)


def changed(number: int, *call_ids: str, **fields: Any) -> WorkspaceSaved:
    """The folder has become snapshot `number`, by these calls."""
    names = fields.pop("names", (f"file-{number}",))
    parent = SnapshotId(f"s{number - 1}")
    pack = fields.pop("pack", a_pack(number))
    calls = tuple(map(CallId, call_ids))
    return WorkspaceSaved(
        SnapshotId(f"s{number}"), parent, pack, FileCounts(1, 0, 0), names, calls, 5_000, **fields
    )


def unsaved(*call_ids: str, snapshot: str | None = None, **fields: Any) -> FolderUnsaved:
    here = SnapshotId(snapshot) if snapshot else None
    return FolderUnsaved("m1", "the store is away", tuple(map(CallId, call_ids)), 7_000, here, **fields)


def made(session: Session, machine: str = "m1", **fields: Any) -> FolderMade:
    return FolderMade(machine, session.state.workspace.standing, **fields)


def running(*call_ids: str) -> Session:
    """A portable session whose folder is made and whose commands run."""
    session = portable()
    session.say("go", "u1")
    session.asks_for(*call_ids)
    session.happens(made(session))
    for call_id in call_ids[:1]:
        session.runs(call_id, "make")
    return session


def kinds(session: Session) -> list[str]:
    return [
        entry.payload["kind"] for seen in session.seen for entry in seen.entries if entry.type == "dendro"
    ]
