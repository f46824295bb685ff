"""Options of `dendro` before any command: which settings count, here and in child processes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
import typer.core

from orchestrator.core.frozen import record
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    # typer's own copy of click, which its groups are made of.
    from typer._click.core import Context
    from typer._click.formatting import HelpFormatter

    from orchestrator.settings import FolderConfig, Settings, SettingsSources
    from orchestrator.wiring.deployment import ProcessKind
    from orchestrator.wiring.open_deployment import Opened

DENDRO = (sys.executable, "-P", "-m", "orchestrator.cli.main")
"""How `dendro` starts itself. `-P`: else a module of the current folder, which an agent or a stranger's
repository may hold, would be imported in the place of one of ours, outside of any sandbox."""
SHOWN_KEYS = 12
GLOBAL_WITH_VALUE = ("-c", "--config", "--home")
WITH_OVERRIDES = frozenset({"app-server", "exec"})
"""Commands that Codex's own clients start: `--config` after their name sets a key, as they mean it."""

ID_HELP = "A session id, or its beginning or end: the tree's root, or an agent itself."
AGENT_HELP = "An agent's number in the tree; 0 is the root."


class Group(typer.core.TyperGroup):
    """A group of commands whose list has the first sentence of each, whole."""

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        found = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(one.name or "", one.get_short_help_str(SENTENCE)) for one in found if one])


SENTENCE = 400


@record
class Invocation:
    """The options that stand before every command."""

    config_file: Path | None = None
    overrides: tuple[str, ...] = ()
    home: Path | None = None

    @classmethod
    def of(cls, ctx: typer.Context) -> Invocation:
        found = ctx.find_object(cls)
        return found if found is not None else cls()

    @classmethod
    def given(cls, config: Sequence[str], overrides: Sequence[str], home: Path | None) -> Invocation:
        """The options as they were written; `--config` takes a file, or sets a key as Codex's clients do."""
        set_keys = tuple(text for text in config if _sets_a_key(text))
        files = [Path(text) for text in config if not _sets_a_key(text)]
        return cls(files[-1] if files else None, (*set_keys, *overrides), home)

    def settings(
        self, flags: Mapping[str, object] | None = None, *, quiet: bool = False, closes: bool = True
    ) -> Settings:
        """The settings in force; a folder's file and what deserves a second look are said on stderr.

        With `closes` folders of Dendro's that other users of the machine can read are closed, and that is
        said, too. Raises `SettingsError`, also for a home folder that is another user's.
        """
        from orchestrator.settings import load_settings
        from orchestrator.settings.private_home import require_private

        settings = load_settings(self.sources(flags))
        closed = require_private(settings) if closes else []
        for line in (*closed, *(() if quiet else _warnings(settings))):
            typer.echo(f"dendro: {line}", err=True)
        return settings

    def sources(self, flags: Mapping[str, object] | None = None) -> SettingsSources:
        """All that the settings in force are made of."""
        from orchestrator.settings import SettingsSources
        from orchestrator.settings.sources import translated

        overrides = translated(self.overrides) if self.overrides else ()
        return SettingsSources.of_process(self.config_file, overrides, {**(flags or {}), "home": self.home})


def _sets_a_key(text: str) -> bool:
    """Whether it is KEY=VALUE: no folder stands before its first `=`."""
    key, equals, _ = text.partition("=")
    return bool(equals) and "/" not in key


def warn_if_read_only(settings: Settings) -> None:
    """Prints a line before a new session whose commands may write nowhere as no sandbox mode was chosen."""
    sandbox = settings.session_defaults.sandbox
    if not sandbox.chosen and sandbox.mode == "read-only":
        from orchestrator.terminal.text import plain

        where = plain(str(settings.session_defaults.cwd))
        remedy = "to let them write there: -c sandbox_mode=workspace-write"
        typer.echo(f"dendro: {where} is in no git repository, so commands may only read; {remedy}", err=True)


def _warnings(settings: Settings) -> Iterator[str]:
    """Lines about the configuration; what they name may come from a stranger's file."""
    folder = settings.folder_config
    if folder is None and not settings.warnings:
        return
    from orchestrator.terminal.text import plain

    if folder is not None:
        yield plain(f"settings: {_in_force(folder, settings.config_file)}")
    for warning in settings.warnings:
        yield plain(f"warning: {warning}")


def _in_force(folder: FolderConfig, own: Path | None) -> str:
    files = f"{folder.path}" + (f", over {own}" if own else "")
    if folder.trusted:
        return f"{files} (trusted)"
    sets = f"it sets {_first_keys(folder.obeyed)}" if folder.obeyed else "it sets nothing"
    if not folder.ignored:
        return f"{files}; {sets}"
    remedy = f"read it, then: dendro trust {shlex.quote(str(folder.path))}"
    why = f"you have not trusted it, so it may not set {_first_keys(folder.ignored)}"
    return f"{files}; {why}; {remedy}; {sets}"


def _first_keys(keys: Sequence[str]) -> str:
    more = len(keys) - SHOWN_KEYS
    return ", ".join(keys[:SHOWN_KEYS]) + (f" and {more} more" if more > 0 else "")


def hoisted(arguments: Sequence[str]) -> list[str]:
    """The arguments with the global options in front, wherever they stood before a `--`.

    Codex's users write `proto -c key=value`; click knows a group's options only before the command.
    """
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    front: list[str] = []
    rest: list[str] = []
    waiting = iter(arguments[:end])
    for word in waiting:
        sets = bool(rest) and rest[0] in WITH_OVERRIDES
        if word in GLOBAL_WITH_VALUE:
            front += ["-c" if sets and word == "--config" else word, *_next(waiting)]
        elif sets and word.startswith("--config="):
            front += ["-c", word.removeprefix("--config=")]
        elif word.startswith(("--config=", "--home=")):
            front.append(word)
        else:
            rest.append(word)
    return [*front, *rest, *arguments[end:]]


def _next(words: Iterator[str]) -> list[str]:
    word = next(words, None)
    return [] if word is None else [word]


def named_path(text: str) -> Path:
    """The path that an argument names; `~name` stands for itself where there is no such user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def existing_file(text: str) -> Path | None:
    """The file that an argument names, None if it means a session; raises `Fault` for a missing file."""
    path = named_path(text)
    if path.is_file():
        return path
    if "/" in text or path.suffix:
        raise Fault(f"no file {text}")
    return None


def prompt_text(given: str) -> str:
    """The words of the command line, or of stdin for `-`; bytes that are no UTF-8 are marked.

    Raises `Fault` for more than a submission may hold, before a session is made for it.
    """
    import os

    from orchestrator.protocol.bounds import TEXT_BYTES

    data = sys.stdin.buffer.read(TEXT_BYTES + 1) if given == "-" else os.fsencode(given)
    if len(data) > TEXT_BYTES:
        raise Fault(f"the prompt has more than {TEXT_BYTES:,} bytes: give the text in a file, and name it")
    return data.decode("utf-8", "replace")


def read_named(file: Path, most: int) -> bytes:
    """The content of a file that a person names, which may be anybody's.

    Raises `Fault` for one of more than `most` bytes, and for what is no regular file, such as a pipe.
    """
    from orchestrator.sandbox.trusted_files import read_regular

    try:
        data = read_regular(file, most + 1)
    except OSError as error:
        raise Fault(f"{file} cannot be read: {error.strerror or error}", ExitCode.USAGE) from None
    if len(data) > most:
        raise Fault(f"{file} has more than {most:,} bytes: it is not what is asked for", ExitCode.USAGE)
    return data


def print_on_stderr(text: str) -> None:
    """Prints a line of a command on stderr, apart from its output."""
    from orchestrator.terminal.text import plain

    print(f"dendro: {plain(text)}", file=sys.stderr, flush=True)


def opened(
    settings: Settings,
    say: Callable[[str], None] = print_on_stderr,
    *,
    insists: bool = False,
    kind: ProcessKind = "cli",
) -> AbstractAsyncContextManager[Opened]:
    """The deployment for the length of a command, which says on stderr when Redis is away."""
    from orchestrator.wiring import open_deployment

    return open_deployment.opened(settings, say, insists=insists, kind=kind)
