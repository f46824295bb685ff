"""Clients of a chaos run: some of Redis by the library, some of the gateways over WebSockets (version 2).

Each notes what it was promised before anything else, resubmits under the same id, follows, and goes on at
its last place, or at another gateway, when it was cut off.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, cast

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from orchestrator.broker.errors import BrokerError, UnknownSession
from orchestrator.broker.follow import BEGINNING
from orchestrator.core.ids import SessionId
from orchestrator.gateways.client import is_rewound
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.submission import Submission
from proof.chaos_rules import ENDS, Promise, Return, Shown
from proof.chaos_script import order
from proof.chaos_servers import now
from proof.chaos_stage import GATEWAYS, Stage

AGAIN_S, TURN_S, ANSWER_S, ASKED_S, LAST_S = 10.0, 60.0, 10.0, 45.0, 60.0
"""How long a client waits until it submits again, until it gives up a turn that nobody knows, for an answer
of its gateway, to be asked again, and behind the last fault for the end of its turn."""
LONG_S = 10.0
"""Seconds of a command that is still at work when another worker has taken its session from a lost one."""
AWAY_S = 0.5
"""An answer that takes longer means that the deployment was away."""
_LISTENS = re.compile(r"listening on (ws://\S+)")


@dataclass
class Crowd:
    """All clients of a run, with what they were promised and shown."""

    stage: Stage
    until: float
    ledger: Any = None
    promised: list[Promise] = field(default_factory=list)
    shown: dict[str, Shown] = field(default_factory=dict)
    returns: list[Return] = field(default_factory=list)
    given_up: list[tuple[str, str]] = field(default_factory=list)
    """Sessions and turns that somebody has waited for too long, and answers no more."""
    away_s: list[float] = field(default_factory=list)
    """Seconds for which clients asked in vain."""
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def over(self) -> bool:
        return now() >= self.until

    def writes(self, line: str) -> None:
        """Adds to the ledger of promises and faults, on the disk before anything else happens."""
        self.ledger.write(line + "\n")
        self.ledger.flush()
        os.fsync(self.ledger.fileno())

    def keeps(self, session: str, id: str) -> None:
        """Notes a promise."""
        promise = Promise(session, id, now())
        self.promised.append(promise)
        self.writes(f"promised {promise.at:.3f} {id}")


async def stops_what_was_given_up(crowd: Crowd) -> None:
    """Interrupts the turns that nobody answers any more, which would wait for ever: each has to end."""
    for session, turn in crowd.given_up:
        stop = Submission(SubmissionId(f"{turn}/stop"), ops.Interrupt())
        with suppress(UnknownSession):
            await insists(crowd, partial(crowd.stage.running.client.submit, SessionId(session), stop))


# ── by the library ────────────────────────────────────────────────────────────────────────────────


async def insists(crowd: Crowd, ask: Callable[[], Awaitable[Any]]) -> Any:
    """Asks until the deployment answers, and notes how long it was away if that took long."""
    began = now()
    while True:
        try:
            found = await ask()
        except UnknownSession:
            raise
        except BrokerError:
            await asyncio.sleep(0.1)
            continue
        if (took := now() - began) > AWAY_S:
            crowd.away_s.append(took)
        return found


async def client(crowd: Crowd, number: int) -> None:
    """Submits until it is acknowledged, and waits for the outcome; goes on elsewhere if a session is lost."""
    drawn = Random(f"client:{number}")
    while not crowd.over:
        session = await insists(crowd, crowd.stage.running.session)
        following = asyncio.create_task(follows(crowd, session))
        try:
            for turn in range(6):
                if not crowd.over:
                    await _turn(crowd, session, f"{session}/{turn}", drawn)
        except UnknownSession:
            crowd.counts["sessions that were forgotten"] += 1
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _turn(crowd: Crowd, session: SessionId, id: str, drawn: Random) -> None:
    takes_s = LONG_S if drawn.random() < 0.1 else drawn.choice((0.1, 0.4, 1.5, 4.0))
    text = order(id, takes_s, tool=drawn.random() < 0.2)
    submission = Submission(SubmissionId(id), ops.UserInput(items=(TextInput(text=text),)))
    while not crowd.over:
        await insists(crowd, lambda: crowd.stage.running.client.submit(session, submission))
        crowd.keeps(session, id)
        until = now() + AGAIN_S
        while now() < until and not crowd.over:
            if any((end, id) in crowd.shown[session].events for end in ENDS):
                return
            await asyncio.sleep(0.05)


async def follows(crowd: Crowd, session: SessionId) -> None:
    """Follows, and comes back to its place whenever the deployment was away."""
    shown = crowd.shown.setdefault(session, Shown(BEGINNING))
    while True:
        shown.comes_back()
        try:
            async with aclosing(cast(Any, crowd.stage.running.client.follow(session, shown.place))) as events:
                async for event in events:
                    if is_rewound(event):
                        shown.begins_anew()
                    shown.takes(event.type, event.id, event.cursor)
        except UnknownSession:
            return
        except BrokerError:
            crowd.counts["followers that came back"] += 1
            await asyncio.sleep(0.1)


async def caught_up(crowd: Crowd, session: str, wanted: list[tuple[str, str]]) -> None:
    """Follows on until it was shown these events, for some seconds at most."""
    following = asyncio.create_task(follows(crowd, SessionId(session)))
    until = now() + 5.0
    while crowd.shown[session].events != wanted and now() < until:  # noqa: ASYNC110  its follower fills it
        await asyncio.sleep(0.05)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


# ── over WebSockets ───────────────────────────────────────────────────────────────────────────────


class Wire:
    """A client of a gateway: its requests, and what it was told."""

    def __init__(self, wire: ClientConnection) -> None:
        self._wire = wire
        self._next = 0
        self.heard: deque[dict[str, Any]] = deque()
        """Messages that nobody has looked at."""

    @classmethod
    async def greets(cls, socket: ClientConnection) -> Wire:
        wire = cls(socket)
        client = {"name": "proof", "version": "1"}
        await wire.call("initialize", clientInfo=client, capabilities={"experimentalApi": True})
        return wire

    async def hears(self, patience_s: float) -> dict[str, Any]:
        async with asyncio.timeout(patience_s):
            message: dict[str, Any] = orjson.loads(await self._wire.recv())
        if "method" in message:
            self.heard.append(message)
        return message

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a request; raises `LookupError` for an error."""
        self._next += 1
        id = self._next
        await self._wire.send(orjson.dumps({"id": id, "method": method, "params": params}).decode())
        until = now() + ANSWER_S
        while True:
            message = await self.hears(max(0.1, until - now()))
            if message.get("id") == id and "method" not in message:
                if "result" not in message:
                    raise LookupError(str(message))
                return cast(dict[str, Any], message["result"])

    async def answers(self, asked: dict[str, Any]) -> None:
        answer = {"id": asked["id"], "result": {"decision": "accept"}}
        await self._wire.send(orjson.dumps(answer).decode())


@dataclass
class Person:
    """Somebody who starts threads at one gateway or the other, and approves what is asked."""

    crowd: Crowd
    number: int
    at: int = 0
    thread: str = ""
    turn: str = ""
    """The turn whose end is awaited."""
    left_in: str = ""
    """The item about which it was asked when it left for another gateway."""
    left_at: float = 0.0
    since: float = 0.0
    """When the turn was begun."""

    @property
    def goes_on(self) -> bool:
        """Whether there is something to do: the last turn is seen to its end."""
        return not self.crowd.over or bool(self.turn and now() < self.crowd.until + LAST_S)

    async def lives(self) -> None:
        """Turns, one after the other, each at whatever gateway answers."""
        drawn, turns = Random(f"person:{self.number}"), 0
        self.at = self.number
        while self.goes_on:
            try:
                async with connect(
                    self._address(), compression=None, max_size=None, open_timeout=5.0
                ) as socket:
                    wire = await Wire.greets(socket)
                    await self._comes(wire, turns)
                    while self.goes_on:
                        if not self.turn:
                            await self._begins(wire, turns, drawn)
                            turns += 1
                        if await self._sees(wire, drawn):
                            break
            except LookupError:
                # The gateway could not ask Redis; or Redis has forgotten the thread, or the turn.
                self.crowd.counts["refusals of gateways"] += 1
                if not self.turn or now() - self.since > TURN_S:
                    self._gives_up()
            except (OSError, TimeoutError, WebSocketException):
                self.crowd.counts["gateways that went away"] += 1
            self.at += 1
            await asyncio.sleep(0.1)

    def _address(self) -> str:
        """The address that the gateway said last."""
        part = self.crowd.stage.parts[f"gateway {self.at % GATEWAYS}"]
        said = _LISTENS.findall(part.log.read_text(errors="replace"))
        if not said:
            raise OSError("the gateway has not said where it listens")
        return str(said[-1])

    async def _comes(self, wire: Wire, turns: int) -> None:
        """Begins a thread, or comes back to its own."""
        if not self.thread or (not self.turn and turns % 6 == 5):
            thread = await wire.call("thread/start", approvalPolicy="untrusted", sandbox="danger-full-access")
            self.thread, self.turn, self.left_in = thread["thread"]["id"], "", ""
            return
        found = await wire.call("thread/resume", threadId=self.thread)
        self.crowd.counts["threads resumed"] += 1
        if self.turn and now() - self.since > 2 * TURN_S:
            raise LookupError("a turn that does not end")
        states = {turn["id"]: turn["status"] for turn in found["thread"].get("turns") or ()}
        if states.get(self.turn, "inProgress") != "inProgress":
            self._ended()

    async def _begins(self, wire: Wire, turns: int, drawn: Random) -> None:
        id = f"{self.thread}/{self.number}.{turns}"
        go = [{"type": "text", "text": order(id, drawn.choice((0.1, 0.4)))}]
        thread, self.thread = self.thread, ""
        begun = await wire.call("turn/start", threadId=thread, input=go)
        # Who does not know whether a turn was begun leaves the thread alone: the next one would join it.
        self.thread = thread
        self.turn, self.since = begun["turn"]["id"], now()
        self.crowd.keeps(self.thread, self.turn)

    async def _sees(self, wire: Wire, drawn: Random) -> bool:
        """Hears the turn to its end; True where it leaves for the other gateway in the middle."""
        while self.turn and self.goes_on:
            while wire.heard:
                message = wire.heard.popleft()
                params = message.get("params") or {}
                if message["method"] == "turn/completed" and params["turn"]["id"] == self.turn:
                    self._ended()
                    return False
                if "id" in message and message["method"].endswith("requestApproval"):
                    if self.left_in == params["itemId"]:
                        self._noted(asked=True)
                    elif self._leaves_in(params) and drawn.random() < 0.5:
                        self.left_in, self.left_at = params["itemId"], now()
                        return True
                    await wire.answers(message)
            try:
                await wire.hears(1.0)
            except TimeoutError:
                if self.left_in and now() - self.left_at > ASKED_S:
                    self._noted(asked=False)
                if now() - self.since > TURN_S:
                    # Redis may have forgotten it; who comes back is told.
                    return True
        return False

    def _leaves_in(self, asked: dict[str, Any]) -> bool:
        """Whether it may leave in the middle: not in a turn whose end is not awaited any more."""
        return not self.left_in and asked["turnId"] == self.turn

    def _noted(self, *, asked: bool) -> None:
        self.crowd.returns.append(Return(self.thread, self.left_in, self.left_at, now(), asked))
        self.left_in = ""

    def _gives_up(self) -> None:
        """Goes on with another thread: this one may be forgotten. If not, it waits for an answer."""
        if self.turn:
            self.crowd.given_up.append((self.thread, self.turn))
        self.thread = self.turn = self.left_in = ""

    def _ended(self) -> None:
        """The turn is over: with its approval settled by somebody, nobody has to ask again."""
        self.turn = self.left_in = ""
