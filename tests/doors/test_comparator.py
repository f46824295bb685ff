"""The comparator of app-server conversations sees what differs, and nothing in a recording by itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.doors.comparator import compare, unsound
from tests.doors.conversation import RECORDINGS, Recorded
from tests.doors.results import compare_answers

NAMES = sorted(path.parent.name for path in RECORDINGS.glob("*/rpc.ndjson"))


@pytest.mark.parametrize("name", NAMES)
def test_recording_does_not_differ_from_itself(name: str) -> None:
    server = Recorded.read(name).server
    assert compare(server, copy.deepcopy(server)) == []
    assert unsound(server) == []


def of(messages: list[dict[str, Any]], method: str, kind: str = "") -> dict[str, Any]:
    return next(
        message
        for message in messages
        if message.get("method") == method and (message["params"].get("item") or {}).get("type", "") == kind
    )


def fails(messages: list[dict[str, Any]]) -> None:
    of(messages, "turn/completed")["params"]["turn"]["status"] = "failed"


def says_more(messages: list[dict[str, Any]]) -> None:
    of(messages, "item/completed", "agentMessage")["params"]["item"]["text"] += "!"


def runs_another(messages: list[dict[str, Any]]) -> None:
    of(messages, "item/completed", "commandExecution")["params"]["item"]["command"] = "rm"


def leaves_out(messages: list[dict[str, Any]]) -> None:
    messages.remove(of(messages, "item/started", "agentMessage"))


def counts_less(messages: list[dict[str, Any]]) -> None:
    for message in messages:
        if message.get("method") == "thread/tokenUsage/updated":
            message["params"]["tokenUsage"]["total"]["totalTokens"] -= 1


def swaps(messages: list[dict[str, Any]]) -> None:
    one = messages.index(of(messages, "item/completed", "userMessage"))
    other = messages.index(of(messages, "item/started", "agentMessage"))
    messages[one], messages[other] = messages[other], messages[one]


@pytest.mark.parametrize("spoil", [fails, says_more, runs_another, leaves_out, counts_less, swaps])
def test_difference_is_told(spoil: Callable[[list[dict[str, Any]]], None]) -> None:
    server = Recorded.read("exec_auto").server
    other = copy.deepcopy(server)
    spoil(other)
    assert compare(server, other) != []


def test_pieces_of_an_unknown_item_are_told() -> None:
    server = Recorded.read("plain").server
    leaves_out(server)
    assert any("has not begun" in fault for fault in unsound(server))


def test_answer_that_differs_is_told() -> None:
    recorded = Recorded.read("threads_admin")
    assert compare_answers(recorded.lines, recorded.server) == []
    other = copy.deepcopy(recorded.server)
    listed = next(one for one in other if any("itemsView" in turn for turn in _turns(one)))
    _turns(listed)[0]["items"].pop()
    assert [fault.partition(":")[0] for fault in compare_answers(recorded.lines, other)] == [
        "thread/turns/list"
    ]


def _turns(message: dict[str, Any]) -> list[dict[str, Any]]:
    data = message.get("result", {}).get("data", [])
    return data if isinstance(data, list) and all(isinstance(one, dict) for one in data) else []
