"""The spend of a deployment by day, model and person: what settled usage has added up to.

Days are UTC's. Requests of before the first version that counts days are on none; `dendro budget` and the
lists of trees have the whole spend of each tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import SPEND_DAYS, DaySpend, Spend, day_of
from orchestrator.core.frozen import record
from orchestrator.views import ViewError

SpendBy = Literal["day", "model", "who", "namespace"]
GROUPS: tuple[SpendBy, ...] = get_args(SpendBy)
USUAL_DAYS = 30
MOST_ROWS = 5_000
_DAY_MS = 86_400_000


@record
class SpendRow:
    """The spend of a group; members that it is not grouped by, and those of the rest of a day, are empty."""

    day: str
    namespace: str
    model: str
    who: str
    spend: Spend


@record
class SpendTable:
    """Groups by day, the oldest first, and the costliest first within one."""

    first: str
    last: str
    rows: Sequence[SpendRow]


def last_days(now_ms: int, days: int) -> list[str]:
    """So many days up to today, the oldest first."""
    return [day_of(now_ms - ago * _DAY_MS) for ago in reversed(range(days))]


async def spend_of(
    broker: Broker, days: int, by: Sequence[SpendBy], namespace: str | None = None
) -> SpendTable:
    """The spend of the last days, at most `SPEND_DAYS`; of one namespace, or of all with None.

    Raises `ViewError` where that has more groups than are shown.
    """
    named = last_days(await broker.server_ms(), max(1, min(days, SPEND_DAYS)))
    found = [one for one in await broker.trees.spent_on(named) if namespace in (None, one.namespace)]
    return SpendTable(named[0], named[-1], _grouped(found, by))


def _grouped(found: Sequence[DaySpend], by: Sequence[SpendBy]) -> list[SpendRow]:
    sums: dict[tuple[str, str, str, str], Spend] = {}
    for one in found:
        key = (
            one.day if "day" in by else "",
            one.namespace if "namespace" in by else "",
            one.model if "model" in by else "",
            one.who if "who" in by else "",
        )
        sums[key] = sums.get(key, Spend()) + one.spend
    if len(sums) > MOST_ROWS:
        raise ViewError(
            f"that has {len(sums):,} rows, and {MOST_ROWS:,} are shown: ask for fewer days, or group by less"
        )
    rows = [SpendRow(*key, spend) for key, spend in sums.items()]
    return sorted(
        rows, key=lambda row: (row.day, -row.spend.cost, -row.spend.tokens, row.model, row.who, row.namespace)
    )
