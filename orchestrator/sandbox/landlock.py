"""Confinement by Landlock, where bubblewrap cannot be had: rules on paths, for an unprivileged process.

Builds rulesets; the child restricts itself with one before its exec. Landlock only ever
allows: it cannot take `.git` out of a writable root, which is left to a read-only mount.
"""

from __future__ import annotations

import os
import platform
import resource
import stat
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.sandbox import kernel, seccomp
from orchestrator.sandbox.confine import confine_self
from orchestrator.sandbox.launch import Launch
from orchestrator.sandbox.policy_paths import Confinement

# include/uapi/linux/landlock.h
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE_CHAR, _MAKE_DIR, _MAKE_REG, _MAKE_SOCK = 1 << 6, 1 << 7, 1 << 8, 1 << 9
_MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = 1 << 10, 1 << 11, 1 << 12
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_SCOPE_ABSTRACT_UNIX, _SCOPE_SIGNAL = 1 << 0, 1 << 1
_CREATE_RULESET_VERSION = 1

_READ = _EXECUTE | _READ_FILE | _READ_DIR
_WRITE = (
    _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM
) | (_REFER | _TRUNCATE)
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_EVERY_RIGHT = _READ | _WRITE | _MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm")

ABI_OF_RENAMES = 2
"""From here on files may be renamed between folders that may both be written."""
ABI_OF_SIGNAL_SCOPE = 6


def abi() -> int:
    """The kernel's Landlock version, 0 where there is none or it is switched off."""
    try:
        return kernel.syscall(kernel.LANDLOCK_CREATE_RULESET, 0, 0, _CREATE_RULESET_VERSION)
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class Landlock:
    """The launcher that lets the child restrict itself, with a system call filter beside it."""

    abi: int
    machine: str
    can_mount: bool
    """Whether the child can have a mount namespace, which holds what Landlock knows nothing of."""
    name: str = "landlock"
    gaps: tuple[str, ...] = field(default=())

    def launch(
        self, argv: tuple[str, ...], env: Mapping[str, str], cwd: Path, confinement: Confinement
    ) -> Launch:
        """The command as it is, to be started under a ruleset; the caller closes its descriptor."""
        return Launch(
            argv=argv,
            env=env,
            placeholders=tuple(map(str, confinement.missing)) if self.can_mount else (),
            seccomp=seccomp.program(self.machine, _families(confinement)),
            ruleset=build_ruleset(self.abi, confinement.writable_roots),
            mounts=_mounts(confinement) if self.can_mount else (),
            hidden=_hidden(confinement) if self.can_mount else (),
            device_rights=(_READ | _WRITE | _IOCTL_DEV) & _known(self.abi) if self.can_mount else 0,
            keep_capabilities=False,
        )


def gaps(abi_version: int, can_mount: bool) -> tuple[str, ...]:
    """The confinements that Landlock of this version cannot enforce, in words for people."""
    found = []
    if not can_mount:
        found.append("what is to be hidden can be read, though its sockets cannot be connected to")
        found.append("terminals and shared memory of the user can be read and written")
        guarded = ".git and dendro.toml inside a writable root stay writable"
        found.append(f"{guarded} (no mount namespace can be had)")
        found.append("mode, owner and times of the user's files elsewhere can be changed (the same reason)")
    if abi_version < ABI_OF_SIGNAL_SCOPE:
        found.append(
            "processes of the same user outside of the sandbox can be signalled (Linux 6.12 is needed)"
        )
    if abi_version < 3:
        found.append("files outside of the writable roots can be truncated (Linux 6.2 is needed)")
    return tuple(found)


def _mounts(confinement: Confinement) -> tuple[tuple[str, bool], ...]:
    """Everything read-only, the roots writable, what they must not touch read-only: the deeper decides."""
    # What is a place of a mount cannot be moved.
    roots = [path for path in (*confinement.writable_roots, *confinement.passed) if path.is_dir()]
    # What is to be hidden can be read here, but not written: it decides who may do what.
    hidden = [path for path in confinement.hidden if any(path.is_relative_to(root) for root in roots)]
    held = (*confinement.read_only_subpaths, *confinement.missing, *hidden)
    mounts = [(path, True) for path in roots]
    mounts += [(path, False) for path in held]
    mounts.sort(key=lambda mount: len(mount[0].parts))
    return (("/", False), *((str(path), writable) for path, writable in mounts))


def _hidden(confinement: Confinement) -> tuple[str, ...]:
    """The hidden paths that can be covered: a folder around the command's own would hide that as well."""
    own = (confinement.cwd, *confinement.writable_roots)
    return tuple(str(path) for path in confinement.hidden if not any(it.is_relative_to(path) for it in own))


def _families(confinement: Confinement) -> seccomp.Families:
    """Landlock cannot hide a socket's path, so no Unix socket is given out."""
    return seccomp.Families(allowed=seccomp.NETWORK if confinement.network else ())


def build_ruleset(abi_version: int, writable_roots: Iterable[Path]) -> int:
    """A ruleset: everything readable, the roots and the usual devices writable."""
    handled = _known(abi_version)
    scoped = _SCOPE_ABSTRACT_UNIX | _SCOPE_SIGNAL if abi_version >= ABI_OF_SIGNAL_SCOPE else 0
    # struct landlock_ruleset_attr grew with the ABI; the kernel takes a longer one if its tail is zero
    attributes = struct.pack("QQQ", handled, 0, scoped)
    ruleset = kernel.syscall(kernel.LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        _allow(ruleset, Path("/"), _READ & handled)
        for root in writable_roots:
            _allow(ruleset, root, (_READ | _WRITE) & handled)
        for device in _DEVICES:
            _allow(ruleset, Path("/dev", device), (_READ | _WRITE | _IOCTL_DEV) & handled)
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


def confine_here(writable: Iterable[Path] = (), least_abi: int = ABI_OF_RENAMES) -> None:
    """Confines this thread, and with it all that it starts: no network, and no writing but below these.

    As far as the kernel can: without Landlock of `least_abi` the filter alone holds it.
    """
    version, machine = abi(), platform.machine()
    ruleset = build_ruleset(version, writable) if version >= least_abi else None
    try:
        confine_self(
            mounts=(),
            hidden=(),
            device_rights=0,
            keep_capabilities=False,
            ruleset=ruleset,
            seccomp=seccomp.program(machine, seccomp.Families(allowed=())) if seccomp.known(machine) else b"",
        )
    finally:
        if ruleset is not None:
            os.close(ruleset)


def _known(abi_version: int) -> int:
    rights = _EVERY_RIGHT
    for right, since in ((_REFER, 2), (_TRUNCATE, 3), (_IOCTL_DEV, 5)):
        if abi_version < since:
            rights &= ~right
    return rights


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # a root that has gone, or a device that this machine lacks: nothing to allow
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _ON_FILES
        # struct landlock_path_beneath_attr is packed: u64 allowed_access, s32 parent_fd
        rule = struct.pack("=Qi", rights, descriptor)
        kernel.syscall(kernel.LANDLOCK_ADD_RULE, ruleset, kernel.LANDLOCK_RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


# ── decoder ───────────────────────────────────────────────────────────────────────────────────────
# Confinement of a process of the product's own that only computes on what a stranger wrote.


def confine_decoder(memory_bytes: int, output_bytes: int = 0) -> None:
    """Bounds this process and, as far as the kernel can, keeps it from writing, connecting and starting.

    `output_bytes` bound each file that it has open for writing.
    """
    for limit, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, output_bytes),
    ):
        resource.setrlimit(limit, (most, most))
    with suppress(OSError):
        confine_here(least_abi=1)
