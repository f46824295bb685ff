"""Conversations that a client of version 1 listens to: their events as they are, and what it is asked.

An approval is an event first and a request then. What the client answers goes to the session; a malformed
answer denies, and an error leaves the request to others: the fleet's queue has it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, assert_never

import orjson

from orchestrator.broker.errors import BrokerError, QueueFull
from orchestrator.broker.records import SessionHead
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.core.tree import ROOT
from orchestrator.gateways.app_server.door_ports import Ports
from orchestrator.gateways.app_server.live_threads import Line, LiveThread, LiveThreads, Told
from orchestrator.gateways.app_server.messages import Answer, notification
from orchestrator.gateways.client import Client, is_rewound
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.gateways.resume import open_requests
from orchestrator.protocol.events import TURN_ENDS, RequestResolved
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.protocol.submission import MalformedSubmission, Submission
from orchestrator.protocol.wire import JsonMapping, JsonObject
from orchestrator.requests import (
    ChoicesRequest,
    ClientToolRequest,
    CommandRequest,
    InputRequest,
    KnownRequest,
    PatchRequest,
    PlanDecisionRequest,
    ServerRequest,
    call_id_of,
    known_request_of,
)
from orchestrator.requests.approvals import shown_as
from orchestrator.views.threads import Thread

MOST_LISTENERS: Final = 1_000
PREFIX: Final = "conversation-"
_BOTH: Final[Mapping[str, str]] = {
    "call_id": "callId",
    "grant_root": "grantRoot",
    "parsed_cmd": "parsedCmd",
    "agent_id": "agentId",
    "agent_path": "agentPath",
}
"""Members of a request that clients read under one name or the other."""


class Place(Protocol):
    """The connection that the listeners belong to."""

    ports: Ports
    threads: LiveThreads
    principal: Principal
    client: Client

    def new_client(self) -> Client:
        """Another client of the connection."""

    def tell(self, line: Line) -> None:
        """Sends a line, or keeps it until a response is out."""

    def drop_held(self, gone: Collection[str]) -> None:
        """Tells nothing of these conversations that waits for a response to be out."""


@record
class Put:
    """A request that is put to the client, and open."""

    session: SessionId
    request: KnownRequest
    at_ms: int
    """Since when the client has it."""

    @property
    def name(self) -> tuple[str, int]:
        """Its name among those of the conversation."""
        return _name(self.request.event)

    @property
    def agent(self) -> int:
        """The agent that asks."""
        return agent_of(self.request.event)


@dataclass(slots=True)
class Conversations:
    """The listeners of one connection."""

    door: Place
    _listening: dict[str, SessionId] = field(default_factory=dict)
    """Conversations by the listener's id."""
    _asked: dict[str, Put] = field(default_factory=dict)
    """Requests that are open, by their ids."""
    _given: set[str] = field(default_factory=set)
    """Those that the client has answered: their events may come later, and are not asked about again."""
    _numbers: int = 0
    _ends: dict[SessionId, list[asyncio.Future[str]]] = field(default_factory=dict)
    _told_meanwhile: dict[SessionId, set[tuple[str, int]]] = field(default_factory=dict)
    """Requests that were told, or settled, while a conversation's open ones are read."""
    _answers: Client = field(init=False)
    """Not the client that begins turns: a session does not tell others that one of its own answers."""

    def __post_init__(self) -> None:
        self._answers = self.door.new_client()

    @property
    def full(self) -> bool:
        """Whether the connection has as many listeners as it may."""
        return len(self._listening) >= MOST_LISTENERS

    def hears(self, session: SessionId) -> bool:
        """Whether a conversation has a listener here."""
        return session in self._listening.values()

    async def listen(self, head: SessionHead) -> str:
        """Adds a listener from now on; what is open is asked again. Raises `UnknownSession`."""
        session, id = head.session, str(uuid.uuid4())
        if not self.hears(session):
            await self.door.threads.hear(session, self.door.client, self)
        known = self.hears(session)
        self._listening[id] = session
        if known:
            return id
        self._told_meanwhile[session] = set()
        try:
            requests = await open_requests(self.door.ports.found, head)
        except BaseException:
            # A client that is answered by an error does not expect to be told of the conversation.
            self.stop(id)
            self.door.drop_held((session,))
            raise
        finally:
            told = self._told_meanwhile.pop(session)
        for request in requests:
            if _name(request.event) not in told:
                self._tell(session, "", request.event)
        return id

    def stop(self, id: str) -> bool:
        """Removes a listener; False for one that there is not."""
        session = self._listening.pop(id, None)
        if session is None:
            return False
        if not self.hears(session):
            self.door.threads.leave(session, self)
            self._forget(lambda asked: asked.session == session)
        return True

    def leave(self) -> None:
        """Removes all listeners."""
        for id in tuple(self._listening):
            self.stop(id)

    def end_of_turn(self, session: SessionId) -> asyncio.Future[str]:
        """The type of the event that ends the running turn, once it was told."""
        ending: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._ends.setdefault(session, []).append(ending)
        return ending

    # ── what sessions tell ────────────────────────────────────────────────────────────────────

    def hear(self, told: Told) -> None:
        """Tells the client an event."""
        if not self.hears(told.session):
            return
        event = told.event
        if is_rewound(event):
            # What is open still is asked anew.
            self._forget(lambda asked: asked.session == told.session)
        self._tell(told.session, event.id, event.msg)
        if event.kind is RequestResolved:
            self._settled(told.session, event.msg)
        if event.kind in TURN_ENDS:
            # What was read of the queue is asked before the events behind which it stands are told.
            of = (None, event.id)
            self._forget(
                lambda asked: (
                    asked.session == told.session and not asked.agent and asked.request.turn_id in of
                )
            )
            for ending in self._ends.pop(told.session, ()):
                if not ending.done():
                    ending.set_result(event.type)

    def takes(self, session: SessionId) -> bool:
        """Leaves agents' own events alone: what concerns people is told by their root."""
        return False

    def adopt(self, live: LiveThread, thread: Thread) -> None:
        """Takes none."""

    def lose(self, session: SessionId) -> None:
        """Removes the listeners of a conversation that is gone."""
        for id in [id for id, heard in self._listening.items() if heard == session]:
            self.stop(id)

    def _tell(self, session: SessionId, id: str, message: Mapping[str, Any]) -> None:
        kind = message["type"]
        params = {"id": id, "msg": message, "conversationId": session}
        self._put(f"codex/event/{kind}", params)
        request = known_request_of(message)
        if request is not None and self.door.principal.may(Scope.APPROVE):
            self._ask(session, request)

    def _ask(self, session: SessionId, request: KnownRequest) -> None:
        method, name = request_method(request), _name(request.event)
        if method is None or any(one.session == session and one.name == name for one in self._asked.values()):
            # None of version 1; or told again behind a gap, or asked ahead of its event.
            return
        self._note_told(session, request.event)
        id = f"{PREFIX}{self._numbers}"
        self._numbers += 1
        self._asked[id] = Put(session, request, self.door.ports.now_ms())
        params = request_params(session, request)
        data = orjson.dumps({"id": id, "method": method, "params": params})
        self.door.tell(Line(method, params, data, self.door.ports.now_ms()))

    def _put(self, method: str, params: JsonObject) -> None:
        now = self.door.ports.now_ms()
        self.door.tell(Line(method, params, notification(method, params, now), now))

    def _settled(self, session: SessionId, message: JsonMapping) -> None:
        """Forgets a request that somebody else has answered."""
        self._note_told(session, message)
        meant = (session, _name(message))
        self._forget(lambda asked: (asked.session, asked.name) == meant)

    def _note_told(self, session: SessionId, message: JsonMapping) -> None:
        if session in self._told_meanwhile:
            self._told_meanwhile[session].add(_name(message))

    def _forget(self, gone: Callable[[Put], bool]) -> None:
        """Forgets requests: an answer that comes later is one to nothing."""
        self._asked = {id: asked for id, asked in self._asked.items() if not gone(asked)}
        self._given &= self._asked.keys()

    # ── what the client answers ───────────────────────────────────────────────────────────────

    async def answered(self, answer: Answer) -> bool:
        """Hands an answer to its session; whether it is one to a request of a conversation.

        Raises `QueueFull`: the request is open still.
        """
        if not isinstance(answer.id, str) or not answer.id.startswith(PREFIX):
            return False
        found = self._asked.get(answer.id)
        if found is None or answer.id in self._given:
            return True
        self._given.add(answer.id)
        if answer.result is not None:
            handed = orjson.dumps(request_params(found.session, found.request)).decode()
            shown = shown_as(handed, "app-server v1", found.at_ms)
            op = found.request.decided(_decision(answer.result), shown)
            id = SubmissionId(f"answer-{uuid.uuid4().hex[:12]}")
            try:
                await self._answers.submit(found.session, Submission(id, op))
            except QueueFull:
                self._given.discard(answer.id)
                raise
            except (BrokerError, MalformedSubmission):
                # Its session is gone: no error ends a connection.
                self._given.discard(answer.id)
        return True


def _name(message: JsonMapping) -> tuple[str, int]:
    """The name of a request among those of a conversation."""
    return call_id_of(message), agent_of(message)


def agent_of(message: JsonMapping) -> int:
    """The agent that an event is about; the root's own requests name none."""
    return message.get("agent_id") or ROOT


def _decision(result: JsonMapping) -> ReviewDecision:
    """The client's decision; what is none denies."""
    said = result.get("decision")
    return ReviewDecision(said) if said in tuple(ReviewDecision) else ReviewDecision.DENIED


def request_method(request: KnownRequest) -> str | None:
    """The method of the server's request; None for a kind that version 1 puts to nobody."""
    match request:
        case CommandRequest():
            return "execCommandApproval"
        case PatchRequest():
            return "applyPatchApproval"
        case (
            ChoicesRequest() | InputRequest() | PlanDecisionRequest() | ServerRequest() | ClientToolRequest()
        ):
            return None
        case _:
            assert_never(request)


def request_params(session: SessionId, request: KnownRequest) -> JsonObject:
    """The parameters of a request, each name in both cases: older clients read one, newer the other."""
    event = request.event
    rest: Iterable[tuple[str, Any]] = ((k, v) for k, v in event.items() if k not in ("type", "changes"))
    params: JsonObject = {"conversationId": session, "conversation_id": session, **dict(rest)}
    params["reason"] = request.told
    if "changes" in event:
        params["fileChanges"] = params["file_changes"] = event["changes"]
    params.update({camel: params[snake] for snake, camel in _BOTH.items() if snake in params})
    return params
