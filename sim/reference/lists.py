"""The fleet's index of roots, and the notices of requests to people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sim.reference.given import Given, number, written
from sim.reference.sight import HINT, NOTICES, Fields, Sight

NOTICES_OF_RELEASES = 256


def _members(name: bytes, session: Fields) -> dict[bytes, float]:
    """The two places of a session that is listed: by its last use, and by its creation."""
    shelf = b"a" if session.get(b"shelved") == b"1" else b"l"
    list_ = b"%s/%s/%s" % (session.get(b"namespace", b""), shelf, session.get(b"source", b"cli"))
    used, made = number(session, b"recency"), number(session, b"created_ms")
    return {b"%s/r/%015d/%s" % (list_, used, name): 0, b"%s/c/%015d/%s" % (list_, made, name): 0}


def is_used(sight: Sight, index: bytes, name: bytes, session: Fields) -> None:
    """A root that lists show is at the front of them, and nowhere else."""
    if session.get(b"agent_id") != b"0" or session.get(b"ephemeral") == b"1":
        return
    places = sight.zset(index)
    if b"recency" in session:
        for member in _members(name, session):
            places.pop(member, None)
    session[b"recency"] = written(max(sight.now, number(session, b"recency")))
    places |= _members(name, session)


def may_rest(sight: Sight, key: bytes, tree: bytes) -> None:
    """Upkeep is to look at the tree when it has rested from now on; its time in the set only grows."""
    trees = sight.zset(key)
    trees[tree] = max(sight.now, trees.get(tree, 0) + 1)


def look_again(sight: Sight, keys: Sequence[bytes], given: Given) -> list[Any]:
    tree, seen, again = given.word(), given.number(), given.number()
    trees = sight.zset(keys[0])
    if trees.get(tree) != seen:
        return [b"CHANGED"]
    if again:
        trees[tree] = max(again, seen + 1)
    else:
        del trees[tree]
    return [b"OK", sight.now]


def drop_texts(sight: Sight, keys: Sequence[bytes], given: Given) -> list[Any]:
    tree, seen, _ = given.word(), given.number(), given.number()
    if sight.zset(keys[0]).get(tree) != seen:
        return [b"CHANGED"]
    for text in keys[1:]:
        sight.delete(text)
    return [b"OK", sight.now]


def is_told_of_request(sight: Sight, asked: bytes, session: bytes, key: bytes, *, opened: bool) -> None:
    entry = {b"s": session, b"k": key, b"o": b"1" if opened else b"0"}
    sight.stream(asked).add(HINT, entry, NOTICES)


def is_told_of_release(sight: Sight, released: bytes, session: bytes) -> None:
    sight.stream(released).add(HINT, {b"s": session}, NOTICES_OF_RELEASES)


def enlist(sight: Sight, keys: Sequence[bytes], given: Given) -> list[Any]:
    name, shelve = given.words(2)
    session = sight.hash(keys[0])
    if b"agent_id" not in session:
        return [b"UNKNOWN"]
    if session[b"agent_id"] != b"0":
        return [b"AGENT"]
    sight.tells_followers(keys[5])
    changed = sight.zset(keys[2]).get(name, number(session, b"created_ms"))
    sight.zset(keys[3]).setdefault(name, changed)
    if session.get(b"status") == b"closed":
        sight.zset(keys[4]).setdefault(name, changed)
    changes = bool(shelve) and shelve != session.get(b"shelved", b"0")
    if session.get(b"ephemeral") == b"1" or (b"recency" in session and not changes):
        return [b"OK", sight.now]
    places = sight.zset(keys[1])
    if b"recency" in session:
        for member in _members(name, session):
            places.pop(member, None)
    if changes:
        session[b"shelved"] = shelve
    session[b"recency"] = session.get(b"recency") or written(changed)
    places |= _members(name, session)
    sight.is_shown_anew(name)
    return [b"OK", sight.now]
