"""Bounds of what doors keep and take: as much as may be, one beyond it, and what goes then."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.sender import Sender
from orchestrator.gateways.app_server import live_threads, messages
from orchestrator.gateways.app_server.greeting import early_answer
from orchestrator.gateways.app_server.live_threads import HEARD_MS, MOST_MARKS, marked
from orchestrator.gateways.app_server.messages import ID_CHARS, Answer, Request, received
from orchestrator.gateways.app_server.methods import fleet, proof
from orchestrator.gateways.app_server.methods.fleet import MOST_READERS, reader_of
from orchestrator.gateways.client import MOST_STATED, Client, ClientPorts
from orchestrator.gateways.window import door as window
from orchestrator.gateways.window.door import MOST_BODY, MOST_LOGIN, Refused
from orchestrator.gateways.wires import authentication
from orchestrator.gateways.wires.authentication import NOTED_S, Authentication, Unauthenticated
from tests.doors.test_app_server_greeting import HOME, line

ONE = SessionId("0199a2b4-0000-7000-8000-000000000001")


@pytest.mark.parametrize(
    "name", ["x" * MOST_STATED, "x" * (MOST_STATED + 1), "é" * (2 * MOST_STATED), "", "ide"]
)
def test_name_that_a_program_gives_itself_is_kept_up_to_its_bound_and_the_last_one_counts(name: str) -> None:
    assert MOST_STATED == 100
    ports = cast(ClientPorts, SimpleNamespace())
    client = Client(ports, "c", "ann", by=Sender("ann"))
    client.calling_itself("another")
    other = client.known_as("d")
    client.calling_itself(name)
    assert client.by is not None
    assert other.by is not None
    assert (client.by.who, client.by.stated_name) == ("ann", name[:100])
    assert other.by.stated_name == "another"
    nobody = Client(ports, "c", "ann")
    nobody.calling_itself(name)
    assert nobody.by is None


class Broker:
    """A deployment."""


def test_so_many_readers_of_trees_are_kept_and_the_one_made_first_goes_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert MOST_READERS == 64
    monkeypatch.setattr(fleet, "TreeReader", lambda broker, tree: SimpleNamespace(tree=tree))
    brokers = [cast(Any, Broker()), cast(Any, Broker())]
    made = {name: reader_of(brokers[0], name) for name in map(str, range(MOST_READERS))}
    elsewhere = reader_of(brokers[1], "0")
    assert elsewhere is not made["0"]
    assert all(reader_of(brokers[0], name) is found for name, found in made.items())
    newest = reader_of(brokers[0], "another")
    assert all(reader_of(brokers[0], name) is found for name, found in made.items() if name != "0")
    assert reader_of(brokers[0], "another") is newest
    assert reader_of(brokers[0], "0") is not made["0"]
    assert reader_of(brokers[1], "0") is elsewhere


@pytest.mark.parametrize(("user", "comes_in"), [(1_000, True), (0, True), (1_001, False)])
async def test_user_of_the_gateway_and_root_come_in_by_loopback_and_other_users_do_not(
    user: int, comes_in: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root can do all that the gateway's user can, anyway."""
    monkeypatch.setattr("os.geteuid", lambda: 1_000)
    found = Authentication(peer_of=lambda _: authentication.Peer(user, is_confined=False))
    connected = cast(Any, SimpleNamespace(family=0))
    with nullcontext() if comes_in else pytest.raises(Unauthenticated, match=f"user {user} is not the user"):
        assert (await found.principal(None, connected)).token == ""


async def test_refusal_of_one_kind_is_logged_once_a_minute_and_another_kind_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, uid = [1_000.0], [7]
    monkeypatch.setattr(authentication, "time", SimpleNamespace(monotonic=lambda: now[0]))
    found = Authentication(peer_of=lambda _: authentication.Peer(uid[0], is_confined=False))

    async def refused(by: int, at_s: float) -> int:
        now[0], uid[0] = at_s, by
        before = len(caplog.records)
        with pytest.raises(Unauthenticated):
            await found.principal(None, cast(Any, SimpleNamespace(family=0)))
        return len(caplog.records) - before

    with caplog.at_level(logging.WARNING, "dendro.gateway"):
        told = [
            await refused(by, at_s)
            for by, at_s in (
                (90_001, 0.0), (90_001, 1.0), (90_002, 2.0), (90_001, NOTED_S - 0.5), (90_002, NOTED_S),
                (90_001, NOTED_S), (90_001, NOTED_S + 1), (90_002, NOTED_S + 1), (90_002, NOTED_S + 2),
                (90_002, 3 * NOTED_S),
            )
        ]  # fmt: skip
    assert told == [1, 0, 1, 0, 0, 1, 0, 0, 1, 1]
    assert len(found._noted) == 1, "refusals of before are kept no more"


class Notes:
    """The notes about sessions, of which another gateway may change one meanwhile."""

    def __init__(self, marks: dict[str, int]) -> None:
        self.kept = orjson.dumps(marks)
        self.meanwhile: list[bytes] = []
        self.requests = self

    def now_ms(self) -> int:
        return 1_000

    async def notes(self, name: str, sessions: Any) -> list[bytes]:
        assert (name, sessions) == ("heard", [ONE])
        return [self.kept]

    async def note(self, session: Any, name: str, wanted: bytes, known: bytes) -> bytes:
        if self.meanwhile:
            self.kept = self.meanwhile.pop()
        elif known == self.kept:
            self.kept = wanted
        return self.kept


@pytest.mark.parametrize("hears", [True, False])
@pytest.mark.parametrize("others", [0, 1, MOST_MARKS, MOST_MARKS + 1, MOST_MARKS + 3])
@pytest.mark.parametrize("at_once", [False, True])
async def test_marks_of_gateways_are_kept_as_they_are_up_to_so_many_and_those_that_are_over_go(
    at_once: bool, others: int, hears: bool
) -> None:
    assert (MOST_MARKS, live_threads.HEARD) == (64, "heard")
    marks = {f"g{number}": 2_000 + number for number in range(others)}
    notes = Notes({**marks, "over": 1_000, "ours": 5_000} if not at_once else {})
    if at_once:
        notes.meanwhile = [orjson.dumps({**marks, "over": 1_000, "ours": 5_000})]
    ports = cast(Any, SimpleNamespace(found=SimpleNamespace(broker=notes), server_id="ours"))
    kept = dict(list(marks.items())[-MOST_MARKS:])
    assert await marked(ports, ONE, hears=hears) == kept
    assert orjson.loads(notes.kept) == {**kept, **({"ours": 1_000 + HEARD_MS} if hears else {})}


def test_so_many_verified_trees_are_kept_and_the_one_verified_longest_ago_goes() -> None:
    assert proof.MOST_KEPT == 64
    kept = proof._Kept()
    trees = [TreeId(str(number)) for number in range(proof.MOST_KEPT)]
    for tree in trees:
        kept.keep(tree, (0, ()), {"of": tree})
    kept.keep(trees[0], (1, (("s", 1, b""),)), {"of": "anew"})
    assert list(kept.found) == [*trees[1:], trees[0]]
    kept.keep(TreeId("another"), (0, ()), {})
    assert list(kept.found) == [*trees[2:], trees[0], "another"]
    assert isinstance(kept.found, OrderedDict)
    assert kept.found[trees[0]] == ((1, (("s", 1, b""),)), {"of": "anew"})


@pytest.mark.parametrize("size", [0, 1, ID_CHARS, ID_CHARS + 1])
@pytest.mark.parametrize("letter", ["x", "é", "😀"])
def test_id_of_so_many_characters_is_one_and_a_longer_one_is_none_wherever_it_comes(
    letter: str, size: int
) -> None:
    assert ID_CHARS == 1_024
    id = letter * size
    asked = received(orjson.dumps({"id": id, "method": "m"})).message
    answered = received(orjson.dumps({"id": id, "result": {}})).message
    assert (isinstance(asked, Request), isinstance(answered, Answer)) == (size <= ID_CHARS,) * 2
    assert asked is not answered or asked is messages.UNREADABLE
    early = early_answer(line(id=id), "1", HOME)
    assert (early is not None) is (size <= ID_CHARS)
    if early is not None:
        assert orjson.loads(early)["id"] == id


@pytest.mark.parametrize("number", [0, -1, (1 << 53) - 1, -(1 << 53) + 1])
def test_number_that_any_program_keeps_is_an_id_that_is_answered_early(number: int) -> None:
    early = early_answer(line(id=number), "1", HOME)
    assert early is not None
    assert orjson.loads(early)["id"] == number
    assert received(orjson.dumps({"id": number, "method": "m"})).message == Request(number, "m", None, False)
    assert early_answer(line(id=1 << 53), "1", HOME) is None
    assert early_answer(line(id=-(1 << 53)), "1", HOME) is None


def posted(*pieces: bytes) -> Any:
    async def stream() -> Any:
        for piece in pieces:
            await asyncio.sleep(0)
            yield piece

    return SimpleNamespace(stream=stream)


@pytest.mark.parametrize("most", [MOST_BODY, MOST_LOGIN])
@pytest.mark.parametrize("pieces", [1, 2, 3])
async def test_body_of_so_many_bytes_is_read_and_a_longer_one_refused_in_however_many_pieces_it_comes(
    pieces: int, most: int
) -> None:
    assert (MOST_BODY, MOST_LOGIN) == (1 << 20, 16 << 10)
    whole = b'"%b"' % (b"x" * (most - 2))
    assert len(whole) == most
    cut = -(-most // pieces)
    parts = [whole[start : start + cut] for start in range(0, most, cut)]
    assert await window._body(posted(*parts), most) == "x" * (most - 2)
    for longer in ([*parts, b" "], [b" ", *parts]):
        with pytest.raises(Refused) as caught:
            await window._body(posted(*longer), most)
        assert caught.value.status == 413
        assert caught.value.headers == {"connection": "close"}
