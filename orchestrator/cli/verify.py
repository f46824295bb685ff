"""`dendro verify`: checks a log's hash chain, from the stream or from a file alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation

if TYPE_CHECKING:
    from orchestrator.core.chain import BrokenLink
    from orchestrator.settings import Settings


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was checked, and the first entry that does not follow, if there is one."""

    what: str
    entries: int
    redacted: int
    head: bytes
    broken: BrokenLink | None
    hint: str = ""


def verify(
    ctx: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="ID|FILE", help="A session id, the beginning of one, or a file.")
    ],
) -> None:
    """Checks a log's hash chain, and names the first bad entry.

    A file is checked without any server. Redacted entries verify. Exit code 1
    if the chain is broken.

    \b
    dendro verify 0199a2b4
    DENDRO_CHAIN_SECRET=… dendro verify session.jsonl
    """
    import asyncio

    verdict = asyncio.run(_verdict(Invocation.of(ctx), source))
    if verdict.broken is not None:
        print(f"{verdict.what}: BROKEN at entry {verdict.broken.seq}: {verdict.broken.reason}{verdict.hint}")
        raise typer.Exit(1)
    redacted = f", {verdict.redacted} of them redacted" if verdict.redacted else ""
    print(f"{verdict.what}: {verdict.entries} entries follow from each other{redacted}")
    print(f"head {verdict.head.hex()}")


async def _verdict(invocation: Invocation, source: str) -> Verdict:
    from orchestrator.cli.folding import existing_file

    settings = invocation.settings()
    path = existing_file(source)
    return await _of_session(settings, source) if path is None else _of_file(settings, path)


async def _of_session(settings: Settings, source: str) -> Verdict:
    from orchestrator.cli.export_file import ChainWalk
    from orchestrator.cli.folding import pages
    from orchestrator.cli.opening import opened
    from orchestrator.core.chain import GENESIS, BrokenLink
    from orchestrator.runtime.segments import links_of

    async with opened(settings) as found:
        head = await found.find(source)
        walk = ChainWalk(GENESIS, found.secret)
        broken = None
        async for page in pages(found.log(head.session, head.seq)):
            broken = walk.take(tuple(links_of(page)))
            if broken is not None:
                break
    if broken is None and walk.seq != head.seq:
        broken = BrokenLink(walk.seq + 1, f"missing: the session's log goes on to {head.seq}")
    elif broken is None and walk.head != head.head:
        broken = BrokenLink(head.seq, "the session's hash names another chain head")
    hint = _hint(settings, broken)
    return Verdict(f"session {head.session}", walk.seq, 0, walk.head, broken, hint)


def _of_file(settings: Settings, path: Path) -> Verdict:
    from orchestrator.cli.export_file import BadLine, ChainWalk, read_rollout
    from orchestrator.cli.faults import Fault
    from orchestrator.core.chain import GENESIS, BrokenLink
    from orchestrator.wiring import chain_key

    key = chain_key(settings)
    walk = ChainWalk(GENESIS, key.secret if key else b"")
    broken, redacted = None, 0
    try:
        with path.open("rb") as file:
            text = read_rollout(file)
            if text.kind == "foreign":
                raise Fault(f"{path}: the peer's rollout has no hash chain, there is nothing to verify")
            for line in text.lines:
                redacted += line.entry is None
                broken = walk.take_line(line)
                if broken is not None:
                    break
            broken = broken or walk.unproved()
    except BadLine as error:
        raise Fault(f"{path}: {error}") from None
    header = text.header
    if broken is None and header is not None and (walk.seq, walk.head) != (header.seq, header.head):
        broken = BrokenLink(walk.seq + 1, f"missing: the file should go on to {header.seq}")
    hint = _hint(settings, broken, header.key_id if header else "")
    return Verdict(str(path), walk.seq, redacted, walk.head, broken, hint)


def _hint(settings: Settings, broken: BrokenLink | None, key_id: str = "") -> str:
    """A chain that breaks at its very first entry was most likely keyed otherwise."""
    if broken is None or broken.seq != 1:
        return ""
    chain = settings.chain
    here = f"the key {chain.key_id!r} is configured" if chain.key else "no key is configured"
    there = f"the log was keyed by {key_id!r}" if key_id else "the log may be keyed otherwise"
    return f" ({there}, and here {here}: see chain.secret)"
