"""`dendro audit`: an auditor's questions to a session's tree, a full export, or a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.invocation import Invocation
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from orchestrator.views.audited import Cost, Decided, Logs

audit = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Answers an auditor's questions.")
SOURCE = Annotated[
    str, typer.Argument(metavar="ID|FILE", help="A session of the tree, a full export or a bundle.")
]
JSON = Annotated[bool, typer.Option("--json", help="One answer a line, as JSON.")]
GROUPS = ("who", "behalf", "agent", "model", "day", "token")
ENTRIES_SHOWN = 6
WORTH = (
    "proved: the entries follow from each other, and stand in the log as they were written. Without a chain "
    "key, or a head that you noted, whoever can write to Redis can write the whole log anew"
)


@audit.command("who")
def who(
    ctx: typer.Context,
    source: SOURCE,
    call: Annotated[
        str, typer.Argument(metavar="CALL|GLOB", help="A call's id, or a pattern of its command.")
    ],
    json: JSON = False,
) -> None:
    """Tells who let a call run, or which policy did; where it ran, for whom, and what came of it.

    Each line ends with its entries, and with *proved* (they stand so in a log
    whose chain holds) or *stated* (it is the word of a door or a worker).

    \b
    dendro audit who 0199a2b4 'make*'
    dendro audit who run.zip call_2 --json
    """
    from orchestrator.views import audited

    logs = _logs(ctx, source)
    found = audited.who(logs, call)
    if not found:
        raise Fault(f"no call has the id {call}, or a command that fits it")
    for one in found:
        _show(_as_json(one, logs) if json else _decided(one, logs))
    _end(logs)


@audit.command("cost")
def cost(
    ctx: typer.Context,
    source: SOURCE,
    by: Annotated[
        str, typer.Option("--by", metavar="|".join(GROUPS), help="What is summed up by.")
    ] = "behalf",
    json: JSON = False,
) -> None:
    """Sums up what model requests have cost: tokens, and money by the prices that stand in the log.

    A request without a price is counted as unknown, and never as free.

    \b
    dendro audit cost 0199a2b4 --by model
    """
    from orchestrator.views import audited

    if by not in GROUPS:
        raise Fault(f"--by {by}: one of {', '.join(GROUPS)} is expected", ExitCode.USAGE)
    logs = _logs(ctx, source)
    for one in audited.cost(logs, by):  # type: ignore[arg-type]
        _show(_as_json(one, logs) if json else _spent(one))
    _end(logs)


def _logs(ctx: typer.Context, source: str) -> Logs:
    import asyncio
    from pathlib import Path

    from orchestrator.cli.invocation import existing_file, opened
    from orchestrator.rollouts.bundle_members import is_bundle
    from orchestrator.rollouts.log_errors import RolloutError
    from orchestrator.views import audited
    from orchestrator.wiring.deployment import chain_key

    settings = Invocation.of(ctx).settings()
    try:
        if is_bundle(Path(source)):
            return audited.logs_of_bundle(Path(source), chain_key(settings))
        if (path := existing_file(source)) is not None:
            return audited.logs_of_export(path, chain_key(settings))
    except RolloutError as error:
        raise Fault(str(error)) from None

    async def read() -> Logs:
        async with opened(settings) as found:
            return await audited.logs_of_tree(found, await found.find(source))

    return asyncio.run(read())


def _decided(one: Decided, logs: Logs) -> Iterator[str]:
    where = {True: "in the sandbox", False: "OUTSIDE THE SANDBOX", None: "no command"}[one.sandboxed]
    ran = f"{one.agent}/{one.call_id}  {one.command}  {one.cwd or ''} {where}"
    yield f"{ran}  {_entries(one.entries)} {_proof(logs)}"
    if one.worker:
        yield f"  worker     {one.worker}  {one.worker_entry} stated"
    if one.decision:
        yield f"  {one.decision:<10} by {one.by}  {one.by_entry} stated"
        if one.shown:
            yield f"  shown      {one.shown}  {one.by_entry} stated"
    elif one.unasked:
        yield f"  unasked    {one.unasked}  {_entries(one.entries)} {_proof(logs)}"
    else:
        yield f"  not run    {_entries(one.entries)} {_proof(logs)}"
    if one.behalf:
        yield f"  on behalf  {one.behalf}  {one.behalf_entry} stated"
    if one.result:
        yield f"  result     {one.result}  {_entries(one.entries[-2:])} stated"


def _spent(one: Cost) -> Iterator[str]:
    money = f"${one.cost_micro / 1e6:.6f}"
    unknown = f", {one.unpriced} requests of unknown cost" if one.unpriced else ""
    used = f"{one.requests} requests, {one.input_tokens} in, {one.output_tokens} out"
    yield f"{one.name}  {used}, {money}{unknown}  {_entries(one.entries)} stated"


def _entries(places: list[str]) -> str:
    more = f" and {len(places) - ENTRIES_SHOWN} more" if len(places) > ENTRIES_SHOWN else ""
    return ", ".join(places[:ENTRIES_SHOWN]) + more


def _proof(logs: Logs) -> str:
    return "stated" if logs.faults else "proved"


def _as_json(one: Decided | Cost, logs: Logs) -> Iterator[str]:
    from dataclasses import asdict

    import orjson

    told: dict[str, Any] = {**asdict(one), "entries_are": _proof(logs), "names_are": "stated"}
    yield orjson.dumps(told).decode()


def _show(lines: Iterator[str]) -> None:
    from orchestrator.terminal.text import json_for_stdout, plain

    for line in lines:
        typer.echo(json_for_stdout(line.encode()) if line.startswith("{") else plain(line))


def _end(logs: Logs) -> None:
    from orchestrator.cli.invocation import print_on_stderr

    if not logs.faults:
        print_on_stderr(WORTH)
    for fault in logs.faults[:ENTRIES_SHOWN]:
        print_on_stderr(f"not proved: {fault}")
    if logs.faults:
        raise typer.Exit(ExitCode.FAILED)
