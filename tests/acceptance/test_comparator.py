"""The comparator lets pass what may differ, and nothing else: every recording is altered in every place."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.allowances import (
    FREE_NAMES,
    FREE_TEXTS,
    LAST_COUNTS,
    Message,
    Recording,
    decided,
    event_kind,
    last_of_each_task,
    of_failed_tool,
)
from tests.acceptance.comparator import compare_events, compare_requests, compare_rollout, has_come
from tests.acceptance.placeholders import Bindings
from tests.acceptance.recordings import FOLDERS, TRANSCRIPTS, read

REAL = {
    "@WORKSPACE@": "/srv/work",
    "@OUTSIDE@": "/srv/outside",
    "@HOME@": "/home/user/.local",
    "@DATE@": "2026/03/04",
    "@TIME@": "2026-03-04T05:06:07.008Z",
    "@COMMIT@": "0123456789abcdef0123456789abcdef01234567",
    "@PORT@": "4321",
    "@ID1@": "0199a2b4-0000-7000-8000-000000000001",
    "@LONG_TEXT@": "a summary, or the request for one, of more than a few words",
    "@ANY@": "whatever",
}


def known() -> Bindings:
    """Bindings that are known before the conversation."""
    return Bindings({"WORKSPACE": REAL["@WORKSPACE@"], "OUTSIDE": REAL["@OUTSIDE@"]})


each_recording = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def lived(recording: Recording) -> Recording:
    """The recording as a conversation that really took place."""

    def real(values: Sequence[Message]) -> tuple[Message, ...]:
        text = json.dumps([{k: v for k, v in value.items() if k != ""} for value in values], default=str)
        for placeholder, actual in REAL.items():
            text = text.replace(placeholder, actual)
        return tuple(json.loads(text))

    requests = [_without_absent(request) for request in recording.requests]
    rollout = [_without_absent(line) for line in recording.rollout]
    return Recording(real(recording.lines), real(requests), real(rollout), recording.model)


def _without_absent(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_absent(v) for k, v in value.items() if repr(v) != "(absent)"}
    return [_without_absent(part) for part in value] if isinstance(value, list) else value


@each_recording
def test_conversation_that_went_as_recorded_has_no_differences(folder: Path) -> None:
    recorded = decided(read(folder))
    got, bindings = lived(recorded), known()
    assert compare_events(recorded.events(), got.events(), bindings) == []
    assert compare_requests(recorded.requests, got.requests, bindings) == []
    assert compare_rollout(recorded.rollout, got.rollout, bindings) == []


# ── what must not pass ────────────────────────────────────────────────────────────────────────


@each_recording
def test_event_that_is_missing_is_noticed(folder: Path) -> None:
    recorded = decided(read(folder))
    events = lived(recorded).events()
    for index in _telling(events):
        assert compare_events(recorded.events(), events[:index] + events[index + 1 :], known())


@each_recording
def test_events_in_another_order_are_noticed(folder: Path) -> None:
    recorded = decided(read(folder))
    events = lived(recorded).events()
    for first in range(len(events) - 1):
        kinds = {events[at]["msg"]["type"] for at in (first, first + 1)}
        if len(kinds) == 2 and not kinds & {*LAST_COUNTS, "warning"}:
            swapped = [*events[:first], events[first + 1], events[first], *events[first + 2 :]]
            assert compare_events(recorded.events(), swapped, known()), events[first]


@each_recording
def test_event_that_comes_twice_is_noticed(folder: Path) -> None:
    recorded = decided(read(folder))
    events = lived(recorded).events()
    for index in _telling(events):
        kind = events[index]["msg"]["type"]
        if kind not in (*LAST_COUNTS, "warning"):
            assert compare_events(recorded.events(), events[: index + 1] + events[index:], known()), kind


@each_recording
def test_every_changed_field_of_an_event_is_noticed(folder: Path) -> None:
    recorded = decided(read(folder))
    events = lived(recorded).events()
    for index in _telling(events):
        for path in _leaves(events[index]):
            if not _free(events[index]["msg"], path):
                changed = [*events[:index], _changed(events[index], path), *events[index + 1 :]]
                assert compare_events(recorded.events(), changed, known()), (events[index], path)


@each_recording
def test_every_changed_field_of_a_request_is_noticed(folder: Path) -> None:
    recorded = decided(read(folder))
    requests = list(lived(recorded).requests)
    for index, request in enumerate(requests):
        for path in _leaves(request):
            changed = [*requests[:index], _changed(request, path), *requests[index + 1 :]]
            if not _free(_owner(request, path), path) and not _allowed_text(recorded, index, path):
                assert compare_requests(recorded.requests, changed, known()), (index, path)


@each_recording
def test_requests_with_more_less_or_other_input_are_noticed(folder: Path) -> None:
    recorded = decided(read(folder))
    requests = list(lived(recorded).requests)
    last = requests[-1]
    extra = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "more"}]}
    for changed in (last["input"][:-1], [*last["input"], extra], last["input"][::-1]):
        assert compare_requests(recorded.requests, [*requests[:-1], {**last, "input": changed}], known())
    different = {**last, "input": [*last["input"], extra]}
    assert compare_requests(recorded.requests, [*requests, different], known())


@each_recording
def test_log_line_that_is_missing_is_noticed(folder: Path) -> None:
    recorded = decided(read(folder))
    lines = list(lived(recorded).rollout)
    for index, line in enumerate(lines):
        if line["payload"].get("type") != "token_count":
            assert compare_rollout(recorded.rollout, lines[:index] + lines[index + 1 :], known()), line


@each_recording
def test_every_changed_field_of_a_log_line_is_noticed(folder: Path) -> None:
    recorded = decided(read(folder))
    lines = list(lived(recorded).rollout)
    for index, line in enumerate(lines):
        for path in _leaves(line):
            changed = [*lines[:index], _changed(line, path), *lines[index + 1 :]]
            counts = line["payload"].get("type") == "token_count"
            if not counts and not _free(_owner(line, path), path) and "replacement_history" not in path:
                assert compare_rollout(recorded.rollout, changed, known()), (line, path)


@pytest.mark.parametrize(
    "line",
    [
        {"timestamp": REAL["@TIME@"], "type": "dendro", "payload": {"kind": "timer"}},
        {"timestamp": "yesterday", "type": "event_msg", "payload": {"type": "task_started"}},
        {
            "timestamp": REAL["@TIME@"],
            "type": "event_msg",
            "payload": {"type": "agent_message", "message": "?"},
        },
        {"timestamp": REAL["@TIME@"], "type": "compacted", "payload": {"message": "?"}},
        {
            "timestamp": REAL["@TIME@"],
            "item": {"type": "event_msg", "payload": {}},
            "type": None,
            "payload": {},
        },
    ],
    ids=["own type", "time", "another message", "compaction", "nested"],
)
def test_log_line_that_a_foreign_reader_would_stumble_on_is_noticed(line: Message) -> None:
    recorded = read(TRANSCRIPTS / "plain")
    lines = list(lived(recorded).rollout)
    assert compare_rollout(recorded.rollout, [*lines, line], known())


@pytest.mark.parametrize("name", ["patch_each", "user_turn", "interrupt_exec", "compact"])
def test_peer_that_ignores_the_decisions_is_noticed(name: str) -> None:
    recorded = read(TRANSCRIPTS / name)
    expected, got, bindings = decided(recorded), lived(recorded), known()
    assert (
        compare_events(expected.events(), got.events(), bindings)
        + compare_requests(expected.requests, got.requests, bindings)
        + compare_rollout(expected.rollout, got.rollout, bindings)
    )


def test_id_that_changes_in_the_middle_is_noticed() -> None:
    recorded, bindings = read(TRANSCRIPTS / "plain"), known()
    got = lived(recorded)
    assert compare_events(recorded.events(), got.events(), bindings) == []
    other = json.loads(json.dumps(got.rollout).replace(REAL["@ID1@"], REAL["@ID1@"].replace("1", "2")))
    assert compare_rollout(recorded.rollout, other, bindings)


# ── what must pass ────────────────────────────────────────────────────────────────────────────


@each_recording
def test_further_fields_and_events_may_come_anywhere(folder: Path) -> None:
    recorded = decided(read(folder))
    events = lived(recorded).events()
    richer: list[Message] = []
    for event in events:
        more = {"id": event["id"], "msg": {"type": "user_message", "message": "more"}}
        richer += [more, {**more, "msg": {"type": "item_started"}}]
        richer.append({**event, "n": 1, "msg": {**event["msg"], "turn_id": "t"}})
    assert compare_events(recorded.events(), richer, known()) == []


def test_text_may_be_cut_anywhere() -> None:
    recorded = read(TRANSCRIPTS / "plain")
    events: list[Message] = []
    for event in lived(recorded).events():
        whole = event["msg"].get("delta")
        parts = whole if whole else [whole]
        events += [{**event, "msg": {**event["msg"], "delta": part}} if whole else event for part in parts]
    assert compare_events(recorded.events(), events, known()) == []


def test_streams_of_a_command_may_overtake_each_other() -> None:
    recorded = read(TRANSCRIPTS / "exec_auto")
    events = lived(recorded).events()
    deltas = [
        e for e in events if e["msg"]["type"] == "exec_command_output_delta" and e["msg"]["call_id"] == "c1"
    ]
    first = events.index(deltas[0])
    rest = [event for event in events if event not in deltas]
    for event in rest:
        for name in ("aggregated_output", "formatted_output"):
            if event["msg"].get("call_id") == "c1" and name in event["msg"]:
                event["msg"][name] = "err\nout\nREADME.md\na.txt\n"
    errors_first = sorted(deltas, key=lambda event: event["msg"]["stream"] == "stdout")
    assert compare_events(recorded.events(), rest[:first] + errors_first + rest[first:], known()) == []


@each_recording
def test_counts_may_come_more_often_and_texts_of_errors_may_differ(folder: Path) -> None:
    recorded = decided(read(folder))
    events: list[Message] = []
    for event in copy.deepcopy(lived(recorded).events()):
        if event["msg"]["type"] in FREE_TEXTS:
            event["msg"]["message"] = "in other words"
        events += [event, event] if event["msg"]["type"] in LAST_COUNTS else [event]
    assert compare_events(recorded.events(), events, known()) == []


def test_durations_and_attempts_may_differ() -> None:
    slow = read(TRANSCRIPTS / "exec_auto")
    text = json.dumps(lived(slow).events()).replace("502 milliseconds", "731 milliseconds")
    events = json.loads(text.replace('"nanos": 0', '"nanos": 77'))
    assert compare_events(slow.events(), events, known()) == []
    retried = read(TRANSCRIPTS / "err_500_retry")
    assert compare_requests(retried.requests, lived(retried).requests[:1], known()) == []


def test_failed_tool_may_say_it_otherwise_but_not_succeed() -> None:
    recorded = read(TRANSCRIPTS / "patch_fail")
    requests = list(lived(recorded).requests)

    def with_last_output(output: str) -> list[Message]:
        items = requests[-1]["input"]
        return [*requests[:-1], {**requests[-1], "input": [*items[:-1], {**items[-1], "output": output}]}]

    assert compare_requests(recorded.requests, with_last_output("cannot read missing.txt"), known()) == []
    success = '{"output":"Success.","metadata":{"exit_code":0,"duration_seconds":0.1}}'
    assert compare_requests(recorded.requests, with_last_output(success), known())


@each_recording
def test_submission_is_sent_neither_too_early_nor_never(folder: Path) -> None:
    recorded = decided(read(folder))
    events = recorded.events()
    assert has_come(events, events)
    for index in _telling(events):
        if events[index]["msg"]["type"] not in (*LAST_COUNTS, *DELTAS):
            assert not has_come(events[: index + 1], events[:index])


DELTAS = ("agent_message_delta", "agent_reasoning_delta", "exec_command_output_delta")


# ── alterations ───────────────────────────────────────────────────────────────────────────────


def _telling(events: Sequence[Message]) -> Iterator[int]:
    """Places of the events whose loss has to be noticed: of counts, only a task's last."""
    lasts = last_of_each_task(events)
    for index, event in enumerate(events):
        if event["msg"]["type"] not in LAST_COUNTS or lasts[event_kind(event)] is event:
            equal = [e for e in events if e == event]
            if event["msg"]["type"] not in LAST_COUNTS or len(equal) == 1:
                yield index


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, (dict, list)) and value:
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(part, (*path, key))
    else:
        yield path


def _changed(value: Any, path: tuple[Any, ...]) -> Any:
    changed = copy.deepcopy(value)
    owner = _owner(changed, path)
    owner[path[-1]] = _another(owner[path[-1]], path[-1])
    return changed


def _owner(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        value = value[key]
    return value


def _another(value: Any, name: Any) -> Any:
    if name == "chunk":
        return base64.b64encode(b"another").decode()
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"{value}?"
    return value + 1 if isinstance(value, int) else "something"


def _free(owner: Any, path: tuple[Any, ...]) -> bool:
    """Whether the rules let this field differ."""
    name = path[-1]
    if name in FREE_NAMES or "duration" in path:
        return True
    if not isinstance(owner, dict):
        return False
    if name == "message" and owner.get("type") in {*FREE_TEXTS, "warning"}:
        return True
    return name == "output" and of_failed_tool(owner["output"])


def _allowed_text(recorded: Recording, index: int, path: tuple[Any, ...]) -> bool:
    """Placeholders that stand for any text: a long one, a marker's, an aborted call's output."""
    value: Any = recorded.requests[index]
    for key in path:
        value = value[key]
    return isinstance(value, str) and ("@LONG_TEXT@" in value or value == "@ANY@")
