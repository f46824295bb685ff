"""Committing: one step, visible whole or not at all, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.broker import commit_requests
from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import CommitTooLarge
from orchestrator.broker.records import (
    START,
    Claimed,
    CommitRequest,
    Committed,
    Fenced,
    RedactedEntry,
    Refused,
)
from orchestrator.core.chain import GENESIS, Link, first_broken, payload_digest
from orchestrator.core.commit_parts import (
    Approval,
    Debit,
    NewEvent,
    NewSession,
    NewSubmission,
    OutboundMessage,
    TreeEvent,
    TreePart,
)
from orchestrator.core.entries import Encoded, Entry
from orchestrator.core.ids import AgentId
from tests.broker.actors import (
    POOL,
    SHARD,
    claimed,
    created,
    entries_after,
    new_session,
    session_id,
    step,
    submitted,
    working,
)
from tests.broker.families import letter, root_of


async def committed(broker: Broker, request: CommitRequest) -> Committed:
    answer = await broker.commits.commit(request)
    assert isinstance(answer, Committed), answer
    return answer


async def parent_of(broker: Broker, held: Claimed, pool: str = POOL) -> NewSession:
    child = NewSession(session_id(), held.claim.tree, pool, AgentId(1), held.claim.session)
    await committed(broker, step(held, held.claim, "spawn", tree=TreePart(children=(child,))))
    return child


async def test_log_is_gapless_and_its_chain_verifies(broker: Broker) -> None:
    held = await working(broker)
    done = await committed(broker, step(held, held.claim, "k1", [b"a", b"b"]))
    done = await committed(broker, step(done, held.claim, "k2", [b"c"]))
    entries = await broker.logs.read_rollout(held.claim.session)
    assert [(e.seq, e.payload) for e in entries] == [(1, b"a"), (2, b"b"), (3, b"c")]
    links = [Link(e.seq, e.epoch, payload_digest(e.salt, e.payload), e.chain) for e in entries]
    assert first_broken(links, GENESIS) is None
    assert (done.seq, done.head) == (3, entries[-1].chain)


async def test_commit_consumes_the_entry_that_was_read(broker: Broker) -> None:
    held = await working(broker)
    [read] = held.first
    done = await committed(broker, step(held, held.claim, "k1", cursor=read.place, release="park"))
    assert done.released


@pytest.mark.parametrize("other", [{"submission": "s0"}, {"at_ms": 1}])
async def test_commit_consumes_no_entry_that_got_the_number_of_the_one_that_was_read(
    broker: Broker, other: dict[str, Any]
) -> None:
    held = await working(broker)
    # Redis went back to before the entry that was read, and gave its number to another one.
    lost = replace(held.first[0], **other)
    refused = await broker.commits.commit(step(held, held.claim, "k1", [b"a"], cursor=lost.place))
    assert isinstance(refused, Refused)
    assert refused.reason == "cursor"
    assert await broker.logs.read_rollout(held.claim.session) == ()
    assert await broker.logs.read_sq(held.claim.session, START, 10) == held.first


async def test_commit_sent_again_is_answered_as_the_first_time(broker: Broker) -> None:
    held = await working(broker)
    request = step(held, held.claim, "k1", cursor="1-0", release="park")
    first = await committed(broker, request)
    again = await committed(broker, request)
    assert (first.seq, first.head, first.eq_n, first.released) == (
        again.seq,
        again.head,
        again.eq_n,
        again.released,
    )
    assert first.released
    assert len(await broker.logs.read_rollout(held.claim.session)) == 1


async def test_commit_sent_again_after_another_holder_wrote_is_fenced(broker: Broker) -> None:
    held = await working(broker)
    request = step(held, held.claim, "k1", cursor="1-0", release="yield")
    await committed(broker, request)
    other = await claimed(broker, held.claim.session, "w2", "c2")
    await committed(broker, step(other, other.claim, "k2"))
    assert isinstance(await broker.commits.commit(request), Fenced)


async def test_cursor_consumes_the_queue(broker: Broker) -> None:
    held = await working(broker)
    session = held.claim.session
    await submitted(broker, session, "s2")
    await submitted(broker, session, "s3")
    done = await committed(broker, step(held, held.claim, "k1", cursor="2-0"))
    assert done.sq_tip == "3-0"
    assert [entry.id for entry in await broker.logs.read_sq(session)] == ["3-0"]
    await committed(broker, step(done, held.claim, "k2", cursor="3-0"))
    assert await broker.logs.read_sq(session) == ()
    assert (await submitted(broker, session, "s4")).sq_id == "4-0"


async def test_cursor_neither_goes_back_nor_past_the_tip(broker: Broker) -> None:
    held = await working(broker)
    assert await broker.commits.commit(step(held, held.claim, "k1", cursor="2-0")) == Refused("cursor", "1")
    done = await committed(broker, step(held, held.claim, "k1", cursor="1-0"))
    assert isinstance(await broker.commits.commit(step(done, held.claim, "k2", cursor="0-0")), Refused)


async def test_submission_between_cursor_and_release_keeps_the_claim(broker: Broker) -> None:
    held = await working(broker)
    await submitted(broker, held.claim.session, "s2")
    done = await committed(broker, step(held, held.claim, "k1", cursor="1-0", release="park"))
    assert (done.released, done.sq_tip) == (False, "2-0")
    done = await committed(broker, step(done, held.claim, "k2", (), cursor="2-0", release="park"))
    assert done.released
    assert await broker.claims.claim(POOL, "w2", "c2", SHARD) is None
    await submitted(broker, held.claim.session, "s3")
    assert await broker.claims.claim(POOL, "w2", "c2", SHARD) is not None


async def test_yield_releases_and_is_due_in_one(broker: Broker) -> None:
    held = await working(broker)
    assert (await committed(broker, step(held, held.claim, "k1", release="yield"))).released
    assert await broker.claims.claim(POOL, "w2", "c2", SHARD) is not None


async def test_mail_wakes_a_parked_session_and_is_counted_until_taken(broker: Broker) -> None:
    held = await working(broker)
    child = await parent_of(broker, held)
    done = await broker.logs.head(held.claim.session)
    assert done is not None
    letters = (
        OutboundMessage(child.session, "message", b"now", "m1", interrupt=True),
        OutboundMessage(child.session, "message", b"later", "m2"),
    )
    request = CommitRequest(
        held.claim, "k", done.seq, done.head, "spawn", tree=TreePart(letters, events=(TreeEvent((b"sent",)),))
    )
    await committed(broker, request)
    head = await broker.logs.head(child.session)
    assert head is not None
    assert (head.pending_messages, head.pending_interrupts) == (1, 1)
    found = await claimed(broker, child.session, "w2", "c2")
    assert [(e.kind, e.payload, e.interrupt, e.sender) for e in found.first] == [
        ("mail", b"now", True, held.claim.session),
        ("mail", b"later", False, held.claim.session),
    ]
    await committed(broker, step(found, found.claim, "k2", cursor="2-0", taken=(0, 1)))
    head = await broker.logs.head(child.session)
    assert head is not None
    assert (head.pending_messages, head.pending_interrupts) == (1, 0)
    tree = await broker.logs.read_tree(held.claim.tree)
    assert [(d.session, d.regular, d.interrupts) for d in tree[0].depths][-1] == (child.session, 1, 1)
    assert tree[0].seq == done.seq


async def test_mail_to_oneself_keeps_a_release_from_parking(broker: Broker) -> None:
    held = await working(broker)
    letter = OutboundMessage(held.claim.session, "message", b"note", "m")
    done = await committed(
        broker, step(held, held.claim, "k", cursor="1-0", outbox=(letter,), release="park")
    )
    assert (done.released, done.sq_tip) == (False, "2-0")
    assert [e.payload for e in await broker.logs.read_sq(held.claim.session, "1-0")] == [b"note"]


async def test_mail_to_a_held_session_pokes_its_holder(broker: Broker) -> None:
    held = await working(broker)
    child = await parent_of(broker, held)
    await submitted(broker, child.session)
    await claimed(broker, child.session, "w2", "c2")
    cursors = (await broker.claims.wait_for_notices(POOL, "w2", {}, 0.01)).cursors
    head = await broker.logs.head(held.claim.session)
    assert head is not None
    letter = OutboundMessage(child.session, "message", b"m", "m")
    await committed(
        broker, CommitRequest(held.claim, "k", head.seq, head.head, "spawn", tree=TreePart((letter,)))
    )
    assert (await broker.claims.wait_for_notices(POOL, "w2", cursors, 5.0)).notified == (child.session,)


async def test_commit_without_entries_that_arrives_again_behind_another_changes_nothing(
    broker: Broker,
) -> None:
    held = await working(broker)
    born = await committed(broker, step(held, held.claim, "k1", cursor=held.sq_tip))
    child = NewSession(session_id(), held.claim.tree, POOL, AgentId(1), held.claim.session)
    base = await committed(broker, step(born, held.claim, "k2", children=(child,)))
    letter = OutboundMessage(child.session, "message", b"m", "m")
    first = step(base, held.claim, "letter", [], cursor=held.sq_tip, outbox=(letter,))
    sent = await committed(broker, first)
    assert (await committed(broker, first)).seq == sent.seq
    warning = TreeEvent((b"warning",))
    behind = step(sent, held.claim, "warning", [], cursor=held.sq_tip, tree_events=(warning,))
    told = await committed(broker, behind)
    assert (told.seq, told.head) == (base.seq, base.head), "the log has not moved"
    assert await broker.commits.commit(first) == Fenced(held.claim.epoch, "commit")
    assert [entry.payload for entry in await broker.logs.read_sq(child.session)] == [b"m"]
    assert (await committed(broker, behind)).tree_seq == told.tree_seq


async def test_claim_names_the_last_commit_that_its_holder_builds_on(broker: Broker) -> None:
    held = await working(broker)
    assert held.last_commit == ""
    await committed(broker, step(held, held.claim, "k1", release="yield"))
    again = await claimed(broker, held.claim.session, "w2", "c2")
    assert again.last_commit == "k1"
    forgetful = step(again, again.claim, "k2", expect_commit="")
    assert await broker.commits.commit(forgetful) == Fenced(again.claim.epoch, "commit")
    await committed(broker, step(again, again.claim, "k2"))


async def test_mail_to_nobody_is_refused_and_nothing_is_written(broker: Broker) -> None:
    held = await working(broker)
    stranger = await created(broker)
    for target in (session_id(), stranger):
        answer = await broker.commits.commit(
            step(held, held.claim, "k", outbox=(OutboundMessage(target, "message", b"m", "m"),))
        )
        assert answer == Refused("unknown_target", target)
    assert await broker.logs.read_rollout(held.claim.session) == ()


async def test_child_is_born_whole_in_another_pool_and_due_there(broker: Broker) -> None:
    held = await working(broker)
    child = NewSession(
        session_id(),
        held.claim.tree,
        "host:elsewhere",
        AgentId(1),
        held.claim.session,
        entries=entries_after(GENESIS, 0, 0, [b"born"]),
        submissions=(NewSubmission("parent", "s1", b"prompt"),),
        status="queued",
    )
    await committed(broker, step(held, held.claim, "k", children=(child,)))
    assert await broker.claims.claim(POOL, "w2", "c2", SHARD) is None
    found = await broker.claims.claim("host:elsewhere", "w2", "c2", SHARD)
    assert found is not None
    assert (found.agent_id, found.seq, found.head) == (1, 1, child.entries[0].chain)
    head = await broker.logs.head(child.session)
    assert head is not None
    assert (head.parent, head.status, head.pool) == (held.claim.session, "queued", "host:elsewhere")


async def test_child_whose_log_nobody_has_sealed_never_reaches_redis(broker: Broker) -> None:
    held = await working(broker)
    log = (Encoded(Entry("event_msg", {}), b"{}"),)
    child = new_session(tree=held.claim.tree, agent_id=AgentId(1), unsealed=log)
    with pytest.raises(ValueError, match="not sealed"):
        await broker.commits.commit(step(held, held.claim, "k", children=(child,)))
    assert await broker.logs.head(child.session) is None


async def test_child_under_an_existing_id_is_refused(broker: Broker) -> None:
    held = await working(broker)
    child = await parent_of(broker, held)
    head = await broker.logs.head(held.claim.session)
    assert head is not None
    answer = await broker.commits.commit(
        CommitRequest(held.claim, "k", head.seq, head.head, "spawn", tree=TreePart(children=(child,)))
    )
    assert answer == Refused("session_exists", child.session)


async def test_guards_are_checked_before_anything_is_written(broker: Broker) -> None:
    held = await working(broker)
    done = await committed(broker, step(held, held.claim, "k1", summary={"limit:slots": b"2"}))
    two = (Debit("slots", 2, "limit:slots"),)
    done = await committed(broker, step(done, held.claim, "k2", debits=two))
    answer = await broker.commits.commit(
        step(done, held.claim, "k3", debits=(Debit("slots", 1, "limit:slots"),))
    )
    assert answer == Refused("slots", "2")
    back = (Debit("slots", -1, "limit:slots"), Debit("slots", 1, "limit:slots"), Debit("spawned", 1))
    done = await committed(broker, step(done, held.claim, "k4", debits=back))
    agents = await broker.trees.agents(held.claim.tree)
    assert (agents["slots"], agents["spawned"]) == (b"2", b"1")
    assert done.seq == 3


async def test_marked_agent_may_not_go_on(broker: Broker) -> None:
    held = await working(broker)
    done = await committed(broker, step(held, held.claim, "k1", summary={"cancel:1": b"1"}))
    answer = await broker.commits.commit(
        step(done, held.claim, "k2", unless_flagged=("cancel:0", "cancel:1"))
    )
    assert answer == Refused("marked", "cancel:1")


async def test_approvals_are_listed_until_closed(broker: Broker) -> None:
    held = await working(broker)
    session = held.claim.session
    both = (Approval("call:1", b"first"), Approval("call:2", b"second"))
    done = await committed(broker, step(held, held.claim, "k1", approvals_open=both))
    assert [(a.key, a.payload, a.session) for a in await broker.requests.approvals()] == [
        ("call:1", b"first", session),
        ("call:2", b"second", session),
    ]
    await committed(broker, step(done, held.claim, "k2", approvals_close=("call:1",)))
    assert [a.key for a in await broker.requests.approvals(session)] == ["call:2"]


async def test_status_meta_and_tree_log_are_part_of_the_step(broker: Broker) -> None:
    held = await working(broker)
    await committed(
        broker,
        step(
            held,
            held.claim,
            "k1",
            status="running",
            meta=b"m",
            tree_events=(TreeEvent((b"t1",)), TreeEvent((b"t2",))),
        ),
    )
    head = await broker.logs.head(held.claim.session)
    assert head is not None
    assert (head.status, head.meta) == ("running", b"m")
    tree = await broker.logs.read_tree(held.claim.tree)
    assert [(e.tree_seq, e.payload, e.seq, e.head) for e in tree] == [
        (1, b"t1", 1, head.head),
        (2, b"t2", 1, head.head),
    ]


async def test_commit_past_its_bounds_is_not_sent(broker: Broker) -> None:
    held = await working(broker)
    with pytest.raises(CommitTooLarge, match="256 entries"):
        await broker.commits.commit(step(held, held.claim, "k", [b""] * 257))
    with pytest.raises(CommitTooLarge, match="blobs"):
        await broker.commits.commit(step(held, held.claim, "k", [b"x" * (1 << 20)]))
    await committed(broker, step(held, held.claim, "k", [b"x" * 4000] * 256))


def _born(held: Claimed, agent_id: int, **parts: Any) -> NewSession:
    return new_session(tree=held.claim.tree, agent_id=AgentId(agent_id), parent=held.claim.session, **parts)


def _submits(payload: bytes) -> tuple[NewSubmission, ...]:
    return (NewSubmission("c", "s", payload),)


PARTS: dict[str, Callable[[Claimed, bytes, bytes], dict[str, Any]]] = {
    "entries": lambda held, one, two: {"payloads": (one, two)},
    "events": lambda held, one, two: {"events": tuple(NewEvent(each, 0, "0" * 8) for each in (one, two))},
    "mail": lambda held, one, two: {
        "outbox": tuple(
            OutboundMessage(held.claim.session, "message", each, each[:1].hex()) for each in (one, two)
        )
    },
    "events of the tree": lambda held, one, two: {"tree_events": (TreeEvent((one,)), TreeEvent((two,)))},
    "parts of an event": lambda held, one, two: {
        "tree_events": (TreeEvent((one, two), (), held.claim.session),)
    },
    "what events are about": lambda held, one, two: {
        "tree_events": (TreeEvent((b"",), about=one), TreeEvent((b"",), about=two))
    },
    "requests": lambda held, one, two: {"approvals_open": (Approval("a", one), Approval("b", two))},
    "summaries": lambda held, one, two: {"summary": {"a:1": one, "a:2": two}},
    "meta": lambda held, one, two: {"meta": one + two},
    "entries of children": lambda held, one, two: {
        "children": tuple(
            _born(held, number, entries=entries_after(GENESIS, 0, 0, [each]))
            for number, each in ((1, one), (2, two))
        )
    },
    "events of children": lambda held, one, two: {
        "children": tuple(
            _born(held, number, events=(NewEvent(each, 0, "0" * 8),)) for number, each in ((1, one), (2, two))
        )
    },
    "submissions of children": lambda held, one, two: {
        "children": tuple(
            _born(held, number, submissions=_submits(each)) for number, each in ((1, one), (2, two))
        )
    },
    "metas of children": lambda held, one, two: {
        "children": tuple(_born(held, number, meta=each) for number, each in ((1, one), (2, two)))
    },
}


@pytest.mark.parametrize("part", PARTS)
async def test_each_part_of_a_commit_counts_to_the_bytes_that_it_may_carry(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(commit_requests, "MAX_COMMIT_BYTES", 1_000)
    held = await working(broker)
    before = await broker.logs.head(held.claim.session)
    for one, two in ((501, 500), (1, 1_000)):
        given = {"payloads": (), "events": ()} | PARTS[part](held, b"x" * one, b"y" * two)
        with pytest.raises(CommitTooLarge, match="1000 bytes, this one has 1001"):
            await broker.commits.commit(step(held, held.claim, "k", **given))
    assert await broker.logs.head(held.claim.session) == before
    given = {"payloads": (), "events": ()} | PARTS[part](held, b"x" * 500, b"y" * 500)
    await committed(broker, step(held, held.claim, "k", **given))


async def test_redacted_entries_count_to_the_bytes_that_a_commit_may_carry(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_requests, "MAX_COMMIT_BYTES", 1_000)
    held = await working(broker)
    gone = tuple(RedactedEntry(seq, 0, bytes(32), bytes(32), b"x" * 500) for seq in (1, 2))
    with pytest.raises(CommitTooLarge, match="blobs"):
        await broker.commits.commit(step(held, held.claim, "k", (), redacted=gone))


async def test_step_that_redacts_drops_no_secrets(broker: Broker) -> None:
    held = await working(broker)
    done = await committed(broker, step(held, held.claim, "k1"))
    gone = (RedactedEntry(1, 0, bytes(32), bytes(32), b"instead"),)
    with pytest.raises(ValueError, match="drops no secrets"):
        await broker.commits.commit(step(done, held.claim, "k2", (), redacted=gone, secrets_dropped=("n",)))
    await committed(broker, step(done, held.claim, "k2", (), redacted=gone))
    assert [entry.payload for entry in await broker.logs.read_rollout(held.claim.session)] != [b"entry"]
    assert await broker.logs.redacted_numbers(held.claim.session) == {1}


async def test_entries_of_all_children_count_to_those_that_a_commit_may_carry(broker: Broker) -> None:
    held = await working(broker)
    logs = [entries_after(GENESIS, 0, 0, [b"x"] * count) for count in (28, 29)]
    children = tuple(_born(held, number, entries=log) for number, log in enumerate(logs, 1))
    with pytest.raises(CommitTooLarge, match="256 entries, this one has 257"):
        await broker.commits.commit(step(held, held.claim, "k", [b"x"] * 200, children=children))
    await committed(broker, step(held, held.claim, "k", [b"x"] * 199, children=children))


async def test_step_that_writes_to_many_wakes_each_that_is_parked_and_pokes_each_holder(
    broker: Broker,
) -> None:
    root = await root_of(broker)
    parked = [await root.spawns(1), await root.spawns(2, pool="gpu")]
    held = [await root.spawns(3, pool="gpu"), await root.spawns(4)]
    for agent in parked:
        await agent.parks()
    for agent, worker in zip(held, ("w3", "w4"), strict=True):
        await agent.does(cursor=agent.cursor)
        await broker.claims.release(agent.held.claim)
        await claimed(broker, agent.session, worker, f"of {worker}")
    cursors = {
        worker: (await broker.claims.wait_for_notices(POOL, worker, {}, 0.01)).cursors
        for worker in ("w3", "w4")
    }
    letters = [letter(agent.session, f"m{n}") for n, agent in enumerate((*held, *parked))]
    await root.does(outbox=(*letters, letter(held[0].session, "again")))
    for agent, worker in zip(held, ("w3", "w4"), strict=True):
        told = await broker.claims.wait_for_notices(POOL, worker, cursors[worker], 5.0)
        while not told.notified:
            told = await broker.claims.wait_for_notices(POOL, worker, told.cursors, 5.0)
        assert told.notified == (agent.session,)
    for agent, pool in zip(parked, (POOL, "gpu"), strict=True):
        found = await broker.claims.claim(pool, "w9", f"of {pool}", SHARD)
        assert found is not None
        assert found.claim.session == agent.session
        assert [entry.kind for entry in found.first] == ["mail"]


async def test_agent_ids_are_handed_out_once(broker: Broker) -> None:
    held = await working(broker)
    assert list(await broker.trees.reserve(held.claim.tree, 2)) == [1, 2]
    assert list(await broker.trees.reserve(held.claim.tree, 1)) == [3]
