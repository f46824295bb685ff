"""Clients that hear a session through one process are told the same, whenever they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.errors import Corrupt, UnknownSession
from orchestrator.broker.follow import BEGINNING, EqCursor
from orchestrator.broker.records import Labels
from orchestrator.core.ids import SessionId
from orchestrator.core.tree import ROOT
from orchestrator.gateways.app_server import live_threads as live_module
from orchestrator.gateways.app_server.door import Conversations, Door
from orchestrator.gateways.app_server.live_threads import (
    FAULT,
    LOOK_BACK,
    Line,
    LiveThread,
    LiveThreads,
    Told,
    events_of_running_turn,
)
from orchestrator.gateways.app_server.messages import RpcError
from orchestrator.gateways.client import GAP_TEXTS
from orchestrator.gateways.principals import Principal
from orchestrator.gateways.window.stream import LogChannel, ThreadSeat
from orchestrator.protocol.agents import AgentOrigin, LifecycleChange, SubagentStatus, SubagentSummary
from orchestrator.protocol.events import SubagentLifecycle
from orchestrator.protocol.wire import written
from orchestrator.rollouts import BrokenArchive
from orchestrator.views.event import Event
from tests.views.test_thread_log import Logs, event, turn
from tests.views.test_threads import ROOT as TREE

SESSION = SessionId("0199a2b4-0000-7000-8000-000000000001")
CHILD = SessionId("0199a2b4-0000-7000-8000-000000000002")
BEHIND = EqCursor(9, 21, "0" * 8)


class Story:
    """A client of a session whose events a test gives."""

    def __init__(self) -> None:
        self.given: asyncio.Queue[Event | EqCursor | Exception | None] = asyncio.Queue()
        self.taken = asyncio.Event()
        self.seq = 6
        self.followed_from: list[EqCursor] = []

    async def head(self, session: SessionId) -> Any:
        """The head, which grows from one look to the next."""
        self.seq += 1
        return SimpleNamespace(
            session=session, agent_id=ROOT, tree=session, status="idle", seq=self.seq, eq_n=self.seq - 4,
            head=b"\0" * 32, labels=Labels(),
        )  # fmt: skip

    async def follow(
        self,
        session: SessionId,
        cursor: EqCursor,
        *,
        newborn: bool,
        on_gap: Callable[[EqCursor | None], None],
    ) -> AsyncIterator[Event]:
        self.followed_from.append(cursor)
        while True:
            item = await self.given.get()
            if isinstance(item, Exception):
                raise item
            if isinstance(item, Event):
                yield item
            else:
                on_gap(item)
            self.taken.set()

    async def tells(self, item: Event | EqCursor | None) -> None:
        self.taken.clear()
        self.given.put_nowait(item)
        await self.taken.wait()


class Hears:
    """A connection, with the types of the events that it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.lost: asyncio.Queue[str] = asyncio.Queue()

    def hear(self, told: Told) -> None:
        self.told.append(told.event.type)

    def takes(self, session: SessionId) -> bool:
        return False

    def adopt(self, live: Any, thread: Any) -> None: ...

    def lose(self, session: SessionId, fault: str = "") -> None:
        self.lost.put_nowait(fault)


class Adopting(Hears):
    """A connection that takes agents, with those that it was told of."""

    def __init__(self) -> None:
        super().__init__()
        self.children: list[SessionId] = []
        self.adopted = asyncio.Event()

    def takes(self, session: SessionId) -> bool:
        return True

    def adopt(self, live: Any, thread: Any) -> None:
        self.children.append(thread)
        self.adopted.set()


def live_threads() -> LiveThreads:
    ports = SimpleNamespace(found=SimpleNamespace(broker=None), now_ms=lambda: 1)
    return LiveThreads(cast(Any, ports), lambda session, change, turn: ())


async def test_client_that_comes_while_a_gap_is_told_hears_what_comes_behind_it() -> None:
    story, first, second, all_threads = Story(), Hears(), Hears(), live_threads()
    live = await all_threads.hear(SESSION, cast(Any, story), first)
    await story.tells(None)
    await story.tells(Event("", {"type": "warning", "message": GAP_TEXTS["rewound"]}))
    await story.tells(Event("t", {"type": "task_started"}))
    coming = asyncio.create_task(all_threads.hear(SESSION, cast(Any, story), second))
    await story.tells(Event("t", {"type": "task_complete"}))
    await story.tells(BEHIND)
    assert await coming is live
    await story.tells(Event("u", {"type": "task_started"}, EqCursor(10, 22, "1" * 8)))
    assert first.told == ["warning", "task_started", "task_complete", "task_started"]
    assert second.told == ["task_started"]
    await all_threads.close()


WHY = "a part of it is not at /srv/archive"
FAULTS: dict[str, tuple[Exception, str]] = {
    "deleted": (UnknownSession(SESSION), ""),
    "damaged": (Corrupt("dendro:eq", WHY), WHY),
    "archive": (BrokenArchive(WHY), f"cannot be read to its end now: {WHY}"),
    "a fault": (KeyError(WHY), FAULT),
}


@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("how", FAULTS)
async def test_listeners_are_told_why_a_thread_is_followed_no_further_and_who_comes_then_hears_it_anew(
    how: str, gap: bool
) -> None:
    error, words = FAULTS[how]
    story, first, second, all_threads = Story(), Hears(), Hears(), live_threads()
    live = await all_threads.hear(SESSION, cast(Any, story), first)
    if gap:
        await story.tells(None)
    story.given.put_nowait(error)
    async with asyncio.timeout(20):
        fault = await first.lost.get()
        assert words in fault if words else not fault
        assert all_threads.of(SESSION) is None
        anew = await all_threads.hear(SESSION, cast(Any, story), second)
    assert all_threads.of(SESSION) is anew is not live
    await story.tells(Event("u", {"type": "task_started"}))
    assert (first.told, second.told) == ([], ["task_started"])
    all_threads.leave(SESSION, first)
    assert all_threads.of(SESSION) is anew
    await all_threads.close()


async def test_call_that_waits_for_an_event_of_such_a_thread_is_refused_with_the_reason() -> None:
    story, all_threads = Story(), live_threads()

    async def submit() -> None:
        story.given.put_nowait(Corrupt("dendro:eq", WHY))

    async with asyncio.timeout(20):
        head = await story.head(SESSION)
        with pytest.raises(RpcError, match=WHY):
            await all_threads.answer(head, cast(Any, story), lambda event: True, submit, 15)
    await all_threads.close()


@pytest.mark.parametrize("tenant", [False, True])
async def test_client_and_window_are_told_the_reason_and_a_tenant_no_path(tenant: bool) -> None:
    reader = Principal("acme/eve", "acme") if tenant else Principal("ann")
    told: list[tuple[str, Any]] = []
    door = Door.__new__(Door)
    door.principal = reader
    vars(door).update(notify=lambda *line: told.append(line), unsubscribe=lambda session: None)
    door.lose(SESSION, WHY)
    assert [method for method, _ in told] == ["warning", "thread/closed"]
    door.lose(SESSION)
    assert [method for method, _ in told[2:]] == ["thread/closed"]
    channel = LogChannel(f"thread:{SESSION}", lambda: None)
    ThreadSeat(channel, cast(Any, SimpleNamespace(namespace=reader.namespace))).lose(SESSION, WHY)
    said = orjson.loads(next(iter(channel.taken(0.0))).split(b"data: ")[1])
    assert said["type"] == "error"
    for text in (told[0][1]["message"], said["error"]["message"]):
        assert "is not at" in text
        assert ("/srv" in text) is not tenant


async def test_thread_is_followed_from_the_very_event_up_to_which_its_log_was_read() -> None:
    story, client, all_threads = Story(), Hears(), live_threads()
    live = await all_threads.hear(SESSION, cast(Any, story), client)
    await story.tells(Event("t", {"type": "task_started"}))
    assert live.seq == story.seq == 7
    assert story.followed_from == [EqCursor(3, 7, "0" * 8)]
    await all_threads.close()


async def test_listener_of_version_1_is_asked_once_of_what_was_told_or_settled_while_it_was_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Open requests are read from Redis, and the session's events arrive at the same time."""
    lines: list[Line] = []
    principal = SimpleNamespace(may=lambda scope: True)
    ports = SimpleNamespace(found=None, now_ms=lambda: 1)
    door = SimpleNamespace(
        ports=ports,
        threads=SimpleNamespace(),
        principal=principal,
        client=None,
        new_client=lambda: None,
        tell=lines.append,
    )
    listeners = Conversations(cast(Any, door))

    async def hear(session: SessionId, client: Any, listener: Any) -> None: ...

    def asks(call_id: str) -> dict[str, Any]:
        return {
            "type": "exec_approval_request", "call_id": call_id, "turn_id": "t1", "command": ["ls"],
            "cwd": "/", "parsed_cmd": [], "reason": None,
        }  # fmt: skip

    async def meanwhile(found: Any, head: Any) -> list[Any]:
        settled = {
            "type": "request_resolved", "call_id": "settled", "turn_id": "t1", "agent_id": 0,
            "decision": "denied",
        }  # fmt: skip
        for message in (asks("told"), settled):
            listeners.hear(Told(SESSION, Event("t1", message), ()))
        return [SimpleNamespace(event=asks(name)) for name in ("told", "settled", "open")]

    door.threads.hear = hear
    monkeypatch.setattr("orchestrator.gateways.app_server.door.open_requests", meanwhile)
    await listeners.listen(cast(Any, SimpleNamespace(session=SESSION)))
    asked = [line.params["callId"] for line in lines if line.method == "execCommandApproval"]
    assert asked == ["told", "open"]


async def test_place_behind_a_gap_is_known_before_anything_else_happens() -> None:
    story, all_threads = Story(), live_threads()
    live = await all_threads.hear(SESSION, cast(Any, story), Hears())
    assert live.seq == 7
    await story.tells(None)
    await story.tells(Event("", {"type": "warning", "message": GAP_TEXTS["trimmed"]}))
    await story.tells(BEHIND)
    assert live.seq == BEHIND.seq
    await all_threads.close()


@pytest.mark.parametrize(
    "behind", [0, LOOK_BACK - 2, LOOK_BACK - 1, LOOK_BACK, 8 * LOOK_BACK, 8 * LOOK_BACK + 1]
)
@pytest.mark.parametrize("before", [0, 2, LOOK_BACK])
@pytest.mark.parametrize("namespace", ["", "acme"])
async def test_running_turn_is_read_from_its_beginning_however_far_back_that_is(
    behind: int, before: int, namespace: str
) -> None:
    """The turns before it are no part of it, and a tenant is told of it without the machine's paths."""
    logs, warned = Logs(), event("warning", "now", message="read /home/ann/x")
    lines = [line for n in range(before // 2) for line in turn(f"t{n}")]
    lines += [event("task_started", "now"), *[warned] * behind]
    head = logs.add(TREE, lines, status="running", labels=Labels(namespace, "cli", "ann", False))
    found = await events_of_running_turn(cast(Any, logs), head)
    assert [each.id for each in found] == ["now"] * (behind + 1)
    assert {each.msg.get("message") for each in found[1:]} <= {
        "read …/x" if namespace else "read /home/ann/x"
    }


async def test_nothing_is_read_of_a_turn_that_has_ended_and_of_a_log_in_which_none_began() -> None:
    logs = Logs()
    rests = logs.add(TREE, turn("t1"), status="idle")
    assert await events_of_running_turn(cast(Any, logs), rests) == []
    none = logs.add(TREE, [event("warning", message="x")] * (LOOK_BACK + 1), status="running")
    assert await events_of_running_turn(cast(Any, logs), none) == []


async def test_client_that_waits_behind_a_gap_comes_when_all_others_have_left() -> None:
    story, first, second, all_threads = Story(), Hears(), Hears(), live_threads()
    live = await all_threads.hear(SESSION, cast(Any, story), first)
    await story.tells(None)
    coming = asyncio.create_task(all_threads.hear(SESSION, cast(Any, story), second))
    await asyncio.sleep(0)
    all_threads.leave(SESSION, first)
    assert await coming is not live
    await all_threads.close()


async def test_agent_that_works_again_is_heard_by_each_client_that_came_while_it_rested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Agents at rest are not heard: a client hears one from when it is born, or begins to work again."""

    async def known(broker: Any, heads: Any) -> list[Any]:
        return [head.session for head in heads]

    def of_the_root(live: LiveThread, *, newborn: bool = False) -> None:
        if live.session == SESSION:
            follow(live, newborn=newborn)

    follow = LiveThread.follow
    monkeypatch.setattr("orchestrator.gateways.app_server.live_threads.threads", known)
    monkeypatch.setattr(LiveThread, "follow", of_the_root)
    story, stranger, first, all_threads = Story(), Hears(), Adopting(), live_threads()
    for each in (first, stranger):
        await all_threads.hear(SESSION, cast(Any, story), each)
    child = SubagentSummary(
        agent_id=1,
        session_id=CHILD,
        origin=AgentOrigin.SPAWN,
        status=SubagentStatus.RUNNING,
        started_at_ms=0,
    )
    born = written(SubagentLifecycle(event=LifecycleChange.CREATED, subagent=child))
    works = {"type": "subagent_lifecycle", "event": "status", "session_id": CHILD, "status": "running"}
    await story.tells(Event("", born))
    await asyncio.wait_for(first.adopted.wait(), 5)
    later = [Adopting(), Adopting()]
    for each in later:
        await all_threads.hear(SESSION, cast(Any, story), each)
        await story.tells(Event("", works))
        await asyncio.wait_for(each.adopted.wait(), 5)
    together = [Adopting(), Adopting()]
    for each in together:
        await all_threads.hear(SESSION, cast(Any, story), each)
    await story.tells(Event("", works))
    await asyncio.wait_for(asyncio.gather(*(each.adopted.wait() for each in together)), 5)
    await story.tells(Event("", works))
    assert [each.children for each in (first, *later, *together)] == [[CHILD]] * 5
    await all_threads.close()


@pytest.mark.parametrize("status", ["idle", "closed", "running", "awaiting_approval"])
@pytest.mark.parametrize("newborn", [True, False])
@pytest.mark.parametrize("clients", [1, 2])
async def test_agent_is_heard_from_its_first_event_if_it_is_new_and_else_from_where_its_log_is_unless_closed(
    clients: int, newborn: bool, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new agent may have told something before its clients come; what an older one told is in its log.

    One that has begun to work may be at rest again before word of it comes.
    """

    async def known(broker: Any, heads: Any) -> list[Any]:
        return [head.session for head in heads]

    async def read(live: LiveThread, head: Any) -> None:
        done.append("read")
        live._cursor = BEHIND

    done: list[str] = []
    monkeypatch.setattr("orchestrator.gateways.app_server.live_threads.threads", known)
    monkeypatch.setattr(LiveThread, "read", read)
    monkeypatch.setattr(LiveThread, "follow", lambda live, **how: done.append(str(live._cursor)))
    all_threads = live_threads()

    async def head(session: SessionId) -> Any:
        return SimpleNamespace(session=session, agent_id=1, tree=SESSION, status=status)

    client = cast(Any, SimpleNamespace(head=head))
    parent = LiveThread(cast(Any, all_threads._ports), all_threads._write, client, SESSION, all_threads._born)
    several = [Adopting() for _ in range(clients)]
    parent.listeners.extend(several)
    for _ in range(2):
        assert await all_threads._adopt_now(parent, CHILD, newborn) is None
    heard = newborn or status != "closed"
    assert [each.children for each in several] == [[CHILD] * heard] * clients
    begun = [str(BEGINNING)] if newborn else ["read", str(BEHIND)]
    assert done == (begun if heard else [])


async def test_agent_is_heard_behind_a_gap_that_others_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    async def known(broker: Any, heads: Any) -> list[Any]:
        return [head.session for head in heads]

    monkeypatch.setattr("orchestrator.gateways.app_server.live_threads.threads", known)
    story, stays, comes, all_threads = Story(), Hears(), Adopting(), live_threads()
    heard = await all_threads.hear(CHILD, cast(Any, story), stays)
    parent = LiveThread(
        cast(Any, all_threads._ports), all_threads._write, cast(Any, story), SESSION, all_threads._born
    )
    parent.listeners.append(comes)
    heard._gap(None)
    coming = asyncio.create_task(all_threads._adopt(parent, CHILD, newborn=True))
    for _ in range(10):
        await asyncio.sleep(0)
    assert comes.children == []
    heard._gap(BEHIND)
    await coming
    assert comes.children == [CHILD]
    assert len(story.followed_from) == 1, "who follows it twice tells everything twice"
    await all_threads.close()


async def test_agent_whose_clients_leave_while_it_is_looked_at_is_not_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def known(broker: Any, heads: Any) -> list[Any]:
        parent.listeners.clear()
        return [head.session for head in heads]

    monkeypatch.setattr("orchestrator.gateways.app_server.live_threads.threads", known)
    story, all_threads = Story(), live_threads()
    parent = LiveThread(
        cast(Any, all_threads._ports), all_threads._write, cast(Any, story), SESSION, all_threads._born
    )
    parent.listeners.append(Adopting())
    assert await all_threads._adopt_now(parent, CHILD, newborn=True) is None
    assert (all_threads.of(CHILD), story.followed_from) == (None, [])
    await all_threads.close()


async def test_each_turn_of_an_agent_is_told_with_the_turn_of_the_root_in_which_it_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def begun_since(found: Any, root: Any, at_ms: int) -> list[int]:
        return [at for at in (10, 20, 30) if at <= at_ms]

    def turn_at(begun: list[int], at_ms: int) -> str | None:
        return f"r{begun[-1]}" if begun else None

    monkeypatch.setattr(live_module, "begun_since", begun_since)
    monkeypatch.setattr(live_module, "turn_at", turn_at)
    told: list[str | None] = []
    all_threads, story = live_threads(), Story()
    for root, wanted in ((SESSION, ["r10", "r20", None, "r30"]), (None, [None] * 4)):
        agent = LiveThread(
            cast(Any, all_threads._ports),
            all_threads._write,
            cast(Any, story),
            CHILD,
            all_threads._born,
            root,
        )
        told.clear()
        for at_ms in (12, 29, 5, 31):
            await agent._begins(at_ms)
            told.append(agent._root_turn)
        assert told == wanted
