"""Submodules of a repository, by its index: `git status` at the top runs git in each, under its own settings.

The index lies in `.git`, which no confined command writes; `.gitmodules` is anybody's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from orchestrator.sandbox.trusted_files import read_regular

MOST: Final = 256
"""Submodules of one repository, those of submodules too; what lies beyond is not known of."""
MOST_BYTES: Final = 64 << 20
"""Of an index; git writes some 100 for each file."""
_LINK: Final = 0o160000
_MODES: Final = frozenset((0o100644, 0o100755, 0o120000, 0o040000, _LINK))
_LONG: Final = 0xFFF
_EXTENDED: Final = 0x4000
_HASHES: Final = (20, 32)
"""Bytes of an object's name: SHA-1, SHA-256."""


def submodules(index: Path) -> tuple[str, ...]:
    """The paths of submodules in an index, relative to its work tree; none of a file that is no index."""
    try:
        about = index.stat()
        return _known(index, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    except OSError:
        return ()


@lru_cache(maxsize=64)
def _known(index: Path, *_signs: int) -> tuple[str, ...]:
    data = read_regular(index, MOST_BYTES)
    # Most repositories have none, and this is a hundred times faster than the entries one by one.
    if struct.pack(">I", _LINK) not in data:
        return ()
    for size in _HASHES:
        try:
            found = [name for name, mode in _entries(data, size) if mode == _LINK and b"\0" not in name]
        except (ValueError, struct.error, IndexError):
            continue
        return tuple(name.decode("utf-8", "surrogateescape") for name in found[:MOST])
    return ()


def _entries(data: bytes, hash_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Names and modes (gitformat-index, versions 2 to 4); raises `ValueError` for what is none."""
    signature, version, count = struct.unpack_from(">4sII", data)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("no index")
    at, name = 12, b""
    for _ in range(count):
        (mode,) = struct.unpack_from(">I", data, at + 24)
        (flags,) = struct.unpack_from(">H", data, at + 40 + hash_bytes)
        if mode not in _MODES:
            raise ValueError("no entry of an index")
        begin = at + 42 + hash_bytes + (2 if version > 2 and flags & _EXTENDED else 0)
        if version == 4:
            cut, begin = _number(data, begin)
            end = data.index(b"\0", begin)
            name, at = name[: len(name) - cut] + data[begin:end], end + 1
        else:
            length = flags & _LONG
            end = begin + length if length < _LONG else data.index(b"\0", begin + length)
            name, at = data[begin:end], at + ((end - at + 8) & ~7)
        yield name, mode


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number as git writes offsets, and where it ends."""
    value = data[at] & 0x7F
    while data[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (data[at] & 0x7F)
    return value, at + 1
