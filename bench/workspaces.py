"""Costs of a portable folder on its machine: snapshots behind calls, and folders made from packs.

All of it goes through a keeper's process, as in a worker; the store's put is not in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Figure, Target, at_most, spread
from bench.lab import Lab
from orchestrator.folders.keeper import Keeper
from orchestrator.folders.outcomes import Bounds, FolderSnapshot, Place, Taken, Unchanged

SIZES, QUICK = (1_000, 20_000), (200, 1_000)
ROUNDS = 40
_BELOW = 40
"""Files of each folder."""
_ALIVE_S = 600.0
_CHANGED_MS = {1_000: 20.0, 20_000: 90.0}
_SAME_MS = {1_000: 15.0, 20_000: 60.0}
_FIRST_S = {20_000: 5.0}
_MADE_S = {1_000: 0.4, 20_000: 4.0}
_ANEW_S = {1_000: 0.2, 20_000: 2.0}
_TEXT_KB = 8.0


async def run(lab: Lab, quick: bool) -> list[Figure]:
    """A folder of each size, with files of 1 to 4 KB, 40 in each of its folders."""
    return [
        it for count in (QUICK if quick else SIZES) for it in await _one(lab.folder / f"of {count}", count)
    ]


async def _one(root: Path, count: int) -> list[Figure]:
    for number in range(count):
        path = _file(root / "folder", number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_text(number, 16 + number % 48))
    began = time.perf_counter()
    keeper = await _keeper(root)
    started = time.perf_counter() - began
    try:
        began = time.perf_counter()
        first = await keeper.born(None, "HEAD", 0)
        taken_s = time.perf_counter() - began
        figures = [
            Figure(f"first snapshot of {count:,} files", taken_s, "s", _most(_FIRST_S, count)),
            Figure("  its pack", first.bytes / 1024, "KiB"),
        ]
        packs, at = [first.pack], first.snapshot
        same = [await _same(keeper, at) for _ in range(ROUNDS)]
        changed = []
        for number in range(ROUNDS):
            seconds, taken = await _changed(keeper, root, number * 7 % count, at)
            changed.append(seconds)
            at = taken.snapshot
            packs = [taken.pack] if taken.whole else [*packs, taken.pack]
        figures += [
            spread(f"snapshot of {count:,} files, one of them changed", changed, _most(_CHANGED_MS, count)),
            spread(f"snapshot of {count:,} files, none changed", same, _most(_SAME_MS, count)),
            await _large_text(keeper, root, at),
        ]
    finally:
        await keeper.end()
    start = Figure("  start of the keeper", started * 1000, "ms")
    return [*figures, *await _elsewhere(root / "elsewhere", packs, at, count), start]


async def _same(keeper: Keeper, at: FolderSnapshot) -> float:
    began = time.perf_counter()
    assert isinstance(await keeper.take(at, 0), Unchanged)
    return time.perf_counter() - began


async def _changed(keeper: Keeper, root: Path, number: int, at: FolderSnapshot) -> tuple[float, Taken]:
    with _file(root / "folder", number).open("ab") as file:
        file.write(b"one line more\n")
    began = time.perf_counter()
    taken = await keeper.take(at, 0)
    seconds = time.perf_counter() - began
    assert isinstance(taken, Taken)
    return seconds, taken


async def _large_text(keeper: Keeper, root: Path, at: FolderSnapshot) -> Figure:
    """The bytes that a new text of 10 KB adds to the store, and what a change of it adds."""
    path = root / "folder" / "text"
    text = _text(7, 160)[:10_240]
    path.write_bytes(text)
    written = await keeper.take(at, 0)
    path.write_bytes(text.replace(b"value 80", b"VALUE 80"))
    taken = await keeper.take(written.snapshot, 0)
    assert isinstance(taken, Taken)
    return Figure("stored for one changed text of 10 KB", taken.bytes / 1024, "KiB", at_most(_TEXT_KB))


async def _elsewhere(root: Path, packs: list[Path], at: FolderSnapshot, count: int) -> list[Figure]:
    """The work of another machine for the folder: make it, take it up again, and make it anew."""
    files = f"a folder of {count:,} files"
    made_s, adopted_s, anew_s = (
        await _made(root, packs, at),
        await _adopted(root, at),
        await _made(root, packs, at),
    )
    note = "an empty folder, all packs at hand; the folder gets no repository"
    return [
        Figure(f"making {files}", made_s, "s", _most(_MADE_S, count), note=note),
        Figure(
            "  again, in the place of one that is there",
            anew_s,
            "s",
            _most(_ANEW_S, count),
            note="its packs are on the machine; the folder that is replaced is removed",
        ),
        Figure(f"taking up a clean copy of {count:,} files", adopted_s * 1000, "ms"),
    ]


async def _made(root: Path, packs: list[Path], at: FolderSnapshot) -> float:
    keeper = await _keeper(root)
    try:
        began = time.perf_counter()
        await keeper.make(packs, at)
        return time.perf_counter() - began
    finally:
        await keeper.end()


async def _adopted(root: Path, at: FolderSnapshot) -> float:
    keeper = await _keeper(root)
    try:
        began = time.perf_counter()
        assert await keeper.adopt((), at)
        return time.perf_counter() - began
    finally:
        await keeper.end()


async def _keeper(root: Path) -> Keeper:
    (root / "objects").mkdir(parents=True, exist_ok=True)
    alive = time.clock_gettime(time.CLOCK_BOOTTIME) + _ALIVE_S
    return await Keeper.start(Place(root / "folder", root / "objects", root / "lock"), Bounds(), alive)


def _most(targets: dict[int, float], count: int) -> Target | None:
    return at_most(targets[count]) if count in targets else None


def _file(folder: Path, number: int) -> Path:
    group = number // _BELOW
    return folder / f"part {group % 20}" / f"package_{group}" / f"module_{number % _BELOW}.py"


def _text(number: int, lines: int) -> bytes:
    return "".join(_lines(number, lines)).encode()


def _lines(number: int, lines: int) -> Iterator[str]:
    for line in range(lines):
        yield f"def function_{number}_{line}(first):  # value {line}\n"
        yield f"    return first * {number * line % 9973}\n"
