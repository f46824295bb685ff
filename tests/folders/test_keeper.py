"""A keeper's process: what it does is what a copy does, and it ends with its claim, wherever it is."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from orchestrator.folders.keeper import _BOOT, _PACKAGE_ROOT, Keeper
from orchestrator.folders.keeper_wire import frame
from orchestrator.folders.outcomes import (
    Bounds,
    Cut,
    FolderError,
    Found,
    Place,
    ReadFile,
    Search,
    Taken,
    Unchanged,
)
from tests.folders.workshop import AT_MS, Bench, content_of

_PATIENCE_S = 20.0


def _place(root: Path) -> Place:
    (root / "objects").mkdir(parents=True, exist_ok=True)
    return Place(root / "folder", root / "objects", root / "lock")


def _in(seconds: float) -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) + seconds


@asynccontextmanager
async def kept(place: Place, bounds: Bounds | None = None) -> AsyncIterator[Keeper]:
    keeper = await Keeper.start(place, bounds or Bounds(), _in(60))
    try:
        yield keeper
    finally:
        await keeper.end()


async def _dead(keeper: Keeper) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        await asyncio.to_thread(keeper._process.wait)


def test_process_of_a_keeper_imports_no_event_loop() -> None:
    """There is one for each copy that is held."""
    script = (
        "import sys; sys.path.append(sys.argv[1]); import orchestrator.folders.keeper_process; "
        "print(*sys.modules)"
    )
    words = [sys.executable, "-I", "-S", "-c", script, _PACKAGE_ROOT]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert {"asyncio", "concurrent.futures", "logging", "ssl"} & set(done.stdout.split()) == set()


async def test_keeper_takes_makes_merges_and_compares_as_a_copy_does(bench: Bench) -> None:
    bench.write({"a": b"1\n2\n3\n4\n", "b/c": b"2\n"})
    async with kept(_place(bench.root)) as keeper:
        first = await keeper.born(None, "HEAD", AT_MS)
        assert isinstance(await keeper.take(first.snapshot, AT_MS), Unchanged)
        bench.write({"a": b"one\n2\n3\n4\n"})
        second = await keeper.take(first.snapshot, AT_MS)
        assert isinstance(second, Taken)
        assert second.names == ("M a",)
        difference = await keeper.diff(first.snapshot, second.snapshot)
        assert "-1\n+one\n" in difference.text
        files = await keeper.read_files(second.snapshot, ["a", "b/c", "b", "none"], 100)
        assert [file.content for file in files] == [b"one\n2\n3\n4\n", b"2\n", None, None]
        found = await keeper.find_files(second.snapshot, Search(("b", "."), "c", 4, 1, 9, 100))
        assert found == Found((ReadFile("b/c", b"2\n"),), (Cut(".", "entries"),))
        with pytest.raises(FolderError, match="a request of"):
            await keeper.read_files(second.snapshot, ["x" * 2_000_000], 100)
        packs = [first.pack, second.pack]
        async with kept(_place(bench.root / "other")) as other:
            made = await other.make(packs[:1], first.snapshot)
            assert made.files == 2
            bench.write({"a": b"1\n2\n3\nfour\n"}, bench.root / "other" / "folder")
            planned = await other.plan_merge(first.snapshot, second.snapshot, packs)
            assert not hasattr(planned, "conflicts")
            await other.write_merge(first.snapshot, second.snapshot, packs, planned.digest)
            assert (bench.root / "other" / "folder" / "a").read_bytes() == b"one\n2\n3\nfour\n"
        keeper.settle(first)
        assert not first.pack.exists()


def test_process_whose_worker_is_killed_before_its_answer_ends_quietly(bench: Bench) -> None:
    place = _place(bench.root)
    (work, its_work), (control, its_control) = socket.socketpair(), socket.socketpair()
    pair = (its_work.fileno(), its_control.fileno())
    with control, its_work, its_control:
        control.send(struct.pack("d", _in(60)))
        work.send(
            frame({"place": [*map(str, (place.folder, place.objects)), None], "bounds": asdict(Bounds())})
        )
        work.close()
        argv = [sys.executable, "-I", "-S", "-c", _BOOT, _PACKAGE_ROOT, *map(str, pair)]
        ended = subprocess.run(
            argv, pass_fds=pair, env={"PATH": os.environ["PATH"]}, capture_output=True, check=False
        )
    assert (ended.returncode, ended.stderr) == (0, b"")


async def test_second_keeper_of_a_copy_is_refused_until_the_first_has_ended_and_left_it(bench: Bench) -> None:
    bench.write({"a": b"1"})
    async with kept(_place(bench.root)) as keeper:
        first = await keeper.born(None, "HEAD", AT_MS)
        with pytest.raises(FolderError) as refused:
            await Keeper.start(_place(bench.root), Bounds(), _in(60))
        assert refused.value.kind == "busy"
    async with kept(_place(bench.root)) as keeper:
        assert await keeper.adopt((), first.snapshot)
        assert isinstance(await keeper.take(first.snapshot, AT_MS), Unchanged)


async def test_killed_keeper_is_lost_and_another_one_goes_on(bench: Bench) -> None:
    bench.write({"a": b"1"})
    keeper = await Keeper.start(_place(bench.root), Bounds(), _in(60))
    first = await keeper.born(None, "HEAD", AT_MS)
    os.kill(keeper.pid, signal.SIGKILL)
    await _dead(keeper)
    with pytest.raises(FolderError) as lost:
        await keeper.take(first.snapshot, AT_MS)
    assert lost.value.kind == "lost"
    await keeper.end()
    bench.write({"b": b"2"})
    async with kept(_place(bench.root)) as other:
        second = await other.take(first.snapshot, AT_MS)
        assert isinstance(second, Taken)
        assert second.names == ("A b",)


async def test_keeper_killed_while_it_makes_a_folder_leaves_the_old_one(bench: Bench) -> None:
    bench.write({f"{n}": b"x" * 2000 for n in range(800)})
    first = bench.born()
    place = _place(bench.root / "other")
    bench.write({"old": b"1"}, place.folder)
    keeper = await Keeper.start(place, Bounds(), _in(60))
    making = asyncio.create_task(keeper.make([first.pack], first.snapshot))
    async with asyncio.timeout(_PATIENCE_S):
        while not (place.objects / "making" / "0").exists():
            await asyncio.sleep(0)
    os.kill(keeper.pid, signal.SIGKILL)
    with pytest.raises(FolderError) as lost:
        await making
    assert lost.value.kind == "lost"
    await keeper.end()
    assert content_of(place.folder) == {b"old": ("file", b"1")}
    async with kept(place) as other:
        assert (await other.make([first.pack], first.snapshot)).files == 800
    assert content_of(place.folder) == content_of(bench.folder)


async def test_keeper_that_names_a_file_outside_of_its_spool_is_ended(bench: Bench) -> None:
    bench.write({"a": b"1"})
    async with kept(_place(bench.root)) as keeper:
        first = await keeper.born(None, "HEAD", AT_MS)
        value = {**asdict(first), "pack": "/etc/passwd"}
        for answer in (
            {"is": "Taken", "value": value},
            {"is": "Taken", "value": {}},
            {"is": "Made", "value": 1},
        ):
            with pytest.raises(FolderError) as misled:
                keeper._taken(answer)
            assert misled.value.kind == "lost"
        await _dead(keeper)


@pytest.mark.parametrize(
    "value",
    [
        None, [], [[]], [[["a", "abc", ""]], []], [[["a", 1, ""]], []], [[["a", "eHh4eHg=", ""]], []],
        [[["a", ""]], []], [[], [["a"]]],
    ],
)  # fmt: skip
async def test_keeper_that_answers_with_other_contents_than_were_asked_for_is_ended(
    tmp_path: Path, value: object
) -> None:
    async with kept(_place(tmp_path)) as keeper:
        with pytest.raises(FolderError) as misled:
            keeper._contents({"is": "contents", "value": value}, 4)
        assert misled.value.kind == "lost"
        await _dead(keeper)


async def test_words_of_a_keeper_can_be_told_whatever_it_read(tmp_path: Path) -> None:
    async with kept(_place(tmp_path)) as keeper:
        answer = {"value": [[["a", None, "\udcff" + "x" * 1_000_000]], []]}
        (file,) = keeper._contents(answer, 4).files
    assert file.why.startswith("\\udcffx")
    assert len(file.why) < 600


async def test_stopped_keeper_dies_at_its_deadline_and_frees_the_copy(tmp_path: Path) -> None:
    keeper = await Keeper.start(_place(tmp_path), Bounds(), _in(2.0))
    os.kill(keeper.pid, signal.SIGSTOP)
    await _dead(keeper)
    await keeper.end()
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def test_keeper_dies_with_its_parents_end_of_the_pipe(tmp_path: Path) -> None:
    keeper = await Keeper.start(_place(tmp_path), Bounds(), _in(60))
    keeper._control.close()
    await _dead(keeper)
    await keeper.end()


async def test_cancelled_work_goes_on_and_the_next_waits_for_it(bench: Bench) -> None:
    bench.write({f"{n}": b"x" * 1000 for n in range(300)})
    async with kept(_place(bench.root)) as keeper:
        first = asyncio.create_task(keeper.born(None, "HEAD", AT_MS))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        again = await keeper.born(None, "HEAD", AT_MS)
        assert again.counts.added == 300


@pytest.mark.sandbox
async def test_keeper_has_no_environment_no_network_and_writes_nothing_but_its_place(tmp_path: Path) -> None:
    async with kept(_place(tmp_path / "copy")) as keeper:
        proc = Path(f"/proc/{keeper.pid}")
        named = (proc / "environ").read_bytes().split(b"\0")
        assert [word.partition(b"=")[0] for word in named if word] == [b"PATH"]
        status = dict(
            line.split(":\t", 1) for line in (proc / "status").read_text().splitlines() if ":\t" in line
        )
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        limits = (proc / "limits").read_text()
        assert "Max data size             3221225472" in limits


@pytest.mark.sandbox
async def test_keeper_of_a_persons_own_folder_cannot_replace_it(tmp_path: Path, bench: Bench) -> None:
    bench.write({"a": b"1"})
    first = bench.born()
    folder = tmp_path / "person" / "folder"
    folder.mkdir(parents=True)
    async with kept(Place(folder, tmp_path / "other" / "objects")) as keeper:
        with pytest.raises(FolderError, match=r"Permission denied|not permitted"):
            await keeper.make([first.pack], first.snapshot)
    assert folder.is_dir()


_FULL_DISK = """
import sys
from pathlib import Path
from orchestrator.folders.copy import Copy
from orchestrator.folders.outcomes import Bounds, FolderError, Place
root = Path(sys.argv[1])
folder, objects = root / "folder", root / "objects"
folder.mkdir()
(folder / "a").write_bytes(b"1")
copy = Copy(Place(folder, objects), Bounds())
first = copy.born(None, "HEAD", 0)
(folder / "b").write_bytes(bytes(range(256)) * 4)
ballast = open(root / "ballast", "wb", buffering=0)
try:
    while ballast.write(b"x" * 4096):
        pass
except OSError:
    pass
try:
    copy.take(first.snapshot, 1)
except FolderError as error:
    print(error.kind)
(root / "ballast").unlink()
ballast.close()
print(copy.take(first.snapshot, 1).names)
"""


@pytest.mark.sandbox
def test_full_disk_is_told_and_the_snapshot_is_taken_when_there_is_room(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare(1) is not installed")
    mount = f'mount -t tmpfs -o size=256k none {tmp_path} && exec "$@"'
    argv = ["unshare", "-rm", "sh", "-c", mount, "-", sys.executable, "-c", _FULL_DISK, str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no mount namespace can be had: {done.stderr.strip()}")
    assert done.stdout.split("\n")[:2] == ["no_space", "('A b',)"], done.stderr
