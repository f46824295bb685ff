"""Faults that hit a machine when a command of it took effect, and the commands that count for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sim.machines import Process
from sim.network import Sent

IDLE = ("look", "peek", "timers_due", "heartbeat", "attend", "PEXPIRE")


@dataclass(slots=True)
class Trigger:
    """Something that hits a machine when so many more of its commands have taken effect."""

    victim: Process | None
    """None: whoever sends the command that counts."""
    strikes: Callable[[Any], None]
    """Given the victim."""
    left: int
    counts: Callable[[Sent], bool]
    anybody: bool = False
    """Whether commands of any process count, a person's too: the strike hits nobody by name."""


def acts(sent: Sent) -> bool:
    return sent.name not in IDLE


def starts_a_call(sent: Sent) -> bool:
    """Whether the commit logged a decision to run a call that its worker is about to start."""
    decided = (arg for arg in sent.args if isinstance(arg, bytes))
    return sent.name == "commit" and any(b'"phase":"running"' in arg for arg in decided)


def ends(sent: Sent) -> bool:
    """A task is being stopped by it, or an agent ended."""
    decided = (arg for arg in sent.args if isinstance(arg, bytes))
    return sent.name == "commit" and any(
        b'"kind":"stopping"' in arg or b'"canceling":' in arg for arg in decided
    )


def stops_processes(sent: Sent) -> bool:
    """Processes are being killed by it, and nobody has seen their end yet."""
    return sent.name == "commit" and _says(sent, b'"kind":"processes_stopping"')


def cancels_processes(sent: Sent) -> bool:
    """The same, because their agent is being cancelled."""
    return stops_processes(sent) and _says(sent, b'"canceling":')


def _says(sent: Sent, words: bytes) -> bool:
    return any(isinstance(arg, bytes) and words in arg for arg in sent.args)


def stores(sent: Sent) -> bool:
    """A large text was stored, and the commit that names it is about to be sent."""
    return sent.name == "put_blob"


def bears(sent: Sent) -> bool:
    """A large text was stored for a session, and the session is about to be made."""
    return stores(sent) and sent.args[-1] not in (0, b"0")


def says(sent: Sent) -> bool:
    """Something was said to a session, and its holder is about to hear of it."""
    return sent.name == "submit"


def takes_a_prompt(sent: Sent) -> bool:
    """A session has taken a prompt, and its worker is about to add it to a history."""
    return sent.name == "commit" and _says(sent, b'"add_to_history"')


def reserves(sent: Sent) -> bool:
    """Whether the command reserves numbers, of which nothing is made yet."""
    return sent.name == "reserve_ids"
