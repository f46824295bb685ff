"""Compares a recorded conversation with one held with the program: events, requests, log.

Pure: values in, differences out. What may differ is `allowances`' business; how a conversation is
driven is `conversation`'s.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.acceptance.allowances import (
    LAST_COUNTS,
    Message,
    event_kind,
    further_event,
    further_line,
    is_marker,
    joined_output_deltas,
    joined_text_deltas,
    last_of_each_task,
    of_failed_tool,
    one_of_each_attempt,
    without_durations,
    without_free_names,
    without_free_texts,
    without_interleaving,
)
from tests.acceptance.placeholders import ABSENT, ANYTHING, Bindings, Difference, Json, differences

# ── the comparisons ───────────────────────────────────────────────────────────────────────────


def compare_events(
    recorded: Sequence[Message], got: Sequence[Message], bindings: Bindings
) -> list[Difference]:
    """The sequence of events by type and `id`, every recorded field, and each task's last figures."""
    found = _in_order(_reduced(recorded), _reduced(got), bindings, EVENTS)
    last_recorded, last_got = last_of_each_task(recorded), last_of_each_task(got)
    for kind, event in last_recorded.items():
        place = f"last {kind[0]} of {kind[1]!r}"
        found += differences(event, last_got.get(kind, ABSENT), bindings, place)
    return found


def compare_requests(
    recorded: Sequence[Message], got: Sequence[Message], bindings: Bindings
) -> list[Difference]:
    """Compares every model request, field by field."""
    expected = one_of_each_attempt(map(_comparable, recorded))
    seen = one_of_each_attempt(map(_comparable, got))
    found: list[Difference] = []
    if len(expected) != len(seen):
        found.append(Difference("number of requests", len(expected), len(seen)))
    for index, (request, other) in enumerate(zip(expected, seen, strict=False)):
        found += differences(*_told_apart(request, other), bindings, f"request {index + 1}")
    return found


def compare_rollout(
    recorded: Sequence[Message], got: Sequence[Message], bindings: Bindings
) -> list[Difference]:
    """The log's lines: their shape, the order of what the recorded log held, its calls, its last figures.

    Events and items are two orders: an item is written as it completes, while the recorded
    version held a response's items back until its end.
    """
    found = [difference for index, line in enumerate(got) for difference in _shape(index, line)]
    recorded, got = [_comparable(line) for line in recorded], [_comparable(line) for line in got]
    for belongs in (_is_model_item, lambda line: not _is_model_item(line)):
        expected, seen = filter(belongs, _ordered(recorded)), filter(belongs, _ordered(got))
        found += _in_order(list(expected), list(seen), bindings, LINES)
    found += _compare_calls(_calls(recorded), _calls(got), bindings)
    counts = [[line for line in lines if _is_count(line)][-1:] for lines in (recorded, got)]
    return found + list(differences(counts[0], counts[1], bindings, "last token_count line"))


def has_come(recorded: Sequence[Message], got: Sequence[Message]) -> bool:
    """Whether all these events are there, by type and id: when the next submission may be sent."""
    expected = [event_kind(event) for event in _reduced(recorded)]
    for event in _reduced(got):
        if expected and event_kind(event) == expected[0]:
            expected.pop(0)
    return not expected


@dataclass(frozen=True, slots=True)
class _Sequence:
    """How to walk one kind of sequence."""

    kind: Callable[[Message], tuple[str, ...]]
    may_be_more: Callable[[Message], bool]
    name: str


def _in_order(
    recorded: Sequence[Message], got: Sequence[Message], bindings: Bindings, how: _Sequence
) -> list[Difference]:
    """Compares pairwise; what may be more is passed over; stops where the sequences part."""
    found: list[Difference] = []
    rest = iter(got)
    for index, expected in enumerate(recorded):
        place = f"{how.name} {index} {how.kind(expected)}"
        other = next((one for one in rest if _halts(one, expected, how)), None)
        if other is None or how.kind(other) != how.kind(expected):
            return [*found, Difference(place, expected, other or ABSENT)]
        found += differences(*_told_apart(expected, other), bindings, place)
    extra = [one for one in rest if not how.may_be_more(one)]
    return found + [Difference(f"{how.name} after the last", ABSENT, one) for one in extra]


def _halts(one: Message, expected: Message, how: _Sequence) -> bool:
    return how.kind(one) == how.kind(expected) or not how.may_be_more(one)


def _reduced(events: Iterable[Message]) -> list[Message]:
    counted = [event for event in events if event["msg"]["type"] not in LAST_COUNTS]
    plain = [_comparable(without_free_texts(event)) for event in counted]
    return joined_output_deltas(joined_text_deltas(plain))


def _comparable(value: Message) -> Message:
    result: Message = without_interleaving(without_durations(without_free_names(value)))
    return result


def _told_apart(recorded: Json, got: Json) -> tuple[Json, Json]:
    """Both values, the recorded outputs of failed tools made free wherever they are."""
    if isinstance(recorded, dict):
        if of_failed_tool(recorded.get("output")) and not _succeeded(got):
            recorded = {**recorded, "output": ANYTHING}
        return {name: _told_apart(part, _part(got, name))[0] for name, part in recorded.items()}, got
    if isinstance(recorded, list) and isinstance(got, list) and len(recorded) == len(got):
        return [_told_apart(*pair)[0] for pair in zip(recorded, got, strict=True)], got
    return recorded, got


def _succeeded(got: Json) -> bool:
    return '"exit_code":0' in str(_part(got, "output")).replace(" ", "")


def _part(value: Json, name: str) -> Json:
    return value.get(name) if isinstance(value, dict) else None


# ── events, lines, items ──────────────────────────────────────────────────────────────────────


def _line_kind(line: Message) -> tuple[str, ...]:
    payload = line["payload"]
    return line["type"], str(payload.get("type", "")), str(payload.get("role", ""))


EVENTS = _Sequence(event_kind, further_event, "event")
LINES = _Sequence(_line_kind, further_line, "rollout line")
LINE_TYPES = frozenset({"session_meta", "response_item", "compacted", "turn_context", "event_msg"})
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z|@TIME@")


def _shape(index: int, line: Message) -> Iterator[Difference]:
    """`timestamp`, `type`, `payload`, flattened; nothing of a type that a foreign reader cannot know."""
    if not _TIMESTAMP.fullmatch(str(line.get("timestamp"))):
        yield Difference(f"rollout line {index}.timestamp", "@TIME@", line.get("timestamp", ABSENT))
    if line.get("type") not in LINE_TYPES or not isinstance(line.get("payload"), dict):
        yield Difference(f"rollout line {index}", sorted(LINE_TYPES), line)


def _ordered(lines: Iterable[Message]) -> list[Message]:
    return [line for line in lines if not _is_count(line) and not _call_id(line) and not is_marker(line)]


def _is_count(line: Message) -> bool:
    return bool(line["payload"].get("type") == "token_count")


def _is_model_item(line: Message) -> bool:
    return bool(line["type"] == "response_item" and line["payload"].get("role") != "user")


def _call_id(line: Message) -> str:
    return line["payload"].get("call_id") or "" if line["type"] == "response_item" else ""


def _calls(lines: Iterable[Message]) -> dict[str, list[Message]]:
    calls: dict[str, list[Message]] = defaultdict(list)
    for line in lines:
        if _call_id(line):
            calls[_call_id(line)].append(line)
    return calls


def _compare_calls(
    recorded: dict[str, list[Message]], got: dict[str, list[Message]], bindings: Bindings
) -> Iterator[Difference]:
    """A call's lines may stand anywhere, the call before its output, each once."""
    for call, lines in recorded.items():
        yield from differences(*_told_apart(lines, got.get(call, ABSENT)), bindings, f"lines of call {call}")
