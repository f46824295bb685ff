"""Named bytes in a folder or an object store: what the archive stands on.

An object is there whole or not at all, and once `put` has returned it survives a power
failure: the caller deletes the only other copy next. Knows nothing of logs. Every call
blocks; `Archive` runs them in threads.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

_UNFINISHED = ".part"


class Objects:
    """The objects below one directory URL (fsspec: `file:///…`, `s3://…`, `memory://…`)."""

    def __init__(self, url: str, token: Callable[[int], str] = secrets.token_hex) -> None:
        self._fs: Any
        self._fs, self._root = fsspec.core.url_to_fs(url)
        self._token = token

    def put(self, name: str, content: bytes) -> None:
        """Stores an object under its final name only when it is complete."""
        if isinstance(self._fs, LocalFileSystem):
            self._put_file(Path(self._root, name), content)
            return
        # An upload becomes visible when it is complete; where it is not so, the move makes it.
        path = self._path(name)
        unfinished = f"{path}.{self._token(8)}{_UNFINISHED}"
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(unfinished, content)
        self._fs.mv(unfinished, path)

    def _put_file(self, path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.{self._token(8)}{_UNFINISHED}")
        try:
            with unfinished.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        # Without this the name itself may be gone after a power failure.
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def get(self, name: str) -> bytes | None:
        """The object's bytes, or None if there is none."""
        try:
            content: bytes = self._fs.cat_file(self._path(name))
        except FileNotFoundError:
            return None
        return content

    def exists(self, name: str) -> bool:
        found: bool = self._fs.exists(self._path(name))
        return found

    def names(self, folder: str) -> list[str]:
        """The names right below a folder, unfinished ones left out."""
        try:
            found = self._fs.ls(self._path(folder), detail=False, refresh=True)
        except FileNotFoundError:
            return []
        names = (str(path).rstrip("/").rpartition("/")[2] for path in found)
        return sorted(name for name in names if not name.endswith(_UNFINISHED))

    def remove(self, name: str) -> None:
        """Removes an object or a whole folder; one that is not there is removed already."""
        with suppress(FileNotFoundError):
            self._fs.rm(self._path(name), recursive=True)

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"
