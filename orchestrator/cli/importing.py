"""`dendro import`: a session from a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation
from orchestrator.core.counts import counted

if TYPE_CHECKING:
    from orchestrator.cli.import_plan import Plan
    from orchestrator.core.ids import SessionId
    from orchestrator.settings import Settings


def import_(
    ctx: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="An export or a rollout.")
    ],
    pool: Annotated[
        str | None, typer.Option("--pool", metavar="POOL", help="Which workers may run it.")
    ] = None,
) -> None:
    """Makes a session from a file, and prints its id.

    A full export becomes a session in the same state under a new id, its
    chain made anew. The peer's rollout becomes an idle session with its
    history and last settings. Nothing runs until somebody speaks to it, and a
    file with one bad line makes no session at all.

    \b
    dendro import session.jsonl
    dendro run --resume "$(dendro import rollout.jsonl)" "go on"
    """
    import asyncio

    settings = Invocation.of(ctx).settings({"pool": pool})
    session, plan = asyncio.run(_import(settings, file))
    for line in _said(plan):
        print(line, file=sys.stderr)
    print(session)


async def _import(settings: Settings, file: Path) -> tuple[SessionId, Plan]:
    import os
    import time

    from orchestrator.cli.export_file import BadLine, read_rollout
    from orchestrator.cli.faults import Fault
    from orchestrator.cli.import_plan import Newcomer, plan_import
    from orchestrator.cli.import_store import store
    from orchestrator.cli.opening import opened
    from orchestrator.gateways.workspace import Workspace
    from orchestrator.wiring import VERSION, chain_key, new_birth

    now_ms = time.time_ns() // 1_000_000
    birth = new_birth(settings, Workspace(), now_ms, os.urandom)
    newcomer = Newcomer(birth.facts, birth.settings, VERSION, now_ms)
    key, blobs = chain_key(settings), dict[str, bytes]()
    try:
        with file.open("rb") as lines:
            plan = plan_import(read_rollout(lines, blobs), newcomer, blobs, key.secret if key else b"")
    except (BadLine, Fault) as error:
        raise Fault(f"{file}: {error}; nothing was imported") from None
    async with opened(settings) as found:
        return await store(found, plan, blobs, now_ms), plan


def _said(plan: Plan) -> list[str]:
    """What a person should know of the new session."""
    state = plan.state
    made = f"a session of {counted(len(plan.entries), 'entry')}, from {plan.lines:,} that stand in the file"
    left_out = f" ({plan.left_out:,} are left out of it but for their digests)" if plan.left_out else ""
    lines = [f"{made}{left_out}; status {state.status}, model {state.settings.model}"]
    lines += plan.notes
    if state.task is not None:
        lines.append("a task was under way: calls that had begun are in doubt, and nothing starts by itself")
    return lines
