"""Ephemeral sessions that clients of several gateways hear: the last gateway deletes them, and no other."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.errors import OutOfMemory, Unavailable, UnknownSession
from orchestrator.broker.open_requests import TooManyNotes
from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server import live_threads
from orchestrator.gateways.app_server.live_threads import HEARD_MS, MARK_S, LiveThread, LiveThreads
from orchestrator.gateways.client import RETRY_S

ONE = SessionId("0199a2b4-0000-7000-8000-000000000001")
NOW_MS = 1_000_000


class Marks:
    """The note about a session in which gateways say that they hear it, and a clock."""

    def __init__(self, **marks: int) -> None:
        self.kept = orjson.dumps(marks)
        self.now = NOW_MS
        self.fails: list[Exception] = []
        self.slept: list[float] = []
        self.then: list[Any] = []
        """Changes that come while somebody waits, one at a time."""
        self.requests = self

    @property
    def marks(self) -> dict[str, int]:
        return cast(dict[str, int], orjson.loads(self.kept))

    def now_ms(self) -> int:
        return self.now

    async def notes(self, name: str, sessions: Any) -> list[bytes]:
        if self.fails:
            raise self.fails.pop(0)
        return [self.kept]

    async def note(self, session: Any, name: str, wanted: bytes, known: bytes) -> bytes:
        assert known == self.kept
        self.kept = wanted
        return wanted

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += round(seconds * 1000)
        if self.then:
            self.then.pop(0)()


class Last:
    """The listener that left last."""

    def __init__(self) -> None:
        self.lost: list[SessionId] = []

    def lose(self, session: SessionId, fault: str = "") -> None:
        self.lost.append(session)


def heard_at(
    marks: Marks, monkeypatch: pytest.MonkeyPatch
) -> tuple[LiveThreads, LiveThread, list[SessionId]]:
    deleted = list[SessionId]()

    async def delete(found: Any, client: Any, session: SessionId) -> bool:
        deleted.append(session)
        return True

    monkeypatch.setattr(live_threads, "delete", delete)
    real = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda s: marks.sleep(s) if s else real(0))
    ports = cast(Any, SimpleNamespace(found=SimpleNamespace(broker=marks), server_id="ours"))
    threads = LiveThreads(ports, lambda session, change, turn: ())
    live = LiveThread(ports, lambda session, change, turn: (), cast(Any, None), ONE, threads._born)
    live.ephemeral = True
    return threads, live, deleted


@pytest.mark.parametrize(
    ("marks", "then", "waits_s", "is_deleted"),
    [
        ({}, "", [], True),
        ({"ours": NOW_MS + 60_000}, "", [], True),
        ({"died long ago": NOW_MS}, "", [], True),
        ({"other": NOW_MS + 60_000}, "it says so again", [60.0], False),
        ({"other": NOW_MS + 60_000}, "it dies", [60.0], True),
        ({"other": NOW_MS + 60_000, "third": NOW_MS + 90_000}, "it dies", [90.0], True),
        ({"other": NOW_MS + 60_000, "third": NOW_MS + 90_000}, "it says so again", [90.0], False),
        ({"other": NOW_MS + 60_000}, "it leaves", [60.0], True),
        ({"other": NOW_MS + 60_000}, "a client comes back here", [60.0], False),
        ({}, "a client comes back here at once", [], False),
    ],
)
async def test_gateway_whose_last_client_has_left_deletes_what_no_other_gateway_hears(
    marks: dict[str, int], then: str, waits_s: list[float], is_deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, last = Marks(**marks), Last()
    threads, live, deleted = heard_at(at, monkeypatch)

    def happens() -> None:
        if then == "it says so again":
            at.kept = orjson.dumps({"other": at.now + HEARD_MS})
        elif then == "it leaves":
            at.kept = b"{}"
        elif then == "a client comes back here":
            threads._live[ONE] = live

    at.then.append(happens)
    if then == "a client comes back here at once":
        threads._live[ONE] = live
    live.marking = asyncio.ensure_future(asyncio.Event().wait())  # type: ignore[arg-type]
    await threads._delete(live, cast(Any, last))
    await asyncio.gather(live.marking, return_exceptions=True)
    assert live.marking.cancelled(), "it says no more that it hears it"
    assert (at.slept, deleted, last.lost) == (waits_s, [ONE] * is_deleted, [ONE] * is_deleted)
    assert "ours" not in at.marks


@pytest.mark.parametrize("error", [Unavailable("away"), OutOfMemory("full")])
async def test_session_that_another_gateway_hears_stays_where_redis_takes_no_note_for_a_while(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Marks(other=NOW_MS + 60_000)
    threads, live, deleted = heard_at(at, monkeypatch)
    at.fails.append(error)
    at.then += [lambda: None, lambda: setattr(at, "kept", orjson.dumps({"other": at.now + HEARD_MS}))]
    await threads._delete(live, cast(Any, Last()))
    assert (deleted, at.slept[0]) == ([], RETRY_S)


@pytest.mark.parametrize("error", [UnknownSession(ONE), TooManyNotes("too many")])
@pytest.mark.parametrize("again", [False, True])
async def test_session_whose_notes_nobody_can_read_is_taken_for_one_that_nobody_hears(
    again: bool, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Marks(other=NOW_MS + 60_000)
    threads, live, deleted = heard_at(at, monkeypatch)
    if again:
        at.then.append(lambda: at.fails.append(error))
    else:
        at.fails.append(error)
    await threads._delete(live, cast(Any, Last()))
    assert (deleted, at.slept) == ([ONE], [60.0] * again)


@pytest.mark.parametrize("error", [Unavailable("away"), OutOfMemory("full")])
async def test_gateway_says_that_it_hears_a_session_again_and_again_and_goes_on_when_redis_is_back(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 3 * MARK_S * 1000 == HEARD_MS
    at = Marks(other=NOW_MS + 5)
    threads, live, _ = heard_at(at, monkeypatch)
    seen = list[dict[str, int]]()

    def looks() -> None:
        seen.append(at.marks)
        if len(seen) == 2:
            at.fails.append(error)
        if len(seen) == 4:
            at.fails.append(UnknownSession(ONE))

    at.then += [looks] * 9
    await threads._marks(live.session)
    ours = [one.get("ours") for one in seen]
    second = NOW_MS + HEARD_MS + round(MARK_S * 1000)
    third = second + round((RETRY_S + MARK_S) * 1000)
    assert ours == [NOW_MS + HEARD_MS, second, second, third]
    assert at.slept == [MARK_S, MARK_S, RETRY_S, MARK_S]


async def test_newest_marks_of_very_many_gateways_are_kept() -> None:
    """They are those whose gateways live most likely."""
    at = Marks(**{f"g{number}": NOW_MS + 1_000 + number * 7 % 101 for number in range(100)})
    ports = cast(Any, SimpleNamespace(found=SimpleNamespace(broker=at), server_id="ours"))
    others = await live_threads.marked(ports, ONE, hears=True)
    newest = sorted(range(100), key=lambda number: number * 7 % 101)[-live_threads.MOST_MARKS :]
    assert others.keys() == {f"g{number}" for number in newest}
    assert at.marks == {**others, "ours": NOW_MS + HEARD_MS}
