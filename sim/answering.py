"""Persons asked something: they answer late, twice, by the wrong op, or not at all."""

from __future__ import annotations

import asyncio
import base64
from abc import ABC, abstractmethod
from collections.abc import Mapping
from hashlib import sha256
from random import Random
from typing import Any, cast

from orchestrator.core.calls.ask import digest_of
from orchestrator.core.decide.call import reply_of
from orchestrator.core.entries import request_digest
from orchestrator.protocol import ops
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.items import DynamicToolResponse
from orchestrator.protocol.mcp import ElicitationAction
from orchestrator.protocol.plans import (
    QuestionsAnswered,
    QuestionsCancelled,
    RequestUserInputAnswer,
    RequestUserInputResponse,
)
from orchestrator.requests import (
    ChoicesRequest,
    ClientToolRequest,
    CommandRequest,
    Given,
    InputRequest,
    PlanDecisionRequest,
    Request,
    call_id_of,
    request_of,
)
from orchestrator.requests.approvals import AMENDMENT
from orchestrator.views.event import Event
from sim.answers import KNOWN, signature_under
from sim.double import EPOCH_S
from sim.grammar_terms import PNG
from sim.machines import Site
from sim.secrets import SECRET

ALLOWS = 0.8
"""How likely a person who may allow a prefix of commands does so."""
ASKER = ("agent_id", "session_id", "agent_path")
"""Fields by which a request at a root names the agent that asks."""
PLANNED = ("approved", "rejected")
SENDS_IMAGE = 0.4
"""How likely the answer of a client's tool has an image."""


class Answering(ABC):
    """A person's answers to what agents ask."""

    def __init__(self, site: Site, name: str, rng: Random) -> None:
        self.name = name
        self._site = site
        self._rng = rng
        # Drawn beside the rest, so that who does nothing of the kind does what it did.
        self._whims = Random(f"{name}:{rng.getstate()[1][:4]}")
        self._numbered = 0
        self._named = "", "", ""
        """The session, turn and call of the request that it answers."""
        self._request = ""
        """The digest of that request."""
        self._signatures: dict[tuple[str, str, str], ops.AnswerSignature] = {}
        """The last one under each request."""

    @abstractmethod
    async def submits(self, session: str, op: Any, id: str = "") -> str:
        """Submits an op."""

    async def answers(self, session: str, event: Event) -> None:
        """Answers requests, some of them late, twice, or not at all."""
        if event.type in (ChoicesRequest.tag, InputRequest.tag):
            await self._answers_questions(session, event)
            return
        if event.type == "elicitation_request":
            await self._answers_server(session, event)
            return
        if event.type == ClientToolRequest.tag:
            await self._answers_call(session, event)
            return
        if event.type == PlanDecisionRequest.tag:
            await self._answers_plan(session, event)
            return
        if not event.type.endswith("_approval_request"):
            return
        rng = self._rng
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            await asyncio.sleep(rng.choice((0.0, 1.0, 10.0)) * rng.random())
            # Under the call's id, or the turn's; at a root, also by the number of the agent that asks.
            meant = event.id if rng.random() < 0.25 else event.msg["call_id"]
            agent = event.msg.get("agent_id") if rng.random() < 0.7 else None
            asked = request_of(event.msg)
            proposes = isinstance(asked, CommandRequest) and asked.prefix
            amends = asked if proposes and self._whims.random() < ALLOWS else None
            self._looks_at(session, event)
            await self.decides(session, event.type, meant, agent_id=agent, amends=amends)

    def _looks_at(self, session: str, event: Event) -> None:
        """Reads the request that is answered next; at a root it names the agent that asks."""
        told = {name: value for name, value in event.msg.items() if name not in ASKER}
        self._named = str(event.msg.get("session_id") or session), event.id, str(call_id_of(event.msg))
        self._request = request_digest(event.id, told)

    async def _answers_questions(self, session: str, event: Event) -> None:
        rng, request = self._rng, event.msg
        for _ in range(rng.choice((0, 1, 1, 2))):
            await asyncio.sleep(rng.choice((0.0, 1.0, 10.0)) * rng.random())
            meant = event.id if rng.random() < 0.25 else call_id_of(request)
            agent = request.get("agent_id") if rng.random() < 0.7 else None
            self._looks_at(session, event)
            if rng.random() < 0.1:
                # An op that answers something else: nothing of it may happen.
                await self.decides(session, "exec", meant, "approved", agent_id=agent)
            else:
                await self.replies(session, request["type"], meant, self._words_for(request), agent)

    async def _answers_call(self, session: str, event: Event) -> None:
        """Answers a call of a client's tool: late, twice, by another op, with nonsense, or not at all."""
        rng, request = self._rng, event.msg
        for _ in range(rng.choice((0, 1, 1, 2))):
            await asyncio.sleep(rng.choice((0.0, 1.0, 10.0)) * rng.random())
            meant = event.id if rng.random() < 0.25 else call_id_of(request)
            if rng.random() < 0.1:
                await self.decides(session, "exec", meant, "approved")
            else:
                parts = [{"type": "inputText", "text": meant}, *self._image_of(rng.random())]
                await self.does_call(session, meant, success=rng.random() < 0.7, content_items=tuple(parts))

    def _image_of(self, drawn: float) -> list[dict[str, str]]:
        """An image for the answer of a client's tool, seldom: one in four of them is none."""
        if drawn >= SENDS_IMAGE:
            return []
        content = "c2ltdWxhdGVk" if drawn < SENDS_IMAGE / 4 else PNG
        return [{"type": "inputImage", "imageUrl": f"data:image/png;base64,{content}"}]

    async def does_call(self, session: str, id: str, **response: Any) -> None:
        """Answers a call of the client's own tool."""
        given = DynamicToolResponse(**response)
        await self.submits(session, ops.DynamicToolResponse(id=id, response=given))

    async def _answers_plan(self, session: str, event: Event) -> None:
        """Decides on a plan, late, twice, by another op or without words, or not at all."""
        rng = self._rng
        for _ in range(rng.choice((0, 1, 1, 2))):
            await asyncio.sleep(rng.choice((0.0, 1.0, 10.0)) * rng.random())
            meant = event.id if rng.random() < 0.25 else call_id_of(event.msg)
            self._looks_at(session, event)
            agent = event.msg.get("agent_id") if rng.random() < 0.7 else None
            if rng.random() < 0.1:
                await self.decides(session, "exec", meant, "approved", agent_id=agent)
            else:
                await self.plans(session, meant, rng.choice((*PLANNED, "approved", " ")), agent)

    async def plans(self, session: str, id: str, decision: str, agent_id: int | None = None) -> None:
        """Decides on a plan; other words say what is to be changed."""
        response: Any = (
            {"type": decision} if decision in PLANNED else {"type": "revised", "feedback": decision}
        )
        op = {"type": "resolve_plan_approval", "id": id, "response": response, "agent_id": agent_id}
        await self.submits(session, self._under_signature(ops.ResolvePlanApproval.model_validate(op)))

    def _words_for(self, request: Mapping[str, Any]) -> dict[str, str] | None:
        """An answer to each question; None: this person will not answer. Some answers fit no question."""
        rng = self._rng
        if rng.random() < 0.2:
            return None
        questions = request_of(request).questions
        names = [each.name for each in questions]
        told = {name: f"{rng.choice('AB')}-{name}" for name in (names if rng.random() < 0.85 else ["nobody"])}
        for each in questions:
            if each.secret and each.name in told:
                told[each.name] = f"{SECRET}{self.name}.{self._numbered}"
                self._site.watch.secrets.given = True
        return told

    async def replies(
        self, session: str, type: str, id: str, words: Mapping[str, str] | None, agent_id: int | None = None
    ) -> None:
        """Answers questions."""
        op: Any
        if type == "request_user_input":
            given = {name: RequestUserInputAnswer(answers=(text,)) for name, text in (words or {}).items()}
            op = ops.UserInputAnswer(
                id=id, response=RequestUserInputResponse(answers=given), agent_id=agent_id
            )
        else:
            response = QuestionsCancelled() if words is None else QuestionsAnswered(answers=dict(words))
            op = ops.ResolveAskUserQuestion(id=id, response=response, agent_id=agent_id)
        await self.submits(session, self._under_signature(op))

    async def settles(self, session: str, call_id: str, kind: str) -> None:
        """Brings a request to its end, whatever it asks."""
        task = self._site.watch.sessions[session].state.task
        asked = task.call(CallId(call_id)) if task is not None else None
        questions = {one.id: one.request for one in task.elicitations} if task is not None else {}
        self._named = session, task.id if task is not None else "", call_id
        self._request = asked.request if asked is not None else questions.get(call_id, "")
        if kind == "elicitation":
            await self.tells_server(session, call_id, "decline")
        elif kind == "plan":
            await self.plans(session, call_id, "rejected")
        elif kind == "client_tool":
            await self.does_call(session, call_id, success=False, output="ended")
        elif kind in ("question", "user_input"):
            types = {"question": "ask_user_question_request", "user_input": "request_user_input"}
            await self.replies(session, types[kind], call_id, None)
        else:
            await self.decides(
                session, "apply_patch" if kind in ("patch", "merge") else "exec", call_id, "denied"
            )

    async def tells_server(
        self, session: str, id: str, decision: str, agent_id: int | None = None, server: str = "sim"
    ) -> None:
        """Answers a question of an MCP server."""
        action = ElicitationAction(decision)
        op = ops.ResolveElicitation(server_name=server, request_id=id, decision=action, agent_id=agent_id)
        await self.submits(session, self._under_signature(op))

    async def _answers_server(self, session: str, event: Event) -> None:
        rng, request = self._whims, event.msg
        for _ in range(rng.choice((0, 1, 1, 2))):
            await asyncio.sleep(rng.choice((0.0, 1.0, 10.0)) * rng.random())
            agent = request.get("agent_id") if rng.random() < 0.7 else None
            self._looks_at(session, event)
            server = "sim" if rng.random() < 0.9 else "another"
            decision = rng.choice(("accept", "decline", "cancel"))
            await self.tells_server(session, request["id"], decision, agent, server)

    async def decides(
        self,
        session: str,
        request: str,
        id: str,
        decision: str = "",
        agent_id: int | None = None,
        amends: Request | None = None,
    ) -> None:
        """Decides about a command or a patch; `amends`: the request of which it allows the prefix."""
        reach = self._site.watch.reach
        if agent_id is not None:
            reach.saw("answered_by_agent")
        if not id.startswith("c"):
            reach.saw("answered_by_turn")
        shown = ops.Shown(text=f"sim {id}", surface="sim", opened_ms=1)
        if amends is not None:
            by_word = amends.answer(Given(AMENDMENT), shown)
            op: Any = by_word.model_copy(update={"id": id, "agent_id": agent_id})
        else:
            words = ("approved", "approved", "denied", "abort", "approved_for_session")
            kind = ops.ExecApproval if request.startswith("exec") else ops.PatchApproval
            chosen = cast(Any, decision or self._rng.choice(words))
            op = kind(id=id, decision=chosen, agent_id=agent_id, shown=shown)
        await self.submits(session, self._under_signature(op))

    def _under_signature(self, op: Any) -> Any:
        """The answer under its person's signature, where people sign."""
        signature = self._signature(op) if self._site.signs else None
        return op if signature is None else op.model_copy(update={"signature": signature})

    def _signature(self, op: Any) -> ops.AnswerSignature | None:
        """A signature under a decision, mostly; else one of before, for another decision, or an old one."""
        drawn, named = self._whims.random(), self._named
        now_ms = int((EPOCH_S + self._site.loop.time()) * 1000)
        if drawn < 0.1:
            return None
        if drawn < 0.25 and named in self._signatures:
            return self._signatures[named]
        at_ms = now_ms - 660_000 if drawn > 0.95 else now_ms
        reply = reply_of(op)
        decision = reply.decision if drawn < 0.85 else "denied"
        response = (
            "" if reply.response is None or SECRET in str(reply.response) else digest_of(reply.response)
        )
        digest = sha256((op.shown.text if op.shown else "").encode()).hexdigest()
        about = ("dendro-answer/2", *named, self._request, decision, response)
        text = "\n".join((*about, str(at_ms), digest, ""))
        sig = base64.b64encode(signature_under(text)).decode()
        self._signatures[named] = ops.AnswerSignature(answered_ms=at_ms, sig=sig, key=KNOWN)
        return self._signatures[named]
