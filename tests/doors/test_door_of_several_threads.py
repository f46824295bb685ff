"""A connection that hears several threads: what becomes of one is nothing of the others'."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server import door as door_module
from orchestrator.gateways.app_server.door import ClientInfo, Door, Subscription
from orchestrator.gateways.app_server.live_threads import Line, Told
from orchestrator.gateways.app_server.methods import turns
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.requests import known_request_of
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.views.event import Event
from orchestrator.views.turns.turn_records import ItemId, RequestOpened, RequestResolved, TurnId
from tests.requests.test_answers import ASKS

ROOT = SessionId("0199a2b4-0000-7000-8000-000000000001")
OTHER = SessionId("0199a2b4-0000-7000-8000-000000000002")
AGENT = SessionId("0199a2b4-0000-7000-8000-000000000003")
OWN = SessionId("0199a2b4-0000-7000-8000-00000000000a")
BELOW = SessionId("0199a2b4-0000-7000-8000-000000000004")


class Threads:
    """The followed sessions of a gateway, of which one may fail to be heard."""

    def __init__(self) -> None:
        self.left: list[SessionId] = []
        self.work: list[Any] = []
        self.kept: list[SessionId] = []

    async def hear(self, session: SessionId, *given: Any, **named: Any) -> Any:
        return live(session)

    def of(self, session: SessionId) -> Any:
        return None

    def leave(self, session: SessionId, listener: Any) -> None:
        self.left.append(session)

    def begin(self, work: Any) -> None:
        self.work.append(work)

    def keep(self, live: Any) -> None:
        self.kept.append(live.session)


def live(session: SessionId) -> Any:
    return SimpleNamespace(session=session, seq=1, projector=SimpleNamespace(waiting=()))


class Sent:
    """A connection, and the methods and threads of what it was sent."""

    def __init__(self, principal: Principal | None = None, name: str = "ide") -> None:
        self.lines: list[bytes] = []
        self.threads = Threads()
        client = SimpleNamespace(head=self._head, calling_itself=lambda name: None)
        ports = SimpleNamespace(now_ms=lambda: 1, client=lambda principal, via: client, found=None)
        outbox = cast(Any, SimpleNamespace(put=self.lines.append))
        self.door = Door(
            cast(Any, ports),
            cast(Any, self.threads),
            principal or Principal("ann"),
            outbox,
            ClientInfo(name, "1"),
        )

    async def _head(self, session: SessionId) -> Any:
        return SimpleNamespace(session=session)

    def hears(self, *sessions: SessionId, asks: bool = True) -> None:
        for session in sessions:
            self.door.subscriptions[session] = Subscription(live(session), asks)

    def told(self, session: SessionId, text: bytes = b"x") -> Told:
        return Told(
            session, Event("t", {"type": "task_started"}), ((cast(Any, None), (line(session, text),)),)
        )


def line(session: SessionId, text: bytes) -> Line:
    return Line("item/started", {"threadId": session}, text, 1)


def asked(session: SessionId, kind: str = "command", **more: Any) -> Told:
    request = known_request_of({**ASKS[kind], **more})
    assert request is not None
    opened = RequestOpened(TurnId("t"), ItemId("c"), request)
    return Told(session, Event("t", ASKS[kind]), ((opened, ()),))


@pytest.fixture
def no_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "thread_json", lambda thread: {"id": thread.id})


@pytest.mark.parametrize(
    ("hears", "parent", "asks"),
    [
        ({ROOT: True, OTHER: False}, ROOT, True),
        ({ROOT: False, OTHER: True}, ROOT, False),
        ({ROOT: True, AGENT: False}, AGENT, False),
        ({ROOT: False, AGENT: True}, AGENT, True),
        # A parent that it does not hear is at rest, or was left: the root has its reviewer.
        ({ROOT: True, OTHER: False}, AGENT, True),
        ({ROOT: False, OTHER: True}, AGENT, False),
        # Of neither it can know: nobody is asked who asked not to be.
        ({OTHER: True, OWN: False}, AGENT, False),
        ({OTHER: True, OWN: True}, AGENT, True),
    ],
)
def test_agent_is_asked_about_where_its_parent_is(
    no_json: None, hears: dict[SessionId, bool], parent: SessionId, asks: bool
) -> None:
    client = Sent()
    for session, wanted in hears.items():
        client.hears(session, asks=wanted)
    spawned = SimpleNamespace(parent=parent)
    client.door.adopt(live(BELOW), cast(Any, SimpleNamespace(id=BELOW, spawned=spawned, root=ROOT)))
    assert client.door.subscriptions[BELOW].asks is asks
    client.door.hear(asked(BELOW))
    assert any(b"requestApproval" in each for each in client.lines) is asks


async def test_agent_that_was_left_is_heard_with_its_root_again_once_it_was_asked_for() -> None:
    client = Sent()
    client.hears(ROOT, AGENT, BELOW)
    assert client.door.part_with(AGENT)
    assert client.door.part_with(BELOW)
    assert not client.door.takes(AGENT)
    await client.door.subscribe(AGENT)
    assert client.door.takes(AGENT)
    assert not client.door.takes(BELOW)


async def test_request_that_fails_takes_back_every_thread_that_it_began_to_hear_and_no_other() -> None:
    client = Sent()
    client.hears(ROOT)

    async def resumes() -> None:
        with client.door.response_first(), client.door.heard_if_answered():
            await client.door.subscribe(AGENT)
            await client.door.subscribe(BELOW)
            for session in (ROOT, AGENT, BELOW):
                client.door.hear(client.told(session, str(session).encode()))
            raise KeyError

    with pytest.raises(KeyError):
        await resumes()
    assert list(client.door.subscriptions) == [ROOT]
    assert sorted(client.threads.left) == [AGENT, BELOW]
    assert client.lines == [str(ROOT).encode()]


@pytest.mark.parametrize("fails", ["all_turns", "thread_of", ""])
@pytest.mark.parametrize("ephemeral", [False, True])
async def test_fork_whose_answer_fails_is_not_heard_and_nothing_is_told_of_it(
    ephemeral: bool, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its archive is away, as one cause; a client that is answered by an error knows of no thread."""
    client = Sent()
    client.hears(ROOT)

    async def forks(*_: Any) -> Any:
        return SimpleNamespace(head=SimpleNamespace(session=OWN), settings=None, warnings=())

    def does(name: str, found: Any) -> Any:
        async def done(*_: Any) -> Any:
            if name == fails:
                raise ArchiveUnavailable("away")
            return found

        return done

    client.door.ports = cast(Any, SimpleNamespace(fork=forks, asks_auto_review=True, now_ms=lambda: 1))
    answers: dict[str, Any] = {"head_to_read": SimpleNamespace(session=ROOT), "_source": None}
    for name, found in (answers | {"all_turns": [], "thread_of": {"id": OWN}}).items():
        monkeypatch.setattr(turns, name, does(name, found))
    monkeypatch.setattr(turns, "session_json", lambda settings: {})
    monkeypatch.setattr(turns, "_cursors", lambda head: {})
    given = {"threadId": ROOT, "ephemeral": ephemeral}
    with client.door.response_first(), suppress(ArchiveUnavailable):
        await turns.thread_fork(client.door, turns.ThreadFork.model_validate(given))
    assert list(client.door.subscriptions) == [ROOT, *([] if fails else [OWN])]
    assert client.threads.left == ([OWN] if fails else [])
    assert [b"thread/started" in line for line in client.lines] == ([] if fails else [True])


async def test_read_state_is_told_of_threads_that_are_heard_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def state(found: Any, head: Any, person: str) -> Any:
        return person

    monkeypatch.setattr(door_module, "read_state", state)
    monkeypatch.setattr(door_module, "read_state_json", lambda state: {"of": state})
    client = Sent()
    client.door.tells_read_states = True
    client.hears(ROOT, OTHER)
    for session in (ROOT, OTHER):
        client.door.hear(Told(session, Event("t", {"type": "task_complete"}), ()))
    client.door.unsubscribe(OTHER)
    await asyncio.gather(*client.threads.work)
    told = [each for each in client.lines if b"readState" in each]
    assert [(str(ROOT).encode() in each, b'"of":"ann"' in each) for each in told] == [(True, True)]


WORDS = {"namespace": "acme", "name": "ann", "session": ROOT, "message": "m1"}


def words_id(given: dict[str, Any]) -> str:
    door = Sent(Principal(given["name"], namespace=given["namespace"])).door
    return str(door.words_id(given["session"], given["message"]))


def test_words_have_one_id_for_one_message_of_a_person_in_a_thread_and_others_for_all_others() -> None:
    other = {"namespace": "other", "name": "ben", "session": OTHER, "message": "m2"}
    assert words_id(WORDS) == words_id(dict(WORDS))
    changed = [words_id({**WORDS, name: value}) for name, value in other.items()]
    assert len({words_id(WORDS), *changed}) == 1 + len(other)
    # Where a name ends and the next begins is part of the id.
    assert words_id({**WORDS, "namespace": "ac", "name": "me"}) != words_id(
        {**WORDS, "namespace": "acm", "name": "e"}
    )


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("kind", ASKS)
@pytest.mark.parametrize("brings", [True, False])
def test_request_is_put_to_who_may_answer_it(kind: str, asks: bool, scope: Scope, brings: bool) -> None:
    client = Sent(Principal("ann", scope=scope), name="brings" if brings else "ide")
    client.hears(ROOT, asks=asks)
    client.door.hear(asked(ROOT, kind, client="brings"))
    # A tool's call goes to the program that brings the tool, whoever is asked for approvals.
    wanted = brings and scope >= Scope.SUBMIT if kind == "client_tool" else asks and scope >= Scope.APPROVE
    assert bool(client.lines) is wanted


def test_request_of_a_thread_that_is_not_heard_is_put_to_nobody_and_one_of_an_agent_by_its_own_thread() -> (
    None
):
    client = Sent()
    client.hears(ROOT)
    client.door.hear(asked(OTHER))
    ((opened, _),) = asked(AGENT).changes
    assert isinstance(opened, RequestOpened)
    surfaced = RequestOpened(opened.turn, opened.item, opened.request, session=AGENT)
    client.door.hear(Told(ROOT, Event("t", {}), ((surfaced, ()),)))
    assert client.lines == []


def test_request_that_is_settled_is_taken_back_in_its_own_thread() -> None:
    client = Sent()
    client.hears(ROOT, OTHER)
    client.door.hear(asked(ROOT))
    client.door.hear(asked(OTHER))
    client.lines.clear()
    settled = RequestResolved(TurnId("t"), ItemId("c"))
    client.door.hear(Told(OTHER, Event("t", {"type": "request_resolved"}), ((settled, ()),)))
    (taken,) = client.lines
    assert str(OTHER).encode() in taken
    assert b'"requestId":1' in taken


@pytest.mark.parametrize("kind", [kind for kind in ASKS if kind != "client_tool"])
def test_agent_that_is_heard_from_now_on_asks_what_it_asks_already(no_json: None, kind: str) -> None:
    client = Sent()
    client.hears(ROOT)
    ((opened, _),) = asked(BELOW, kind).changes
    agent = live(BELOW)
    agent.projector.waiting = (opened,)
    spawned = SimpleNamespace(parent=ROOT)
    client.door.adopt(agent, cast(Any, SimpleNamespace(id=BELOW, spawned=spawned, root=ROOT)))
    started, request = client.lines
    assert b"thread/started" in started
    assert b'"id":0' in request
    assert b"method" in request
