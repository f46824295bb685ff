"""Version 1 of the protocol over the app-server: listeners, approvals, interrupts, names in either case."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.broker.records import SessionHead
from orchestrator.gateways.app_server import door
from orchestrator.gateways.app_server.client_connection import AppServer
from orchestrator.gateways.app_server.door import Door
from orchestrator.gateways.app_server.door_ports import (
    BadSetting,
    Born,
    ConfigWrite,
    ConfigWritten,
    NewThread,
)
from orchestrator.gateways.app_server.messages import Code
from orchestrator.gateways.app_server.methods import v1
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.gateways.client import Client
from orchestrator.gateways.pool_jobs import JobError
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.model.prompt import TextDelta
from orchestrator.protocol import jobs as j
from orchestrator.settings.layers import with_edits
from tests.doors.peer import Peer, connected, served
from tests.doors.ports import ports
from tests.doors.test_app_server_turns import HELLO, answer_facts, ports_of, working
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness
from tests.runtime.players import calls, message

STRANGER = Principal("eve", namespace="other", token="t")


@pytest.fixture
async def server(harness: Harness) -> AsyncIterator[AppServer]:
    async with served(ports_of(harness), notifications) as server, working(harness):
        yield server


@pytest.fixture
async def peer(server: AppServer) -> AsyncIterator[Peer]:
    async with connected(server) as peer:
        yield peer


async def begun(peer: Peer, **params: Any) -> str:
    return str((await peer.call("newConversation", params))["conversationId"])


async def listens(peer: Peer, conversation: str) -> str:
    return str(
        (await peer.call("addConversationListener", {"conversationId": conversation}))["subscriptionId"]
    )


async def says(peer: Peer, conversation: str, text: str = "go") -> None:
    items = [{"type": "text", "data": {"text": text}}]
    assert await peer.call("sendUserMessage", {"conversationId": conversation, "items": items}) == {}


def events(peer: Peer, kind: str) -> list[dict[str, Any]]:
    return [one["params"]["msg"] for one in peer.heard if one.get("method") == f"codex/event/{kind}"]


async def request(peer: Peer) -> dict[str, Any]:
    """The next request of the server's own."""
    while True:
        message = await peer.next()
        if "method" in message and "id" in message:
            return message


async def test_client_names_members_in_either_case_and_items_in_either_form(
    harness: Harness, peer: Peer
) -> None:
    harness.models.will(HELLO)
    conversation = await begun(peer, approval_policy="never")
    await peer.call("addConversationListener", {"conversation_id": conversation})
    items = [{"type": "text", "text": "flat"}, {"type": "text", "data": {"text": "nested"}}]
    assert await peer.call("sendUserMessage", {"conversation_id": conversation, "items": items}) == {}
    await peer.until("codex/event/task_complete")
    [said] = events(peer, "user_message")
    assert "flat" in said["message"]
    assert "nested" in said["message"]


async def test_two_listeners_of_a_connection_hear_each_event_once_until_the_last_is_gone(
    harness: Harness, peer: Peer
) -> None:
    conversation = await begun(peer)
    first, second = await listens(peer, conversation), await listens(peer, conversation)
    for gone, heard in ((None, 1), (first, 2), (second, 2)):
        if gone is not None:
            assert await peer.call("removeConversationListener", {"subscriptionId": gone}) == {}
        harness.models.will(HELLO)
        await says(peer, conversation)
        if gone != second:
            await peer.until("codex/event/task_complete")
        assert len(events(peer, "task_complete")) == heard
    refused = await peer.refused("removeConversationListener", {"subscriptionId": first})
    assert refused == (Code.REFUSED, f"subscription not found: {first}")


async def test_first_listener_of_a_new_conversation_is_told_what_of_its_settings_is_not_acted_on(
    harness: Harness,
) -> None:
    plain = ports_of(harness)

    async def create(client: Client, principal: Principal, wish: NewThread) -> Born:
        warned = tuple(f"config: not acted on: {key}" for key in wish.config)
        return replace(await plain.create(client, principal, wish), warnings=warned)

    async with served(replace(plain, create=create), notifications) as server, connected(server) as peer:
        conversation = await begun(peer, config={"pool": "x", "y": "z"})
        # What is told behind an answer comes before the next one.
        await peer.call("listConversations")
        assert events(peer, "warning") == []
        async with connected(server) as other:
            await listens(other, conversation)
            await other.call("listConversations")
            assert events(other, "warning") == []
        first, second = await listens(peer, conversation), await listens(peer, conversation)
        for id in (first, second):
            await peer.call("removeConversationListener", {"subscriptionId": id})
        await listens(peer, conversation)
        await peer.call("listConversations")
        assert events(peer, "warning") == [
            {"type": "warning", "message": f"config: not acted on: {key}"} for key in ("pool", "y")
        ]
        assert {one["params"]["conversationId"] for one in peer.heard if "params" in one} == {conversation}


async def test_warnings_of_conversations_that_nobody_listens_to_are_bounded(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ports_of(harness)
    monkeypatch.setattr(door, "MOST_WARNED", 2)

    async def create(client: Client, principal: Principal, wish: NewThread) -> Born:
        many = ("x" * (door.WARNING_CHARS + 1),) * (door.MOST_WARNINGS + 1)
        return replace(await plain.create(client, principal, wish), warnings=many)

    async with served(replace(plain, create=create), notifications) as server, connected(server) as peer:
        for conversation in [await begun(peer) for _ in range(3)]:
            await listens(peer, conversation)
        await peer.call("listConversations")
        told = events(peer, "warning")
    assert len(told) == 2 * door.MOST_WARNINGS
    assert {len(one["message"]) for one in told} == {door.WARNING_CHARS}


async def test_conversations_of_a_connection_run_side_by_side_and_each_has_its_own_events(
    harness: Harness, peer: Peer
) -> None:
    slow, quick, gate = await begun(peer), await begun(peer), Gate()
    for conversation in (slow, quick):
        await listens(peer, conversation)
    harness.models.will([TextDelta("Hel"), gate, message("slow")], [message("quick")])
    await says(peer, slow)
    await peer.until("codex/event/agent_message_delta")
    await says(peer, quick)
    await peer.until("codex/event/task_complete")
    gate.open()
    await peer.until("codex/event/task_complete")
    ended = [one["params"] for one in peer.heard if one.get("method") == "codex/event/task_complete"]
    assert [(one["conversationId"], one["msg"]["last_agent_message"]) for one in ended] == [
        (quick, "quick"),
        (slow, "slow"),
    ]


async def test_malformed_answer_denies_and_an_error_leaves_the_question_to_others(
    harness: Harness, server: AppServer, peer: Peer
) -> None:
    harness.models.will([calls("c1", ask=True)], [calls("c2", ask=True)], HELLO)
    conversation = await begun(peer, approvalPolicy="untrusted")
    await listens(peer, conversation)
    await says(peer, conversation)
    asked = await request(peer)
    assert asked["method"] == "execCommandApproval"
    params = asked["params"]
    assert params["conversationId"] == params["conversation_id"] == conversation
    assert params["callId"] == params["call_id"] == "c1"
    assert params["reason"].startswith("OUTSIDE THE SANDBOX, in ")
    assert events(peer, "exec_approval_request"), "the event comes first"
    asked_first = asked
    peer.send({"id": asked["id"], "result": {"decision": "perhaps"}})
    asked = await request(peer)
    assert asked["params"]["callId"] == "c2"
    peer.send({"id": asked["id"], "error": {"code": -1, "message": "no"}})
    async with connected(server) as other:
        await listens(other, conversation)
        again = await request(other)
        assert again["params"]["callId"] == "c2"
        other.send({"id": again["id"], "result": {"decision": "abort"}})
        await other.until("codex/event/turn_aborted")
    for fact, params in zip(
        await answer_facts(harness, conversation), (asked_first["params"], again["params"]), strict=True
    ):
        assert json.loads(fact["shown"]) == params
        assert (fact["surface"], fact["opened_ms"] > 0) == ("app-server v1", True)


async def test_answer_behind_that_of_another_client_or_behind_the_turn_is_an_answer_to_nothing(
    harness: Harness, server: AppServer, peer: Peer
) -> None:
    harness.models.will([calls("c1", ask=True)], [calls("c2", ask=True)], HELLO)
    conversation = await begun(peer, approvalPolicy="untrusted")
    await listens(peer, conversation)
    async with connected(server) as other:
        await listens(other, conversation)
        await says(peer, conversation)
        mine, theirs = await request(peer), await request(other)
        other.send({"id": theirs["id"], "result": {"decision": "approved"}})
        await peer.until("codex/event/request_resolved")
        peer.send({"id": mine["id"], "result": {"decision": "denied"}})
        mine, theirs = await request(peer), await request(other)
        peer.send({"id": mine["id"], "result": {"decision": "abort"}})
        await other.until("codex/event/turn_aborted")
        other.send({"id": theirs["id"], "result": {"decision": "approved"}})
        harness.models.will(HELLO)
        await says(other, conversation)
        await other.until("codex/event/task_complete")
    assert events(other, "error") == []


async def test_interrupt_is_answered_behind_the_event_and_refused_where_nothing_runs(
    harness: Harness, peer: Peer
) -> None:
    conversation, gate = await begun(peer), Gate()
    await listens(peer, conversation)
    idle = await peer.refused("interruptConversation", {"conversationId": conversation})
    assert idle == (Code.REFUSED, "nothing runs in this conversation")
    harness.models.will([TextDelta("Hel"), gate, message("Hello.")])
    await says(peer, conversation)
    await peer.until("codex/event/agent_message_delta")
    answer = await peer.call("interruptConversation", {"conversationId": conversation})
    assert answer == {"abortReason": "interrupted"}
    assert events(peer, "turn_aborted"), "the event comes first"
    gate.open()


@pytest.mark.parametrize("listening", [True, False])
async def test_interrupt_of_a_turn_that_was_just_over_is_answered(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, listening: bool
) -> None:
    conversation, known = await begun(peer), v1.conversation
    if listening:
        await listens(peer, conversation)

    async def busy(door: Door, id: str) -> SessionHead:
        return replace(await known(door, id), status="working")

    monkeypatch.setattr(v1, "conversation", busy)
    async with asyncio.timeout(v1.INTERRUPT_S / 2):
        _, text = await peer.refused("interruptConversation", {"conversationId": conversation})
    assert text == "nothing runs in this conversation: its turn was just over"


async def test_connection_without_a_listener_hears_nothing_and_the_work_goes_on(
    harness: Harness, server: AppServer, peer: Peer
) -> None:
    harness.models.will(HELLO)
    conversation = await begun(peer)
    async with connected(server) as other:
        await listens(other, conversation)
        await says(peer, conversation)
        await other.until("codex/event/task_complete")
    assert peer.methods() == []


async def test_archived_conversation_is_on_no_list_and_comes_back_by_its_id(
    harness: Harness, peer: Peer
) -> None:
    harness.models.will(HELLO)
    conversation = await begun(peer)
    await listens(peer, conversation)
    await says(peer, conversation)
    await peer.until("codex/event/task_complete")
    listed = await peer.call("listConversations", {"pageSize": 10})
    assert [one["conversationId"] for one in listed["items"]] == [conversation]
    while "error" in await peer.ask(
        "archiveConversation", {"conversationId": conversation, "rolloutPath": ""}
    ):
        pass
    assert (await peer.call("listConversations"))["items"] == []
    back = await peer.call("resumeConversation", {"path": conversation})
    assert back["conversationId"] == conversation
    assert [one["message"] for one in back["initialMessages"] if one["type"] == "agent_message"] == ["Hello."]


async def test_archived_conversation_that_goes_on_is_listed_again(harness: Harness, peer: Peer) -> None:
    conversation = await begun(peer)
    for method, named in (
        ("sendUserMessage", {"conversationId": conversation, "items": [{"type": "text", "text": "go"}]}),
        ("turn/start", {"threadId": conversation, "input": [{"type": "text", "text": "go"}]}),
    ):
        harness.models.will(HELLO)
        archived = {"conversationId": conversation, "rolloutPath": ""}
        while "error" in await peer.ask("archiveConversation", archived):
            pass
        assert (await peer.call("listConversations"))["items"] == []
        if method == "turn/start":
            await peer.greet(experimentalApi=True)
        await peer.call(method, named)
        listed = (await peer.call("listConversations"))["items"]
        assert [one["conversationId"] for one in listed] == [conversation]


async def test_conversation_without_a_turn_is_listed_with_the_path_of_its_rollout(
    harness: Harness, peer: Peer, tmp_path: Path
) -> None:
    path = tmp_path / "rollout.jsonl"
    conversation = await harness.session(path=path)
    (listed,) = (await peer.call("listConversations"))["items"]
    assert (listed["conversationId"], listed["path"]) == (conversation, str(path))
    summary = await peer.call("getConversationSummary", {"conversationId": conversation})
    assert summary["summary"]["path"] == str(path)
    await peer.call("resumeConversation", {"conversationId": conversation})
    told = await peer.until("sessionConfigured")
    assert told["rolloutPath"] == str(path)


async def test_words_without_any_are_refused_and_begin_nothing(peer: Peer) -> None:
    conversation = await begun(peer)
    code, text = await peer.refused("sendUserMessage", {"conversationId": conversation, "items": []})
    assert code == Code.BAD_PARAMS
    assert "items: input must not be empty: send a text" in text


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("sendUserMessage", {"items": [{"type": "text", "text": "hi"}]}),
        ("interruptConversation", {}),
        ("addConversationListener", {}),
        ("archiveConversation", {"rolloutPath": ""}),
    ],
)
async def test_unknown_conversation_is_named(peer: Peer, method: str, params: dict[str, Any]) -> None:
    for id in ("0199a2b4-0000-7000-8000-000000000000", "no id"):
        refused = await peer.refused(method, {**params, "conversationId": id})
        assert refused == (Code.REFUSED, f"conversation not found: {id}")


async def test_rollout_of_another_program_is_refused_with_the_way_to_bring_it_in(peer: Peer) -> None:
    path = "/home/ann/rollout-2025-09-20T10-00-00-0199a2b4-0000-7000-8000-000000000000.jsonl"
    code, text = await peer.refused("resumeConversation", {"path": path})
    assert code == Code.REFUSED
    assert text.startswith(f"conversation not found: {path}: ")
    assert "`dendro import FILE`" in text


async def test_client_is_told_what_is_wrong_with_its_parameters(peer: Peer) -> None:
    code, text = await peer.refused("newConversation", {"sandbox": "bad"})
    assert code == Code.BAD_PARAMS
    assert "sandbox" in text
    code, _ = await peer.refused("sendUserMessage", {"conversationId": "x", "items": [{"type": "sound"}]})
    assert code == Code.BAD_PARAMS
    code, _ = await peer.refused("listConversations", {"cursor": "nowhere"})
    assert code == Code.BAD_PARAMS
    code, _ = await peer.refused("no/such")
    assert code == Code.REFUSED, "what is no method of version 1 waits for the handshake"


class Bench:
    """A pool whose worker answers with what a test has laid out."""

    def __init__(self, result: Any) -> None:
        self.result, self.asked = result, list[Any]()

    async def do(self, job: Any, result: type[Any]) -> Any:
        self.asked.append(job)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


async def test_command_of_no_session_is_a_worker_s_and_the_user_s_alone() -> None:
    bench = Bench(j.CommandResult(exit_code=3, stdout="out", stderr=""))
    command = {"command": ["id"], "timeoutMs": 5, "cwd": "/w", "sandboxPolicy": {"mode": "read-only"}}
    async with served(ports(jobs=bench), notifications) as server:
        async with connected(server) as peer:
            ran = await peer.call("execOneOffCommand", command)
            assert ran == {"exitCode": 3, "stdout": "out", "stderr": ""}
            [job] = bench.asked
            assert (job.command, job.timeout_ms, job.cwd) == (("id",), 5, "/w")
            faults: tuple[dict[str, Any], ...]
            faults = ({"command": []}, {"timeoutMs": 0}, {"timeoutMs": 600_001}, {"cwd": ""})
            for wrong in faults:
                code, _ = await peer.refused("execOneOffCommand", {**command, **wrong})
                assert code == Code.BAD_PARAMS
            outside = {"sandboxPolicy": {"mode": "external-sandbox"}}
            _, text = await peer.refused("execOneOffCommand", {**command, **outside})
            assert "external-sandbox is not served" in text
            bench.result = JobError("no worker of pool p")
            assert await peer.refused("gitDiffToRemote", {"cwd": "/w"}) == (
                Code.REFUSED,
                "no worker of pool p",
            )
        async with connected(server, STRANGER) as other:
            code, text = await other.refused("execOneOffCommand", command)
            assert "its user's" in text
        async with connected(server, Principal("reader", scope=Scope.READ)) as reader:
            _, text = await reader.refused("execOneOffCommand", command)
            assert "needs the scope approve" in text


async def test_only_the_machine_s_user_writes_the_settings() -> None:
    written: list[Any] = []

    async def write(write: ConfigWrite) -> ConfigWritten:
        if (("model",), "bad") in write.edits:
            raise BadSetting("not changed")
        written.append(write.edits)
        return ConfigWritten(Path("/f"), "1")

    async with served(ports(write_settings=write), notifications) as server:
        async with connected(server) as peer:
            assert await peer.call("setDefaultModel", {"model": "m", "reasoning_effort": "low"}) == {}
            assert await peer.refused("setDefaultModel", {"model": "bad"}) == (Code.REFUSED, "not changed")
        async with connected(server, STRANGER) as other:
            await other.refused("setDefaultModel", {"model": "m"})
    assert written == [((("model",), "m"), (("model_reasoning_effort",), "low"))]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", 'model = "m"\n'),
        ('a = 1\nmodel = "x" # mine\n\n[t]\nmodel = "y"\n', 'a = 1\nmodel = "m"\n\n[t]\nmodel = "y"\n'),
        ("a = 1", 'a = 1\nmodel = "m"\n'),
        ('effort = "low"\n[t]\n', 'model = "m"\n[t]\n'),
    ],
)
def test_written_key_stands_before_the_tables_and_leaves_the_rest_alone(before: str, after: str) -> None:
    assert with_edits(before, [(("model",), "m"), (("effort",), None)]) == after


def test_recordings_of_version_1_are_all_here() -> None:
    assert len(list((Path(__file__).parent / "recordings/jsonrpc-v1").iterdir())) == 10
