"""Turns records into the key and argument lists that the scripts read: counts, then flat rows.

The order here and the order of `take` in the Lua files are one contract. Nothing here talks to Redis.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import chain

from orchestrator.broker.connection import Argument, Call
from orchestrator.broker.errors import CommitTooLarge
from orchestrator.broker.keys import Keys
from orchestrator.broker.records import (
    BrokerConfig,
    Claim,
    NewEntry,
    NewEvent,
    NewSession,
    NewTree,
    Place,
    Submit,
)
from orchestrator.broker.scripts import load
from orchestrator.core.ids import SessionId

MAX_SUBMISSION_BYTES = 8 << 20


def payload_digest(*parts: bytes) -> str:
    """What tells a repeated request from another one under the same id."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def rows(items: Iterable[Sequence[Argument]]) -> list[Argument]:
    """A count and then the rows, flat: what `take_list` reads."""
    listed = list(items)
    return [len(listed), *chain.from_iterable(listed)]


def queue_number(sq_id: str) -> int:
    """The number in `<n>-0`."""
    return int(sq_id.partition("-")[0])


def holder_args(claim: Claim) -> list[Argument]:
    """The three values that prove a claim."""
    return [claim.worker, claim.claim_id, claim.epoch]


def entry_rows(entries: Iterable[NewEntry]) -> list[Argument]:
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


def birth_args(born: NewSession, pool_index: int, core_version: int) -> list[Argument]:
    """`core_version` is its maker's: an older worker might fold another state of what it is born with."""
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
        core_version,
        *entry_rows(born.entries),
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
            keys.sessions(shard),
            *keys.pool(shard, root.pool),
            *birth_keys(keys, root.session),
        ],
        [
            root.pool,
            *eq_limits(config),
            *birth_args(root, 0, config.core_version),
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


def eq_limits(config: BrokerConfig) -> list[Argument]:
    """How much of an event queue is kept, and for how long after its last event."""
    return [config.eq_keep, int(config.eq_ttl_s * 1000)]
