"""Looks for work that find nothing, answered without their script, and without being sent.

Idle workers look each second, and most of what a look costs is the interpreter and the way there and back.
Whether its script would find anything, or write, can be asked of the store: only where it would not is it
answered here, and then nothing but the time is in the answer. A look that a fault hits is sent all the same,
and those that find something show what comes of slow ones.

Knows the texts of the product's looks as they were when the simulator was loaded: one with a defect
planted in it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from orchestrator.broker.scripts import load
from sim.store import Store

Answer = list[int | list[bytes]]


def _look(store: Store, keys: Sequence[bytes], args: Sequence[bytes], now_ms: int) -> Answer | None:
    looked, every_ms = store.hash(keys[0]), int(args[0])
    fresh = all(0 <= now_ms - int(looked.get(pool, 0)) < every_ms for pool in args[4:])
    return [now_ms, 0, [], []] if fresh else None


def _peek(store: Store, keys: Sequence[bytes], args: Sequence[bytes], now_ms: int) -> Answer | None:
    due, leases = keys
    return [now_ms, [], []] if store.least(due) == inf and store.least(leases) > now_ms else None


def _timers_due(store: Store, keys: Sequence[bytes], args: Sequence[bytes], now_ms: int) -> Answer | None:
    return [now_ms, []] if store.least(keys[0]) > now_ms else None


_LOOKS: dict[bytes, Callable[[Store, Sequence[bytes], Sequence[bytes], int], Answer | None]] = {
    load("look").source: _look,
    load("peek").source: _peek,
    load("timers_due").source: _timers_due,
}


def found_nothing(
    source: bytes, store: Store, keys: Sequence[bytes], args: Sequence[bytes], now_ms: int
) -> Answer | None:
    """The answer of a script that looks for work and finds none; None if the script is to be run."""
    look = _LOOKS.get(source)
    return None if look is None else look(store, keys, args, now_ms)
