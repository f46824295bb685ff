"""The commands of Redis that the product says, in scripts and beside them, on values in memory.

Replies are what the protocol's second version carries: bytes, integers, lists of them, None.
A command that is not here is refused, as one is that meets a value of another type. Where Redis
may trim a stream less than it was asked to (`~`), this trims exactly.

Knows a clock and nothing of sessions. `tests/sim/test_sim_double.py` compares it with fakeredis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from sim.values import EntryId, SortedSet, Status, Stream, id_text

LAST_ID = 2**64 - 1
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
STALE_ID = "ERR The ID specified in XADD is equal or smaller than the target stream top item"

Value = bytes | dict[bytes, bytes] | set[bytes] | SortedSet | Stream
Kind = TypeVar("Kind", bytes, dict[bytes, bytes], set[bytes], SortedSet, Stream)
NO_TYPE, OK = Status(b"none"), Status(b"OK")
_TYPES: dict[type, Status] = {
    bytes: Status(b"string"),
    dict: Status(b"hash"),
    set: Status(b"set"),
    SortedSet: Status(b"zset"),
    Stream: Status(b"stream"),
}


class Store:
    """One database."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.values: dict[bytes, Value] = {}
        self._expires_s: dict[bytes, float] = {}
        self.writes = 0
        """Grows with every change."""
        self.commands: dict[bytes, Callable[..., Any]] = {
            name.removeprefix("do_").upper().encode(): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }

    def clear(self) -> None:
        self.values.clear()
        self._expires_s.clear()

    # ── keys ──────────────────────────────────────────────────────────────────────────────────

    def found(self, key: bytes) -> Value | None:
        """A key's value, if it has not expired."""
        if key in self._expires_s and self._expires_s[key] <= self._now_s():
            self._drop(key)
        return self.values.get(key)

    def _drop(self, key: bytes) -> bool:
        self._expires_s.pop(key, None)
        return self.values.pop(key, None) is not None

    def _of(self, kind: type[Kind], key: bytes) -> Kind | None:
        value = self.values.get(key) if key not in self._expires_s else self.found(key)
        if value is None or type(value) is kind:
            return value
        raise ResponseError(WRONG_TYPE)

    def _made(self, kind: type[Kind], key: bytes) -> Kind:
        value = self._of(kind, key)
        if value is None:
            value = kind()
            self.values[key] = value
        return value

    def _shrunk(self, key: bytes, value: dict[bytes, bytes] | SortedSet, gone: int) -> int:
        if gone:
            self.writes += 1
            if not value:
                self._drop(key)
        return gone

    def do_type(self, key: bytes) -> Status:
        value = self.values.get(key) if key not in self._expires_s else self.found(key)
        return NO_TYPE if value is None else _TYPES[type(value)]

    def do_exists(self, *keys: bytes) -> int:
        return sum(self.found(key) is not None for key in keys)

    def do_del(self, *keys: bytes) -> int:
        gone = sum(self.found(key) is not None and self._drop(key) for key in keys)
        self.writes += bool(gone)
        return gone

    def do_pexpire(self, key: bytes, after_ms: bytes) -> int:
        if self.found(key) is None:
            return 0
        self._expires_s[key] = self._now_s() + int(after_ms) / 1000
        self.writes += 1
        return 1

    def do_expire(self, key: bytes, after_s: bytes) -> int:
        return self.do_pexpire(key, b"%d" % (int(after_s) * 1000))

    def now_us(self) -> int:
        """Since 1970, as `TIME` tells it."""
        return round(self._now_s() * 1_000_000)

    def do_time(self) -> list[bytes]:
        now_us = self.now_us()
        return [b"%d" % (now_us // 1_000_000), b"%d" % (now_us % 1_000_000)]

    # ── strings ───────────────────────────────────────────────────────────────────────────────

    def do_get(self, key: bytes) -> bytes | None:
        return self._of(bytes, key)

    def do_set(self, key: bytes, value: bytes, condition: bytes = b"") -> Status | None:
        if condition and (condition != b"NX" or self.found(key) is not None):
            return None
        self._drop(key)
        self.values[key] = value
        self.writes += 1
        return OK

    # ── hashes ────────────────────────────────────────────────────────────────────────────────

    def do_hset(self, key: bytes, *pairs: bytes) -> int:
        fields = self._made(dict, key)
        before = len(fields)
        fields.update(_in_pairs(pairs))
        self.writes += 1
        return len(fields) - before

    def do_hsetnx(self, key: bytes, field: bytes, value: bytes) -> int:
        fields = self._of(dict, key)
        return 0 if fields and field in fields else self.do_hset(key, field, value)

    def do_hget(self, key: bytes, field: bytes) -> bytes | None:
        fields = self._of(dict, key)
        return None if fields is None else fields.get(field)

    def do_hmget(self, key: bytes, *names: bytes) -> list[bytes | None]:
        fields = self._of(dict, key)
        return [None] * len(names) if fields is None else list(map(fields.get, names))

    def do_hgetall(self, key: bytes) -> list[bytes]:
        return list(chain.from_iterable((self._of(dict, key) or {}).items()))

    def do_hkeys(self, key: bytes) -> list[bytes]:
        return list(self._of(dict, key) or ())

    def do_hexists(self, key: bytes, field: bytes) -> int:
        return int(field in (self._of(dict, key) or ()))

    def do_hdel(self, key: bytes, *names: bytes) -> int:
        fields = self._of(dict, key)
        if fields is None:
            return 0
        return self._shrunk(key, fields, sum(fields.pop(name, None) is not None for name in names))

    def do_hincrby(self, key: bytes, field: bytes, amount: bytes) -> int:
        value = int(self.do_hget(key, field) or 0) + int(amount)
        self.do_hset(key, field, b"%d" % value)
        return value

    # ── sets ──────────────────────────────────────────────────────────────────────────────────

    def do_sadd(self, key: bytes, *members: bytes) -> int:
        found = self._made(set, key)
        before = len(found)
        found.update(members)
        self.writes += len(found) > before
        return len(found) - before

    def do_smembers(self, key: bytes) -> list[bytes]:
        # In the order of their bytes: a set's own order is another one in each process.
        return sorted(self._of(set, key) or ())

    # ── sorted sets ───────────────────────────────────────────────────────────────────────────

    def do_zadd(self, key: bytes, *words: bytes) -> int:
        """With `NX` or `XX` in front, or neither."""
        only, pairs = (words[0], words[1:]) if words[0] in (b"NX", b"XX") else (b"", words)
        found, added = self._of(SortedSet, key), 0
        for score, member in _in_pairs(pairs):
            there = found is not None and member in found.scores
            if only and there != (only == b"XX"):
                continue
            found = found if found is not None else self._made(SortedSet, key)
            added += found.put(member, _number(score))
            self.writes += 1
        return added

    def do_zrem(self, key: bytes, *members: bytes) -> int:
        found = self._of(SortedSet, key)
        return 0 if found is None else self._shrunk(key, found, sum(map(found.take, members)))

    def any_by(self, key: bytes, score: float) -> bool:
        """Whether a sorted set has a member with a score up to this one."""
        found = self._of(SortedSet, key)
        return found is not None and found.least <= score

    def do_zscore(self, key: bytes, member: bytes) -> bytes | None:
        found = self._of(SortedSet, key)
        score = None if found is None else found.scores.get(member)
        return None if score is None else b"%.17g" % score

    def do_zcard(self, key: bytes) -> int:
        return len(self._of(SortedSet, key) or ())

    def do_zrange(self, key: bytes, first: bytes, last: bytes, *words: bytes) -> list[bytes]:
        found = self._of(SortedSet, key)
        return [] if found is None else _told(found.ranked(int(first), int(last)), words)

    def do_zrevrange(self, key: bytes, first: bytes, last: bytes, *words: bytes) -> list[bytes]:
        found = self._of(SortedSet, key)
        return [] if found is None else _told(found.backwards(int(first), int(last)), words)

    def do_zrangebyscore(self, key: bytes, low: bytes, high: bytes, *limit: bytes) -> list[bytes]:
        found = self._of(SortedSet, key)
        if found is None:
            return []
        pairs = found.between(_number(low), _number(high))
        if limit:
            _, offset, count = limit
            pairs = pairs[int(offset) : int(offset) + int(count)]
        return [member for _, member in pairs]

    # ── streams ───────────────────────────────────────────────────────────────────────────────

    def do_xadd(self, key: bytes, *words: bytes) -> bytes:
        """With `MAXLEN [~|=] n` in front, or without."""
        most = None
        if words[0] == b"MAXLEN":
            at = 2 if words[1] in (b"~", b"=") else 1
            most, words = int(words[at]), words[at + 1 :]
        stream = self._made(Stream, key)
        entry_id = self._next_id(stream) if words[0] == b"*" else _entry_id(words[0], 0)
        if not stream.add(entry_id, list(words[1:])):
            raise ResponseError(STALE_ID)
        if most is not None:
            stream.keep_last(most)
        self.writes += 1
        return id_text(entry_id)

    def _next_id(self, stream: Stream) -> EntryId:
        now_ms = int(self._now_s() * 1000)
        ms, n = stream.last
        return (now_ms, 0) if now_ms > ms else (ms, n + 1)

    def do_xtrim(self, key: bytes, strategy: bytes, *words: bytes) -> int:
        stream = self._of(Stream, key)
        if stream is None:
            return 0
        if strategy == b"MINID":
            gone = stream.keep_from(_entry_id(words[-1], 0))
        else:
            gone = stream.keep_last(int(words[-1]))
        self.writes += bool(gone)
        return gone

    def do_xlen(self, key: bytes) -> int:
        stream = self._of(Stream, key)
        return 0 if stream is None else len(stream.ids)

    def do_xrange(self, key: bytes, first: bytes, last: bytes, *count: bytes) -> list[Any]:
        stream = self._of(Stream, key)
        if stream is None or not stream.ids:
            return []
        if last == b"+" and first[:1] == b"(":
            place = stream.after(_entry_id(first[1:], 0))
        else:
            place = stream.within(_bound(first, 0, 1), _bound(last, LAST_ID, -1))
        end = min(place.stop, place.start + int(count[1])) if count else place.stop
        return _rows(stream, range(place.start, end))

    def do_xrevrange(self, key: bytes, last: bytes, first: bytes, *count: bytes) -> list[Any]:
        stream = self._of(Stream, key)
        if stream is None:
            return []
        place = stream.within(_bound(first, 0, 1), _bound(last, LAST_ID, -1))
        begin = max(place.start, place.stop - int(count[1])) if count else place.start
        return _rows(stream, range(place.stop - 1, begin - 1, -1))

    def do_xread(self, *words: bytes) -> list[Any] | None:
        """Without `BLOCK`: who waits is the network's business."""
        at = words.index(b"STREAMS")
        most = int(words[words.index(b"COUNT") + 1]) if b"COUNT" in words[:at] else LAST_ID
        half = (len(words) - at - 1) // 2
        keys, ids, found = words[at + 1 : at + 1 + half], words[at + 1 + half :], []
        for key, after in zip(keys, ids, strict=True):
            stream = self._of(Stream, key)
            if stream is None or after == b"$":
                continue
            place = stream.after(_entry_id(after, 0))
            if place.stop > place.start:
                rows = range(place.start, min(place.stop, place.start + most))
                found.append([key, _rows(stream, rows)])
        return found or None


def _in_pairs(words: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(words[::2], words[1::2], strict=True)


def _number(word: bytes) -> float:
    try:
        return float(word)
    except ValueError:
        raise ResponseError("ERR value is not a valid float") from None


def _told(pairs: Sequence[tuple[float, bytes]], words: Sequence[bytes]) -> list[bytes]:
    if words:
        return [part for score, member in pairs for part in (member, b"%.17g" % score)]
    return [member for _, member in pairs]


def _entry_id(word: bytes, default: int) -> EntryId:
    ms, dash, n = word.partition(b"-")
    try:
        return int(ms), int(n) if dash else default
    except ValueError:
        raise ResponseError("ERR Invalid stream ID specified as stream command argument") from None


def _bound(word: bytes, default: int, step: int) -> EntryId:
    """One end of a range: `-`, `+`, an id, or an id that is left out itself."""
    if word in (b"-", b"+"):
        return (0, 0) if word == b"-" else (LAST_ID, LAST_ID)
    if word[:1] == b"(":
        ms, n = _entry_id(word[1:], default)
        return ms, n + step
    return _entry_id(word, default)


def _rows(stream: Stream, places: Iterable[int]) -> list[Any]:
    return [[id_text(stream.ids[at]), stream.rows[at]] for at in places]
