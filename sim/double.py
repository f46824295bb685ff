"""Redis as the simulator has it: a store in memory that runs the product's own Lua.

One command runs at a time and at one simulated moment, as in the server. What a command
wrote is kept in a journal of commands, as in an append-only file: loading a part of it puts
the double back to that moment. Knows bytes in and bytes out, and nothing of sessions.

fakeredis, which serves the broker's tests, takes three times as long for a commit; that the two
say the same is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha1
from typing import Any

import orjson
import zstandard
from redis import Redis
from redis.exceptions import NoScriptError

from orchestrator.broker.redis_keys import Keys
from orchestrator.core.ids import TreeId
from sim.polls import found_nothing
from sim.reference.check import STATEMENTS, Stated
from sim.store import Store

EPOCH_S = 1_800_000_000.0
"""Redis's time when a simulation begins."""

Command = tuple[bytes, ...]
_CALLBACKS: dict[str, Callable[..., Any]] = dict(Redis(protocol=2).response_callbacks)
"""The client library's conversions of replies; the client that they are taken from never connects."""


class Double:
    """A server's data and its journal. A process has one server: see `opened`."""

    def __init__(self) -> None:
        self.simulated: Callable[[], float] = lambda: 0.0
        self.journal: list[tuple[float, Command]] = []
        """Commands that changed data, each with its time."""
        self._replayed: float | None = None
        self.unknown = 0
        """Scripts that were asked for and not known."""
        self._steps: list[tuple[float, float]] = []
        """When its clock was set, and by how much it is wrong since."""
        self._store = Store()
        self._known: dict[bytes, bytes] = {}
        """Scripts by their SHA-1."""
        self._ever: dict[bytes, bytes] = {}
        """Scripts by their SHA-1, with those that the server has forgotten."""
        self._second: Double | None = None
        self.shortens = True
        """Whether looks for work that would find nothing are answered without their script."""

    def now_s(self) -> float:
        """Redis's clock: the simulated time, wherever it stands."""
        at_s = self.simulated() if self._replayed is None else self._replayed
        return EPOCH_S + at_s + self._wrong_s(at_s) if self._steps else EPOCH_S + at_s

    @property
    def clock_s(self) -> float:
        """The time that Redis's clock shows, counted from a simulation's beginning."""
        return self.now_s() - EPOCH_S

    def ahead_s(self) -> float:
        """A clock that was never put back: what grows with time grows by no more than by this one."""
        return self.simulated() + self._sum(1)

    @property
    def put_back_s(self) -> float:
        """By how much its clock was ever put back: what was true by it may be so much ahead now."""
        return self._sum(-1)

    def _sum(self, sign: int) -> float:
        before, total = 0.0, 0.0
        for _, wrong in self._steps:
            total += max(0.0, sign * (wrong - before))
            before = wrong
        return total

    def _wrong_s(self, at_s: float) -> float:
        if not self._steps:
            return 0.0
        return next((wrong for since, wrong in reversed(self._steps) if since <= at_s), 0.0)

    def step(self, seconds: float) -> None:
        """Sets the clock forward, or back."""
        now_s = self.simulated()
        self._steps.append((now_s, self._wrong_s(now_s) + seconds))

    def forget_scripts(self) -> None:
        """As after a restart: whoever wants one run has to send it whole."""
        self._known.clear()

    def _now_us(self) -> int:
        return round(self.now_s() * 1_000_000)

    def reset(self, simulated: Callable[[], float]) -> None:
        """An empty server at another simulation's beginning."""
        self.simulated, self.journal = simulated, []
        self._known.clear()
        self._steps.clear()
        self.unknown = 0
        self._store.clear()

    def know(self, source: bytes, sha: str) -> None:
        """Has a script loaded, as it is after its first use."""
        self._known[sha.encode()] = self._ever[sha.encode()] = source

    @property
    def writes(self) -> int:
        """Grows with every change."""
        return self._store.writes

    # ── commands ──────────────────────────────────────────────────────────────────────────────

    def run(self, *args: Any) -> Any:
        """Executes a command; raises the client library's errors."""
        return self.take(args[0], encoded(args))

    def take(self, name: str, command: Command) -> Any:
        """The same of a command as it goes over the wire."""
        before = self._store.writes
        try:
            reply = self._execute(command)
        finally:
            if self._store.writes != before:
                self.journal.append((self.simulated(), command))
        return _parsed(name, reply)

    def idle_look(self, args: Sequence[Any]) -> Any:
        """The answer of a look for work that would find nothing now; None if it is to be sent."""
        source = self._known.get(args[1].encode())
        if source is None:
            return None
        words = encoded(args[3:])
        return found_nothing(source, self._store, words[: args[2]], words[args[2] :], self._now_us() // 1000)

    def stated(self, name: str, command: Command) -> Stated | None:
        """States a script's answer and the data that it leaves behind; None for a plain command."""
        if name not in STATEMENTS:
            return None
        first = 3 + int(command[2])
        return Stated(self._store, name, command[3:first], command[first:], self._now_us())

    def look(self, *args: Any) -> Any:
        """A read that the simulation does not count as one of its events."""
        before = self._store.writes
        reply = self._execute(encoded(args))
        assert self._store.writes == before, args[0]
        return _parsed(args[0], reply)

    def look_by(self, source: bytes, count: int, *words: Any) -> Any:
        """The reply of a script that reads, which the simulation does not count either."""
        before, told = self._store.writes, encoded(words)
        reply = self._store.run(self._now_us(), source, told[:count], told[count:])
        assert self._store.writes == before
        return reply

    def goes_on(self, streams: Sequence[bytes]) -> bool:
        """Whether a read finds something: an entry of any stream behind the id that follows its key."""
        return self._store.goes_on(self._now_us(), streams)

    def _execute(self, command: Command) -> Any:
        name = command[0]
        if name == b"EVALSHA":
            source = self._known.get(command[1])
            if source is None:
                if self._replayed is None:
                    self.unknown += 1
                    raise NoScriptError("No matching script. Please use EVAL.")
                source = self._ever[command[1]]
        elif name == b"EVAL":
            source = command[1]
            self.know(source, sha1(source, usedforsecurity=False).hexdigest())
        else:
            return self._store.say(self._now_us(), command)
        first_arg, now_us = 3 + int(command[2]), self._now_us()
        keys, words = command[3:first_arg], command[first_arg:]
        if self.shortens:
            nothing = found_nothing(source, self._store, keys, words, now_us // 1000)
            if nothing is not None:
                return nothing
        return self._store.run(now_us, source, keys, words)

    def restore(self, through: int) -> None:
        """Puts the data back to where the first `through` commands of the journal left it."""
        self.journal = self.journal[:through]
        self._store.clear()
        try:
            for at, command in self.journal:
                self._replayed = at
                self._execute(command)
        finally:
            self._replayed = None

    def second(self) -> Double:
        """Another server with the same data and the same clock; a process has one of them, too."""
        other = self._second = self._second or Double()
        other.simulated, other.journal, other._steps = self.simulated, self.journal, self._steps
        other._known, other._ever = dict(self._known), self._ever
        other.restore(len(other.journal))
        return other

    # ── beside the commands ───────────────────────────────────────────────────────────────────

    def hash(self, key: str) -> dict[bytes, bytes]:
        """A hash as it is; not to be changed."""
        return self._store.hash(key.encode())

    def scored(self, key: str, member: str) -> float | None:
        return self._store.score(key.encode(), member.encode())

    def members(self, key: str) -> dict[bytes, float]:
        """A sorted set's members with their scores."""
        return self._store.members(key.encode())

    def until_us(self, key: bytes) -> float | None:
        """When a key expires; 0 if it is not there, None if it stays."""
        return self._store.until_us(key, self._now_us())

    def values(self) -> list[tuple[str, bytes]]:
        """Every key with the words of its value."""
        return [(key.decode(), words) for key, words in self._store.words().items()]

    def stream_after(self, key: str, n: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """A stream's entries after `n`-0."""
        return self._store.stream_after(key.encode(), n)

    def tree_after(self, keys: Keys, tree: TreeId | str, n: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """A tree's entries after one of them: those that are sealed, read line by line, and the stream's."""
        sealed = self.hash(keys.sealed_tree(tree))
        starts = sorted(map(int, sealed.keys() - {b"index", b"end"}))
        found: list[tuple[bytes, dict[bytes, bytes]]] = []
        for start in starts if n < int(sealed.get(b"end", b"0")) else ():
            for at, row in orjson.loads(zstandard.decompress(sealed[b"%d" % start])):
                found.append((b"%d-0" % at, {k.encode(): v.encode("latin-1") for k, v in row.items()}))
        behind = [entry for entry in found if int(entry[0].partition(b"-")[0]) > n]
        return [*behind, *self.stream_after(keys.tree(tree), n)]


def _parsed(command: str, reply: Any) -> Any:
    """As the client library hands it out."""
    parse = _CALLBACKS.get(command)
    return reply if parse is None else parse(reply)


def encoded(args: Sequence[Any]) -> Command:
    # Most are texts, and `str` would look at each twice.
    return tuple(
        [
            arg.encode() if (kind := type(arg)) is str else arg if kind is bytes else str(arg).encode()
            for arg in args
        ]
    )


@contextmanager
def opened() -> Iterator[Double]:
    """The process's double: its Lua runtime and compiled scripts serve one simulation after the other."""
    yield Double()
