"""The streaming client of one provider: prompts out, `ModelEvent`s in.

    stream           one model request, HTTP failures passed over while the budget lasts
     └ _exchange     one attempt: the request sent, its answer judged, its stream read
        └ _events    one accepted stream: bytes to SSE to `ModelEvent`, by the reader of its format

One streamed response needs no cookies, redirects or auth flows, and every layer costs CPU on
each chunk: the body is read from aiohttp's buffer as it came. This module does not know what
the items of a prompt mean, and keeps nothing between two requests but open connections. What
differs between the Responses API and chat completions is in `formats`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, assert_never, cast

import aiohttp
import orjson

from orchestrator.config_keys import OPENAI, ProviderSettings, Secret, headers_of
from orchestrator.core.frozen import record, replace
from orchestrator.core.settings import HELD_WAIT_S
from orchestrator.core.tokens import Served
from orchestrator.model.chat_completions import ChatFormat
from orchestrator.model.connections import (
    BROKEN,
    MAX_CONNECTIONS,
    UNREACHED,
    Connections,
    InvalidProvider,
    place_of,
    redacted,
    request_url,
    require_proxy,
    url_of,
)
from orchestrator.model.credentials import CredentialError
from orchestrator.model.output_checks import name_of
from orchestrator.model.prompt import Completed, ModelEvent, Prompt, RateLimits, session_headers
from orchestrator.model.provider_errors import (
    CUT,
    MAX_ERROR_BODY,
    CodexErrorInfo,
    FatalKind,
    FatalModelError,
    ModelError,
    ProviderFault,
    RateLimited,
    RetryableModelError,
    fatal_by_status,
    rate_limit_snapshot,
    retry_after_s,
    without_key,
)
from orchestrator.model.responses import ResponsesFormat
from orchestrator.model.sse import SseEvent, SseEventTooLarge, SseParser

# ── formats ───────────────────────────────────────────────────────────────────────────────────────
# The wire formats of requests and responses: what the client leaves to each of them.
#
#     ResponsesFormat   POST {base_url}/responses          `wire_api = "responses"`
#     ChatFormat        POST {base_url}/chat/completions   `wire_api = "chat"`
#
# A format knows neither connections nor waits; the client knows neither fields nor events of a format.


class ResponseReader(Protocol):
    """The reading of one response, event by event."""

    @property
    def finished(self) -> bool:
        """Whether the server has said that the response is over; only figures may follow."""
        ...

    def read(self, sse: SseEvent) -> Sequence[ModelEvent]:
        """The meaning of an event, nothing behind `Completed`; raises the `ModelError` that it reports."""
        ...

    def end(self) -> Sequence[ModelEvent]:
        """The last events of a stream that ends here; empty if it ended too early."""
        ...


class WireFormat(Protocol):
    """The mapping of a prompt to a request, and of a stream to events."""

    @property
    def path(self) -> str:
        """The end of the URL, behind the provider's `base_url`."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The format's own headers."""
        ...

    def body(self, prompt: Prompt, provider: ProviderSettings) -> dict[str, Any]:
        """The JSON object to post."""
        ...

    def reader(self, prompt: Prompt, provider: ProviderSettings) -> ResponseReader:
        """A reader for the response to this prompt."""
        ...


def format_of(provider: ProviderSettings) -> WireFormat:
    """The wire format that the provider's table names."""
    match provider.wire_api:
        case "responses":
            return ResponsesFormat()
        case "chat":
            return ChatFormat()
        case _:
            assert_never(provider.wire_api)


# ── client ────────────────────────────────────────────────────────────────────────────────────────


BACKOFF_BASE_S = 0.2
MAX_BACKOFF_S = 30.0

_TAIL_S = 0.2
"""The wait for the end of a completed response, so that its connection can be used again."""

_REQUEST_IDS = ("x-request-id", "request-id")
"""Headers in which providers name a request."""
_LAST_FIGURES_S = 5.0
"""The wait for the usage behind the last word of a response."""


@dataclass(slots=True)
class HttpBudget:
    """HTTP failures that one model request may still pass over, whatever its number of streams."""

    retries_left: int


@record
class ClientPorts:
    """The client's external dependencies beside the network."""

    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = lambda: random.uniform(0.9, 1.1)
    """A factor on each backoff, so that workers refused together do not come back together."""


class _PassingFault(Exception):
    """An HTTP failure before any event, worth another attempt."""

    def __init__(
        self, message: str, info: CodexErrorInfo, wait_s: float | None = None, *, served: bool = False
    ) -> None:
        super().__init__(message)
        self.message = message
        self.info = info
        self.wait_s = wait_s
        self.served = served


class ModelClient:
    """A provider's client, shared by all sessions of a worker; bound to one event loop."""

    def __init__(
        self,
        provider: ProviderSettings,
        ports: ClientPorts | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        require_proxy(provider)
        self.provider = provider
        self._ports = ports or ClientPorts()
        self._format = format_of(provider)
        self._url = url_of(request_url(provider, self._format.path))
        self._headers = self._fixed_headers()
        self._connections = Connections(provider, max_connections)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def use_key(self, key: Secret) -> None:
        """Sends this key with the requests to come; those that are under way keep theirs."""
        if key != self.provider.api_key:
            self.provider = self.provider.model_copy(update={"api_key": key})
            self._headers = self._fixed_headers()

    async def aclose(self) -> None:
        """Closes every connection; a stream that is still open ends with an error."""
        await self._connections.aclose()

    async def stream(self, prompt: Prompt, budget: HttpBudget) -> AsyncIterator[ModelEvent]:
        """Yields the response's events as they arrive; the last one is `Completed`.

        Raises a `ModelError`, and no foreign error, when there is no `Completed` to come. Closing
        the generator, or cancelling the task that waits for it, closes the HTTP stream at once.
        """
        if (unset := self.provider.unset_key) and self.provider.base_url == OPENAI:
            raise without_key(self.provider.id, unset, "was not asked").unserved()
        content = self._content(prompt)
        asked: list[ProviderSettings] = []
        served = False
        try:
            while True:
                asked.append(self.provider)
                try:
                    async with aclosing(self._exchange(content, prompt)) as events:
                        async for event in events:
                            yield event
                    return
                except _PassingFault as fault:
                    served = served or fault.served
                    await self._pass_over(fault, budget)
        except ModelError as error:
            # Servers like to quote the key that they refuse, in a body or inside a stream; another one may be
            # in use by then.
            for provider in asked:
                error.censor(partial(redacted, provider))
            # An attempt that broke off behind its last byte may be billed, however the last one ended.
            error.served = error.served or served
            raise

    async def _exchange(self, content: bytes, prompt: Prompt) -> AsyncGenerator[ModelEvent, None]:
        reader = self._format.reader(prompt, self.provider)
        response = await self._send(headers_of(session_headers(prompt.session_id), self._headers), content)
        try:
            if response.status != 200:
                raise await self._judged(response)
            if snapshot := rate_limit_snapshot(response.headers):
                yield RateLimits(snapshot)
            async with aclosing(self._events(response.content, reader)) as events:
                async for event in events:
                    yield self._told_by(event, response) if type(event) is Completed else event
        finally:
            self._connections.release(response)

    def _told_by(self, completed: Completed, response: aiohttp.ClientResponse) -> Completed:
        """The end of a response, with what its connection tells of who served it."""
        named = (name_of(response.headers.get(header)) for header in _REQUEST_IDS)
        request_id = redacted(self.provider, next(filter(None, named), ""))
        origin = str(self._url.origin())
        served = replace(completed.served or Served(), origin=origin, request_id=request_id)
        return replace(completed, served=served)

    async def _events(
        self, body: aiohttp.StreamReader, reader: ResponseReader
    ) -> AsyncGenerator[ModelEvent, None]:
        parser = SseParser()
        clock = asyncio.get_running_loop().time
        idle_s, read = self.provider.stream_idle_timeout_s, reader.read
        deadline, latest = clock() + idle_s, 0.0
        completed, size = False, 0
        try:
            while not completed:
                if reader.finished:
                    latest = latest or clock() + _LAST_FIGURES_S
                    deadline = min(deadline, latest)
                chunk = await self._next_chunk(body, deadline, reader)
                if chunk is None:
                    for event in reader.end():
                        yield event
                    return
                size += len(chunk)
                if size > self.provider.max_response_bytes:
                    raise self._endless()
                for sse in parser.feed(chunk):
                    for event in read(sse):
                        completed = type(event) is Completed
                        yield event
                    if completed:
                        break
                    # Only events end a silence, comments do not; and the time that our own
                    # caller spends between two events is no silence of the server.
                    deadline = clock() + idle_s
        except SseEventTooLarge as error:
            raise self._cut(str(error)) from error
        finally:
            if completed:
                await _read_to_end(body)

    async def _next_chunk(
        self, body: aiohttp.StreamReader, deadline: float, reader: ResponseReader
    ) -> bytes | None:
        """The next bytes; None where a stream ends, in whatever way, whose response was over."""
        reason = "the stream ended early"
        try:
            async with asyncio.timeout_at(deadline):
                if chunk := await body.readany():
                    return chunk
        except TimeoutError:
            reason = f"no event within {self.provider.stream_idle_timeout_s:g} s"
        except BROKEN as error:
            reason = _reason(error)
        if reader.finished:
            return None
        raise self._cut(reason)

    async def _send(self, headers: dict[str, str], content: bytes) -> aiohttp.ClientResponse:
        name, idle_s = self.provider.id, self.provider.stream_idle_timeout_s
        try:
            async with asyncio.timeout(idle_s):
                return await self._connections.post(self._url, headers, content)
        except BROKEN as error:
            unreached = isinstance(error, UNREACHED)
            if isinstance(error, TimeoutError) and not unreached:
                # Not passed over in silence: the user would stare at nothing for minutes, several times.
                raise self._cut(f"no answer within {idle_s:g} s") from error
            raise _PassingFault(
                f"model provider {name} cannot be reached at {place_of(self.provider)}: {_reason(error)}; "
                "check the network, and the base_url and proxy of the provider",
                {"http_connection_failed": {"http_status_code": None}},
                # A connection that broke behind the request's last byte may have brought it there.
                served=not unreached,
            ) from error

    async def _judged(self, response: aiohttp.ClientResponse) -> ModelError | _PassingFault:
        """The error that an answer other than 200 amounts to; reads its body, up to a limit."""
        name, status = self.provider.id, response.status
        fault = ProviderFault.of_body(await _error_body(response.content))
        fault = ProviderFault(fault.code, redacted(self.provider, str(fault)))
        if fatal := fatal_by_status(name, status, fault, self.provider.unset_key):
            return fatal.unserved()
        wait_s = retry_after_s(response.headers)
        message = f"model provider {name} answered {status}: {fault}"
        if status in (429, 503) and wait_s is not None and wait_s > HELD_WAIT_S:
            return RateLimited(message, wait_s).unserved()
        return _PassingFault(
            message, {"response_too_many_failed_attempts": {"http_status_code": status}}, wait_s
        )

    async def _pass_over(self, fault: _PassingFault, budget: HttpBudget) -> None:
        """Uses up one retry and sleeps; raises when none is left."""
        if budget.retries_left <= 0:
            broken = RetryableModelError(fault.message, fault.wait_s, fault.info)
            raise (broken if fault.served else broken.unserved()) from fault
        used = max(0, self.provider.request_max_retries - budget.retries_left)
        budget.retries_left -= 1
        if fault.wait_s is not None:
            delay_s = min(fault.wait_s, HELD_WAIT_S)
        else:
            delay_s = min(BACKOFF_BASE_S * 2.0**used, MAX_BACKOFF_S) * self._ports.jitter()
        await self._ports.sleep(delay_s)

    def _content(self, prompt: Prompt) -> bytes:
        try:
            return orjson.dumps(self._format.body(prompt, self.provider))
        except TypeError as error:
            raise FatalModelError(
                FatalKind.INVALID_PROMPT,
                f"the prompt for model provider {self.provider.id} cannot be written as JSON: {error}",
                "bad_request",
            ).unserved() from error

    def _fixed_headers(self) -> dict[str, str]:
        # Compressed, a stream would arrive in the compressor's blocks instead of as it is written.
        headers = {"User-Agent": "dendro", "Accept-Encoding": "identity"}
        if self.provider.api_key:
            headers["Authorization"] = f"Bearer {self.provider.api_key}"
        own = self.provider.http_headers, self.provider.secret_headers
        return headers_of(headers, self._format.headers, *own)

    def _endless(self) -> FatalModelError:
        # Not tried again: the same request would be paid for once more, and end the same way.
        return FatalModelError(
            FatalKind.RESPONSE_TOO_LARGE,
            f"model provider {self.provider.id} sent a response of more than "
            f"{self.provider.max_response_bytes:,} bytes; it was cut off there. Raise max_response_bytes of "
            f"[model_providers.{self.provider.id}] if such a response is meant",
            "other",
        )

    def _cut(self, reason: str) -> RetryableModelError:
        return RetryableModelError(
            f"{CUT}: model provider {self.provider.id}: {reason}",
            None,
            {"response_stream_disconnected": {"http_status_code": None}},
        )


async def _error_body(body: aiohttp.StreamReader) -> bytes:
    """The beginning of an error's body."""
    begun = bytearray()
    # A body that breaks off or never ends is no reason to lose the status that came before it.
    with suppress(*BROKEN):
        async with asyncio.timeout(HELD_WAIT_S):
            while len(begun) < MAX_ERROR_BODY and (chunk := await body.readany()):
                begun += chunk
    return bytes(begun[:MAX_ERROR_BODY])


async def _read_to_end(body: aiohttp.StreamReader) -> None:
    with suppress(*BROKEN):
        async with asyncio.timeout(_TAIL_S):
            while await body.readany():
                pass


def _reason(error: Exception) -> str:
    match error:
        case aiohttp.ClientPayloadError():
            return "the answer broke off"
        case aiohttp.ClientResponseError():
            return f"{error.status} {error.message}"
        case _:
            return str(error) or type(error).__name__


# ── providers ─────────────────────────────────────────────────────────────────────────────────────
# The models port over the real clients: one client a provider, opened when it is first used.


SignedIn = Callable[[], Awaitable[Secret | None]]


class ModelClients:
    """Implements `ports.Models` for one worker."""

    def __init__(
        self,
        known: Mapping[str, ProviderSettings],
        ports: ClientPorts | None = None,
        signed_in: SignedIn | None = None,
        chosen: str | None = None,
    ) -> None:
        """`signed_in` answers the key of the worker's user, for providers that say so.

        Raises `InvalidProvider` where no client takes the table of the `chosen` provider. Another one is
        refused when a session asks for it: most workers have tables that nobody uses.
        """
        if chosen is not None and chosen in known:
            require_proxy(known[chosen])
        self._known = known
        self._ports = ports
        self._signed_in = signed_in
        self._clients: dict[str, ModelClient] = {}

    def retries(self, provider: str) -> tuple[int, int]:
        known = self._known.get(provider)
        if known is None:
            return 0, 0
        return known.request_max_retries, known.stream_max_retries

    def stream(self, provider: str, prompt: Prompt, budget: HttpBudget) -> AsyncIterator[ModelEvent]:
        """Streams a request of a named provider; closing the generator closes the stream."""
        client = self._client(provider)
        if self._known[provider].auth == "login":
            return self._signed_in_stream(provider, prompt, budget)
        return client.stream(prompt, budget)

    async def _signed_in_stream(
        self, provider: str, prompt: Prompt, budget: HttpBudget
    ) -> AsyncIterator[ModelEvent]:
        client = self._client(provider)
        client.use_key(await self._login_key(provider))
        async with aclosing(cast(Any, client.stream(prompt, budget))) as events:
            async for event in events:
                yield event

    def _client(self, name: str) -> ModelClient:
        if name not in self._known:
            raise FatalModelError(
                FatalKind.NOT_FOUND,
                f"this worker has no model provider {name!r}, only {', '.join(self._known) or 'none'}; "
                f"add a table [model_providers.{name}] to its configuration",
                "other",
            )
        if name not in self._clients:
            try:
                self._clients[name] = ModelClient(self._known[name], self._ports)
            except InvalidProvider as error:
                raise FatalModelError(FatalKind.NOT_FOUND, str(error), "other").unserved() from error
        return self._clients[name]

    async def _login_key(self, provider: str) -> Secret:
        try:
            key = None if self._signed_in is None else await self._signed_in()
        except CredentialError as error:
            why = str(error)
        else:
            if key is not None:
                return key
            why = "nobody has signed in: sign in by a client (account/login/start), or use an env_key"
        raise FatalModelError(
            FatalKind.UNAUTHORIZED, f'model provider {provider} has auth = "login": {why}', "unauthorized"
        ).unserved()

    async def aclose(self) -> None:
        """Closes every client; streams that are still open end with an error."""
        for client in self._clients.values():
            await client.aclose()
