"""Plans and questions: what `update_plan`, plan approval and the ask tools exchange."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from orchestrator.protocol.wire import Flag, Maybe, OneOf, Source, WireModel


class StepStatus(StrEnum):
    """How far a step of a plan is."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


class PlanItemArg(WireModel):
    """A step of a plan."""

    step: str
    status: StepStatus


class UpdatePlanArgs(WireModel):
    """A whole plan, as the model last wrote it."""

    explanation: Maybe[str] = None
    plan: tuple[PlanItemArg, ...]


class PlanProposal(WireModel):
    """A plan put to a person for approval."""

    stated_in = Source.DECEMBER_2025
    title: str
    summary: str
    plan: UpdatePlanArgs


class PlanOutputEvent(WireModel):
    """The plan that was approved when plan mode ended."""

    stated_in = Source.DECEMBER_2025
    title: str
    summary: str
    plan: UpdatePlanArgs


class PlanRequest(WireModel):
    """The subject of a planning session."""

    stated_in = Source.DECEMBER_2025
    goal: str


class PlanApproved(WireModel):
    """The person took the plan."""

    stated_in = Source.DECEMBER_2025
    type: Literal["approved"] = "approved"


class PlanRevised(WireModel):
    """The person wants the plan changed."""

    stated_in = Source.DECEMBER_2025
    type: Literal["revised"] = "revised"
    feedback: str


class PlanRejected(WireModel):
    """The person refused the plan."""

    stated_in = Source.DECEMBER_2025
    type: Literal["rejected"] = "rejected"


PlanApprovalResponse: TypeAlias = PlanApproved | PlanRevised | PlanRejected
PlanApprovalResponseField = Annotated[PlanApprovalResponse, OneOf()]


class QuestionOption(WireModel):
    """An answer to choose."""

    stated_in = Source.DECEMBER_2025
    label: str
    description: str


class AskUserQuestion(WireModel):
    """A multiple-choice question of `ask_user_question`; answers are keyed by its header."""

    stated_in = Source.DECEMBER_2025
    question: str
    header: str
    options: tuple[QuestionOption, ...]
    multi_select: Annotated[Flag, Field(alias="multiSelect")] = False


class QuestionsAnswered(WireModel):
    """Every question answered: header to text, several choices joined by a comma."""

    stated_in = Source.DECEMBER_2025
    type: Literal["answered"] = "answered"
    answers: dict[str, str]


class QuestionsCancelled(WireModel):
    """The person would not answer."""

    stated_in = Source.DECEMBER_2025
    type: Literal["cancelled"] = "cancelled"


AskUserQuestionResponse: TypeAlias = QuestionsAnswered | QuestionsCancelled
AskUserQuestionResponseField = Annotated[AskUserQuestionResponse, OneOf()]


class RequestUserInputQuestion(WireModel):
    """A question of `request_user_input`; answers are keyed by its id."""

    stated_in = Source.JANUARY_2026
    id: str
    header: str
    question: str
    is_other: Annotated[Flag, Field(alias="isOther")] = False
    is_secret: Annotated[Flag, Field(alias="isSecret")] = False
    options: Maybe[tuple[QuestionOption, ...]] = None


class RequestUserInputAnswer(WireModel):
    """The texts given for one question."""

    stated_in = Source.JANUARY_2026
    answers: tuple[str, ...]


class RequestUserInputResponse(WireModel):
    """Answers by question id."""

    stated_in = Source.JANUARY_2026
    answers: dict[str, RequestUserInputAnswer]
