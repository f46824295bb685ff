"""Agents of a portable tree: each begins with a copy of its parent's folder."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from orchestrator.core import commands as c
from orchestrator.core import facts as f
from orchestrator.core.calls import Merge, MergeWork, Phase
from orchestrator.core.calls.approval_policy import Ask, Refuse, Run
from orchestrator.core.commands import FolderMade, FolderUnsaved, SetupBegins
from orchestrator.core.decide.agent import NOT_SHARED, NOT_STORED
from orchestrator.core.entries import fact
from orchestrator.core.evolve import stated
from orchestrator.core.facts import WorkspaceSaved
from orchestrator.core.ids import AgentId
from orchestrator.core.packs import FileCounts, FolderChange, Pack
from orchestrator.core.settings import FolderSetup, PortableFolder, TurnSettings, portable_wire
from orchestrator.core.state import lacks_setup
from orchestrator.core.workspace import Offer
from orchestrator.protocol.ids import CallId, SnapshotId
from tests.core.driver import Session
from tests.core.tree_driver import Agent, TreeDriver, a_tree, answers

PACK = Pack("tree/workspaces/root/1.pack", "0" * 64, 100, whole=True)


def portable_tree(**fields: Any) -> TreeDriver:
    folder: Any = portable_wire(PortableFolder("/workspaces", "repo"))
    tree = TreeDriver(facts={"portable": folder}, **fields)
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


def test_agent_sets_its_own_folder_up_by_the_script_of_its_tree() -> None:
    setup = FolderSetup("make")
    folder: Any = portable_wire(PortableFolder("/workspaces", "repo", setup=setup))
    tree = TreeDriver(facts={"portable": folder})
    tree.root.record(fact(f.WorkspaceBegun(SnapshotId("s0"), (PACK,))))
    tree.root.say("do it", "u1")
    # The parent's folder is set up: the child's is another one.
    tree.root.record(fact(f.WorkspaceMade(1, "m1")), fact(f.WorkspaceSetupEnded("done")))
    for child in (tree.root.spawns("work"), tree.root.forks("work")):
        assert child.state.facts.portable is not None
        assert child.state.facts.portable.setup == setup
        assert lacks_setup(child.state)


def test_setup_of_an_agent_that_was_cancelled_is_refused_by_its_commit() -> None:
    setup = FolderSetup("make")
    folder: Any = portable_wire(PortableFolder("/workspaces", "repo", setup=setup))
    tree = TreeDriver(facts={"portable": folder})
    tree.root.record(fact(f.WorkspaceBegun(SnapshotId("s0"), (PACK,))))
    tree.root.say("do it", "u1")
    child = tree.root.spawns("work")
    tree.settle()
    child.happens(FolderMade("m1", SnapshotId("s0"), anew=True))
    tree_part = child.happens(SetupBegins()).decision.tree
    assert tree_part is not None
    assert tree_part.unless_flagged


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


def test_agents_of_a_machines_folder_share_it_unless_they_are_to_have_copies() -> None:
    tree = a_tree()
    for number, named in enumerate(("shared", None)):
        shared = tree.root.spawns("x", f"c{number}", workspace=named)
        assert shared.state.facts.portable is None
        assert shared.state.settings.cwd == tree.root.state.settings.cwd


def finished_child(tree: TreeDriver, number: int = 1) -> Agent:
    """A child that has changed its folder and come to rest, while its parent waited for it."""
    child = tree.root.spawns("work") if number == 1 else tree.agents[1]
    tree.root.awaits()
    tree.settle()
    child.happens(FolderMade("m1", child.state.workspace.snapshot))
    pack = Pack(f"tree/workspaces/child/{number}.pack", f"{number:064x}", 10)
    before = child.state.workspace.snapshot
    change = FolderChange(2, 5, 1, ("a", "b"))
    child.happens(
        WorkspaceSaved(
            SnapshotId(f"t{number}"), before, pack, FileCounts(2, 0, 0), ("a", "b"), (), number, change=change
        )
    )
    answers(child)
    tree.settle()
    return child


def test_parent_of_a_finished_agent_is_told_how_much_it_has_changed() -> None:
    tree = portable_tree()
    finished_child(tree)
    told = tree.root.told("wait")["ready"][0]["workspace"]
    assert (told["snapshot"], told["base"]) == ("t1", "s0")
    assert (told["files"], told["insertions"], told["deletions"]) == (2, 5, 1)
    assert told["names"] == ["a", "b"]
    assert "packs" not in told
    offer = tree.root.state.workspace.offered["1"]
    assert [pack.name for pack in offer.packs] == [PACK.name, "tree/workspaces/child/1.pack"]


def test_offer_of_a_folder_that_was_packed_anew_has_the_packs_of_what_the_agent_began_with() -> None:
    tree = portable_tree()
    child = tree.root.spawns("work")
    tree.root.awaits()
    tree.settle()
    child.happens(FolderMade("m1", child.state.workspace.snapshot))
    whole = Pack("tree/workspaces/child/1.pack", "1" * 64, 10, whole=True)
    child.happens(
        WorkspaceSaved(SnapshotId("t1"), SnapshotId("s0"), whole, FileCounts(1, 0, 0), ("a",), (), 1)
    )
    assert child.state.workspace.packs == (whole,)
    answers(child)
    tree.settle()
    offer = tree.root.state.workspace.offered["1"]
    assert (offer.base, offer.packs) == ("s0", (PACK, whole)), "a merge reads the base too"


def test_agent_offers_what_it_has_stored_and_says_that_its_last_changes_are_not() -> None:
    tree = portable_tree()
    child = finished_child(tree)
    assert not tree.root.state.workspace.offered["1"].unsaved
    tree.root.sends(1, "and more")
    tree.settle()
    child.happens(FolderUnsaved("m1", "away", (), tree.now_ms, trying=False))
    answers(child)
    tree.settle()
    offer = tree.root.state.workspace.offered["1"]
    assert (offer.snapshot, offer.unsaved) == ("t1", True)


def test_agents_of_a_folder_of_one_machine_offer_nothing() -> None:
    tree = a_tree()
    child = tree.root.spawns("work")
    tree.root.awaits()
    tree.settle()
    answers(child)
    tree.settle()
    assert "workspace" not in tree.root.told("wait")["ready"][0]


def a_merge(tree: TreeDriver) -> Merge:
    offer = tree.root.state.workspace.offered["1"]
    return Merge(AgentId(1), offer.base, offer.snapshot, offer.packs, 2, ("a", "b"))


def test_merge_is_told_as_a_patch_and_recorded_with_what_was_merged() -> None:
    tree = portable_tree()
    finished_child(tree)
    root = tree.root
    root.asks("m1", "subagent_merge", a_merge(tree))
    root.happens(FolderMade("m1", SnapshotId("s0")))
    call = root.call("m1")
    assert isinstance(call.work, MergeWork)
    assert call.phase is Phase.RUNNING
    begun = root.seen[-2].one("patch_apply_begin")
    assert (begun["changes"], begun["changes_left_out"]) == ({}, 2)
    end = call.work.end(call.call_id, "merged", written=True)
    seen = root.happens(c.CallFinished(CallId("m1"), "merged", (end,), applied=True))
    assert seen.one("patch_apply_end")["success"] is True
    assert root.state.workspace.merged["1"].snapshot == "t1"


def test_folders_of_several_children_are_known_side_by_side() -> None:
    state = Session().state
    for number in (1, 2):
        child, snapshot, packs = AgentId(number), SnapshotId(f"t{number}"), (PACK,)
        for known in (
            f.WorkspaceGiven(child, snapshot, f"/copy {number}"),
            f.WorkspaceOffered(child, Offer(snapshot, None, packs)),
            f.WorkspaceMerged(CallId(f"m{number}"), child, None, snapshot, packs),
        ):
            state = stated(state, known, 1)
    folder = state.workspace
    assert folder.given == {"1": "/copy 1", "2": "/copy 2"}
    assert {id: offer.snapshot for id, offer in folder.offered.items()} == {"1": "t1", "2": "t2"}
    assert {id: merged.snapshot for id, merged in folder.merged.items()} == {"1": "t1", "2": "t2"}


@pytest.mark.parametrize(("to", "stands"), [("s1", True), ("s0", False), (None, False)])
def test_changes_are_unsaved_behind_a_fall_only_where_the_folder_falls_to_them(
    to: str | None, stands: bool
) -> None:
    unsaved = f.WorkspaceUnsaved(7, "m1", "away", (), SnapshotId("s1"))
    fallen = f.WorkspaceRolledBack(None if to is None else SnapshotId(to), ())
    state = stated(stated(Session().state, unsaved, 1), fallen, 2)
    assert (state.workspace.unsaved is not None) is stands


def test_merge_that_wrote_nothing_is_not_recorded() -> None:
    tree = portable_tree()
    finished_child(tree)
    tree.root.asks("m1", "subagent_merge", a_merge(tree))
    tree.root.happens(c.CallFinished(CallId("m1"), "not merged"))
    assert tree.root.state.workspace.merged == {}


def test_merge_of_a_lost_worker_is_assessed_again() -> None:
    tree = portable_tree()
    finished_child(tree)
    tree.root.asks("m1", "subagent_merge", a_merge(tree))
    tree.root.epoch += 1
    tree.root.happens(c.TookOver({}))
    assert tree.root.call("m1").phase is Phase.PROPOSED


def test_merge_needs_what_a_patch_inside_of_the_folder_needs() -> None:
    merge = Merge(AgentId(1), SnapshotId("s0"), SnapshotId("t1"), (PACK,), 2, ("a",))

    def judged(policy: str, mode: str, *keys: str) -> object:
        return merge.judged(TurnSettings("/", policy, {"mode": mode}, "m"), frozenset(keys))

    assert judged("never", "workspace-write") == Run(sandboxed=True)
    assert isinstance(judged("untrusted", "workspace-write"), Ask)
    assert isinstance(judged("on-request", "read-only"), Ask)
    assert isinstance(judged("never", "read-only"), Refuse)
    assert judged("untrusted", "read-only", merge.key) == Run(sandboxed=False)


def test_merge_that_a_person_is_asked_about_is_remembered_for_the_session() -> None:
    tree = portable_tree(settings={"approval_policy": "untrusted"})
    finished_child(tree)
    root = tree.root
    root.asks("m1", "subagent_merge", a_merge(tree))
    root.happens(FolderMade("m1", SnapshotId("s0")))
    (asked,) = [msg for seen in root.seen for msg in seen.all("apply_patch_approval_request")]
    assert (asked["changes"], asked["changes_left_out"]) == ({}, 2)
    root.decides("m1", "approved_for_session", kind="patch")
    work = root.call("m1").work
    assert isinstance(work, MergeWork)
    assert (root.call("m1").phase, root.state.approved) == (Phase.RUNNING, frozenset(work.keys))
    assert work.broken_off(CallId("m1"), "in doubt").success is False


def test_helper_that_only_reads_offers_no_folder() -> None:
    tree = portable_tree()
    asked = c.Helper(tree.spec(tree.next_id(), "read it"), "Reads")
    assert tree.root.asks("h", "spawn_subagent", asked) is None
    tree.settle()
    part = answers(tree.agents[1], "it says no").decision.tree
    assert part is not None
    [sent] = [orjson.loads(each.payload) for each in part.outbox if each.kind == "completion"]
    assert "workspace" not in sent
    tree.settle()
    assert tree.root.state.workspace.offered == {}
