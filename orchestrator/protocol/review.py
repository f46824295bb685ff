"""Code review: what is to be reviewed, and the findings."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import model_validator

from orchestrator.protocol.wire import Int, Maybe, Number, OneOf, Source, Uint, WireModel


class UncommittedChanges(WireModel):
    """Review what is not committed yet."""

    stated_in = Source.JANUARY_2026
    type: Literal["uncommittedChanges"] = "uncommittedChanges"


class BaseBranch(WireModel):
    """Review the changes against a branch."""

    stated_in = Source.JANUARY_2026
    type: Literal["baseBranch"] = "baseBranch"
    branch: str


class Commit(WireModel):
    """Review one commit."""

    stated_in = Source.JANUARY_2026
    type: Literal["commit"] = "commit"
    sha: str
    title: str | None = None


class CustomReview(WireModel):
    """Review by instructions in words."""

    stated_in = Source.JANUARY_2026
    type: Literal["custom"] = "custom"
    instructions: str


ReviewTarget: TypeAlias = UncommittedChanges | BaseBranch | Commit | CustomReview
ReviewTargetField = Annotated[ReviewTarget, OneOf()]


class ReviewRequest(WireModel):
    """The subject of a review: a prompt (September 2025) or a target (January 2026)."""

    prompt: Maybe[str] = None
    target: Maybe[ReviewTargetField] = None
    user_facing_hint: Maybe[str] = None

    @model_validator(mode="after")
    def _says_what(self) -> ReviewRequest:
        if self.prompt is None and self.target is None:
            raise ValueError("a prompt or a target is required")
        return self


class LineRange(WireModel):
    """Lines of a file, both ends included."""

    start: Uint
    end: Uint


class ReviewCodeLocation(WireModel):
    """Where a finding is."""

    absolute_file_path: str
    line_range: LineRange


class ReviewFinding(WireModel):
    """A finding of a review."""

    title: str
    body: str
    confidence_score: Number
    priority: Int
    code_location: ReviewCodeLocation


class ReviewOutputEvent(WireModel):
    """The findings of a review."""

    findings: tuple[ReviewFinding, ...] = ()
    overall_correctness: str = ""
    overall_explanation: str = ""
    overall_confidence_score: Number = 0.0
