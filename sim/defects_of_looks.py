"""Defects of how workers hear of work: by a look at all shards, or told alone."""

from __future__ import annotations

from orchestrator.broker.claims import Claims
from orchestrator.runtime.worker import Worker
from sim.mutant import Mutant, lua, text

DEFECTS = (
    Mutant(
        "look past leases",
        "a look at all shards finds what is due, and no lease that ran out",
        lua(
            "look",
            "where(2 * place + 1, has_passed, where(2 * place, due, {}))",
            "where(2 * place, due, {})",
        ),
    ),
    Mutant(
        "nothing found for ever",
        "a look that found nothing stands for all later ones",
        lua("look", "ago < 0 or ago >= every_ms", "num(known and seen[place]) == 0"),
    ),
    Mutant(
        "clock put back ends looks",
        "nobody looks until a clock that was put back shows again when nothing was found",
        lua("look", "ago < 0 or ago >= every_ms", "ago >= every_ms"),
        "several",
    ),
    Mutant(
        "found, and told that nothing was",
        "a look that found something stands for those of others, as if it had found nothing",
        lua("look", "if #claimable + #timed == 0 and not jobs and not left then", "do"),
    ),
    Mutant(
        "look at the wrong shard",
        "a worker takes the places of a look's answer for shards",
        text(
            Claims,
            "_look",
            'shards[shard - 1] for shard in seen["timed"]',
            'shard for shard in seen["timed"]',
        ),
    ),
    Mutant(
        "timers are seen and not fired",
        "a worker that is told of timers that are due fires none",
        text(Worker, "_look", "for shard in found.timed:", "for shard in ():"),
    ),
    Mutant(
        "told alone though nobody listens",
        "a worker that is gone is told alone of what it had last, and nobody else is",
        lua("_wake", "  return known and told\n", "  return true\n"),
    ),
    Mutant(
        "left to another worker for ever",
        "a session of which another worker was told alone is passed over whenever that was",
        lua("claim", "ago >= 0 and ago < near_ms and ", "near_ms > 0 and "),
    ),
    Mutant(
        "next is another's",
        "a claim names as the next session one of which another worker was just told alone",
        lua(
            "claim",
            "redis.call('ZRANGE', KEYS[4], 0, #passing + 3), is_left)",
            "redis.call('ZRANGE', KEYS[4], 0, #passing + 3), function(member) return passed[member] end)",
        ),
        "letters",
    ),
    Mutant(
        "taken, whoever had it last",
        "who claims behind a commit has nobody told of what another worker had last",
        lua(
            "_wake", "(last == taker or tells(last, session, pool))", "(taker or tells(last, session, pool))"
        ),
    ),
    Mutant(
        "claimed behind a commit, of any pool",
        "a worker that ends what it adopted goes on with the parent, whose pool it does not serve",
        text(Worker, "offer", "pool not in self._config.pools or ", ""),
        test="tests/tree/test_tree_cancels.py::test_cancel_that_was_begun_is_ended_by_a_worker_of_any_pool",
    ),
    Mutant(
        "full and told on",
        "a worker that turned others away is still told alone",
        lua("turn_away", "redis.call('DEL', KEYS[1])\n", ""),
    ),
    Mutant(
        "passed on, and left to another",
        "what a worker passes on is left to that worker all the same",
        lua("pass_on", "redis.call('HDEL', KEYS[1], 'due_ms')\n", ""),
        "brood",
    ),
    Mutant(
        "yielded to itself",
        "a session that is given a turn behind others is told of to its own worker alone",
        lua(
            "_commit_writes",
            "if outcome.yields then make_due(session, pools[0], KEYS[6]) end",
            "if outcome.yields then wake(session, pools[0], KEYS[6], own, now) end",
        ),
    ),
)
