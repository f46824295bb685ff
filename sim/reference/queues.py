"""Pools and queues: who becomes due and in what order, and what a queue's entry is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim.reference.given import number, written
from sim.reference.sight import HINT, Fields, Sight

HINTS_KEPT = 256
ASKED_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool's name, and the keys of one shard of it."""

    name: bytes
    due: bytes
    leases: bytes
    ready: bytes
    clock: bytes
    near: bytes = b""
    """The beginning of the names of keys that are of no shard; empty where all workers are told."""

    @classmethod
    def at(cls, name: bytes, keys: Sequence[bytes], first: int, near: bytes = b"") -> Pool:
        due, leases, ready, clock = keys[first : first + 4]
        return cls(name, due, leases, ready, clock, near)


def gets_turn(sight: Sight, pool: Pool, session: bytes, agents: bytes) -> None:
    """Trees take turns: one behind the tree's last turn, and behind where the pool is."""
    tree, turn = sight.hash(agents), b"turn:" + pool.name
    order = 1 + max(int(sight.text(pool.clock) or 0), number(tree, turn))
    sight.zset(pool.due)[session] = order
    tree[turn] = written(order)
    sight.is_shown_anew(session)


def all_hear(sight: Sight, pool: Pool, session: bytes) -> None:
    sight.stream(pool.ready).add(HINT, {b"s": session}, HINTS_KEPT)


def becomes_due(sight: Sight, pool: Pool, session: bytes, agents: bytes) -> None:
    """Every worker is told."""
    gets_turn(sight, pool, session, agents)
    all_hear(sight, pool, session)


def wakes(sight: Sight, pool: Pool, session: bytes, agents: bytes, hash_: Fields, taker: bytes = b"") -> None:
    """Tells one worker: who had it last, else who was told least often; all if nobody wants to be.

    The `taker` is not told of what it had last.
    """
    gets_turn(sight, pool, session, agents)
    last = hash_.get(b"last", b"")
    if pool.near and last and (last == taker or _hears(sight, pool, session, last)):
        hash_[b"due_ms"] = written(sight.now)
    elif not pool.near or not _one_hears(sight, pool, session):
        all_hear(sight, pool, session)


def _hears(sight: Sight, pool: Pool, session: bytes, worker: bytes) -> bool:
    stream = sight.stream(sight.also(pool.near + b"near:" + worker))
    if stream.length:
        stream.add(HINT, {b"s": session, b"p": pool.name}, HINTS_KEPT)
    return stream.length > 0


def _one_hears(sight: Sight, pool: Pool, session: bytes) -> bool:
    waiting = sight.zset(sight.also(pool.near + b"open:" + pool.name))
    for worker in sorted(waiting, key=lambda one: (waiting[one], one))[:ASKED_AT_ONCE]:
        if _hears(sight, pool, session, worker):
            waiting[worker] += 1
            return True
        del waiting[worker]
    return False


def is_woken(
    sight: Sight, pool: Pool, session: bytes, agents: bytes, hash_: Fields, taker: bytes = b""
) -> None:
    """Something was put into its queue: it is due, unless it is held, due already, or set aside."""
    quarantined = hash_.get(b"quarantined") == b"1"
    if not quarantined and session not in sight.zset(pool.leases) and session not in sight.zset(pool.due):
        wakes(sight, pool, session, agents, hash_, taker)


def holder(sight: Sight, pool: Pool, session: bytes, hash_: Fields) -> bytes:
    return hash_.get(b"owner", b"") if session in sight.zset(pool.leases) else b""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a submission queue."""

    kind: bytes
    payload: bytes
    client: bytes = b""
    submission: bytes = b""
    sender: bytes = b""
    generation: bytes = b"0"
    lane: bytes = b"0"
    by: bytes = b""


def enqueued(sight: Sight, session: Fields, sq: bytes, entry: Entry) -> int:
    """The number of the new entry; the queue's side of the hash is written with it."""
    n, total = number(session, b"sq") + 1, number(session, b"sq_total")
    sight.stream(sq).add(
        n,
        {
            b"k": entry.kind,
            b"p": entry.payload,
            b"c": entry.client,
            b"u": entry.submission,
            b"f": entry.sender,
            b"q": session[b"seq"],
            b"t": written(sight.now),
            b"b": written(total),
            b"g": entry.generation,
            b"i": entry.lane,
            **({b"a": entry.by} if entry.by else {}),
        },
    )
    session[b"sq"], session[b"sq_total"] = written(n), written(total + len(entry.payload))
    keeps_depths(session)
    return n


def keeps_depths(session: Fields) -> None:
    """Writes all fields of a queue's side: a script that writes one of them writes all."""
    for name in (b"sq", b"sq_total", b"regular", b"interrupts"):
        session[name] = written(number(session, name))


def held_bytes(session: Fields) -> int:
    return number(session, b"sq_total") - number(session, b"sq_done")


def hash8(head: bytes) -> bytes:
    return head[:4].hex().encode()
