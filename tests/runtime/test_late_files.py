"""Files of sessions that have just come to rest, and requests that are made before they may leave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from orchestrator.core.birth import whole
from orchestrator.core.entries import DENDRO, decode_entry
from orchestrator.core.ids import SessionId
from orchestrator.rollouts import rollout_file
from orchestrator.runtime import model_request
from orchestrator.runtime import runner as runner_module
from tests.runtime.connections import Gate, lost
from tests.runtime.harness import Harness
from tests.runtime.players import calls
from tests.runtime.test_worker_claims import at_work


@pytest.fixture
def long_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rest is over by itself within a test."""
    monkeypatch.setattr(runner_module, "FILE_S", 600.0)


def seqs(path: Path) -> list[int]:
    return [orjson.loads(line)["seq"] for line in path.read_bytes().splitlines()]


async def turn(harness: Harness, session: SessionId) -> None:
    await harness.say(session)
    await harness.until(session, "task_complete")


async def test_worker_that_leaves_writes_the_files_of_sessions_that_just_rest(
    harness: Harness, tmp_path: Path, long_rests: None
) -> None:
    path = tmp_path / "r.jsonl"
    session = await harness.session(path=path)
    async with at_work(harness.worker()):
        await turn(harness, session)
        assert not path.exists()
    last = (await harness.log(session))[-1].seq
    assert last - seqs(path)[-1] <= 2, "but for facts, the file has the log to its end"


async def test_file_is_written_when_its_session_has_rested_a_moment(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, written = tmp_path / "r.jsonl", asyncio.Event()
    real = rollout_file.RolloutFile.bring_up_to

    async def told(self: Any, *given: Any) -> int:
        try:
            return await real(self, *given)
        finally:
            written.set()

    monkeypatch.setattr(rollout_file.RolloutFile, "bring_up_to", told)
    session = await harness.session(path=path)
    async with at_work(harness.worker()):
        await turn(harness, session)
        await asyncio.wait_for(written.wait(), 30)
        assert seqs(path)


async def test_turns_that_follow_each_other_are_written_at_once(
    harness: Harness, tmp_path: Path, long_rests: None
) -> None:
    path, opened = tmp_path / "r.jsonl", 0

    def counted(place: Path) -> Any:
        nonlocal opened
        opened += 1
        return rollout_file.locked(place)

    harness.ports = replace(harness.ports, files=counted)
    session = await harness.session(path=path)
    async with at_work(harness.worker()):
        for _ in range(3):
            await turn(harness, session)
        assert opened == 0
    assert opened == 1
    log = await harness.log(session)
    assert seqs(path) == [entry.seq for entry in log if decode_entry(entry.payload).type != DENDRO]


async def test_file_waits_for_nothing_once_much_is_owed(
    harness: Harness, tmp_path: Path, long_rests: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.jsonl"
    monkeypatch.setattr(runner_module, "FILE_BYTES", 1)
    session = await harness.session(path=path)
    async with at_work(harness.worker()):
        await turn(harness, session)
        # The next turn is claimed behind the file.
        await turn(harness, session)
        assert seqs(path)


async def test_file_of_a_session_that_somebody_else_went_on_with_is_left_to_its_next_rest(
    harness: Harness, tmp_path: Path, long_rests: None
) -> None:
    path = tmp_path / "r.jsonl"
    session = await harness.session(path=path)
    async with at_work(harness.worker()) as worker:
        await turn(harness, session)
        worker.drain()
        harness.ports.broker.logs.head = _another(harness.ports.broker.logs.head)  # type: ignore[method-assign]
    assert not path.exists()


def _another(real: Callable[[SessionId], Awaitable[Any]]) -> Any:
    async def head(session: SessionId) -> Any:
        found = await real(session)
        return replace(found, seq=found.seq + 1)

    return head


async def test_worker_leaves_though_redis_does_not_say_whether_a_file_is_owed(
    harness: Harness, tmp_path: Path, long_rests: None
) -> None:
    path = tmp_path / "r.jsonl"
    session = await harness.session(path=path)
    async with at_work(harness.worker()):
        await turn(harness, session)
        harness.connection.before["HMGET"] = lost(100)
    assert not path.exists()


async def test_request_is_made_while_its_commit_is_on_its_way_and_leaves_behind_it(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, gate = asyncio.Event(), Gate()
    real = model_request.prepare_request

    def noted(*given: Any) -> Any:
        found = real(*given)
        made.set()
        return found

    monkeypatch.setattr("orchestrator.runtime.side_work.prepare_request", noted)
    harness.connection.before["commit"] = gate.wait
    session = await harness.session()
    await harness.say(session)
    running = asyncio.create_task(harness.run(session))
    await asyncio.wait_for(made.wait(), 30)
    assert not harness.models.prompts
    gate.open()
    await running
    assert len(harness.models.prompts) == 1


async def test_request_is_made_anew_if_its_tools_are_others_behind_the_commit(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[Sequence[Any]] = []

    def specs(state: Any) -> Sequence[Any]:
        offered.append([{"type": "function", "name": f"t{len(offered)}"}])
        return offered[-1]

    monkeypatch.setattr(harness.tools, "specs", specs, raising=False)
    session = await harness.session()
    await harness.say(session)
    await harness.run(session)
    (prompt,) = harness.models.prompts
    assert len(offered) >= 2
    assert list(prompt.tools) == offered[-1]


async def test_request_that_cannot_be_made_early_is_made_behind_its_commit(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any) -> Any:
        raise ValueError("not now")

    monkeypatch.setattr("orchestrator.runtime.side_work.prepare_request", broken)
    session = await harness.session()
    harness.models.will([calls("c1")])
    await harness.say(session)
    await harness.run(session)
    assert len(harness.models.prompts) == 2


async def test_conversation_is_looked_through_for_stored_texts_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def counted(items: Sequence[Any]) -> bool:
        looked.append(len(items))
        return whole(items)

    monkeypatch.setattr("orchestrator.runtime.model_request.whole", counted)
    session = await harness.session()
    for _ in range(4):
        await harness.say(session)
        await harness.run(session)
    assert max(looked[2:]) <= 2, "the words of a turn and the answer before them"
    assert len(harness.models.prompts[-1].input) > 6


async def test_text_that_is_stored_elsewhere_is_found_behind_what_was_looked_through(
    harness: Harness,
) -> None:
    session = await harness.session()
    for text in ("go", "x" * 300_000, "go on"):
        await harness.say(session, text)
        await harness.run(session)
    said = [orjson.dumps(prompt.input, default=dict) for prompt in harness.models.prompts]
    assert [text.count(b"x" * 300_000) for text in said] == [0, 1, 1]
