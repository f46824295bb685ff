"""`dendro witness` and `dendro anchor`: checkpoints of a register in the hands of others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Group, Invocation
from orchestrator.cli.notary import Namespace, faults, newest
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from orchestrator.settings import Settings

MOST_PEM_BYTES = 1 << 20
"""Bytes of a file of certificates: those of all authorities that a system trusts take a quarter of it."""
witness = typer.Typer(
    cls=Group,
    rich_markup_mode=None,
    name="witness",
    no_args_is_help=True,
    help="Signs a register's checkpoints as a witness, by hand.",
)
anchor = typer.Typer(
    cls=Group,
    rich_markup_mode=None,
    name="anchor",
    no_args_is_help=True,
    help="Leaves a register's checkpoint where others see it.",
)


def receipt(
    ctx: typer.Context,
    session: Annotated[str, typer.Argument(metavar="ID", help="A session.")],
) -> None:
    """Prints the receipt of a session's log: how far it went, under which root, in a signed register.

    Keep it. A bundle that somebody shows you later has to agree with it:
    `dendro verify run.zip --trust auditor.json --receipt r.json`.

    \b
    dendro receipt 0199a2b4 > r.json
    """
    import asyncio

    from orchestrator.cli.invocation import opened
    from orchestrator.rollouts.register import receipt_of

    async def found_head(settings: Settings) -> tuple[str, str]:
        async with opened(settings) as found:
            head = await found.find(session)
            return str(head.session), head.labels.namespace

    settings = Invocation.of(ctx).settings()
    id, namespace = asyncio.run(found_head(settings))
    with faults():
        register, signed = newest(settings, namespace)
        if (found := receipt_of(register, signed, f"session:{id}")) is None:
            raise Fault(f"{signed.point.origin} has no statement about it yet: try again in a minute")
        sys.stdout.buffer.write(found.encode())


@witness.command()
def request(
    ctx: typer.Context,
    old: Annotated[
        int, typer.Option("--old", metavar="SIZE", min=0, help="The size that the witness has signed last.")
    ] = 0,
    namespace: Namespace = "",
) -> None:
    """Prints the newest checkpoint, with the proof that it continues a size, for a witness to sign.

    \b
    dendro witness request --old 1204 > request
    """
    from orchestrator.rollouts.witnesses import Request

    settings = Invocation.of(ctx).settings()
    with faults():
        register, found = newest(settings, namespace)
        if old > found.point.size:
            raise Fault(f"the register has {found.point.size} statements, not {old}", ExitCode.USAGE)
        sys.stdout.buffer.write(Request.of(register, found, old).encode())


@witness.command()
def sign(
    file: Annotated[Path, typer.Argument(metavar="REQUEST", help="What `dendro witness request` printed.")],
    log: Annotated[
        list[str], typer.Option("--log", metavar="KEY", help="The register's key; may be repeated.")
    ],
    state: Annotated[
        Path, typer.Option("--state", metavar="FILE", help="Where you keep what you have signed last.")
    ],
    key: Annotated[
        Path, typer.Option("--key", metavar="FILE", help="Your Ed25519 key, of OpenSSH or OpenSSL.")
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What your key is called.")],
) -> None:
    """Signs a checkpoint that continues the one that you signed last, and prints the line to append to it.

    Needs no server. What it signs is noted in FILE before; keep that file: it
    alone says which past you have seen. Your verifier key goes to stderr, for
    the trust file's `witnesses`.

    \b
    dendro witness sign request --log "$LOG" --state seen.json --key ~/.ssh/id_ed25519 --name ada.example/w1
    """
    import time

    from orchestrator.cli.invocation import read_named
    from orchestrator.rollouts.signed_notes import (
        MOST_NOTE_BYTES,
        BadNote,
        Signer,
        VerifierKey,
        is_name,
        read_private_key,
    )
    from orchestrator.rollouts.witnesses import Conflict, NotWitnessed, Request, Witness, line_of

    if not is_name(name):
        raise Fault(f"--name {name!r} is no name: one word, without +", ExitCode.USAGE)
    with faults():
        signer = Signer(name, read_private_key(key))
        own = Witness(state, signer, [VerifierKey.read(text) for text in log])
        try:
            print(line_of(own.sign(Request.read(read_named(file, 2 * MOST_NOTE_BYTES)), int(time.time()))))
        except Conflict as conflict:
            words = f"dendro witness request --old {conflict.size}"
            raise Fault(f"you have signed size {conflict.size} last: ask for `{words}`") from None
        except (NotWitnessed, BadNote) as error:
            raise Fault(f"not signed: {error}") from None
    print(f"your key   {signer.witness_key}", file=sys.stderr)


@anchor.command()
def git(
    ctx: typer.Context,
    repository: Annotated[Path, typer.Argument(metavar="REPOSITORY", help="A working tree of yours.")],
    namespace: Namespace = "",
) -> None:
    """Commits the newest checkpoint to a git repository. Push it to somebody else's server yourself.

    That server is a witness then: the checkpoint is no later than your push.

    \b
    dendro anchor git ~/receipts && git -C ~/receipts push
    """
    from orchestrator.private_files import write_file
    from orchestrator.sandbox.git import GitFailed, run_git

    settings = Invocation.of(ctx).settings()
    with faults():
        _, found = newest(settings, namespace)
    name = f"{found.point.origin.replace('/', '-')}.note"
    if not (repository / ".git").exists():
        raise Fault(f"{repository} is no working tree of git: make one with `git init`", ExitCode.USAGE)
    write_file(repository / name, found.note.encode())
    known = ("diff", "--cached", "--quiet", "--no-ext-diff", "--", name)
    words = ("commit", "--quiet", "-m", f"{found.point.origin}: {found.point.size} statements", "--", name)
    try:
        for each in (("add", "--", name), known, words):
            done = run_git(repository, *each, writable=[repository.resolve()], seconds=30)
            if each is known and not done.code:
                print(f"{name} is committed already, with {found.point.size} statements")
                return
            if done.code and each is not known:
                raise Fault(f"git {each[0]} failed in {repository}: {done.why}")
    except GitFailed as error:
        raise Fault(str(error)) from None
    print(f"{name} with {found.point.size} statements is committed; now push it to somebody else's server")


@anchor.command()
def tsa(
    file: Annotated[
        Path, typer.Argument(metavar="NOTE", help="A checkpoint, as `dendro notary checkpoint` prints it.")
    ],
    reply: Annotated[
        Path | None,
        typer.Option("--reply", metavar="FILE", help="The time stamp: to be made, or checked."),
    ] = None,
    url: Annotated[
        str, typer.Option("--url", metavar="URL", help="An authority (RFC 3161) to be asked over HTTP.")
    ] = "",
    query: Annotated[
        Path | None, typer.Option("--query", metavar="FILE", help="Writes the request, to be carried there.")
    ] = None,
    roots: Annotated[
        Path | None,
        typer.Option("--roots", metavar="PEM", help="Certificates, one of which has to stand behind it."),
    ] = None,
) -> None:
    """Gets a time stamp for a checkpoint (RFC 3161): it is no later than the time of the authority.

    Anybody checks it with OpenSSL, over the checkpoint's text up to the blank
    line. `dendro bundle --checkpoint NOTE --stamp FILE` brings it along.

    \b
    dendro anchor tsa seen.note --url https://tsa.example/tsr --reply seen.tsr
    dendro anchor tsa seen.note --query seen.tsq
    dendro anchor tsa seen.note --reply seen.tsr --roots authority.pem
    """
    import asyncio

    from orchestrator.cli.invocation import read_named
    from orchestrator.core.entries import timestamp
    from orchestrator.private_files import write_file
    from orchestrator.rollouts.register import Signed
    from orchestrator.rollouts.signed_notes import MOST_NOTE_BYTES
    from orchestrator.rollouts.witnesses import (
        MOST_STAMP_BYTES,
        BadStamp,
        ask_for_stamp,
        stamp_query,
        stamped,
    )

    if reply is None and query is None:
        raise Fault("name --reply for the time stamp, or --query for the request", ExitCode.USAGE)
    if url and reply is None:
        raise Fault("--url needs --reply: the file for the time stamp", ExitCode.USAGE)
    with faults():
        note = Signed.read(read_named(file, MOST_NOTE_BYTES)).note
        trusted = read_named(roots, MOST_PEM_BYTES) if roots is not None else b""
        try:
            asked, nonce = stamp_query(note)
            if query is not None:
                write_file(query, asked)
            if reply is None:
                print(f"have {query} answered by an authority; then: dendro anchor tsa {file} --reply FILE")
                return
            data = asyncio.run(ask_for_stamp(url, asked)) if url else read_named(reply, MOST_STAMP_BYTES)
            at = stamped(data, note, nonce if url else None, trusted)
            if url:
                write_file(reply, data)
        except BadStamp as error:
            raise Fault(f"no time stamp of this checkpoint: {error}") from None
        except ImportError:
            raise Fault(
                "the package rfc3161-client is not installed: pip install 'dendro-orchestrator[tsa]'; or "
                "`openssl ts` does the same with the checkpoint's text",
                ExitCode.USAGE,
            ) from None
    proof = "(proved by your roots)" if trusted else "(stated: no --roots were named)"
    print(f"{reply}: no later than {timestamp(int(at.timestamp() * 1000))} {proof}")
