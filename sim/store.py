"""A Redis without a network: values in memory and Lua as Redis runs it, in one interpreter.

`store.lua` has the commands; a script's calls never leave the interpreter, for a step across costs more than
the command. Replies are what the protocol's second version carries: bytes, integers, lists of them, None.
Scripts are compiled once a process; what a run leaves behind is Lua's to collect.

Knows no clock, and nothing of sessions. `tests/sim/test_sim_double.py` compares it with fakeredis, and with a
server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any

from redis.exceptions import ResponseError

try:
    # The same language, and faster.
    from lupa import luajit21 as lua
except ImportError:
    from lupa import lua51 as lua

_COMMANDS = Path(__file__).with_name("store.lua")
_MOST_WORDS = 5_000
"""So many lie on Lua's stack; more are handed over in a table."""
_PAGE = 200
"""Entries of a stream that are handed out at once: all lie on Lua's stack, with their words."""
_UNREAD: tuple[int, int, dict[bytes, bytes]] = -1, -1, {}
EXPIRES = b" expires"
"""No field of the product has this name."""
_NO_MEMBERS: tuple[int, dict[bytes, float]] = -1, {}


class Store:
    """A database. Times are microseconds since 1970."""

    def __init__(self) -> None:
        self._lua: Any = lua.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._table: Any = self._lua.table_from
        self._compiled: dict[bytes, Any] = {}
        runs, says, self._clear, reads = self._lua.execute(_COMMANDS.read_bytes())
        self._run, self._run_with = runs[1], runs[2]
        self._say, self._say_with = says[1], says[2]
        self._writes, self._hash, self._score = reads[b"writes"], reads[b"hash"], reads[b"score"]
        self._least, self._members, self._entries = reads[b"least"], reads[b"members"], reads[b"entries"]
        self._stream, self._text, self._set = reads[b"stream"], reads[b"text"], reads[b"set"]
        self._expires = reads[b"expires"]
        self._goes_on, self._changes = reads[b"goes_on"], reads[b"changes"]
        self._weights, self._counted = reads[b"weights"], reads[b"counted"]
        self._words = reads[b"words"]
        self._hashes: dict[bytes, tuple[int, int, dict[bytes, bytes]]] = {}
        """Hashes that were read: after how many writes, when they had changed last, and as they were then."""
        self._zsets: dict[bytes, tuple[int, dict[bytes, float]]] = {}
        """Sorted sets that were read: when they had changed last, and as they were then."""
        self._lowest: dict[bytes, tuple[int, float]] = {}
        """The lowest scores of sorted sets that were asked for: after how many writes, and what they were."""
        self.writes = 0
        """How often something changed."""

    def clear(self) -> None:
        self._clear()
        self._hashes.clear()
        self._zsets.clear()
        self._lowest.clear()
        self.writes = 0

    def run(self, now_us: int, source: bytes, keys: Sequence[bytes], argv: Sequence[bytes]) -> Any:
        """A script's reply; raises the client library's errors."""
        script = self._compiled.get(source)
        if script is None:
            script = self._compiled[source] = self._lua.compile(source)
        if len(keys) + len(argv) <= _MOST_WORDS:
            return self._told(self._run, now_us, script, len(argv), *argv, *keys)
        return self._told(self._run_with, now_us, script, self._table(keys), self._table(argv))

    def say(self, now_us: int, command: Sequence[bytes]) -> Any:
        """The reply to one command; raises the client library's errors."""
        if len(command) <= _MOST_WORDS:
            return self._told(self._say, now_us, *command)
        return self._told(self._say_with, now_us, self._table(command))

    def _told(self, said: Callable[..., Any], *words: Any) -> Any:
        try:
            flat = said(*words)
        except lua.LuaError as error:
            self.writes = self._writes()
            raise ResponseError(str(error)) from error
        self.writes, first = flat[0], flat[1]
        if first is False:
            return None
        if first is not True:
            if type(first) is bytes or lua.lua_type(first) != "table":
                return first
            flat = [self.writes, *(first[at] for at in range(1, len(first) + 1))]
        return _list(flat, 3, flat[2])[0]

    def goes_on(self, now_us: int, streams: Sequence[bytes]) -> bool:
        """Whether any stream has an entry behind the id that follows its key."""
        found: bool = self._goes_on(now_us, *streams)
        return found

    # ── beside the commands ───────────────────────────────────────────────────────────────────

    def hash(self, key: bytes) -> dict[bytes, bytes]:
        """A hash as it is; not to be changed."""
        read_at, changed, fields = self._hashes.get(key, _UNREAD)
        if read_at == self.writes:
            # The rules ask for the same few keys again and again behind one write.
            return fields
        found = self._hash(key, changed)
        if type(found) is tuple:
            news = dict(zip(found[2::2], found[3::2], strict=True))
            changed, fields = found[0], news if found[1] else fields | news
        elif not found:
            changed, fields = -1, {}
        self._hashes[key] = self.writes, changed, fields
        return fields

    def expiring(self, key: bytes, now_us: int) -> dict[bytes, bytes]:
        """A hash that may expire, with the time (in microseconds) in a field of its own."""
        at_us = self.until_us(key, now_us)
        if at_us == 0:
            return {}
        fields = self.hash(key)
        return fields if at_us is None else fields | {EXPIRES: b"%d" % at_us}

    def until_us(self, key: bytes, now_us: int) -> float | None:
        """When a key expires; 0 if it is not there, or not any more."""
        at_us: float | None = self._expires(key, now_us)
        return at_us

    def score(self, key: bytes, member: bytes) -> float | None:
        score: float | None = self._score(key, member)
        return score

    def least(self, key: bytes) -> float:
        """The lowest score in a sorted set; above all numbers where nothing is."""
        read_at, lowest = self._lowest.get(key, (-1, inf))
        if read_at != self.writes:
            score: float | None = self._least(key)
            lowest = inf if score is None else score
            self._lowest[key] = self.writes, lowest
        return lowest

    def members(self, key: bytes) -> dict[bytes, float]:
        """A sorted set's members with their scores, in its order; not to be changed."""
        changed, members = self._zsets.get(key, _NO_MEMBERS)
        found = self._members(key, changed)
        if type(found) is tuple:
            self._zsets[key] = found[0], dict(zip(found[2::2], found[1::2], strict=True))
        elif found != changed:
            self._zsets[key] = found, {}
        else:
            return members
        return self._zsets[key][1]

    def changes(self, keys: Sequence[bytes]) -> Sequence[int]:
        """The number of each key's last change; one that stands still says that the key's value does."""
        found: list[int] = []
        for first in range(0, len(keys), _MOST_WORDS):
            found += self._changes(*keys[first : first + _MOST_WORDS])[1:]
        return found

    def stream(self, key: bytes, now_us: int) -> tuple[int, int, float | None]:
        """How long a stream is, its last number, and when it expires."""
        length, last, expires_us = self._stream(key, now_us)
        return length, last, expires_us or None

    def text(self, key: bytes) -> bytes | None:
        text: bytes | None = self._text(key)
        return text

    def weights(self, now_us: int) -> dict[bytes, int]:
        """Every key with the bytes of its name and of the words of its value."""
        found = self._weights(now_us)
        return {found[at]: found[at + 1] for at in range(1, len(found) + 1, 2)}

    def words(self) -> dict[bytes, bytes]:
        """Every key with the words of its value, one behind the other."""
        found = self._words()
        return {found[at]: found[at + 1] for at in range(1, len(found) + 1, 2)}

    def counts_calls(self) -> Callable[[], int]:
        """Has the calls of scripts counted from now on, and the keys of those that ask for many at once."""
        told: Callable[[], int] = self._counted()
        return told

    def members_of_set(self, key: bytes) -> frozenset[bytes]:
        found = self._set(key)
        return frozenset(found[at] for at in range(1, len(found) + 1))

    def stream_after(self, key: bytes, n: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """A stream's entries after `n`-0."""
        entries: list[tuple[bytes, dict[bytes, bytes]]] = []
        part = 0
        while True:
            found, at = self._entries(key, n, part, _PAGE), 1
            if type(found) is not tuple:
                return entries
            end = len(found)
            while at < end:
                first, behind = at + 2, at + 2 + found[at + 1]
                fields = zip(found[first:behind:2], found[first + 1 : behind : 2], strict=True)
                entries.append((found[at], dict(fields)))
                at = behind
            if len(entries) % _PAGE:
                return entries
            n, part = map(int, entries[-1][0].split(b"-"))


def _list(flat: Sequence[Any], at: int, length: int) -> tuple[list[Any], int]:
    """So many items of a reply from a place on, lists in lists, and the place behind.

    Where the length is negative, all items are as they are.
    """
    if length < 0:
        return list(flat[at : at - length]), at - length
    items: list[Any] = []
    for _ in range(length):
        item = flat[at]
        at += 1
        if item is True:
            # Most lists have no list in them: an entry's words.
            inner, first = flat[at], at + 1
            if inner < 0:
                at = first - inner
                item = list(flat[first:at])
            else:
                item, at = _list(flat, first, inner)
        elif item is False:
            item = None
        items.append(item)
    return items, at
