"""A question outlives every process: whoever comes next is asked, and the answer reaches the model once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.allowances import Message
from tests.acceptance.conversation import Proto, scene

pytestmark = pytest.mark.slow

CONFIG = 'model = "gpt-5"\napproval_policy = "never"\nsandbox_mode = "danger-full-access"\n'
OPTIONS = [{"label": "A", "description": "the first"}, {"label": "B", "description": "the second"}]


def asks(header: str, call_id: str) -> Message:
    question = {"question": "Which?", "header": header, "options": OPTIONS, "multiSelect": False}
    arguments = {"questions": [question]}
    return {"items": [{"call": "ask_user_question", "args": arguments, "call_id": call_id}]}


def event(type: str, id: str = "s1", **fields: Any) -> Message:
    return {"id": id, "msg": {"type": type, **fields}}


def answers(id: str, call: str, text: str) -> bytes:
    response = {"type": "answered", "answers": {"Auth": text}}
    op = {"type": "resolve_ask_user_question", "id": call, "response": response}
    return json.dumps({"id": id, "op": op}).encode() + b"\n"


def says(id: str, text: str) -> bytes:
    op = {"type": "user_input", "items": [{"type": "text", "text": text}]}
    return json.dumps({"id": id, "op": op}).encode() + b"\n"


def kill_all(home: Path) -> None:
    """Kills every process of Dendro that works on this home, and leaves its Redis.

    Not those of a preloaded command, whose environment /proc does not show.
    """
    mark, killed = f"DENDRO_HOME={home}".encode(), 0
    for pid in _processes():
        with suppress(OSError):
            marked = mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if marked and "redis" not in Path(f"/proc/{pid}/comm").read_text():
                os.kill(pid, signal.SIGKILL)
                killed += 1
    assert killed >= 2, "a command and its worker"


def _processes() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def output_of(request: Message, call_id: str) -> str:
    found = [
        item["output"] for item in request["input"] if item.get("call_id") == call_id and "output" in item
    ]
    return str(found[-1])


async def served_until_the_request(proto: Proto) -> Message:
    await proto.until([event("session_configured", "")])
    await proto.say(says("s1", "go"))
    await proto.until([event("ask_user_question_request", callId="c1")])
    return next(each["msg"] for each in proto.events if each["msg"]["type"] == "ask_user_question_request")


async def test_question_outlives_every_process_and_its_answer_reaches_the_model(
    tmp_path: Path,
) -> None:
    model = [asks("Auth", "c1"), asks("Other option here", "c2"), {"items": [{"text": "done"}]}]
    async with scene(tmp_path, CONFIG, model) as place:
        async with place.proto(preloaded=False) as first:
            asked = await served_until_the_request(first)
            assert asked["questions"][0]["options"] == OPTIONS
            session = first.events[0]["msg"]["session_id"]
            kill_all(place.setup.data)
        async with place.proto("--resume", session) as second:
            again = event("ask_user_question_request", callId="c1")
            await second.until([event("session_configured", ""), again])
            await second.say(answers("a1", "c1", "A"))
            await second.until([again, event("task_complete", last_agent_message="done")])
            await second.say(answers("a2", "c1", "A") + answers("a3", "c1", "B"))
            await second.until([event("error", "a3")])
            told = [each for each in second.events if each["msg"]["type"] == "error"]
            assert [each["id"] for each in told] == ["a3"], "the same answer again is no error"
            assert "c1 was already decided: answered, by " in told[0]["msg"]["message"]
            await second.say(b'{"id":"bye","op":{"type":"shutdown"}}\n')
            assert await second.left() == 0
    assert len(place.held.requests) == 3
    assert output_of(place.held.requests[1], "c1") == '{"answers":{"Auth":"A"}}'
    assert "its header has 17 characters" in output_of(place.held.requests[2], "c2")
