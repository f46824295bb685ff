"""Plans put to a person: calls of `approve_plan`."""

from __future__ import annotations

from typing import ClassVar, Final, Literal

import orjson

from orchestrator.core.calls.ask import DoesNotAnswer, Settled, check_texts
from orchestrator.core.frozen import record, replace
from orchestrator.protocol.events import BackgroundEvent, PlanApprovalRequest, PlanUpdate
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.plans import PlanProposal, PlanRejected, PlanRevised
from orchestrator.protocol.wire import JsonObject, written

APPROVED: Final = "Plan approved; going on."


@record
class PlanWork:
    """A plan that waits for a person, who approves it, rejects it, or says what is to be changed."""

    kind: ClassVar[Literal["plan"]] = "plan"
    noun: ClassVar[str] = "a plan"
    answered_by: ClassVar[str] = "resolve_plan_approval"
    proposal: JsonObject
    timer: int | None = None
    """The generation of the timer that ends the wait."""

    def asked(self, timer: int) -> PlanWork:
        return replace(self, timer=timer)

    def request(self, call_id: CallId, turn: SubmissionId) -> PlanApprovalRequest:
        return PlanApprovalRequest(call_id=call_id, proposal=PlanProposal.model_validate(self.proposal))

    @property
    def unanswered(self) -> Settled:
        """The end of a plan that nobody has decided on in time."""
        return _settled(written(PlanRejected()))

    def settled(self, response: JsonObject) -> Settled:
        """The end that a response leads to; raises `DoesNotAnswer` for a revision that says nothing."""
        if response["type"] == "revised":
            feedback = PlanRevised.model_validate(response).feedback
            if not feedback.strip():
                raise DoesNotAnswer("feedback: it is blank; say what is to be changed")
            check_texts([("feedback", feedback)])
        if response["type"] != "approved":
            return _settled(response)
        steps = PlanProposal.model_validate(self.proposal).plan.plan
        shown = BackgroundEvent(message=APPROVED), PlanUpdate(explanation=APPROVED, plan=steps)
        return replace(_settled(response), events=shown)


def _settled(response: JsonObject) -> Settled:
    return Settled(str(response["type"]), orjson.dumps({"response": response}).decode())
