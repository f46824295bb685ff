"""Contents of simulated folders: on a disk, in packs, and what a merge makes of three.

A second reader: it is written from git's format and from what the product promises of merges, and shares
nothing with the product's own code.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

FILE, PROGRAM, LINK, EMPTY = "file", "program", "link", "folder"
Content = Mapping[str, tuple[str, bytes]]
"""By path: what it is, and its bytes. Of folders the empty ones alone are there."""
NOTHING: Content = {}
MOST_BYTES = 1 << 16
"""No file of a simulation has more."""
SLOTS, APART = 3, 3
"""A text has so many lines that are written to, and so many between two of them that never change."""
BEGUN = "begun"
TEXTS = ("a.txt", "b.txt", "deep/er/c.txt")
NEW = ("new", "new/er", "new/er/est", "other/new")
"""Folders of files that nobody else writes."""
_KINDS = {1: "commit", 2: "tree", 3: "blob"}
_MODES = {"100644": FILE, "100755": PROGRAM, "120000": LINK}
_DELTA = 7


class Lacking(ValueError):
    """Packs do not make a snapshot; the text says why."""


# ── on a disk ─────────────────────────────────────────────────────────────────────────────────


def on_disk(folder: Path) -> Content:
    """All that a folder holds; nothing where there is none."""
    found: dict[str, tuple[str, bytes]] = {}
    if folder.is_dir():
        _walk(str(folder), "", found)
    return found


def _walk(top: str, above: str, found: dict[str, tuple[str, bytes]]) -> None:
    with os.scandir(top) as entries:
        here = sorted(entries, key=lambda entry: entry.name)
    for entry in here:
        path = above + entry.name
        if entry.is_symlink():
            found[path] = LINK, os.fsencode(os.readlink(entry.path))  # noqa: PTH115 (the rules read many)
        elif entry.is_dir():
            before = len(found)
            _walk(entry.path, f"{path}/", found)
            if len(found) == before:
                found[path] = EMPTY, b""
        else:
            runs = entry.stat(follow_symlinks=False).st_mode & 0o100
            file = os.open(entry.path, os.O_RDONLY)
            found[path] = PROGRAM if runs else FILE, os.read(file, MOST_BYTES)
            os.close(file)


def marked(folder: Path, mark: str) -> None:
    """Writes a mark, a line in a file of a name that nothing else has."""
    name, _, line = mark.rpartition(":")
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(f"{line}\n".encode())


def lacking(marks: Iterable[str], content: Content) -> list[str]:
    """The marks that a folder has not got."""
    return [mark for mark in marks if not has(content, mark)]


def has(content: Content, mark: str) -> bool:
    """Whether a folder has a mark."""
    name, _, line = mark.rpartition(":")
    return f"{line}\n".encode() in content.get(name, ("", b""))[1]


def changed(folder: Path, rng: Random, value: str) -> None:
    """Changes something in a folder that other writers change as well; the first one makes all texts."""
    if not (folder / BEGUN).exists():
        (folder / BEGUN).touch()
        for name in TEXTS:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(text_of(("",) * SLOTS))
        return
    seldom = ("text", "text", "binary", "program", "link", "gone", "kind", "empty")
    kinds = (*seldom, *("new",) * len(seldom))
    what = rng.choice(kinds)
    text = folder / rng.choice(TEXTS)
    match what:
        case "text":
            lines = slots_of(text.read_bytes()) if text.is_file() else None
            slots = list(lines or ("",) * SLOTS)
            slots[rng.randrange(SLOTS)] = value
            text.parent.mkdir(parents=True, exist_ok=True)
            text.write_bytes(text_of(slots))
        case "binary":
            (folder / "image").write_bytes(b"\0" + value.encode())
        case "program":
            if text.is_file():
                text.chmod(text.stat().st_mode ^ 0o111)
        case "link":
            link = folder / "link"
            link.unlink(missing_ok=True)
            link.symlink_to(rng.choice(TEXTS[:2]))
        case "gone":
            text.unlink(missing_ok=True)
        case "kind":
            _other_kind(folder / "either", value)
        case "new":
            file = folder / rng.choice(NEW) / f"{value.partition(':')[0]}.txt"
            with suppress(FileExistsError, NotADirectoryError):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(text_of((value,) * SLOTS))
        case _:
            (folder / f"none{rng.randrange(2)}").mkdir(exist_ok=True)


def _other_kind(path: Path, value: str) -> None:
    """Makes a folder of a file, or a file of a folder."""
    if path.is_dir():
        shutil.rmtree(path)
        path.write_bytes(value.encode())
    else:
        path.unlink(missing_ok=True)
        path.mkdir()
        (path / "below").write_bytes(value.encode())


def text_of(slots: Sequence[str]) -> bytes:
    """A text with something in each of its slots."""
    lines: list[str] = []
    for number, slot in enumerate(slots):
        lines += [f"{number}: {slot}", *(f"between {number} {line}" for line in range(APART))]
    return "".join(f"{line}\n" for line in lines).encode()


def slots_of(content: bytes) -> tuple[str, ...] | None:
    """The words in the slots of a text; None for anything else."""
    lines = content.decode("utf-8", "replace").splitlines()
    found = tuple(line.partition(": ")[2] for line in lines[:: APART + 1])
    return found if len(found) == SLOTS and text_of(found) == content else None


# ── three ways ────────────────────────────────────────────────────────────────────────────────


def merged(base: Content, ours: Content, theirs: Content) -> Content | None:
    """The folder when the changes from `base` to `theirs` are in it; None where anything conflicts.

    Of a file that both have changed slots are merged one by one. Folders without files are of no side.
    """
    base, ours_all, ours, theirs = _files(base), ours, _files(ours), _files(theirs)
    result = dict(ours)
    for path in sorted({*base, *theirs}):
        old, new, own = base.get(path), theirs.get(path), ours.get(path)
        if old == new:
            continue
        if own is None and _is_folder(ours_all, path):
            if new is None:
                return None
            # A conflict unless all that it holds goes: found below.
        elif own == new:
            continue
        elif own != old:
            own = _both(old, own, new)
            if own is None:
                return None
            result[path] = own
            continue
        if new is None:
            result.pop(path, None)
        else:
            result[path] = new
    for path in result:
        if any(above in result for above in _above(path)):
            return None
    return result


def _files(content: Content) -> Content:
    return {path: it for path, it in content.items() if it[0] != EMPTY}


def same_files(one: Content, other: Content) -> bool:
    """Whether two folders hold the same, but for folders without files."""
    return _files(one) == _files(other)


def new_folders(before: Content, after: Content) -> list[str]:
    """The folders without files that are no folders of before."""
    known = {above for path in before for above in _above(f"{path}/")} - _files(before).keys()
    return [path for path, it in after.items() if it[0] == EMPTY and path not in known]


def not_taken_back(before: Content, merged: Content, now: Content, after: Content) -> str:
    """The fault of the way back, from `now` to `after`, of a merge that made `merged` of `before`.

    What somebody has changed since stays, and all else is as before. Empty where nothing is wrong.
    """
    sides = [_files(content) for content in (before, merged, now, after)]
    paths = {path for side in sides for path in side}
    nested = {above for path in paths for above in _above(path)} & paths
    for path in sorted(paths):
        if path in nested or nested.intersection(_above(path)):
            continue
        old, new, here, left = (side.get(path) for side in sides)
        wanted = {here} if old == new or here not in (old, new, None) else {old}
        if here is None:
            # What somebody has removed may come back.
            wanted = {old, None}
        if left not in wanted:
            return f"{path} is {left}, before {old}, merged {new}, then {here}"
    return ""


def _is_folder(content: Content, path: str) -> bool:
    return path in content or any(other.startswith(f"{path}/") for other in content)


def _above(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[:depth]) for depth in range(1, len(parts)))


def _both(
    old: tuple[str, bytes] | None, own: tuple[str, bytes] | None, new: tuple[str, bytes] | None
) -> tuple[str, bytes] | None:
    """A file that both sides have changed; None for a conflict."""
    if old is None or own is None or new is None or LINK in (old[0], own[0], new[0]):
        return None
    kind = new[0] if own[0] == old[0] else own[0]
    if new[1] in (old[1], own[1]):
        return kind, own[1]
    if own[1] == old[1]:
        return kind, new[1]
    sides = [slots_of(content) for _, content in (old, own, new)]
    slots: list[str] = []
    for was, here, there in zip(*(side or ("",) for side in sides), strict=True):
        if here not in (was, there) and there != was:
            return None
        slots.append(there if here == was else here)
    return (kind, text_of(slots)) if all(sides) else None


# ── in packs ──────────────────────────────────────────────────────────────────────────────────


class PackReader:
    """Reads packs once each; `opened` gives a pack's bytes as they were before the store got them."""

    def __init__(self, opened: Callable[[str], bytes]) -> None:
        self._opened = opened
        self._known: dict[str, Mapping[bytes, tuple[str, bytes]]] = {}

    def content(self, packs: Iterable[str], snapshot: str) -> Content:
        """The folder that a snapshot is of; raises `Lacking`."""
        objects: dict[bytes, tuple[str, bytes]] = {}
        for name in packs:
            if name not in self._known:
                self._known[name] = dict(_objects(self._opened(name), objects))
            objects |= self._known[name]
        found: dict[str, tuple[str, bytes]] = {}
        commit = _object(objects, bytes.fromhex(snapshot), "commit")
        _unfold(objects, bytes.fromhex(commit[5:45].decode()), "", found)
        return found


def _object(objects: Mapping[bytes, tuple[str, bytes]], sha: bytes, kind: str) -> bytes:
    if kind == "tree" and sha == _named("tree", b""):
        return b""
    if sha not in objects or objects[sha][0] != kind:
        raise Lacking(f"no pack has the {kind} {sha.hex()}")
    return objects[sha][1]


def _unfold(
    objects: Mapping[bytes, tuple[str, bytes]], tree: bytes, above: str, found: dict[str, tuple[str, bytes]]
) -> None:
    data = _object(objects, tree, "tree")
    if not data and above:
        found[above[:-1]] = EMPTY, b""
    while data:
        mode, _, rest = data.partition(b" ")
        name, _, rest = rest.partition(b"\0")
        sha, data = rest[:20], rest[20:]
        path = above + os.fsdecode(name)
        if mode == b"40000":
            _unfold(objects, sha, f"{path}/", found)
        else:
            found[path] = _MODES[mode.decode()], _object(objects, sha, "blob")


def _named(kind: str, content: bytes) -> bytes:
    return hashlib.sha1(b"%s %d\0%s" % (kind.encode(), len(content), content), usedforsecurity=False).digest()


def _objects(
    data: bytes, before: Mapping[bytes, tuple[str, bytes]]
) -> Iterator[tuple[bytes, tuple[str, bytes]]]:
    """The objects of a pack, whole: what a delta changes is in a pack before it."""
    magic, _, count = struct.unpack_from(">4sII", data)
    if magic != b"PACK" or hashlib.sha1(data[:-20], usedforsecurity=False).digest() != data[-20:]:
        raise Lacking("a pack is not whole")
    at = 12
    for _ in range(count):
        byte = data[at]
        number = byte >> 4 & 7
        at += 1
        while byte & 0x80:
            byte, at = data[at], at + 1
        base, at = (data[at : at + 20], at + 20) if number == _DELTA else (b"", at)
        stream = zlib.decompressobj()
        content = stream.decompress(data[at:])
        at = len(data) - len(stream.unused_data)
        kind = _KINDS.get(number, "")
        if base:
            if base not in before:
                raise Lacking(f"no pack before it has {base.hex()}, which a delta changes")
            kind, content = before[base][0], _patched(before[base][1], content)
        yield _named(kind, content), (kind, content)


def _patched(base: bytes, delta: bytes) -> bytes:
    at, out = 0, bytearray()
    for _ in range(2):
        while delta[at] & 0x80:
            at += 1
        at += 1
    while at < len(delta):
        op, at = delta[at], at + 1
        if not op & 0x80:
            out += delta[at : at + op]
            at += op
            continue
        words = []
        for bits, shift in ((4, 0), (3, 4)):
            word = 0
            for byte in range(bits):
                if op >> (shift + byte) & 1:
                    word |= delta[at] << 8 * byte
                    at += 1
            words.append(word)
        start, size = words[0], words[1] or 0x10000
        out += base[start : start + size]
    return bytes(out)
