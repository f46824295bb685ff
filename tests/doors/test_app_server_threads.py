"""Threads over the app-server: lists and reads of their logs, names, and the way back to one at work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import orjson
import pytest

from orchestrator.gateways.app_server.client_connection import AppServer
from orchestrator.gateways.app_server.messages import Code
from orchestrator.gateways.app_server.methods import changes, threads, turns
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.gateways.client import Client
from orchestrator.gateways.principals import Principal
from tests.doors.peer import Peer, connected, served
from tests.doors.schema import assert_valid
from tests.doors.test_app_server_turns import HELLO, begun, ports_of, said, server
from tests.garbage import freed_at_once
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends

__all__ = ["server"]
pytestmark = pytest.mark.realredis
NOBODY = "01a1f8a1-c5d0-7001-97bc-c80be6a60f79"


@pytest.fixture
async def peer(server: AppServer) -> AsyncIterator[Peer]:
    async with connected(server) as peer:
        await peer.greet(experimentalApi=True)
        yield peer


@pytest.fixture
async def other(server: AppServer) -> AsyncIterator[Peer]:
    async with connected(server) as peer:
        await peer.greet(experimentalApi=True)
        yield peer


async def talked(peer: Peer, harness: Harness, *texts: str) -> str:
    """A thread in which a person said these, one after the other."""
    thread = await begun(peer)
    for text in texts:
        harness.models.will(HELLO)
        await said(peer, thread, text)
        await peer.until("turn/completed")
    return thread


async def test_client_that_leaves_leaves_the_memory_of_its_thread_at_once(
    peer: Peer, harness: Harness
) -> None:
    thread = await talked(peer, harness, "one")
    with freed_at_once():
        async with served(ports_of(harness), notifications) as server, connected(server) as other:
            await other.greet()
            await other.call("thread/resume", {"threadId": thread})
            await other.refused("thread/resume", {"threadId": NOBODY})
        del server, other


async def read(peer: Peer, method: str, definition: str, **params: Any) -> dict[str, Any]:
    found = await peer.call(method, params)
    assert_valid(definition, found)
    return found


def timeless(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items without their times: a log does not say when the first word of a text came."""
    return [{name: value for name, value in item.items() if not name.endswith("Ms")} for item in items]


def live_items(peer: Peer) -> list[dict[str, Any]]:
    """The items that a client saw complete."""
    done = [message for message in peer.heard if message.get("method") == "item/completed"]
    return timeless(message["params"]["item"] for message in done)


async def test_items_that_a_client_reads_are_those_that_it_saw(peer: Peer, harness: Harness) -> None:
    thread = await talked(peer, harness, "one", "two")
    seen = live_items(peer)
    assert [item["type"] for item in seen] == ["userMessage", "agentMessage"] * 2
    whole = await read(peer, "thread/read", "ThreadReadResponse", threadId=thread, includeTurns=True)
    turns = whole["thread"]["turns"]
    assert timeless(item for turn in turns for item in turn["items"]) == seen
    listed = await read(peer, "thread/items/list", "ThreadItemsListResponse", threadId=thread)
    assert timeless(entry["item"] for entry in listed["data"]) == seen
    newest = await read(
        peer, "thread/turns/list", "ThreadTurnsListResponse", threadId=thread, limit=1, itemsView="full"
    )
    assert newest["data"] == [{**turns[1], "itemsView": "full"}]
    rest = await read(
        peer, "thread/turns/list", "ThreadTurnsListResponse", threadId=thread, cursor=newest["nextCursor"]
    )
    assert [turn["id"] for turn in rest["data"]] == [turns[0]["id"]]
    assert rest["data"][0]["itemsView"] == "summary"
    assert rest["nextCursor"] is None


async def test_answers_of_a_thread_of_many_bytes_are_cut_and_nothing_is_lost(
    peer: Peer, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = await talked(peer, harness, "one", "two", "three", "four")
    whole = await peer.call("thread/turns/list", {"threadId": thread, "itemsView": "full"})
    monkeypatch.setattr(threads, "MOST_BYTES", len(orjson.dumps(whole["data"][:2])) + 20)
    first = await peer.call("thread/turns/list", {"threadId": thread, "itemsView": "full"})
    more = {"threadId": thread, "itemsView": "full", "cursor": first["nextCursor"]}
    rest = await peer.call("thread/turns/list", more)
    assert [*first["data"], *rest["data"]] == whole["data"]
    assert len(first["data"]) == 2
    items = await peer.call("thread/items/list", {"threadId": thread, "limit": 8})
    assert 0 < len(items["data"]) < 8
    assert items["nextCursor"] is not None
    told = await peer.call("thread/read", {"threadId": thread, "includeTurns": True})
    assert [turn["id"] for turn in told["thread"]["turns"]] == [
        turn["id"] for turn in whole["data"][: len(told["thread"]["turns"])][::-1]
    ]
    assert 0 < len(told["thread"]["turns"]) < 4
    assert "thread/turns/list has those before" in (await peer.until("warning"))["message"]


async def test_client_of_a_long_thread_gets_its_newest_turns_and_learns_where_the_others_are(
    peer: Peer, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "MOST_INCLUDED", 2)
    thread = await talked(peer, harness, "one", "two", "three")
    found = await peer.call("thread/resume", {"threadId": thread})
    said = [turn["items"][0]["content"][0]["text"] for turn in found["thread"]["turns"]]
    assert said == ["two", "three"]
    assert "only the last 2 turns" in (await peer.until("warning"))["message"]


async def test_client_finds_the_thread_in_the_list_by_its_words(peer: Peer, harness: Harness) -> None:
    thread = await talked(peer, harness, "mend the parser")
    await talked(peer, harness, "something else")
    found = await read(peer, "thread/list", "ThreadListResponse", searchTerm="PARSER", sortKey="updated_at")
    assert [one["id"] for one in found["data"]] == [thread]
    assert found["data"][0]["preview"] == "mend the parser"
    searched = await read(peer, "thread/search", "ThreadSearchResponse", searchTerm="The PARSER")
    assert [(one["thread"]["id"], one["snippet"]) for one in searched["data"]] == [
        (thread, "mend the parser")
    ]
    assert (await peer.refused("thread/search", {"searchTerm": ""}))[0] == Code.BAD_PARAMS
    everything = await read(peer, "thread/list", "ThreadListResponse", sourceKinds=[], limit=1)
    assert (len(everything["data"]), everything["nextCursor"] is None) == (1, False)
    none = await read(peer, "thread/list", "ThreadListResponse", sectionId="s", sortKey="section_position")
    assert none["data"] == []


async def test_client_names_a_thread_and_all_who_hear_it_are_told(
    peer: Peer, other: Peer, harness: Harness
) -> None:
    thread = await begun(peer)
    named = asyncio.create_task(other.call("thread/name/set", {"threadId": thread, "name": " The \n name "}))
    told = await peer.until("thread/name/updated")
    assert told == {"threadId": thread, "threadName": "The name"}
    assert await named == {}
    assert other.methods() == ["thread/name/updated"]
    [here] = [line["params"] for line in other.heard if line.get("method") == "thread/name/updated"]
    assert here == told, "the name as it is, whoever hears of it"
    found = await read(peer, "thread/read", "ThreadReadResponse", threadId=thread)
    assert found["thread"]["name"] == "The name"


async def test_client_that_comes_back_reads_the_past_and_hears_the_rest(
    peer: Peer, other: Peer, harness: Harness
) -> None:
    thread = await talked(peer, harness, "one")
    resumed = await read(other, "thread/resume", "ThreadResumeResponse", threadId=thread)
    assert [turn["status"] for turn in resumed["thread"]["turns"]] == ["completed"]
    assert (resumed["model"], resumed["approvalPolicy"]) == ("gpt-5", "never")
    tokens = await other.until("thread/tokenUsage/updated")
    assert_valid("ThreadTokenUsageUpdatedNotification", tokens)
    counted = [one["params"] for one in peer.heard if one.get("method") == "thread/tokenUsage/updated"]
    assert tokens == counted[-1]
    harness.models.will(HELLO)
    await said(peer, thread, "two")
    await other.until("turn/completed")
    past = timeless(item for turn in resumed["thread"]["turns"] for item in turn["items"])
    await peer.until("turn/completed")
    assert [*past, *live_items(other)] == live_items(peer)


@pytest.mark.parametrize("within", [(1, 512), (1, 2, 512), (512,)])
async def test_client_that_comes_back_hears_of_tokens_that_were_counted_long_before_the_end(
    peer: Peer, other: Peer, harness: Harness, monkeypatch: pytest.MonkeyPatch, within: tuple[int, ...]
) -> None:
    monkeypatch.setattr(turns, "TOKENS_WITHIN", within)
    thread = await talked(peer, harness, "one")
    await read(other, "thread/resume", "ThreadResumeResponse", threadId=thread)
    tokens = await other.until("thread/tokenUsage/updated")
    counted = [one["params"] for one in peer.heard if one.get("method") == "thread/tokenUsage/updated"]
    assert tokens == counted[-1]


async def test_terminal_comes_back_with_cursors_that_have_the_newest_turn(
    peer: Peer, other: Peer, harness: Harness
) -> None:
    thread = await talked(peer, harness, "one", "two")
    resumed = await read(other, "thread/resume", "ThreadResumeResponse", threadId=thread, excludeTurns=True)
    assert resumed["thread"]["turns"] == []
    at = {"threadId": thread, "sortDirection": "desc"}
    turns = await other.call(
        "thread/turns/list", {**at, "cursor": resumed["turnsBackwardsCursor"], "itemsView": "notLoaded"}
    )
    assert [turn["items"] for turn in turns["data"]] == [[], []]
    items = await other.call("thread/items/list", {**at, "cursor": resumed["itemsBackwardsCursor"]})
    assert timeless(entry["item"] for entry in items["data"]) == live_items(peer)[::-1]


async def test_client_that_comes_back_is_asked_what_is_open_and_its_answer_counts(
    harness: Harness, peer: Peer, other: Peer
) -> None:
    thread = await begun(peer, approvalPolicy="untrusted")
    harness.models.will([calls("c1", ask=True), ends()], HELLO)
    await said(peer, thread)
    asked = await peer.until("item/commandExecution/requestApproval")
    resumed = await read(other, "thread/resume", "ThreadResumeResponse", threadId=thread)
    assert resumed["thread"]["status"] == {"type": "active", "activeFlags": ["waitingOnApproval"]}
    again = await other.next()
    assert again["method"] == "item/commandExecution/requestApproval"
    assert again["params"]["itemId"] == asked["itemId"]
    other.send({"id": again["id"], "result": {"decision": "accept"}})
    assert (await other.until("turn/completed"))["turn"]["status"] == "completed"


@pytest.mark.parametrize("method", ["thread/read", "thread/resume", "thread/turns/list", "thread/items/list"])
async def test_client_that_names_a_thread_that_there_is_not_is_told_so(peer: Peer, method: str) -> None:
    refused = await peer.refused(method, {"threadId": NOBODY})
    assert refused == (Code.REFUSED, f"no rollout found for thread id {NOBODY}")
    assert (await peer.refused(method, {"threadId": "x"}))[1] == "invalid thread id: x"


async def test_client_with_a_place_of_another_list_is_told_so(peer: Peer, harness: Harness) -> None:
    thread = await talked(peer, harness, "one", "two")
    page = await peer.call("thread/turns/list", {"threadId": thread, "limit": 1})
    for method, cursor in (
        ("thread/items/list", page["nextCursor"]),
        ("thread/turns/list", "x"),
        ("thread/list", page["nextCursor"]),
    ):
        code, message = await peer.refused(method, {"threadId": thread, "cursor": cursor})
        assert (code, "cursor" in message) == (Code.BAD_PARAMS, True)


async def test_small_answers_about_a_thread_are_valid(peer: Peer) -> None:
    thread = await begun(peer)
    await read(peer, "thread/goal/get", "ThreadGoalGetResponse", threadId=thread)
    await read(
        peer, "thread/backgroundTerminals/list", "ThreadBackgroundTerminalsListResponse", threadId=thread
    )
    await read(peer, "thread/loaded/list", "ThreadLoadedListResponse")


async def test_client_of_another_namespace_finds_no_thread_by_any_method(
    harness: Harness, peer: Peer
) -> None:
    thread = await talked(peer, harness, "one")

    def client(principal: Principal, via: str) -> Client:
        return Client(harness.client._ports, "tenant", principal.name, principal.namespace)

    tenant = Principal("eve", namespace="eve")
    async with (
        served(ports_of(harness, client=client), notifications) as server,
        connected(server, tenant) as eve,
    ):
        await eve.greet(experimentalApi=True)
        resumed = ("thread/resume", turns.METHODS["thread/resume"])
        for method, table in (*threads.METHODS.items(), resumed, *changes.METHODS.items()):
            if "thread_id" not in table.params.model_fields:
                continue
            words = {"input": [{"type": "text", "text": "x"}], "clientUserMessageId": "c", "name": "n"}
            more = {"beforeTurnId": "t", "command": "true", "target": {"type": "uncommittedChanges"}}
            note = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
            code, text = await eve.refused(method, {"threadId": thread, **words, **more, "items": [note]})
            assert (code, thread in text) == (Code.REFUSED, True), method
            assert "not found" in text or "no rollout found" in text, method
        for method in ("thread/list", "thread/loaded/list"):
            assert (await eve.call(method))["data"] == []
