"""Requests that no approval answers: questions, plans, a server's question, a call of a client's tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import orjson
from pydantic import ValidationError

from orchestrator.core.calls import ClientToolWork, PlanWork, QuestionWork, UserInputWork
from orchestrator.core.calls.ask import DoesNotAnswer
from orchestrator.protocol import ops, plans
from orchestrator.protocol.bounds import check_op_bounds
from orchestrator.protocol.items import DynamicToolResponse
from orchestrator.protocol.mcp import ElicitationAction
from orchestrator.protocol.policy import Decision, ReviewDecision
from orchestrator.protocol.submission import MalformedSubmission
from orchestrator.protocol.wire import JsonMapping, JsonValue, written
from orchestrator.requests import person_request

if TYPE_CHECKING:
    from orchestrator.core.commands import AnswerOp

ANSWERED: Final = person_request.Choice("answered", "", "Answer the questions")
CANCELLED: Final = person_request.Choice("cancelled", "", "Leave them without an answer; the agent goes on")
APPROVED: Final = person_request.Choice("approved", "yes", "Approve; the agent follows the plan")
REJECTED: Final = person_request.Choice("rejected", "no", "Reject; the agent goes on without it")
REVISE: Final = person_request.Choice(
    "revise", "", "Send back to be changed", text="What to change, if it is to be revised"
)
ACCEPT: Final = person_request.Choice("accept", "yes", "Answer yes")
DECLINE: Final = person_request.Choice("decline", "no", "Answer no")
CANCEL: Final = person_request.Choice("cancel", "cancel", "Leave it without an answer")
END: Final = person_request.Choice("failed", "no", "End the call; its agent is told that it failed")
ENDED_BY_PERSON: Final = (
    "not done: a person has ended the call while it waited for the program that brings the tool"
)
_ACTIONS: Final[Mapping[ReviewDecision, ElicitationAction]] = {
    ReviewDecision.APPROVED: ElicitationAction.ACCEPT,
    ReviewDecision.DENIED: ElicitationAction.DECLINE,
    ReviewDecision.ABORT: ElicitationAction.CANCEL,
}


# ── questions ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Questions(person_request.RequestBase):
    """The common part of both kinds of questions."""

    needs_words: ClassVar[bool] = True
    ends_with_calls: ClassVar[bool] = True

    @property
    def questions(self) -> tuple[person_request.Question, ...]:
        return tuple(map(_question, self.event["questions"]))

    @property
    def choices(self) -> tuple[person_request.Choice, ...]:
        return (ANSWERED, CANCELLED)

    def heading(self, who: str = "the agent") -> str:
        return f"{who} asks"

    @property
    def subject(self) -> str:
        return " · ".join(f"{each['header']}: {each['question']}" for each in self.event["questions"])

    def replied(self, answers: person_request.Answers | None) -> AnswerOp:
        """The op of answers by the names of the questions; None for a person who will not answer.

        Raises `DoesNotAnswer` where the session would refuse the answers.
        """
        raise NotImplementedError

    def answer(self, given: person_request.Given, shown: ops.Shown | None = None) -> AnswerOp:
        if self._word(given) == ANSWERED.word:
            return self.replied(given.texts)
        if given.texts:
            raise DoesNotAnswer("texts: who cancels the questions answers none of them")
        return self.replied(None)

    def decided(self, decision: Decision, shown: ops.Shown | None = None) -> AnswerOp:
        raise DoesNotAnswer(f"{self.call_id} asks for words, and a decision is none")

    def refused(self, shown: ops.Shown | None = None) -> AnswerOp:
        return self.replied(None)

    def left(self) -> AnswerOp:
        return self.replied(None)


def _question(asked: JsonMapping) -> person_request.Question:
    by_id = "id" in asked
    return person_request.Question(
        name=str(asked["id"] if by_id else asked["header"]),
        header=str(asked["header"]),
        question=str(asked["question"]),
        options=tuple(
            person_request.Option(str(option["label"]), str(option.get("description") or ""))
            for option in asked.get("options") or ()
        ),
        several=bool(asked.get("multiSelect")),
        secret=bool(asked.get("isSecret")),
        other=bool(asked.get("isOther", True)),
        may_be_left=by_id,
    )


@dataclass(frozen=True, slots=True)
class ChoicesRequest(_Questions):
    """Questions with options: all of them are answered, or none."""

    kind: ClassVar[Literal["choices"]] = "choices"
    tag: ClassVar[Literal["ask_user_question_request"]] = "ask_user_question_request"

    def replied(self, answers: person_request.Answers | None) -> AnswerOp:
        if answers is None:
            return self._op(plans.QuestionsCancelled())
        answered = plans.QuestionsAnswered(
            answers={name: ", ".join(texts) for name, texts in answers.items()}
        )
        QuestionWork(tuple(map(dict, self.event["questions"]))).settled(written(answered))
        return self._op(answered)

    def _op(self, response: plans.QuestionsAnswered | plans.QuestionsCancelled) -> AnswerOp:
        return ops.ResolveAskUserQuestion(id=self.call_id, response=response, agent_id=self.agent_id)


@dataclass(frozen=True, slots=True)
class InputRequest(_Questions):
    """Questions of which any may be left out, and some may be secret."""

    kind: ClassVar[Literal["input"]] = "input"
    tag: ClassVar[Literal["request_user_input"]] = "request_user_input"

    def replied(self, answers: person_request.Answers | None) -> AnswerOp:
        given = {
            n: plans.RequestUserInputAnswer(answers=tuple(texts)) for n, texts in (answers or {}).items()
        }
        response = plans.RequestUserInputResponse(answers=given)
        UserInputWork(tuple(map(dict, self.event["questions"]))).settled(written(response))
        return ops.UserInputAnswer(id=self.call_id, response=response, agent_id=self.agent_id)


# ── plan ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class PlanDecisionRequest(person_request.RequestBase):
    """Shall this plan be followed? A person may also say what is to be changed."""

    kind: ClassVar[Literal["plan"]] = "plan"
    tag: ClassVar[Literal["plan_approval_request"]] = "plan_approval_request"
    needs_words: ClassVar[bool] = True
    ends_with_calls: ClassVar[bool] = True

    @property
    def proposal(self) -> JsonMapping:
        """The plan, as `PlanProposal` states it."""
        proposal: JsonMapping = self.event["proposal"]
        return proposal

    @property
    def steps(self) -> list[str]:
        """The steps of the plan."""
        return [str(step["step"]) for step in self.proposal["plan"]["plan"]]

    def heading(self, who: str = "the agent") -> str:
        return f"{who} proposes a plan"

    @property
    def subject(self) -> str:
        return str(self.proposal["title"])

    @property
    def body(self) -> tuple[person_request.Section, ...]:
        parts = (
            person_request.Section("text", "Title", self.subject),
            person_request.Section("text", "Summary", str(self.proposal["summary"])),
            person_request.Section(
                "text", "Explanation", str(self.proposal["plan"].get("explanation") or "")
            ),
            person_request.Section(
                "list", "Steps", "\n".join(f"{n}. {step}" for n, step in enumerate(self.steps, 1))
            ),
        )
        return tuple(part for part in parts if part.text)

    @property
    def choices(self) -> tuple[person_request.Choice, ...]:
        return (APPROVED, REJECTED, REVISE)

    def responded(self, response: plans.PlanApprovalResponse) -> AnswerOp:
        """The op of a response; raises `DoesNotAnswer` where the session would refuse its feedback."""
        PlanWork(dict(self.proposal)).settled(written(response))
        return ops.ResolvePlanApproval(id=self.call_id, response=response, agent_id=self.agent_id)

    def revised(self, feedback: str) -> AnswerOp:
        """The op that says what is to be changed; raises `DoesNotAnswer` for no words, or too many."""
        return self.responded(plans.PlanRevised(feedback=feedback))

    def answer(self, given: person_request.Given, shown: ops.Shown | None = None) -> AnswerOp:
        match self._word(given):
            case REVISE.word:
                return self.revised(given.text)
            case APPROVED.word:
                response: plans.PlanApprovalResponse = plans.PlanApproved()
            case _:
                response = plans.PlanRejected()
        return self.responded(response)

    def decided(self, decision: Decision, shown: ops.Shown | None = None) -> AnswerOp:
        if decision is ReviewDecision.APPROVED:
            return self.responded(plans.PlanApproved())
        if decision in (ReviewDecision.DENIED, ReviewDecision.ABORT):
            return self.responded(plans.PlanRejected())
        raise DoesNotAnswer(f"{self.call_id} is a plan, which holds for no session: yes or no is an answer")

    def refused(self, shown: ops.Shown | None = None) -> AnswerOp:
        return self.responded(plans.PlanRejected())


# ── a server's question ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ServerRequest(person_request.RequestBase):
    """An MCP server asks for yes or no in the middle of a call."""

    kind: ClassVar[Literal["elicitation"]] = "elicitation"
    tag: ClassVar[Literal["elicitation_request"]] = "elicitation_request"
    ends_with_calls: ClassVar[bool] = True

    @property
    def server(self) -> str:
        """The server's name."""
        return str(self.event["server_name"])

    @property
    def message(self) -> str:
        """The question that it asks."""
        return str(self.event["message"])

    def heading(self, who: str = "the agent") -> str:
        asker = "" if who == "the agent" else f" for {who}"
        return f"the MCP server {self.server} asks{asker}"

    @property
    def subject(self) -> str:
        return f"{self.server}: {self.message}"

    @property
    def place(self) -> person_request.Place | None:
        # An answer goes to the server, which runs already: nothing leaves the sandbox by it.
        if self._reach is not None:
            machine = str(self._reach.get("machine") or "")
            return person_request.Place(str(self._reach["text"]), outside=False, machine=machine)
        where = "the MCP server runs outside of the sandbox"
        return person_request.Place(
            f"{where}; an answer goes to it, and lets nothing run in Dendro", outside=False
        )

    @property
    def body(self) -> tuple[person_request.Section, ...]:
        return (person_request.Section("text", self.server, self.message),)

    @property
    def choices(self) -> tuple[person_request.Choice, ...]:
        return (ACCEPT, DECLINE, CANCEL)

    def responded(self, action: ElicitationAction) -> AnswerOp:
        """The op of an answer."""
        return ops.ResolveElicitation(
            server_name=self.server,
            request_id=self.event["id"],
            decision=action,
            agent_id=self.agent_id,
        )

    def answer(self, given: person_request.Given, shown: ops.Shown | None = None) -> AnswerOp:
        return self.responded(ElicitationAction(self._word(given)))

    def decided(self, decision: Decision, shown: ops.Shown | None = None) -> AnswerOp:
        action = _ACTIONS.get(decision) if isinstance(decision, ReviewDecision) else None
        if action is None:
            raise DoesNotAnswer(
                f"{self.call_id} is a question of an MCP server: yes or no is an answer, {decision} is none"
            )
        return self.responded(action)

    def refused(self, shown: ops.Shown | None = None) -> AnswerOp:
        return self.responded(ElicitationAction.DECLINE)

    def left(self) -> AnswerOp:
        return self.responded(ElicitationAction.CANCEL)


# ── a call of a client's tool ─────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ClientToolRequest(person_request.RequestBase):
    """A client is to carry out a call of a tool that it brings: a person can end it, and no more."""

    kind: ClassVar[Literal["client_tool"]] = "client_tool"
    tag: ClassVar[Literal["dynamic_tool_call_request"]] = "dynamic_tool_call_request"
    answered_by: ClassVar[person_request.Answerer] = "program"

    @property
    def tool(self) -> str:
        """The tool's name."""
        return str(self.event["tool"])

    @property
    def namespace(self) -> str | None:
        """The tool's namespace, if it has one."""
        return self.event.get("namespace")

    @property
    def arguments(self) -> JsonValue:
        """The arguments that the model hands to the tool."""
        return self.event.get("arguments")

    @property
    def client(self) -> str | None:
        """The program that brings the tool, if the event names it."""
        return self.event.get("client")

    def heading(self, who: str = "the agent") -> str:
        return f"{who} waits for a program"

    @property
    def subject(self) -> str:
        return f"{self.client or 'its client'} is to do {self.tool}"

    @property
    def body(self) -> tuple[person_request.Section, ...]:
        given = orjson.dumps(self.arguments, option=orjson.OPT_INDENT_2).decode()
        return (
            person_request.Section("text", "Tool", self.tool),
            person_request.Section("code", "Arguments", given),
        )

    @property
    def choices(self) -> tuple[person_request.Choice, ...]:
        return (END,)

    def responded(self, result: Mapping[str, Any]) -> AnswerOp:
        """The op of the client's answer. One that cannot be used fails the call: nobody else can do it."""
        given = {name: result[name] for name in ("success", "contentItems", "output") if name in result}
        try:
            response = DynamicToolResponse.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            return self.failed(f"its client's answer cannot be used: {place}: {first['msg']}")
        return self._done(response)

    def failed(self, why: str) -> AnswerOp:
        """The op of a client whose tool has failed; the model reads why."""
        return self._done(DynamicToolResponse(success=False, output=why))

    def _done(self, response: DynamicToolResponse) -> AnswerOp:
        try:
            end = ClientToolWork(self.tool, "", 0).settled(written(response))
            if isinstance(end.output, str):
                # As one text: a submission may have fewer parts.
                response = DynamicToolResponse(success=response.success, output=end.output)
            op = ops.DynamicToolResponse(id=self.call_id, response=response)
            check_op_bounds(op)
        except (DoesNotAnswer, MalformedSubmission) as error:
            why = f"its client's answer cannot be used: {error}"
            failed = DynamicToolResponse(success=False, output=why)
            return ops.DynamicToolResponse(id=self.call_id, response=failed)
        return op

    def answer(self, given: person_request.Given, shown: ops.Shown | None = None) -> AnswerOp:
        self._word(given)
        return self.refused()

    def decided(self, decision: Decision, shown: ops.Shown | None = None) -> AnswerOp:
        if decision not in (ReviewDecision.DENIED, ReviewDecision.ABORT):
            raise DoesNotAnswer(
                f"{self.call_id} waits for the program that brings its tool: a person can only end it"
            )
        return self.refused()

    def refused(self, shown: ops.Shown | None = None) -> AnswerOp:
        response = DynamicToolResponse(success=False, output=ENDED_BY_PERSON)
        return ops.DynamicToolResponse(id=self.call_id, response=response)

    def left(self) -> AnswerOp:
        return self.refused()
