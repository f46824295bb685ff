"""Agents of a portable tree: each begins with a copy of its parent's folder."""

from __future__ import annotations

from typing import Any

from orchestrator.core import facts as f
from orchestrator.core.decide.child_folder import NOT_OWN, NOT_SHARED, NOT_STORED
from orchestrator.core.entries import fact
from orchestrator.core.folder_commands import FolderUnsaved
from orchestrator.core.workspace import Pack, PortableFolder, write_portable
from orchestrator.protocol.ids import SnapshotId
from tests.core.tree_driver import TreeDriver, a_tree

PACK = Pack("tree/workspaces/root/1.pack", "0" * 64, 100, whole=True)


def portable_tree() -> TreeDriver:
    folder: Any = write_portable(PortableFolder("/workspaces", "repo"))
    tree = TreeDriver(facts={"portable": folder})
    tree.root.record(fact(f.WorkspaceBegun(SnapshotId("s0"), (PACK,), ("'.env'",))))
    tree.root.say("do it", "u1")
    return tree


def test_agent_begins_with_its_parents_folder_as_it_was_recorded_last() -> None:
    tree = portable_tree()
    for child in (tree.root.spawns("work"), tree.root.forks("work")):
        known = child.state.workspace
        assert (known.snapshot, known.base, known.packs) == ("s0", "s0", (PACK,))
        assert known.omitted == ("'.env'",)
        assert child.state.facts.portable == tree.root.state.facts.portable
        assert child.state.settings.cwd == tree.root.state.settings.cwd


def test_folder_that_is_not_stored_gives_no_agent_a_copy() -> None:
    tree = portable_tree()
    tree.root.happens(FolderUnsaved("m1", "away", (), 1))
    said = tree.root.asks("c1", "subagent_spawn", tree.spawn(tree.next_id(), "x"))
    assert said == NOT_STORED
    assert list(tree.agents) == [0]


def test_agents_of_a_portable_tree_share_no_folder() -> None:
    tree = portable_tree()
    asked = tree.spawn(tree.next_id(), "x", workspace="shared")
    assert tree.root.asks("c1", "subagent_spawn", asked) == NOT_SHARED


def test_folder_of_a_machine_gives_no_agent_a_copy_of_its_own() -> None:
    tree = a_tree()
    asked = tree.spawn(tree.next_id(), "x", workspace="own")
    assert tree.root.asks("c1", "subagent_spawn", asked) == NOT_OWN
    shared = tree.root.spawns("x", "c2", workspace="shared")
    assert shared.state.facts.portable is None
