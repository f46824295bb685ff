"""Processes through the protocol, with real workers: the example of their page, and lost workers."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.allowances import Message
from tests.acceptance.conversation import scene
from tests.acceptance.test_questions import event, kill_all, output_of, says

pytestmark = pytest.mark.slow

CONFIG = (
    'model = "gpt-5"\napproval_policy = "never"\nsandbox_mode = "workspace-write"\n'
    "[tools]\nunified_exec = true\n"
)
PAGE = Path(__file__).parents[2] / "docs" / "long-running-commands.md"
BYE = b'{"id":"bye","op":{"type":"shutdown"}}\n'


def turns(*calls: Any) -> list[Message]:
    return [*({"items": [call]} for call in calls), {"items": [{"text": "done"}]}]


def starts(cmd: str, call_id: str = "c1") -> Message:
    args = {"cmd": cmd, "tty": True, "login": False, "yield_time_ms": 250}
    return {"call": "exec_command", "args": args, "call_id": call_id}


def typed(chars: str, call_id: str) -> Message:
    return {"call": "write_stdin", "args": {"session_id": 1, "chars": chars}, "call_id": call_id}


async def test_page_shows_what_a_model_does_and_reads(tmp_path: Path) -> None:
    blocks = re.findall(r"```(?:json|text)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    async with scene(tmp_path, CONFIG, turns(*json.loads(blocks[0]))) as place, place.proto() as proto:
        await proto.until([event("session_configured", "")])
        await proto.say(says("s1", "go"))
        await proto.until([event("task_complete", last_agent_message="done")])
        await proto.say(BYE)
        assert await proto.left() == 0
    outputs = [output_of(request, f"c{n}") for n, request in enumerate(place.held.requests[1:], 1)]
    assert outputs[0].split("\n")[1:] == [*blocks[1].split("\n")[1:3], ">>> "]
    assert "\n2\r\n" in outputs[1]
    assert "Process exited with code 3" in outputs[2]
    told = [each for each in place.held.events if each["msg"].get("call_id") == "c1"]
    kinds = [each["msg"]["type"] for each in told if "delta" not in each["msg"]["type"]]
    typing = ["terminal_interaction", "terminal_interaction"]
    assert kinds == ["exec_command_begin", *typing, "exec_command_end"]
    assert told[-1]["msg"]["exit_code"] == 3


async def test_process_is_gone_with_its_worker_and_the_model_is_told(tmp_path: Path) -> None:
    model = [*turns(starts("sleep 617.5")), *turns(typed("x", "c2"))]
    async with scene(tmp_path, CONFIG, model) as place:
        async with place.proto(preloaded=False) as first:
            await first.until([event("session_configured", "")])
            await first.say(says("s1", "go"))
            await first.until([event("task_complete", last_agent_message="done")])
            session = first.events[0]["msg"]["session_id"]
            assert sleeping("617.5")
            kill_all(place.setup.data)
        async with place.proto("--resume", session) as second:
            await second.until([event("exec_command_end", "s1", call_id="c1", exit_code=-1)])
            await second.say(says("s2", "more"))
            await second.until([event("task_complete", "s2", last_agent_message="done")])
            assert not sleeping("617.5")
            await second.say(BYE)
            assert await second.left() == 0
        warned = [each["msg"]["message"] for each in second.events if each["msg"]["type"] == "warning"]
    gone = "process 1 (sleep 617.5) is gone: its worker was lost"
    assert warned == [gone]
    texts = [part["text"] for item in place.held.requests[2]["input"] for part in item.get("content") or ()]
    assert f"<process_gone>\n{gone}\n</process_gone>" in texts
    assert output_of(place.held.requests[3], "c2") == "no process 1 runs"


async def test_what_was_typed_to_a_process_reaches_it_once_where_all_are_killed_meanwhile(
    tmp_path: Path,
) -> None:
    start = starts('stty -echo; while read -r line; do echo "$line" >> got.txt; echo > written; done')
    waits = {"session_id": 1, "chars": "one\n", "yield_time_ms": 30_000}
    typing = {"call": "write_stdin", "args": waits, "call_id": "c2"}
    model = [{"items": [start]}, {"items": [typing]}, {"items": [{"text": "done"}]}]
    async with scene(tmp_path, CONFIG, model) as place:
        written = place.setup.workspace / "written"
        os.mkfifo(written)
        async with place.proto(preloaded=False) as first:
            await first.until([event("session_configured", "")])
            await first.say(says("s1", "go"))
            await first.until([event("terminal_interaction", call_id="c1", stdin="one\n")])
            await asyncio.to_thread(written.read_text)
            session = first.events[0]["msg"]["session_id"]
            kill_all(place.setup.data)
        async with place.proto("--resume", session) as second:
            await second.until([event("task_complete", last_agent_message="done")])
            told = [each["msg"] for each in second.events]
            await second.say(BYE)
            assert await second.left() == 0
        assert (place.setup.workspace / "got.txt").read_text() == "one\n"
    assert [msg["exit_code"] for msg in told if msg["type"] == "exec_command_end"] == [-1]
    assert [msg for msg in told if msg["type"] == "terminal_interaction"] == []
    assert "in doubt" in output_of(place.held.requests[2], "c2")


async def test_program_whose_input_has_ended_leaves_and_takes_the_process_along(tmp_path: Path) -> None:
    async with scene(tmp_path, CONFIG, turns(starts("sleep 616.5"))) as place, place.proto() as proto:
        await proto.until([event("session_configured", "")])
        await proto.say(says("s1", "go"))
        await proto.until([event("task_complete", last_agent_message="done")])
        assert sleeping("616.5")
        proto.hang_up()
        assert await proto.left() == 0
    assert not sleeping("616.5")


def sleeping(mark: str) -> bool:
    """Whether the command of this mark lives."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[:2] == [b"sleep", mark.encode()]:
                return True
    return False
