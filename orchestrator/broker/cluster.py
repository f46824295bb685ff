"""A client of a Redis cluster: every command goes to the node that has its keys' slot, wherever that moves.

redis-py below 6, which arq requires, has one that does not serve. It removes every node that it once could
not reach, and cannot connect again when it has removed the last (redis-py issues #2555, #3221 and #3693;
mended in 7.2 by #3917). It says ASKING on one connection and asks on another. It cannot promise two commands
the same connection, without which WAIT tells nothing. This file can go when arq permits redis-py 7.2 or
newer, and that version can bind commands to a connection: see docs/decisions/cluster-client.md.

    MOVED        the slot belongs to another node now: asked again there, and from now on
    ASK          the slot is on its way, and the keys have arrived already: asked there, this once
    TRYAGAIN     some of a command's keys have arrived and others have not: raised, for whoever sends it again
    no answer    raised; where that node's slots are is looked up anew, for a replica may have them by now
    too late     raised, and at once for all that comes behind it until the node answers: it costs time once

Knows no scripts. The commands of one call must have all their keys in one slot, as everything here has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from redis import exceptions as foreign
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.cluster import ClusterParser
from redis.crc import key_slot

from orchestrator.broker.errors import Misconfigured
from orchestrator.broker.sockets import Address, Era, Wire, connection_pool
from orchestrator.core.frozen import record

REDIRECTIONS = 8
"""A slot that moves more often while one command looks for it is not moving: its nodes disagree."""
AGAIN_S = 0.25
"""Seconds behind which a node that is late is asked again whether it serves."""

T = TypeVar("T")


@record
class Stretch:
    """The slots that one node has."""

    first: int
    last: int
    primary: Address
    nodes: tuple[Address, ...]
    """The primary and its replicas, which know the cluster as well."""


class Cluster:
    """Connections to all nodes of a cluster, and which slot is where as far as is known."""

    def __init__(self, url: str, era: Era, options: Mapping[str, Any]) -> None:
        """Raises ValueError for a URL that names no node. Opens no connection."""
        pattern = connection_pool(url, era, {**options, "parser_class": ClusterParser})
        if "primary" in pattern.connection_kwargs or "path" in pattern.connection_kwargs:
            raise ValueError("a cluster is reached by the address of one of its nodes")
        self._pattern = pattern
        self._first = (
            str(pattern.connection_kwargs.get("host", "localhost")),
            int(pattern.connection_kwargs.get("port", 6379)),
        )
        self._nodes: dict[Address, Redis] = {}
        self._wires: dict[Address, Wire] = {}
        self._reply_timeout_s: float | None = options["socket_timeout"]
        self._stretches: tuple[Stretch, ...] = ()
        self._owners: dict[int, Address] = {}
        self._refreshing = asyncio.Lock()
        self._late: dict[Address, asyncio.Task[None]] = {}
        """Nodes that let a command wait in vain, and the tasks that ask them whether they serve again."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Runs a command; raises the client library's errors."""
        slot = _slot_of(args)
        for _ in range(REDIRECTIONS):
            owner = await self._serving(slot)
            try:
                return await self._wire(owner).execute_command(*args, **options)
            except foreign.MovedError as moved:
                self._owners[slot] = _named(moved, owner)
            except foreign.AskError as ask:
                _, reply = await _piped(self._node(_named(ask, owner)), (("ASKING",), args))
                return _served(reply)
            except (foreign.ConnectionError, foreign.TimeoutError, foreign.ClusterDownError) as error:
                self._forget(owner, error)
                raise
        raise foreign.ClusterError(f"the nodes do not agree on who has slot {slot}")

    async def together(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """Several commands of one slot, the first of them with a key, on one connection."""
        slot = _slot_of(rows[0])
        for _ in range(REDIRECTIONS):
            owner = await self._serving(slot)
            try:
                replies = await _piped(self._node(owner), rows)
            except (foreign.ConnectionError, foreign.TimeoutError) as error:
                self._forget(owner, error)
                raise
            moved = next((reply for reply in replies if isinstance(reply, foreign.MovedError)), None)
            if moved is None:
                return [_served(reply) for reply in replies]
            self._owners[slot] = _named(moved, owner)
        raise foreign.ClusterError(f"the nodes do not agree on who has slot {slot}")

    async def aclose(self) -> None:
        asking = list(self._late.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await asyncio.gather(*(wire.aclose() for wire in self._wires.values()))
        await asyncio.gather(*(node.aclose() for node in self._nodes.values()))

    # ── where the slots are ───────────────────────────────────────────────────────────────────

    async def _serving(self, slot: int) -> Address:
        """The node that has a slot; raises if it is late already."""
        owner = await self._owner(slot)
        if owner in self._late:
            late = foreign.TimeoutError(f"{_text(owner)} does not answer")
            self._forget(owner, late)
            raise late
        return owner

    async def _owner(self, slot: int) -> Address:
        if slot not in self._owners:
            async with self._refreshing:
                if not self._stretches:
                    self._stretches = await self._read_slots()
            found = next((s.primary for s in self._stretches if s.first <= slot <= s.last), None)
            if found is None:
                self._stretches = ()
                raise foreign.ClusterError(f"no node has slot {slot}")
            self._owners[slot] = found
        return self._owners[slot]

    def _forget(self, silent: Address, error: Exception) -> None:
        """Forgets where the slots of a node are that did not answer, and asks it last where they are.

        The node stays: it may be the right one. Slots of others are where they were: to look them up would
        have their sessions wait for a node that they have nothing on.
        """
        self._stretches = ()
        self._owners = {slot: owner for slot, owner in self._owners.items() if owner != silent}
        if silent in self._nodes:
            self._nodes[silent] = self._nodes.pop(silent)
        if isinstance(error, foreign.TimeoutError) and silent not in self._late:
            self._late[silent] = asyncio.create_task(self._until_it_answers(silent))

    async def _until_it_answers(self, late: Address) -> None:
        """Asks a node again and again, unless it refuses connections or has no slots: none waits for that."""
        try:
            while not self._stretches or any(stretch.primary == late for stretch in self._stretches):
                try:
                    await self._wire(late).execute_command("PING")
                except foreign.TimeoutError:
                    await asyncio.sleep(AGAIN_S)
                else:
                    return
        except foreign.RedisError:
            return
        finally:
            del self._late[late]

    async def _read_slots(self) -> tuple[Stretch, ...]:
        """Asks one node after the other where the slots are."""
        silent = []
        for address in tuple(dict.fromkeys((*self._nodes, self._first))):
            try:
                reply = await self._wire(address).execute_command("CLUSTER", "SLOTS")
            except (foreign.AuthenticationError, foreign.NoPermissionError):
                raise
            except (foreign.ConnectionError, foreign.TimeoutError, OSError) as error:
                silent.append(str(error))
            except foreign.ResponseError as error:
                raise Misconfigured(f"{_text(address)}: {error}; is redis.cluster set for it?") from error
            else:
                return tuple(self._known(_stretches(reply, address)))
        raise foreign.ConnectionError(f"no node of the cluster answers: {'; '.join(silent)}")

    def _known(self, stretches: Iterable[Stretch]) -> Iterable[Stretch]:
        for stretch in stretches:
            for address in stretch.nodes:
                self._node(address)
            yield stretch

    def _node(self, address: Address) -> Any:
        """The library's client of one node, whose methods have no types."""
        if address not in self._nodes:
            host, port = address
            options = {**self._pattern.connection_kwargs, "host": host, "port": port}
            pool = ConnectionPool(self._pattern.connection_class, **options)
            self._nodes[address] = Redis.from_pool(pool)
        return self._nodes[address]

    def _wire(self, address: Address) -> Any:
        """The client of one node for commands that do not block; where they may, the library's."""
        node = self._node(address)
        if self._reply_timeout_s is None:
            return node
        if address not in self._wires:
            self._wires[address] = Wire(node, self._reply_timeout_s)
        return self._wires[address]


def _stretches(reply: Sequence[Any], asked: Address) -> Iterable[Stretch]:
    for first, last, *nodes in reply:
        addresses = tuple(_address(node[0], node[1], asked) for node in nodes)
        yield Stretch(first, last, addresses[0], addresses)


def _address(host: bytes | str | None, port: int, asked: Address) -> Address:
    """The address of a node, where it tells none: the one that the client has reached it by."""
    name = host.decode() if isinstance(host, bytes) else host
    return name if name and name != "?" else asked[0], port


def _named(redirection: foreign.AskError, asked: Address) -> Address:
    return _address(redirection.host, redirection.port, asked)


def _text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


async def _piped(node: Redis, rows: Sequence[Sequence[Any]]) -> list[Any]:
    """The replies, errors among them."""
    async with node.pipeline(transaction=False) as pipe:
        for row in rows:
            pipe.execute_command(*row)
        return list(await pipe.execute(raise_on_error=False))


def _served(reply: T | Exception) -> T:
    if isinstance(reply, Exception):
        raise reply
    return reply


def _slot_of(args: Sequence[Any]) -> int:
    """The slot of a command's first key; commands without a key may go anywhere, so to the first slot."""
    key = _key_of(args)
    if key is None:
        return 0
    return key_slot(key if isinstance(key, bytes) else str(key).encode())


def _key_of(args: Sequence[Any]) -> Any:
    match args:
        case ("EVAL" | "EVALSHA", _, 0, *_):
            return None
        case ("EVAL" | "EVALSHA", _, _, key, *_):
            return key
        case ("XREAD", *words):
            return words[words.index("STREAMS") + 1]
        case (_, key, *_):
            return key
        case _:
            return None
