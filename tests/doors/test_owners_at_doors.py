"""Owners of what clients do at doors: names that two of them share make neither the other one."""

from __future__ import annotations

from itertools import combinations, product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.door import Door
from orchestrator.gateways.app_server.methods import changes, fleet, queue, turns, v1
from orchestrator.gateways.app_server.methods.changes import ReadStateUpdate
from orchestrator.gateways.principals import Principal
from orchestrator.gateways.sq_eq import _client_id
from orchestrator.views.turns.turn_records import ItemId, Turn, TurnId, UserMessage
from tests.doors.test_door_of_several_threads import OTHER, ROOT, Sent

PNG = {"type": "image", "url": "data:image/png;base64,AA=="}
JPEG = {"type": "image", "url": "data:image/jpeg;base64,AA=="}
FILE = {"type": "localImage", "path": "/work/a.png"}
PEOPLE = [
    *(Principal(name) for name in ("ann", "ben", "acme")),
    *(Principal(f"{space}/{name}", space) for space, name in product(("acme", "other"), ("ann", "ben"))),
]


def test_client_of_lines_is_the_same_for_one_name_of_one_principal_and_for_nobody_else() -> None:
    names = ("laptop", "laptop2", "ann")
    made = {(one, name): _client_id(one, name) for one in PEOPLE for name in names}
    for (one, first), (other, second) in combinations(made.items(), 2):
        assert first != second, (one, other)
    assert all(_client_id(one, name) == id for (one, name), id in made.items())


@pytest.mark.parametrize("read", [True, False])
async def test_what_a_person_has_read_is_told_at_all_of_their_clients_that_asked_and_to_nobody_else(
    read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def marked(found: Any, head: Any, person: str, revision: str, *, read: bool) -> Any:
        return SimpleNamespace(person=person, read=read)

    async def head_to_read(door: Any, thread: str) -> Any:
        return SimpleNamespace(session=SessionId(thread))

    monkeypatch.setattr(changes, "mark_read", marked)
    monkeypatch.setattr(changes, "head_to_read", head_to_read)
    monkeypatch.setattr(changes, "read_state_json", lambda state: {"of": state.person, "read": state.read})
    clients = [
        (name, asks, hears, Sent(Principal(name)))
        for name, asks, hears in product(("ann", "ben"), (True, False), (True, False))
    ]
    listeners = [client.door for _, _, hears, client in clients if hears]
    for _, asks, _, client in clients:
        client.door.tells_read_states = asks
        cast(Any, client.threads).of = lambda session: SimpleNamespace(listeners=listeners)
    own = clients[3]
    assert own[:3] == ("ann", False, False)
    given = {"threadId": ROOT, "operation": {"type": "read" if read else "unread"}, "expectedRevision": "0.1"}
    told = await changes.read_state_update(own[3].door, ReadStateUpdate.model_validate(given))
    assert told == {"readState": {"of": "ann", "read": read}}
    for name, asks, hears, client in clients:
        wanted = client is own[3] or (name == "ann" and asks and hears)
        assert [b'"readState"' in line for line in client.lines] == [True] * wanted, (name, asks, hears)


class Keeps:
    """A client of a connection, which keeps under which ids it is handed what."""

    def __init__(self, sent: list[tuple[str, str]], client_id: str, *, shelved: bool = False) -> None:
        self.sent = sent
        self.client_id = client_id
        self.shelved = shelved

    def known_as(self, client_id: str) -> Keeps:
        return Keeps(self.sent, client_id, shelved=self.shelved)

    def calling_itself(self, name: str) -> None:
        """Nobody is told of the name."""

    async def head(self, session: SessionId) -> Any:
        return SimpleNamespace(session=session, agent_id=0, at_rest=True, shelved=self.shelved)

    async def submit(self, to: Any, submission: Any) -> Any:
        self.sent.append((self.client_id, submission.id))
        return SimpleNamespace(holder="w", sq_id="1-1", duplicate=False)


WORDS: dict[str, tuple[Any, Any]] = {
    "turn/start": (turns.TurnStartParams, turns.turn_start),
    "thread/queue/add": (queue.QueueAdd, queue.queue_add),
}


@pytest.mark.parametrize("method", WORDS)
async def test_words_that_a_person_sends_again_are_one_submission_at_every_server_and_nobody_elses(
    method: str,
) -> None:
    params, answer = WORDS[method]

    async def sent(person: Principal, server: str, thread: SessionId, message: str) -> tuple[str, str]:
        found: list[tuple[str, str]] = []
        at = Sent(person)
        ports = cast(Any, at.door.ports)
        ports.client = lambda principal, via: Keeps(found, server)
        ports.random_bytes = bytes
        cast(Any, at.threads).of = lambda session: None
        door = Door(ports, cast(Any, at.threads), person, cast(Any, SimpleNamespace(put=at.lines.append)))
        given = {
            "threadId": thread,
            "input": [{"type": "text", "text": "go"}],
            "clientUserMessageId": message,
        }
        await answer(door, params.model_validate(given))
        (one,) = found
        return one

    told = {}
    for person, thread, message in product(PEOPLE, (ROOT, OTHER), ("m1", "m2")):
        one, again = [await sent(person, server, thread, message) for server in ("first", "second")]
        assert one == again
        told[person, thread, message] = one
    assert len(set(told.values())) == len(told)


ITEMS = [{"type": "text", "text": "go"}]
TURN = {"cwd": "/w", "approvalPolicy": "never", "sandboxPolicy": {"mode": "read-only"}, "model": "m"}
SPEAKS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    **{
        name: (*one, {"threadId": ROOT, "input": ITEMS, "clientUserMessageId": "m"})
        for name, one in WORDS.items()
    },
    "sendUserMessage": (v1.SendUserMessage, v1.send_user_message, {"conversationId": ROOT, "items": ITEMS}),
    "sendUserTurn": (v1.SendUserTurn, v1.send_user_turn, {"conversationId": ROOT, "items": ITEMS, **TURN}),
}


@pytest.mark.parametrize("method", SPEAKS)
@pytest.mark.parametrize("shelved", [True, False])
async def test_thread_that_was_put_away_is_brought_back_by_a_persons_words(
    method: str, shelved: bool
) -> None:
    params, answer, given = SPEAKS[method]
    at, brought = Sent(), list[SessionId]()

    async def enlist(session: SessionId, *, shelve: bool) -> bool:
        assert not shelve
        brought.append(session)
        return True

    ports = cast(Any, at.door.ports)
    ports.client = lambda principal, via: Keeps([], "c", shelved=shelved)
    ports.random_bytes = bytes
    ports.found = SimpleNamespace(broker=SimpleNamespace(trees=SimpleNamespace(enlist=enlist)))
    cast(Any, at.threads).of = lambda session: None
    outbox = cast(Any, SimpleNamespace(put=at.lines.append))
    door = Door(ports, cast(Any, at.threads), Principal("ann"), outbox)
    await answer(door, params.model_validate(given))
    assert brought == [ROOT] * shelved
    assert [b"thread/unarchived" in line for line in at.lines] == [True] * shelved


async def test_addition_to_a_budget_counts_once_for_one_person_tree_and_name_and_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []

    async def raise_limits(found: Any, client: Keeps, registry: Any, add: Any) -> int:
        made.append(client.client_id)
        return 0

    async def root(door: Any, tree: str) -> Any:
        return SimpleNamespace(tree=tree)

    async def registry(tree: str) -> Any:
        return SimpleNamespace(limits={"tokens": 1})

    monkeypatch.setattr(fleet, "raise_limits", raise_limits)
    monkeypatch.setattr(fleet, "_root", root)
    broker = SimpleNamespace(trees=SimpleNamespace(registry=registry))
    named = list(product(PEOPLE, (ROOT, OTHER), ("r1", "r2")))
    for person, tree, request in [*named, *named]:
        ports = SimpleNamespace(found=SimpleNamespace(broker=broker))
        door = SimpleNamespace(ports=ports, principal=person, client=Keeps([], "own"))
        given = {"treeId": tree, "requestId": request, "add": {"tokens": 5}}
        await fleet.budget_add(cast(Any, door), fleet.BudgetAdd.model_validate(given))
    assert made[: len(named)] == made[len(named) :]
    assert len(set(made)) == len(named)


@pytest.mark.parametrize("message", ["m1", "m2", None])
@pytest.mark.parametrize("texts", [("go",), ("go", "on"), ("on",), ()])
@pytest.mark.parametrize("had", [[], [PNG], [PNG, FILE]])
@pytest.mark.parametrize("has", [[], [PNG], [PNG, FILE], [FILE], [FILE, PNG], [JPEG]])
def test_message_that_stands_in_the_running_turn_is_the_very_same_one_by_name_words_and_images(
    has: list[dict[str, str]], had: list[dict[str, str]], texts: tuple[str, ...], message: str | None
) -> None:
    told_images = [{**one, "type": one["type"].replace("localImage", "local_image")} for one in had]
    for one in told_images:
        if "url" in one:
            one["image_url"] = one.pop("url")
    parts = (*({"type": "text", "text": text} for text in ("go", "on")), *told_images)
    told = [
        UserMessage(ItemId("a"), ({"type": "text", "text": "before"},), client_id="m0"),
        UserMessage(ItemId("b"), parts, client_id="m1"),
    ]
    given = {
        "threadId": ROOT,
        "input": [*({"type": "text", "text": text} for text in texts), *has],
        "clientUserMessageId": message,
    }
    if not given["input"]:
        return
    said = turns.TurnStartParams.model_validate(given).op()
    stands = turns._stands_in(Turn(TurnId("t"), items=tuple(told)), said)
    assert stands is (message == "m1" and texts == ("go", "on") and has == had)
