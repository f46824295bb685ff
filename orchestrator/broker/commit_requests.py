"""Turns one step into what `commit.lua` takes, and refuses what is too large to send.

Nothing here talks to Redis.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from orchestrator.broker.connection import ScriptCall, call
from orchestrator.broker.errors import CommitTooLarge
from orchestrator.broker.records import SPEND_DAYS, BrokerConfig, CommitRequest, Place, Spend, day_of
from orchestrator.broker.redis_keys import Keys
from orchestrator.broker.script_requests import birth, birth_keys, eq_limits, holder, mark_of, queue_number
from orchestrator.broker.scripts import Argument
from orchestrator.core.chain import SALT_BYTES
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId

if TYPE_CHECKING:
    from orchestrator.core.commit_parts import TreeEvent

_NO_PAYLOAD = b""
"""Stands in the commit's column for what a timer says beyond its id: none has ever said more."""
_SPEND_MS = SPEND_DAYS * 86_400_000
MOST_MODEL = 200
"""Characters of a model's name in the usage of a day."""
MAX_ENTRIES = 256
MAX_COMMIT_BYTES = 1 << 20
"""A commit holds Redis for as long as it runs, and every other session of the server waits."""


@record
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
    written = dict.fromkeys(mail.to for mail in request.tree.outbox if mail.to != own)
    named = (target for event in request.tree.events for target in (*event.targets, event.inbox))
    told = dict.fromkeys(t for t in named if t is not None and t != own and t not in written)
    born = {child.session for child in request.tree.children}
    return tuple(written), tuple(t for t in told if t not in born)


def shape_of(request: CommitRequest, places: Mapping[SessionId, Place]) -> CommitShape:
    wanted = [place.pool for place in places.values()] + [child.pool for child in request.tree.children]
    pools = dict.fromkeys(pool for pool in wanted if pool != request.claim.pool)
    return CommitShape(places, tuple(pools))


def check_bounds(request: CommitRequest) -> None:
    """Raises `CommitTooLarge` for what would hold Redis too long."""
    _check_tree_part(request)
    count = len(request.entries) + sum(len(child.entries) for child in request.tree.children)
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
    if request.redacted and request.tree.secrets_dropped:
        raise ValueError("a commit that redacts drops no secrets: both keep their keys last")
    for event in request.tree.events:
        if len(event.parts) > 1 and event.inbox is None:
            raise ValueError("an event in several parts names no inbox whose depths go between them")
    if any(child.unsealed for child in request.tree.children):
        raise ValueError("the log of a new session is not sealed yet")
    wait = request.budget.wait
    if wait is not None and len(wait.timer.split()) != 1:
        raise ValueError(f"the id of a timer that waits for a budget is one word, not {wait.timer!r}")


def payloads(request: CommitRequest) -> Iterable[bytes]:
    """The payloads of a commit: all that grows with what was said and done."""
    yield from (entry.payload for entry in request.entries)
    yield from (event.payload for event in request.events)
    yield from (mail.payload for mail in request.tree.outbox)
    for event in request.tree.events:
        yield from (*event.parts, event.about)
    yield from (approval.payload for approval in request.approvals_open)
    yield from request.tree.summary.values()
    yield request.meta or b""
    yield from (entry.encode() for entry in request.redacted)
    for child in request.tree.children:
        yield from (entry.payload for entry in child.entries)
        yield from (event.payload for event in child.events)
        yield from (submission.payload for submission in child.submissions)
        yield child.meta


def commit_call(
    keys: Keys,
    config: BrokerConfig,
    request: CommitRequest,
    shape: CommitShape,
    now_ms: int,
    *,
    takes: bool = False,
) -> ScriptCall:
    """`now_ms` is Redis's time as far as it is known: what the step settles is counted on that day.

    `takes`: the sender claims behind it whom it had last.
    """
    claim = request.claim
    return call(
        "commit",
        _commit_keys(keys, request, shape, now_ms),
        session=claim.session,
        pool_name=claim.pool,
        tree=claim.tree,
        **holder(claim),
        commit_id=request.commit_id,
        expect_seq=request.expect_seq,
        expect_head=request.expect_head,
        expect_commit=request.expect_commit,
        cursor_arg="" if request.cursor is None else queue_number(request.cursor),
        cursor_mark=mark_of(request.cursor or ""),
        release=request.release,
        taken_regular=request.tree.taken[0],
        taken_interrupts=request.tree.taken[1],
        **eq_limits(config),
        sq_max=config.sq_max_entries,
        sq_max_bytes=config.sq_max_bytes,
        fields=_changed_fields(request),
        entries=request.entries,
        events=request.events,
        timers_clear=request.timers_clear,
        timers_set=[(timer.id, timer.generation, timer.at_ms, _NO_PAYLOAD) for timer in request.timers_set],
        approvals_open=request.approvals_open,
        approvals_close=request.approvals_close,
        texts=len(request.texts),
        others=_others(keys, config, request, shape, takes=takes) if _concerns_others(request) else None,
    )


def _commit_keys(keys: Keys, request: CommitRequest, shape: CommitShape, now_ms: int) -> list[str]:
    claim = request.claim
    shard, found = keys.shard_of(claim.session), [*_own_keys(keys, claim.session, claim.tree, claim.pool)]
    for pool in shape.pools:
        found += keys.pool(shard, pool)
    for target in shape.places:
        found += [keys.session(target), keys.sq(target), keys.eq(target)]
    for child in request.tree.children:
        found += birth_keys(keys, child.session)
    if request.budget.settlements:
        found.append(keys.spend(shard, day_of(now_ms)))
    found += [keys.blob(claim.tree, digest) for digest in request.texts]
    if request.tree.secrets_dropped:
        found.append(keys.secrets(claim.tree))
    if request.redacted:
        own = claim.session
        found += [keys.redacted(own), keys.snapshot(own), keys.redactions(shard)]
    return found


@lru_cache(maxsize=512)
def _own_keys(keys: Keys, session: SessionId, tree: TreeId, pool: str) -> tuple[str, ...]:
    """The keys of every commit of a session: the same ones again and again."""
    shard = keys.shard_of(session)
    return (
        keys.session(session),
        keys.rollout(session),
        keys.eq(session),
        keys.sq(session),
        keys.tree(tree),
        keys.agents(tree),
        *keys.pool(shard, pool),
        keys.timers(shard),
        keys.timer(session),
        keys.approvals(shard),
        keys.sessions(shard),
        keys.index(shard),
        keys.asked(shard),
        keys.to_archive(shard),
        keys.to_delete(shard),
        keys.released(shard),
        keys.changed(shard),
        keys.watched(shard),
        keys.session(tree),
    )


def _changed_fields(request: CommitRequest) -> Iterable[tuple[str, Argument]]:
    if request.status is not None:
        yield "status", request.status
    if request.meta is not None:
        yield "meta", request.meta
    if request.name is not None:
        yield "name", request.name
    if request.min_core is not None:
        yield "min_core", request.min_core
    if (folder := request.folder) is not None:
        yield "copy_on", folder.machine
        yield "unsaved", "1" if folder.unsaved else ""
        yield "failed_on", folder.failed_on
        if folder.settled:
            yield "abandoned", ""
    if request.ended_seq is not None:
        yield "ended_seq", request.ended_seq


def _others(
    keys: Keys, config: BrokerConfig, request: CommitRequest, shape: CommitShape, *, takes: bool
) -> dict[str, Any]:
    """All that concerns other sessions than the step's own, and what the tree shares."""
    own, order = request.claim.pool, shape.order(request.claim.session)
    tree, budget = request.tree, request.budget
    reserved, wait = budget.reservation, budget.wait
    return {
        "near": keys.nearby,
        "takes": takes,
        "pools": shape.pools,
        "targets": [(target, shape.pool_index(place.pool, own)) for target, place in shape.places.items()],
        "mail": [
            (order[m.to], m.payload, int(m.interrupt), m.key, m.counted, m.bounded) for m in tree.outbox
        ],
        "children": [
            birth(child, shape.pool_index(child.pool, own), config.core_version) for child in tree.children
        ],
        "tree_events": tree_event_rows(tree.events, order, salted=config.salted),
        "summary": tree.summary.items(),
        "draws": tree.debits,
        "unless_marked": tree.unless_flagged,
        "within_budget": budget.within,
        "settlements": [
            (s.request, s.used is None, amount(s.used), " ".join(s.model[:MOST_MODEL].splitlines()))
            for s in budget.settlements
        ],
        "spend_ms": _SPEND_MS,
        "reservations": [(reserved.request, amount(reserved.amount))] if reserved is not None else (),
        "waits": [(wait.timer, amount(wait.amount))] if wait is not None else (),
        "secrets_drop": tree.secrets_dropped,
        "redacted": [(entry.seq, entry.encode()) for entry in request.redacted],
        "redacting": " ".join(("owed", *request.redacting)),
    }


def _concerns_others(request: CommitRequest) -> bool:
    tree, budget = request.tree, request.budget
    return bool(
        tree.outbox
        or tree.children
        or tree.events
        or tree.summary
        or tree.debits
        or tree.unless_flagged
        or tree.secrets_dropped
        or request.redacted
        or budget.within
        or budget.settlements
        or budget.reservation
        or budget.wait
    )


def amount(spend: Spend | None) -> tuple[int, int, int]:
    """An amount as the scripts read it; they ignore the numbers of an estimate."""
    return (0, 0, 0) if spend is None else (spend.tokens, spend.cost, spend.requests)


def tree_event_rows(
    events: Iterable[TreeEvent], order: Mapping[SessionId, int], *, salted: bool
) -> list[tuple[int, Argument, str, bytes, bytes, Sequence[bytes], list[int]]]:
    """The events as records of the scripts; `order` numbers the sessions that the script knows."""
    return [
        (
            event.after,
            "" if event.inbox is None else order.get(event.inbox, ""),
            event.once,
            event.about,
            os.urandom(SALT_BYTES) if salted else b"",
            event.parts,
            [order[target] for target in dict.fromkeys(event.targets) if target in order],
        )
        for event in events
    ]
