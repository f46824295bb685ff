"""Turns of a long log, from either end, without those that were taken back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.errors import Corrupt
from orchestrator.broker.records import SessionHead, StoredEntry
from orchestrator.core.ids import SessionId
from orchestrator.gateways.resume import past_events
from orchestrator.views import thread_log
from orchestrator.views.thread_log import Rollbacks, ThreadLog
from orchestrator.views.turns.turn_records import CommandExecution, ItemStatus
from tests.views.test_threads import CHILD, ROOT, head

Line = dict[str, Any]


def event(type: str, turn: str = "", **more: Any) -> Line:
    return {"type": "event_msg", "id": turn, "payload": {"type": type, **more}}


def fact(kind: str, **more: Any) -> Line:
    return {"type": "dendro", "payload": {"kind": kind, **more}}


def turn(id: str, *said: str) -> list[Line]:
    """A turn with messages of a person, and an answer."""
    return [
        fact("task", id=id),
        event("task_started", id),
        *(event("user_message", id, message=text) for text in said),
        event("agent_message", id, message=f"re {id}"),
        event("task_complete", id, last_agent_message=f"re {id}"),
        fact("task_ended", outcome="completed"),
    ]


@dataclass
class Logs:
    """Logs of sessions as a source of them, and how many entries were read."""

    logs: dict[SessionId, list[StoredEntry]] = field(default_factory=dict)
    heads: dict[SessionId, SessionHead] = field(default_factory=dict)
    read: int = 0
    damaged: set[SessionId] = field(default_factory=set)
    texts: dict[str, str] = field(default_factory=dict)
    """Large texts that stand beside the logs, by their digests."""
    branch: int = 0
    """Of Redis: one that was put back has other entries under the same numbers."""

    def add(self, session: SessionId, lines: Sequence[Line], **facts: Any) -> SessionHead:
        at = {"timestamp": "2026-01-02T03:04:05.678Z"}
        log = [
            StoredEntry(
                seq, 1, orjson.dumps(at | line), b"", (seq + (self.branch << 32)).to_bytes(32, "little")
            )
            for seq, line in enumerate(lines, 1)
        ]
        self.logs[session] = log
        self.heads[session] = head(session=session, seq=len(log), **{"head": log[-1].chain} | facts)
        return self.heads[session]

    @property
    def broker(self) -> Any:
        async def head_of(session: SessionId) -> SessionHead | None:
            if session in self.damaged:
                raise Corrupt(session, "it is no hash")
            return self.heads.get(session)

        return SimpleNamespace(logs=SimpleNamespace(head=head_of))

    async def log(self, session: SessionId, through: int, after: int = 0) -> AsyncIterator[StoredEntry]:
        for stored in self.logs[session][after:through]:
            self.read += 1
            yield stored

    async def large_texts(self, tree: Any, digests: Any) -> dict[str, str]:
        return {digest: self.texts[digest] for digest in digests}


async def log_of(logs: Logs, session: SessionId = ROOT) -> ThreadLog:
    return await ThreadLog.of(cast(Any, logs), logs.heads[session])


async def newest_first(logs: Logs, session: SessionId = ROOT) -> list[str]:
    return [one.turn async for one in (await log_of(logs, session)).back()]


async def test_reader_finds_the_newest_turns_without_reading_a_long_log() -> None:
    logs = Logs()
    logs.add(ROOT, [line for n in range(5_000) for line in turn(f"t{n}", "go")])
    found = []
    async for one in (await log_of(logs)).back():
        found.append((one.turn, one.start, one.end))
        if len(found) == 3:
            break
    # A turn ends where the next one begins, with the fact before that.
    assert found == [("t4999", 29_996, 30_000), ("t4998", 29_990, 29_995), ("t4997", 29_984, 29_989)]
    assert logs.read < 300


async def test_reader_shows_a_large_text_of_a_turn_whole() -> None:
    logs = Logs(texts={"d1" * 32: "a large text"})
    said = {"$blob": "d1" * 32, "bytes": 12}
    logs.add(ROOT, [event("task_started", "t"), event("agent_message", "t", message=said)])
    log = await log_of(logs)
    (found,) = [await log.turn(one) async for one in log.back()]
    assert found is not None
    assert [getattr(item, "text", None) for item in found.items] == ["a large text"]


async def test_reader_finds_the_same_turns_from_both_ends() -> None:
    logs = Logs()
    logs.add(ROOT, [line for n in range(300) for line in turn(f"t{n}", "go")])
    log = await log_of(logs)
    forward = [one.turn async for one in log.forward()]
    assert forward == [f"t{n}" for n in range(300)]
    assert [one.turn async for one in log.back()] == forward[::-1]
    assert [one.turn async for one in log.forward(0, 1_700)] == forward[283:]


async def test_reader_looks_a_log_through_once_and_then_reads_what_its_pages_show() -> None:
    logs, known = Logs(), Rollbacks()
    logs.add(ROOT, [line for n in range(5_000) for line in turn(f"t{n}", "go")])

    async def first_of(page: int) -> tuple[list[str], int]:
        log, read = await ThreadLog.of(cast(Any, logs), logs.heads[ROOT], known), logs.read
        found = log.forward(0, page)
        turns = [(await anext(found)).turn for _ in range(3)]
        await cast(Any, found).aclose()
        return turns, logs.read - read

    turns, read = await first_of(0)
    assert (turns, read > 30_000) == (["t0", "t1", "t2"], True)
    turns, read = await first_of(6_001)
    assert (turns, read < 30) == (["t1000", "t1001", "t1002"], True)


async def test_reader_that_knows_a_log_sees_what_is_taken_back_later_and_a_log_that_was_put_back() -> None:
    logs, known = Logs(), Rollbacks()

    async def forward(*lines: Line, known: Rollbacks = known) -> list[str]:
        logs.add(ROOT, lines)
        log = await ThreadLog.of(cast(Any, logs), logs.heads[ROOT], known)
        return [one.turn async for one in log.forward()]

    said = [*turn("t1", "a"), *turn("t2", "b")]
    assert await forward(*said) == ["t1", "t2"]
    assert await forward(*said, event("thread_rolled_back", num_turns=1)) == ["t1"]
    assert await forward(*turn("t1", "a"), *turn("t3", "c")) == ["t1", "t3"]
    other, taken_back = Rollbacks(), event("thread_rolled_back", num_turns=1)
    assert await forward(*said, known=other) == ["t1", "t2"]
    logs.branch = 1
    assert await forward(*turn("t1", "a"), *turn("t4", "d")[:-1], taken_back, known=other) == ["t1"]


@pytest.mark.parametrize("between", [(), turn("compact")], ids=["turns alone", "a compaction"])
async def test_reader_does_not_see_turns_that_were_taken_back(between: Sequence[Line]) -> None:
    logs = Logs()
    undone = [
        *turn("t2", "a", "b"),
        *between,
        *turn("t3", "c"),
        event("thread_rolled_back", num_turns=3),
    ]
    again = [*turn("t4", "d"), event("thread_rolled_back", num_turns=1), *turn("t5", "e")]
    logs.add(ROOT, [*turn("t1", "x"), *undone, *again])
    assert await newest_first(logs) == ["t5", "t1"]
    assert [one.turn async for one in (await log_of(logs)).forward()] == ["t1", "t5"]


def answered(id: str, *said: str) -> list[Line]:
    """The same turn; `token_count` names the response with which it ended."""
    *first, complete, ended = turn(id, *said)
    return [*first, event("token_count", id, response_id=f"r-{id}"), complete, ended]


def going_back(id: str, to: str, *said: str) -> list[Line]:
    """A turn that goes on from behind an earlier one."""
    begun, *rest = answered(id, *said)
    return [begun, fact("rewound", response_id=f"r-{to}", length=3), *rest]


LEFT = {
    "one": ([*answered("t2", "b"), *going_back("t3", "t1", "c")], ["t1", "t3"]),
    "several, one of them with two messages": (
        [*answered("t2", "b", "b2"), *answered("t3", "c"), *going_back("t4", "t1", "d")],
        ["t1", "t4"],
    ),
    "none: the last one is named": ([*answered("t2", "b"), *going_back("t3", "t2", "c")], ["t1", "t2", "t3"]),
    "twice, to the same one": (
        [*answered("t2", "b"), *going_back("t3", "t1", "c"), *going_back("t4", "t1", "d")],
        ["t1", "t4"],
    ),
    "twice, to another one": (
        [
            *answered("t2", "b"),
            *answered("t3", "c"),
            *going_back("t4", "t2", "d"),
            *answered("t5", "e"),
            *going_back("t6", "t4", "f"),
        ],
        ["t1", "t2", "t4", "t6"],
    ),
    "with what was taken back in it": (
        [
            *answered("t2", "b"),
            *answered("t3", "c"),
            event("thread_rolled_back", num_turns=1),
            *answered("t4", "d"),
            *going_back("t5", "t2", "e"),
        ],
        ["t1", "t2", "t5"],
    ),
    "and more is taken back behind": (
        [
            *answered("t2", "b"),
            *going_back("t3", "t1", "c"),
            *answered("t4", "d"),
            fact("rewound", response_id="r-", length=0),
            event("thread_rolled_back", num_turns=3),
        ],
        [],
    ),
    "over a compaction": (
        [*answered("t2", "b"), *turn("compact"), *going_back("t3", "t1", "c"), *answered("t4", "d")],
        ["t1", "t3", "t4"],
    ),
}


@pytest.mark.parametrize("how", LEFT)
async def test_reader_does_not_see_turns_that_were_left_by_going_back(how: str) -> None:
    logs, (lines, shown) = Logs(), LEFT[how]
    logs.add(ROOT, [*answered("t1", "a"), *lines])
    assert [one.turn async for one in (await log_of(logs)).forward()] == shown
    assert await newest_first(logs) == shown[::-1]
    if "taken" not in how:
        every = [
            line["id"] for line in (*answered("t1"), *lines) if line["payload"].get("type") == "task_started"
        ]
        assert [one.turn async for one in (await log_of(logs)).back(left_too=True)] == every[::-1]


async def test_pages_from_a_turn_on_leave_out_what_was_left_before_it() -> None:
    logs = Logs()
    logs.add(ROOT, [*answered("t1", "a"), *answered("t2", "b"), *going_back("t3", "t1", "c")])
    log = await log_of(logs)
    newest = await anext(log.back())
    assert [one.turn async for one in log.back(0, newest.start - 1)] == ["t1"]
    assert [one.turn async for one in log.forward(0, newest.start)] == ["t3"]


async def test_fork_begins_with_the_turns_of_its_source_and_leaves_out_those_that_it_left() -> None:
    logs = Logs()
    source = logs.add(CHILD, [*answered("t1", "a"), *answered("t2", "b"), *going_back("t3", "t1", "c")])
    at = {"session": CHILD, "seq": source.seq, "chain": source.head.hex()}
    opening = [fact("forked", parent=at, content="[]")]
    logs.add(ROOT, [*opening, *answered("t4", "d")], meta={"forked_from": "x"})
    assert await newest_first(logs) == ["t4", "t3", "t1"]
    assert [one.turn async for one in (await log_of(logs)).forward()] == ["t1", "t3", "t4"]


async def test_words_of_a_model_that_look_like_an_event_begin_no_turn() -> None:
    logs = Logs()
    fake = {"type": "task_started"}
    odd = event(
        "mcp_tool_call_begin",
        "t1",
        arguments=[fake, {"type": "user_message"}, {"type": "thread_rolled_back"}],
    )
    logs.add(ROOT, [*turn("t1", "x")[:3], odd, *turn("t1", "x")[3:]])
    (found,) = [one async for one in (await log_of(logs)).back()]
    assert (found.turn, found.said, found.taken_back) == ("t1", 1, ())


async def test_fork_begins_with_the_turns_of_its_source() -> None:
    logs = Logs()
    source = logs.add(CHILD, [*turn("t1", "x"), *turn("t2", "y"), *turn("later", "z")])
    at = {"session": CHILD, "seq": 12, "chain": logs.logs[CHILD][11].chain.hex()}
    opening = [fact("configured"), fact("forked", parent=at, content="[]")]
    logs.add(ROOT, [*opening, *turn("t3", "z")], meta={"forked_from": "x"})
    assert source.seq == 18
    assert await newest_first(logs) == ["t3", "t2", "t1"]
    assert [one.turn async for one in (await log_of(logs)).forward()] == ["t1", "t2", "t3"]


async def test_fork_of_a_fork_begins_with_the_turns_of_both() -> None:
    logs, oldest = Logs(), SessionId("0199a2b4-0000-7000-8000-000000000009")
    logs.add(oldest, [*turn("t1", "x"), *turn("later", "z")])
    for session, above, seq in ((CHILD, oldest, 6), (ROOT, CHILD, 7)):
        at = {"session": above, "seq": seq, "chain": logs.logs[above][seq - 1].chain.hex()}
        own = [*turn(f"of {session[-1]}", "y"), *turn("behind the fork", "z")]
        logs.add(session, [fact("forked", parent=at, content="[]"), *own], meta={"forked_from": "x"})
    wanted = ["t1", f"of {CHILD[-1]}", f"of {ROOT[-1]}", "behind the fork"]
    assert await newest_first(logs) == wanted[::-1]
    assert [one.turn async for one in (await log_of(logs)).forward()] == wanted


async def test_fork_of_a_session_that_was_put_back_shows_its_own_turns_alone() -> None:
    logs = Logs()
    logs.add(CHILD, [*turn("t1", "x"), *turn("t2", "y")])
    for parent in ({"session": CHILD, "seq": 12, "chain": "00"}, {"session": "gone", "seq": 1, "chain": ""}):
        opening = [fact("forked", parent=parent, content="[]")]
        logs.add(ROOT, [*opening, *turn("t3", "z")], meta={"forked_from": "x"})
        assert await newest_first(logs) == ["t3"]


async def test_fork_of_a_session_that_cannot_be_read_any_more_shows_its_own_turns_alone() -> None:
    logs = Logs()
    logs.add(CHILD, [*turn("t1", "x"), *turn("t2", "y")])
    at = {"session": CHILD, "seq": 12, "chain": logs.logs[CHILD][11].chain.hex()}
    fork = logs.add(
        ROOT, [fact("forked", parent=at, content="[]"), *turn("t3", "z")], meta={"forked_from": "x"}
    )
    for damaged, turns, said in ((set[SessionId](), ["t3", "t2", "t1"], 3), ({CHILD}, ["t3"], 1)):
        logs.damaged = damaged
        assert await newest_first(logs) == turns
        past = await past_events(cast(Any, logs), fork)
        assert sum(message["type"] == "user_message" for message in past) == said


PROCESS = {"call_id": "p", "process_id": "7"}
STARTED = event("exec_command_begin", "t0", **PROCESS, command=["sleep", "9"], cwd="/w", parsed_cmd=[])
ENDED = event("exec_command_end", "t0", **PROCESS, exit_code=3, stdout="", stderr="", aggregated_output="bye")


def with_process(*behind: Line) -> Logs:
    """A turn that starts a process, and what follows it."""
    began, rest = turn("t0", "go")[:3], turn("t0")[2:]
    logs = Logs()
    logs.add(ROOT, [*began, STARTED, *rest, *behind])
    return logs


async def processes(logs: Logs) -> list[tuple[ItemStatus, int | None]]:
    """The state of each process as its turn alone shows it."""
    log = await log_of(logs)
    turns = [await log.turn(one) async for one in log.back()]
    items = [item for one in turns if one is not None for item in one.items]
    return [(item.status, item.exit_code) for item in items if isinstance(item, CommandExecution)]


async def test_turn_shows_the_end_of_its_process_in_a_later_turn() -> None:
    later = turn("t1", "on")
    logs = with_process(*later[:3], ENDED, *later[3:], *turn("t2", "on"))
    assert await processes(logs) == [(ItemStatus.FAILED, 3)]


async def test_turn_shows_the_ends_of_all_its_processes_whichever_ends_first() -> None:
    second = {"call_id": "q", "process_id": "8"}
    began = {**STARTED, "payload": {**STARTED["payload"], **second}}
    ended = {**ENDED, "payload": {**ENDED["payload"], **second, "exit_code": 4}}
    for ends in ((ENDED, ended), (ended, ENDED)):
        logs = Logs()
        lines = [*turn("t0", "go")[:3], STARTED, began, *turn("t0")[2:]]
        logs.add(ROOT, [*lines, *turn("t1", "on"), ends[0], *turn("t2", "on"), ends[1]])
        assert await processes(logs) == [(ItemStatus.FAILED, 3), (ItemStatus.FAILED, 4)]


async def test_turn_whose_process_goes_on_shows_it_at_work() -> None:
    other = event("exec_command_end", "t1", call_id="q", exit_code=0, stdout="", stderr="")
    assert await processes(with_process(other, *turn("t1", "on"))) == [(ItemStatus.IN_PROGRESS, None)]


async def test_end_of_a_process_is_looked_for_no_further_than_it_has_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(thread_log, "MOST_BEHIND", 50)
    long = [line for n in range(1, 100) for line in turn(f"t{n}", "on")]
    for logs in (
        with_process(ENDED, *long),
        with_process(*turn("t1", "on"), ENDED, *long),
        with_process(*long),
    ):
        log = await log_of(logs)
        stretch = [one async for one in log.back()][-1]
        logs.read = 0
        await log.turn(stretch)
        assert logs.read <= 50
