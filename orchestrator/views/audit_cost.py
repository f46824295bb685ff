"""The cost of a tree's requests, from its logs: by agent, model, day, or who let them run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from orchestrator.core import facts as f
from orchestrator.views.audit_who import MOST_ENTRIES, UNKNOWN, Reading, Source, Told

if TYPE_CHECKING:
    from orchestrator.broker.records import Spend

By: TypeAlias = Literal["who", "behalf", "agent", "model", "day", "token"]


@dataclass(slots=True)
class Cost:
    """The requests of one group."""

    name: str
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_micro: int = 0
    unpriced: int = 0
    """Requests that used tokens and have no price: their cost is unknown, and not zero."""
    entries: list[str] = field(default_factory=list)
    more_entries: int = 0


@dataclass(slots=True)
class Total:
    """All requests, as the registry of their tree counts them."""

    tokens: int = 0
    cost_micro: int = 0
    requests: int = 0
    unpriced: int = 0
    unknown: int = 0
    """Requests whose usage nobody knows: the registry has an estimate of each."""
    imported: bool = False
    """Whether a session was made from a file: what it had used before, its tree's registry does not count."""

    def take(self, end: f.RequestEnded) -> None:
        """Takes the end of a request."""
        if end.usage:
            self.tokens += tokens(end, "total_tokens")
            self.cost_micro += end.price.cost_micro if end.price is not None else 0
            self.unpriced += end.price is None
            self.requests += 1
        elif isinstance(end, f.RequestRetried | f.RequestFailed) and not end.served:
            self.requests += 1
        elif not isinstance(end, f.RequestDelayed):
            self.unknown += 1

    def compared(self, spent: Spend) -> str:
        """The difference of the registry's sums that these requests do not explain; empty for none."""
        differ = []
        for name, here, there, may_be_more in (
            ("tokens", self.tokens, spent.tokens, self.unknown),
            ("requests", self.requests, spent.requests, self.unknown),
            ("millionths of a dollar", self.cost_micro, spent.cost, self.unknown or self.unpriced),
        ):
            if here > there or (here < there and not may_be_more):
                differ.append(f"{there} {name} by the tree's registry, {here} by the logs")
        return "; ".join(differ)


def tokens(end: f.RequestEnded, name: str) -> int:
    """Tokens of one kind by the provider's usage; 0 where it tells none."""
    return int((end.usage or {}).get(name) or 0)


async def cost(logs: Source, by: By, total: Total | None = None) -> list[Cost]:
    """The cost of all requests by the group, the dearest first; `total` takes the sum of all."""
    log, session = Reading(), ""
    groups: dict[str, Cost] = {}
    begun: set[int] = set()
    async for told in logs.entries():
        if told.session != session:
            log, session = Reading(), told.session
            if total is not None:
                total.unknown += len(begun)
            begun.clear()
        log.take(told)
        match told.fact:
            case f.TaskBegun() if total is not None and told.epoch == 0:
                # No worker without a claim begins a task.
                total.imported = True
            case f.RequestBegun(n=n):
                begun.add(n)
            case end if isinstance(end, f.RequestEnded):
                begun.discard(end.n)
                name = _group(log, told, end, by)
                _add(groups.setdefault(name, Cost(name)), told, end)
                if total is not None:
                    total.take(end)
            case _:
                pass
    if total is not None:
        total.unknown += len(begun)
    return sorted(groups.values(), key=lambda group: (-group.cost_micro, group.name))


def _add(group: Cost, told: Told, end: f.RequestEnded) -> None:
    group.requests += 1
    group.input_tokens += tokens(end, "input_tokens")
    group.output_tokens += tokens(end, "output_tokens")
    group.cost_micro += end.price.cost_micro if end.price is not None else 0
    group.unpriced += bool(end.usage) and end.price is None
    if len(group.entries) < MOST_ENTRIES:
        group.entries.append(told.place)
    else:
        group.more_entries += 1


def _group(log: Reading, told: Told, end: f.RequestEnded, by: By) -> str:
    match by:
        case "agent":
            return log.agent
        case "model":
            served = end.served_by if isinstance(end, f.RequestCompleted) else None
            asked = log.settings.model if log.settings is not None else ""
            return (served.model if served is not None else "") or asked or UNKNOWN
        case "day":
            return (told.at or UNKNOWN)[:10]
        case "who":
            giver = log.task.by if log.task is not None else None
            return "nobody (mail began the task)" if giver is None else giver.who or UNKNOWN
        case "token":
            giver, _ = log.giver()
            return (giver.token if giver is not None else "") or UNKNOWN
        case "behalf":
            giver, _ = log.giver()
            return (giver.who if giver is not None else "") or UNKNOWN
