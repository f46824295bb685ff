"""`dendro trust`: which folders' `dendro.toml` may loosen bounds, and which folders' set-ups may run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from orchestrator.settings import TrustedFile, TrustList

SHOWN_VALUE_CHARS = 100


def trust(
    ctx: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="A folder's dendro.toml, or its .dendro/setup.sh; default: ./dendro.toml."
        ),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show what is trusted.")] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Trust FILE no more, whatever it holds.")] = False,
) -> None:
    """Lets a folder's dendro.toml set everything, as long as it stays as it is.

    Untrusted, such a file may set harmless keys and make bounds stricter. It may
    have come with a stranger's repository, or from an agent: read it first.
    A folder's .dendro/setup.sh prepares portable copies of it, once it is trusted.

    \b
    dendro trust
    dendro trust ~/src/project/dendro.toml
    dendro trust .dendro/setup.sh
    dendro trust --list
    dendro trust --revoke ~/src/project/dendro.toml
    """
    from orchestrator.settings import SettingsSources, TrustList

    if listed and (revoke or file is not None):
        raise Fault("--list takes neither FILE nor --revoke", ExitCode.USAGE)
    sources = SettingsSources.of_process(flags={"home": Invocation.of(ctx).home})
    known = TrustList(sources.home)
    if listed:
        _show(known.entries())
    elif revoke:
        _revoke(known, _chosen(file))
    else:
        _trust(known, _chosen(file))


def _chosen(file: Path | None) -> Path:
    from orchestrator.sandbox.policy_paths import PROJECT_CONFIG
    from orchestrator.settings import FOLDER_SETUP

    chosen = file or Path(PROJECT_CONFIG)
    if chosen.is_dir():
        chosen /= PROJECT_CONFIG
    if chosen.name != PROJECT_CONFIG and not _is_setup(chosen):
        raise Fault(
            f"only a folder's {PROJECT_CONFIG} and its {FOLDER_SETUP} need trust; a file of another name "
            f"counts when you give it: dendro --config {chosen}, or --setup {chosen}",
            ExitCode.USAGE,
        )
    return chosen


def _is_setup(file: Path) -> bool:
    from orchestrator.settings import FOLDER_SETUP

    return file.absolute().parts[-2:] == Path(FOLDER_SETUP).parts


def _trust(known: TrustList, file: Path) -> None:
    import time

    from orchestrator.settings import keys_to_trust, read_folder_file

    content = read_folder_file(file)
    lines = _script(content) if _is_setup(file) else list(_lines(keys_to_trust(file, content)))
    added = known.add(file, content, int(time.time()))
    typer.echo(f"{_place(added)} is trusted as it is now (sha256 {added.sha256[:12]})")
    for line in lines:
        typer.echo(f"  {line}")
    if not lines:
        typer.echo("  it sets nothing that needs trust")
    typer.echo("changed, it must be trusted again; dendro trust --revoke takes it back")


def _revoke(known: TrustList, file: Path) -> None:
    count = known.revoke(file)
    typer.echo(f"{file} is not trusted any more" if count else f"{file} was not trusted")


def _show(entries: Sequence[TrustedFile]) -> None:
    from datetime import datetime

    for each in entries:
        at = datetime.fromtimestamp(each.at_s).isoformat(" ", "minutes")
        typer.echo(f"{each.sha256[:12]}  {at}  {_place(each)}  {_state(each)}".rstrip())
    if not entries:
        typer.echo("no file of a folder is trusted", err=True)


def _state(trusted: TrustedFile) -> str:
    from orchestrator.settings import SettingsError, content_hash, read_folder_file

    try:
        same = content_hash(read_folder_file(Path(trusted.path))) == trusted.sha256
    except SettingsError:
        return "(no such file now)"
    return "" if same else "(the file is another one now)"


def _place(trusted: TrustedFile) -> str:
    from orchestrator.terminal.text import plain

    return plain(trusted.path)


def _script(content: bytes) -> list[str]:
    """The whole script that will run, as text that a terminal shows."""
    from orchestrator.terminal.text import plain

    return [plain(line) for line in content.decode("utf-8", "replace").splitlines()]


def _lines(keys: Iterable[tuple[tuple[str, ...], object]]) -> Iterator[str]:
    """The settings that a person has just permitted, in a line each; secrets are hidden."""
    from orchestrator.settings import permitted, whole_key
    from orchestrator.terminal.text import one_line

    for path, value in keys:
        key, shown = whole_key(path), permitted(path, value)
        if len(key) > 2 * SHOWN_VALUE_CHARS:
            # Its end says what it permits.
            key = f"{key[:SHOWN_VALUE_CHARS]}…{key[-SHOWN_VALUE_CHARS:]}"
        more = "…" if len(shown) > SHOWN_VALUE_CHARS else ""
        yield one_line(f"{key} = {shown[:SHOWN_VALUE_CHARS]}{more}")
