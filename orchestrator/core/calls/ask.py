"""Asks: calls that wait for a person's words, and what an answer has to be like.

Such a call runs nothing and holds nothing: `ASKING` is its phase from the request to the answer. Each kind
says which op answers it, reads the answer, and says what the model reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from hashlib import sha256
from typing import ClassVar, Final, Literal

import orjson

from orchestrator.core.frozen import record, replace
from orchestrator.core.history import check_image_url
from orchestrator.core.record_json import LIST
from orchestrator.core.secrets import NOT_KEPT
from orchestrator.protocol import items
from orchestrator.protocol.events import (
    AskUserQuestionRequest,
    BackgroundEvent,
    DynamicToolCallRequest,
    DynamicToolCallResponse,
    PlanApprovalRequest,
    PlanUpdate,
    RequestUserInput,
)
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.plans import (
    PlanProposal,
    PlanRejected,
    PlanRevised,
    QuestionsAnswered,
    RequestUserInputResponse,
)
from orchestrator.protocol.wire import EventModel, JsonObject, written

MOST_TEXT_BYTES: Final = 32 << 10
"""Bytes of one text of an answer."""
MOST_ANSWER_BYTES: Final = 128 << 10
"""Bytes of all texts of an answer: it travels in one message, and is one output."""
MOST_NAMED: Final = 4
NAME_CHARS: Final = 40


class DoesNotAnswer(ValueError):
    """A response does not answer what was asked; the ask stays open, and the message says what is wrong."""


@record
class Settled:
    """The end of an ask: the word for it in the log, and what the model reads."""

    decision: str
    output: items.ToolOutput
    events: tuple[EventModel, ...] = ()
    """The events before the output."""
    hides: bool = False
    """The output has a note in the place of a secret text."""


def digest_of(response: JsonObject) -> str:
    """The identity of a response: a second one is held against it."""
    return sha256(orjson.dumps(response, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def check_texts(texts: Iterable[tuple[str, str]]) -> None:
    """Raises `DoesNotAnswer` for a blank or an over-long text; each comes with the name of its question."""
    total = 0
    for name, text in texts:
        size = len(text.encode("utf-8", "replace"))
        total += size
        if not text.strip():
            raise DoesNotAnswer(f"the answer to {shown(name)} is empty")
        if size > MOST_TEXT_BYTES:
            raise DoesNotAnswer(
                f"the answer to {shown(name)} has {size:,} bytes; at most {MOST_TEXT_BYTES:,} are taken"
            )
    if total > MOST_ANSWER_BYTES:
        raise DoesNotAnswer(f"the answers have {total:,} bytes; at most {MOST_ANSWER_BYTES:,} are taken")


def named(names: Iterable[str]) -> str:
    """The names of questions in an error, the first few of them."""
    found = list(names)
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return ", ".join(map(shown, found[:MOST_NAMED])) + more


def shown(name: str) -> str:
    return repr(name if len(name) <= NAME_CHARS else name[: NAME_CHARS - 1] + "…")


# ── question ──────────────────────────────────────────────────────────────────────────────────────
# Questions with options: calls of `ask_user_question`.


CANCELLED = "the user cancelled the questions: go on without the answers, or say what you need"


class Asks:
    """The answers that kinds of work which ask have in common; a kind that differs gives its own."""

    __slots__ = ()

    def most_ms(self, general: int | None) -> int | None:
        """Milliseconds that the answer is waited for, `general` being those of approvals; None for ever."""
        return general

    def end_events(self, call_id: CallId, turn: SubmissionId, end: Settled) -> tuple[EventModel, ...]:
        """The events that tell of the end."""
        return end.events


@record
class QuestionWork(Asks):
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


# ── user input ────────────────────────────────────────────────────────────────────────────────────
# Requests for input: calls of `request_user_input`.


MOST_TEXTS: Final = 16
"""Texts of the answer to one question."""


@record
class UserInputWork(Asks):
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


# ── plan ──────────────────────────────────────────────────────────────────────────────────────────
# Plans put to a person: calls of `approve_plan`.


APPROVED: Final = "Plan approved; going on."


@record
class PlanWork(Asks):
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


# ── client tool ───────────────────────────────────────────────────────────────────────────────────
# Calls of tools that a session's client brings along: they wait for the client's answer.


MOST_ARGUMENT_BYTES: Final = 64 << 10
MOST_IMAGE_BYTES: Final = 7 << 20
"""Bytes of the URLs of one answer's images: a submission has 8 MiB in all."""
MOST_IMAGES: Final = 16
"""Images of one answer: as many as of one result of an MCP server."""
NO_CLIENT: Final = (
    "not done: the program that brings this tool has not answered in time; it may not be connected. It may "
    "have begun: look before you call it again"
)
ANSWERED: Final = "answered"
FAILED: Final = "failed"
NOTHING_SAID: Final = "the tool failed, and says nothing else"


@record
class ClientToolWork(Asks):
    """A call that waits for the answer of the client which brought its tool."""

    kind: ClassVar[Literal["client_tool"]] = "client_tool"
    noun: ClassVar[str] = "a call of a tool that a client brings"
    answered_by: ClassVar[str] = "dynamic_tool_response"
    tool: str
    client: str
    limit_ms: int
    namespace: str | None = None
    given: str = ""
    """The arguments as JSON, until the client is asked: its request has them then."""
    timer: int | None = None
    """The generation of the timer that ends the wait."""

    def asked(self, timer: int) -> ClientToolWork:
        return replace(self, timer=timer, given="")

    def request(self, call_id: CallId, turn: SubmissionId) -> DynamicToolCallRequest:
        return DynamicToolCallRequest(
            call_id=call_id,
            turn_id=turn,
            tool=self.tool,
            arguments=orjson.loads(self.given),
            namespace=self.namespace,
            client=self.client,
        )

    @property
    def unanswered(self) -> Settled:
        """The end of a call that the client has not answered in time."""
        return Settled(FAILED, NO_CLIENT)

    def settled(self, response: JsonObject) -> Settled:
        """The end that a response leads to; raises `DoesNotAnswer` for an output that cannot be used."""
        given = items.DynamicToolResponse.model_validate(response)
        parts = given.content_items or ()
        output = _output(parts) if given.output is None else given.output
        size = len(_words(output).encode("utf-8", "surrogatepass"))
        if size > MOST_ANSWER_BYTES:
            raise DoesNotAnswer(f"the output has {size:,} bytes; at most {MOST_ANSWER_BYTES:,} are taken")
        if given.success:
            return Settled(ANSWERED, output)
        return Settled(FAILED, output or NOTHING_SAID)

    def most_ms(self, general: int | None) -> int:
        return self.limit_ms

    def end_events(self, call_id: CallId, turn: SubmissionId, end: Settled) -> tuple[EventModel, ...]:
        response = DynamicToolCallResponse(
            call_id=call_id,
            turn_id=turn,
            tool=self.tool,
            success=end.decision == ANSWERED,
            output=_words(end.output),
            content_items=end.output if isinstance(end.output, tuple) else None,
        )
        return (response,)


def _output(parts: Sequence[items.ClientContent]) -> items.ToolOutput:
    """The texts as one, or, with an image among them, all parts in their order; raises `DoesNotAnswer`."""
    images = [part.image_url for part in parts if isinstance(part, items.ClientImage)]
    if len(images) > MOST_IMAGES:
        raise DoesNotAnswer(f"contentItems: at most {MOST_IMAGES} images are taken, these are {len(images)}")
    if (size := sum(len(url.encode("utf-8", "replace")) for url in images)) > MOST_IMAGE_BYTES:
        raise DoesNotAnswer(
            f"contentItems: the images have {size:,} bytes as URLs; at most {MOST_IMAGE_BYTES:,} are taken"
        )
    if images:
        return tuple(_shown(place, part) for place, part in enumerate(parts))
    return "\n".join(part.text for part in parts if isinstance(part, items.ClientText))


def _shown(place: int, part: items.ClientContent) -> items.ContentItem:
    if isinstance(part, items.ClientText):
        return items.InputText(text=part.text)
    try:
        check_image_url(part.image_url)
    except ValueError as error:
        raise DoesNotAnswer(f"contentItems[{place}].imageUrl: {error}") from None
    return items.InputImage(image_url=part.image_url)


def _words(output: items.ToolOutput) -> str:
    """The texts of an output."""
    if isinstance(output, tuple):
        return "\n".join(str(part.text) for part in output if isinstance(part, items.InputText))
    return str(output)
