"""A client that sends any bytes gets an error for each line, and its session is still served."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.allowances import Message
from tests.acceptance.conversation import Proto, scene

pytestmark = pytest.mark.slow

CONFIG = 'model = "gpt-5"\napproval_policy = "never"\nsandbox_mode = "danger-full-access"\n'
MODEL = [{"items": [{"text": "still here"}]}]
HELLO: Message = {"id": "", "msg": {"type": "session_configured"}}
LIMIT = 8 * 1024 * 1024
"""The longest line that is read (the default of the setting)."""

NOT_OBJECTS = [
    b"null",
    b"true",
    b"17",
    b'"text"',
    b"[]",
    b"{",
    b'{"id":',
    b"\x00\x01",
    b"{}}",
    b"NaN",
    b"'id'",
]
NOT_UTF8 = [b"\xff\xfe{}", b'{"id":"\xc3\x28","op":{"type":"interrupt"}}', b"\x80", b'{"id":"\xed\xa0\x80"}']
WRONG_TYPES: list[Any] = [
    {"id": 1, "op": {"type": "interrupt"}},
    {"id": "w", "op": None},
    {"id": "w", "op": "interrupt"},
    {"id": "w", "op": {"type": ["interrupt"]}},
    {"id": "w", "op": {"type": "user_input", "items": {"type": "text"}}},
    {"id": "w", "op": {"type": "user_input", "items": [{"type": "text", "text": 5}]}},
    {"id": "w", "op": {"type": "user_turn", "items": []}},
    {"id": "w", "op": {"type": "exec_approval", "id": "c1", "decision": "perhaps"}},
    {"id": "w", "op": {"type": "override_turn_context", "sandbox_policy": {"mode": "open"}}},
    {"op": {"type": "interrupt"}},
]


def malformed(count: int) -> Iterator[bytes]:
    """Lines that no session can be given, each of another kind than the last."""
    rng = random.Random(7)
    for index in range(count):
        kind = index % 4
        if kind == 0:
            yield rng.choice(NOT_OBJECTS)
        elif kind == 1:
            yield rng.choice(NOT_UTF8)
        elif kind == 2:
            yield json.dumps(rng.choice(WRONG_TYPES)).encode()
        else:
            yield json.dumps({"id": f"u{index}", "op": {"type": f"unknown_{index}", "more": [1]}}).encode()


def errors(proto: Proto) -> list[Message]:
    return [event for event in proto.events if event["msg"]["type"] == "error"]


async def served(proto: Proto) -> None:
    """A turn works, and the process ends by its shutdown."""
    await proto.say(b'{"id":"s1","op":{"type":"user_input","items":[{"type":"text","text":"there?"}]}}\n')
    await proto.until([{"id": "s1", "msg": {"type": "task_complete"}}])
    await proto.say(b'{"id":"bye","op":{"type":"shutdown"}}\n')
    assert await proto.left() == 0


async def test_thousand_malformed_lines_get_an_error_each(tmp_path: Path) -> None:
    async with scene(tmp_path, CONFIG, MODEL) as place, place.proto() as proto:
        await proto.until([HELLO])
        lines = list(malformed(1000))
        await proto.say(b"\n".join(lines) + b"\n")
        error: Message = {"id": "u999", "msg": {"type": "error"}}
        await proto.until([error])
        assert len(errors(proto)) == 1000
        unknown = {f"u{index}" for index in range(3, 1000, 4)}
        assert {event["id"] for event in errors(proto)} == {*unknown, "", "w"}
        assert all(event["msg"]["message"] for event in errors(proto))
        await served(proto)


async def test_lines_of_ten_megabytes_are_skipped_with_one_error_each(tmp_path: Path) -> None:
    async with scene(tmp_path, CONFIG, MODEL) as place, place.proto() as proto:
        await proto.until([HELLO])
        huge = b'{"id":"h","op":{"type":"user_input","items":[{"type":"text","text":"' + b"x" * 10_000_000
        for line in (huge + b'"}]}}', b"\xff" * 10_000_000, b"[" * 10_000_000):
            await proto.say(line + b"\n")
        await proto.until([{"id": "", "msg": {"type": "error"}}] * 3)
        assert [event["id"] for event in errors(proto)] == ["", "", ""]
        assert all(str(LIMIT) in event["msg"]["message"] for event in errors(proto))
        await served(proto)


async def test_deep_nesting_and_huge_numbers_are_an_error_not_a_crash(tmp_path: Path) -> None:
    async with scene(tmp_path, CONFIG, MODEL) as place, place.proto() as proto:
        await proto.until([HELLO])
        deep = b'{"id":"d","op":' + b'{"type":' * 50_000 + b"1" + b"}" * 50_001
        numbers = (
            b'{"id":"n","op":{"type":"get_history_entry_request","offset":' + b"9" * 400 + b',"log_id":0}}'
        )
        await proto.say(deep + b"\n" + numbers + b"\n" + b"\n \n\t\n")
        await proto.until([{"id": "", "msg": {"type": "error"}}] * 2)
        await served(proto)


async def test_last_line_without_a_newline_is_a_submission_too(tmp_path: Path) -> None:
    async with scene(tmp_path, CONFIG, MODEL) as place, place.proto() as proto:
        await proto.until([HELLO])
        await proto.say(b'{"id":"s1","op":{"type":"user_input","items":[{"type":"text","text":"there?"}]}}')
        proto.hang_up()
        await proto.until([{"id": "s1", "msg": {"type": "task_complete"}}])
        assert await proto.left() == 0
