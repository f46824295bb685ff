"""The one place that replaces the clock of doubles of Redis.

fakeredis asks `time.time()` in four of its modules: for TIME, for stream ids, for expiry, for
blocking; `tests.stated` does in one. `FakeClock` stands in for the `time` module in all of them. Pass a
broker `monotonic=clock.monotonic` and no process clock is left.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from contextlib import contextmanager

_MODULES = (
    "fakeredis.commands_mixins.server_mixin",
    "fakeredis._helpers",
    "fakeredis._socket._base",
    "fakeredis.model._stream",
    "tests.stated",
)


class FakeClock:
    """Time that moves when it is told to."""

    def __init__(self, start_s: float = 1_800_000_000.0) -> None:
        self._now_s = start_s

    def time(self) -> float:
        return self._now_s

    def monotonic(self) -> float:
        return self._now_s

    def now_ms(self) -> int:
        return int(self._now_s * 1000)

    def advance(self, seconds: float) -> None:
        self._now_s += seconds

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)


@contextmanager
def redis_time(clock: FakeClock) -> Iterator[FakeClock]:
    """Inside, every double lives by `clock`."""
    modules = [importlib.import_module(name) for name in _MODULES]
    replaced = [module for module in modules if hasattr(module, "time")]
    for module in replaced:
        module.time = clock  # type: ignore[attr-defined]
    try:
        yield clock
    finally:
        for module in replaced:
            module.time = time  # type: ignore[attr-defined]
