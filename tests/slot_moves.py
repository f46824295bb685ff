"""Slots of a real cluster on their way from one node to another, as an operator moves them.

Knows nothing of the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from redis.crc import key_slot

from tests.servers import RedisServer

_MIGRATE_MS = 5_000


def slot_of(key: str) -> int:
    return key_slot(key.encode())


def node_of(nodes: Sequence[RedisServer], slot: int) -> RedisServer:
    """The node that has a slot."""
    for first, last, primary, *_ in _ask(nodes[0], "CLUSTER", "SLOTS"):
        if first <= slot <= last:
            return next(node for node in nodes if node.port == primary[1])
    raise LookupError(f"nobody has slot {slot}")


def _ask(node: RedisServer, *args: Any) -> Any:
    with closing(node.client()) as client:
        return client.execute_command(*args)


@dataclass
class Move:
    """A slot's way from `source` to `target`."""

    slot: int
    source: RedisServer
    target: RedisServer
    nodes: Sequence[RedisServer]

    @staticmethod
    def id_of(node: RedisServer) -> str:
        found: bytes = _ask(node, "CLUSTER", "MYID")
        return found.decode()

    def begin(self) -> None:
        """From now on the source sends on who asks for a key that it has not."""
        _ask(self.target, "CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.id_of(self.source))
        _ask(self.source, "CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.id_of(self.target))

    def left(self) -> list[str]:
        """The keys that the source still has."""
        found: list[bytes] = _ask(self.source, "CLUSTER", "GETKEYSINSLOT", self.slot, 100_000)
        return [key.decode() for key in found]

    def keys(self, keys: Sequence[str]) -> None:
        """Moves some keys, each whole and at once."""
        if keys:
            _ask(self.source, "MIGRATE", "127.0.0.1", self.target.port, "", 0, _MIGRATE_MS, "KEYS", *keys)

    def end(self) -> None:
        """The slot is the target's, and every node knows."""
        target = self.id_of(self.target)
        for node in (self.target, self.source, *self.nodes):
            _ask(node, "CLUSTER", "SETSLOT", self.slot, "NODE", target)
