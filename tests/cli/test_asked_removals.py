"""`dendro rm` asks a person, who may take their time: what comes to a tree meanwhile does not go with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import connect
from orchestrator.broker.records import BrokerConfig, Released, SessionHead
from orchestrator.cli import remove
from orchestrator.config_keys import RedisSettings
from orchestrator.core.commit_parts import Approval
from orchestrator.core.ids import SessionId
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.terminal.faults import Fault
from orchestrator.wiring.open_deployment import Opened, opened
from tests.broker.actors import claimed, created, submitted
from tests.broker.families import Agent, root_of
from tests.servers import RedisServer

Happens = Callable[[list[Agent], Agent], Awaitable[object]]


async def _words_come(family: list[Agent], agent: Agent) -> None:
    await submitted(agent.broker, agent.session, "late")


async def _turn_runs(family: list[Agent], agent: Agent) -> None:
    await _words_come(family, agent)
    await agent.claims_again()
    await agent.does(cursor=agent.cursor, status="running")


async def _turn_is_over(family: list[Agent], agent: Agent) -> None:
    await _turn_runs(family, agent)
    await agent.parks(status="idle")


async def _person_is_asked(family: list[Agent], agent: Agent) -> None:
    await _turn_runs(family, agent)
    asked = (Approval("a", b'{"type":"exec_approval_request","call_id":"a"}'),)
    await agent.parks(status="awaiting_approval", approvals_open=asked)


async def _agent_is_made(family: list[Agent], agent: Agent) -> None:
    await _words_come(family, family[0])
    await family[0].claims_again()
    child = await family[0].spawns(2)
    family.append(child)
    await family[0].parks(status="idle")
    await child.parks(status="idle")


AT_WORK = (_words_come, _turn_runs)
"""Uses that have to be ended before a tree is removed."""


@pytest.mark.realredis
@pytest.mark.parametrize("force", [False, True], ids=["as it is", "by force"])
@pytest.mark.parametrize("who", [0, 1], ids=["root", "agent"])
@pytest.mark.parametrize("happens", [*AT_WORK, _person_is_asked, _turn_is_over, _agent_is_made])
async def test_tree_that_is_used_while_the_person_is_asked_is_removed_by_force_alone_and_ended_before(
    happens: Happens,
    who: int,
    force: bool,
    tmp_path: Path,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = settings_of(tmp_path, redis_server)
    family: list[Agent] = []
    ended: list[str] = []

    async def meanwhile() -> None:
        async with aclosing(_broker(settings.redis)) as broker:
            for agent in family:
                agent.broker = broker
            await happens(family, family[who])

    def confirm(text: str) -> bool:
        """A person who says yes when this has happened, in other processes."""
        thread = threading.Thread(target=lambda: asyncio.run(meanwhile()))
        thread.start()
        thread.join()
        return True

    async def end(found: Opened, root: SessionHead) -> None:
        """As a worker does it: what is held is given back, at rest."""
        for agent in family:
            head = await found.broker.logs.head(agent.session)
            assert head is not None
            ended.append(head.status)
            if head.holder is not None:
                agent.broker = found.broker
                await agent.parks(status="idle")

    monkeypatch.setattr(typer, "confirm", confirm)
    monkeypatch.setattr(remove, "_end", end)
    async with opened(settings) as found:
        root = await root_of(found.broker)
        family += [root, await root.spawns(1)]
        for agent in family:
            await agent.parks(status="idle")
        sessions = [agent.session for agent in family]
        head = await found.broker.logs.head(root.session)
        assert head is not None
        if force:
            await remove._remove(found, head, force=True, ask=True)
        else:
            with pytest.raises(Fault, match="not removed: a session of"):
                await remove._remove(found, head, force=False, ask=True)
        sessions = [agent.session for agent in family]
        left = [one.session for one in await found.broker.logs.heads(sessions)]
        assert left == ([] if force else sessions)
        assert bool(ended) is (force and happens in AT_WORK)
        if happens is _turn_runs and not force:
            assert await _is_held(found, sessions[who])


@pytest.mark.realredis
@pytest.mark.parametrize("force", [False, True], ids=["as it is", "by force"])
async def test_session_that_no_worker_may_take_is_removed_by_force_and_not_waited_for(
    force: bool, tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have to be readmitted to end, and then it ends its workers."""

    async def end(found: Opened, root: SessionHead) -> None:
        raise AssertionError("nobody could end it")

    monkeypatch.setattr(remove, "_end", end)
    async with opened(settings_of(tmp_path, redis_server)) as found:
        session = await created(found.broker)
        await submitted(found.broker, session)
        for attempt in range(4):
            assert isinstance(await found.broker.claims.release(
                (await claimed(found.broker, session, "w1", f"c{attempt}")).claim
            ), Released)  # fmt: skip
        assert await found.broker.claims.claim_session(session, "w1", "c5") is None
        head = await found.broker.logs.head(session)
        assert head is not None
        assert (head.quarantined, head.has_unread) == (True, True)
        if force:
            await remove._remove(found, head, force=True, ask=False)
        else:
            with pytest.raises(Fault, match="the root is quarantined; --force"):
                await remove._remove(found, head, force=False, ask=False)
        assert (await found.broker.logs.head(session) is None) is force


@pytest.mark.realredis
@pytest.mark.parametrize("force", [False, True], ids=["as they are", "by force"])
@pytest.mark.parametrize("spoken_to", [0, 1, 2])
async def test_each_of_several_trees_is_looked_at_again_when_it_is_its_turn(
    spoken_to: int,
    force: bool,
    tmp_path: Path,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = settings_of(tmp_path, redis_server)
    roots: list[Agent] = []
    asked, ended = list[str](), list[SessionId]()

    async def words() -> None:
        async with aclosing(_broker(settings.redis)) as broker:
            await submitted(broker, roots[spoken_to].session, "late")

    def confirm(text: str) -> bool:
        """A person who says yes; the words come while they are asked of the first tree."""
        if not asked:
            thread = threading.Thread(target=lambda: asyncio.run(words()))
            thread.start()
            thread.join()
        asked.append(text)
        return True

    async def end(found: Opened, root: SessionHead) -> None:
        ended.append(root.session)

    monkeypatch.setattr(typer, "confirm", confirm)
    monkeypatch.setattr(remove, "_end", end)
    async with opened(settings) as found:
        for _ in range(3):
            roots.append(await root_of(found.broker))
            await roots[-1].parks(status="idle")
        sessions = [root.session for root in roots]
        command = remove._rm(
            cast(Any, SimpleNamespace(settings=lambda: settings)), sessions, force=force, ask=True
        )
        if force:
            await command
        else:
            why = "has unread input; --force ends" if spoken_to else "not removed: a session of"
            with pytest.raises(Fault, match=why):
                await command
        left = [one.session for one in await found.broker.logs.heads(sessions)]
        assert left == ([] if force else sessions[spoken_to:])
        assert ended == ([sessions[spoken_to]] if force else [])
        assert len(asked) == (3 if force else max(1, spoken_to))


def settings_of(folder: Path, server: RedisServer) -> Settings:
    environ = {
        "HOME": str(folder), "DENDRO_HOME": str(folder / "home"), "DENDRO_REDIS_URL": server.url,
    }  # fmt: skip
    return load_settings(SettingsSources(folder, environ))


async def _is_held(found: Opened, session: SessionId) -> bool:
    head = await found.broker.logs.head(session)
    return head is not None and head.holder is not None


def _broker(redis: RedisSettings) -> Broker:
    config = BrokerConfig(prefix=redis.prefix, shards=redis.shards)
    return Broker(connect(redis, "meanwhile"), config, lambda: 0.0)
