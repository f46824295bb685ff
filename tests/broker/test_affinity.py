"""Machines and claims: a portable session is left to the machine of its copy, and is not forgotten there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.claims import LOOK_AGAIN_S, MOST_PASSED, Left, machine_state
from orchestrator.broker.records import BrokerConfig, Committed, FolderPlace, Heard, Released
from orchestrator.broker.worker_state import SILENT_MS, MachineFacts, WorkerState, encoded
from orchestrator.core.ids import SessionId
from tests.broker.actors import (
    POOL,
    SHARD,
    Backend,
    RecordingConnection,
    claimed,
    created,
    lease_runs_out,
    session_id,
    step,
    submitted,
)

LEAVE_S = 30.0
ON_M1 = FolderPlace("m1")
UNSAVED = FolderPlace("m1", unsaved=True)


def state(machine: str, held: int = 0, **changes: Any) -> bytes:
    facts = MachineFacts(machine_id=machine, workspaces="/w", unfit=changes.pop("unfit", ""))
    return encoded(replace(WorkerState((POOL,), held, room=2, facts=facts), **changes))


@dataclass
class Fleet:
    """Two machines at one server, each with a broker of its own and a clock that stands."""

    backend: Backend
    now_s: float = 0.0
    brokers: dict[str, Broker] = field(default_factory=dict)

    def on(self, machine: str, leave_s: float = LEAVE_S) -> Broker:
        if machine not in self.brokers:
            config = BrokerConfig(lease_s=60.0, machine=machine, leave_s=leave_s)
            self.brokers[machine] = Broker(self.backend.connect(), config, lambda: self.now_s)
        return self.brokers[machine]

    async def says(self, machine: str, worker: str = "", **changes: Any) -> None:
        """A worker of the machine is heard from."""
        await self.on(machine).claims.heartbeat(worker or f"w-{machine}", state(machine, **changes))

    async def silent(self, worker: str) -> None:
        """The worker was heard from too long ago."""
        _, heard, _ = self.on("m1").keys.workers()
        await self.on("m1").command("ZADD", heard, "XX", 1, worker)

    async def due(self, place: FolderPlace | None, session: SessionId | None = None) -> SessionId:
        """A session with work, whose last holder said this of its folder."""
        broker = self.on("m1")
        session = await created(broker, session)
        await submitted(broker, session)
        held = await claimed(broker, session, "w-m1", f"first-{session}")
        done = await broker.commits.commit(step(held, held.claim, f"k-{session}", folder=place))
        assert isinstance(done, Committed)
        assert isinstance(await broker.claims.release(held.claim), Released)
        return session

    async def takes(self, machine: str, session: SessionId, claim: str = "c") -> bool:
        found = await self.on(machine).claims.claim_session(session, f"w-{machine}", claim)
        return found is not None

    async def takes_unfit(self, machine: str) -> SessionId | None:
        """The session that a machine without room for folders takes."""
        found = await self.on(machine).claims.claim(POOL, f"w-{machine}", "c", SHARD, unfit=True)
        return found.claim.session if found is not None else None

    async def is_late(self, session: SessionId) -> None:
        """So much time has passed since others looked at it first."""
        key = self.on("m1").keys.session(session)
        since = int(str((await self.fields(session, "left_ms"))[0]))
        await self.on("m1").command("HSET", key, "left_ms", since - int(LEAVE_S * 1000))

    async def fields(self, session: SessionId, *names: str) -> list[str | None]:
        found = await self.on("m1").command("HMGET", self.on("m1").keys.session(session), *names)
        assert isinstance(found, list)
        return [value.decode() if value is not None else None for value in found]


@pytest.fixture
async def fleet(backend: Backend) -> AsyncIterator[Fleet]:
    found = Fleet(backend)
    yield found
    for broker in found.brokers.values():
        await broker.aclose()


async def test_session_is_left_to_the_machine_of_its_copy_and_taken_there(fleet: Fleet) -> None:
    session = await fleet.due(ON_M1)
    await fleet.says("m1")
    assert not await fleet.takes("m2", session)
    assert await fleet.on("m2").claims.claim(POOL, "w-m2", "c2", SHARD) is None
    assert await fleet.takes("m1", session)
    assert await fleet.fields(session, "left_ms") == [None]


async def test_session_that_its_machine_does_not_take_in_time_is_taken_by_another(fleet: Fleet) -> None:
    session = await fleet.due(ON_M1)
    await fleet.says("m1")
    assert not await fleet.takes("m2", session)
    assert not await fleet.takes("m2", session)
    await fleet.is_late(session)
    assert await fleet.takes("m2", session)


async def test_time_for_which_a_session_is_left_counts_from_the_first_look_of_any(
    fleet: Fleet,
) -> None:
    session = await fleet.due(ON_M1)
    await fleet.says("m1")
    assert not await fleet.takes("m2", session)
    await fleet.is_late(session)
    assert await fleet.takes("m3", session)


async def test_clock_that_was_set_back_leaves_a_session_for_its_time_and_no_longer(fleet: Fleet) -> None:
    session = await fleet.due(ON_M1)
    await fleet.says("m1")
    key = fleet.on("m1").keys.session(session)
    await fleet.on("m1").command("HSET", key, "left_ms", 1 << 50)
    assert not await fleet.takes("m2", session)
    await fleet.is_late(session)
    assert await fleet.takes("m2", session)


@pytest.mark.parametrize("gone", ["never heard", "silent", "of another pool", "left"])
async def test_session_of_a_machine_that_is_gone_is_taken_at_once(fleet: Fleet, gone: str) -> None:
    for place in (ON_M1, UNSAVED):
        session = await fleet.due(place)
        if gone == "silent":
            await fleet.says("m1")
            await fleet.silent("w-m1")
        elif gone == "of another pool":
            await fleet.says("m1", pools=("other",))
        elif gone == "left":
            await fleet.says("m1")
            await fleet.on("m1").claims.heartbeat("w-m1", state("m1"), left=True)
        assert await fleet.takes("m2", session)


async def test_session_of_a_full_machine_is_taken_at_once_unless_it_is_unsaved(fleet: Fleet) -> None:
    saved, unsaved = await fleet.due(ON_M1), await fleet.due(UNSAVED)
    await fleet.says("m1", held=2)
    await fleet.says("m1", "w-leaving", draining=True)
    assert await fleet.takes("m2", saved)
    assert not await fleet.takes("m2", unsaved)


async def test_machine_with_a_worker_that_has_room_is_not_full(fleet: Fleet) -> None:
    session = await fleet.due(ON_M1)
    await fleet.says("m1", held=2)
    await fleet.says("m1", "w-idle")
    assert not await fleet.takes("m2", session)


async def test_unsaved_session_waits_for_its_machine_however_long_that_is(fleet: Fleet) -> None:
    session = await fleet.due(UNSAVED)
    await fleet.says("m1")
    key = fleet.on("m1").keys.session(session)
    await fleet.on("m1").command("HSET", key, "left_ms", 1)
    assert not await fleet.takes("m2", session)
    assert not await fleet.takes("", session), "nor does a process without copies"
    assert await fleet.takes("m1", session)


async def test_unsaved_session_whose_holder_died_goes_back_to_its_machine(fleet: Fleet) -> None:
    session = await fleet.due(UNSAVED)
    await fleet.says("m1")
    assert await fleet.takes("m1", session, "dies")
    await lease_runs_out(fleet.on("m1"), session)
    assert not await fleet.takes("m2", session)
    assert await fleet.takes("m1", session, "next")


async def test_save_and_the_end_of_waiting_are_one_commit(fleet: Fleet) -> None:
    session = await fleet.due(UNSAVED)
    await fleet.says("m1", held=2)
    held = await claimed(fleet.on("m1"), session, "w-m1", "c2")
    saved = step(held, held.claim, "saved", folder=ON_M1, release="yield")
    assert isinstance(await fleet.on("m1").commits.commit(saved), Committed)
    assert await fleet.takes("m2", session)


async def test_person_gives_unsaved_changes_up_and_the_next_holder_hears_who(fleet: Fleet) -> None:
    session = await fleet.due(UNSAVED)
    await fleet.says("m1")
    held = await claimed(fleet.on("m1"), session, "w-m1", "holds")
    told = await fleet.on("m2").trees.abandon_unsaved(session, "ada")
    assert (told.state, told.worker) == ("revoked", "w-m1")
    assert not await fleet.takes("m2", session), "its holder has not stopped yet"
    assert isinstance(await fleet.on("m1").claims.release(held.claim), Released)
    found = await fleet.on("m2").claims.claim_session(session, "w-m2", "c")
    assert found is not None
    assert found.abandoned == "ada"
    stays = step(found, found.claim, "1", folder=replace(UNSAVED, settled=False))
    done = await fleet.on("m2").commits.commit(stays)
    assert isinstance(done, Committed)
    assert await fleet.fields(session, "abandoned") == ["ada"]
    done = await fleet.on("m2").commits.commit(step(done, found.claim, "2", folder=FolderPlace("m2")))
    assert await fleet.fields(session, "abandoned", "unsaved", "copy_on") == ["", "", "m2"]


async def test_changes_are_given_up_also_behind_a_revocation_that_is_not_heard_yet(
    fleet: Fleet,
) -> None:
    session = await fleet.due(UNSAVED)
    await fleet.says("m1")
    held = await claimed(fleet.on("m1"), session, "w-m1", "holds")
    await fleet.on("m2").trees.revoke(session)
    assert (await fleet.on("m2").trees.abandon_unsaved(session, "ada")).state == "revoked"
    assert isinstance(await fleet.on("m1").claims.release(held.claim), Released)
    found = await fleet.on("m2").claims.claim_session(session, "w-m2", "c")
    assert found is not None
    assert found.abandoned == "ada"


async def test_parked_session_whose_changes_are_given_up_is_due(fleet: Fleet) -> None:
    session = await fleet.due(UNSAVED)
    held = await claimed(fleet.on("m1"), session, "w-m1", "parks")
    parks = step(held, held.claim, "parks", cursor="1-0", release="park")
    assert isinstance(await fleet.on("m1").commits.commit(parks), Committed)
    await fleet.says("m1")
    assert (await fleet.on("m2").trees.abandon_unsaved(session, "ada")).state == "free"
    assert (await fleet.on("m2").trees.abandon_unsaved(session, "bo")).state == "free"
    found = await fleet.on("m2").claims.claim(POOL, "w-m2", "c", SHARD)
    assert found is not None
    assert found.abandoned == "bo"


async def test_nothing_is_taken_where_nothing_is_unsaved(fleet: Fleet) -> None:
    session = await fleet.due(ON_M1)
    held = await claimed(fleet.on("m1"), session, "w-m1", "holds")
    assert (await fleet.on("m2").trees.abandon_unsaved(session, "ada")).state == "saved"
    assert isinstance(await fleet.on("m1").commits.commit(step(held, held.claim, "goes on")), Committed)
    assert await fleet.fields(session, "abandoned") == [""]


async def test_machine_that_could_not_make_the_folder_lets_others_try(fleet: Fleet) -> None:
    session = await fleet.due(FolderPlace("", failed_on="m1"))
    await fleet.says("m1")
    assert not await fleet.takes("m1", session)
    assert await fleet.takes("m2", session)


async def test_machine_that_could_not_make_the_folder_tries_again_if_nobody_else_does(
    fleet: Fleet,
) -> None:
    session = await fleet.due(FolderPlace("", failed_on="m1"))
    assert not await fleet.takes("m1", session)
    await fleet.is_late(session)
    assert await fleet.takes("m1", session)


@pytest.mark.parametrize("place", [None, FolderPlace(""), ON_M1, FolderPlace("m2", unsaved=True)])
async def test_machine_without_room_leaves_portable_sessions_to_those_that_have_some(
    fleet: Fleet, place: FolderPlace | None
) -> None:
    if place is None:
        portable = await created(fleet.on("m1"), portable=True)
        await submitted(fleet.on("m1"), portable)
    else:
        portable = await fleet.due(place)
    await fleet.says("m1", unfit="no room")
    await fleet.says("m2")
    assert await fleet.takes_unfit("m1") is None
    assert fleet.on("m1").claims.returns_in(POOL, SHARD) == LOOK_AGAIN_S
    plain = await fleet.due(None, session_id())
    assert await fleet.takes_unfit("m1") == plain
    assert await fleet.takes("m2", portable), "its copy's machine has no room, so it is not waited for"


@pytest.mark.parametrize("others", ["none", "unfit", "silent", "draining", "of another pool", "older"])
async def test_machine_without_room_takes_a_session_where_no_other_makes_folders(
    fleet: Fleet, others: str
) -> None:
    portable = await fleet.due(ON_M1)
    await fleet.says("m1", unfit="no room")
    changes: dict[str, dict[str, Any]] = {
        "unfit": {"unfit": "no room either"},
        "draining": {"draining": True},
        "of another pool": {"pools": ("other",)},
        "older": {"facts": MachineFacts(machine_id="m2")},
    }
    if others != "none":
        await fleet.says("m2", **changes.get(others, {}))
    if others == "silent":
        await fleet.silent("w-m2")
    assert await fleet.takes_unfit("m1") == portable, "so that its task is told why"


async def test_machine_without_room_keeps_the_session_whose_changes_it_alone_has(fleet: Fleet) -> None:
    session = await fleet.due(UNSAVED)
    await fleet.says("m1", unfit="no room")
    await fleet.says("m2")
    assert await fleet.takes_unfit("m1") == session


async def test_machine_without_room_leaves_a_session_whose_changes_were_given_up(fleet: Fleet) -> None:
    session = await fleet.due(UNSAVED)
    await fleet.says("m1", unfit="no room")
    await fleet.says("m2")
    await fleet.on("m2").trees.abandon_unsaved(session, "ada")
    assert await fleet.takes_unfit("m1") is None
    assert await fleet.takes("m2", session)


async def test_upkeep_looks_at_a_parked_session_whatever_machine_has_its_copy(fleet: Fleet) -> None:
    session = await fleet.due(UNSAVED)
    held = await claimed(fleet.on("m1"), session, "w-m1", "parks")
    parks = step(held, held.claim, "parks", cursor="1-0", release="park")
    assert isinstance(await fleet.on("m1").commits.commit(parks), Committed)
    await fleet.says("m1")
    assert await fleet.on("m2").claims.claim_session(session, "upkeep", "c", parked=True) is not None


async def test_session_of_an_earlier_version_is_claimed_by_any_machine(fleet: Fleet) -> None:
    session = await fleet.due(None)
    await fleet.says("m1")
    assert await fleet.fields(session, "copy_on", "unsaved") == [None, None]
    found = await fleet.on("m2").claims.claim(POOL, "w-m2", "c", SHARD)
    assert found is not None
    assert (found.claim.session, found.abandoned) == (session, "")


async def test_machine_whose_workers_are_of_an_earlier_version_is_not_waited_for(fleet: Fleet) -> None:
    session = await fleet.due(UNSAVED)
    await fleet.on("m1").claims.heartbeat(
        "older", b'{"pools": ["default"], "held": 0, "room": 2, "machine": "host"}'
    )
    assert await fleet.takes("m2", session)


async def test_others_are_claimed_past_a_session_that_is_left_at_the_cost_of_one_call_each(
    fleet: Fleet, backend: Backend
) -> None:
    left = await fleet.due(UNSAVED, session_id())
    others = [await fleet.due(None, session_id()) for _ in range(3)]
    await fleet.says("m1")
    connection = RecordingConnection(backend.connect())
    broker = Broker(connection, BrokerConfig(lease_s=60.0, machine="m2", leave_s=LEAVE_S), lambda: 0.0)
    first = await broker.claims.claim(POOL, "w-m2", "c0", SHARD, left)
    assert first is not None
    connection.calls.clear()
    found, after = [first.claim.session], first.after
    while after is not None:
        taken = await broker.claims.claim(POOL, "w-m2", f"c{len(found)}", SHARD, after)
        assert taken is not None
        found.append(taken.claim.session)
        after = taken.after
    assert found == others
    assert [call.script.name for call in connection.calls] == ["claim", "claim"]
    assert await broker.claims.claim(POOL, "w-m2", "c9", SHARD) is None
    await broker.aclose()


async def test_lapsed_session_is_claimed_past_a_lapsed_one_that_is_left_at_the_cost_of_one_call(
    fleet: Fleet, backend: Backend
) -> None:
    lapsed = [await fleet.due(place, session_id()) for place in (UNSAVED, None)]
    for session in lapsed:
        assert await fleet.takes("m1", session, f"held-{session}")
        await lease_runs_out(fleet.on("m1"), session)
    await fleet.says("m1")
    connection = RecordingConnection(backend.connect())
    broker = Broker(connection, BrokerConfig(lease_s=60.0, machine="m2", leave_s=LEAVE_S), lambda: 0.0)
    found = await broker.claims.claim(POOL, "w-m2", "c", SHARD, lapsed[0])
    assert found is not None
    assert found.claim.session == lapsed[1]
    assert [call.script.name for call in connection.calls] == ["claim", "claim"]
    await broker.aclose()


async def test_session_that_is_left_is_asked_for_again_in_time_and_not_before(
    fleet: Fleet, backend: Backend
) -> None:
    session = await fleet.due(UNSAVED)
    await fleet.says("m1")
    assert await fleet.on("m2").claims.claim(POOL, "w-m2", "c1", SHARD) is None
    assert fleet.on("m2").claims.returns_in(POOL, SHARD) == LOOK_AGAIN_S
    assert fleet.on("m2").claims.returns_in("other", SHARD) is None
    await fleet.silent("w-m1")
    assert await fleet.on("m2").claims.claim(POOL, "w-m2", "c2", SHARD) is None
    fleet.now_s += LOOK_AGAIN_S
    assert fleet.on("m2").claims.returns_in(POOL, SHARD) is None
    found = await fleet.on("m2").claims.claim(POOL, "w-m2", "c3", SHARD)
    assert found is not None
    assert found.claim.session == session


async def test_more_sessions_are_left_than_a_claim_names(fleet: Fleet) -> None:
    left = [await fleet.due(UNSAVED, session_id()) for _ in range(MOST_PASSED + 2)]
    other = await fleet.due(None, session_id())
    await fleet.says("m1")
    found = await fleet.on("m2").claims.claim(POOL, "w-m2", "c1", SHARD, left[0])
    assert found is not None
    assert found.claim.session == other
    assert await fleet.on("m2").claims.claim(POOL, "w-m2", "c2", SHARD, left[0]) is None


def test_heartbeats_that_cannot_be_told_apart_from_another_machines_say_nothing() -> None:
    there = Heard("w", state("m1"), 1_000_000)
    assert not machine_state([there], 1_000_000 + SILENT_MS - 1, POOL, "m1").gone
    assert machine_state([there], 1_000_000 + SILENT_MS, POOL, "m1").gone
    assert machine_state([there], 1_000_000, POOL, "m2").gone
    assert machine_state([there], 1_000_000, "other", "m1").gone


def test_what_is_left_is_forgotten_when_its_time_is_over() -> None:
    now = [0.0]
    left = Left(lambda: now[0])
    first, second = session_id(), session_id()
    left.leave(POOL, SHARD, first, 1.0)
    left.leave(POOL, SHARD, second, 3.0)
    assert (left.sessions(POOL, SHARD), left.returns_in(POOL, SHARD)) == ((first, second), 1.0)
    now[0] = 2.0
    assert (left.sessions(POOL, SHARD), left.returns_in(POOL, SHARD)) == ((second,), 1.0)
    now[0] = 3.0
    assert (left.sessions(POOL, SHARD), left.returns_in(POOL, SHARD)) == ((), None)
