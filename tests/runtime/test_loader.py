"""Where a claimed session stands: known, known up to a point, or folded; never on another branch's word."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from orchestrator.broker.records import Claim, Claimed, StoredEntry
from orchestrator.core.chain import GENESIS, next_chain, payload_digest
from orchestrator.core.entries import Entry, encode_entry, fact, item
from orchestrator.core.facts import Redacted
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.core.snapshot import digest
from orchestrator.rollouts.session_summary import Position
from orchestrator.runtime.loader import (
    BEGINNING,
    BrokenLog,
    Cache,
    FoldSource,
    Loaded,
    LogEnd,
    Weight,
    folded,
    load,
    text_bytes,
)

SESSION = SessionId("01a1f821-7090-700a-b0b5-81d1b4589218")
CLAIM = Claim(SESSION, TreeId(SESSION), "w", "c", 1, "default")


class Log:
    """A session's log in the place of Redis; remembers from where it was read."""

    archive = None
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(asyncio.sleep)

    def __init__(self, *texts: str) -> None:
        self.broker = self
        self.logs = self
        self.entries: list[StoredEntry] = []
        self.read_after: list[int] = []
        for text in texts:
            self.append(text)

    def append(self, text: str) -> None:
        self.adds(item({"type": "message", "role": "user", "content": [{"text": text}]}))

    def adds(self, entry: Entry) -> None:
        line = encode_entry(entry, 0, {}).line
        chain = next_chain(self.head, len(self.entries) + 1, 1, payload_digest(b"salt", line))
        self.entries.append(StoredEntry(len(self.entries) + 1, 1, line, b"salt", chain))

    @property
    def head(self) -> bytes:
        return self.entries[-1].chain if self.entries else GENESIS

    @property
    def end(self) -> LogEnd:
        return LogEnd(SESSION, len(self.entries), self.head, 0)

    def claimed(self) -> Claimed:
        return Claimed(CLAIM, len(self.entries), self.head, "0-0", "0-0", 0, AgentId(0), 0, 0, 0, ())

    async def read_rollout(self, session: SessionId, after: int, count: int) -> Sequence[StoredEntry]:
        self.read_after.append(after)
        return self.entries[after : after + count]

    async def folded(self, known: Position | None = None) -> Position:
        return await folded(cast(FoldSource, self), self.end, known=known)

    async def load(self, cache: Cache) -> Loaded:
        return await load(cast(FoldSource, self), self.claimed(), cache)


async def test_worker_that_left_the_session_as_it_is_reads_nothing() -> None:
    log, cache = Log("a", "b"), Cache()
    first = await log.load(cache)
    cache.keep(SESSION, first)
    log.read_after.clear()
    assert (await log.load(cache)).position is first.position
    assert log.read_after == []


async def test_worker_that_knew_an_earlier_state_reads_only_what_came_since() -> None:
    log, cache = Log("a", "b"), Cache()
    cache.keep(SESSION, await log.load(cache))
    log.append("c")
    log.read_after.clear()
    loaded = await log.load(cache)
    assert log.read_after == [2]
    assert digest(loaded.position.state) == digest((await log.folded()).state)
    assert [entry.seq for entry in loaded.unexported] == [3], "the file may lack what was read"


@pytest.mark.parametrize("others", [("a", "x"), ("a", "x", "y"), ("x", "y", "z")])
async def test_state_of_a_forgotten_branch_is_not_built_upon(others: tuple[str, ...]) -> None:
    lost, cache = Log("a", "b"), Cache()
    cache.keep(SESSION, await lost.load(cache))
    log = Log(*others)
    loaded = await log.load(cache)
    assert (loaded.position.seq, loaded.position.head) == (len(others), log.head)
    assert digest(loaded.position.state) == digest((await log.folded()).state)
    # What was read first, in vain, is in no file twice.
    assert [entry.seq for entry in loaded.unexported] == [*range(1, len(others) + 1)]


async def test_known_state_does_not_hide_an_altered_entry() -> None:
    log, cache = Log("a", "b"), Cache()
    cache.keep(SESSION, await log.load(cache))
    log.append("c")
    log.append("d")
    log.entries[2] = replace(log.entries[2], payload=log.entries[2].payload.replace(b'"c"', b'"C"'))
    with pytest.raises(BrokenLog):
        await log.load(cache)


async def test_state_ahead_of_the_log_is_left_alone() -> None:
    log, cache = Log("a", "b", "c"), Cache()
    cache.keep(SESSION, await log.load(cache))
    log.entries.pop()
    assert (await log.load(cache)).position.seq == 2


async def test_file_that_was_written_late_says_nothing_of_what_its_session_has_done_since() -> None:
    log, cache = Log("a", "b"), Cache()
    earlier = await log.load(Cache())
    log.append("c")
    later = await log.load(Cache())
    cache.keep(SESSION, later)
    for at, lacking in ((earlier.position, [1, 2, 3]), (later.position, [3])):
        cache.written(SESSION, at, 2)
        left = cache.take(SESSION)
        assert left is not None
        assert [entry.seq for entry in left.unexported] == lacking
        cache.keep(SESSION, left)


async def test_worker_keeps_no_more_bytes_of_conversations_than_it_may() -> None:
    known, cache = await Log("x" * 400).load(Cache()), Cache(most_bytes=2500)
    weight = text_bytes(known)
    assert 800 <= weight <= 1200, "the text in the conversation, and in the entry that its file lacks"
    first, second, third = (cast(SessionId, name) for name in ("first", "second", "third"))
    for session in (first, second, second, third):
        cache.keep(session, known)
    assert [cache.take(session) is not None for session in (first, second, third)] == [False, True, True]
    for session in (first, second):
        cache.keep(session, known)
    assert cache.take(first) is not None, "what was taken counts no more"
    cache.keep(first, await Log("x" * 2500).load(Cache()))
    assert cache.take(first) is None, "nor is one kept that is larger than all may be"


async def test_entries_of_a_run_count_until_the_texts_are_counted_anew() -> None:
    session, cache = cast(SessionId, "session"), Cache(most_bytes=3000)
    loaded = await Log("x" * 400).load(Cache())
    cache.keep(session, replace(loaded, weight=Weight(400, since=3000)))
    assert cache.take(session) is None, "the texts may have grown by as much as the entries have"
    cache.keep(session, replace(loaded, weight=Weight(400, since=1 << 20)))
    left = cache.take(session)
    assert left is not None, "a compaction has made the conversation short again"
    assert left.weight == Weight(text_bytes(loaded.position.state))


async def test_conversation_that_grew_is_weighed_anew() -> None:
    session, log, cache = cast(SessionId, "session"), Log("x" * 400), Cache(most_bytes=3000)
    cache.keep(session, await log.load(cache))
    for _ in range(3):
        log.append("y" * 900)
    cache.keep(session, grown := await log.load(Cache()))
    assert text_bytes(grown) > 3000
    assert cache.take(session) is None


async def test_worker_keeps_a_bounded_number_of_sessions() -> None:
    known, cache = await Log("x").load(Cache()), Cache(size=1)
    for name in ("first", "second"):
        cache.keep(cast(SessionId, name), known)
    assert [cache.take(cast(SessionId, name)) is not None for name in ("first", "second")] == [False, True]


async def test_fold_starts_at_the_beginning_when_nothing_is_known() -> None:
    log = Log("a", "b")
    position = await log.folded(BEGINNING)
    assert position.seq == 2


async def test_entry_with_a_number_that_none_can_have_is_a_broken_log() -> None:
    log = Log("a", "b")
    log.entries[1] = replace(log.entries[1], epoch=10**30)
    with pytest.raises(BrokenLog, match="a number that no entry can have"):
        await log.folded()


async def test_log_under_another_key_is_told_of_as_such_at_its_first_entry_alone() -> None:
    log = Log("a", "b")
    with pytest.raises(BrokenLog, match=r"entry 1 does not follow .*; the log may be keyed by another"):
        await folded(cast(FoldSource, log), log.end, secret=b"a key of sixteen")
    log.entries[1] = replace(log.entries[1], chain=bytes(32))
    with pytest.raises(BrokenLog, match=r"entry 2 does not follow from the one before it$"):
        await log.folded()


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("behind", [0, 2])
async def test_known_state_of_before_a_redaction_is_not_gone_on_with(at: int, behind: int) -> None:
    """The state still has the words that were taken away."""
    log, cache = Log("a", "b", "c"), Cache()
    known = await log.load(cache)
    log.adds(fact(Redacted(SESSION, at, "d", "ann", "", {"type": "event_msg", "payload": {}})))
    for text in ("d", "e")[:behind]:
        log.append(text)
    cache.keep(SESSION, known)
    log.read_after.clear()
    loaded = await log.load(cache)
    assert log.read_after == [3, 0], "it is folded from its first entry"
    assert (loaded.position.seq, loaded.position.head) == (4 + behind, log.head)
    assert len(loaded.unexported) == 4 + behind
    cache.keep(SESSION, loaded)
    log.append("f")
    log.read_after.clear()
    await log.load(cache)
    assert log.read_after == [4 + behind], "what was folded since is gone on with"
