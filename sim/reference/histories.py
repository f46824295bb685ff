"""The history of prompts that a person's sessions share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sim.reference.given import Given, number, written
from sim.reference.sight import Sight

AT_ONCE = 64


def add_to_history(sight: Sight, keys: Sequence[bytes], given: Given) -> list[Any]:
    key, session, entry, fresh_id = given.words(4)
    most, most_bytes = given.number(), given.number()
    head, log = sight.hash(keys[1]), sight.stream(keys[0])
    if b"k:" + key in head:
        return [b"DUP", number(head, b"k:" + key), sight.now]
    n = number(head, b"count") + 1
    row = {b"s": session, b"t": written(sight.now), b"x": entry, b"k": key}
    kept = [(number, row) for number, row in sight.entries(keys[0], -1)]
    kept.append((written(n) + b"-0", row))
    log.add(n, row)
    head |= {b"k:" + key: written(n), b"id": head.get(b"id", fresh_id)}
    held = len(entry) + number(head, b"bytes")
    for _ in range(AT_ONCE):
        held = len(entry) if len(kept) == 1 else held
        if len(kept) <= most and held <= most_bytes:
            break
        identity, oldest = kept.pop(0)
        held -= len(oldest[b"x"])
        del head[b"k:" + oldest[b"k"]]
        log.begins_at(int(identity.partition(b"-")[0]) + 1)
    head |= {b"count": written(n), b"bytes": written(held)}
    return [b"OK", n, sight.now]


def forget_prompts(sight: Sight, keys: Sequence[bytes], given: Given) -> list[Any]:
    there, gone, held = dict(sight.entries(keys[0], -1)), 0, number(sight.hash(keys[1]), b"bytes")
    for (n,) in given.rows(1):
        row = there.pop(n + b"-0", None)
        if row is None:
            continue
        sight.stream(keys[0]).loses()
        field = b"k:" + row[b"k"]
        if sight.hash(keys[1])[field] != b"0":
            del sight.hash(keys[1])[field]
        gone, held = gone + 1, held - len(row[b"x"])
    if gone:
        sight.hash(keys[1])[b"bytes"] = written(max(held, 0))
    return [b"OK", gone, sight.now]
