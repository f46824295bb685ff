"""The state of a worker, as each of its heartbeats carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any

import orjson

from orchestrator.core.frozen import record

SILENT_MS = 15_000
"""Heartbeats come every 5 s: a worker that missed three of them is stuck, cut off or dead."""


@record
class MachineFacts:
    """The process of a worker, and its machine."""

    machine: str = ""
    """Its host name."""
    pid: int = 0
    version: str = ""
    core: int = 0
    """The newest core whose sessions it may take."""
    started_ms: int = 0
    clock_ms: int = 0
    """Its wall clock at the heartbeat."""
    load: float = 0.0
    """Processes of its machine that want to run, by core, over the last minute."""
    workspaces: str = ""
    """The folder below which it has copies of portable folders; of an older worker, none."""
    machine_id: str = ""
    """The stable name under which logs know its machine's copies; of an older worker, none."""
    unfit: str = ""
    """Why its machine makes no portable folders now; empty if it does, and of an older worker."""


@record
class Pace:
    """A worker's work for one pool, over the last minute."""

    claims_per_s: float = 0.0
    turns_per_s: float = 0.0
    """Model requests that were answered, or given up."""
    tokens_per_min: int = 0


@record
class WorkerState:
    """A worker's last heartbeat; one of an older version says nothing of its machine."""

    pools: tuple[str, ...]
    held: int
    """Sessions that it runs."""
    room: int
    """Sessions that it may run."""
    draining: bool = False
    paces: Mapping[str, Pace] = field(default_factory=dict)
    """By pool."""
    facts: MachineFacts | None = None


def encoded(state: WorkerState) -> bytes:
    """The state as the broker keeps it: one JSON object without levels."""
    facts: dict[str, Any] = {} if state.facts is None else asdict(state.facts)
    own: dict[str, Any] = {
        "pools": state.pools,
        "held": state.held,
        "room": state.room,
        "draining": state.draining,
    }
    own["paces"] = {pool: asdict(pace) for pool, pace in state.paces.items()}
    return orjson.dumps({**own, **facts})


def decoded(payload: bytes) -> WorkerState:
    """The state that a worker of any version has sent."""
    found: Mapping[str, Any] = orjson.loads(payload or b"{}")
    named = MachineFacts.__dataclass_fields__
    facts = {name: value for name, value in found.items() if name in named}
    return WorkerState(
        pools=tuple(found.get("pools", ())),
        held=found.get("held", 0),
        room=found.get("room", 0),
        draining=found.get("draining", False),
        paces={pool: Pace(**pace) for pool, pace in found.get("paces", {}).items()},
        facts=MachineFacts(**facts) if facts else None,
    )
