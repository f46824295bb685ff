"""`dendro notary`: the process that states the heads of all logs in a register, its key and its state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Group, Invocation
from orchestrator.core.counts import counted
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from orchestrator.rollouts.notary_state import NotaryState
    from orchestrator.rollouts.register import Register, Signed
    from orchestrator.settings import Settings

notary = typer.Typer(
    cls=Group,
    rich_markup_mode=None,
    name="notary",
    no_args_is_help=True,
    help="States the heads of all logs in a register that it signs.",
)
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace", metavar="NAMESPACE", help="Of that tenant; without it, of your own sessions."
    ),
]


def newest(settings: Settings, namespace: str) -> tuple[Register, Signed]:
    """A namespace's register, and its newest checkpoint."""
    from orchestrator.rollouts.object_store import Objects
    from orchestrator.rollouts.register import Register, register_of

    if settings.receipts.url is None:
        raise Fault("no receipts.url is set: where the notary publishes its registers", ExitCode.USAGE)
    register = Register(Objects(settings.receipts.url), register_of(namespace))
    found = register.newest()
    if found is None:
        raise Fault("there is no register yet: does a notary run? (`dendro notary run`)")
    return register, found


@notary.command()
def init(ctx: typer.Context) -> None:
    """Makes the notary's state and its key, once, and prints the key by which receipts are checked.

    Needs receipts.name and receipts.url. The state is never made anew for the
    same name: who has seen the register would be shown another past.

    \b
    dendro notary init -c receipts.name='"fleet.example"' -c receipts.url='"file:///srv/register"'
    """
    from orchestrator.private_files import make_folder
    from orchestrator.rollouts.notary_state import NotaryState
    from orchestrator.rollouts.object_store import Objects
    from orchestrator.rollouts.signed_notes import own_private_key

    settings = Invocation.of(ctx).settings()
    told = settings.receipts
    if told.name is None or told.url is None:
        raise Fault(
            "receipts.name and receipts.url have to be set: what the register is called, and where it is "
            "published",
            ExitCode.USAGE,
        )
    assert told.state is not None
    assert told.key_file is not None
    with faults():
        if found := [name for name in Objects(told.url).names("") if not name.startswith(".")]:
            raise Fault(
                f"{told.url} has {counted(len(found), 'register')} already ({found[0]}). A register goes on "
                "with its own state alone; a new one needs a place, and a receipts.name, of its own",
                ExitCode.USAGE,
            )
        make_folder(told.key_file.parent)
        key = own_private_key(told.key_file).public_key().public_bytes_raw()
        NotaryState.create(told.state, told.name, key.hex())
    print(_vkey(settings, told.name, ""))


@notary.command()
def run(
    ctx: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Looks once; exit code 1 with an alarm.")] = False,
) -> None:
    """States the heads of all logs, until it is told to stop.

    Best on a machine and under a user of its own: it needs to read Redis and
    the archive, and nobody else needs its key. Exit code 1 where the register
    was continued by somebody else.

    \b
    dendro notary run
    dendro notary run --once
    """
    from workers.notary import run_notary

    settings = Invocation.of(ctx).settings()
    with faults():
        code = run_notary(settings, once=once)
    raise typer.Exit(code)


@notary.command()
def key(ctx: typer.Context, namespace: Namespace = "") -> None:
    """Prints the key by which a register's checkpoints are checked, for the trust file's `log`.

    \b
    dendro notary key
    dendro notary key --namespace team-a
    """
    settings = Invocation.of(ctx).settings()
    if settings.receipts.name is None:
        raise Fault("receipts.name is not set: give the one of `dendro notary init`", ExitCode.USAGE)
    with faults():
        print(_vkey(settings, settings.receipts.name, namespace))


@notary.command()
def rotate(
    ctx: typer.Context,
    to: Annotated[
        Path, typer.Option("--to", metavar="FILE", help="The next key; one is made where there is none.")
    ],
) -> None:
    """Gives the registers another key: signs their newest checkpoints by both, and prints these.

    For a notary that does not run. Set receipts.key_file to FILE then, and keep
    the printed checkpoints: who trusts the key of before checks by them that the
    next one is yours, and names both in the trust file's `log`. They are
    published beside each register, too (`rotated/SIZE`).

    \b
    dendro notary rotate --to ~/.local/share/dendro/notary-2027.key > rotated.note
    """
    import sys

    from orchestrator.rollouts.notary_state import NotaryState
    from orchestrator.rollouts.object_store import Objects
    from orchestrator.rollouts.register import rotate as rotated
    from orchestrator.rollouts.signed_notes import Signer, own_private_key, read_private_key

    told = Invocation.of(ctx).settings().receipts
    assert told.state is not None
    assert told.key_file is not None
    if told.url is None:
        raise Fault("no receipts.url is set: where the notary publishes its registers", ExitCode.USAGE)
    with faults(), closing(NotaryState.open(told.state)) as state:
        former, following = read_private_key(told.key_file), own_private_key(to)
        public = following.public_key().public_bytes_raw().hex()
        if former.public_key().public_bytes_raw().hex() not in (state.key, public):
            raise Fault(f"{told.key_file} is not the key that {told.state} was made for", ExitCode.USAGE)
        if former.public_key().public_bytes_raw().hex() == public:
            raise Fault(f"{to} is the key that signs already: name another file", ExitCode.USAGE)
        notes = []
        for name in sorted(state.registers):
            origin = state.origin(name)
            note = rotated(Objects(told.url), name, Signer(origin, former), Signer(origin, following))
            notes += [(str(Signer(origin, following).key), note)] if note is not None else []
        for vkey, note in notes:
            sys.stdout.buffer.write(note.encode())
            print(f"next key   {vkey}", file=sys.stderr)
        sys.stdout.flush()
        # Until here the same command does all of it again; behind it, the key of before is refused.
        state.rotated(public)
    print(f"dendro: set receipts.key_file = '{to.absolute()}' where the notary runs", file=sys.stderr)


@notary.command()
def checkpoint(ctx: typer.Context, namespace: Namespace = "") -> None:
    """Prints a register's newest checkpoint: keep it elsewhere, and name it in a trust file.

    \b
    dendro notary checkpoint > seen.note
    """
    import sys

    settings = Invocation.of(ctx).settings()
    with faults():
        sys.stdout.buffer.write(newest(settings, namespace)[1].note.encode())


@notary.command()
def status(ctx: typer.Context) -> None:
    """Shows the registers and the alarms of a notary that does not run; exit code 1 with an alarm.

    One that runs writes its alarms to its log.

    \b
    dendro notary status
    """
    settings = Invocation.of(ctx).settings()
    assert settings.receipts.state is not None
    with faults():
        from orchestrator.rollouts.notary_state import NotaryState

        state = NotaryState.open(settings.receipts.state)
    try:
        for line in _standing(state):
            print(line)
        if state.alarms:
            raise typer.Exit(ExitCode.FAILED)
    finally:
        state.close()


def _standing(state: NotaryState) -> Iterator[str]:
    from orchestrator.core.entries import timestamp
    from orchestrator.terminal.text import one_line

    for name, standing in sorted(state.registers.items()):
        size = counted(standing.frontier.size, "statement")
        yield one_line(f"{state.origin(name)}  {size}, the last of {timestamp(standing.ms)}")
    for log, alarm in sorted(state.alarms.items()):
        yield one_line(f"ALARM {alarm.kind}  {log}: {alarm.text} (since {timestamp(alarm.ms)})")


def _vkey(settings: Settings, name: str, namespace: str) -> str:
    from orchestrator.rollouts.register import register_of
    from orchestrator.rollouts.signed_notes import Signer, read_private_key

    assert settings.receipts.key_file is not None
    private = read_private_key(settings.receipts.key_file)
    return str(Signer(f"{name}/{register_of(namespace)}", private).key)


@contextmanager
def faults() -> Iterator[None]:
    """Says what is wrong with a state, a key or a register."""
    from orchestrator.rollouts.notary_state import BadState
    from orchestrator.rollouts.object_store import ArchiveUnavailable
    from orchestrator.rollouts.register import BadRegister
    from orchestrator.rollouts.signed_notes import BadNote

    try:
        yield
    except (BadState, BadNote, BadRegister, ArchiveUnavailable) as error:
        raise Fault(str(error), ExitCode.USAGE) from None
    except OSError as error:
        raise Fault(f"{error.filename}: {error.strerror}", ExitCode.USAGE) from None
