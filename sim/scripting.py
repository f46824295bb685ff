"""Lua as Redis runs it: version 5.1, one script at a time, on the commands of a store.

A script may set no global, and read none that does not exist: a server refuses both. It may not go
through a table by its keys either: their order would be chance's choice, and not the seed's.
Scripts are compiled once a process; what a run leaves behind is Lua's to collect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redis.exceptions import RedisError, ResponseError

from sim.values import Status

try:
    # The same language; a call from it into Python costs half as much.
    from lupa import luajit21 as lua
except ImportError:
    from lupa import lua51 as lua

Command = Callable[..., Any]

LISTS = tuple(b"HMGET HGETALL HKEYS SMEMBERS TIME XRANGE XREVRANGE ZRANGE ZREVRANGE ZRANGEBYSCORE".split())
"""Commands whose replies are lists."""

_BEGIN = b"""
function(call, lists)
  -- Runs are short and mostly calls: translating them to machine code costs more than it saves.
  if jit then jit.off() end
  pairs = function() error("the order of a table's keys is another one in each process") end
  next = pairs
  redis = {call = function(name, ...)
    if lists[name] then return {call(name, ...)} end
    return call(name, ...)
  end}
  setmetatable(_G, {
    __newindex = function(_, name) error('a script may not set the global variable ' .. tostring(name)) end,
    __index = function(_, name) error('there is no global variable ' .. tostring(name)) end,
  })
  local function run(script, keys, argv)
    rawset(_G, 'KEYS', keys)
    rawset(_G, 'ARGV', argv)
    return script()
  end
  -- A reply ends at its first nil, wherever Lua thinks that the table does.
  local function items(reply)
    if reply.err then error(reply.err, 0) end
    local n = 0
    while reply[n + 1] ~= nil do n = n + 1 end
    return n, unpack(reply, 1, n)
  end
  return run, items
end
"""


class Scripting:
    """An interpreter with a store's commands in it."""

    def __init__(self, commands: Mapping[bytes, Command]) -> None:
        self._lua: Any = lua.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._table: Any = self._lua.table_from
        self._commands = commands
        self._compiled: dict[bytes, Any] = {}
        self._statuses: dict[bytes, Any] = {}
        self._run, self._items = self._lua.eval(_BEGIN)(self._call, self._table(dict.fromkeys(LISTS, True)))

    def run(self, source: bytes, keys: Sequence[bytes], argv: Sequence[bytes]) -> Any:
        """A script's reply; raises the client library's errors."""
        script = self._compiled.get(source)
        if script is None:
            script = self._compiled[source] = self._lua.compile(source)
        try:
            return self._told(self._run(script, self._table(keys), self._table(argv)))
        except RedisError:
            raise
        except lua.LuaError as error:
            raise ResponseError(f"ERR Error running script: {error}") from error

    def _call(self, name: bytes, *words: bytes | float) -> Any:
        """What a script knows as `redis.call`."""
        command = self._commands.get(name)
        if command is None:
            raise ResponseError(f"ERR unknown command {name!r}")
        for word in words:
            if type(word) is not bytes:
                words = tuple([word if isinstance(word, bytes) else b"%.17g" % word for word in words])
                break
        reply = command(*words)
        kind = type(reply)
        if kind is bytes or kind is int:
            return reply
        if kind is Status:
            return self._status(reply)
        if kind is list:
            # Several values, which Lua puts into a table faster than a table is made from here.
            return tuple([part if type(part) is bytes else self._known(part) for part in reply])
        return self._known(reply)

    def _status(self, reply: Status) -> Any:
        """A table that no script changes."""
        found = self._statuses.get(reply)
        if found is None:
            found = self._statuses[reply] = self._table({b"ok": bytes(reply)})
        return found

    def _known(self, reply: Any) -> Any:
        """As Lua has it: what is missing is false there."""
        if reply is None:
            return False
        if type(reply) is list:
            return self._table([part if type(part) is bytes else self._known(part) for part in reply])
        return reply

    def _told(self, reply: Any) -> Any:
        """As the protocol has it: a number loses its fraction, true is 1, false is nothing."""
        kind = type(reply)
        if kind is bytes or kind is int or reply is None:
            return reply
        if kind is float:
            return int(reply)
        if kind is bool:
            return 1 if reply else None
        found = self._items(reply)
        if type(found) is int:
            return []
        return [item if type(item) is bytes else self._told(item) for item in found[1:]]
