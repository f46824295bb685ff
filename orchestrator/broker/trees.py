"""Acting on a tree as a whole: ids, limits, claims. The steps of its agents are commits, as ever.

Knows no agents' doings. What it needs to know of a tree it reads from the registry first, and the
scripts check it again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from orchestrator.broker.claims import Claims
from orchestrator.broker.commit_requests import tree_event_rows
from orchestrator.broker.connection import ScriptCall, call
from orchestrator.broker.errors import Corrupt, SessionHeld, UnknownSession
from orchestrator.broker.logs import Logs
from orchestrator.broker.port import Deployment, Port
from orchestrator.broker.records import (
    BUDGET_KINDS,
    Account,
    BudgetKind,
    ClaimState,
    DaySpend,
    Deleted,
    LimitChange,
    LimitsRaised,
    Place,
    Recent,
    RegisteredAgent,
    Registry,
    SessionHead,
    Source,
    Spend,
    TreeAccount,
)
from orchestrator.broker.redis_keys import Keys
from orchestrator.broker.script_requests import birth_keys, eq_limits, queue_number
from orchestrator.core.frozen import record
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.core.tree import ROOT

if TYPE_CHECKING:
    from orchestrator.broker.replies import (
        DeleteHeld,
        DeleteUnlisted,
        RaiseLimitsOk,
        RecountOk,
        ReserveIdsOk,
        RevokeMoved,
        RevokeOk,
        TreeHeads,
    )
    from orchestrator.broker.replies import Registry as RegistryFields

# ── fleet index ───────────────────────────────────────────────────────────────────────────────────
# The fleet's index: the roots that lists show, page by page, and what people put away.
#
# Each shard has one sorted set, kept by the scripts that change a session (`_index.lua`), whose members
# are read in their order. A reader merges the shards: a page costs one read of each, whatever there is
# beside it. A place in a list is that of a session by the order's time, so it holds while others change;
# one that is used meanwhile goes to the front, as in every list by last use.


MOST_LISTED: Final = 1_000
"""Sessions of one page."""
_DIGITS: Final = 15
_BEHIND: Final = b"\xff"
"""Sorts behind every member of a prefix."""

Order = Literal["recency", "creation"]


@record
class IndexPlace:
    """A place in a list: behind this session, whose time by the list's order was this."""

    at_ms: int
    session: SessionId

    @classmethod
    def parse(cls, text: str) -> IndexPlace:
        """Reads what `str` gives; raises ValueError for anything else."""
        at, _, session = text.partition("/")
        if not (at.isdigit() and len(at) <= _DIGITS and len(session) == 36):
            raise ValueError(f"not a place in a list of sessions: {text!r}")
        return cls(int(at), SessionId(session))

    def __str__(self) -> str:
        return f"{self.at_ms}/{self.session}"

    @property
    def key(self) -> bytes:
        """The end of the member: what the members of one list are ordered by."""
        return f"{self.at_ms:0{_DIGITS}d}/{self.session}".encode()


@record
class Listed:
    """The list that is wanted: the roots of a namespace that began by one of these programs."""

    namespace: str = ""
    sources: tuple[Source, ...] = ("cli",)
    shelved: bool = False
    """Those that people have put away, and no others."""
    order: Order = "recency"
    descending: bool = True

    def prefixes(self) -> Iterator[bytes]:
        shelf, order = "a" if self.shelved else "l", self.order[0]
        for source in dict.fromkeys(self.sources):
            yield f"{self.namespace}/{shelf}/{source}/{order}/".encode()


class FleetIndex(Port):
    """The part of the broker that lists sessions."""

    _logs: Logs

    async def listed(
        self, wanted: Listed, after: IndexPlace | None = None, limit: int = 50
    ) -> tuple[IndexPlace, ...]:
        """A page of a list, from its beginning or from behind a place."""
        limit = min(limit, MOST_LISTED)
        shards, prefixes = range(self.config.shards), list(wanted.prefixes())
        rows = [
            self._read(wanted, self.keys.index(shard), prefix, after, limit)
            for prefix in prefixes
            for shard in shards
        ]
        pages = await self._connection.commands(rows) if rows else []
        # Each page is in the list's order already: its keys stand behind a prefix of one length.
        ends = [
            [member[len(prefixes[place // len(shards)]) :] for member in page]
            for place, page in enumerate(pages)
        ]
        merged = heapq.merge(*ends, reverse=wanted.descending)
        return tuple(_place(end) for end, _ in zip(merged, range(limit), strict=False))

    def _read(
        self, wanted: Listed, key: str, prefix: bytes, after: IndexPlace | None, limit: int
    ) -> Sequence[str | bytes | int]:
        low, high = b"[" + prefix, b"(" + prefix + _BEHIND
        if wanted.descending:
            high = high if after is None else b"(" + prefix + after.key
            return ("ZREVRANGEBYLEX", key, high, low, "LIMIT", 0, limit)
        low = low if after is None else b"(" + prefix + after.key
        return ("ZRANGEBYLEX", key, low, high, "LIMIT", 0, limit)

    async def listed_heads(
        self,
        wanted: Listed,
        after: IndexPlace | None = None,
        limit: int = 50,
        damaged: dict[SessionId, Corrupt] | None = None,
    ) -> tuple[tuple[IndexPlace, SessionHead], ...]:
        """The same with the sessions' heads; fewer than `limit` where the list ends, and nowhere else.

        One that was deleted meanwhile is left out, and with `damaged` one that cannot be read, too.
        """
        found, limit = list[tuple[IndexPlace, SessionHead]](), min(limit, MOST_LISTED)
        while wants := limit - len(found):
            places = await self.listed(wanted, after, wants)
            heads = await self._logs.heads([place.session for place in places], damaged)
            known = {head.session: head for head in heads}
            found += [(place, known[place.session]) for place in places if place.session in known]
            if len(places) < wants:
                break
            after = places[-1]
        return tuple(found)

    async def enlist(self, session: SessionId, *, shelve: bool | None = None) -> bool:
        """Brings a root into the index if an earlier version made it; `shelve` puts it away, or back.

        Its tree comes to what upkeep looks at, too.
        Its log and its work are not touched. False for an agent, which its tree lists. Raises
        `UnknownSession`.
        """
        shard = self.keys.shard_of(session)
        keys = [
            self.keys.session(session),
            self.keys.index(shard),
            self.keys.sessions(shard),
            self.keys.to_archive(shard),
            self.keys.to_delete(shard),
            self.keys.changed(shard),
        ]
        wanted = "" if shelve is None else str(int(shelve))
        enlist = call("enlist", keys, session=session, shelve=wanted)
        return self._is_done(await self._run(enlist, session), unless="AGENT")

    async def enlist_missing(self, heads: Iterable[SessionHead]) -> int:
        """Brings those of some sessions into the index that an earlier version made; how many there were."""
        missing = [head for head in heads if _is_missing(head)]
        for head in missing[:MOST_LISTED]:
            with suppress(UnknownSession, Corrupt):
                await self.enlist(head.session)
        return len(missing[:MOST_LISTED])


def _is_missing(head: SessionHead) -> bool:
    return head.agent_id == ROOT and not head.recency_ms and not head.labels.ephemeral


def _place(end: bytes) -> IndexPlace:
    at, _, session = end.decode().partition("/")
    return IndexPlace(int(at), SessionId(session))


# ── deletion ──────────────────────────────────────────────────────────────────────────────────────
# Deletion: a whole tree leaves Redis at one moment, or none of it does.
#
# What was seen of the sessions is the caller's; the script compares it. Knows no archive and no
# retention.


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
    by: str = ""
    blobs: tuple[str, ...] = ()


class Deletion(Port):
    """The part of the broker that makes sessions disappear."""

    _logs: Logs

    async def delete_tree(self, seen: Sequence[SessionHead], *, owed: bool = False, by: str = "") -> None:
        """Removes every key of a tree, its log, registry and blobs too, or nothing; `seen` are its sessions.

        `by`: the person who wants it, whom those who ask for it are told of (`deletion_of`).
        Raises `SessionHeld` for the first of them that a worker holds, or is to take, or that was used,
        spoken to or created since it was seen. `owed`: what they had been given by then may go too.
        """
        tree = seen[0].tree
        listed = (
            _Listed(head.session, head.pool, head.epoch, queue_number(head.sq_tip))
            for head in sorted(seen, key=lambda head: str(head.session) != str(tree))
        )
        await self._delete(_Order(tree, tuple(listed), owed, whole=True, by=by))

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

    async def deleted_at(self, session: SessionId) -> int | None:
        """When a session was deleted (Unix ms); None if it was not, or 30 days ago."""
        key = self.keys.deleted(self.keys.shard_of(session))
        score = await self._connection.command("ZSCORE", key, session)
        return None if score is None else int(float(score))

    async def deletion_of(self, session: SessionId) -> Deleted | None:
        """When and by whom a session was deleted; None if that is not known, or was 30 days ago."""
        key = self.keys.deleted_by(self.keys.shard_of(session))
        found = await self._connection.command("HGET", key, session)
        return None if found is None else Deleted.of(found)

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
            self._places.take(listed.session)
            self._namespaces.take(listed.session)

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
    names += [keys.deleted(shard), keys.released(shard), keys.deleted_by(shard), keys.sealed_tree(tree)]
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
        by=order.by,
        owed_too=order.owed,
        whole=order.whole,
        pools=pools,
        sessions=sessions,
        blobs=len(order.blobs),
    )


def _keys_of(keys: Keys, session: SessionId) -> list[str]:
    own, *others = birth_keys(keys, session)
    return [own, keys.timer(session), *others, keys.snapshot(session), keys.redacted(session)]


# ── resting ───────────────────────────────────────────────────────────────────────────────────────
# Trees that rest: what upkeep is to look at, and the large texts that leave Redis with them.


RESTING_AT_ONCE = 500
"""Trees of a shard that are read at once."""


@record
class RestingTree:
    """A tree that upkeep is to look at, as the set has it that the key names."""

    tree: TreeId
    since_ms: int
    key: str


class Resting(Port):
    """The part of trees that upkeep asks for."""

    async def seen_resting(self, key: str, until_ms: int, start: int = 0) -> tuple[RestingTree, ...]:
        """The trees of a shard's `to_archive` or `to_delete` that may rest since then or before, in order."""
        bounds = ("-inf", max(0, until_ms), "WITHSCORES", "LIMIT", start, RESTING_AT_ONCE)
        found = await self._connection.command("ZRANGEBYSCORE", key, *bounds)
        pairs = zip(found[::2], found[1::2], strict=True)
        return tuple(RestingTree(TreeId(tree.decode()), int(float(at)), key) for tree, at in pairs)

    async def trees_of(self, key: str) -> set[str]:
        """All trees of a shard's `to_archive` or `to_delete`."""
        return {tree.decode() for tree in await self._connection.command("ZRANGE", key, 0, -1)}

    async def resting_since(self, tree: TreeId) -> RestingTree | None:
        """The tree as `to_archive` has it; None if nothing of it is to be archived."""
        key = self.keys.to_archive(self.keys.shard_of(tree))
        score = await self._connection.command("ZSCORE", key, tree)
        return None if score is None else RestingTree(tree, int(float(score)), key)

    async def look_again(self, seen: RestingTree, at_ms: int | None) -> bool:
        """Lets upkeep look at the tree at another time, or never unless it is used; False if it was used."""
        keep = call("look_again", [seen.key], tree=seen.tree, seen=seen.since_ms, again=at_ms or 0)
        return self._is_done(await self._run(keep, seen.tree), unless="CHANGED")

    async def texts_of(self, tree: TreeId) -> tuple[str, ...]:
        """The hashes of all large texts that were ever stored for the tree, those that left Redis too."""
        found = await self._connection.command("SMEMBERS", self.keys.blobs(tree))
        return tuple(sorted(digest.decode() for digest in found))

    async def drop_texts(self, seen: RestingTree, digests: Sequence[str]) -> bool:
        """Takes texts out of Redis that the archive has; False, and none goes, if the tree was used since."""
        keys = [seen.key, *(self.keys.blob(seen.tree, digest) for digest in digests)]
        drop = call("drop_texts", keys, tree=seen.tree, seen=seen.since_ms, texts=len(digests))
        return self._is_done(await self._run(drop, seen.tree), unless="CHANGED")


# ── trees ─────────────────────────────────────────────────────────────────────────────────────────


WARN_PERCENT = 80
MOST_RECOUNTED = 2_000
"""Agents of a tree that one script counts."""
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
        """The flat fields of several projections; of one whose key is damaged there are none."""
        rows = [("HGETALL", self.keys.agents(tree)) for tree in trees]
        found = await self._each(rows) if rows else []
        return [{name.decode(): value for name, value in (fields or {}).items()} for fields in found]

    async def accounts(self, trees: Sequence[TreeId]) -> list[TreeAccount]:
        """The usage of some trees, of all that may be limited, their limits, and what they did lately.

        One that cannot be read has used nothing: it hides no other.
        """
        names = [*(f"spent:{kind}" for kind in _COUNTED), *(f"limit:{kind}" for kind in _COUNTED), "recent"]
        rows = [("HMGET", self.keys.agents(tree), *names) for tree in trees]
        found = await self._each(rows) if rows else []
        return [_tree_account(values) for values in found]

    async def spent_on(self, days: Sequence[str]) -> list[DaySpend]:
        """The usage that was settled on these days (as `day_of` names them), in their order."""
        shards = range(self.keys.shards)
        rows = [("HGETALL", self.keys.spend(shard, day)) for day in days for shard in shards]
        found = await self._connection.commands(rows) if rows else []
        sums: dict[tuple[str, str, str, str], Spend] = {}
        for n, fields in enumerate(found):
            for name, stored in fields.items():
                namespace, _, user = name.decode("utf-8", "replace").partition("\n")
                model, is_one, who = user.partition("\n")
                # What is no amount was used by nobody, and hides no other.
                if is_one and (spent := _amount(stored)) is not None:
                    key = (days[n // len(shards)], namespace, model, who)
                    sums[key] = sums.get(key, Spend()) + spent
        return [DaySpend(*key, spend) for key, spend in sums.items()]

    async def members(self, tree: TreeId) -> tuple[SessionHead, ...]:
        """The heads of the tree's sessions that exist, the root's last."""
        fields = await self.agents(tree)
        named = [SessionId(value.decode()) for name, value in fields.items() if name.startswith("s:")]
        heads = await self._logs.heads([session for session in named if str(session) != str(tree)])
        return (*heads, *await self._logs.heads([SessionId(tree)]))

    async def heads_at_once(self, tree: TreeId) -> tuple[int, tuple[SessionHead, ...]]:
        """The end of the tree's log, and the heads of all its sessions, pruned agents too: of one moment.

        Raises `UnknownSession` if there is no such tree, `Corrupt` if one of its sessions cannot be read.
        """
        known = {head.session: head for head in await self._logs.heads_of_tree(tree)}
        if not known:
            raise UnknownSession(tree)
        tree_seq, ends = await self.ends_at_once(tree, known)
        # Born since the shard was read.
        born = [id for id in ends if id not in known]
        known.update({head.session: head for head in await self._logs.heads(born)})
        found = (
            replace(known[id], seq=end[0], head=end[1]) for id, end in ends.items() if end and id in known
        )
        return tree_seq, tuple(found)

    async def ends_at_once(
        self, tree: TreeId, sessions: Iterable[SessionId]
    ) -> tuple[int, dict[SessionId, tuple[int, bytes] | None]]:
        """The end of the tree's log, and number and hash of the last entries of sessions: of one moment.

        Of `sessions` and of the registry's, in the order of their ids; None of one that is gone.
        """
        wanted = set(sessions)
        while True:
            asked = sorted(wanted)
            keys = [self.keys.agents(tree), *map(self.keys.session, asked)]
            read: TreeHeads = (await self._run(call("tree_heads", keys))).fields
            if not (born := set(map(SessionId, read["named"])) - wanted):
                ends = zip(asked, read["heads"], strict=True)
                return read["tree_seq"], {
                    id: (seq, head) if seq is not None else None for id, (seq, head) in ends
                }
            # Their ends have to be of the same moment.
            wanted |= born

    async def recount(self, tree: TreeId) -> str | None:
        """Counts the tree's agents in its root's hash, where an earlier version made it.

        Answers `SessionHead.states`; None of a tree that is gone, has too many agents to be counted at
        once, or was just given another one.
        """
        fields = await self.agents(tree)
        numbered = sorted(
            (int(name[2:]), value.decode()) for name, value in fields.items() if name[:2] == "s:"
        )
        if not numbered or len(numbered) > MOST_RECOUNTED:
            return None
        sessions = [session for _, session in numbered]
        keys = [self.keys.session(tree), self.keys.agents(tree), *map(self.keys.session, sessions)]
        reply = await self._run(call("recount", keys, sessions=sessions), tree)
        match reply.code:
            case "OK":
                counted: RecountOk = reply.fields
                return counted["states"]
            case "UNLISTED":
                return None
            case _:
                raise reply.unexpected()

    async def reserve(self, tree: TreeId, count: int) -> range:
        """Reserves agent ids of the tree, which are given out once."""
        reply = await self._run(call("reserve_ids", [self.keys.agents(tree)], count=count), tree)
        if reply.code != "OK":
            raise reply.unexpected()
        reserved: ReserveIdsOk = reply.fields
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
            events=tree_event_rows(events, {root: 0}, salted=self.config.salted),
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
                    self._places.take(SessionId(moved["session"]))
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
        keys = [self.keys.agents(tree), self.keys.changed(shard)]
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


# ── registry ──────────────────────────────────────────────────────────────────────────────────────
# Reads the accounts of a tree from the flat fields of `agents:<tree>`, which are listed in `records`.
#
# What agents say of themselves, their inboxes and their marks is read by `core.registry.projected`.


_PLAIN = frozenset({"tree_seq", "wall_from", "last_agent"})
"""Numbers under a plain name that are not counters of what was drawn."""


def registry_of(tree: TreeId, fields: Mapping[str, bytes], now_ms: int) -> Registry:
    """The registry that the fields are; `now_ms` is what the wall clock's budget is measured with."""
    return Registry(
        tree=tree,
        tree_seq=int(fields.get("tree_seq", 0)),
        agents={agent_id: _agent(fields, agent_id) for agent_id in _ids(fields)},
        counters={
            name: int(value)
            for name, value in fields.items()
            if ":" not in name and name not in _PLAIN and _is_number(value)
        },
        limits={name: int(value) for name, value in _under("limit:", fields).items()},
        budget={kind: _account(kind, fields, now_ms) for kind in BUDGET_KINDS},
        reserved={key: _spend(value) for key, value in _under("r:", fields).items()},
        waiting={
            SessionId(member.partition(":")[0]): why
            for why, members in _under("wait:", fields).items()
            for member in members.decode().split()
        },
    )


_COUNTED = ("tokens", "cost", "requests")


def _tree_account(values: Sequence[bytes | None] | None) -> TreeAccount:
    if values is None:
        return TreeAccount(Spend(), {}, None)
    *amounts, recent = values
    limits = zip(_COUNTED, amounts[3:], strict=True)
    try:
        return TreeAccount(
            Spend(*(int(value or 0) for value in amounts[:3])),
            {kind: int(most) for kind, most in limits if most is not None},
            None if recent is None else Recent.of(recent),
        )
    except ValueError:
        return TreeAccount(Spend(), {}, None)


def _under(prefix: str, fields: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name.removeprefix(prefix): value for name, value in fields.items() if name.startswith(prefix)}


def _ids(fields: Mapping[str, bytes]) -> list[AgentId]:
    return sorted(AgentId(int(id)) for id in _under("s:", fields))


def _is_number(value: bytes) -> bool:
    return value.removeprefix(b"-").isdigit()


def _agent(fields: Mapping[str, bytes], agent_id: AgentId) -> RegisteredAgent:
    session = SessionId(fields[f"s:{agent_id}"].decode())
    return RegisteredAgent(session, _spend(fields.get(f"u:{agent_id}", b"0 0 0")))


def _spend(stored: bytes) -> Spend:
    tokens, cost, requests = stored.split()
    return Spend(int(tokens), int(cost), int(requests))


def _amount(stored: bytes) -> Spend | None:
    try:
        return _spend(stored)
    except ValueError:
        return None


def _account(kind: BudgetKind, fields: Mapping[str, bytes], now_ms: int) -> Account:
    limit = fields.get(f"limit:{kind}")
    spent = int(fields.get(f"spent:{kind}", 0))
    if kind == "wall":
        spent = max(0, now_ms - int(fields.get("wall_from", now_ms)))
    return Account(
        kind=kind,
        spent=spent,
        held=int(fields.get(f"held:{kind}", 0)),
        limit=None if limit is None else int(limit),
        guessed=int(fields.get(f"guessed:{kind}", 0)),
    )
