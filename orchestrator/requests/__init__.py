"""Requests to people: one class for each kind, its fields, and what an answer to it is.

    person_request  what all kinds have: fields to be drawn, choices, questions, and an answer's way to an op
    approvals       a command, a patch
    asks            questions of two kinds, a plan, a question of an MCP server, a call of a client's tool

A new kind is a class and a member of `Request`: each surface that draws kinds apart fails to type-check until
it draws the new one. Knows nothing of surfaces, nor of where a request came from or its answer goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias

from orchestrator.core.calls.ask import DoesNotAnswer
from orchestrator.protocol import ops
from orchestrator.protocol.policy import Decision, ReviewDecision
from orchestrator.protocol.wire import JsonMapping
from orchestrator.requests.approvals import NO, QUIT, CommandRequest, PatchRequest
from orchestrator.requests.asks import (
    ChoicesRequest,
    ClientToolRequest,
    InputRequest,
    PlanDecisionRequest,
    ServerRequest,
)
from orchestrator.requests.person_request import (
    Answers,
    Choice,
    Given,
    Place,
    Question,
    RequestBase,
    Section,
    call_id_of,
)

if TYPE_CHECKING:
    from orchestrator.core.commands import AnswerOp

__all__ = [
    "TO_PEOPLE",
    "TYPES",
    "Answers",
    "Choice",
    "ChoicesRequest",
    "ClientToolRequest",
    "CommandRequest",
    "Given",
    "InputRequest",
    "KnownRequest",
    "PatchRequest",
    "Place",
    "PlanDecisionRequest",
    "Question",
    "Request",
    "Section",
    "ServerRequest",
    "UnknownRequest",
    "call_id_of",
    "known_request_of",
    "request_of",
]


@dataclass(frozen=True, slots=True)
class UnknownRequest(RequestBase):
    """A request of a kind that a newer version knows: it can be denied."""

    kind: ClassVar[Literal["?"]] = "?"

    def heading(self, who: str = "the agent") -> str:
        return f"{who} asks for what this version does not know"

    @property
    def subject(self) -> str:
        return f"{self.type}, which this version does not know"

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (NO, QUIT)

    def answer(self, given: Given, shown: ops.Shown | None = None) -> AnswerOp:
        return self.decided(ReviewDecision(self._word(given)), shown)

    def decided(self, decision: Decision, shown: ops.Shown | None = None) -> AnswerOp:
        if decision not in (ReviewDecision.DENIED, ReviewDecision.ABORT):
            raise DoesNotAnswer(f"{self.call_id} is a request of a newer version: this one can only deny it")
        return ops.PatchApproval(id=self.call_id, decision=decision, agent_id=self.agent_id, shown=shown)

    def refused(self, shown: ops.Shown | None = None) -> AnswerOp:
        return self.decided(ReviewDecision.DENIED, shown)


KnownRequest: TypeAlias = (
    CommandRequest
    | PatchRequest
    | ChoicesRequest
    | InputRequest
    | PlanDecisionRequest
    | ServerRequest
    | ClientToolRequest
)
Request: TypeAlias = KnownRequest | UnknownRequest

_READ: Final[Mapping[str, type[KnownRequest]]] = {
    CommandRequest.tag: CommandRequest,
    PatchRequest.tag: PatchRequest,
    ChoicesRequest.tag: ChoicesRequest,
    InputRequest.tag: InputRequest,
    PlanDecisionRequest.tag: PlanDecisionRequest,
    ServerRequest.tag: ServerRequest,
    ClientToolRequest.tag: ClientToolRequest,
}
TYPES: Final = frozenset(_READ)
"""The events that ask."""
TO_PEOPLE: Final = TYPES - {ClientToolRequest.tag}
"""The events that ask people, and not a program."""


def request_of(event: JsonMapping, sandboxed: bool | None = None) -> Request:
    """The request that an event states; its fields are read when they are asked for."""
    return known_request_of(event, sandboxed) or UnknownRequest(event, sandboxed)


def known_request_of(event: JsonMapping, sandboxed: bool | None = None) -> KnownRequest | None:
    """The request of an event; None if the event asks nothing that this version knows."""
    read = _READ.get(str(event["type"]))
    return None if read is None else read(event, sandboxed)
