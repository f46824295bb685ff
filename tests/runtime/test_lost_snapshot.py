"""Redis that went back is news: nothing may be started on a log that is not there any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.runtime.runner import Ended
from tests.runtime.stage import Stage


async def test_a_runner_whose_snapshot_is_fenced_starts_nothing_more(stage: Stage) -> None:
    session = await stage.session()
    await stage.say(session)

    async def taken_away(_: Sequence[Any]) -> None:
        await stage.broker.revoke(session)

    stage.wire.before["snapshot"] = taken_away
    assert await stage.run(session, snapshot_every=1) is Ended.LOST
    assert stage.models.prompts == []


async def test_a_runner_whose_log_went_back_behind_its_commit_starts_nothing_more(stage: Stage) -> None:
    session = await stage.session()
    await stage.say(session)

    async def put_back(_: Sequence[Any]) -> None:
        await stage.broker.command("HSET", stage.broker.keys.session(session), "seq", "1")

    stage.wire.before["snapshot"] = put_back
    assert await stage.run(session, snapshot_every=1) is Ended.LOST
    assert stage.models.prompts == []


async def test_a_runner_whose_queue_went_back_behind_what_it_has_read_lets_the_session_go(
    stage: Stage,
) -> None:
    session = await stage.session()
    await stage.say(session)

    async def put_back(_: Sequence[Any]) -> None:
        await stage.broker.command("HSET", stage.broker.keys.session(session), "sq", "0")
        await stage.broker.command("DEL", stage.broker.keys.sq(session))

    stage.wire.before["commit"] = put_back
    assert await stage.run(session) is Ended.LOST
    assert stage.models.prompts == []
