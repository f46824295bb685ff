"""The members of a bundle: of a ZIP, or of a folder; read in pieces, and never beyond the format's bounds.

Whoever made the file may be hostile: nothing is unpacked to a disk, and no name of it becomes a path.
"""

from __future__ import annotations

import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from orchestrator.core.frozen import record
from orchestrator.rollouts.bundle_form import MEMBER, MOST_BYTES, MOST_LINE_BYTES, MOST_MEMBERS

CHUNK = 1 << 20
_DIRECTORY_BYTES = 32 << 20
"""Most bytes of a ZIP's directory: each member takes some 150."""
_END, _END_64, _LOCATOR, _ENTRY = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07", b"PK\x01\x02"
_FOLDERS = frozenset({"logs/", "texts/", "packs/", "receipts/"})
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    struct.error,
    ValueError,
    OverflowError,
    OSError,
)


class BadContainer(Exception):
    """The ZIP or the folder is none that a bundle may be; the message says why."""

    code = "container"
    """The name of the finding."""


class BadName(BadContainer):
    """It has a member that no bundle has."""

    code = "member-name"


@record
class Member:
    """A member's name, and its length unpacked, as the container tells it."""

    name: str
    bytes: int


class Members(Protocol):
    """The members of an open bundle."""

    @property
    def members(self) -> dict[str, Member]: ...

    def chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of a member, in pieces; raises `BadContainer`."""
        ...

    def close(self) -> None: ...


def is_bundle(path: Path) -> bool:
    """Whether a path is a ZIP, or a folder with a manifest in it."""
    if path.is_dir():
        return (path / "manifest.json").is_file()
    try:
        with path.open("rb") as file:
            return file.read(4) in (b"PK\x03\x04", _END)
    except OSError:
        return False


def open_members(path: Path) -> Members:
    """Opens a bundle; raises `BadContainer`."""
    return _Folder(path) if path.is_dir() else _Zip(path)


def lines_of(chunks: Iterator[bytes]) -> Iterator[list[bytes]]:
    """The lines of a member without their ends, many at a time; raises `BadContainer` for one too long.

    What stands behind the last line feed is a line that has no end: it is raised, too.
    """
    rest: list[bytes] = []
    held = 0
    for chunk in chunks:
        lines = chunk.split(b"\n")
        if len(lines) == 1:
            rest.append(chunk)
            held += len(chunk)
            if held > MOST_LINE_BYTES:
                raise BadContainer(f"a line has more than {MOST_LINE_BYTES:,} bytes")
            continue
        lines[0] = b"".join([*rest, lines[0]])
        rest = [lines.pop()]
        held = len(rest[0])
        yield lines
    if held:
        raise BadContainer("the last line has no end")


class _Zip:
    """A ZIP file: methods 0 and 8, nothing encrypted, no name twice, no links."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        try:
            self._zip = self._opened()
            self._infos: dict[str, zipfile.ZipInfo] = {}
            for info in self._zip.infolist():
                # Programs that pack folders write an entry for each.
                if info.orig_filename not in _FOLDERS or info.file_size:
                    self._take(info)
            self.members = {name: Member(name, info.file_size) for name, info in self._infos.items()}
            _require_bounds(self.members)
        except BaseException:
            self._file.close()
            raise

    def _opened(self) -> zipfile.ZipFile:
        try:
            _require_small_directory(self._file)
            return zipfile.ZipFile(self._file)
        except _DAMAGED as error:
            raise BadContainer(f"it is no whole ZIP: {error}") from None

    def _take(self, info: zipfile.ZipInfo) -> None:
        name = info.orig_filename
        _require_name(name)
        if name in self._infos:
            raise BadContainer(f"it has the member {name} twice")
        if info.flag_bits & 0x2041 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise BadContainer(f"{name} is encrypted, or packed by another method than 0 or 8")
        mode = info.external_attr >> 16
        if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise BadContainer(f"{name} is no file")
        self._infos[name] = info

    def chunks(self, name: str) -> Iterator[bytes]:
        try:
            with self._zip.open(self._infos[name]) as member:
                while chunk := member.read(CHUNK):
                    yield chunk
        except _DAMAGED as error:
            raise BadContainer(f"{name} is damaged: {error}") from None

    def close(self) -> None:
        self._zip.close()
        self._file.close()


def _require_small_directory(file: BinaryIO) -> None:
    """Before anything reads it: the library makes an object of each entry of the directory."""
    end = file.seek(0, os.SEEK_END)
    begin = max(0, end - (1 << 16) - 22 - 76)
    file.seek(begin)
    tail = file.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) < at + 22:
        raise zipfile.BadZipFile("it has no directory")
    size = struct.unpack_from("<L", tail, at + 12)[0]
    place = begin + at
    if at >= 76 and tail[at - 20 : at - 16] == _LOCATOR and tail[at - 76 : at - 72] == _END_64:
        size, place = struct.unpack_from("<Q", tail, at - 76 + 40)[0], place - 76
    if size > _DIRECTORY_BYTES:
        raise BadContainer(f"its directory has more than the {_DIRECTORY_BYTES:,} bytes that it may have")
    file.seek(max(0, place - size))
    if file.read(size).count(_ENTRY) > MOST_MEMBERS:
        raise BadContainer(f"it has more than the {MOST_MEMBERS:,} members that it may have")


def _require_name(name: str) -> None:
    if MEMBER.fullmatch(name) is None:
        raise BadName(f"{name!r:.120} is no name of a bundle's member")


def _require_bounds(members: dict[str, Member]) -> None:
    if sum(member.bytes for member in members.values()) > MOST_BYTES:
        raise BadContainer(f"it has more than {MOST_BYTES >> 30} GiB unpacked")


class _Folder:
    """A bundle that was unpacked; links are not followed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.members: dict[str, Member] = {}
        try:
            self._find(path, "")
        except OSError as error:
            raise BadContainer(f"the folder cannot be read: {error}") from None
        _require_bounds(self.members)

    def _find(self, folder: Path, above: str) -> None:
        with os.scandir(folder) as found:
            for entry in found:
                name = f"{above}{entry.name}"
                if entry.is_dir(follow_symlinks=False) and name in ("logs", "texts", "packs", "receipts"):
                    self._find(folder / entry.name, f"{name}/")
                    continue
                _require_name(name)
                if not entry.is_file(follow_symlinks=False):
                    raise BadContainer(f"{name} is no file")
                self.members[name] = Member(name, entry.stat(follow_symlinks=False).st_size)
                if len(self.members) > MOST_MEMBERS:
                    raise BadContainer(f"it has more than the {MOST_MEMBERS:,} members that it may have")

    def chunks(self, name: str) -> Iterator[bytes]:
        try:
            descriptor = os.open(
                self._path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            )
            with open(descriptor, "rb") as file:  # noqa: PTH123
                while chunk := file.read(CHUNK):
                    yield chunk
        except OSError as error:
            raise BadContainer(f"{name} cannot be read: {error}") from None

    def close(self) -> None:
        pass
