"""Values that a process keeps for a while: those that were used last, within bounds.

Imports nothing of Dendro, so that every layer can use it.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Kept(NamedTuple, Generic[V]):
    value: V
    bytes: int
    at: float


class Recent(Generic[K, V]):
    """Values by their keys, bounded by bytes, by number and by the seconds since its last use.

    One that is larger than all may be is not kept, unless `newest_stays`.
    """

    def __init__(
        self,
        most_bytes: int,
        *,
        most: float = math.inf,
        seconds: float = math.inf,
        newest_stays: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bytes = 0
        self._most_bytes = most_bytes
        self._most = most
        self._seconds = seconds
        self._newest_stays = newest_stays
        self._clock = clock
        self._kept: OrderedDict[K, _Kept[V]] = OrderedDict()
        """The value that was put last at the end."""

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K) -> V | None:
        """The value, if it is kept; this is no use of it."""
        kept = self._kept.get(key)
        return None if kept is None else kept.value

    def use(self, key: K) -> V | None:
        """The value, if it is kept; it counts as put now."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        self.put(key, kept.value, kept.bytes)
        return kept.value

    def take(self, key: K) -> V | None:
        """The value, if it was kept; now it is not any more."""
        kept = self._kept.pop(key, None)
        if kept is None:
            return None
        self.bytes -= kept.bytes
        return kept.value

    def put(self, key: K, value: V, size: int) -> None:
        """Keeps a value of `size` bytes; drops what is beyond the bounds now, the oldest first."""
        self.take(key)
        now = self._clock()
        if size <= self._most_bytes or self._newest_stays:
            self._kept[key] = _Kept(value, size, now)
            self.bytes += size
        while len(self._kept) > self._newest_stays and self._beyond(now):
            _, oldest = self._kept.popitem(last=False)
            self.bytes -= oldest.bytes

    def _beyond(self, now: float) -> bool:
        if self.bytes > self._most_bytes or len(self._kept) > self._most:
            return True
        return now - next(iter(self._kept.values())).at > self._seconds
