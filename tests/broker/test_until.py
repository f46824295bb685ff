"""Waiting for a session: who waits hears of a release, an answer and a deletion, and looks only then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from orchestrator.broker import notices as until_module
from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.broker.errors import Unavailable
from orchestrator.broker.notices import Found, Listener, until
from orchestrator.broker.records import Claimed, Committed, NewTree
from orchestrator.broker.redis_keys import Keys
from orchestrator.core.commit_parts import Approval
from orchestrator.core.ids import SessionId
from tests.broker.actors import claimed, new_session, session_id, step, submitted

NEVER_S = 3600.0


@pytest.fixture(autouse=True)
def no_look_without_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until_module, "LOOK_S", NEVER_S)


class Waiter:
    """Somebody who waits until something holds, and counts the looks."""

    def __init__(self, broker: Broker, session: SessionId, holds: Callable[[], Awaitable[bool]]) -> None:
        self.looks, self.waits = 0, asyncio.Event()

        async def look() -> bool:
            self.looks += 1
            found = await holds()
            if self.looks == 2:
                # The ends of the streams are known: all that comes from here on is told.
                self.waits.set()
            return found

        self.task = asyncio.create_task(until(broker, [session], look, 30.0))


async def working(broker: Broker) -> Claimed:
    born = new_session()
    await broker.commits.create(NewTree(born))
    await submitted(broker, born.session)
    return await claimed(broker, born.session)


def released(broker: Broker, session: SessionId) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        head = await broker.logs.head(session)
        return head is None or head.holder is None

    return look


async def test_waiter_is_told_of_a_commit_that_gives_the_session_back(broker: Broker) -> None:
    held = await working(broker)
    waiter = Waiter(broker, held.claim.session, released(broker, held.claim.session))
    await waiter.waits.wait()
    done = await broker.commits.commit(step(held, held.claim, "ends", release="yield"))
    assert isinstance(done, Committed)
    assert done.released
    assert await waiter.task is True
    assert waiter.looks == 3


async def test_waiter_is_told_of_a_release_without_a_commit(broker: Broker) -> None:
    held = await working(broker)
    waiter = Waiter(broker, held.claim.session, released(broker, held.claim.session))
    await waiter.waits.wait()
    await broker.claims.release(held.claim)
    assert await waiter.task is True
    assert waiter.looks == 3


async def test_waiter_is_told_of_the_deletion(broker: Broker) -> None:
    held = await working(broker)
    session = held.claim.session
    await broker.claims.release(held.claim)

    async def gone() -> bool:
        return await broker.logs.head(session) is None

    waiter = Waiter(broker, session, gone)
    await waiter.waits.wait()
    await broker.trees.delete_session(session, owed=True)
    assert await waiter.task is True
    assert waiter.looks == 3


async def test_waiter_is_told_that_a_request_is_over(broker: Broker) -> None:
    held = await working(broker)
    opened = await broker.commits.commit(
        step(held, held.claim, "asks", approvals_open=(Approval("c1", b"may I?"),))
    )
    assert isinstance(opened, Committed)
    shard = broker.keys.shard_of(held.claim.session)

    async def answered() -> bool:
        return not await broker.requests.approvals_of([shard])

    waiter = Waiter(broker, held.claim.session, answered)
    await waiter.waits.wait()
    await broker.commits.commit(step(opened, held.claim, "is answered", approvals_close=("c1",)))
    assert await waiter.task is True
    assert waiter.looks == 3


async def test_release_of_another_session_leads_to_no_look(broker: Broker) -> None:
    held, other = await working(broker), await working(broker)
    waiter = Waiter(broker, held.claim.session, released(broker, held.claim.session))
    await waiter.waits.wait()
    await broker.claims.release(other.claim)
    await asyncio.sleep(0.2)
    assert waiter.looks == 2
    await broker.claims.release(held.claim)
    assert await waiter.task is True
    assert waiter.looks == 3


async def test_release_by_a_worker_that_gives_no_notice_is_found_by_a_look(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(until_module, "LOOK_S", 0.01)
    held = await working(broker)
    session = held.claim.session
    waiter = Waiter(broker, session, released(broker, session))
    await waiter.waits.wait()
    await broker.command("HSET", broker.keys.session(session), "owner", "", "claim", "")
    assert await waiter.task is True


async def test_waiter_leaves_with_what_it_saw_last_when_its_patience_ends(broker: Broker) -> None:
    held = await working(broker)
    assert await until(broker, [held.claim.session], released(broker, held.claim.session), 0.05) is False


async def test_release_tells_of_itself_in_no_event(broker: Broker) -> None:
    held = await working(broker)
    before = await broker.logs.read_eq(held.claim.session)
    await broker.claims.release(held.claim, park_at=held)
    assert await broker.logs.read_eq(held.claim.session) == before


@pytest.mark.parametrize("shards", [(3, 3), (1, 15)])
@pytest.mark.parametrize("how", ["an event", "a release", "a request"])
async def test_waiter_for_several_sessions_is_told_of_each(
    broker: Broker, shards: tuple[int, int], how: str
) -> None:
    held, done = [], list[Committed]()
    for shard in shards:
        born = new_session(session_id(shard))
        await broker.commits.create(NewTree(born))
        await submitted(broker, born.session)
        held.append(await claimed(broker, born.session, "w1", f"claim of {born.session}"))
        asks = step(held[-1], held[-1].claim, "asks", (), approvals_open=(Approval("c1", b"may I?"),))
        answer = await broker.commits.commit(asks)
        assert isinstance(answer, Committed)
        done.append(answer)
    looks, heard = 0, asyncio.Queue[int]()

    async def look() -> bool:
        nonlocal looks
        looks += 1
        heard.put_nowait(looks)
        return looks == 4

    sessions = [one.claim.session for one in held]
    waiting = asyncio.create_task(until(broker, sessions, look, 30.0))
    while await heard.get() < 2:
        pass
    for number, (one, at) in enumerate(zip(held, done, strict=True), 3):
        if how == "a release":
            await broker.claims.release(one.claim)
        elif how == "a request":
            await broker.commits.commit(step(at, one.claim, "over", (), approvals_close=("c1",)))
        else:
            await broker.commits.commit(step(at, one.claim, "works"))
        assert await heard.get() == number
    assert await waiting is True


async def test_waiter_goes_on_behind_an_absence_of_redis_and_is_told_what_a_look_raises(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(until_module, "RETRY_S", 0.0)
    held = await working(broker)
    session = held.claim.session
    away: list[str] = ["tips", "read", "read"]

    class Gone(Listener):
        async def read(self, cursors: Mapping[str, str], timeout_s: float) -> Found:
            if away and away.pop():
                raise Unavailable("it is away")
            return await super().read(cursors, timeout_s)

        async def tips(self, streams: list[str]) -> dict[str, str]:
            if away == ["tips"] and away.pop():
                raise Unavailable("it is away")
            return await super().tips(streams)

    monkeypatch.setattr(broker, "listener", lambda: Gone(broker._connection, broker.keys))
    looks = 0

    async def look() -> bool:
        nonlocal looks
        looks += 1
        if not away:
            await broker.claims.release(held.claim)
        head = await broker.logs.head(session)
        return head is not None and head.holder is None

    assert await until(broker, [session], look, 30.0) is True
    assert (away, looks >= 4) == ([], True)

    async def fails() -> bool:
        raise LookupError("no such thing")

    with pytest.raises(LookupError):
        await until(broker, [session], fails, 30.0)


async def test_notice_of_one_node_is_told_while_another_does_not_serve() -> None:
    class Halves(Connection):
        clustered = True

        def __init__(self) -> None:
            pass

        async def wait(self, *args: Any) -> Any:
            if args[-2] == "gone":
                raise Unavailable("its node is away")
            if args[-1] == "0-0":
                return [[args[-2].encode(), [(b"1-0", {b"s": b"S"})]]]
            return await asyncio.Event().wait()

    listener = Listener(Halves(), Keys("dendro", 4))
    assert await listener.read({"gone": "0-0", "there": "0-0"}, 30.0) == {"there": [(b"1-0", {b"s": b"S"})]}
    with pytest.raises(Unavailable, match="its node is away"):
        await listener.read({"gone": "0-0", "there": "1-0"}, 30.0)
    await listener.aclose()
