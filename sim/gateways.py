"""Gateways of a simulation: the product's own doors, and wires of memory in the place of sockets.

A gateway is a process with one lane, and dies with all of its connections. A wire keeps the order of what
is sent, holds back a sender whose client does not read, and tells both sides when the other one has left.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest.mock import patch

from orchestrator.broker.blobs import Texts
from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.logs import SharedReads
from orchestrator.broker.records import SessionHead
from orchestrator.config_keys import SessionDefaults, ToolSettings
from orchestrator.core.birth import Birth, ForkedFrom, taken_facts
from orchestrator.core.client_tools import client_tools
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId, TreeId, new_session_id
from orchestrator.core.sender import Via
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.tree import ROOT
from orchestrator.gateways.app_server.client_connection import AppServer, Connection
from orchestrator.gateways.app_server.door_ports import Born, NewThread, Offer, Ports
from orchestrator.gateways.bursts import Messages
from orchestrator.gateways.client import Client, ClientPorts
from orchestrator.gateways.fork import copy_texts
from orchestrator.gateways.permissions import Permissions, Policies, permits
from orchestrator.gateways.principals import Principal
from orchestrator.gateways.sq_eq import SqEqDoor
from orchestrator.gateways.wires.authentication import Authentication, NotServed, TokenWatch
from orchestrator.gateways.wires.byte_wire import MESSAGE_LIMIT, STALL_S, CloseCode, TooSlow, WireClosed
from orchestrator.instructions.skills import Skills
from orchestrator.rollouts.deletion import delete_everywhere
from orchestrator.rollouts.redaction import StoredLogs
from orchestrator.runtime.loader import restore_session
from sim.accounts import MODEL_SETTINGS
from sim.double import EPOCH_S
from sim.loop import Lane, SimLoop
from sim.machines import POOL, Clock, Site, storage_on

MODE = {"mode": "danger-full-access"}
FOLDER = "/sim"
CLIENT_TOOL_MS = 5_000
Serves = Callable[..., Coroutine[Any, Any, None]]


@contextmanager
def numbered(seed: int) -> Iterator[None]:
    """While a simulation runs, ids, salts and keys that the product draws from the system are the seed's."""
    rng, salts = Random(f"dendro:{seed}:ids"), Random(f"dendro:{seed}:salts")
    ids = patch.object(uuid, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128), version=4))
    with ids, patch.object(os, "urandom", salts.randbytes):
        yield


class Tokens:
    """The tokens of a deployment, as every gateway reads them."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._holders: dict[str, Principal] = {}
        self.revoked_s: dict[str, float] = {}
        """When tokens were revoked, by their holders' names."""

    def give(self, principal: Principal) -> None:
        self._holders[principal.token] = principal

    def revoke(self, principal: Principal) -> None:
        if self._holders.pop(principal.token, None) is not None:
            self.revoked_s[principal.name] = self._loop.time()

    async def look_up(self, token: str) -> Principal | None:
        return self._holders.get(token)

    async def in_force(self) -> frozenset[str]:
        return frozenset(self._holders)


class LineStream:
    """A wire as a stream of bytes."""

    socket = None

    def __init__(self, wire: SimWire) -> None:
        self._wire = wire

    async def read(self, limit: int) -> bytes:
        return await self._wire.receive() or b""

    async def write(self, data: bytes) -> None:
        await self._wire.send(data)


class SimWire:
    """A connection of one client to one gateway."""

    def __init__(self, gateway: SimGateway, principal: Principal, client: Lane, window: int) -> None:
        self.principal = principal
        self._gateway, self._client, self._window = gateway, client, window
        self._loop, self._rng = gateway.site.loop, gateway.rng
        self._up: deque[bytes | None] = deque()
        self._down: deque[bytes | None] = deque()
        """Messages on their way; None: the end."""
        self._received: deque[bytes | None] = deque()
        self._read: deque[bytes | None] = deque()
        self._unread = 0
        """Bytes that were sent and not read by the client."""
        self._wakes: dict[str, asyncio.Future[None]] = {}
        self.is_known = True
        """Whether its client is known before the first message."""
        self.code: CloseCode | None = None
        """The reason for which the gateway has ended it."""
        self.closed = self._left = False
        self.noted: Callable[[str, bytes], None] = lambda way, message: None
        """Told of each message that the client has read (`<`) and written (`>`)."""

    # ── the gateway's side ────────────────────────────────────────────────────────────────────

    async def receive(self) -> bytes | None:
        """The next message of the client; None when there will be none any more."""
        while not self._received:
            await self._woken("gateway")
        message = self._received.popleft()
        if message is None:
            self._received.append(None)
        return message

    async def send(self, *messages: bytes) -> None:
        """Sends messages; waits while too much is unread."""
        if self.closed or self._left:
            raise WireClosed("the client has left")
        doors, served = self._gateway.site.watch.doors, self.is_known or b'"seq":' in messages[0]
        if served and doors is not None:
            doors.served(self.principal, self._gateway.awake_s, messages[0])
        for message in messages:
            self._unread += len(message)
            self._goes_down(message)
        while self._unread > self._window and not self._left:
            before = self._unread
            try:
                async with asyncio.timeout(STALL_S):
                    await self._woken("room")
            except TimeoutError:
                if self._unread < before:
                    continue
                await self.close(CloseCode.TOO_SLOW)
                raise TooSlow("the client has read nothing") from None

    async def close(self, code: CloseCode = CloseCode.DONE, reason: str = "") -> None:
        """Ends the connection behind what was sent."""
        if not self.closed:
            self.closed, self.code = True, code
            self._goes_down(None)

    def breaks(self) -> None:
        """The gateway is dead: what it had sent may arrive, and then the end."""
        self.closed = True
        self._goes_down(None)

    # ── the client's side ─────────────────────────────────────────────────────────────────────

    async def read(self) -> bytes | None:
        """The next message of the gateway; None at the end."""
        while not self._read:
            await self._woken("client")
        message = self._read.popleft()
        if message is not None:
            self.noted("<", message)
            self._unread -= len(message)
            self._loop.on(self._gateway.lane, self._wake, "room")
        return message

    @property
    def is_read(self) -> bool:
        """Whether the client has read all that was sent, and no end of the connection is on its way."""
        return not self._unread and not self.closed

    def write(self, message: bytes) -> None:
        """Sends a message to the gateway."""
        self.noted(">", message)
        self._goes_up(message)

    def leave(self) -> None:
        """Ends the connection; what was not read is lost."""
        if not self._left:
            self._left = True
            self._goes_up(None)
            self._loop.on(self._gateway.lane, self._wake, "room")

    # ── on the way ────────────────────────────────────────────────────────────────────────────

    def _goes_up(self, message: bytes | None) -> None:
        self._up.append(message)
        after = self._takes_s()
        self._loop.on(self._gateway.lane, self._arrives, self._up, self._received, "gateway", after=after)

    def _goes_down(self, message: bytes | None) -> None:
        self._down.append(message)
        after = self._takes_s()
        self._loop.on(self._client, self._arrives, self._down, self._read, "client", after=after)

    def _takes_s(self) -> float:
        return 0.0 if self._gateway.site.network.instant else self._rng.uniform(0.0001, 0.002)

    def _arrives(self, way: deque[bytes | None], there: deque[bytes | None], who: str) -> None:
        there.append(way.popleft())
        self._wake(who)

    async def _woken(self, who: str) -> None:
        self._wakes[who] = self._loop.create_future()
        await self._wakes[who]

    def _wake(self, who: str) -> None:
        waiting = self._wakes.get(who)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


class SimGateway:
    """A gateway's process."""

    def __init__(
        self, site: Site, name: str, rng: Random, facts: dict[str, Any], policy: str, tokens: Tokens
    ) -> None:
        self.site, self.name, self.rng = site, name, rng
        self.lane, self.alive, self.awake_s = Lane(name), True, site.loop.time()
        self.stands_still = False
        self._tokens, self._looks = tokens, False
        self._facts, self._policy = facts, policy
        self._clients = 0
        clock = Clock(site.loop, rng.uniform(0.0, 1e6), 1.0 + rng.uniform(-2e-3, 2e-3))
        self._storage = storage_on(site, name, clock)
        self._texts = Texts(self._storage.blobs, archived=self._storage.archive.text)
        self._found = StoredLogs(self._storage, self._texts)
        self._reads, self._messages = SharedReads(self._storage.broker.logs), Messages()
        self._wires: list[SimWire] = []
        self._ports = self._door_ports()
        self._server = AppServer(self._ports)
        self._watch = TokenWatch(tokens.in_force)
        self._lines = SqEqDoor(self._ports, Authentication(tokens.look_up), self._watch, MESSAGE_LIMIT)
        if tokens.revoked_s:
            self.looks_at_tokens()

    def looks_at_tokens(self) -> None:
        """Begins to look whether tokens count: as long as none was revoked, it would find nothing."""
        if not self._looks:
            self._looks = True
            self.site.loop.start(self.lane, self._watch.run(), f"{self.name}:tokens")

    def connect(self, principal: Principal, client: Lane, window: int, outgoing: int) -> SimWire:
        """A client's new connection, which the product's own code serves."""
        return self._connected(SimWire(self, principal, client, window), self._serves, outgoing)

    def connect_lines(self, principal: Principal, client: Lane, window: int) -> SimWire:
        """The same for a client of lines."""
        wire = SimWire(self, principal, client, window)
        wire.is_known = False
        return self._connected(wire, self._serves_lines)

    def _connected(
        self, wire: SimWire, serves: Callable[..., Coroutine[Any, Any, None]], *more: int
    ) -> SimWire:
        self._wires.append(wire)
        self.site.loop.on(self.lane, self._begins, wire, serves, *more)
        return wire

    def _begins(self, wire: SimWire, serves: Serves, *more: int) -> None:
        # On this lane already.
        serving = self.site.loop.create_task(serves(wire, *more), name=f"{self.name}:serves")
        serving.add_done_callback(self._over)

    async def _serves(self, wire: SimWire, outgoing: int) -> None:
        """As a listener does: who comes is looked up, and watched from then on."""
        if await self._tokens.look_up(wire.principal.token) is None:
            await wire.close(CloseCode.NOT_PERMITTED)
            return
        served = Connection(self._ports, self._server.threads, wire, outgoing)
        try:
            await self._watch.serve(wire.principal, served.serve())
        except NotServed:
            await wire.close(CloseCode.NOT_PERMITTED)

    async def _serves_lines(self, wire: SimWire) -> None:
        try:
            await self._lines.serve(cast(Any, LineStream(wire)))
        finally:
            await wire.close()

    def _over(self, serving: asyncio.Task[None]) -> None:
        if not serving.cancelled() and (error := serving.exception()) is not None:
            self.site.loop.failures.append(error)

    def kill(self) -> None:
        """SIGKILL: nothing of it runs again, and its connections break."""
        self.alive = False
        self.site.trace.note("doors", "kills", self.name)
        self.site.loop.kill(self.lane)
        for wire in self._wires:
            wire.breaks()

    def pause(self, seconds: float) -> None:
        """SIGSTOP for a while."""
        self.site.trace.note("doors", "pauses", self.name)
        self.stands_still = True
        self.site.loop.hold(self.lane)
        self.site.loop.on(self.site.network.lane, self._wakes, after=seconds)

    def _wakes(self) -> None:
        self.awake_s, self.stands_still = self.site.loop.time(), False
        self.site.loop.let_go(self.lane)

    # ── what it is given in the place of the machine's ────────────────────────────────────────

    def _door_ports(self) -> Ports:
        defaults = SessionDefaults(cwd=Path(FOLDER))
        offer = Offer(defaults, MODEL_SETTINGS, ToolSettings(), Skills(Path(FOLDER), Path(FOLDER)))
        return Ports(
            found=self._found,
            client=self._client,
            create=self._create,
            fork=self._fork,
            delete=self._delete,
            home=Path(FOLDER),
            version="0",
            now_ms=self._now_ms,
            random_bytes=self.rng.randbytes,
            offer=offer,
        )

    def _now_ms(self) -> int:
        return int((EPOCH_S + self.site.loop.time()) * 1000)

    def _client(self, principal: Principal, via: Via) -> Client:
        self._clients += 1
        may = Permissions(principal, Policies(self._policy, MODE, FOLDER))
        ports = ClientPorts(
            self._storage.broker,
            self._texts,
            self.rng.randbytes,
            chain_key=self.site.knobs.chain_key,
            restore=lambda session: restore_session(self._storage, session),
            events=self._reads,
            messages=self._messages,
        )
        checked, by = permits(self._found, may), principal.sender(via)
        return Client(ports, f"{self.name}-{self._clients}", by.who, principal.namespace, checked, by)

    async def _fork(self, client: Client, principal: Principal, source: ForkedFrom, wish: NewThread) -> Born:
        """A session that goes on where another one stands, with that one's settings."""
        session = self._new_id(principal)
        own = SessionFacts(session, TreeId(session), ROOT, POOL)
        facts, settings = taken_facts(source.state.facts, own, ()), source.state.settings
        birth, tree = Birth(facts, settings, "0", self._now_ms(), source=source), facts.tree_id
        await client.create(birth, copies=lambda: copy_texts(self._found, source, TreeId(tree)))
        return Born(await self._head(client, session), settings)

    async def _delete(self, members: Sequence[SessionHead], by: str) -> None:
        self.site.watch.archive_moves.by_people.update(str(head.tree) for head in members)
        await delete_everywhere(self._storage, members, by=by)

    def _new_id(self, principal: Principal) -> SessionId:
        shard = self.rng.randrange(self.site.config.shards)
        session = new_session_id(self._now_ms(), shard, self.rng.getrandbits(62))
        doors = self.site.watch.doors
        assert doors is not None
        doors.creates(session, principal)
        self.site.trace.note(self.name, "creates", session)
        return session

    async def _head(self, client: Client, session: SessionId) -> SessionHead:
        head = await client.head(session)
        if head is None:
            # Redis has lost it since.
            raise UnknownSession(session)
        return head

    async def _create(self, client: Client, principal: Principal, wish: NewThread) -> Born:
        """A session with the workload's settings: the settings' files are the machine's."""
        session = self._new_id(principal)
        facts = SessionFacts(session, TreeId(session), ROOT, POOL, **self._facts)
        facts = replace(facts, client_tools=client_tools(wish.client, CLIENT_TOOL_MS, wish.tools))
        settings = TurnSettings(FOLDER, self._policy, MODE, "gpt-5")
        await client.create(Birth(facts, settings, "0", self._now_ms()))
        return Born(await self._head(client, session), settings)
