"""The door of a connection: its first line, its session, then NDJSON until its client has left."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

import orjson

from orchestrator.broker.errors import BrokerError, UnknownSession
from orchestrator.broker.follow import BEGINNING, EqCursor
from orchestrator.broker.records import SessionHead
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.ports import BadSetting, NewThread, Ports
from orchestrator.gateways.client import Client
from orchestrator.gateways.fork import to_fork
from orchestrator.gateways.ndjson import LineOptions, NdjsonConnection, Streams
from orchestrator.gateways.principals import NotPermitted, Principal, Scope
from orchestrator.gateways.resume import Greeting, greeting, reattached
from orchestrator.gateways.sq_eq.first_line import FIRST_LINE_LIMIT, FirstLine, parse_first_line
from orchestrator.gateways.sq_eq.places import cursor_of, number_after, number_of
from orchestrator.gateways.wires.authentication import Authentication, NotServed, TokenWatch, Unauthenticated
from orchestrator.gateways.wires.streams import READ_BYTES, SocketStream
from orchestrator.gateways.wires.wire import HANDSHAKE_S, WireClosed
from orchestrator.protocol import events as ev
from orchestrator.protocol.codec import short_id
from orchestrator.protocol.submission import NO_ID, MalformedSubmission, ProtocolError
from orchestrator.protocol.wire import UNSET, written
from orchestrator.views.errors import SetAside, ViewError
from orchestrator.views.for_tenants import without_places

_REFUSALS = (ProtocolError, Unauthenticated, NotPermitted, BadSetting, ViewError, BrokerError)


@record
class Attached:
    """A session that a connection has opened or found."""

    session: SessionId
    cursor: EqCursor = BEGINNING
    number: int = 0
    greeting: Greeting | None = None
    """The first lines out; None where the session's own first event is it."""
    begun_portable: bool = False
    """Whether it was made just now, with a folder that is a copy."""


class SqEqDoor:
    """Serves connections of lines; what one of them does holds up no other."""

    def __init__(
        self, ports: Ports, authentication: Authentication, watch: TokenWatch, line_limit: int
    ) -> None:
        self._ports = ports
        self._authentication = authentication
        self._watch = watch
        self._line_limit = line_limit

    async def serve(self, stream: SocketStream) -> None:
        """Serves one connection until its client has left, or its session has shut down."""
        id, is_tenant = NO_ID, False
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                line, rest = await _first_line(stream)
            if not line:
                return
            first = parse_first_line(line)
            id = first.submission.id
            principal = await self._authentication.principal(first.auth, stream.socket)
            is_tenant = principal.is_tenant
            await self._watch.serve(principal, self._session(stream, rest, first, principal))
        except TimeoutError:
            await _error(stream, id, f"no first line within {HANDSHAKE_S:g} s: the connection ends")
        except NotServed as error:
            await _error(stream, id, str(error))
        except _REFUSALS as error:
            at = error.submission_id if isinstance(error, MalformedSubmission) else id
            await _error(stream, at, without_places(str(error)) if is_tenant else str(error))
        except WireClosed:
            pass

    async def _session(
        self, stream: SocketStream, rest: bytes, first: FirstLine, principal: Principal
    ) -> None:
        client = self._ports.client(principal)
        if first.client is not None:
            client.client_id = _client_id(principal, first.client)
        attached = await self._attached(client, principal, first)
        options = _options(first, attached)
        streams = Streams(_after(rest, stream.read), stream.write)
        connection = NdjsonConnection(client, attached.session, streams, self._line_limit, options)
        if attached.greeting is not None:
            await stream.write(attached.greeting.lines({"seq": attached.number} if first.with_seq else {}))
        if first.changes_settings:
            op = first.op.model_copy(update=_done_with(portable=attached.begun_portable))
            await client.submit(attached.session, replace(first.submission, op=op))
        await connection.serve(attached.cursor)

    async def _attached(self, client: Client, principal: Principal, first: FirstLine) -> Attached:
        if first.op.session_id is None:
            principal.require(Scope.SUBMIT, "a new session")
            wish = NewThread(cwd=first.op.cwd, workspace=first.op.workspace)
            if first.forked_from is not None:
                return await self._forked(client, principal, wish, first.forked_from, first.last_response)
            made = await self._ports.create(client, principal, wish)
            return Attached(made.head.session, begun_portable=made.portable)
        principal.require(Scope.READ, "a session")
        head = await _head(client, first.op.session_id)
        if first.last_event is not None:
            cursor = await cursor_of(self._ports.found.broker.logs, head, first.last_event)
            told = await reattached(self._ports.found, head, await client.history(), cursor)
            return Attached(head.session, cursor, first.last_event, told)
        return await self._greeted(client, head)

    async def _forked(
        self, client: Client, principal: Principal, wish: NewThread, text: str, at: str | None
    ) -> Attached:
        source = await to_fork(self._ports.found, (await _head(client, text)).session, at)
        born = await self._ports.fork(client, principal, source, wish)
        return await self._greeted(client, born.head)

    async def _greeted(self, client: Client, head: SessionHead) -> Attached:
        told = await greeting(self._ports.found, head, await client.history())
        return Attached(head.session, told.cursor, number_of(told.cursor), told)


def _done_with(*, portable: bool) -> dict[str, None]:
    """The fields that the session was made with: what is in a portable folder has another path there."""
    return dict.fromkeys(("session_id", "workspace", "cwd") if portable else ("session_id",))


async def _head(client: Client, text: str) -> SessionHead:
    try:
        head = await client.head(SessionId(str(UUID(text))))
    except ValueError:
        head = None
    if head is None:
        raise UnknownSession(short_id(text))
    if head.quarantined:
        raise SetAside(head.session)
    return head


def _options(first: FirstLine, attached: Attached) -> LineOptions:
    numbers = number_after if first.with_seq else None
    return LineOptions(numbers, attached.number, first_line=2)


def _client_id(principal: Principal, name: str) -> str:
    """The same for one client of one principal, whichever gateway it reaches, and nobody else's."""
    whole = "\0".join((principal.namespace, principal.name, name))
    return f"named-{hashlib.sha256(whole.encode(errors='surrogatepass')).hexdigest()[:32]}"


async def _first_line(stream: SocketStream) -> tuple[bytes, bytes]:
    """The first line that says something, and what was read behind it; empty at the end of input."""
    read = bytearray()
    while data := await stream.read(READ_BYTES):
        start = len(read)
        read += data if start else data.lstrip()
        end = read.find(b"\n", start)
        if end >= 0:
            return bytes(read[:end]), bytes(read[end + 1 :])
        if len(read) > FIRST_LINE_LIMIT:
            raise MalformedSubmission(
                f"the first line has more than {FIRST_LINE_LIMIT} bytes: long texts go into a later one"
            )
    return bytes(read), b""


Read = Callable[[int], Awaitable[bytes]]


def _after(rest: bytes, read: Read) -> Read:
    """Reads `rest` first."""
    waiting = [rest] if rest else []

    async def next_bytes(limit: int) -> bytes:
        return waiting.pop() if waiting else await read(limit)

    return next_bytes


async def _error(stream: SocketStream, id: str, message: str) -> None:
    event = ev.Error(message=message, codex_error_info=UNSET)
    with suppress(WireClosed):
        await stream.write(orjson.dumps({"id": id, "msg": written(event)}) + b"\n")
