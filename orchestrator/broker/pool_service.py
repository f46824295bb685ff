"""Whether anybody serves a session, by its pool's sets: the only truth about it.

A session's hash names its last holder and where it stood at its last commit. Both stay as they are
when that worker dies, so neither says that anything is going on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from orchestrator.broker.connection import Connection, ScriptCall, call
from orchestrator.broker.records import SessionHead
from orchestrator.broker.redis_keys import Keys
from orchestrator.broker.replies import read_reply
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId

if TYPE_CHECKING:
    from orchestrator.broker.replies import Serving as ServingFields

_SESSIONS_A_CALL = 250
"""Sessions of one script call. A script holds Redis for as long as it runs: about half a millisecond for this
many."""


@record
class Serving:
    """How a session is served at one moment of Redis's clock. Neither held nor due: it is parked."""

    now_ms: int
    lease_ms: int | None = None
    """The time when the holder's lease runs out, or ran out; None if no worker holds the session."""
    due: bool = False

    @property
    def held(self) -> bool:
        """Whether a worker that was heard from lately holds the session."""
        return self.lease_ms is not None and self.lease_ms > self.now_ms

    @property
    def lost_ms(self) -> int | None:
        """The time when the holder's lease ran out, if no worker has taken the session since; else None."""
        return None if self.lease_ms is None or self.held else self.lease_ms


async def serving(
    connection: Connection, keys: Keys, heads: Sequence[SessionHead]
) -> dict[SessionId, Serving]:
    """How each of these sessions is served; those of one pool and shard at one moment."""
    groups = list(_groups(keys, heads))
    replies = await connection.run_all([call for call, _ in groups]) if groups else []
    found: dict[SessionId, Serving] = {}
    for (asked, sessions), reply in zip(groups, replies, strict=True):
        read: ServingFields = read_reply(asked, reply).fields
        for session, (lease_ms, due) in zip(sessions, read["found"], strict=True):
            found[session] = Serving(read["now"], lease_ms, due)
    return found


def _groups(keys: Keys, heads: Sequence[SessionHead]) -> Iterator[tuple[ScriptCall, list[SessionId]]]:
    together: dict[tuple[int, str], list[SessionId]] = {}
    for head in heads:
        together.setdefault((keys.shard_of(head.session), head.pool), []).append(head.session)
    for (shard, pool), sessions in together.items():
        names = [keys.due(shard, pool), keys.leases(shard, pool)]
        for start in range(0, len(sessions), _SESSIONS_A_CALL):
            some = sessions[start : start + _SESSIONS_A_CALL]
            yield call("serving", names, sessions=some), some
