"""Limits per minute of a model's provider, shared by the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sim.reference.given import Given, number, written
from sim.reference.sessions import first_by_score
from sim.reference.sight import Fields, Sight

MINUTE = 60_000
PAGE = 100


def _level(provider: Fields, name: bytes, limit: int, now: int) -> int:
    """In sixty-thousandths: what is left, and what has come since; at most a minute's worth."""
    if name not in provider:
        return limit * MINUTE
    passed = max(0, now - number(provider, name + b"_at"))
    return min(limit * MINUTE, number(provider, name) + passed * limit)


def _keeps(provider: Fields, name: bytes, level: int, now: int) -> None:
    provider |= {name: written(level), name + b"_at": written(now)}


def admit(sight: Sight, keys: Sequence[bytes], given: Given) -> list[Any]:
    ticket, tokens = given.word(), given.number()
    limits = {b"requests": given.number(), b"tokens": given.number()}
    patience_ms, grace_ms = given.number(), given.number()
    provider, waiting = sight.hash(keys[0]), sight.zset(keys[1])
    ahead, own, gone = {b"requests": 0, b"tokens": 0}, {b"requests": 1, b"tokens": tokens}, []

    def delay() -> int:
        found = [0]
        for name, limit in limits.items():
            if limit:
                wanted = (ahead[name] + min(own[name], limit)) * MINUTE
                found.append(-((_level(provider, name, limit, sight.now) - wanted) // limit))
        return max(found)

    wait, queue = 0, first_by_score(waiting)
    for at, other in enumerate(queue):
        if other == ticket:
            break
        words = provider.get(b"t:" + other, b"").split()
        if len(words) == 2 and int(words[1]) >= sight.now:
            ahead[b"requests"] += 1
            ahead[b"tokens"] += int(words[0])
        else:
            gone.append(other)
        if (at + 1) % PAGE == 0 and delay() >= patience_ms:
            break
    wait = min(delay(), patience_ms)
    provider[b"asked_at"] = written(sight.now)
    for other in gone:
        waiting.pop(other, None)
        provider.pop(b"t:" + other, None)
    if wait > 0:
        arrivals = number(provider, b"arrivals") + 1
        provider[b"arrivals"] = written(arrivals)
        waiting.setdefault(ticket, arrivals)
        provider[b"t:" + ticket] = b"%d %d" % (tokens, sight.now + wait + grace_ms)
        return [b"WAIT", wait, sight.now]
    for name, limit in limits.items():
        if limit:
            left = _level(provider, name, limit, sight.now) - own[name] * MINUTE
            _keeps(provider, name, left, sight.now)
    waiting.pop(ticket, None)
    provider.pop(b"t:" + ticket, None)
    return [b"OK", sight.now]


def settle(sight: Sight, keys: Sequence[bytes], given: Given) -> list[Any]:
    estimated, used, limit = given.number(), given.number(), given.number()
    provider = sight.hash(keys[0])
    level = _level(provider, b"tokens", limit, sight.now) + (estimated - used) * MINUTE
    _keeps(provider, b"tokens", level, sight.now)
    return [b"OK", sight.now]
