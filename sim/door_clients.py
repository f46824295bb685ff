"""Clients of gateways: they come, resume their threads, speak, answer, read slowly, and leave."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import orjson

from orchestrator.gateways.principals import Principal, Scope
from orchestrator.gateways.wires.byte_wire import OUTGOING_LIMIT, CloseCode
from sim.doors import Doors, Ears
from sim.double import EPOCH_S
from sim.gateways import SimGateway, SimWire
from sim.loop import Lane
from sim.machines import Site

WINDOW, SMALL_WINDOW, SMALL_OUTGOING, TINY_OUTGOING = 1 << 20, 2_000, 40_000, 8_000
ASKED_AGAIN_S = 0.5
NOTED = frozenset({"serverRequest/resolved", "warning", "codex/event/warning", "thread/closed"})
"""Notifications that a trace shows."""


class Gone(Exception):
    """The connection is over."""


class DoorClient(ABC):
    """A client process, which comes back until the simulation ends."""

    habits: tuple[str, ...]
    """Its acts; who has one twice does it twice as often."""

    def __init__(self, site: Site, name: str, rng: Random, principal: Principal, doors: Doors) -> None:
        self.name, self.principal = name, principal
        self._site, self._rng, self._doors = site, rng, doors
        self._lane = Lane(name)
        self.gateways: Callable[[], list[SimGateway]] = list
        self.shared: list[str] = []
        """The sessions of the client's namespace."""
        self.foreign: list[str] = []
        self.acts = rng.choice((2, 4, 6))
        self.slow = rng.random() < 0.3
        self.replies: tuple[int, ...] = ()
        """Counts of answers to a request, drawn from; empty: as is usual for its kind of client."""
        self.waits_s: tuple[float, ...] = (0.0, 1.0, 10.0)
        """The most seconds before an answer, drawn from."""
        self.makes = True
        """Whether it makes sessions of its own beside those that it shares."""
        self.asks = True
        """Whether its person answers; a client of version 2 may name a model as the reviewer instead."""
        # Drawn beside the others: what else it does is as it is without, and kept stories stay as they are.
        drawn = Random(f"versioned:{name}:{rng.getstate()[1][:4]}").random()
        self.versioned = drawn < 0.3 and not site.network.instant
        """Whether its messages say that they are of JSON-RPC 2.0."""
        drawn = Random(f"outgoing:{name}:{rng.getstate()[1][:4]}").random()
        self.outgoing = TINY_OUTGOING if drawn < 0.5 and not site.network.instant else SMALL_OUTGOING
        """Bytes that wait for it while it is slow, before its gateway leaves it."""
        self.wanted: dict[str, None] = {}
        """Sessions that it hears, and resumes when it comes back."""
        self.here = False
        """Whether it is connected, and has resumed what it hears."""
        self._wire: SimWire | None = None
        self._ears: Ears | None = None
        self._sent = 0
        self._answered_ids: set[tuple[SimWire, Any]] = set()
        self._waiting: dict[int, tuple[str, Mapping[str, Any], asyncio.Future[Any]]] = {}

    def begin(self) -> None:
        """Starts the client."""
        self._site.loop.start(self._lane, self._lives(), f"{self.name}:lives")

    @property
    def is_done(self) -> bool:
        """Whether it does nothing of its own any more, and hears what it wants to hear."""
        return self._is_over or (self.acts <= 0 and self.here)

    @property
    def _is_over(self) -> bool:
        """Whether its token was revoked: nobody serves it any more."""
        return self.principal.name in self._doors.revoked_s

    def leaves(self) -> None:
        """Closes its connection; it comes back later."""
        if self._wire is not None:
            self._note("leaves")
            self._ended()
            self._wire.leave()

    def hurry(self) -> None:
        """Reads from now on as fast as it can."""
        self.slow = False

    async def _lives(self) -> None:
        while not self._is_over or self._rng.random() < 0.7:
            living = self.gateways()
            if not living:
                await asyncio.sleep(ASKED_AGAIN_S)
                continue
            with suppress(Gone):
                await self._connected(self._rng.choice(living))
            await asyncio.sleep(self._rng.choice((0.01, 1.0, 5.0)) * self._rng.random())

    async def _connected(self, gateway: SimGateway) -> None:
        self._note("comes to", gateway.name)
        wire = self._wire = self._opens(gateway)
        wire.noted = partial(self._site.trace.heard, self.name)
        self._ears = self._hears(gateway)
        self._ears.has_read = lambda: wire.is_read
        over = asyncio.ensure_future(self._reads(wire, self._ears))
        try:
            await self._greets()
            for session in tuple(self.wanted):
                await self._resumes(session)
            self.here = True
            while self.acts > 0:
                self.acts -= 1
                await asyncio.sleep(self._rng.choice((0.1, 2.0, 6.0)) * self._rng.random())
                await self._act()
            await over
        finally:
            over.cancel()
            self._ended()
            wire.leave()

    def _opens(self, gateway: SimGateway) -> SimWire:
        window, outgoing = (SMALL_WINDOW, self.outgoing) if self.slow else (WINDOW, OUTGOING_LIMIT)
        return gateway.connect(self.principal, self._lane, window, outgoing)

    def _hears(self, gateway: SimGateway) -> Ears:
        return Ears(self._doors, f"{self.name} at {gateway.name}", self.principal, asks=self.asks)

    def _ended(self) -> None:
        self.here = False
        if self._ears is not None:
            self._ears.living = False
        waiting, self._waiting = self._waiting, {}
        for _, _, answer in waiting.values():
            if not answer.done():
                answer.set_exception(Gone())

    # ── reading and writing ───────────────────────────────────────────────────────────────────

    async def _reads(self, wire: SimWire, ears: Ears) -> None:
        while (data := await wire.read()) is not None:
            if not ears.living:
                return
            self._took(ears, data)
            if self.slow and self._rng.random() < 0.1:
                await self._dawdles(self._rng.choice((1, 4, 20)))
        if wire.code is CloseCode.TOO_SLOW:
            self._doors.saw("dropped")
        self._note("is left", "" if wire.code is None else wire.code.name)
        self._ended()

    async def _dawdles(self, seconds: int) -> None:
        """Reads nothing for a while, unless it is told to hurry."""
        for _ in range(seconds):
            if self.slow:
                await asyncio.sleep(1.0)

    def _took(self, ears: Ears, data: bytes) -> None:
        message = orjson.loads(data)
        self._doors.dialect(ears, message, versioned=self.versioned)
        id, method = message.get("id"), message.get("method")
        if method is None:
            asked, params, answer = self._waiting.pop(id, ("", {}, None))
            ears.received(data, str(params.get("threadId") or params.get("conversationId")))
            if answer is None:
                return
            result = message.get("result")
            if result is not None:
                self._answered(ears, asked, params, result)
            if not answer.done():
                answer.set_result(result)
            return
        ears.received(data)
        ears.sent_s = message.get("emittedAtMs", 0) / 1000 - EPOCH_S
        if id is not None or method in NOTED:
            thread = str(message["params"].get("threadId") or message["params"].get("conversationId"))
            about = message["params"].get("itemId") or message["params"].get("requestId")
            self._note("hears", thread[-4:], method, id, about)
        if id is None:
            self._told(ears, method, message["params"])
        else:
            self._asked(ears, id, message["params"])

    async def _calls(self, method: str, **params: Any) -> Any:
        """The result; None for an error. Raises `Gone`."""
        wire = self._wire
        if wire is None or self._ears is None or not self._ears.living:
            raise Gone
        self._sent += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._sent] = method, params, answer
        self._note("calls", method, str(params.get("threadId") or params.get("conversationId") or "")[-4:])
        self._writes(wire, {"id": self._sent, "method": method, "params": params})
        return await answer

    def _writes(self, wire: SimWire, message: Mapping[str, Any]) -> None:
        wire.write(orjson.dumps({"jsonrpc": "2.0", **message} if self.versioned else message))

    def _says_to(self, id: Any, result: Mapping[str, Any]) -> None:
        if self._wire is not None and self._ears is not None and self._ears.living:
            self._writes(self._wire, {"id": id, "result": result})

    def _decides_later(self, id: Any, decisions: tuple[str, ...]) -> None:
        """Answers a request: late, twice, or not at all."""
        rng, wire = self._rng, self._wire
        for _ in range(rng.choice(self.replies or (0, 0, 0, 0, 1, 1, 2))):
            after, said = rng.choice(self.waits_s) * rng.random(), {"decision": rng.choice(decisions)}
            self._site.loop.on(self._lane, self._decides, wire, id, said, after=after)

    def _decides(self, wire: SimWire, id: Any, said: Mapping[str, Any]) -> None:
        if wire is not self._wire or self._ears is None or not self._ears.living:
            return
        if (meant := self._ears.asked_now(id)) is not None and (wire, id) not in self._answered_ids:
            self._answered_ids.add((wire, id))
            self._doors.answers(self._ears, *meant)
            if said["decision"] == "cancel":
                self._ears.aborts(*meant[:2])
        self._says_to(id, said)

    def _note(self, *words: Any) -> None:
        self._site.trace.note(self.name, *words)

    # ── of a version ──────────────────────────────────────────────────────────────────────────

    async def _greets(self) -> None:
        info = {"name": self.name, "version": "0"}
        await self._calls("initialize", clientInfo=info)

    @abstractmethod
    async def _resumes(self, session: str) -> None:
        """Hears a session from now on."""

    @abstractmethod
    async def _act(self) -> None:
        """Does something that clients do."""

    @abstractmethod
    def _answered(self, ears: Ears, method: str, params: Mapping[str, Any], result: Any) -> None:
        """Takes in the result of a call, in the place where it was told."""

    @abstractmethod
    def _told(self, ears: Ears, method: str, params: Mapping[str, Any]) -> None:
        """Takes in a notification."""

    @abstractmethod
    def _asked(self, ears: Ears, id: Any, params: Mapping[str, Any]) -> None:
        """Takes in a request."""


class SecondVersion(DoorClient):
    """A client of version 2: threads, turns and items."""

    habits: tuple[str, ...] = ("say", "say", "say", "say", "stop", "leave", "list", "spy", "resume")

    async def _resumes(self, session: str) -> None:
        self.wanted[session] = None
        while await self._calls("thread/resume", threadId=session, **self._reviewer()) is None:
            if not self._doors.known(session):
                self.wanted.pop(session, None)
                return
            await asyncio.sleep(ASKED_AGAIN_S)

    def _reviewer(self) -> dict[str, str]:
        return {} if self.asks else {"approvalsReviewer": "auto_review"}

    async def _act(self) -> None:
        rng = self._rng
        may = self.principal.may(Scope.SUBMIT)
        if may and (not self.shared or (self.makes and rng.random() < 0.15)):
            await self._calls("thread/start", cwd="/sim", **self._reviewer())
            return
        if self.shared and (not self.wanted or rng.random() < 0.25):
            await self._resumes(rng.choice(self.shared))
            return
        match rng.choice(self.habits):
            case "say" if may and self.wanted:
                said = [{"type": "text", "text": f"words {self.name}.{self._sent}"}]
                await self._calls("turn/start", threadId=rng.choice(sorted(self.wanted)), input=said)
            case "leave" if len(self.wanted) > 1:
                session = rng.choice(sorted(self.wanted))
                del self.wanted[session]
                await self._calls("thread/unsubscribe", threadId=session)
            case "stop" if may and self.wanted and self._ears is not None:
                session = rng.choice(sorted(self.wanted))
                heard = self._ears.threads.get(session)
                if heard is not None and heard.running:
                    await self._calls("turn/interrupt", threadId=session, turnId=heard.running)
            case "list":
                await self._calls(rng.choice(("thread/list", "thread/loaded/list")))
            case "spy" if self.foreign:
                self._doors.saw("apart")
                await self._calls("thread/resume", threadId=rng.choice(self.foreign))
            case "resume" if self.wanted:
                await self._resumes(rng.choice(sorted(self.wanted)))
            case _:
                pass

    def _answered(self, ears: Ears, method: str, params: Mapping[str, Any], result: Any) -> None:
        if method in ("thread/start", "thread/resume"):
            session = result["thread"]["id"]
            ears.subscribed(session, result["thread"].get("turns") or [])
            self.wanted[session] = None
            if session not in self.shared:
                self.shared.append(session)
        elif method == "thread/unsubscribe":
            ears.left(params["threadId"])

    def _told(self, ears: Ears, method: str, params: Mapping[str, Any]) -> None:
        if method == "thread/started" and params["thread"]["id"] not in ears.threads:
            ears.adopted(params["thread"]["id"])
        elif method == "thread/closed":
            ears.left(params["threadId"])
            self.wanted.pop(params["threadId"], None)
        ears.notified(method, params)

    def _asked(self, ears: Ears, id: Any, params: Mapping[str, Any]) -> None:
        ears.requested(id, params)
        self._decides_later(id, ("accept", "accept", "decline", "cancel"))


class FirstVersion(DoorClient):
    """A client of version 1: conversations and their events."""

    habits: tuple[str, ...] = ("say", "say", "say", "stop", "list", "spy")

    async def _resumes(self, session: str) -> None:
        self.wanted[session] = None
        while await self._calls("addConversationListener", conversationId=session) is None:
            if not self._doors.known(session):
                self.wanted.pop(session, None)
                return
            await asyncio.sleep(ASKED_AGAIN_S)

    async def _act(self) -> None:
        rng = self._rng
        may = self.principal.may(Scope.SUBMIT)
        if may and not self.shared:
            made = await self._calls("newConversation", cwd="/sim")
            if made is not None:
                await self._resumes(made["conversationId"])
            return
        if self.shared and (not self.wanted or rng.random() < 0.25):
            await self._resumes(rng.choice(self.shared))
            return
        match rng.choice(self.habits):
            case "say" if may and self.wanted:
                said = [{"type": "text", "data": {"text": f"words {self.name}.{self._sent}"}}]
                session = rng.choice(sorted(self.wanted))
                await self._calls("sendUserMessage", conversationId=session, items=said)
            case "list":
                await self._calls("listConversations")
            case "resume" if may and self.shared:
                await self._calls("resumeConversation", conversationId=rng.choice(self.shared))
            case "stop" if may and self.wanted:
                await self._calls("interruptConversation", conversationId=rng.choice(sorted(self.wanted)))
            case "spy" if self.foreign:
                self._doors.saw("apart")
                await self._calls("addConversationListener", conversationId=rng.choice(self.foreign))
            case _:
                pass

    def _answered(self, ears: Ears, method: str, params: Mapping[str, Any], result: Any) -> None:
        if method == "newConversation" and result["conversationId"] not in self.shared:
            self.shared.append(result["conversationId"])

    def _told(self, ears: Ears, method: str, params: Mapping[str, Any]) -> None:
        if method.startswith("codex/event/"):
            session = params["conversationId"]
            # What is told before the answer belongs to the listener that is being added.
            ears.listens(session)
            ears.told(session, params["id"], params["msg"])

    def _asked(self, ears: Ears, id: Any, params: Mapping[str, Any]) -> None:
        ears.listens(params["conversationId"])
        ears.demanded(id, params)
        self._decides_later(id, ("approved", "approved", "denied", "abort"))
