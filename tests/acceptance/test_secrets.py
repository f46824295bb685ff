"""A secret answer: the model reads it while the turn goes on, and no file, log or key has it behind that."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.acceptance.allowances import Message
from tests.acceptance.conversation import Proto, Scene, scene
from tests.acceptance.test_questions import event, kill_all, output_of, says

pytestmark = pytest.mark.slow

SECRET = "hunter2-" + "correct-horse"
CONFIG = 'model = "gpt-5"\napproval_policy = "never"\nsandbox_mode = "danger-full-access"\n'
QUESTIONS = [
    {"id": "token", "header": "Token", "question": "Which token?", "isSecret": True},
    {"id": "place", "header": "Place", "question": "Where to?"},
]
ASKS: Message = {"items": [{"call": "request_user_input", "args": {"questions": QUESTIONS}, "call_id": "c1"}]}
RUNS: Message = {"items": [{"call": "shell", "args": {"command": ["true"]}, "call_id": "c2"}]}
NOTE = "[a secret answer, not kept]"
READ = {"answers": {"token": {"answers": [SECRET]}, "place": {"answers": ["home"]}}}
KEPT = {"answers": {"token": {"answers": [NOTE]}, "place": {"answers": ["home"]}}}


def answers(id: str, call: str) -> bytes:
    op = {"type": "user_input_answer", "id": call, "response": READ}
    return json.dumps({"id": id, "op": op}).encode() + b"\n"


def server(place: Scene) -> Redis:
    record = json.loads((place.setup.data / "redis" / "server.json").read_text())
    return Redis(unix_socket_path=record["socket"])


def keys_with(redis: Redis, text: str) -> list[str]:
    """The keys whose content has the text, by what Redis itself would write of them."""
    return [str(key) for key in redis.scan_iter() if text.encode() in _content(redis, key)]


def _content(redis: Redis, key: bytes) -> bytes:
    """The content of a key; DUMP may compress it, so each type is read as what it is."""
    reads = {
        b"stream": ("XRANGE", key, "-", "+"),
        b"hash": ("HGETALL", key),
        b"zset": ("ZRANGE", key, 0, -1),
        b"set": ("SMEMBERS", key),
        b"string": ("GET", key),
    }
    ask: Callable[..., Any] = redis.execute_command
    return repr(ask(*reads[ask("TYPE", key)])).encode()


def files_with(root: Path, text: str) -> Iterator[Path]:
    """Files below a folder that have the text, but for Redis's own, which docs/operations.md tells of."""
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if "redis" not in path.parts and path.is_file() and text.encode() in path.read_bytes():
                yield path


async def asked(proto: Proto) -> None:
    await proto.until([event("session_configured", "")])
    await proto.say(says("s1", "go"))
    await proto.until([event("request_user_input", call_id="c1")])


async def test_secret_reaches_the_model_and_stands_nowhere_else(tmp_path: Path) -> None:
    model = [ASKS, RUNS, {"items": [{"text": "done"}]}, {"items": [{"text": "again"}]}]
    async with scene(tmp_path, CONFIG, model) as place, place.proto() as proto:
        await asked(proto)
        redis = server(place)
        await proto.say(answers("a1", "c1"))
        await proto.until([event("exec_command_begin", call_id="c2")])
        (kept,) = keys_with(redis, SECRET)
        assert "secrets:" in kept
        await proto.until([event("task_complete", last_agent_message="done")])
        assert keys_with(redis, SECRET) == []
        assert not [key for key in redis.scan_iter() if b"secrets:" in key]
        await proto.say(says("s2", "and now?"))
        await proto.until([event("task_complete", "s2", last_agent_message="again")])
        await proto.say(b'{"id":"bye","op":{"type":"shutdown"}}\n')
        assert await proto.left() == 0
    held = place.held
    outputs = [json.loads(output_of(request, "c1")) for request in held.requests[1:]]
    assert outputs == [READ, READ, KEPT]
    assert SECRET not in json.dumps(held.events)
    assert SECRET not in held.stderr
    assert "isSecret" in json.dumps(held.events)
    assert list(files_with(place.setup.home, SECRET)) == []
    assert KEPT in [json.loads(line["payload"]["output"]) for line in held.rollout if is_answer(line)]


def is_answer(line: Message) -> bool:
    return bool(line["payload"].get("type") == "function_call_output" and line["payload"]["call_id"] == "c1")


async def test_secret_outlives_the_worker_that_read_it(tmp_path: Path) -> None:
    slow: Message = {"items": [{"call": "shell", "args": {"command": ["sleep", "60"]}, "call_id": "c2"}]}
    model = [ASKS, slow, {"items": [{"text": "done"}]}]
    async with scene(tmp_path, CONFIG, model) as place:
        async with place.proto(preloaded=False) as first:
            await asked(first)
            session = first.events[0]["msg"]["session_id"]
            await first.say(answers("a1", "c1"))
            await first.until([event("exec_command_begin", call_id="c2")])
            kill_all(place.setup.data)
        async with place.proto("--resume", session) as second:
            await second.until([event("task_complete", last_agent_message="done")])
            await second.say(b'{"id":"bye","op":{"type":"shutdown"}}\n')
            assert await second.left() == 0
    assert json.loads(output_of(place.held.requests[2], "c1")) == READ
    assert list(files_with(place.setup.home, SECRET)) == []
