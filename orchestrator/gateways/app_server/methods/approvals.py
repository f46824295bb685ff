"""Methods of the requests that wait for people: the queue of all trees, its answers, and earlier ones.

Any number of clients see one queue, and the first answer counts: the others learn whose it was. An answer
names the request that was seen, by its thread and its call, and never one that was opened meanwhile.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, assert_never

from pydantic import Field

from orchestrator.broker.records import SessionHead, Source
from orchestrator.broker.trees import Listed
from orchestrator.core.calls.approval_policy import amended
from orchestrator.core.calls.ask import DoesNotAnswer
from orchestrator.core.commit_parts import WITHDRAWN
from orchestrator.core.facts import Answered
from orchestrator.core.ids import TreeId
from orchestrator.gateways.app_server.messages import bad_params
from orchestrator.gateways.app_server.method import Method, PageParams, Params, Result
from orchestrator.gateways.app_server.methods.threads import head_to_read
from orchestrator.gateways.app_server.write_requests import AMENDED, DECISIONS, question_json, shown_of
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.gateways.submit import hand_in_all
from orchestrator.protocol.wire import JsonObject
from orchestrator.requests import (
    ChoicesRequest,
    ClientToolRequest,
    CommandRequest,
    InputRequest,
    PatchRequest,
    PlanDecisionRequest,
    Request,
    ServerRequest,
    UnknownRequest,
)
from orchestrator.requests.approvals import shown_as
from orchestrator.views.approvals import (
    NOT_TAKEN,
    Asked,
    Decided,
    Needed,
    decision_text,
    needed,
    open_requests_of,
)
from orchestrator.views.decided_requests import decided_call, decided_of, decided_of_trees
from orchestrator.views.readable import readable_listed

if TYPE_CHECKING:
    from orchestrator.core.commands import AnswerOp
    from orchestrator.gateways.app_server.door import Door

MOST_ANSWERS = 100
MOST_TEXT = 64 << 10
MOST_SHOWN = 200
"""Characters of a title or a label: agents choose them."""
USUAL_HISTORY, MOST_HISTORY = 20, 100
TREES = 20
"""Trees that are looked through for decisions of the fleet, the newest first."""
SURFACE = "window"
SOURCES: tuple[Source, ...] = ("cli", "exec")
_PLACE = re.compile(r"([0-9]{1,16})\.([0-9]{1,6})")
Text = Annotated[str, Field(max_length=MOST_TEXT)]
Id = Annotated[str, Field(max_length=1_024)]
Kind: TypeAlias = Literal["command", "patch", "question", "plan", "elicitation", "clientTool", "unknown"]


# ── list ──────────────────────────────────────────────────────────────────────────────────────────


class ApprovalList(Params):
    """The open requests of a tree, or of all trees."""

    tree_id: Id | None = None


async def approval_list(door: Door, params: ApprovalList) -> Result:
    """Every request that waits for an answer, the oldest first."""
    tree = await _tree(door, params.tree_id)
    asked = await open_requests_of(door.ports.found, tree, door.principal.namespace)
    return {"data": [request_row(one, door.principal) for one in await needed(door.ports.found, asked)]}


async def _tree(door: Door, tree: str | None) -> TreeId | None:
    """The tree of a thread that the client may see; raises `RpcError`."""
    return None if tree is None else (await head_to_read(door, tree)).tree


def request_id(thread: str, call: str) -> str:
    """The name of a request in the queue."""
    return f"{thread}:{call}"


def request_row(one: Needed, reader: Principal) -> JsonObject:
    """An open request as a client draws it."""
    asked, request = one.asked, one.asked.request
    return {
        "requestId": request_id(asked.session, asked.call_id),
        "treeId": asked.tree,
        "threadId": asked.session,
        "agentId": asked.agent_id,
        "agentPath": asked.agent_path,
        "label": one.label[:MOST_SHOWN] or None,
        "title": one.title[:MOST_SHOWN],
        "callId": asked.call_id,
        "kind": kind_of(request),
        "subject": request.subject,
        "reason": "; ".join(request.reasons) or None,
        "reasons": request.reasons,
        "where": request.where or None,
        "outside": request.outside,
        "machine": (request.place.machine if request.place is not None else "") or None,
        "cwd": (request.place.folder if request.place is not None else "") or one.folder,
        "pool": asked.pool,
        "openedAtMs": asked.opened_ms,
        "mayAnswer": reader.may(Scope.APPROVE),
        **_of_kind(request),
    }


def kind_of(request: Request) -> Kind:
    """The kind of a request, as clients name it."""
    match request:
        case CommandRequest():
            return "command"
        case PatchRequest():
            return "patch"
        case ChoicesRequest() | InputRequest():
            return "question"
        case PlanDecisionRequest():
            return "plan"
        case ServerRequest():
            return "elicitation"
        case ClientToolRequest():
            return "clientTool"
        case UnknownRequest():
            return "unknown"
        case _:
            assert_never(request)


def _of_kind(request: Request) -> JsonObject:
    match request:
        case CommandRequest():
            return {
                "command": request.command,
                "commandLine": shlex.join(request.command),
                "variables": dict(request.variables),
                "proposedExecpolicyAmendment": list(request.prefix) or None,
            }
        case PatchRequest():
            changes = [
                {
                    "path": change.path,
                    "kind": {"type": change.verb, "move_path": change.move_path or None},
                    "diff": change.text,
                }
                for change in request.changes
            ]
            return {"changes": changes, "changesLeftOut": request.left_out}
        case ChoicesRequest() | InputRequest():
            questions = [
                {**question_json(each), "isMultiple": each.several, "isOptional": each.may_be_left}
                for each in request.questions
            ]
            return {"questions": questions}
        case PlanDecisionRequest():
            return {"proposal": dict(request.proposal)}
        case ServerRequest():
            return {"serverName": request.server, "message": request.message}
        case ClientToolRequest():
            tool = {"tool": request.tool, "namespace": request.namespace, "client": request.client}
            return {**tool, "arguments": request.arguments}
        case UnknownRequest():
            return {}
        case _:
            assert_never(request)


# ── answer ────────────────────────────────────────────────────────────────────────────────────────


class GivenAnswer(Params):
    """The answer to one request: a decision, texts by the names of questions, or what to change in a plan."""

    decision: (
        Literal["accept", "acceptForSession", "acceptWithExecpolicyAmendment", "decline", "cancel"] | None
    ) = None
    answers: Annotated[dict[str, Any], Field(max_length=64)] | None = None
    feedback: Text | None = None


class AnsweredRequest(Params):
    """A request that somebody has seen, with the answer to it."""

    thread_id: Id
    call_id: Id
    answer: GivenAnswer


class ApprovalAnswer(Params):
    """Answers to several requests, each by itself."""

    requests: Annotated[tuple[AnsweredRequest, ...], Field(min_length=1, max_length=MOST_ANSWERS)]


async def approval_answer(door: Door, params: ApprovalAnswer) -> Result:
    """Hands answers to the sessions that asked, and tells how each request was decided, and by whom.

    An answer that cannot be one is refused before any is handed in.
    """
    found, given = door.ports.found, params.requests
    heads = {id: await head_to_read(door, id) for id in dict.fromkeys(one.thread_id for one in given)}
    if len({(heads[one.thread_id].session, one.call_id) for one in given}) < len(given):
        raise bad_params("requests: one of them is answered twice")
    open_ones = {
        (asked.session, asked.call_id): asked
        for tree in dict.fromkeys(head.tree for head in heads.values())
        for asked in await open_requests_of(found, tree, door.principal.namespace)
    }
    asked_of = [open_ones.get((heads[one.thread_id].session, one.call_id)) for one in given]
    handed = [
        (asked, _op(place, asked, one.answer))
        for place, (asked, one) in enumerate(zip(asked_of, given, strict=True))
        if asked is not None
    ]
    # Another client than the connection's: a session does not tell that one of its own answers.
    client = door.new_client()
    done = {
        (decided.asked.session, decided.asked.call_id): decided
        for decided in await hand_in_all(client, found, handed)
    }
    rows = []
    for one in given:
        head = heads[one.thread_id]
        decided = done.get((head.session, one.call_id))
        rows.append(
            await _earlier(door, head, one.call_id) if decided is None else _outcome(decided, decided.ours)
        )
    return {"data": rows}


def _op(place: int, asked: Asked, given: GivenAnswer) -> AnswerOp:
    """The operation of an answer; raises `RpcError` for one that the request does not take."""
    where, request = f"requests.{place}.answer", asked.request.in_own_session()
    said = [name for name in ("decision", "answers", "feedback") if getattr(given, name) is not None]
    if len(said) != 1:
        raise bad_params(f"{where}: one of decision, answers and feedback is expected")
    try:
        return _meant(asked, request, given)
    except DoesNotAnswer as error:
        raise bad_params(f"{where}: {error}") from None
    except ValueError as error:
        raise bad_params(f"{where}: {str(error).splitlines()[0]}") from None


def _meant(asked: Asked, request: Request, given: GivenAnswer) -> AnswerOp:
    word = given.decision
    if isinstance(request, ChoicesRequest | InputRequest):
        if given.answers is not None:
            return request.replied({name: _texts(name, value) for name, value in given.answers.items()})
        if word in ("decline", "cancel"):
            return request.left()
        raise DoesNotAnswer(f"{request.call_id} asks for words: answers is expected, or decline")
    if isinstance(request, PlanDecisionRequest) and given.feedback is not None:
        return request.revised(given.feedback)
    if word is None:
        raise DoesNotAnswer(f"{request.call_id} takes a decision")
    shown = None
    if isinstance(request, CommandRequest | PatchRequest):
        shown = shown_as(shown_of(request), SURFACE, asked.opened_ms)
    if word == AMENDED:
        allowed = request.amendment if isinstance(request, CommandRequest) else None
        if allowed is None:
            raise DoesNotAnswer(f"{request.call_id} proposes no prefix: accept allows it alone")
        return request.decided(allowed, shown)
    if isinstance(request, ServerRequest | ClientToolRequest | UnknownRequest) and word == "cancel":
        return request.left() if isinstance(request, ServerRequest) else request.refused(shown)
    return request.decided(DECISIONS[word], shown)


def _texts(name: str, value: Any) -> list[str]:
    """The texts of one question: a list, or an object with one, as the protocol has it."""
    texts = value.get("answers") if isinstance(value, dict) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise DoesNotAnswer(f"answers.{name}: a list of texts is expected")
    return texts


# ── outcome ───────────────────────────────────────────────────────────────────────────────────────


DECIDED_WORDS: Mapping[str, str] = {
    **{word.value: name for name, word in DECISIONS.items()},
    "answered": "answer",
    "cancelled": "cancel",
    "revised": "revise",
    "rejected": "decline",
    "failed": "fail",
}


def decision_word(decision: str) -> str:
    """The decision of the log, as clients name it."""
    return AMENDED if amended(decision) else DECIDED_WORDS.get(decision, decision)


def ended_json(decision: str, who: str, at_ms: int) -> JsonObject:
    """The end of a request: the decision, in words, too, who gave it, and when."""
    if decision == WITHDRAWN:
        return {
            "decision": None,
            "text": "withdrawn: its turn ended first",
            "who": None,
            "atMs": at_ms or None,
        }
    words = {"decision": decision_word(decision), "text": decision_text(decision)}
    return {**words, "who": who or None, "atMs": at_ms or None}


def answered_json(found: Answered | None) -> JsonObject:
    """The end of a request as its session's log tells it; one without a decision was withdrawn."""
    if found is None:
        return ended_json(WITHDRAWN, "", 0)
    return ended_json(found.decision, found.who, found.answered_ms)


def _outcome(decided: Decided, ours: bool) -> JsonObject:
    named: JsonObject = {"threadId": decided.asked.session, "callId": decided.asked.call_id}
    if not decided.decision:
        nobody = f"no worker of {decided.asked.pool} has taken it yet"
        text = f"handed in, and kept: {decided.kept_since if decided.asked.quarantined else nobody}"
        return {**named, "outcome": "kept", "decision": None, "text": text, "who": None, "atMs": None}
    if decided.decision == NOT_TAKEN:
        text = f"{NOT_TAKEN}: {decided.who}"
        return {**named, "outcome": "refused", "decision": None, "text": text, "who": None, "atMs": None}
    outcome = "withdrawn" if decided.decision == WITHDRAWN else "decided" if ours else "already"
    return {**named, "outcome": outcome, **ended_json(decided.decision, decided.who, decided.at_ms)}


async def _earlier(door: Door, head: SessionHead, call: str) -> JsonObject:
    """The outcome of a request that was not open any more."""
    decided = await decided_call(door.ports.found, head, call)
    outcome = "withdrawn" if decided is None else "already"
    return {"threadId": head.session, "callId": call, "outcome": outcome, **answered_json(decided)}


# ── history ───────────────────────────────────────────────────────────────────────────────────────


class ApprovalHistory(PageParams):
    """Requests that were decided, of a tree or of all."""

    tree_id: Id | None = None


async def approval_history(door: Door, params: ApprovalHistory) -> Result:
    """Decided requests, the newest first: of the newest entries of a tree, or of the newest trees."""
    found, reader = door.ports.found, door.principal
    tree, before = await _tree(door, params.tree_id), _before(params.cursor)
    most = params.most(USUAL_HISTORY, MOST_HISTORY)
    if tree is not None:
        decided = [await decided_of(found, await door.head(tree))]
    else:
        wanted = Listed(reader.namespace, SOURCES)
        trees = await readable_listed(found.broker.trees, wanted, None, TREES)
        decided = await decided_of_trees(found, [root for _, root in trees])
    # By their workers' clocks, of which one may be behind another: a log is not in the order of its times.
    newest = sorted(chain(*decided), key=lambda one: -one.at_ms)
    at_ms, told = before or (None, 0)
    page = list(islice((one for one in newest if at_ms is None or one.at_ms <= at_ms), told, told + most + 1))
    rows = [
        {**request_row(one, reader), **ended_json(done.decision, done.who, done.at_ms), "mayAnswer": False}
        for one, done in zip(
            await needed(found, [done.asked for done in page[:most]]), page[:most], strict=True
        )
    ]
    if len(page) <= most:
        return {"data": rows, "nextCursor": None}
    last_ms = page[most - 1].at_ms
    told = sum(one.at_ms == last_ms for one in page[:most]) + (told if last_ms == at_ms else 0)
    return {"data": rows, "nextCursor": f"{last_ms}.{told}"}


def _before(cursor: str | None) -> tuple[int, int] | None:
    """The time of the last row that was told, and how many rows of that time were."""
    if cursor is None:
        return None
    if (match := _PLACE.fullmatch(cursor)) is None:
        raise bad_params("cursor: this is no place of a list; give one that the list answered")
    return int(match[1]), int(match[2])


METHODS: Mapping[str, Method] = {
    "approval/list": Method(ApprovalList, approval_list, Scope.READ),
    "approval/answer": Method(ApprovalAnswer, approval_answer, Scope.APPROVE, waits=True),
    "approval/history": Method(ApprovalHistory, approval_history, Scope.READ),
}
