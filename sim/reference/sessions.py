"""Submissions to a session, its claims, and what its holder writes beside its log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from sim.reference.births import Around, Labels, append_events, birth, is_remembered, new_session
from sim.reference.given import Given, number, replied, written
from sim.reference.lists import is_told_of_release, is_used, may_rest
from sim.reference.queues import (
    Entry,
    Pool,
    all_hear,
    becomes_due,
    enqueued,
    hash8,
    held_bytes,
    holder,
    is_woken,
)
from sim.reference.sight import HINT, Fields, Sight
from sim.reference.states import States
from sim.store import EXPIRES

Reply = list[Any]
Keys = Sequence[bytes]
FORGOTTEN_AT_ONCE = 16
LOOKED_AT = 8
LOOKED_BEHIND = 4


def first_by_score(zset: dict[bytes, float], most: float | None = None) -> list[bytes]:
    """Members with a score of at most so much, in their order."""
    kept = [m for m, score in zset.items() if most is None or score <= most]
    return sorted(kept, key=lambda m: (zset[m], m))


def holds(session: Fields, worker: bytes, claim: bytes, epoch: bytes) -> bool:
    return (session.get(b"owner"), session.get(b"claim"), session.get(b"epoch")) == (worker, claim, epoch)


def fenced(session: Fields) -> Reply:
    return [b"FENCED", number(session, b"epoch")]


# ── giving ────────────────────────────────────────────────────────────────────────────────────────


def create(sight: Sight, keys: Keys, given: Given) -> Reply:
    agents, sessions = keys[0], keys[1]
    pool = Pool.at(given.word(), keys, 2)
    keep, ttl_ms = given.number(), given.number()
    it, summary = birth(given, [pool], keys, 6), given.rows(2)
    labels, announced = Labels(*given.words(4)), given.number()
    texts = keys[16 : 16 + given.number()]
    it = replace(it, pool=replace(pool, near=given.word()))
    known = sight.hash(keys[6]).get(b"created")
    if known is not None:
        return [b"DUP" if known == it.digest else b"CONFLICT", sight.now]
    if announced and sight.zset(keys[13]).get(it.session, 0) != announced:
        sight.zset(keys[13]).setdefault(it.session, -sight.now)
        return [b"GIVEN_UP"]
    if lost := unstored(sight, texts):
        return lost
    if announced:
        del sight.zset(keys[13])[it.session]
    sight.tells_followers(keys[-1])
    tree = sight.hash(agents)
    tree[b"root"], tree[b"wall_from"] = it.session, written(sight.now)
    new_session(sight, it, Around(agents, sessions, keep, ttl_ms), labels)
    states = States()
    states.born(it.agent_id, b"", it.status)
    sight.hash(keys[6])[b"states"] = states.stored
    is_used(sight, keys[12], it.session, sight.hash(keys[6]))
    tree.update((name, value) for name, value in summary)
    may_rest(sight, keys[14], it.session)
    for key in (keys[15], *texts):
        sight.is_kept(key, None)
    return [b"OK", sight.now]


def announce(sight: Sight, keys: Keys, given: Given) -> Reply:
    return [b"OK", sight.now, int(sight.zset(keys[0]).setdefault(given.word(), sight.now))]


def give_up(sight: Sight, keys: Keys, given: Given) -> Reply:
    unborn, name = sight.zset(keys[0]), given.word()
    if b"created" in sight.hash(keys[1]):
        unborn.pop(name, None)
        return [b"BORN", sight.now]
    if unborn.get(name, 1) > 0:
        unborn[name] = -sight.now
    return [b"OK", sight.now, int(-unborn[name])]


def unstored(sight: Sight, texts: Sequence[bytes]) -> Reply | None:
    """The answer to a step that names texts of which some are not there."""
    lost = [key.rpartition(b":")[2] for key in texts if sight.text(key) is None]
    return [b"UNSTORED", lost] if lost else None


def submit(sight: Sight, keys: Keys, given: Given) -> Reply:
    key, sq, seen, seen_at, agents = keys[:5]
    name, pool_name, tree, client, submission, digest, kind, payload, sender, by = given.words(10)
    most_entries, most_bytes, keep, keep_ms = (given.number() for _ in range(4))
    near = given.word()
    apart = (given.word(), given.word(), given.number(), given.number()) if given.number() else None
    pool, session = Pool.at(pool_name, keys, 5, near), sight.hash(key)
    if b"tree" not in session:
        return [b"UNKNOWN"]
    if (session[b"tree"], session[b"pool"]) != (tree, pool_name):
        return [b"MOVED", session[b"tree"], session[b"pool"]]
    quarantined, held_by = session.get(b"quarantined", b""), holder(sight, pool, name, session)
    shelved = b"1" if session.get(b"shelved") == b"1" else b""
    before = sight.hash(seen).get(client + b"|" + submission)
    if before is not None:
        first, _, known = before.partition(b":")
        return (
            [b"DUP", int(first), held_by, quarantined, shelved, sight.now]
            if known == digest
            else [b"CONFLICT"]
        )
    if session.get(b"archived") == b"1":
        return [b"ARCHIVED"]
    entries, held = sight.stream(sq).length, held_bytes(session)
    if entries >= most_entries or held + len(payload) > most_bytes:
        return [b"FULL", entries, held]
    sight.tells_followers(keys[9], keys[10])
    if apart is not None and not _set_apart(sight, keys[11], *apart):
        return [b"SECRETS", apart[2]]
    n = enqueued(sight, session, sq, Entry(kind, payload, client, submission, sender, by=by))
    is_remembered(sight, seen, seen_at, client + b"|" + submission, n, digest)
    _forgets(sight, seen, seen_at, keep, keep_ms)
    is_woken(sight, pool, name, agents, session)
    return [b"OK", n, held_by, quarantined, shelved, sight.now]


def _set_apart(sight: Sight, key: bytes, name: bytes, texts: bytes, most: int, ttl_ms: int) -> bool:
    """Keeps the texts under their name, if there is room: all of the tree's for so long from now on."""
    secrets = sight.hash(key)
    if len(secrets.keys() - {EXPIRES, name}) >= most:
        return False
    secrets[name] = texts
    sight.expires_in(key, ttl_ms)
    return True


def keep_secret(sight: Sight, keys: Keys, given: Given) -> Reply:
    n, name, texts, most, ttl_ms = given.number(), given.word(), given.word(), given.number(), given.number()
    if number(sight.hash(keys[0]), b"cursor") >= n:
        return [b"OK", sight.now]
    fits = _set_apart(sight, keys[1], name, texts, most, ttl_ms)
    return [b"OK", sight.now] if fits else [b"SECRETS", most]


def _forgets(sight: Sight, seen: bytes, seen_at: bytes, keep: int, keep_ms: int) -> None:
    """An id goes when there are enough younger ones, and it is old enough; some at a time."""
    at = sight.zset(seen_at)
    surplus = min(len(at) - keep, FORGOTTEN_AT_ONCE)
    for name in first_by_score(at, sight.now - keep_ms)[: max(0, surplus)]:
        del at[name]
        sight.hash(seen).pop(name, None)


def fire(sight: Sight, keys: Keys, given: Given) -> Reply:
    timers, own_timers, key, sq, agents = keys[:5]
    name, pool_name, tree, timer = given.words(4)
    again_ms = given.number()
    pool = Pool.at(pool_name, keys, 5, given.word())
    session, member = sight.hash(key), name + b":" + timer
    deadlines, set_ = sight.zset(timers), sight.hash(own_timers)
    if member not in deadlines or deadlines[member] > sight.now:
        return [b"NONE"]
    if b"tree" in session and (session[b"tree"], session[b"pool"]) != (tree, pool_name):
        return [b"MOVED", session[b"tree"], session[b"pool"]]
    if b"tree" not in session or session.get(b"archived") == b"1" or timer not in set_:
        del deadlines[member]
        set_.pop(timer, None)
        return [b"NONE"]
    sight.tells_followers(keys[9], keys[10])
    generation, _, payload = set_[timer].partition(b":")
    n = number(session, b"sq")
    if not again_ms or not sight.stream(sq).length:
        entry = Entry(b"timer", payload, submission=timer, generation=generation)
        n = enqueued(sight, session, sq, entry)
    if again_ms:
        deadlines[member] = sight.now + again_ms
    else:
        del deadlines[member], set_[timer]
    is_woken(sight, pool, name, agents, session)
    return [b"OK", n, int(generation), holder(sight, pool, name, session), sight.now]


# ── holding ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Affinity:
    """A claimer's machine, one that is gone, one that is full; its patience, and whether it lacks room."""

    machine: bytes
    gone: bytes
    full: bytes
    leave_ms: int
    roomless: bool

    def waits_ms(self, session: Fields, now: int) -> int:
        """How long the session is left to others; a first look at one that is saved is noted."""
        on, failed_on = session.get(b"copy_on", b""), session.get(b"failed_on", b"")
        copy_elsewhere = on not in (b"", self.machine, self.gone)
        kept_here = on == self.machine and session.get(b"unsaved") == b"1" and not session.get(b"abandoned")
        if self.roomless and b"copy_on" in session and not kept_here:
            return max(self.leave_ms, 1)
        if session.get(b"unsaved") == b"1":
            return max(self.leave_ms, 1) if copy_elsewhere and not session.get(b"abandoned") else 0
        if (not copy_elsewhere or on == self.full) and failed_on != (self.machine or None):
            return 0
        since = number(session, b"left_ms")
        if not 0 < since <= now:
            since = now
            session[b"left_ms"] = written(now)
        return max(0, since + self.leave_ms - now)


def is_anothers(sight: Sight, key: bytes, worker: bytes, near_ms: int) -> bool:
    """Whether another worker alone was just told of a session."""
    told = sight.hash(key)
    fresh = 0 <= sight.now - number(told, b"due_ms") < near_ms
    return fresh and told.get(b"last", b"") not in (b"", worker)


def claim(sight: Sight, keys: Keys, given: Given) -> Reply:
    key, sq, eq, due_key, leases_key, clock = keys[:6]
    sight.tells_followers(*keys[6:8])
    name, pool, worker, identity = given.words(4)
    core, lease_ms, certain_ms = given.number(), given.number(), given.number()
    whom, page, most_tries, event = given.word(), given.number(), given.number(), given.word()
    keep, ttl_ms = given.number(), given.number()
    machine, gone, full = given.words(3)
    affinity = Affinity(machine, gone, full, given.number(), bool(given.number()))
    passing = {row[0] for row in given.rows(1)}
    near_ms, attends = given.number(), given.word() == b"1"
    session, due, leases = sight.hash(key), sight.zset(due_key), sight.zset(leases_key)
    if b"tree" not in session:
        due.pop(name, None)
        leases.pop(name, None)
        return [b"UNKNOWN"]
    if session[b"pool"] != pool:
        return [b"MOVED", session[b"tree"], session[b"pool"]]
    if session.get(b"quarantined") == b"1":
        return [b"NONE"]
    if number(session, b"min_core") > core:
        return [b"OLD", number(session, b"min_core")]
    certain = min(sight.now, certain_ms)

    def is_left(one: bytes) -> bool:
        return is_anothers(sight, sight.also(key.removesuffix(name) + one), worker, near_ms)

    def comes_next() -> bytes:
        expired = [one for one in first_by_score(leases, certain)[: len(passing) + 1] if one not in passing]
        in_turn = first_by_score(due)[: len(passing) + 4]
        return next((one for one in expired), b"") or next(
            (one for one in in_turn if one not in passing and not is_left(one)), b""
        )

    if (session.get(b"claim"), session.get(b"owner")) == (identity, worker):
        return claimed(sight, session, sq, page, comes_next())
    if whom == b"next" and (first := comes_next()) != name:
        return [b"NONE", first]
    parked, archived = name not in due and name not in leases, session.get(b"archived") == b"1"
    if leases.get(name, 0) > certain or (parked and (whom != b"parked" or archived)):
        return [b"NONE"]
    if name in due and not whom and is_left(name):
        return [b"NONE", comes_next()]
    if archived:
        due.pop(name, None)
        leases.pop(name, None)
        return [b"ARCHIVED"]
    if whom != b"parked" and (wait_ms := affinity.waits_ms(session, sight.now)):
        passing.add(name)
        unsaved = int(session.get(b"unsaved") == b"1")
        return [b"LEFT", session.get(b"copy_on", b""), unsaved, wait_ms, comes_next()]
    epoch, tries = number(session, b"epoch") + 1, number(session, b"tries") + (whom != b"parked")
    session.pop(b"revoked", None)
    session[b"epoch"] = written(epoch)
    order = due.pop(name, None)
    if tries >= most_tries:
        n = number(session, b"eq") + 1
        session |= {b"quarantined": b"1", b"owner": b"", b"claim": b"", b"eq": written(n)}
        leases.pop(name, None)
        sight.zset(keys[8])[name] = sight.now
        row = (event, session[b"seq"], hash8(session[b"head"]), b"0")
        append_events(sight, eq, [row], n - 1, keep, ttl_ms)
        sight.is_shown_anew(name)
        return [b"QUARANTINED"]
    session |= {b"owner": worker, b"claim": identity, b"tries": written(tries)}
    if attends or b"last" in session:
        session[b"last"] = worker if attends else b""
    session.pop(b"left_ms", None)
    leases[name] = sight.now + lease_ms
    if order is not None and order > int(sight.text(clock) or 0):
        sight.set(clock, written(order))
    sight.is_shown_anew(name)
    return claimed(sight, session, sq, page, comes_next())


def claimed(sight: Sight, session: Fields, sq: bytes, page: int, comes_next: bytes) -> Reply:
    """The answer to the holder of a claim: where the session stands, and what waits for it."""
    cursor = number(session, b"cursor")
    queue = [[i, [w for pair in e.items() for w in pair]] for i, e in sight.entries(sq, cursor)[:page]]
    found = [number(session, n) for n in (b"epoch", b"agent_id", b"seq", b"sq", b"snapshot_seq", b"eq")]
    epoch, agent_id, seq, tip, snapshot_seq, eq_n = found
    return replied(
        "claim",
        "OK",
        epoch=epoch,
        tree=session[b"tree"],
        agent_id=agent_id,
        seq=seq,
        head=session[b"head"],
        cursor=cursor,
        sq=tip,
        snapshot_seq=snapshot_seq,
        tries=number(session, b"tries"),
        now=sight.now,
        eq=eq_n,
        queued=queue,
        next=comes_next,
        commit=session.get(b"commit", b""),
        abandoned=session.get(b"abandoned", b""),
    )


def renew(sight: Sight, keys: Keys, given: Given) -> Reply:
    name, *who = given.words(4)
    lease_ms, reached = given.number(), given.number()
    session = sight.hash(keys[0])
    if not holds(session, *who) or number(session, b"seq") < reached:
        return fenced(session)
    sight.zset(keys[1])[name] = sight.now + lease_ms
    return [b"OK", number(session, b"sq"), sight.now]


def release(sight: Sight, keys: Keys, given: Given) -> Reply:
    key, agents = keys[:2]
    name, pool_name, worker, identity, epoch, seq, head = given.words(7)
    pool, session = Pool.at(pool_name, keys, 2), sight.hash(key)
    was_revoked = (session.get(b"owner"), session.get(b"revoked")) == (worker, identity)
    stopped = was_revoked and number(session, b"epoch") == int(epoch) + 1
    if not stopped and not holds(session, worker, identity, epoch):
        return fenced(session)
    ends = (session[b"seq"], session[b"head"]) == (seq, head)
    parks = ends and number(session, b"sq") == number(session, b"cursor")
    session |= {b"owner": b"", b"claim": b""}
    if stopped:
        del session[b"revoked"]
    sight.zset(pool.leases).pop(name, None)
    if not parks:
        becomes_due(sight, pool, name, agents)
    is_told_of_release(sight, keys[6], name)
    return [b"OK", int(parks), sight.now]


def bury(sight: Sight, keys: Keys, given: Given) -> Reply:
    key, agents = keys[:2]
    name, pool_name, worker, identity, epoch = given.words(5)
    most_tries, pause_ms = given.number(), given.number()
    pool, session = Pool.at(pool_name, keys, 2), sight.hash(key)
    was_revoked = (session.get(b"owner"), session.get(b"revoked")) == (worker, identity)
    stopped = was_revoked and number(session, b"epoch") == int(epoch) + 1
    if not stopped and not holds(session, worker, identity, epoch):
        return fenced(session)
    lately = 0 <= sight.now - number(session, b"buried_ms") < pause_ms
    if lately or number(session, b"tries") > most_tries:
        return [b"LEFT", sight.now]
    sight.tells_followers(keys[7])
    session |= {b"owner": b"", b"claim": b"", b"buried_ms": written(sight.now)}
    session.pop(b"revoked", None)
    sight.zset(pool.leases).pop(name, None)
    becomes_due(sight, pool, name, agents)
    is_told_of_release(sight, keys[6], name)
    return [b"OK", sight.now]


def revoke(sight: Sight, keys: Keys, given: Given) -> Reply:
    agents = keys[0]
    sight.tells_followers(keys[1])
    tree, silent, certain_ms = given.word(), given.word(), given.number()
    names = [row[0] for row in given.rows(1)]
    pools = [Pool.at(pool, keys, 2 + 4 * at) for at, pool in enumerate(names)]
    rows, abandons = given.rows(2), given.word()
    certain, found = min(sight.now, certain_ms), []
    hashes = [sight.hash(key) for key in keys[2 + 4 * len(pools) :]]
    for (name, at), session in zip(rows, hashes, strict=True):
        where = (session.get(b"tree"), session.get(b"pool"))
        if b"tree" in session and where != (tree, pools[int(at) - 1].name):
            return [b"MOVED", *where, name]
    for (name, at), session in zip(rows, hashes, strict=True):
        pool = pools[int(at) - 1]
        if abandons and session.get(b"unsaved") == b"1":
            session[b"abandoned"] = abandons
        elif abandons and b"tree" in session:
            found += [b"saved", number(session, b"epoch"), session.get(b"owner", b"")]
            continue
        found += _taken(sight, pool, name, session, agents, silent, certain)
        if abandons and name not in sight.zset(pool.due) and name not in sight.zset(pool.leases):
            becomes_due(sight, pool, name, agents)
    return [b"OK", sight.now, found]


def _taken(
    sight: Sight, pool: Pool, name: bytes, session: Fields, agents: bytes, silent: bytes, certain: int
) -> Reply:
    """Takes one claim, if it is to be taken; tells where the session stood, its epoch and its owner."""
    epoch, owner = number(session, b"epoch"), session.get(b"owner", b"")
    expiry = sight.zset(pool.leases).get(name)
    if b"tree" not in session:
        return [b"gone", epoch, owner]
    if expiry is None:
        state = b"free"
        takes = not silent
    else:
        takes = not silent or expiry + int(silent) <= certain
        state = b"revoked" if takes else b"held"
    waits = expiry is not None and expiry > certain
    claim_, owed = session.get(b"claim", b""), expiry is not None or session.get(b"quarantined") == b"1"
    if not takes or (waits and not claim_):
        return [state, epoch, owner]
    session |= {b"epoch": written(epoch + 1), b"claim": b"", b"quarantined": b"", b"tries": b"0"}
    if waits:
        session[b"revoked"] = claim_
    else:
        session[b"owner"] = b""
        session.pop(b"revoked", None)
        sight.zset(pool.leases).pop(name, None)
        if owed:
            becomes_due(sight, pool, name, agents)
    sight.is_shown_anew(name)
    return [state, epoch + 1, owner]


def emit(sight: Sight, keys: Keys, given: Given) -> Reply:
    who, keep, ttl_ms, events = given.words(3), given.number(), given.number(), given.rows(3)
    session = sight.hash(keys[0])
    if not holds(session, *who):
        return fenced(session)
    n, tip = number(session, b"eq"), number(session, b"sq")
    if any(int(row[1]) != number(session, b"seq") for row in events):
        return [b"OK", n, tip, sight.now]
    append_events(sight, keys[1], [[*row, b"0"] for row in events], n, keep, ttl_ms)
    session[b"eq"] = written(n + len(events))
    return [b"OK", n + len(events), tip, sight.now]


# ── keeping ───────────────────────────────────────────────────────────────────────────────────────


def snapshot(sight: Sight, keys: Keys, given: Given) -> Reply:
    who, seq, state = given.words(3), given.number(), given.word()
    session = sight.hash(keys[0])
    if not holds(session, *who):
        return fenced(session)
    if seq > number(session, b"seq"):
        return [b"REFUSED", b"ahead"]
    if seq < number(session, b"snapshot_seq"):
        return [b"REFUSED", b"older"]
    session[b"snapshot_seq"] = written(seq)
    sight.set(keys[1], state)
    return [b"OK", sight.now]


def pass_on(sight: Sight, keys: Keys, given: Given) -> Reply:
    name, pool = given.word(), Pool.at(given.word(), keys, 1)
    if name not in sight.zset(pool.due):
        return [b"NONE", sight.now]
    sight.hash(keys[0]).pop(b"due_ms", None)
    all_hear(sight, pool, name)
    return [b"OK", sight.now]


def attend(sight: Sight, keys: Keys, given: Given) -> Reply:
    worker, ttl_ms, near = given.word(), given.number(), sight.stream(keys[0])
    near.is_gone()
    near.add(HINT, {b"s": b"", b"p": b""})
    near.expires_us = sight.now_us + ttl_ms * 1000
    for key in keys[1:]:
        sight.zset(key).setdefault(worker, min(sight.zset(key).values(), default=0))
    return [b"OK", sight.now, b"%d-0" % sight.now]


def turn_away(sight: Sight, keys: Keys, given: Given) -> Reply:
    worker, read = given.word(), _place(given.word())
    near = sight.stream(keys[0])
    # One that has expired has nothing left.
    told = sight.entries(keys[0], 0) if near.length else []
    behind = [entry for at, entry in told if _place(at) > read]
    near.is_gone()
    for key in keys[1:]:
        sight.zset(key).pop(worker, None)
    return [b"OK", sight.now, [entry[name] for entry in behind for name in (b"s", b"p")]]


def _place(entry: bytes) -> tuple[int, int]:
    ms, n = entry.split(b"-")
    return int(ms), int(n)


# ── looking ───────────────────────────────────────────────────────────────────────────────────────


def look(sight: Sight, keys: Keys, given: Given) -> Reply:
    every_ms, worker, near_ms = given.number(), given.word(), given.number()
    pools, looked = [name for (name,) in given.rows(1)], sight.hash(keys[0])
    asked = [at for at, pool in enumerate(pools) if not 0 <= sight.now - number(looked, pool) < every_ms]
    if not asked:
        return [sight.now, 0, [], []]
    width = 1 + 2 * len(pools)
    shards = [keys[at : at + width] for at in range(1, len(keys) - width + 1, width)]
    jobs = keys[1 + width * len(shards) :]

    def passed(key: bytes) -> bool:
        return bool(first_by_score(sight.zset(key), sight.now))

    def left(due: bytes, pool: bytes) -> list[bytes]:
        """Those of the first that are due that are left to another worker."""
        if not near_ms:
            return []
        sessions = due.removesuffix(b"due:" + pool) + b"session:"
        first = first_by_score(sight.zset(due))[:LOOKED_AT]
        return [one for one in first if is_anothers(sight, sight.also(sessions + one), worker, near_ms)]

    timed = [place for place, row in enumerate(shards, 1) if passed(row[0])]
    claimable, waits = [], False
    for at in asked:
        for place, row in enumerate(shards, 1):
            due, others = sight.zset(row[1 + 2 * at]), left(row[1 + 2 * at], pools[at])
            if len(others) == LOOKED_AT or len(due) > len(others) or passed(row[2 + 2 * at]):
                claimable += [place, at + 1]
            waits = waits or bool(others)
    has_jobs = any(sight.zset(jobs[at]) for at in asked if jobs)
    if not (claimable or timed or has_jobs or waits):
        looked.update((pools[at], written(sight.now)) for at in asked)
    return [sight.now, int(has_jobs), claimable, timed]


def peek(sight: Sight, keys: Keys, given: Given) -> Reply:
    offset, count = given.number(), given.number()
    expired, due = first_by_score(sight.zset(keys[1]), sight.now), first_by_score(sight.zset(keys[0]))
    return [sight.now, expired[offset : offset + count], due[offset : offset + count]]


def serving(sight: Sight, keys: Keys, given: Given) -> Reply:
    found: Reply = []
    for (name,) in given.rows(1):
        lease = sight.zset(keys[1]).get(name)
        found += [b"" if lease is None else written(lease), int(name in sight.zset(keys[0]))]
    return [sight.now, found]


def timers_due(sight: Sight, keys: Keys, given: Given) -> Reply:
    return [sight.now, first_by_score(sight.zset(keys[0]), sight.now)[: given.number()]]


def heartbeat(sight: Sight, keys: Keys, given: Given) -> Reply:
    worker, state, left, forget_ms = given.word(), given.word(), given.word() == b"1", given.number()
    silent_ms, places = given.number(), list[Any]()
    states, heard, drains = sight.hash(keys[0]), sight.zset(keys[1]), sight.hash(keys[2])
    told = int(worker in drains)
    states[worker], heard[worker] = state, sight.now
    for gone in [*([worker] if left else []), *first_by_score(heard, sight.now - forget_ms)[:64]]:
        for kept in (states, heard, drains):
            kept.pop(gone, None)
    for key in keys[3:]:
        row = sight.zset(key)
        if left:
            row.pop(worker, None)
            continue
        row.setdefault(worker, sight.now)
        order = first_by_score(row)
        behind = order[order.index(worker) + 1 :] or order
        silent = takewhile(lambda one: heard.get(one, -1) <= sight.now - silent_ms, behind[:LOOKED_BEHIND])
        for gone in list(silent):
            row.pop(gone)
        places += [first_by_score(row).index(worker), len(row)]
    return [b"OK", sight.now, told, places]


def drain(sight: Sight, keys: Keys, given: Given) -> Reply:
    worker = given.word()
    if worker not in sight.zset(keys[1]):
        return [b"UNHEARD"]
    sight.hash(keys[2])[worker] = b""
    return [b"OK", sight.now]
