"""Facts about one tool call."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal

from orchestrator.core.calls import CallWork, spec_of, work_of
from orchestrator.core.facts.agent import SentMessage
from orchestrator.core.forms import form
from orchestrator.core.frozen import record
from orchestrator.core.turn_calls import Phase
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.wire import JsonObject


@record
class CallMoved:
    """A tool call reaches `phase`, with what any worker needs to carry the phase on."""

    kind: ClassVar[str] = "call"
    of: ClassVar[Literal["call"]] = "call"
    call_id: CallId
    phase: Phase = field(metadata=form(read=Phase))
    epoch: int | None = None
    """The claim under which it runs."""
    work: CallWork | None = field(default=None, metadata=form("spec", read=work_of, write=spec_of))
    """The work or the wait of the call, as assessed."""
    baselines: JsonObject | None = None
    """`set` and `drop`: what an applied patch leaves for the task's diff to count from."""
    sent: SentMessage | None = None
    """The message that the call wrote, for readers of the log."""
