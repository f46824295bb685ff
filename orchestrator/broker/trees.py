"""Acting on a tree as a whole: ids, limits, claims. The steps of its agents are commits, as ever.

Knows no agents' doings. What it needs to know of a tree it reads from the registry first, and the
scripts check it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.broker.claims import Claims
from orchestrator.broker.commit_requests import tree_event_rows
from orchestrator.broker.connection import ScriptCall, call
from orchestrator.broker.deletion import Deletion
from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.fleet_index import FleetIndex
from orchestrator.broker.logs import Logs
from orchestrator.broker.port import Deployment
from orchestrator.broker.records import Place, SessionHead
from orchestrator.broker.registry import registry_of
from orchestrator.broker.requests import eq_limits
from orchestrator.broker.resting import Resting
from orchestrator.broker.tree_records import BUDGET_KINDS, ClaimState, LimitChange, LimitsRaised, Registry
from orchestrator.core.ids import AgentId, SessionId, TreeId

if TYPE_CHECKING:
    from orchestrator.broker.reply_fields import RaiseLimitsOk, ReserveOk, RevokeMoved, RevokeOk
    from orchestrator.broker.reply_fields import Registry as RegistryFields

WARN_PERCENT = 80
MOST_WHO = 200
"""Characters of the name of the person who gives unsaved changes up."""
_SESSIONS_A_CALL = 250
"""Sessions of one script call. A script holds Redis for as long as it runs: about a millisecond for this
many."""


def warned(kind: str) -> str:
    """The name under which a tree is warned once that a budget is nearly used up (`TreeEvent.once`)."""
    return f"{kind}:{WARN_PERCENT}"


def exhausted(kind: str) -> str:
    """The name under which it is said once that a budget is used up."""
    return f"{kind}:100"


class Trees(Deletion, FleetIndex, Resting):
    """The port to whole trees: what they are, their limits and claims, their lists, and their end."""

    def __init__(self, deployment: Deployment, logs: Logs, claims: Claims) -> None:
        super().__init__(deployment)
        self._logs = logs
        self._claims = claims

    async def registry(self, tree: TreeId) -> Registry:
        """The projection of a tree, all at one moment; raises `UnknownSession` if there is no such tree."""
        return (await self.projection(tree))[0]

    async def projection(self, tree: TreeId) -> tuple[Registry, dict[str, bytes]]:
        """The same with the flat fields that it was read from."""
        reply = await self._run(call("registry", [self.keys.agents(tree)]))
        read: RegistryFields = reply.fields
        found = {name.decode(): value for name, value in read["fields"].items()}
        if "root" not in found:
            raise UnknownSession(tree)
        return registry_of(tree, found, self._clock.note(read["now"])), found

    async def agents(self, tree: TreeId) -> dict[str, bytes]:
        """The projection of a tree in flat fields."""
        found = await self._connection.command("HGETALL", self.keys.agents(tree))
        return {name.decode(): value for name, value in found.items()}

    async def registries(self, trees: Sequence[TreeId]) -> list[dict[str, bytes]]:
        """The flat fields of several projections."""
        rows = [("HGETALL", self.keys.agents(tree)) for tree in trees]
        found = await self._connection.commands(rows) if rows else []
        return [{name.decode(): value for name, value in fields.items()} for fields in found]

    async def members(self, tree: TreeId) -> tuple[SessionHead, ...]:
        """The heads of the tree's sessions that exist, the root's last."""
        fields = await self.agents(tree)
        named = [SessionId(value.decode()) for name, value in fields.items() if name.startswith("s:")]
        heads = await self._logs.heads([session for session in named if str(session) != str(tree)])
        return (*heads, *await self._logs.heads([SessionId(tree)]))

    async def reserve(self, tree: TreeId, count: int) -> range:
        """Reserves agent ids of the tree, which are given out once."""
        reply = await self._run(call("reserve", [self.keys.agents(tree)], count=count), tree)
        if reply.code != "OK":
            raise reply.unexpected()
        reserved: ReserveOk = reply.fields
        self._clock.note(reserved["now"])
        return range(AgentId(reserved["first"]), reserved["first"] + count)

    async def raise_limits(self, tree: TreeId, change: LimitChange) -> LimitsRaised:
        """Adds to limits, once per change, and wakes the sessions that wait for room in a budget."""
        reply = await self._run(self._raise_call(tree, change), tree)
        match reply.code:
            case "OK" | "DUP" as code:
                raised: RaiseLimitsOk = reply.fields
            case _:
                raise reply.unexpected()
        woken = raised["woken"]
        if woken:
            await self._claims.fire_soon(self.keys.shard_of(tree))
        return LimitsRaised(dict(raised["found"]), code == "OK", woken, self._clock.note(raised["now"]))

    def _raise_call(self, tree: TreeId, change: LimitChange) -> ScriptCall:
        keys, root = self.keys, SessionId(tree)
        names = [keys.agents(tree), keys.tree(tree), keys.timers(keys.shard_of(tree))]
        kinds = [kind for kind in change.add if kind in BUDGET_KINDS]
        events = () if change.event is None else (change.event,)
        return call(
            "raise_limits",
            [*names, keys.session(root), keys.eq(root)],
            change=change.change,
            **eq_limits(self.config),
            adds=change.add.items(),
            forgotten=[name(kind) for kind in kinds for name in (warned, exhausted)],
            events=tree_event_rows(events, {root: 0}),
        )

    async def revoke(self, session: SessionId) -> int:
        """Takes the claim from its holder and readmits a quarantined session; answers the new epoch."""
        place = await self._place(session)
        state = await self.revoke_tree(place.tree, [session])
        if state[0].state == "gone":
            raise UnknownSession(session)
        return state[0].epoch

    async def abandon_unsaved(self, session: SessionId, who: str) -> ClaimState:
        """Takes the claim, and gives up what no store has of the folder; the log will say `who` did it.

        The state is `saved`, and nothing is taken, if the store has all of it.
        """
        place = await self._place(session)
        state = (await self._revoke(place.tree, [session], "", who[:MOST_WHO]))[0]
        if state.state == "gone":
            raise UnknownSession(session)
        return state

    async def revoke_tree(
        self, tree: TreeId, sessions: Sequence[SessionId], silent_s: float | None = None
    ) -> tuple[ClaimState, ...]:
        """Takes the claims of sessions of one tree, and says where each stood.

        With `silent_s` only claims whose lease ran out that long ago: their holder's supervisor has killed
        by its own clock. Without it every claim, and quarantined sessions are readmitted.
        """
        silent = "" if silent_s is None else str(int(silent_s * 1000))
        found: list[ClaimState] = []
        for start in range(0, len(sessions), _SESSIONS_A_CALL):
            found += await self._revoke(tree, sessions[start : start + _SESSIONS_A_CALL], silent)
        return tuple(found)

    async def _revoke(
        self, tree: TreeId, sessions: Sequence[SessionId], silent: str, abandons: str = ""
    ) -> list[ClaimState]:
        known, gone = await self._split(tree, sessions)
        states = {session: ClaimState(session, "gone", 0, None) for session in gone}
        while known:
            reply = await self._run(self._revoke_call(known, tree, silent, abandons), tree)
            match reply.code:
                case "OK":
                    revoked: RevokeOk = reply.fields
                    self._note_time(self.keys.shard_of(tree), revoked["now"])
                    for place, (state, epoch, worker) in zip(known, revoked["found"], strict=True):
                        states[place.session] = ClaimState(place.session, state, epoch, worker or None)
                    break
                case "MOVED":
                    moved: RevokeMoved = reply.fields
                    self._places.pop(SessionId(moved["session"]), None)
                    known, _ = await self._split(tree, [place.session for place in known])
                case _:
                    raise reply.unexpected()
        return [states.get(session, ClaimState(session, "gone", 0, None)) for session in sessions]

    async def _split(
        self, tree: TreeId, sessions: Sequence[SessionId]
    ) -> tuple[list[Place], list[SessionId]]:
        """The places of the tree's sessions, and the sessions that do not exist."""
        known, gone = [], []
        for session in sessions:
            try:
                place = await self._place(session)
            except UnknownSession:
                gone.append(session)
                continue
            if place.tree != tree:
                raise ValueError(f"session {session} is of the tree {place.tree}, not of {tree}")
            known.append(place)
        return known, gone

    def _revoke_call(self, places: Sequence[Place], tree: TreeId, silent: str, abandons: str) -> ScriptCall:
        shard = self.keys.shard_of(tree)
        pools = list(dict.fromkeys(place.pool for place in places))
        keys = [self.keys.agents(tree)]
        for pool in pools:
            keys += self.keys.pool(shard, pool)
        keys += [self.keys.session(place.session) for place in places]
        listed = [(place.session, pools.index(place.pool) + 1) for place in places]
        certain = self._witnesses[shard].certain_ms()
        return call(
            "revoke",
            keys,
            tree=tree,
            silent=silent,
            certain_ms=certain,
            pools=pools,
            sessions=listed,
            abandons=abandons,
        )
