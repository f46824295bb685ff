"""An observer of a simulation, as the modules of its rules see it: `Watch` (`sim/watch.py`) is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from orchestrator.core.registry import RegistryView
from sim.reach import Reach
from sim.seen import Seen


class Observer(Protocol):
    """The sessions as far as they were read, the times that rules go by, and the end of a simulation."""

    sessions: dict[str, Seen]
    reach: Reach
    reads_anew: bool
    forgot_s: float
    peace_s: float
    parted: Callable[[str], bool] | None
    was_parted: bool

    @property
    def now_s(self) -> float: ...

    @property
    def redis_s(self) -> float: ...

    @property
    def went_back_s(self) -> float: ...

    @property
    def late_s(self) -> float: ...

    def kept(self, at_s: float) -> bool: ...

    def broken(self, rule: str, seen: str) -> None: ...

    def marks(self, tree: str) -> Mapping[bytes, bytes]: ...

    def claim_of(self, session: str) -> str: ...

    def tries_of(self, session: str) -> int: ...


class TreeObserver(Observer, Protocol):
    """An observer that also knows which sessions and agents belong together."""

    secret: bytes
    trees: dict[str, tuple[RegistryView, int]]

    @property
    def members(self) -> Mapping[str, Mapping[str, Seen]]: ...

    def ending(self) -> list[str]: ...
