"""Requests for input: calls of `request_user_input`."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Final, Literal

import orjson

from orchestrator.core.calls.ask import DoesNotAnswer, Settled, check_texts, named, shown
from orchestrator.core.forms import LIST
from orchestrator.core.frozen import record, replace
from orchestrator.core.secrets import NOT_KEPT
from orchestrator.protocol.events import RequestUserInput
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.plans import RequestUserInputResponse
from orchestrator.protocol.wire import JsonObject

MOST_TEXTS: Final = 16
"""Texts of the answer to one question."""


@record
class UserInputWork:
    """Questions that wait for a person; an answer has any number of texts for each question's id."""

    kind: ClassVar[Literal["user_input"]] = "user_input"
    noun: ClassVar[str] = "a request for input"
    answered_by: ClassVar[str] = "user_input_answer"
    questions: tuple[JsonObject, ...] = field(metadata=LIST)
    timer: int | None = None
    """The generation of the timer that ends the wait."""

    def asked(self, timer: int) -> UserInputWork:
        return replace(self, timer=timer)

    def request(self, call_id: CallId, turn: SubmissionId) -> RequestUserInput:
        return RequestUserInput.model_validate(
            {"call_id": call_id, "turn_id": turn, "questions": self.questions}
        )

    @property
    def secret(self) -> frozenset[str]:
        """The ids of the questions whose answers the log may not have."""
        return frozenset(str(question["id"]) for question in self.questions if question.get("isSecret"))

    @property
    def unanswered(self) -> Settled:
        """The end of a request that nobody has answered in time, or that a person declines."""
        return Settled("cancelled", '{"answers":{}}')

    def settled(self, response: JsonObject) -> Settled:
        """The end that a response leads to; raises `DoesNotAnswer` for one that fits no question."""
        given = RequestUserInputResponse.model_validate(response).answers
        if not given:
            return self.unanswered
        ids = [str(question["id"]) for question in self.questions]
        if unknown := [id for id in given if id not in ids]:
            raise DoesNotAnswer(f"nothing was asked under {named(unknown)}")
        for id, answer in given.items():
            if len(answer.answers) > MOST_TEXTS:
                raise DoesNotAnswer(
                    f"{shown(id)} has {len(answer.answers):,} answers; at most {MOST_TEXTS} are taken"
                )
        check_texts((id, text) for id, answer in given.items() for text in answer.answers)
        hides = {id for id in self.secret if id in given and given[id].answers}
        told = {id: (NOT_KEPT,) if id in hides else given[id].answers if id in given else () for id in ids}
        answers = {id: {"answers": texts} for id, texts in told.items()}
        return Settled("answered", orjson.dumps({"answers": answers}).decode(), hides=bool(hides))
