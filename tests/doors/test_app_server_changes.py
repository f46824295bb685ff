"""Changes of threads over the app-server: settings, rollback, deletion, commands of people, reviews."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.broker.script_requests import queue_number
from orchestrator.core.chain import GENESIS
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.gateways.app_server.client_connection import AppServer
from orchestrator.gateways.app_server.messages import Code
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.gateways.client import Client
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.rollouts.archive import Archive, Storage
from orchestrator.rollouts.deletion import delete_everywhere
from tests.doors.peer import Peer, connected, served
from tests.doors.schema import assert_valid
from tests.doors.test_app_server_threads import NOBODY, other, peer, read, talked
from tests.doors.test_app_server_turns import HELLO, begun, ports_of, said, server, working
from tests.doors.test_fleet_methods import agent, does, held, rests, tree
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness

__all__ = ["other", "peer", "server"]
pytestmark = pytest.mark.realredis


async def test_client_changes_settings_that_hold_for_the_next_turn(peer: Peer, harness: Harness) -> None:
    thread = await begun(peer)
    change = {"threadId": thread, "effort": "high", "model": "m2"}
    assert await peer.call("thread/settings/update", change) == {}
    told = await peer.until("thread/settings/updated")
    assert_valid("ThreadSettingsUpdatedNotification", told)
    assert (told["threadSettings"]["effort"], told["threadSettings"]["model"]) == ("high", "m2")
    harness.models.will(HELLO)
    await said(peer, thread)
    await peer.until("turn/completed")
    assert harness.models.prompts[-1].model == "m2"
    resumed = await read(peer, "thread/resume", "ThreadResumeResponse", threadId=thread)
    assert (resumed["model"], resumed["reasoningEffort"]) == ("m2", "high")
    # A change of nothing tells what is in force, and changes nothing.
    before = await harness.broker.logs.head(SessionId(thread))
    assert await peer.call("thread/settings/update", {"threadId": thread}) == {}
    told = await peer.until("thread/settings/updated")
    assert (told["threadSettings"]["effort"], told["threadSettings"]["model"]) == ("high", "m2")
    after = await harness.broker.logs.head(SessionId(thread))
    assert before is not None
    assert after is not None
    assert after.sq_tip == before.sq_tip


async def test_words_and_their_settings_are_one_submission_and_all_who_hear_are_told(
    peer: Peer, other: Peer, harness: Harness
) -> None:
    thread = await begun(peer)
    await other.call("thread/resume", {"threadId": thread})
    before = await harness.broker.logs.head(SessionId(thread))
    harness.models.will(HELLO)
    words = {"input": [{"type": "text", "text": "go"}], "model": "m2", "effort": "low"}
    await peer.call("turn/start", {"threadId": thread, **words})
    for each in (peer, other):
        told = await each.until("thread/settings/updated")
        assert (told["threadSettings"]["model"], told["threadSettings"]["effort"]) == ("m2", "low")
        await each.until("turn/completed")
    assert harness.models.prompts[-1].model == "m2"
    after = await harness.broker.logs.head(SessionId(thread))
    assert before is not None
    assert after is not None
    assert queue_number(after.sq_tip) == queue_number(before.sq_tip) + 1
    harness.models.will(HELLO)
    await peer.call("turn/start", {"threadId": thread, **words})
    await peer.until("turn/completed")
    assert peer.methods().count("thread/settings/updated") == 1


async def test_all_who_hear_a_thread_are_told_of_settings_that_it_is_resumed_with(
    peer: Peer, other: Peer
) -> None:
    thread = await begun(peer)
    await other.call("thread/resume", {"threadId": thread})
    assert "thread/settings/updated" not in peer.methods()
    resumed = await other.call("thread/resume", {"threadId": thread, "model": "m2"})
    assert resumed["model"] == "m2"
    for each in (peer, other):
        assert (await each.until("thread/settings/updated"))["threadSettings"]["model"] == "m2"


@pytest.mark.parametrize("change", [{"effort": "?"}, {"sandboxPolicy": {"type": "externalSandbox"}}])
async def test_client_with_a_setting_that_there_is_not_is_told_so(peer: Peer, change: dict[str, Any]) -> None:
    thread = await begun(peer)
    code, _ = await peer.refused("thread/settings/update", {"threadId": thread, **change})
    assert code == Code.BAD_PARAMS


async def test_turns_that_a_client_takes_back_are_in_no_list_any_more(peer: Peer, harness: Harness) -> None:
    thread = await talked(peer, harness, "one", "banana", "three")
    listed = await peer.call("thread/turns/list", {"threadId": thread})
    last, second, first = [turn["id"] for turn in listed["data"]]
    found = await read(peer, "thread/revert", "ThreadRevertResponse", threadId=thread, beforeTurnId=second)
    assert found["thread"]["id"] == thread
    rest = await peer.call("thread/turns/list", {"threadId": thread, "cursor": found["turnsBackwardsCursor"]})
    assert [turn["id"] for turn in rest["data"]] == [first]
    assert "thread/reverted" in peer.methods()
    harness.models.will(HELLO)
    await said(peer, thread, "four")
    await peer.until("turn/completed")
    assert "banana" not in str(harness.models.prompts[-1].input)
    code, text = await peer.refused("thread/revert", {"threadId": thread, "beforeTurnId": last})
    assert (code, text) == (Code.REFUSED, f"turn not found: {last}")


async def test_thread_that_a_client_deletes_is_gone_for_everybody(
    peer: Peer, other: Peer, harness: Harness
) -> None:
    thread = await talked(peer, harness, "one")
    assert await peer.call("thread/delete", {"threadId": thread}) == {}
    assert await peer.until("thread/deleted") == {"threadId": thread}
    code, text = await other.refused("thread/read", {"threadId": thread})
    assert code == Code.REFUSED
    at = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    assert re.fullmatch(rf"no rollout found for thread id {thread}: it was deleted by \S+ at {at}", text)
    assert (await other.call("thread/list"))["data"] == []


async def test_who_deleted_a_thread_is_told_in_its_namespace_alone(
    server: AppServer, peer: Peer, harness: Harness
) -> None:
    thread = await talked(peer, harness, "one")
    assert await peer.call("thread/delete", {"threadId": thread}) == {}
    assert (
        "deleted by"
        in (await peer.refused("turn/steer", {"threadId": thread, "input": [], "expectedTurnId": "t"}))[1]
    )
    async with connected(server, Principal("eve", namespace="theirs")) as eve:
        await eve.greet(experimentalApi=True)
        for method in ("thread/read", "tree/read", "thread/archive"):
            named = {"treeId": thread} if method == "tree/read" else {"threadId": thread}
            assert (await eve.refused(method, named))[1] == f"no rollout found for thread id {thread}"


@asynccontextmanager
async def deleting(harness: Harness, archive: Archive) -> AsyncIterator[Peer]:
    """A client of a gateway whose deployment has an archive."""
    storage = Storage(harness.broker, cast(Any, None), archive)
    ports = ports_of(harness, delete=lambda seen, by: delete_everywhere(storage, seen, by=by))
    async with served(ports, notifications) as server, working(harness), connected(server) as peer:
        await peer.greet()
        yield peer


async def test_deleted_thread_leaves_nothing_in_the_archive(harness: Harness, tmp_path: Path) -> None:
    archive = Archive.at(tmp_path.as_uri())
    async with deleting(harness, archive) as peer:
        session = SessionId(await talked(peer, harness, "one"))
        entries = await harness.broker.logs.read_rollout(session)
        await archive.write_segment(TreeId(session), session, GENESIS, entries)
        assert [file for file in tmp_path.rglob("*") if file.is_file()] != []
        assert await peer.call("thread/delete", {"threadId": session}) == {}
        note = tmp_path / "condemned" / session
        assert [file for file in tmp_path.rglob("*") if file.is_file()] == [note]


async def test_thread_whose_archive_is_away_is_kept_whole(harness: Harness, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with deleting(harness, Archive.at((tmp_path / "file/archive").as_uri())) as peer:
        thread = await talked(peer, harness, "one")
        code, text = await peer.refused("thread/delete", {"threadId": thread})
        assert (code, "nothing was deleted" in text) == (Code.REFUSED, True)
        assert (await peer.call("thread/read", {"threadId": thread}))["thread"]["id"] == thread


async def test_thread_at_work_is_not_deleted(peer: Peer, harness: Harness) -> None:
    thread, gate = await begun(peer), Gate()
    harness.models.will([gate, *HELLO])
    await said(peer, thread)
    await peer.until("turn/started")
    code, text = await peer.refused("thread/delete", {"threadId": thread})
    assert (code, "is at work: interrupt it" in text) == (Code.REFUSED, True)
    gate.open()
    await peer.until("turn/completed")


@pytest.mark.parametrize(
    ("method", "named"),
    [
        ("thread/delete", "threadId"),
        ("thread/archive", "threadId"),
        ("archiveConversation", "conversationId"),
    ],
)
async def test_thread_whose_agent_works_is_neither_deleted_nor_put_away(
    peer: Peer, harness: Harness, method: str, named: str
) -> None:
    root = await tree(harness.broker)
    own = await held(harness.broker, root)
    child, record = agent(own, 1, status="running")
    at = await does(harness.broker, own, own, children=(child,), summary=record)
    await rests(harness.broker, at, own)
    code, text = await peer.refused(method, {named: root})
    assert (code, text) == (Code.REFUSED, f"thread {child.session} is at work: interrupt it first")
    assert [one["id"] for one in (await peer.call("thread/list"))["data"]] == [root]


async def test_principal_that_only_submits_deletes_nothing(server: AppServer, peer: Peer) -> None:
    thread = await begun(peer)
    async with connected(server, Principal("bob", scope=Scope.APPROVE)) as bob:
        await bob.greet()
        code, text = await bob.refused("thread/delete", {"threadId": thread})
    assert (code, "needs the scope admin" in text) == (Code.REFUSED, True)


async def test_words_that_a_client_queues_are_a_turn_behind_the_running_one(
    peer: Peer, harness: Harness
) -> None:
    thread, gate = await begun(peer), Gate()
    harness.models.will([gate, *HELLO], HELLO)
    first = await said(peer, thread, "one")
    await peer.until("turn/started")
    words = {"input": [{"type": "text", "text": "two"}], "clientUserMessageId": "c-1"}
    queued = await read(peer, "thread/queue/add", "ThreadQueueAddResponse", threadId=thread, **words)
    assert queued["queuedSubmission"]["clientUserMessageId"] == "c-1"
    gate.open()
    assert (await peer.until("turn/completed"))["turn"]["id"] == first
    assert (await peer.until("turn/completed"))["turn"]["id"] == queued["queuedSubmission"]["id"]


async def test_words_that_wait_are_changed_and_begin_by_themselves_without_ending_a_turn(
    peer: Peer, harness: Harness
) -> None:
    thread, gate = await begun(peer), Gate()
    harness.models.will([gate, *HELLO], HELLO)
    first = await said(peer, thread, "one")
    await peer.until("turn/started")
    words = {"threadId": thread, "input": [{"type": "text", "text": "two"}], "clientUserMessageId": "c-1"}
    id = (await peer.call("thread/queue/add", words))["queuedSubmission"]["id"]
    await peer.until("thread/queue/changed")
    other = {"threadId": thread, "queuedSubmissionId": id, "input": [{"type": "text", "text": "three"}]}
    changed = await read(peer, "thread/queue/update", "ThreadQueueUpdateResponse", **other)
    assert changed["queuedSubmission"] == {
        "id": id,
        "clientUserMessageId": "c-1",
        "input": [{"type": "text", "text": "three"}],
    }
    (listed,) = (await peer.call("thread/queue/list", {"threadId": thread}))["data"]
    assert listed["input"][0]["text"] == "three"
    for started in ({"threadId": thread}, {"threadId": thread, "queuedSubmissionId": id}):
        code, text = await peer.refused("thread/queue/start", started)
        assert (code, "begins by itself when it ends" in text) == (Code.REFUSED, True)
    gate.open()
    assert (await peer.until("turn/completed"))["turn"]["id"] == first
    assert (await peer.until("turn/completed"))["turn"]["id"] == id
    begun_now = await read(peer, "thread/queue/start", "ThreadQueueStartResponse", **started)
    assert begun_now["turn"]["id"] == id
    for method, params in (
        ("thread/queue/update", other),
        ("thread/queue/start", {"threadId": thread}),
        ("thread/queue/start", {"threadId": thread, "queuedSubmissionId": "nobody"}),
    ):
        assert (await peer.refused(method, params))[0] == Code.REFUSED
    items = (await peer.call("thread/items/list", {"threadId": thread, "turnId": id}))["data"]
    assert items[0]["item"]["content"][0]["text"] == "three"


async def test_client_sees_changes_and_deletes_the_words_that_wait(
    peer: Peer, other: Peer, harness: Harness
) -> None:
    thread, gate = await begun(peer), Gate()
    await other.call("thread/resume", {"threadId": thread})
    harness.models.will([gate, *HELLO], HELLO, HELLO)
    first = await said(peer, thread, "one")
    await peer.until("turn/started")
    ids = []
    for word in ("two", "three", "four"):
        words = {"input": [{"type": "text", "text": word}], "clientUserMessageId": word}
        ids.append(
            (await peer.call("thread/queue/add", {"threadId": thread, **words}))["queuedSubmission"]["id"]
        )
        assert_valid("ThreadQueueChangedNotification", await peer.until("thread/queue/changed"))
    assert await other.until("thread/queue/changed") == {"threadId": thread}
    listed = await read(peer, "thread/queue/list", "ThreadQueueListResponse", threadId=thread)
    assert [(one["id"], one["input"][0]["text"]) for one in listed["data"]] == list(
        zip(ids, ("two", "three", "four"), strict=True)
    )
    out = {"threadId": thread, "queuedSubmissionId": ids[1]}
    assert await peer.call("thread/queue/delete", out) == {"deleted": True}
    assert await peer.call("thread/queue/delete", out) == {"deleted": False}
    order = {"threadId": thread, "queuedSubmissionIds": [ids[2], ids[0]]}
    assert await read(peer, "thread/queue/reorder", "ThreadQueueReorderResponse", **order) == {}
    code, text = await peer.refused("thread/queue/reorder", {**order, "queuedSubmissionIds": ids})
    assert (code, "look at the queue again" in text) == (Code.REFUSED, True)
    page = await peer.call("thread/queue/list", {"threadId": thread, "limit": 1})
    assert ([one["id"] for one in page["data"]], page["nextCursor"]) == ([ids[2]], "1")
    gate.open()
    ended = [(await peer.until("turn/completed"))["turn"]["id"] for _ in range(3)]
    assert ended == [first, ids[2], ids[0]]
    assert (await peer.call("thread/queue/list", {"threadId": thread}))["data"] == []


async def test_order_that_is_not_of_all_the_words_that_wait_is_refused(peer: Peer, harness: Harness) -> None:
    thread, gate = await begun(peer), Gate()
    harness.models.will([gate, *HELLO], HELLO, HELLO, HELLO)
    await said(peer, thread, "one")
    await peer.until("turn/started")
    ids = []
    for word in ("two", "three", "four"):
        words = {"input": [{"type": "text", "text": word}], "clientUserMessageId": word}
        ids.append(
            (await peer.call("thread/queue/add", {"threadId": thread, **words}))["queuedSubmission"]["id"]
        )
    second, third, fourth = ids
    wrong: list[list[str]] = [[], [third], [third, second], [second, third], [fourth, second]]
    wrong += [[*ids, "none"], [*ids[:2], "none"], [second, second, third], [*ids, second]]
    for order in wrong:
        asked = {"threadId": thread, "queuedSubmissionIds": order}
        assert (await peer.refused("thread/queue/reorder", asked))[0] == Code.REFUSED, order
    listed = await peer.call("thread/queue/list", {"threadId": thread})
    assert [one["id"] for one in listed["data"]] == ids
    gate.open()


async def test_messages_that_a_client_adds_are_shown_to_the_model_and_begin_no_turn(
    peer: Peer, harness: Harness
) -> None:
    thread = await talked(peer, harness, "one")
    note = {
        "type": "message",
        "role": "user",
        "id": "x",
        "content": [{"type": "input_text", "text": "a note"}],
    }
    assert (
        await read(peer, "thread/inject_items", "ThreadInjectItemsResponse", threadId=thread, items=[note])
        == {}
    )
    listed = await peer.call("thread/turns/list", {"threadId": thread})
    assert len(listed["data"]) == 1
    harness.models.will(HELLO)
    await said(peer, thread, "two")
    await peer.until("turn/completed")
    shown = [item for item in harness.models.prompts[-1].input if "a note" in str(item)]
    assert shown == [{name: value for name, value in note.items() if name != "id"}]


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (
            {"type": "function_call", "call_id": "c", "name": "shell", "arguments": "{}"},
            "they belong to the model",
        ),
        ({"type": "message", "role": "system", "content": []}, "role"),
        ("words", "messages of text are taken"),
    ],
)
async def test_client_that_adds_what_is_no_message_is_told_what_is_taken(
    peer: Peer, item: Any, why: str
) -> None:
    thread = await begun(peer)
    code, text = await peer.refused("thread/inject_items", {"threadId": thread, "items": [item]})
    assert (code, why in text) == (Code.BAD_PARAMS, True), text


async def test_client_has_changes_reviewed_in_the_thread(peer: Peer, harness: Harness) -> None:
    thread = await begun(peer)
    about = {"target": {"type": "custom", "instructions": "look at it"}}
    begun_review = await read(peer, "review/start", "ReviewStartResponse", threadId=thread, **about)
    assert begun_review["reviewThreadId"] == thread
    done = await peer.until("turn/completed")
    assert done["turn"]["id"] == begun_review["turn"]["id"]
    code, _ = await peer.refused("review/start", {"threadId": thread, "target": {"type": "no"}})
    assert code == Code.BAD_PARAMS


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("thread/settings/update", {}),
        ("thread/revert", {"beforeTurnId": "t"}),
        ("thread/shellCommand", {"command": "true"}),
        ("review/start", {"target": {"type": "uncommittedChanges"}}),
    ],
)
async def test_client_that_changes_a_thread_that_there_is_not_is_told_so(
    peer: Peer, method: str, params: dict[str, Any]
) -> None:
    refused = await peer.refused(method, {"threadId": NOBODY, **params})
    assert refused == (Code.REFUSED, f"thread not found: {NOBODY}")


async def test_thread_that_a_client_puts_away_is_in_no_list_until_it_is_brought_back(
    peer: Peer, harness: Harness
) -> None:
    thread = await talked(peer, harness, "one")
    assert await peer.call("thread/archive", {"threadId": thread}) == {}
    assert await peer.until("thread/archived") == {"threadId": thread}
    assert (await peer.call("thread/list"))["data"] == []
    away = await read(peer, "thread/list", "ThreadListResponse", archived=True)
    assert [(one["id"], one["status"]) for one in away["data"]] == [(thread, {"type": "notLoaded"})]
    back = await read(peer, "thread/unarchive", "ThreadUnarchiveResponse", threadId=thread)
    assert back["thread"]["status"] == {"type": "idle"}
    assert await peer.until("thread/unarchived") == {"threadId": thread}
    assert [one["id"] for one in (await peer.call("thread/list"))["data"]] == [thread]


async def test_each_client_that_hears_a_thread_is_told_that_another_one_puts_it_away_and_brings_it_back(
    peer: Peer, other: Peer, harness: Harness
) -> None:
    thread, beside = await talked(peer, harness, "one"), await talked(other, harness, "two")
    await other.call("thread/resume", {"threadId": thread})
    for by in (peer, other):
        await by.call("thread/archive", {"threadId": thread})
        for each in (peer, other):
            assert await each.until("thread/archived") == {"threadId": thread}
    await peer.call("archiveConversation", {"conversationId": thread})
    for each in (peer, other):
        assert await each.until("thread/archived") == {"threadId": thread}, "by version 1"
    await peer.call("thread/unarchive", {"threadId": thread})
    for each in (peer, other):
        assert await each.until("thread/unarchived") == {"threadId": thread}
    await other.call("thread/archive", {"threadId": thread})
    harness.models.will(HELLO)
    await said(peer, thread, "It goes on.")
    for each in (peer, other):
        assert await each.until("thread/unarchived") == {"threadId": thread}, "words bring it back"
    await peer.until("turn/completed")
    await other.call("thread/archive", {"threadId": thread})
    harness.models.will(HELLO)
    await peer.call("review/start", {"threadId": thread, "target": {"type": "uncommittedChanges"}})
    for each in (peer, other):
        assert await each.until("thread/unarchived") == {"threadId": thread}, "and so does a review"
    await peer.until("turn/completed")
    await other.call("thread/archive", {"threadId": beside})
    await other.until("thread/archived")
    assert not [line for line in peer.heard if line.get("params", {}).get("threadId") == beside]
    await peer.call("thread/unarchive", {"threadId": beside})
    for each in (peer, other):
        assert await each.until("thread/unarchived") == {"threadId": beside}, "whoever does it is told"


@pytest.mark.parametrize("method", ["reorder", "update", "delete"])
async def test_client_whose_change_of_the_queue_is_refused_hears_so_though_another_one_changed_it_then(
    peer: Peer, other: Peer, harness: Harness, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    thread, gate = await begun(peer), Gate()
    harness.models.will([gate, *HELLO], HELLO)
    await said(peer, thread, "one")
    await peer.until("turn/started")
    ids = []
    for word in ("two", "three"):
        words = {"input": [{"type": "text", "text": word}], "clientUserMessageId": word, "threadId": thread}
        ids.append((await peer.call("thread/queue/add", words))["queuedSubmission"]["id"])
    out = {"threadId": thread, "queuedSubmissionId": ids[0]}
    submit = Client.submit

    async def behind_the_other_one(*args: Any, **more: Any) -> Any:
        monkeypatch.undo()
        assert await other.call("thread/queue/delete", out) == {"deleted": True}
        return await submit(*args, **more)

    monkeypatch.setattr(Client, "submit", behind_the_other_one)
    if method == "delete":
        assert await peer.call("thread/queue/delete", out) == {"deleted": False}
    else:
        more = {"queuedSubmissionIds": ids} if method == "reorder" else {"input": words["input"]}
        code, _ = await peer.refused(f"thread/queue/{method}", {**out, **more})
        assert code == Code.REFUSED
    gate.open()
