"""The SQ/EQ over TCP and unix sockets: `dendro proto` for clients that are elsewhere, any number of them.

The first line of a connection opens a session or attaches to one; what follows is NDJSON as on standard
input and output, until the client has left.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson

from orchestrator.broker.errors import BrokerError, UnknownSession
from orchestrator.broker.follow import BEGINNING, EqCursor, hash8_of
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import SessionHead
from orchestrator.config_keys import MIB
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.door_ports import BadSetting, NewThread, Ports
from orchestrator.gateways.client import Client
from orchestrator.gateways.fork import to_fork
from orchestrator.gateways.ndjson import LineOptions, NdjsonConnection, Streams
from orchestrator.gateways.principals import NotPermitted, Principal, Scope
from orchestrator.gateways.resume import Greeting, greeting, reattached
from orchestrator.gateways.wires.authentication import Authentication, NotServed, TokenWatch, Unauthenticated
from orchestrator.gateways.wires.byte_wire import HANDSHAKE_S, READ_BYTES, SocketStream, WireClosed
from orchestrator.protocol import events as ev
from orchestrator.protocol.codec import parse_submission, short_id
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.ops import ConfigureSession
from orchestrator.protocol.submission import NO_ID, MalformedSubmission, ProtocolError, Submission
from orchestrator.protocol.wire import UNSET, written
from orchestrator.rollouts import ArchiveUnavailable, BrokenArchive
from orchestrator.views import SetAside, ViewError
from orchestrator.views.event import Event, without_places

_REFUSALS = (
    *(ProtocolError, Unauthenticated, NotPermitted, BadSetting, ViewError, BrokerError),
    *(ArchiveUnavailable, BrokenArchive),
)
FAULT = "the connection failed inside the server; its log says why"
log = logging.getLogger("dendro.sq_eq")


@record
class Attached:
    """A session that a connection has opened or found."""

    session: SessionId
    cursor: EqCursor = BEGINNING
    number: int = 0
    greeting: Greeting | None = None
    """The first lines out; None where the session's own first event is it."""


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
        except Exception:
            log.exception("a connection failed")
            await _error(stream, id, FAULT)

    async def _session(
        self, stream: SocketStream, rest: bytes, first: FirstLine, principal: Principal
    ) -> None:
        client = self._ports.client(principal, "sq-eq")
        if first.client is not None:
            client.client_id = _client_id(principal, first.client)
        attached = await self._attached(client, principal, first)
        options = _options(first, attached)
        streams = Streams(_after(rest, stream.read), stream.write)
        connection = NdjsonConnection(client, attached.session, streams, self._line_limit, options)
        if attached.greeting is not None:
            await stream.write(attached.greeting.lines({"seq": attached.number} if first.with_seq else {}))
        if first.changes_settings:
            op = first.op.model_copy(update=DONE_WITH)
            await client.submit(attached.session, replace(first.submission, op=op))
        await connection.serve(attached.cursor)

    async def _attached(self, client: Client, principal: Principal, first: FirstLine) -> Attached:
        if first.op.session_id is None:
            principal.require(Scope.SUBMIT, "a new session")
            wish = NewThread(cwd=first.op.cwd, workspace=first.op.workspace)
            if first.forked_from is not None:
                return await self._forked(client, principal, wish, first.forked_from, first.last_response)
            made = await self._ports.create(client, principal, wish)
            return Attached(made.head.session)
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
        if (end if end >= 0 else len(read)) > FIRST_LINE_LIMIT:
            raise MalformedSubmission(
                f"the first line has more than {FIRST_LINE_LIMIT} bytes: long texts go into a later one"
            )
        if end >= 0:
            return bytes(read[:end]), bytes(read[end + 1 :])
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


# ── places ────────────────────────────────────────────────────────────────────────────────────────
# Places in a session's events as one number, which a client keeps and comes back with.
#
# The number of the event in the EQ, and behind it, in eight digits, the entry of the log that it belongs
# to: the first finds it again while the EQ keeps it, the second afterwards. It grows from event to event.


STEP = 100_000_000
MOST = 1 << 53
"""Any program that reads JSON keeps a smaller number."""
NOT_THERE = "0" * 8
"""A hash that no entry has: following from there tells of the gap."""


def number_of(cursor: EqCursor) -> int:
    """The number of a cursor."""
    return cursor.n * STEP + cursor.seq


def number_after(event: Event, before: int) -> int:
    """The number of an event that follows the one with the number `before`."""
    if event.cursor is not None:
        return number_of(event.cursor)
    # Read from the log in the place of events that are gone, or a warning about them.
    return max(before, before // STEP * STEP + event.seq)


async def cursor_of(logs: Logs, head: SessionHead, number: int) -> EqCursor:
    """The cursor that a client's number means, wherever the session stands by now."""
    n, seq = divmod(number, STEP)
    if number == 0:
        return BEGINNING
    if n > head.eq_n or seq > head.seq:
        return EqCursor(n, seq, NOT_THERE)
    kept = await logs.read_eq(head.session, n - 1, 2) if n else ()
    if kept and (kept[0].n, kept[0].seq) == (n, seq):
        return EqCursor(n, seq, kept[0].hash8)
    if any(event.n == n + 1 and event.seq <= seq for event in kept):
        # Redis went back: the next event belongs to an entry that the client is behind already.
        return EqCursor(n, seq, NOT_THERE)
    entries = await logs.read_rollout(head.session, seq - 1, 1) if seq else ()
    if entries and entries[0].seq == seq:
        return EqCursor(n, seq, hash8_of(entries[0].chain))
    return EqCursor(n, seq, NOT_THERE)


# ── first line ────────────────────────────────────────────────────────────────────────────────────
# The first line of a connection: who speaks, which session is meant, and how it is to be told.
#
#     {"id": "1", "op": {"type": "configure_session", "session_id": …}, "auth": …, "last_event": …}
#
# Pure: bytes in, a record out.


FIRST_LINE_LIMIT = MIB
"""It is read before anybody knows who sends it."""
MOST_NAME = 200
MOST_ID = 1_024
SAME = frozenset({"type", "session_id", "cwd", "workspace"})
"""Fields that are done with when the session is there."""
DONE_WITH: Mapping[str, None] = dict.fromkeys(SAME - {"type"})
"""Of one that works elsewhere, or in a copy, the client's folder is none; to come back changes no folder."""


@record
class FirstLine:
    """The wish that begins a connection."""

    submission: Submission
    op: ConfigureSession
    auth: str | None = None
    last_event: int | None = None
    """The `seq` of the last event that the client has; None for all from the beginning."""
    with_seq: bool = False
    client: str | None = None
    """The client's name for itself: what it sends again after a lost connection counts once."""
    forked_from: str | None = None
    """The session that a new one goes on from."""
    last_response: str | None = None
    """The response that ended the turn to go on from; None for where the other session stands."""

    @property
    def changes_settings(self) -> bool:
        """Whether it sets more than where the session works."""
        return bool(self.op.model_fields_set - SAME)


def parse_first_line(line: bytes) -> FirstLine:
    """Reads it; raises `MalformedSubmission`. The fields beside `op` may stand in it, too."""
    submission = parse_submission(line)
    id, op = submission.id, submission.op
    if not isinstance(op, ConfigureSession):
        raise MalformedSubmission(
            "the first line of a connection is a configure_session, with the session_id of the session to "
            "attach to, or without one for a new session",
            id,
        )
    frame = orjson.loads(line)
    more: Mapping[str, Any] = {**frame["op"], **frame}
    last, name = more.get("last_event"), more.get("client")
    if last is not None and (type(last) is not int or not 0 <= last < MOST):
        raise MalformedSubmission("last_event: the seq of an event line is expected", id)
    if last is not None and op.session_id is None:
        raise MalformedSubmission("last_event: it needs the session_id that the event is of", id)
    if name is not None and not (isinstance(name, str) and 0 < len(name) <= MOST_NAME):
        raise MalformedSubmission(f"client: a text of 1 to {MOST_NAME} characters is expected", id)
    auth = more.get("auth")
    if auth is not None and not isinstance(auth, str):
        raise MalformedSubmission("auth: a token is expected", id)
    numbered = more.get("with_seq")
    if numbered is not None and type(numbered) is not bool:
        raise MalformedSubmission("with_seq: true or false is expected", id)
    source, response = _fork(more, id, op)
    return FirstLine(submission, op, auth, last, numbered is True, name, source, response)


def _fork(more: Mapping[str, Any], id: SubmissionId, op: ConfigureSession) -> tuple[str | None, str | None]:
    """The session to fork and the response at whose end; raises `MalformedSubmission`."""
    source, response = more.get("forked_from_id"), more.get("last_response_id")
    for name, value in (("forked_from_id", source), ("last_response_id", response)):
        if value is not None and not (isinstance(value, str) and 0 < len(value) <= MOST_ID):
            raise MalformedSubmission(f"{name}: a text of 1 to {MOST_ID} characters is expected", id)
    if source is not None and op.session_id is not None:
        raise MalformedSubmission(
            "forked_from_id: a fork is a new session: leave session_id out, or attach without a fork", id
        )
    if source is not None and op.workspace is not None:
        raise MalformedSubmission("workspace: a fork works where its source does, or in `cwd`", id)
    if response is not None and source is None:
        raise MalformedSubmission(
            "last_response_id: a new session needs the forked_from_id of the session whose turn it names; "
            "a session that you attach to takes it with a user_input",
            id,
        )
    return source, response
