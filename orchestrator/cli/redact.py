"""`dendro redact`: the text of entries is taken away for good, and the log says who did it and why."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation
from orchestrator.core.counts import counted
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.broker.records import SessionHead
    from orchestrator.rollouts.redaction import Act, Copy, Plan
    from orchestrator.wiring.open_deployment import Opened

SHOWN = 200
MOST_WHY = 1_000


def redact(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help="A session id, or a part of one.")],
    seqs: Annotated[list[int] | None, typer.Argument(metavar="SEQ…", help="Numbers of its entries.")] = None,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, which the log keeps.")] = "",
    text: Annotated[
        list[str] | None, typer.Option("--text", metavar="SHA256", help="A large text, by its digest.")
    ] = None,
    find: Annotated[
        str | None, typer.Option("--find", metavar="REGEX", help="All entries of the tree that have it.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only lists what would go, and what stays.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask at the terminal.")] = False,
) -> None:
    """Takes the text of entries away for good, with every copy that is at hand.

    Copies are looked for first, in the logs of the tree and of its forks, and
    listed. The chain goes on by the digests that stay. What was exported, printed
    or sent to a provider cannot be called back: such requests are listed. The
    sessions have to be at rest.

    \b
    dendro redact 0199a2b4 18 19 --why "personal data" --dry-run
    dendro redact 0199a2b4 --find 'ACME-[0-9]{8}' --why "a customer's number"
    """
    import asyncio

    if not (seqs or text or find):
        raise Fault("name entries, --text or --find", ExitCode.USAGE)
    if not dry_run and not (why.strip() and len(why) <= MOST_WHY):
        raise Fault(f"--why: a reason of at most {MOST_WHY} characters is needed", ExitCode.USAGE)
    for digest in text or ():
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise Fault(f"--text {digest}: a SHA-256 in hexadecimal is expected", ExitCode.USAGE)
    try:
        pattern = re.compile(find) if find else None
    except re.error as error:
        raise Fault(f"--find: it is no regular expression: {error}", ExitCode.USAGE) from None
    if pattern is not None and pattern.search(""):
        raise Fault("--find: it would find every text", ExitCode.USAGE)
    asyncio.run(_redact(Invocation.of(ctx), id, seqs or (), why.strip(), text or (), pattern, dry_run, yes))


async def _redact(
    invocation: Invocation,
    id: str,
    seqs: Sequence[int],
    why: str,
    texts: Sequence[str],
    find: re.Pattern[str] | None,
    dry_run: bool,
    yes: bool,
) -> None:
    from orchestrator.cli.invocation import opened
    from orchestrator.rollouts import RolloutError
    from orchestrator.rollouts.redaction import Wanted, plan_of
    from orchestrator.rollouts.redaction import redact as take_away

    async with opened(invocation.settings()) as found:
        head = await found.find_one(id)
        wanted = Wanted(head.session, tuple(seqs), tuple(texts), find)
        asks = not yes and sys.stdin.isatty()
        listed: set[Copy] | None = None
        try:
            # A person may take their time: copies that came meanwhile, as in a fork, are put to them, too.
            while {*(plan := await plan_of(found, head, wanted)).copies} != listed:
                listed = {*plan.copies}
                _list(plan)
                if not plan.count:
                    raise Fault("no entry that can be redacted has it")
                if dry_run:
                    return
                if not asks:
                    break
                if not typer.confirm("take these texts away for good?"):
                    typer.echo("nothing was changed")
                    return
            await _bring_back(found, [plan.heads[session] for session in plan.entries])
            try:
                done = await take_away(found, found.storage(), plan, _act(why))
            finally:
                # What was taken before it broke off is gone from here, too.
                await _remove_files(found)
        except RolloutError as error:
            raise Fault(str(error)) from None
    typer.echo(f"redacted {counted(done, 'entry')} of {counted(len(plan.entries), 'session')}")


def _list(plan: Plan) -> None:
    from orchestrator.terminal.text import one_line

    for copy in plan.copies[:SHOWN]:
        typer.echo(one_line(f"{'goes ' if copy.goes else 'STAYS'}  {copy.place}  {copy.what}"))
    if len(plan.copies) > SHOWN:
        typer.echo(f"and {len(plan.copies) - SHOWN} more")


async def _bring_back(found: Opened, heads: Sequence[SessionHead]) -> None:
    """Archived sessions come back to Redis: they are written to."""
    for head in heads:
        if head.archived:
            await found.restore(head.session)


def _act(why: str) -> Act:
    import time

    from orchestrator.gateways.principals import machine_user
    from orchestrator.rollouts.redaction import Act
    from orchestrator.wiring.new_sessions import this_process

    return Act(why, machine_user().sender("cli"), this_process(), time.time_ns() // 1_000_000)


async def _remove_files(found: Opened) -> None:
    from orchestrator.rollouts.deletion import DeletedFiles

    await DeletedFiles(found.rollout_files).remove_redacted(found.broker)
