"""A model request from its beginning to its end, its retries, and compaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.agent_views import told_result
from orchestrator.core.calls import Phase
from orchestrator.core.commands import (
    ItemCompleted,
    RequestSent,
    ResponseBroken,
    ResponseCompleted,
    SearchBegun,
)
from orchestrator.core.commit_parts import RETRY_TIMER
from orchestrator.core.compaction import (
    COMPACTED_MESSAGE,
    COMPACTED_WARNING,
    compacted_history,
    nothing_said,
    stored_texts,
)
from orchestrator.core.decide.agent import heading
from orchestrator.core.decide.draft import (
    DoesNotFit,
    Draft,
    publish_call,
    publish_compaction,
    publish_done,
    show_made,
    show_thinking,
)
from orchestrator.core.decide.mail_delivery import deliver
from orchestrator.core.decide.task import complete, fail, first_said, token_count
from orchestrator.core.frozen import replace
from orchestrator.core.history import BESIDE, CALL_KINDS, Item, call_output, message_text, searched
from orchestrator.core.lines import CompactedLine, ContextLine
from orchestrator.core.modes import plan_item_id, plans, proposal
from orchestrator.core.settings import HELD_WAIT_S
from orchestrator.core.state import Request
from orchestrator.core.tokens import must_compact
from orchestrator.core.user_turns import Purpose
from orchestrator.protocol import events as ev
from orchestrator.protocol.ids import CallId, ResponseId
from orchestrator.protocol.items import web_action
from orchestrator.protocol.turn_items import PlanItem
from orchestrator.protocol.wire import EventModel, JsonMapping, JsonObject

BASE_DELAY_MS = 200
OVERFLOW = "context_window_exceeded"
"""The protocol's name of the error that a conversation is too long for the model."""
DOES_NOT_FIT = "the conversation does not fit the model's context window"
SUMMARY_BYTES = 60_000
"""A longer text would be stored beside its entry, where the fold that joins a summary cannot read it."""
MOST_CALLS = 1_024
"""Calls of one response that run: the state holds each of them until the turn is over."""
TOO_MANY_CALLS = f"not run: a response may ask for at most {MOST_CALLS:,} calls"
MOST_PARTS = 100
"""Parts of a reasoning that are told one by one: clients get an event of each."""
SAID_WITH_REQUEST = 16
"""Inputs that join the conversation with the request that shows them: mail may bring a hundred entries."""


def begin_request(draft: Draft) -> None:
    """The decision to send the request that the task owes.

    Inputs that are more than a commit carries join the conversation first; then it is owed still.
    """
    task = draft.task
    if task.request is not None or task.calls.any_open or task.stopping or task.wait:
        raise DoesNotFit("no model request is owed")
    draft.guard()
    if len(first_said(task, SAID_WITH_REQUEST)) < len(task.steered):
        joining = first_said(task)
        draft.add(*map(e.item, joining), f.SteeredJoined(len(joining)))
        return
    purpose = _purpose(draft)
    if task.branch is None and task.kind != "compact":
        # Of a result that a compaction were shown, the summary alone would tell; what people say is kept.
        deliver(draft, instructions_only=purpose == "compact")
    show_thinking(draft)
    draft.add(*map(e.item, task.steered))
    draft.add(
        f.RequestBegun(draft.state.requests + 1, purpose, draft.moment.epoch),
        e.line(ContextLine.of(task.settings)),
    )
    token_count(draft)
    if purpose == "compact":
        publish_compaction(draft, done=False)


def _purpose(draft: Draft) -> Purpose:
    task, rules = draft.task, draft.moment.rules
    if task.kind == "compact" or task.rescue:
        return "compact"
    due = must_compact(draft.state.tokens, task.settings.context_window, rules.auto_compact_limit)
    # What was just compacted is as small as it gets: twice in a row would never end.
    compacted = draft.state.compacted if task.branch is None else task.branch.compacted
    return "compact" if due and not compacted else "turn"


def request_sent(draft: Draft, command: RequestSent) -> None:
    """Records what the model was shown; texts that the log has are not written again."""
    _request(draft, command.n)
    kept = draft.state.extras.texts
    draft.add(*(f.TextKept(sha256, text) for sha256, text in command.texts.items() if sha256 not in kept))
    draft.add(f.RequestSent(command.n, command.sent, command.instructions, command.tools))


def search_begun(draft: Draft, command: SearchBegun) -> None:
    """Shows a search while it lasts; one whose stream breaks has no end."""
    if _request(draft, command.n).purpose == "turn":
        draft.event(ev.WebSearchBegin(call_id=CallId(command.item_id)))


def item_completed(draft: Draft, command: ItemCompleted) -> None:
    """An item joins the history at once, so that an interrupt loses nothing."""
    request = _request(draft, command.n)
    item = dict(command.item)
    if request.purpose == "compact":
        if item.get("type") == "message":
            text = message_text(item).encode()[:SUMMARY_BYTES].decode(errors="ignore")
            draft.add(f.SummaryReceived(text))
        return
    for event in _item_events(draft, item, command):
        draft.event(event)
    text = message_text(item)
    # What is said beside the session's conversation is shown by what comes of it.
    if draft.task.branch is None or item.get("type") != "message":
        publish_done(draft, command, proposal(text).said if plans(draft.task.settings) else text)
    heading(draft, item)
    show_made(draft, item)
    if item.get("type") in CALL_KINDS:
        _call_proposed(draft, {**item, "call_id": item.get("call_id") or f"call-{command.n}"})
    else:
        draft.add(e.item(item))
        _keep_beginning(draft, item, text)


def _keep_beginning(draft: Draft, item: Item, text: str) -> None:
    """Keeps what an agent's parent is told of a long answer: no fold reads a text beside its line."""
    said = item.get("type") == "message" and item.get("role") == "assistant"
    told = told_result(text) if said and not draft.state.facts.is_root else text
    if told is not None and told != text:
        draft.add(f.AnswerBegins(told))


def _call_proposed(draft: Draft, item: JsonObject) -> None:
    item["call_id"] = _unique_call_id(draft, item["call_id"])
    calls = draft.task.calls
    if len(calls) and next(calls.open, None) is None:
        # The conversation alone could not tell it from a call of another response.
        item[BESIDE] = True
    draft.add(e.item(item))
    name = str(item.get("name", ""))
    publish_call(draft, name, item)
    if len(draft.task.calls) > MOST_CALLS:
        answer = call_output(item, TOO_MANY_CALLS)
        draft.add(e.item(answer))
        publish_call(draft, name, answer)
        draft.add(f.CallMoved(item["call_id"], Phase.DONE))


def _request(draft: Draft, n: int) -> Request:
    request = draft.task.request
    if request is None or request.n != n:
        raise DoesNotFit(f"request {n} is not in flight")
    return request


def _unique_call_id(draft: Draft, call_id: str) -> str:
    """A model may repeat an id within a turn; phases and answers go by it, so it is told apart.

    An answer to a call of an earlier response may be on its way still: it must not meet this one.
    """
    calls, turn = draft.task.calls, draft.task.id
    answered = {one.call_id for one in draft.state.answers if one.turn == turn}
    number, unique = 2, call_id
    while calls.has_used(unique) or unique in answered:
        unique, number = f"{call_id}#{number}", number + 1
    return unique


def _item_events(draft: Draft, item: JsonMapping, command: ItemCompleted) -> list[EventModel | JsonObject]:
    match item.get("type"):
        case "message" if item.get("role") == "assistant":
            return _message_events(draft, message_text(item), _phase(item))
        case "reasoning":
            raw = item.get("content") or () if draft.moment.rules.show_raw_reasoning else ()
            return [
                *(ev.AgentReasoning(text=text) for text in _told_parts(item.get("summary") or ())),
                *(ev.AgentReasoningRawContent(text=text) for text in _told_parts(raw)),
            ]
        case "web_search_call":
            call_id = CallId(command.item_id)
            action = web_action(item.get("action"))
            end = ev.WebSearchEnd(call_id=call_id, query=searched(item), action=action)
            return [end] if command.begun else [ev.WebSearchBegin(call_id=call_id), end]
        case _:
            return []


def _told_parts(parts: Sequence[Item]) -> Iterator[str]:
    """The texts of parts, an event each; those beyond a number are one: a commit carries all of them."""
    texts = [str(part.get("text", "")) for part in parts]
    yield from texts[: MOST_PARTS - 1]
    if rest := texts[MOST_PARTS - 1 :]:
        yield "\n\n".join(rest)


def _phase(item: JsonMapping) -> ev.MessagePhase | None:
    said = item.get("phase")
    return next((phase for phase in get_args(ev.MessagePhase) if phase == said), None)


def _message_events(draft: Draft, text: str, phase: ev.MessagePhase | None) -> list[EventModel | JsonObject]:
    """A message of the agent; in plan mode its plan is an item of its own, cut out of the message."""
    shown = draft.task.branch is None
    if not plans(draft.task.settings):
        return [ev.agent_message(text, phase)] if shown else []
    found = proposal(text)
    events: list[EventModel | JsonObject] = []
    if found.plan is not None:
        turn_id = draft.task.id
        item = PlanItem(id=plan_item_id(turn_id), text=found.plan)
        thread_id = draft.state.facts.session_id
        events.append(ev.ItemCompleted(thread_id=thread_id, turn_id=turn_id, item=item))
    if found.said and shown:
        events.append(ev.agent_message(found.said, phase))
    return events


def response_completed(draft: Draft, command: ResponseCompleted) -> None:
    request = _request(draft, command.n)
    draft.add(
        f.RequestCompleted(
            command.n,
            response_id=ResponseId(command.response_id),
            usage=command.usage,
            price=command.price,
            end_turn=False if command.end_turn is False else None,
            served_by=command.served,
        )
    )
    if command.rate_limits is not None:
        draft.add(f.RateLimitsReported(command.rate_limits))
    if request.purpose == "compact" and not draft.task.stopping:
        _compacted(draft)


def _compacted(draft: Draft) -> None:
    token_count(draft)
    summary = draft.task.summary
    if not summary:
        fail(draft, "the model answered the compaction request with no text; the history stays as it was")
        return
    kept, items = compacted_history(draft.state, summary)
    draft.add(e.line(CompactedLine(summary, items, tuple(stored_texts(kept)), turns_kept=True)))
    publish_compaction(draft, done=True)
    draft.event(ev.WarningEvent(message=COMPACTED_WARNING))
    if draft.task.kind == "compact":
        draft.event(ev.AgentMessage(message=COMPACTED_MESSAGE))
        complete(draft, None)


def response_broken(draft: Draft, command: ResponseBroken) -> None:
    """A request ended early: it is retried within its budget, waited out, or fails the task."""
    _request(draft, command.n)
    rules, task = draft.moment.rules, draft.task
    if task.stopping or task.result is not None:
        # The stream broke because it was stopped, or just before: the reason to stop stands.
        served = command.served and command.kind not in ("limited", "unsent")
        draft.add(f.RequestStopped(command.n, served=served, usage=command.usage, price=command.price))
    elif command.codex_error_info == OVERFLOW and (told := _rescue(draft)):
        draft.add(replace(_failed(command), overflow=True))
        draft.event(ev.BackgroundEvent(message=told))
    elif command.kind == "fatal":
        draft.add(_failed(command))
        fail(draft, command.message, command.codex_error_info)
    elif command.kind == "unsent":
        # No attempt was made, so none is counted: a busy fleet must not use up a task's retries.
        _wait(draft, command, task.http_used)
    elif command.kind == "limited" and command.http_used < rules.request_max_retries:
        _wait(draft, command, command.http_used + 1)
    elif task.stream_retries >= rules.stream_max_retries:
        draft.add(_failed(command))
        fail(draft, command.message, command.codex_error_info)
    else:
        _retry(draft, command)


def _failed(command: ResponseBroken) -> f.RequestFailed:
    return f.RequestFailed(command.n, served=command.served, usage=command.usage, price=command.price)


def _rescue(draft: Draft) -> str:
    """The news that the conversation is cut down because it does not fit; empty if the task fails instead."""
    task = draft.task
    if task.request is not None and task.request.purpose == "compact":
        attempt = max(task.rescue, 1) + 1
        parts = {2: "half", 3: "three quarters"}
        return (
            f"{DOES_NOT_FIT}: it is summed up without its oldest {parts[attempt]}" if attempt in parts else ""
        )
    if task.rescued or nothing_said(draft.state.conversation):
        return ""
    return f"{DOES_NOT_FIT}: it is compacted, then the turn goes on"


def _wait(draft: Draft, command: ResponseBroken, http_used: int) -> None:
    """Puts the request off to a later time, without an event."""
    due, wait = _delayed(draft, command.delay_ms or 0)
    draft.add(
        f.RequestDelayed(
            command.n,
            http_used=http_used,
            not_before_ms=due,
            wait=wait,
            usage=command.usage,
            price=command.price,
        )
    )


def _retry(draft: Draft, command: ResponseBroken) -> None:
    attempt, most = draft.task.stream_retries + 1, draft.moment.rules.stream_max_retries
    delay = command.delay_ms
    if delay is None:
        delay = int(BASE_DELAY_MS * 2 ** (attempt - 1) * draft.moment.jitter)
    draft.event(
        ev.StreamError(
            message=f"stream error: {command.message}; retrying {attempt}/{most} in {delay}ms…",
            codex_error_info=command.codex_error_info,
        )
    )
    due, wait = _delayed(draft, delay)
    draft.add(
        f.RequestRetried(
            command.n,
            # A worker that was lost, or left, has told nothing of those before its own.
            http_used=max(command.http_used, draft.task.http_used),
            served=command.served,
            usage=command.usage,
            price=command.price,
            not_before_ms=due,
            wait=wait,
        )
    )


def _delayed(draft: Draft, delay_ms: int) -> tuple[int, int]:
    """When the next attempt is due, and the generation of the timer for it; 0 if it is waited out."""
    due = draft.moment.at_ms + delay_ms
    wait = draft.set_timer(RETRY_TIMER, due) if delay_ms > HELD_WAIT_S * 1000 else 0
    return due, wait
