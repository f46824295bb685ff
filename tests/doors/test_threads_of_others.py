"""Every method that names a thread: one of another namespace is as one that there is not, and stays so."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.broker.notices import until
from orchestrator.broker.records import SessionHead
from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.client_connection import AppServer
from orchestrator.gateways.app_server.methods import METHODS
from orchestrator.gateways.principals import Principal, Scope
from tests.doors.peer import ANN, Peer, connected
from tests.doors.test_app_server_turns import begun, peer, said, server
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends, message

__all__ = ["peer", "server"]
pytestmark = pytest.mark.realredis

NOBODYS = "0199a2b4-0000-7000-8000-000000000000"
NAMES = {"thread_id", "tree_id", "conversation_id", "requests"}
WORDS = [{"type": "text", "text": "go"}]
POLICY = {"approvalPolicy": "never", "sandboxPolicy": {"mode": "read-only"}, "model": "gpt-5", "cwd": "/tmp"}
MORE: dict[str, dict[str, Any]] = {
    "turn/start": {"input": WORDS, "model": "gpt-6"},
    "turn/steer": {"input": WORDS, "expectedTurnId": "t"},
    "turn/interrupt": {"turnId": "t", "tree": True},
    "thread/name/set": {"name": "mine"},
    "thread/settings/update": {"model": "gpt-6"},
    "thread/revert": {"beforeTurnId": "t"},
    "thread/shellCommand": {"command": "ls"},
    "review/start": {"target": {"type": "uncommittedChanges"}},
    "thread/inject_items": {"items": [{"type": "message", "role": "user", "content": "x"}]},
    "thread/readState/update": {"operation": {"type": "read"}, "expectedRevision": "0.1"},
    "thread/metadata/update": {"gitInfo": {"branch": "mine"}},
    "thread/queue/add": {"input": WORDS, "clientUserMessageId": "m"},
    "thread/queue/delete": {"queuedSubmissionId": "q"},
    "thread/queue/reorder": {"queuedSubmissionIds": []},
    "thread/queue/start": {"queuedSubmissionId": "q"},
    "thread/queue/update": {"queuedSubmissionId": "q", "input": WORDS},
    "budget/add": {"requestId": "r", "add": {"tokens": 5}},
    "workspace/diff": {"path": "a"},
    "sendUserMessage": {"items": WORDS},
    "sendUserTurn": {"items": WORDS, **POLICY},
}
"""Members beside the thread, with which each method would do something to one of its client's own."""
NOT_OF_ONE = {"experimentalFeature/list", "mcpServerStatus/list", "thread/unsubscribe"}
"""Methods that take a thread, and are answered the same whatever it is."""
NAMED = [name for name, method in METHODS.items() if NAMES & method.params.model_fields.keys()]


def params(name: str, thread: str) -> dict[str, Any]:
    fields = METHODS[name].params.model_fields
    if "requests" in fields:
        return {"requests": [{"threadId": thread, "callId": "c", "answer": {"decision": "accept"}}]}
    (member,) = NAMES & fields.keys()
    alias = fields[member].alias
    assert alias is not None
    return {alias: thread, **MORE.get(name, {})}


def elsewhere(thread: str) -> list[tuple[str, dict[str, Any]]]:
    """Methods that name a thread by other members."""
    file = f"/home/ann/.dendro/sessions/rollout-2026-01-01T00-00-00-{thread}.jsonl"
    above = ("parentThreadId", "ancestorThreadId")
    return [
        *(("thread/list", {member: thread}) for member in above),
        *(("thread/search", {"searchTerm": "one", member: thread}) for member in above),
        ("resumeConversation", {"path": file}),
        ("resumeConversation", {"conversationId": thread, "overrides": {"model": "gpt-6"}}),
        ("getConversationSummary", {"rolloutPath": file}),
    ]


async def answers(client: Peer, thread: str) -> list[tuple[str, str]]:
    """The answer of each method for a thread, without the id of that."""
    found = []
    for name, given in [*((name, params(name, thread)) for name in NAMED), *elsewhere(thread)]:
        answer = await client.ask(name, given)
        answer.pop("id")
        found.append((name, str(answer).replace(thread, "ID")))
    return found


async def at_rest(harness: Harness, thread: str) -> SessionHead:
    """The head of a thread that no worker holds any more."""
    session, heads = SessionId(thread), list[SessionHead]()

    async def let_go() -> bool:
        heads[:] = await harness.broker.logs.heads([session])
        return heads[0].let_go

    assert await until(harness.broker, [session], let_go, 20)
    return heads[0]


async def test_thread_of_another_namespace_is_as_none_for_every_method_also_when_it_was_deleted(
    harness: Harness, server: AppServer, peer: Peer
) -> None:
    harness.models.will([message("one"), ends()])
    thread = await begun(peer)
    await said(peer, thread, "one")
    await peer.until("turn/completed")
    before, heard = await at_rest(harness, thread), len(peer.heard)
    async with connected(server, Principal("acme/eve", namespace="acme")) as eve:
        await eve.greet(experimentalApi=True)
        nobodys = await answers(eve, NOBODYS)
        assert await answers(eve, thread) == nobodys
        for name, text in nobodys:
            # It is about the thread, and no other member is wrong.
            assert name not in NAMED or name in NOT_OF_ONE or "ID" in text, (name, text)
        assert await at_rest(harness, thread) == before
        assert peer.heard[heard:] == []
        await peer.call("thread/delete", {"threadId": thread})
        assert await answers(eve, thread) == nobodys
        for name, text in await answers(peer, thread):
            if name in NAMED and name not in NOT_OF_ONE and "/" in name:
                assert "it was deleted by ann at" in text, (name, text)


NOTHING: dict[str, Any] = {}
LISTS = {
    "approval/history": {},
    "approval/list": {},
    "fleet/list": {},
    "listConversations": {},
    "thread/list": {},
    "thread/loaded/list": {},
    "thread/search": {"searchTerm": "go"},
}
"""Methods that list threads without naming one, and show those here."""


@pytest.mark.parametrize("of_tenant", [True, False])
async def test_list_of_every_kind_shows_a_namespace_its_own_threads_alone(
    harness: Harness, server: AppServer, of_tenant: bool
) -> None:
    tenants, own = [Principal(f"acme/{name}", "acme") for name in ("eve", "bob")], [ANN, Principal("ben")]
    owners, others = (tenants, own) if of_tenant else (own, tenants)
    threads = []
    asked = dict.fromkeys((name for name, one in METHODS.items() if one.scope is Scope.READ), NOTHING) | LISTS
    async with (
        connected(server, owners[0]) as owner,
        connected(server, owners[1]) as friend,
        connected(server, others[0]) as other,
    ):
        for client in (owner, friend, other):
            await client.greet(experimentalApi=True)
        for call in ("c1", "c2"):
            harness.models.will([calls(call, ask=True), ends()])
            threads.append(SessionId(await begun(owner, approvalPolicy="untrusted")))
            await said(owner, threads[-1])
            await harness.until(threads[-1], "exec_approval_request")
        harness.models.will([message("done"), ends()])
        await harness.approve(threads[0], "c1", "denied")
        await harness.until(threads[0], "task_complete")
        await at_rest(harness, threads[0])
        for name, given in asked.items():
            if name == "initialize":
                continue
            told = str(await other.ask(name, given))
            assert not any(thread in told for thread in threads), (name, told)
            if name in LISTS:
                told = str(await friend.ask(name, given))
                assert any(thread in told for thread in threads), (name, told)
