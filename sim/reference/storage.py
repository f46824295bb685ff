"""The data kept beside a session's log: sealed segments, archives and large texts; and its end."""

from __future__ import annotations

from sim.reference.given import Given, letters, number, written
from sim.reference.lists import is_told_of_release, is_told_of_request, may_rest
from sim.reference.sessions import Keys, Reply, fenced, holds, unstored
from sim.reference.sight import Fields, Sight

DELETED_KEPT_MS = 30 * 86_400_000


def seal(sight: Sight, keys: Keys, given: Given) -> Reply:
    who, seq, manifest, whole = given.words(3), given.number(), given.word(), given.number() == 1
    session = sight.hash(keys[0])
    if not holds(session, *who):
        return fenced(session)
    if whole and seq != number(session, b"seq"):
        return [b"REFUSED", b"the log has another end"]
    if not whole and seq > number(session, b"snapshot_seq"):
        return [b"REFUSED", b"no snapshot covers it"]
    if seq < number(session, b"sealed_seq"):
        return [b"REFUSED", b"sealed further already"]
    session |= {b"sealed_seq": written(seq), b"manifest": manifest}
    if whole:
        session[b"snapshot_seq"] = b"0"
        sight.delete(keys[1])
        sight.delete(keys[2])
    else:
        sight.stream(keys[1]).begins_at(seq + 1)
    return [b"OK", sight.now]


def seal_tree(sight: Sight, keys: Keys, given: Given) -> Reply:
    after, segment = given.number(), given.word()
    seen = [row[0] for row in given.rows(1)]
    entries, known = sight.entries(keys[0], 0), sight.hash(keys[1])
    if number(known, b"end") != after:
        return [b"REFUSED", b"sealed further already"]
    if not seen:
        return [b"REFUSED", b"no entries"]
    if len(entries) < len(seen):
        return [b"REFUSED", b"the log is shorter"]
    if [_compared(*entry) for entry in entries[: len(seen)]] != seen:
        return [b"REFUSED", b"the log has another entry"]
    first, last = (entries[at][0].partition(b"-")[0] for at in (0, len(seen) - 1))
    known |= {first: segment, b"index": b" ".join((*known.get(b"index", b"").split(), first)), b"end": last}
    for _ in seen:
        sight.stream(keys[0]).loses()
    return [b"OK", sight.now]


def _compared(entry_id: bytes, fields: Fields) -> bytes:
    parts = (entry_id, *(part for pair in fields.items() for part in pair))
    return b":".join(one for part in parts for one in (written(len(part)), part))


def archive(sight: Sight, keys: Keys, given: Given) -> Reply:
    name, *who = given.words(4)
    of_closed = given.number()
    session = sight.hash(keys[0])
    if not holds(session, *who):
        return fenced(session)
    if number(session, b"seq") != number(session, b"sealed_seq"):
        return [b"REFUSED", b"not sealed to its end"]
    if number(session, b"sq") != number(session, b"cursor"):
        return [b"REFUSED", b"its queue is not read to the end"]
    if session.get(b"redacting"):
        return [b"REFUSED", b"copies of what was redacted are not removed yet"]
    if of_closed and sight.hash(keys[6]).get(b"status") != b"closed":
        return [b"REFUSED", b"the root of its tree is not closed any more"]
    session |= {b"archived": b"1", b"owner": b"", b"claim": b""}
    sight.zset(keys[1]).pop(name, None)
    for key in (*keys[2:6], keys[8]):
        sight.delete(key)
    sight.tells_followers(keys[7])
    sight.is_shown_anew(name)
    return [b"OK", sight.now]


def rewrite(sight: Sight, keys: Keys, given: Given) -> Reply:
    who, seen, manifest, owed = given.words(3), given.word(), given.word(), given.word()
    session = sight.hash(keys[0])
    if not holds(session, *who):
        return fenced(session)
    if session.get(b"manifest", b"") != seen:
        return [b"REFUSED", b"the manifest is another one"]
    session |= {b"manifest": manifest, b"redacting": owed}
    return [b"OK", sight.now]


def restore(sight: Sight, keys: Keys, given: Given) -> Reply:
    name, tree, seq, state = given.word(), given.word(), given.number(), given.word()
    session = sight.hash(keys[0])
    if b"seq" not in session:
        return [b"UNKNOWN"]
    if session.get(b"archived") != b"1":
        return [b"OK", sight.now]
    if number(session, b"seq") != seq:
        return [b"REFUSED", b"the snapshot is not of the last entry"]
    if lost := unstored(sight, keys[3 : 3 + given.number()]):
        return lost
    session |= {b"archived": b"", b"snapshot_seq": written(seq)}
    sight.set(keys[1], state)
    may_rest(sight, keys[2], tree)
    sight.tells_followers(keys[-1])
    sight.is_shown_anew(name)
    return [b"OK", sight.now]


def delete(sight: Sight, keys: Keys, given: Given) -> Reply:
    tree, by = given.words(2)
    owed_too, whole = given.number() == 1, given.number() == 1
    pools = [row[0] for row in given.rows(1)]
    listed, blobs = given.rows(4), given.number()
    first, of_pools = 15 + 2 * len(pools), keys[15 : 15 + 2 * len(pools)]
    agents, stored = sight.hash(keys[3]), sight.members(keys[4])
    for at, (name, pool, epoch, sq) in enumerate(listed):
        session = sight.hash(keys[first + 9 * at])
        if b"tree" not in session:
            continue
        held = [b"HELD", name, session.get(b"owner", b"")]
        if pool == b"0" or (session[b"tree"], session[b"pool"]) != (tree, pools[int(pool) - 1]):
            return held
        due, leases = (sight.zset(key) for key in of_pools[2 * int(pool) - 2 : 2 * int(pool)])
        seen = {b"epoch": epoch, b"sq": sq}
        if any(value and number(session, field) != int(value) for field, value in seen.items()):
            return held
        owes = name in due or number(session, b"sq") != number(session, b"cursor")
        if name in leases or (owes and not owed_too):
            return held
    names = {row[0] for row in listed}
    of_namespace = {
        row[0]: session.get(b"namespace", b"")
        for at, row in enumerate(listed)
        if b"tree" in (session := sight.hash(keys[first + 9 * at]))
    }
    if whole:
        known = [value for field, value in agents.items() if field.startswith(b"s:")]
        if unlisted := [name for name in known if name not in names]:
            return [b"UNLISTED", unlisted]
        if len(stored) != blobs:
            return [b"BLOBS"]
    for member in list(sight.zset(keys[1])):
        # The shard's list and the sessions' own name the same timers.
        if member.partition(b":")[0] in names:
            del sight.zset(keys[1])[member]
    for field in list(sight.hash(keys[2])):
        asker, _, key = field.partition(b":")
        if asker in names:
            del sight.hash(keys[2])[field]
            is_told_of_request(sight, keys[8], asker, key, opened=False)
    for member in list(sight.zset(keys[7])):
        if member.rpartition(b"/")[2] in names:
            del sight.zset(keys[7])[member]
    for zset in (sight.zset(keys[0]), *map(sight.zset, of_pools[::2])):
        for name in names & zset.keys():
            del zset[name]
    for resting in map(sight.zset, keys[9:11] if whole else ()):
        resting.pop(tree, None)
    for key in (*((*keys[3:7], keys[14]) if whole else ()), *keys[first:]):
        sight.delete(key)
    deleted = sight.zset(keys[11])
    deleted |= dict.fromkeys(names, sight.now)
    for old in sorted((at, name) for name, at in deleted.items() if at <= sight.now - DELETED_KEPT_MS)[:1000]:
        del deleted[old[1]]
        sight.hash(keys[13]).pop(old[1], None)
    for name, namespace in of_namespace.items():
        sight.hash(keys[13])[name] = b"\n".join((written(sight.now), namespace, letters(by, 200)))
    sight.expires_in(keys[13], DELETED_KEPT_MS)
    for name, *_ in listed:
        is_told_of_release(sight, keys[12], name)
    return [b"OK", sight.now]


def put_blob(sight: Sight, keys: Keys, given: Given) -> Reply:
    (digest, content), unborn_ms = given.words(2), given.number()
    born = bool(sight.hash(keys[2]))
    if not unborn_ms and not born:
        return [b"GONE", sight.now]
    if unborn_ms and born:
        return [b"OK", sight.now]
    if sight.text(keys[0]) is None:
        sight.set(keys[0], content)
    sight.add_member(keys[1], digest)
    for key in keys[:2]:
        sight.is_kept(key, None if born else unborn_ms)
    return [b"OK", sight.now]
