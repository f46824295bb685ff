"""The model of the bench's questions: it asks once in each turn, and is content with any answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.stub.answers import Answer, Call, Step, StubRequest, Text

HEADER, LABEL = "Auth", "Key"
_QUESTION: dict[str, Any] = {
    "question": "Which one?",
    "header": HEADER,
    "options": [{"label": LABEL, "description": "a key"}, {"label": "Login", "description": "a login"}],
    "multiSelect": False,
}
_ASKS = Step(items=(Call("ask_user_question", {"questions": [_QUESTION]}),))
_ENDS = Step(items=(Text("Done."),))


@dataclass(frozen=True, slots=True)
class QuestionScript:
    """Asks behind a message of the user's, and ends the turn behind an answer."""

    name: str = "questions"

    def answer(self, request: StubRequest) -> Answer:
        items = request.body.get("input") or ()
        heard = items[-1].get("type") == "function_call_output" if items else False
        return Answer(_ENDS if heard else _ASKS, len(items), request.digest)
