"""The stub's HTTP face: `POST /v1/responses`, `POST /v1/chat/completions`, `GET /requests`, `GET /health`.

Loopback only. It streams what the script answers, at the configured pace, and produces the
faults that a step asks for. What to answer is the script's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import socket
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NoReturn, assert_never

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.stub import answers

# ── render ────────────────────────────────────────────────────────────────────────────────────────
# A chosen answer as the bytes of a Responses stream.
#
# Pure. Deltas are cut as the recorded conversations show them: text into three parts of ceil(n/3)
# characters, reasoning into two at n//2 after a section break, empty parts left out, one SSE event each.


_DELTA_TYPES = frozenset({"response.output_text.delta", "response.reasoning_summary_text.delta"})


@dataclass(frozen=True, slots=True)
class Frame:
    """An SSE event; a delta may be slowed down."""

    payload: bytes
    is_delta: bool = False


@dataclass(frozen=True, slots=True)
class Identity:
    """The response's identity: the model's name and the response's id."""

    model: str
    response_id: str


def frames(
    answer: answers.Answer, identity: Identity, estimated: Callable[[int], answers.Usage]
) -> list[Frame]:
    """All SSE events of the answer; `estimated` makes a usage of the output's size in bytes."""
    step = answer.step
    response: dict[str, Any] = {"id": identity.response_id, "object": "response", "model": identity.model}
    events = [_frame("response.created", response=response | {"status": "in_progress", "output": []})]
    for index, item in enumerate(step.items):
        events += _item_frames(answer, index, item)
    if step.failed is not None:
        error = {"code": step.failed.code, "message": step.failed.message}
        end = response | {"status": "failed", "error": error} | _usage_fields(step)
        return [*events, _frame("response.failed", response=end)]
    if step.incomplete is not None:
        details = {"reason": step.incomplete.reason}
        end = response | {"status": "incomplete", "incomplete_details": details} | _usage_fields(step)
        return [*events, _frame("response.incomplete", response=end)]
    usage = step.usage or estimated(sum(len(event.payload) for event in events[1:]))
    end = response | {"status": "completed", "usage": _usage(usage)}
    if step.end_turn is not None:
        end["end_turn"] = step.end_turn
    return [*events, _frame("response.completed", response=end)]


def thirds(text: str) -> list[str]:
    """The three parts of a message, fewer when it is very short."""
    size = -(-len(text) // 3)
    return [part for part in (text[:size], text[size : 2 * size], text[2 * size :]) if part]


def halves(text: str) -> list[str]:
    """The two parts of a reasoning summary."""
    middle = len(text) // 2
    return [part for part in (text[:middle], text[middle:]) if part]


def _item_frames(answer: answers.Answer, index: int, item: answers.OutputItem) -> Iterator[Frame]:
    if isinstance(item, answers.RawItem):
        yield _frame("response.output_item.added", output_index=index, item=item.item)
        yield _frame("response.output_item.done", output_index=index, item=item.item)
        return
    begun, done = _item_shapes(answer, index, item)
    place: dict[str, Any] = {"item_id": done["id"], "output_index": index}
    yield _frame("response.output_item.added", output_index=index, item=begun)
    if isinstance(item, answers.Reasoning):
        place["summary_index"] = 0
        yield _frame(
            "response.reasoning_summary_part.added", **place, part={"type": "summary_text", "text": ""}
        )
        for part in halves(item.reasoning):
            yield _frame("response.reasoning_summary_text.delta", **place, delta=part)
    elif isinstance(item, answers.Text):
        place["content_index"] = 0
        for part in thirds(item.text):
            yield _frame("response.output_text.delta", **place, delta=part)
    yield _frame("response.output_item.done", output_index=index, item=done)


def _item_shapes(
    answer: answers.Answer,
    index: int,
    item: answers.Text | answers.Reasoning | answers.Call | answers.CustomCall,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The item as it begins and as it is done."""
    key = f"{answer.id_prefix}_{index}"
    match item:
        case answers.Text(text):
            shape = {"type": "message", "id": f"msg_{key}", "role": "assistant"}
            content = [{"type": "output_text", "text": text, "annotations": []}]
            return (
                shape | {"status": "in_progress", "content": []},
                shape | {"status": "completed", "content": content},
            )
        case answers.Reasoning(reasoning):
            shape = {"type": "reasoning", "id": f"rs_{key}"}
            summary = [{"type": "summary_text", "text": reasoning}]
            secret = f"ENC_{answer.number}_{index}"
            return shape | {"summary": []}, shape | {"summary": summary, "encrypted_content": secret}
        case answers.Call(name, args, call_id):
            arguments = args if isinstance(args, str) else json.dumps(args)
            shape = {"type": "function_call", "id": f"fc_{key}", "name": name}
            return _call_shapes(shape, call_id or f"call_{key}", "arguments", arguments)
        case answers.CustomCall(name, text, call_id):
            shape = {"type": "custom_tool_call", "id": f"ctc_{key}", "name": name}
            return _call_shapes(shape, call_id or f"call_{key}", "input", text)
        case _:
            assert_never(item)


def _call_shapes(
    shape: dict[str, Any], call_id: str, field: str, text: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    shape |= {"call_id": call_id}
    return shape | {"status": "in_progress", field: ""}, shape | {"status": "completed", field: text}


def _usage_fields(step: answers.Step) -> dict[str, Any]:
    """The usage of a response that does not complete: most servers report none, so only the step's own."""
    return {"usage": _usage(step.usage)} if step.usage else {}


def _usage(usage: answers.Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def _frame(kind: str, **fields: Any) -> Frame:
    data = orjson.dumps({"type": kind, **fields})
    return Frame(b"event: %b\ndata: %b\n\n" % (kind.encode(), data), kind in _DELTA_TYPES)


# ── chat render ───────────────────────────────────────────────────────────────────────────────────
# A chosen answer as the bytes of a stream of chat completion chunks.
#
# Pure. A text or a reasoning begins with an empty piece and goes on in the parts of `render`; a call
# begins with its name, and its arguments come in one piece. So a cut after some events leaves as much of
# the first item as it leaves of a Responses stream. Items that chat completions have no word for are left
# out.


_REASONS = {"max_output_tokens": "length"}
"""Reasons of a response that is cut short, as chat completions call them."""
_END = Frame(b"data: [DONE]\n\n")


def chat_frames(
    answer: answers.Answer, identity: Identity, estimated: Callable[[int], answers.Usage]
) -> list[Frame]:
    """All SSE events of the answer; `estimated` makes a usage of the output's size in bytes."""
    step, chunks = answer.step, _Chunks(answer, identity)
    events = [chunks.piece({"role": "assistant", "content": ""})]
    for index, item in enumerate(step.items):
        events += chunks.of_item(index, item)
    if step.failed is not None:
        fault = {"error": {"code": step.failed.code, "message": step.failed.message}}
        return [*events, *chunks.cost(step.usage), _chat_frame(fault), _END]
    if step.incomplete is not None:
        reason = _REASONS.get(step.incomplete.reason, step.incomplete.reason)
        return [*events, chunks.piece({}, reason), *chunks.cost(step.usage), _END]
    usage = step.usage or estimated(sum(len(event.payload) for event in events[1:]))
    reason = "tool_calls" if chunks.calls else "stop"
    return [*events, chunks.piece({}, reason), *chunks.cost(usage), _END]


class _Chunks:
    """The chunks of one answer; its calls are numbered from 0."""

    def __init__(self, answer: answers.Answer, identity: Identity) -> None:
        self.calls = 0
        self._prefix = answer.id_prefix
        self._head = {
            "id": identity.response_id,
            "object": "chat.completion.chunk",
            "model": identity.model,
        }

    def piece(self, delta: dict[str, Any], reason: str | None = None, slow: bool = False) -> Frame:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return _chat_frame(self._head | {"choices": [choice]}, slow)

    def cost(self, usage: answers.Usage | None) -> list[Frame]:
        """The last chunk, which has no choice; nothing if nothing is told of the cost."""
        return (
            [] if usage is None else [_chat_frame(self._head | {"choices": [], "usage": _chat_usage(usage)})]
        )

    def of_item(self, index: int, item: answers.OutputItem) -> Iterator[Frame]:
        match item:
            case answers.Text(text):
                yield from self._words("content", thirds(text))
            case answers.Reasoning(reasoning):
                yield from self._words("reasoning_content", halves(reasoning))
            case answers.Call(name, args, call_id):
                arguments = args if isinstance(args, str) else json.dumps(args)
                yield from self._call(index, name, arguments, call_id)
            case answers.CustomCall(name, text, call_id):
                yield from self._call(index, name, json.dumps({"input": text}), call_id)
            case answers.RawItem(raw):
                yield from self._raw(index, raw)
            case _:
                assert_never(item)

    def _raw(self, index: int, raw: dict[str, Any]) -> Iterator[Frame]:
        call_id = raw.get("call_id") or raw.get("id")
        match raw:
            case {"type": "message", "content": [*parts]}:
                yield from self._words("content", ["".join(part.get("text", "") for part in parts)])
            case {"type": "function_call", "name": name, "arguments": arguments}:
                yield from self._call(index, name, arguments, call_id)
            case {"type": "custom_tool_call", "name": name, "input": text}:
                yield from self._call(index, name, json.dumps({"input": text}), call_id)
            case {"type": "local_shell_call", "action": dict(action)}:
                yield from self._call(index, "local_shell", json.dumps(action), call_id)
            case _:
                pass

    def _words(self, field: str, parts: list[str]) -> Iterator[Frame]:
        yield self.piece({field: ""})
        for part in parts:
            yield self.piece({field: part}, slow=True)

    def _call(self, index: int, name: str, arguments: str, call_id: str | None) -> Iterator[Frame]:
        place = {"index": self.calls}
        self.calls += 1
        begun = {"id": call_id or f"call_{self._prefix}_{index}", "type": "function"}
        yield self.piece({"tool_calls": [place | begun | {"function": {"name": name, "arguments": ""}}]})
        yield self.piece({"tool_calls": [place | {"function": {"arguments": arguments}}]})


def _chat_usage(usage: answers.Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens": usage.output,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def _chat_frame(data: dict[str, Any], slow: bool = False) -> Frame:
    return Frame(b"data: %b\n\n" % orjson.dumps(data), slow)


# ── server ────────────────────────────────────────────────────────────────────────────────────────


_KEEPALIVE_S = 75
_LAST_WORDS_S = 0.1


@dataclass(frozen=True, slots=True)
class Pace:
    """The duration of an answer where its step does not say."""

    think_ms: float = 0
    """Before every answer."""
    delta_delay_ms: float = 0
    """Before every delta."""


def _drop(warning: str) -> None:
    """Drops a warning."""


@dataclass(frozen=True, slots=True)
class StubConfig:
    """The stub server's configuration; port 0 takes a free port."""

    script: answers.Script
    host: str = "127.0.0.1"
    port: int = 0
    pace: Pace = Pace()
    warn: Callable[[str], None] = _drop
    """Takes a warning of a script that is probably not what was meant."""


class CannotListen(ValueError):
    """The stub's address is taken, or would let other machines reach it; the message names the remedy."""


@dataclass(frozen=True, slots=True)
class _Wire:
    """A wire format: how a request is read, and how an answer is written."""

    read: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    frames: Callable[[answers.Answer, Identity, Callable[[int], answers.Usage]], list[Frame]]
    id_prefix: str


_WIRES = {
    "/responses": _Wire(answers.checked, frames, "resp_"),
    "/chat/completions": _Wire(answers.translated, chat_frames, "chatcmpl-"),
}


class Stub:
    """The routes of one server, with its journal."""

    def __init__(self, config: StubConfig) -> None:
        self.journal = RequestJournal()
        self._script = config.script
        self._pace = config.pace
        self._model = f"stub:{config.script.name}"
        self._unoffered = UnofferedTools(config.script.name, config.warn)
        self._released: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                *(
                    Route(f"{root}{path}", partial(self.respond, wire), methods=["POST"])
                    for path, wire in _WIRES.items()
                    for root in ("/v1", "")
                ),
                Route("/requests", self.requests),
                Route("/release/{name}", self.release, methods=["POST"]),
                Route("/health", self.health),
            ]
        )

    async def respond(self, wire: _Wire, request: Request) -> ASGIApp:
        """Chooses and renders the answer to a model request."""
        raw = await request.body()
        try:
            asked = answers.StubRequest.of(raw, request.headers.get("session_id"), wire.read)
        except ValueError as error:
            code = "invalid_request" if isinstance(error, answers.InvalidRequest) else "invalid_json"
            return _json({"error": {"code": code, "message": str(error)}}, 400)
        exchange = self.journal.open(asked.session, raw)
        answer = self._script.answer(asked)
        self._unoffered.check(asked, answer)
        chosen, held = self._frames(wire, asked, answer), answer.step.hold_tail
        released = None if held is None else self._released[held]
        return _Reply(answer.step, chosen, self._pace, exchange, self.journal, released)

    async def release(self, request: Request) -> Response:
        """Lets the responses end that wait for this name, and those that will."""
        self._released[request.path_params["name"]].set()
        return _json({"ok": True})

    async def requests(self, request: Request) -> Response:
        """The requests received, oldest first; `?session=` keeps those of one session."""
        session = request.query_params.get("session")
        return _json([exchange.to_wire() for exchange in self.journal.exchanges(session)])

    async def health(self, request: Request) -> Response:
        """Reports that the server is up, which script it runs, and how many requests it has had."""
        return _json({"ok": True, "model": self._model, "received": self.journal.received})

    def _frames(self, wire: _Wire, asked: answers.StubRequest, answer: answers.Answer) -> list[Frame]:
        if answer.step.status is not None:
            return []
        identity = Identity(self._model, f"{wire.id_prefix}{asked.digest}_{answer.id_prefix}")
        return wire.frames(
            answer, identity, lambda size: answers.Usage(input=asked.size // 4, output=size // 4)
        )


class _Reply:
    """A reply on its way, as an ASGI application."""

    def __init__(
        self,
        step: answers.Step,
        answer: list[Frame],
        pace: Pace,
        exchange: Exchange,
        journal: RequestJournal,
        released: asyncio.Event | None = None,
    ) -> None:
        self._step = step
        self._frames = answer
        self._pace = pace
        self._exchange = exchange
        self._journal = journal
        self._released = released

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        line = _Line(receive, send)
        try:
            await self._play(line)
        except _ClientLeft:
            self._journal.close(self._exchange, "left")
        finally:
            line.close()

    async def _play(self, line: _Line) -> None:
        step = self._step
        await line.pause(self._pace.think_ms + step.delay_ms)
        if step.status is not None:
            await self._refuse(line, step.status)
            return
        if step.hang is True:
            await line.hold()
        await line.begin(200, {"content-type": "text/event-stream"} | dict(step.headers))
        if step.hang is not False:
            await self._send(line, self._frames[: step.hang])
            await line.hold()
        if step.drop_after is not None:
            await self._send(line, self._frames[: step.drop_after])
            # Returning in the middle of a body makes the server cut the connection.
            self._journal.close(self._exchange, "cut")
            return
        if self._released is not None or step.tail_delay_ms:
            await self._send(line, self._frames[:-1])
            await line.pause(step.tail_delay_ms)
            await line.until(self._released)
            await self._send(line, self._frames[-1:], last=True)
        else:
            await self._send(line, self._frames, last=True)
        self._journal.close(self._exchange, "answered")

    async def _send(self, line: _Line, chosen: list[Frame], last: bool = False) -> None:
        delay_ms = self._step.delta_delay_ms
        delay_ms = self._pace.delta_delay_ms if delay_ms is None else delay_ms
        # One write for all that needs no pause: under load, writes are what an answer costs.
        together: list[bytes] = []
        for frame in chosen:
            if frame.is_delta and delay_ms > 0:
                await line.write(b"".join(together))
                together.clear()
                await line.pause(delay_ms)
            together.append(frame.payload)
        await line.write(b"".join(together), more=not last)

    async def _refuse(self, line: _Line, status: int) -> None:
        body = self._step.body
        if body is None:
            body = {"error": {"type": "stub_error", "message": f"the scenario answers {status} here"}}
        payload = body.encode() if isinstance(body, str) else orjson.dumps(body)
        await line.begin(status, {"content-type": "application/json"} | dict(self._step.headers))
        self._journal.close(self._exchange, "refused")
        await line.write(payload, more=False)


class _ClientLeft(Exception):
    """The client closed the connection before its answer was complete."""


class _Line:
    """A response's ASGI callables, with pauses that end when the client leaves."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._departure: asyncio.Task[None] | None = None

    async def begin(self, status: int, headers: dict[str, str]) -> None:
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, payload: bytes, more: bool = True) -> None:
        if payload or not more:
            await self._send({"type": "http.response.body", "body": payload, "more_body": more})

    async def pause(self, ms: float) -> None:
        if ms > 0 and await self._left_within(ms / 1000):
            raise _ClientLeft

    async def until(self, event: asyncio.Event | None) -> None:
        """Waits for the event, if there is one."""
        if event is None or event.is_set():
            return
        waiting = asyncio.create_task(event.wait(), name="stub-release")
        try:
            left = asyncio.create_task(self._left_within(None), name="stub-left")
            await asyncio.wait({waiting, left}, return_when=asyncio.FIRST_COMPLETED)
            left.cancel()
        finally:
            waiting.cancel()
        if not event.is_set():
            raise _ClientLeft

    async def hold(self) -> NoReturn:
        await self._left_within(None)
        raise _ClientLeft

    def close(self) -> None:
        if self._departure is not None:
            self._departure.cancel()

    async def _left_within(self, timeout_s: float | None) -> bool:
        if self._departure is None:
            self._departure = asyncio.create_task(self._client_leaves(), name="stub-departure")
        done, _ = await asyncio.wait({self._departure}, timeout=timeout_s)
        return bool(done)

    async def _client_leaves(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


class _Server(uvicorn.Server):
    """Leaves signals to the program around it, and ends at once where nothing is under way.

    uvicorn looks ten times a second if it is to end, and then waits for a tenth of a second whatever is open:
    most of the time of a short test.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Lets `serve` come to its end."""
        self.should_exit = True
        self._ended.set()

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()

    async def main_loop(self) -> None:
        """Ticks as uvicorn does, until the end."""
        ticks = asyncio.create_task(super().main_loop(), name="model-stub-ticks")
        try:
            await self._ended.wait()
        finally:
            ticks.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes all; what answers has a moment for its last words."""
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if self.server_state.connections or self.server_state.tasks:
            await asyncio.sleep(_LAST_WORDS_S)
        for task in list(self.server_state.tasks):
            task.cancel()


@dataclass(frozen=True, slots=True)
class RunningStub:
    """A stub that accepts connections."""

    base_url: str
    """The value for a provider's `base_url`."""
    journal: RequestJournal


def build_app(script: answers.Script, pace: Pace | None = None) -> Starlette:
    """The stub's ASGI application, for a server of one's own."""
    return Stub(StubConfig(script, pace=pace or Pace())).app()


@contextlib.asynccontextmanager
async def running(config: StubConfig) -> AsyncIterator[RunningStub]:
    """Serves for the duration of the block, inside the running loop.

    Raises `CannotListen`.
    """
    listener = _listen(config.host, config.port)
    stub = Stub(config)
    # uvicorn reports each cut connection as an error of the application; they are what was asked for.
    server = _Server(
        uvicorn.Config(
            stub.app(),
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            timeout_keep_alive=_KEEPALIVE_S,
            timeout_graceful_shutdown=0,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="model-stub")
    host, port = listener.getsockname()[:2]
    try:
        yield RunningStub(f"http://{f'[{host}]' if ':' in host else host}:{port}/v1", stub.journal)
    finally:
        server.end()
        await serving


async def serve(config: StubConfig, on_ready: Callable[[RunningStub], None]) -> None:
    """Serves until cancelled; `on_ready` is called once connections are accepted."""
    async with running(config) as stub:
        on_ready(stub)
        await asyncio.get_running_loop().create_future()


def _listen(host: str, port: int) -> socket.socket:
    if host != "localhost" and not _is_loopback(host):
        raise CannotListen(f"the model stub listens on loopback only, not on {host!r}; use 127.0.0.1")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise CannotListen(
            f"the model stub cannot listen on {host}:{port}: {why}; give another port, or 0 for a free one"
        ) from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


# ── journal ───────────────────────────────────────────────────────────────────────────────────────
# Journal of the requests that the stub received and how each ended, for tests and curious users.
#
# Bounded in entries and in bytes; the oldest entry is dropped first. Holds the bodies as received and
# decodes a body only on demand.


MAX_ENTRIES = 10_000
MAX_BYTES = 64 * 1024 * 1024

Outcome = Literal["open", "answered", "refused", "cut", "left"]
"""`left`: the client closed the connection before the answer was complete."""


@dataclass(slots=True)
class Exchange:
    """A request and its exchange; `outcome` changes once, when the exchange is over."""

    number: int
    session: str
    raw: bytes
    outcome: Outcome = "open"

    @property
    def body(self) -> dict[str, Any]:
        """The request's body, decoded anew at each call."""
        decoded: dict[str, Any] = orjson.loads(self.raw)
        return decoded

    def to_wire(self) -> dict[str, Any]:
        """The entry as `GET /requests` shows it."""
        return {"number": self.number, "session": self.session, "outcome": self.outcome, "body": self.body}


class RequestJournal:
    """The received requests in order; one per server."""

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self.received = 0
        self._exchanges: deque[Exchange] = deque()
        self._bytes = 0
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._changed = asyncio.Event()

    def open(self, session: str, raw: bytes) -> Exchange:
        """Notes a request."""
        self.received += 1
        exchange = Exchange(self.received, session, raw)
        self._exchanges.append(exchange)
        self._bytes += len(raw)
        while len(self._exchanges) > self._max_entries or self._bytes > self._max_bytes > len(raw):
            self._bytes -= len(self._exchanges.popleft().raw)
        self._changed.set()
        return exchange

    def close(self, exchange: Exchange, outcome: Outcome) -> None:
        """Notes how a request ended."""
        exchange.outcome = outcome
        self._changed.set()

    def exchanges(self, session: str | None = None) -> Iterator[Exchange]:
        """The kept requests, oldest first, of one session or of all."""
        return (kept for kept in tuple(self._exchanges) if session is None or kept.session == session)

    async def until(self, holds: Callable[[RequestJournal], bool]) -> None:
        """Waits for a change after which `holds(journal)` is true."""
        while not holds(self):
            self._changed.clear()
            await self._changed.wait()


# ── unoffered ─────────────────────────────────────────────────────────────────────────────────────
# Calls of tools that the request does not offer: most often a name that a scenario misspells.
#
# The stub answers with them all the same, because a scenario may mean to try what a worker does
# with such a call; it warns, once for each name.


_CALL_TYPES = frozenset({"function_call", "custom_tool_call"})


class UnofferedTools:
    """The warnings of one server; `script` is the name of what it answers from."""

    def __init__(self, script: str, warn: Callable[[str], None]) -> None:
        self._script = "the scenario" if script == "scenario" else f"the behaviour {script}"
        self._warn = warn
        self._reported: set[str] = set()

    def check(self, request: answers.StubRequest, answer: answers.Answer) -> None:
        """Warns of each tool that the answer calls and the request does not offer."""
        called = [name for name in _called(answer) if name not in self._reported]
        if not called:
            return
        offered = sorted(_offered(request.body))
        for name in dict.fromkeys(called):
            if name not in offered:
                self._reported.add(name)
                which = ", ".join(offered) if offered else "no tool with a name"
                self._warn(
                    f"{self._script} calls `{name}`, which this request does not offer: it offers {which}"
                )


def _called(answer: answers.Answer) -> Iterator[str]:
    step = answer.step
    for item in step.items if step.status is None else ():
        match item:
            case answers.Call(call=name) | answers.CustomCall(custom_call=name):
                yield name
            case answers.RawItem(item={"type": kind, "name": str(name)}) if kind in _CALL_TYPES:
                yield name
            case _:
                pass


def _offered(body: Mapping[str, Any]) -> set[str]:
    tools = body.get("tools")
    named = tools if isinstance(tools, list) else ()
    return {tool["name"] for tool in named if isinstance(tool, dict) and isinstance(tool.get("name"), str)}
