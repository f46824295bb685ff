"""Confinement by bubblewrap: a mount namespace in which only the writable roots are writable.

Its own pid namespace hides every other process, so the worker's environment in /proc and
the worker itself are out of reach; its own network namespace has no way out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.sandbox import seccomp
from orchestrator.sandbox.launch import OPTIONS_FD, SECCOMP_FD, Launch
from orchestrator.sandbox.policy_paths import TEMPORARY, Confinement, Place

KEPT_CAPABILITIES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER")
"""Capabilities that root keeps, to work on files of other owners. Mounts decide where root may write."""

_PROC_CONTROLS = ("sys", "acpi", "fs", "scsi")
COVERED_CONTROLS = ("sysrq-trigger", "irq", "bus")
"""Switches under /proc that bwrap covers by itself; the probe sees that it does. Each mount that it makes
costs a reading of the table of all mounts, some 5 % of its CPU time."""


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """The launcher that wraps commands in `bwrap`."""

    path: str
    machine: str
    as_root: bool
    name: str = "bubblewrap"
    gaps: tuple[str, ...] = ()

    def launch(
        self, argv: tuple[str, ...], env: Mapping[str, str], cwd: Path, confinement: Confinement
    ) -> Launch:
        """The command behind bwrap, with a filter for bwrap to install once its mounts stand.

        bwrap starts with an empty environment and sets the command's inside.
        """
        return Launch(
            argv=(self.path, "--args", str(OPTIONS_FD), *self._options(cwd, confinement), "--", *argv),
            env={},
            options_on_fd=_set_environment(env),
            placeholders=tuple(map(str, confinement.missing)),
            seccomp_on_fd=seccomp.program(self.machine, _families(confinement)),
        )

    def _options(self, cwd: Path, confinement: Confinement) -> list[str]:
        seen = confinement.place.for_commands(cwd) if confinement.place is not None else cwd
        options = ["--die-with-parent", "--unshare-pid", "--unshare-ipc", "--ro-bind", "/", "/"]
        if not confinement.network:
            options.append("--unshare-net")
        options += ["--dev", "/dev", "--proc", "/proc"]
        if self.as_root:
            options += _root_options()
        for _, words in sorted(_mounts(confinement), key=lambda mount: len(mount[0].parts)):
            options += words
        for path in _closed(confinement):
            # Last: what stands open inside of it has to find its place first.
            options += ["--remount-ro", str(path)]
        return [*options, "--seccomp", str(SECCOMP_FD), "--chdir", str(seen)]


@dataclass(frozen=True, slots=True)
class Mounted:
    """The launcher of full access in a portable folder: nothing is held back; the folder is in its place."""

    path: str
    place: Place
    name: str = "none"
    gaps: tuple[str, ...] = ()

    def launch(
        self, argv: tuple[str, ...], env: Mapping[str, str], cwd: Path, confinement: Confinement
    ) -> Launch:
        """The command behind bwrap, which mounts the folder and its `/tmp`."""
        mounts = [word for _, words in _of_place(self.place, writable=True) for word in words]
        options = ("--die-with-parent", "--dev-bind", "/", "/", *mounts)
        chdir = ("--chdir", str(self.place.for_commands(cwd)))
        return Launch(
            argv=(self.path, "--args", str(OPTIONS_FD), *options, *chdir, "--", *argv),
            env={},
            options_on_fd=_set_environment(env),
        )


def _families(confinement: Confinement) -> seccomp.Families:
    """Mounts hide the sockets that are known; a server's socket can stand anywhere, and come later."""
    unix = (seccomp.AF_UNIX,) if confinement.unix_sockets else ()
    return seccomp.Families(allowed=(*seccomp.NETWORK, *unix))


def _set_environment(env: Mapping[str, str]) -> bytes:
    words = "".join([f"--setenv\0{name}\0{value}\0" for name, value in env.items()])
    if words.count("\0") != 3 * len(env):
        # It would end the value, and what follows it would be an option: `--bind / /`.
        raise ValueError("a variable holds a NUL byte")
    return os.fsencode(words)


def _root_options() -> list[str]:
    """Root owns the switches under /proc: without capabilities it may still write them."""
    options = ["--cap-drop", "ALL"]
    for capability in KEPT_CAPABILITIES:
        options += ["--cap-add", capability]
    for control in _PROC_CONTROLS:
        if Path("/proc", control).exists():
            options += ["--ro-bind", f"/proc/{control}", f"/proc/{control}"]
    return options


def _mounts(confinement: Confinement) -> list[tuple[Path, list[str]]]:
    """Every mount with its target: sorted by depth, the deeper one lies on top and decides."""
    mounts: list[tuple[Path, list[str]]] = []
    place = confinement.place
    if place is not None:
        mounts += _of_place(place, writable=False)
    elif any(path in confinement.cwd.parents for path in confinement.hidden):
        mounts += [(confinement.cwd, ["--ro-bind-try", str(confinement.cwd), str(confinement.cwd)])]
    # What is a place of a mount cannot be moved.
    open_to_writes = (*confinement.writable_roots, *confinement.passed)
    mounts += [_mount("--bind", path, place) for path in open_to_writes]
    # "try": a guard that could not be made is in a root that this user, and so the command, cannot write.
    held = (*confinement.read_only_subpaths, *confinement.missing)
    mounts += [_mount("--ro-bind-try", path, place) for path in held]
    return mounts + [(path, _hide(path)) for path in _hidden(confinement)]


def _mount(option: str, path: Path, place: Place | None) -> tuple[Path, list[str]]:
    """A path of this machine, mounted where commands see it."""
    target = place.for_commands(path) if place is not None else path
    return target, [option, str(path), str(target)]


def _of_place(place: Place, *, writable: bool) -> list[tuple[Path, list[str]]]:
    # Its /tmp is open until the mounts inside of it have found their places: see `_closed`.
    option = "--bind" if writable else "--ro-bind"
    return [_mount("--bind", place.temporary, place), _mount(option, place.here, place)]


def _hidden(confinement: Confinement) -> tuple[Path, ...]:
    """The paths to hide: another `/tmp` has nothing of the machine's."""
    if confinement.place is None:
        return confinement.hidden
    return tuple(path for path in confinement.hidden if not path.is_relative_to(TEMPORARY))


def _closed(confinement: Confinement) -> list[Path]:
    """The mounts that are made read-only in the end."""
    closed = [path for path in _hidden(confinement) if path.is_dir()]
    place = confinement.place
    if place is not None and place.temporary not in confinement.writable_roots:
        closed.append(TEMPORARY)
    return closed


def _hide(path: Path) -> list[str]:
    if path.is_dir():
        return ["--tmpfs", str(path)]
    return ["--ro-bind", "/dev/null", str(path)]
