"""The `dendro` command: its options, its commands, and what a person is told when one fails.

Only typer is imported here and at the top of each command's module; a command's module is imported when it is
called, and what it needs when it runs, so that a list answers at once. Help is plain text: to draw it in
colours would cost twice the start of a command, since rich reads Markdown for it.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation, hoisted

if TYPE_CHECKING:
    # typer's own copy of click, which its groups are made of.
    from typer._click.core import Command, Context
    from typer._click.formatting import HelpFormatter

COMMANDS: Mapping[str, tuple[str, str, str]] = {
    "demo": ("demo", "demo", "Shows a tree of agents that outlives a worker."),
    "run": ("run", "run", "Runs one task and shows it as it happens: commands, text, patches, tokens."),
    "review": (
        "run",
        "review",
        "Reviews a change and shows what is wrong with it, each finding with its place.",
    ),
    "proto": ("serve", "proto", "Serves one session on stdio: submissions in, events out, as NDJSON."),
    "app-server": ("serve", "app_server", "Serves sessions to clients of Codex's app-server protocol."),
    "window": ("serve", "window", "Serves the window, a page in which one supervises agents, with a worker."),
    "serve": ("serve", "serve", "Serves sessions to clients: a gateway, without a worker of its own."),
    "sessions": ("sessions", "sessions", "Lists trees of sessions, those that changed last first."),
    "search": (
        "sessions",
        "search",
        "Finds sessions whose name, first words, label or folder has the text; newest first.",
    ),
    "name": ("sessions", "name", "Names a session; lists show the name instead of its first words."),
    "rm": (
        "remove",
        "rm",
        "Deletes whole trees: logs, queues, large texts, archived parts, and rollout files of this machine.",
    ),
    "tree": ("tree", "tree", "Draws a tree of agents, live until Ctrl-C."),
    "logs": (
        "logs",
        "logs",
        "Shows what an agent did, without disturbing it: commands, text, patches, its children, the messages "
        "that it sent and got.",
    ),
    "attach": ("attach", "attach", "Follows an agent live, and takes what you type."),
    "send": ("send", "send", "Writes to an agent, which reads it as an instruction when its turn is over."),
    "interrupt": (
        "send",
        "interrupt",
        "Stops what an agent does: its commands are killed, its model request ends.",
    ),
    "cancel": (
        "cancel",
        "cancel",
        "Cancels an agent and everything below it, for good; the root, and its tree.",
    ),
    "approvals": ("approvals", "approvals", "Lists the requests that wait for a person, and answers them."),
    "budget": ("budget", "budget", "Shows a tree's budgets and limits, and raises them."),
    "diff": ("diff", "diff", "Shows what a session changed in its portable folder, as `git diff` does."),
    "checkout": ("checkout", "checkout", "Makes a session's portable folder as a new folder of yours."),
    "apply": (
        "checkout",
        "apply",
        "Merges what a session changed in its portable folder into a folder of yours.",
    ),
    "push": ("checkout", "push", "Makes a branch of your repository from a session's portable folder."),
    "replay": ("replay", "replay", "Folds a session's log again, and compares with the live state."),
    "verify": (
        "verify",
        "verify",
        "Checks a log: its chain, its texts, its session, and what others noted of it.",
    ),
    "audit": ("audit", "audit", "Answers an auditor's questions."),
    "redact": (
        "redact",
        "redact",
        "Takes the text of entries away for good, with every copy that is at hand.",
    ),
    "export": ("export", "export", "Writes a session's log: in Codex's line shapes, or whole."),
    "bundle": ("bundle", "bundle", "Writes a whole tree as a file that a stranger can check."),
    "revoke": ("cancel", "revoke", "Takes a session away from its worker, or readmits a quarantined one."),
    "trust": ("trust", "trust", "Lets a folder's dendro.toml set everything, as long as it stays as it is."),
    "stats": ("stats", "stats", "Shows how much there is to do, pool by pool, and who does it."),
    "worker": ("processes", "worker", "Claims sessions and runs their turns, until it is told to drain."),
    "upkeep": ("processes", "upkeep", "Keeps a deployment tidy: archiving, retention, late timers."),
    "notary": ("notary", "notary", "States the heads of all logs in a register that it signs."),
    "receipt": (
        "witness",
        "receipt",
        "Prints the receipt of a session's log: how far it went, under which root, in a signed register.",
    ),
    "witness": ("witness", "witness", "Signs a register's checkpoints as a witness, by hand."),
    "anchor": ("witness", "anchor", "Leaves a register's checkpoint where others see it."),
    "mcp-server": ("serve", "mcp_server", "Offers sessions as tools to an MCP client, on stdio."),
    "doctor": ("doctor", "doctor", "Says what is there and what is missing, with the remedy for each."),
    "model-stub": (
        "processes",
        "model_stub",
        "Serves the Responses API and chat completions without a model, for tests and demos.",
    ),
    "import": ("export", "import_", "Makes a session from a file, and prints its id."),
    "exec": ("exec", "exec_", "Runs one turn, and writes what happens as lines of JSON."),
    "workers": (
        "workers",
        "workers",
        "Lists the workers: machine, pools, slots used, load, and what is wrong.",
    ),
    "token": ("token", "token", "Makes, lists and revokes the tokens of clients from the network."),
    "keys": ("keys", "keys", "Makes, adds and lists the keys that encrypt portable folders in the store."),
}
"""The commands in the order of the help: module in `orchestrator.cli`, name there, first sentence of help.

The sentence stands here for the list of all commands, which imports none of them.
"""


class _Commands(typer.core.TyperGroup):
    """The group of the commands, which imports and builds the one that is called."""

    def list_commands(self, ctx: Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        return _built(cmd_name, getattr(import_module(f"orchestrator.cli.{module}"), attribute))

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, _, sentence) in COMMANDS.items()])


def _built(name: str, found: typer.Typer | Callable[..., object]) -> Command:
    """The command of a function, or of a group of commands."""
    if isinstance(found, typer.Typer):
        return typer.main.get_group(found)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command(name)(found)
    return typer.main.get_command(alone)


app = typer.Typer(
    name="dendro",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
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


def open_missing() -> None:
    """Opens the null device where the process was started without a standard stream.

    The next file or connection would else get its number, and what is written for people go there.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is the one that is missing: those below are open.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def escape_what_lacks() -> None:
    """Lets streams of another encoding than UTF-8 write `✓` as `\\u2713`, where it would be an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def main() -> None:
    """The console script."""
    # A start makes 80,000 objects that stay: a search for cycles among them would find none. Processes that
    # live long settle their heap when they have begun.
    gc.set_threshold(100_000)
    open_missing()
    escape_what_lacks()
    try:
        app(args=hoisted(sys.argv[1:]), prog_name="dendro")
    except Exception as error:
        from orchestrator.terminal.faults import report

        sys.exit(report(error))


if __name__ == "__main__":
    main()
