"""The archive's objects, in memory: they survive every process, and do not go back with Redis.

An object is there whole or not at all, as the product's own store has it. Who puts an older copy of
Redis's data back puts back what was removed since, too. A replica that is promoted brings nothing back that
was removed one by one. It may be away for a while. Knows names and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

from orchestrator.rollouts.object_store import ArchiveUnavailable, Objects
from sim.double import EPOCH_S


class _Door:
    """The way to them, which may be barred."""

    def __init__(self, objects: SimObjects) -> None:
        self._objects = objects

    def __getattr__(self, name: str) -> Any:
        if self._objects.away:
            raise ArchiveUnavailable("the archive is away")
        return getattr(self._objects, name)


class SimObjects:
    """A folder or bucket, for all processes of a simulation."""

    def __init__(self, now_s: Callable[[], float] = lambda: 0.0) -> None:
        self._now_s = now_s
        self._content: dict[str, bytes] = {}
        self._removed: list[tuple[float, str, bytes, bool]] = []
        """When, which, its content, and whether it was removed with its folder."""
        self.put_s: dict[str, float] = {}
        """When each object was put that there ever was."""
        self.away = False
        """Whether nobody reaches it."""
        self.lacks: Callable[[str], None] = lambda name: None
        """Told of an object, or a folder, that was removed."""

    def opened(self) -> Objects:
        """As the product's archive stands on it."""
        return cast(Objects, _Door(self))

    def put(self, name: str, content: bytes) -> None:
        self._content[name] = content
        self.put_s[name] = self._now_s()

    def put_new(self, name: str, content: bytes) -> bool:
        """Puts an object where there is none; whether it did."""
        if name in self._content:
            return False
        self.put(name, content)
        return True

    def changed_s(self, name: str) -> float | None:
        """The Unix time at which an object was put; None if there is none."""
        return EPOCH_S + self.put_s[name] if name in self._content else None

    def get(self, name: str) -> bytes | None:
        return self._content.get(name)

    def put_file(self, name: str, file: Path) -> None:
        self.put(name, file.read_bytes())

    def put_parts(self, name: str, parts: Iterable[bytes]) -> None:
        self.put(name, b"".join(parts))

    def begin(self, name: str, most: int) -> bytes | None:
        """The first bytes of an object."""
        content = self._content.get(name)
        return None if content is None else content[:most]

    def get_file(self, name: str, target: Any, most: int) -> int | None:
        """Writes an object to a file; its size, or None if there is none."""
        content = self._content.get(name)
        if content is not None:
            target.write(content)
        return None if content is None else len(content)

    def exists(self, name: str) -> bool:
        return name in self._content

    def unfinished(self, folder: str) -> list[str]:
        """Objects that nobody has finished: there are none, as each is put whole."""
        return []

    def names(self, folder: str) -> list[str]:
        """The names right below a folder; the empty one holds all."""
        above = f"{folder}/" if folder else ""
        below = (name.removeprefix(above) for name in self._content if name.startswith(above))
        return sorted({name.partition("/")[0] for name in below})

    def remove(self, name: str) -> None:
        """An object, or a whole folder."""
        gone = [known for known in self._content if known == name or known.startswith(f"{name}/")]
        for known in gone:
            self._removed.append((self._now_s(), known, self._content.pop(known), known != name))
        if gone:
            self.lacks(name)

    def below(self, folder: str) -> list[str]:
        """All objects in a folder, and in those below it."""
        return [name for name in self._content if name.startswith(f"{folder}/")]

    def all_names(self) -> list[str]:
        """All objects that there are."""
        return list(self._content)

    def put_back(self, since_s: float, *, folders_only: bool = False) -> None:
        """Restores the objects that were removed since then."""
        for at_s, name, content, with_folder in self._removed:
            if at_s > since_s and (with_folder or not folders_only):
                self._content.setdefault(name, content)
