"""The door of the window: pages, sign-in, the methods of the app-server over HTTP, and the stream.

Each request says who it is: by the cookie of a browser that signed in, or by a program's token. The kernel's
word for a process of this machine does not count here: a browser cannot be told from a sandboxed command.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

import orjson
from pydantic import Field, ValidationError
from starlette import types as asgi
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Send

from orchestrator.broker.errors import BrokerError, Unavailable, UnknownSession
from orchestrator.broker.records import SessionHead
from orchestrator.config_keys import MIB
from orchestrator.core.frozen import record
from orchestrator.gateways.app_server import messages
from orchestrator.gateways.app_server.door import ClientInfo, Door, WasDeleted, head_of
from orchestrator.gateways.app_server.door_ports import Ports
from orchestrator.gateways.app_server.live_threads import LiveThreads
from orchestrator.gateways.app_server.method import Method, Params
from orchestrator.gateways.app_server.methods import METHODS, refusal
from orchestrator.gateways.app_server.outbox import Outbox
from orchestrator.gateways.principals import NotPermitted, Principal, Scope
from orchestrator.gateways.submit import OpRefused
from orchestrator.gateways.window.feeds import TOPICS, Feeds, deleted_json
from orchestrator.gateways.window.pages import KEPT, File, Pages
from orchestrator.gateways.window.sign_in import KEY, NotSignedIn, Windows
from orchestrator.gateways.window.stream import (
    THREAD,
    Asked,
    LogChannel,
    StateChannel,
    Stream,
    ThreadSeat,
    TooMuch,
    topics_of,
)
from orchestrator.gateways.wires.addresses import bearer
from orchestrator.gateways.wires.authentication import Crowded, Revoked, TokenWatch
from orchestrator.gateways.wires.byte_wire import HANDSHAKE_S
from orchestrator.protocol.submission import MalformedSubmission
from orchestrator.protocol.wire import JsonMapping, JsonObject, JsonValue
from orchestrator.rollouts import ArchiveUnavailable, BrokenArchive
from orchestrator.rollouts.export import Tally, exported, header_of
from orchestrator.views.event import without_places

MOST_BODY: Final = MIB
MOST_LOGIN: Final = 16 << 10
COOKIE: Final = "dendro"
SECURE_COOKIE: Final = "__Host-dendro"
KEY_HEADER: Final = "dendro-key"
API: Final = "/api/"
STREAM: Final = "/api/stream"
EXPORT: Final = "/api/export"
LOOK_S: Final = 0.5
"""Between two looks whether Redis is there, while a request waits."""
AWAY_S: Final = 3.0
"""A request waits so long before Redis counts as away."""
log = logging.getLogger("dendro.window")


class Refused(Exception):
    """A request that is answered by an error."""

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        code: int = messages.Code.REFUSED,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.headers = headers or {}


class Ended(Refused):
    """The token of a request that is served has ended."""


MOST_WRONG: Final = 10
WRONG_S: Final = 60.0
"""So many wrong sign-ins of one address are taken in so long."""
MOST_ADDRESSES: Final = 10_000
SAME: Final = "same-origin"
CALLS_END: Final = (
    *(messages.RpcError, BrokerError, NotPermitted, MalformedSubmission, OpRefused),
    *(ArchiveUnavailable, BrokenArchive),
)
"""Errors by which a call is refused; any other one is a fault of the server's."""
T = TypeVar("T")
FOREIGN: Final = (
    "only the window's own page may ask with its cookie: a program comes with Authorization: Bearer"
)
FAULT: Final = "the request failed inside the server; its log says why"
SIGN_IN: Final = "sign in first: with a code (dendro token code), or with a token"
AWAY: Final = "Redis does not answer: what was asked may have counted; look again when it is back"


@record
class Seen:
    """The one who asks."""

    principal: Principal
    browser: str = ""
    """The id of a browser's token; empty for a program."""


@dataclass(slots=True)
class JsonAnswer:
    """The result of a method, as soon as there is one."""

    value: JsonObject = field(default_factory=dict)


@record
class WindowPorts:
    """The parts of its gateway that the window needs."""

    ports: Ports
    threads: LiveThreads
    tokens: Callable[[str], Awaitable[Principal | None]]
    windows: Windows
    watch: TokenWatch
    is_ready: Callable[[], bool]
    monotonic: Callable[[], float] = field(default=time.monotonic)


class Window:
    """The ASGI application."""

    def __init__(self, given: WindowPorts, pages: Pages) -> None:
        self._given = given
        self._pages = pages
        self._tries = Tries(given.monotonic)
        self.headers = pages.headers
        self.feeds = Feeds(given.ports)
        self._leaving = asyncio.Event()
        self._exports = 0
        """Those that are under way."""

    def leave(self) -> None:
        """Ends all streams."""
        self._leaving.set()

    async def __call__(self, scope: asgi.Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            if scope["path"] == STREAM and request.method == "GET":
                await self._stream(request, send)
                return
            if scope["path"] == EXPORT and request.method == "POST":
                await self._export(request, send)
                return
            answer = await self._answer(request)
        except Refused as refused:
            answer = self._error(refused)
        except ClientDisconnect:
            return
        except Exception:
            log.exception("a request of the window failed", extra={"path": scope["path"][:100]})
            answer = self._error(Refused(HTTPStatus.INTERNAL_SERVER_ERROR, FAULT, messages.Code.INTERNAL))
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        if path.startswith(API):
            return await self._api(request, path.removeprefix(API))
        if request.method not in ("GET", "HEAD"):
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", headers={"allow": "GET, HEAD"})
        if self._pages.is_page(path):
            return _sent(request, self._pages.index, "no-cache")
        if (file := self._pages.found(path)) is not None:
            return _sent(request, file, KEPT)
        raise Refused(HTTPStatus.NOT_FOUND, "there is no such page: / is the first one")

    async def _api(self, request: Request, name: str) -> Response:
        if request.method != "POST":
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "only POST", headers={"allow": "POST"})
        _check_json(request)
        if name == "login":
            return await self._login(request)
        seen = await self._seen(request)
        if name == "logout":
            return await self._logout(request, seen)
        method, told = _method(name), JsonAnswer()
        given = await _body(request, MOST_BODY)

        async def serving() -> None:
            told.value = await self._called(name, method, seen.principal, given)

        await self._while_it_counts(seen.principal, serving())
        return _json(told.value)

    async def _while_it_counts(self, principal: Principal, serving: Coroutine[Any, Any, None]) -> None:
        """Serves as long as the principal's token counts; raises `Ended` where that ends before."""
        try:
            await self._given.watch.serve(principal, serving)
        except Crowded as error:
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, str(error), messages.Code.OVERLOADED) from None
        except Revoked as error:
            raise Ended(HTTPStatus.UNAUTHORIZED, str(error)) from None

    # ── who asks ──────────────────────────────────────────────────────────────────────────────

    async def _seen(self, request: Request) -> Seen:
        """The one who asks; raises `Refused`."""
        given = request.headers.getlist("authorization")
        if given:
            token = bearer({"authorization": given})
            holder = await self._patiently(self._given.tokens(token)) if token else None
            if holder is None:
                raise Refused(HTTPStatus.UNAUTHORIZED, "the token is not known, or its time is over")
            return Seen(holder)
        cookie = request.cookies.get(SECURE_COOKIE) or request.cookies.get(COOKIE) or ""
        key = request.headers.get(KEY_HEADER, "")
        found = await self._patiently(self._given.windows.record(cookie, key)) if cookie else None
        if found is None:
            raise Refused(HTTPStatus.UNAUTHORIZED, SIGN_IN)
        _check_origin(request)
        return Seen(found.principal, found.id)

    async def _login(self, request: Request) -> Response:
        _check_origin(request)
        address = request.client.host if request.client is not None else ""
        asked = Login.of(await _body(request, MOST_LOGIN))
        if (wait_s := self._tries.wait_s(address)) > 0:
            headers = {"retry-after": str(int(wait_s) + 1)}
            text = f"{MOST_WRONG} wrong tries from this address: wait {int(wait_s) + 1} s"
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, text, messages.Code.OVERLOADED, headers)
        # Counted before it is looked at: many at once are no way around the bound, nor are those whose
        # bodies come late.
        counted = self._tries.count(address)
        windows = self._given.windows
        signing = windows.sign_in_by_token if asked.is_token else windows.sign_in_by_code
        try:
            text, found = await self._patiently(signing(asked.text, asked.key))
        except NotSignedIn as error:
            log.info("a sign-in was refused", extra={"address": address})
            raise Refused(HTTPStatus.UNAUTHORIZED, str(error)) from None
        except Refused:
            self._tries.forgive(address, counted)
            raise
        self._tries.forgive(address, counted)
        principal, until_ms = found.principal, found.expires_ms or 0
        log.info("a browser has signed in", extra={"who": principal.name, "address": address})
        told = {
            "who": principal.name,
            "scope": principal.scope.word,
            "namespace": principal.namespace,
            "expiresAtMs": until_ms,
        }
        answer = _json(told)
        left_s = max(0, until_ms - self._given.ports.now_ms()) // 1000
        _set_cookie(request, answer, text, left_s)
        return answer

    async def _logout(self, request: Request, seen: Seen) -> Response:
        if not seen.browser:
            raise Refused(HTTPStatus.CONFLICT, "a token is ended by dendro token revoke")
        await self._patiently(self._given.windows.sign_out(seen.browser))
        answer = _json({})
        _set_cookie(request, answer, "", 0)
        with suppress(BrokerError):
            await self._given.watch.look()
        return answer

    # ── methods ───────────────────────────────────────────────────────────────────────────────

    async def _called(self, name: str, method: Method, principal: Principal, given: JsonValue) -> JsonObject:
        """The result of a method; raises `Refused`."""
        ports = self._given.ports
        info = ClientInfo("dendro-window", ports.version, experimental=True)
        door = Door(ports, self._given.threads, principal, Outbox(), info, via="window")
        try:
            params = method.checked(name, principal, given, experimental=True)
            if getattr(params, "ephemeral", False):
                raise messages.bad_params(
                    "ephemeral: such a thread lasts as long as a connection, and here is none"
                )
            return dict(await self._patiently(method.answer(door, params)))
        except CALLS_END as error:
            refused = refused_by(error)
            if principal.is_tenant:
                refused.message = without_places(refused.message)
            raise refused from None
        finally:
            door.leave()

    # ── stream ────────────────────────────────────────────────────────────────────────────────

    async def _stream(self, request: Request, send: Send) -> None:
        """Sends events until the window leaves, its token ends, or the gateway does."""
        _check_site(request)
        seen = await self._seen(request)
        try:
            asked = topics_of(request.query_params.getlist("topic"))
        except ValueError as error:
            raise _bad(str(error)) from None
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]

        async def serving() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._told(request, seen.principal, asked, send)

        with suppress(Ended):
            await self._while_it_counts(seen.principal, serving())
        with suppress(RuntimeError):
            # The answer may be over already: a window that was dropped gets no end.
            await send({"type": "http.response.body", "body": b""})

    async def _told(self, request: Request, reader: Principal, asked: Sequence[Asked], send: Send) -> None:
        stream = Stream(self._given.monotonic)
        leaves: list[Callable[[], None]] = []

        async def body(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        sending = asyncio.create_task(stream.run(body))
        ends = (
            sending,
            asyncio.create_task(_left(request)),
            asyncio.create_task(self._leaving.wait()),
        )
        try:
            for each in asked:
                leaves += [await self._joined(each, reader, stream)]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for leave in leaves:
                leave()
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            if not sending.cancelled() and isinstance(sending.exception(), TooMuch):
                request.scope["state"]["abort"]()

    async def _joined(self, asked: Asked, reader: Principal, stream: Stream) -> Callable[[], None]:
        """Lets a stream hear a topic; the answer ends that. One that is not there is told as gone.

        Raises `Unavailable`.
        """
        told: JsonObject
        try:
            if asked.name == THREAD:
                return await self._thread(asked, reader, stream)
            topic = TOPICS[asked.name]
            await topic.check(self._given.ports, reader, asked.named)
        except (messages.RpcError, UnknownSession) as error:
            told = {"type": "gone", **(deleted_json(error.found) if isinstance(error, WasDeleted) else {})}
        except Unavailable:
            raise
        except Exception as error:
            # One topic that cannot be told must not silence the others.
            if not isinstance(error, CALLS_END):
                log.exception("a topic of the window cannot be told", extra={"topic": asked.topic[:100]})
            why = refused_by(error).message if isinstance(error, CALLS_END) else FAULT
            told = {
                "type": "error",
                "error": {"message": without_places(why) if reader.is_tenant else why},
            }
        else:
            state = StateChannel(asked.topic, topic, reader, stream.news)
            stream.add(state)
            return self.feeds.join(asked.name, asked.named, reader, state)
        channel = LogChannel(asked.topic, stream.news)
        stream.add(channel)
        channel.say("", told)
        return _nothing

    async def _thread(self, asked: Asked, reader: Principal, stream: Stream) -> Callable[[], None]:
        channel = LogChannel(asked.topic, stream.news)
        client = self._given.ports.client(reader, "window")
        head = await head_of(client, asked.named, messages.no_rollout)
        session = head.session
        stream.add(channel)
        seat = ThreadSeat(channel, client)
        try:
            await seat.begin(self._given.threads, head, asked.place)
        except BaseException:
            self._given.threads.leave(session, seat)
            raise

        def leave() -> None:
            seat.leave()
            self._given.threads.leave(session, seat)

        return leave

    # ── export ────────────────────────────────────────────────────────────────────────────────

    async def _export(self, request: Request, send: Send) -> None:
        """Sends a log as a file; one that breaks off, for whatever reason, ends its connection."""
        _check_json(request)
        seen = await self._seen(request)
        given = await _body(request, MOST_BODY)
        ports = self._given.ports
        try:
            export = await self._patiently(export_of(ports, seen.principal, given))
        except (messages.RpcError, BrokerError, NotPermitted) as error:
            raise refused_by(error) from None
        if self._exports >= MOST_AT_ONCE:
            text = f"{MOST_AT_ONCE} logs are exported at this gateway: wait for one to end"
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, text, messages.Code.OVERLOADED, {"retry-after": "10"})
        headers = [
            (b"content-type", b"application/x-ndjson"),
            (b"content-disposition", f'attachment; filename="{export.name}"'.encode()),
            (b"cache-control", b"no-store"),
        ]

        async def serving() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async with aclosing(export.lines(ports)) as lines:
                async for piece in lines:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        self._exports += 1
        sending = asyncio.create_task(self._while_it_counts(seen.principal, serving()))
        ends = (sending, asyncio.create_task(_left(request)), asyncio.create_task(self._leaving.wait()))
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._exports -= 1
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        fault = None if sending.cancelled() else sending.exception()
        if isinstance(fault, Refused) and not isinstance(fault, Ended):
            raise fault
        if fault is not None and not isinstance(fault, Ended):
            log.error("an export broke off", exc_info=fault)
        if fault is not None or sending.cancelled():
            request.scope["state"]["abort"]()

    async def _patiently(self, work: Awaitable[T]) -> T:
        """Waits for some work as long as Redis answers; raises `Refused` where it does not."""
        task = asyncio.ensure_future(work)
        waited_s = 0.0
        try:
            while not (await asyncio.wait((task,), timeout=LOOK_S))[0]:
                waited_s += LOOK_S
                # A machine that is busy answers late, too.
                if waited_s >= AWAY_S and not self._given.is_ready():
                    raise away()
            return task.result()
        except Unavailable:
            raise away() from None
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _error(self, refused: Refused) -> Response:
        answer = _json({"error": {"code": int(refused.code), "message": refused.message}}, refused.status)
        answer.headers.update(refused.headers)
        return answer


def _nothing() -> None:
    """Ends nothing."""


async def _left(request: Request) -> None:
    """Returns when the window has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def away() -> Refused:
    """Redis does not answer."""
    return Refused(HTTPStatus.SERVICE_UNAVAILABLE, AWAY, messages.Code.INTERNAL, {"retry-after": "2"})


def refused_by(error: Exception) -> Refused:
    """The answer to a call that ended so: a status for each kind, and the code of JSON-RPC."""
    match error:
        case messages.NotThere():
            return Refused(HTTPStatus.NOT_FOUND, error.message, error.code)
        case messages.NotMeant():
            return Refused(HTTPStatus.FORBIDDEN, error.message, error.code)
        case messages.RpcError(code=messages.Code.BAD_PARAMS):
            return Refused(HTTPStatus.BAD_REQUEST, error.message, error.code)
        case messages.RpcError(code=messages.Code.UNKNOWN_METHOD):
            return Refused(HTTPStatus.NOT_FOUND, error.message, error.code)
        case messages.RpcError():
            return Refused(HTTPStatus.CONFLICT, error.message, error.code)
        case NotPermitted():
            return Refused(HTTPStatus.FORBIDDEN, str(error))
        case MalformedSubmission():
            return Refused(HTTPStatus.BAD_REQUEST, str(error), messages.Code.BAD_PARAMS)
        case UnknownSession():
            return Refused(HTTPStatus.NOT_FOUND, str(error))
        case Unavailable():
            return away()
        case ArchiveUnavailable() | BrokenArchive():
            return Refused(HTTPStatus.CONFLICT, messages.unreadable(error))
        case _:
            return Refused(HTTPStatus.CONFLICT, str(error))


# ── requests ──────────────────────────────────────────────────────────────────────────────────────


@record
class Login:
    """The code or token that a browser comes with, and its key."""

    text: str
    is_token: bool
    key: str = ""

    @classmethod
    def of(cls, given: JsonValue) -> Login:
        """Raises `Refused` for what is no sign-in."""
        value = given if isinstance(given, dict) else {}
        named = [name for name in ("code", "token") if name in value]
        text, key = (value.get(named[0]) if len(named) == 1 else None), value.get("key", "")
        if not isinstance(text, str) or not text:
            raise _bad("code, token: one of them is expected, as text")
        if not isinstance(key, str) or (key and not KEY.fullmatch(key)):
            raise _bad("key: 22 to 128 letters, digits, - and _ are expected")
        return cls(text, named[0] == "token", key)


class Tries:
    """The wrong sign-ins of each address in the last minute."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._at: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """The seconds until this address may try again; 0 where it may now."""
        tried, now = self._at.get(address, deque()), self._monotonic()
        while tried and now - tried[0] >= WRONG_S:
            tried.popleft()
        return tried[0] + WRONG_S - now if len(tried) >= MOST_WRONG else 0.0

    def count(self, address: str) -> float:
        """Counts a try, which is wrong until it is forgiven."""
        now = self._monotonic()
        self._at.setdefault(address, deque(maxlen=MOST_WRONG)).append(now)
        self._at.move_to_end(address)
        if len(self._at) > MOST_ADDRESSES:
            self._at.popitem(last=False)
        return now

    def forgive(self, address: str, counted: float) -> None:
        """Takes a try back that was right."""
        with suppress(KeyError, ValueError):
            self._at[address].remove(counted)


def _method(name: str) -> Method:
    """The method of this name that a request may call; raises `Refused`."""
    found = METHODS.get(name)
    if found is None or found.before_initialize:
        raise Refused(HTTPStatus.NOT_FOUND, refusal(name), messages.Code.UNKNOWN_METHOD)
    if found.of_connection:
        text = f"{name} belongs to a connection: GET /api/stream?topic=thread:ID tells of a thread"
        raise Refused(HTTPStatus.NOT_FOUND, text, messages.Code.UNKNOWN_METHOD)
    return found


async def _body(request: Request, most: int) -> JsonValue:
    """The JSON of a request; raises `Refused`."""
    content = bytearray()
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            async for piece in request.stream():
                content += piece
                if len(content) > most:
                    text = f"a request has at most {most:,} bytes"
                    raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text, headers={"connection": "close"})
    except TimeoutError:
        raise Refused(HTTPStatus.REQUEST_TIMEOUT, "the request did not come to its end") from None
    try:
        value: JsonValue = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise _bad("the body is no JSON") from None
    return value


def _bad(why: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, f"Invalid params: {why}", messages.Code.BAD_PARAMS)


def _check_json(request: Request) -> None:
    """Raises `Refused` for a call that is no JSON, or that another site's page makes."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type: application/json is expected")
    _check_site(request)


def _check_site(request: Request) -> None:
    """Raises `Refused` for what a browser says comes from another site's page."""
    if request.headers.get("sec-fetch-site", SAME) != SAME:
        raise Refused(HTTPStatus.FORBIDDEN, FOREIGN)


def _check_origin(request: Request) -> None:
    """Raises `Refused` for a browser's request that does not say that the window's page made it.

    An `Origin` that is sent was looked at by the listener. A browser sends none with a GET of its own page.
    """
    if "origin" in request.headers or (request.method == "GET" and "sec-fetch-site" in request.headers):
        return
    raise Refused(HTTPStatus.FORBIDDEN, FOREIGN)


def _set_cookie(request: Request, answer: Response, text: str, seconds: int) -> None:
    secure = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")
    answer.set_cookie(
        SECURE_COOKIE if secure else COOKIE,
        text,
        max_age=seconds,
        path="/",
        secure=secure,
        httponly=True,
        samesite="strict",
    )


def _json(value: JsonMapping, status: HTTPStatus = HTTPStatus.OK) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(orjson.dumps(value), status, headers, media_type="application/json")


def _sent(request: Request, file: File, kept: str) -> Response:
    headers = {"cache-control": kept, "vary": "accept-encoding"}
    if file.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.packed, 200, {**headers, "content-encoding": "gzip"}, file.type)
    return Response(file.content, 200, headers, file.type)


# ── export ────────────────────────────────────────────────────────────────────────────────────────
# The export of a log over HTTP: the lines that `dendro export` writes, as they are read.


MOST_AT_ONCE: Final = 2
"""Exports of a gateway at the same time: a log is as long as it has grown."""
_OTHERS: Final = "a log tells folders and commands of the machine: its export is for the machine's user"
_WHOLE: Final = "the export of every entry"


class ExportWish(Params):
    """A thread, and whether every entry is wanted, as `dendro export --full` writes them."""

    thread_id: Annotated[str, Field(max_length=1_024)]
    full: bool = False


@record
class Export:
    """A log that is to be sent."""

    head: SessionHead
    full: bool

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{'session' if self.full else 'rollout'}-{self.head.session}.jsonl"

    async def lines(self, ports: Ports) -> AsyncGenerator[bytes, None]:
        """The file as it is read; raises `RolloutError` if the log is not all there."""
        if self.full:
            yield header_of(self.head, ports.key_id).encode(ports.found.secret) + b"\n"
        async for lines in exported(ports.found, self.head, self.full, Tally()):
            if lines:
                yield lines


async def export_of(ports: Ports, principal: Principal, given: JsonValue) -> Export:
    """The export that is asked for; raises `RpcError`, `NotPermitted`, `BrokerError`."""
    principal.require(Scope.APPROVE, "export")
    if principal.is_tenant:
        raise messages.NotMeant(_OTHERS)
    if not isinstance(given, dict):
        raise messages.bad_params("an object is expected")
    try:
        wish = ExportWish.model_validate(given)
    except ValidationError as error:
        raise messages.invalid(error) from None
    if wish.full:
        principal.require(Scope.ADMIN, _WHOLE)
    head = await head_of(ports.client(principal, "window"), wish.thread_id, messages.no_rollout)
    return Export(head, wish.full)
