"""Claiming: one holder at a time, fair between trees, and no way back for who lost its claim."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.claims import BURIED_AGAIN_MS
from orchestrator.broker.connection import Connection
from orchestrator.broker.follow import hash8_of
from orchestrator.broker.records import BrokerConfig, Claim, Committed, Fenced, Refused, Released, Renewed
from orchestrator.broker.reply_shapes import BadReply
from orchestrator.broker.worker_state import Serving
from orchestrator.core.commit_parts import NewEvent, NewSession, NewSubmission, Timer, TreeEvent
from orchestrator.core.ids import AgentId, TreeId
from tests.broker.actors import (
    POOL,
    SHARD,
    Backend,
    RecordingConnection,
    claimed,
    created,
    lease_runs_out,
    new_session,
    session_id,
    step,
    submitted,
    working,
)
from tests.broker.doubles import FakeClock, redis_time
from tests.stated import StatedRedis

WORK = (NewSubmission("c", "s", b"op"),)


async def test_second_worker_finds_nothing_while_the_first_holds(broker: Broker) -> None:
    held = await working(broker)
    assert await broker.claims.claim(POOL, "w2", "c2", SHARD) is None
    assert await broker.claims.claim_session(held.claim.session, "w2", "c2") is None


async def test_claim_that_lost_its_reply_is_answered_again(broker: Broker) -> None:
    held = await working(broker)
    again = await broker.claims.claim_session(held.claim.session, "w1", "c1")
    assert again is not None
    assert again.claim == held.claim


async def test_expiry_permits_another_worker_but_takes_nothing_away(hasty: Broker) -> None:
    held = await working(hasty)
    assert isinstance((await hasty.claims.renew([held.claim]))[0], Renewed)
    done = await hasty.commits.commit(step(held, held.claim, "k", cursor="1-0"))
    assert isinstance(done, Committed)
    taken = await hasty.claims.claim(POOL, "w2", "c2", SHARD)
    assert taken is not None
    assert (taken.claim.epoch, taken.seq) == (held.claim.epoch + 1, 1)


async def test_worker_is_fenced_from_every_write_after_losing_its_claim(
    hasty: Broker,
) -> None:
    held = await working(hasty)
    taken = await hasty.claims.claim(POOL, "w2", "c2", SHARD)
    assert taken is not None
    late = await hasty.commits.commit(step(held, held.claim, "late"))
    assert late == Fenced(taken.claim.epoch, "claim")
    event = NewEvent(b"late", 0, hash8_of(held.head))
    assert isinstance(await hasty.commits.emit(held.claim, [event]), Fenced)
    assert isinstance(await hasty.claims.release(held.claim), Fenced)
    assert isinstance(await hasty.commits.snapshot(held.claim, 0, b"state"), Fenced)
    assert isinstance(await hasty.commits.seal(held.claim, 0, b"manifest"), Fenced)
    assert isinstance(await hasty.commits.archive(held.claim), Fenced)
    answers = await hasty.claims.renew([held.claim, taken.claim])
    assert [type(answer) for answer in answers] == [Fenced, Renewed]
    assert await hasty.logs.read_rollout(held.claim.session) == ()


async def test_commit_on_another_log_is_fenced_though_the_claim_is_right(broker: Broker) -> None:
    held = await working(broker)
    done = await broker.commits.commit(step(held, held.claim, "k1"))
    assert isinstance(done, Committed)
    on_old_seq = await broker.commits.commit(step(held, held.claim, "k2"))
    assert on_old_seq == Fenced(held.claim.epoch, "seq")
    request = step(done, held.claim, "k3", expect_head=b"\x01" * 32)
    assert await broker.commits.commit(request) == Fenced(held.claim.epoch, "head")


async def test_holder_of_a_log_that_went_back_is_told_by_renewal(broker: Broker) -> None:
    held, other = await working(broker), await working(broker)
    done = await broker.commits.commit(step(held, held.claim, "k1"))
    assert isinstance(done, Committed)
    claims = [held.claim, other.claim]
    answers = await broker.claims.renew(claims, [done.seq, other.seq])
    assert all(isinstance(answer, Renewed) for answer in answers)
    lost, kept = await broker.claims.renew(claims, [done.seq + 1, other.seq])
    assert lost == Fenced(held.claim.epoch, "claim")
    assert isinstance(kept, Renewed)


async def test_damaged_session_ends_its_own_claim_alone(broker: Broker) -> None:
    held = [await working(broker) for _ in range(3)]
    key = broker.keys.session(held[1].claim.session)
    await broker.command("DEL", key)
    await broker.command("SET", key, "x")
    answers = await broker.claims.renew([one.claim for one in held])
    assert [type(answer) for answer in answers] == [Renewed, Fenced, Renewed]
    assert isinstance(answers[1], Fenced)
    assert (answers[1].holder_epoch, key in answers[1].reason) == (held[1].claim.epoch, True)


async def test_session_whose_numbers_are_none_ends_the_renewal_of_no_other(broker: Broker) -> None:
    held = [await working(broker) for _ in range(3)]
    await broker.command("HSET", broker.keys.session(held[1].claim.session), "sq", "-5")
    answers = await broker.claims.renew([one.claim for one in held])
    assert [type(answer) for answer in answers] == [Renewed, BadReply, Renewed]


async def test_revoked_holder_can_write_no_more_and_is_told_by_renewal(broker: Broker) -> None:
    held = await working(broker)
    epoch = await broker.trees.revoke(held.claim.session)
    assert await broker.commits.commit(step(held, held.claim, "k1")) == Fenced(epoch, "claim")
    assert await broker.claims.renew([held.claim]) == [Fenced(epoch, "claim")]


async def test_nobody_works_beside_a_revoked_holder_until_it_says_that_it_has_stopped(broker: Broker) -> None:
    held = await working(broker)
    epoch = await broker.trees.revoke(held.claim.session)
    assert await broker.claims.claim(POOL, "w2", "c2", SHARD) is None
    assert (await submitted(broker, held.claim.session, "s2")).holder == "w1"
    assert await broker.claims.claim(POOL, "w2", "c2", SHARD) is None
    assert await broker.trees.revoke(held.claim.session) == epoch, "there is no claim left to be taken"
    stopped = await broker.claims.release(held.claim)
    assert isinstance(stopped, Released)
    assert not stopped.parked
    assert isinstance(await broker.claims.release(held.claim), Fenced)
    taken = await broker.claims.claim(POOL, "w2", "c2", SHARD)
    assert taken is not None
    assert taken.claim.epoch == epoch + 1


async def test_revoked_holder_that_says_nothing_is_waited_for_until_its_lease_is_over(broker: Broker) -> None:
    held = await working(broker)
    epoch = await broker.trees.revoke(held.claim.session)
    await lease_runs_out(broker, held.claim.session)
    taken = await broker.claims.claim(POOL, "w2", "c2", SHARD)
    assert taken is not None
    assert taken.claim.epoch == epoch + 1
    assert isinstance(await broker.claims.release(held.claim), Fenced), "it comes too late to say so"
    assert isinstance(await broker.commits.commit(step(taken, taken.claim, "k2")), Committed)


async def test_second_revoke_forgets_a_holder_whose_lease_is_over(broker: Broker) -> None:
    held = await working(broker)
    epoch = await broker.trees.revoke(held.claim.session)
    await lease_runs_out(broker, held.claim.session)
    assert await broker.trees.revoke(held.claim.session) == epoch + 1
    key = broker.keys.session(held.claim.session)
    assert await broker.command("HMGET", key, "revoked", "owner") == [None, b""]


async def test_word_of_a_revoked_holder_that_comes_late_does_not_end_its_workers_next_claim(
    broker: Broker,
) -> None:
    held = await working(broker)
    await broker.trees.revoke(held.claim.session)
    await lease_runs_out(broker, held.claim.session)
    taken = await claimed(broker, held.claim.session, "w1", "c2")
    # A `revoked` field does not matter: the release is of an epoch that is over.
    await broker.command("HSET", broker.keys.session(held.claim.session), "revoked", held.claim.claim_id)
    assert await broker.claims.release(held.claim) == Fenced(taken.claim.epoch, "claim")
    assert isinstance(await broker.commits.commit(step(taken, taken.claim, "k2")), Committed)


async def test_holder_whose_lease_had_run_out_is_revoked_without_a_wait(hasty: Broker) -> None:
    held = await working(hasty)
    epoch = await hasty.trees.revoke(held.claim.session)
    taken = await hasty.claims.claim(POOL, "w2", "c2", SHARD)
    assert taken is not None
    assert taken.claim.epoch == epoch + 1
    assert isinstance(await hasty.claims.release(held.claim), Fenced)


async def test_session_of_a_dead_worker_is_due_at_once_and_only_once(broker: Broker) -> None:
    held = await working(broker)
    assert await broker.claims.bury([held.claim]) == [True]
    taken = await broker.claims.claim(POOL, "w2", "c2", SHARD)
    assert taken is not None
    assert await broker.claims.bury([held.claim]) == [False], "it was sent twice, or came late"
    assert isinstance(await broker.commits.commit(step(taken, taken.claim, "k")), Committed)


async def test_session_of_a_dead_worker_is_due_whatever_its_log_owes(broker: Broker) -> None:
    held = await working(broker)
    done = await broker.commits.commit(step(held, held.claim, "k", cursor="1-0"))
    assert isinstance(done, Committed)
    assert await broker.claims.bury([held.claim]) == [True]
    assert await broker.claims.claim(POOL, "w2", "c2", SHARD) is not None


async def test_revoked_claim_of_a_dead_worker_is_waited_for_no_longer(broker: Broker) -> None:
    held = await working(broker)
    epoch = await broker.trees.revoke(held.claim.session)
    assert await broker.claims.claim(POOL, "w2", "c2", SHARD) is None
    assert await broker.claims.bury([held.claim]) == [True]
    taken = await broker.claims.claim(POOL, "w2", "c2", SHARD)
    assert taken is not None
    assert taken.claim.epoch == epoch + 1
    assert await broker.command("HGET", broker.keys.session(held.claim.session), "revoked") is None


def _other(claim: Claim, differs: str) -> Claim:
    match differs:
        case "worker":
            return replace(claim, worker="w2")
        case "epoch":
            return replace(claim, epoch=claim.epoch + 1)
        case _:
            return replace(claim, claim_id="c9")


@pytest.mark.parametrize("other", ["worker", "claim_id", "epoch"])
async def test_claim_that_a_dead_worker_does_not_hold_stays(broker: Broker, other: str) -> None:
    held = await working(broker)
    assert await broker.claims.bury([_other(held.claim, other)]) == [False]
    assert isinstance(await broker.commits.commit(step(held, held.claim, "k")), Committed)


@pytest.mark.parametrize("other", ["claim_id", "epoch"])
async def test_revoked_claim_of_somebody_else_is_still_waited_for(broker: Broker, other: str) -> None:
    held = await working(broker)
    await broker.trees.revoke(held.claim.session)
    assert await broker.claims.bury([_other(held.claim, other)]) == [False]
    assert await broker.claims.claim(POOL, "w2", "c2", SHARD) is None


async def test_session_that_may_have_killed_two_workers_waits_for_its_lease(broker: Broker) -> None:
    held = await working(broker)
    await lease_runs_out(broker, held.claim.session)
    second = await claimed(broker, held.claim.session, "w2", "c2")
    assert second.claims_without_progress == 2
    assert await broker.claims.bury([second.claim]) == [False]
    assert await broker.claims.claim(POOL, "w3", "c3", SHARD) is None
    done = await broker.commits.commit(step(second, second.claim, "k"))
    assert isinstance(done, Committed)
    assert await broker.claims.bury([second.claim]) == [True], "it has made progress since"


async def test_session_that_kills_its_workers_behind_a_commit_waits_for_its_lease_the_second_time(
    broker: Broker,
) -> None:
    held = await working(broker)
    assert isinstance(await broker.commits.commit(step(held, held.claim, "k")), Committed)
    assert await broker.claims.bury([held.claim]) == [True]
    second = await claimed(broker, held.claim.session, "w2", "c2")
    assert isinstance(await broker.commits.commit(step(second, second.claim, "k2")), Committed)
    assert await broker.claims.bury([second.claim]) == [False]
    key = broker.keys.session(held.claim.session)
    at_ms = int(cast(bytes, await broker.command("HGET", key, "buried_ms")))
    await broker.command("HSET", key, "buried_ms", at_ms - BURIED_AGAIN_MS)
    assert await broker.claims.bury([second.claim]) == [True]


async def test_each_claim_of_a_dead_worker_is_answered_for_itself(broker: Broker) -> None:
    held = [await claimed(broker, await created(broker, submissions=WORK), "w1", f"c{n}") for n in range(5)]
    key = broker.keys.session(held[1].claim.session)
    await broker.command("HSET", key, "tries", "2")
    given_up = held[3].claim.session
    await lease_runs_out(broker, given_up)
    assert await claimed(broker, given_up, "w2", "another") is not None
    answers = await broker.claims.bury([one.claim for one in held])
    assert answers == [True, False, True, False, True]
    heads = await broker.logs.heads([one.claim.session for one in held])
    assert [head.holder for head in heads] == [None, "w1", None, "w2", None]
    served = await broker.logs.serving(heads)
    assert [served[head.session].due for head in heads] == answers
    assert await broker.claims.bury([]) == []


async def test_clock_that_was_put_back_keeps_no_session_of_a_dead_worker_from_being_given_back(
    broker: Broker,
) -> None:
    held = await working(broker)
    key = broker.keys.session(held.claim.session)
    await broker.command("HSET", key, "buried_ms", 1 << 50)
    assert await broker.claims.bury([held.claim]) == [True]
    again = await claimed(broker, held.claim.session, "w2", "c2")
    assert again.claims_without_progress == 2, "what it was given back for is no progress"


@pytest.mark.parametrize("given_back", ["due", "lost", "buried"])
async def test_session_that_is_quarantined_stands_nowhere_however_it_was_given_back_before(
    broker: Broker, given_back: str
) -> None:
    session = await created(broker, submissions=WORK)
    for attempt in range(4):
        held = await claimed(broker, session, "w1", f"c{attempt}")
        if given_back == "due":
            assert isinstance(await broker.claims.release(held.claim), Released)
        elif given_back == "lost" or await broker.claims.bury([held.claim]) == [False]:
            await lease_runs_out(broker, session)
    epoch = held.claim.epoch
    assert await broker.claims.claim(POOL, "w2", "c5", SHARD) is None
    head = await broker.logs.head(session)
    assert head is not None
    assert (head.quarantined, head.holder, head.epoch) == (True, None, epoch + 1)
    served = (await broker.logs.serving([head]))[session]
    assert (served.held, served.due, served.lost_ms) == (False, False, None)
    assert (await broker.claims.unserved([POOL])).due == frozenset()
    assert isinstance(await broker.commits.commit(step(held, held.claim, "k")), Fenced)
    assert await broker.claims.claim_session(session, "upkeep", "u", parked=True) is None
    assert await broker.trees.revoke(session) == epoch + 2
    again = await claimed(broker, session, "w3", "c6")
    assert again.claims_without_progress == 1


@pytest.mark.parametrize(
    ("progress", "more"),
    [
        (True, {"payloads": (b"entry",)}),
        (True, {"cursor": "1-0"}),
        (False, {}),
        (False, {"status": "running", "meta": b"m", "timers_set": (Timer("t", 1, 1 << 45),)}),
        (False, {"tree_events": (TreeEvent((b"told",)),)}),
        (False, {"cursor": "0-0"}),
    ],
)
async def test_step_that_records_or_reads_nothing_is_no_progress(
    broker: Broker, progress: bool, more: dict[str, Any]
) -> None:
    held = await working(broker)
    given = {"payloads": ()} | more
    done = await broker.commits.commit(step(held, held.claim, "k", release="yield", **given))
    assert isinstance(done, Committed)
    assert done.released
    again = await claimed(broker, held.claim.session, "w2", "c2")
    assert again.claims_without_progress == (1 if progress else 2)


async def test_revoked_holder_that_has_stopped_leaves_a_session_parked_that_owes_nothing(
    broker: Broker,
) -> None:
    held = await working(broker)
    done = await broker.commits.commit(step(held, held.claim, "k", cursor="1-0"))
    assert isinstance(done, Committed)
    epoch = await broker.trees.revoke(held.claim.session)
    stopped = await broker.claims.release(held.claim, park_at=done)
    assert isinstance(stopped, Released)
    assert stopped.parked
    assert await broker.claims.claim(POOL, "w2", "c2", SHARD) is None
    await submitted(broker, held.claim.session, "s2")
    again = await broker.claims.claim(POOL, "w2", "c2", SHARD)
    assert again is not None
    assert again.claim.epoch == epoch + 1


async def test_released_session_is_due_at_once(broker: Broker) -> None:
    held = await working(broker)
    assert isinstance(await broker.claims.release(held.claim), Released)
    assert await broker.claims.claim(POOL, "w2", "c2", SHARD) is not None


async def test_release_parks_only_what_is_read_to_the_end(broker: Broker) -> None:
    held = await working(broker)
    unread = await broker.claims.release(held.claim, park_at=held)
    assert isinstance(unread, Released)
    assert not unread.parked
    again = await claimed(broker, held.claim.session, "w2", "c2")
    done = await broker.commits.commit(step(again, again.claim, "k", cursor="1-0"))
    assert isinstance(done, Committed)
    read = await broker.claims.release(again.claim, park_at=done)
    assert isinstance(read, Released)
    assert read.parked
    assert await broker.claims.claim(POOL, "w3", "c3", SHARD) is None


@pytest.mark.parametrize("gone", ["seq", "head"])
async def test_release_parks_nobody_whose_log_ends_elsewhere(broker: Broker, gone: str) -> None:
    held = await working(broker)
    done = await broker.commits.commit(step(held, held.claim, "k", cursor="1-0"))
    assert isinstance(done, Committed)
    # Redis had answered this, and lost it when it was put back: the claim stands, as it was older.
    lost = replace(done, seq=done.seq + 1) if gone == "seq" else replace(done, head=bytes(32))
    released = await broker.claims.release(held.claim, park_at=lost)
    assert isinstance(released, Released)
    assert not released.parked
    assert await broker.claims.claim(POOL, "w2", "c2", SHARD) is not None


async def test_fifth_claim_without_progress_quarantines_the_session(hasty: Broker) -> None:
    session = await created(hasty)
    await submitted(hasty, session)
    for attempt in range(4):
        found = await hasty.claims.claim(POOL, "w", f"c{attempt}", SHARD)
        assert found is not None
        assert found.claims_without_progress == attempt + 1
    assert await hasty.claims.claim(POOL, "w", "c5", SHARD) is None
    head = await hasty.logs.head(session)
    assert head is not None
    assert head.quarantined
    assert [event.n for event in await hasty.logs.read_eq(session)] == [1]
    assert (await submitted(hasty, session, "s2")).quarantined
    assert await hasty.claims.claim(POOL, "w", "c6", SHARD) is None
    await hasty.trees.revoke(session)
    assert await hasty.claims.claim(POOL, "w", "c7", SHARD) is not None


async def test_progress_forgives_earlier_claims(hasty: Broker) -> None:
    session = await created(hasty)
    await submitted(hasty, session)
    for attempt in range(8):
        held = await hasty.claims.claim(POOL, "w", f"c{attempt}", SHARD)
        assert held is not None
        assert isinstance(await hasty.commits.commit(step(held, held.claim, f"k{attempt}")), Committed)


async def test_good_guess_saves_the_look_and_the_answer_names_the_next(backend: Backend) -> None:
    connection = RecordingConnection(backend.connect())
    broker = backend.broker(connection=connection)
    first, second = [await created(broker, submissions=WORK) for _ in range(2)]
    connection.calls.clear()
    found = await broker.claims.claim(POOL, "w1", "c1", SHARD, first)
    assert found is not None
    assert (found.claim.session, found.after) == (first, second)
    found = await broker.claims.claim(POOL, "w1", "c2", SHARD, second)
    assert found is not None
    assert (found.claim.session, found.after) == (second, None)
    assert await broker.claims.claim(POOL, "w1", "c3", SHARD, second) is None
    assert [call.script.name for call in connection.calls] == ["claim"] * 3
    await broker.aclose()


async def test_guess_that_is_not_next_gets_nobody_out_of_turn(broker: Broker) -> None:
    first, second = [await created(broker, submissions=WORK) for _ in range(2)]
    found = await broker.claims.claim(POOL, "w1", "c1", SHARD, second)
    assert found is not None
    assert found.claim.session == first


async def test_guess_does_not_come_before_an_expired_lease(hasty: Broker) -> None:
    lost, session = await working(hasty), await created(hasty, submissions=WORK)
    found = await hasty.claims.claim(POOL, "w2", "c2", SHARD, session)
    assert found is not None
    assert found.claim.session == lost.claim.session


async def test_guess_at_a_session_that_is_not_there_is_looked_past(broker: Broker) -> None:
    session = await created(broker, submissions=WORK)
    found = await broker.claims.claim(POOL, "w1", "c1", SHARD, session_id())
    assert found is not None
    assert found.claim.session == session


async def test_session_that_needs_a_newer_core_is_left_to_newer_workers(backend: Backend) -> None:
    new = backend.broker(BrokerConfig(core_version=2))
    old = backend.broker(BrokerConfig(core_version=1))
    held = await working(new)
    await new.commits.commit(step(held, held.claim, "k", min_core=2, release="yield"))
    assert await old.claims.claim(POOL, "w2", "c2", SHARD) is None
    assert await new.claims.claim(POOL, "w2", "c3", SHARD) is not None
    await new.aclose()
    await old.aclose()


async def test_newborn_sessions_of_a_newer_core_are_left_to_newer_workers(backend: Backend) -> None:
    new = backend.broker(BrokerConfig(core_version=2))
    old = backend.broker(BrokerConfig(core_version=1))
    root = await created(new, submissions=WORK)
    assert await old.claims.claim(POOL, "w2", "c2", SHARD) is None
    held = await claimed(new, root)
    child = new_session(tree=held.claim.tree, parent=root, agent_id=AgentId(1), submissions=WORK)
    await new.commits.commit(step(held, held.claim, "k", children=(child,), release="yield"))
    assert await old.claims.claim(POOL, "w2", "c3", SHARD) is None
    assert await old.claims.claim_session(child.session, "w2", "c4") is None
    found = await new.claims.claim_session(child.session, "w2", "c5")
    assert found is not None
    older = await created(old, submissions=WORK)
    assert (await claimed(new, older, "w3", "c6")).claim.session == older, "the newer reads what is older"
    await new.aclose()
    await old.aclose()


async def test_page_of_sessions_for_newer_workers_hides_nobody_behind_it(backend: Backend) -> None:
    new = backend.broker(BrokerConfig(core_version=2, lease_s=60.0))
    old = backend.broker(BrokerConfig(core_version=1, lease_s=60.0))
    for number in range(20):
        held = await claimed(new, await created(new, submissions=WORK), "w1", f"n{number}")
        await new.commits.commit(step(held, held.claim, f"k{number}", min_core=2, release="yield"))
    last = await created(old, submissions=WORK)
    found = await old.claims.claim(POOL, "w2", "c2", SHARD)
    assert found is not None
    assert found.claim.session == last
    await new.aclose()
    await old.aclose()


async def test_session_whose_hash_is_gone_is_offered_no_more(broker: Broker) -> None:
    session = await created(broker, submissions=WORK)
    await broker.command("DEL", broker.keys.session(session))
    assert await broker.claims.claim(POOL, "w1", "c1", SHARD) is None
    assert await broker.command("ZCARD", broker.keys.due(SHARD, POOL)) == 0


async def _family(broker: Broker, size: int) -> TreeId:
    root = await created(broker, submissions=WORK)
    held = await claimed(broker, root, "builder", f"b-{root}")
    children = tuple(
        NewSession(session_id(), TreeId(root), POOL, AgentId(n), root, submissions=WORK)
        for n in range(1, size)
    )
    request = step(held, held.claim, "k", children=children, release="yield")
    assert isinstance(await broker.commits.commit(request), Committed)
    return TreeId(root)


async def test_one_tree_of_two_hundred_does_not_starve_twenty_of_one(broker: Broker) -> None:
    large = await _family(broker, 200)
    small = {TreeId(await created(broker, submissions=WORK)) for _ in range(20)}
    order = []
    for turn in range(30):
        found = await broker.claims.claim(POOL, "w", f"c{turn}", SHARD)
        assert found is not None
        order.append(found.claim.tree)
    assert small <= set(order[: len(small) + 2])
    assert order.count(large) == 30 - len(small)


async def test_tree_that_always_has_work_takes_turns_with_one_that_comes_back(broker: Broker) -> None:
    large = await _family(broker, 20)
    small = await _family(broker, 1)
    order = []
    for turn in range(20):
        found = await broker.claims.claim(POOL, "w", f"c{turn}", SHARD)
        assert found is not None
        order.append(found.claim.tree)
        if found.claim.tree == small:
            await broker.commits.commit(step(found, found.claim, f"k{turn}", release="yield"))
    assert order.count(small) >= 8
    assert order.count(large) >= 8


async def test_expired_lease_is_taken_before_due_work(backend: Backend) -> None:
    hasty = backend.broker(BrokerConfig(lease_s=0.0))
    lost = await working(hasty)
    await _family(hasty, 5)
    found = await hasty.claims.claim(POOL, "w2", "c2", SHARD)
    assert found is not None
    assert found.claim.session == lost.claim.session
    await hasty.aclose()


async def test_upkeep_may_claim_a_parked_session_and_leaves_no_trace(broker: Broker) -> None:
    session = await created(broker)
    assert await broker.claims.claim_session(session, "upkeep", "u1") is None
    held = await broker.claims.claim_session(session, "upkeep", "u1", parked=True)
    assert held is not None
    assert held.claims_without_progress == 0
    await submitted(broker, session)
    released = await broker.claims.release(held.claim, park_at=held)
    assert isinstance(released, Released)
    assert not released.parked


async def test_session_at_rest_is_given_back_as_it_was_found(broker: Broker) -> None:
    parked, due = await created(broker), await created(broker)
    await submitted(broker, due)
    for session, was_parked in ((parked, True), (due, False)):
        head = await broker.logs.head(session)
        assert head is not None
        held = await broker.claims.claim_at_rest(head, "upkeep", f"u-{session}")
        assert held is not None
        assert await broker.claims.claim_at_rest(head, "another", f"a-{session}") is None
        given_back = await held.give_back()
        assert isinstance(given_back, Released)
        assert given_back.parked == was_parked


@pytest.mark.parametrize("found", ["parked", "yielded", "unread", "lost"])
async def test_looks_of_upkeep_are_no_attempts_at_a_session_s_work_however_it_is_found(
    broker: Broker, found: str
) -> None:
    held = await working(broker)
    session, lost = held.claim.session, found == "lost"
    if not lost:
        cursor, release = None if found == "unread" else "1-0", "park" if found == "parked" else "yield"
        releases = step(held, held.claim, "k", cursor=cursor, release=release)
        assert isinstance(await broker.commits.commit(releases), Committed)
    for number in range(9):
        if lost and not number:
            await lease_runs_out(broker, session)
        head = await broker.logs.head(session)
        assert head is not None
        looks = await broker.claims.claim_at_rest(head, "upkeep", f"u{number}")
        assert looks is not None, "it is not quarantined"
        again = await broker.claims.claim_session(session, "upkeep", f"u{number}", parked=True)
        assert again is not None
        assert again.claims_without_progress == looks.claimed.claims_without_progress == int(lost)
        assert looks.parked == (found == "parked")
        given_back = await looks.give_back()
        assert isinstance(given_back, Released)
        assert given_back.parked == (found == "parked")
    if found == "parked":
        await submitted(broker, session, "s2")
    worker = await claimed(broker, session, "w2", "c2")
    assert worker.claims_without_progress == 1 + int(lost)


async def test_session_at_rest_that_takes_long_is_renewed_each_third_of_its_lease() -> None:
    with redis_time(FakeClock()) as clock:
        client = StatedRedis()
        broker = Broker(Connection(client, client), BrokerConfig(lease_s=6.0), clock.monotonic)
        session = await created(broker)
        head = await broker.logs.head(session)
        assert head is not None
        held = await broker.claims.claim_at_rest(head, "upkeep", "u1")
        assert held is not None
        begun_ms, ends = clock.now_ms(), []
        for _ in range(9):
            await held.stay()
            served = (await broker.logs.serving([head]))[session]
            assert served.lease_ms is not None
            ends.append(served.lease_ms - begun_ms)
            clock.advance(1.0)
        assert ends == [6_000, 6_000, 8_000, 8_000, 10_000, 10_000, 12_000, 12_000, 14_000]
        clock.advance(6.0)
        assert await broker.claims.claim_session(session, "another", "c2", parked=True) is not None
        await held.stay()
        assert isinstance(await held.give_back(), Fenced)
        await broker.aclose()


async def test_session_that_became_due_since_its_worker_was_seen_is_given_back_due(broker: Broker) -> None:
    held = await working(broker)
    head = await broker.logs.head(held.claim.session)
    assert head is not None
    yields = step(held, held.claim, "k", cursor="1-0", release="yield")
    assert isinstance(await broker.commits.commit(yields), Committed)
    found = await broker.claims.claim_at_rest(head, "upkeep", "u1")
    assert found is not None
    given_back = await found.give_back()
    assert isinstance(given_back, Released)
    assert not given_back.parked


async def test_refused_commit_leaves_the_claim_standing(broker: Broker) -> None:
    held = await working(broker)
    assert isinstance(await broker.commits.commit(step(held, held.claim, "k", cursor="9-0")), Refused)
    assert isinstance(await broker.commits.commit(step(held, held.claim, "k", cursor="1-0")), Committed)


async def test_spectator_sees_who_is_served_and_since_when_one_is_not(broker: Broker) -> None:
    session = await created(broker)

    async def seen() -> Serving:
        head = await broker.logs.head(session)
        assert head is not None
        return (await broker.logs.serving([head]))[session]

    parked = await seen()
    assert (parked.held, parked.due, parked.lost_ms) == (False, False, None)
    await submitted(broker, session)
    assert (await seen()).due
    await claimed(broker, session)
    held = await seen()
    assert (held.held, held.due, held.lost_ms) == (True, False, None)
    await lease_runs_out(broker, session)
    lost = await seen()
    assert (lost.held, lost.due, lost.lost_ms) == (False, False, 0)


async def test_spectator_sees_the_sessions_of_all_shards_and_pools_at_once(broker: Broker) -> None:
    here = await created(broker, submissions=WORK)
    there = await created(broker, session_id(shard=1), submissions=WORK)
    elsewhere = await created(broker, pool="other", submissions=WORK)
    await claimed(broker, there)
    served = await broker.logs.serving(await broker.logs.sessions())
    assert {session: found.due for session, found in served.items()} == {
        here: True,
        there: False,
        elsewhere: True,
    }
    assert await broker.logs.serving([]) == {}
