"""The right to a copy: until when a claim has it, who waits for it, and what of it is written down."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.broker.records import Claim
from orchestrator.config_keys import WorkspaceSettings
from orchestrator.core.ids import SessionId, TreeId, new_session_id
from orchestrator.core.settings import PortableFolder
from orchestrator.folders.outcomes import Bounds, FolderError, Place
from orchestrator.private_files import write_file
from orchestrator.workspaces import copies
from orchestrator.workspaces.copies import BUSY_S, MOST_KEPT, Copy, CopyState, Deadlines, MachineConfig
from orchestrator.workspaces.host_folders import MOST_PATH

SESSION = new_session_id(1, 3, 7)
NOTHING: Any = None


def claim(name: str) -> Claim:
    return Claim(SessionId(SESSION), TreeId(SESSION), "worker", name, 1, "default")


class Clock:
    """The time of the machine since its start."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


# ── until when ────────────────────────────────────────────────────────────────────────────────────


def test_each_claim_has_its_own_end_and_one_of_which_nothing_was_told_the_usual_time(clock: Clock) -> None:
    ends = Deadlines(clock, 6.0)
    ends.extend("one", 110.0)
    ends.extend("two", 120.0)
    assert [ends.of(claim(name)) for name in ("one", "two", "three")] == [110.0, 120.0, 106.0]
    ends.extend("one", 130.0)
    ends.forget(claim("two"))
    ends.forget(claim("three"))
    clock.now = 105.0
    assert [ends.of(claim(name)) for name in ("one", "two", "three")] == [130.0, 111.0, 111.0]


def test_ends_of_many_claims_are_kept_as_long_as_they_are_still_to_come(clock: Clock) -> None:
    ends = Deadlines(clock, 6.0)
    for number in range(MOST_KEPT):
        ends.extend(f"c{number}", 90.0 if number % 2 else 150.0 + number)
    ends.extend("new", 99.0)
    ends.extend("newer", 200.0)
    found = {number: ends.of(claim(f"c{number}")) for number in range(MOST_KEPT)}
    assert found == {number: 106.0 if number % 2 else 150.0 + number for number in range(MOST_KEPT)}
    assert ends.of(claim("newer")) == 200.0


# ── who waits ─────────────────────────────────────────────────────────────────────────────────────


class Starts:
    """Stands where keepers are started: each try takes a second, and so many find the copy busy."""

    def __init__(self, clock: Clock, times: int, kind: str = "busy") -> None:
        self.clock, self.times, self.kind = clock, times, kind
        self.deadlines: list[float] = []

    async def start(self, place: Place, bounds: Bounds, deadline: float) -> object:
        self.deadlines.append(deadline)
        self.clock.now += 1.0
        if len(self.deadlines) <= self.times:
            raise FolderError(self.kind, f"it is {self.kind}")  # type: ignore[arg-type]
        return self


@pytest.mark.parametrize("times", [0, 1, 5])
async def test_keeper_is_waited_for_whose_claim_is_over_under_the_own_claims_newest_end(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    ends, starts = Deadlines(clock, 6.0), Starts(clock, times)
    monkeypatch.setattr(copies, "Keeper", starts)

    async def extended(_: float) -> None:
        ends.extend("mine", clock.now + 50.0)

    monkeypatch.setattr(copies, "asyncio", SimpleNamespace(sleep=extended))
    ends.extend("mine", 110.0)
    found: object = await ends.keeper(NOTHING, Bounds(), claim("mine"))
    assert found is starts
    assert starts.deadlines == [110.0, *(151.0 + number for number in range(times))]


@pytest.mark.parametrize("kind", ["busy", "failed", "no_space", "lost"])
async def test_keeper_that_stays_busy_is_given_up_after_a_time_and_another_fault_at_once(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    starts = Starts(clock, 1_000, kind)
    monkeypatch.setattr(copies, "Keeper", starts)
    monkeypatch.setattr(copies, "RETRY_S", 0.0)
    with pytest.raises(FolderError, match=f"it is {kind}"):
        await Deadlines(clock, 6.0).keeper(NOTHING, Bounds(), claim("mine"))
    assert len(starts.deadlines) == (BUSY_S + 1 if kind == "busy" else 1)


# ── what is written down ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("letter", ["a", "é", '"', "\\", "\x01"])
def test_mark_of_a_merge_into_the_longest_folder_is_read_again_whatever_its_letters(
    tmp_path: Path, letter: str
) -> None:
    """By it the next worker takes a lost merge back."""
    copy = Copy(tmp_path, SESSION, "boot")
    copy.prepare()
    path = "/" + letter * ((MOST_PATH - 1) // len(letter.encode()))
    mark = f"{1 << 40}:{'a' * 40}:{path}"
    copy.dirty("c" * 64)
    copy.unsaved(mark)
    assert Copy(tmp_path, SESSION, "boot").state() == CopyState(
        "dirty", claim="c" * 64, boot="boot", unsaved=mark
    )


def test_state_is_written_where_it_changes_and_not_with_each_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = write_file

    def noted(path: Path, content: bytes, *, sync: bool = True) -> None:
        written.append(path.name)
        write(path, content, sync=sync)

    monkeypatch.setattr(copies, "write_file", noted)
    copy = Copy(tmp_path, SESSION, "boot")
    copy.prepare()
    steps: tuple[tuple[Callable[[], None], int], ...] = (
        (lambda: copy.dirty("one"), 1),
        (lambda: copy.dirty("one"), 0),
        (lambda: copy.dirty("two"), 1),
        (lambda: copy.unsaved("u"), 1),
        (lambda: copy.unsaved("u"), 0),
        (lambda: copy.clean("s", 3), 1),
        (lambda: copy.clean("s", 3), 0),
        (lambda: copy.clean("s", 4), 1),
        (lambda: copy.clean("t", 4), 1),
        (lambda: copy.dirty("two"), 1),
        (lambda: copy.unsaved(""), 1),
    )
    for step, times in steps:
        written.clear()
        step()
        assert written == ["state"] * times


# ── a machine that has no room ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("free", "fits"), [(1_000, True), (999, False), (0, False), (1_001, True)])
@pytest.mark.parametrize("there", [True, False])
def test_machine_makes_folders_as_long_as_the_disk_of_its_root_has_the_room_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, fits: bool, there: bool
) -> None:
    root = tmp_path / "a/b/workspaces"
    looked: list[Path] = []
    if there:
        root.mkdir(parents=True)

    def statvfs(place: Path) -> Any:
        looked.append(place)
        return SimpleNamespace(f_bavail=free, f_frsize=1, f_bfree=10_000, f_bsize=4_096)

    monkeypatch.setattr(os, "statvfs", statvfs)
    config = MachineConfig(WorkspaceSettings(root=root, min_free=1_000), "m1", 6.0)
    why = config.unfit()
    assert (why == "") is fits, why
    assert looked == [root if there else tmp_path], "the disk that it will be on"
    assert fits or "less than 1,000 bytes free (`workspace.min_free`)" in why
    assert root.exists() is there
    assert (config.fault(PortableFolder(str(root), "work")) == "") is fits
    assert root.exists() is (there or fits), "it is made for a folder that can be made"
