"""Confinement of a forked child by itself before its exec: capabilities, mounts, Landlock, the filter.

Runs in the supervisor's children, so this module imports no more than `kernel` does. Any failure is an
exception and the child must then not exec: a command half confined is not confined.
"""

from __future__ import annotations

import os

from orchestrator.sandbox import kernel

TYPE_CHECKING = False  # typing's import costs the supervisor more than its own code
if TYPE_CHECKING:
    from collections.abc import Sequence

_CAP_CHOWN, _CAP_DAC_OVERRIDE, _CAP_FOWNER = 0, 1, 3
_KEPT = (_CAP_CHOWN, _CAP_DAC_OVERRIDE, _CAP_FOWNER)


def confine_self(
    *,
    mounts: Sequence[tuple[str, bool]],
    hidden: Sequence[str],
    device_rights: int,
    keep_capabilities: bool,
    ruleset: int | None,
    seccomp: bytes,
) -> None:
    """Applies the parts in the one order that works: each makes the ones before it impossible."""
    if mounts:
        remount(mounts)
        cover(hidden)
    if device_rights and ruleset is not None:
        for path in give_devices():
            kernel.allow_beneath(ruleset, path, device_rights)
    if not keep_capabilities and os.geteuid() == 0:
        _bound_capabilities()
    if ruleset is not None or seccomp:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if ruleset is not None:
        kernel.syscall(kernel.LANDLOCK_RESTRICT_SELF, ruleset, 0)
    if seccomp:
        kernel.install_seccomp(seccomp)


def remount(mounts: Sequence[tuple[str, bool]]) -> None:
    """Makes each path writable or read-only, in order, in a mount namespace that only this process sees.

    Landlock knows neither the mode, the owner and the times of files nor exceptions from a
    writable root; mounts know both.
    """
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
    else:
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    kernel.mount(None, "/", kernel.MS_REC | kernel.MS_PRIVATE)
    for path, writable in mounts:
        if path != "/":
            kernel.mount(path, path, kernel.MS_BIND | kernel.MS_REC)
        kernel.set_read_only(path, not writable)


def cover(hidden: Sequence[str]) -> None:
    """Takes the paths out of this process's sight."""
    for path in hidden:
        if os.path.isdir(path):  # noqa: PTH112  (light imports)
            flags = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
            kernel.mount("tmpfs", path, flags, b"tmpfs", b"mode=0555")
        else:
            kernel.mount("/dev/null", path, kernel.MS_BIND)


def give_devices() -> list[str]:
    """Terminals and shared memory of the command's own; returns where they are.

    Those of the machine belong to other programs of the same user: a command could read what is
    typed at a terminal.
    """
    kernel.mount("devpts", "/dev/pts", kernel.MS_NOSUID, b"devpts", b"newinstance,ptmxmode=0666,mode=0620")
    kernel.mount("tmpfs", "/dev/shm", kernel.MS_NOSUID | kernel.MS_NODEV, b"tmpfs", b"mode=1777")
    return ["/dev/pts", "/dev/shm"]


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _bound_capabilities() -> None:
    """Root without the bounding set's capabilities loses them at exec, all but the file owner's."""
    for capability in range(64):
        if capability in _KEPT:
            continue
        try:
            kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
        except OSError:
            return  # past the kernel's last capability
