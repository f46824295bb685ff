"""A connection of a client: its handshake, its requests in their order, and its end.

A request is answered before the next one is begun, but for those that wait: a person may be asked meanwhile.
What the client cannot mean (no JSON, an unknown answer) is ignored; no error ends a connection.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from orchestrator.broker.errors import BrokerError
from orchestrator.gateways.app_server import messages
from orchestrator.gateways.app_server.door import Door
from orchestrator.gateways.app_server.door_ports import Ports
from orchestrator.gateways.app_server.live_threads import LiveThreads, Write
from orchestrator.gateways.app_server.messages import (
    Answer,
    Code,
    Notification,
    Request,
    RpcError,
    Unreadable,
    unreadable,
)
from orchestrator.gateways.app_server.method import ABSENT, Method, Params
from orchestrator.gateways.app_server.methods import METHODS, refusal
from orchestrator.gateways.app_server.outbox import Outbox
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.gateways.principals import NotPermitted
from orchestrator.gateways.submit import OpRefused
from orchestrator.gateways.wires.byte_wire import OUTGOING_LIMIT, CloseCode, Wire, WireClosed
from orchestrator.protocol.submission import MalformedSubmission
from orchestrator.rollouts import ArchiveUnavailable, BrokenArchive
from orchestrator.views.event import without_places

WAITING_MOST = 64
"""Requests of one connection that may wait at once."""
FLUSH_S = 5.0
"""The time for what is left to send at the end of a connection."""
_LOG = logging.getLogger("dendro.app_server")


class Connection:
    """Serves one wire until its client has left."""

    def __init__(
        self, ports: Ports, threads: LiveThreads, wire: Wire, outgoing: int = OUTGOING_LIMIT
    ) -> None:
        self._wire = wire
        self._outbox = Outbox(outgoing)
        self.door = Door(ports, threads, wire.principal, self._outbox)
        self._waiting: set[asyncio.Task[None]] = set()
        self._first = True

    async def serve(self) -> None:
        """Runs until the client has left, or does not read what it is sent.

        The wire of one that is cancelled stays open: its end has a reason that is not known here.
        """
        sending = asyncio.create_task(self._send())
        receiving = asyncio.create_task(self._receive())
        overflowing = asyncio.create_task(self._outbox.overflowed.wait())
        code, reason, ended = CloseCode.DONE, "", False
        try:
            await asyncio.wait({sending, receiving, overflowing}, return_when=asyncio.FIRST_COMPLETED)
            if overflowing.done():
                code, reason = CloseCode.TOO_SLOW, "too much waits to be read; come back with thread/resume"
            elif receiving.done() and not sending.done():
                await self._finish(sending)
            ended = True
        finally:
            self.door.leave()
            tasks = (sending, receiving, overflowing, *self._waiting)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if ended:
                with suppress(WireClosed):
                    await self._wire.close(code, reason)

    async def _send(self) -> None:
        with suppress(WireClosed):
            await self._outbox.send_to(self._wire)

    async def _finish(self, sending: asyncio.Task[None]) -> None:
        """After the last request: answers what waits, and sends what is left."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await asyncio.gather(*self._waiting, return_exceptions=True)
                self._outbox.close()
                await asyncio.wait({sending})

    # ── in ────────────────────────────────────────────────────────────────────────────────────

    async def _receive(self) -> None:
        while (data := await self._wire.receive()) is not None:
            received = messages.received(data)
            if self._first and not isinstance(received.message, Unreadable):
                self._outbox.versioned, self._first = received.versioned, False
            match received.message:
                case Request() as request:
                    await self._request(request)
                case Answer() as answer:
                    await self._answered(answer)
                case Notification() | Unreadable():
                    pass

    async def _answered(self, answer: Answer) -> None:
        """Takes an answer; a client is told of no error, and what it answered may stay open."""
        try:
            await self.door.answered(answer)
        except Exception:
            _LOG.exception("a client's answer was not taken")

    async def _request(self, request: Request) -> None:
        try:
            method, params = self._checked(request)
        except RpcError as error:
            self._refuse(request, error)
            if error.code == Code.UNKNOWN_METHOD:
                self._warn(request, error.message)
            return
        except Exception:
            self._fail(request)
            return
        if not method.waits:
            with self.door.response_first():
                await self._answer(request, method, params)
        elif len(self._waiting) >= WAITING_MOST:
            self._refuse(
                request, RpcError(f"{WAITING_MOST} requests of this connection wait", Code.OVERLOADED)
            )
        else:
            task = asyncio.create_task(self._answer(request, method, params))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    def _checked(self, request: Request) -> tuple[Method, Params]:
        """The method and its parameters; raises `RpcError` for a request that is not served."""
        name, info = request.method, self.door.info
        method = METHODS.get(name)
        if info is None and not (method is not None and method.before_initialize):
            raise RpcError("Not initialized")
        if method is None:
            raise RpcError(refusal(name), Code.UNKNOWN_METHOD)
        experimental = info is not None and info.experimental
        given = request.params if request.has_params else ABSENT
        try:
            return method, method.checked(name, self.door.principal, given, experimental=experimental)
        except NotPermitted as error:
            raise RpcError(str(error)) from None

    async def _answer(self, request: Request, method: Method, params: Params) -> None:
        try:
            result = await method.answer(self.door, params)
        except RpcError as error:
            self._refuse(request, error)
        except (BrokerError, NotPermitted, MalformedSubmission, OpRefused) as error:
            self._refuse(request, RpcError(str(error)))
        except (ArchiveUnavailable, BrokenArchive) as error:
            self._refuse(request, RpcError(unreadable(error)))
        except Exception:
            self._fail(request)
        else:
            self._outbox.put(messages.response(request.id, dict(result)))

    def _fail(self, request: Request) -> None:
        """Answers a request that met a fault of the server's own; called where that is handled."""
        _LOG.exception("a request failed", extra={"method": request.method})
        why = f"{request.method} failed inside the server; its log says why"
        self._refuse(request, RpcError(why, Code.INTERNAL))

    def _warn(self, request: Request, why: str) -> None:
        """Says in a thread why a call about it is not served: Codex's terminal shows no reason."""
        given = request.params
        thread = given.get("threadId") if isinstance(given, dict) else None
        if isinstance(thread, str) and thread in self.door.subscriptions:
            self.door.notify("warning", {"threadId": thread, "message": why})

    def _refuse(self, request: Request, error: RpcError) -> None:
        why = without_places(error.message) if self.door.principal.is_tenant else error.message
        self._outbox.put(messages.error(request.id, error.code, why))


# ── server ────────────────────────────────────────────────────────────────────────────────────────
# The server of one process: its connections, and the sessions that they hear.


class AppServer:
    """Serves any number of connections; what one of them does holds up no other."""

    def __init__(self, ports: Ports, write: Write = notifications) -> None:
        self._ports = ports
        self.threads = LiveThreads(ports, write)
        """The sessions that are followed, for other doors of the process, too."""

    def connection(self, wire: Wire) -> Connection:
        """A connection, to be served."""
        return Connection(self._ports, self.threads, wire)

    async def serve(self, wire: Wire) -> None:
        """Serves one connection until its client has left."""
        await self.connection(wire).serve()

    async def close(self) -> None:
        """Follows no session any more."""
        await self.threads.close()
