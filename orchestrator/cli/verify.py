"""`dendro verify`: what a log, or a file of one, shows of itself, and what it cannot show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation
from orchestrator.core.counts import counted
from orchestrator.terminal.faults import ExitCode, Fault, refuse

if TYPE_CHECKING:
    from orchestrator.core.chain import ExpectedHead
    from orchestrator.core.ids import SessionId
    from orchestrator.rollouts.verify import Report
    from orchestrator.settings import Settings
    from orchestrator.views.workspaces import FolderReport

FINDINGS_SHOWN = 20
NOT_SHOWN = (
    "not shown  an end that was cut off together with all that noted it, and a session deleted whole:\n"
    "           keep `head` elsewhere, and compare it later with --expect-head"
)


def verify(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(metavar="ID|FILE", help="A session id, the beginning of one, a file, or a bundle."),
    ] = "",
    tree: Annotated[
        bool, typer.Option("--tree", help="Every session of the tree that ID belongs to.")
    ] = False,
    all_: Annotated[bool, typer.Option("--all", help="Every session of the deployment.")] = False,
    workspaces: Annotated[
        bool, typer.Option("--workspaces", help="And each snapshot of a portable folder, in the store.")
    ] = False,
    expect_head: Annotated[
        str | None,
        typer.Option(
            "--expect-head", metavar="SEQ:HASH", help="The `head` of an earlier day: the log must contain it."
        ),
    ] = None,
    accept_old_header: Annotated[
        bool,
        typer.Option(
            "--accept-old-header", help="A keyed full export whose first line bears no code holds, too."
        ),
    ] = False,
    tree_from: Annotated[
        Path | None,
        typer.Option(
            "--tree-from",
            metavar="BUNDLE",
            exists=True,
            dir_okay=False,
            help="Of a file: proves its lines of the tree's log.",
        ),
    ] = None,
    trust: Annotated[
        Path | None,
        typer.Option(
            "--trust", metavar="FILE", exists=True, dir_okay=False, help="Of a bundle: whom you trust."
        ),
    ] = None,
    receipt: Annotated[
        Path | None,
        typer.Option(
            "--receipt", metavar="FILE", exists=True, dir_okay=False, help="Of a bundle: what you were given."
        ),
    ] = None,
) -> None:
    """Checks a log: its chain, its texts, its session, and what others noted of it.

    A file or a bundle is checked without any server. Exit code 1 if anything
    was altered, exchanged or lost; every finding is named. Exit code 2 if it
    cannot be checked here, as where the log's key is not configured: nothing
    can be said of it then.

    \b
    dendro verify 0199a2b4 --expect-head 118:6c1f…
    dendro verify 0199a2b4 --tree --workspaces
    dendro verify run.zip --trust auditor.json --receipt r.json
    DENDRO_CHAIN_KEY_ID=2026-01 DENDRO_CHAIN_SECRET=… dendro verify session.jsonl
    """
    import asyncio

    from orchestrator.cli.bundle import bundle_named, verify_bundle

    unclear = bool(source) == all_ or (expect_head is not None and (tree or all_))
    if unclear:
        raise Fault("give an ID or a FILE, or --all; --expect-head is of one log", ExitCode.USAGE)
    settings, expected = Invocation.of(ctx).settings(), _expected(expect_head)
    if (path := bundle_named(source) if source else None) is not None:
        narrowed = tree or workspaces or accept_old_header or (expected or tree_from) is not None
        if narrowed:
            raise Fault("a bundle is checked as it is: it takes --trust and --receipt alone", ExitCode.USAGE)
        verify_bundle(settings, path, trust, receipt)
        return
    if (trust or receipt) is not None:
        raise Fault("--trust and --receipt are for a bundle", ExitCode.USAGE)
    _check_options(
        source,
        tree=tree,
        workspaces=workspaces,
        old_header=accept_old_header,
        tree_from=tree_from is not None,
    )
    reports = asyncio.run(_reports(settings, source, tree, all_, expected, accept_old_header, tree_from))
    for report in reports:
        _print(_lines(settings, report))
    folders = asyncio.run(_folders(settings, source, tree, all_)) if workspaces else []
    for session, folder in folders:
        _print(_folder_lines(session, folder))
    if not all(report.unchecked for report in reports):
        print(_chain_line(settings))
    print(NOT_SHOWN)
    if (code := _outcome(reports, folders)) is not ExitCode.DONE:
        raise typer.Exit(code)


def _check_options(source: str, *, tree: bool, workspaces: bool, old_header: bool, tree_from: bool) -> None:
    """Raises `Fault` for options of a session that are given with a file, and the other way round."""
    from orchestrator.cli.invocation import existing_file

    of_file = bool(source) and existing_file(source) is not None
    refuse(
        (tree and of_file, "--tree needs a session: a file is of one"),
        (workspaces and of_file, "--workspaces needs a session: a file has no snapshots of folders"),
        (old_header and not of_file, "--accept-old-header is for a file"),
        (tree_from and not of_file, "--tree-from is for a file"),
    )


def _outcome(reports: Sequence[Report], folders: Sequence[tuple[SessionId, FolderReport]]) -> ExitCode:
    """The exit code: that something was altered counts before that something cannot be checked here."""
    if any(report.findings for report in reports) or any(folder.findings for _, folder in folders):
        return ExitCode.FAILED
    return ExitCode.USAGE if any(report.unchecked for report in reports) else ExitCode.DONE


def _expected(text: str | None) -> ExpectedHead | None:
    import re

    from orchestrator.core.chain import ExpectedHead

    if text is None:
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,17}):((?:[0-9a-f]{2}){8,32})", text)
    if match is None:
        raise Fault(
            f"--expect-head {text!r} is not SEQ:HASH, as verify prints it behind `head` "
            "(at least 16 digits of the hash)",
            ExitCode.USAGE,
        )
    return ExpectedHead(int(match[1]), bytes.fromhex(match[2]))


async def _reports(
    settings: Settings,
    source: str,
    tree: bool,
    all_: bool,
    expected: ExpectedHead | None,
    accept_old_header: bool = False,
    tree_from: Path | None = None,
) -> list[Report]:
    from orchestrator.cli.invocation import existing_file, opened
    from orchestrator.rollouts.verify import audit_file, session_report, sessions_by_tree, tree_reports
    from orchestrator.wiring.deployment import chain_key

    path = existing_file(source) if source else None
    if path is not None:
        key, told = chain_key(settings), _tree_lines(settings, tree_from)
        return [
            audit_file(path, key, expected, accept_old_header=accept_old_header, tree_lines=told),
        ]
    async with opened(settings) as found:
        if all_ or tree:
            named = await found.find_tree(source) if source else None
            return [
                report
                async for heads in sessions_by_tree(found, named)
                for report in await tree_reports(found, heads)
            ]
        return [await session_report(found, await found.find(source), expected)]


def _tree_lines(settings: Settings, bundle: Path | None) -> dict[int, bytes] | None:
    """The lines of the tree's log that a bundle proves."""
    from orchestrator.rollouts import RolloutError
    from orchestrator.rollouts.bundle_export import OpenBundle
    from orchestrator.rollouts.bundle_form import NewerFormat
    from orchestrator.wiring.deployment import chain_key

    if bundle is None:
        return None
    try:
        with OpenBundle(bundle, chain_key(settings)) as found:
            return found.tree_lines()
    except (RolloutError, NewerFormat) as error:
        raise Fault(f"{bundle}: {error}") from None


async def _folders(
    settings: Settings, source: str, tree: bool, all_: bool
) -> list[tuple[SessionId, FolderReport]]:
    from orchestrator.cli.invocation import opened
    from orchestrator.rollouts.verify import sessions_by_tree
    from orchestrator.views.workspaces import folder_report, recorded_past

    async with opened(settings) as found:
        if all_ or tree:
            named = await found.find_tree(source) if source else None
            heads = [head async for heads in sessions_by_tree(found, named) for head in heads]
        else:
            heads = [await found.find(source)]
        pasts = [await recorded_past(found, head) for head in heads]
        store, bounds = found.packs(), found.folder_bounds()
        return [(past.head.session, await folder_report(store, past, bounds)) for past in pasts if past]


# ── what is printed ───────────────────────────────────────────────────────────────────────────────


def _print(lines: Iterable[str]) -> None:
    """Prints lines; what a file says in one begins no other."""
    from orchestrator.terminal.text import one_line

    for line in lines:
        print(one_line(line))


def _lines(settings: Settings, report: Report) -> Iterator[str]:
    findings = report.findings
    if not findings and report.unchecked:
        yield f"{report.what}: {report.unchecked}"
        return
    if not findings and not report.head:
        yield f"{report.what}: {counted(report.seq, 'entry')} of its log; {'; '.join(report.shown)}"
        return
    if not findings:
        length = f"{counted(report.seq, 'entry')} follow from each other"
        yield f"{report.what}: {'; '.join([length, *report.shown])}"
        yield f"head       {report.seq}:{report.head.hex()}"
        return
    said = f"CHANGED; and {report.unchecked}" if report.unchecked else f"BROKEN{_hint(settings, report)}"
    yield f"{report.what}: {said}"
    for broken in findings[:FINDINGS_SHOWN]:
        yield f"  {f'at entry {broken.seq}: ' if broken.seq else ''}{broken.reason}"
    if len(findings) > FINDINGS_SHOWN:
        yield f"  and {len(findings) - FINDINGS_SHOWN} more"


def _folder_lines(session: SessionId, found: FolderReport) -> Iterator[str]:
    if not found.findings:
        read = f"{counted(found.snapshots, 'snapshot')} from {counted(found.packs, 'pack')}"
        verb = "is" if found.snapshots == 1 else "are"
        yield f"folder     {session}: {read} {verb} in the store, and whole"
        return
    yield f"folder     {session}: BROKEN"
    for seq, reason in found.findings[:FINDINGS_SHOWN]:
        yield f"  at entry {seq}: {reason}"
    if len(found.findings) > FINDINGS_SHOWN:
        yield f"  and {len(found.findings) - FINDINGS_SHOWN} more"


def _hint(settings: Settings, report: Report) -> str:
    """A chain that breaks at its very first entry was most likely keyed otherwise."""
    from orchestrator.core.chain import NOT_FOLLOWING

    if not any(broken.seq == 1 and NOT_FOLLOWING in broken.reason for broken in report.findings):
        return ""
    chain = settings.chain
    here = f"the key {chain.key_id!r} is configured" if chain.key else "no key is configured"
    there = f"the log was keyed by {report.key_id!r}" if report.key_id else "the log may be keyed otherwise"
    return f" ({there}, and here {here}: see chain.secret)"


def _chain_line(settings: Settings) -> str:
    if settings.chain.key:
        return (
            f"chain      keyed by {settings.chain.key_id!r}: "
            "without that key no entry can be written or changed unseen"
        )
    return (
        "chain      not keyed: damage and single edits show, but anyone who can write to Redis can write\n"
        "           the whole log anew, unseen; chain.secret prevents that for sessions made from then on"
    )
