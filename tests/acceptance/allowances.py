"""Values that need not match, and decisions of the protocol page: the one place for both.

The rules are those of `tests/transcripts/README.md`, one function each; nothing else in the tests
makes an exception. An allowance makes two values comparable; a deviation changes the recording
into what it would be under the decision.
"""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.acceptance.placeholders import ABSENT, ANYTHING, Json

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded conversation."""

    lines: tuple[Message, ...]
    """`{"sq": Submission}` and `{"eq": Event}` in order."""
    requests: tuple[Message, ...] = ()
    rollout: tuple[Message, ...] = ()
    model: tuple[Message, ...] = ()
    """The scripted answers, request by request."""

    def events(self) -> list[Message]:
        return [line["eq"] for line in self.lines if "eq" in line]

    def submissions(self) -> list[Message]:
        return [line["sq"] for line in self.lines if "sq" in line]


# ── allowances: what may differ in any conversation ───────────────────────────────────────────

KNOWN_EVENTS = frozenset(
    {
        "error",
        "stream_error",
        "background_event",
        "task_started",
        "task_complete",
        "turn_aborted",
        "token_count",
        "agent_message",
        "agent_message_delta",
        "agent_reasoning",
        "agent_reasoning_delta",
        "agent_reasoning_raw_content",
        "agent_reasoning_raw_content_delta",
        "agent_reasoning_section_break",
        "session_configured",
        "mcp_tool_call_begin",
        "mcp_tool_call_end",
        "mcp_list_tools_response",
        "web_search_begin",
        "web_search_end",
        "exec_command_begin",
        "exec_command_output_delta",
        "exec_command_end",
        "exec_approval_request",
        "apply_patch_approval_request",
        "patch_apply_begin",
        "patch_apply_end",
        "turn_diff",
        "plan_update",
        "shutdown_complete",
        "get_history_entry_response",
        "list_custom_prompts_response",
        "conversation_path",
        "entered_review_mode",
        "exited_review_mode",
    }
)
"""Events of the recorded version, `user_message` left out."""

FREE_TEXTS = frozenset({"error", "stream_error", "background_event"})
TEXT_DELTAS = frozenset({"agent_message_delta", "agent_reasoning_delta", "agent_reasoning_raw_content_delta"})
LAST_COUNTS = ("token_count", "turn_diff")
FREE_NAMES = frozenset({"history_log_id", "history_entry_count", "originator", "cli_version"})


def further_event(event: Message) -> bool:
    """`user_message`, `warning` and events unknown to the recorded version may come anywhere."""
    return event["msg"].get("type") not in KNOWN_EVENTS


def without_free_texts(event: Message) -> Message:
    """Texts of `error`, `stream_error` and `background_event` are the program's own words."""
    message = event["msg"]
    if message.get("type") not in FREE_TEXTS or not isinstance(message.get("message"), str):
        return event
    return {**event, "msg": {**message, "message": ANYTHING}}


def without_free_names(value: Json) -> Json:
    """`history_*`, `originator` and `cli_version` say who wrote, not what happened."""
    if isinstance(value, dict):
        return {k: ANYTHING if k in FREE_NAMES else without_free_names(v) for k, v in value.items()}
    return [without_free_names(part) for part in value] if isinstance(value, list) else value


def without_durations(value: Json) -> Json:
    """Durations and "N milliseconds" in texts differ at every run."""
    if isinstance(value, dict):
        zeroed = {"secs": 0, "nanos": 0}
        return {
            name: zeroed if name == "duration" and isinstance(part, dict) else without_durations(part)
            for name, part in value.items()
        }
    if isinstance(value, list):
        return [without_durations(part) for part in value]
    if isinstance(value, str):
        text = re.sub(r"\b\d+ milliseconds", "N milliseconds", value)
        return re.sub(r'"duration_seconds":[0-9.]+', '"duration_seconds":0', text)
    return value


def joined_text_deltas(events: Iterable[Message]) -> list[Message]:
    """How a text is cut into deltas is free: neighbours of one kind and id count as one."""
    joined: list[Message] = []
    last = -1
    for event in events:
        kind = event["msg"]["type"]
        if kind in TEXT_DELTAS and last >= 0 and event_kind(joined[last]) == event_kind(event):
            text = joined[last]["msg"]["delta"] + event["msg"]["delta"]
            joined[last] = {**joined[last], "msg": {**joined[last]["msg"], "delta": text}}
            continue
        joined.append(event)
        last = last if further_event(event) else len(joined) - 1
    return joined


def joined_output_deltas(events: Iterable[Message]) -> list[Message]:
    """A call's output deltas count as one for each stream, stdout first, where its first delta came."""
    chunks: dict[tuple[str, ...], bytes] = defaultdict(bytes)
    placed: list[Message] = []
    ended: set[str] = set()
    for event in events:
        message = event["msg"]
        if message["type"] == "exec_command_end":
            ended.add(message["call_id"])
        if not _is_output(message) or message["call_id"] in ended:
            placed.append(event)
            continue
        both = [{**event, "msg": {**message, "stream": stream}} for stream in ("stdout", "stderr")]
        if not any(_stream(one) in chunks for one in both):
            placed += both
        chunks[_stream(event)] += base64.b64decode(message["chunk"])
    return [_with_whole_chunk(event, chunks) for event in placed if not _silent(event, chunks)]


def without_interleaving(value: Json) -> Json:
    """How the lines of two streams mix in one text follows the order of their deltas, which is free.

    Each stream's own text is recorded beside it and has to match in order.
    """
    if isinstance(value, dict):
        return {name: _unmixed(name, without_interleaving(part)) for name, part in value.items()}
    return [without_interleaving(part) for part in value] if isinstance(value, list) else value


def _unmixed(name: str, value: Json) -> Json:
    if name in ("aggregated_output", "formatted_output") and isinstance(value, str):
        return "\n".join(sorted(value.split("\n")))
    if name != "output" or not isinstance(value, str) or not value.startswith('{"output":'):
        return value
    try:
        result = json.loads(value)
    except ValueError:
        return value
    return json.dumps({**result, "output": _unmixed("aggregated_output", result["output"])})


def _is_output(message: Message) -> bool:
    return bool(message["type"] == "exec_command_output_delta")


def _stream(event: Message) -> tuple[str, ...]:
    return event["id"], event["msg"]["call_id"], event["msg"]["stream"]


def _silent(event: Message, chunks: dict[tuple[str, ...], bytes]) -> bool:
    return _is_output(event["msg"]) and not chunks.get(_stream(event))


def _with_whole_chunk(event: Message, chunks: dict[tuple[str, ...], bytes]) -> Message:
    if not _is_output(event["msg"]):
        return event
    chunk = chunks[_stream(event)].decode(errors="backslashreplace")
    return {**event, "msg": {**event["msg"], "chunk": chunk}}


def last_of_each_task(events: Iterable[Message]) -> dict[tuple[str, str], Message]:
    """Number and place of `token_count` and `turn_diff` are free; a task's last of each must match."""
    return {event_kind(event): event for event in events if event["msg"]["type"] in LAST_COUNTS}


def of_failed_tool(output: Json) -> bool:
    """Texts of failed tools' outputs are the program's own words; a command's exit code is no failure."""
    return isinstance(output, str) and output.startswith(FAILURES)


FAILURES = ("error:", "unsupported call", "failed to", "exec command", "patch rejected", "approval policy")


def one_of_each_attempt(requests: Iterable[Json]) -> list[Json]:
    """The number of HTTP attempts is free: equal neighbours are one request."""
    kept: list[Json] = []
    for request in requests:
        if not kept or kept[-1] != request or request == ANYTHING:
            kept.append(request)
    return kept


FURTHER_LINES = frozenset({"turn_context"})


def further_line(line: Message) -> bool:
    """The log may say more than the recorded one; but no item that the model was not shown there."""
    payload = line.get("payload", {})
    if line.get("type") == "event_msg":
        return payload.get("type") not in KEPT_EVENTS
    return line.get("type") in FURTHER_LINES or is_marker(payload)


KEPT_EVENTS = frozenset(
    {
        "user_message",
        "agent_message",
        "agent_reasoning",
        "agent_reasoning_raw_content",
        "entered_review_mode",
        "exited_review_mode",
        "turn_aborted",
    }
)


# ── deviations that the protocol page decides: applied to the recording ───────────────────────


def decided(recording: Recording) -> Recording:
    """The recording as it would be under the decisions of the protocol page."""
    for deviation in (tagged_file_changes, cleared_effort, kept_history, replacement_history):
        recording = deviation(recording)
    return recording


def tagged_file_changes(recording: Recording) -> Recording:
    """A FileChange carries its kind as `type`; the recorded version wrapped it."""

    def tagged(line: Message) -> Message:
        message = line.get("eq", {}).get("msg", {})
        if "changes" not in message:
            return line
        changes = {
            path: {"type": kind, **fields}
            for path, change in message["changes"].items()
            for kind, fields in change.items()
        }
        return {"eq": {**line["eq"], "msg": {**message, "changes": changes}}}

    return replace(recording, lines=tuple(map(tagged, recording.lines)))


def cleared_effort(recording: Recording) -> Recording:
    """`effort: null` clears the effort; the recorded version kept the old one."""
    cleared = False
    texts: list[str] = []
    for submission in recording.submissions():
        op = submission["op"]
        if "effort" in op:
            cleared = op["effort"] is None
        if cleared and "items" in op:
            texts.append(op["items"][0].get("text", ""))
    requests = tuple(
        {**request, "reasoning": _without(request.get("reasoning"), "effort")}
        if _last_user_text(request["input"]) in texts
        else request
        for request in recording.requests
    )
    return replace(recording, requests=requests, rollout=tuple(_effortless(recording.rollout, texts)))


def _effortless(rollout: Iterable[Message], texts: Sequence[str]) -> Iterator[Message]:
    cleared = False
    for line in rollout:
        payload = line["payload"]
        if payload.get("type") == "user_message":
            cleared = payload["message"] in texts
        if cleared and line["type"] == "turn_context":
            yield {**line, "payload": _without(payload, "effort")}
        else:
            yield line


def kept_history(recording: Recording) -> Recording:
    """After an interrupt the call, its output and the marker stay; the recorded version forgot them."""
    requests = list(recording.requests)
    for calls, next_text in _interruptions(recording.lines):
        kept = [*_calls_with_outputs(recording.model, calls), MARKER]
        for index, request in enumerate(requests):
            place = _index_of_user_text(request["input"], next_text)
            if place is not None:
                found = request["input"]
                requests[index] = {**request, "input": [*found[:place], *kept, *found[place:]]}
    return replace(recording, requests=tuple(requests))


MARKER = {
    "type": "message",
    "role": "user",
    "content": [{"type": "input_text", "text": f"<turn_aborted>{ANYTHING}</turn_aborted>"}],
}


def _interruptions(lines: Iterable[Message]) -> Iterator[tuple[list[str], str]]:
    """For each interrupted task: the calls that it left open, and the text of the next input."""
    open_calls: list[str] = []
    aborted = False
    for line in lines:
        message = line.get("eq", {}).get("msg", {})
        kind, call = message.get("type", ""), message.get("call_id", "")
        if kind in ("exec_approval_request", "apply_patch_approval_request") or kind.endswith("_begin"):
            open_calls += [call] if call not in open_calls else []
        elif kind.endswith("_end") and call in open_calls:
            open_calls.remove(call)
        elif kind == "turn_aborted":
            aborted = True
        op = line.get("sq", {}).get("op", {})
        if aborted and "items" in op:
            yield list(open_calls), op["items"][0]["text"]
            open_calls, aborted = [], False


def _calls_with_outputs(model: Iterable[Message], calls: Sequence[str]) -> Iterator[Message]:
    items = [item for step in model for item in step.get("items", []) if item.get("call_id") in calls]
    for item in items:
        call = {"type": "function_call", "name": item["call"], "call_id": item["call_id"]}
        yield {**call, "arguments": json.dumps(item["args"])}
        yield {"type": "function_call_output", "call_id": item["call_id"], "output": ANYTHING}


def replacement_history(recording: Recording) -> Recording:
    """`compacted` carries the replacement history and a `warning` follows; the recorded one had neither."""
    rollout = tuple(
        {**line, "payload": {**line["payload"], "replacement_history": ANYTHING}}
        if line["type"] == "compacted"
        else line
        for line in recording.rollout
    )
    compacting = {sub["id"] for sub in recording.submissions() if sub["op"]["type"] == "compact"}
    lines: list[Message] = []
    for line in recording.lines:
        event = line.get("eq", {"id": None, "msg": {}})
        if event["id"] in compacting and event["msg"]["type"] == "agent_message":
            lines.append({"eq": {"id": event["id"], "msg": {"type": "warning", "message": ANYTHING}}})
        lines.append(line)
    return replace(recording, lines=tuple(lines), rollout=rollout)


# ── events and items ──────────────────────────────────────────────────────────────────────────


def event_kind(event: Message) -> tuple[str, str]:
    return str(event["msg"].get("type")), str(event["id"])


def is_marker(value: Message) -> bool:
    """Whether a line or an item is the message that an interrupt leaves for the model."""
    content = value.get("payload", value).get("content")
    texts = [part.get("text", "") for part in content] if isinstance(content, list) else []
    return bool(texts) and str(texts[0]).startswith("<turn_aborted>")


def _without(fields: Any, name: str) -> Any:
    return {k: v for k, v in fields.items() if k != name} | {name: ABSENT} if fields else fields


def _user_texts(items: Sequence[Message]) -> list[str | None]:
    return [item["content"][0].get("text") if item.get("role") == "user" else None for item in items]


def _last_user_text(items: Sequence[Message]) -> str | None:
    return next((text for text in reversed(_user_texts(items)) if text is not None), None)


def _index_of_user_text(items: Sequence[Message], text: str) -> int | None:
    texts = _user_texts(items)
    return texts.index(text) if text in texts else None
