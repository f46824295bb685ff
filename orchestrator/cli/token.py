"""`dendro token`: who may come in from the network, and how far."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from orchestrator.cli.invocation import Group, Invocation
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from orchestrator.gateways.bearer_tokens import TokenRecord, TokenWish
    from orchestrator.gateways.principals import Scope

DAY_MS = 86_400_000
MOST_DAYS = 36_500

token = typer.Typer(
    cls=Group,
    rich_markup_mode=None,
    name="token",
    no_args_is_help=True,
    help="Makes, lists and revokes the tokens of clients from the network.",
)


ScopeWord: TypeAlias = Annotated[
    str,
    typer.Option("--scope", metavar="SCOPE", help="read, submit, approve or admin; each holds the former."),
]


@token.command()
def new(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who uses it; signs what is done with it.")],
    scope: ScopeWord = "submit",
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace", metavar="NAMESPACE", help="A tenant of its own; without it, your own sessions."
        ),
    ] = "",
    days: Annotated[
        float | None,
        typer.Option(
            "--days", metavar="N", min=0.001, max=MOST_DAYS, help="It counts so long; else until revoked."
        ),
    ] = None,
    workspace: Annotated[
        str | None,
        typer.Option(
            "--workspace",
            metavar="KIND",
            help="Its new sessions work in a folder of the gateway's machine (host), or in portable copies "
            "(portable); without it, as gateway.workspace says.",
        ),
    ] = None,
) -> None:
    """Makes a token and prints it, once: only its SHA-256 is kept.

    \b
    dendro token new ci
    dendro token new anna --scope approve --days 30
    dendro token new acme --namespace acme --scope admin
    dendro token new ben --scope approve --workspace portable
    """
    import asyncio

    from orchestrator.gateways.bearer_tokens import BadToken, TokenWish, workspace_kind
    from orchestrator.gateways.principals import Scope

    expires = None if days is None else int(time.time() * 1000 + days * DAY_MS)
    try:
        wish = TokenWish(name, namespace, Scope.of_word(scope), expires, workspace_kind(workspace))
    except (BadToken, ValueError) as error:
        raise Fault(str(error), ExitCode.USAGE) from None
    text, record = asyncio.run(_new(Invocation.of(ctx), wish))
    typer.echo(text)
    typer.echo(f"dendro: {_line(record)}; it is not shown again", err=True)


@token.command()
def code(
    ctx: typer.Context,
    scope: ScopeWord = "admin",
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="URL", help="The window's address: prints the link that signs in."),
    ] = None,
    qr: Annotated[
        bool, typer.Option("--qr", help="Draws the link of --at, for the camera of a phone.")
    ] = False,
) -> None:
    """Makes a code that signs a browser in at the window, as you: once, within ten minutes.

    The page asks for it; behind its address as /#c=CODE it is taken from there.
    The browser is signed in for twelve hours, under a token of its own.

    \b
    dendro token code
    dendro token code --scope read
    dendro token code --at https://dendro.example --qr
    """
    import asyncio

    from orchestrator.gateways.principals import Scope

    try:
        wanted, link = Scope.of_word(scope), _link(at)
    except ValueError as error:
        raise Fault(str(error), ExitCode.USAGE) from None
    if qr and link is None:
        raise Fault(
            "--qr needs --at URL: the address under which the phone reaches the window", ExitCode.USAGE
        )
    made = asyncio.run(_code(Invocation.of(ctx), wanted))
    typer.echo(made if link is None else f"{link}{made}")
    if qr:
        import segno

        segno.make(f"{link}{made}", error="m").terminal(compact=True)
    typer.echo(
        f"dendro: {wanted.word}, your sessions; it counts once, within ten minutes: /#c=CODE behind the "
        "window's address",
        err=True,
    )


@token.command("list")
def list_(ctx: typer.Context) -> None:
    """Lists the tokens, without their secrets.

    \b
    dendro token list
    """
    import asyncio

    for line in _lines(*asyncio.run(_listed(Invocation.of(ctx)))):
        typer.echo(line)


@token.command()
def revoke(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help="Its id: the part between the underscores.")],
) -> None:
    """Revokes a token: its connections end within seconds.

    \b
    dendro token revoke k7m2q4xa
    """
    import asyncio

    # None has an id of another encoding's bytes, which Redis could not be asked for.
    if not id.isascii() or not asyncio.run(_revoked(Invocation.of(ctx), id)):
        raise Fault(f"there is no token {id!r}: `dendro token list` shows them")
    typer.echo(f"{id} counts no more")


async def _new(invocation: Invocation, wish: TokenWish) -> tuple[str, TokenRecord]:
    import os

    from orchestrator.cli.invocation import opened
    from orchestrator.gateways.bearer_tokens import new_token

    async with opened(invocation.settings()) as found:
        return await new_token(found.broker.requests, wish, int(time.time() * 1000), os.urandom)


def _link(at: str | None) -> str | None:
    """The begin of a link to a window, up to its code; raises `ValueError` for what is no address of one."""
    from urllib.parse import urlsplit

    if at is None:
        return None
    parts = urlsplit(at)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(f"--at {at!r} is no address of a window: http://127.0.0.1:4600, for instance")
    return f"{parts.scheme}://{parts.netloc}/#c="


async def _code(invocation: Invocation, scope: Scope) -> str:
    import os

    from orchestrator.cli.invocation import opened
    from orchestrator.gateways.principals import machine_user
    from orchestrator.gateways.window.sign_in import new_code

    async with opened(invocation.settings()) as found:
        return await new_code(found.broker.requests, machine_user(), scope, os.urandom)


async def _listed(invocation: Invocation) -> tuple[list[TokenRecord], list[str]]:
    """The tokens, and the ids of those whose records cannot be read."""
    from orchestrator.cli.invocation import opened
    from orchestrator.gateways.bearer_tokens import damaged, listed

    async with opened(invocation.settings()) as found:
        return await listed(found.broker.requests), await damaged(found.broker.requests)


async def _revoked(invocation: Invocation, id: str) -> bool:
    from orchestrator.cli.invocation import opened
    from orchestrator.gateways.bearer_tokens import revoke

    async with opened(invocation.settings()) as found:
        return await revoke(found.broker.requests, id)


def _lines(records: Sequence[TokenRecord], damaged: Sequence[str] = ()) -> Iterator[str]:
    from orchestrator.terminal.text import one_line

    for record in records:
        yield _line(record)
    for id in damaged:
        yield one_line(f"{id}  cannot be read, and lets nobody in: dendro token revoke {id}")
    if not records and not damaged:
        yield "no tokens: `dendro token new NAME` makes one"


def _line(record: TokenRecord) -> str:
    from datetime import datetime

    until = "until revoked"
    if record.expires_ms is not None:
        at = datetime.fromtimestamp(record.expires_ms / 1000).isoformat(" ", "minutes")
        until = f"{'over since' if record.is_over(int(time.time() * 1000)) else 'until'} {at}"
    whose = f"namespace {record.namespace}" if record.namespace else "your sessions"
    works_in = f"{record.workspace} folders  " if record.workspace else ""
    name = record.name if record.window is None else f"window of {record.name}"
    return f"{record.id}  {name}  {record.scope.word}  {whose}  {works_in}{until}"
