"""What hits a machine at the moment when a command of it took effect, and which commands count for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sim.machines import Process
from sim.network import Sent

IDLE = ("peek", "timers_due", "heartbeat")


@dataclass(slots=True)
class Doom:
    """Something that hits a machine when so many more of its commands have taken effect."""

    victim: Process | None
    """None: whoever sends the command that counts."""
    strikes: Callable[[Process], None]
    left: int
    counts: Callable[[Sent], bool]
    anybody: bool = False
    """What strikes hits nobody by name: any process's command counts, a person's too."""


def acts(sent: Sent) -> bool:
    return sent.name not in IDLE


def starts_a_call(sent: Sent) -> bool:
    """What it decided is in the log, and it is about to do it."""
    decided = (arg for arg in sent.args if isinstance(arg, bytes))
    return sent.name == "commit" and any(b'"phase":"running"' in arg for arg in decided)


def ends(sent: Sent) -> bool:
    """A task is being stopped by it, or an agent ended."""
    decided = (arg for arg in sent.args if isinstance(arg, bytes))
    return sent.name == "commit" and any(
        b'"kind":"stopping"' in arg or b'"canceling":' in arg for arg in decided
    )


def says(sent: Sent) -> bool:
    """Something was said to a session, and its holder is about to hear of it."""
    return sent.name == "submit"


def reserves(sent: Sent) -> bool:
    """It was given numbers, and nothing is made of them yet."""
    return sent.name == "reserve"
