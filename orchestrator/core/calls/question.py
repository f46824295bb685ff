"""Questions with options: calls of `ask_user_question`."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal

import orjson

from orchestrator.core.calls.ask import DoesNotAnswer, Settled, check_texts, named
from orchestrator.core.forms import LIST
from orchestrator.core.frozen import record, replace
from orchestrator.protocol.events import AskUserQuestionRequest
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.plans import QuestionsAnswered
from orchestrator.protocol.wire import JsonObject

CANCELLED = "the user cancelled the questions: go on without the answers, or say what you need"


@record
class QuestionWork:
    """Questions that wait for a person; an answer has a text for each header."""

    kind: ClassVar[Literal["question"]] = "question"
    noun: ClassVar[str] = "a question"
    answered_by: ClassVar[str] = "resolve_ask_user_question"
    questions: tuple[JsonObject, ...] = field(metadata=LIST)
    timer: int | None = None
    """The generation of the timer that ends the wait."""

    def asked(self, timer: int) -> QuestionWork:
        return replace(self, timer=timer)

    def request(self, call_id: CallId, turn: SubmissionId) -> AskUserQuestionRequest:
        return AskUserQuestionRequest.model_validate({"callId": call_id, "questions": self.questions})

    @property
    def unanswered(self) -> Settled:
        """The end of questions that nobody has answered in time."""
        return Settled("cancelled", CANCELLED)

    def settled(self, response: JsonObject) -> Settled:
        """The end that a response leads to; raises `DoesNotAnswer` for one that fits no question."""
        if response["type"] == "cancelled":
            return self.unanswered
        given = QuestionsAnswered.model_validate(response).answers
        headers = [str(question["header"]) for question in self.questions]
        missing = [header for header in headers if header not in given]
        unknown = [header for header in given if header not in headers]
        if missing or unknown:
            faults = (
                f"no answer to {named(missing)}" if missing else "",
                f"nothing was asked under {named(unknown)}" if unknown else "",
            )
            raise DoesNotAnswer("; ".join(filter(None, faults)))
        check_texts(given.items())
        answers = {header: given[header] for header in headers}
        return Settled("answered", orjson.dumps({"answers": answers}).decode())
