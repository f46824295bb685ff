"""Defects of how workers look for work that no notice told them of."""

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
            "where(2 * place + 1, has_passed, where(2 * place, is_there, {}))",
            "where(2 * place, is_there, {})",
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
    ),
    Mutant(
        "found, and told that nothing was",
        "a look that found something stands for those of others, as if it had found nothing",
        lua("look", "if #claimable + #timed == 0 and not jobs then", "do"),
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
)
