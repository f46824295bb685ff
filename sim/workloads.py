"""Workloads of a simulation, in which people act: each is a name and a play.

A play is a coroutine over a `Fixture`. It starts people and returns when they have said what
they have to say; what comes of it is watched by others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from orchestrator.config_keys import ProviderSettings
from orchestrator.core.client_tools import ClientTools, client_tool, client_tools
from orchestrator.core.settings import TreeRules
from orchestrator.protocol import ops
from orchestrator.views.event import Event
from sim.abandoned import abandoned
from sim.askers import jobs
from sim.fixture import ENOUGH, Fixture, new_session, perhaps_agents, used, visits
from sim.held_messages import LateCopy, SlowCommit
from sim.model_script import CLIENT_TOOL
from sim.people import FREE, Person
from sim.undecidable import undecidable
from sim.workloads_births import births
from sim.workloads_contents import contents
from sim.workloads_doors import crowds, doors
from sim.workloads_fleet import followed
from sim.workloads_forks import heirs
from sim.workloads_kept import archives, files, folders, outages, resting, texts
from sim.workloads_noted import receipts
from sim.workloads_odd import oddities
from sim.workloads_processes import LONG_S, is_hasty, left_running, scripts, thawed, types_under_others
from sim.workloads_queues import queues
from sim.workloads_rare import burials, lapses, lineages, refusals, reruns, zombies
from sim.workloads_redacted import redactions

PROVIDER = "openai"


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    play: Callable[[Fixture], Awaitable[None]]
    broker: Mapping[str, Any] = field(default_factory=dict)
    """Settings that the workload changes in the broker's configuration."""
    replicas: float = 0.0
    """The share of its seeds under which replicas are asked, and promoted up to three times."""
    benches: bool = False
    """Whether workers do jobs of their pools."""
    signs: bool = False
    """Whether approvals have to be signed."""
    traces: bool = False
    """Whether workers tell spans."""
    faults: int = 0
    """The least number of faults, and the least time for which there are any."""
    lasts_s: float = 0.0


async def single(fixture: Fixture) -> None:
    """A session, a person, commands that need no approval."""
    person = fixture.person()
    fixture.site.model.odds.asks = 0.0
    await used(fixture, person, await new_session(fixture, person, "never"), fixture.rng.choice((1, 3, 6)))


async def approvals(fixture: Fixture) -> None:
    """A session whose commands need approval; two people answer, late and twice."""
    rng, person, other, odds = fixture.rng, fixture.person(), fixture.person(), fixture.site.model.odds
    odds.asks, odds.patches = 0.7, 0.3
    odds.escalated, odds.dangerous, odds.outside, odds.denied = 0.3, 0.2, 0.5, 0.3
    odds.prefixes = rng.choice((0.0, 1.0))
    person.habits |= {"interrupt": 6}
    facts: dict[str, Any] = {
        "approval_timeout_ms": rng.choice((None, None, 2_000, 5_000, 3_600_000)),
        "on_user_input": rng.choice(("replace", "steer")),
        "mode": rng.choice((FREE, "workspace-write")),
        **perhaps_agents(rng, 0.4),
    }
    policy = rng.choice(("untrusted", "untrusted", "on-request", "on-failure"))
    session = await new_session(fixture, person, policy, **facts)
    other.does(other.follows(session, partial(other.answers, session)), "follows")
    await used(fixture, person, session, rng.choice((2, 4)))


async def signed(fixture: Fixture) -> None:
    """The same where approvals have to be signed: some are not, or by a signature of before, or too old."""
    await approvals(fixture)


async def traced(fixture: Fixture) -> None:
    """The same, whose workers tell spans: its tasks wait for people, and go on at one worker or another."""
    fixture.site.model.odds.calls = 0.9
    await approvals(fixture)


async def servers(fixture: Fixture) -> None:
    """A session that calls tools of an MCP server, which asks people meanwhile, and whose calls cannot be
    judged when their worker is lost."""
    rng, person, odds = fixture.rng, fixture.person(), fixture.site.model.odds
    odds.tools, odds.calls, odds.plans, odds.elicits = 0.8, 0.9, 0.0, 0.5
    person.habits |= {"interrupt": 4}
    policy = rng.choice(("untrusted", "untrusted", "on-request", "never"))
    expires = rng.choice((None, None, 2_000, 3_600_000))
    facts: dict[str, Any] = {"approval_timeout_ms": expires, **perhaps_agents(rng, 0.3)}
    session = await new_session(fixture, person, policy, **facts)
    if "agents" in facts and rng.random() < 0.5:
        await _stopped_while_asked(fixture, person, session)
    else:
        await used(fixture, person, session, rng.choice((2, 4)))


async def _stopped_while_asked(fixture: Fixture, person: Person, session: str) -> None:
    """A root makes agents at once, whose servers ask; their turns are stopped before all is answered."""
    rng, odds = fixture.rng, fixture.site.model.odds
    odds.opening, odds.agents = ("subagent_spawn", "subagent_spawn"), 0.0
    odds.calls, odds.tools, odds.elicits, odds.patches = 1.0, 1.0, 1.0, 0.0
    for at in range(rng.choice((3, 4))):
        await asyncio.wait([person.does(person.says(session), "says")])
        await asyncio.sleep(rng.uniform(0.5, 4.0))
        stop: Any = rng.choice(
            (
                ops.Interrupt(tree=True),
                ops.MessageAgent(agent_id=rng.choice((1, 2)), text=f"stop {at}", interrupt=True),
                ops.CancelAgent(agent_id=rng.choice((1, 2))),
            )
        )
        await asyncio.wait([person.does(person.submits(session, stop), "stops")])


def brought(limit_ms: int) -> ClientTools | None:
    """The tool that the client of a root brings along."""
    namespace, _, name = CLIENT_TOOL.partition("__")
    return client_tools("sim", limit_ms, [client_tool(namespace, name, "looks up", {})])


async def asks(fixture: Fixture) -> None:
    """A session that asks people for words, and its client to do something; two answer: late, twice, with
    nonsense, or not at all."""
    rng, person, other, odds = fixture.rng, fixture.person(), fixture.person(), fixture.site.model.odds
    odds.questions, odds.asks, odds.calls, odds.patches = 0.7, 0.3, 0.9, 0.1
    person.habits |= {"interrupt": 5}
    fixture.site.model.faults.refused = rng.choice((0.0, 0.3))
    odds.brought, tools = 0.6, brought(rng.choice((2_000, 5_000, 3_600_000)))
    facts: dict[str, Any] = {
        "client_tools": tools if rng.random() < 0.7 else None,
        "approval_timeout_ms": rng.choice((None, None, 2_000, 5_000, 3_600_000)),
        "on_user_input": rng.choice(("replace", "steer")),
        **perhaps_agents(rng, 0.5),
    }
    if rng.random() < 0.3:
        other.speaks_of_old = frozenset({"user_input_answer"})
    person.delivers = True
    session = await new_session(fixture, person, rng.choice(("never", "untrusted")), **facts)
    other.does(other.follows(session, partial(other.answers, session)), "follows")
    await used(fixture, person, session, rng.choice((2, 4)))


async def commands(fixture: Fixture) -> None:
    """A session whose person runs commands of their own between turns, and stops them, and is compacted."""
    rng, person, odds = fixture.rng, fixture.person(), fixture.site.model.odds
    person.habits |= {"run": 14, "interrupt": 5, "compact": 3}
    odds.calls, odds.denied = 0.4, 0.4
    mode = rng.choice(("workspace-write", "workspace-write", "danger-full-access"))
    facts: dict[str, Any] = {"on_user_input": rng.choice(("replace", "steer")), **perhaps_agents(rng, 0.3)}
    session = await new_session(fixture, person, rng.choice(("never", "untrusted")), mode=mode, **facts)
    await used(fixture, person, session, rng.choice((3, 6)))


async def processes(fixture: Fixture) -> None:
    """A session whose commands go on behind their calls, are typed to, and die of whatever may end them;
    turns have other policies than those before, or a second person interrupts what is being replaced."""
    rng, person, odds = fixture.rng, fixture.person(), fixture.site.model.odds
    odds.processes, odds.calls, odds.patches, odds.asks = 0.85, 0.9, 0.05, rng.choice((0.0, 0.3))
    person.habits |= {"interrupt": 6, "compact": 2}
    person.fickle = rng.random() < 0.6
    if person.fickle:
        # Processes that turns under other policies find.
        odds.lives_s, odds.agents, odds.types = LONG_S[2:], 0.1, 0.75
        person.habits |= {"turn": 30, "interrupt": 1}
    else:
        # Processes that live while what runs is replaced.
        odds.lives_s, odds.yields_ms, odds.dies_s = LONG_S, (0, 250, 1_000, 1_000), 1.5
        odds.asks, odds.processes = 0.0, 0.95
        person.habits |= {"turn": 8, "say": 8, "interrupt": 1}
    steers = rng.choice(("replace", "steer")) if person.fickle else "replace"
    facts: dict[str, Any] = {
        "on_user_input": steers,
        "unified_exec": True,
        **perhaps_agents(rng, 0.4),
    }
    session = await new_session(fixture, person, rng.choice(("never", "untrusted")), **facts)
    if not person.fickle:
        hasty = fixture.person()
        hasty.does(hasty.follows(session, partial(is_hasty, fixture, hasty, session)), "follows")
    await used(fixture, person, session, rng.choice((4, 6) if person.fickle else (2, 4)))
    if person.fickle:
        await types_under_others(fixture, person, session)


async def plans(fixture: Fixture) -> None:
    """A session that plans beside its conversation; two people decide: late, twice, without words, or not."""
    rng, person, other, odds = fixture.rng, fixture.person(), fixture.person(), fixture.site.model.odds
    odds.proposes, odds.calls, odds.patches, odds.asks = 0.7, 0.9, 0.1, 0.3
    odds.questions, odds.agents = 0.3, 0.1
    fixture.site.model.faults.too_long = rng.choice((0.0, 0.0, 0.15))
    person.habits |= {"plan": 16, "interrupt": 4, "compact": 3, "back": 2}
    facts: dict[str, Any] = {
        "approval_timeout_ms": rng.choice((None, None, 5_000, 3_600_000)),
        "on_user_input": rng.choice(("replace", "steer")),
        **perhaps_agents(rng, 0.5),
    }
    session = await new_session(fixture, person, rng.choice(("never", "untrusted")), **facts)
    other.does(other.follows(session, partial(other.answers, session)), "follows")
    await used(fixture, person, session, rng.choice((3, 5)))


async def reviews(fixture: Fixture) -> None:
    """A session whose changes are reviewed, again and again, with other input in the middle of it."""
    rng, person, odds = fixture.rng, fixture.person(), fixture.site.model.odds
    odds.calls, odds.asks, odds.patches, odds.escalated = 0.8, 0.7, 0.1, 0.2
    odds.prefixes = rng.choice((0.0, 1.0))
    # Reviews of changes that the model's window does not hold.
    fixture.site.model.faults.too_long = rng.choice((0.0, 0.15, 0.3))
    person.habits |= {"review": 14, "interrupt": 4, "compact": 2}
    facts: dict[str, Any] = {
        "on_user_input": rng.choice(("replace", "steer")),
        "mode": rng.choice((FREE, "workspace-write")),
        **perhaps_agents(rng, 0.5),
    }
    session = await new_session(fixture, person, rng.choice(("never", "untrusted", "untrusted")), **facts)
    await asyncio.wait([person.does(person.says(session), "says")])
    # Long enough for some to be asked, and to allow things for the session.
    await asyncio.sleep(rng.choice((0.0, 15.0, 30.0)))
    await used(fixture, person, session, rng.choice((3, 5)))


async def several(fixture: Fixture) -> None:
    """Several sessions at once, each with a person; some shut down and go on."""
    plays = []
    for _ in range(fixture.rng.choice((2, 3))):
        person = fixture.person()
        policy = fixture.rng.choice(("never", "on-request", "untrusted"))
        steer = fixture.rng.choice(("replace", "steer"))
        session = await new_session(fixture, person, policy, on_user_input=steer)
        plays.append(person.does(visits(fixture, person, session), "visits"))
    await asyncio.wait(plays)


async def tree(fixture: Fixture) -> None:
    """A session that makes agents, forks itself, writes to them, waits for them and cancels them."""
    rng, person = fixture.rng, fixture.person()
    rules = TreeRules(
        slots=rng.choice((1, 2, 4)),
        spawned=rng.choice((3, 6)),
        depth=rng.choice((1, 2)),
        autosubmit=rng.random() < 0.8,
        await_floor_s=1.0,
        await_cap_s=rng.choice((20.0, 7_200.0)),
    )
    policy = rng.choice(("never", "never", "on-request"))
    fixture.site.model.odds.agents = 0.7
    fixture.site.model.odds.verbs |= {"subagent_spawn": 12}
    # A person who only ever interrupts a tree never sees it grow.
    steer = rng.choice(("replace", "steer", "steer"))
    session = await new_session(fixture, person, policy, agents=True, tree_rules=rules, on_user_input=steer)
    # Drawn beside the others: what else happens is as it is without.
    person.moody = Random(f"moody:{rng.getstate()[1][:4]}").random() < 0.7
    await used(fixture, person, session, rng.choice((1, 3, 5)))
    if rng.random() < 0.2:
        await asyncio.wait([person.does(person.shuts(session), "shuts")])


async def family(fixture: Fixture) -> None:
    """A root and its four agents, all of them at work: what a second of one core's time is measured with."""
    rng, person, odds = fixture.rng, fixture.person(), fixture.site.model.odds
    odds.calls, odds.asks, odds.agents = 0.9, 0.0, 0.7
    odds.verbs |= {"subagent_spawn": 30, "subagent_cancel": 1}
    rules = TreeRules(
        slots=5, spawned=4, depth=rng.choice((1, 2)), await_floor_s=1.0, await_cap_s=rng.choice((5.0, 20.0))
    )
    session = await new_session(fixture, person, "never", agents=True, tree_rules=rules)
    await used(fixture, person, session, rng.choice((2, 3)))


async def brood(fixture: Fixture) -> None:
    """A root that makes four agents at once and waits for them; all have little to do."""
    odds, person = fixture.site.model.odds, fixture.person()
    odds.calls, odds.asks, odds.agents = 0.15, 0.0, 0.2
    odds.opening = ("subagent_spawn",) * 4 + ("subagent_await",)
    rules = TreeRules(slots=5, spawned=4, depth=1, await_floor_s=1.0, await_cap_s=30.0)
    session = await new_session(fixture, person, "never", agents=True, tree_rules=rules)
    await asyncio.wait([person.does(person.says(session), "says")])


async def budgets(fixture: Fixture) -> None:
    """A tree with little to spend, and somebody who adds to it, sometimes too late."""
    rng, person = fixture.rng, fixture.person()
    fixture.site.model.odds.asks = 0.05
    fixture.site.model.odds.verbs |= {"subagent_spawn": 20}
    few = {
        "tokens": rng.choice((400, 700, 1_500)),
        "requests": rng.choice((2, 4, 9)),
        "cost": rng.choice((1_000, 4_000)),
        "wall": rng.choice((4_000, 20_000)),
    }
    given = dict(rng.sample(sorted(few.items()), rng.choice((1, 1, 2))))
    rules = TreeRules(slots=4, spawned=6, depth=2, await_floor_s=1.0, await_cap_s=60.0, budgets=given)
    session = await new_session(fixture, person, "never", agents=True, tree_rules=rules)
    other = fixture.person()
    adds = [other.does(_adds(other, fixture, session, sorted(few)), "adds")]
    # Drawn beside the others: what else happens is as it is without.
    if Random(f"tops up:{rng.getstate()[1][:4]}").random() < 0.4:
        warned = fixture.person()
        warned.does(warned.follows(session, partial(_tops_up, warned, session, iter(range(3)))), "follows")
    await used(fixture, person, session, rng.choice((2, 4)))
    await asyncio.wait(adds)


async def _adds(person: Person, fixture: Fixture, session: str, kinds: list[str]) -> None:
    for _ in range(fixture.rng.choice((0, 1, 3))):
        await asyncio.sleep(fixture.rng.uniform(0.5, 10.0))
        kind = fixture.rng.choice(kinds)
        if kind != "cost":
            await person.adds(session, {kind: fixture.rng.choice((1, ENOUGH[kind] // 10))})


async def _tops_up(person: Person, session: str, times: Iterator[int], event: Event) -> None:
    """Adds so little that people are to be warned of the budget again soon, so many times."""
    told = event.msg.get("budget") if event.type == "warning" else None
    if told is not None and told["kind"] in ("requests", "tokens") and next(times, None) is not None:
        await person.adds(session, {told["kind"]: 1})


async def watchdogs(fixture: Fixture) -> None:
    """Agents that remind themselves and each other every few seconds, and change their minds about it."""
    rng, person = fixture.rng, fixture.person()
    fixture.nemesis.weights |= {"slow_commit": 25}
    if rng.random() < 0.6:
        fixture.nemesis.lie_in_wait(SlowCommit)
    fixture.site.model.odds.agents = 0.9
    fixture.site.model.odds.verbs |= {"subagent_watchdog": 40, "subagent_await": 3, "subagent_cancel": 1}
    rules = TreeRules(
        slots=3, spawned=3, depth=1, await_floor_s=1.0, await_cap_s=20.0, watchdog_floor_s=1.0, watchdogs=2
    )
    session = await new_session(fixture, person, "never", agents=True, tree_rules=rules)
    await used(fixture, person, session, rng.choice((2, 5)))


async def forks(fixture: Fixture) -> None:
    """A session that is compacted, and forks itself and its forks."""
    rng, person = fixture.rng, fixture.person()
    fixture.site.model.odds.verbs |= {"subagent_fork": 15, "subagent_spawn": 2}
    fixture.site.model.odds.large = 0.3
    person.habits |= {"compact": 4}
    rules = TreeRules(slots=4, spawned=5, depth=3, await_floor_s=1.0, await_cap_s=30.0)
    session = await new_session(fixture, person, "never", agents=True, tree_rules=rules)
    await used(fixture, person, session, rng.choice((2, 4)))


async def compactions(fixture: Fixture) -> None:
    """A session that is compacted again and again, also in the middle of things."""
    person = fixture.person()
    person.habits |= {"compact": 8, "interrupt": 2}
    steer = fixture.rng.choice(("replace", "steer"))
    if fixture.site.compacts_at:
        # Tasks that are long enough to be compacted by themselves, and have pictures then.
        person.habits |= {"compact": 2, "say": 20}
        person.shows, fixture.site.model.odds.calls, steer = 0.4, 0.9, "steer"
    await used(fixture, person, await new_session(fixture, person, "never", on_user_input=steer), 6)


async def turns(fixture: Fixture) -> None:
    """A session that is compacted, and whose person goes back to turns from before, or takes words back."""
    rng, person = fixture.rng, fixture.person()
    person.habits |= {"compact": 8, "back": 12, "interrupt": 2, "take_back": 8}
    person.looks_back = 8
    person.wants_forms = Random(f"forms:{rng.getstate()[1][:4]}").random() < 0.5
    fixture.site.model.odds.large = 0.3
    steer = rng.choice(("replace", "steer"))
    session = await new_session(fixture, person, "never", on_user_input=steer)
    if rng.random() < 0.4:
        await used(fixture, person, session, 8)
        return
    for act in (person.says, _compacts(person), person.goes_back) * 3:
        await asyncio.wait([person.does(act(session), "acts")])
        await asyncio.sleep(rng.uniform(1.0, 8.0))


def _compacts(person: Person) -> Callable[[str], Coroutine[Any, Any, Any]]:
    return lambda session: person.submits(session, ops.Compact())


async def waits(fixture: Fixture) -> None:
    """Agents that wait for each other and for people, for hours."""
    rng, person = fixture.rng, fixture.person()
    fixture.site.model.odds.verbs |= {"subagent_await": 20, "spawn_subagent": 3}
    fixture.site.model.odds.asks = 0.5
    floor = rng.choice((1.0, 300.0))
    rules = TreeRules(slots=4, spawned=4, depth=2, await_floor_s=floor, await_cap_s=7_200.0)
    expires = rng.choice((None, 5_400_000))
    facts = {"agents": True, "tree_rules": rules, "approval_timeout_ms": expires}
    session = await new_session(fixture, person, "untrusted", **facts)
    await used(fixture, person, session, rng.choice((1, 3)))


async def limits(fixture: Fixture) -> None:
    """Sessions that share a provider which allows them little."""
    rng = fixture.rng
    fixture.site.model.providers[PROVIDER] = ProviderSettings(
        id=PROVIDER,
        base_url="http://provider/v1",
        requests_per_minute=rng.choice((3, 10)),
        tokens_per_minute=rng.choice((None, 2_000)),
    )
    people = [fixture.person() for _ in range(rng.choice((2, 3)))]
    plays = [person.does(_alone(fixture, person), "works") for person in people]
    await asyncio.wait(plays)


async def amnesia(fixture: Fixture) -> None:
    """A tree, or a session with long commands, whose Redis forgets what it was told last, again and again."""
    rng, person, odds = fixture.rng, fixture.person(), fixture.site.model.odds
    fixture.nemesis.weights |= {"rewind_at": 30}
    odds.calls, odds.asks = 0.9, 0.1
    facts: dict[str, Any] = {"on_user_input": rng.choice(("replace", "steer"))}
    if rng.random() < 0.7:
        odds.verbs |= {"subagent_spawn": 20}
        rules = TreeRules(slots=4, spawned=8, depth=2, await_floor_s=1.0, await_cap_s=20.0)
        facts |= {"agents": True, "tree_rules": rules}
    await used(fixture, person, await new_session(fixture, person, "never", **facts), rng.choice((2, 4)))


async def primaries(fixture: Fixture) -> None:
    """Two sessions with commands, whose Redis fails over while the old primary still serves some."""
    plays, odds = [], fixture.site.model.odds
    odds.calls, odds.asks = 0.9, 0.0
    if fixture.nemesis.failover is not None:
        # Longer than a lease: others claim what is held at the old primary.
        fixture.nemesis.failover.lasts_s = (5.0, 9.0, 14.0, 14.0)
    for _ in range(2):
        person = fixture.person()
        session = await new_session(
            fixture, person, "never", on_user_input=fixture.rng.choice(("replace", "steer"))
        )
        plays.append(person.does(person.works(session, fixture.rng.choice((2, 4))), "works"))
    await asyncio.wait(plays)


async def letters(fixture: Fixture) -> None:
    """A tree whose root is given one letter after another to pass on, and has little to say itself."""
    rng, person, odds = fixture.rng, fixture.person(), fixture.site.model.odds
    fixture.nemesis.weights |= {"late_copy": 25, "late_stopped": 15}
    odds.opening = ("subagent_spawn",) * 2
    odds.calls, odds.asks = 0.4, 0.0
    rules = TreeRules(slots=4, spawned=4, depth=1, await_floor_s=1.0, await_cap_s=20.0)
    session = await new_session(fixture, person, "never", agents=True, tree_rules=rules)
    fixture.nemesis.lie_in_wait(LateCopy)
    await asyncio.wait([person.does(person.says(session), "says")])
    other = fixture.person()
    for _ in range(rng.choice((1, 2, 3))):
        await asyncio.sleep(rng.choice((0.5, 3.0, 8.0)) * rng.random())
        await asyncio.wait([other.does(other.writes(session, rng.choice((3, 6)), 2), "writes")])


async def ends(fixture: Fixture) -> None:
    """Agents that are cancelled while they work, by people who lose the worker in the middle of that."""
    rng, person, odds = fixture.rng, fixture.person(), fixture.site.model.odds
    odds.calls, odds.asks, odds.agents = 0.95, 0.0, 0.5
    odds.verbs |= {"subagent_spawn": 25, "subagent_cancel": 1}
    fixture.nemesis.weights |= {"end_at": 90, "kill_at": 15}
    rules = TreeRules(slots=4, spawned=4, depth=2, await_floor_s=1.0, await_cap_s=20.0)
    session = await new_session(
        fixture, person, "never", agents=True, tree_rules=rules, on_user_input="steer"
    )
    await person.says(session)
    for _ in range(rng.choice((2, 3))):
        await asyncio.sleep(rng.choice((1.0, 3.0, 6.0)) * rng.uniform(0.5, 1.5))
        if not fixture.nemesis.calm.is_set():
            # A worker that stands still keeps its lease: somebody else has to take over.
            await fixture.nemesis._end_at(stops=rng.random() < 0.6)
        await person.cancels(session, rng.choice((1, 1, 2, 3)))
    await person.works(session, 1)


async def poison(fixture: Fixture) -> None:
    """A session that kills every worker that touches it, until it is set aside; then somebody mends it."""
    rng, person, watch = fixture.rng, fixture.person(), fixture.site.watch
    session = await new_session(fixture, person, "never", **perhaps_agents(rng, 0.3))
    await person.works(session, rng.choice((0, 1)))
    watch.poisonous.add(session)
    await person.says(session)
    for _ in range(120):
        await asyncio.sleep(1.0)
        if session in watch.quarantined():
            break
    await person.works(session, rng.choice((0, 1, 2)))
    await fixture.nemesis.readmits(session)
    await person.works(session, 1)


async def latecomers(fixture: Fixture) -> None:
    """A session whose followers come while it is at work, leave, and come back to where they were."""
    rng, person = fixture.rng, fixture.person()
    facts: dict[str, Any] = {"on_user_input": rng.choice(("replace", "steer")), **perhaps_agents(rng, 0.3)}
    session = await new_session(fixture, person, "never", **facts)
    used = [person.does(person.works(session, rng.choice((2, 4, 6))), "works")]
    late = []
    for _ in range(rng.choice((1, 2, 3))):
        await asyncio.sleep(rng.choice((0.1, 2.0, 6.0)) * rng.random())
        late.append(fixture.person())
        used.append(late[-1].does(late[-1].attaches(session), "attaches"))
    await asyncio.wait(used)
    network = fixture.site.network
    for other in late:
        # What is committed while it reads the log is to reach it, too.
        network.answers_s[other.name] = (0.02, 0.3)
        other.does(other.comes_back(session), "comes back")
    await asyncio.wait([person.does(person.works(session, rng.choice((2, 4))), "works")])
    for other in late:
        network.answers_s.pop(other.name, None)


async def _alone(fixture: Fixture, person: Person) -> None:
    await person.works(await new_session(fixture, person, "never"), fixture.rng.choice((2, 4)))


async def followers(fixture: Fixture) -> None:
    """A play, while others follow the rows that lists show of its sessions."""
    await followed(fixture, (single, approvals, tree, family, budgets, poison))


PLAYS = (
    single,
    approvals,
    several,
    tree,
    family,
    brood,
    budgets,
    watchdogs,
    forks,
    compactions,
    waits,
    limits,
)
LATER = (
    ((archives, abandoned, files, latecomers), 0.15),
    ((outages,), 0.05),
    ((amnesia,), 0.05),
    ((letters,), 0.03),
    ((poison,), 0.03),
    ((undecidable,), 0.03),
    ((ends,), 0.02),
    ((primaries,), 0.02),
    ((servers,), 0.02),
    ((asks,), 0.03),
    ((turns,), 0.03),
    ((commands,), 0.02),
    ((processes,), 0.02),
    ((reviews,), 0.03),
    ((plans,), 0.03),
    ((folders,), 0.03),
    ((queues,), 0.02),
    ((heirs,), 0.02),
    ((jobs,), 0.02),
    ((texts,), 0.02),
    ((births,), 0.02),
    ((doors,), 0.05),
    ((oddities,), 0.02),
    ((left_running,), 0.02),
    ((reruns,), 0.02),
    ((zombies,), 0.03),
    ((refusals,), 0.02),
    ((births,), 0.02),
    ((folders,), 0.03),
    ((texts,), 0.01),
    ((ends,), 0.01),
    ((letters,), 0.02),
    ((turns,), 0.01),
    ((contents,), 0.02),
    ((scripts,), 0.02),
    ((thawed,), 0.02),
    ((crowds,), 0.02),
    ((left_running, left_running, processes), 0.03),
    ((contents,), 0.025),
    ((followers,), 0.03),
    ((burials,), 0.03),
    ((contents,), 0.025),
    ((processes, left_running), 0.02),
    ((births,), 0.015),
    ((receipts,), 0.02),
    ((abandoned, archives, ends, heirs), 0.05),
    ((letters,), 0.02),
    ((contents, folders, processes, left_running), 0.03),
    ((receipts,), 0.015),
    ((redactions,), 0.025),
    ((signed,), 0.02),
    ((resting,), 0.02),
    ((*(folders, letters) * 4, *(births, oddities, receipts, redactions, ends, heirs, contents) * 2), 0.13),
    ((asks, servers, oddities, texts, reruns), 0.05),
    ((traced,), 0.02),
    ((lineages,), 0.02),
    ((lapses,), 0.01),
)
"""Each line takes this share of the seeds over: all others keep their story. A workload in two lines has the
shares of both."""
FEW_EVENTS = {"eq_keep": 40, "eq_ttl_s": 90.0}
WORKLOADS = {
    play.__name__: Workload(play.__name__, play)
    for play in (*PLAYS, *(play for plays, _ in LATER for play in plays))
}
WORKLOADS |= {"primaries": Workload("primaries", primaries, replicas=1.0)}
WORKLOADS |= {"jobs": Workload("jobs", jobs, benches=True)}
WORKLOADS |= {"signed": Workload("signed", signed, signs=True, faults=2, lasts_s=20.0)}
WORKLOADS |= {"traced": Workload("traced", traced, traces=True, faults=5, lasts_s=40.0)}
WORKLOADS |= {"folders": Workload("folders", folders, faults=2, lasts_s=40.0)}
WORKLOADS |= {"births": Workload("births", births, replicas=0.5, faults=2, lasts_s=20.0)}
WORKLOADS |= {"texts": Workload("texts", texts, faults=5, lasts_s=20.0)}
WORKLOADS |= {"reruns": Workload("reruns", reruns)}
WORKLOADS |= {"zombies": Workload("zombies", zombies, faults=10, lasts_s=60.0)}
WORKLOADS |= {"lapses": Workload("lapses", lapses, faults=12, lasts_s=60.0)}
WORKLOADS |= {"burials": Workload("burials", burials, faults=12, lasts_s=60.0)}
WORKLOADS |= {"refusals": Workload("refusals", refusals, faults=5, lasts_s=20.0)}
WORKLOADS |= {"contents": Workload("contents", contents, faults=2, lasts_s=30.0)}
WORKLOADS |= {"left_running": Workload("left_running", left_running, faults=2, lasts_s=40.0)}
WORKLOADS |= {"thawed": Workload("thawed", thawed, faults=10, lasts_s=60.0)}
WORKLOADS |= {"receipts": Workload("receipts", receipts, faults=5, lasts_s=40.0)}
WORKLOADS |= {"redactions": Workload("redactions", redactions, faults=4, lasts_s=60.0)}
WORKLOADS |= {"resting": Workload("resting", resting, faults=4, lasts_s=120.0)}
WORKLOADS |= {"poison": Workload("poison", poison, {"max_tries": 5})}
WORKLOADS |= {
    play.__name__: Workload(play.__name__, play, FEW_EVENTS) for play in (archives, latecomers, doors, crowds)
}
WORKLOADS |= {"followers": Workload("followers", followers, {"max_tries": 5}, faults=3, lasts_s=30.0)}


def chosen(seed: int, master: Random) -> str:
    """A seed's workload."""
    play = master.choice(PLAYS)
    for line, (plays, share) in enumerate(LATER):
        later = Random(f"dendro:{seed}:more{line or ''}")
        if later.random() < share:
            play = later.choice(plays)
    return play.__name__
