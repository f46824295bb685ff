"""Following one model request: room for it, its stream, turned into commands and deltas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, cast

from orchestrator.broker.blobs import Texts
from orchestrator.broker.claims import ProviderLimits
from orchestrator.config_keys import ProviderSettings
from orchestrator.core import commands as c
from orchestrator.core.birth import needed, opened, whole
from orchestrator.core.blobs import resolve
from orchestrator.core.compaction import compaction_input
from orchestrator.core.frozen import record, replace
from orchestrator.core.history import for_model, made_together, message_text, since
from orchestrator.core.ids import TreeId
from orchestrator.core.modes import (
    Normal,
    Part,
    Plan,
    Start,
    TagParser,
    plan_item_id,
    plans,
    proposal,
    with_plan,
)
from orchestrator.core.secrets import hidden, with_secrets
from orchestrator.core.settings import SessionFacts
from orchestrator.core.state import Request, Response, State, Task
from orchestrator.core.tokens import Price, Usage
from orchestrator.core.user_turns import begun_item, publishes_items
from orchestrator.model.canonical import Sent, Shown, same
from orchestrator.model.model_client import HttpBudget
from orchestrator.model.output_checks import name_of
from orchestrator.model.prompt import (
    Completed,
    Item,
    ItemAdded,
    ItemDone,
    ModelEvent,
    Prompt,
    RateLimits,
    ReasoningRawDelta,
    ReasoningSectionBreak,
    ReasoningSummaryDelta,
    TextDelta,
)
from orchestrator.model.provider_errors import (
    FatalKind,
    FatalModelError,
    ModelError,
    RateLimited,
    RetryableModelError,
)
from orchestrator.protocol import events as ev
from orchestrator.protocol.events import StreamedText
from orchestrator.protocol.turn_items import PlanItem, TurnItem
from orchestrator.protocol.wire import JsonMapping, JsonObject, JsonValue, written
from orchestrator.runtime import log
from orchestrator.runtime.committing import pieces
from orchestrator.runtime.ports import Ports
from orchestrator.runtime.request_costs import RoomRequest, admitted, estimated_tokens, priced, settle
from orchestrator.runtime.sq_entries import kept_answers
from orchestrator.tools.tool_context import DeltaSink

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

    def price(self, usage: JsonMapping | None) -> Price | None:
        """The price of what was used, as far as both are known."""
        found = self.ports.model_settings.prices.get(self.task.settings.model)
        return priced(found, Usage.of(usage)) if found and usage else None


class _News:
    """The news of a request: what was sent goes before the first of them, into the same step."""

    def __init__(self, push: Push) -> None:
        self._push = push
        self._sent: c.RequestSent | None = None

    def sends(self, sent: c.RequestSent) -> None:
        self._sent = sent

    def push(self, command: c.Command) -> None:
        self.told()
        self._push(command)

    def told(self) -> None:
        """Tells what was sent, also if there is no more news."""
        sent, self._sent = self._sent, None
        if sent is not None:
            self._push(sent)


@record
class Prepared:
    """A request of a turn that was made while the commit that begins it was on its way: nothing has left."""

    state: State
    prompt: Prompt
    sent: Sent | None


def prepare_request(ports: Ports, state: State) -> Prepared | None:
    """The request that `state` has begun; None if something has to be waited for before it can be made."""
    task, request = _task(state), _task(state).request
    table = ports.model_settings.providers.get(task.settings.model_provider, _DEFAULTS)
    if request is None or request.purpose != "turn" or task.secrets or table.previous_response_id:
        return None
    shown = _shown(ports, state)
    if shown is None or not whole(beside(state)):
        return None
    specs = ports.tools.specs(state)
    prompt = _of_provider(build_prompt(state, request, specs, ports.texts.get, given=shown), table, state)
    sent = ports.canonical.of(prompt, request.purpose) if ports.canonical is not None else None
    return Prepared(state, prompt, sent)


async def follow_request(
    ports: Ports, state: State, push: Push, delta: DeltaSink, prepared: Prepared | None = None
) -> None:
    """Sends the request that `state` has begun once its provider has room, and reports it to its end."""
    assert state.task is not None
    most = ports.models.retries(state.task.settings.model_provider)[0]
    told = await kept_answers(ports, state) if state.task.secrets else ()
    budget = HttpBudget(max(0, most - state.task.http_used))
    news = _News(push)
    push = news.push
    following = _Following(ports, state, push, delta, budget, told)
    n, asking, usage, sent = following.request.n, None, None, False
    try:
        known = known_response(state, following.request) if following.table.previous_response_id else None
        prompt = await _prompt(following, known, prepared)
        asking = _asking(following, prompt)
        wait_ms = await admitted(ports, asking) if asking else 0
        if wait_ms:
            push(c.ResponseBroken(n, "unsent", "the fleet's limit for the provider is used up", wait_ms))
            return
        await _tells(following, prompt, news, prepared)
        sent = True
        usage = await _exchange(following, prompt)
    except (FatalModelError, RetryableModelError, RateLimited) as error:
        usage = error.usage
        price = following.price(usage)
        push(replace(_broken(n, error, most - following.budget.retries_left), price=price))
    except asyncio.CancelledError:
        if not sent:
            push(c.ResponseBroken(n, "unsent", "stopped before it was sent", 0))
        raise
    finally:
        news.told()
    if asking:
        await settle(ports, asking, usage)


async def _tells(following: _Following, prompt: Prompt, news: _News, prepared: Prepared | None) -> None:
    """Has the log told what is sent: all that the model is shown, but for secret answers."""
    ports, state, request = following.ports, following.state, following.request
    if ports.canonical is None:
        return
    if prompt.previous_response_id is not None or following.told:
        shown = await _whole(ports, state)
        prompt = build_prompt(state, request, prompt.tools, ports.texts.get, given=shown)
    made = prepared is not None and prepared.prompt is prompt
    sent = prepared.sent if prepared is not None and made else ports.canonical.of(prompt, request.purpose)
    if sent is not None:
        news.sends(c.RequestSent(request.n, sent.sha256, sent.instructions, sent.tools, sent.texts))


async def _prompt(following: _Following, known: Response | None, prepared: Prepared | None = None) -> Prompt:
    ports, state, request = following.ports, following.state, following.request
    if prepared is not None:
        await ports.tools.prepare(state, following.delta)
        specs = ports.tools.specs(state)
        if len(specs) == len(prepared.prompt.tools) and same(specs, prepared.prompt.tools):
            return prepared.prompt
    tree = TreeId(state.facts.tree_id)
    if known is None:
        shown = await _whole(ports, state)
    else:
        shown = None
        await fetch_texts(ports.texts, tree, conversation(state, known))
    await fetch_texts(ports.texts, tree, beside(state))
    if request.purpose == "turn":
        await ports.tools.prepare(state, following.delta)
    table, told, specs = following.table, following.told, ports.tools.specs(state)
    prompt = build_prompt(state, request, specs, ports.texts.get, known, told, shown)
    return _of_provider(prompt, table, state)


def _of_provider(prompt: Prompt, table: ProviderSettings, state: State) -> Prompt:
    if table.wire_api == "chat":
        # The other format has items of their own for calls, in which nothing is said of their responses.
        prompt = replace(prompt, together=made_together(state.conversation))
    request = _task(state).request
    if request is None or request.purpose != "turn":
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
            # Most of them are pieces of text.
            if type(event) is RateLimits:
                limits = event.snapshot
                continue
            if observer is not None:
                observer.streamed(following.state, "completed" if type(event) is Completed else "coming")
            if type(event) is ItemAdded:
                items.begins(event.item)
            elif type(event) is ItemDone:
                items.done(event)
            elif type(event) is Completed:
                usage = event.usage
                price, told = following.price(usage), (event.response_id, usage, limits, event.end_turn)
                push(c.ResponseCompleted(request.n, *told, event.served, price))
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


# ── prompts ───────────────────────────────────────────────────────────────────────────────────────
# The model request that a state owes: instructions, input, tools.
#
# As a rule it says everything. To a provider that keeps responses it may name the last one instead, and
# say only what is new since; whether it may is decided here, and by the state alone.


_REASONING_MODELS = ("gpt-5", "o1", "o3", "o4", "codex-")


def known_response(state: State, request: Request) -> Response | None:
    """The response that this request can go on from, if its provider keeps responses.

    Another model would read the conversation of the first anew, and a compaction is about all
    of it. A retry says everything, too: what broke may be the provider's memory.
    """
    task, last = _task(state), state.last_response
    settings = task.settings
    if last is None or request.purpose == "compact" or task.stream_retries:
        return None
    if task.branch is not None or task.pinned is not None:
        # What the provider keeps would hold more than the session's conversation.
        return None
    same = (last.provider, last.model) == (settings.model_provider, settings.model)
    return last if same else None


def conversation(state: State, known: Response | None = None) -> list[Item]:
    """The conversation of a request; of what `known` covers, nothing. Large texts are references still."""
    if known is not None:
        return since(state.history, known.sent, known.length)
    return for_model(state.conversation)


def build_prompt(
    state: State,
    request: Request,
    tools: Sequence[Item],
    text_of: Callable[[str], str | None],
    known: Response | None = None,
    told: Sequence[tuple[str, JsonMapping]] = (),
    given: Shown | None = None,
) -> Prompt:
    """The prompt of `request`. `text_of` gives a stored text by its hash; `told` are secret answers.

    A compaction is shown none of them: what it says is logged. `given` is the whole conversation, if it was
    made before.
    """
    compact = request.purpose == "compact"
    settings, plan = _task(state).settings, _task(state).pinned
    shown = given.items if given is not None else _opened(conversation(state, known), text_of)
    if plan is not None and not compact:
        shown = with_plan(shown, plan)
    shown = with_secrets(shown, told) if told and not compact else shown
    return Prompt(
        model=settings.model,
        instructions=resolve(state.facts.base_instructions, text_of) or base_instructions(state.facts),
        input=compaction_input(shown, max(1, _task(state).rescue)) if compact else shown,
        tools=() if compact else tools,
        effort=settings.effort,
        summary=settings.summary,
        verbosity=settings.verbosity,
        session_id=state.facts.session_id,
        supports_reasoning=settings.model.startswith(_REASONING_MODELS),
        previous_response_id=known.id if known else None,
        output_schema=None if compact else resolve(_task(state).output_schema, text_of),
        encoded=given.encoded if given is not None and shown is given.items and not compact else None,
    )


def _opened(said: list[Item], text_of: Callable[[str], str | None]) -> Sequence[Item]:
    return said if whole(said) else list(opened(said, text_of))


def beside(state: State) -> list[Item]:
    """The parts of a request beside the conversation, whose large texts may be stored elsewhere."""
    return [{"instructions": state.facts.base_instructions, "schema": _task(state).output_schema}]


def _shown(ports: Ports, state: State) -> Shown | None:
    return ports.conversations.of(state.facts.session_id, state.conversation, ports.texts.get)


async def _whole(ports: Ports, state: State) -> Shown | None:
    """The whole conversation, once its texts are fetched; None where one is not stored any more."""
    if (shown := _shown(ports, state)) is not None:
        return shown
    await fetch_texts(ports.texts, TreeId(state.facts.tree_id), list(state.conversation))
    return _shown(ports, state)


async def fetch_texts(texts: Texts, tree: TreeId, items: Sequence[Item]) -> None:
    """Makes every text available that the items refer to, those inside inherited conversations too.

    A text that is not stored any more stays unknown, and is asked for once.
    """
    if whole(items):
        return
    asked: set[str] = set()
    while missing := needed(items, texts.get) - asked:
        asked |= missing
        await texts.fetch(tree, missing)


def _task(state: State) -> Task:
    assert state.task is not None
    return state.task


# ── instructions ──────────────────────────────────────────────────────────────────────────────────
# The system prompt of an agent that was given none of its own.


BASE_INSTRUCTIONS = """\
You are a coding agent run by Dendro. You work on a real checkout on a real machine, through tools; a person \
reads what you write and may be away for hours.

How to work
- Go on until the task is done or you truly cannot: do not stop to announce what you would do next.
- Look before you change: read the files, the tests and the repository's own instructions first. Prefer `rg` and \
`rg --files` for searching.
- Change as little as the task needs, in the style of the code around it. Fix causes, not symptoms. Leave what is \
not yours alone.
- Check your work with the project's own commands where there are any, narrowest first.
- Never commit, push, or change history unless you were asked to.

Tools
- `shell` runs a program with arguments (`["bash", "-lc", "…"]` for a script); set `workdir` instead of using `cd`. \
Commands may be confined: when the sandbox is in the way of something that the task needs, say why in \
`justification` and set `with_escalated_permissions`.
- `apply_patch` edits files; do not write files by other means when it can do it.
- `update_plan` shows your steps for work of more than a few; exactly one step is in progress at a time.
- `view_image` lets you see a picture.
- If a result says that a call is in doubt, the machine that ran it was lost: look at the state of things before \
you repeat it.

When you are done, say in a few lines what you did, where, and what you could not verify. Name files by their paths.
"""
_SWITCHED: Final = ("apply_patch", "update_plan", "view_image")
"""Tools that a session may be made without; each has a line of its own, and the fact of its name."""


def base_instructions(facts: SessionFacts) -> str:
    """The prompt without the lines about tools that the session does not have."""
    off = tuple(f"- `{name}` " for name in _SWITCHED if not getattr(facts, name))
    if not off:
        return BASE_INSTRUCTIONS
    lines = BASE_INSTRUCTIONS.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(off))


# ── item stream ───────────────────────────────────────────────────────────────────────────────────
# The items of one response while it streams: their names, and what clients are shown before they are
# done.
#
# What is shown here is gone with the stream: the finished item, which is decided on, holds the text. In
# plan mode the plan in a message is an item of its own; with `item_events = "all"` every item is one.


MOST_BEGUN = 1_024
"""Items of one response whose beginning is told: as many as the calls that run of it."""


class ItemStream:
    """The items of one request's response, in their order.

    An item is named by its provider, and by its place in the turn where the provider names none.
    """

    def __init__(self, state: State, request: Request, push: Push, delta: DeltaSink) -> None:
        assert state.task is not None
        settings = state.task.settings
        self._n = request.n
        self._push = push
        self._delta = delta
        self._thread_id, self._turn_id = str(state.facts.session_id), str(state.task.id)
        self._shown = request.purpose == "turn"
        """A compaction's text is not the agent's answer: nothing of it is shown."""
        self._plans = plans(settings)
        self._all = publishes_items(settings)
        self._silent = state.task.branch is not None
        """Beside the session's conversation nothing that is said is shown, but a plan is."""
        self._count = 0
        self._open = ""
        """The name of the item that has begun last, until it is done."""
        self._begun: set[str] = set()
        self._parser = TagParser()
        self._planned = False
        """Whether the message that is open has a plan."""
        self._section = 0

    # ── what comes ────────────────────────────────────────────────────────────────────────────

    def begins(self, item: JsonValue) -> None:
        """Takes the beginning of an item, which may be anything that a server sends."""
        given = item if isinstance(item, dict) else {}
        self._begins(name_of(given.get("id")))
        if self._shown and self._begun_now():
            self._tell(given)

    def shows(self, event: ModelEvent) -> None:
        """Shows a piece of the item that is open."""
        if not self._shown:
            return
        match event:
            case TextDelta(text) if self._plans:
                if not self._open:
                    # An item that begins behind its first piece would forget the tag that it is in.
                    self._begins("")
                self._parts(self._parser.feed(text))
            case TextDelta(text):
                self._said(text)
            case ReasoningSummaryDelta(text):
                index = max(0, self._section - 1)
                self._text(ev.AgentReasoningDelta, ev.ReasoningContentDelta, text, summary_index=index)
            case ReasoningRawDelta(text):
                kinds = ev.AgentReasoningRawContentDelta, ev.ReasoningRawContentDelta
                self._text(*kinds, text, content_index=0)
            case ReasoningSectionBreak():
                self._section += 1
                self._delta(written(ev.AgentReasoningSectionBreak()))
            case _:
                pass

    def done(self, event: ItemDone) -> None:
        """Hands a whole item on, behind all that was shown of it."""
        named = event.place[1]
        if named not in self._begun:
            if not self._open:
                self._begins(named)
            named = self._open
        begun = named in self._begun
        if self._shown and not begun and self._all and self._begun_now():
            self._tell(event.item, searches=False)
        if self._shown and self._plans:
            self._close_plan(event.item)
        self._open, self._section = "", 0
        self._push(c.ItemCompleted(self._n, event.item, named, begun=begun))

    # ── names ─────────────────────────────────────────────────────────────────────────────────

    def _begins(self, name: str) -> None:
        self._count += 1
        self._open = name or f"{self._turn_id}-{self._n}-{self._count}"
        self._parser, self._planned, self._section = TagParser(), False, 0

    def _begun_now(self) -> bool:
        """Whether the open item's beginning is to be told; it is asked once."""
        if self._open in self._begun or len(self._begun) >= MOST_BEGUN:
            return False
        self._begun.add(self._open)
        return True

    # ── what is told ──────────────────────────────────────────────────────────────────────────

    def _tell(self, item: JsonMapping, *, searches: bool = True) -> None:
        if searches and item.get("type") == "web_search_call":
            self._push(c.SearchBegun(self._n, self._open))
        silent = self._silent and item.get("type") == "message"
        if self._all and not silent and (begun := begun_item(item, self._open)) is not None:
            self._started(begun)

    def _started(self, item: TurnItem) -> None:
        self._delta(written(ev.ItemStarted(thread_id=self._thread_id, turn_id=self._turn_id, item=item)))

    def _said(self, text: str) -> None:
        if self._silent:
            return
        self._text(ev.AgentMessageDelta, ev.AgentMessageContentDelta, text)

    def _text(self, kind: type[StreamedText], of_item: type[StreamedText], text: str, **index: int) -> None:
        """Shows a piece of text, and where items are told also as the item's."""
        told = self._all or (self._plans and of_item is ev.AgentMessageContentDelta)
        if told and not self._open:
            self._begins("")
        for piece in pieces(text):
            if told:
                self._delta(self._of_item(of_item, self._open, piece, **index))
            self._delta(ev.text_delta(kind, piece))

    def _of_item(self, kind: type[StreamedText], item_id: str, text: str, **index: int) -> JsonObject:
        place = {"thread_id": self._thread_id, "turn_id": self._turn_id, "item_id": item_id}
        return ev.text_delta(kind, text, **place, **index)

    # ── plans ─────────────────────────────────────────────────────────────────────────────────

    def _parts(self, parts: list[Part]) -> None:
        for part in parts:
            match part:
                case Normal(text):
                    self._said(text)
                case Start():
                    self._plan_begins()
                case Plan(text):
                    for piece in pieces(text):
                        self._delta(self._of_item(ev.PlanDelta, plan_item_id(self._turn_id), piece))
                case _:
                    pass

    def _plan_begins(self) -> None:
        if not self._planned:
            self._planned = True
            self._started(PlanItem(id=plan_item_id(self._turn_id), text=""))

    def _close_plan(self, item: JsonMapping) -> None:
        """Shows what was held of a message; its plan has begun, too, where no piece of it came before."""
        self._parts(self._parser.finish())
        self._parser = TagParser()
        if item.get("type") == "message" and proposal(message_text(item)).plan is not None:
            self._plan_begins()
        self._planned = False
