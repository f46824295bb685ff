"""Logs whose older part the archive does not give: who asks is told why, and nobody else is silenced."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.errors import DamagedEntry, Unavailable, UnknownSession
from orchestrator.broker.follow import EqCursor
from orchestrator.broker.records import Deleted
from orchestrator.core.ids import SessionId
from orchestrator.gateways import sq_eq
from orchestrator.gateways.app_server import client_connection
from orchestrator.gateways.app_server.door import WasDeleted
from orchestrator.gateways.app_server.messages import Code, NotThere
from orchestrator.gateways.app_server.method import Method, NoParams
from orchestrator.gateways.app_server.methods import METHODS
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.gateways.mcp_server import Deployment, McpDoor
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.gateways.window import door as window
from orchestrator.gateways.window.door import Window, refused_by
from orchestrator.gateways.window.feeds import TOPICS, Topic, Update
from orchestrator.gateways.window.stream import Asked, LogChannel, Stream, ThreadSeat
from orchestrator.rollouts import ArchiveUnavailable, BrokenArchive
from tests.doors.peer import connected, served
from tests.doors.ports import ports
from tests.gateways.test_first_lines import OPENINGS, PATH, AtDoor, first_line, greeted
from tests.gateways.test_first_lines import Stream as Lines

__all__ = ["greeted"]
ONE = SessionId("0199a2b4-0000-7000-8000-000000000001")
WHY = f"a part of it is not at {PATH}"
FAULTS = {"away": ArchiveUnavailable(WHY), "broken": BrokenArchive(WHY), "a fault": KeyError(WHY)}
MET_BY = {"new": "create", "attached": "greeting", "come back": "reattached", "forked": "to_fork"}


@pytest.mark.parametrize("tenant", [False, True])
@pytest.mark.parametrize("how", FAULTS)
@pytest.mark.parametrize("opening", OPENINGS)
async def test_first_line_that_meets_such_a_log_is_answered_with_the_reason_and_its_connection_ends(
    opening: str, how: str, tenant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> Any:
        raise FAULTS[how]

    at = AtDoor()
    if opening == "new":
        at.fails = [FAULTS[how]]
    else:
        monkeypatch.setattr(sq_eq, MET_BY[opening], fails)
    stream = Lines(first_line(opening, auth="acme" if tenant else "ci"))
    async with asyncio.timeout(20):
        await at.door.serve(cast(Any, stream))
    (line,) = stream.told
    assert (line["id"], line["msg"]["type"]) == ("first", "error")
    said = line["msg"]["message"]
    assert said == sq_eq.FAULT if how == "a fault" else "a part of it is not at" in said
    assert (PATH in said) is (how != "a fault" and not tenant)


@pytest.mark.parametrize("waits", [True, False])
async def test_call_that_needs_such_a_log_is_refused_with_the_reason_and_the_next_one_is_served(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = list[Exception]()

    async def fails(door: Any, params: Any) -> Any:
        if raised:
            raise raised[0]
        return {}

    method = Method(NoParams, fails, Scope.READ, waits=waits)
    monkeypatch.setattr(client_connection, "METHODS", {**METHODS, "fails": method})
    async with served(ports(), notifications) as server:
        for person in (Principal("ann"), Principal("acme/eve", "acme")):
            async with connected(server, person) as peer:
                await peer.greet()
                for how, code in (
                    ("away", Code.REFUSED),
                    ("broken", Code.REFUSED),
                    ("a fault", Code.INTERNAL),
                ):
                    raised[:] = [FAULTS[how]]
                    told, text = await peer.refused("fails")
                    assert told == code
                    assert ("cannot be read to its end now" in text) is (how != "a fault")
                    assert (PATH in text) is (how != "a fault" and not person.is_tenant)
                raised.clear()
                assert await peer.call("fails") == {}


@pytest.mark.parametrize("how", ["away", "broken"])
def test_window_refuses_such_a_call_as_one_for_another_time(how: str) -> None:
    refused = refused_by(FAULTS[how])
    assert (refused.status, refused.code) == (409, Code.REFUSED)
    assert WHY in refused.message


@pytest.mark.parametrize("how", ["away", "broken"])
async def test_tool_of_the_mcp_server_answers_with_the_reason(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> Any:
        raise FAULTS[how]

    there = Deployment(cast(Any, None), cast(Any, SimpleNamespace()), cast(Any, fails), "0")
    door = McpDoor(there)
    monkeypatch.setattr(door, "_tree", fails)
    context = cast(Any, SimpleNamespace(session=SimpleNamespace(client_params=None)))
    asked = cast(Any, SimpleNamespace(name="tree", arguments={"thread_id": ONE}))
    result = await door._call(context, asked)
    (content,) = cast(Any, result.content)
    assert result.is_error
    assert WHY in content.text


# ── streams ───────────────────────────────────────────────────────────────────────────────────────


async def numbers(ports: Any, namespace: str, named: str) -> Any:
    yield Update({"1": {"n": 1}}, whole=True)
    await asyncio.Event().wait()


def told_by(stream: Stream) -> dict[str, list[dict[str, Any]]]:
    """All that waits for a window, by its topics."""
    found: dict[str, list[dict[str, Any]]] = {}
    for channel in stream._channels:
        for one in channel.taken(0.0):
            rows = dict(row.split(b": ", 1) for row in one.strip().splitlines())
            found.setdefault(rows[b"event"].decode(), []).append(orjson.loads(rows[b"data"]))
    return found


TELLS: dict[str, tuple[Exception, dict[str, Any]]] = {
    **{how: (error, {"type": "error"}) for how, error in FAULTS.items()},
    "a damaged log": (DamagedEntry(f"key at {PATH}", 3, ValueError("x")), {"type": "error"}),
    "not there": (NotThere("no rollout found"), {"type": "gone"}),
    "deleted meanwhile": (UnknownSession(ONE), {"type": "gone"}),
    "was deleted": (
        WasDeleted("no rollout found", Deleted(5, "", "ann")),
        {"type": "gone", "deletedBy": "ann", "deletedAtMs": 5},
    ),
}


@pytest.mark.parametrize("tenant", [False, True])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("how", TELLS)
async def test_topic_that_cannot_be_told_says_so_and_the_others_of_its_stream_go_on(
    how: str, place: int, tenant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, wanted = TELLS[how]

    async def thread(self: Any, asked: Any, reader: Any, stream: Any) -> Any:
        raise error

    monkeypatch.setattr(Window, "_thread", thread)
    monkeypatch.setattr(window, "TOPICS", {**TOPICS, "numbers": Topic(numbers)})
    monkeypatch.setattr("orchestrator.gateways.window.feeds.TOPICS", {**TOPICS, "numbers": Topic(numbers)})
    monkeypatch.setattr("orchestrator.gateways.window.stream.TOPICS", {**TOPICS, "numbers": Topic(numbers)})
    given = SimpleNamespace(ports=None, monotonic=lambda: 0.0)
    page = Window(cast(Any, given), cast(Any, SimpleNamespace(headers=[])))
    stream = Stream(lambda: 0.0)
    names = ["numbers"] * 2
    names.insert(place, f"thread:{ONE}")
    reader = Principal("acme/eve", "acme") if tenant else Principal("ann")
    leaves = [await page._joined(Asked.of(name), reader, stream) for name in names]
    found = told_by(stream)
    while len(found.get("numbers", ())) < 2:
        await asyncio.sleep(0)
        for topic, told in told_by(stream).items():
            found.setdefault(topic, []).extend(told)
    (said,) = found[f"thread:{ONE}"]
    why = said.pop("error", {}).get("message", "")
    assert said == wanted
    assert bool(why) is (wanted["type"] == "error")
    assert (PATH in why) is (bool(why) and how != "a fault" and not tenant)
    assert [one["data"] for one in found["numbers"]] == [[{"n": 1}]] * 2
    for leave in leaves:
        leave()


async def test_stream_ends_where_redis_is_away_so_that_its_window_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def thread(self: Any, asked: Any, reader: Any, stream: Any) -> Any:
        raise Unavailable("away")

    monkeypatch.setattr(Window, "_thread", thread)
    given = SimpleNamespace(ports=None, monotonic=lambda: 0.0)
    page = Window(cast(Any, given), cast(Any, SimpleNamespace(headers=[])))
    with pytest.raises(Unavailable):
        await page._joined(Asked.of(f"thread:{ONE}"), Principal("ann"), Stream(lambda: 0.0))


@pytest.mark.parametrize("how", ["away", "broken", ""])
async def test_window_that_comes_back_to_a_place_behind_such_a_part_reads_the_thread_anew(how: str) -> None:
    async def missed(head: Any, cursor: EqCursor) -> list[Any]:
        if how:
            raise FAULTS[how]
        return []

    async def hear(*_: Any) -> Any:
        return SimpleNamespace(place=EqCursor(7, 9, "0" * 8), missed=missed)

    channel = LogChannel(f"thread:{ONE}", lambda: None)
    seat = ThreadSeat(channel, cast(Any, None))
    threads = cast(Any, SimpleNamespace(hear=hear))
    await seat.begin(threads, cast(Any, SimpleNamespace(session=ONE)), EqCursor(3, 4, "0" * 8))
    stream = Stream(lambda: 0.0)
    stream.add(channel)
    (said,) = told_by(stream)[f"thread:{ONE}"]
    assert said == ({"type": "reset"} if how else {"type": "begun", "resumed": True})
