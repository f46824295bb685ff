"""`dendro doctor` as a command; what it looks at is in `orchestrator.doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from orchestrator.doctor import Finding, Level

MARKS: dict[Level, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "warn": ("!", "yellow"),
    "missing": ("✗", "red"),
}


def doctor(
    ctx: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="Findings as JSON.")] = False,
) -> None:
    """Says what is there and what is missing, with the remedy for each.

    Exit code 2 if something needed is missing.

    \b
    dendro doctor
    dendro doctor --json | jq '.[] | select(.level == "missing")'
    """
    import asyncio

    from rich.console import Console

    from orchestrator.doctor import as_json, diagnose, exit_code
    from orchestrator.terminal.text import json_for_stdout

    findings = asyncio.run(diagnose(Invocation.of(ctx).settings(quiet=True, closes=False)))
    if json:
        typer.echo(json_for_stdout(as_json(findings).encode()))
    else:
        render(findings, Console())
    raise typer.Exit(exit_code(findings))


def render(findings: Sequence[Finding], console: Console) -> None:
    """A line for each finding, its remedy below it."""
    from rich.table import Table
    from rich.text import Text

    from orchestrator.terminal.text import plain, shown

    table = Table.grid(padding=(0, 2))
    for finding in findings:
        mark, color = MARKS[finding.level]
        # A path is longer than a line, and its end says what is wrong: folded, never cut.
        text = Text(plain(finding.detail), overflow="fold")
        if finding.remedy:
            text.append(f"\n→ {plain(finding.remedy)}", style="bold")
        table.add_row(Text(mark, style=color), shown(finding.name), text)
    console.print(table)
