"""Following one model request: room for it, its stream, turned into commands and deltas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

from orchestrator.broker.claims import ProviderLimits
from orchestrator.core import commands as c
from orchestrator.core.frozen import record, replace
from orchestrator.core.history import made_together
from orchestrator.core.ids import TreeId
from orchestrator.core.secrets import hidden
from orchestrator.core.state import Request, Response, State, Task
from orchestrator.model.client import HttpBudget
from orchestrator.model.errors import (
    FatalKind,
    FatalModelError,
    ModelError,
    RateLimited,
    RetryableModelError,
)
from orchestrator.model.events import (
    Completed,
    ItemAdded,
    ItemDone,
    RateLimits,
)
from orchestrator.model.request import Prompt
from orchestrator.protocol.wire import JsonMapping
from orchestrator.runtime.admission import RoomRequest, admitted, estimated_tokens, settle
from orchestrator.runtime.item_stream import ItemStream
from orchestrator.runtime.log import log
from orchestrator.runtime.ports import Ports
from orchestrator.runtime.prompts import beside, build_prompt, conversation, fetch_texts, known_response
from orchestrator.runtime.secrets import kept_answers
from orchestrator.tables import ProviderSettings
from orchestrator.tools.site import DeltaSink

Push = Callable[[c.Command], None]

_NO_LIMITS = ProviderLimits()
_DEFAULTS = ProviderSettings.model_construct(id="")
"""The settings of a provider without a table: its client refuses the request."""
_FORGOTTEN = frozenset({FatalKind.BAD_REQUEST, FatalKind.NOT_FOUND})
"""The kinds of error by which providers refuse a response's id that they do not know any more, or never
kept."""


@record
class _Following:
    """A request that was begun, and where its news go."""

    ports: Ports
    state: State
    push: Push
    delta: DeltaSink
    budget: HttpBudget
    told: Sequence[tuple[str, JsonMapping]] = ()
    """Secret answers of people, by the ids of their calls."""

    @property
    def task(self) -> Task:
        assert self.state.task is not None
        return self.state.task

    @property
    def request(self) -> Request:
        assert self.task.request is not None
        return self.task.request

    @property
    def provider(self) -> str:
        return self.task.settings.model_provider

    @property
    def table(self) -> ProviderSettings:
        """The provider's settings."""
        return self.ports.model_settings.providers.get(self.provider, _DEFAULTS)


async def follow_request(ports: Ports, state: State, push: Push, delta: DeltaSink) -> None:
    """Sends the request that `state` has begun once its provider has room, and reports it to its end."""
    assert state.task is not None
    most = ports.models.retries(state.task.settings.model_provider)[0]
    told = await kept_answers(ports, state) if state.task.secrets else ()
    budget = HttpBudget(max(0, most - state.task.http_used))
    following = _Following(ports, state, push, delta, budget, told)
    n, asking, usage = following.request.n, None, None
    try:
        known = known_response(state, following.request) if following.table.previous_response_id else None
        prompt = await _prompt(following, known)
        asking = _asking(following, prompt)
        wait_ms = await admitted(ports, asking) if asking else 0
        if wait_ms:
            push(c.ResponseBroken(n, "unsent", "the fleet's limit for the provider is used up", wait_ms))
            return
        usage = await _exchange(following, prompt)
    except (FatalModelError, RetryableModelError, RateLimited) as error:
        usage = error.usage
        push(_broken(n, error, most - following.budget.retries_left))
    if asking:
        await settle(ports, asking, usage)


async def _prompt(following: _Following, known: Response | None) -> Prompt:
    ports, state, request = following.ports, following.state, following.request
    said = conversation(state, known) if known else list(state.conversation)
    tree = TreeId(state.facts.tree_id)
    stands = await fetch_texts(ports.texts, tree, said)
    await fetch_texts(ports.texts, tree, beside(state))
    if request.purpose == "turn":
        await ports.tools.prepare(state, following.delta)
    table, told, specs = following.table, following.told, ports.tools.specs(state)
    prompt = build_prompt(state, request, specs, ports.texts.get, known, told, stands)
    if table.wire_api == "chat":
        # The other format has items of their own for calls, in which nothing is said of their responses.
        prompt = replace(prompt, together=made_together(state.conversation))
    if request.purpose != "turn":
        return prompt
    return replace(prompt, store=table.previous_response_id, parallel_tool_calls=table.parallel_tool_calls)


def _asking(following: _Following, prompt: Prompt) -> RoomRequest | None:
    """The request as the provider's limits count it; None if the provider has none."""
    table, state = following.table, following.state
    limits = ProviderLimits(table.requests_per_minute, table.tokens_per_minute)
    if limits == _NO_LIMITS:
        return None
    remembered = state.tokens.last.total_tokens if prompt.previous_response_id and state.tokens else 0
    most = following.ports.model_settings.max_output_tokens
    tokens = estimated_tokens(prompt, remembered, most)
    return RoomRequest(following.provider, limits, state.facts.session_id, tokens)


async def _exchange(following: _Following, prompt: Prompt) -> Mapping[str, int] | None:
    """The request and its response; answers what was used, if the provider says."""
    try:
        return await _heard(following, prompt)
    except FatalModelError as error:
        if prompt.previous_response_id is None or error.kind not in _FORGOTTEN:
            raise
        log.info(
            "provider %s: not going on from %s: %s", following.provider, prompt.previous_response_id, error
        )
        return await _heard(following, await _prompt(following, None))


async def _heard(following: _Following, prompt: Prompt) -> Mapping[str, int] | None:
    """The same; an error of the provider, which may quote the request, names no secret."""
    try:
        return await _stream(following, prompt)
    except ModelError as error:
        if following.told:
            error.censor(lambda text: hidden(text, following.told))
        raise


async def _stream(following: _Following, prompt: Prompt) -> Mapping[str, int] | None:
    request, push = following.request, following.push
    items = ItemStream(following.state, request, push, following.delta)
    limits, usage, observer = None, None, following.ports.observer
    if observer is not None:
        observer.streamed(following.state, "sent")
    stream = cast(Any, following.ports.models.stream(following.provider, prompt, following.budget))
    async with aclosing(stream) as events:
        async for event in events:
            if isinstance(event, RateLimits):
                limits = event.snapshot
                continue
            if observer is not None:
                observer.streamed(following.state, "completed" if isinstance(event, Completed) else "coming")
            if isinstance(event, ItemAdded):
                items.begins(event.item)
            elif isinstance(event, ItemDone):
                items.done(event)
            elif isinstance(event, Completed):
                usage = event.usage
                push(c.ResponseCompleted(request.n, event.response_id, usage, limits, event.end_turn))
            else:
                items.shows(event)
    return usage


def _broken(
    n: int, error: FatalModelError | RetryableModelError | RateLimited, http_used: int
) -> c.ResponseBroken:
    told, cost = error.message, (error.served, error.usage)
    match error:
        case FatalModelError(codex_error_info=info):
            return c.ResponseBroken(n, "fatal", told, None, http_used, info, *cost)
        case RateLimited():
            delay = int(error.retry_after_s * 1000)
            return c.ResponseBroken(n, "limited", told, delay, http_used, None, *cost)
        case RetryableModelError(codex_error_info=info):
            wait = None if error.delay_s is None else int(error.delay_s * 1000)
            return c.ResponseBroken(n, "stream", told, wait, http_used, info, *cost)
