"""`dendro keys`: the keys by which packs of portable folders are encrypted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Group
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from orchestrator.workspaces.pack_keys import Key

keys = typer.Typer(
    cls=Group,
    rich_markup_mode=None,
    name="keys",
    no_args_is_help=True,
    help="Makes, adds and lists the keys that encrypt portable folders in the store.",
)
KeyFile = Annotated[Path, typer.Argument(metavar="FILE", help="The file of keys (`workspace.key_file`).")]


@keys.command()
def new(file: KeyFile) -> None:
    """Makes a file with one key, readable for you only. Whoever loses it loses what it encrypts.

    \b
    dendro keys new ~/.local/share/dendro/pack.keys
    """
    from orchestrator.workspaces.pack_keys import new_file

    try:
        key = new_file(file)
    except FileExistsError:
        raise Fault(
            f"{file} is there already, and packs may need its keys: `dendro keys add {file}` adds one",
            ExitCode.USAGE,
        ) from None
    typer.echo(f"key {key.id} in {file}")
    typer.echo(
        f"dendro: set workspace.key_file = '{file.absolute()}' for every worker, gateway and client, and "
        "keep a copy elsewhere: without it the packs that it encrypts are lost",
        err=True,
    )


@keys.command()
def add(file: KeyFile) -> None:
    """Adds a key behind the others. It reads at once, and writes when its line is the first.

    Give the file to every machine before you put the new key first.

    \b
    dendro keys add ~/.local/share/dendro/pack.keys
    """
    from orchestrator.workspaces.pack_keys import add_key

    typer.echo(f"key {add_key(file).id} in {file}, behind the others")


@keys.command("list")
def list_(file: KeyFile) -> None:
    """Lists the ids of the keys, the one that writes first; shows no key.

    \b
    dendro keys list ~/.local/share/dendro/pack.keys
    """
    from orchestrator.workspaces.pack_keys import read_keys

    for number, key in enumerate(read_keys(file)):
        typer.echo(_line(key, writes=number == 0))


def _line(key: Key, *, writes: bool) -> str:
    return f"{key.id}  {'writes and reads' if writes else 'reads'}"
