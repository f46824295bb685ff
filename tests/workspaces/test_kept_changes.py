"""Changes that a machine keeps while the store is away, and files that it takes into a snapshot at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core import facts as f
from orchestrator.core.commands import FolderFailed, FolderMade, FolderUnsaved
from orchestrator.core.facts import WorkspaceSaved
from orchestrator.core.ids import SessionId
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.workspaces import service
from orchestrator.workspaces.claimed_folder import UNSAVED
from orchestrator.workspaces.copies import remove_tree
from orchestrator.workspaces.pack_keys import KeyUnavailable
from orchestrator.workspaces.stored_packs import PackName, Packs
from tests.workspaces.machines import ROOT, Machine, NewMachine, Session, tree_of


@contextmanager
def away(tmp_path: Path) -> Iterator[None]:
    """The store takes and gives nothing meanwhile."""
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").write_text("no folder")
    yield
    (tmp_path / "store").unlink()
    (tmp_path / "away").rename(tmp_path / "store")


async def kept(session: Session, machine: Machine, claim: Any, **files: str) -> FolderUnsaved:
    """A call has written these, and the store took none of it."""
    for name, text in files.items():
        (machine.folder / name).write_text(text)
    found = await session.changed(machine, claim)
    assert isinstance(found, FolderUnsaved)
    assert found.snapshot is not None
    return found


# ── unsaved ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lost", [True, False], ids=["a call was lost", "at rest"])
@pytest.mark.parametrize("calls", [2])
async def test_machine_goes_on_with_all_that_no_store_has_and_stores_it_later(
    machine: NewMachine, tmp_path: Path, lost: bool, calls: int
) -> None:
    first, again, other = machine(), machine(), machine("m2")
    session = Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("saved")
    await session.changed(first, claim)
    with away(tmp_path):
        for number in range(calls):
            await kept(session, first, claim, **{"a": f"{number}", f"b{number}": "new"})
        if lost:
            await first.folders.writing(session.state, claim)
            (first.folder / "a").write_text("half")
        await first.folders.release(SessionId(ROOT), claim)
    claim = session.claim(again)
    made = await session.make(again, claim)
    assert isinstance(made, FolderMade)
    assert made.anew is lost, "a copy that is known to be clean is taken as it is"
    wanted = {"a": f"{calls - 1}", **{f"b{number}": "new" for number in range(calls)}}
    assert tree_of(again.folder) == wanted
    (again.folder / "c").write_text("later")
    assert isinstance(await session.changed(again, claim), WorkspaceSaved)
    assert await again.folders.has(session.state) is None
    await session.made(other)
    assert tree_of(other.folder) == {**wanted, "c": "later"}


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
async def test_last_of_several_unsaved_snapshots_is_kept_also_where_no_link_can_be_made(
    machine: NewMachine, tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    first, again = machine(), machine()
    session = Session()
    claim = await session.made(first)
    with away(tmp_path):
        with monkeypatch.context() as patched:
            if not links:
                patched.setattr(os, "link", refused)
            for number in range(3):
                found = await kept(session, first, claim, a=f"{number}", **{f"b{number}": "new"})
                assert await first.folders.has(session.state) == found.snapshot
        await first.folders.writing(session.state, claim)
        await first.folders.release(SessionId(ROOT), claim)
    await session.made(again)
    assert tree_of(again.folder) == {"a": "2", "b0": "new", "b1": "new", "b2": "new"}


@pytest.mark.parametrize("lost", [True, False], ids=["a call was lost", "at rest"])
async def test_changes_that_a_person_gave_up_are_gone_also_on_the_machine_that_had_them(
    machine: NewMachine, tmp_path: Path, lost: bool
) -> None:
    first, again, session = machine(), machine(), Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("saved")
    await session.changed(first, claim)
    with away(tmp_path):
        await kept(session, first, claim, a="unsaved")
        if lost:
            await first.folders.writing(session.state, claim)
        await first.folders.release(SessionId(ROOT), claim)
    session._fold(f.WorkspaceRolledBack(session.state.workspace.snapshot, ()))
    claim = await session.made(again)
    assert tree_of(again.folder) == {"a": "saved"}
    assert await again.folders.has(session.state) is None
    assert not again.copy().state().unsaved, "upkeep of the machine may remove the copy"
    (again.folder / "b").write_text("later")
    found = await session.changed(again, claim)
    assert isinstance(found, WorkspaceSaved)
    assert (found.files.added, found.files.modified) == (1, 0)


async def test_changes_that_no_store_has_outlast_holders_that_add_none(
    machine: NewMachine, tmp_path: Path
) -> None:
    holder, session = machine(), Session()
    claim = await session.made(holder)
    with away(tmp_path):
        found = await kept(session, holder, claim, a="unsaved")
        for _ in range(2):
            await holder.folders.release(SessionId(ROOT), claim)
            holder = machine()
            claim = await session.made(holder)
            holder.folders.recorded(session.state, claim, resting=True)
            assert tree_of(holder.folder) == {"a": "unsaved"}
            assert await holder.folders.has(session.state) == found.snapshot
    (holder.copy().path / UNSAVED).unlink()
    assert await holder.folders.has(session.state) is None, "without their pack nobody can make them"


async def test_clean_copy_whose_packs_are_gone_is_made_anew(machine: NewMachine) -> None:
    first, again, session = machine(), machine(), Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("1")
    await session.changed(first, claim)
    await first.folders.release(SessionId(ROOT), claim)
    remove_tree(first.copy().objects)
    claim = session.claim(again)
    made = await session.make(again, claim)
    assert isinstance(made, FolderMade)
    assert (made.anew, tree_of(again.folder)) == (True, {"a": "1"})
    (again.folder / "b").write_text("2")
    assert isinstance(await session.changed(again, claim), WorkspaceSaved)


async def test_changes_that_were_taken_back_before_the_log_heard_of_them_are_kept_no_longer(
    machine: NewMachine, tmp_path: Path
) -> None:
    first, session = machine(), Session()
    claim = await session.made(first)
    with away(tmp_path):
        (first.folder / "a").write_text("unsaved")
        assert isinstance(await session.found(first, claim), FolderUnsaved)
        assert first.copy().state().unsaved
        first.folders.recorded(session.state, claim, resting=True)
        assert first.copy().state().unsaved, "a log that has not heard of them yet says nothing of them"
        (first.folder / "a").unlink()
        assert await session.changed(first, claim) is None
    assert not first.copy().state().unsaved


async def test_holder_whose_claim_is_over_keeps_nothing_beside_a_copy_that_may_be_anothers(
    machine: NewMachine, tmp_path: Path
) -> None:
    first, session = machine(), Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("late")
    with away(tmp_path):
        first.folders._boottime = lambda: float("inf")
        found = await session.found(first, claim)
    assert isinstance(found, FolderUnsaved)
    assert (found.snapshot, first.copy().state().unsaved) == (None, "")
    assert not (first.copy().path / UNSAVED).exists()


# ── a store that is away while the folder is made ─────────────────────────────────────────────────


def failing(times: int, error: Exception, asked: list[PackName]) -> Callable[..., Any]:
    """The store's answers: so many failures, then the packs."""
    fetch = Packs.fetch

    async def answer(self: Packs, name: PackName, target: Path, most: int) -> None:
        asked.append(name)
        if len(asked) <= times:
            raise error
        await fetch(self, name, target, most)

    return answer


@pytest.mark.parametrize("times", [2])
async def test_folder_is_made_when_a_store_that_was_away_is_back(
    machine: NewMachine, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    first, second, session = machine("m1"), machine("m2"), Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("1")
    await session.changed(first, claim)
    asked: list[PackName] = []
    monkeypatch.setattr(service, "RETRY_S", 0.0)
    monkeypatch.setattr(Packs, "fetch", failing(times, ArchiveUnavailable("no route"), asked))
    await session.made(second)
    assert tree_of(second.folder) == {"a": "1"}
    assert len(asked) > times


@pytest.mark.parametrize("lacks_key", [False, True])
async def test_folder_whose_store_stays_away_is_left_to_other_machines_after_a_minute(
    machine: NewMachine, monkeypatch: pytest.MonkeyPatch, lacks_key: bool
) -> None:
    """A key that is not here is not waited for: nothing brings it."""
    first, second, session = machine("m1"), machine("m2"), Session()
    await session.made(first)
    now, asked = [100.0], list[PackName]()

    def clock() -> float:
        now[0] += 20.0
        return now[0]

    error = KeyUnavailable("no key") if lacks_key else ArchiveUnavailable("no route")
    monkeypatch.setattr(service, "RETRY_S", 0.0)
    monkeypatch.setattr(Packs, "fetch", failing(1_000, error, asked))
    second.folders._boottime = clock
    failed = await session.make(second, session.claim(second))
    assert isinstance(failed, FolderFailed)
    assert failed.elsewhere
    assert str(error) in failed.reason
    assert len(asked) == (1 if lacks_key else 4)


# ── what a snapshot has ───────────────────────────────────────────────────────────────────────────


async def test_globs_of_a_session_and_bounds_of_its_machine_hold_for_what_its_calls_write(
    machine: NewMachine,
) -> None:
    first, second = machine("m1", max_file=2_000), machine("m2")
    session = Session(include=("*.bin",), exclude=("*.pem", "keys/"), ignored=("*.tmp",))
    claim = await session.made(first)
    (first.folder / "keys").mkdir()
    for name in ("a.bin", "a.log", "a.tmp", "a.pem", "keys/a", "a"):
        (first.folder / name).write_text("1")
    (first.folder / "large").write_text("x" * 2_001)
    (first.folder / "fits").write_text("x" * 2_000)
    (first.folder / ".gitignore").write_text("*.bin\n*.log\n")
    found = await session.changed(first, claim)
    assert isinstance(found, WorkspaceSaved)
    left_out = {line.partition(" (")[0] for line in found.omitted}
    assert left_out == {"a.pem", "keys", "large"}, "what a rule ignores is named by nobody"
    await session.made(second)
    assert set(tree_of(second.folder)) == {".gitignore", "a", "a.bin", "fits"}


async def test_files_that_are_left_out_are_told_once_each_and_known_until_none_is_there(
    machine: NewMachine,
) -> None:
    first, session = machine(), Session(exclude=("*.pem",))
    claim = await session.made(first)
    known: list[set[str]] = []
    for name in ("a", "one.pem", "b", "two.pem", "c"):
        (first.folder / name).write_text("1")
        (first.folder / "changed").write_text(name)
        await session.changed(first, claim)
        known.append({line.partition(" ")[0] for line in session.state.workspace.omitted})
    assert known == [set(), {"one.pem"}, {"one.pem"}, {"one.pem", "two.pem"}, {"one.pem", "two.pem"}]
    for name in ("one.pem", "two.pem", "changed"):
        (first.folder / name).unlink()
    await session.changed(first, claim)
    assert session.state.workspace.omitted == ()
