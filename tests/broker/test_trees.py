"""A tree as a whole: what its registry says, how its log is watched, how its claims are taken."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.broker.errors import Corrupt, UnknownSession
from orchestrator.broker.records import BrokerConfig, ClaimState, Committed, Fenced, Released, Renewed, Spend
from orchestrator.core.commit_parts import Debit, NewSession, TreeEvent
from orchestrator.core.ids import AgentId, SessionId, TreeId
from tests.broker.actors import POOL, SHARD, claimed, session_id
from tests.broker.families import OP, Agent, depths_event, letter, root_of
from tests.stated import StatedRedis

# ── the registry ──────────────────────────────────────────────────────────────────────────────


async def test_registry_knows_every_agent_since_its_birth(broker: Broker) -> None:
    root = await root_of(broker, limit_slots=b"8")
    child = await root.spawns(3)
    await root.does(
        summary={"a:3": b"{}", "cancel:3": b"1"},
        outbox=(letter(child.session, "m"), letter(child.session, "i", interrupt=True)),
        debits=(Debit("spawned", 1),),
    )
    registry = await broker.trees.registry(root.tree)
    assert {id: agent.session for id, agent in registry.agents.items()} == {
        0: root.session,
        3: child.session,
    }
    assert registry.agents[AgentId(3)].used == Spend()
    fields = await broker.trees.agents(root.tree)
    assert [fields[name] for name in ("a:3", "cancel:3", "m:3", "i:3")] == [b"{}", b"1", b"1", b"1"]
    assert (registry.counters, registry.limits) == ({"slots": 1, "spawned": 1}, {"slots": 8})
    assert (registry.tree_seq, registry.waiting, registry.reserved) == (0, {}, {})


async def test_tree_that_does_not_exist_has_no_registry(broker: Broker) -> None:
    with pytest.raises(UnknownSession):
        await broker.trees.registry(TreeId(session_id()))


async def test_members_of_a_tree_are_its_own_sessions_and_heads_at_once_those_that_were_pruned_too(
    broker: Broker,
) -> None:
    root, other = await root_of(broker), await root_of(broker)
    children = [await root.spawns(number) for number in (1, 2, 3)]
    await other.spawns(1)
    await children[1].parks()
    await children[2].parks()
    await broker.trees.delete_session(children[2].session)
    living = [root.session, *(child.session for child in children[:2])]
    members = [head.session for head in await broker.trees.members(root.tree)]
    assert (set(members), members[-1], len(members)) == (set(living), root.session, 3)
    await broker.command("HDEL", broker.keys.agents(root.tree), "s:2")
    assert {head.session for head in await broker.trees.members(root.tree)} == {living[0], living[1]}
    await root.does(tree_events=(TreeEvent((b"told",)),))
    tree_seq, heads = await broker.trees.heads_at_once(root.tree)
    assert (tree_seq, {head.session: head.seq for head in heads}) == (
        1,
        {agent.session: agent.at.seq for agent in (root, *children[:2])},
    )
    ends = (await broker.trees.ends_at_once(root.tree, [living[2], children[2].session]))[1]
    assert ends == {
        **{agent.session: (agent.at.seq, agent.at.head) for agent in (root, *children[:2])},
        children[2].session: None,
    }
    with pytest.raises(UnknownSession):
        await broker.trees.heads_at_once(TreeId(session_id()))


@pytest.mark.parametrize("pruned", [False, True])
async def test_heads_at_once_are_kept_back_by_a_damaged_session_of_the_tree_itself_and_by_no_other(
    broker: Broker, pruned: bool
) -> None:
    root, other = await root_of(broker), await root_of(broker)
    child, stranger = await root.spawns(1), await other.spawns(1)
    await broker.command("HSET", broker.keys.session(stranger.session), "seq", "many")
    _, third = await other.spawns(2), await other.spawns(3)
    await broker.command("SET", broker.keys.session(third.session), "no hash")
    _, heads = await broker.trees.heads_at_once(root.tree)
    assert {head.session for head in heads} == {root.session, child.session}
    if pruned:
        await broker.command("HDEL", broker.keys.agents(root.tree), "s:1")
    await broker.command("HSET", broker.keys.session(child.session), "seq", "many")
    with pytest.raises(Corrupt, match=child.session):
        await broker.trees.heads_at_once(root.tree)


# ── watching ───────────────────────────────────────────────────────────────────────────────────


async def test_watcher_of_a_tree_gets_what_was_and_then_what_comes(broker: Broker) -> None:
    root = await root_of(broker)
    await root.does(tree_events=(TreeEvent((b"begun",)),))
    [begun] = await broker.logs.wait_tree(root.tree, 0, timeout_s=5)
    assert (begun.tree_seq, begun.payload) == (1, b"begun")
    coming = asyncio.ensure_future(broker.logs.wait_tree(root.tree, begun.tree_seq, timeout_s=5))
    await root.does(tree_events=(TreeEvent((b"next",)),))
    [entry] = await coming
    assert (entry.tree_seq, entry.payload) == (2, b"next")


async def test_watcher_of_a_tree_in_which_nothing_happens_looks_up_in_time(broker: Broker) -> None:
    root = await root_of(broker)
    assert await broker.logs.wait_tree(root.tree, 0, timeout_s=0.05) == ()


# ── taking claims ─────────────────────────────────────────────────────────────────────────────


async def test_all_claims_of_a_tree_are_taken_at_once(broker: Broker) -> None:
    root = await root_of(broker)
    held, elsewhere = await root.spawns(1), await root.spawns(2, pool="host:elsewhere")
    parked = await root.spawns(3)
    await parked.parks()
    sessions = [held.session, elsewhere.session, parked.session]
    found = await broker.trees.revoke_tree(root.tree, sessions)
    assert [(s.state, s.worker) for s in found] == [("revoked", "w1"), ("revoked", "w1"), ("free", None)]
    answers = await broker.claims.renew([held.held.claim, elsewhere.held.claim, root.held.claim])
    assert [type(answer) for answer in answers] == [Fenced, Fenced, Renewed]
    assert isinstance(await broker.commits.commit(held.request()), Fenced)
    assert await broker.claims.claim("host:elsewhere", "w2", "c3", SHARD) is None
    for stopped in (held, elsewhere):
        assert isinstance(await broker.claims.release(stopped.held.claim), Released)
    assert await broker.claims.claim(POOL, "w2", "c2", SHARD) is not None
    assert await broker.claims.claim("host:elsewhere", "w2", "c3", SHARD) is not None
    assert await broker.claims.claim(POOL, "w2", "c4", SHARD) is None


async def test_living_holder_keeps_its_claim_from_who_asks_for_the_silent(broker: Broker) -> None:
    root = await root_of(broker)
    child = await root.spawns(1)
    assert await broker.trees.revoke_tree(root.tree, [child.session], silent_s=0.0) == (
        ClaimState(child.session, "held", child.held.claim.epoch, "w1"),
    )
    await child.does()


async def test_silent_holder_loses_its_claim_when_it_was_silent_long_enough(hasty: Broker) -> None:
    root = await root_of(hasty)
    child = await root.spawns(1)
    too_early = await hasty.trees.revoke_tree(root.tree, [child.session], silent_s=3_600.0)
    assert [s.state for s in too_early] == ["held"]
    found = await hasty.trees.revoke_tree(root.tree, [child.session], silent_s=0.0)
    assert [(s.state, s.epoch) for s in found] == [("revoked", child.held.claim.epoch + 1)]
    again = await hasty.trees.revoke_tree(root.tree, [child.session], silent_s=0.0)
    assert [(s.state, s.epoch) for s in again] == [("free", child.held.claim.epoch + 1)]


async def test_session_that_is_gone_does_not_keep_the_others(broker: Broker) -> None:
    root = await root_of(broker)
    child, deleted, missing = await root.spawns(1), await root.spawns(2), session_id()
    await deleted.parks()
    await broker.trees.delete_session(deleted.session)
    found = await broker.trees.revoke_tree(root.tree, [deleted.session, child.session, missing])
    assert [s.state for s in found] == ["gone", "revoked", "gone"]


async def test_session_deleted_behind_this_process_is_gone(broker: Broker, hasty: Broker) -> None:
    root = await root_of(broker)
    child = await root.spawns(1)
    await child.parks()
    await hasty.trees.delete_session(child.session)
    assert [s.state for s in await broker.trees.revoke_tree(root.tree, [child.session])] == ["gone"]
    with pytest.raises(UnknownSession):
        await broker.trees.revoke(child.session)


async def test_claims_of_another_tree_are_not_taken(broker: Broker) -> None:
    root, other = await root_of(broker), await root_of(broker)
    with pytest.raises(ValueError, match="is of the tree"):
        await broker.trees.revoke_tree(root.tree, [other.session])
    await other.does()


async def test_wide_tree_loses_its_claims_in_several_calls(broker: Broker) -> None:
    root = await root_of(broker)
    sessions: list[SessionId] = []
    for first in range(1, 301, 100):
        children = tuple(
            NewSession(session_id(), root.tree, POOL, AgentId(n), root.session)
            for n in range(first, first + 100)
        )
        await root.does(children=children)
        sessions += [child.session for child in children]
    found = await broker.trees.revoke_tree(root.tree, sessions)
    assert [s.session for s in found] == sessions
    assert {(s.state, s.epoch) for s in found} == {("free", 1)}


async def test_marked_agent_is_stopped_and_its_claim_presumed_over(hasty: Broker) -> None:
    root = await root_of(hasty)
    child = await root.spawns(1)
    await root.does(summary={"cancel:1": b"1"}, outbox=(letter(child.session, "cancel", counted=False),))
    assert (await child.refused(unless_flagged=("cancel:1",))).reason == "marked"
    await hasty.trees.revoke_tree(root.tree, [child.session], silent_s=0.0)
    assert isinstance(await hasty.commits.commit(child.request()), Fenced)
    taken = await claimed(hasty, child.session, "w2", "c2")
    assert [entry.submission for entry in taken.first] == ["s0", "cancel"]


# ── random trees ──────────────────────────────────────────────────────────────────────────────

WHO = st.integers(0, 2)
SEND = st.tuples(st.just("send"), WHO, WHO, st.booleans(), st.booleans())
TAKE = st.tuples(st.just("take"), WHO, st.integers(1, 4), st.just(False), st.booleans())
Deed = tuple[str, int, int, bool, bool]


class Post:
    """The inboxes as they must be, and what the root must have been told of them."""

    def __init__(self, agents: list[Agent]) -> None:
        self.agents = agents
        self.queued: list[list[tuple[str, bool]]] = [[] for _ in agents]
        self.told: list[bytes] = []

    def depths(self, who: int) -> tuple[int, int]:
        urgent = sum(interrupt for _, interrupt in self.queued[who])
        return len(self.queued[who]) - urgent, urgent

    async def sends(self, who: int, to: int, interrupt: bool, twice: bool) -> None:
        key = f"k{len(self.told)}"
        self.queued[to].append((key, interrupt))
        mail = (letter(self.agents[to].session, key, interrupt=interrupt),)
        await self._commits(who, to, twice, outbox=mail)

    async def takes(self, who: int, count: int, twice: bool) -> None:
        agent, before = self.agents[who], self.depths(who)
        entries = (await agent.broker.logs.read_sq(agent.session))[:count]
        del self.queued[who][: len(entries)]
        after = self.depths(who)
        taken = (before[0] - after[0], before[1] - after[1])
        await self._commits(who, who, twice, taken=taken, cursor=entries[-1].id if entries else None)

    async def _commits(self, who: int, about: int, twice: bool, **step: Any) -> None:
        """Commits a step, and sends it twice if the first answer was lost."""
        self.told.append(b"inbox %d+%d" % self.depths(about))
        agent, root = self.agents[who], self.agents[0]
        event = depths_event(root.session, inbox=self.agents[about].session)
        request = agent.request(tree_events=(event,), **step)
        answer = await agent.broker.commits.commit(request)
        if twice:
            answer = await agent.broker.commits.commit(request)
        assert isinstance(answer, Committed)
        agent.at = answer

    async def is_true(self, broker: Broker) -> None:
        root = self.agents[0]
        fields = await broker.trees.agents(root.tree)
        for who, agent in enumerate(self.agents):
            found_depths = tuple(int(fields.get(f"{kind}:{who}", 0)) for kind in ("m", "i"))
            assert found_depths == self.depths(who)
            found = await broker.logs.read_sq(agent.session)
            assert [(e.submission, e.interrupt) for e in found] == self.queued[who]
        assert [e.payload for e in await broker.logs.read_eq(root.session) if e.tree_seq] == self.told


@settings(max_examples=25, deadline=None)
@given(st.lists(st.one_of(SEND, TAKE), max_size=30))
def test_letters_arrive_once_in_order_and_are_counted_whatever_is_sent_again(deeds: list[Deed]) -> None:
    asyncio.run(_letters(deeds))


async def _letters(deeds: list[Deed]) -> None:
    client = StatedRedis()
    broker = Broker(Connection(client, client), BrokerConfig(), lambda: 0.0)
    root = await root_of(broker)
    agents = [root, await root.spawns(1), await root.spawns(2)]
    for agent in agents:
        await agent.does(cursor="1-0")
    post = Post(agents)
    for deed, who, other, interrupt, twice in deeds:
        if deed == "take":
            await post.takes(who, other, twice)
        else:
            await post.sends(who, other, interrupt, twice)
    await post.is_true(broker)
    await broker.aclose()


async def test_a_number_whose_reservation_was_forgotten_is_one_agents_alone(broker: Broker) -> None:
    root = await root_of(broker)
    assert list(await broker.trees.reserve(root.tree, 3)) == [1, 2, 3]
    await broker.command("HSET", broker.keys.agents(root.tree), "last_agent", "0")
    assert list(await broker.trees.reserve(root.tree, 1)) == [
        1,
    ]
    await root.spawns(3)
    assert list(await broker.trees.reserve(root.tree, 1)) == [
        4,
    ], "what was born holds its number"
    twin = NewSession(
        session_id(), root.tree, POOL, AgentId(3), root.session, submissions=OP, status="queued"
    )
    refused = await root.refused(children=(twin,))
    assert (refused.reason, refused.detail) == ("agent_taken", "3")
    await root.spawns(1)
    assert list(await broker.trees.reserve(root.tree, 1)) == [
        5,
    ], "and a smaller one takes nothing back"


async def test_two_agents_of_one_step_have_two_numbers(broker: Broker) -> None:
    """A worker may hold a number that Redis has forgotten, and be given it again."""
    root = await root_of(broker)
    twins = [
        NewSession(session_id(), root.tree, POOL, AgentId(id), root.session, submissions=OP, status="queued")
        for id in (1, 2, 2)
    ]
    refused = await root.refused(children=twins)
    assert (refused.reason, refused.detail) == ("agent_taken", "2")
    assert list((await broker.trees.registry(root.tree)).agents) == [0]
