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
from orchestrator.sandbox.policy import Confinement

KEPT_CAPABILITIES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER")
"""Capabilities that root keeps, to work on files of other owners. Mounts decide where root may write."""

_PROC_CONTROLS = ("sys", "sysrq-trigger", "irq", "bus", "acpi", "fs", "scsi")


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
        options = ["--die-with-parent", "--unshare-pid", "--unshare-ipc", "--ro-bind", "/", "/"]
        if not confinement.network:
            options.append("--unshare-net")
        options += ["--dev", "/dev", "--proc", "/proc"]
        if self.as_root:
            options += _root_options()
        for _, words in sorted(_mounts(confinement), key=lambda mount: len(mount[0].parts)):
            options += words
        for path in filter(Path.is_dir, confinement.hidden):
            # Last: what stands open inside of it has to find its place first.
            options += ["--remount-ro", str(path)]
        return [*options, "--seccomp", str(SECCOMP_FD), "--chdir", str(cwd)]


def _families(confinement: Confinement) -> seccomp.Families:
    """Mounts hide the sockets that are known; a server's socket can stand anywhere, and come later."""
    unix = (seccomp.AF_UNIX,) if confinement.unix_sockets else ()
    return seccomp.Families(allowed=(*seccomp.NETWORK, *unix))


def _set_environment(env: Mapping[str, str]) -> bytes:
    words = [os.fsencode(word) for name, value in env.items() for word in ("--setenv", name, value)]
    if any(b"\0" in word for word in words):
        # It would end the value, and what follows it would be an option: `--bind / /`.
        raise ValueError("a variable holds a NUL byte")
    return b"".join(word + b"\0" for word in words)


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
    if any(path in confinement.cwd.parents for path in confinement.hidden):
        mounts += [(confinement.cwd, ["--ro-bind-try", str(confinement.cwd), str(confinement.cwd)])]
    mounts += [(root, ["--bind", str(root), str(root)]) for root in confinement.writable_roots]
    # "try": a guard that could not be made is in a root that this user, and so the command, cannot write.
    held = (*confinement.read_only_subpaths, *confinement.missing)
    mounts += [(path, ["--ro-bind-try", str(path), str(path)]) for path in held]
    return mounts + [(path, _hide(path)) for path in confinement.hidden]


def _hide(path: Path) -> list[str]:
    if path.is_dir():
        return ["--tmpfs", str(path)]
    return ["--ro-bind", "/dev/null", str(path)]
