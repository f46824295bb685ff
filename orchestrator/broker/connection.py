"""The edge to Redis: builds the client, runs scripts, and maps every foreign error once.

Knows nothing of sessions. The client library's own retries are off: only the caller knows
whether sending a command again is safe, and the scripts are made so that it is.
Redis 6.2 is the floor; Redis 7 and 8, Valkey and a cluster (`cluster`) are served by the same code.
What differs: 6.2 wraps an error raised inside a script in a sentence of its own (`_code_in`).
"""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

from redis import exceptions as foreign
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from orchestrator.broker.cluster import Cluster
from orchestrator.broker.errors import BrokerError, Corrupt, Misconfigured, OutOfMemory, Unavailable
from orchestrator.broker.scripts import Argument, Script, load
from orchestrator.broker.sockets import Era, Waits, Wire, connection_pool
from orchestrator.config_keys import RedisSettings
from orchestrator.core.frozen import record

_NOT_NOW = frozenset(
    {
        "LOADING",
        "BUSY",
        "READONLY",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "NOREPLICAS",
        "MISCONF",
        "UNKILLABLE",
        "UNBLOCKED",
    }
)
_CODES = re.compile(
    rb"\b(OOM|NOPERM|NOAUTH|WRONGPASS|NOSCRIPT|" + b"|".join(c.encode() for c in _NOT_NOW) + rb")\b"
)

_TAG = re.compile(r"\{[^}]*\}")
_KEYS_LATER = ("EVAL", "EVALSHA", "XREAD")
"""Commands whose first word is no key."""
_WRONG_TYPE = "WRONGTYPE"


class Commands(Protocol):
    """The one method of the client library (or of its double) that is used."""

    async def execute_command(self, *args: Any, **options: Any) -> Any: ...

    async def aclose(self) -> None: ...


@record
class ScriptCall:
    """A script with its keys and arguments, for one run."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Argument]


def call(script: str, keys: Sequence[str], /, **values: Any) -> ScriptCall:
    """A run of the script of this name; `values` by the names that its head gives them."""
    loaded = load(script)
    return ScriptCall(loaded, keys, loaded.takes.pack(values))


class Connection:
    """A connection pool to one server or cluster that speaks in scripts and plain reads.

    `waiting` is a second client without a reply deadline, for commands that block.
    """

    outage: Outage | None = None
    """The record that is told when Redis does not answer, and when it does again."""
    clustered = False

    def __init__(
        self, client: Commands, waiting: Commands, *, waits: Commands | None = None, clustered: bool = False
    ) -> None:
        """`waits`, if given, takes single commands of `waiting`, for less."""
        self._client = client
        self._waiting = waiting
        self._waits = waits or waiting
        self.clustered = clustered

    async def run(self, call: ScriptCall) -> list[Any]:
        """Runs a script. The full source is sent only when the server does not know it yet."""
        shape = (len(call.keys), *call.keys, *call.args)
        try:
            reply = await self._client.execute_command("EVALSHA", call.script.sha, *shape)
        except foreign.NoScriptError:
            reply = await self.command("EVAL", call.script.source, *shape)
        except Exception as error:
            raise self._failed(error, shape) from error
        self._answered(shape)
        return list(reply)

    def _failed(self, error: Exception, words: Sequence[Argument]) -> Exception:
        """Maps an error to one of ours, and tells the outage of it if it means that Redis is away."""
        ours = mapped(error)
        if self.outage is not None and isinstance(ours, Unavailable):
            self.outage.lost(self._part(words), ours)
        return ours

    def _refused(self, error: Exception, words: Sequence[Argument]) -> Exception:
        """The same of a plain command, which says whose type is not what the catalogue says."""
        ours = self._failed(error, words)
        if isinstance(error, foreign.ResponseError) and str(error).startswith(_WRONG_TYPE):
            return ours if words[0] in _KEYS_LATER else Corrupt(_text(words[1]), str(error))
        return ours

    def _answered(self, words: Sequence[Argument]) -> None:
        if self.outage is not None and self.outage.missing:
            self.outage.back(self._part(words))

    def _part(self, words: Sequence[Argument]) -> str:
        """The server that a request goes to: of a cluster, the hash tag of its first key stands for it."""
        if not self.clustered:
            return ""
        tags = (_TAG.search(word) for word in words if isinstance(word, str))
        return next((tag.group() for tag in tags if tag), "")

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[list[Any]]:
        """Runs several scripts, in one round trip where the server is one, else side by side."""
        if len(calls) == 1:
            return [await self.run(calls[0])]
        if not isinstance(self._client, Wire):
            return list(await asyncio.gather(*(self.run(call) for call in calls)))
        rows = [("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.args) for call in calls]
        try:
            replies = await self._client.execute_all(rows)
        except Exception as error:
            raise self._failed(error, ()) from error
        return [await self._settled(call, reply) for call, reply in zip(calls, replies, strict=True)]

    async def run_each(self, calls: Sequence[ScriptCall]) -> list[list[Any] | BrokerError]:
        """As `run_all`, but in a cluster the error of a node stands in the place of its answers."""
        if not self.clustered:
            return list(await self.run_all(calls))
        replies = await asyncio.gather(*(self.run(call) for call in calls), return_exceptions=True)
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, BrokerError):
                raise reply
        return cast("list[list[Any] | BrokerError]", replies)

    async def _settled(self, call: ScriptCall, reply: Any) -> list[Any]:
        if isinstance(reply, foreign.NoScriptError):
            return await self.run(call)
        if isinstance(reply, Exception):
            raise mapped(reply) from reply
        return list(reply)

    async def command(self, *args: Argument) -> Any:
        """Runs a plain command."""
        try:
            reply = await self._client.execute_command(*args)
        except Exception as error:
            raise self._refused(error, args) from error
        self._answered(args)
        return reply

    async def commands(self, rows: Sequence[Sequence[Argument]]) -> list[Any]:
        """Runs several plain commands, in one round trip where the server is one."""
        if len(rows) == 1:
            return [await self.command(*rows[0])]
        if not isinstance(self._client, Wire):
            return list(await asyncio.gather(*(self.command(*row) for row in rows)))
        try:
            replies = await self._client.execute_all(rows)
        except Exception as error:
            raise self._failed(error, ()) from error
        for row, reply in zip(rows, replies, strict=True):
            if isinstance(reply, Exception):
                raise self._refused(reply, row) from reply
        return replies

    async def together(self, rows: Sequence[Sequence[Argument]]) -> list[Any]:
        """Runs several plain commands on a connection of their own, in their order; one of them may block.

        In a cluster, all of one slot.
        """
        try:
            if isinstance(self._client, Cluster):
                return await self._client.together(rows)
            library = self._client.library if isinstance(self._client, Wire) else cast(Redis, self._client)
            async with library.pipeline(transaction=False) as pipe:
                for row in rows:
                    pipe.execute_command(*row)
                return list(await pipe.execute())
        except Exception as error:
            raise self._failed(error, rows[0]) from error

    async def wait(self, *args: Argument) -> Any:
        """Runs a command that may block longer than any reply deadline."""
        try:
            reply = await self._waits.execute_command(*args)
        except Exception as error:
            raise self._failed(error, args) from error
        self._answered(args)
        return reply

    async def wait_if(
        self, read: Sequence[Argument], holds: Callable[[Any], bool], wait: Sequence[Argument]
    ) -> tuple[bool, Any]:
        """Runs a read and, if its answer `holds`, a command that may block; whether it did, and the answer.

        To one server they go together, on one connection: a server that came back as another one meets both.
        """
        if not isinstance(self._waiting, Redis):
            held = holds(await self.command(*read))
            return held, await self.wait(*wait) if held else None
        try:
            found = await _both(self._waiting, read, holds, wait)
        except Exception as error:
            raise self._failed(error, wait) from error
        self._answered(wait)
        return found

    async def aclose(self) -> None:
        await self._client.aclose()
        if self._waiting is not self._client:
            await self._waiting.aclose()
        if self._waits is not self._waiting:
            await self._waits.aclose()


async def _both(
    client: Redis, read: Sequence[Argument], holds: Callable[[Any], bool], wait: Sequence[Argument]
) -> tuple[bool, Any]:
    connection = await client.connection_pool.get_connection()
    ended = False
    try:
        await connection.send_packed_command(connection.pack_commands([read, wait]))
        if not holds(await client.parse_response(connection, str(read[0]))):
            return False, None
        reply = await client.parse_response(connection, str(wait[0]))
        ended = True
        return True, reply
    finally:
        if not ended:
            # The second command waits there, and its answer would be taken for another's.
            await connection.disconnect(nowait=True)
        await client.connection_pool.release(connection)


def connect(redis: RedisSettings, name: str = "") -> Connection:
    """Builds the clients; the first command opens the first connection. Raises `Misconfigured`.

    A server that is silent for longer than a command may take is unavailable; a lease must survive that.
    `name` is what `CLIENT LIST` calls the connections; one in the URL goes before it.
    """
    era = Era()
    client: Commands = _client(redis, era, redis.command_timeout_s, name)
    if isinstance(client, Redis):
        client = Wire(client, redis.command_timeout_s)
    waiting = _client(redis, era, None, name)
    waits = Waits(waiting) if isinstance(waiting, Redis) else None
    return Connection(client, waiting, waits=waits, clustered=redis.cluster)


def _client(redis: RedisSettings, era: Era, reply_timeout_s: float | None, name: str) -> Commands:
    if redis.cluster:
        return _cluster(redis, era, reply_timeout_s, name)
    return cast(Commands, Redis.from_pool(pool(redis, era, reply_timeout_s, name)))


def pool(redis: RedisSettings, era: Era, reply_timeout_s: float | None, name: str = "") -> ConnectionPool:
    """Connections to the one server that the URL leads to; raises `Misconfigured`."""
    try:
        return connection_pool(redis.url or "", era, _options(redis, reply_timeout_s, name))
    except ValueError:
        raise _no_server() from None


def _cluster(redis: RedisSettings, era: Era, reply_timeout_s: float | None, name: str) -> Commands:
    try:
        return Cluster(redis.url or "", era, _options(redis, reply_timeout_s, name))
    except ValueError:
        raise _no_server() from None


def _options(redis: RedisSettings, reply_timeout_s: float | None, name: str) -> dict[str, Any]:
    return {
        "shown_name": name,
        "decode_responses": False,
        "protocol": 2,
        "socket_connect_timeout": redis.connect_timeout_s,
        "socket_timeout": reply_timeout_s,
        # Two more commands for each connection, which many servers do not know.
        "lib_name": None,
        "lib_version": None,
        "retry": Retry(NoBackoff(), 0),
    }


def _no_server() -> Misconfigured:
    # What was wrong is not repeated: it may hold a part of the password.
    return Misconfigured(
        "redis.url names no server; try redis://host:6379/0, rediss://… for TLS, unix:///path, "
        "or redis+sentinel://host,host,host/name/0"
    )


def mapped(error: Exception) -> Exception:
    """Maps a foreign error to the one of ours that says what a caller can do."""
    if isinstance(error, BrokerError):
        return error
    if isinstance(error, foreign.ConnectionError) and isinstance(
        error.__cause__, foreign.RedisError | BrokerError
    ):
        # The library hides what refused it while connecting inside a ConnectionError.
        return mapped(error.__cause__)
    if isinstance(error, foreign.NoPermissionError):
        return _few_rights(error)
    if isinstance(error, foreign.AuthenticationError | foreign.AuthorizationError):
        return Misconfigured(
            f"Redis refused the credentials: {_said(error)}; check the user and password in the URL"
        )
    if isinstance(error.__context__, ssl.SSLCertVerificationError):
        return Unavailable(
            f"Redis's certificate was refused: {error.__context__.verify_message.rstrip('.')}; "
            "name its authority in the URL (?ssl_ca_certs=/path), and the server as its certificate does"
        )
    if isinstance(error, foreign.ConnectionError | foreign.TimeoutError | OSError | asyncio.TimeoutError):
        return Unavailable(f"no answer from Redis: {_said(error)}")
    if isinstance(error, foreign.OutOfMemoryError):
        return OutOfMemory(f"Redis is out of memory: {error}; raise maxmemory or delete old sessions")
    if isinstance(error, foreign.ReadOnlyError):
        return Unavailable(f"Redis cannot write now: {error}")
    if isinstance(
        error, foreign.ClusterError | foreign.ClusterDownError | foreign.TryAgainError | foreign.AskError
    ):
        return Unavailable(f"the cluster cannot serve these keys now: {error}")
    if isinstance(error, foreign.ResponseError):
        return _mapped_response(error)
    return error


def _text(word: Argument) -> str:
    return word.decode(errors="replace") if isinstance(word, bytes) else str(word)


def _said(error: Exception) -> str:
    """Its words as a part of a sentence."""
    return str(error).rstrip(".")


def _mapped_response(error: foreign.ResponseError) -> Exception:
    code = _code_in(str(error))
    if code == "OOM":
        return OutOfMemory(f"Redis is out of memory: {error}; raise maxmemory or delete old sessions")
    if code in _NOT_NOW:
        return Unavailable(f"Redis cannot serve now ({code}): {error}")
    if code in ("NOPERM", "NOAUTH", "WRONGPASS") or "ACL failure in script" in str(error):
        return _few_rights(error)
    return BrokerError(f"Redis answered: {error}")


def _few_rights(error: Exception) -> Misconfigured:
    return Misconfigured(f"Redis refused: {error}; docs/operations.md lists the rights that its user needs")


def _code_in(message: str) -> str:
    """The error code, also where Redis 6.2 tells it inside the sentence `Error running script …`."""
    found = _CODES.search(message.encode())
    return found.group(1).decode() if found else ""


# ── retries ───────────────────────────────────────────────────────────────────────────────────────
# A connection for commands of people: what is not answered is sent again, for a bounded time.
#
# Every script may be sent again with the same ids, and a read may be repeated; so a server that starts,
# loads or fails over costs a person some seconds, and not the command. Workers must not use it: a lease
# runs out while it waits.


AGAIN_S = 0.1
AGAIN_MAX_S = 1.0

T = TypeVar("T")


class RetryingConnection(Connection):
    """A connection that raises `Unavailable` only after `patience_s` without an answer."""

    def __init__(
        self, inner: Connection, patience_s: float, look: Callable[[], Awaitable[str]] | None = None
    ) -> None:
        """`look`, if given, says why a server that has not answered yet never will; "" if it may."""
        self._inner = inner
        self._patience_s = patience_s
        self._look = look
        self.clustered = inner.clustered

    async def run(self, call: ScriptCall) -> list[Any]:
        return await self._insist(lambda: self._inner.run(call))

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[list[Any]]:
        return await self._insist(lambda: self._inner.run_all(calls))

    async def command(self, *args: Argument) -> Any:
        return await self._insist(lambda: self._inner.command(*args))

    async def commands(self, rows: Sequence[Sequence[Argument]]) -> list[Any]:
        return await self._insist(lambda: self._inner.commands(rows))

    async def together(self, rows: Sequence[Sequence[Argument]]) -> list[Any]:
        return await self._insist(lambda: self._inner.together(rows))

    async def wait(self, *args: Argument) -> Any:
        return await self._inner.wait(*args)

    async def wait_if(
        self, read: Sequence[Argument], holds: Callable[[Any], bool], wait: Sequence[Argument]
    ) -> tuple[bool, Any]:
        return await self._inner.wait_if(read, holds, wait)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _insist(self, send: Callable[[], Awaitable[T]]) -> T:
        deadline, delay = time.monotonic() + self._patience_s, AGAIN_S
        while True:
            try:
                answer = await send()
                self._look = None
                return answer
            except Unavailable as error:
                look, self._look = self._look, None
                if look is not None and (why := await look()):
                    raise Misconfigured(why) from error
                if time.monotonic() + delay > deadline:
                    waited = f"waited {self._patience_s:.0f} s for it"
                    remedy = "start the server, or correct redis.url (DENDRO_REDIS_URL)"
                    raise Unavailable(f"{error}; {waited}: {remedy}") from error
            await asyncio.sleep(delay)
            delay = min(2 * delay, AGAIN_MAX_S)


# ── outage ────────────────────────────────────────────────────────────────────────────────────────
# An absence of Redis, told once when it begins and once when it is over.
#
# Everything that asks Redis meets the absence by itself, many times a second. The connections of a
# process tell this record of failures and answers, from any thread; people get two lines.


QUIET_S = 5.0
"""Seconds after an absence in which the next is not reported: a connection that comes and goes is no news."""


@dataclass(slots=True)
class Outage:
    """The absence of one deployment, as far as its connections met it."""

    say: Callable[[str], None]
    monotonic: Callable[[], float]
    until: str = "until it answers"
    """The time for which requests are repeated, in the words of the first line."""
    missing: dict[str, float] = field(default_factory=dict)
    """Parts that do not answer (the one server, or slots of a cluster by their tag), and since when."""
    told: bool = False
    """Whether the absence was reported, so that nothing else needs to report it."""
    _over_at: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def lost(self, part: str, error: Exception) -> None:
        """Notes that a request was not answered."""
        now = self.monotonic()
        with self._lock:
            self.missing.setdefault(part, now)
            if self.told or now - self._over_at < QUIET_S:
                return
            self.told = True
        self.say(f"Redis is away ({error}); asking again {self.until}")

    def back(self, part: str) -> None:
        """Notes that a request was answered. Called for each answer while something is missing."""
        now = self.monotonic()
        with self._lock:
            since = self.missing.pop(part, None)
            if since is None or self.missing:
                return
            told, self.told, self._over_at = self.told, False, now
        if told:
            self.say(f"Redis is back, after {now - since:.0f} s")
