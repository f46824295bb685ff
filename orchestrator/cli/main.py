"""The `dendro` command: its options, its commands, and what a person is told when one fails.

Only typer is imported here and at the top of each command's module; what a command needs is
imported when it runs, so that `dendro --help` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.apply import apply
from orchestrator.cli.approvals import approvals
from orchestrator.cli.attach import attach
from orchestrator.cli.budget import budget
from orchestrator.cli.cancel import cancel, revoke
from orchestrator.cli.checkout import checkout, push
from orchestrator.cli.demo import demo
from orchestrator.cli.diff import diff
from orchestrator.cli.doctor import doctor
from orchestrator.cli.exec import exec_
from orchestrator.cli.export import export, import_
from orchestrator.cli.invocation import Invocation, hoisted
from orchestrator.cli.keys import keys
from orchestrator.cli.logs import logs
from orchestrator.cli.processes import model_stub, upkeep, worker
from orchestrator.cli.proto import proto
from orchestrator.cli.remove import rm
from orchestrator.cli.replay import replay
from orchestrator.cli.review import review
from orchestrator.cli.run import run
from orchestrator.cli.send import interrupt, send
from orchestrator.cli.serve import app_server, mcp_server, serve
from orchestrator.cli.sessions import name, search, sessions
from orchestrator.cli.token import token
from orchestrator.cli.tree import tree
from orchestrator.cli.trust import trust
from orchestrator.cli.verify import verify
from orchestrator.cli.workers import stats, workers
from orchestrator.terminal.missing import open_missing

app = typer.Typer(
    name="dendro",
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


app.add_typer(workers)
for command in (
    demo, run, review, proto, app_server, serve, sessions, search, name, rm,
    tree, logs, attach, send, interrupt, cancel, approvals, budget,
    diff, checkout, apply, push,
    replay, verify, export, revoke, trust, stats, worker, upkeep, mcp_server, doctor, model_stub,
):  # fmt: skip
    app.command()(command)
app.command("import")(import_)
app.add_typer(token)
app.add_typer(keys)
app.command("exec")(exec_)


def main() -> None:
    """The console script."""
    open_missing()
    try:
        app(args=hoisted(sys.argv[1:]), prog_name="dendro")
    except Exception as error:
        from orchestrator.terminal.faults import report

        sys.exit(report(error))


if __name__ == "__main__":
    main()
