"""Feeds of several things, namespaces and people at once: each window is shown its own, however they come."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import orjson
import pytest

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.open_requests import Opened, Settled
from orchestrator.broker.records import Deleted, OpenApproval
from orchestrator.core.facts import Answered
from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.door_ports import Ports
from orchestrator.gateways.app_server.methods.approvals import request_id
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.gateways.window import feeds
from orchestrator.gateways.window.feeds import Feeds, Gone, Shared, Topic, Update
from orchestrator.gateways.window.stream import MOST_NAME, MOST_TOPICS, StateChannel, topics_of
from orchestrator.protocol.ids import CallId, SubmissionId

IDS = [SessionId(f"0199a2b4-0000-7000-8000-{number:012}") for number in range(9)]


@dataclass
class Seat:
    """A window that hears a feed."""

    told: list[Update] = field(default_factory=list)
    ended: list[dict[str, Any]] = field(default_factory=list)

    def take(self, update: Update) -> None:
        self.told.append(update)

    def end(self, told: dict[str, Any]) -> None:
        self.ended.append(told)

    @property
    def rows(self) -> dict[str, Any]:
        """The rows as they are shown now."""
        found: dict[str, Any] = {}
        for update in self.told:
            found = {} if update.whole else found
            found = {key: row for key, row in found.items() if key not in update.gone}
            found |= update.changed
        return found


class Heard(Feeds):
    """Feeds that are left when a test ends."""

    def __init__(self, ports: Any) -> None:
        super().__init__(cast(Ports, ports))
        self.leaves: list[Callable[[], None]] = []

    def join(self, name: str, named: str, reader: Principal, seat: Any) -> Callable[[], None]:
        leave = super().join(name, named, reader, seat)

        def once() -> None:
            if once in self.leaves:
                self.leaves.remove(once)
                leave()

        self.leaves.append(once)
        return once

    async def close(self) -> None:
        for leave in tuple(self.leaves):
            leave()
        await asyncio.gather(*self._closing)


Hears: TypeAlias = Callable[[Any], Heard]


@pytest.fixture
async def heard() -> AsyncIterator[Hears]:
    """Makes feeds of some ports, until the test ends."""
    made: list[Heard] = []

    def make(ports: Any) -> Heard:
        made.append(Heard(ports))
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(3):
        while not holds():
            await asyncio.sleep(0)


class Board:
    """A topic whose one row says for whom its feed runs; it ends when it is told to."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, str]] = []
        self.closed: list[tuple[str, str]] = []
        self.ends: dict[tuple[str, str], asyncio.Future[dict[str, Any]]] = {}

    async def feed(self, ports: Ports, namespace: str, named: str) -> AsyncIterator[Update]:
        of = namespace, named
        self.runs.append(of)
        self.ends[of] = asyncio.get_running_loop().create_future()
        try:
            yield Update({"row": {"of": of, "run": self.runs.count(of)}}, whole=True)
            raise Gone(SessionId(named), await self.ends[of])
        finally:
            self.closed.append(of)


PEOPLE = [
    Principal("ann", "", Scope.READ),
    Principal("ben"),
    Principal("acme/ann", "acme", Scope.READ),
    Principal("acme/ben", "acme"),
    Principal("beta/ann", "beta"),
]


@pytest.mark.parametrize("of_person", [False, True])
@pytest.mark.parametrize("order", [1, -1])
async def test_each_window_is_shown_the_things_of_its_own_namespace_name_and_person(
    of_person: bool, order: int, heard: Hears, monkeypatch: pytest.MonkeyPatch
) -> None:
    board, other = Board(), Board()
    monkeypatch.setitem(feeds.TOPICS, "board", Topic(board.feed, of_person=of_person))
    monkeypatch.setitem(feeds.TOPICS, "other", Topic(other.feed, of_person=of_person))
    found, names = heard(None), [""] if of_person else ["t1", "t2"]
    asked = list(itertools.product(("board", "other"), names, PEOPLE, (1, 2)))[::order]
    seats = [Seat() for _ in asked]
    leaves = [
        found.join(topic, named, reader, seat)
        for (topic, named, reader, _), seat in zip(asked, seats, strict=True)
    ]
    await until(lambda: all(seat.told for seat in seats))
    for (_, named, reader, _), seat in zip(asked, seats, strict=True):
        own = reader.namespace, reader.name if of_person else named
        assert seat.rows == {"row": {"of": own, "run": 1}}
    wanted = len(PEOPLE) if of_person else len(names) * len({one.namespace for one in PEOPLE})
    assert [len(set(each.runs)) for each in (board, other)] == [wanted] * 2
    assert found.open == 2 * wanted
    for leave in leaves[::2]:
        leave()
    assert found.open == 2 * wanted, "another window of each is left"
    for leave in leaves[1::2]:
        leave()
    assert found.open == 0
    await until(lambda: len(board.closed) == len(other.closed) == wanted)


@pytest.mark.parametrize("at_once", [True, False])
async def test_window_that_comes_behind_the_last_one_has_a_feed_that_runs(
    at_once: bool, heard: Hears, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Board()
    monkeypatch.setitem(feeds.TOPICS, "board", Topic(board.feed))
    found, reader = heard(None), PEOPLE[0]
    for run in range(1, 5):
        first, second = Seat(), Seat()
        leaves = [found.join("board", "t", reader, first), found.join("board", "t", reader, second)]
        await until(lambda: first.told and second.told)  # noqa: B023
        assert first.rows == second.rows == {"row": {"of": ("", "t"), "run": run}}
        assert found.open == 1
        for leave in leaves:
            leave()
        if not at_once:
            await until(lambda: len(board.closed) == run)  # noqa: B023
    await until(lambda: len(board.closed) == 4)
    assert found.open == 0


async def test_end_of_one_thing_is_told_to_each_of_its_windows_and_to_those_of_no_other(
    heard: Hears, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Board()
    monkeypatch.setitem(feeds.TOPICS, "board", Topic(board.feed))
    found, told = heard(None), {"deletedBy": "ann", "deletedAtMs": 5}
    readers = {who.namespace: who for who in PEOPLE[1:3]}
    seats = {of: Seat() for of in itertools.product(readers, ("t", "u"), (1, 2))}
    for (namespace, named, _), seat in seats.items():
        found.join("board", named, readers[namespace], seat)
    await until(lambda: all(seat.told for seat in seats.values()))
    board.ends["acme", "t"].set_result(told)
    await until(lambda: seats["acme", "t", 1].ended and seats["acme", "t", 2].ended)
    late = Seat()
    found.join("board", "t", PEOPLE[3], late)
    ended = {of: seat.ended for of, seat in seats.items() if seat.ended}
    assert ended == {("acme", "t", 1): [told], ("acme", "t", 2): [told]}
    assert (late.ended, late.told) == ([told], []), (
        "who comes behind the end is told of it, and of nothing else"
    )


@pytest.mark.parametrize("why", [Gone(IDS[0], {"deletedBy": "ann"}), UnknownSession(IDS[0])])
async def test_feed_that_ends_is_not_begun_anew(why: UnknownSession) -> None:
    runs = 0

    async def ends() -> AsyncIterator[Update]:
        nonlocal runs
        runs += 1
        yield Update({"a": {}}, whole=True)
        raise why

    shared, seats = Shared(ends), [Seat(), Seat(), Seat()]
    for seat in seats[:2]:
        shared.join(seat)
    await until(lambda: all(seat.ended for seat in seats[:2]))
    shared.join(seats[2])
    told = why.told if isinstance(why, Gone) else {}
    assert ([seat.ended for seat in seats], runs) == ([[told]] * 3, 1)
    await shared.close()


# ── what topics tell ──────────────────────────────────────────────────────────────────────────────


def asked(session: SessionId, call: str) -> OpenApproval:
    return OpenApproval(session, call, b"{}", 5)


class Requests:
    """The queue of a deployment: changes that a test makes, by namespace."""

    def __init__(self) -> None:
        self.changes_: dict[str, asyncio.Queue[tuple[Any, ...]]] = {}
        self.decided: dict[tuple[SessionId, str], Answered] = {}
        self.requests = self.logs = self.broker = self.found = self

    def of(self, namespace: str) -> asyncio.Queue[tuple[Any, ...]]:
        return self.changes_.setdefault(namespace, asyncio.Queue())

    def request_feed(self, namespace: str) -> Any:
        async def changes(timeout_s: float) -> tuple[Any, ...]:
            return await self.of(namespace).get()

        async def closed() -> None: ...

        return SimpleNamespace(changes=changes, aclose=closed)

    async def head(self, session: SessionId) -> Any:
        return session if session != IDS[8] else None


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Requests:
    made = Requests()

    async def asked_of(found: Any, one: OpenApproval) -> Any:
        return None if one.key == "unread" else one

    async def needed(found: Any, asked: Sequence[Any]) -> Any:
        return asked

    async def decided_call(found: Any, head: Any, call: str, looked_at: int) -> Answered | None:
        return made.decided.get((head, call))

    def row(one: OpenApproval, reader: Principal) -> dict[str, Any]:
        id = request_id(one.session, one.key)
        return {"requestId": id, "openedAtMs": one.opened_ms, "mayAnswer": reader.may(Scope.APPROVE)}

    for name, double in (
        ("asked_of", asked_of),
        ("needed", needed),
        ("decided_call", decided_call),
        ("request_row", row),
    ):
        monkeypatch.setattr(feeds, name, double)
    return made


async def test_each_request_that_ends_is_told_with_its_own_end_to_its_own_namespace(
    queue: Requests, heard: Hears
) -> None:
    found = heard(queue)
    seats = {who.namespace: Seat() for who in PEOPLE[1:4:2]}
    for who in PEOPLE[1:4:2]:
        found.join("needs", "", who, seats[who.namespace])
    queue.of("").put_nowait(
        (Opened(asked(IDS[0], "c1")), Opened(asked(IDS[1], "c1")), Opened(asked(IDS[0], "c2")))
    )
    queue.of("acme").put_nowait((Opened(asked(IDS[2], "c1")), Opened(asked(IDS[8], "c1"))))
    await until(lambda: all(seat.told for seat in seats.values()))
    assert set(seats[""].rows) == {f"{IDS[0]}:c1", f"{IDS[1]}:c1", f"{IDS[0]}:c2"}
    assert set(seats["acme"].rows) == {f"{IDS[2]}:c1", f"{IDS[8]}:c1"}
    for (session, call), (word, by) in {
        (IDS[0], "c1"): ("approved", "ann"),
        (IDS[1], "c1"): ("denied", "ben"),
        (IDS[2], "c1"): ("approved", "acme/ben"),
    }.items():
        queue.decided[session, call] = Answered(CallId(call), SubmissionId("t"), word, by, 7)
    queue.of("").put_nowait(
        (Settled(IDS[0], "c1"), Settled(IDS[1], "c1"), Settled(IDS[0], "c2"), Opened(asked(IDS[1], "c2")))
    )
    queue.of("acme").put_nowait((Settled(IDS[2], "c1"), Settled(IDS[8], "c1")))
    await until(lambda: all(len(seat.told) == 2 for seat in seats.values()))
    ours, theirs = seats[""].told[-1], seats["acme"].told[-1]
    assert (ours.whole, theirs.whole, set(ours.changed), set(theirs.changed)) == (
        False, False, {f"{IDS[1]}:c2"}, set(),
    )  # fmt: skip
    ended = {key: (row["decision"], row["who"]) for key, row in {**ours.gone, **theirs.gone}.items()}
    assert ended == {
        f"{IDS[0]}:c1": ("accept", "ann"),
        f"{IDS[1]}:c1": ("decline", "ben"),
        f"{IDS[0]}:c2": (None, None),
        f"{IDS[2]}:c1": ("accept", "acme/ben"),
        f"{IDS[8]}:c1": (None, None),
    }
    assert all((row["threadId"], row["callId"]) == tuple(key.split(":")) for key, row in ours.gone.items())


async def test_empty_queue_is_told_at_first_and_then_changes_alone(queue: Requests, heard: Hears) -> None:
    seat = Seat()
    heard(queue).join("needs", "", PEOPLE[0], seat)
    for changes in ((), (), (Opened(asked(IDS[0], "c1")),), (), (Opened(asked(IDS[0], "unread")),), ()):
        queue.of("").put_nowait(changes)
    await until(lambda: queue.of("").empty() and len(seat.told) >= 3)
    told = [(update.whole, list(update.changed)) for update in seat.told]
    assert told == [(True, []), (False, [f"{IDS[0]}:c1"]), (False, [])]


async def test_windows_that_share_the_queue_are_told_each_what_its_own_reader_may(
    queue: Requests, heard: Hears
) -> None:
    found = heard(queue)
    readers = [Principal(scope.word, scope=scope) for scope in Scope]
    for order in (readers, readers[::-1]):
        channels = [StateChannel("needs", feeds.TOPICS["needs"], one, lambda: None) for one in order]
        leaves = [found.join("needs", "", one, at) for one, at in zip(order, channels, strict=True)]
        queue.of("").put_nowait((Opened(asked(IDS[0], "c1")),))
        await until(lambda: all(at.due_s(0.0) is not None for at in channels))  # noqa: B023
        for reader, at in zip(order, channels, strict=True):
            (sent,) = at.taken(0.0)
            assert (b'"mayAnswer":true' in sent) is (reader.name in ("approve", "admin")), reader
        for leave in leaves:
            leave()


async def test_workers_are_told_as_they_come_change_and_go_and_no_namespace_learns_of_one(
    heard: Hears, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: asyncio.Queue[dict[str, int]] = asyncio.Queue()

    async def workers_of(claims: Any) -> list[Any]:
        return [SimpleNamespace(name=name, held=held) for name, held in (await looks.get()).items()]

    monkeypatch.setattr(feeds, "IDLE_S", 0.0)
    monkeypatch.setattr(feeds, "workers_of", workers_of)
    monkeypatch.setattr(feeds, "worker_json", lambda one: {"worker": one.name, "held": one.held})
    broker = SimpleNamespace(claims=None)
    found = heard(SimpleNamespace(found=SimpleNamespace(broker=broker)))
    ours, theirs = Seat(), Seat()
    leaves = [found.join("workers", "", PEOPLE[3], theirs), found.join("workers", "", PEOPLE[1], ours)]
    there: list[dict[str, int]] = [
        {"a": 1, "b": 1},
        {"a": 1, "b": 1},
        {"a": 2, "b": 1},
        {"b": 1, "c": 0},
        {},
        {"a": 0},
    ]
    for look in there:
        looks.put_nowait(look)
    await until(lambda: looks.empty() and len(ours.told) == 5)
    told = [(update.whole, sorted(update.changed), sorted(update.gone)) for update in ours.told]
    assert told == [
        (True, ["a", "b"], []),
        (False, ["a"], []),
        (False, ["c"], ["a"]),
        (False, [], ["b", "c"]),
        (False, ["a"], []),
    ]
    assert [dict(update.gone) for update in ours.told][2] == {"a": {"worker": "a"}}
    assert [(update.whole, dict(update.changed)) for update in theirs.told] == [(True, {})]
    for leave in leaves:
        leave()


# ── the fleet ─────────────────────────────────────────────────────────────────────────────────────


class Trees:
    """A fleet that tells what a test gives, and whose clock goes on by a second with each look."""

    def __init__(self) -> None:
        self.tells: list[frozenset[SessionId] | None] = []
        self.states: dict[SessionId, str] = {}
        self.away: set[SessionId] = set()
        self.damaged: list[SessionId] = []
        self.now_s = 100.0
        self.looked = asyncio.Event()

    def __call__(self, broker: Any, namespace: str) -> Trees:
        return self

    async def follow(self, timeout_s: float) -> frozenset[SessionId] | None:
        while not self.tells:
            self.looked.set()
            await asyncio.sleep(0)
        self.now_s += 1
        return self.tells.pop(0)

    def newest(self, most: int) -> list[SessionId]:
        return [one for one in self.states if self.lists(one)][:most]

    def busy(self) -> list[SessionId]:
        return [
            root for root, state in self.states.items() if state in ("working", "lost") and self.lists(root)
        ]

    def lists(self, root: SessionId) -> bool:
        return root in self.states and root not in self.away

    async def rows(self, roots: Sequence[SessionId], person: str) -> list[Any]:
        return [SimpleNamespace(tree=root, state=self.states[root]) for root in roots]

    async def counts(self, person: str) -> dict[str, int]:
        listed = [state for root, state in self.states.items() if self.lists(root)]
        return {state: listed.count(state) for state in listed}

    async def aclose(self) -> None: ...


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> Trees:
    made = Trees()
    monkeypatch.setattr(feeds, "Fleet", made)
    monkeypatch.setattr(feeds, "LOOK_S", 0.0)
    monkeypatch.setattr(feeds, "time", SimpleNamespace(monotonic=lambda: made.now_s))
    monkeypatch.setattr(feeds, "tree_row", lambda row: {"treeId": row.tree, "state": row.state})
    return made


def fleet_seat(heard: Hears) -> Seat:
    seat = Seat()
    ports = SimpleNamespace(found=SimpleNamespace(broker=None))
    heard(ports).join("fleet", "", PEOPLE[1], seat)
    return seat


@pytest.mark.parametrize("every", [1, 2, 5, 7])
async def test_tree_that_is_lost_is_shown_so_however_often_others_change(
    every: int, trees: Trees, heard: Hears
) -> None:
    """As is each other one whose state changes with time alone: nobody tells of a lease that runs out."""
    trees.states = {IDS[0]: "working", IDS[1]: "working", IDS[2]: "working", IDS[3]: "idle"}
    trees.tells = [None]
    seat = fleet_seat(heard)
    await asyncio.wait_for(trees.looked.wait(), 3)
    for lost in (IDS[1], IDS[2]):
        trees.looked.clear()
        trees.states[lost] = "lost"
        trees.tells = [frozenset({IDS[0]}) if number % every == 0 else frozenset() for number in range(6)]
        await asyncio.wait_for(trees.looked.wait(), 3)
        assert seat.rows[lost]["state"] == "lost"
    assert {key: row["state"] for key, row in seat.rows.items()} == dict(trees.states)


async def test_each_tree_that_leaves_the_list_or_comes_back_is_told_and_counted(
    trees: Trees, heard: Hears, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MOST_ROWS", 3)
    trees.states = dict.fromkeys(IDS[:5], "idle")
    trees.tells = [None]
    seat = fleet_seat(heard)
    await asyncio.wait_for(trees.looked.wait(), 3)
    assert (set(seat.rows), seat.told[-1].beside) == (set(IDS[:3]), {"counts": {"idle": 5}, "damaged": []})
    steps: list[tuple[set[SessionId], set[SessionId], set[SessionId], set[SessionId]]] = [
        # Those that are away, those that are told, the rows that go, and those that come.
        ({IDS[0], IDS[1]}, {IDS[0], IDS[1]}, {IDS[0], IDS[1]}, set()),
        ({IDS[0], IDS[1], IDS[4]}, {IDS[4]}, set(), set()),
        ({IDS[1]}, {IDS[0], IDS[4]}, set(), {IDS[0], IDS[4]}),
        ({IDS[0], IDS[1]}, {IDS[0], IDS[2]}, {IDS[0]}, set()),
        (set(), {IDS[0], IDS[1]}, set(), {IDS[0], IDS[1]}),
    ]
    for away, told, gone, come in steps:
        trees.looked.clear()
        before = len(seat.told)
        trees.away, trees.tells = away, [frozenset(told)]
        await asyncio.wait_for(trees.looked.wait(), 3)
        assert len(seat.told) == before + 1
        update = seat.told[-1]
        assert (set(update.gone), set(update.changed), update.whole) == (gone, come, False)
        assert update.beside == {"counts": {"idle": 5 - len(away)}, "damaged": []}
        assert all(row == {"treeId": key} for key, row in update.gone.items())
    trees.looked.clear()
    trees.tells = [frozenset({IDS[0]}), frozenset()]
    await asyncio.wait_for(trees.looked.wait(), 3)
    assert len(seat.told) == 1 + len(steps), "nothing is another"
    for damaged in ([IDS[6]], [IDS[6], IDS[5]], []):
        trees.looked.clear()
        trees.damaged, trees.tells = damaged, [frozenset(damaged)]
        await asyncio.wait_for(trees.looked.wait(), 3)
        assert seat.told[-1].beside["damaged"] == damaged, "those that cannot be read are told of"
    assert len(seat.told) == 4 + len(steps)
    trees.looked.clear()
    trees.states, trees.tells = {IDS[7]: "idle"}, [None]
    await asyncio.wait_for(trees.looked.wait(), 3)
    assert (seat.told[-1].whole, set(seat.rows)) == (True, {IDS[7]})


@pytest.mark.parametrize("belongs", ["", "acme", "beta"])
@pytest.mark.parametrize("reads", ["", "acme", "beta"])
async def test_person_who_deleted_a_tree_is_told_to_its_own_namespace_alone(reads: str, belongs: str) -> None:
    async def deletion_of(root: SessionId) -> Deleted:
        return Deleted(7, belongs, "ann")

    broker = SimpleNamespace(trees=SimpleNamespace(deletion_of=deletion_of))
    told = (await feeds._gone(cast(Any, broker), IDS[0], reads)).told
    assert told == ({"deletedBy": "ann", "deletedAtMs": 7} if reads == belongs else {})


@pytest.mark.parametrize("steps", [*itertools.product("cg", repeat=3)])
def test_window_that_reads_late_is_told_of_a_row_as_it_is_last(steps: tuple[str, ...]) -> None:
    """It may come, go and come again before anything is sent."""
    channel = StateChannel("fleet", Topic(cast(Any, None)), PEOPLE[0], lambda: None)
    for number, step in enumerate(steps):
        row = {"id": "x", "n": number}
        channel.take(Update({"x": row}) if step == "c" else Update(gone={"x": row}))
    (sent,) = channel.taken(0.0)
    last = [{"id": "x", "n": len(steps) - 1}]
    told = orjson.loads(sent.partition(b"data: ")[2])
    assert (told["changed"], told["gone"]) == ((last, []) if steps[-1] == "c" else ([], last))


# ── topics that are asked for ─────────────────────────────────────────────────────────────────────

LONGEST = f"thread:{'x' * (MOST_NAME - 7)}"


@pytest.mark.parametrize(
    ("topics", "fault"),
    [
        ([f"thread:{number}" for number in range(MOST_TOPICS)], ""),
        ([f"thread:{number}" for number in range(MOST_TOPICS + 1)], "1 to 32"),
        ([LONGEST], ""),
        ([f"{LONGEST}x"], "256 characters"),
        (["needs", f"{LONGEST}x"], "256 characters"),
        (["thread:x", "thread:x"], "twice"),
        (["thread:x", "needs", "thread:x@1.2.00000000"], "twice"),
        (["thread:x@1.2.00000000", "thread:x@1.3.00000000"], "twice"),
        (["needs", "needs@1"], "twice"),
        (["thread:x", "thread:y", "tree:x", "tree:y", "needs", "fleet@7"], ""),
        (["thread:é"], "characters"),
        (["thread:x@é"], "characters"),
        (["needs", "thread:x@1.2"], "no cursor"),
        (["thread:"], "names nothing"),
        (["needs", "tree:@1"], "names nothing"),
        (["elsewhere"], "are there"),
    ],
)
def test_as_many_topics_as_may_be_are_asked_for_each_once(topics: list[str], fault: str) -> None:
    assert (MOST_TOPICS, MOST_NAME) == (32, 256)
    if not fault:
        assert [one.topic for one in topics_of(topics)] == [text.partition("@")[0] for text in topics]
        return
    with pytest.raises(ValueError, match=fault):
        topics_of(topics)
