"""A Redis in memory for tests, which holds each script against its second statement (`sim/reference`).

The simulator's store behind the one method of the client library that is used. What a script answers or
leaves otherwise than is stated is kept in `unlike`, and is an error when the client is closed. Its clock is
the process's; `tests.broker.doubles.redis_time` replaces it.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from redis.commands import AsyncCoreCommands

from sim.double import EPOCH_S, Double, encoded
from sim.network import scripts
from sim.reference.check import STATEMENTS
from sim.reference.sight import HASHES, STREAMS, ZSETS, kind_of

_SPARE: list[Double] = []
"""Doubles that no test uses: an interpreter with its compiled scripts serves one behind the other."""
NOT_JUDGED = (b"CORRUPT", b"AHEAD", b"MISFIT")
"""Answers about data that no script has left: a statement supposes what the scripts keep."""


def _left_ms(double: Double, key: bytes) -> int:
    """PTTL: -2 for no key, -1 for one that stays."""
    until_us, now_us = double.until_us(key), double.now_s() * 1_000_000
    return -1 if until_us is None else -2 if until_us == 0 else round((until_us - now_us) / 1000)


_BESIDE: dict[str, Callable[..., Any]] = {
    "KEYS": lambda double, pattern: [
        key.encode() for key, _ in double.values() if fnmatchcase(key, pattern.decode())
    ],
    "PTTL": _left_ms,
    "TTL": lambda double, key: _left_ms(double, key) // 1000,
}
"""Commands that tests alone say."""


@cache
def _names() -> tuple[dict[str, str], dict[bytes, str]]:
    known = scripts().items()
    return {one.sha: name for name, one in known}, {one.source: name for name, one in known}


class StatedRedis(AsyncCoreCommands):
    """A client of an empty server of its own."""

    connection_pool: Any = None

    def __init__(self) -> None:
        self._double = _SPARE.pop() if _SPARE else Double()
        weakref.finalize(self, _SPARE.append, self._double)
        self._at_s = 0.0
        self._double.reset(lambda: self._at_s)
        self._double.shortens = False
        self._wrote = asyncio.Event()
        self.unlike: list[str] = []
        self._odd = False
        """Whether a test has put a value of another type where the scripts keep one of theirs."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        words = args[0].split() + list(args[1:]) if " " in str(args[0]) else list(args)
        if "BLOCK" in words:
            return await self._blocking(words)
        return self._done(words)

    def _done(self, words: Sequence[Any]) -> Any:
        double, name, command = self._double, str(words[0]), encoded(words)
        # One moment for the script and its statement.
        self._at_s = time.time() - EPOCH_S
        if name in _BESIDE:
            return _BESIDE[name](double, *command[1:])
        if name == "RPUSH" or (name == "SET" and kind_of(command[1]) in HASHES | ZSETS | STREAMS):
            self._odd = True
        script = "" if self._odd else self._script(words)
        writes = double.writes
        stated = told = None
        if script in STATEMENTS:
            try:
                stated = double.stated(script, command)
            except Exception as error:
                # Of data that no script has left nothing is stated.
                told = f"nothing could be stated: {error!r}"
        try:
            reply = double.take(name, command)
        finally:
            if double.writes != writes:
                self._wrote.set()
                self._wrote = asyncio.Event()
        if script in STATEMENTS and not (isinstance(reply, list) and reply and reply[0] in NOT_JUDGED):
            unlike = stated.difference(reply) if stated is not None else told
            if unlike:
                self.unlike.append(f"{script}: {unlike}")
        return reply

    def _script(self, words: Sequence[Any]) -> str:
        by_sha, by_source = _names()
        if words[0] == "EVALSHA":
            return by_sha.get(str(words[1]), "")
        return by_source.get(encoded(words[1:2])[0], "") if words[0] == "EVAL" else ""

    async def _blocking(self, words: list[Any]) -> Any:
        at = words.index("BLOCK")
        rest, most_s = [*words[:at], *words[at + 2 :]], int(words[at + 1]) / 1000
        until = asyncio.get_running_loop().time() + most_s
        while not (found := self._done(rest)):
            left = until - asyncio.get_running_loop().time() if most_s else None
            if left is not None and left <= 0:
                return found
            try:
                await asyncio.wait_for(self._wrote.wait(), left)
            except TimeoutError:
                return self._done(rest)
        return found

    def pipeline(self, transaction: bool = True) -> _Row:
        return _Row(self)

    async def aclose(self) -> None:
        """Raises `AssertionError` if a script did otherwise than is stated. Others may use the client on."""
        assert not self.unlike, "; ".join(self.unlike)


class _Row:
    """Commands that are sent together."""

    def __init__(self, client: StatedRedis) -> None:
        self._client = client
        self._commands: list[tuple[Any, ...]] = []

    async def __aenter__(self) -> _Row:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    def execute_command(self, *args: Any) -> None:
        self._commands.append(args)

    async def execute(self) -> list[Any]:
        return [await self._client.execute_command(*row) for row in self._commands]
