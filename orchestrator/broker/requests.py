"""Turns records into the key and argument lists that the scripts read: counts, then flat rows.

The order here and the order of `take` in the Lua files are one contract. Nothing here talks to Redis.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.broker.connection import Argument, Call
from orchestrator.broker.errors import CommitTooLarge
from orchestrator.broker.keys import Keys
from orchestrator.broker.records import (
    BrokerConfig,
    Claim,
    CommitRequest,
    NewEntry,
    NewEvent,
    NewSession,
    NewTree,
    Place,
    Submit,
)
from orchestrator.broker.scripts import load
from orchestrator.core.ids import SessionId

MAX_ENTRIES = 256
MAX_COMMIT_BYTES = 1 << 20
"""A commit holds Redis for as long as it runs, and every other session of the server waits."""
MAX_SUBMISSION_BYTES = 8 << 20


def payload_digest(*parts: bytes) -> str:
    """What tells a repeated request from another one under the same id."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def rows(items: Iterable[Sequence[Argument]]) -> list[Argument]:
    """A count and then the rows, flat: what `take_list` reads."""
    flat: list[Argument] = [0]
    for item in items:
        flat[0] = int(flat[0]) + 1
        flat.extend(item)
    return flat


def queue_number(sq_id: str) -> int:
    """The number in `<n>-0`."""
    return int(sq_id.partition("-")[0])


def holder_args(claim: Claim) -> list[Argument]:
    """The three values that prove a claim."""
    return [claim.worker, claim.claim_id, claim.epoch]


def _entry_rows(entries: Iterable[NewEntry]) -> list[Argument]:
    return rows((e.payload, e.salt, e.chain) for e in entries)


def event_rows(events: Iterable[NewEvent]) -> list[Argument]:
    return rows((e.payload, e.seq, e.hash8) for e in events)


def session_digest(born: NewSession) -> str:
    """What makes two requests to create a session the same request."""
    parts = [born.tree.encode(), born.pool.encode(), (born.parent or "").encode(), born.meta]
    for entry in born.entries:
        parts += [entry.payload, entry.salt, entry.chain]
    for event in born.events:
        parts.append(event.payload)
    for submission in born.submissions:
        parts += [submission.client.encode(), submission.submission.encode(), submission.payload]
    return payload_digest(*parts)


def birth_keys(keys: Keys, session: SessionId) -> list[str]:
    return [
        keys.session(session),
        keys.rollout(session),
        keys.eq(session),
        keys.sq(session),
        *keys.seen(session),
    ]


def birth_args(born: NewSession, pool_index: int) -> list[Argument]:
    submissions = (
        (s.client, s.submission, payload_digest(s.kind.encode(), s.payload), s.kind, s.payload, s.sender)
        for s in born.submissions
    )
    return [
        born.session,
        born.tree,
        pool_index,
        born.agent_id,
        born.parent or "",
        session_digest(born),
        born.status,
        born.meta,
        *_entry_rows(born.entries),
        *event_rows(born.events),
        *rows(submissions),
    ]


def create_call(keys: Keys, config: BrokerConfig, tree: NewTree) -> Call:
    root = tree.root
    shard = keys.shard_of(root.session)
    return Call(
        load("create"),
        [
            keys.agents(root.tree),
            keys.tree(root.tree),
            keys.sessions(shard),
            *keys.pool(shard, root.pool),
            *birth_keys(keys, root.session),
        ],
        [
            root.pool,
            *eq_limits(config),
            *birth_args(root, 0),
            *rows((payload,) for payload in tree.tree_entries),
            *rows(tree.summary.items()),
        ],
    )


def submit_call(keys: Keys, config: BrokerConfig, submit: Submit, place: Place) -> Call:
    if len(submit.payload) > MAX_SUBMISSION_BYTES:
        raise CommitTooLarge(
            f"a submission may have {MAX_SUBMISSION_BYTES} bytes, this has {len(submit.payload)}"
        )
    session = submit.session
    return Call(
        load("submit"),
        [
            keys.session(session),
            keys.sq(session),
            *keys.seen(session),
            keys.agents(place.tree),
            *keys.pool(keys.shard_of(session), place.pool),
        ],
        [
            session,
            place.pool,
            place.tree,
            submit.client,
            submit.submission,
            payload_digest(submit.kind.encode(), submit.payload),
            submit.kind,
            submit.payload,
            submit.sender,
            config.sq_max_entries,
            config.sq_max_bytes,
            config.seen_keep,
            int(config.seen_keep_s * 1000),
        ],
    )


@dataclass(frozen=True, slots=True)
class CommitShape:
    """Where the sessions that a commit touches beyond its own live, and their further pools."""

    places: Mapping[SessionId, Place]
    pools: tuple[str, ...]

    def pool_index(self, pool: str, own: str) -> int:
        return 0 if pool == own else self.pools.index(pool) + 1


def shape_of(request: CommitRequest, places: Mapping[SessionId, Place]) -> CommitShape:
    wanted = [place.pool for place in places.values()] + [child.pool for child in request.children]
    pools = dict.fromkeys(pool for pool in wanted if pool != request.claim.pool)
    return CommitShape(places, tuple(pools))


def check_bounds(request: CommitRequest) -> None:
    """Raises `CommitTooLarge` for what would hold Redis too long."""
    count = len(request.entries) + sum(len(child.entries) for child in request.children)
    if count > MAX_ENTRIES:
        raise CommitTooLarge(
            f"a commit may carry {MAX_ENTRIES} entries, this one has {count}; split the step"
        )
    size = sum(map(len, _payloads(request)))
    if size > MAX_COMMIT_BYTES:
        raise CommitTooLarge(
            f"a commit may carry {MAX_COMMIT_BYTES} bytes, this one has {size}; store large outputs as blobs"
        )


def _payloads(request: CommitRequest) -> Iterable[bytes]:
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
        found += [keys.session(target), keys.sq(target)]
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
        "" if request.cursor is None else queue_number(request.cursor),
        request.release,
        *request.taken,
        *eq_limits(config),
        config.sq_max_entries,
        config.sq_max_bytes,
        *rows(_changed_fields(request)),
        *_entry_rows(request.entries),
        *event_rows(request.events),
        *rows((timer,) for timer in request.timers_clear),
        *rows((t.id, t.generation, t.at_ms, t.payload) for t in request.timers_set),
        *rows((pool,) for pool in shape.pools),
        *_mail_args(request, shape),
        *_children_args(request, shape),
        *rows((b"0".join(event.parts),) for event in request.tree_events),
        *rows((approval.key, approval.payload) for approval in request.approvals_open),
        *rows((key,) for key in request.approvals_close),
        *rows(request.summary.items()),
        *rows((draw.counter, draw.amount, draw.limit) for draw in request.draws),
        *rows((field,) for field in request.unless_marked),
    ]


def _changed_fields(request: CommitRequest) -> Iterable[tuple[str, Argument]]:
    if request.status is not None:
        yield "status", request.status
    if request.meta is not None:
        yield "meta", request.meta
    if request.min_core is not None:
        yield "min_core", request.min_core


def _mail_args(request: CommitRequest, shape: CommitShape) -> list[Argument]:
    order = {target: index for index, target in enumerate(shape.places, start=1)}
    targets = ((t, shape.pool_index(place.pool, request.claim.pool)) for t, place in shape.places.items())
    letters = ((order[m.to], m.payload, int(m.interrupt), m.key) for m in request.mail)
    return [*rows(targets), *rows(letters)]


def _children_args(request: CommitRequest, shape: CommitShape) -> list[Argument]:
    found: list[Argument] = [len(request.children)]
    for child in request.children:
        found += birth_args(child, shape.pool_index(child.pool, request.claim.pool))
    return found


def eq_limits(config: BrokerConfig) -> list[Argument]:
    """How much of an event queue is kept, and for how long after its last event."""
    return [config.eq_keep, int(config.eq_ttl_s * 1000)]
