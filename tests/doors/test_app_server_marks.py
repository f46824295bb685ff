"""Notes about threads over the app-server: how far a person has read, what a client tells of a repository."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.client_connection import AppServer
from orchestrator.gateways.app_server.messages import Code
from orchestrator.gateways.app_server.methods import changes
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.views.threads import ReadMark, ReadState
from tests.doors.peer import Peer, connected
from tests.doors.schema import assert_valid
from tests.doors.test_app_server_threads import NOBODY, other, peer, read, talked
from tests.doors.test_app_server_turns import HELLO, begun, said, server
from tests.runtime.harness import Harness

__all__ = ["other", "peer", "server"]
pytestmark = pytest.mark.realredis


async def state(peer: Peer, thread: str) -> dict[str, Any]:
    found: dict[str, Any] = (await read(peer, "thread/read", "ThreadReadResponse", threadId=thread))[
        "readState"
    ]
    return found


async def marked(peer: Peer, thread: str, revision: str, operation: str = "read") -> dict[str, Any]:
    asked = {"threadId": thread, "operation": {"type": operation}, "expectedRevision": revision}
    answer = await read(peer, "thread/readState/update", "ThreadReadStateUpdateResponse", **asked)
    found: dict[str, Any] = answer["readState"]
    return found


async def test_thread_is_unread_from_the_first_turn_that_its_person_has_not_seen(
    peer: Peer, harness: Harness
) -> None:
    thread = await talked(peer, harness, "one")
    before = await state(peer, thread)
    first = (await peer.call("thread/turns/list", {"threadId": thread}))["data"][0]["id"]
    assert before["firstUnread"] == {"type": "turn", "turnId": first}
    now = await marked(peer, thread, before["revision"])
    assert now["firstUnread"] is None
    harness.models.will(HELLO)
    second = await said(peer, thread, "two")
    while (told := await peer.until("thread/readState/changed"))["readState"]["firstUnread"] is None:
        pass
    assert_valid("ThreadReadStateChangedNotification", told)
    assert told["readState"]["firstUnread"] == {"type": "turn", "turnId": second}
    listed = await peer.call("thread/list")
    assert listed["readStates"] == {thread: told["readState"]}


async def test_turn_that_ended_after_the_client_looked_stays_unread(peer: Peer, harness: Harness) -> None:
    thread = await talked(peer, harness, "one")
    seen = await state(peer, thread)
    harness.models.will(HELLO)
    second = await said(peer, thread, "two")
    await peer.until("turn/completed")
    now = await marked(peer, thread, seen["revision"])
    assert now["firstUnread"] == {"type": "turn", "turnId": second}


async def test_person_marks_a_thread_as_unread_again(peer: Peer, harness: Harness) -> None:
    thread = await talked(peer, harness, "one", "two")
    now = await marked(peer, thread, (await state(peer, thread))["revision"])
    last = (await peer.call("thread/turns/list", {"threadId": thread}))["data"][0]["id"]
    again = await marked(peer, thread, now["revision"], "unread")
    assert again["firstUnread"] == {"type": "turn", "turnId": last}


async def test_second_client_with_an_old_revision_is_told_so_and_other_people_have_states_of_their_own(
    peer: Peer, harness: Harness, server: AppServer
) -> None:
    thread = await talked(peer, harness, "one")
    seen = await state(peer, thread)
    await marked(peer, thread, seen["revision"])
    asked = {"threadId": thread, "operation": {"type": "read"}, "expectedRevision": seen["revision"]}
    code, text = await peer.refused("thread/readState/update", asked)
    assert (code, "is not the one in force" in text) == (Code.REFUSED, True)
    code, text = await peer.refused("thread/readState/update", asked | {"expectedRevision": "new"})
    assert (code, "expectedRevision" in text) == (Code.BAD_PARAMS, True)
    async with connected(server, Principal("ben", scope=Scope.READ)) as ben:
        await ben.greet(experimentalApi=True)
        assert (await state(ben, thread))["firstUnread"] is not None
        await marked(ben, thread, (await state(ben, thread))["revision"])
    notes = await harness.broker.requests.notes("read:ben", [SessionId(thread)])
    assert notes != [b""]


async def test_client_tells_of_a_repository_member_by_member(peer: Peer) -> None:
    thread = await begun(peer)

    async def told(**git: Any) -> Any:
        asked = {"threadId": thread, "gitInfo": git}
        return (await read(peer, "thread/metadata/update", "ThreadMetadataUpdateResponse", **asked))["thread"]

    assert (await told(branch="main", sha="abc"))["gitInfo"] == {
        "sha": "abc",
        "branch": "main",
        "originUrl": None,
    }
    assert (await told(sha=None))["gitInfo"]["sha"] is None
    listed = await peer.call("thread/read", {"threadId": thread})
    assert listed["thread"]["gitInfo"]["branch"] == "main"
    assert (await told(branch=None))["gitInfo"] is None


@pytest.mark.parametrize(
    ("more", "member"),
    [({"projectId": "p"}, "projectId"), ({"gitInfo": {"branch": "b" * 1_025}}, "gitInfo.branch")],
)
async def test_client_that_tells_what_cannot_be_kept_is_told_so(
    peer: Peer, more: dict[str, Any], member: str
) -> None:
    thread = await begun(peer)
    code, text = await peer.refused("thread/metadata/update", {"threadId": thread, **more})
    assert (code, member in text) == (Code.BAD_PARAMS, True)
    code, text = await peer.refused("thread/metadata/update", {"threadId": NOBODY})
    assert "no rollout found" in text


async def test_token_that_reads_changes_no_metadata(peer: Peer, server: AppServer) -> None:
    thread = await begun(peer)
    async with connected(server, Principal("ben", scope=Scope.READ)) as ben:
        await ben.greet(experimentalApi=True)
        _, text = await ben.refused("thread/metadata/update", {"threadId": thread, "gitInfo": {"sha": "a"}})
        assert "needs the scope submit" in text


@pytest.mark.parametrize("method", ["thread/read", "thread/readState/update"])
async def test_client_that_has_asked_for_a_read_state_is_told_of_its_changes_and_one_that_has_not_is_not(
    peer: Peer, harness: Harness, server: AppServer, method: str
) -> None:
    thread = await talked(peer, harness, "one")
    async with connected(server) as silent, connected(server) as asks:
        for each in (silent, asks):
            await each.greet(experimentalApi=True)
            await each.call("thread/resume", {"threadId": thread})
        state = (await peer.call("thread/read", {"threadId": thread}))["readState"]
        given = {"operation": {"type": "read"}, "expectedRevision": state["revision"]}
        await asks.call(method, {"threadId": thread, **(given if method != "thread/read" else {})})
        harness.models.will(HELLO)
        await said(peer, thread, "two")
        while (await asks.until("thread/readState/changed"))["readState"]["firstUnread"] is None:
            pass
        await silent.until("turn/completed")
        await silent.call("account/rateLimits/read")
        assert "thread/readState/changed" not in silent.methods()


async def test_person_s_own_clients_that_have_asked_are_told_how_far_they_have_read_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []

    def client(name: str, person: str, *, asks: bool = True) -> Any:
        return SimpleNamespace(
            principal=Principal(person), tells_read_states=asks, notify=lambda *_: told.append(name)
        )

    async def head_to_read(door: Any, thread: str) -> Any:
        return SimpleNamespace(session=thread)

    async def mark_read(*_: Any, read: bool) -> ReadState:
        return ReadState(ReadMark(1, 5), 5)

    monkeypatch.setattr(changes, "head_to_read", head_to_read)
    monkeypatch.setattr(changes, "mark_read", mark_read)
    hears = [client("other page", "ann"), client("silent", "ann", asks=False), client("ben's", "ben")]
    own = client("own", "ann", asks=False)
    own.ports, own.doors_of = SimpleNamespace(found=None), lambda session: [own, *hears]
    asked = {"threadId": "t", "operation": {"type": "read"}, "expectedRevision": "0.5"}
    answer = await changes.read_state_update(own, changes.ReadStateUpdate.model_validate(asked))
    assert answer["readState"]["revision"] == "1.5"
    assert told == ["own", "other page"]
