"""What was given to `dendro` before any command: which settings count, here and in child processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from orchestrator.settings import Settings

GLOBAL_WITH_VALUE = ("-c", "--config", "--home")


@dataclass(frozen=True, slots=True)
class Invocation:
    """The options that stand before every command."""

    config_file: Path | None = None
    overrides: tuple[str, ...] = ()
    home: Path | None = None

    @classmethod
    def of(cls, ctx: typer.Context) -> Invocation:
        found = ctx.find_object(cls)
        return found if found is not None else cls()

    def settings(self, flags: Mapping[str, object] | None = None, *, quiet: bool = False) -> Settings:
        """The settings in force; what deserves a second look is said on stderr.

        Raises `SettingsError`.
        """
        from orchestrator.settings import SettingsSources, load_settings

        given = {**(flags or {}), "home": self.home}
        settings = load_settings(SettingsSources.of_process(self.config_file, self.overrides, given))
        for warning in () if quiet else settings.warnings:
            typer.echo(f"dendro: warning: {warning}", err=True)
        return settings

    def command(self, *words: str) -> list[str]:
        """Another `dendro` under the same settings."""
        return [sys.executable, "-m", "orchestrator.cli.main", *self._options(), *words]

    def _options(self) -> Iterator[str]:
        if self.config_file is not None:
            yield f"--config={self.config_file}"
        for override in self.overrides:
            yield from ("-c", override)
        if self.home is not None:
            yield f"--home={self.home}"


def hoisted(arguments: Sequence[str]) -> list[str]:
    """The arguments with the global options in front, wherever they stood before a `--`.

    The peer's users write `proto -c key=value`; click knows a group's options only before the command.
    """
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    front: list[str] = []
    rest: list[str] = []
    waiting = iter(arguments[:end])
    for word in waiting:
        if word in GLOBAL_WITH_VALUE:
            front += [word, *_next(waiting)]
        elif word.startswith(("--config=", "--home=")):
            front.append(word)
        else:
            rest.append(word)
    return [*front, *rest, *arguments[end:]]


def _next(words: Iterator[str]) -> list[str]:
    word = next(words, None)
    return [] if word is None else [word]
