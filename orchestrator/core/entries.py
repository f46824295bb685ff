"""Rollout entries: the only things that change a state.

An entry is one RolloutItem (`type`, `payload`) with, for an `event_msg`, the Event's id.
Every `event_msg` entry is also an event on the EQ. Facts that the protocol has no line
for are entries of the one own type `dendro`, told apart by `payload.kind`; the functions
below are their catalogue. `evolve` reads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from orchestrator.core.frozen import record

Json = dict[str, Any]

SESSION_META = "session_meta"
RESPONSE_ITEM = "response_item"
COMPACTED = "compacted"
TURN_CONTEXT = "turn_context"
EVENT_MSG = "event_msg"
DENDRO = "dendro"


@record
class Entry:
    """One line of the rollout, before it has a `seq`."""

    type: str
    payload: Mapping[str, Any]
    id: str = ""
    at_ms: int = 0


@lru_cache(maxsize=64)  # all entries of a step are written at one moment
def timestamp(at_ms: int) -> str:
    """UTC with milliseconds, as the peer writes it: `2025-09-20T10:00:00.123Z`."""
    # Every step says its time, and `strftime` takes three times as long.
    moment = datetime.fromtimestamp(at_ms // 1000, UTC).isoformat()
    return f"{moment[:19]}.{at_ms % 1000:03d}Z"


def milliseconds(timestamp: str) -> int:
    """The moment that a line's `timestamp` says."""
    return int(datetime.fromisoformat(timestamp).timestamp() * 1000)


def item(payload: Mapping[str, Any]) -> Entry:
    """A ResponseItem that joins the conversation."""
    return Entry(RESPONSE_ITEM, payload)


def event(id: str, type: str, /, **fields: Any) -> Entry:
    """An event under the id of the task (or submission) that it belongs to."""
    return Entry(EVENT_MSG, {"type": type, **fields}, id)


def error(id: str, message: str, codex_error_info: Any = None) -> Entry:
    """Something failed. The kind of error stands there also when it is null (September 2025)."""
    return event(id, "error", message=message, codex_error_info=codex_error_info)


def fact(kind: str, /, **fields: Any) -> Entry:
    return Entry(DENDRO, {"kind": kind, **fields})


def configured(settings: Json, session: Json) -> Entry:
    """The session's first settings, and what stays with it for life (pool, instructions, lineage)."""
    return fact("configured", settings=settings, session=session)


def settings_changed(changes: Json) -> Entry:
    """New defaults for later tasks: only the fields named; `effort: null` clears."""
    return fact("settings", changes=changes)


def queued(id: str, op: Json, client: str) -> Entry:
    """A user-turn op accepted while another task holds the session; it waits in the state."""
    return fact("queued", id=id, op=op, client=client)


def steered(id: str, item: Mapping[str, Any]) -> Entry:
    """Input that joins the running task at its next request."""
    return fact("steered", id=id, item=item)


def task_begun(
    id: str, kind: str, settings: Json, output_schema: Json | None = None, client: str = ""
) -> Entry:
    """A task holds the session from here to its `task_ended`; `settings` are its own.

    `client` is who gave it; empty if nobody did.
    """
    schema = {} if output_schema is None else {"output_schema": output_schema}
    by = {"client": client} if client else {}
    return fact("task", id=id, task=kind, settings=settings, **schema, **by)


def instructed(base_instructions: str) -> Entry:
    """The system prompt is replaced, from the next request on."""
    return fact("instructed", base_instructions=base_instructions)


def task_ended(outcome: str) -> Entry:
    """`completed`, `failed`, `interrupted` or `replaced`."""
    return fact("task_ended", outcome=outcome)


def stopping(reason: str, by: str) -> Entry:
    """What runs is to be stopped; the task ends when it is proved stopped."""
    return fact("stopping", reason=reason, by=by)


def closing(by: str) -> Entry:
    """The session closes as soon as nothing runs; `by` is the shutdown's submission id."""
    return fact("closing", by=by)


def closed() -> Entry:
    return fact("closed")


def request_begun(number: int, purpose: str, epoch: int) -> Entry:
    """A model request starts after this is committed; `purpose` is `turn` or `compact`."""
    return fact("request_begun", n=number, purpose=purpose, epoch=epoch)


def request_ended(number: int, outcome: str, /, **fields: Any) -> Entry:
    """How a request ended, and what the next attempt has to know.

    `completed` (response_id, usage); `retry` and `waiting` (http_used, not_before_ms, wait:
    the generation of a timer); `failed`; `stopped`. `served` false: no provider worked on it.
    """
    return fact("request_ended", n=number, outcome=outcome, **fields)


def retry_due() -> Entry:
    """A long delay is over: the request may be sent."""
    return fact("retry_due")


def named(name: str) -> Entry:
    """The session's name for people."""
    return fact("named", name=name)


def rate_limits(snapshot: Json) -> Entry:
    """The provider's rate limits, as its last answer told them."""
    return fact("rate_limits", snapshot=snapshot)


def failing(message: str, codex_error_info: Any) -> Entry:
    """The task will fail with this once what runs is stopped."""
    return fact("failing", message=message, info=codex_error_info)


def ending(output: str) -> Entry:
    """Nothing of the stopping task runs any more; its open calls get this output, in several commits."""
    return fact("ending", output=output)


def calls_closed(call_ids: list[str]) -> Entry:
    """These calls are over, and got their outputs: some of those of a task that is ending."""
    return fact("calls_closed", call_ids=call_ids)


def steered_joined(count: int) -> Entry:
    """So many of the steered inputs, the oldest, stand in the conversation now."""
    return fact("steered_joined", count=count)


def timer(generation: int) -> Entry:
    """A timer's generation is taken: a session never uses one twice."""
    return fact("timer", generation=generation)


def call_phase(call_id: str, phase: str, /, **fields: Any) -> Entry:
    """A tool call reaches `phase`; `fields` are what the phase needs to be carried on by anybody."""
    return fact("call", call_id=call_id, phase=phase, **fields)


def answered(call_id: str, turn: str, decision: str, who: str, at_ms: int, **below: int) -> Entry:
    """Who decided an approval of the task `turn`, what, and when (milliseconds).

    An answer that is sent on names the `agent_id` that has asked: it decides nothing here.
    """
    return fact("answer", call_id=call_id, turn=turn, decision=decision, who=who, answered_ms=at_ms, **below)


def approved_for_session(keys: list[str], roots: list[str]) -> Entry:
    return fact("approved_for_session", keys=keys, roots=roots)


def summary_received(text: str) -> Entry:
    """The text of a compaction's answer; it joins no conversation by itself."""
    return fact("summary", text=text)


def rewound(response_id: str, length: int) -> Entry:
    """The conversation goes on from the end of an earlier turn."""
    return fact("rewound", response_id=response_id, length=length)


def agent_changed(**changes: Any) -> Entry:
    """The session's own standing in its tree: `status`, `slot`, `turns`, `label` and the like."""
    return fact("agent", changes=changes)


def child_made(child: Json) -> Entry:
    """An agent was made by this session; `child` is what is known of it."""
    return fact("child", child=child)


def child_changed(agent_id: int, **changes: Any) -> Entry:
    """What a child's letter, or an act of this session, says of it now."""
    return fact("child_changed", agent_id=agent_id, changes=changes)


def children_changed(agent_ids: list[int], **changes: Any) -> Entry:
    """The same of several children, in one entry: a commit carries only so many."""
    return fact("children_changed", agent_ids=agent_ids, changes=changes)


def to_end(agent_ids: list[int], reason: str) -> Entry:
    """These children are to be told to end, in this order, as one commit after the other can."""
    return fact("to_end", agent_ids=agent_ids, reason=reason)


def told_to_end(count: int) -> Entry:
    """So many of the children that were to be told, the first, have been."""
    return fact("told_to_end", count=count)


def mail_received(mail: Json) -> Entry:
    """A letter that waits until the model can be given it."""
    return fact("mail", mail=mail)


def mail_taken(keys: list[str]) -> Entry:
    """These letters are in the conversation now, or will never be."""
    return fact("mail_taken", keys=keys)


def letter_sent(agent_id: int, text: str | None, *, interrupt: bool) -> Json:
    """A letter as its writer's log tells of it, beside what wrote it; the whole is in the other log."""
    return {"agent_id": agent_id, "text": text, "interrupt": interrupt}


def watchdog_set(watchdog: Json, sent: Json | None = None) -> Entry:
    """It is armed; `sent` is the letter that it has just written."""
    told = {} if sent is None else {"sent": sent}
    return fact("watchdog", watchdog=watchdog, **told)


def watchdog_ended(agent_id: int) -> Entry:
    return fact("watchdog_ended", agent_id=agent_id)


def forked(parent: Json, content: Any) -> Entry:
    """The conversation that a fork begins with, as JSON text; `parent` names session, seq and chain head."""
    return fact("forked", parent=parent, content=content)
