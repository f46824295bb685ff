"""A thread owes each of its clients its end, its reviewer, and a word of what no worker takes."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from itertools import permutations, product
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.errors import SubmissionConflict, UnknownSession
from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server import live_threads as live_module
from orchestrator.gateways.app_server.door import Door, Subscription
from orchestrator.gateways.app_server.live_threads import LiveThread, LiveThreads
from orchestrator.gateways.app_server.messages import RpcError
from orchestrator.gateways.app_server.method import PageParams
from orchestrator.gateways.app_server.methods import METHODS, changes, turns
from orchestrator.gateways.app_server.methods import threads as threads_module
from orchestrator.gateways.app_server.methods.threads import ThreadList, ThreadSearch
from orchestrator.gateways.app_server.methods.turns import TurnStartParams
from orchestrator.gateways.principals import Principal
from orchestrator.protocol.events import ThreadNameUpdated, ThreadRolledBack
from tests.doors.test_door_of_several_threads import AGENT, BELOW, OTHER, ROOT, Sent, live, no_json
from tests.doors.test_owners_at_doors import WORDS
from tests.doors.test_threads_that_begin import Maker
from tests.doors.test_what_methods_hand_in import Keeps, a_door
from tests.views.test_threads import head as of_thread

__all__ = ["no_json"]
MAKER: Any = object()
"""The client that has made a thread."""


# ── ephemeral threads ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ephemeral", [True, False])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("order", list(permutations(("maker", "other", "version 1"))))
async def test_ephemeral_thread_is_deleted_when_its_last_client_leaves_whichever_that_is(
    order: tuple[str, ...], kept: bool, ephemeral: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: list[tuple[Any, SessionId]] = []

    async def delete(found: Any, client: Any, session: SessionId) -> bool:
        deleted.append((client, session))
        return not kept

    async def unmarked(ports: Any, session: SessionId) -> dict[str, int]:
        return {}

    monkeypatch.setattr(live_module, "delete", delete)
    monkeypatch.setattr(live_module, "unmarked", unmarked)
    ports = cast(Any, SimpleNamespace(found=None))
    threads = LiveThreads(ports, lambda session, change, turn: ())
    heard = LiveThread(ports, lambda session, change, turn: (), MAKER, ROOT, threads._born)
    heard.ephemeral = ephemeral
    threads._live[ROOT] = heard
    clients = {name: Sent() for name in order}
    for name, client in clients.items():
        client.door.threads = threads
        conversations = client.door.conversations
        if name == "version 1":
            conversations.door = client.door
            conversations._listening = {"listener": ROOT}
            heard.listeners.append(conversations)
        else:
            client.door.subscriptions[ROOT] = Subscription(heard)
            heard.listeners.append(client.door)
    for name in order:
        assert deleted == []
        clients[name].door.leave()
        await asyncio.gather(*threads._tasks)
    assert deleted == [(MAKER, ROOT)] * ephemeral
    told = {
        name for name, client in clients.items() if any(b"thread/closed" in each for each in client.lines)
    }
    assert told == ({order[-1]} - {"version 1"} if ephemeral and not kept else set())


@pytest.mark.parametrize("ephemeral", [True, False])
@pytest.mark.parametrize("clients", [1, 2, 3])
async def test_each_client_of_a_thread_that_somebody_deletes_is_told_once(
    clients: int, ephemeral: bool
) -> None:
    class Gone:
        """A client of a session that is gone."""

        def follow(self, *given: Any, **named: Any) -> Any:
            raise UnknownSession(ROOT)

        async def head(self, session: SessionId) -> None:
            return None

    ports = cast(Any, SimpleNamespace(found=None))
    threads = LiveThreads(ports, lambda session, change, turn: ())
    heard = LiveThread(ports, lambda session, change, turn: (), cast(Any, Gone()), ROOT, threads._born)
    heard.ephemeral = ephemeral
    threads._live[ROOT] = heard
    several = [Sent() for _ in range(clients)]
    for client in several:
        client.door.threads = threads
        client.door.subscriptions[ROOT] = Subscription(heard)
        heard.listeners.append(client.door)
    await heard._follow(newborn=False)
    await asyncio.gather(*threads._tasks)
    assert [[b"thread/closed" in each for each in client.lines] for client in several] == [[True]] * clients
    assert threads.of(ROOT) is None


# ── reviewers ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", ["turn/start", "thread/resume"])
@pytest.mark.parametrize(("before", "reviewer"), list(product([True, False], ["user", "auto_review"])))
@pytest.mark.parametrize("between", ["heard", "left", "unheard"])
async def test_reviewer_that_a_client_names_is_that_of_the_agents_that_came_with_the_thread_and_of_no_others(
    no_json: None, method: str, between: str, before: bool, reviewer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the agent between the thread and another agent is at rest, or was left by the client."""

    async def nothing(*_: Any) -> None:
        return None

    async def handed_in(*_: Any) -> tuple[str, None]:
        return "turn", None

    async def head(session: SessionId) -> Any:
        return SimpleNamespace(session=session, agent_id=0, shelved=False, at_rest=True)

    maker = Maker(monkeypatch, asks=False)
    monkeypatch.setattr(turns, "_changed", nothing)
    monkeypatch.setattr(turns, "_handed_in", handed_in)
    door = maker.sent.door
    cast(Any, maker.sent.threads).of = lambda session: None
    cast(Any, door.client).head = head
    own = SessionId("0199a2b4-0000-7000-8000-00000000000a")
    maker.sent.hears(ROOT, OTHER, own, asks=before)
    door.subscriptions[own].asks = not before
    for agent, above in ((AGENT, ROOT), (BELOW, AGENT)):
        if (agent, between) == (AGENT, "unheard"):
            continue
        spawned = SimpleNamespace(parent=above)
        door.adopt(live(agent), cast(Any, SimpleNamespace(id=agent, spawned=spawned, root=ROOT)))
    assert door.subscriptions[BELOW].asks is before
    if between == "left":
        door.part_with(AGENT)
    if method == "turn/start":
        words = {"threadId": ROOT, "input": [{"type": "text", "text": "go"}], "clientUserMessageId": "m"}
        for named in (None, reviewer):
            given = TurnStartParams.model_validate({**words, "approvalsReviewer": named})
            await turns.turn_start(door, given)
    else:
        await maker.answer(method, approvalsReviewer=reviewer)
    asks = reviewer == "user"
    heard = {session: one.asks for session, one in door.subscriptions.items()}
    of_agents = {BELOW: asks} if between != "heard" else {AGENT: asks, BELOW: asks}
    assert heard == {ROOT: asks, **of_agents, OTHER: before, own: not before}


# ── words without a worker ────────────────────────────────────────────────────────────────────────


class Unserved:
    """A client of a session, and what has become of its queue a while after words were handed in."""

    def __init__(self, *, at_rest: bool, holder: str | None, read: bool) -> None:
        self.at_rest = at_rest
        self.holder = holder
        self.cursor = "7-0" if read else "6-0"
        self.handed_in = False

    def known_as(self, client_id: str) -> Unserved:
        return self

    def calling_itself(self, name: str) -> None:
        """Nobody is told of the name."""

    async def head(self, session: SessionId) -> Any:
        now = {"holder": self.holder, "cursor": self.cursor} if self.handed_in else {}
        return SimpleNamespace(
            **{"session": session, "at_rest": self.at_rest, "shelved": False, "pool": "gpu", **now},
            agent_id=0,
            has_unread=True,
            quarantined=False,
        )

    async def submit(self, to: Any, submission: Any) -> Any:
        self.handed_in = True
        return SimpleNamespace(holder=None, sq_id="7-0", duplicate=False)


@pytest.mark.parametrize("method", WORDS)
@pytest.mark.parametrize("at_rest", [True, False])
@pytest.mark.parametrize(("holder", "read"), [(None, False), ("w", False), (None, True)])
async def test_client_whose_words_no_worker_takes_is_warned_whatever_the_thread_does_and_no_other_one(
    method: str, at_rest: bool, holder: str | None, read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    params, answer = WORDS[method]
    at, client = Sent(), Unserved(at_rest=at_rest, holder=holder, read=read)

    async def undecided(head: Any, asked: Any, tells: Any, submit: Any, patience_s: float) -> None:
        await submit()

    async def said_before(*_: Any) -> None:
        return None

    monkeypatch.setattr(turns, "_turn_with", said_before)

    threads = cast(Any, at.threads)
    threads.of, threads.answer = (lambda session: None), undecided
    ports = cast(Any, at.door.ports)
    ports.client, ports.random_bytes, ports.unserved_s = (lambda principal, via: client), bytes, 0.0
    door = Door(ports, threads, Principal("ann"), cast(Any, SimpleNamespace(put=at.lines.append)))
    given = {"threadId": ROOT, "input": [{"type": "text", "text": "go"}], "clientUserMessageId": "m"}
    await answer(door, params.model_validate(given))
    await asyncio.gather(*at.threads.work)
    # Of words that may join a turn their own event tells whether they were read: none came here.
    joins = method == "turn/start" and not at_rest
    warned = holder is None and (not read or joins)
    assert [b"warning" in line and b"--pool gpu" in line for line in at.lines] == [True] * warned


# ── lists ─────────────────────────────────────────────────────────────────────────────────────────


LISTS: dict[str, tuple[Any, Any]] = {
    "thread/list": (ThreadList, threads_module.thread_list),
    "thread/search": (ThreadSearch, threads_module.thread_search),
}


@pytest.mark.parametrize("method", LISTS)
@pytest.mark.parametrize("member", ["sectionId", "projectId", "originators", "attachedToThreadId"])
async def test_no_thread_is_of_a_section_a_project_or_a_program_in_any_list(
    method: str, member: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params, answer = LISTS[method]

    async def threads_page(broker: Any, asked: Any) -> Any:
        raise AssertionError("nothing is looked for")

    monkeypatch.setattr(threads_module, "threads_page", threads_page)
    given = {"searchTerm": "x", member: ["x"] if member == "originators" else "x"}
    found = await answer(Sent().door, params.model_validate(given))
    assert (found["data"], found["nextCursor"], found["backwardsCursor"]) == ([], None, None)


async def test_loaded_threads_are_those_at_work_and_each_that_the_connection_hears_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def loaded(logs: Any, most: int, namespace: str) -> list[SessionId]:
        return [BELOW, OTHER]

    monkeypatch.setattr(threads_module, "loaded", loaded)
    client = Sent()
    cast(Any, client.door.ports).found = SimpleNamespace(broker=SimpleNamespace(logs=None))
    client.hears(ROOT, OTHER, AGENT)
    found, cursor = list[str](), None
    while True:
        asked = PageParams.model_validate({"limit": 1, "cursor": cursor})
        page = await threads_module.loaded_list(client.door, asked)
        found += page["data"]
        if (cursor := page["nextCursor"]) is None:
            break
    assert found == [BELOW, OTHER, AGENT, ROOT]


# ── what one client changes ───────────────────────────────────────────────────────────────────────


CHANGED: dict[str, dict[str, Any]] = {
    "thread/settings/update": {"model": "m2", "effort": "low"},
    "turn/start": {"model": "m2", "effort": "low", "input": [{"type": "text", "text": "go"}]},
}


@pytest.mark.parametrize("method", CHANGED)
@pytest.mark.parametrize("hears", [True, False])
async def test_settings_that_a_client_changes_are_told_to_it_and_to_all_who_hear_the_thread(
    method: str, hears: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Keeps(at_rest=True)
    door = a_door(client, monkeypatch)
    clients = [Sent() for _ in range(3)]
    listeners = [each.door for each in clients[:2]]
    lines: list[bytes] = []
    door.outbox = cast(Any, SimpleNamespace(put=lines.append))
    heard = SimpleNamespace(
        listeners=[*listeners, *([door] if hears else [])], projector=SimpleNamespace(turn=None)
    )
    cast(Any, door.threads).of = lambda session: heard if session == ROOT else None
    found = METHODS[method]
    await found.answer(door, found.params.model_validate({"threadId": ROOT, **CHANGED[method]}))
    told = [[orjson.loads(line) for line in each.lines] for each in clients] + [
        [orjson.loads(line) for line in lines]
    ]
    settings = [[one["params"]["threadSettings"] for one in each] for each in told]
    assert [len(each) for each in settings] == [1, 1, 0, 1]
    assert {(one["model"], one["effort"]) for each in settings for one in each} == {("m2", "low")}


@pytest.mark.parametrize(
    ("method", "given", "told"),
    [
        ("thread/revert", {"beforeTurnId": "t"}, "thread/reverted"),
        ("thread/name/set", {"name": "new"}, "thread/name/updated"),
    ],
)
@pytest.mark.parametrize("hears", [True, False])
@pytest.mark.parametrize("undecided", [True, False])
async def test_client_is_told_what_it_has_changed_once_it_is_and_by_the_thread_where_it_hears_that(
    method: str,
    given: dict[str, Any],
    told: str,
    undecided: bool,
    hears: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    door = a_door(Keeps(at_rest=True), monkeypatch)
    lines: list[bytes] = []
    door.outbox = cast(Any, SimpleNamespace(put=lines.append))
    done = {
        "thread/revert": ThreadRolledBack(num_turns=3),
        "thread/name/set": ThreadNameUpdated(thread_id=ROOT, thread_name="new"),
    }[method]

    async def decided(head: Any, client: Any, tells: Any, submit: Any, patience_s: float) -> Any:
        await submit()
        return None if undecided else SimpleNamespace(told=done)

    cast(Any, door.threads).answer = decided
    door.subscriptions[OTHER] = Subscription(live(OTHER))
    if hears:
        door.subscriptions[ROOT] = Subscription(live(ROOT))
    found = METHODS[method]
    params = found.params.model_validate({"threadId": ROOT, **given})
    # Of a name that waits for a worker its client is warned; what goes back is refused as undone yet.
    refused = undecided and method == "thread/revert"
    with pytest.raises(RpcError, match="handed in, and kept") if refused else nullcontext():
        await found.answer(door, params)
    methods = [orjson.loads(line)["method"] for line in lines]
    assert methods == ([] if refused else ["warning"] if undecided else [] if hears else [told])
    assert all(orjson.loads(line)["params"]["threadId"] == ROOT for line in lines)


@pytest.mark.parametrize("others", range(changes.TRIES + 1))
async def test_repository_that_several_clients_tell_of_at_once_has_what_each_has_told(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the note and its change others have changed another member, again and again."""
    kept = {"note": b"", "left": others}

    async def note(session: SessionId, kind: str, new: bytes, known: bytes) -> bytes:
        if kept["left"]:
            kept["left"] = cast(int, kept["left"]) - 1
            kept["note"] = orjson.dumps({"branch": f"b{kept['left']}"})
        if known == kept["note"]:
            kept["note"] = new
        return cast(bytes, kept["note"])

    async def head(thread: str) -> Any:
        return of_thread(git_note=kept["note"])

    requests = SimpleNamespace(note=note)
    ports = SimpleNamespace(found=SimpleNamespace(broker=SimpleNamespace(requests=requests)))
    door = cast(Any, SimpleNamespace(ports=ports, head=head))
    told = changes.GitInfo.model_validate({"sha": "abc"})
    asked = changes._with_git(door, of_thread(), told)
    if others == changes.TRIES:
        with pytest.raises(RpcError, match="try again"):
            await asked
        return
    found = await asked
    branch = {"branch": "b0"} if others else {}
    assert orjson.loads(found.git_note) == {"commit_hash": "abc", **branch}


# ── the same name for other words ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", WORDS)
async def test_other_words_under_the_name_of_earlier_ones_are_handed_in_under_another_id(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Conflicts(Keeps):
        """A client that has handed in other words by the first id."""

        def __init__(self) -> None:
            super().__init__(at_rest=True)
            self.ids: list[str] = []

        async def submit(self, to: Any, submission: Any) -> Any:
            self.ids.append(submission.id)
            if len(self.ids) == 1:
                raise SubmissionConflict(submission.id)
            return await super().submit(to, submission)

    client = Conflicts()
    door = a_door(client, monkeypatch)
    params, answer = WORDS[method]
    given = {"threadId": ROOT, "input": [{"type": "text", "text": "go"}], "clientUserMessageId": "m"}
    told = await answer(door, params.model_validate(given))
    named = told["turn"] if method == "turn/start" else told["queuedSubmission"]
    assert client.ids == [door.words_id(ROOT, "m"), named["id"]]
    assert client.ids[0] != client.ids[1]
    assert len(client.sent) == 1
