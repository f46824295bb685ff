"""Deletion: a whole tree leaves Redis at one moment, or none of it does.

What was seen of the sessions is the caller's; the script compares it. Knows no archive and no retention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.broker.connection import ScriptCall, call
from orchestrator.broker.errors import SessionHeld, UnknownSession
from orchestrator.broker.keys import Keys
from orchestrator.broker.logs import Logs
from orchestrator.broker.port import Port
from orchestrator.broker.records import SessionHead
from orchestrator.broker.requests import birth_keys, queue_number
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId

if TYPE_CHECKING:
    from orchestrator.broker.reply_fields import DeleteHeld, DeleteUnlisted


@record
class _Listed:
    """A session that is to go, and what it must still be; None where anything will do."""

    session: SessionId
    pool: str | None
    """None: the session was gone, and must still be."""
    epoch: int | None = None
    sq: int | None = None


@record
class _Order:
    """The sessions and keys that one call of the script deletes."""

    tree: TreeId
    listed: tuple[_Listed, ...]
    owed: bool
    whole: bool
    blobs: tuple[str, ...] = ()


class Deletion(Port):
    """The part of the broker that makes sessions disappear."""

    _logs: Logs

    async def delete_tree(self, seen: Sequence[SessionHead], *, owed: bool = False) -> None:
        """Removes every key of a tree, its log, registry and blobs too, or nothing; `seen` are its sessions.

        Raises `SessionHeld` for the first of them that a worker holds, or is to take, or that was used,
        spoken to or created since it was seen. `owed`: what they had been given by then may go too.
        """
        tree = seen[0].tree
        listed = (
            _Listed(head.session, head.pool, head.epoch, queue_number(head.sq_tip))
            for head in sorted(seen, key=lambda head: str(head.session) != str(tree))
        )
        await self._delete(_Order(tree, tuple(listed), owed, whole=True))

    async def delete_session(
        self, session: SessionId, *, owed: bool = False, epoch: int | None = None
    ) -> None:
        """Removes every key of one session; of a root the tree's too, so it must be the tree's only session.

        Raises `SessionHeld` as `delete_tree` does; without `epoch`, whoever has had it is not asked.
        """
        head = await self._logs.head(session)
        if head is None:
            raise UnknownSession(session)
        listed = _Listed(session, head.pool, epoch)
        await self._delete(_Order(head.tree, (listed,), owed, whole=str(head.tree) == str(session)))

    async def deleted(
        self, shard: int, since_ms: int, until_ms: int, limit: int, start: int = 0
    ) -> tuple[tuple[SessionId, int], ...]:
        """Sessions of a shard that were deleted then, and when, the first ones first, but for `start`.

        What was deleted 30 days ago is not known any more.
        """
        bounds = (since_ms, until_ms, "WITHSCORES", "LIMIT", start, limit)
        found = await self._connection.command("ZRANGEBYSCORE", self.keys.deleted(shard), *bounds)
        pairs = zip(found[::2], found[1::2], strict=True)
        return tuple((SessionId(session.decode()), int(float(at))) for session, at in pairs)

    async def _delete(self, order: _Order) -> None:
        while True:
            if order.whole:
                digests = await self._connection.command("SMEMBERS", self.keys.blobs(order.tree))
                order = replace(order, blobs=tuple(digest.decode() for digest in digests))
            reply = await self._run(_call(self.keys, order), order.tree)
            match reply.code:
                case "OK":
                    self._clock.note(reply.now)
                    break
                case "HELD":
                    held: DeleteHeld = reply.fields
                    raise SessionHeld(held["session"], held["owner"])
                case "UNLISTED":
                    found: DeleteUnlisted = reply.fields
                    gone = await self._gone([SessionId(session) for session in found["unlisted"]])
                    order = replace(order, listed=(*order.listed, *gone))
                case "BLOBS":
                    # One was stored, or all went, since they were listed: list them again.
                    continue
                case _:
                    raise reply.unexpected()
        for listed in order.listed:
            self._places.pop(listed.session, None)
            self._namespaces.pop(listed.session, None)

    async def _gone(self, sessions: Sequence[SessionId]) -> list[_Listed]:
        """Sessions that the registry names and nobody saw; raises `SessionHeld` if one of them lives."""
        living = await self._logs.heads(sessions)
        if living:
            raise SessionHeld(living[0].session, living[0].holder or "")
        return [_Listed(session, None) for session in sessions]


def _call(keys: Keys, order: _Order) -> ScriptCall:
    tree, shard = order.tree, keys.shard_of(order.tree)
    pools = list(dict.fromkeys(listed.pool for listed in order.listed if listed.pool is not None))
    names = [keys.sessions(shard), keys.timers(shard), keys.approvals(shard)]
    names += [keys.agents(tree), keys.blobs(tree), keys.tree(tree), keys.secrets(tree)]
    names += [keys.index(shard), keys.asked(shard), keys.to_archive(shard), keys.to_delete(shard)]
    names += [keys.deleted(shard), keys.released(shard)]
    for pool in pools:
        names += [keys.due(shard, pool), keys.leases(shard, pool)]
    for listed in order.listed:
        names += _keys_of(keys, listed.session)
    names += [keys.blob(tree, digest) for digest in order.blobs]
    sessions = (
        (
            listed.session,
            0 if listed.pool is None else pools.index(listed.pool) + 1,
            "" if listed.epoch is None else listed.epoch,
            "" if listed.sq is None else listed.sq,
        )
        for listed in order.listed
    )
    return call(
        "delete",
        names,
        tree=tree,
        owed_too=order.owed,
        whole=order.whole,
        pools=pools,
        sessions=sessions,
        blobs=len(order.blobs),
    )


def _keys_of(keys: Keys, session: SessionId) -> list[str]:
    own, *others = birth_keys(keys, session)
    return [own, keys.timer(session), *others, keys.snapshot(session)]
