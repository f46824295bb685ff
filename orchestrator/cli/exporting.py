"""`dendro export`: a session's log as a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Protocol

import typer

from orchestrator.cli.invocation import Invocation

if TYPE_CHECKING:
    from orchestrator.settings import Settings


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
    from orchestrator.cli.invocation import opened
    from orchestrator.rollouts.export import Tally, exported, header_of

    async with opened(invocation.settings()) as found:
        head = await found.find(session)
        with _output(file) as out:
            if full:
                out.write(header_of(head, _key_id(found.settings)).encode(found.secret) + b"\n")
            tally = Tally()
            async for lines in exported(found, head, full, tally):
                out.write(lines)
    if file != "-":
        print(f"{head.session}: {tally.told(head.seq)}: {file}", file=sys.stderr)


def _key_id(settings: Settings) -> str:
    return settings.chain.key_id if settings.chain.key else ""


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
