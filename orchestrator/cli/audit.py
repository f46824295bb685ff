"""`dendro audit`: an auditor's questions to a session's tree, a full export, or a bundle."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.invocation import Group, Invocation
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from orchestrator.rollouts.signed_notes import Signers
    from orchestrator.views.audit_cost import Cost
    from orchestrator.views.audit_questions import Answer
    from orchestrator.views.audit_who import Decided, Source

audit = typer.Typer(
    cls=Group, rich_markup_mode=None, no_args_is_help=True, help="Answers an auditor's questions."
)
SOURCE = Annotated[
    str, typer.Argument(metavar="ID|FILE", help="A session of the tree, a full export or a bundle.")
]
JSON = Annotated[bool, typer.Option("--json", help="One answer a line, as JSON.")]
GROUPS = ("who", "behalf", "agent", "model", "day", "token")
ENTRIES_SHOWN = 6
SQL_ROWS = 1_000
UNCHECKED = 2
ERROR_CHARS = 200
"""Of the reason why an entry cannot be read: a stranger's file chooses its words."""
WORTH = (
    "proved: the entries follow from each other, and stand in the log as they were written. Without a chain "
    "key, or a head that you noted, whoever can write to Redis can write the whole log anew"
)


TIME = re.compile(r"(\d{4}(-\d\d(-\d\d(T\d\d(:\d\d(:\d\d(\.\d{1,3})?)?)?Z?)?)?)?)?")
"""A time in UTC as entries have it, or its beginning; an offset would be compared as a text."""


@audit.command("who")
def who(
    ctx: typer.Context,
    source: SOURCE,
    call: Annotated[
        str, typer.Argument(metavar="CALL|GLOB", help="A call's id, or a pattern of its command.")
    ],
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="UTC, or its beginning: 2026-11-28T20.")
    ] = "",
    trust: Annotated[
        Path | None,
        typer.Option("--trust", metavar="FILE", help="Whose `people` have signed; else `approvals.signers`."),
    ] = None,
    json: JSON = False,
) -> None:
    """Tells who let a call run, or which policy did; where it ran, for whom, and what came of it.

    Each line ends with its entries, and with *proved* (they stand so in a log
    whose chain holds, or a person's key has signed it) or *stated* (it is the word
    of a door or a worker). A signature that is none is a finding.

    \b
    dendro audit who 0199a2b4 'make*'
    dendro audit who run.zip call_2 --trust auditor.json
    dendro audit who run.zip call_2 --json
    """
    from orchestrator.views import audit_who

    if not TIME.fullmatch(since):
        example = "2026-11-28T20:15, or its beginning"
        raise Fault(f"--since {since}: a time in UTC is expected, such as {example}", ExitCode.USAGE)
    since = since.removesuffix("Z")
    signers = _signers(ctx, trust)

    async def answer(logs: Source) -> None:
        found, wrong = False, []
        async for one in audit_who.who(logs, call, since, signers):
            found = True
            _show(_as_json(one, logs) if json else _decided(one, logs), json=json)
            wrong += [one.by_entry] if one.signed is False else []
        if not found:
            raise Fault(f"no call has the id {call}, or a command that fits it")
        if wrong:
            raise Fault(f"FINDING: a signature is none of the key that it names: {_entries(wrong)}")

    _ask(ctx, source, answer)


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

    A request without a price is counted as unknown, and never as free. Of a
    session's tree that stands still the sum is held against its registry.

    \b
    dendro audit cost 0199a2b4 --by model
    """
    from orchestrator.cli.invocation import print_on_stderr
    from orchestrator.views import audit_cost

    if by not in GROUPS:
        raise Fault(f"--by {by}: one of {', '.join(GROUPS)} is expected", ExitCode.USAGE)

    async def answer(logs: Source) -> None:
        total = audit_cost.Total()
        for one in await audit_cost.cost(logs, by, total):  # type: ignore[arg-type]
            _show(_as_json(one, logs) if json else _spent(one), json=json)
        if logs.spent is None:
            print_on_stderr(
                "not compared with the tree's registry: a file has none, and a busy tree's changes"
            )
        elif differs := total.compared(logs.spent):
            raise Fault(f"FINDING: {differs}")
        else:
            unknown = f"; {total.unknown} requests there are estimates" if total.unknown else ""
            print_on_stderr(f"the sum agrees with the tree's registry{unknown}")

    _ask(ctx, source, answer)


@audit.command("file")
def file(
    ctx: typer.Context,
    source: SOURCE,
    path: Annotated[str, typer.Argument(metavar="PATH", help="Whole, or its end: `src/app.py`.")],
    json: JSON = False,
) -> None:
    """Tells what touched a file, in order: patches, commands, merges and snapshots, and for which words.

    A command that does not name it is told of where the snapshot behind it has
    another content of it.

    \b
    dendro audit file run.zip src/app.py
    """
    from orchestrator.views import audit_questions

    _answer(ctx, source, lambda logs: audit_questions.file(logs, path), json, f"nothing names {path}")


@audit.command("context")
def context(
    ctx: typer.Context,
    source: SOURCE,
    decision: Annotated[
        str, typer.Argument(metavar="CALL|SEQ", help="A call's id, or an entry: `SESSION:SEQ`.")
    ],
    network: Annotated[
        bool, typer.Option("--network", help="Only what came from outside of the machine.")
    ] = False,
    json: JSON = False,
) -> None:
    """Lists all that the model was shown when it decided: each text, its entry and its origin.

    *proved* is that it was shown where the digest of the request follows from the
    entries. Which words of the action stand in which text is likeness, and no
    proof.

    \b
    dendro audit context run.zip call_2 --network
    """
    from orchestrator.views import audit_questions

    none = f"no request of the model lies before {decision}, or there is no such call or entry"
    _answer(ctx, source, lambda logs: audit_questions.context(logs, decision, network=network), json, none)


@audit.command("secrets")
def secrets(
    ctx: typer.Context,
    source: SOURCE,
    find: Annotated[
        list[str] | None, typer.Option("--find", metavar="REGEX", help="Looked for as well.")
    ] = None,
    json: JSON = False,
) -> None:
    """Finds where secrets may have been seen: by their forms, and who and which provider got each.

    No answer has the secret itself. What was seen cannot be called back; `dendro
    redact` takes it out of the logs.

    \b
    dendro audit secrets run.zip --find 'ACME-[0-9]{8}'
    """
    from orchestrator.views import audit_questions

    try:
        audit_questions.finders(find or ())
    except re.error as error:
        raise Fault(f"--find: it is no regular expression: {error}", ExitCode.USAGE) from None
    found = "no text has the form of a secret that is known here, or is looked for"
    _answer(ctx, source, lambda logs: audit_questions.secrets(logs, find or ()), json, nothing=found)


@audit.command("egress")
def egress(ctx: typer.Context, source: SOURCE, json: JSON = False) -> None:
    """Lists what may have left the machine: requests, commands with network, MCP calls, web searches.

    Hosts are those that words name: what a command really reached is not observed.

    \b
    dendro audit egress run.zip --json
    """
    from orchestrator.views import audit_questions

    nothing = "no request, command with network, MCP call or web search is in these logs"
    _answer(ctx, source, audit_questions.egress, json, nothing=nothing)


@audit.command("redactions")
def redactions(ctx: typer.Context, source: SOURCE, json: JSON = False) -> None:
    """Lists what was redacted: which entries, by whom, when and why; and entries without text.

    \b
    dendro audit redactions 0199a2b4
    """
    from orchestrator.views import audit_questions

    nothing = "nothing was redacted, no entry is without its text, and no bundle was noted"
    _answer(ctx, source, audit_questions.redactions, json, nothing=nothing)


@audit.command("report")
def report(
    ctx: typer.Context,
    source: SOURCE,
    file: Annotated[Path, typer.Option("--html", metavar="FILE", help="The page that is written.")],
) -> None:
    """Writes one page: what holds, what is stated, decisions, cost, what left the machine, redactions.

    It needs nothing beside it, and has no scripts.

    \b
    dendro audit report run.zip --html run.html
    """
    from orchestrator.cli.invocation import print_on_stderr
    from orchestrator.private_files import replacing
    from orchestrator.views import audit_tables

    async def answer(logs: Source) -> None:
        with replacing(file) as out:
            await audit_tables.write_page(logs, source, out)
        print_on_stderr(f"written: {file}")

    _ask(ctx, source, answer)


@audit.command("sql")
def sql(
    ctx: typer.Context,
    source: SOURCE,
    statement: Annotated[str, typer.Argument(metavar="SQL", help="One or more statements of DuckDB.")],
    json: JSON = False,
) -> None:
    """Answers a statement of SQL over the logs; it can reach no file and no network.

    Tables: entries, tasks, requests, calls, approvals, agents, files, texts,
    mail, claims, redactions, receipts, about. Needs the extra `audit`.

    \b
    dendro audit sql run.zip "SELECT session, seq, command FROM calls JOIN entries USING (session)"
    """
    from orchestrator.views import audit_tables

    async def answer(logs: Source) -> None:
        import duckdb

        made = await audit_tables.tables(logs)
        try:
            audit_tables.close_doors(made)
            found = made.execute(statement)
            names = [column[0] for column in found.description or ()]
            while rows := found.fetchmany(SQL_ROWS):
                for row in rows:
                    told = dict(zip(names, row, strict=False)) if json else "\t".join(map(_cell, row))
                    _show(iter([told if isinstance(told, str) else _json(told)]), json=json)
        except duckdb.Error as error:
            raise Fault(f"the statement failed: {error}", ExitCode.USAGE) from None
        finally:
            made.close()

    _with_duckdb(ctx, source, answer)


@audit.command("export")
def export(
    ctx: typer.Context,
    source: SOURCE,
    folder: Annotated[Path, typer.Option("--parquet", metavar="DIR", help="A new folder.")],
) -> None:
    """Writes the tables of `dendro audit sql` as Parquet files into a new folder.

    \b
    dendro audit export run.zip --parquet tables
    """
    from orchestrator.cli.invocation import print_on_stderr
    from orchestrator.views import audit_tables

    async def answer(logs: Source) -> None:
        made = await audit_tables.tables(logs)
        try:
            folder.mkdir(mode=0o700)
            audit_tables.write_parquet(made, folder)
            print_on_stderr(f"written: {folder}")
        except FileExistsError:
            raise Fault(f"{folder} is there already: name a new folder", ExitCode.USAGE) from None
        finally:
            made.close()

    _with_duckdb(ctx, source, answer)


def _with_duckdb(ctx: typer.Context, source: str, answer: Callable[[Source], Awaitable[None]]) -> None:
    from orchestrator.views.audit_tables import NoDuckDB

    try:
        _ask(ctx, source, answer)
    except (NoDuckDB, ImportError):
        why = "tables need DuckDB, which is not installed: pip install 'dendro-orchestrator[audit]'"
        raise Fault(why, ExitCode.USAGE) from None


def _cell(value: object) -> str:
    return "" if value is None else str(value).replace("\t", " ").replace("\n", " ")


def _answer(
    ctx: typer.Context,
    source: str,
    question: Callable[[Source], AsyncIterator[Answer]],
    json: bool,
    none: str = "",
    nothing: str = "",
) -> None:
    """Prints the answers as they come; where there are none `Fault` with `none`, else the word `nothing`."""
    from orchestrator.cli.invocation import print_on_stderr

    async def answer(logs: Source) -> None:
        found = False
        async for one in question(logs):
            found = True
            worth = _proof(logs) if one.proved else "stated"
            if json:
                told = {**one.values, "entries": list(one.entries), "worth": worth}
                _show(iter([_json(told)]), json=True)
            else:
                _show(iter([f"{one.text}  {_entries(one.entries)} {worth}"]), json=False)
        if not found and none:
            raise Fault(none)
        if not found:
            print_on_stderr(nothing)

    _ask(ctx, source, answer)


def _ask(ctx: typer.Context, source: str, answer: Callable[[Source], Awaitable[None]]) -> None:
    """Opens the logs and has them asked; says then what the answers are worth."""
    import asyncio

    from orchestrator.cli.invocation import existing_file, opened
    from orchestrator.rollouts import RolloutError
    from orchestrator.rollouts.bundle_form import NewerFormat
    from orchestrator.rollouts.bundle_members import BadContainer, is_bundle
    from orchestrator.views import audit_who
    from orchestrator.wiring.deployment import chain_key

    settings = Invocation.of(ctx).settings()

    async def of_file() -> Source | None:
        if is_bundle(Path(source)):
            return audit_who.logs_of_bundle(Path(source), chain_key(settings))
        if (path := existing_file(source)) is not None:
            return audit_who.logs_of_export(path, chain_key(settings))
        return None

    async def asked(logs: Source) -> Source:
        try:
            await answer(logs)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"[:ERROR_CHARS]
            raise Fault(f"{source}: an entry has a form that this version cannot read ({why})") from None
        return logs

    async def ask() -> Source:
        if (logs := await of_file()) is not None:
            return await asked(logs)
        async with opened(settings) as found:
            return await asked(await audit_who.logs_of_tree(found, await found.find(source)))

    try:
        logs = asyncio.run(ask())
    except (RolloutError, BadContainer) as error:
        raise Fault(str(error)) from None
    except NewerFormat as error:
        raise Fault(f"{source}: {error}: it cannot be read here", ExitCode.USAGE) from None
    _end(logs)


def _signers(ctx: typer.Context, trust: Path | None) -> Signers:
    """The people whose signatures prove an answer: of the trust file, else of the person's settings."""
    from orchestrator.cli.bundle import read_trust
    from orchestrator.rollouts.signed_notes import Signers, VerifierKey

    if (told := read_trust(trust)) is not None:
        return Signers(told.people.values(), told.people)
    return Signers(map(VerifierKey.read, Invocation.of(ctx).settings().approvals.signers))


def _decided(one: Decided, logs: Source) -> Iterator[str]:
    where = {True: "in the sandbox", False: "OUTSIDE THE SANDBOX", None: "no command"}[one.sandboxed]
    ran = f"{one.agent}/{one.call_id}  {one.command}  {one.cwd or ''} {where}"
    yield f"{ran}  {_entries(one.entries)} {_proof(logs)}"
    if one.worker:
        yield f"  worker     {one.worker}  {one.worker_entry} stated"
    if one.decision:
        yield f"  {one.decision:<10} by {one.by}  {one.by_entry} stated"
        if one.signed:
            yield f"  signed     by {one.key}, over this decision and what was shown  {one.by_entry} proved"
        elif one.key:
            why = "WHICH IT IS NOT" if one.signed is False else "whose key was not told (--trust)"
            yield f"  signed     as {one.key}, {why}  {one.by_entry} stated"
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
    yield f"{one.name}  {used}, {money}{unknown}  {_entries(one.entries, one.more_entries)} stated"


def _entries(places: Sequence[str], uncounted: int = 0) -> str:
    left = len(places) - ENTRIES_SHOWN + uncounted
    more = f" and {left} more" if len(places) > ENTRIES_SHOWN else ""
    return ", ".join(places[:ENTRIES_SHOWN]) + more


def _proof(logs: Source) -> str:
    return "stated" if logs.faults or logs.unchecked else "proved"


def _as_json(one: Decided | Cost, logs: Source) -> Iterator[str]:
    from dataclasses import asdict

    yield _json({**asdict(one), "entries_are": _proof(logs), "names_are": "stated"})


def _json(told: Mapping[str, Any]) -> str:
    import orjson

    return orjson.dumps(told, default=str).decode()


def _show(lines: Iterator[str], *, json: bool) -> None:
    from orchestrator.terminal.text import json_for_stdout, one_line

    for line in lines:
        if json:
            typer.echo(json_for_stdout(line.encode()))
        else:
            # Tabs part the columns of a table.
            typer.echo("\t".join(map(one_line, line.split("\t"))))


def _end(logs: Source) -> None:
    from orchestrator.cli.invocation import print_on_stderr

    for fault in logs.faults[:ENTRIES_SHOWN]:
        print_on_stderr(f"not proved: {fault}")
    if logs.faults:
        raise typer.Exit(ExitCode.FAILED)
    if logs.unchecked:
        print_on_stderr(f"not proved: {logs.unchecked}")
        raise typer.Exit(UNCHECKED)
    print_on_stderr(WORTH)
