"""What `dendro doctor` reports: findings, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table
from rich.text import Text

Level = Literal["ok", "warn", "missing"]

MARKS: dict[Level, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "warn": ("!", "yellow"),
    "missing": ("✗", "red"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `missing`: Dendro does not work like this; `warn`: it does, at a risk."""

    name: str
    level: Level
    detail: str
    remedy: str = ""


def exit_code(findings: Sequence[Finding]) -> int:
    """2 if something needed is missing."""
    return 2 if any(finding.level == "missing" for finding in findings) else 0


def render(findings: Sequence[Finding], console: Console) -> None:
    """A line for each finding, its remedy below it."""
    table = Table.grid(padding=(0, 2))
    for finding in findings:
        mark, color = MARKS[finding.level]
        text = Text(finding.detail)
        if finding.remedy:
            text.append(f"\n→ {finding.remedy}", style="bold")
        table.add_row(Text(mark, style=color), Text(finding.name), text)
    console.print(table)


def as_json(findings: Sequence[Finding]) -> str:
    """The same for programs."""
    return json.dumps([asdict(finding) for finding in findings], ensure_ascii=False, indent=2)


def without_credentials(url: str) -> str:
    """A URL as it may be shown: user, password and query left out."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
