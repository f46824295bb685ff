"""`dendro doctor` as a command; what it looks at is in `doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.invocation import Invocation


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

    from orchestrator.cli.doctor import as_json, diagnose, exit_code, render
    from orchestrator.cli.text import json_for_stdout

    findings = asyncio.run(diagnose(Invocation.of(ctx).settings(quiet=True)))
    if json:
        typer.echo(json_for_stdout(as_json(findings).encode()))
    else:
        render(findings, Console())
    raise typer.Exit(exit_code(findings))
