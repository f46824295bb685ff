"""Turns one step into the key and argument list of `commit.lua`, and refuses what is too large to send.

The order here and the order of `take` in the script are one contract. Nothing here talks to Redis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.broker.connection import Argument, Call
from orchestrator.broker.errors import CommitTooLarge
from orchestrator.broker.keys import Keys
from orchestrator.broker.records import BrokerConfig, CommitRequest, Place
from orchestrator.broker.requests import (
    birth_args,
    birth_keys,
    entry_rows,
    eq_limits,
    event_rows,
    holder_args,
    queue_number,
    rows,
)
from orchestrator.broker.scripts import load
from orchestrator.broker.tree_records import Spend, TreeEvent
from orchestrator.core.ids import SessionId

MAX_ENTRIES = 256
MAX_COMMIT_BYTES = 1 << 20
"""A commit holds Redis for as long as it runs, and every other session of the server waits."""


@dataclass(frozen=True, slots=True)
class CommitShape:
    """Where the sessions that a commit touches beyond its own live, and their further pools."""

    places: Mapping[SessionId, Place]
    pools: tuple[str, ...]

    def order(self, own: SessionId) -> dict[SessionId, int]:
        """How the script numbers the sessions that it touches: itself 0, the others from 1."""
        return {own: 0, **{target: number for number, target in enumerate(self.places, start=1)}}

    def pool_index(self, pool: str, own: str) -> int:
        return 0 if pool == own else self.pools.index(pool) + 1


def others_of(request: CommitRequest) -> tuple[tuple[SessionId, ...], tuple[SessionId, ...]]:
    """The other sessions that a commit writes to, and those that it only tells of an event."""
    own = request.claim.session
    written = dict.fromkeys(mail.to for mail in request.mail if mail.to != own)
    named = (target for event in request.tree_events for target in (*event.targets, event.inbox))
    told = dict.fromkeys(t for t in named if t is not None and t != own and t not in written)
    born = {child.session for child in request.children}
    return tuple(written), tuple(t for t in told if t not in born)


def shape_of(request: CommitRequest, places: Mapping[SessionId, Place]) -> CommitShape:
    wanted = [place.pool for place in places.values()] + [child.pool for child in request.children]
    pools = dict.fromkeys(pool for pool in wanted if pool != request.claim.pool)
    return CommitShape(places, tuple(pools))


def check_bounds(request: CommitRequest) -> None:
    """Raises `CommitTooLarge` for what would hold Redis too long."""
    _check_tree_part(request)
    count = len(request.entries) + sum(len(child.entries) for child in request.children)
    if count > MAX_ENTRIES:
        raise CommitTooLarge(
            f"a commit may carry {MAX_ENTRIES} entries, this one has {count}; split the step"
        )
    size = sum(map(len, payloads(request)))
    if size > MAX_COMMIT_BYTES:
        raise CommitTooLarge(
            f"a commit may carry {MAX_COMMIT_BYTES} bytes, this one has {size}; store large outputs as blobs"
        )


def _check_tree_part(request: CommitRequest) -> None:
    for event in request.tree_events:
        if len(event.parts) > 1 and event.inbox is None:
            raise ValueError("an event in several parts names no inbox whose depths go between them")
    wait = request.budget_wait
    if wait is not None and len(wait.timer.split()) != 1:
        raise ValueError(f"the id of a timer that waits for a budget is one word, not {wait.timer!r}")


def payloads(request: CommitRequest) -> Iterable[bytes]:
    """Whatever of a commit grows with what was said and done."""
    yield from (entry.payload for entry in request.entries)
    yield from (event.payload for event in request.events)
    yield from (mail.payload for mail in request.mail)
    for event in request.tree_events:
        yield from (*event.parts, event.about)
    yield from (timer.payload for timer in request.timers_set)
    yield from (approval.payload for approval in request.approvals_open)
    yield from request.summary.values()
    yield request.meta or b""
    for child in request.children:
        yield from (entry.payload for entry in child.entries)
        yield from (event.payload for event in child.events)
        yield from (submission.payload for submission in child.submissions)
        yield child.meta


def commit_call(keys: Keys, config: BrokerConfig, request: CommitRequest, shape: CommitShape) -> Call:
    return Call(load("commit"), _commit_keys(keys, request, shape), _commit_args(config, request, shape))


def _commit_keys(keys: Keys, request: CommitRequest, shape: CommitShape) -> list[str]:
    claim = request.claim
    session, shard = claim.session, keys.shard_of(claim.session)
    found = [
        keys.session(session),
        keys.rollout(session),
        keys.eq(session),
        keys.sq(session),
        keys.tree(claim.tree),
        keys.agents(claim.tree),
        *keys.pool(shard, claim.pool),
        keys.timers(shard),
        keys.timer(session),
        keys.approvals(shard),
        keys.sessions(shard),
    ]
    for pool in shape.pools:
        found += keys.pool(shard, pool)
    for target in shape.places:
        found += [keys.session(target), keys.sq(target), keys.eq(target)]
    for child in request.children:
        found += birth_keys(keys, child.session)
    return found


def _commit_args(config: BrokerConfig, request: CommitRequest, shape: CommitShape) -> list[Argument]:
    claim = request.claim
    return [
        claim.session,
        claim.pool,
        claim.tree,
        *holder_args(claim),
        request.commit_id,
        request.expect_seq,
        request.expect_head,
        request.expect_commit,
        "" if request.cursor is None else queue_number(request.cursor),
        request.release,
        *request.taken,
        *eq_limits(config),
        config.sq_max_entries,
        config.sq_max_bytes,
        *rows(_changed_fields(request)),
        *entry_rows(request.entries),
        *event_rows(request.events),
        *rows((timer,) for timer in request.timers_clear),
        *rows((t.id, t.generation, t.at_ms, t.payload) for t in request.timers_set),
        *rows((approval.key, approval.payload) for approval in request.approvals_open),
        *rows((key,) for key in request.approvals_close),
        *_tree_args(config, request, shape),
    ]


def _changed_fields(request: CommitRequest) -> Iterable[tuple[str, Argument]]:
    if request.status is not None:
        yield "status", request.status
    if request.meta is not None:
        yield "meta", request.meta
    if request.min_core is not None:
        yield "min_core", request.min_core


def _tree_args(config: BrokerConfig, request: CommitRequest, shape: CommitShape) -> list[Argument]:
    """0 for the usual step, which concerns nobody else; else 1 and all that does."""
    if not _concerns_tree(request):
        return [0]
    own = request.claim.pool
    reservation, wait = request.reservation, request.budget_wait
    return [
        1,
        *rows((pool,) for pool in shape.pools),
        *rows((target, shape.pool_index(place.pool, own)) for target, place in shape.places.items()),
        *_mail_rows(request, shape),
        *_children_args(config, request, shape),
        *tree_event_rows(request.tree_events, shape.order(request.claim.session)),
        *rows(request.summary.items()),
        *rows((draw.counter, draw.amount, draw.limit) for draw in request.draws),
        *rows((field,) for field in request.unless_marked),
        int(request.within_budget),
        *rows((s.request, int(s.used is None), *amount(s.used)) for s in request.settlements),
        *rows((r.request, *amount(r.amount)) for r in (reservation,) if r is not None),
        *rows((w.timer, *amount(w.amount)) for w in (wait,) if w is not None),
    ]


def _concerns_tree(request: CommitRequest) -> bool:
    return bool(
        request.mail
        or request.children
        or request.tree_events
        or request.summary
        or request.draws
        or request.unless_marked
        or request.within_budget
        or request.settlements
        or request.reservation
        or request.budget_wait
    )


def amount(spend: Spend | None) -> tuple[int, int, int]:
    """As the scripts read it; they ignore the numbers of an estimate."""
    return (0, 0, 0) if spend is None else (spend.tokens, spend.cost, spend.requests)


def _mail_rows(request: CommitRequest, shape: CommitShape) -> list[Argument]:
    order = shape.order(request.claim.session)
    return rows(
        (order[m.to], m.payload, int(m.interrupt), m.key, int(m.counted), int(m.bounded))
        for m in request.mail
    )


def tree_event_rows(events: Iterable[TreeEvent], order: Mapping[SessionId, int]) -> list[Argument]:
    """The events as `take_tree_events` reads them; `order` numbers the sessions that the script knows."""
    flat: list[Argument] = [0]
    for event in events:
        flat[0] = int(flat[0]) + 1
        inbox = "" if event.inbox is None else order.get(event.inbox, "")
        flat += [event.after, inbox, event.once, event.about]
        flat += rows((part,) for part in event.parts)
        flat += rows((order[target],) for target in dict.fromkeys(event.targets) if target in order)
    return flat


def _children_args(config: BrokerConfig, request: CommitRequest, shape: CommitShape) -> list[Argument]:
    found: list[Argument] = [len(request.children)]
    for child in request.children:
        pool_index = shape.pool_index(child.pool, request.claim.pool)
        found += birth_args(child, pool_index, config.core_version)
    return found
