"""State that sessions of a tree share: its log, its counters, its limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sim.reference.births import NO_HEAD, append_events
from sim.reference.budgets import KINDS, Budget, wakes
from sim.reference.given import Given, number, written
from sim.reference.queues import hash8
from sim.reference.sight import Fields, Sight

Reply = list[Any]


@dataclass(slots=True)
class TreeEvent:
    """An event of the tree log, and whom it is told to."""

    after: int
    inbox: bytes
    once: bytes
    about: bytes
    salt: bytes
    parts: list[bytes]
    targets: list[int]
    payload: bytes = b""


def tree_events(given: Given) -> list[TreeEvent]:
    return [
        TreeEvent(
            given.number(),
            given.word(),
            given.word(),
            given.word(),
            given.word(),
            [row[0] for row in given.rows(1)],
            [int(row[0]) for row in given.rows(1)],
        )
        for _ in range(given.number())
    ]


def not_said_yet(events: Sequence[TreeEvent], tree: Mapping[bytes, bytes]) -> list[TreeEvent]:
    """An event with a name is said once."""
    kept: dict[bytes, TreeEvent] = {}
    for at, event in enumerate(events):
        if not event.once or b"said:" + event.once not in tree:
            kept.setdefault(event.once or b"\0%d" % at, event)
    return list(kept.values())


def woven(parts: Sequence[bytes], inbox: Fields | None) -> bytes:
    """Between the parts stand the inbox's depths, messages and interrupts in turn."""
    names = (b"regular", b"interrupts")
    depths = [written(number(inbox or {}, names[at % 2])) for at in range(len(parts) - 1)]
    return b"".join(word for pair in zip(parts, [*depths, b""], strict=True) for word in pair)


@dataclass(frozen=True, slots=True)
class Cause:
    """Where the session's log stood whose step it was."""

    session: bytes
    seq: int
    head: bytes
    depths: bytes


def is_logged(
    sight: Sight, tree: Fields, stream: bytes, events: Sequence[TreeEvent], first: int, cause: Cause
) -> None:
    for n, event in enumerate(events, first + 1):
        entry = {b"p": event.payload, b"s": cause.session, b"q": written(cause.seq), b"h": cause.head}
        entry |= {b"d": cause.depths, b"t": written(sight.now), b"a": event.about}
        entry |= {b"z": event.salt} if event.salt else {}
        sight.stream(stream).add(n, entry)
        if event.once:
            tree[b"said:" + event.once] = written(n)


def is_told(
    sight: Sight, session: Fields, eq: bytes, told: Sequence[tuple[bytes, int]], keep: int, ttl_ms: int
) -> None:
    """Events of the tree join a session's own."""
    n, place = number(session, b"eq"), hash8(session[b"head"])
    rows = [(payload, session[b"seq"], place, b"0", written(at)) for payload, at in told]
    append_events(sight, eq, rows, n, keep, ttl_ms)
    session[b"eq"] = written(n + len(rows))


# ── scripts ───────────────────────────────────────────────────────────────────────────────────────


def reserve_ids(sight: Sight, keys: Sequence[bytes], given: Given) -> Reply:
    tree, count = sight.hash(keys[0]), given.number()
    if not tree.get(b"root"):
        return [b"UNKNOWN"]
    last = number(tree, b"last_agent")
    tree[b"last_agent"] = written(last + count)
    return [b"OK", last + 1, sight.now]


def registry(sight: Sight, keys: Sequence[bytes], given: Given) -> Reply:
    return [sight.now, [word for pair in sight.hash(keys[0]).items() for word in pair]]


def _moved(limit: int, more: int) -> int:
    """A limit behind a change of it: no addition brings it beyond 2^52."""
    return max(limit, min(limit + more, 1 << 52)) if more > 0 else max(0, limit + more)


def raise_limits(sight: Sight, keys: Sequence[bytes], given: Given) -> Reply:
    agents, stream, timers, root_key, eq = keys
    change, keep, ttl_ms = given.word(), given.number(), given.number()
    adds, forgotten, events = given.rows(2), given.rows(1), tree_events(given)
    tree, root = sight.hash(agents), sight.hash(root_key)
    if not tree.get(b"root"):
        return [b"UNKNOWN"]
    fresh, budget = b"raised:" + change not in tree, Budget(tree, sight.now)
    used = dict(zip(KINDS, budget.spent, strict=True)) | {b"wall": budget.wall}
    raised: dict[bytes, int] = {}
    noted: list[bytes] = []
    for kind, more in adds:
        stored = tree.get(b"limit:" + kind)
        value = int(stored) if stored else used.get(kind) if fresh else None
        if value is not None:
            raised[kind] = _moved(value, int(more)) if fresh else value
            was = written(int(stored)) if stored else b"null"
            noted.append(b'"%s":[%s,%s]' % (kind, was, written(raised[kind])))
    limits = [word for pair in raised.items() for word in pair]
    if not fresh:
        return [b"DUP", sight.now, limits, 0]
    events, first = not_said_yet(events, tree), number(tree, b"tree_seq")
    for event in events:
        event.payload = woven(event.parts, None)
        event.about = event.about or b'{"limits":{%s}}' % b",".join(noted)
    tree |= {b"raised:" + change: written(sight.now), b"tree_seq": written(first + len(events))}
    tree.update((b"limit:" + kind, written(value)) for kind, value in raised.items())
    for (name,) in forgotten:
        tree.pop(b"said:" + name, None)
    cause = Cause(tree[b"root"], number(root, b"seq"), root.get(b"head", NO_HEAD), b"")
    is_logged(sight, tree, stream, events, first, cause)
    told = [(event.payload, n) for n, event in enumerate(events, first + 1) if event.targets]
    if told and b"seq" in root and root.get(b"archived") != b"1":
        is_told(sight, root, eq, told, keep, ttl_ms)
    woken = sum(wakes(sight, timers, tree.pop(b"wait:" + why, b"")) for why in (b"reserved", b"spent"))
    return [b"OK", sight.now, limits, woken]


def tree_heads(sight: Sight, keys: Sequence[bytes], given: Given) -> Reply:
    """Where a tree's log and its sessions' logs end; it writes nothing."""
    agents = sight.hash(keys[0])
    named = sorted(session for field, session in agents.items() if field.startswith(b"s:"))
    ends = [sight.hash(key) for key in keys[1:]]
    heads = [end.get(field, b"") for end in ends for field in (b"seq", b"head")]
    return [number(agents, b"tree_seq"), named, heads]
