"""The launch of a confined command: the record that a mechanism hands to the supervisor.

Data only: the supervisor does what it says in the forked child, in the order of the fields'
description in `confine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestrator.sandbox.policy_paths import Confinement

SECCOMP_FD = 3
"""The descriptor of the filter that a launched bubblewrap installs after its own set-up."""
OPTIONS_FD = 4
"""The descriptor of bubblewrap's further options: on a command line, other processes could read them."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A program to run, and the confinement to put on the child before its exec."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """The environment of the program that is started: of a wrapper, nothing, because it is not confined.
    A variable such as `LD_PRELOAD` would run the command's own code in the wrapper."""
    options_on_fd: bytes = b""
    """Options for the program itself to read on `OPTIONS_FD`, each ended by a NUL byte."""
    placeholders: tuple[str, ...] = ()
    """Empty directories to hold while the command runs, so that nothing else can take their names."""
    seccomp_on_fd: bytes = b""
    """A filter for the program itself to install, readable on `SECCOMP_FD`."""
    seccomp: bytes = b""
    """A filter for the child to install before its exec."""
    ruleset: int | None = None
    """A Landlock ruleset's descriptor; the caller of `launch` owns it."""
    mounts: tuple[tuple[str, bool], ...] = ()
    """Paths and whether they are writable, for a mount namespace of the child's own; the outer first."""
    hidden: tuple[str, ...] = ()
    """Paths that are covered there: a folder by an empty one, a file by `/dev/null`."""
    device_rights: int = 0
    """The Landlock rights on terminals and shared memory of its own, which it gets there."""
    keep_capabilities: bool = True


class Launcher(Protocol):
    """A mechanism of confinement, proved to work on this machine."""

    @property
    def name(self) -> str:
        """The mechanism's name for people: `bubblewrap`, `landlock`, `none`."""

    @property
    def gaps(self) -> tuple[str, ...]:
        """The parts of the policy that this mechanism cannot enforce here."""

    def launch(
        self, argv: tuple[str, ...], env: Mapping[str, str], cwd: Path, confinement: Confinement
    ) -> Launch:
        """Turns a command, its environment and its folder into a launch that is confined as asked."""


@dataclass(frozen=True, slots=True)
class Unconfined:
    """The launcher of danger-full-access: the command as it is."""

    name: str = "none"
    gaps: tuple[str, ...] = ()

    def launch(
        self, argv: tuple[str, ...], env: Mapping[str, str], cwd: Path, confinement: Confinement
    ) -> Launch:
        """Adds nothing."""
        return Launch(argv, env)
