"""Connections of lines at the SQ/EQ's door, without a wire: what a first line leads to, and how each ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.errors import QueueFull, Unavailable
from orchestrator.broker.follow import BEGINNING, EqCursor
from orchestrator.core.ids import SessionId
from orchestrator.gateways import sq_eq
from orchestrator.gateways.app_server.door_ports import BadSetting
from orchestrator.gateways.bursts import Burst
from orchestrator.gateways.principals import NotPermitted, Principal, Scope
from orchestrator.gateways.resume import Greeting
from orchestrator.gateways.sq_eq import SqEqDoor, number_of
from orchestrator.gateways.wires.authentication import Authentication, TokenWatch
from orchestrator.gateways.wires.byte_wire import SocketStream, WireClosed
from orchestrator.protocol.submission import MalformedSubmission, Submission
from orchestrator.views import ViewError
from orchestrator.views.event import Event

ONE = SessionId("0199a2b4-0000-7000-8000-000000000001")
HEAD = SimpleNamespace(session=ONE, quarantined=False, status="running", holder="w", has_unread=False, eq_n=0)
PATH = "/home/ann/secret/file.txt"
PEOPLE = {
    "ann": Principal("ann"),
    "ci": Principal("ci", token="t-ci"),
    "ben": Principal("ben", token="t-ben"),
    "acme": Principal("acme/ci", "acme", Scope.ADMIN, "t-acme"),
    "beta": Principal("beta/ci", "beta", Scope.ADMIN, "t-beta"),
}
OPENINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "new": ({}, {}),
    "attached": ({"session_id": ONE}, {}),
    "come back": ({"session_id": ONE}, {"last_event": 0}),
    "forked": ({}, {"forked_from_id": ONE}),
}


async def look_up(token: str) -> Principal | None:
    return PEOPLE.get(token)


class Client:
    """A client of one session, which keeps what it is handed and tells what the test gives."""

    def __init__(self, principal: Principal) -> None:
        self.client_id = "its own"
        self.namespace = principal.namespace
        self.sent: list[Submission] = []
        self.tells: asyncio.Queue[Event] = asyncio.Queue()

    async def head(self, session: SessionId) -> Any:
        return HEAD

    async def history(self) -> Any:
        return None

    async def submit(self, session: SessionId, submission: Submission) -> None:
        self.sent.append(submission)

    def keeps(self, op: Any) -> bool:
        return True

    async def bursts(self, session: SessionId, cursor: Any) -> AsyncIterator[Burst]:
        while True:
            yield Burst((await self.tells.get(),))

    async def until(self, sessions: Any, look: Callable[[], Awaitable[bool]]) -> None:
        while not await look():
            await asyncio.sleep(0)


class Stream:
    """A connection: what its client writes, and the lines that it is sent."""

    socket = None

    def __init__(self, *said: bytes) -> None:
        self.said: asyncio.Queue[bytes] = asyncio.Queue()
        for data in said:
            self.said.put_nowait(data)
        self.told: list[dict[str, Any]] = []
        self.news = asyncio.Event()

    async def read(self, limit: int) -> bytes:
        return await self.said.get()

    async def write(self, data: bytes) -> None:
        self.told += map(orjson.loads, data.splitlines())
        self.news.set()


@dataclass
class AtDoor:
    """A door in memory, with the clients that it made for its connections."""

    portable: bool = False
    most: int | None = 2
    fails: list[Exception] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    in_force: set[str] = field(default_factory=lambda: {each.token for each in PEOPLE.values()})

    def __post_init__(self) -> None:
        self.watch = TokenWatch(self._all_in_force, most=self.most)
        self.door = self.another()

    def another(self) -> SqEqDoor:
        """The door of another gateway of the deployment."""
        ports = SimpleNamespace(client=self._client, create=self._made, fork=self._made, found=FOUND)
        return SqEqDoor(cast(Any, ports), Authentication(look_up), self.watch, 1 << 20)

    async def _all_in_force(self) -> frozenset[str]:
        return frozenset(self.in_force)

    def _client(self, principal: Principal, via: str) -> Client:
        self.clients.append(Client(principal))
        return self.clients[-1]

    async def _made(self, *_: Any) -> Any:
        if self.fails:
            raise self.fails[0]
        return SimpleNamespace(head=HEAD, portable=self.portable)

    def serving(self, stream: Stream, door: SqEqDoor | None = None) -> asyncio.Task[None]:
        return asyncio.ensure_future((door or self.door).serve(cast(SocketStream, stream)))


FOUND = SimpleNamespace(broker=SimpleNamespace(logs=None))


@pytest.fixture(autouse=True)
def greeted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def told(*_: Any) -> Greeting:
        return Greeting(({"type": "session_configured", "session_id": ONE},), BEGINNING)

    async def place(*_: Any) -> Any:
        return BEGINNING

    async def source(*_: Any) -> Any:
        return None

    for name, double in (
        ("greeting", told),
        ("reattached", told),
        ("cursor_of", place),
        ("to_fork", source),
    ):
        monkeypatch.setattr(sq_eq, name, double)


def first_line(opening: str = "new", op: dict[str, Any] | None = None, **more: Any) -> bytes:
    named, beside = OPENINGS[opening]
    frame = {"id": "first", "op": {"type": "configure_session", **named, **(op or {})}, **beside, **more}
    return orjson.dumps(frame) + b"\n"


async def holds(what: Callable[[], Any]) -> None:
    """Lets others go on until something holds."""
    async with asyncio.timeout(20):
        while not what():
            await asyncio.sleep(0)


async def ended(task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(20):
        await task


async def left(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("opening", ["attached", "come back", "forked"])
async def test_session_that_no_worker_goes_on_with_is_neither_attached_to_nor_forked(
    opening: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HEAD, "quarantined", True)
    stream = Stream(first_line(opening, {"model": "gpt-5-mini"}, auth="ci"))
    at = AtDoor()
    await ended(at.serving(stream))
    (line,) = stream.told
    assert (line["id"], line["msg"]["type"]) == ("first", "error")
    assert f"dendro revoke {ONE}" in line["msg"]["message"]
    assert not any(client.sent for client in at.clients)


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("portable", [False, True])
async def test_settings_of_a_first_line_are_handed_in_once_however_it_opens_its_session(
    opening: str, portable: bool
) -> None:
    at = AtDoor(portable)
    stream = Stream(first_line(opening, {"cwd": "/w", "model": "gpt-5-mini"}, auth="ci"))
    serving = at.serving(stream)
    stream.said.put_nowait(b'{"id":"u1","op":{"type":"interrupt"}}\n')
    await holds(lambda: at.clients and len(at.clients[0].sent) == 2)
    (configured, next_one) = at.clients[0].sent
    assert (configured.id, next_one.id) == ("first", "u1")
    named = configured.op.model_dump(exclude_unset=True)
    assert (named["model"], named.get("session_id")) == ("gpt-5-mini", None)
    # A new session was made with it; of one that is there, or of a copy, it is no folder.
    assert named.get("cwd") is None
    await left(serving)


@pytest.mark.parametrize("opening", OPENINGS)
async def test_first_line_that_sets_nothing_hands_in_nothing(opening: str) -> None:
    at = AtDoor()
    stream = Stream(first_line(opening, auth="ci"))
    serving = at.serving(stream)
    stream.said.put_nowait(b'{"id":"u1","op":{"type":"interrupt"}}\n')
    await holds(lambda: at.clients and at.clients[0].sent)
    assert [each.id for each in at.clients[0].sent] == ["u1"]
    await left(serving)


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("with_seq", [True, False, None])
async def test_every_line_has_its_place_where_the_client_wants_that_and_none_has_one_else(
    opening: str, with_seq: bool | None
) -> None:
    at = AtDoor()
    more: dict[str, Any] = {} if with_seq is None else {"with_seq": with_seq}
    stream = Stream(first_line(opening, auth="ci", **more))
    serving = at.serving(stream)
    stream.said.put_nowait(b"junk\n")
    greeted = opening != "new"
    await holds(lambda: len(stream.told) == 1 + greeted)
    for number in (1, 2):
        cursor = EqCursor(number, 10 + number, "0" * 8)
        at.clients[0].tells.put_nowait(Event("t", {"type": "task_started"}, cursor))
    await holds(lambda: len(stream.told) == 3 + greeted)
    places = [0] * greeted + [0, number_of(EqCursor(1, 11, "")), number_of(EqCursor(2, 12, ""))]
    assert [line.get("seq") for line in stream.told] == (places if with_seq else [None] * len(places))
    await left(serving)


async def test_lines_that_come_with_the_first_one_are_served_and_empty_ones_before_it_passed_over() -> None:
    at = AtDoor()
    interrupts = b"".join(b'{"id":"u%d","op":{"type":"interrupt"}}\n' % number for number in range(3))
    serving = at.serving(
        Stream(b"\n \n", b"\n" + first_line(auth="ci")[:20], first_line(auth="ci")[20:] + interrupts)
    )
    await holds(lambda: at.clients and len(at.clients[0].sent) == 3)
    assert [each.id for each in at.clients[0].sent] == ["u0", "u1", "u2"]
    await left(serving)


@pytest.mark.parametrize("piece", [1 << 16, 1 << 20, (1 << 20) + 1, 1 << 22])
@pytest.mark.parametrize("beyond", [0, 1, 1_000])
@pytest.mark.parametrize("behind", [b"\n", b"\n" + b'{"id":"u1","op":{"type":"interrupt"}}\n', b""])
async def test_first_line_of_a_mebibyte_is_the_longest_however_its_bytes_arrive(
    piece: int, beyond: int, behind: bytes
) -> None:
    assert sq_eq.FIRST_LINE_LIMIT == 1 << 20
    line = first_line(auth="ci").rstrip()
    line = line[:-1] + b',"x":"' + b"x" * ((1 << 20) + beyond - len(line) - 7) + b'"}'
    assert len(line) == (1 << 20) + beyond
    at, sent = AtDoor(), line + behind
    stream = Stream(*(sent[start : start + piece] for start in range(0, len(sent), piece)), b"")
    serving = at.serving(stream)
    if beyond:
        await ended(serving)
        (told,) = stream.told
        assert "the first line has more than 1048576 bytes" in told["msg"]["message"]
    else:
        await holds(lambda: at.clients)
        assert stream.told == []
    await left(serving)
    assert len(at.clients) == (not beyond)


@pytest.mark.parametrize("opening", OPENINGS)
async def test_named_client_is_one_at_every_gateway_and_no_other_ones(opening: str) -> None:
    at = AtDoor(most=None)
    asked = [("ci", "bot"), ("ci", "bot"), ("ben", "bot"), ("ci", "other"), ("acme", "bot"), ("beta", "bot")]
    tasks = [
        at.serving(Stream(first_line(opening, auth=who, client=name)), at.another()) for who, name in asked
    ]
    await holds(lambda: len(at.clients) == len(asked) and all(c.client_id != "its own" for c in at.clients))
    found = [client.client_id for client in at.clients]
    assert found[0] == found[1]
    assert len(set(found)) == len(asked) - 1
    await left(*tasks)


WORDS = f"it stands in {PATH}"


@pytest.mark.parametrize("who", ["ci", "acme"])
@pytest.mark.parametrize("opening", ["new", "forked"])
@pytest.mark.parametrize(
    "why",
    [
        BadSetting(WORDS),
        NotPermitted(WORDS),
        ViewError(WORDS),
        MalformedSubmission(WORDS),
        Unavailable(WORDS),
        QueueFull(ONE, 3, 3),
    ],
    ids=lambda why: type(why).__name__,
)
async def test_first_line_that_does_not_do_is_answered_once_under_its_id_and_ends_its_connection(
    why: Exception, opening: str, who: str
) -> None:
    at = AtDoor(fails=[why])
    stream = Stream(first_line(opening, auth=who))
    await ended(at.serving(stream))
    (told,) = stream.told
    malformed = isinstance(why, MalformedSubmission)
    assert (told["id"], told["msg"]["type"]) == ("" if malformed else "first", "error")
    tenants = str(why).replace(PATH, "…/file.txt")
    assert told["msg"]["message"] == (tenants if PEOPLE[who].is_tenant else str(why))


@pytest.mark.parametrize("who", ["ci", "acme"])
async def test_line_that_is_refused_tells_a_tenant_no_path(who: str) -> None:
    at = AtDoor()
    stream = Stream(first_line(auth=who))
    serving = at.serving(stream)
    await holds(lambda: at.clients)

    async def refuses(*_: Any) -> None:
        raise NotPermitted(WORDS)

    cast(Any, at.clients[0]).submit = refuses
    stream.said.put_nowait(b'{"id":"u1","op":{"type":"interrupt"}}\n')
    await holds(lambda: stream.told)
    (told,) = stream.told
    assert told["id"] == "u1"
    assert (PATH in told["msg"]["message"]) is not PEOPLE[who].is_tenant
    await left(serving)


@pytest.mark.parametrize("half", [b"", b'{"id":"1","op":{"type":"conf'])
async def test_connection_whose_first_line_does_not_come_is_ended_with_the_reason(
    half: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sq_eq, "HANDSHAKE_S", 0)
    stream = Stream(*([half] if half else []))
    await ended(AtDoor().serving(stream))
    (told,) = stream.told
    assert told["msg"]["message"].startswith("no first line within 0 s")


@pytest.mark.parametrize("opening", OPENINGS)
async def test_connections_whose_token_is_revoked_are_told_so_and_end_and_no_others_do(opening: str) -> None:
    at = AtDoor()
    streams = [Stream(first_line(opening, auth=who)) for who in ("ci", "ben", "ci", "acme")]
    tasks = [at.serving(stream) for stream in streams]
    await holds(lambda: len(at.clients) == 4)
    at.in_force.remove("t-ci")
    await at.watch.look()
    await asyncio.gather(ended(tasks[0]), ended(tasks[2]))
    for stream in (streams[0], streams[2]):
        assert (stream.told[-1]["id"], stream.told[-1]["msg"]["type"]) == ("first", "error")
        assert "the token was revoked" in stream.told[-1]["msg"]["message"]
    assert not tasks[1].done()
    assert not tasks[3].done()
    await left(*tasks)


async def test_holder_or_namespace_that_has_its_part_of_the_connections_is_told_so() -> None:
    at = AtDoor()
    streams = [Stream(first_line(auth=who)) for who in ("ci", "acme", "ci", "acme", "ci", "acme", "ben")]
    tasks = [at.serving(stream) for stream in streams]
    await asyncio.gather(ended(tasks[4]), ended(tasks[5]))
    for stream in streams[4:6]:
        (told,) = stream.told
        assert told["id"] == "first"
        assert "2 connections are open" in told["msg"]["message"]
    await holds(lambda: len(at.clients) == 5)
    await left(*tasks)


@pytest.mark.parametrize("opening", OPENINGS)
async def test_shutdown_ends_the_connections_of_all_whoever_has_asked_for_it(opening: str) -> None:
    at = AtDoor()
    streams = [Stream(first_line(opening, auth=who)) for who in ("ci", "ben", "acme")]
    tasks = [at.serving(stream) for stream in streams]
    await holds(lambda: len(at.clients) == 3)
    streams[1].said.put_nowait(b'{"id":"s","op":{"type":"shutdown"}}\n')
    await holds(lambda: at.clients[1].sent)
    for client in at.clients:
        client.tells.put_nowait(Event("s", {"type": "shutdown_complete"}))
    await asyncio.gather(*map(ended, tasks))
    assert [stream.told[-1]["msg"]["type"] for stream in streams] == ["shutdown_complete"] * 3


async def test_client_that_has_left_before_it_is_answered_ends_nothing_else() -> None:
    class Gone(Stream):
        async def write(self, data: bytes) -> None:
            raise WireClosed("the client has left")

    at = AtDoor(fails=[BadSetting("no")])
    await ended(at.serving(Gone(first_line(auth="ci"))))
    other = replace(at, fails=[])
    serving = other.serving(Stream(first_line(auth="ci")))
    await holds(lambda: other.clients)
    await left(serving)
