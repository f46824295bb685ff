"""Redis that went back is news: nothing may be started on a log that is not there any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.runtime.runner import Ended
from tests.runtime.harness import Harness


async def test_a_runner_whose_snapshot_is_fenced_starts_nothing_more(harness: Harness) -> None:
    session = await harness.session()
    await harness.say(session)

    async def taken_away(_: Sequence[Any]) -> None:
        await harness.broker.trees.revoke(session)

    harness.connection.before["snapshot"] = taken_away
    assert await harness.run(session, snapshot_every=1) is Ended.LOST
    assert harness.models.prompts == []


async def test_a_runner_whose_log_went_back_behind_its_commit_starts_nothing_more(harness: Harness) -> None:
    session = await harness.session()
    await harness.say(session)

    async def put_back(_: Sequence[Any]) -> None:
        await harness.broker.command("HSET", harness.broker.keys.session(session), "seq", "1")

    harness.connection.before["snapshot"] = put_back
    assert await harness.run(session, snapshot_every=1) is Ended.LOST
    assert harness.models.prompts == []


async def test_a_runner_whose_queue_went_back_behind_what_it_has_read_lets_the_session_go(
    harness: Harness,
) -> None:
    session = await harness.session()
    await harness.say(session)

    async def put_back(_: Sequence[Any]) -> None:
        await harness.broker.command("HSET", harness.broker.keys.session(session), "sq", "0")
        await harness.broker.command("DEL", harness.broker.keys.sq(session))

    harness.connection.before["commit"] = put_back
    assert await harness.run(session) is Ended.LOST
    assert harness.models.prompts == []
