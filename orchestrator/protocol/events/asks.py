"""Events that ask a person: approvals, questions, plans.

An agent below the root is named in the request (`agent_id`, `session_id`,
`agent_path`), since its requests appear on the root's EQ as well.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from orchestrator.protocol.commands import FileChangeField, ParsedCommandField
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.mcp import RequestId
from orchestrator.protocol.plans import (
    AskUserQuestion,
    PlanItemArg,
    PlanOutputEvent,
    PlanProposal,
    RequestUserInputQuestion,
)
from orchestrator.protocol.scalars import LargeText
from orchestrator.protocol.wire import EventModel, Flag, Int, Maybe, Source, Uint, WireModel


class Reach(WireModel):
    """Where an approved call would run, and what it could do there, in Dendro's own words."""

    stated_in = Source.DENDRO
    sandboxed: Flag
    """Whether the sandbox confines it, or it writes nothing that the sandbox would not let it write."""
    text: str
    """Where it runs and what it could do, in one line."""
    machine: str = ""
    """The machine that has asked; empty: not known."""
    why: str = ""
    """Dendro's reason for asking; empty where the policy alone is the reason."""
    says: str = ""
    """The model's justification, in one line."""
    by_link: Maybe[bool] = None
    """Whether a link leads from a path of the request to another one, which `text` names."""

    @property
    def told(self) -> str:
        """All of it in one line, for clients that show a reason alone: the model's words come last."""
        why = f"; asked because: {self.why}" if self.why else ""
        return self.text + why + (f"; the agent says: “{self.says}”" if self.says else "")


class ExecApprovalRequest(EventModel):
    """May this command run?

    `reach` is Dendro's own; `reason` says the same in one line.
    """

    type: Literal["exec_approval_request"] = "exec_approval_request"
    command: tuple[LargeText, ...]
    cwd: LargeText
    env: Maybe[dict[str, str]] = None
    """Variables that the model sets for the command, if it sets any."""
    call_id: CallId
    turn_id: Maybe[str] = None
    reason: Maybe[str] = None
    reach: Maybe[Reach] = None
    proposed_execpolicy_amendment: Maybe[tuple[str, ...]] = None
    parsed_cmd: Maybe[tuple[ParsedCommandField, ...]] = None
    agent_id: Maybe[Uint] = None
    session_id: Maybe[str] = None
    agent_path: Maybe[str] = None


class ApplyPatchApprovalRequest(EventModel):
    """May this patch be written?

    Dendro's own are `reach`, and `changes_left_out`: so many files more than `changes` shows.
    """

    type: Literal["apply_patch_approval_request"] = "apply_patch_approval_request"
    changes: dict[str, FileChangeField]
    changes_left_out: Maybe[Uint] = None
    call_id: CallId
    turn_id: Maybe[str] = None
    reason: Maybe[str] = None
    reach: Maybe[Reach] = None
    grant_root: Maybe[str] = None
    agent_id: Maybe[Uint] = None
    session_id: Maybe[str] = None
    agent_path: Maybe[str] = None


class ElicitationRequest(EventModel):
    """An MCP server asks a person something. `reach`, of the server, is Dendro's own."""

    stated_in = Source.JANUARY_2026
    type: Literal["elicitation_request"] = "elicitation_request"
    server_name: str
    id: RequestId
    message: str
    reach: Maybe[Reach] = None
    agent_id: Maybe[Uint] = None
    session_id: Maybe[str] = None
    agent_path: Maybe[str] = None


class RequestUserInput(EventModel):
    """The agent asks; answered by `user_input_answer`."""

    stated_in = Source.JANUARY_2026
    type: Literal["request_user_input"] = "request_user_input"
    call_id: CallId
    turn_id: str = ""
    questions: tuple[RequestUserInputQuestion, ...]
    agent_id: Maybe[Uint] = None
    session_id: Maybe[str] = None
    agent_path: Maybe[str] = None


class AskUserQuestionRequest(EventModel):
    """The agent asks; answered by `resolve_ask_user_question`. `callId` on the wire."""

    stated_in = Source.DECEMBER_2025
    type: Literal["ask_user_question_request"] = "ask_user_question_request"
    call_id: Annotated[CallId, Field(alias="callId")]
    questions: tuple[AskUserQuestion, ...]
    agent_id: Maybe[Uint] = None
    session_id: Maybe[str] = None
    agent_path: Maybe[str] = None


class PlanApprovalRequest(EventModel):
    """Shall this plan be followed?"""

    stated_in = Source.DECEMBER_2025
    type: Literal["plan_approval_request"] = "plan_approval_request"
    call_id: CallId
    proposal: PlanProposal
    agent_id: Maybe[Uint] = None
    session_id: Maybe[str] = None
    agent_path: Maybe[str] = None


class RequestResolved(EventModel):
    """The end of an agent's request to people: decided by a person, or withdrawn with its turn.

    Published where the request was published, so that every client that still shows it can take it
    away. `decision` is the answer's word, or `withdrawn`; `who` is empty for that, and `timer` where
    no answer came in time. In a session without agents an answer of the client that gave the task is
    not published: that client knows it.
    """

    stated_in = Source.DENDRO
    type: Literal["request_resolved"] = "request_resolved"
    call_id: CallId
    turn_id: str
    decision: str
    who: str = ""
    resolved_at_ms: Int
    agent_id: Maybe[Uint] = None
    session_id: Maybe[str] = None
    agent_path: Maybe[str] = None


class PlanUpdate(EventModel):
    """The agent's plan as it stands."""

    type: Literal["plan_update"] = "plan_update"
    explanation: str | None = None
    plan: tuple[PlanItemArg, ...]


class EnteredPlanMode(EventModel):
    """A planning session began."""

    stated_in = Source.DECEMBER_2025
    type: Literal["entered_plan_mode"] = "entered_plan_mode"
    goal: str


class ExitedPlanMode(EventModel):
    """A planning session is over; `null` without an approved plan."""

    stated_in = Source.DECEMBER_2025
    type: Literal["exited_plan_mode"] = "exited_plan_mode"
    plan_output: PlanOutputEvent | None = None
