"""Arrivals are neither lost nor read for nothing, whenever their news comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.records import Claimed, OpenApproval
from orchestrator.core import commands as c
from orchestrator.core.commit_parts import OpenRequest, watchdog_timer
from orchestrator.core.ids import AgentId, SessionId
from orchestrator.core.state import State
from orchestrator.core.tree import Child, TreeView, Watchdog
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.runtime.arrivals import Arrivals
from orchestrator.runtime.loader import BEGINNING
from orchestrator.runtime.lookups import TreeLookups
from orchestrator.runtime.runner import RunnerConfig
from orchestrator.runtime.runner_context import RunnerContext
from tests.core.driver import Session, a_command, op
from tests.runtime.harness import Harness


async def arrivals_of(harness: Harness, claimed: Claimed) -> Arrivals:
    """Of a claim whose first entries are taken."""
    context = RunnerContext.of(harness.ports, RunnerConfig(), claimed)
    context.journal.position = BEGINNING
    arrivals = Arrivals(context)
    await arrivals.accept_first()
    return arrivals


def ids(arrivals: Arrivals) -> list[str]:
    return [command.id for command, _ in arrivals.inbox if isinstance(command, c.Submitted)]


async def test_a_poke_during_a_read_that_finds_nothing_leads_to_another_read(harness: Harness) -> None:
    session = await harness.session()
    await harness.say(session, id="early")
    claimed = await harness.claimed(session)
    # As after the death of a worker that had consumed all there was.
    arrivals = await arrivals_of(harness, replace(claimed, cursor=claimed.sq_tip, first=()))
    assert not arrivals

    async def spoken_behind_the_read(_: Sequence[Any]) -> None:
        del harness.connection.after["XRANGE"]
        await harness.say(session, id="late")
        arrivals.notify(None)

    harness.connection.after["XRANGE"] = spoken_behind_the_read
    arrivals.notify(None)
    await arrivals.read()
    assert ids(arrivals) == ["late"]


async def test_the_tip_of_what_was_read_is_no_news(harness: Harness) -> None:
    session = await harness.session()
    await harness.say(session, id="first")
    arrivals = await arrivals_of(harness, await harness.claimed(session))
    assert ids(arrivals) == ["first"]
    arrivals.notify(arrivals.inbox[-1][1])
    assert not arrivals.unread
    await harness.say(session, id="second")
    (entry,) = await harness.broker.logs.read_sq(session, "1-0")
    arrivals.notify(entry.id)
    await arrivals.read()
    assert ids(arrivals) == ["first", "second"]


async def test_a_step_that_came_to_nothing_gives_its_cursor_back(harness: Harness) -> None:
    session = await harness.session()
    await harness.say(session)
    arrivals = await arrivals_of(harness, await harness.claimed(session))
    at_claim = arrivals.cursor
    arrivals.cursor = str(arrivals.inbox[-1][1])
    assert arrivals.moved
    arrivals.rewind()
    assert arrivals.cursor == at_claim


@pytest.mark.parametrize(("opened_ms", "found"), [(999, True), (1_000, True), (1_001, False)])
async def test_answer_is_held_against_the_requests_that_stood_open_when_it_was_given(
    opened_ms: int, found: bool
) -> None:
    event = {"type": "exec_approval_request"}
    asked = OpenRequest(event, tree="t", agent_id=AgentId(1), turn=SubmissionId("u1"))
    opened = OpenApproval(SessionId("s"), "c1", orjson.dumps(asked.value()), opened_ms)

    async def approvals() -> tuple[OpenApproval, ...]:
        return (opened,)

    ports: Any = SimpleNamespace(broker=SimpleNamespace(requests=SimpleNamespace(approvals=approvals)))
    facts: Any = SimpleNamespace(tree_id="t")
    assert bool(await TreeLookups.of(ports, facts).pending_below(1_000)) is found


def an_agent(number: int, path: str) -> bytes:
    return orjson.dumps(
        {
            "agent_id": number,
            "session_id": f"session {number}",
            "parent_session_id": f"session {path.split('/')[-2]}",
            "agent_path": path,
            "status": "idle",
            "turn": 1,
        }
    )


@pytest.mark.parametrize("watched", [0, 1, 2, 3])
@pytest.mark.parametrize("gone", ["", "cancel:1", "cancel:2", "cancel:3", "x:1", "x:2", "x:3", "cancel:4"])
async def test_time_of_a_watchdog_tells_whether_its_agent_takes_messages_any_more(
    watched: int, gone: str
) -> None:
    """Agent 1 is the keeper's child, 3 is below 2, which is below 1; 4 is another child."""
    agents = {
        f"a:{number}": an_agent(number, path)
        for number, path in ((1, "0/1"), (2, "0/1/2"), (3, "0/1/2/3"), (4, "0/4"))
    }
    fields = agents | ({gone: b"1"} if gone else {})

    async def read(tree: str) -> dict[str, bytes]:
        return fields

    async def insist(send: Any) -> Any:
        return await send()

    dogs = {AgentId(id): Watchdog(AgentId(id), SessionId(""), 1, "", id) for id in (0, 1, 2, 3)}
    children = {AgentId(1): Child(AgentId(1), SessionId("session 1"), "spawn", "idle", 0)}
    state = replace(BEGINNING.state, tree=TreeView(children=children, watchdogs=dogs))
    context: Any = SimpleNamespace(
        ports=SimpleNamespace(broker=SimpleNamespace(trees=SimpleNamespace(agents=read))),
        claimed=SimpleNamespace(sq_tip="0-0", cursor="0-0"),
        journal=SimpleNamespace(state=state),
        writing=SimpleNamespace(insist=insist),
    )
    fired = c.TimerFired(watchdog_timer(AgentId(watched)), watched)
    entry: Any = None
    found = await Arrivals(context)._with_lookups(fired, entry)
    assert isinstance(found, c.TimerFired)
    line = {1: "1", 2: "12", 3: "123"}.get(watched, "")
    kind, _, number = gone.partition(":")
    over = number in line if kind == "cancel" else number == str(watched)
    assert found.over is (bool(gone) and over)
    if not found.over and watched:
        assert found.parent == f"session {watched - 1}"


@pytest.mark.parametrize("spoken_to", [1, 2, 3, 0])
async def test_cancel_finds_the_agents_that_messages_before_it_are_still_to_start(spoken_to: int) -> None:
    """Agents 2 and 3 are below 1, and all of them rest."""
    fields = {
        f"a:{number}": an_agent(number, path) for number, path in ((1, "0/1"), (2, "0/1/2"), (3, "0/1/3"))
    }

    async def read(tree: str) -> dict[str, bytes]:
        return fields

    async def insist(send: Any) -> Any:
        return await send()

    context: Any = SimpleNamespace(
        ports=SimpleNamespace(broker=SimpleNamespace(trees=SimpleNamespace(agents=read))),
        claimed=SimpleNamespace(sq_tip="0-0", cursor="0-0"),
        journal=SimpleNamespace(state=Session().state),
        writing=SimpleNamespace(insist=insist),
    )
    arrivals, entry = Arrivals(context), cast(Any, None)
    said = c.Submitted(SubmissionId("m"), op("message_agent", agent_id=spoken_to, text="go on"))
    arrivals.add((said, None))
    found = await arrivals._with_lookups(
        c.Submitted(SubmissionId("x"), op("cancel_agent", agent_id=1)), entry
    )
    assert isinstance(found, c.Submitted)
    assert [one.agent_id for one in found.agents if one.at_work] == [spoken_to] * bool(spoken_to)


def asked_by(agent_id: int, kind: str = "exec") -> c.PendingBelow:
    agent = AgentId(agent_id)
    return c.PendingBelow(agent, SessionId(f"s{agent_id}"), CallId("c1"), SubmissionId("t1"), True, kind)


def own_request() -> State:
    session = Session()
    session.say("go", "t1")
    session.asks_for("c1")
    session.assessed("c1", a_command("rm", "-rf", "x", dangerous=True))
    return session.state


@pytest.mark.parametrize("id", ["c1", "t1"])
@pytest.mark.parametrize("meant", [None, 0, 2, 3])
@pytest.mark.parametrize("open_for", [(), (0,), (2,), (3,), (0, 3), (2, 3)])
async def test_answer_is_held_against_earlier_decisions_unless_its_own_agent_is_asked_that_now(
    monkeypatch: pytest.MonkeyPatch, open_for: tuple[int, ...], meant: int | None, id: str
) -> None:
    decided = c.DecidedBelow(AgentId(2), CallId("c1"), SubmissionId("t1"), "approved", "ann")
    looked: list[tuple[str, int | None]] = []

    async def pending_below(self: TreeLookups, at_ms: int) -> tuple[c.PendingBelow, ...]:
        return tuple(map(asked_by, filter(None, open_for)))

    async def decided_below(self: TreeLookups, id: str, agent_id: int | None) -> tuple[c.DecidedBelow, ...]:
        looked.append((id, agent_id))
        return (decided,)

    async def insist(send: Any) -> Any:
        return await send()

    monkeypatch.setattr(TreeLookups, "pending_below", pending_below)
    monkeypatch.setattr(TreeLookups, "decided_below", decided_below)
    state = own_request() if 0 in open_for else Session().state
    child = Child(AgentId(2), SessionId("s2"), "spawn", "running", 0)
    state = replace(state, tree=TreeView(children={child.agent_id: child}))
    context: Any = SimpleNamespace(
        ports=None,
        claimed=SimpleNamespace(sq_tip="0-0", cursor="0-0"),
        journal=SimpleNamespace(state=state),
        writing=SimpleNamespace(insist=insist),
    )
    answer = c.Submitted(SubmissionId("a"), op("exec_approval", id=id, decision="denied", agent_id=meant))
    entry: Any = SimpleNamespace(at_ms=1)
    found = await Arrivals(context)._with_lookups(answer, entry)
    assert isinstance(found, c.Submitted)
    asked = open_for if meant is None else [agent for agent in open_for if agent == meant]
    # Under its turn's id the root's own request is found by the rules, and hides no decision.
    is_open = bool([agent for agent in asked if agent or id == "c1"])
    assert found.decided == (() if is_open else (decided,))
    assert looked == ([] if is_open else [(id, meant or None)])
    assert [each.agent_id for each in found.below] == [agent for agent in open_for if agent]
