"""The upkeep of a machine's copies: which are removed, and which stay whatever happens."""

from __future__ import annotations

import asyncio
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config_keys import WorkspaceSettings
from orchestrator.core.ids import new_session_id
from orchestrator.workspaces.copies import Copy, MachineConfig, Swept, copies_below, sweep, sweeping

NOW = 2_000_000_000.0


def config(root: Path, **settings: Any) -> MachineConfig:
    return MachineConfig(WorkspaceSettings(root=root, **settings), "m1", 4.0)


def copy(root: Path, number: int, used: float, size: int = 0) -> Copy:
    made = Copy(root, new_session_id(number, 3, number), "boot")
    made.prepare()
    made.folder.mkdir()
    (made.folder / "file").write_bytes(b"x" * size)
    seen = place(root, number)
    seen.mkdir(parents=True)
    made.note_seen(seen)
    made.clean("a" * 40, 3)
    made.lock.touch()
    os.utime(made.lock, (used, used))
    return made


def place(root: Path, number: int) -> Path:
    return root / new_session_id(1000 + number, 3, number) / "work"


def kept(root: Path) -> list[str]:
    return [found.session for found in copies_below(root, "boot")]


def test_copy_that_nobody_has_used_for_long_is_removed(tmp_path: Path) -> None:
    copy(tmp_path, 1, NOW - 3601)
    recent = [copy(tmp_path, 2, NOW - 3599), copy(tmp_path, 3, NOW - 3600)]
    assert sweep(config(tmp_path, keep_s=3600), "boot", NOW) == Swept(removed=1)
    assert kept(tmp_path) == [each.session for each in recent]
    assert not place(tmp_path, 1).parent.exists()
    assert place(tmp_path, 2).is_dir()


def test_copy_that_is_held_stays_however_old_it_is(tmp_path: Path) -> None:
    held = copy(tmp_path, 1, 0.0)
    with Copy(tmp_path, held.session, "boot").locked() as mine:
        assert mine
        sweep(config(tmp_path, keep_s=0, max_disk=1 << 20), "boot", NOW)
        assert kept(tmp_path) == [held.session]
    sweep(config(tmp_path, keep_s=0), "boot", NOW)
    assert kept(tmp_path) == []


def test_copy_that_was_used_once_more_before_its_lock_was_had_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, locked = copy(tmp_path, 1, 0.0, size=3 << 20), Copy.locked

    def late(self: Copy) -> AbstractContextManager[bool]:
        os.utime(self.lock, (NOW, NOW))
        return locked(self)

    monkeypatch.setattr(Copy, "locked", late)
    assert sweep(config(tmp_path, keep_s=3600), "boot", NOW) == Swept()
    assert kept(tmp_path) == [used.session]
    assert sweep(config(tmp_path, keep_s=3600, max_disk=1 << 20), "boot", NOW) == Swept(removed=1)


def test_copy_with_changes_that_no_store_has_stays_however_old_it_is(tmp_path: Path) -> None:
    only = copy(tmp_path, 1, 0.0, size=3 << 20)
    only.unsaved("b" * 40)
    sweep(config(tmp_path, keep_s=0, max_disk=1 << 20), "boot", NOW)
    assert kept(tmp_path) == [only.session]


def test_least_recently_used_copies_make_room(tmp_path: Path) -> None:
    copy(tmp_path, 1, NOW - 30, size=3 << 20)
    copy(tmp_path, 2, NOW - 20, size=3 << 20)
    last = copy(tmp_path, 3, NOW - 10, size=3 << 20)
    sweep(config(tmp_path, keep_s=3600, max_disk=5 << 20), "boot", NOW)
    assert kept(tmp_path) == [last.session]


def test_sweep_ends_what_another_one_has_begun(tmp_path: Path) -> None:
    begun = copy(tmp_path, 1, NOW)
    begun.path.rename(begun.path.with_name(f"{begun.session}.gone"))
    again = Copy(tmp_path, begun.session, "boot")
    again.prepare()
    again.lock.touch()
    os.utime(again.lock, (0.0, 0.0))
    assert sweep(config(tmp_path), "boot", NOW) == Swept(removed=1)
    assert list((tmp_path / "copies").iterdir()) == []
    assert not place(tmp_path, 1).parent.exists()


def test_folder_with_files_below_the_root_is_none_of_the_sweeps(tmp_path: Path) -> None:
    (tmp_path / "mine/project").mkdir(parents=True)
    (tmp_path / "mine/project/file").touch()
    (tmp_path / "mine/empty").mkdir()
    sweep(config(tmp_path, keep_s=0), "boot", NOW)
    assert (tmp_path / "mine/project/file").exists()
    assert (tmp_path / "mine/empty").exists()


def test_machine_without_copies_has_nothing_to_sweep(tmp_path: Path) -> None:
    assert sweep(config(tmp_path / "absent"), "boot", NOW) == Swept()


async def test_worker_sweeps_from_its_start(tmp_path: Path) -> None:
    copy(tmp_path, 1, 0.0)
    told: asyncio.Queue[Swept] = asyncio.Queue()
    async with sweeping(config(tmp_path, keep_s=0), "boot", lambda: NOW, told.put_nowait):
        assert await told.get() == Swept(removed=1)
    assert kept(tmp_path) == []


def test_copy_that_stays_or_cannot_be_removed_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = [copy(tmp_path, number, NOW - 9_000 + number) for number in range(6)]
    copies[1].unsaved("b" * 40)
    os.utime(copies[1].lock, (NOW - 8_999, NOW - 8_999))
    stuck, remove = copies[3].session, Copy.remove

    def removed(self: Copy) -> None:
        if self.session == stuck:
            raise OSError("a file of root's is in it")
        remove(self)

    monkeypatch.setattr(Copy, "remove", removed)
    with Copy(tmp_path, copies[0].session, "boot").locked() as mine:
        assert mine
        assert sweep(config(tmp_path, keep_s=3600), "boot", NOW) == Swept(removed=3, failed=1)
    assert kept(tmp_path) == sorted(copies[number].session for number in (0, 1, 3))


def test_no_more_copies_go_than_there_has_to_be_room_for(tmp_path: Path) -> None:
    for number in range(6):
        copy(tmp_path, number, NOW - 60 + number, size=2 << 20)
    held = copies_below(tmp_path, "boot")[0]
    with Copy(tmp_path, held.session, "boot").locked():
        assert sweep(config(tmp_path, keep_s=3600, max_disk=7 << 20), "boot", NOW) == Swept(removed=3)
    left = {found.session for found in copies_below(tmp_path, "boot")}
    assert left == {held.session, *(new_session_id(number, 3, number) for number in (4, 5))}
