"""Upkeep is tidiness: with it at every moment or without it for a long time, sessions are the same."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.rollouts.archive import Storage
from tests.workers.actors import Author, in_redis, log_of, some_entries, state_of
from workers.upkeep_sealing import Moved, Mover, seal_session

pytestmark = pytest.mark.realredis

ROUNDS = 12


async def _lives(storage: Storage, upkeep: Mover | None) -> Author:
    author = await Author(storage).is_born()
    for n in range(ROUNDS):
        await author.writes(some_entries(60, f"round {n}"))
        await author.snapshots()
        if upkeep is not None:
            assert await seal_session(upkeep, author.session) is Moved.DONE
    return author


async def test_hour_without_upkeep_changes_no_result(mover: Mover, storage: Storage) -> None:
    tended, untended = await _lives(storage, mover), await _lives(storage, None)
    assert await state_of(storage, tended.session) == await state_of(storage, untended.session)
    payloads = [[entry.payload for entry in await log_of(storage, a.session)] for a in (tended, untended)]
    assert payloads[0] == payloads[1]
    assert len(await in_redis(storage, untended.session)) == ROUNDS * 60
    assert await seal_session(mover, untended.session) is Moved.DONE
    assert await in_redis(storage, untended.session) == []
    assert [entry.payload for entry in await log_of(storage, untended.session)] == payloads[0]


async def test_two_upkeeps_at_once_do_not_harm_each_other(mover: Mover, storage: Storage) -> None:
    author = await Author(storage).is_born()
    await (await author.writes(some_entries(200))).snapshots()
    log = await log_of(storage, author.session)
    moved = await asyncio.gather(*(seal_session(mover, author.session) for _ in range(5)))
    assert moved.count(Moved.DONE) == 1
    assert await log_of(storage, author.session) == log
    await author.writes(some_entries(5))
