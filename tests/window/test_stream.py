"""The stream without a browser: topics, resumption, a reader that is slow, and each of its ends."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.broker.follow import EqCursor
from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server import live_threads
from orchestrator.gateways.app_server.door_ports import Ports
from orchestrator.gateways.app_server.live_threads import Line
from orchestrator.gateways.bearer_tokens import revoke
from orchestrator.gateways.client import GAP_TEXTS
from orchestrator.gateways.principals import Scope
from orchestrator.gateways.window import feeds, stream
from orchestrator.gateways.window.feeds import Topic, Update
from orchestrator.views.event import Event
from tests.doors.test_app_server_turns import working
from tests.runtime.players import calls, ends, message
from tests.window.site import KEY, Browser, Site, Stream, Told

pytestmark = pytest.mark.realredis


class Board:
    """A topic that a test writes: updates as they are put."""

    def __init__(self) -> None:
        self.updates: asyncio.Queue[Update | None] = asyncio.Queue()
        self.runs = 0
        self.ended = asyncio.Event()

    async def feed(self, ports: Ports, namespace: str, named: str) -> AsyncIterator[Update]:
        self.runs += 1
        try:
            while (update := await self.updates.get()) is not None:
                yield update
        finally:
            self.ended.set()

    def put(self, *rows: str, gone: str = "", whole: bool = False, **beside: Any) -> None:
        changed = {row[0]: {"key": row[0], "value": row} for row in rows}
        ended = {key: {"key": key} for key in gone}
        self.updates.put_nowait(Update(changed, ended, whole, beside))


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    made = Board()
    monkeypatch.setitem(feeds.TOPICS, "board", Topic(made.feed))
    return made


async def next_of(told: Stream) -> Told:
    found = await told.next()
    assert found is not None
    return found


def values(told: Told) -> tuple[str, list[str], list[str]]:
    rows = told.data.get("data", told.data.get("changed", []))
    return (
        told.data["type"],
        [row["value"] for row in rows],
        [row["key"] for row in told.data.get("gone", [])],
    )


async def test_topic_of_state_begins_with_all_and_goes_on_with_changes(site: Site, board: Board) -> None:
    browser = await site.signed_in()
    board.put("a1", "b1", whole=True, count=2)
    async with browser.stream("board") as told:
        assert told.answer.headers["content-type"].startswith("text/event-stream")
        assert told.answer.headers["cache-control"] == "no-store"
        first = await next_of(told)
        assert (first.topic, values(first), first.data["count"]) == ("board", ("all", ["a1", "b1"], []), 2)
        board.put("a2", gone="b")
        second = await next_of(told)
        assert values(second) == ("changed", ["a2"], ["b"])
        assert second.cursor != first.cursor


async def test_changes_of_one_moment_are_merged_into_the_last_state(site: Site, board: Board) -> None:
    browser = await site.signed_in()
    # The door's clock stands still: no second event may come before it goes on.
    site.now.append(time.monotonic())
    board.put("a1", "b1", whole=True)
    async with browser.stream("board") as told:
        await next_of(told)
        board.put("a2")
        board.put("a3", "c1")
        board.put("c2", gone="b")
        board.put(gone="c")
        while not board.updates.empty():
            await asyncio.sleep(0)
        site.now[0] += 1
        assert values(await next_of(told)) == ("changed", ["a3"], ["b", "c"])


def sent(board: Any, *moments: float) -> list[float]:
    """The moments at which a row that is another each time is told of."""
    channel = stream.StateChannel("board", Topic(board.feed), cast(Any, None), lambda: None)
    found = []
    for now in moments:
        channel.take(Update({"a": {"value": now}}))
        if list(channel.taken(now)):
            found.append(now)
    return found


def test_change_is_told_at_once_and_few_changes_are_never_held_for_the_pace(board: Board) -> None:
    apart = [one * 0.05 for one in range(1, 31)]
    assert sent(board, *apart) == apart


def test_changes_that_do_not_end_are_told_four_times_a_second(board: Board) -> None:
    told = sent(board, *(one * 0.01 for one in range(1, 3_001)))
    in_time = {s: sum(s <= one < s + 1 for one in told) for s in range(30)}
    assert in_time[0] >= 20
    assert [in_time[s] for s in range(3, 30)] == [4] * 27
    assert min(b - a for a, b in pairwise(told)) >= stream.GAP_S - 1e-9


async def test_windows_of_one_namespace_share_a_feed_and_the_last_one_ends_it(
    site: Site, board: Board
) -> None:
    one, two = await site.signed_in(), await site.signed_in()
    board.put("a1", whole=True)
    async with one.stream("board") as first:
        await next_of(first)
        board.put("a2")
        async with two.stream("board") as second:
            assert values(await next_of(second))[0] == "all"
            assert board.runs == 1
            assert site.window.feeds.open == 1
        assert not board.ended.is_set()
    await asyncio.wait_for(board.ended.wait(), 10)
    assert site.window.feeds.open == 0


async def test_gateway_without_an_open_window_follows_nothing(site: Site) -> None:
    before = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}  # type: ignore[union-attr]
    browser = await site.signed_in()
    await browser.call("thread/list")
    assert site.window.feeds.open == 0
    assert not any("needs" in name or "Shared" in name for name in before)
    names = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}  # type: ignore[union-attr]
    assert not any("Shared" in name or "Stream" in name for name in names)
    assert not site.server.threads._live


async def test_topic_that_fails_begins_anew_with_all(
    site: Site, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "RETRY_S", 0.01)
    browser = await site.signed_in()
    board.put("a1", whole=True)
    async with browser.stream("board") as told:
        await next_of(told)
        board.updates.put_nowait("no update")  # type: ignore[arg-type]
        board.put("b1", whole=True)
        assert values(await next_of(told)) == ("all", ["b1"], [])
        assert board.runs == 2


async def test_topic_that_ends_is_told_as_gone(site: Site, board: Board) -> None:
    browser = await site.signed_in()
    board.put("a1", whole=True)
    async with browser.stream("board") as told:
        await next_of(told)
        board.updates.put_nowait(None)
        assert (await next_of(told)).data == {"type": "gone"}


@pytest.mark.parametrize(
    "topics",
    [
        [],
        ["nothing"],
        ["needs", "needs"],
        ["thread:x@y"],
        ["thread:"],
        ["needs"] * 40,
        ["needs\n"],
        ["x" * 300],
    ],
)
async def test_topic_that_there_is_not_is_refused_with_the_reason(site: Site, topics: list[str]) -> None:
    browser = await site.signed_in()
    answer = await browser.client.get(
        "/api/stream",
        params={"topic": topics},
        headers={"Sec-Fetch-Site": "same-origin", "Dendro-Key": KEY},
    )
    assert answer.status_code == 400
    assert "topic" in answer.json()["error"]["message"]


async def test_stream_is_refused_to_who_has_not_signed_in_and_to_other_pages(site: Site) -> None:
    browser = await site.signed_in()
    for headers, status in (
        ({}, 401),
        ({"Dendro-Key": KEY}, 403),
        ({"Dendro-Key": KEY, "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Dendro-Key": KEY, "Sec-Fetch-Site": "same-origin", "Origin": "http://evil.example"}, 403),
    ):
        answer = await browser.client.get("/api/stream", params={"topic": "needs"}, headers=headers)
        assert answer.status_code == status, headers
    assert (await site.browser().client.get("/api/stream?topic=needs")).status_code == 401


async def test_silent_stream_says_that_it_lives(
    site: Site, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BEAT_S", 0.0)
    browser = await site.signed_in()
    async with browser.stream("board") as told:
        board.put("a1", whole=True)
        await next_of(told)
        assert told.comments > 0


async def test_stream_ends_with_its_token(site: Site, board: Board) -> None:
    token = await site.token()
    browser = site.browser()
    assert (await browser.post("login", {"token": token, "key": KEY})).status_code == 200
    async with browser.stream("board") as told:
        board.put("a1", whole=True)
        await next_of(told)
        assert await revoke(site.harness.broker.requests, token.split("_")[1])
        await site.watch.look()
        assert await told.next() is None
    assert (await browser.refused("window/state"))[0] == 401
    assert site.window.feeds.open == 0


async def test_stream_ends_with_a_sign_out_and_others_of_the_person_go_on(site: Site, board: Board) -> None:
    one, two = await site.signed_in(), await site.signed_in()
    board.put("a1", whole=True)
    async with one.stream("board") as first, two.stream("board") as second:
        await next_of(first)
        await next_of(second)
        assert (await one.post("logout")).status_code == 200
        assert await first.next() is None
        board.put("a2")
        assert values(await next_of(second)) == ("changed", ["a2"], [])


async def test_stream_ends_when_the_gateway_leaves(site: Site, board: Board) -> None:
    browser = await site.signed_in()
    async with browser.stream("board") as told:
        board.put("a1", whole=True)
        await next_of(told)
        site.window.leave()
        assert await told.next() is None


async def test_holder_of_a_token_may_not_take_all_connections(site: Site, board: Board) -> None:
    site.watch._most = 1
    one, two = await site.signed_in(), await site.signed_in()
    board.put("a1", whole=True)
    async with one.stream("board") as told:
        await next_of(told)
        status, code, text = await one.refused("window/state")
        assert (status, code) == (429, -32001)
        assert "close one" in text
        answer = await one.client.get(
            "/api/stream",
            params={"topic": "board"},
            headers={"Dendro-Key": KEY, "Sec-Fetch-Site": "same-origin"},
        )
        assert answer.status_code == 429
        assert (await two.call("window/state"))["who"] == "ana"


# ── threads ───────────────────────────────────────────────────────────────────────────────────────


def methods(told: list[Told]) -> list[str]:
    return [each.data["method"] for each in told if "method" in each.data]


async def until_end(told: Stream) -> list[Told]:
    found = [await next_of(told)]
    while found[-1].data.get("method") != "turn/completed":
        found.append(await next_of(told))
    return found


async def test_thread_tells_its_notifications_and_another_window_comes_back_behind_its_cursor(
    site: Site,
) -> None:
    browser, harness = await site.signed_in(), site.harness
    harness.models.will([message("one"), ends()], [message("two"), ends("r2")])
    session = await harness.session()
    async with working(harness):
        async with browser.stream(f"thread:{session}") as told:
            begun = await next_of(told)
            assert (begun.topic, begun.data) == (f"thread:{session}", {"type": "begun", "resumed": False})
            await harness.say(session)
            first = await until_end(told)
        assert "turn/started" in methods(first)
        await harness.until(session, "task_complete")
        await harness.say(session)
        await harness.until(session, "task_complete")
        async with browser.stream(f"thread:{session}@{first[-1].cursor}") as told:
            assert (await next_of(told)).data == {"type": "begun", "resumed": True}
            missed = await until_end(told)
    turns = {each.data["params"]["turn"]["id"] for each in missed if each.data["method"].startswith("turn/")}
    assert len(turns) == 1
    assert turns.isdisjoint(
        {each.data["params"]["turn"]["id"] for each in first if each.data["method"].startswith("turn/")}
    )
    items = [each.data["params"]["item"] for each in missed if each.data["method"] == "item/completed"]
    assert [item["text"] for item in items if item["type"] == "agentMessage"] == ["two"]


async def test_window_that_was_cut_off_within_a_turn_gets_what_the_live_ones_got(site: Site) -> None:
    browser, harness = await site.signed_in(), site.harness
    harness.models.will([calls("c1", ask=True), ends()], [message("done"), ends("r2")])
    session = await harness.session("untrusted")
    async with working(harness), browser.stream(f"thread:{session}") as live:
        async with browser.stream(f"thread:{session}") as cut:
            seen = [await next_of(cut)]
            await harness.say(session)
            while "turn/started" not in methods(seen):
                seen.append(await next_of(cut))
        await harness.until(session, "exec_approval_request")
        await harness.approve(session, "c1")
        whole = await until_end(live)
        async with browser.stream(f"thread:{session}@{seen[-1].cursor}") as back:
            assert (await next_of(back)).data["resumed"] is True
            rest = await until_end(back)
    wanted = [each.data for each in whole if "delta" not in each.data.get("params", {})]
    got = [each.data for each in (*seen, *rest)]
    told = [each for each in wanted if "method" in each]
    assert [each["method"] for each in got if each in told] == [
        each["method"] for each in told if each in got
    ]
    for each in told:
        if each["method"] in ("item/completed", "turn/completed"):
            assert each in got


async def test_cursor_that_the_log_has_not_is_answered_by_reset(site: Site) -> None:
    browser, harness = await site.signed_in(), site.harness
    harness.models.will([message("one"), ends()])
    session = await harness.session()
    async with working(harness):
        await harness.say(session)
        await harness.until(session, "task_complete")
    for cursor in ("900.900.00000000", "1.2.00000000"):
        async with browser.stream(f"thread:{session}@{cursor}") as told:
            assert (await next_of(told)).data == {"type": "reset"}


async def test_log_that_was_put_back_is_told_as_reset(site: Site) -> None:
    browser, harness = await site.signed_in(), site.harness
    session = await harness.session()
    async with browser.stream(f"thread:{session}") as told:
        await next_of(told)
        live = site.server.threads.of(session)
        assert live is not None
        from orchestrator.gateways.client import GAP_TEXTS
        from orchestrator.views.event import Event

        live._take(Event("", {"type": "warning", "message": GAP_TEXTS["rewound"]}))
        assert (await next_of(told)).data == {"type": "reset"}


async def test_thread_of_another_namespace_is_gone_as_one_that_is_not_there(site: Site) -> None:
    tenant = await site.signed_in(Scope.ADMIN, "acme")
    session = await site.harness.session()
    for named in (session, session[:-1] + "0", "nonsense"):
        async with tenant.stream(f"thread:{named}") as told:
            found = await next_of(told)
            assert (found.topic, found.data) == (f"thread:{named}", {"type": "gone"})


async def test_thread_that_is_deleted_is_told_as_gone_with_who_did_and_when(site: Site) -> None:
    browser = await site.signed_in()
    session, who = await site.harness.session(), (await browser.call("window/state"))["who"]
    async with browser.stream(f"thread:{session}") as told:
        await next_of(told)
        await browser.call("thread/delete", {"threadId": session})
        gone = (await told.until(lambda each: "method" not in each.data)).data
    assert gone == {"type": "gone", "deletedBy": who, "deletedAtMs": gone["deletedAtMs"]}


async def test_window_that_does_not_read_is_dropped_and_others_go_on(
    site: Site, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "STALL_S", 0.2)
    slow, other = await site.signed_in(), await site.signed_in()
    board.put("a" + "x" * (8 << 20), whole=True)
    connected = await _asked_by_hand(site, slow)
    async with other.stream("board") as told:
        await next_of(told)
        await asyncio.wait_for(_one_seat(site), 20)
        board.put("b1")
        assert values(await next_of(told)) == ("changed", ["b1"], [])
    connected.close()


async def _asked_by_hand(site: Site, browser: Browser) -> socket.socket:
    """A stream of which nothing is read."""
    host, port = site.url.removeprefix("http://").split(":")
    connected = socket.create_connection((host, int(port)))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    cookie = browser.client.cookies["dendro"]
    connected.sendall(
        f"GET /api/stream?topic=board HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: dendro={cookie}\r\n"
        f"Dendro-Key: {KEY}\r\nSec-Fetch-Site: same-origin\r\n\r\n".encode()
    )
    return connected


async def _one_seat(site: Site) -> None:
    """Waits until one stream hears the board, after there were two."""
    (shared,) = site.window.feeds._shared.values()
    while len(shared._seats) < 2:
        await asyncio.sleep(0.01)
    while len(shared._seats) > 1:
        await asyncio.sleep(0.01)


def test_pieces_of_a_text_are_merged_while_they_wait_and_too_much_is_counted() -> None:
    channel = stream.LogChannel("thread:x", lambda: None)

    def delta(text: str, key: str = "k") -> Line:
        return Line("item/agentMessage/delta", {"delta": text}, text.encode(), 5, (key,))

    channel.put("1", delta("a"))
    channel.put("2", delta("b"))
    channel.put("3", delta("c", "other"))
    channel.put("4", delta("d"))
    assert channel.waiting == 4
    told = b"".join(channel.taken(0.0)).decode().split("\n\n")
    assert channel.waiting == 0
    assert [each.split("\n")[1] for each in told if each] == ["id: 2", "id: 3", "id: 4"]
    assert '"delta":"ab"' in told[0]


async def test_lines_that_wait_are_not_told_any_more_where_the_log_was_put_back_behind_them() -> None:
    session = SessionId("0199a2b4-0000-7000-8000-000000000001")
    channel = stream.LogChannel("thread:x", lambda: None)
    seat = stream.ThreadSeat(channel, cast(Any, None))

    async def hear(*_: object) -> SimpleNamespace:
        return SimpleNamespace(place=EqCursor(9, 21, "0" * 8))

    await seat.begin(cast(Any, SimpleNamespace(hear=hear)), cast(Any, SimpleNamespace(session=session)), None)

    def tells(event: Event, method: str) -> None:
        line = Line(method, {}, method.encode(), 5)
        seat.hear(live_threads.Told(session, event, ((cast(Any, None), (line,)),)))

    tells(Event("t", {"type": "task_started"}), "item/started")
    tells(Event("", {"type": "warning", "message": GAP_TEXTS["rewound"]}), "warning")
    told = b"".join(channel.taken(0.0)).decode()
    assert '"reset"' in told
    assert "item/started" not in told
    assert told.index('"reset"') < told.index('"warning"')


async def test_what_came_while_a_window_was_caught_up_bears_the_place_before_it() -> None:
    """A window that is cut off between two of its lines comes back in front of both."""
    before, behind = EqCursor(9, 21, "0" * 8), EqCursor(10, 22, "1" * 8)
    session = SessionId("0199a2b4-0000-7000-8000-000000000001")
    lines = [Line("item/started", {"n": n}, b"", 5) for n in (1, 2)]
    came = live_threads.Told(
        session, Event("t", {"type": "task_started"}, behind), ((cast(Any, None), tuple(lines)),)
    )
    channel = stream.LogChannel("thread:x", lambda: None)
    seat = stream.ThreadSeat(channel, cast(Any, None))

    class Live:
        place = before

        async def missed(self, head: object, cursor: EqCursor) -> list[object]:
            self.place = behind
            seat.hear(came)
            return []

    class Threads:
        async def hear(self, *_: object) -> Live:
            return Live()

    head = SimpleNamespace(session=session)
    await seat.begin(cast(Any, Threads()), cast(Any, head), EqCursor(8, 20, "2" * 8))
    told = b"".join(channel.taken(0.0)).decode().split("\n\n")
    assert [each.split("\n")[1] for each in told if each][1:] == [f"id: {before}", f"id: {behind}"]
