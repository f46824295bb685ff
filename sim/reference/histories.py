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
    held = number(head, b"bytes") + len(entry)
    for _ in range(AT_ONCE):
        if len(kept) <= most and held <= most_bytes:
            break
        identity, oldest = kept.pop(0)
        held -= len(oldest[b"x"])
        del head[b"k:" + oldest[b"k"]]
        log.begins_at(int(identity.partition(b"-")[0]) + 1)
    head |= {b"count": written(n), b"bytes": written(held)}
    return [b"OK", n, sight.now]
