"""Notes that doors keep about sessions, beside their logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sim.reference.given import Given
from sim.reference.sight import Sight

FIELD = b"note:"


def note(sight: Sight, keys: Sequence[bytes], given: Given) -> list[Any]:
    name_of, name, value, was, most = *given.words(4), given.number()
    session = sight.hash(keys[0])
    if b"tree" not in session:
        return [b"UNKNOWN"]
    stands = session.get(FIELD + name, b"")
    if stands not in (value, was):
        return [b"WAS", stands]
    kept = sum(field.startswith(FIELD) for field in session)
    if stands != value:
        if not stands and kept >= most:
            return [b"FULL", kept]
        session[FIELD + name] = value
        sight.tells_followers(keys[1])
        sight.is_shown_anew(name_of)
    return [b"OK", sight.now]
