"""The archive's objects, in memory: they survive every process, and do not go back with Redis.

An object is there whole or not at all, as the product's own store has it. Who puts an older copy of
Redis's data back puts back what was removed since, too. Knows names and bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from orchestrator.runtime.objects import Objects


class SimObjects:
    """One folder or bucket, for all processes of a simulation."""

    def __init__(self, now_s: Callable[[], float] = lambda: 0.0) -> None:
        self._now_s = now_s
        self._content: dict[str, bytes] = {}
        self._removed: list[tuple[float, str, bytes]] = []

    def opened(self) -> Objects:
        """As the product's archive stands on it."""
        return cast(Objects, self)

    def put(self, name: str, content: bytes) -> None:
        self._content[name] = content

    def get(self, name: str) -> bytes | None:
        return self._content.get(name)

    def exists(self, name: str) -> bool:
        return name in self._content

    def names(self, folder: str) -> list[str]:
        """The names right below a folder."""
        below = (name.removeprefix(f"{folder}/") for name in self._content if name.startswith(f"{folder}/"))
        return sorted({name.partition("/")[0] for name in below})

    def remove(self, name: str) -> None:
        """An object, or a whole folder."""
        gone = [known for known in self._content if known == name or known.startswith(f"{name}/")]
        for known in gone:
            self._removed.append((self._now_s(), known, self._content.pop(known)))

    def put_back(self, since_s: float) -> None:
        """What was removed since then is there again."""
        for at_s, name, content in self._removed:
            if at_s > since_s:
                self._content.setdefault(name, content)
