"""Turns over the app-server: who hears them, who is asked, what steers and stops them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.blobs import Texts
from orchestrator.broker.broker import Broker
from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.records import StoredEntry
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.sender import Via
from orchestrator.core.settings import TurnSettings
from orchestrator.gateways.app_server import live_threads
from orchestrator.gateways.app_server.client_connection import AppServer
from orchestrator.gateways.app_server.door_ports import Born, NewThread, Ports
from orchestrator.gateways.app_server.messages import Code
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.gateways.client import Client
from orchestrator.gateways.permissions import Permissions, Policies, permits
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.model.prompt import TextDelta
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.ops import Interrupt
from orchestrator.protocol.submission import Submission
from tests.doors.peer import Peer, connected, served
from tests.doors.schema import assert_valid
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends, message

FREE = Policies("never", {"mode": "danger-full-access"})
HELLO = (TextDelta("Hel"), TextDelta("lo."), message("Hello."))


@dataclass
class Source:
    """The logs of the harness's server."""

    broker: Broker
    texts: Texts
    secret: bytes = b""

    async def log(self, session: SessionId, through: int, after: int = 0) -> AsyncIterator[StoredEntry]:
        if after < through:
            for entry in await self.broker.logs.read_rollout(session, after, through - after):
                yield entry

    async def large_texts(self, tree: TreeId, digests: Iterable[str]) -> dict[str, str]:
        wanted = list(digests)
        await self.texts.fetch(tree, wanted)
        return {digest: text for digest in wanted if (text := self.texts.get(digest)) is not None}


def ports_of(harness: Harness, **changes: Any) -> Ports:
    person = harness.client._ports

    async def create(client: Client, principal: Principal, wish: NewThread) -> Born:
        policy = str(wish.settings.get("approval_policy", "never"))
        session = await harness.session(policy, client=client, ephemeral=wish.ephemeral)
        head = await harness.broker.logs.head(session)
        assert head is not None
        settings = TurnSettings("/tmp", policy, {"mode": "danger-full-access"}, "gpt-5")
        return Born(head, settings)

    def client(principal: Principal, via: Via) -> Client:
        checked, by = permits(found, Permissions(principal, FREE)), principal.sender(via)
        return Client(
            person, f"door-{time.monotonic_ns()}", by.who, principal.namespace, permits=checked, by=by
        )

    found = cast(Any, Source(harness.broker, person.texts))
    ports = Ports(
        found=found,
        client=client,
        create=create,
        fork=cast(Any, None),
        delete=lambda seen, by: harness.broker.trees.delete_tree(seen, by=by),
        home=Path("/home/ann/.dendro"),
        version="1.2.3",
        now_ms=lambda: time.time_ns() // 1_000_000,
        random_bytes=harness.client._ports.random_bytes,
        offer=cast(Any, None),
    )
    return replace(ports, **changes)


@asynccontextmanager
async def working(harness: Harness) -> AsyncIterator[None]:
    """A worker that serves the harness's pool, until the block ends."""
    worker = harness.worker()
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.drain()
        await running


@pytest.fixture
async def server(harness: Harness) -> AsyncIterator[AppServer]:
    async with served(ports_of(harness), notifications) as server, working(harness):
        yield server


@pytest.fixture
async def peer(server: AppServer) -> AsyncIterator[Peer]:
    async with connected(server) as peer:
        await peer.greet(experimentalApi=True)
        yield peer


async def begun(peer: Peer, **params: Any) -> str:
    """A new thread."""
    started = await peer.call("thread/start", params)
    assert_valid("ThreadStartResponse", started)
    return str(started["thread"]["id"])


async def said(peer: Peer, thread: str, text: str = "go") -> str:
    """A turn that was handed in."""
    params = {"threadId": thread, "input": [{"type": "text", "text": text}]}
    result = await peer.call("turn/start", params)
    assert_valid("TurnStartResponse", result)
    return str(result["turn"]["id"])


async def heard_by(peer: Peer, thread: str) -> None:
    """Lets a client hear a thread that another one has made."""
    await peer.door.subscribe(SessionId(thread))


def items(peer: Peer, method: str = "item/completed") -> list[dict[str, Any]]:
    return [message["params"]["item"] for message in peer.heard if message.get("method") == method]


async def test_a_client_hears_its_turn_in_order_behind_the_answer(harness: Harness, peer: Peer) -> None:
    harness.models.will(HELLO)
    turn = await said(peer, await begun(peer))
    answered = len(peer.heard)
    completed = await peer.until("turn/completed")
    heard = [name for name in peer.methods() if not name.endswith(("/delta", "thread/started"))]
    assert peer.heard.index(next(m for m in peer.heard if m.get("method") == "turn/started")) >= answered
    assert heard == [
        "thread/status/changed",
        "turn/started",
        "item/started",
        "item/completed",
        "item/started",
        "item/completed",
        "thread/tokenUsage/updated",
        "thread/status/changed",
        "turn/completed",
    ]
    assert completed["turn"]["id"] == turn
    assert [(item["type"], item.get("text")) for item in items(peer)] == [
        ("userMessage", None),
        ("agentMessage", "Hello."),
    ]
    deltas = [m["params"]["delta"] for m in peer.heard if m.get("method") == "item/agentMessage/delta"]
    assert "".join(deltas) == "Hello."
    for notification in peer.heard:
        if "method" in notification:
            assert_valid("ServerNotification", notification)


async def test_clients_of_one_thread_hear_the_same_and_who_leaves_it_hears_no_more(
    harness: Harness, server: AppServer, peer: Peer
) -> None:
    thread = await begun(peer)
    async with connected(server) as other:
        await other.greet()
        await heard_by(other, thread)
        harness.models.will(HELLO)
        await said(peer, thread)
        await peer.until("turn/completed")
        await other.until("turn/completed")
        assert items(other) == items(peer)
        assert await other.call("thread/unsubscribe", {"threadId": thread}) == {"status": "unsubscribed"}
        assert await other.call("thread/unsubscribe", {"threadId": thread}) == {"status": "notSubscribed"}
        before = len(other.heard)
        await said(peer, thread)
        await peer.until("turn/completed")
        assert len(other.heard) == before


async def test_a_client_that_names_another_turn_neither_steers_nor_interrupts(
    harness: Harness, peer: Peer
) -> None:
    thread, gate = await begun(peer), Gate()
    harness.models.will([TextDelta("Hel"), gate, message("Hello.")], HELLO)
    steer = {"threadId": thread, "input": [{"type": "text", "text": "also"}]}
    assert await peer.refused("turn/interrupt", {"threadId": thread, "turnId": "x"}) == (
        Code.REFUSED,
        "no active turn to interrupt",
    )
    turn = await said(peer, thread)
    await peer.until("item/agentMessage/delta")
    wrong = (Code.REFUSED, f"expected active turn id `x` but found `{turn}`")
    assert await peer.refused("turn/steer", {**steer, "expectedTurnId": "x"}) == wrong
    assert await peer.refused("turn/interrupt", {"threadId": thread, "turnId": "x"}) == wrong
    assert await peer.call("turn/steer", {**steer, "expectedTurnId": turn}) == {"turnId": turn}
    gate.open()
    await peer.until("turn/completed")
    late = await peer.refused("turn/steer", {**steer, "expectedTurnId": turn})
    assert late == (Code.REFUSED, "no active turn to steer")


async def test_words_for_a_thread_at_work_join_its_turn_and_the_answer_names_it(
    harness: Harness, peer: Peer
) -> None:
    thread, gate = await begun(peer), Gate()
    harness.models.will([TextDelta("Hel"), gate, message("Hello.")], HELLO)
    turn = await said(peer, thread)
    await peer.until("item/agentMessage/delta")
    assert await said(peer, thread, "and this") == turn
    gate.open()
    await peer.until("turn/completed")
    assert [item["type"] for item in items(peer)].count("userMessage") == 2


async def test_words_that_join_a_turn_take_one_read_of_the_threads_head_and_no_second_follow(
    harness: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread, gate, taken = await begun(peer), Gate(), list[str]()
    harness.models.will([TextDelta("Hel"), gate, message("Hello.")], HELLO)
    turn = await said(peer, thread)
    await peer.until("item/agentMessage/delta")
    for owner, name in (
        (harness.broker.logs, "head"),
        (harness.broker.logs, "namespace"),
        (Client, "bursts"),
    ):
        monkeypatch.setattr(owner, name, noted(taken, name, getattr(owner, name)))
    assert await said(peer, thread, "and this") == turn
    assert taken == ["head"]
    gate.open()
    await peer.until("turn/completed")


def noted(taken: list[str], name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        taken.append(name)
        return real(*given, **named)

    return call


async def test_thread_that_its_client_does_not_hear_is_steered_and_stopped_and_is_followed_no_more_then(
    harness: Harness, server: AppServer, peer: Peer
) -> None:
    thread, gate = await begun(peer), Gate()
    harness.models.will([TextDelta("Hel"), gate, message("Hello.")], HELLO)
    turn = await said(peer, thread)
    await peer.until("item/agentMessage/delta")
    await peer.call("thread/unsubscribe", {"threadId": thread})
    async with connected(server) as other:
        await other.greet(experimentalApi=True)
        assert await said(other, thread, "and this") == turn
        assert await other.call("turn/interrupt", {"threadId": thread, "turnId": turn}) == {}
        assert "turn/completed" not in other.methods()
        assert other.door.threads.of(SessionId(thread)) is None
    gate.open()


async def test_words_behind_others_that_no_worker_has_read_join_their_turn_and_the_answer_names_it(
    harness: Harness,
) -> None:
    async with served(ports_of(harness), notifications) as server, connected(server) as peer:
        await peer.greet(experimentalApi=True)
        thread, gate = await begun(peer), Gate()
        harness.models.will([gate, message("Hello.")], HELLO)
        turn = await harness.say(SessionId(thread))
        asked = asyncio.create_task(said(peer, thread, "and this"))
        while await harness.broker.command("XLEN", harness.broker.keys.sq(thread)) in (0, 1):
            await asyncio.sleep(0)
        async with working(harness):
            assert await asked == turn
            gate.open()
            await peer.until("turn/completed")


async def sends(peer: Peer, thread: str, text: str, name: str) -> str:
    """The turn of a message that its client names."""
    params = {"threadId": thread, "input": [{"type": "text", "text": text}], "clientUserMessageId": name}
    return str((await peer.call("turn/start", params))["turn"]["id"])


async def test_message_that_is_sent_again_to_another_server_is_one_turn(harness: Harness, peer: Peer) -> None:
    thread = await begun(peer)
    harness.models.will(HELLO, HELLO)
    turn = await sends(peer, thread, "go", "m-1")
    async with served(ports_of(harness), notifications) as other, connected(other) as again:
        await again.greet(experimentalApi=True)
        # The first server died with its answer: the client knows of no turn.
        assert await sends(again, thread, "go", "m-1") == turn
        await peer.until("turn/completed")
        assert await sends(again, thread, "go", "m-1") == turn
        assert await sends(again, thread, "go on", "m-1") != turn
        second = await peer.until("turn/completed")
        assert second["turn"]["id"] != turn
        turns = (await again.call("thread/turns/list", {"threadId": thread}))["data"]
    assert len(turns) == 2


async def test_message_that_is_sent_again_while_its_turn_runs_joins_it_once(
    harness: Harness, peer: Peer
) -> None:
    thread, gate = await begun(peer), Gate()
    harness.models.will([TextDelta("Hel"), gate, message("Hello.")], HELLO)
    turn = await sends(peer, thread, "go", "m-1")
    await peer.until("item/agentMessage/delta")
    assert await sends(peer, thread, "go", "m-1") == turn
    assert await sends(peer, thread, "more", "m-2") == turn
    async with served(ports_of(harness), notifications) as other, connected(other) as again:
        await again.greet(experimentalApi=True)
        # This server hears nothing of the thread yet.
        assert await sends(again, thread, "more", "m-2") == turn
        gate.open()
        await peer.until("turn/completed")
        # It began no turn, and none will ever bear its own id.
        assert await sends(again, thread, "more", "m-2") == turn
    assert [item["type"] for item in items(peer)].count("userMessage") == 2


async def test_a_turn_that_is_interrupted_has_stopped_when_the_answer_comes(
    harness: Harness, peer: Peer
) -> None:
    thread, gate = await begun(peer), Gate()
    harness.models.will([TextDelta("Hel"), gate, message("Hello.")])
    turn = await said(peer, thread)
    await peer.until("item/agentMessage/delta")
    assert await peer.call("turn/interrupt", {"threadId": thread, "turnId": turn}) == {}
    if "turn/completed" not in peer.methods():
        await peer.until("turn/completed")
    completed = next(m["params"] for m in peer.heard if m.get("method") == "turn/completed")
    assert completed["turn"]["status"] == "interrupted"


# ── requests ──────────────────────────────────────────────────────────────────────────────────

REQUEST = "item/commandExecution/requestApproval"


async def asked(peer: Peer) -> dict[str, Any]:
    """The server's next request, whole."""
    await peer.until(REQUEST)
    assert_valid("ServerRequest", peer.heard[-1])
    return peer.heard[-1]


async def answer_facts(harness: Harness, thread: str) -> list[dict[str, Any]]:
    """The answers in a session's log, with the texts that stand beside it."""
    source = Source(harness.broker, harness.client._ports.texts)
    lines = [orjson.loads(entry.payload)["payload"] async for entry in source.log(SessionId(thread), 999)]
    facts = [payload for payload in lines if payload.get("kind") == "answer"]
    for fact in facts:
        if isinstance(fact["shown"], dict):
            digest = fact["shown"]["$blob"]
            fact["shown"] = (await source.large_texts(TreeId(thread), [digest]))[digest]
    return facts


async def test_all_clients_of_a_thread_are_asked_and_the_first_answer_counts(
    harness: Harness, server: AppServer, peer: Peer
) -> None:
    harness.models.will([calls("c1", ask=True), ends()])
    thread = await begun(peer, approvalPolicy="untrusted")
    async with connected(server) as other:
        await other.greet()
        await heard_by(other, thread)
        await said(peer, thread)
        first, second = await asked(peer), await asked(other)
        assert first["params"] == second["params"]
        assert first["params"]["reason"].startswith("OUTSIDE THE SANDBOX, in ")
        other.send({"id": second["id"], "result": {"decision": "accept"}})
        for one, request in ((peer, first), (other, second)):
            resolved = await one.until("serverRequest/resolved")
            assert resolved == {"threadId": thread, "requestId": request["id"]}
        peer.send({"id": first["id"], "result": {"decision": "decline"}})
        completed = await peer.until("turn/completed")
    assert completed["turn"]["status"] == "completed"
    assert harness.tools.started["c1"] == 1
    [fact] = await answer_facts(harness, thread)
    assert fact["shown"].startswith(f"{first['params']['reason']}\n{first['params']['command']}")
    assert (fact["surface"], fact["opened_ms"]) == ("app-server v2", first["params"]["startedAtMs"])


@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"code": -32601, "message": "not here"}},
        {"result": {}},
        {"result": {"decision": "yes"}},
        {"result": {"decision": {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": [7]}}}},
        {"result": {"decision": {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["x"] * 1000}}}},
        {"result": {"decision": ["accept"]}},
        {"result": "accept"},
    ],
)
async def test_a_request_stays_open_when_an_answer_says_nothing(
    harness: Harness, peer: Peer, answer: dict[str, Any]
) -> None:
    harness.models.will([calls("c1", ask=True), ends()])
    await said(peer, await begun(peer, approvalPolicy="untrusted"))
    request = await asked(peer)
    peer.send({"id": request["id"], **answer})
    peer.send({"id": request["id"], "result": {"decision": "decline"}})
    await peer.until("turn/completed")
    assert harness.tools.started["c1"] == 0


async def test_a_request_that_ends_with_its_turn_is_taken_back(harness: Harness, peer: Peer) -> None:
    harness.models.will([calls("c1", ask=True), ends()])
    thread = await begun(peer, approvalPolicy="untrusted")
    turn = await said(peer, thread)
    request = await asked(peer)
    await peer.call("turn/interrupt", {"threadId": thread, "turnId": turn})
    if "serverRequest/resolved" not in peer.methods():
        await peer.until("serverRequest/resolved")
    resolved = next(m for m in peer.heard if m.get("method") == "serverRequest/resolved")
    assert resolved["params"] == {"threadId": thread, "requestId": request["id"]}


async def test_a_client_whose_reviewer_is_a_model_is_not_asked(harness: Harness, peer: Peer) -> None:
    harness.models.will([calls("c1", ask=True), ends()])
    thread = await begun(peer, approvalPolicy="untrusted", approvalsReviewer="auto_review")
    await said(peer, thread)
    await peer.until("item/started")
    while not await harness.broker.requests.approvals(SessionId(thread)):
        await peer.next()
    await harness.approve(SessionId(thread), "c1")
    await peer.until("turn/completed")
    assert REQUEST not in peer.methods()


async def test_a_principal_that_may_not_approve_is_not_asked(
    harness: Harness, server: AppServer, peer: Peer
) -> None:
    harness.models.will([calls("c1", ask=True), ends()])
    thread = await begun(peer, approvalPolicy="untrusted")
    async with connected(server, Principal("ben", scope=Scope.SUBMIT)) as other:
        await other.greet()
        await heard_by(other, thread)
        await said(peer, thread)
        request = await asked(peer)
        peer.send({"id": request["id"], "result": {"decision": "accept"}})
        await other.until("turn/completed")
        assert REQUEST not in other.methods()
        assert "serverRequest/resolved" not in other.methods()


# ── what else is told ─────────────────────────────────────────────────────────────────────────


async def test_a_client_does_not_hear_what_it_has_opted_out_of(harness: Harness, server: AppServer) -> None:
    harness.models.will(HELLO)
    async with connected(server) as peer:
        await peer.greet(optOutNotificationMethods=["item/agentMessage/delta", "thread/started"])
        await said(peer, await begun(peer))
        await peer.until("turn/completed")
    assert {"item/agentMessage/delta", "thread/started"}.isdisjoint(peer.methods())
    assert "item/completed" in peer.methods()


async def test_a_client_whose_words_no_worker_takes_learns_which_pool_lacks_one(harness: Harness) -> None:
    async with served(ports_of(harness, unserved_s=0.01), notifications) as server, connected(server) as peer:
        await peer.greet()
        thread = await begun(peer)
        await said(peer, thread)
        warned = await peer.until("warning")
    assert warned["threadId"] == thread
    assert "harness" in warned["message"]


async def test_an_ephemeral_thread_is_deleted_when_nobody_hears_it(harness: Harness, peer: Peer) -> None:
    harness.models.will(HELLO)
    thread = await begun(peer, ephemeral=True)
    await said(peer, thread)
    await peer.until("turn/completed")
    await peer.call("thread/unsubscribe", {"threadId": thread})
    assert await peer.until("thread/closed") == {"threadId": thread}
    assert await harness.broker.logs.head(SessionId(thread)) is None


@pytest.mark.parametrize("last", ["maker", "other"])
async def test_an_ephemeral_thread_is_deleted_when_no_gateway_hears_it_any_more(
    harness: Harness, last: str
) -> None:
    async with (
        served(ports_of(harness, server_id="a"), notifications) as first,
        served(ports_of(harness, server_id="b"), notifications) as second,
        connected(first) as maker,
        connected(second) as other,
    ):
        await maker.greet()
        await other.greet()
        thread = await begun(maker, ephemeral=True)
        session = SessionId(thread)
        await until_marked(harness, session, "a")
        await heard_by(other, thread)
        await until_marked(harness, session, "b")
        stays, leaves = (maker, other) if last == "maker" else (other, maker)
        gone = {"maker": "b", "other": "a"}[last]
        assert await leaves.call("thread/unsubscribe", {"threadId": thread})
        await until_marked(harness, session, gone, there=False)
        assert await harness.broker.logs.head(session) is not None
        await stays.call("thread/unsubscribe", {"threadId": thread})
        assert await stays.until("thread/closed") == {"threadId": thread}
        assert await harness.broker.logs.head(session) is None


async def until_marked(harness: Harness, session: SessionId, server: str, *, there: bool = True) -> None:
    """Waits until a gateway says, or says no more, that it hears a session."""

    async with asyncio.timeout(20):
        while True:
            (note,) = await harness.broker.requests.notes(live_threads.HEARD, [session])
            if (server in orjson.loads(note or b"{}")) is there:
                break


async def test_gateway_that_died_keeps_no_ephemeral_thread(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_threads, "HEARD_MS", 1)
    async with served(ports_of(harness, server_id="a"), notifications) as server, connected(server) as peer:
        await peer.greet()
        thread = await begun(peer, ephemeral=True)
        await until_marked(harness, SessionId(thread), "a")
        await live_threads.marked(ports_of(harness, server_id="dead"), SessionId(thread), hears=True)
        await peer.call("thread/unsubscribe", {"threadId": thread})
        assert await peer.until("thread/closed") == {"threadId": thread}
        assert await harness.broker.logs.head(SessionId(thread)) is None


async def test_a_client_that_leaves_ends_nothing(harness: Harness, server: AppServer, peer: Peer) -> None:
    gate = Gate()
    harness.models.will([TextDelta("Hel"), gate, message("Hello.")])
    async with connected(server) as leaving:
        await leaving.greet()
        thread = await begun(leaving)
        await said(leaving, thread)
        await leaving.until("item/agentMessage/delta")
    gate.open()
    await harness.until(SessionId(thread), "task_complete")


async def test_a_principal_of_another_namespace_sees_nothing_of_a_thread(
    harness: Harness, server: AppServer, peer: Peer
) -> None:
    gate = Gate()
    harness.models.will([TextDelta("Hel"), gate, message("Hello.")])
    thread = await begun(peer)
    await said(peer, thread)
    await peer.until("item/agentMessage/delta")
    unknown = (Code.REFUSED, f"thread not found: {thread}")
    async with connected(server, Principal("eve", namespace="elsewhere")) as eve:
        await eve.greet()
        with pytest.raises(UnknownSession):
            await heard_by(eve, thread)
        head = await harness.broker.logs.head(SessionId(thread))
        assert head is not None
        with pytest.raises(UnknownSession):
            await eve.door.client.submit(head, Submission(SubmissionId("s"), Interrupt()))
        speak = {"threadId": thread, "input": [{"type": "text", "text": "go"}]}
        assert await eve.refused("turn/start", speak) == unknown
        assert await eve.refused("turn/steer", {**speak, "expectedTurnId": "x"}) == unknown
        assert await eve.refused("turn/interrupt", {"threadId": thread, "turnId": "x"}) == unknown
        assert await eve.refused("thread/compact/start", {"threadId": thread}) == unknown
        assert await eve.call("thread/unsubscribe", {"threadId": thread}) == {"status": "notLoaded"}
    gate.open()
    await peer.until("turn/completed")


async def test_a_client_that_names_an_unknown_thread_is_told_so(peer: Peer) -> None:
    unknown = "0199a2b4-0000-7000-8000-000000000000"
    speak = {"input": [{"type": "text", "text": "go"}]}
    refused = await peer.refused("turn/start", {"threadId": unknown, **speak})
    assert refused == (Code.REFUSED, f"thread not found: {unknown}")
    refused = await peer.refused("turn/start", {"threadId": "../etc", **speak})
    assert refused == (Code.REFUSED, "invalid thread id: ../etc")
    assert await peer.call("thread/unsubscribe", {"threadId": unknown}) == {"status": "notLoaded"}


async def test_turn_without_any_input_is_refused_and_its_client_waits_for_none(peer: Peer) -> None:
    thread = await begun(peer)
    for method in ("turn/start", "thread/queue/add"):
        params = {"threadId": thread, "input": [], "clientUserMessageId": "x"}
        code, text = await peer.refused(method, params)
        assert code == Code.BAD_PARAMS
        assert "input must not be empty: send a text" in text
