"""Redis as the simulator has it: fakeredis with the product's own Lua, called without a socket.

One command runs at a time and at one simulated moment, as in the server. What a command
wrote is kept in a journal of commands, as in an append-only file: loading a part of it puts
the double back to that moment. Knows bytes in and bytes out, and nothing of sessions.

Two things are done cheaper than fakeredis does them, because they are most of what a commit
costs there: a script is compiled once, and Lua's garbage is left to Lua.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fakeredis import FakeServer, FakeStrictRedis
from fakeredis._helpers import SimpleError
from fakeredis._msgs import FLAG_LEAVE_EMPTY_VAL
from fakeredis._socket import FakeSocket
from fakeredis._socket._resp import convert_to_resp2
from redis._parsers.helpers import _RedisCallbacks, _RedisCallbacksRESP2

from tests.broker.doubles import FakeClock, redis_time

EPOCH_S = 1_800_000_000.0
"""Redis's time when a simulation begins."""

Command = tuple[bytes, ...]
_CALLBACKS: dict[str, Callable[..., Any]] = {**_RedisCallbacks, **_RedisCallbacksRESP2}


class RedisClock(FakeClock):
    """Redis's clock: the simulated time, wherever it stands."""

    def __init__(self) -> None:
        super().__init__(EPOCH_S)
        self.simulated: Callable[[], float] = lambda: 0.0
        self.replayed: float | None = None

    def time(self) -> float:
        return EPOCH_S + (self.simulated() if self.replayed is None else self.replayed)

    def monotonic(self) -> float:
        return self.time()


class _Socket(FakeSocket):
    """A connection whose replies are taken from a list."""

    def __init__(self, server: FakeServer) -> None:
        self.replies: list[Any] = []
        super().__init__(server, 0, client_class=FakeStrictRedis)

    def put_response(self, msg: Any) -> None:
        self.replies.append(msg)

    def eval(self, script: bytes, numkeys: int, *keys_and_args: bytes) -> Any:
        server: Any = self._server
        lua = self._get_server_runtime(server)
        known = server.__dict__.setdefault("_compiled", {})
        if script not in known:
            known[script] = lua.compile(script)
        server._lua_current_socket[0] = self
        self._script_resp = 2
        server._lua_set_keys_argv(
            lua.table_from(keys_and_args[:numkeys]), lua.table_from(keys_and_args[numkeys:])
        )
        try:
            return self._convert_lua_result(known[script](), nested=False)
        except SimpleError:
            raise
        except Exception as error:
            raise SimpleError(f"ERR Error running script: {error}") from error
        finally:
            self._script_resp = None

    def evalsha(self, sha1: bytes, numkeys: int, *keys_and_args: bytes) -> Any:
        script = self._server.script_cache.get(sha1)
        if script is None:
            raise SimpleError("NOSCRIPT No matching script. Please use EVAL.")
        return self.eval(script, numkeys, *keys_and_args)

    def _lua_redis_call(self, lua_runtime: Any, expected_globals: set[Any], op: bytes, *args: Any) -> Any:
        if op == b"TYPE":
            return self._type_of(lua_runtime, args[0])
        func: Any
        func, sig = self._name_to_func(op.decode().lower())
        given = [arg if type(arg) is bytes else f"{arg:.17g}".encode() for arg in args]
        applied: Any = sig.apply(given, self._db, self.version)
        if len(applied) == 1:
            return self._convert_redis_result(lua_runtime, applied[0])
        parsed, items = applied
        result = convert_to_resp2(func(*parsed), "redis", keep_doubles=False)
        for item in items:
            item.writeback(remove_empty_val=FLAG_LEAVE_EMPTY_VAL not in sig.flags)
        return self._convert_redis_result(lua_runtime, result)

    def _type_of(self, lua_runtime: Any, key: bytes) -> Any:
        """A script looks at the type of each of its keys before it writes: a quarter of its calls."""
        item = self._db.get(key)
        name = b"none" if item is None else self._key_value_type(item).value
        tables = self._server.__dict__.setdefault("_types", {})
        if name not in tables:
            tables[name] = lua_runtime.table_from({b"ok": name})
        return tables[name]


class Double:
    """One server's data and its journal. A process has one: see `opened`."""

    def __init__(self, clock: RedisClock) -> None:
        self.clock = clock
        self.journal: list[tuple[float, Command]] = []
        """What wrote, and when."""
        self._server = FakeServer(version=(7,))
        self._socket = _Socket(self._server)
        self._wrote = False
        self.changed: list[Callable[[], None]] = []
        """Called when something was written: for those who block."""
        self._server.dbs[0].add_change_callback(self._note)

    def _note(self) -> None:
        self._wrote = True

    def reset(self, simulated: Callable[[], float]) -> None:
        """An empty server at another simulation's beginning."""
        self.clock.simulated = simulated
        self.journal, self.changed = [], []
        self._empty()

    def _empty(self) -> None:
        with self._server.lock:
            self._server.dbs[0].clear()
        self._server.script_cache.clear()

    def know(self, source: bytes, sha: str) -> None:
        """Has a script loaded, as it is after its first use."""
        self._server.script_cache[sha.encode()] = source

    def run(self, *args: Any) -> Any:
        """One command; raises the client library's errors."""
        reply, wrote = self._execute(encoded(args))
        if wrote:
            self.journal.append((self.clock.simulated(), encoded(args)))
            for tell in tuple(self.changed):
                tell()
        if isinstance(reply, Exception):
            raise reply
        return _parsed(args[0], reply)

    def look(self, *args: Any) -> Any:
        """A read that is no event of the simulation."""
        reply, wrote = self._execute(encoded(args))
        assert not wrote, args[0]
        return _parsed(args[0], reply)

    def hash(self, key: str) -> dict[bytes, bytes]:
        """A hash as it is, read beside Redis."""
        item = self._server.dbs[0].get(key.encode())
        return {} if item is None else item.value._values

    def scored(self, key: str, member: str) -> float | None:
        item = self._server.dbs[0].get(key.encode())
        score: float | None = None if item is None else item.value.get(member.encode())
        return score

    def members(self, key: str) -> dict[bytes, float]:
        item = self._server.dbs[0].get(key.encode())
        return {} if item is None else dict(item.value.items())

    def stream_after(self, key: str, n: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """A stream's entries after `n`-0."""
        rows: list[tuple[bytes, dict[bytes, bytes]]] = self.look("XRANGE", key, f"({n}-0", "+")
        return rows

    def _execute(self, command: Command) -> tuple[Any, bool]:
        self._wrote = False
        self._socket._process_command(list(command))
        (reply,) = self._socket.replies
        self._socket.replies.clear()
        return reply, self._wrote

    def restore(self, through: int) -> None:
        """Puts the data back to where the first `through` commands of the journal left it."""
        scripts = dict(self._server.script_cache)
        kept, self.journal = self.journal[:through], self.journal[:through]
        self._empty()
        self._server.script_cache.update(scripts)
        try:
            for at, command in kept:
                self.clock.replayed = at
                self._execute(command)
        finally:
            self.clock.replayed = None


def _parsed(command: str, reply: Any) -> Any:
    """As the client library hands it out."""
    parse = _CALLBACKS.get(command)
    return reply if parse is None else parse(reply)


def encoded(args: Sequence[Any]) -> Command:
    return tuple(arg if isinstance(arg, bytes) else str(arg).encode() for arg in args)


@contextmanager
def opened() -> Iterator[Double]:
    """The process's double: its Lua runtime and compiled scripts serve one simulation after the other."""
    with redis_time(RedisClock()) as clock:
        assert isinstance(clock, RedisClock)
        yield Double(clock)
