"""Entries that wait in a session's submission queue: as much of each as the rules need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from orchestrator.broker.replies import number_of, sq_entry
from orchestrator.core.commit_parts import COUNTED
from orchestrator.core.secrets import SET_APART

TURNS = frozenset({"user_input", "user_turn", "compact", "review", "run_user_shell_command", "inject_items"})
"""Ops that begin a task, join one, or are answered with an error. A message to the root itself is one too."""
MESSAGE = "word"
"""No op: the message that a person's `message_agent` became, in the queue of the agent that it is for."""
BY_PERSON = "person:"


@dataclass(frozen=True, slots=True)
class Waiting:
    """An entry that the log has not consumed."""

    n: int
    kind: str
    id: str
    """The submission's, the timer's, or the message's key."""
    generation: int
    sender: str
    lane: int
    """1 is that of interrupts."""
    counted: bool
    """A message that waits for a model, and so shows in the inbox depths."""
    slot: bool
    """A message that brings one of the tree's slots."""
    op: str
    """The submission's; empty if it is none."""
    agent_id: int | None
    """The agent that the submission is for, where it names one."""
    about: str
    """The call or the turn that it answers, or the name that it gives."""
    letter: str
    """The kind of a message; empty if it is none."""
    mail: Mapping[str, Any]
    """A message as it is; empty if it is none."""
    said: Mapping[str, Any]
    """The op of a submission; empty if it is none."""
    client: str
    """The client of a submission; empty if it is none."""
    label: str
    """The name that a message gives; empty if it gives none."""
    by: bytes
    """The person who sent it, as the door knew them; empty if nobody did."""


class Given(NamedTuple):
    """A submission's place in its session's queue."""

    n: int
    id: str
    op: str
    agent_id: int | None = None
    """The agent that it is for, where it names one."""
    about: str = ""
    """The call or the turn that it answers, or the name that it gives."""

    @classmethod
    def of(cls, entry: Waiting) -> Given | None:
        """An entry that a person has to hear of again; None if it is none."""
        if entry.op:
            return cls(entry.n, entry.id, entry.op, entry.agent_id, entry.about)
        if entry.kind == "mail" and entry.id.startswith(BY_PERSON):
            return cls(entry.n, submission_of(entry.id), MESSAGE)
        return None

    @property
    def is_turn(self) -> bool:
        return self.op in TURNS or (self.op == "message_agent" and self.agent_id == 0)


def _about(op: Mapping[str, Any]) -> str:
    return str(op.get("id") or op.get("request_id") or op.get("name") or "")


def submission_of(key: str) -> str:
    return key.rpartition(":")[2]


def waiting(entry_id: bytes, fields: Mapping[bytes, bytes]) -> Waiting:
    """An entry as it stands in the stream."""
    entry = sq_entry(entry_id, dict(fields))
    message = orjson.loads(entry.payload) if entry.kind == "mail" else {}
    said = orjson.loads(entry.payload) if entry.kind in ("submission", SET_APART) else {}
    return Waiting(
        n=number_of(entry_id),
        kind=entry.kind,
        id=entry.submission,
        generation=entry.generation,
        sender=entry.sender,
        lane=int(entry.interrupt),
        counted=message.get("kind") in COUNTED,
        slot=bool(message.get("slot")),
        op=said["op"]["type"] if said else "",
        agent_id=said["op"].get("agent_id") if said else None,
        about=_about(said["op"]) if said else "",
        letter=str(message.get("kind", "")),
        mail=message,
        said=said["op"] if said else {},
        client=entry.client if said else "",
        label=str(message.get("label") or "") if message.get("kind") == "message" else "",
        by=entry.by,
    )
