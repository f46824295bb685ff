"""The state of a worker, as each of its heartbeats carries it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field, fields
from typing import TYPE_CHECKING, Any

import orjson

from orchestrator.broker.connection import Connection, ScriptCall, call
from orchestrator.broker.records import SessionHead
from orchestrator.broker.redis_keys import Keys
from orchestrator.broker.replies import read_reply
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId

if TYPE_CHECKING:
    from orchestrator.broker.replies import Serving as ServingFields

SILENT_MS = 15_000
"""Heartbeats come every 5 s: a worker that missed three of them is stuck, cut off or dead."""


@record
class MachineFacts:
    """The process of a worker, and its machine."""

    machine: str = ""
    """Its host name."""
    pid: int = 0
    version: str = ""
    core: int = 0
    """The newest core whose sessions it may take."""
    started_ms: int = 0
    clock_ms: int = 0
    """Its wall clock at the heartbeat."""
    load: float = 0.0
    """Processes of its machine that want to run, by core, over the last minute."""
    workspaces: str = ""
    """The folder below which it has copies of portable folders; of an older worker, none."""
    machine_id: str = ""
    """The stable name under which logs know its machine's copies; of an older worker, none."""
    unfit: str = ""
    """Why its machine makes no portable folders now; empty if it does, and of an older worker."""


@record
class Pace:
    """A worker's work for one pool, over the last minute."""

    claims_per_s: float = 0.0
    turns_per_s: float = 0.0
    """Model requests that were answered, or given up."""
    tokens_per_min: int = 0


@record
class WorkerState:
    """A worker's last heartbeat; one of an older version says nothing of its machine."""

    pools: tuple[str, ...]
    held: int
    """Sessions that it runs."""
    room: int
    """Sessions that it may run."""
    draining: bool = False
    paces: Mapping[str, Pace] = field(default_factory=dict)
    """By pool."""
    facts: MachineFacts | None = None


def encoded(state: WorkerState) -> bytes:
    """The state as the broker keeps it: one JSON object without levels."""
    facts: dict[str, Any] = {} if state.facts is None else asdict(state.facts)
    own: dict[str, Any] = {
        "pools": state.pools,
        "held": state.held,
        "room": state.room,
        "draining": state.draining,
    }
    own["paces"] = {pool: asdict(pace) for pool, pace in state.paces.items()}
    return orjson.dumps({**own, **facts})


def decoded(payload: bytes) -> WorkerState:
    """The state that a worker of any version has sent; of what is none, that of one which takes nothing."""
    try:
        found = orjson.loads(payload or b"{}")
    except ValueError:
        found = {}
    # The claims of the whole fleet read each heartbeat: one that is damaged must not end them.
    told: Mapping[str, Any] = found if isinstance(found, dict) else {}
    facts = _known(MachineFacts, told)
    pools, paces = told.get("pools"), told.get("paces")
    return WorkerState(
        pools=tuple(pool for pool in pools if isinstance(pool, str)) if isinstance(pools, list) else (),
        **{name: _number(told.get(name)) for name in ("held", "room")},
        draining=told.get("draining") is True,
        paces=_paces(paces if isinstance(paces, dict) else {}),
        facts=MachineFacts(**facts) if facts else None,
    )


def _paces(told: Mapping[str, Any]) -> dict[str, Pace]:
    return {pool: Pace(**_known(Pace, pace)) for pool, pace in told.items() if isinstance(pace, dict)}


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _known(kind: type[MachineFacts | Pace], found: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that this version knows of what another one has sent, as far as they are of their types."""
    usual = {spec.name: spec.default for spec in fields(kind)}
    return {name: value for name, value in found.items() if name in usual and _is_like(value, usual[name])}


def _is_like(value: object, usual: object) -> bool:
    # A whole number of what is a fraction may be written as an integer.
    return isinstance(value, (int, float) if isinstance(usual, float) else type(usual))


# ── pool service ──────────────────────────────────────────────────────────────────────────────────
# Whether anybody serves a session, by its pool's sets: the only truth about it.
#
# A session's hash names its last holder and where it stood at its last commit. Both stay as they are when
# that worker dies, so neither says that anything is going on.


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
