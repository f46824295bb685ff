"""Jobs of pools: offered once, taken once, answered once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sim.reference.given import Given, number, written
from sim.reference.sight import HINT, Sight

NOTICES = 256


def offer_job(sight: Sight, keys: Sequence[bytes], given: Given) -> list[Any]:
    name, payload, wait_ms, most = given.word(), given.word(), given.number(), given.number()
    job, waiting = sight.hash(keys[0]), sight.zset(keys[1])
    if job:
        return [b"OK", sight.now]
    over = [other for other, until in waiting.items() if until <= sight.now]
    if len(waiting) - len(over) >= most:
        return [b"FULL", len(waiting) - len(over)]
    for other in over:
        del waiting[other]
    job |= {b"state": b"queued", b"payload": payload}
    sight.expires_in(keys[0], wait_ms)
    waiting[name] = sight.now + wait_ms
    sight.stream(keys[2]).add(HINT, {b"j": name}, NOTICES)
    return [b"OK", sight.now]


def take_job(sight: Sight, keys: Sequence[bytes], given: Given) -> list[Any]:
    name, worker, lease_ms, kept_ms = given.word(), given.word(), given.number(), given.number()
    job, waiting = sight.hash(keys[0]), sight.zset(keys[1])
    if job.get(b"state") == b"taken" and job[b"worker"] == worker:
        return [b"OK", job[b"payload"], sight.now]
    waiting.pop(name, None)
    if job.get(b"state") != b"queued":
        return [b"NONE", sight.now]
    job |= {b"state": b"taken", b"worker": worker, b"until": written(sight.now + lease_ms)}
    sight.expires_in(keys[0], kept_ms)
    return [b"OK", job[b"payload"], sight.now]


def keep_job(sight: Sight, keys: Sequence[bytes], given: Given) -> list[Any]:
    worker, lease_ms, kept_ms = given.word(), given.number(), given.number()
    job = sight.hash(keys[0])
    if job.get(b"state") != b"taken" or job[b"worker"] != worker:
        return [b"GONE", sight.now]
    job[b"until"] = written(sight.now + lease_ms)
    sight.expires_in(keys[0], kept_ms)
    return [b"OK", sight.now]


def answer_job(sight: Sight, keys: Sequence[bytes], given: Given) -> list[Any]:
    worker, result, kept_ms = given.word(), given.word(), given.number()
    job = sight.hash(keys[0])
    if job.get(b"worker") != worker or job[b"state"] not in (b"taken", b"done"):
        return [b"GONE", sight.now]
    if job[b"state"] == b"done":
        return [b"OK", sight.now]
    del job[b"payload"]
    job |= {b"state": b"done", b"result": result}
    sight.expires_in(keys[0], kept_ms)
    return [b"OK", sight.now]


def settle_job(sight: Sight, keys: Sequence[bytes], given: Given) -> list[Any]:
    name, ends, kept_ms = given.word(), given.word(), given.number()
    job, waiting = sight.hash(keys[0]), sight.zset(keys[1])
    state, told = job.get(b"state"), job.get(b"state", b"gone")
    if state == b"done":
        return [b"DONE", sight.now, job[b"result"]]
    if state == b"taken" and number(job, b"until") < sight.now:
        told = b"lost"
    ended = {b"any": (None, b"queued", b"taken"), b"waiting": (None, b"queued")}.get(ends, ())
    if state in ended or told != (state or told):
        waiting.pop(name, None)
        job.clear()
        job[b"state"] = b"lost" if told == b"lost" else b"gone"
        sight.expires_in(keys[0], kept_ms)
    return [told.upper(), sight.now]
