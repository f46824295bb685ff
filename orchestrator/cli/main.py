"""The `dendro` command: its options, its commands, and what a person is told when one fails.

Only typer is imported here and at the top of each command's module; a command's module is imported when it is
called, and what it needs when it runs, so that a list answers at once.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation, hoisted
from orchestrator.terminal.missing import open_missing

if TYPE_CHECKING:
    # typer's own copy of click, which its groups are made of.
    from typer._click.core import Command, Context

COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("demo", "demo"),
    "run": ("run", "run"),
    "review": ("review", "review"),
    "proto": ("proto", "proto"),
    "app-server": ("serve", "app_server"),
    "serve": ("serve", "serve"),
    "sessions": ("sessions", "sessions"),
    "search": ("sessions", "search"),
    "name": ("sessions", "name"),
    "rm": ("remove", "rm"),
    "tree": ("tree", "tree"),
    "logs": ("logs", "logs"),
    "attach": ("attach", "attach"),
    "send": ("send", "send"),
    "interrupt": ("send", "interrupt"),
    "cancel": ("cancel", "cancel"),
    "approvals": ("approvals", "approvals"),
    "budget": ("budget", "budget"),
    "diff": ("diff", "diff"),
    "checkout": ("checkout", "checkout"),
    "apply": ("apply", "apply"),
    "push": ("checkout", "push"),
    "replay": ("replay", "replay"),
    "verify": ("verify", "verify"),
    "export": ("export", "export"),
    "revoke": ("cancel", "revoke"),
    "trust": ("trust", "trust"),
    "stats": ("workers", "stats"),
    "worker": ("processes", "worker"),
    "upkeep": ("processes", "upkeep"),
    "mcp-server": ("serve", "mcp_server"),
    "doctor": ("doctor", "doctor"),
    "model-stub": ("processes", "model_stub"),
    "import": ("export", "import_"),
    "exec": ("exec", "exec_"),
    "workers": ("workers", "workers"),
    "token": ("token", "token"),
    "keys": ("keys", "keys"),
}
"""The commands in the order of the help: the module of `orchestrator.cli` and the name there."""


class _Commands(typer.core.TyperGroup):
    """The group of the commands, which imports and builds the one that is called, and for the help all."""

    def list_commands(self, ctx: Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name]
        return _built(cmd_name, getattr(import_module(f"orchestrator.cli.{module}"), attribute))


def _built(name: str, found: typer.Typer | Callable[..., object]) -> Command:
    """The command of a function, or of a group of commands."""
    if isinstance(found, typer.Typer):
        return typer.main.get_group(found)
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    alone.command(name)(found)
    return typer.main.get_command(alone)


app = typer.Typer(
    name="dendro",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="--config, -c and --home may also stand after the command. Exit codes: 0 done, 1 failed, "
    "2 wrong usage or something missing (see `dendro doctor`), 3 waiting for a person, 130 interrupted.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"dendro {version('dendro-orchestrator')}")
        raise typer.Exit


@app.callback()
def dendro(
    ctx: typer.Context,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="FILE", help="Configuration file in force; KEY=VALUE as -c."),
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option("-c", metavar="KEY=VALUE", help="Sets one key, as in the file; may be repeated."),
    ] = None,
    home: Annotated[
        Path | None, typer.Option("--home", metavar="DIR", help="Data folder, instead of $DENDRO_HOME.")
    ] = None,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Shows the version and exits."),
    ] = False,
) -> None:
    """Runs coding agents whose sessions outlive their workers.

    \b
    dendro run "fix the failing test"    one task, watched in this terminal
    dendro review --base main            what is wrong with this branch
    dendro proto                         submissions and events as NDJSON
    dendro sessions                      what there is, and who holds it
    dendro tree 0199a2b4                 who works for whom, and who waits
    dendro approvals                     what waits for a person
    dendro replay 0199a2b4               fold a log again, and compare
    dendro run -c model=gpt-5-mini "hi"  with another setting
    """
    ctx.obj = Invocation.given(config or (), override or (), home)


def main() -> None:
    """The console script."""
    # A start makes 80,000 objects that stay: a search for cycles among them would find none. Processes that
    # live long settle their heap when they have begun.
    gc.set_threshold(100_000)
    open_missing()
    try:
        app(args=hoisted(sys.argv[1:]), prog_name="dendro")
    except Exception as error:
        from orchestrator.terminal.faults import report

        sys.exit(report(error))


if __name__ == "__main__":
    main()
