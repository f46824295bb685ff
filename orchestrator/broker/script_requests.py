"""Turns records into what the scripts take, by the names that their heads give.

Nothing here talks to Redis.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.broker.connection import ScriptCall, call
from orchestrator.broker.errors import CommitTooLarge
from orchestrator.broker.records import UNLABELLED, BrokerConfig, Claim, Labels, NewTree, Place, Submit
from orchestrator.broker.redis_keys import Keys
from orchestrator.broker.scripts import Argument
from orchestrator.core.ids import SessionId
from orchestrator.core.secrets import secret_name

if TYPE_CHECKING:
    from orchestrator.core.commit_parts import NewSession

_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
MAX_SUBMISSION_BYTES = 8 << 20
SECRETS: Mapping[str, Argument] = {"most": 64, "ttl_ms": 86_400_000}
"""How many answers with texts that stand apart a tree may have, and for how long after the last of them."""


def payload_digest(*parts: bytes) -> str:
    """The digest that tells a repeated request from another one under the same id."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def queue_number(sq_id: str) -> int:
    """The number in `<n>-0`, the id of an entry, or the beginning of its place."""
    return int(sq_id.partition("-")[0])


def mark_of(place: str) -> str:
    """The part of a place that tells its entry from another of that number; empty if there is only an id."""
    return place.partition("@")[2]


def holder(claim: Claim) -> dict[str, Argument]:
    """The three values that prove a claim."""
    return {"worker": claim.worker, "claim": claim.claim_id, "epoch": claim.epoch}


def checked_namespace(namespace: str) -> str:
    """The name, which stands in keys of an index; raises `ValueError` for one that could be read as two."""
    if namespace and not _NAMESPACE.fullmatch(namespace):
        raise ValueError(
            f"namespace: at most 63 of a-z, 0-9, '.', '_' and '-', a letter or digit first; not {namespace!r}"
        )
    return namespace


def session_digest(born: NewSession, labels: Labels = UNLABELLED) -> str:
    """The digest by which two requests to create a session are the same request.

    A client that asks again seals the same entries under other salts: the first seals stand.
    """
    parts = [born.tree.encode(), born.pool.encode(), (born.parent or "").encode(), born.meta]
    parts += [entry.payload for entry in born.entries]
    for event in born.events:
        parts.append(event.payload)
    for submission in born.submissions:
        parts += [submission.client.encode(), submission.submission.encode(), submission.payload]
    if labels != UNLABELLED:
        parts += [labels.namespace.encode(), labels.source.encode(), labels.who.encode()]
        parts.append(b"1" if labels.ephemeral else b"0")
    return payload_digest(*parts)


def birth_keys(keys: Keys, session: SessionId) -> list[str]:
    return [
        keys.session(session),
        keys.rollout(session),
        keys.eq(session),
        keys.sq(session),
        *keys.seen(session),
    ]


def birth(
    born: NewSession, pool_index: int, core_version: int, labels: Labels = UNLABELLED
) -> dict[str, Any]:
    """A new session as the scripts take it.

    `core_version` is its maker's: an older worker might fold another state of what the session is born
    with.
    """
    submissions = [
        (s.client, s.submission, payload_digest(s.kind.encode(), s.payload), s.kind, s.payload, s.sender)
        for s in born.submissions
    ]
    return {
        "session": born.session,
        "tree": born.tree,
        "pool": pool_index,
        "agent_id": born.agent_id,
        "parent": born.parent or "",
        "digest": session_digest(born, labels),
        "status": born.status,
        "meta": born.meta,
        "min_core": core_version,
        "portable": born.portable,
        "entries": born.entries,
        "events": born.events,
        "submissions": submissions,
    }


def create_call(keys: Keys, config: BrokerConfig, tree: NewTree) -> ScriptCall:
    root = tree.root
    shard = keys.shard_of(root.session)
    return call(
        "create",
        [
            keys.agents(root.tree),
            keys.sessions(shard),
            *keys.pool(shard, root.pool),
            *birth_keys(keys, root.session),
            keys.index(shard),
            keys.unborn(shard),
            keys.to_archive(shard),
            keys.blobs(root.tree),
            *(keys.blob(root.tree, digest) for digest in tree.texts),
            keys.changed(shard),
        ],
        pool_name=root.pool,
        **eq_limits(config),
        born=birth(root, 0, max(config.core_version, tree.min_core), tree.labels),
        summary=tree.summary.items(),
        namespace=checked_namespace(tree.labels.namespace),
        source=tree.labels.source,
        who=tree.labels.who,
        ephemeral="1" if tree.labels.ephemeral else "",
        announced=tree.announced_ms,
        texts=len(tree.texts),
        near=keys.nearby,
    )


def submit_call(keys: Keys, config: BrokerConfig, submit: Submit, place: Place) -> ScriptCall:
    if len(submit.payload) > MAX_SUBMISSION_BYTES:
        raise CommitTooLarge(
            f"a submission may have {MAX_SUBMISSION_BYTES} bytes, this has {len(submit.payload)}"
        )
    session, shard = submit.session, keys.shard_of(submit.session)
    apart = None
    if submit.secret:
        apart = {"name": secret_name(submit.client, submit.submission), "value": submit.secret, **SECRETS}
    return call(
        "submit",
        [
            keys.session(session),
            keys.sq(session),
            *keys.seen(session),
            keys.agents(place.tree),
            *keys.pool(shard, place.pool),
            keys.changed(shard),
            keys.watched(shard),
            *([keys.secrets(place.tree)] if apart else ()),
        ],
        session=session,
        pool_name=place.pool,
        tree=place.tree,
        client=submit.client,
        submission=submit.submission,
        digest=payload_digest(submit.kind.encode(), submit.payload),
        kind=submit.kind,
        payload=submit.payload,
        sender=submit.sender,
        by=submit.by,
        max_entries=config.sq_max_entries,
        max_bytes=config.sq_max_bytes,
        keep=config.seen_keep,
        keep_ms=int(config.seen_keep_s * 1000),
        near=keys.nearby,
        apart=apart,
    )


def eq_limits(config: BrokerConfig) -> dict[str, Argument]:
    """How much of an event queue is kept, and for how long after its last event."""
    return {"eq_keep": config.eq_keep, "eq_ttl_ms": int(config.eq_ttl_s * 1000)}
