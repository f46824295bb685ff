"""`dendro export`: a session's log as a file."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Protocol

import typer

from orchestrator.cli.invocation import Invocation
from orchestrator.core.counts import counted

if TYPE_CHECKING:
    from orchestrator.broker.records import SessionHead
    from orchestrator.cli.export_file import Header
    from orchestrator.cli.opening import Opened
    from orchestrator.runtime.log_line import LogLine


def export(
    ctx: typer.Context,
    session: Annotated[str, typer.Argument(metavar="ID", help="A session id, or the beginning of one.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to; `-` is stdout.")] = "-",
    full: Annotated[
        bool, typer.Option("--full", help="Every entry, for `dendro import` and replay.")
    ] = False,
) -> None:
    """Writes a session's log: in the peer's line shapes, or whole.

    Large texts are put back in. Either kind verifies offline; only a full
    one rebuilds the state, and only the other one tells the lives of the
    session's agents, from the tree's log.

    \b
    dendro export 0199a2b4 rollout.jsonl
    dendro export 0199a2b4 --full | zstd > session.jsonl.zst
    """
    import asyncio

    asyncio.run(_export(Invocation.of(ctx), session, file, full))


async def _export(invocation: Invocation, session: str, file: str, full: bool) -> None:
    from orchestrator.cli.opening import opened

    async with opened(invocation.settings()) as found:
        head = await found.find(session)
        with _output(file) as out:
            if full:
                out.write(header_of(found, head).encode(found.secret) + b"\n")
            tally = Tally()
            async for lines in exported(found, head, full, tally):
                out.write(lines)
    if file != "-":
        print(f"{head.session}: {tally.told(head.seq)}: {file}", file=sys.stderr)


@dataclass(slots=True)
class Tally:
    """How the entries of a log stand in a file."""

    lines: int = 0
    last: int = 0
    """The entry of the last line."""

    def told(self, seq: int) -> str:
        """In the words in which `verify` tells of the file, and `import`."""
        left_out, behind = self.last - self.lines, seq - self.last
        parts = [f"{self.lines:,} stand in the file"]
        parts += [f"{left_out:,} are left out of it but for their digests"] if left_out else []
        parts += [f"{behind:,} follow behind its last line"] if behind else []
        return f"{counted(seq, 'entry')}, {'; '.join(parts)}"


def header_of(found: Opened, head: SessionHead) -> Header:
    """The first line of a full export."""
    from orchestrator.cli.export_file import Header
    from orchestrator.cli.folding import LiveFold

    live, chain = LiveFold.of(head), found.settings.chain
    return Header(
        session_id=head.session,
        pool=head.pool,
        seq=head.seq,
        head=head.head,
        key_id=chain.key_id if chain.key else "",
        state_seq=live.seq if live else 0,
        state_sha256=live.sha256 if live else "",
    )


async def exported(found: Opened, head: SessionHead, full: bool, tally: Tally) -> AsyncIterator[bytes]:
    """The file's lines as they are read; raises `Fault` if the log is not all there."""
    from orchestrator.cli.export_file import full_line
    from orchestrator.cli.export_tree import TreeLines
    from orchestrator.cli.faults import Fault
    from orchestrator.core.entries import milliseconds
    from orchestrator.runtime.export import export_lines
    from orchestrator.runtime.log_line import LogLine

    carried: list[LogLine] = []
    told = TreeLines(found, head)
    last = 0
    async for entry in found.log(head.session, head.seq):
        last = entry.seq
        line = LogLine(entry)
        carried.append(line)
        if full or not line.is_fact:
            # One line at a time: the large texts of many would not fit into memory together.
            texts = await _texts_of(found, head, carried)
            lines = (
                (full_line(one, texts.get) for one in carried) if full else export_lines(carried, texts.get)
            )
            if not full and carried[0].stored.seq > 1:
                yield await told.before(milliseconds(line.value["timestamp"]))
            yield b"".join(lines)
            tally.lines, tally.last = tally.lines + 1, last
            carried = []
    if not full:
        yield await told.before(None)
    if last < head.seq:
        raise Fault(f"entry {last + 1} of session {head.session} is missing; `dendro verify` tells more")


async def _texts_of(found: Opened, head: SessionHead, lines: Sequence[LogLine]) -> dict[str, str]:
    """All texts that the lines refer to, those inside inherited conversations too."""
    from orchestrator.runtime.inherited_lines import missing_texts

    texts: dict[str, str] = {}
    asked: set[str] = set()
    while missing := missing_texts(lines, texts.get) - asked:
        asked |= missing
        texts |= await found.large_texts(head.tree, missing)
    return texts


class _Lines(Protocol):
    """Takes the lines of a file, each whole."""

    def write(self, lines: bytes, /) -> object: ...


@dataclass(frozen=True, slots=True)
class _Stdout:
    """Standard output: a program gets the very bytes, a terminal the same values."""

    out: BinaryIO

    def write(self, lines: bytes, /) -> None:
        from orchestrator.cli.text import json_for_stdout

        self.out.write(json_for_stdout(lines))


@contextmanager
def _output(file: str) -> Iterator[_Lines]:
    """Stdout, or a file that appears under its name only when it is complete."""
    if file == "-":
        yield _Stdout(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    path = Path(file)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("xb") as out:
            yield out
        unfinished.replace(path)
    except OSError as error:
        if error.filename == str(unfinished):
            # Nobody has asked for the file that it grows in.
            raise OSError(error.errno, error.strerror, file) from None
        raise
    finally:
        unfinished.unlink(missing_ok=True)
