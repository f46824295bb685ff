"""Budgets of a tree: what is held counts, what is spent stops, and whoever waits is woken in time."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.broker.records import (
    SPEND_DAYS,
    UNPRICED,
    Account,
    BrokerConfig,
    BudgetWait,
    Committed,
    Labels,
    LimitChange,
    NewTree,
    Refused,
    Registry,
    Reservation,
    Settlement,
    Spend,
    day_of,
)
from orchestrator.broker.trees import exhausted, warned
from orchestrator.core.commit_parts import Timer, TreeEvent
from tests.broker.actors import SHARD, new_session, session_id
from tests.broker.doubles import FakeClock, redis_time
from tests.broker.families import OP, Agent, claims, root_of
from tests.stated import StatedRedis

FAR_MS = 1 << 45


def tokens(count: int) -> Spend:
    return Spend(count, 0, 1)


def wants(request: str, count: int) -> Reservation:
    return Reservation(request, tokens(count))


def used(request: str, count: int) -> Settlement:
    return Settlement(request, tokens(count))


async def waits(agent: Agent, count: int) -> Committed:
    """Parks until that many tokens may be free."""
    return await agent.parks(
        budget_wait=BudgetWait(tokens(count), "budget"), timers_set=(Timer("budget", 1, FAR_MS),)
    )


async def account(broker: Broker, agent: Agent) -> Account:
    return (await broker.trees.registry(agent.tree)).budget["tokens"]


# ── admission ─────────────────────────────────────────────────────────────────────────────────


async def test_request_is_held_and_then_counted_as_it_was(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    held = await root.does(reservation=wants("1", 40))
    assert held.budget[0] == Account("tokens", 0, 40, 100)
    assert (await broker.trees.registry(root.tree)).reserved == {f"{root.session}:1": tokens(40)}
    spent = await root.does(settlements=(used("1", 25),))
    assert spent.budget[0] == Account("tokens", 25, 0, 100)
    registry = await broker.trees.registry(root.tree)
    assert registry.reserved == {}
    assert registry.agents[root.held.agent_id].used == tokens(25)


async def test_what_others_hold_is_in_the_way_but_not_spent(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    child = await root.spawns(1)
    await root.does(reservation=wants("1", 60))
    refused = await child.refused(reservation=wants("1", 50))
    assert (refused.reason, refused.detail) == ("budget_reserved", "tokens")
    assert refused.budget[0] == Account("tokens", 0, 60, 100)
    await child.does(reservation=wants("1", 40))


async def test_spent_budget_refuses_requests_and_spawns(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    await root.does(reservation=wants("1", 100))
    await root.does(settlements=(used("1", 100),))
    for step in ({"reservation": wants("2", 1)}, {"within_budget": True}):
        refused = await root.refused(**step)
        assert (refused.reason, refused.detail) == ("budget_spent", "tokens")
    await root.does()


async def test_spawn_is_not_stopped_by_what_is_only_held(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    await root.does(reservation=wants("1", 500))
    await root.does(within_budget=True)


async def test_last_request_may_overshoot_when_nothing_is_in_flight(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    await root.does(reservation=wants("1", 99))
    await root.does(settlements=(used("1", 99),))
    done = await root.does(reservation=wants("2", 500))
    assert done.budget[0] == Account("tokens", 99, 500, 100)


@pytest.mark.parametrize(("kind", "amount"), [("cost", Spend(0, 1_000, 0)), ("requests", Spend(0, 0, 1))])
async def test_every_kind_has_its_own_limit(broker: Broker, kind: str, amount: Spend) -> None:
    limit = str(max(amount.cost, amount.requests)).encode()
    root = await root_of(broker, **{f"limit_{kind}": limit})
    await root.does(reservation=Reservation("1", amount))
    assert (await root.refused(reservation=Reservation("2", amount))).reason == "budget_reserved"
    await root.does(settlements=(Settlement("1", amount),))
    refused = await root.refused(reservation=Reservation("2", amount))
    assert (refused.reason, refused.detail) == ("budget_spent", kind)


async def test_request_without_a_price_is_refused_where_cost_is_limited_and_holds_none_elsewhere(
    broker: Broker,
) -> None:
    root, free = await root_of(broker, limit_cost=b"100"), await root_of(broker, limit_tokens=b"100")
    refused = await root.refused(reservation=Reservation("1", Spend(10, UNPRICED, 1)))
    assert (refused.reason, refused.detail) == ("budget_unpriced", "cost")
    await root.does(reservation=Reservation("1", Spend(10, 0, 1)))
    child = await free.spawns(1)
    for number in range(2):
        await free.does(reservation=Reservation("1", Spend(60, UNPRICED, 1)))
        held = (await broker.trees.registry(free.tree)).budget
        assert (held["tokens"].held, held["cost"].held) == (60, 0), number
    assert (await child.refused(reservation=wants("1", 50))).reason == "budget_reserved"
    done = await free.does(settlements=(Settlement("1", None),))
    assert [(one.spent, one.held, one.guessed) for one in done.budget[:3]] == [
        (60, 0, 60),
        (0, 0, 0),
        (1, 0, 1),
    ]
    await child.does(reservation=wants("1", 40))


async def test_wall_clock_runs_out_by_itself(broker: Broker) -> None:
    root = await root_of(broker, limit_wall=b"0")
    refused = await root.refused(reservation=wants("1", 1))
    assert (refused.reason, refused.detail) == ("budget_spent", "wall")
    await broker.trees.raise_limits(root.tree, LimitChange("more", {"wall": 3_600_000}))
    await root.does(reservation=wants("1", 1))
    wall = (await broker.trees.registry(root.tree)).budget["wall"]
    assert wall.limit == 3_600_000
    assert 0 <= wall.spent < 60_000


async def test_wall_clock_of_a_tree_runs_from_its_birth() -> None:
    with redis_time(FakeClock()) as clock:
        client = StatedRedis()
        broker = Broker(Connection(client, client), BrokerConfig(), clock.monotonic)
        root = await root_of(broker, limit_wall=b"10000")
        clock.advance(9.0)
        await root.does(within_budget=True)
        clock.advance(1.0)
        assert (await root.refused(within_budget=True)).detail == "wall"
        assert (await broker.trees.registry(root.tree)).budget["wall"].spent == 10_000
        await broker.aclose()


async def test_request_tried_again_under_its_number_is_held_anew(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    child = await root.spawns(1)
    await child.does(reservation=wants("1", 20))
    await root.does(reservation=wants("1", 40))
    done = await root.does(settlements=(used("1", 5),), reservation=wants("1", 30))
    assert done.budget[0] == Account("tokens", 5, 50, 100)


async def test_one_step_ends_a_request_and_begins_the_next(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    await root.does(reservation=wants("1", 90))
    done = await root.does(settlements=(used("1", 10),), reservation=wants("2", 90))
    assert done.budget[0] == Account("tokens", 10, 90, 100)


async def test_request_reserved_again_is_held_once(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    await root.does(reservation=wants("1", 90))
    done = await root.does(reservation=wants("1", 80))
    assert done.budget[0] == Account("tokens", 0, 80, 100)


async def test_takeover_counts_what_was_reserved_and_says_that_it_is_an_estimate(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    await root.does(reservation=wants("1", 40))
    done = await root.does(settlements=(Settlement("1", None),))
    assert done.budget[0] == Account("tokens", 40, 0, 100, 40)
    done = await root.does(settlements=(Settlement("1", None),))
    assert done.budget[0] == Account("tokens", 40, 0, 100, 40)


async def test_usage_is_counted_without_limits_and_reservations(broker: Broker) -> None:
    root = await root_of(broker)
    await root.does(settlements=(Settlement("1", Spend(7, 5, 1)),))
    child = await root.spawns(1)
    await child.does(settlements=(Settlement("1", Spend(3, 2, 1)), Settlement("2", Spend(1, 1, 1))))
    registry = await broker.trees.registry(root.tree)
    assert {id: agent.used for id, agent in registry.agents.items()} == {
        0: Spend(7, 5, 1),
        1: Spend(4, 3, 2),
    }
    assert [a.spent for a in registry.budget.values()][:3] == [11, 8, 3]


async def test_refused_step_settles_nothing(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    child = await root.spawns(1)
    await child.does(reservation=wants("1", 60))
    await root.does(reservation=wants("1", 30))
    await root.refused(settlements=(used("1", 10),), reservation=wants("2", 50))
    assert await account(broker, root) == Account("tokens", 0, 90, 100)


# ── waiting ───────────────────────────────────────────────────────────────────────────────────


async def test_waiting_agent_is_woken_by_the_commit_that_makes_room(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    child = await root.spawns(1)
    await root.does(reservation=wants("1", 90))
    await child.refused(reservation=wants("1", 50))
    await waits(child, 50)
    assert (await broker.trees.registry(root.tree)).waiting == {child.session: "reserved"}
    assert await broker.claims.claim("default", "w2", "c2", SHARD) is None
    await root.does(settlements=(used("1", 20),))
    assert (await broker.trees.registry(root.tree)).waiting == {}
    await child.claims_again()
    assert [(e.kind, e.submission, e.generation) for e in child.held.first] == [("timer", "budget", 1)]
    await child.does(reservation=wants("1", 50))


async def test_step_that_ends_two_requests_wakes_who_waits_for_the_first(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    child = await root.spawns(1)
    await root.does(reservation=wants("1", 60))
    await root.does(reservation=wants("2", 30))
    await waits(child, 50)
    await root.does(settlements=(used("1", 10), used("2", 10)))
    assert (await broker.trees.registry(root.tree)).waiting == {}
    await child.claims_again()


@pytest.mark.parametrize("counted", [None, Spend()], ids=["what was reserved", "nothing"])
async def test_waiting_agent_is_woken_by_an_end_whatever_it_counts(
    broker: Broker, counted: Spend | None
) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    child = await root.spawns(1)
    await root.does(reservation=wants("1", 90))
    await waits(child, 50)
    await root.does(settlements=(Settlement("1", counted),))
    assert (await broker.trees.registry(root.tree)).waiting == {}
    await child.claims_again()


async def test_wake_survives_the_worker_that_made_the_room(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    child = await root.spawns(1)
    await root.does(reservation=wants("1", 90))
    await waits(child, 50)

    async def dies(_: int) -> None:
        """The commit is done; its worker gets no further."""

    monkeypatch.setattr(broker.claims, "fire_soon", dies)
    await root.does(settlements=(used("1", 20),))
    assert await broker.claims.claim_session(child.session, "w2", "c2") is None
    assert [fired.session for fired in await broker.claims.fire(SHARD)] == [child.session]
    await child.claims_again()


async def test_room_made_between_refusal_and_wait_is_not_missed(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    child = await root.spawns(1)
    await root.does(reservation=wants("1", 90))
    await child.refused(reservation=wants("1", 50))
    await root.does(settlements=(used("1", 20),))
    refused = await child.refused(budget_wait=BudgetWait(tokens(50), "budget"))
    assert refused.reason == "budget_free"
    assert (await broker.trees.registry(root.tree)).waiting == {}


async def test_wait_of_a_model_without_a_price_is_refused_where_cost_is_limited_meanwhile(
    broker: Broker,
) -> None:
    """Its request is then asked for again, and is refused for what it lacks."""
    root = await root_of(broker, limit_tokens=b"100")
    child = await root.spawns(1)
    await root.does(reservation=wants("1", 90))
    request = Spend(50, UNPRICED, 1)
    assert (await child.refused(reservation=Reservation("1", request))).reason == "budget_reserved"
    await broker.trees.raise_limits(root.tree, LimitChange("b1", {"cost": 1_000}))
    refused = await child.refused(budget_wait=BudgetWait(request, "budget"))
    assert refused.reason == "budget_free"
    assert (await broker.trees.registry(root.tree)).waiting == {}
    assert (await child.refused(reservation=Reservation("1", request))).reason == "budget_unpriced"


async def test_who_waits_for_a_spent_budget_is_woken_when_it_is_raised(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    child = await root.spawns(1)
    await root.does(settlements=(used("1", 100),))
    await waits(child, 10)
    assert (await broker.trees.registry(root.tree)).waiting == {child.session: "spent"}
    await root.does(settlements=(used("2", 1),))
    assert await broker.claims.claim_session(child.session, "w2", "c2") is None
    raised = await broker.trees.raise_limits(root.tree, LimitChange("more", {"tokens": 50}))
    assert (raised.limits, raised.fresh, raised.woken) == ({"tokens": 150}, True, 1)
    assert (await broker.trees.registry(root.tree)).waiting == {}
    await child.claims_again()
    await child.does(reservation=wants("1", 10))


async def test_addition_wakes_who_waits_for_others_and_who_found_nothing_left() -> None:
    with redis_time(FakeClock()) as clock:
        client = StatedRedis()
        broker = Broker(Connection(client, client), BrokerConfig(), clock.monotonic)
        root = await root_of(broker, limit_tokens=b"100", limit_wall=b"10000")
        early, late = [await root.spawns(n) for n in (1, 2)]
        await root.does(reservation=wants("1", 60))
        await waits(early, 50)
        clock.advance(11.0)
        await waits(late, 1)
        waiting = {early.session: "reserved", late.session: "spent"}
        assert (await broker.trees.registry(root.tree)).waiting == waiting
        raised = await broker.trees.raise_limits(
            root.tree, LimitChange("more", {"tokens": 50, "wall": 60_000})
        )
        assert raised.woken == 2
        await broker.aclose()


async def test_agent_that_stopped_waiting_is_left_alone(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    child = await root.spawns(1)
    await root.does(reservation=wants("1", 90))
    await waits(child, 50)
    found = await broker.claims.claim_session(child.session, "w1", "again", parked=True)
    assert found is not None
    child.held = child.at = found
    await child.parks(timers_clear=("budget",))
    await root.does(settlements=(used("1", 20),))
    assert await broker.claims.claim_session(child.session, "w2", "c2") is None


async def test_everybody_who_waits_gets_another_look(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    children = [await root.spawns(n) for n in (1, 2, 3)]
    await root.does(reservation=wants("1", 90))
    for child in children:
        await waits(child, 50)
    await root.does(settlements=(used("1", 20),))
    for child in children:
        await child.claims_again()
    await children[0].does(reservation=wants("1", 50))
    await children[1].refused(reservation=wants("1", 50))


async def test_agent_that_waits_again_waits_once(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    await root.does(settlements=(used("1", 100),))
    for _ in range(3):
        await root.does(budget_wait=BudgetWait(tokens(10), "budget"))
    assert (await broker.trees.raise_limits(root.tree, LimitChange("more", {"tokens": 50}))).woken == 1


async def test_timer_that_waits_is_one_word(broker: Broker) -> None:
    root = await root_of(broker)
    with pytest.raises(ValueError, match="one word"):
        await root.does(budget_wait=BudgetWait(tokens(1), "two words"))


# ── raising ───────────────────────────────────────────────────────────────────────────────────


async def test_limit_is_raised_once_per_change(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100", limit_slots=b"8")
    told = TreeEvent((b"raised",), (root.session,), about=b"who")
    change = LimitChange("c1", {"tokens": 50, "slots": 2, "spawned": 7}, told)
    first = await broker.trees.raise_limits(root.tree, change)
    again = await broker.trees.raise_limits(root.tree, change)
    assert (first.fresh, again.fresh) == (True, False)
    assert first.limits == again.limits == {"tokens": 150, "slots": 10}
    assert (await broker.trees.registry(root.tree)).limits == {"tokens": 150, "slots": 10}
    log = await broker.logs.read_tree(root.tree)
    assert [(e.payload, e.about, e.session) for e in log] == [(b"raised", b"who", root.session)]
    assert [e.payload for e in await broker.logs.read_eq(root.session)] == [b"raised"]


async def test_tree_s_log_has_the_limits_before_and_behind_a_change(broker: Broker) -> None:
    root = await root_of(broker, limit_slots=b"8")
    for change, add in (("c1", {"slots": 2, "tokens": 50}), ("c2", {"tokens": -60, "spawned": 7})):
        told = TreeEvent((b"raised",), (root.session,))
        await broker.trees.raise_limits(root.tree, LimitChange(change, add, told))
    notes = [orjson.loads(entry.about) for entry in await broker.logs.read_tree(root.tree)]
    assert notes == [
        {"limits": {"slots": [8, 10], "tokens": [None, 50]}},
        {"limits": {"tokens": [50, 0]}},
    ], "a limit that is none and no budget's stays none, and is not told of"


@pytest.mark.parametrize("kind", ["tokens", "cost", "requests", "wall", "slots"])
async def test_additions_together_bring_no_limit_beyond_what_is_held_exactly(
    broker: Broker, kind: str
) -> None:
    most = 1 << 52
    root = await root_of(broker, **{f"limit_{kind}": str(most - 5).encode()})
    limits = []
    for number, more in enumerate((3, most, most, 1, -4, 2)):
        change = LimitChange(f"change {number}", {kind: more})
        raised = await broker.trees.raise_limits(root.tree, change)
        assert raised == await broker.trees.raise_limits(root.tree, change) or raised.fresh
        limits.append(raised.limits[kind])
    assert limits == [most - 2, most, most, most, most - 4, most - 2]
    over = await root_of(broker, **{f"limit_{kind}": str(most + 10).encode()})
    for number, (more, limit) in enumerate([(1, most + 10), (-3, most + 7), (5, most + 7), (-most, 7)]):
        raised = await broker.trees.raise_limits(over.tree, LimitChange(f"{number}", {kind: more}))
        assert raised.limits == {kind: limit}


async def test_other_changes_add_up(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    for change, more in (("c1", 50), ("c2", 50), ("c3", -500)):
        raised = await broker.trees.raise_limits(root.tree, LimitChange(change, {"tokens": more}))
    assert raised.limits == {"tokens": 0}


@pytest.mark.parametrize("kind", ["tokens", "cost", "requests"])
async def test_limit_that_is_taken_back_below_what_is_used_is_spent(broker: Broker, kind: str) -> None:
    root = await root_of(broker, **{f"limit_{kind}": b"100"})
    await root.does(reservation=Reservation("1", Spend(60, 60, 60)))
    await root.does(settlements=(Settlement("1", Spend(60, 60, 60)),))
    taken = await broker.trees.raise_limits(root.tree, LimitChange("c1", {kind: -41}))
    assert taken.limits == {kind: 59}
    refused = await root.refused(reservation=Reservation("2", Spend(0, 0, 0)))
    assert (refused.reason, refused.detail) == ("budget_spent", kind)
    assert (await broker.trees.raise_limits(root.tree, LimitChange("c2", {kind: -60}))).limits == {kind: 0}
    await broker.trees.raise_limits(root.tree, LimitChange("c3", {kind: 61}))
    await root.does(reservation=Reservation("2", Spend(0, 0, 0)))


async def test_warning_is_said_again_at_the_new_limit(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    events = tuple(TreeEvent((name.encode(),), once=name) for name in (warned("tokens"), exhausted("tokens")))
    await root.does(tree_events=events)
    await root.does(tree_events=events)
    await broker.trees.raise_limits(root.tree, LimitChange("c1", {"slots": 50}))
    await root.does(tree_events=events)
    await broker.trees.raise_limits(root.tree, LimitChange("c2", {"tokens": 50}))
    await root.does(tree_events=events)
    said = [e.payload.decode() for e in await broker.logs.read_tree(root.tree)]
    assert said == ["tokens:80", "tokens:100"] * 2


async def test_warnings_of_each_budget_that_is_changed_are_said_again_and_of_no_other(broker: Broker) -> None:
    kinds = ("tokens", "cost", "requests", "wall")
    root = await root_of(broker, **{f"limit_{kind}": b"1000000000" for kind in kinds})
    names = [name(kind) for kind in kinds for name in (warned, exhausted)]
    events = tuple(TreeEvent((name.encode(),), once=name) for name in names)
    await root.does(tree_events=events)
    for change in (("tokens", "wall"), ("requests",), ("cost", "requests", "slots")):
        before = len(await broker.logs.read_tree(root.tree))
        await broker.trees.raise_limits(root.tree, LimitChange("-".join(change), dict.fromkeys(change, -1)))
        await root.does(tree_events=events)
        said = [entry.payload.decode() for entry in await broker.logs.read_tree(root.tree, before)]
        assert said == [name for name in names if name.partition(":")[0] in change]


async def test_limits_of_an_archived_tree_can_be_raised(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    await root.is_archived()
    told = TreeEvent((b"raised",), (root.session,))
    assert (await broker.trees.raise_limits(root.tree, LimitChange("c1", {"tokens": 1}, told))).fresh
    assert await broker.logs.read_eq(root.session) == ()


async def test_raise_goes_on_while_the_root_is_held_and_commits_on(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    told = TreeEvent((b"raised",), (root.session,))
    await broker.trees.raise_limits(root.tree, LimitChange("c1", {"tokens": 50}, told))
    await root.does(tree_events=(TreeEvent((b"next",), (root.session,)),))
    events = [e for e in await broker.logs.read_eq(root.session) if e.tree_seq]
    assert [(e.tree_seq, e.payload) for e in events] == [(1, b"raised"), (2, b"next")]


# ── what adds up ──────────────────────────────────────────────────────────────────────────────

LIMIT = 100
ACT = st.tuples(
    st.sampled_from(["reserve", "settle", "lose"]), st.integers(0, 2), st.integers(0, 1), st.integers(1, 60)
)


@settings(max_examples=25, deadline=None)
@given(st.lists(ACT, max_size=30))
def test_held_is_the_sum_of_reservations_and_overshoot_is_what_was_in_flight(
    acts: list[tuple[str, int, int, int]],
) -> None:
    asyncio.run(_accounts_add_up(acts))


async def _accounts_add_up(acts: list[tuple[str, int, int, int]]) -> None:
    with redis_time(FakeClock()):
        client = StatedRedis()
        broker = Broker(Connection(client, client), BrokerConfig(), lambda: 0.0)
        root = await root_of(broker, limit_tokens=str(LIMIT).encode())
        agents = [root, await root.spawns(1), await root.spawns(2)]
        held: dict[tuple[int, str], int] = {}
        spent = 0
        for act, which, slot, count in acts:
            key = (which, str(slot))
            if act == "reserve":
                others = sum(held.values()) - held.get(key, 0)
                reason = _refusal(spent, others, count)
                answer = await broker.commits.commit(agents[which].request(reservation=wants(key[1], count)))
                assert (answer.reason if isinstance(answer, Refused) else "") == reason
                if isinstance(answer, Committed):
                    agents[which].at = answer
                    held[key] = count
            else:
                real = None if act == "lose" else tokens(count)
                await agents[which].does(settlements=(Settlement(key[1], real),))
                reserved = held.pop(key, 0)
                spent += reserved if real is None else count
            _agrees(await broker.trees.registry(root.tree), spent, held)
        await broker.aclose()


def _refusal(spent: int, others: int, count: int) -> str:
    if spent >= LIMIT:
        return "budget_spent"
    return "budget_reserved" if others and spent + others + count > LIMIT else ""


def _agrees(registry: Registry, spent: int, held: dict[tuple[int, str], int]) -> None:
    account = registry.budget["tokens"]
    assert (account.spent, account.held) == (spent, sum(held.values()))
    assert sorted(s.tokens for s in registry.reserved.values()) == sorted(held.values())
    assert sum(agent.used.tokens for agent in registry.agents.values()) == spent


@pytest.mark.parametrize("guessed", [False, True])
async def test_budget_that_a_tree_did_not_have_begins_at_what_is_used(broker: Broker, guessed: bool) -> None:
    root = await root_of(broker)
    await root.does(reservation=wants("1", 70 if guessed else 90))
    await root.does(settlements=(Settlement("1", None) if guessed else used("1", 70),))
    change = LimitChange("first", {"tokens": 30, "requests": 2, "wall": 60_000, "elsewhere": 5})
    given = await broker.trees.raise_limits(root.tree, change)
    assert (given.limits["tokens"], given.limits["requests"]) == (100, 3)
    assert 60_000 <= given.limits["wall"] < 120_000
    assert "elsewhere" not in given.limits
    await root.does(reservation=wants("2", 20))
    child = await root.spawns(1)
    assert (await child.refused(reservation=wants("1", 20))).reason == "budget_reserved"
    await root.does(settlements=(used("2", 40),))
    assert (await child.refused(reservation=wants("1", 1))).reason == "budget_spent"
    assert (await broker.trees.raise_limits(root.tree, change)).limits == given.limits, "once"


# ── usage by day ──────────────────────────────────────────────────────────────────────────────


def uses(request: str, count: int, model: str) -> Settlement:
    return Settlement(request, Spend(count, 2 * count, 1), model)


async def someones(broker: Broker, who: str, namespace: str = "") -> Agent:
    """A tree that somebody has begun."""
    root = new_session(submissions=OP)
    await broker.commits.create(NewTree(root, {}, Labels(namespace=namespace, who=who)))
    return await claims(broker, root.session)


async def today(broker: Broker) -> dict[tuple[str, str, str], Spend]:
    """The usage of the day, by namespace, model and person."""
    found = await broker.trees.spent_on([day_of(broker.now_ms())])
    return {(one.namespace, one.model, one.who): one.spend for one in found}


async def test_usage_is_added_up_for_the_day_by_namespace_model_and_person(broker: Broker) -> None:
    jo, ana = await someones(broker, "jo"), await someones(broker, "ana", "team")
    await jo.does(settlements=(uses("1", 7, "large"),))
    child = await jo.spawns(1)
    await child.does(settlements=(uses("1", 3, "large"), uses("2", 1, "small")))
    grandchild = await child.spawns(2)
    await grandchild.does(settlements=(uses("1", 1, "small"),))
    await ana.does(settlements=(uses("1", 5, "large\nand more"),))
    assert await today(broker) == {
        ("", "large", "jo"): Spend(10, 20, 2),
        ("", "small", "jo"): Spend(2, 4, 2),
        ("team", "large and more", "ana"): Spend(5, 10, 1),
    }
    assert await broker.trees.spent_on([]) == []


async def test_usage_of_several_days_is_that_of_each_over_all_shards() -> None:
    with redis_time(FakeClock()) as clock:
        client = StatedRedis()
        broker = Broker(Connection(client, client), BrokerConfig(lease_s=1e9), clock.monotonic)
        trees = []
        for shard in (3, 5, 3):
            born = new_session(session_id(shard), submissions=OP)
            await broker.commits.create(NewTree(born, {}, Labels(who="jo")))
            trees.append(await claims(broker, born.session))
        days, counts = [], []
        for day in range(3):
            await broker.server_ms()
            days.append(day_of(broker.now_ms()))
            for place, agent in enumerate(trees):
                await agent.does(settlements=(uses(str(day), 10**day * (1, 2, 4)[place], "large"),))
            counts.append(7 * 10**day)
            clock.advance(86_400.0)
        await broker.command("HSET", broker.keys.spend(3, days[1]), "acme\nlarge\nann", "no amount")
        for some in (days, days[1:], days[2:], [days[2], days[0]]):
            found = [(one.day, one.spend.tokens) for one in await broker.trees.spent_on(some)]
            assert found == [(day, counts[days.index(day)]) for day in some]
        assert await broker.trees.spent_on([day_of(broker.now_ms())]) == []
        await broker.aclose()


async def test_a_commit_that_is_sent_again_is_counted_once_on_its_day(broker: Broker) -> None:
    root = await someones(broker, "jo")
    request = root.request(settlements=(uses("1", 7, "large"),))
    first, again = await broker.commits.commit(request), await broker.commits.commit(request)
    assert isinstance(first, Committed)
    assert isinstance(again, Committed)
    assert isinstance(first, Committed)
    assert again.seq == first.seq
    # Its holder warns of a budget that is nearly used up by the answer that it gets.
    assert again.budget[:3] == first.budget[:3] != ()
    assert await today(broker) == {("", "large", "jo"): Spend(7, 14, 1)}


async def test_a_refused_step_is_counted_on_no_day(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"5")
    refused = await root.refused(settlements=(uses("1", 7, "large"),), within_budget=True)
    assert refused.reason == "budget_spent"
    assert await today(broker) == {}


async def test_an_estimate_is_counted_on_its_day_as_for_its_tree(broker: Broker) -> None:
    root = await someones(broker, "jo")
    await root.does(reservation=wants("1", 40))
    await root.does(settlements=(Settlement("1", None, "large"),))
    assert await today(broker) == {("", "large", "jo"): tokens(40)}


async def test_a_day_is_kept_for_400_days(broker: Broker) -> None:
    root = await someones(broker, "jo")
    await root.does(settlements=(uses("1", 7, "large"),))
    key = broker.keys.spend(SHARD, day_of(broker.now_ms()))
    left_ms = await broker.command("PTTL", key)
    assert isinstance(left_ms, int)
    assert 399 * 86_400_000 < left_ms <= SPEND_DAYS * 86_400_000


async def test_a_day_with_too_many_models_counts_the_rest_together(broker: Broker) -> None:
    root, other = await someones(broker, "jo", "team"), await someones(broker, "ana", "other")
    named = [uses(str(n), 1, f"model {n}") for n in range(510)]
    await root.does(settlements=tuple(named[:250]))
    await root.does(settlements=tuple(named[250:]))
    await other.does(settlements=(uses("1", 7, "large"),))
    await root.does(settlements=(uses("1", 1, "model 3"), uses("2", 1, "model 509")))
    found = await today(broker)
    assert len(found) == 502
    assert found["team", "model 3", "jo"] == Spend(2, 4, 2)
    assert found["team", "", ""] == Spend(11, 22, 11)
    assert found["other", "", ""] == Spend(7, 14, 1)
    assert sum(spend.tokens for spend in found.values()) == 519


async def test_long_names_of_models_and_people_are_cut_before_they_are_counted(broker: Broker) -> None:
    jo = await someones(broker, "jo" + "x" * 300)
    for number, model in enumerate(("ä" * 200, "ä" * 201, "ä" * 199 + "b")):
        await jo.does(settlements=(uses(str(number), 10**number, model),))
    assert await today(broker) == {
        ("", "ä" * 200, "jo" + "x" * 198): Spend(11, 22, 2),
        ("", "ä" * 199 + "b", "jo" + "x" * 198): Spend(100, 200, 1),
    }


async def test_long_names_of_people_end_with_whole_letters_where_they_are_counted(broker: Broker) -> None:
    names = ["x" * 199 + "äb", "x" * 198 + "äb", "€" * 100, "j" + "😀" * 60, "ä" * 100]
    for number, name in enumerate(names):
        own = await someones(broker, name)
        await own.does(settlements=(uses(str(number), 10**number, "large"),))
    kept = ["x" * 199, "x" * 198 + "ä", "€" * 66, "j" + "😀" * 49, "ä" * 100]
    assert {who: spend.tokens for (_, _, who), spend in (await today(broker)).items()} == {
        name: 10**number for number, name in enumerate(kept)
    }


async def test_a_day_with_too_many_namespaces_counts_the_rest_for_none(
    broker: Broker,
) -> None:
    root = await someones(broker, "jo", "team")
    await broker.command("HSET", broker.keys.spend(SHARD, day_of(broker.now_ms())), "n", 1_000)
    await root.does(settlements=(uses("1", 7, "large"),))
    await root.does(settlements=(uses("2", 1, "small"),))
    assert await today(broker) == {("", "", ""): Spend(8, 16, 2)}


# ── activity of the last hour ─────────────────────────────────────────────────────────────────


async def activity(broker: Broker, agent: Agent) -> tuple[int, ...]:
    """The requests of the tree's last hour, the newest five minutes first; nothing if none is counted."""
    (found,) = await broker.trees.accounts([agent.tree])
    return () if found.recent is None else found.recent.requests


async def test_requests_of_the_last_hour_are_counted_by_five_minutes() -> None:
    with redis_time(FakeClock()) as clock:
        client = StatedRedis()
        broker = Broker(Connection(client, client), BrokerConfig(), clock.monotonic)
        clock.advance(300 - clock.now_ms() / 1000 % 300)
        root = await root_of(broker)
        assert await activity(broker, root) == ()
        child = await root.spawns(1)
        await root.does(settlements=(used("1", 7),))
        await child.does(settlements=(used("1", 7), used("2", 1)))
        assert await activity(broker, root) == (3, *[0] * 11)
        (account_now,) = await broker.trees.accounts([root.tree])
        assert account_now.recent is not None
        assert account_now.recent.from_ms == clock.now_ms() // 300_000 * 300_000
        clock.advance(299.0)
        await root.does(settlements=(used("2", 7),))
        clock.advance(1.0 + 600.0)
        await root.does(settlements=(used("3", 7),))
        assert await activity(broker, root) == (1, 0, 0, 4, *[0] * 8)
        clock.advance(8 * 300.0)
        await root.does(settlements=(used("4", 7),))
        assert await activity(broker, root) == (1, *[0] * 7, 1, 0, 0, 4)
        clock.advance(300.0)
        await root.does(settlements=(used("5", 7),))
        assert await activity(broker, root) == (1, 1, *[0] * 7, 1, 0, 0)
        clock.advance(-300.0)
        await root.does(settlements=(used("6", 7),))
        assert await activity(broker, root) == (2, 1, *[0] * 7, 1, 0, 0), (
            "a clock that goes back by less than an hour"
        )
        clock.advance(-3_600.0)
        await root.does(settlements=(used("7", 7),))
        assert await activity(broker, root) == (1, *[0] * 11)
        clock.advance(3_600.0)
        await root.does(settlements=(used("8", 7),))
        assert await activity(broker, root) == (1, *[0] * 11)
        stored = await broker.command("HGET", broker.keys.agents(root.tree), "recent")
        assert isinstance(stored, bytes)
        assert len(stored.split()) == 2
        await broker.aclose()


async def test_a_request_that_has_ended_counts_once_in_the_hour(broker: Broker) -> None:
    root = await root_of(broker, limit_tokens=b"100")
    await root.does(reservation=wants("1", 40))
    assert await activity(broker, root) == ()
    request = root.request(settlements=(used("1", 7),))
    assert isinstance(await broker.commits.commit(request), Committed)
    assert isinstance(await broker.commits.commit(request), Committed)
    assert await activity(broker, root) == (1, *[0] * 11)
