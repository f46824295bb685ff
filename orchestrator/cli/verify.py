"""`dendro verify`: what a log, or a file of one, shows of itself, and what it cannot show."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.faults import ExitCode, Fault
from orchestrator.cli.invocation import Invocation
from orchestrator.core.counts import counted

if TYPE_CHECKING:
    from orchestrator.broker.records import SessionHead
    from orchestrator.cli.opening import Opened
    from orchestrator.core.chain import BrokenLink, ExpectedHead
    from orchestrator.runtime.audit import LogAudit, Witness
    from orchestrator.settings import Settings

FINDINGS_SHOWN = 20
NOT_SHOWN = (
    "not shown  an end that was cut off together with all that noted it, and a session deleted whole:\n"
    "           keep `head` elsewhere, and compare it later with --expect-head"
)


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked of one log."""

    what: str
    seq: int
    head: bytes
    shown: tuple[str, ...]
    """What holds, for people."""
    findings: Sequence[BrokenLink]
    key_id: str = ""
    """Which key the log says that its chain was keyed by; sessions do not say it, full exports do."""


def verify(
    ctx: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="ID|FILE", help="A session id, the beginning of one, or a file.")
    ] = "",
    tree: Annotated[
        bool, typer.Option("--tree", help="Every session of the tree that ID belongs to.")
    ] = False,
    all_: Annotated[bool, typer.Option("--all", help="Every session of the deployment.")] = False,
    expect_head: Annotated[
        str | None,
        typer.Option(
            "--expect-head", metavar="SEQ:HASH", help="The `head` of an earlier day: the log must contain it."
        ),
    ] = None,
) -> None:
    """Checks a log: its chain, its texts, its session, and what others noted of it.

    A file is checked without any server. Redacted entries verify. Exit code 1
    if anything was altered, exchanged or lost; every finding is named.

    \b
    dendro verify 0199a2b4 --expect-head 118:6c1f…
    dendro verify 0199a2b4 --tree
    DENDRO_CHAIN_SECRET=… dendro verify session.jsonl
    """
    import asyncio

    if bool(source) == all_ or (expect_head is not None and (tree or all_)):
        raise Fault("give an ID or a FILE, or --all; --expect-head is of one log", ExitCode.USAGE)
    settings, expected = Invocation.of(ctx).settings(), _expected(expect_head)
    sound = True
    for report in asyncio.run(_reports(settings, source, tree, all_, expected)):
        for line in _lines(settings, report):
            print(line)
        sound = sound and not report.findings
    print(_chain_line(settings))
    print(NOT_SHOWN)
    if not sound:
        raise typer.Exit(1)


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
    settings: Settings, source: str, tree: bool, all_: bool, expected: ExpectedHead | None
) -> list[Report]:
    from orchestrator.cli.folding import existing_file
    from orchestrator.cli.opening import opened
    from orchestrator.cli.verify_file import audit_file

    path = existing_file(source) if source else None
    if path is not None:
        if tree:
            raise Fault("--tree needs a session: a file is of one", ExitCode.USAGE)
        return [audit_file(settings, path, expected)]
    async with opened(settings) as found:
        if all_ or tree:
            return [
                report async for heads in _trees(found, source) for report in await _of_tree(found, heads)
            ]
        return [_report(await _of_session(found, await found.find(source), expected))]


# ── sessions ──────────────────────────────────────────────────────────────────────────────────


async def _of_session(found: Opened, head: SessionHead, expected: ExpectedHead | None) -> LogAudit:
    from orchestrator.runtime.audit import Witness, audit_session, tree_witnesses

    witnesses = [*await tree_witnesses(found.broker, head.tree), *_noted_in_file(found, head)]
    if expected is not None:
        witnesses.append(Witness(head.session, expected.seq, expected.chain, "--expect-head"))
    return await audit_session(found.storage(), head, witnesses)


def _noted_in_file(found: Opened, head: SessionHead) -> Iterator[Witness]:
    """What the session's rollout file notes, where its workers write it into this user's data folder."""
    from datetime import datetime

    from orchestrator.core.ids import created_ms
    from orchestrator.runtime.audit import Witness
    from orchestrator.runtime.export import last_noted

    moment = datetime.fromtimestamp(created_ms(head.session) / 1000)
    day = found.settings.home / "sessions" / f"{moment:%Y}" / f"{moment:%m}" / f"{moment:%d}"
    for path in day.glob(f"rollout-*-{head.session}.jsonl"):
        if path.is_file():
            with path.open("rb") as file:
                line = last_noted(file)
            if line.seq:
                yield Witness(head.session, line.seq, line.head, f"the file {path}")


async def _trees(found: Opened, source: str) -> AsyncIterator[list[SessionHead]]:
    """The sessions of the tree that `source` belongs to, or of each tree that there is."""
    if source:
        tree = await found.find_tree(source)
        # Agents that were pruned are in no registry, so the tree's shard is read.
        pages = found.broker.heads_of_shard(found.broker.keys.shard_of(tree))
        yield [head async for page in pages for head in page if head.tree == tree]
        return
    async for sessions in found.broker.session_ids():
        # All of a tree are in one shard, and each page is one shard's.
        trees: dict[str, list[SessionHead]] = {}
        for head in await found.broker.heads(sessions):
            trees.setdefault(str(head.tree), []).append(head)
        for heads in trees.values():
            yield heads


async def _of_tree(found: Opened, heads: Sequence[SessionHead]) -> list[Report]:
    """In the order in which the agents were made."""
    from orchestrator.runtime.audit import audit_tree

    noted = [note for head in heads for note in _noted_in_file(found, head)]
    audits = [audit async for audit in audit_tree(found.storage(), heads, noted)]
    return [_report(audit) for audit in reversed(audits)]


def _report(audit: LogAudit) -> Report:
    shown = ["it is this session's log"] if audit.named else ["its entries name no session"]
    shown += [f"{audit.texts} large texts are there"] if audit.texts else []
    shown += [f"{audit.witnesses} notes of others agree"] if audit.witnesses else []
    return Report(f"session {audit.session}", audit.seq, audit.head, tuple(shown), audit.findings)


# ── what is printed ───────────────────────────────────────────────────────────────────────────


def _lines(settings: Settings, report: Report) -> Iterator[str]:
    findings = report.findings
    if not findings:
        length = f"{counted(report.seq, 'entry')} follow from each other"
        yield f"{report.what}: {'; '.join([length, *report.shown])}"
        yield f"head       {report.seq}:{report.head.hex()}"
        return
    yield f"{report.what}: BROKEN{_hint(settings, report)}"
    for broken in findings[:FINDINGS_SHOWN]:
        yield f"  {f'at entry {broken.seq}: ' if broken.seq else ''}{broken.reason}"
    if len(findings) > FINDINGS_SHOWN:
        yield f"  and {len(findings) - FINDINGS_SHOWN} more"


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
            "without that key nobody writes or changes an entry unseen"
        )
    return (
        "chain      not keyed: damage and single edits show, but whoever can write to Redis can write\n"
        "           the whole log anew, unseen; chain.secret prevents that for sessions made from then on"
    )
