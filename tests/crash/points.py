"""Where a worker can be killed: a closed list of points, chosen by a seed.

A point is `<when>:<what>`; the process dies at its `nth` crossing. `before` and `after` a
script mean before it is sent and after its answer came, but before the answer is used;
`sent` is between the two: Redis serves what nobody hears the answer of.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

ANY = "any"
"""The nth crossing of any point of the worker's own process."""
DURING_PATCH = "during:patch"
"""Behind the nth file that the supervisor's writer switches."""
HELD_PATCH = "held:patch"
"""The same place: nobody dies, but the writer goes no further until it is let go."""

WEIGHTS: dict[str, tuple[int, int]] = {
    # point: (weight, latest crossing)
    "before:commit": (6, 12),
    "sent:commit": (8, 12),
    "after:commit": (8, 12),
    "before:command": (4, 4),
    "during:command": (10, 4),
    "after:command": (10, 4),
    "before:patch": (2, 2),
    DURING_PATCH: (6, 3),
    "after:patch": (5, 2),
    "before:stream": (2, 3),
    "during:stream": (6, 12),
    "after:stream": (3, 4),
    "after:claim": (3, 3),
    "sent:claim": (2, 3),
    "after:judge": (3, 1),
    "sent:emit": (2, 4),
    "before:release": (1, 1),
    "sent:release": (1, 1),
    "before:snapshot": (3, 2),
    "sent:snapshot": (3, 2),
    "after:snapshot": (3, 2),
    "before:export": (2, 3),
    "torn:export": (4, 3),
    "after:export": (2, 3),
    "before:renew": (2, 2),
    "sent:renew": (2, 2),
    "after:put_blob": (3, 2),
    "before:XRANGE": (2, 6),
    "after:XRANGE": (2, 6),
    ANY: (12, 120),
}


OF_FLOWS: dict[str, tuple[int, int]] = {
    "before:server": (2, 2),
    "before:question": (3, 2),
    "during:question": (8, 2),
    "after:question": (6, 2),
    "after:server": (4, 2),
    "before:typing": (2, 2),
    "after:typing": (6, 2),
    "after:process": (4, 2),
}
"""Points around processes and servers that ask, beside the others."""


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a worker's life, and which time it is passed."""

    name: str
    nth: int

    def connection(self) -> dict[str, Any]:
        return asdict(self)


def choose(random: Random, *, flows: bool = False) -> Point:
    """A point by weight; `flows` adds those of processes and servers."""
    weights = {**WEIGHTS, **(OF_FLOWS if flows else {})}
    names = list(weights)
    name = random.choices(names, [weights[n][0] for n in names])[0]
    return Point(name, random.randint(1, weights[name][1]))


class Doom:
    """Counts crossings in the worker, and ends it at the chosen one. Without a point, nothing happens."""

    def __init__(self, point: Point | None, kill: Callable[[], None] | None = None) -> None:
        self.point = point
        self._left = point.nth if point else 0
        self._kill = kill or (lambda: os.kill(os.getpid(), signal.SIGKILL))

    def near(self, name: str) -> bool:
        """Whether this crossing is the one; counts it."""
        if self.point is None or self.point.name not in (name, ANY):
            return False
        self._left -= 1
        return self._left == 0

    def at(self, name: str) -> None:
        """Dies here, if it is here."""
        if self.near(name):
            self.strike()

    def strike(self) -> None:
        self._kill()
