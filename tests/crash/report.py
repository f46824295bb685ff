"""An account for people and for programs."""

from __future__ import annotations

from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.crash.driver import Account


def as_json(account: Account) -> dict[str, Any]:
    """The figures, and every violation."""
    takeovers = account.takeovers_s or [0.0]
    return {
        "seed": account.seed,
        "kills": account.kills,
        "points": dict(sorted(account.points.items())),
        "takeovers": len(account.takeovers_s),
        "takeover_p50_s": round(median(takeovers), 2),
        "takeover_max_s": round(max(takeovers), 2),
        "tasks": account.tasks,
        "commands": account.commands,
        "in_doubt": account.in_doubt,
        "quarantined": account.quarantined,
        "entries": account.entries,
        "agents": account.agents,
        "processes": account.processes,
        "elicitations": account.elicitations,
        "wall_s": round(account.wall_s, 1),
        "violations": account.violations,
    }


def show(name: str, account: Account, console: Console) -> None:
    """A table of where the workers died, and the figures."""
    table = Table("killed at", "times", title=f"{name}: {account.kills} kills, seed {account.seed}")
    for point, times in sorted(account.points.items(), key=lambda pair: (-pair[1], pair[0])):
        table.add_row(point, str(times))
    console.print(table)
    facts = as_json(account)
    for name in (
        "takeovers",
        "takeover_p50_s",
        "takeover_max_s",
        "tasks",
        "agents",
        "commands",
        "in_doubt",
        "processes",
        "elicitations",
    ):
        console.print(f"{name}: {facts[name]}")
    for violation in account.violations:
        console.print(f"[red]violation[/red]: {violation}")
    console.print("nothing was lost, doubled or altered" if not account.violations else "FAILED")
