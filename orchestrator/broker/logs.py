"""Reading of sessions and logs: what can be known of them without the right to write.

Reads are plain commands and may be repeated at will. Knows no claims and no payloads.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any, TypeVar

import orjson
import zstandard

from orchestrator.broker.errors import Corrupt, DamagedEntry
from orchestrator.broker.follow import EqCursor
from orchestrator.broker.port import Port, scored
from orchestrator.broker.records import (
    START,
    TIP_FIELDS,
    AgentStates,
    Place,
    RedactedEntry,
    SessionHead,
    SqEntry,
    StoredEntry,
    StoredEvent,
    Tip,
    TreeEntry,
    read_git,
    read_summary,
)
from orchestrator.broker.replies import (
    HEAD_FIELDS,
    Fielded,
    decoded,
    number_of,
    session_head,
    sq_entry,
    stored_entry,
    stored_event,
    tree_entry,
)
from orchestrator.broker.scripts import Argument
from orchestrator.broker.worker_state import Serving, serving
from orchestrator.core.ids import SessionId, TreeId

Sealed = Callable[[bytes, int, int], Awaitable[tuple[StoredEntry, ...]]]
"""The entries that a manifest names, after one of them, at most so many; none where they cannot be had."""
SHORT = 1_024
"""Entries of a log that is read out of the archive by the way. A longer one is told of by its hole."""
_HEADS = 250


class Logs(Port):
    """The port to sessions, their queues, logs and events, and to the logs of trees."""

    sealed: Sealed | None = None
    """Reads short logs that have left Redis, for doors. Without it such a log has a hole at its beginning."""

    async def place(self, session: SessionId) -> Place:
        """Tree and pool of a session; asked once, kept afterwards."""
        return await self._place(session)

    async def namespace(self, session: SessionId) -> str:
        """The namespace of a session; asked once, kept afterwards."""
        return await self._deployment.namespace(session)

    def remember(self, head: SessionHead) -> None:
        """Keeps what a head says of its session that does not change while it lives."""
        self._deployment.remember(head)

    async def head(self, session: SessionId) -> SessionHead | None:
        """The head of a session, or None if there is no such session."""
        (values,) = await self._each([("HMGET", self.keys.session(session), *HEAD_FIELDS)])
        return self._head(session, values)

    def _head(self, session: SessionId, values: Sequence[bytes | None] | None) -> SessionHead | None:
        if values is None:
            raise Corrupt(self.keys.session(session), "it is no hash")
        try:
            return session_head(session, values)
        except ValueError as error:
            raise Corrupt(self.keys.session(session), f"a field of it cannot be read: {error}") from error

    def _check_texts(self, head: SessionHead) -> None:
        """Raises `Corrupt` where a text in which a hash has several facts cannot be read."""
        try:
            read_summary(head.meta)
            AgentStates.of(head.states)
            if head.git_note:
                read_git(head.git_note)
        except ValueError as error:
            why = f"its summary, its repository or the states of its agents cannot be read: {error}"
            raise Corrupt(self.keys.session(head.session), why) from error

    async def count_sessions(self) -> int:
        """How many sessions there are."""
        rows = [("ZCARD", self.keys.sessions(shard)) for shard in range(self.config.shards)]
        return sum(await self._connection.commands(rows))

    async def heads(
        self, sessions: Sequence[SessionId], damaged: dict[SessionId, Corrupt] | None = None
    ) -> tuple[SessionHead, ...]:
        """The heads of the sessions that exist, in the order given.

        Raises `Corrupt` for one that cannot be read; with `damaged` such a one is left out and put there,
        and so is one of which a text with several facts cannot be read.
        """
        found: list[SessionHead] = []
        # More at once would be long, and would go over a connection of their own: half again the CPU.
        for start in range(0, len(sessions), _HEADS):
            some = sessions[start : start + _HEADS]
            rows = [("HMGET", self.keys.session(session), *HEAD_FIELDS) for session in some]
            reading = self._connection.commands(rows) if damaged is None else self._each(rows)
            for one, row in zip(some, await reading, strict=True):
                try:
                    head = self._head(one, row)
                    if damaged is not None and head is not None:
                        self._check_texts(head)
                except Corrupt as error:
                    if damaged is None:
                        raise
                    damaged[one] = error
                    continue
                if head is not None:
                    found.append(head)
        return tuple(found)

    async def newest(self, limit: int) -> tuple[SessionId, ...]:
        """The ids of the sessions that changed last, newest first."""
        shards = range(self.config.shards)
        found = await self._connection.commands(
            [("ZREVRANGE", self.keys.sessions(s), 0, limit - 1, "WITHSCORES") for s in shards]
        )
        newest = sorted(
            (pair for page in found for pair in scored(page)), key=lambda pair: (-pair[1], pair[0])
        )
        return tuple(SessionId(member.decode()) for member, _ in newest[:limit])

    async def newest_of(self, shard: int, start: int, count: int) -> list[SessionId]:
        """Ids of a shard's sessions, newest first, from place `start` on."""
        key, last = self.keys.sessions(shard), start + count - 1
        found = await self._connection.command("ZREVRANGE", key, start, last)
        return [SessionId(member.decode()) for member in found]

    async def changed_since(
        self, shard: int, since_ms: int, limit: int, start: int = 0, until_ms: int | None = None
    ) -> tuple[tuple[SessionId, int], ...]:
        """Sessions of a shard that changed at that time or later, with when, the first ones first.

        The first `start` of them are left out, and those that changed behind `until_ms`.
        """
        key, most = self.keys.sessions(shard), ("LIMIT", start, limit)
        last = "+inf" if until_ms is None else until_ms
        found = await self._connection.command("ZRANGEBYSCORE", key, since_ms, last, "WITHSCORES", *most)
        return tuple((SessionId(member.decode()), int(at)) for member, at in scored(found))

    async def sessions(self, limit: int = 1_000) -> tuple[SessionHead, ...]:
        """The sessions that changed last, newest first."""
        return await self.heads(await self.newest(limit))

    async def heads_of_shard(
        self, shard: int, damaged: dict[SessionId, Corrupt] | None = None
    ) -> AsyncIterator[tuple[SessionHead, ...]]:
        """The heads of all sessions of a shard, some at a time; `damaged` as in `heads`."""
        found = await self._connection.command("ZRANGE", self.keys.sessions(shard), 0, -1)
        for start in range(0, len(found), _HEADS):
            page = [SessionId(member.decode()) for member in found[start : start + _HEADS]]
            yield await self.heads(page, damaged)

    async def heads_of_tree(self, tree: TreeId) -> tuple[SessionHead, ...]:
        """The heads of all sessions of a tree: who was pruned is in no registry, so its shard is read.

        Raises `Corrupt` for one of them that cannot be read, and for none of another tree.
        """
        shard = self.keys.shard_of(tree)
        found = await self._connection.command("ZRANGE", self.keys.sessions(shard), 0, -1)
        sessions = [SessionId(member.decode()) for member in found]
        members, named = list[SessionId](), tree.encode()
        for start in range(0, len(sessions), _HEADS):
            some = sessions[start : start + _HEADS]
            rows = [("HMGET", self.keys.session(session), "tree") for session in some]
            trees = await self._each(rows)
            members += [one for one, of in zip(some, trees, strict=True) if of is not None and of[0] == named]
        return await self.heads(members)

    async def session_ids(self) -> AsyncIterator[list[SessionId]]:
        """The ids of all sessions, a shard at a time, newest first in each.

        At once, for a page would miss what changes meanwhile: some ten milliseconds of Redis for 100,000.
        """
        for shard in range(self.config.shards):
            found = await self._connection.command("ZREVRANGE", self.keys.sessions(shard), 0, -1)
            yield [SessionId(member.decode()) for member in found]

    async def serving(self, heads: Sequence[SessionHead]) -> dict[SessionId, Serving]:
        """How each session is served, which its hash does not say."""
        return await serving(self._connection, self.keys, heads)

    async def read_sq(self, session: SessionId, after: str = START, count: int = 100) -> tuple[SqEntry, ...]:
        """Queue entries after a cursor, oldest first."""
        found = await self._page(self.keys.sq(session), after, count)
        return decoded(self.keys.sq(session), found, sq_entry)

    async def read_rollout(
        self, session: SessionId, after_seq: int = 0, count: int = 1_000
    ) -> tuple[StoredEntry, ...]:
        """Log entries after `after_seq`; those of a long log that are sealed into the archive are not here.

        Of one that was redacted what stands instead, in its place.
        """
        found = await self._page(self.keys.rollout(session), f"{after_seq}-0", count)
        entries = decoded(self.keys.rollout(session), found, stored_entry)
        return await self._whole(session, after_seq, entries, count)

    async def _whole(
        self, session: SessionId, after: int, entries: tuple[StoredEntry, ...], count: int
    ) -> tuple[StoredEntry, ...]:
        """The entries with those that are redacted, and before them those of a short log that are sealed."""
        entries = await self._with_redacted(session, after, entries, count)
        if self.sealed is None or (entries and entries[0].seq == after + 1):
            return entries
        key = self.keys.session(session)
        last, manifest = await self._connection.command("HMGET", key, "sealed_seq", "manifest")
        if not manifest or not after < int(last or 0) <= SHORT:
            return entries
        before = await self.sealed(manifest, after, count)
        if not before:
            return entries
        # Segments have the words until they are written anew.
        instead = await self.instead_of(session)
        behind = (entry for entry in entries if entry.seq > before[-1].seq)
        return (*(instead.get(entry.seq, entry) for entry in before), *behind)[:count]

    async def _with_redacted(
        self, session: SessionId, after: int, entries: tuple[StoredEntry, ...], count: int
    ) -> tuple[StoredEntry, ...]:
        """The same with the redacted ones between them: no other entry leaves a hole in a log in Redis."""
        if not entries or entries[-1].seq == after + len(entries):
            return entries
        there, first, last = {entry.seq for entry in entries}, entries[0].seq, entries[-1].seq
        # Right behind the place, right before the first entry, and between: what else is not here is sealed.
        wanted = {
            *range(after + 1, min(after + count + 1, last)),
            *range(max(after + 1, first - count), last),
        }
        missing = sorted(wanted - there)
        key = self.keys.redacted(session)
        found = await self._connection.command("HMGET", key, *missing)
        known = _instead(
            key, ((seq, one) for seq, one in zip(missing, found, strict=True) if one is not None)
        )
        if not known:
            return entries
        front = _run(known, range(after + 1, first))
        if len(front) >= count:
            return tuple(front[:count])
        # One that does not lead to the first entry is sealed, with those beside it: they are in the archive.
        led = len(_run(known, range(first - 1, after, -1)))
        between = (entry for entry in known.values() if entry.seq >= first - led)
        return tuple(sorted((*between, *entries), key=lambda entry: entry.seq)[:count])

    async def redacted_lately(self, shard: int, since_ms: int) -> tuple[tuple[SessionId, int], ...]:
        """Sessions of a shard of which entries were redacted at that time or later, with when."""
        found = await self._connection.command(
            "ZRANGEBYSCORE", self.keys.redactions(shard), since_ms, "+inf", "WITHSCORES"
        )
        return tuple((SessionId(member.decode()), int(at)) for member, at in scored(found))

    async def redacted_numbers(self, session: SessionId) -> frozenset[int]:
        """The numbers of a session's redacted entries; none where its log is in the archive alone."""
        found = await self._connection.command("HKEYS", self.keys.redacted(session))
        return frozenset(map(int, found))

    async def instead_of(self, session: SessionId) -> dict[int, StoredEntry]:
        """The entries that stand instead of redacted ones, by number; none where all is in the archive."""
        key = self.keys.redacted(session)
        return _instead(key, (await self._connection.command("HGETALL", key)).items())

    async def redacting(self, session: SessionId) -> list[str] | None:
        """Words that say what a redaction still owes of a session; None where it owes nothing."""
        found = await self._connection.command("HGET", self.keys.session(session), "redacting")
        return found.decode().split()[1:] if found else None

    async def read_rollouts(
        self, asks: Sequence[tuple[SessionId, int, int]]
    ) -> list[tuple[StoredEntry, ...] | None]:
        """The same of several logs at once: each after an entry, so many; None where one is damaged."""
        rows = [
            ("XRANGE", self.keys.rollout(s), f"({after}-0", "+", "COUNT", count) for s, after, count in asks
        ]
        found = await self._connection.commands(rows) if rows else []
        read: list[tuple[StoredEntry, ...] | None] = []
        for (session, after, count), one in zip(asks, found, strict=True):
            entries = _if_whole(self.keys.rollout(session), one)
            if entries is not None:
                entries = await self._whole(session, after, entries, count)
            read.append(entries)
        return read

    async def ends(self, sessions: Sequence[SessionId]) -> list[int]:
        """Where the logs of sessions end; 0 for one that there is not."""
        rows = [("HGET", self.keys.session(session), "seq") for session in sessions]
        found = await self._connection.commands(rows) if rows else []
        return [int(value or 0) for value in found]

    async def tips(self, sessions: Sequence[SessionId]) -> dict[SessionId, Tip]:
        """Those of the sessions that exist, as far as a reader of their logs has to know them.

        One whose hash cannot be read is left out.
        """
        found = dict[SessionId, Tip]()
        for start in range(0, len(sessions), _HEADS):
            some = sessions[start : start + _HEADS]
            rows = [("HMGET", self.keys.session(session), *TIP_FIELDS) for session in some]
            for session, row in zip(some, await self._each(rows), strict=True):
                if row is None or row[0] is None:
                    continue
                tree, seq, head, status, namespace = (value or b"" for value in row)
                with suppress(ValueError):
                    found[session] = Tip(
                        TreeId(tree.decode()), int(seq or 0), head, status.decode(), namespace.decode()
                    )
        return found

    async def read_eq(
        self, session: SessionId, after_n: int = 0, count: int = 1_000
    ) -> tuple[StoredEvent, ...]:
        """Events after number `after_n` that are still kept."""
        found = await self._page(self.keys.eq(session), f"{after_n}-0", count)
        return decoded(self.keys.eq(session), found, stored_event)

    async def read_eq_back(
        self, session: SessionId, before_n: int | None = None, count: int = 1_000
    ) -> tuple[StoredEvent, ...]:
        """The last events that are still kept, or the last before number `before_n`, newest first."""
        end = "+" if before_n is None else f"({before_n}-0"
        found = await self._connection.command("XREVRANGE", self.keys.eq(session), end, "-", "COUNT", count)
        return decoded(self.keys.eq(session), found, stored_event)

    async def read_tree(self, tree: TreeId, after: int = 0, count: int = 1_000) -> tuple[TreeEntry, ...]:
        """Tree log entries after a `tree_seq`, be they sealed or not."""
        found = await self._page(self.keys.tree(tree), f"{after}-0", count)
        entries = decoded(self.keys.tree(tree), found, tree_entry)
        if entries and entries[0].tree_seq == after + 1:
            return entries
        # Behind the stream: entries leave it for the segments, and never come back.
        end = await self._sealed_end(tree)
        if end <= after:
            return entries
        before = await self._sealed_entries(tree, after + 1, min(end, after + count))
        return (*before, *(entry for entry in entries if entry.tree_seq > end))[:count]

    async def read_tree_back(
        self, tree: TreeId, before: int | None = None, count: int = 1_000
    ) -> tuple[TreeEntry, ...]:
        """The last tree log entries, or the last before a `tree_seq`, newest first; be they sealed or not."""
        key, start = self.keys.tree(tree), "+" if before is None else f"({before}-0"
        found = await self._connection.command("XREVRANGE", key, start, "-", "COUNT", count)
        entries = decoded(key, found, tree_entry)
        more, before = count - len(entries), entries[-1].tree_seq if entries else before
        if more < 1 or before == 1:
            return entries
        end = await self._sealed_end(tree)
        if before is not None:
            end = min(end, before - 1)
        older = await self._sealed_entries(tree, max(1, end - more + 1), end) if end > 0 else ()
        return (*entries, *reversed(older))

    async def _sealed_end(self, tree: TreeId) -> int:
        """The last entry of a tree's log that is sealed; 0 if none is."""
        return int(await self._connection.command("HGET", self.keys.sealed_tree(tree), "end") or 0)

    async def _sealed_entries(self, tree: TreeId, first: int, last: int) -> tuple[TreeEntry, ...]:
        """The sealed entries of a tree's log from one number to another."""
        key = self.keys.sealed_tree(tree)
        index = await self._connection.command("HGET", key, "index")
        starts = [int(start) for start in (index or b"").split()]
        wanted = starts[max(0, bisect_right(starts, first) - 1) : bisect_right(starts, last)]
        segments = await self._connection.command("HMGET", key, *wanted) if wanted else ()
        found = [entry for segment in segments if segment is not None for entry in unpacked(key, segment)]
        entries = decoded(key, found, tree_entry)
        return tuple(entry for entry in entries if first <= entry.tree_seq <= last)

    async def resting_trees(self, trees: Sequence[TreeId], before_ms: int) -> tuple[TreeId, ...]:
        """Those of the trees whose logs have entries that are not sealed, the last of them as old as that.

        A log that cannot be read, or whose last entry is damaged, is left as it is.
        """
        long = await self._in_turn(trees, lambda key: ("XLEN", key))
        with_log = [tree for tree, length in zip(trees, long, strict=True) if length]
        last = await self._in_turn(with_log, lambda key: ("XREVRANGE", key, "+", "-", "COUNT", 1))
        return tuple(
            tree
            for tree, found in zip(with_log, last, strict=True)
            if found and _is_of_before(self.keys.tree(tree), found, before_ms)
        )

    async def _in_turn(self, trees: Sequence[TreeId], ask: Callable[[str], Sequence[Argument]]) -> list[Any]:
        """The answers to one question about each tree's log."""
        rows = [ask(self.keys.tree(tree)) for tree in trees]
        pages = [rows[start : start + _HEADS] for start in range(0, len(rows), _HEADS)]
        return [answer for page in pages for answer in await self._each(page)]

    async def unsealed(self, tree: TreeId) -> tuple[int, list[Fielded]]:
        """The last entry of a tree's log that is sealed, and the next ones as they are stored.

        So many as one segment takes; none where the next one is missing.
        """
        end, size, found = await self._sealed_end(tree), 0, list[Fielded]()
        page = await self._page(self.keys.tree(tree), f"{end}-0", TREE_SEGMENT_ENTRIES)
        for number, entry in enumerate(page, end + 1):
            size += sum(map(len, entry[1].values()))
            if number_of(entry[0]) != number or (found and size > SEGMENT_BYTES):
                break
            found.append(entry)
        return end, found

    async def _page(self, key: str, after: str, count: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        found: list[tuple[bytes, dict[bytes, bytes]]] = await self._connection.command(
            "XRANGE", key, f"({after}", "+", "COUNT", count
        )
        return found

    async def wait_tree(self, tree: TreeId, after: int, timeout_s: float) -> tuple[TreeEntry, ...]:
        """Tree log entries after a `tree_seq`, waiting for the first of them if there is none yet."""
        if await self._sealed_end(tree) > after:
            return await self.read_tree(tree, after)
        found = await self._wait(self.keys.tree(tree), f"{after}-0", timeout_s)
        return decoded(self.keys.tree(tree), found, tree_entry)

    async def wait_eq(self, session: SessionId, after_n: int, timeout_s: float) -> tuple[StoredEvent, ...]:
        """Events after `after_n`, waiting for the first of them if there is none yet."""
        found = await self._wait(self.keys.eq(session), f"{after_n}-0", timeout_s)
        return decoded(self.keys.eq(session), found, stored_event)

    async def wait_behind(
        self, session: SessionId, at: EqCursor, timeout_s: float
    ) -> tuple[StoredEvent, ...] | None:
        """The same behind an event that has to be there as the cursor names it; None if it is not."""
        key = self.keys.eq(session)

        def there(found: list[Fielded]) -> bool:
            return bool(found) and at.names(decoded(key, found, stored_event)[0])

        read = ("XRANGE", key, f"{at.n}-0", f"{at.n}-0", "COUNT", 1)
        wait = _blocking(key, f"{at.n}-0", timeout_s)
        held, reply = await self._connection.wait_if(read, there, wait)
        return decoded(key, reply[0][1] if reply else (), stored_event) if held else None

    async def _wait(self, key: str, after: str, timeout_s: float) -> list[Fielded]:
        reply = await self._connection.wait(*_blocking(key, after, timeout_s))
        return list(reply[0][1]) if reply else []

    async def snapshot_of(self, session: SessionId) -> bytes | None:
        """The folded state last stored, as its writer gave it."""
        found: bytes | None = await self._connection.command("GET", self.keys.snapshot(session))
        return found


# ── segments of a tree's log ──────────────────────────────────────────────────────────────────────
# A tree's log repeats itself: the same agent, the same path, the same fields in each entry. Compressed, it
# takes a tenth to a twentieth of its room. So what rests is sealed in Redis itself, and needs no archive.

TREE_SEGMENT_ENTRIES = 256
SEGMENT_BYTES = 256 << 10
"""Of a segment before it is compressed, unless one entry has more: Redis compares it in a millisecond."""
_MOST_BYTES = 64 << 20
"""Of a segment as it is unpacked; a commit has a megabyte at most, and so has each entry."""
_LEVEL = 6


def packed(entries: Iterable[Fielded]) -> bytes:
    """A segment of these entries. Values are any bytes: each becomes the text of so many characters."""
    rows = [
        [number_of(entry_id), {name.decode(): value.decode("latin-1") for name, value in fields.items()}]
        for entry_id, fields in entries
    ]
    return zstandard.compress(orjson.dumps(rows), _LEVEL)


def unpacked(key: str, segment: bytes) -> list[Fielded]:
    """The entries of a segment; raises `Corrupt`."""
    try:
        # A frame may say that it is as large as it likes: it is read up to the bound.
        rows = orjson.loads(zstandard.ZstdDecompressor().stream_reader(segment).read(_MOST_BYTES))
        return [
            (b"%d-0" % number, {name.encode(): value.encode("latin-1") for name, value in fields.items()})
            for number, fields in rows
        ]
    except (zstandard.ZstdError, ValueError, TypeError, AttributeError) as error:
        raise Corrupt(key, f"a segment of it cannot be read: {error}") from error


def compared(entry: Fielded) -> bytes:
    """An entry as `seal_tree` compares it: its parts, each with its length before it."""
    entry_id, fields = entry
    parts = (entry_id, *(part for pair in fields.items() for part in pair))
    return b":".join(one for part in parts for one in (b"%d" % len(part), part))


def _blocking(key: str, after: str, timeout_s: float) -> tuple[Argument, ...]:
    block_ms = max(1, int(timeout_s * 1000))
    return "XREAD", "COUNT", 500, "BLOCK", block_ms, "STREAMS", key, after


def _is_of_before(key: str, found: Iterable[Fielded], before_ms: int) -> bool:
    """Whether the entry of a tree's log is so old; False for one that is none."""
    try:
        return decoded(key, found, tree_entry)[0].at_ms <= before_ms
    except DamagedEntry:
        return False


def _if_whole(key: str, found: Iterable[Fielded]) -> tuple[StoredEntry, ...] | None:
    try:
        return decoded(key, found, stored_entry)
    except DamagedEntry:
        return None


# ── shared reads ──────────────────────────────────────────────────────────────────────────────────
# Reads for many followers of the same sessions: followers at the same place wait for one reply.
#
# A hundred clients of a session stand at its end together; each of them alone would block a connection of
# its own to the server, and ask it the same after every event.


Answer = TypeVar("Answer")


class SharedReads:
    """The reads that following takes, each done once for all who ask for it meanwhile."""

    def __init__(self, reader: Logs) -> None:
        self._reader = reader
        self._running: dict[Hashable, _Read] = {}

    async def wait_eq(self, session: SessionId, after_n: int, timeout_s: float) -> tuple[StoredEvent, ...]:
        """Events after `after_n`, waiting for the first of them as long as the first who asked would."""
        key = ("wait", session, after_n)
        return await self._shared(key, lambda: self._reader.wait_eq(session, after_n, timeout_s))

    async def wait_behind(
        self, session: SessionId, at: EqCursor, timeout_s: float
    ) -> tuple[StoredEvent, ...] | None:
        """The same behind an event that has to be there as the cursor names it; None if it is not."""
        key = ("behind", session, at)
        return await self._shared(key, lambda: self._reader.wait_behind(session, at, timeout_s))

    async def read_eq(
        self, session: SessionId, after_n: int = 0, count: int = 1_000
    ) -> tuple[StoredEvent, ...]:
        """Events after number `after_n` that are still kept."""
        key = ("read", session, after_n, count)
        return await self._shared(key, lambda: self._reader.read_eq(session, after_n, count))

    async def head(self, session: SessionId) -> SessionHead | None:
        """The head of a session, or None if there is no such session."""
        return await self._reader.head(session)

    async def read_rollout(
        self, session: SessionId, after_seq: int = 0, count: int = 1_000
    ) -> tuple[StoredEntry, ...]:
        """Log entries after `after_seq`; those sealed into the archive are not here."""
        return await self._reader.read_rollout(session, after_seq, count)

    async def _shared(self, key: Hashable, read: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = _Read(asyncio.create_task(read()))
            running.task.add_done_callback(partial(self._over, key, running))
        # A future of its own for each: to shield the task wakes every follower twice.
        waiter: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        running.waiters[waiter] = None
        try:
            return await waiter
        except asyncio.CancelledError:
            self._leave(key, running, waiter)
            raise

    def _leave(self, key: Hashable, running: _Read, waiter: asyncio.Future[Any]) -> None:
        running.waiters.pop(waiter, None)
        if not running.waiters and not running.task.done():
            # Nobody is left to wait: a blocked connection would be held for nothing. Who asks from now on
            # must not meet a read that is being cancelled.
            self._forget(key, running)
            running.task.cancel()

    def _over(self, key: Hashable, running: _Read, task: asyncio.Task[Any]) -> None:
        self._forget(key, running)
        waiters, running.waiters = running.waiters, {}
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(task.result())
            elif isinstance(error, asyncio.CancelledError):
                waiter.cancel()
            else:
                waiter.set_exception(error)

    def _forget(self, key: Hashable, running: _Read) -> None:
        if self._running.get(key) is running:
            del self._running[key]


@dataclass(slots=True)
class _Read:
    """A read that goes on, and those who wait for it."""

    task: asyncio.Task[Any]
    waiters: dict[asyncio.Future[Any], None] = field(default_factory=dict)
    """In the order in which they came."""


def _instead(key: str, found: Iterable[tuple[Any, bytes]]) -> dict[int, StoredEntry]:
    """The entries that stand instead of redacted ones, by number; raises `Corrupt`."""
    try:
        return {int(seq): RedactedEntry.decode(int(seq), line).entry for seq, line in found}
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(key, f"a redacted entry cannot be read: {error}") from error


def _run(known: Mapping[int, StoredEntry], numbers: Iterable[int]) -> list[StoredEntry]:
    """The entries of these numbers, up to the first that is not there."""
    return [known[number] for number in takewhile(known.__contains__, numbers)]
