"""Folders of a machine that agents have copies of: a real checkout is copied, and their work comes back."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.broker.records import Claim
from orchestrator.config_keys import WorkspaceSettings
from orchestrator.core import facts as f
from orchestrator.core.calls import Merge, MergeWork
from orchestrator.core.commands import FolderCopied, FolderMerged, FolderNotCopied, FolderNotMerged
from orchestrator.core.evolve import evolve_workspace
from orchestrator.core.frozen import replace
from orchestrator.core.ids import AgentId, SessionId, TreeId, new_session_id
from orchestrator.core.packs import Pack
from orchestrator.core.settings import FolderSetup, SessionFacts, TurnSettings
from orchestrator.core.state import State
from orchestrator.core.workspace import Copied
from orchestrator.folders.copy import Copy as FolderCopy
from orchestrator.folders.keeper import Keeper
from orchestrator.folders.outcomes import Bounds, FolderError, Place, Taken
from orchestrator.protocol.ids import CallId, SnapshotId
from orchestrator.rollouts.object_store import ArchiveUnavailable, Objects
from orchestrator.workspaces.copies import Copy, MachineConfig, boot_id
from orchestrator.workspaces.service import MachineFolders
from orchestrator.workspaces.stored_packs import PackName, Packs
from tests.folders.workshop import git
from tests.workspaces.machines import ROOT, Machine, Session, tree_of

CALL = CallId("c1")
POOL = "host:m1"


@dataclass
class Host:
    """A machine with a person's checkout, and a session that works in it."""

    folders: MachineFolders
    root: Path
    checkout: Path
    state: State
    store: Objects
    epoch: int = 0

    def claim(self) -> Claim:
        self.epoch += 1
        claim = Claim(SessionId(ROOT), TreeId(ROOT), "worker", f"c1a1{self.epoch:04x}", self.epoch, POOL)
        self.folders.extend(claim.claim_id, time.clock_gettime(time.CLOCK_BOOTTIME) + 60)
        return claim

    async def copied(self, claim: Claim | None = None) -> Copied:
        told = await self.folders.copy(self.state, claim or self.claim(), CALL)
        assert isinstance(told, FolderCopied), told
        return told.copied

    def folds(self, fact: f.WorkspaceFact) -> None:
        self.state = replace(self.state, workspace=evolve_workspace(self.state.workspace, fact))

    def agent(self, copied: Copied) -> Session:
        """An agent that begins with the copy."""
        born = Session(self.root)
        facts = SessionFacts(
            session_id=new_session_id(2, 3, 9), tree_id=TreeId(ROOT), portable=copied.portable
        )
        born.state = State(facts=facts)
        born._fold(f.WorkspaceBegun(copied.snapshot, (copied.pack,), copied.omitted))
        return born

    def machine(self) -> Machine:
        return Machine("m1", self.root, self.store)

    @property
    def place(self) -> Copy:
        return Copy(self.root, SessionId(ROOT), boot_id())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    root, checkout = tmp_path / "home/workspaces", tmp_path / "checkout"
    (checkout / "sub").mkdir(parents=True)
    (checkout / "README.md").write_text("one\ntwo\nthree\n")
    (checkout / "sub/a.txt").write_text("a\n")
    (checkout / ".gitignore").write_text("build/\n")
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "First"]):
        git(checkout, *words)
    settings = WorkspaceSettings(root=root, min_free=0)
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    config = MachineConfig(
        settings,
        "m1",
        60.0,
        environ=environ,
        home=tmp_path / "home",
        guarded=(checkout / "sub/kept",),
    )
    store = Objects((tmp_path / "store").as_uri())
    facts = SessionFacts(session_id=SessionId(ROOT), tree_id=TreeId(ROOT), pool=POOL)
    turn = TurnSettings(str(checkout), "never", {"mode": "workspace-write"}, "m")
    state = State(facts=facts, settings=turn)
    return Host(MachineFolders(config, Packs(store), lambda: 1_700_000_000_000), root, checkout, state, store)


def in_folder(host: Host, folder: Path) -> None:
    host.state = replace(host.state, settings=replace(host.state.settings, cwd=str(folder)))


async def work_of(host: Host, changes: Callable[[Path], Any]) -> MergeWork:
    """The merge of an agent that has made these changes in a copy of the checkout as it is now.

    The agent's machine is spared: its copy is a plain folder here.
    """
    theirs = host.root.parent / "agent"
    shutil.copytree(host.checkout, theirs / "folder")
    copy = FolderCopy(Place(theirs / "folder", theirs / "objects"), Bounds())
    begun = copy.born(None, "", 1)
    changes(theirs / "folder")
    taken = copy.take(begun.snapshot, 2)
    assert isinstance(taken, Taken)
    packs = []
    for one in (begun, taken):
        name = PackName(TreeId(ROOT), SessionId(ROOT), 0, "0", one.sha256)
        await Packs(host.store).put(name, one.pack)
        packs.append(Pack(str(name), one.sha256, one.bytes, one.whole))
    ends = SnapshotId(begun.snapshot), SnapshotId(taken.snapshot)
    made = Merge(AgentId(1), *ends, tuple(packs), 1, (), str(host.checkout)).work(sandboxed=True)
    assert isinstance(made, MergeWork)
    return made


def write(name: str, text: str) -> Callable[[Path], Any]:
    def do(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    return do


@pytest.mark.parametrize(
    ("cwd", "policy", "said"),
    [
        ("sub", {"mode": "workspace-write", "writable_roots": ["/tmp", "/var/tmp", "/dev/shm"]}, True),
        ("sub", {"mode": "workspace-write", "exclude_slash_tmp": True}, False),
        (".", {"mode": "workspace-write"}, False),
        ("sub", {"mode": "read-only"}, False),
        ("sub", {"mode": "danger-full-access"}, False),
    ],
)
async def test_copy_of_a_repository_that_commands_may_have_made_up_is_said(
    host: Host, cwd: str, policy: dict[str, Any], said: bool
) -> None:
    """Only what lies deeper in a writable folder: a root's own `.git` is out of their reach."""
    turn = TurnSettings(str(host.checkout / cwd), "never", policy, "m")
    host.state = replace(host.state, settings=turn)
    told = await host.folders.copy(host.state, host.claim(), CALL)
    assert isinstance(told, FolderCopied)
    assert (f"commands of this session may write {host.checkout}/.git" in told.warning) is said


async def test_copy_of_a_checkout_has_its_changes_and_not_what_it_hides(host: Host) -> None:
    (host.checkout / "README.md").write_text("changed\n")
    (host.checkout / "new.txt").write_text("not committed\n")
    (host.checkout / ".env").write_text("KEY=1\n")
    (host.checkout / "build").mkdir()
    (host.checkout / "build/big").write_text("ignored\n")
    (host.checkout / ".git/info/exclude").write_text("private\n")
    (host.checkout / "private").write_text("mine\n")
    in_folder(host, host.checkout / "sub")
    before = tree_of(host.checkout)
    copied = await host.copied()
    assert (copied.folder, copied.within) == (str(host.checkout), "sub")
    assert copied.pack.whole
    assert any(".env" in line for line in copied.omitted)
    assert "private\n" in "\n".join((*copied.portable.ignored, ""))
    agent, machine = host.agent(copied), host.machine()
    claim = await agent.made(machine)
    folder = Copy(host.root, agent.id, boot_id()).folder
    hidden = (".env", "build/big", "private")
    assert tree_of(folder) == {name: text for name, text in before.items() if name not in hidden}
    assert git(folder, "log", "--format=%s") == b"First\n"
    await machine.folders.release(agent.id, claim)
    assert tree_of(host.checkout) == before, "nothing is written to the person's folder"


async def test_copy_takes_the_set_up_along_that_its_machine_has_for_the_folder(host: Host) -> None:
    script = FolderSetup("make deps\n")
    host.folders._hosts._config = replace_config(host, setup_of=lambda top: (script, f"of {top}"))
    told = await host.folders.copy(host.state, host.claim(), CALL)
    assert isinstance(told, FolderCopied)
    assert (told.copied.portable.setup, told.warning) == (script, f"of {host.checkout}")


async def test_folder_that_is_no_repository_is_copied_whole(host: Host, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "a").write_text("a\n")
    in_folder(host, plain)
    copied = await host.copied()
    assert (copied.folder, copied.within, copied.portable.name) == (str(plain), ".", "plain")


async def test_folder_around_dendros_own_is_not_copied(host: Host, tmp_path: Path) -> None:
    in_folder(host, tmp_path)
    told = await host.folders.copy(host.state, host.claim(), CALL)
    assert isinstance(told, FolderNotCopied)
    assert "contain each other" in told.reason
    assert "Leave `workspace` out" in told.reason


async def test_machine_that_cannot_mount_copies_says_so(host: Host) -> None:
    host.folders._hosts._config = replace_config(host, cannot_mount="bubblewrap does not work here")
    told = await host.folders.copy(host.state, host.claim(), CALL)
    assert isinstance(told, FolderNotCopied)
    assert "bubblewrap does not work here" in told.reason


def replace_config(host: Host, **changes: Any) -> MachineConfig:
    return dataclasses.replace(host.folders._hosts._config, **changes)


async def test_store_that_does_not_take_the_copy_is_named_with_a_remedy(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise ArchiveUnavailable("no route")

    monkeypatch.setattr(Packs, "put", away)
    told = await host.folders.copy(host.state, host.claim(), CALL)
    assert isinstance(told, FolderNotCopied)
    assert "upkeep.archive_url" in told.reason


async def test_folder_with_more_files_than_allowed_is_refused(host: Host) -> None:
    settings = host.folders._hosts._config.settings.model_copy(update={"max_files": 2})
    host.folders._hosts._config = replace_config(host, settings=settings)
    told = await host.folders.copy(host.state, host.claim(), CALL)
    assert isinstance(told, FolderNotCopied)
    assert "max_files" in told.reason


async def test_copy_that_is_stopped_leaves_no_process(host: Host) -> None:
    started: list[int] = []
    begun = asyncio.Event()

    async def born(keeper: Keeper, *_: object) -> None:
        started.append(keeper.pid)
        begun.set()
        await asyncio.Event().wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Keeper, "born", born)
        copying = asyncio.ensure_future(host.folders.copy(host.state, host.claim(), CALL))
        await begun.wait()
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
    await host.copied()


async def test_agents_work_comes_into_the_checkout_beside_what_the_person_has_changed(host: Host) -> None:
    def changes(folder: Path) -> None:
        write("README.md", "one\ntwo\nTHREE\n")(folder)
        write("deep/new.txt", "new\n")(folder)
        (folder / "sub/a.txt").unlink()

    work = await work_of(host, changes)
    (host.checkout / "README.md").write_text("ONE\ntwo\nthree\n")
    claim = host.claim()
    told = await host.folders.merge(host.state, claim, work)
    assert isinstance(told, FolderMerged), told
    assert (told.files.added, told.files.modified, told.files.deleted) == (1, 1, 1)
    files = tree_of(host.checkout)
    assert files["README.md"] == "ONE\ntwo\nTHREE\n"
    assert files["deep/new.txt"] == "new\n"
    assert "sub/a.txt" not in files
    assert work.base is not None
    host.folds(f.WorkspaceMerged(CALL, work.agent_id, work.base, work.snapshot, work.packs))
    host.folders.recorded(host.state, claim, resting=True)
    await asyncio.gather(*host.folders._hosts._settling)
    assert not (host.place.objects / "merging/staged").exists()
    assert not host.place.state().unsaved


async def test_conflict_leaves_the_checkout_as_it_is_and_names_the_file(host: Host) -> None:
    work = await work_of(host, write("README.md", "agent\n"))
    (host.checkout / "README.md").write_text("person\n")
    before = tree_of(host.checkout)
    told = await host.folders.merge(host.state, host.claim(), work)
    assert isinstance(told, FolderNotMerged)
    assert "README.md" in told.conflicts[0]
    assert tree_of(host.checkout) == before
    assert not host.place.state().unsaved


async def test_ignored_file_in_the_way_is_not_overwritten(host: Host) -> None:
    work = await work_of(host, write("notes", "agent\n"))
    (host.checkout / "notes").write_text("person\n")
    told = await host.folders.merge(host.state, host.claim(), work)
    assert isinstance(told, FolderNotMerged)
    assert (host.checkout / "notes").read_text() == "person\n"


@pytest.mark.parametrize("name", ["dendro.toml", "sub/dendro.toml", "sub/kept"])
async def test_sandboxed_merge_writes_no_file_that_a_command_may_not_write(host: Host, name: str) -> None:
    work = await work_of(host, write(name, "mine\n"))
    told = await host.folders.merge(host.state, host.claim(), work)
    assert isinstance(told, FolderNotMerged)
    assert "the sandbox does not let it be written" in told.conflicts[0]
    assert not (host.checkout / name).exists()
    approved = replace(work, sandboxed=False)
    assert isinstance(await host.folders.merge(host.state, host.claim(), approved), FolderMerged)


async def test_sandboxed_merge_stays_inside_of_the_writable_roots(host: Host) -> None:
    work = await work_of(host, write("outside.txt", "x\n"))
    in_folder(host, host.checkout / "sub")
    told = await host.folders.merge(host.state, host.claim(), work)
    assert isinstance(told, FolderNotMerged)
    assert not (host.checkout / "outside.txt").exists()


def many(folder: Path) -> None:
    for number in range(400):
        (folder / f"f{number:03}").write_text(f"{number}\n")
    (folder / "README.md").write_text("agent\n")


async def test_merge_whose_keeper_is_killed_is_taken_back_at_once(host: Host) -> None:
    work = await work_of(host, many)
    before = tree_of(host.checkout)
    told = await merged_until_killed(host, work)
    while isinstance(told, FolderMerged):
        # A keeper that had written all of it before the kill: back to the start.
        host.folders._hosts._written.clear()
        assert await host.folders.judge(host.state, host.claim(), work) == "none"
        told = await merged_until_killed(host, work)
    assert isinstance(told, FolderNotMerged)
    assert not told.partly
    assert tree_of(host.checkout) == before


async def merged_until_killed(host: Host, work: MergeWork) -> FolderMerged | FolderNotMerged:
    """The outcome of a merge whose keeper is killed as soon as its first file is there."""
    merging = asyncio.ensure_future(host.folders.merge(host.state, host.claim(), work))
    while not (merging.done() or (host.checkout / "f000").exists()):
        await asyncio.sleep(0)
    if not merging.done():
        os.kill(next(iter(host.folders._hosts._keepers.values())).pid, signal.SIGKILL)
    told = await merging
    assert isinstance(told, FolderMerged | FolderNotMerged)
    return told


async def written(host: Host, work: MergeWork) -> None:
    """A merge whose worker died before the log had it."""
    told = await host.folders.merge(host.state, host.claim(), work)
    assert isinstance(told, FolderMerged), told
    host.folders._hosts._written.clear()


@pytest.mark.parametrize("name", ["checkout", "check:out:"])
async def test_merge_of_a_lost_worker_is_taken_back_by_the_next_one(host: Host, name: str) -> None:
    host.checkout = host.checkout.rename(host.checkout.with_name(name))
    in_folder(host, host.checkout)
    work = await work_of(host, many)
    before = tree_of(host.checkout)
    await written(host, work)
    assert await host.folders.judge(host.state, host.claim(), work) == "none"
    assert tree_of(host.checkout) == before
    assert await host.folders.judge(host.state, host.claim(), work) == "none", "nothing of it is there"
    again = await host.folders.merge(host.state, host.claim(), work)
    assert isinstance(again, FolderMerged), again


async def test_merge_that_a_worker_failed_to_take_back_is_taken_back_by_the_one_behind_it(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = await work_of(host, write("x", "x\n"))
    before = tree_of(host.checkout)
    await written(host, work)

    async def lost(*_: object) -> None:
        raise FolderError("lost", "the keeper has ended")

    with monkeypatch.context() as patched:
        patched.setattr(Keeper, "take_back_merge", lost)
        assert await host.folders.judge(host.state, host.claim(), work) == "in_doubt"
    assert tree_of(host.checkout) != before
    assert await host.folders.judge(host.state, host.claim(), work) == "none"
    assert tree_of(host.checkout) == before


@pytest.mark.parametrize("kind", ["lost", "time", "failed", "half"])
@pytest.mark.parametrize("fails", [0, 1, 2])
async def test_merge_of_which_a_part_could_not_be_taken_back_is_not_told_as_unwritten(
    host: Host, monkeypatch: pytest.MonkeyPatch, fails: int, kind: Any
) -> None:
    """Nor is the next one, before which it could not be taken back either; then it is."""
    work, error = await work_of(host, write("x", "x\n")), FolderError(kind, "it broke off")
    before = tree_of(host.checkout)
    write_merge = Keeper.write_merge

    async def breaks_off(keeper: Keeper, *args: Any) -> None:
        await write_merge(keeper, *args)
        raise error

    async def lost(*_: object) -> None:
        raise error

    left = bool(fails) or kind == "half"
    for times in range(max(1, fails)):
        with monkeypatch.context() as patched:
            patched.setattr(Keeper, "write_merge", breaks_off)
            if fails:
                patched.setattr(Keeper, "take_back_merge", lost)
            told = await host.folders.merge(host.state, host.claim(), work)
        assert isinstance(told, FolderNotMerged)
        assert told.partly is left, times
        assert (tree_of(host.checkout) != before) is left
        assert bool(host.place.state().unsaved) is left
    again = await host.folders.merge(host.state, host.claim(), work)
    assert isinstance(again, FolderMerged), again
    assert (host.checkout / "x").exists()


async def test_second_merge_of_an_agent_is_taken_back_whose_first_one_the_log_has(host: Host) -> None:
    first = await work_of(host, write("x", "x\n"))
    await written(host, first)
    host.folds(f.WorkspaceMerged(CALL, first.agent_id, first.base, first.snapshot, first.packs))
    shutil.rmtree(host.root.parent / "agent")
    second = await work_of(host, write("y", "y\n"))
    await written(host, second)
    assert (host.checkout / "y").exists()
    assert await host.folders.judge(host.state, host.claim(), second) == "none"
    assert (host.checkout / "x").exists()
    assert not (host.checkout / "y").exists()


async def test_merge_that_another_machine_may_have_begun_is_in_doubt(host: Host) -> None:
    work = await work_of(host, write("x", "x\n"))
    host.state = replace(host.state, facts=replace(host.state.facts, pool="default"))
    assert await host.folders.judge(host.state, host.claim(), work) == "in_doubt"


async def test_file_that_a_person_changed_behind_a_lost_merge_stays_theirs(host: Host) -> None:
    work = await work_of(host, many)
    await written(host, work)
    (host.checkout / "README.md").write_text("the person's\n")
    assert await host.folders.judge(host.state, host.claim(), work) == "none"
    assert (host.checkout / "README.md").read_text() == "the person's\n"
    assert not (host.checkout / "f001").exists()


async def test_lost_merge_is_taken_back_before_the_folder_is_copied_and_a_recorded_one_stays(
    host: Host,
) -> None:
    work = await work_of(host, write("x", "x\n"))
    await written(host, work)
    await host.copied()
    assert not (host.checkout / "x").exists()
    await written(host, work)
    host.folds(f.WorkspaceMerged(CALL, work.agent_id, work.base, work.snapshot, work.packs))
    await host.copied()
    assert (host.checkout / "x").exists()


async def test_merge_that_is_stopped_leaves_nothing_of_it(host: Host) -> None:
    work = await work_of(host, many)
    before = tree_of(host.checkout)
    merging = asyncio.ensure_future(host.folders.merge(host.state, host.claim(), work))
    while not (host.checkout / "f000").exists():
        assert not merging.done()
        await asyncio.sleep(0)
    merging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await merging
    assert tree_of(host.checkout) == before
