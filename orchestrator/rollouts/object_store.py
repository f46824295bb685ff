"""Named bytes in a folder or an object store: what the archive stands on.

An object is there whole or not at all, and once `put` has returned it survives a power
failure: the caller deletes the only other copy next. Knows nothing of logs. Every call
blocks; `Archive` runs them in threads. Whatever goes wrong with the folder or the store
itself is `ArchiveUnavailable`: file systems have no error in common.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
from fsspec.implementations.local import LocalFileSystem

from orchestrator.home import folder_of
from orchestrator.private_files import make_folder, replacing, write_new_file
from orchestrator.rollouts import ArchiveUnavailable as ArchiveUnavailable

_UNFINISHED = ".part"
CHUNK = 1 << 20


class TooLarge(Exception):
    """An object has more bytes than its reader takes."""


class UnknownStore(ValueError):
    """No library here speaks to stores of this kind of URL; the message names the settings and the way."""


class Objects:
    """The objects below one directory URL (fsspec: `file:///…`, `s3://…`, `memory://…`)."""

    def __init__(self, url: str, token: Callable[[int], str] = secrets.token_hex) -> None:
        """Raises `UnknownStore`."""
        self._fs: Any
        self._fs, self._root = _opened(url)
        self._token = token

    def put(self, name: str, content: bytes) -> None:
        """Stores an object under its final name only when it is complete."""
        with self._asked("does not take", name):
            self._put(name, content)

    def _put(self, name: str, content: bytes) -> None:
        if isinstance(self._fs, LocalFileSystem):
            self._put_file(Path(self._root, name), content)
            return
        # An upload becomes visible when it is complete; where it is not so, the move makes it.
        path = self._path(name)
        unfinished = f"{path}.{self._token(8)}{_UNFINISHED}"
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(unfinished, content)
        self._fs.mv(unfinished, path)

    def put_new(self, name: str, content: bytes) -> bool:
        """Stores an object as `put` does where there is none of its name; False if there is one.

        Of several who try at the same time, one succeeds.
        """
        with self._asked("does not take", name):
            if isinstance(self._fs, LocalFileSystem):
                make_folder(Path(self._root, name).parent)
                return write_new_file(Path(self._root, name), content)
            path = self._path(name)
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            try:
                self._fs.pipe_file(path, content, mode="create")
            except FileExistsError:
                return False
            return True

    def put_file(self, name: str, source: Path) -> None:
        """Stores a file's bytes as `put` does, without holding them in memory."""
        with self._asked("does not take", name):
            if isinstance(self._fs, LocalFileSystem):
                with source.open("rb") as content:
                    self._write_file(Path(self._root, name), iter(partial(content.read, CHUNK), b""))
                return
            path = self._path(name)
            unfinished = f"{path}.{self._token(8)}{_UNFINISHED}"
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._fs.put_file(str(source), unfinished)
            self._fs.mv(unfinished, path)

    def put_parts(self, name: str, parts: Iterable[bytes]) -> None:
        """Stores bytes as `put` does, which are made while they are stored."""
        with self._asked("does not take", name):
            if isinstance(self._fs, LocalFileSystem):
                self._write_file(Path(self._root, name), parts)
                return
            path = self._path(name)
            unfinished = f"{path}.{self._token(8)}{_UNFINISHED}"
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            with self._fs.open(unfinished, "wb") as target:
                for part in parts:
                    target.write(part)
            self._fs.mv(unfinished, path)

    def begin(self, name: str, most: int) -> bytes | None:
        """The first bytes of an object, or all of one that has no more; None if there is none."""
        with (
            self._asked("does not give", name),
            suppress(FileNotFoundError),
            self._fs.open(self._path(name), "rb") as source,
        ):
            content: bytes = source.read(most)
            return content
        return None

    def get_file(self, name: str, target: BinaryIO, most: int) -> int | None:
        """Copies an object into an open file; None if there is none, else its bytes.

        Raises `TooLarge` as soon as it is more than `most` bytes.
        """
        with (
            self._asked("does not give", name),
            suppress(FileNotFoundError),
            self._fs.open(self._path(name), "rb") as source,
        ):
            return _copied(source, target, most, name)
        return None

    def _put_file(self, path: Path, content: bytes) -> None:
        self._write_file(path, (content,))

    def _write_file(self, path: Path, parts: Iterable[bytes]) -> None:
        make_folder(path.parent)
        with replacing(path) as file:
            file.writelines(parts)

    def get(self, name: str) -> bytes | None:
        """The object's bytes, or None if there is none."""
        with self._asked("does not give", name), suppress(FileNotFoundError):
            content: bytes = self._fs.cat_file(self._path(name))
            return content
        return None

    def exists(self, name: str) -> bool:
        with self._asked("does not tell of", name):
            found: bool = self._fs.exists(self._path(name))
            return found

    def changed_s(self, name: str) -> float | None:
        """The Unix time at which an object was written; None if there is none."""
        with self._asked("does not tell of", name), suppress(FileNotFoundError):
            written: float = self._fs.modified(self._path(name)).timestamp()
            return written
        return None

    def names(self, folder: str) -> list[str]:
        """The names right below a folder, unfinished ones left out."""
        return [name for name in self._below(folder) if not name.endswith(_UNFINISHED)]

    def unfinished(self, folder: str) -> list[str]:
        """The names right below a folder of what a process that died, or still writes, has not finished."""
        return [name for name in self._below(folder) if name.endswith(_UNFINISHED)]

    def _below(self, folder: str) -> list[str]:
        found: list[Any] = []
        with self._asked("does not list", folder), suppress(FileNotFoundError):
            found = self._fs.ls(self._path(folder), detail=False, refresh=True)
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)

    def remove(self, name: str) -> None:
        """Removes an object or a whole folder; one that is not there is removed already."""
        with self._asked("does not remove", name), suppress(FileNotFoundError):
            self._fs.rm(self._path(name), recursive=True)

    @contextmanager
    def _asked(self, what: str, name: str) -> Iterator[None]:
        try:
            yield
        except TooLarge:
            raise
        except Exception as error:
            why = str(error) or type(error).__name__
            raise ArchiveUnavailable(f"the archive {self._root} {what} {name}: {why}") from error

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"


def _opened(url: str) -> tuple[Any, str]:
    if (folder := folder_of(url)) is not None:
        # fsspec takes a path as it is written, and would make a folder named `my%20archive`.
        return LocalFileSystem(), str(folder)
    try:
        # Other processes write and remove objects: a listing of before says nothing of now.
        fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except (ValueError, ImportError) as error:
        kind = url.partition("://")[0]
        raise UnknownStore(
            f"a store at {kind}://… cannot be reached from here: {error}. Install its package for fsspec "
            "(s3fs for s3://), or correct upkeep.archive_url and receipts.url: file:///… is a folder"
        ) from error
    return fs, str(root)


def _copied(source: BinaryIO, target: BinaryIO, most: int, name: str) -> int:
    size = 0
    while chunk := source.read(CHUNK):
        size += len(chunk)
        if size > most:
            raise TooLarge(f"{name} has more than the {most:,} bytes that it may have")
        target.write(chunk)
    return size
