"""A merge whose keeper is killed between two files: the folder is as it was, and the answer says so."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import pytest

from orchestrator.core.commands import FolderMerged, FolderNotMerged
from orchestrator.folders.keeper import Keeper
from orchestrator.folders.outcomes import ErrorKind, FolderError
from orchestrator.workspaces.copies import Copy
from orchestrator.workspaces.service import LOST
from tests.workspaces.machines import NewMachine, Session, tree_of

MANY = 1500


async def test_keeper_that_is_killed_between_two_files_of_a_merge_leaves_nothing_of_it(
    machine: NewMachine,
) -> None:
    here, there = machine("m1"), machine("m2")
    parent = Session()
    claim = await parent.made(here)
    (here.folder / "goes").mkdir()
    (here.folder / "goes/away").write_text("mine\n")
    for number in range(MANY):
        (here.folder / f"f{number:04}").write_text(f"{number}\n")
    await parent.changed(here, claim)
    child = parent.child()
    theirs = await child.made(there)
    folder = Copy(there.root, child.id, there.folders._boot).folder
    (folder / "goes/away").unlink()
    (folder / "goes").rmdir()
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/new").write_text("theirs\n")
    for number in range(MANY):
        (folder / f"f{number:04}").write_text(f"{number} theirs\n")
    await child.changed(there, theirs)
    before = tree_of(here.folder)
    keeper = here.folders._held[claim.claim_id].keeper
    merging = asyncio.ensure_future(here.folders.merge(parent.state, claim, child.offered()))
    while not (here.folder / "a/b/new").exists():
        assert not merging.done()
        await asyncio.sleep(0)
    os.kill(keeper.pid, signal.SIGKILL)
    told = await merging
    assert isinstance(told, FolderNotMerged)
    assert "has ended" in told.reason
    assert not told.partly
    assert tree_of(here.folder) == before
    assert not (here.folder / "a").exists()
    assert await parent.changed(here, claim) is None, "there is nothing of it to be recorded"
    again = await here.folders.merge(parent.state, claim, child.offered())
    assert isinstance(again, FolderMerged), again
    assert tree_of(here.folder) == tree_of(folder)
    await parent.changed(here, claim)
    assert not (here.copy().objects / "merging/staged").exists()


async def test_merge_that_cannot_be_taken_back_is_not_told_as_unwritten(
    machine: NewMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine()
    parent = Session()
    claim = await parent.made(here)
    child = parent.child()

    async def lost(*_: object) -> None:
        raise FolderError("lost", "the keeper has ended")

    monkeypatch.setattr(Keeper, "plan_merge", lost)
    monkeypatch.setattr(Keeper, "take_back_merge", lost)
    told = await here.folders.merge(parent.state, claim, child.offered())
    assert isinstance(told, FolderNotMerged)
    assert told.partly


@pytest.mark.parametrize("kind", [kind for kind in get_args(ErrorKind) if kind not in LOST])
@pytest.mark.parametrize("step", ["plan_merge", "write_merge"])
async def test_merge_that_its_keeper_refused_has_written_nothing_unless_the_keeper_says_so(
    machine: NewMachine, monkeypatch: pytest.MonkeyPatch, step: str, kind: Any
) -> None:
    here, there = machine("m1"), machine("m2")
    parent = Session()
    claim = await parent.made(here)
    child = parent.child()
    theirs = await child.made(there)
    (Copy(there.root, child.id, there.folders._boot).folder / "new").write_text("theirs\n")
    await child.changed(there, theirs)

    async def refuses(*_: object) -> None:
        raise FolderError(kind, "its reason")

    monkeypatch.setattr(Keeper, step, refuses)
    told = await here.folders.merge(parent.state, claim, child.offered())
    assert told == FolderNotMerged("its reason", partly=kind == "half")


async def test_file_in_whose_place_a_lost_merge_has_made_a_folder_comes_back(
    machine: NewMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = machine("m1"), machine("m2")
    parent = Session()
    claim = await parent.made(here)
    (here.folder / "either").write_text("mine\n")
    await parent.changed(here, claim)
    child = parent.child()
    theirs = await child.made(there)
    folder = Copy(there.root, child.id, there.folders._boot).folder
    (folder / "either").unlink()
    (folder / "either/x").mkdir(parents=True)
    (folder / "either/x/below").write_text("theirs\n")
    await child.changed(there, theirs)
    breaks_off(monkeypatch, FolderError("lost", "the keeper has ended"))
    told = await here.folders.merge(parent.state, claim, child.offered())
    assert isinstance(told, FolderNotMerged)
    assert not told.partly
    assert tree_of(here.folder) == {"either": "mine\n"}


async def test_merge_whose_process_took_too_long_is_taken_back(
    machine: NewMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = machine("m1"), machine("m2")
    parent = Session()
    claim = await parent.made(here)
    child = parent.child()
    theirs = await child.made(there)
    (Copy(there.root, child.id, there.folders._boot).folder / "new").write_text("theirs\n")
    await child.changed(there, theirs)
    breaks_off(monkeypatch, FolderError("time", "the work on the folder took too long"))
    told = await here.folders.merge(parent.state, claim, child.offered())
    assert isinstance(told, FolderNotMerged)
    assert not told.partly
    assert not (here.folder / "new").exists()


async def test_file_that_a_lost_merge_has_brought_and_a_person_has_changed_since_stays(
    machine: NewMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = machine("m1"), machine("m2")
    parent = Session()
    claim = await parent.made(here)
    child = parent.child()
    theirs = await child.made(there)
    folder = Copy(there.root, child.id, there.folders._boot).folder
    (folder / "a").write_text("theirs\n")
    (folder / "b").write_text("theirs\n")
    await child.changed(there, theirs)
    edit = partial((here.folder / "a").write_text, "a person's\n")
    breaks_off(monkeypatch, FolderError("lost", "the keeper has ended"), edit)
    assert isinstance(await here.folders.merge(parent.state, claim, child.offered()), FolderNotMerged)
    assert (here.folder / "a").read_text() == "a person's\n"
    assert not (here.folder / "b").exists()


def breaks_off(
    monkeypatch: pytest.MonkeyPatch, error: FolderError, before: Callable[[], object] = lambda: None
) -> None:
    """Lets merges be written, and then fail; `before` that something happens in the folder."""
    write_merge = Keeper.write_merge

    async def fails(keeper: Keeper, *args: Any) -> None:
        await write_merge(keeper, *args)
        before()
        raise error

    monkeypatch.setattr(Keeper, "write_merge", fails)
