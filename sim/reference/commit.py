"""The one write of the system: what a step makes visible, and why it may not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sim.reference.births import Around, Birth, Labels, append_entries, append_events, birth, new_session
from sim.reference.budgets import Budget, amount_of, amount_text, lately, used_by, wakes
from sim.reference.given import Given, letters, number, replied, written
from sim.reference.lists import is_told_of_release, is_told_of_request, is_used, may_rest
from sim.reference.queues import (
    Entry,
    Pool,
    becomes_due,
    enqueued,
    hash8,
    held_bytes,
    holder,
    is_woken,
    keeps_depths,
)
from sim.reference.sessions import unstored
from sim.reference.sight import Fields, Sight
from sim.reference.states import changes
from sim.reference.trees import Cause, TreeEvent, is_logged, is_told, not_said_yet, tree_events, woven
from sim.store import EXPIRES

Reply = list[Any]


@dataclass(slots=True)
class Target:
    """A session that the step writes to or tells something; number 0 is its own."""

    session: bytes
    pool: Pool
    hash_: Fields
    sq: bytes
    eq: bytes
    told: list[tuple[bytes, int, int]] = field(default_factory=list)
    mailed: bool = False
    counted: bool = False


@dataclass(slots=True)
class Step:
    """Everything that was given, in its order."""

    session: bytes
    tree: bytes
    who: tuple[bytes, bytes, bytes]
    commit_id: bytes
    base: tuple[bytes, bytes, bytes]
    cursor: bytes
    mark: bytes
    release: bytes
    taken: tuple[int, int]
    keep: int
    ttl_ms: int
    most: tuple[int, int]
    pools: list[Pool]
    targets: list[Target]
    fields: list[list[bytes]] = field(default_factory=list)
    entries: list[list[bytes]] = field(default_factory=list)
    events: list[list[bytes]] = field(default_factory=list)
    timers_clear: list[list[bytes]] = field(default_factory=list)
    timers_set: list[list[bytes]] = field(default_factory=list)
    approvals_open: list[list[bytes]] = field(default_factory=list)
    approvals_close: list[list[bytes]] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    mail: list[list[bytes]] = field(default_factory=list)
    children: list[Birth] = field(default_factory=list)
    tree_events: list[TreeEvent] = field(default_factory=list)
    summary: list[list[bytes]] = field(default_factory=list)
    draws: list[list[bytes]] = field(default_factory=list)
    unless_marked: list[list[bytes]] = field(default_factory=list)
    within_budget: bool = False
    settlements: list[tuple[bytes, list[int] | None, bytes]] = field(default_factory=list)
    day: bytes = b""
    day_ms: int = 0
    reservations: list[tuple[bytes, list[int]]] = field(default_factory=list)
    waits: list[tuple[bytes, list[int]]] = field(default_factory=list)
    dropped: list[list[bytes]] = field(default_factory=list)
    redacted: list[list[bytes]] = field(default_factory=list)
    redacting: bytes = b""
    takes: bool = False


def _read(sight: Sight, keys: Sequence[bytes], given: Given) -> Step:
    session, pool_name, tree = given.words(3)
    who, commit_id = (given.word(), given.word(), given.word()), given.word()
    base, cursor, mark = (given.word(), given.word(), given.word()), given.word(), given.word()
    release = given.word()
    taken, keep, ttl_ms = (given.number(), given.number()), given.number(), given.number()
    most = (given.number(), given.number())
    pool = Pool.at(pool_name, keys, 6)
    own = Target(session, pool, sight.hash(keys[0]), keys[3], keys[2])
    step = Step(
        session, tree, who, commit_id, base, cursor, mark, release, taken, keep, ttl_ms, most, [pool], [own]
    )
    step.fields, step.entries, step.events = given.rows(2), given.rows(3), given.rows(4)
    step.timers_clear, step.timers_set = given.rows(1), given.rows(4)
    step.approvals_open, step.approvals_close = given.rows(2), given.rows(1)
    texts = given.number()
    if given.number() == 1:
        _read_tree(sight, keys, given, step)
    behind = len(keys) - (1 if step.dropped else 0) - (3 if step.redacted else 0)
    step.texts = list(keys[behind - texts : behind])
    return step


def _read_tree(sight: Sight, keys: Sequence[bytes], given: Given, step: Step) -> None:
    at, near = 22, given.word()
    step.takes = given.number() == 1
    step.pools[0] = replace(step.pools[0], near=near)
    for (name,) in given.rows(1):
        step.pools.append(Pool.at(name, keys, at, near))
        at += 4
    for session, pool in given.rows(2):
        key, sq, eq = keys[at : at + 3]
        step.targets.append(Target(session, step.pools[int(pool)], sight.hash(key), sq, eq))
        at += 3
    step.mail = given.rows(6)
    for _ in range(given.number()):
        step.children.append(birth(given, step.pools, keys, at))
        at += 6
    step.tree_events, step.summary = tree_events(given), given.rows(2)
    step.draws, step.unless_marked = given.rows(3), given.rows(1)
    step.within_budget = given.number() == 1
    for _ in range(given.number()):
        name, estimated, amount, model = given.word(), given.number(), given.amount(), given.word()
        step.settlements.append((name, None if estimated else amount, model))
    step.day, step.day_ms = keys[at] if step.settlements else b"", given.number()
    step.reservations = [(given.word(), given.amount()) for _ in range(given.number())]
    step.waits = [(given.word(), given.amount()) for _ in range(given.number())]
    step.dropped = given.rows(1)
    step.redacted, step.redacting = given.rows(2), given.word()


def _fence(step: Step, own: Fields) -> bytes:
    """Why the step may not be built upon what is there; empty if it may."""
    if (own.get(b"owner"), own.get(b"claim"), own.get(b"epoch")) != step.who:
        return b"claim"
    for name, there, wanted in zip(
        (b"seq", b"head", b"commit"),
        (own[b"seq"], own[b"head"], own.get(b"commit", b"")),
        step.base,
        strict=True,
    ):
        if there != wanted:
            return name
    return b""


def commit(sight: Sight, keys: Sequence[bytes], given: Given) -> Reply:
    step = _read(sight, keys, given)
    own, tree = step.targets[0].hash_, sight.hash(keys[5])
    if b"tree" not in own:
        return [b"FENCED", 0, b"unknown session"]
    if own.get(b"commit") == step.commit_id:
        eq, tip, released, tree_seq = map(int, own[b"result"].split())
        places = {"seq": number(own, b"seq"), "tip": tip, "eq": eq, "tree_seq": tree_seq, "now": sight.now}
        # Whose first answer was lost is told of the accounts as they are: it warns by them.
        accounts = Budget(tree, sight.now).accounts() if _of_budget(step) else []
        nothing = {"pokes": [], "woken": 0, "depths": b"", "accounts": accounts}
        return replied("commit", "OK", head=own[b"head"], released=released, **places, **nothing)
    if why := _fence(step, own):
        return [b"FENCED", number(own, b"epoch"), why]
    for (mark,) in step.unless_marked:
        if mark in tree:
            return [b"REFUSED", b"marked", mark, []]
    drawn = _drawn(step, tree)
    if isinstance(drawn, list):
        return drawn
    budget = Budget(tree, sight.now) if _of_budget(step) else None
    settled: list[list[int]] = []
    to_wake = b""
    if budget is not None:
        settled, to_wake = _settled(step, budget)
        if refused := _over_budget(step, budget):
            return refused
    refused = _undeliverable(sight, step) or _unborn(sight, step, tree) or _unstored(sight, step, tree)
    if refused:
        return refused
    cursor, tip_before = int(step.cursor or own[b"cursor"]), number(own, b"sq")
    if not number(own, b"cursor") <= cursor <= tip_before or not _as_read(sight, step, cursor):
        return [b"REFUSED", b"cursor", written(tip_before), []]
    return _written(sight, keys, step, Judged(cursor, drawn, budget, settled, to_wake))


def _of_budget(step: Step) -> bool:
    return bool(step.within_budget or step.settlements or step.reservations or step.waits)


def _drawn(step: Step, tree: Fields) -> dict[bytes, int] | Reply:
    """The counters as they will be; or the refusal, if one would pass its limit."""
    drawn: dict[bytes, int] = {}
    for counter, amount, limit in step.draws:
        value = drawn.get(counter, number(tree, counter)) + int(amount)
        if int(amount) > 0 and limit and limit in tree and value > number(tree, limit):
            return [b"REFUSED", counter, written(number(tree, limit)), []]
        drawn[counter] = value
    return drawn


def _settled(step: Step, budget: Budget) -> tuple[list[list[int]], bytes]:
    """The usage of each request that has ended, and the sessions to wake, because the usage makes room."""
    counted, to_wake = [], b""
    for name, used, _ in step.settlements:
        counted.append(budget.settles(b"r:" + step.session + b":" + name, used))
        to_wake, budget.waiting[b"reserved"] = budget.waiting[b"reserved"] or to_wake, b""
    return counted, to_wake


def _over_budget(step: Step, budget: Budget) -> Reply | None:
    obstacle = budget.obstacle([0, 0, 0]) if step.within_budget else None
    if obstacle and obstacle[0] == b"spent":
        return [b"REFUSED", b"budget_spent", obstacle[1], budget.accounts()]
    for name, amount in step.reservations:
        held = b"r:" + step.session + b":" + name
        budget.lets_go(held)
        if obstacle := budget.obstacle(amount):
            return [b"REFUSED", b"budget_" + obstacle[0], obstacle[1], budget.accounts()]
        budget.holds(held, amount)
    for timer, amount in step.waits:
        obstacle = budget.obstacle(amount)
        if obstacle is None or obstacle[0] == b"unpriced":
            return [b"REFUSED", b"budget_free", b"", budget.accounts()]
        budget.waits(obstacle[0], step.session + b":" + timer)
    return None


def _undeliverable(sight: Sight, step: Step) -> Reply | None:
    """The first letter that its target cannot be given."""
    waiting: dict[int, list[int]] = {}
    for row in step.mail:
        target, size = step.targets[int(row[0])], len(row[1])
        entries, held = waiting.setdefault(int(row[0]), [0, 0])
        if target.hash_.get(b"tree") != step.tree:
            return [b"REFUSED", b"unknown_target", target.session, []]
        if target.hash_.get(b"archived") == b"1":
            return [b"REFUSED", b"archived_target", target.session, []]
        if target.hash_[b"pool"] != target.pool.name:
            return [b"MOVED", target.hash_[b"tree"], target.hash_[b"pool"], target.session]
        full = sight.stream(target.sq).length + entries >= step.most[0]
        full = full or held_bytes(target.hash_) + held + size > step.most[1]
        if full and row[5] == b"1":
            return [b"REFUSED", b"queue_full", target.session, []]
        waiting[int(row[0])] = [entries + 1, held + size]
        target.mailed = True
    return None


def _unborn(sight: Sight, step: Step, tree: Fields) -> Reply | None:
    numbers = set[bytes]()
    for child in step.children:
        if sight.hash(child.keys[0]):
            return [b"REFUSED", b"session_exists", child.session, []]
        if b"s:" + child.agent_id in tree or child.agent_id in numbers:
            return [b"REFUSED", b"agent_taken", child.agent_id, []]
        numbers.add(child.agent_id)
    return None


def _unstored(sight: Sight, step: Step, tree: Fields) -> Reply | None:
    return unstored(sight, step.texts) if tree else None


@dataclass(frozen=True, slots=True)
class Judged:
    """Nothing refuses the step: how far it reads the queue, and what becomes of the tree's accounts."""

    cursor: int
    drawn: dict[bytes, int]
    budget: Budget | None
    settled: list[list[int]]
    to_wake: bytes


def _written(sight: Sight, keys: Sequence[bytes], step: Step, judged: Judged) -> Reply:
    own, tree = step.targets[0].hash_, sight.hash(keys[5])
    sight.tells_followers(keys[19], keys[20])
    shown_anew = any(
        name in (b"meta", b"name") or (name == b"status" and value != own.get(b"status"))
        for name, value in step.fields
    )
    given = {row[0]: row[1] for row in step.fields}
    born = [
        (child.agent_id, own[b"agent_id"] if child.parent == step.session else b"", child.status)
        for child in step.children
    ]
    changes(sight.hash(keys[21]), own, given.get(b"status", own[b"status"]), born)
    seq_before, cursor_before, tip_before = (number(own, n) for n in (b"seq", b"cursor", b"sq"))
    tree_seq, seq = number(tree, b"tree_seq"), seq_before + len(step.entries)
    own[b"head"] = step.entries[-1][2] if step.entries else own[b"head"]
    own[b"sq_done"] = written(_consumed(sight, step.targets[0], judged.cursor, tip_before))
    own[b"cursor"], own[b"seq"] = written(judged.cursor), written(seq)
    stamp = _depths(step)
    events = _woven(step, tree, tree_seq)
    final = tree_seq + len(events)
    append_entries(sight, keys[1], step.entries, seq_before, step.who[2])
    _shown(sight, step)
    advances = judged.cursor > cursor_before
    if advances:
        _trimmed(sight, step.targets[0].sq, judged.cursor, tip_before)
    pokes = _delivered(sight, step, keys[5])
    tip = number(own, b"sq")
    released = _kept_or_released(step, tip, final, advances)
    _counted(sight, keys, step, tree)
    is_logged(sight, tree, keys[4], events, tree_seq, Cause(step.session, seq, own[b"head"], stamp))
    _shown_to_others(sight, step)
    _registered(step, tree, judged.drawn, final if events else None)
    _timers_and_approvals(sight, keys, step)
    woken = _accounted(sight, keys, step, judged)
    for (name,) in step.dropped:
        sight.hash(keys[-1]).pop(name, None)
    if step.dropped and sight.hash(keys[-1]).keys() <= {EXPIRES}:
        sight.delete(keys[-1])
    _redacted(sight, keys, step, own)
    _placed(sight, keys, step, released, shown_anew)
    if (advances or released) and own[b"agent_id"] == b"0":
        is_used(sight, keys[14], step.session, own)
    accounts = judged.budget.accounts() if judged.budget is not None else []
    return replied(
        "commit",
        "OK",
        seq=seq,
        head=own[b"head"],
        tip=tip,
        eq=number(own, b"eq"),
        released=int(released),
        tree_seq=final,
        now=sight.now,
        pokes=pokes,
        woken=woken,
        depths=stamp,
        accounts=accounts,
    )


def _redacted(sight: Sight, keys: Sequence[bytes], step: Step, own: Fields) -> None:
    """The lines that stand instead of words, which are gone with all that was made of them."""
    if not step.redacted:
        return
    instead, snapshot, redactions = keys[-3:]
    for number_of, line in step.redacted:
        sight.hash(instead)[number_of] = line
        if int(number_of) > number(own, b"sealed_seq"):
            sight.stream(keys[1]).loses()
    sight.delete(snapshot)
    sight.delete(keys[2])
    own |= {b"snapshot_seq": b"0", b"redacting": step.redacting}
    sight.zset(redactions)[step.session] = sight.now
    old = [name for name, at in sight.zset(redactions).items() if at <= sight.now - REDACTIONS_KEPT_MS]
    for name in old[:1000]:
        if not sight.hash(sight.also(keys[0].removesuffix(step.session) + name)).get(b"redacting"):
            del sight.zset(redactions)[name]


def _as_read(sight: Sight, step: Step, cursor: int) -> bool:
    """Whether the last entry that the step consumes is still the one that its holder read."""
    own = step.targets[0]
    if not step.mark or cursor == number(own.hash_, b"cursor"):
        return True
    behind = sight.entries(own.sq, cursor - 1)
    if not behind or behind[0][0] != b"%d-0" % cursor:
        return False
    entry = behind[0][1]
    return entry[b"t"] + b":" + entry[b"u"] == step.mark


# ── the session's own log and events ──────────────────────────────────────────────────────────────


def _woven(step: Step, tree: Fields, tree_seq: int) -> list[TreeEvent]:
    """The events for the tree log, with the depths of inboxes; whoever watches is to be shown them."""
    events = not_said_yet(step.tree_events, tree)
    for n, event in enumerate(events, tree_seq + 1):
        event.payload = woven(event.parts, step.targets[int(event.inbox)].hash_ if event.inbox else None)
        for at in event.targets:
            step.targets[at].told.append((event.payload, n, event.after))
    return events


def _shown(sight: Sight, step: Step) -> None:
    """The session's event queue has the step's events."""
    target = step.targets[0]
    own, before = target.hash_, number(target.hash_, b"eq")
    rows = _with_told(step, own)
    append_events(sight, target.eq, rows, before, step.keep, step.ttl_ms)
    own[b"eq"] = written(before + len(rows))


def _trimmed(sight: Sight, sq: bytes, cursor: int, tip: int) -> None:
    """Removes consumed entries from the queue."""
    if cursor == tip:
        sight.stream(sq).is_gone()
    else:
        sight.stream(sq).begins_at(cursor + 1)


def _kept_or_released(step: Step, tip: int, final: int, advances: bool) -> bool:
    """Writes the step and the claim into the session's hash; returns whether the claim was given back."""
    own = step.targets[0].hash_
    parks = step.release == b"park" and number(own, b"cursor") == tip
    released = parks or step.release == b"yield"
    own[b"commit"] = step.commit_id
    own[b"result"] = b"%d %d %d %d" % (number(own, b"eq"), tip, released, final)
    if step.entries or advances or parks:
        own[b"tries"] = b"0"
    if released:
        own |= {b"owner": b"", b"claim": b""}
    own.update((name, value) for name, value in step.fields)
    return released


# ── what others of the tree see ───────────────────────────────────────────────────────────────────


def _counted(sight: Sight, keys: Sequence[bytes], step: Step, tree: Fields) -> None:
    """The depths of inboxes that the step changed, and the agents that it made."""
    for one in step.targets:
        if one.counted:
            agent = one.hash_[b"agent_id"]
            tree[b"m:" + agent] = written(number(one.hash_, b"regular"))
            tree[b"i:" + agent] = written(number(one.hash_, b"interrupts"))
    around, own = Around(keys[5], keys[13], step.keep, step.ttl_ms), step.targets[0].hash_
    labels = Labels(own.get(b"namespace", b""), b"agent", own.get(b"who", b""))
    for child in step.children:
        new_session(sight, child, around, labels)
        if int(child.agent_id) > number(tree, b"last_agent"):
            tree[b"last_agent"] = child.agent_id


def _shown_to_others(sight: Sight, step: Step) -> None:
    for one in step.targets[1:]:
        there = one.hash_.get(b"tree") == step.tree and one.hash_.get(b"archived") != b"1"
        if one.told and there:
            is_told(sight, one.hash_, one.eq, [(p, n) for p, n, _ in one.told], step.keep, step.ttl_ms)


def _registered(step: Step, tree: Fields, drawn: dict[bytes, int], tree_seq: int | None) -> None:
    """The fields of the registry; `tree_seq` where the tree log has grown."""
    if tree_seq is not None:
        tree[b"tree_seq"] = written(tree_seq)
    tree.update((name, value) for name, value in step.summary)
    tree.update((counter, written(value)) for counter, value in drawn.items())


def _accounted(sight: Sight, keys: Sequence[bytes], step: Step, judged: Judged) -> int:
    """The budgets as they are now; how many sessions are woken, because there is room."""
    if judged.budget is None:
        return 0
    judged.budget.saved()
    if step.settlements:
        total = [sum(amounts) for amounts in zip(*judged.settled, strict=True)]
        used_by(sight.hash(keys[5]), step.targets[0].hash_[b"agent_id"], total)
        if total[2] > 0:
            lately(sight.hash(keys[5]), total[2], sight.now)
        _used_that_day(sight, step, judged.settled)
    return wakes(sight, keys[10], judged.to_wake)


MOST_KEPT_APART = 500
REDACTIONS_KEPT_MS = 30 * 86_400_000


def _used_that_day(sight: Sight, step: Step, settled: list[list[int]]) -> None:
    """Adds up the usage of the day: apart for so many models and people, together for all others."""
    day, own = sight.hash(step.day), step.targets[0].hash_
    if not day:
        sight.expires_in(step.day, step.day_ms)
    namespace, who = own.get(b"namespace", b""), letters(own.get(b"who", b""), 200)
    for (_, _, model), amount in zip(step.settlements, settled, strict=True):
        alone, rest = b"\n".join((namespace, model, who)), namespace + b"\n\n"
        kinds = number(day, b"n")
        if alone in day or kinds < MOST_KEPT_APART:
            name = alone
        else:
            name = rest if rest in day or kinds < 2 * MOST_KEPT_APART else b"\n\n"
        day[b"n"] = written(kinds if name in day else kinds + 1)
        day[name] = amount_text([a + b for a, b in zip(amount_of(day.get(name)), amount, strict=True)])


def _placed(sight: Sight, keys: Sequence[bytes], step: Step, released: bool, shown_anew: bool) -> None:
    """The session's place among those that are listed, held and due."""
    pool = step.targets[0].pool
    sight.zset(keys[13])[step.session] = sight.now
    if step.session == step.tree and [b"status", b"closed"] in step.fields:
        for key in keys[16:18]:
            may_rest(sight, key, step.tree)
    if released:
        sight.zset(pool.leases).pop(step.session, None)
        is_told_of_release(sight, keys[18], step.session)
    elif shown_anew:
        sight.is_shown_anew(step.session)
    if step.release == b"yield":
        becomes_due(sight, pool, step.session, keys[5])


def _consumed(sight: Sight, own: Target, cursor: int, tip: int) -> int:
    """The bytes that were enqueued before the first entry that is left."""
    if cursor == tip:
        return number(own.hash_, b"sq_total")
    return int(sight.entries(own.sq, cursor)[0][1][b"b"])


def _depths(step: Step) -> bytes:
    """Counts what leaves the own inbox and what comes into others'; how deep they are then."""
    own = step.targets[0]
    for name, less in zip((b"regular", b"interrupts"), step.taken, strict=True):
        own.hash_[name] = written(max(0, number(own.hash_, name) - less))
    own.counted = any(step.taken)
    for row in step.mail:
        target = step.targets[int(row[0])]
        lane = b"interrupts" if row[2] == b"1" else b"regular"
        if row[4] == b"1":
            target.hash_[lane] = written(number(target.hash_, lane) + 1)
            target.counted = True
    told = (
        b"%s:%d:%d" % (one.session, number(one.hash_, b"regular"), number(one.hash_, b"interrupts"))
        for one in step.targets
        if one.counted
    )
    return b" ".join(told)


def _with_told(step: Step, own: Fields) -> list[Sequence[bytes]]:
    """The step's events, and between them those of the tree that the session itself is told of.

    These name the entry of the event before them; those behind all events the last entry.
    """
    rows: list[Sequence[bytes]] = []
    seq, hash_ = step.base[0], hash8(step.base[1])
    left = list(step.targets[0].told)
    for at in range(len(step.events) + 1):
        if at:
            rows.append(step.events[at - 1])
            seq, hash_ = rows[-1][1:3]
        if at == len(step.events):
            seq, hash_ = own[b"seq"], hash8(own[b"head"])
        while left and (left[0][2] <= at or at == len(step.events)):
            payload, n, _ = left.pop(0)
            rows.append((payload, seq, hash_, b"0", written(n)))
    return rows


def _delivered(sight: Sight, step: Step, agents: bytes) -> list[bytes]:
    """Puts the letters into their queues, and wakes; the holders that are to be poked."""
    for row in step.mail:
        target = step.targets[int(row[0])]
        entry = Entry(b"mail", row[1], submission=row[3], sender=step.session, lane=row[2])
        enqueued(sight, target.hash_, target.sq, entry)
    keeps_depths(step.targets[0].hash_)
    pokes: list[bytes] = []
    for target in step.targets[1:]:
        if target.mailed:
            is_woken(
                sight, target.pool, target.session, agents, target.hash_, step.who[0] if step.takes else b""
            )
            if target.session in sight.zset(target.pool.leases):
                pokes += [target.session, holder(sight, target.pool, target.session, target.hash_)]
    return pokes


def _timers_and_approvals(sight: Sight, keys: Sequence[bytes], step: Step) -> None:
    deadlines, timers, approvals = sight.zset(keys[10]), sight.hash(keys[11]), sight.hash(keys[12])
    prefix = step.session + b":"
    for (name,) in step.timers_clear:
        deadlines.pop(prefix + name, None)
        timers.pop(name, None)
    for name, generation, at_ms, payload in step.timers_set:
        deadlines[prefix + name], timers[name] = int(at_ms), generation + b":" + payload
    for (name,) in step.approvals_close:
        if approvals.pop(prefix + name, None) is not None:
            is_told_of_request(sight, keys[15], step.session, name, opened=False)
    for name, payload in step.approvals_open:
        approvals[prefix + name] = written(sight.now) + b":" + payload
        is_told_of_request(sight, keys[15], step.session, name, opened=True)
