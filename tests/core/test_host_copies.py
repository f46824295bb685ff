"""Agents of a folder of one machine that work in copies of it: it is copied by a call, then they are made."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core import commands as c
from orchestrator.core import facts as f
from orchestrator.core.calls import CopyWork, Merge, Phase
from orchestrator.core.calls.approval_policy import Ask, Refuse, Run
from orchestrator.core.commands import FolderCopied, FolderMade
from orchestrator.core.decide import IllegalCommand
from orchestrator.core.decide.agent import moved
from orchestrator.core.facts import WorkspaceSaved
from orchestrator.core.ids import AgentId, TreeId
from orchestrator.core.packs import FileCounts, FolderChange, Pack
from orchestrator.core.settings import PortableFolder, TurnSettings
from orchestrator.core.snapshot import decode_snapshot, encode_snapshot
from orchestrator.core.workspace import Copied
from orchestrator.protocol.ids import CallId, SnapshotId
from tests.core.driver import function_call
from tests.core.tree_driver import Agent, TreeDriver, answers

PACK = Pack("tree/workspaces/root/1.pack", "0" * 64, 100, whole=True)
FOLDER = PortableFolder("/workspaces", "repo")
WRITES = {"mode": "workspace-write", "writable_roots": ["/elsewhere"]}


def host_tree() -> TreeDriver:
    tree = TreeDriver(settings={"cwd": "/repo/sub", "sandbox_policy": WRITES})
    tree.root.say("do it", "u1")
    return tree


def a_copy(root: Agent, snapshot: str = "s0") -> Copied:
    return Copied("/repo", "/repo/sub", "sub", 0, FOLDER, SnapshotId(snapshot), PACK, ("'.env'",))


def asked(tree: TreeDriver, *calls: str) -> None:
    """A response that makes agents with folders of their own, the first of which is looked at."""
    root = tree.root
    root.begin()
    for call_id in calls:
        root.item(function_call(call_id, "subagent_spawn"))
    root.ends()
    root.assessed(calls[0], tree.spawn(tree.next_id(), "x", workspace="own"))


def copied(tree: TreeDriver, call_id: str = "c1", snapshot: str = "s0") -> None:
    tree.root.happens(FolderCopied(CallId(call_id), a_copy(tree.root, snapshot)))


def made(tree: TreeDriver) -> Agent:
    """An agent of the root with a copy of its own."""
    asked(tree, "c1")
    copied(tree)
    tree.root.assessed("c1", tree.spawn(1, "x", workspace="own"))
    return tree.agents[1]


def test_folder_is_copied_by_a_call_that_runs_before_its_agent_is_made() -> None:
    tree = host_tree()
    asked(tree, "c1")
    call = tree.root.call("c1")
    assert (call.phase, type(call.work)) == (Phase.RUNNING, CopyWork)
    assert list(tree.agents) == [0]
    copied(tree)
    assert tree.root.call("c1").phase is Phase.PROPOSED
    tree.root.assessed("c1", tree.spawn(1, "x", workspace="own"))
    assert tree.root.told("c1")["agent_id"] == 1
    assert tree.root.state.workspace.given == {"1": "/repo"}


def test_agent_begins_with_the_copy_at_a_place_of_its_own() -> None:
    child = made(host_tree())
    known = child.state.workspace
    assert (known.snapshot, known.base, known.packs, known.omitted) == ("s0", "s0", (PACK,), ("'.env'",))
    assert child.state.facts.portable == FOLDER
    assert child.state.settings.cwd == f"{FOLDER.path(child.state.facts.tree_id)}/sub"
    assert child.state.settings.sandbox_policy == {"mode": "workspace-write"}, "nothing else is recorded"
    assert child.state.told_folders == (child.state.settings.cwd,), "it has the instructions of its folder"


def test_fork_is_told_that_the_folder_of_its_conversation_is_not_its_own() -> None:
    tree = host_tree()
    root = tree.root
    spec = tree.spec(tree.next_id(), "x", workspace="own")
    root.asks("c1", "subagent_fork", c.Fork(spec, root.seq, "00" * 32))
    copied(tree)
    root.assessed("c1", c.Fork(spec, root.seq, "00" * 32))
    child = tree.agents[1]
    here = FOLDER.path(child.state.facts.tree_id)
    roles = [item for item in child.state.conversation if item.get("role") == "developer"]
    assert f"It is {here}: /repo of the conversation is not yours." in roles[-1]["content"][0]["text"]


def test_entry_of_the_copy_and_the_agents_part_of_it_stand_before_the_birth() -> None:
    tree = host_tree()
    made(tree)
    kinds = [entry.payload.get("kind") for seen in tree.root.seen for entry in seen.entries]
    assert kinds.index("workspace_copied") < kinds.index("workspace_given") < kinds.index("child")
    birth = [entry.payload.get("kind") for entry in tree.root.seen[-1].entries]
    assert {"workspace_given", "child"} <= set(birth), "one commit has both"


def test_people_are_warned_of_a_set_up_that_is_not_run_in_the_copy() -> None:
    tree = host_tree()
    asked(tree, "c1")
    seen = tree.root.happens(FolderCopied(CallId("c1"), a_copy(tree.root), "its set-up is not run"))
    assert seen.one("warning")["message"] == "its set-up is not run"
    tree.root.assessed("c1", tree.spawn(1, "x", workspace="own"))
    assert tree.root.told("c1")["agent_id"] == 1


def test_agents_of_one_response_share_a_copy() -> None:
    tree = host_tree()
    asked(tree, "c1", "c2")
    copied(tree)
    tree.root.assessed("c1", tree.spawn(1, "x", workspace="own"))
    tree.root.assessed("c2", tree.spawn(tree.next_id(), "y", workspace="own"))
    assert [tree.agents[number].state.workspace.snapshot for number in (1, 2)] == ["s0", "s0"]


def test_next_response_has_the_folder_copied_again() -> None:
    tree = host_tree()
    made(tree)
    root = tree.root
    root.asks("c2", "subagent_spawn", tree.spawn(tree.next_id(), "y", workspace="own"))
    assert isinstance(root.call("c2").work, CopyWork)
    copied(tree, "c2", "s1")
    root.assessed("c2", tree.spawn(2, "y", workspace="own"))
    assert tree.agents[2].state.workspace.base == "s1"


def test_call_that_may_have_written_makes_the_copy_void() -> None:
    tree = host_tree()
    root = tree.root
    asked(tree, "c1", "p1", "c2")
    copied(tree)
    root.assessed("c1", tree.spawn(1, "x", workspace="own"))
    merge = Merge(AgentId(1), SnapshotId("s0"), SnapshotId("t1"), (PACK,), 1, ("a",), "/repo/sub")
    root.assessed("p1", merge)
    root.happens(c.CallFinished(CallId("p1"), "merged"))
    root.assessed("c2", tree.spawn(tree.next_id(), "y", workspace="own"))
    assert isinstance(root.call("c2").work, CopyWork)


def test_copy_that_failed_makes_no_agent() -> None:
    tree = host_tree()
    asked(tree, "c1")
    tree.root.happens(c.CallFinished(CallId("c1"), "not made: the store is away"))
    assert tree.root.told("c1") == "not made: the store is away"
    assert list(tree.agents) == [0]


def test_copy_of_a_lost_worker_is_taken_again() -> None:
    tree = host_tree()
    asked(tree, "c1")
    tree.root.epoch += 1
    tree.root.happens(c.TookOver({}))
    assert tree.root.call("c1").phase is Phase.PROPOSED
    assert list(tree.agents) == [0]


def test_interrupt_while_the_folder_is_copied_leaves_no_agent() -> None:
    tree = host_tree()
    asked(tree, "c1")
    tree.root.interrupt()
    with pytest.raises(IllegalCommand, match="being stopped"):
        copied(tree)
    tree.root.happens(c.Stopped({}))
    assert tree.root.state.task is None
    assert list(tree.agents) == [0]


def test_what_is_known_of_copies_is_in_a_snapshot_of_the_state() -> None:
    tree = host_tree()
    made(tree)
    state = tree.root.state
    assert state.workspace.copied is not None
    kept: Any = decode_snapshot(encode_snapshot(state, 7, b"\0" * 32))
    assert kept[0].workspace == state.workspace


def test_parent_is_offered_what_the_agent_has_changed_in_its_copy() -> None:
    tree = host_tree()
    child = made(tree)
    tree.root.awaits()
    tree.settle()
    child.happens(FolderMade("m1", SnapshotId("s0")))
    pack = Pack("tree/workspaces/child/1.pack", "1" * 64, 10)
    change = FolderChange(1, 5, 1, ("a",))
    child.happens(
        WorkspaceSaved(
            SnapshotId("t1"), SnapshotId("s0"), pack, FileCounts(1, 0, 0), ("a",), (), 1, change=change
        )
    )
    answers(child)
    tree.settle()
    assert tree.root.told("wait")["ready"][0]["workspace"]["insertions"] == 5
    assert tree.root.state.workspace.offered["1"].packs == (PACK, pack)


def judged(policy: str, mode: str, folder: str = "/repo", cwd: str = "/repo", **more: Any) -> object:
    merge = Merge(
        AgentId(1), SnapshotId("s0"), SnapshotId("t1"), (PACK,), 1, more.pop("names", ("a",)), folder
    )
    settings = TurnSettings(cwd, policy, {"mode": mode, **more}, "m")
    return merge.judged(settings, frozenset())


def test_merge_into_a_machines_folder_is_judged_as_a_patch_of_it() -> None:
    assert judged("never", "workspace-write") == Run(sandboxed=True)
    assert judged("never", "danger-full-access", cwd="/other") == Run(sandboxed=True)
    assert judged("never", "workspace-write", cwd="/x", writable_roots=["/repo/"]) == Run(sandboxed=True)
    outside = judged("on-request", "workspace-write", cwd="/repo/sub")
    assert isinstance(outside, Ask)
    assert "/repo is outside of the writable roots" in str(outside.reason)
    assert isinstance(judged("never", "workspace-write", cwd="/repo/sub"), Refuse)
    assert isinstance(judged("never", "workspace-write", cwd="/rep"), Refuse)
    assert isinstance(judged("on-request", "workspace-write", names=("'x/dendro.toml'",)), Ask)
    assert isinstance(judged("untrusted", "danger-full-access"), Ask)
    assert isinstance(judged("never", "read-only"), Refuse)


def test_facts_of_copies_are_read_as_they_were_written() -> None:
    for fact in (
        f.WorkspaceCopied(CallId("c1"), a_copy(host_tree().root)),
        f.WorkspaceGiven(AgentId(1), SnapshotId("s0"), "/repo"),
    ):
        assert f.decode(f.encode(fact)) == fact


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("/repo", "/workspaces/t/repo"),
        ("/repo/", "/workspaces/t/repo"),
        ("/repo/sub/a", "/workspaces/t/repo/sub/a"),
        ("/repo2/a", "/repo2/a"),
        ("/repository", "/repository"),
        ("/elsewhere/repo", "/elsewhere/repo"),
        ("/", "/"),
    ],
)
def test_path_in_the_folder_that_was_copied_is_one_in_the_copy_and_others_stay(path: str, there: str) -> None:
    copied = Copied("/repo", "/repo/sub", "sub", 0, FOLDER, SnapshotId("s0"), PACK)
    assert moved(path, copied, TreeId("t")) == there
