"""A session comes into being, as a root or as a child of a commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim.reference.given import Given, written
from sim.reference.queues import Entry, Pool, enqueued, wakes
from sim.reference.sight import Fields, Sight

NO_HEAD = bytes(32)


@dataclass(slots=True)
class Birth:
    """The contents of a new session, and its six keys."""

    session: bytes
    tree: bytes
    pool: Pool
    agent_id: bytes
    parent: bytes
    digest: bytes
    status: bytes
    meta: bytes
    min_core: int
    portable: bool
    entries: list[list[bytes]]
    events: list[list[bytes]]
    submissions: list[list[bytes]]
    keys: Sequence[bytes]


def birth(given: Given, pools: Sequence[Pool], keys: Sequence[bytes], first: int) -> Birth:
    return Birth(
        given.word(),
        given.word(),
        pools[given.number()],
        given.word(),
        given.word(),
        given.word(),
        given.word(),
        given.word(),
        given.number(),
        bool(given.number()),
        given.rows(3),
        given.rows(4),
        given.rows(6),
        keys[first : first + 6],
    )


def append_entries(
    sight: Sight, rollout: bytes, entries: Sequence[Sequence[bytes]], seq: int, epoch: bytes
) -> None:
    for n, (payload, salt, chain) in enumerate(entries, seq + 1):
        sight.stream(rollout).add(n, {b"p": payload, b"s": salt, b"e": epoch, b"h": chain})


def append_events(
    sight: Sight, eq: bytes, events: Sequence[Sequence[bytes]], n: int, keep: int, ttl_ms: int
) -> None:
    """Rows are payload, seq, hash8 and time (0: that of the call), and of an event of the tree its number."""
    if not events:
        return
    stream = sight.stream(eq)
    for number, row in enumerate(events, n + 1):
        entry = dict(zip((b"p", b"s", b"h", b"t", b"x"), row, strict=False))
        if entry[b"t"] == b"0":
            entry[b"t"] = written(sight.now)
        stream.add(number, entry, keep)
    stream.expires_us = sight.now_us + ttl_ms * 1000


@dataclass(frozen=True, slots=True)
class Labels:
    """Where lists show a session, and who may see it."""

    namespace: bytes
    source: bytes
    who: bytes
    ephemeral: bytes = b""


@dataclass(frozen=True, slots=True)
class Around:
    """The keys and bounds that all births of a call share."""

    agents: bytes
    sessions: bytes
    keep: int
    ttl_ms: int


def new_session(sight: Sight, it: Birth, around: Around, labels: Labels) -> None:
    agents, sessions, keep, ttl_ms = around.agents, around.sessions, around.keep, around.ttl_ms
    key, rollout, eq, sq, seen, seen_at = it.keys
    head = it.entries[-1][2] if it.entries else NO_HEAD
    session: Fields = sight.hash(key)
    session |= {
        b"tree": it.tree,
        b"pool": it.pool.name,
        b"agent_id": it.agent_id,
        b"parent": it.parent,
        b"created": it.digest,
        b"created_ms": written(sight.now),
        b"status": it.status,
        b"meta": it.meta,
        b"min_core": written(it.min_core),
        b"seq": written(len(it.entries)),
        b"head": head,
        b"eq": written(len(it.events)),
    }
    session |= dict.fromkeys((b"cursor", b"epoch", b"tries", b"sq", b"sq_total"), b"0")
    session |= {b"owner": b"", b"claim": b"", b"regular": b"0", b"interrupts": b"0"}
    session |= {b"namespace": labels.namespace, b"source": labels.source}
    session |= {b"who": labels.who, b"ephemeral": labels.ephemeral}
    if it.portable:
        session[b"copy_on"] = b""
    append_entries(sight, rollout, it.entries, 0, b"0")
    append_events(sight, eq, it.events, 0, keep, ttl_ms)
    for client, submission, digest, kind, payload, sender in it.submissions:
        n = enqueued(sight, session, sq, Entry(kind, payload, client, submission, sender))
        is_remembered(sight, seen, seen_at, client + b"|" + submission, n, digest)
    sight.hash(agents)[b"s:" + it.agent_id] = it.session
    sight.zset(sessions)[it.session] = sight.now
    if it.submissions:
        wakes(sight, it.pool, it.session, agents, session)
    else:
        sight.is_shown_anew(it.session)


def is_remembered(sight: Sight, seen: bytes, seen_at: bytes, name: bytes, n: int, digest: bytes) -> None:
    sight.hash(seen)[name] = written(n) + b":" + digest
    sight.zset(seen_at)[name] = sight.now
