"""A crash run's questions, plans, reviews and commands of people: their model, and the people who take part.

As in `workload`, an answer of the model follows from its request alone. A word is one call: `ask` and
`input` put questions to the person, `propose` a plan. The people write down what they answered: the audit
looks for it in the output that the model reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.stub.conversation import StubConversation
from orchestrator.stub.script import Call, Step, StubRequest
from orchestrator.views.event import Event
from orchestrator.views.questions import call_id_of
from tests.crash.logs import Log
from tests.crash.people import Person
from tests.crash.workload import Ledger

WORDS = ("ask", "input", "propose", "exec", "slow")
_OPTIONS = [{"label": "A", "description": "a"}, {"label": "B", "description": "b"}]
_PLAN = {"title": "Plan", "summary": "Do it.", "plan": {"plan": [{"step": "one", "status": "pending"}]}}


@dataclass
class FlowScript(Ledger):
    """The script of sessions that ask people."""

    name: str = "flows"

    def step(self, conversation: StubConversation, request: StubRequest) -> Step:
        """As `Ledger` has it; plans and reviews count their calls anew, so ids have the errand's number."""
        number = int("".join(filter(str.isdigit, conversation.task.partition(":")[0])) or 0)
        return super().step(replace(conversation, turn=1_000 * number + conversation.turn), request)

    def _word(self, word: str, session: str, turn: int) -> Step:
        asked = {"header": "Which", "question": "Which one?", "options": _OPTIONS}
        match word:
            case "ask":
                given = {"questions": [{**asked, "multiSelect": False}]}
                return Step(items=(Call("ask_user_question", given, f"c{turn}"),))
            case "input":
                given = {"questions": [{**asked, "id": "which"}]}
                return Step(items=(Call("request_user_input", given, f"c{turn}"),))
            case "propose":
                return Step(items=(Call("approve_plan", {"proposal": _PLAN}, f"c{turn}"),))
            case _:
                return super()._word(word, session, turn)


@dataclass
class Asked(Person):
    """A person who plans, has work reviewed, runs commands, and answers what is asked."""

    told: dict[str, str] = field(default_factory=dict)
    """Call id → words of the person that its output has."""

    async def errand(self) -> None:
        self._number += 1
        task = f"errand {self._number}: {' '.join(self.random.choices(WORDS, k=self.random.randint(1, 3)))}"
        match self.random.choice(("say", "say", "plan", "review", "run")):
            case "plan":
                await self.begin(ops.Plan.model_validate({"type": "plan", "plan_request": {"goal": task}}))
            case "review":
                request = {"prompt": f"errand {self._number}: exec slow", "user_facing_hint": "it"}
                await self.begin(ops.Review.model_validate({"type": "review", "review_request": request}))
            case "run":
                ran = f"sleep 0.1; echo {self._number}"
                await self.begin(ops.RunUserShellCommand(command=ran))
            case _:
                await self.ask(task)

    async def _react(self, event: Event) -> None:
        response: Any
        match event.type:
            case "ask_user_question_request":
                words = f"answer {len(self.acknowledged)}"
                response = {"type": "answered", "answers": {"Which": words}}
                await self._answer(event, "resolve_ask_user_question", response, words)
            case "request_user_input":
                words = f"answer {len(self.acknowledged)}"
                response = {"answers": {"which": {"answers": [words]}}}
                await self._answer(event, "user_input_answer", response, words)
            case "plan_approval_request":
                words = f"change {len(self.acknowledged)}"
                revised, approved = {"type": "revised", "feedback": words}, {"type": "approved"}
                response = self.random.choice((revised, approved, {"type": "rejected"}))
                decided = words if response is revised else str(response["type"])
                await self._answer(event, "resolve_plan_approval", response, decided)
            case _:
                await super()._react(event)

    async def _answer(self, event: Event, type: str, response: Any, words: str) -> None:
        call_id = call_id_of(event.msg)
        self.told[call_id] = words
        op = _OPS[type].model_validate({"type": type, "id": call_id, "response": response})
        await self._submit(SubmissionId(f"answer-{len(self.acknowledged)}"), op)


_OPS: dict[str, Any] = {
    "resolve_ask_user_question": ops.ResolveAskUserQuestion,
    "user_input_answer": ops.UserInputAnswer,
    "resolve_plan_approval": ops.ResolvePlanApproval,
}


def settled(log: Log, person: Asked) -> Iterator[str]:
    """Every request to the person was settled once, by the person's own words."""
    outputs = {call_id: text for _, call_id, text in log.outputs()}
    answers = [fact["call_id"] for fact in log.facts("answer")]
    for call_id, words in person.told.items():
        if answers.count(call_id) != 1:
            yield f"{call_id} was asked and has {answers.count(call_id)} answers"
        if words not in outputs.get(call_id, ""):
            yield f"{call_id} was answered {words!r}, and the model read {outputs.get(call_id)!r}"
    for kind in ("plan", "review"):
        entered = sum(msg["type"] == f"entered_{kind}_mode" for _, msg in log.events())
        exited = sum(msg["type"] == f"exited_{kind}_mode" for _, msg in log.events())
        if entered != exited:
            yield f"{kind} mode was entered {entered} times and left {exited} times"
