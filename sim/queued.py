"""Entries that wait in a session's submission queue: as much of each as the rules need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from orchestrator.broker.replies import number_of, sq_entry
from orchestrator.core.commit_parts import COUNTED


@dataclass(frozen=True, slots=True)
class Waiting:
    """An entry that the log has not consumed."""

    n: int
    kind: str
    id: str
    """The submission's, the timer's, or the letter's key."""
    generation: int
    sender: str
    lane: int
    """1 is that of interrupts."""
    counted: bool
    """A letter that waits for a model, and so shows in the inbox depths."""
    slot: bool
    """A letter that brings one of the tree's slots."""
    op: str
    """The submission's; empty if it is none."""
    agent_id: int | None
    """The agent that the submission is for, where it names one."""
    about: str
    """The call or the turn that it answers, or the name that it gives."""


def waiting(entry_id: bytes, fields: Mapping[bytes, bytes]) -> Waiting:
    """An entry as it stands in the stream."""
    entry = sq_entry(entry_id, dict(fields))
    letter = orjson.loads(entry.payload) if entry.kind == "mail" else {}
    said = orjson.loads(entry.payload) if entry.kind == "submission" else {}
    return Waiting(
        n=number_of(entry_id),
        kind=entry.kind,
        id=entry.submission,
        generation=entry.generation,
        sender=entry.sender,
        lane=int(entry.interrupt),
        counted=letter.get("kind") in COUNTED,
        slot=bool(letter.get("slot")),
        op=said["op"]["type"] if said else "",
        agent_id=said["op"].get("agent_id") if said else None,
        about=(said["op"].get("id") or said["op"].get("name") or "") if said else "",
    )
