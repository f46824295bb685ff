"""Something inside a worker breaks: it is told, contained, and never passed over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, NoReturn, cast

import orjson
import pytest

from orchestrator.core.calls import Call
from orchestrator.core.commands import Immediate
from orchestrator.core.state import State
from orchestrator.model.prompt import TextDelta
from orchestrator.protocol import ops
from orchestrator.protocol.ids import CallId
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.rollouts.rollout_file import locked
from orchestrator.runtime import runner as runners
from orchestrator.runtime.loader import load
from orchestrator.runtime.runner import Ended
from orchestrator.tools.tool import Tool
from orchestrator.tools.tool_context import CallSite
from orchestrator.wiring.worker_parts import ToolCalls
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends, message
from tests.runtime.test_worker_claims import at_work


async def test_a_tool_that_breaks_down_ends_its_command_for_people_and_model(harness: Harness) -> None:
    session = await harness.session()
    harness.tools.fails["c1"] = RuntimeError("out of descriptors")
    harness.models.will([calls("c1"), ends()])
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert "out of descriptors" in harness.models.outputs()["c1"]
    (end,) = await harness.logged_events(session, "exec_command_end")
    assert end["exit_code"] == -1


async def test_a_model_client_that_breaks_down_fails_the_task_and_not_the_session(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([RuntimeError("a bug")])
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    (error,) = await harness.logged_events(session, "error")
    assert "a bug" in error["message"]
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert [fact["outcome"] for fact in await harness.facts(session, "task_ended")] == ["failed", "completed"]


class FullDisk:
    """Files that cannot be written while it is full, and take a part of what they are given."""

    def __init__(self) -> None:
        self.full = True

    @contextmanager
    def __call__(self, path: Path) -> Iterator[BinaryIO]:
        with locked(path) as file:
            before = file.seek(0, 2)
            yield file
            file.flush()
            if self.full and file.tell() > before:
                file.truncate(before + (file.tell() - before) // 2)
                raise OSError(28, "No space left on device", str(path))


async def test_a_session_goes_on_without_its_file_and_says_so_to_whoever_asks_for_it(
    harness: Harness, tmp_path: Path
) -> None:
    path, disk = tmp_path / "r.jsonl", FullDisk()
    harness.ports = replace(harness.ports, files=disk)
    session = await harness.session(path=path)
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert await harness.logged_events(session, "warning") == []
    asked = await harness.submit(session, ops.GetPath())
    assert await harness.run(session) is Ended.PARKED
    seen = await harness.until(session, "conversation_path")
    assert [(event.type, event.id) for event in seen[-2:]] == [
        ("warning", asked),
        ("conversation_path", asked),
    ]
    await harness.say(session)
    await harness.submit(session, ops.Shutdown())
    assert await harness.run(session) is Ended.PARKED
    told = [msg["type"] for msg in await harness.logged_events(session)]
    for answer in ("conversation_path", "shutdown_complete"):
        assert "warning" in told[: told.index(answer)]
        told = told[told.index(answer) :]
    warned = await harness.logged_events(session, "warning")
    assert len(warned) == 2
    assert "No space left on device" in warned[0]["message"]
    disk.full = False
    await harness.submit(session, ops.GetPath())
    assert await harness.run(session) is Ended.PARKED
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    shown = [line["payload"] for line in lines if line["type"] == "event_msg"]
    assert shown == await harness.logged_events(session)
    assert len(await harness.logged_events(session, "warning")) == 2


async def test_a_session_waits_for_an_archive_that_is_away_and_keeps_its_claim(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, away = await harness.session(), Gate()
    await harness.say(session)
    asked = 0

    async def mounted_later(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked <= 9:
            raise ArchiveUnavailable("it is not mounted")
        return await load(*args)

    async def slept(seconds: float) -> None:
        await away.wait()

    monkeypatch.setattr(runners, "load", mounted_later)
    harness.ports = replace(harness.ports, sleep=slept)
    running = asyncio.create_task(harness.run(session))
    await away.reached.wait()
    head = await harness.client.head(session)
    assert head is not None
    assert head.holder == "w1"
    away.open()
    assert await running is Ended.PARKED
    assert asked == 10
    assert await harness.logged_events(session, "task_complete")


async def test_a_worker_that_leaves_gives_back_what_it_cannot_read(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, away = await harness.session(), Gate()
    await harness.say(session)

    async def never(*_: Any) -> Any:
        raise ArchiveUnavailable("it is not mounted")

    async def slept(seconds: float) -> None:
        await away.wait()

    monkeypatch.setattr(runners, "load", never)
    harness.ports = replace(harness.ports, sleep=slept)
    runner = harness.runner(await harness.claimed(session))
    running = asyncio.create_task(runner.run())
    await away.reached.wait()
    runner.drain()
    away.open()
    assert await running is Ended.LOST
    monkeypatch.undo()
    assert await harness.run(session) is Ended.PARKED, "nobody has to wait for a lease"


async def test_whatever_a_tool_makes_of_a_call_the_model_is_told_and_the_session_goes_on() -> None:
    class Broken(Tool):
        names = ("shell",)

        async def assess(self, call: Call, site: CallSite) -> NoReturn:
            raise RecursionError("too deep")

        async def judge(self, call: Call, claim: str) -> NoReturn:
            raise PermissionError(13, "denied")

    call = Call(
        CallId("c1"), "shell", {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c1"}
    )
    tools = ToolCalls(cast(Any, None), (Broken(),))
    site = cast(Any, SimpleNamespace(**dict.fromkeys(spec.name for spec in fields(CallSite))))
    site.state = State()
    assert await tools.assess(call, site) == Immediate("internal error: RecursionError: too deep")
    assert await tools.judge(call, "claim") == "in_doubt"


async def test_a_damaged_session_does_not_hide_those_behind_it(harness: Harness) -> None:
    damaged, sound = await harness.session(), await harness.session()
    await harness.say(damaged)
    await harness.broker.command("SET", harness.broker.keys.sq(damaged), "not a stream")
    await harness.say(sound)
    async with at_work(harness.worker()):
        await harness.until(sound, "task_complete")
        await harness.say(sound)
        await harness.until(sound, "task_complete")


async def test_a_delta_that_comes_while_another_is_being_sent_is_sent_as_well(harness: Harness) -> None:
    session, sending, more, silence = await harness.session(), Gate(), Gate(), Gate()
    harness.models.will([TextDelta("one"), more, TextDelta("two"), silence, message("one two"), ends()])
    await harness.say(session)
    harness.connection.before["emit"] = sending.wait
    running = asyncio.create_task(harness.run(session))
    await sending.reached.wait()
    more.open()
    await silence.reached.wait()
    del harness.connection.before["emit"]
    sending.open()
    assert (await harness.until(session, "agent_message_delta"))[-1].msg["delta"] == "one"
    assert (await harness.until(session, "agent_message_delta"))[-1].msg["delta"] == "two"
    assert not silence.opened.is_set()
    silence.open()
    assert await running is Ended.PARKED
