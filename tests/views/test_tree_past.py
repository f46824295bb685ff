"""A tree's past: at each entry it is the fold of the log up to there, and the timeline has every entry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import Connection
from orchestrator.broker.records import BrokerConfig, Claimed, Committed, InboxDepth, StoredEntry, TreeEntry
from orchestrator.core import facts as f
from orchestrator.core.commit_parts import TreeEvent
from orchestrator.core.entries import EVENT_MSG, Entry, encode_entry, fact
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.registry import RegistryView, fold_tree
from orchestrator.rollouts.tree_log import tree_fact, tree_log
from orchestrator.views import tree_past
from orchestrator.views.tree import LIMITS_RAISED
from orchestrator.views.tree_past import (
    GAP_MS,
    IDLE_S,
    MOST_GAPS,
    MOST_PASTS,
    Pasts,
    TreePast,
    looked,
    place_then,
)
from tests.broker.actors import session_id, step, working
from tests.stated import StatedRedis


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    double = StatedRedis()
    opened = Broker(Connection(double, double), BrokerConfig(lease_s=60.0), lambda: 0.0)
    await opened.open()
    yield opened
    await opened.aclose()


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_past, "RUNG", 4)
    monkeypatch.setattr(tree_past, "SLICE", 3)


def told(number: int, event: str, status: str, session: SessionId, root: SessionId) -> TreeEvent:
    """An event of an agent's life, with its record."""
    record = {
        "agent_id": number,
        "session_id": session,
        "parent_agent_id": 0,
        "parent_session_id": root,
        "origin": "spawn",
        "label": f"a{number}",
        "status": status,
        "turn": "",
        "agent_path": f"0/{number}",
        "started_at_ms": 1,
    }
    message = {
        "type": "subagent_lifecycle",
        "event": event,
        "status": status,
        "agent_id": number,
        "session_id": session,
    }
    payload = orjson.dumps({"id": "", "msg": message})
    return TreeEvent((payload,), (), about=orjson.dumps({"record": record}))


async def grown(broker: Broker, agents: int) -> tuple[Claimed, Committed]:
    """A tree whose agents are born, run and come to an end, one after the other."""
    held = await working(broker)
    at: Any = held
    root, born = held.claim.session, {number: session_id() for number in range(1, agents + 1)}
    for number, session in born.items():
        for event, status in (("created", "queued"), ("status", "running"), ("status", "ready")):
            line = encode_entry(
                Entry(EVENT_MSG, {"type": "agent_message", "message": f"{status} {number}"}),
                await broker.server_ms(),
                {},
            ).line
            events = (told(number, event, status, session, root),)
            at = await broker.commits.commit(
                step(at, held.claim, f"{number} {status}", [line], tree_events=events)
            )
            assert isinstance(at, Committed)
    return held, at


def facts(view: RegistryView) -> Any:
    return {number: (agent.status, agent.path) for number, agent in view.agents.items()}, view.spawned


async def test_tree_at_each_entry_is_the_fold_of_its_log_up_to_there(broker: Broker) -> None:
    held, at = await grown(broker, 3)
    tree = TreeId(held.claim.tree)
    past, log = TreePast(broker, tree), await tree_log(broker, tree)
    await past.read_on()
    assert past.read == len(log) == 9
    head = await broker.logs.head(held.claim.session)
    assert head is not None
    for seq in range(1, 10):
        found = await past.at(seq)
        assert facts(found.view) == facts(fold_tree(log[:seq]))
        assert found.tree_seq == seq
    for wrong in (0, 10):
        with pytest.raises(ValueError, match="entries 1 to 9"):
            await past.at(wrong)
    more = told(1, "deleted", "idle", session_id(), held.claim.session)
    await broker.commits.commit(step(at, held.claim, "more", tree_events=(more,)))
    await past.read_on()
    assert facts((await past.at(10)).view) == facts(fold_tree(await tree_log(broker, tree)))


async def test_root_s_line_and_place_are_those_of_then(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, _ = await grown(broker, 2)
    past = TreePast(broker, TreeId(held.claim.tree))
    await past.read_on()
    head = await broker.logs.head(held.claim.session)
    assert head is not None
    last = (await past.at(6)).agents[0]
    assert (last.seq, last.doing and last.doing.last) == (6, "ready 2")
    # Entries of one moment are told apart by no clock, and those that it wrote itself by their own numbers.
    for seq in (3, 5, 3):
        assert (await past.at(seq)).agents[0].seq == seq


async def test_timeline_counts_every_entry_once_and_marks_births_and_ends(broker: Broker) -> None:
    held, _ = await grown(broker, 4)
    past = TreePast(broker, TreeId(held.claim.tree))
    await past.read_on()
    for buckets in (1, 2, 400):
        found = past.timeline(buckets)
        assert sum(bar.entries for bar in found.buckets) == found.tree_seq == 12
        assert len(found.buckets) <= buckets
    kinds = [mark.kind for mark in past.timeline(10).marks]
    assert kinds == ["spawn", "end"] * 4
    assert past.timeline(10).gaps == ()


async def test_takeover_is_a_mark_with_words_of_its_own(broker: Broker) -> None:
    held, at = await grown(broker, 1)
    told = {"type": "subagent_lifecycle", "event": "updated", "agent_id": 1, "session_id": "s"}
    about = orjson.dumps({"agent_id": 1, "takeover": 2})
    event = TreeEvent((orjson.dumps({"id": "", "msg": told}),), (), about=about)
    await broker.commits.commit(step(at, held.claim, "takes over", tree_events=(event,)))
    past = TreePast(broker, TreeId(held.claim.tree))
    await past.read_on()
    mark = past.timeline(10).marks[-1]
    assert (mark.kind, mark.line.agent_id) == ("takeover", 1)
    assert mark.line.text == "agent 1: its worker was lost, and another took over"


async def test_pause_of_more_than_five_minutes_is_a_gap(broker: Broker) -> None:
    held, _ = await grown(broker, 2)
    key = broker.keys.tree(held.claim.tree)
    await broker.command("DEL", key)
    for number, at_ms in enumerate((1_000, 2_000, 400_000, 401_000), 1):
        event = told(number, "created", "queued", session_id(), held.claim.session)
        fields = ("p", event.parts[0], "s", held.claim.session, "q", 1, "h", "", "d", "", "t", at_ms)
        await broker.command("XADD", key, f"{number}-0", *fields, "a", event.about)
    past = TreePast(broker, TreeId(held.claim.tree))
    await past.read_on()
    found = past.timeline(3)
    assert (found.first_ms, found.last_ms, found.gaps) == (1_000, 401_000, ((2_000, 400_000),))
    assert [bar.entries for bar in found.buckets] == [2, 1, 1], "no bar goes over the gap"


async def test_past_is_read_anew_where_redis_was_put_back(broker: Broker) -> None:
    held, _ = await grown(broker, 2)
    tree = TreeId(held.claim.tree)
    past = TreePast(broker, tree)
    await past.read_on()
    for number in range(3, 7):
        await broker.command("XDEL", broker.keys.tree(tree), f"{number}-0")
    await past.read_on()
    assert past.read == 2


# ── logs of any kind, read from a list ────────────────────────────────────────────────────────────


class Listed:
    """A tree's log in a list, and sessions' own logs by the times of their entries."""

    def __init__(
        self, entries: Sequence[TreeEntry], times: Mapping[SessionId, Sequence[int]] | None = None
    ) -> None:
        self.entries = list(entries)
        self.own = {
            session: [stored(seq, ms) for seq, ms in enumerate(at, 1)]
            for session, at in (times or {}).items()
        }
        self.gate, self.after = asyncio.Event(), 0
        """Holds back the pages behind an entry."""
        self.gate.set()

    async def read_tree(self, tree: TreeId, after: int = 0, count: int = 1_000) -> tuple[TreeEntry, ...]:
        if after >= self.after:
            await self.gate.wait()
        return tuple(self.entries[after : after + count])

    async def read_tree_back(self, tree: TreeId, before: None, count: int) -> tuple[TreeEntry, ...]:
        return tuple(self.entries[-count:][::-1])

    async def ends(self, sessions: Sequence[SessionId]) -> list[int]:
        return [len(self.own.get(session, ())) for session in sessions]

    async def read_rollouts(
        self, asks: Sequence[tuple[SessionId, int, int]]
    ) -> list[tuple[StoredEntry, ...]]:
        return [await self.read_rollout(*ask) for ask in asks]

    async def read_rollout(self, session: SessionId, after: int, count: int) -> tuple[StoredEntry, ...]:
        return tuple(self.own.get(session, ())[after : after + count])


def stored(seq: int, at_ms: int) -> StoredEntry:
    line = encode_entry(Entry(EVENT_MSG, {"type": "agent_message", "message": f"m{seq}"}), at_ms, {}).line
    return StoredEntry(seq, 1, line, b"", b"")


def past_of(logs: Listed) -> TreePast:
    return TreePast(cast(Broker, SimpleNamespace(logs=logs)), TreeId("t"))


def entry(seq: int, message: dict[str, Any], about: dict[str, Any], *depths: InboxDepth) -> TreeEntry:
    payload = orjson.dumps({"id": "", "msg": {"type": "subagent_lifecycle", **message}})
    session = SessionId(f"s{seq % 3}")
    return TreeEntry(seq, payload, session, seq, b"", depths, seq * 10, orjson.dumps(about))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("record", "record", "record", "read", "marked", "deleted", "said")),
        st.integers(0, 3),
        st.sampled_from(("queued", "running", "ready", "failed", "canceled")),
        st.integers(0, 2),
        st.booleans(),
    ),
    min_size=1,
    max_size=30,
)


def written(steps: Sequence[tuple[str, int, str, int, bool]]) -> list[TreeEntry]:
    """A tree's log in which agents are born, change, are read, marked and deleted, and get mail."""
    found, born = list[TreeEntry](), set[int]()
    for kind, number, status, turn, mail in steps:
        seq = len(found) + 1
        depths = (InboxDepth(SessionId(f"s{number}"), turn, seq),) if mail else ()
        message: dict[str, Any] = {"event": "status", "agent_id": number}
        about: dict[str, Any] = {}
        # Some are told of that nobody knows.
        if kind == "record" or (number not in born and status != "canceled"):
            record = {"agent_id": number, "session_id": f"s{number}", "parent_agent_id": None}
            more = {"agent_path": f"0/{number}", "status": status, "turn": turn, "label": "l\u202e"}
            message = {"event": "status" if number in born else "created", "status": status}
            about = {"record": {**record, **more}}
            born.add(number)
        elif kind == "deleted":
            message["event"] = "deleted"
        elif kind in ("read", "marked"):
            about = {kind: turn if kind == "read" else True}
        found.append(entry(seq, message, about, *depths))
    return found


@given(steps=STEPS, order=st.randoms(use_true_random=False), rung=st.integers(1, 7))
@settings(max_examples=40, deadline=None)
def test_tree_at_every_entry_of_any_log_is_the_fold_up_to_there(steps: Any, order: Any, rung: int) -> None:
    log = written(steps)
    seqs = list(range(1, len(log) + 1)) * 2
    order.shuffle(seqs)

    async def looks_back() -> None:
        past = past_of(Listed(log))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tree_past, "RUNG", rung)
            assert await past.read_on()
            for seq in seqs:
                assert (await past.at(seq)).view == fold_tree(map(tree_fact, log[:seq])), seq

    asyncio.run(looks_back())


@given(
    logs=st.lists(st.lists(st.integers(1, 40), max_size=30), max_size=4),
    at_ms=st.integers(0, 41),
    lows=st.lists(st.integers(0, 30), min_size=4, max_size=4),
)
@settings(max_examples=40, deadline=None)
def test_place_of_a_session_is_its_last_entry_that_is_not_later(logs: Any, at_ms: int, lows: Any) -> None:
    times = {SessionId(f"s{number}"): sorted(each) for number, each in enumerate(logs)}
    reached = {session: sum(ms <= at_ms for ms in each) for session, each in times.items()}
    asked = {session: (min(low, reached[session]), False) for session, low in zip(times, lows, strict=False)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_past, "CLOSE", 3)
        patch.setattr(tree_past, "AHEAD", 2)
        found = asyncio.run(looked(cast(Any, Listed([], times)), asked, at_ms))
    assert found.keys() == {session for session, each in times.items() if each}
    for session, look in found.items():
        assert look.seq == reached[session]
        assert look.doing.last == (f"m{look.seq}" if look.seq else "")
        assert look.until_ms > at_ms
        assert all(not look.covers(ms) for ms in times[session][look.seq :])


async def test_long_log_is_told_as_far_as_it_is_read_and_a_place_waits_for_its_own_entry_alone() -> None:
    logs = Listed([entry(seq, {"event": "status", "agent_id": 1}, {}) for seq in range(1, 11)])
    past, first, seen = past_of(logs), asyncio.Event(), asyncio.Event()
    logs.gate = first
    assert not await past.read_on(0)
    assert (past.read, past.end, past.timeline(4).tree_seq) == (0, 10, 0)
    third = asyncio.create_task(past.reach(3))
    logs.gate, logs.after = seen, 3
    first.set()
    await third
    assert past.read < 10
    assert (await past.at(3)).tree_seq == 3
    assert not await past.read_on(0)
    assert past.timeline(4).tree_seq == past.read
    past.stop()
    seen.set()
    assert await past.read_on(), "who waits is not left alone by a reading that was stopped"
    assert (past.read, past.end) == (10, 10)


async def test_reading_that_fails_is_told_and_tried_again() -> None:
    logs = Listed([entry(1, {"event": "status"}, {})])
    past, whole = past_of(logs), logs.read_tree

    async def away(*_: object, **__: object) -> tuple[TreeEntry, ...]:
        raise ConnectionError("away")

    cast(Any, logs).read_tree = away
    for asks in (past.read_on(), past.reach(1)):
        with pytest.raises(ConnectionError):
            await asks
    cast(Any, logs).read_tree = whole
    assert await past.read_on()


async def test_past_that_nobody_asks_for_is_let_go_and_so_is_the_oldest_of_many() -> None:
    calls = list[tuple[float, Callable[[], None]]]()
    pasts = Pasts(lambda delay_s, call: calls.append((delay_s, call)))
    broker = cast(Broker, SimpleNamespace(logs=Listed([])))
    first = pasts.of(broker, TreeId("first"))
    assert pasts.of(broker, TreeId("first")) is first
    assert [delay_s for delay_s, _ in calls] == [IDLE_S, IDLE_S]
    calls[0][1]()
    assert len(pasts) == 1, "it was asked for since"
    calls[1][1]()
    assert len(pasts) == 0
    again = pasts.of(broker, TreeId("first"))
    assert again is not first
    for number in range(MOST_PASTS):
        pasts.of(broker, TreeId(f"t{number}"))
    assert len(pasts) == MOST_PASTS
    assert pasts.of(broker, TreeId("first")) is not again
    for _, call in calls:
        call()
    assert len(pasts) == 0


@pytest.mark.parametrize("gone", ["by others", "by time"])
@pytest.mark.parametrize("asked_before", [1, 2])
async def test_past_that_comes_back_is_kept_for_its_time_whatever_was_planned_for_it_before(
    gone: str, asked_before: int
) -> None:
    calls = list[Callable[[], None]]()
    pasts = Pasts(lambda _, call: calls.append(call))
    broker, tree = cast(Broker, SimpleNamespace(logs=Listed([]))), TreeId("first")
    for _ in range(asked_before):
        pasts.of(broker, tree)
    old = list(calls)
    if gone == "by others":
        for number in range(MOST_PASTS):
            pasts.of(broker, TreeId(f"t{number}"))
    else:
        old.pop()()
    again = [pasts.of(broker, tree) for _ in range(asked_before)][-1]
    for call in old:
        call()
    assert pasts.of(broker, tree) is again


# ── what a tree had used, and agents that no log tells of ─────────────────────────────────────────


@pytest.mark.parametrize("silent", [(), ("t",), ("s1",), ("s2",), ("t", "s1", "s2")])
@pytest.mark.parametrize("pruned", [False, True])
async def test_tokens_of_a_tree_are_those_of_all_its_agents_or_are_not_known(
    silent: tuple[str, ...], pruned: bool
) -> None:
    """Of an agent that was taken off the list, and of one whose log is in the archive, none are known."""
    log = written([("record", 1, "running", 0, False), ("record", 2, "running", 0, False)])
    if pruned:
        log += [entry(3, {"event": "deleted", "agent_id": 2}, {})]
    used = {"t": 100, "s1": 20, "s2": 3}
    logs = Listed(log)
    for name, tokens in used.items():
        usage = dict.fromkeys(("input_tokens", "cached_input_tokens", "output_tokens"), 0)
        total = {**usage, "reasoning_output_tokens": 0, "total_tokens": tokens}
        info = {"total_token_usage": total, "last_token_usage": total, "model_context_window": None}
        line = encode_entry(Entry(EVENT_MSG, {"type": "token_count", "info": info}), 5, {}).line
        logs.own[SessionId(name)] = [] if name in silent else [StoredEntry(1, 1, line, b"", b"")]
    past = past_of(logs)
    await past.read_on()
    found = await past.at(len(log))
    there = ["t", "s1"] if pruned else ["t", "s1", "s2"]
    assert [one.session for one in found.agents] == there
    assert [None if one.seq is None else 1 for one in found.agents] == [
        None if one in silent else 1 for one in there
    ]
    assert found.tokens == (None if pruned or silent else 123)


@given(times=st.lists(st.integers(1, 20), max_size=12), at_ms=st.integers(0, 21))
@settings(max_examples=40, deadline=None)
def test_place_of_a_long_log_at_a_time_is_its_last_entry_that_is_not_later(
    times: list[int], at_ms: int
) -> None:
    ordered = sorted(times)

    class Found:
        async def log(self, session: SessionId, through: int, after: int) -> AsyncIterator[StoredEntry]:
            for seq in range(after + 1, through + 1):
                yield stored(seq, ordered[seq - 1])

    head = cast(Any, SimpleNamespace(session=SessionId("s"), seq=len(ordered)))
    found = asyncio.run(place_then(cast(Any, Found()), head, at_ms))
    assert found == sum(ms <= at_ms for ms in ordered)


async def test_limits_before_a_change_of_an_earlier_version_are_not_known() -> None:
    def change(seq: int, about: bytes) -> TreeEntry:
        message = {"type": "background_event", "message": f"ana{LIMITS_RAISED}5 slots"}
        payload = orjson.dumps({"id": "", "msg": message})
        return TreeEntry(seq, payload, SessionId("s"), seq, b"", (), seq, about)

    told = orjson.dumps({"limits": {"slots": [5, 10], "tokens": [None, 7]}})
    past = past_of(Listed([change(1, b""), change(2, b""), change(3, told)]))
    await past.read_on()
    now = {"slots": 10, "tokens": 7, "spawned": 2}
    assert (await past.at(3, now)).limits == now
    assert (await past.at(2, now)).limits == {"slots": 5, "spawned": 2}
    assert (await past.at(1, now)).limits is None
    assert (await past.at(3)).limits is None, "nobody said which they are now"


async def test_of_very_many_pauses_the_longest_are_gaps() -> None:
    pauses = 3 * MOST_GAPS
    logs, at_ms = list[TreeEntry](), 0
    for seq in range(1, pauses + 1):
        at_ms += 400_000 + seq * 1_000
        logs.append(TreeEntry(seq, b'{"id":"","msg":{"type":"x"}}', SessionId("s"), seq, b"", (), at_ms))
    past = past_of(Listed(logs))
    await past.read_on()
    found = past.timeline(400)
    assert len(found.gaps) == MOST_GAPS
    assert min(to - begin for begin, to in found.gaps) == 400_000 + (pauses - MOST_GAPS + 1) * 1_000
    assert sum(bar.entries for bar in found.buckets) == pauses
    assert [bar.seq for bar in found.buckets] == sorted(bar.seq for bar in found.buckets)


ACTS = st.lists(
    st.tuples(st.sampled_from(("said", "limits", "pause", "record", "deleted")), st.integers(1, 3)),
    min_size=1,
    max_size=24,
)


def _told_by(acts: Sequence[tuple[str, int]], begins: int) -> list[TreeEntry]:
    """A tree's log of agents that are born and end, of changed limits, and of pauses between them."""
    found, at_ms = list[TreeEntry](), begins
    for seq, (kind, number) in enumerate(acts, 1):
        at_ms += GAP_MS + 10 if kind == "pause" else 10
        message: dict[str, Any] = {"type": "background_event", "message": "hello"}
        about: dict[str, Any] = {}
        if kind == "limits":
            message["message"] = f"ana{LIMITS_RAISED}{number} slots"
            about = {"limits": {"slots": [begins + number, 10]}}
        elif kind in ("record", "deleted"):
            created = kind == "record"
            event = "created" if created else "deleted"
            message = {"type": "subagent_lifecycle", "event": event, "agent_id": number}
            record = {"agent_id": number, "session_id": f"s{number}", "parent_agent_id": 0}
            more = {"agent_path": f"0/{number}", "status": "running", "turn": "", "label": f"l{begins}"}
            about = {"record": {**record, **more}} if created else {}
        payload = orjson.dumps({"id": "", "msg": message})
        session = SessionId(f"s{number}")
        found.append(TreeEntry(seq, payload, session, seq, b"", (), at_ms, orjson.dumps(about)))
    return found


async def _all_of(past: TreePast) -> Any:
    """Everything that a past tells."""
    trees = [await past.at(seq, {"slots": 99}) for seq in range(1, past.read + 1)]
    return past.read, past.end, past.timeline(7), trees, await past.marks_of_sessions(takeovers=True)


def _own_log(who: str, times: Sequence[int]) -> list[StoredEntry]:
    """A session's own log, in this one's words; each second entry is an act of a person."""
    found = list[StoredEntry]()
    for seq, ms in enumerate(times, 1):
        said = Entry(EVENT_MSG, {"type": "agent_message", "message": f"{who} {seq}"})
        line = encode_entry(said if seq % 2 else fact(f.Bundled("d", 1, 1, 0, "k", who)), ms, {}).line
        found.append(StoredEntry(seq, 1, line, b"", b""))
    return found


@pytest.mark.parametrize("buckets", range(1, 9))
async def test_bars_are_no_more_than_asked_for_also_where_there_are_more_pauses(buckets: int) -> None:
    """Stretches before and behind a pause share a bar then, as if there were no pause between them."""
    log = list[TreeEntry]()
    for stretch in range(6):
        for step_ms in range(0, 1_000, 100):
            one = entry(len(log) + 1, {"event": "status", "status": "running", "agent_id": 1}, {})
            log.append(replace(one, at_ms=stretch * 2 * GAP_MS + step_ms))
    past = past_of(Listed(log))
    assert await past.read_on()
    found = past.timeline(buckets)
    assert len(found.gaps) == 5
    assert len(found.buckets) <= buckets
    assert sum(bar.entries for bar in found.buckets) == 60
    for seq in range(1, 60):
        await past.at(seq)
        assert len(past._near) <= tree_past.MOST_NEAR, "views that were asked for long ago are let go"


@given(
    lost=ACTS,
    came=ACTS,
    kept=st.integers(0, 12),
    looks=st.lists(st.integers(0, 24), max_size=8),
    own=st.lists(st.integers(1, 400), max_size=6),
    most=st.integers(1, 6),
)
@settings(max_examples=30, deadline=None)
def test_past_of_a_log_that_was_put_back_is_that_of_what_came_in_its_place_whatever_was_looked_at(
    lost: Any, came: Any, kept: int, looks: list[int], own: list[int], most: int
) -> None:
    """The first entries may be the same, and the new log shorter, as long, or longer; and then again."""
    before = _told_by(lost, 1)
    kept = min(kept, len(before) - 1)
    after = [*before[:kept], *_told_by([*lost[:kept], *came], 5)[kept:]]
    sessions = {SessionId(name): sorted(own)[number:] for number, name in enumerate(("t", "s1", "s2", "s3"))}

    async def looks_back() -> None:
        logs = Listed(before)
        past = past_of(logs)
        for entries, who, later in ((before, "ann", 0), (after, "bob", 7), (before, "eve", 3)):
            logs.entries = list(entries)
            logs.own = {
                session: _own_log(who, [ms + later for ms in each]) for session, each in sessions.items()
            }
            assert await past.read_on()
            if who == "ann":
                for seq in looks:
                    await past.at(1 + seq % past.read, {"slots": 99})
                await past.marks_of_sessions(takeovers=True)
                continue
            fresh = past_of(logs)
            assert await fresh.read_on()
            assert await _all_of(past) == await _all_of(fresh)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_past, "MOST_MARKS", most)
        asyncio.run(looks_back())


async def test_marks_of_sessions_are_there_once_for_several_who_look_at_the_same_time() -> None:
    """Also where one of them has seen a longer log than the others."""
    logs = Listed([])
    logs.own = {SessionId("t"): _own_log("ann", range(10, 60, 10))}
    past, gate, read = past_of(logs), asyncio.Event(), logs.read_rollouts

    async def read_rollouts(asks: Any) -> Any:
        pages = await read(asks)
        await gate.wait()
        return pages

    cast(Any, logs).read_rollouts = read_rollouts
    looks = [asyncio.create_task(past.marks_of_sessions(takeovers=True)) for _ in range(2)]
    await asyncio.sleep(0)
    logs.own = {SessionId("t"): _own_log("ann", range(10, 100, 10))}
    looks.insert(0, asyncio.create_task(past.marks_of_sessions(takeovers=True)))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*looks)
    before, _ = await past.marks_of_sessions(takeovers=True)
    assert [mark.at_ms for mark in before] == [20, 40, 60, 80]
