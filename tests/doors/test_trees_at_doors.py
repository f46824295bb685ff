"""Trees of agents at a door: put away and deleted whole, and come back to with all that works below."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.errors import Corrupt
from orchestrator.broker.records import AT_REST
from orchestrator.core import registry
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.gateways.app_server.door import Door
from orchestrator.gateways.app_server.messages import RpcError
from orchestrator.gateways.app_server.methods import changes, fleet, turns
from orchestrator.gateways.app_server.methods.turns import ThreadParams, ThreadResume
from orchestrator.protocol.wire import written
from orchestrator.rollouts.object_store import ArchiveUnavailable
from tests.doors.test_door_of_several_threads import AGENT, BELOW, OTHER, ROOT, Sent, asked, live
from tests.views.test_thread_log import Logs, turn
from tests.views.test_threads import ROOT as LOGGED

MEMBERS = (ROOT, AGENT, BELOW)
"""A root, its agent, and the agent of that one."""


# ── put away, deleted ─────────────────────────────────────────────────────────────────────────────


class Fleet:
    """A shard with a tree and a session of another one, and what becomes of them."""

    def __init__(self, status: dict[SessionId, str], held: set[SessionId]) -> None:
        self.heads = [
            SimpleNamespace(
                session=session,
                tree=OTHER if session == OTHER else ROOT,
                agent_id=MEMBERS.index(session) if session in MEMBERS else 0,
                status=status.get(session, "idle"),
                let_go=session not in held,
                quarantined=status.get(session) == "quarantined",
            )
            for session in (*MEMBERS, OTHER)
        ]
        self.shelved: list[SessionId] = []
        self.deleted: list[list[SessionId]] = []
        self.logs, self.trees = self, self

    async def heads_of_tree(self, tree: TreeId) -> list[Any]:
        return [head for head in self.heads if head.tree == tree]

    async def enlist(self, session: SessionId, *, shelve: bool) -> bool:
        self.shelved.append(session)
        return True

    async def delete(self, seen: Any, by: str) -> None:
        self.deleted.append([one.session for one in seen])

    async def calls(self, method: str, monkeypatch: pytest.MonkeyPatch, at: Sent | None = None) -> None:
        async def head_to_read(*_: Any) -> Any:
            return self.heads[0]

        async def until(broker: Any, names: Any, look: Any, patience_s: float) -> Any:
            return await look()

        monkeypatch.setattr(changes, "head_to_read", head_to_read)
        monkeypatch.setattr(changes, "until", until)
        at = at or Sent()
        ports = cast(Any, at.door.ports)
        ports.found, ports.delete = SimpleNamespace(broker=self), self.delete
        await changes.METHODS[method].answer(at.door, ThreadParams.model_validate({"threadId": ROOT}))


@pytest.mark.parametrize("method", ["thread/archive", "thread/delete"])
@pytest.mark.parametrize("busy", [*MEMBERS, OTHER])
@pytest.mark.parametrize("why", ["running", "awaiting_approval", "held", "quarantined", "idle"])
async def test_tree_is_put_away_or_deleted_whole_and_not_while_any_of_it_is_at_work(
    method: str, busy: SessionId, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet({} if why == "held" else {busy: why}, {busy} if why == "held" else set())
    if busy != OTHER and why != "idle":
        told = (
            "was quarantined.*dendro rm --force" if why == "quarantined" else "is at work: interrupt it first"
        )
        with pytest.raises(RpcError, match=f"{busy} {told}"):
            await fleet.calls(method, monkeypatch)
        assert (fleet.shelved, fleet.deleted) == ([], [])
        return
    assert "idle" in AT_REST
    await fleet.calls(method, monkeypatch)
    assert (fleet.shelved, fleet.deleted) == (
        ([ROOT], []) if method == "thread/archive" else ([], [list(MEMBERS)])
    )


@pytest.mark.parametrize("root", ["away", "listed", "gone", "damaged"])
@pytest.mark.parametrize("spoken_to", [ROOT, BELOW])
async def test_words_in_a_thread_or_in_an_agent_below_it_bring_the_tree_back(
    spoken_to: SessionId, root: str
) -> None:
    """Agents are put away, and listed so, with their root."""
    fleet, told = Fleet({}, set()), list[tuple[str, str]]()
    for one in fleet.heads:
        one.shelved = one.session == ROOT and root == "away"

    async def head(session: SessionId) -> Any:
        assert session == ROOT
        if root == "damaged":
            raise Corrupt(session, "its key")
        return None if root == "gone" else fleet.heads[0]

    door = cast(Any, SimpleNamespace(
        client=SimpleNamespace(head=head),
        ports=SimpleNamespace(found=SimpleNamespace(broker=fleet)),
        tell_all=lambda session, method, params: told.append((method, params["threadId"])),
    ))  # fmt: skip
    await Door.goes_on(door, cast(Any, next(one for one in fleet.heads if one.session == spoken_to)))
    back = root == "away"
    assert (fleet.shelved, told) == (([ROOT], [("thread/unarchived", ROOT)]) if back else ([], []))


@pytest.mark.parametrize("gone", [True, False])
async def test_tree_whose_archive_is_away_is_told_to_be_deleted_where_it_is_and_kept_where_it_is_not(
    gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet({}, set())

    async def delete(seen: Any, by: str) -> None:
        raise ArchiveUnavailable("the archive does not answer")

    async def head(session: SessionId) -> Any:
        return None if gone else fleet.heads[0]

    monkeypatch.setattr(fleet, "delete", delete)
    at = Sent()
    at.hears(ROOT, OTHER)
    cast(Any, at.door.client).head = head
    if gone:
        await fleet.calls("thread/delete", monkeypatch, at)
    else:
        with pytest.raises(RpcError, match="nothing was deleted; try again"):
            await fleet.calls("thread/delete", monkeypatch, at)
    assert [b"thread/deleted" in each for each in at.lines] == [True] * gone
    assert (ROOT in at.door.subscriptions, OTHER in at.door.subscriptions) == (not gone, True)


@pytest.mark.parametrize("method", ["thread/archive", "thread/unarchive", "thread/delete"])
async def test_agents_thread_is_put_away_or_deleted_with_its_root_alone(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet({}, set())
    fleet.heads.reverse()
    assert fleet.heads[1].session == BELOW
    fleet.heads.pop(0)
    with pytest.raises(RpcError, match=f"goes with its tree: name that of its root, {ROOT}"):
        await fleet.calls(method, monkeypatch)
    assert (fleet.shelved, fleet.deleted) == ([], [])


# ── come back to ──────────────────────────────────────────────────────────────────────────────────


class Agent:
    """An agent of a tree, by its path."""

    def __init__(self, session: SessionId, path: tuple[int, ...], *, at_work: bool) -> None:
        self.session, self.path, self.at_work = session, path, at_work

    def below(self, other: int) -> bool:
        return other in self.path[:-1]


@pytest.mark.parametrize("back_to", [0, 1])
@pytest.mark.parametrize("at_work", list(product([True, False], repeat=3)))
@pytest.mark.parametrize("asking", [(), (ROOT,), (AGENT, BELOW), (ROOT, AGENT, BELOW, OTHER)])
@pytest.mark.parametrize("damaged", [None, BELOW])
async def test_client_that_comes_back_hears_each_agent_below_that_works_and_is_asked_by_each(
    damaged: SessionId | None,
    back_to: int,
    at_work: tuple[bool, ...],
    asking: tuple[SessionId, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An agent's thread has those below the agent, and none beside it; a damaged one keeps from no other."""
    agents = {
        number: Agent(session, path, at_work=works)
        for number, (session, path, works) in enumerate(
            zip((AGENT, BELOW, OTHER), ((0, 1), (0, 1, 2), (0, 3)), at_work, strict=True), 1
        )
    }
    thread = (ROOT, AGENT)[back_to]

    async def head_to_read(*_: Any) -> Any:
        return SimpleNamespace(session=thread, agent_id=back_to, tree=ROOT)

    async def value(*_: Any) -> Any:
        return {}

    async def thread_of(door: Any, head: Any) -> Any:
        if head.session == damaged:
            raise Corrupt("key", "it is no hash")
        return {"id": head.session}

    async def hear(session: SessionId, *given: Any, **named: Any) -> Any:
        ((opened, _),) = asked(session).changes
        heard = live(session)
        heard.projector.waiting = (opened,) if session in asking else ()
        return heard

    monkeypatch.setattr(turns, "head_to_read", head_to_read)
    monkeypatch.setattr(turns, "projected", lambda fields: SimpleNamespace(agents=agents))
    monkeypatch.setattr(turns, "thread_of", thread_of)
    for name in ("_seen", "_answer", "_tell_tokens"):
        monkeypatch.setattr(turns, name, value)
    at = Sent()
    ports = cast(Any, at.door.ports)
    ports.asks_auto_review = False
    ports.found = SimpleNamespace(broker=SimpleNamespace(trees=SimpleNamespace(agents=value)))
    cast(Any, at.threads).hear = hear
    await turns.thread_resume(at.door, ThreadResume.model_validate({"threadId": thread}))
    below = [
        one.session
        for one in agents.values()
        if one.at_work and (thread == ROOT or one.below(back_to)) and one.session != damaged
    ]
    assert list(at.door.subscriptions) == [thread, *below]
    told = [orjson.loads(line) for line in at.lines]
    started = [one["params"]["thread"]["id"] for one in told if one["method"] == "thread/started"]
    requests = [one["params"]["threadId"] for one in told if one["method"] != "thread/started"]
    assert started == below
    assert requests == [session for session in (thread, *below) if session in asking]
    places = {(one["method"], str(one["params"])): at for at, one in enumerate(told)}
    assert len(places) == len(told)
    for session in below:
        about = [at for at, one in enumerate(told) if session in str(one["params"])]
        assert told[about[0]]["method"] == "thread/started"


async def test_thread_is_told_up_to_the_very_place_from_which_it_is_heard() -> None:
    logs = Logs()
    now = logs.add(LOGGED, [line for name in ("a", "b", "c") for line in turn(name, "go")])
    at = Sent()
    cast(Any, at.door.ports).found = logs

    async def head(session: SessionId) -> Any:
        return now

    cast(Any, at.door.client).head = head
    earlier = logs.heads[LOGGED]
    for place in range(now.seq + 1):
        seen = await turns._seen(at.door, earlier, place)
        wanted = place or now.seq
        assert (seen.seq, seen.head) == (wanted, logs.logs[LOGGED][wanted - 1].chain)


# ── ended ─────────────────────────────────────────────────────────────────────────────────────────


PATHS = {1: "0/1", 2: "0/1/2", 3: "0/1/2/3", 4: "0/4"}
"""The agents of a tree: three below one another, and one beside them."""


@pytest.mark.parametrize("target", range(5))
@pytest.mark.parametrize("rests", [None, 1, 2, 3, 4])
async def test_agent_that_is_ended_ends_with_all_below_it_that_work_and_each_is_told_with_its_own_death(
    target: int, rests: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deaths of before are no news; a root closes its whole tree; below who rests others may work."""
    handed_in: list[Any] = []

    paths = dict(PATHS)

    def agent(number: int) -> Any:
        record = {
            "agent_id": number,
            "parent_agent_id": int(paths[number].split("/")[-2]),
            "session_id": ROOT,
            "agent_path": paths[number],
            "status": "ready" if number == rests else "running",
            "turn": None,
        }
        return registry.Agent(record)

    agents = {number: agent(number) for number in PATHS}
    head = SimpleNamespace(session=(ROOT, AGENT, BELOW, OTHER, ROOT)[target], agent_id=target, tree=ROOT)

    async def of_door(thread: str) -> Any:
        return (
            head
            if thread == head.session and target
            else SimpleNamespace(session=ROOT, agent_id=0, tree=ROOT)
        )

    async def value(*_: Any) -> Any:
        return SimpleNamespace(tree_seq=7 + len(handed_in))

    async def submit(to: Any, submission: Any) -> None:
        handed_in.append((to.session, written(submission.op)))

    async def tree_log(broker: Any, tree: Any, after: int) -> list[Any]:
        log = [(6, 1, "doubtful"), (8, 1, "proved"), (9, 2, None), (10, 3, "doubtful"), (11, 4, "proved")]
        messages = [
            {"agent_id": number, "status": "canceled", "cancel": how} for at, number, how in log if at > after
        ]
        return [SimpleNamespace(message=message) for message in messages]

    async def until(broker: Any, sessions: Any, look: Any, patience_s: float) -> None:
        # The last agent makes another one before the root has read that it is to end.
        paths[5] = f"{PATHS[4]}/5"
        agents[5] = agent(5)
        assert not await look()

    async def closed(session: SessionId) -> Any:
        return SimpleNamespace(status="closed")

    monkeypatch.setattr(fleet, "projected", lambda fields: registry.RegistryView(agents))
    monkeypatch.setattr(fleet, "tree_log", tree_log)
    monkeypatch.setattr(fleet, "until", until)
    trees, logs = SimpleNamespace(agents=value, registry=value), SimpleNamespace(head=closed)
    broker = SimpleNamespace(trees=trees, logs=logs)
    door = SimpleNamespace(
        head=of_door,
        client=SimpleNamespace(submit=submit),
        ports=SimpleNamespace(found=SimpleNamespace(broker=broker)),
    )
    asked = fleet.AgentCancel.model_validate({"threadId": head.session, "reason": "enough"})
    told = await fleet.agent_cancel(cast(Any, door), asked)
    working = [number for number in PATHS if number != rests]
    ending = [number for number in working if str(target) in PATHS[number].split("/")]
    if not ending:
        assert told == {"agents": [{"agentId": target, "death": "none"}]}
        assert handed_in == []
        return
    ending += [5] if target in (0, 4) else []
    deaths = {1: "proved", 2: "proved", 3: "doubtful", 4: "proved", 5: "none"}
    assert told["agents"] == [{"agentId": number, "death": deaths[number]} for number in ending]
    assert ("closed" in told) is (target == 0)
    ((session, op),) = handed_in
    assert session == ROOT
    wanted = (
        {"type": "cancel_agent", "agent_id": target, "reason": "enough"} if target else {"type": "shutdown"}
    )
    assert {name: op[name] for name in wanted} == wanted
