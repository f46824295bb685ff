"""Defects of what followers are shown, and of what providers are sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.broker import follow
from orchestrator.broker.follow import EqCursor
from orchestrator.runtime import lookups
from sim.mutant import Mutant, lua, swapped, text


def _one_behind(real: Any) -> Any:
    return lambda head: EqCursor(max(0, head.eq_n - 1), real(head).seq, real(head).hash8)


def _one_ahead(real: Any) -> Any:
    return lambda head: EqCursor(head.eq_n + 1, real(head).seq, real(head).hash8)


async def _no_gap(reader: Any, session: Any, at: Any) -> None:
    return None


def _trusts_the_order(real: Any) -> Any:
    """A decoder that goes through the fields once: a record counts behind the session of its agent."""

    def projected(fields: Mapping[str, bytes]) -> Any:
        seen: dict[str, bytes] = {}
        for name, value in fields.items():
            if not name.startswith("a:") or f"s:{name[2:]}" in seen:
                seen[name] = value
        return real(seen)

    return projected


DEFECTS = (
    Mutant(
        "sealing looks like going back",
        "a follower's entry that was sealed between two of its reads counts as one that Redis has lost",
        text(follow, "_in_log", "return at.seq <= (await _head(reader, session)).sealed_seq", "return False"),
        "archives",
        test="tests/broker/test_follow.py"
        "::test_follower_of_a_log_that_is_sealed_between_two_of_its_reads_is_told_of_no_going_back",
    ),
    Mutant(
        "attached one too early",
        "who attaches at a session's end is shown the last event that was there",
        swapped(EqCursor, "at", _one_behind),
        "latecomers",
    ),
    Mutant(
        "attached one too late",
        "who attaches at a session's end is not shown the next event",
        swapped(EqCursor, "at", _one_ahead),
        "latecomers",
    ),
    Mutant(
        "trimmed events are passed over",
        "who comes back to events that are not kept is not told so, and waits for ever",
        swapped(follow, "_gap_at", lambda real: _no_gap),
        "latecomers",
    ),
    Mutant(
        "tokens are not spent",
        "`admit` counts requests, and not their tokens",
        lua("admit", "spend('tokens', tokens_limit, tokens)\n", ""),
        "limits",
    ),
    Mutant(
        "settling gives everything back",
        "`settle` gives back what was estimated, and takes nothing for what was used",
        lua("settle", "(estimated - used) * MINUTE", "estimated * MINUTE"),
        "limits",
    ),
    Mutant(
        "fields come in their order",
        "a registry's reader trusts that Redis returns fields in the order in which they were written",
        swapped(lookups, "projected", _trusts_the_order),
        "tree",
    ),
)
