"""The probe of the confinements of this machine, each tried once, and the choice among those that work.

A version number or a file on PATH proves nothing: user namespaces may be switched off, a
security module may refuse the mounts. So each mechanism has to hold something back here.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.sandbox import landlock, seccomp
from orchestrator.sandbox.bubblewrap import COVERED_CONTROLS, Bubblewrap, Mounted
from orchestrator.sandbox.landlock import Landlock
from orchestrator.sandbox.launch import Launcher, Unconfined
from orchestrator.sandbox.limits import find_memory_cgroup, find_pids_cgroup
from orchestrator.sandbox.policy_paths import Confinement
from orchestrator.sandbox.trusted_files import find_program

Preference = Literal["auto", "bubblewrap", "landlock"]
_TRIAL_S = 10.0
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])

_BUBBLEWRAP_TRIAL = """
( : > "$0" ) 2>/dev/null && exit 1
for control; do [ -w "/proc/$control" ] && exit 1; done
exit 0
"""
_LANDLOCK_TRIAL = """
import os, sys
sys.path.insert(0, sys.argv[1])
from orchestrator.sandbox.confine import confine_self
confine_self(
    mounts=(), hidden=(), device_rights=0, keep_capabilities=True,
    ruleset=int(sys.argv[2]), seccomp=bytes.fromhex(sys.argv[3]),
)
try:
    os.open(sys.argv[4], os.O_WRONLY)
except PermissionError:
    sys.exit(0)
sys.exit("a file outside of the writable roots could be opened for writing")
"""
_MOUNT_TRIAL = """
import sys
sys.path.insert(0, sys.argv[1])
from orchestrator.sandbox.confine import cover, give_devices, remount
remount((("/", False), (sys.argv[2], True)))
cover((sys.argv[3],))
give_devices()
open(sys.argv[2] + "/written", "w").close()
try:
    open(sys.argv[3] + "/written", "w").close()
except OSError:
    sys.exit(0)
sys.exit("a read-only mount could be written to")
"""


@dataclass(frozen=True, slots=True)
class SandboxSupport:
    """The mechanisms that the probe tried and found: each one named here has blocked something."""

    bubblewrap: str | None
    landlock_abi: int
    why: tuple[str, ...]
    """Why a mechanism is missing, one sentence each, for `doctor` and for refusals."""
    can_mount: bool = False
    pids_cgroup: str | None = None
    memory_cgroup: str | None = None


def in_force(support: SandboxSupport, prefer: Preference = "auto") -> tuple[str, str]:
    """The mechanism that confines commands (or `none`), and its version, for which bubblewrap is started."""
    if support.bubblewrap is not None and prefer != "landlock":
        try:
            done = subprocess.run(
                [support.bubblewrap, "--version"], capture_output=True, text=True, timeout=2, env={}
            )
            return "bubblewrap", done.stdout.strip().rpartition(" ")[2][:MOST_VERSION]
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return "bubblewrap", ""
    return ("landlock", str(support.landlock_abi)) if support.landlock_abi else ("none", "")


MOST_VERSION = 40


class NoConfinement(RuntimeError):
    """The command must be confined and no mechanism works here; the message names the remedy."""


def probe() -> SandboxSupport:
    """Tries every mechanism once; takes some 50 ms of blocking work, so call it at start or in a thread."""
    bwrap, bwrap_why = _probe_bubblewrap()
    abi, landlock_why = _probe_landlock()
    cgroup, cgroup_why = find_pids_cgroup()
    memory, memory_why = find_memory_cgroup()
    return SandboxSupport(
        bubblewrap=bwrap,
        landlock_abi=abi,
        why=tuple(reason for reason in (bwrap_why, landlock_why, cgroup_why, memory_why) if reason),
        can_mount=abi > 0 and _can_mount(),
        pids_cgroup=str(cgroup) if cgroup else None,
        memory_cgroup=str(memory) if memory else None,
    )


def choose(support: SandboxSupport, confinement: Confinement, prefer: Preference = "auto") -> Launcher:
    """The launcher for a confinement: bubblewrap, else Landlock; `prefer` insists on one of them."""
    if confinement.place is not None and (fault := cannot_mount(support, prefer)):
        raise NoConfinement(fault)
    if confinement.mode == "danger-full-access":
        if confinement.place is None:
            return Unconfined()
        return Mounted(str(support.bubblewrap), confinement.place)
    if support.bubblewrap and prefer != "landlock":
        return Bubblewrap(support.bubblewrap, platform.machine(), as_root=os.geteuid() == 0)
    if support.landlock_abi and prefer != "bubblewrap":
        missing = landlock.gaps(support.landlock_abi, support.can_mount)
        return Landlock(support.landlock_abi, platform.machine(), support.can_mount, gaps=missing)
    wanted = "" if prefer == "auto" else f" ({prefer} is asked for)"
    raise NoConfinement(
        f"the policy is {confinement.mode} and commands cannot be confined here{wanted}: "
        f"{'; '.join(support.why) or 'the mechanism asked for is missing'}. "
        "Install bubblewrap (package `bubblewrap`), "
        "or choose danger-full-access where the machine itself is the boundary"
    )


def cannot_mount(support: SandboxSupport, prefer: Preference = "auto") -> str:
    """The reason why no command can see a portable folder at its path here; empty if it can."""
    if prefer == "landlock":
        return (
            "a portable folder is mounted at its path by bubblewrap, and `sandbox.mechanism` asks for "
            "landlock, which mounts nothing: set it to auto or bubblewrap on this machine"
        )
    if support.bubblewrap:
        return ""
    return (
        "a portable folder is mounted at its path by bubblewrap, which does not work on this machine: "
        f"{'; '.join(support.why)}. Install bubblewrap (package `bubblewrap`)"
    )


def _probe_bubblewrap() -> tuple[str | None, str]:
    path = find_program("bwrap")
    if path is None:
        return None, "bubblewrap: no bwrap on PATH"
    with tempfile.TemporaryDirectory(prefix="dendro-probe-") as folder:
        launcher = Bubblewrap(path, platform.machine(), as_root=os.geteuid() == 0)
        trial = Confinement(mode="read-only", cwd=Path("/"))
        argv = ("/bin/sh", "-c", _BUBBLEWRAP_TRIAL, f"{folder}/written", *COVERED_CONTROLS)
        return _try_bubblewrap(path, launcher, trial, argv)


def _try_bubblewrap(
    path: str, launcher: Bubblewrap, trial: Confinement, argv: tuple[str, ...]
) -> tuple[str | None, str]:
    try:
        launch = launcher.launch(argv, {"PATH": os.defpath}, trial.cwd, trial)
    except seccomp.UnsupportedMachine as unknown:
        return None, f"bubblewrap: {unknown}"
    words = list(launch.argv)
    with tempfile.TemporaryFile() as program, tempfile.TemporaryFile() as options:
        given = ((program, "--seccomp", launch.seccomp_on_fd), (options, "--args", launch.options_on_fd))
        for file, option, content in given:
            file.write(content)
            file.seek(0)
            words[words.index(option) + 1] = str(file.fileno())
        failure = _failure_of(words, (program.fileno(), options.fileno()))
    return (None, f"bubblewrap: {failure}") if failure else (path, "")


def _probe_landlock() -> tuple[int, str]:
    abi = landlock.abi()
    if abi == 0:
        return 0, "Landlock: the kernel has none, or it is not in its lsm= list (Linux 5.13 is needed)"
    try:
        program = seccomp.program(platform.machine(), seccomp.Families(allowed=()))
        ruleset = landlock.build_ruleset(abi, ())
    except (OSError, seccomp.UnsupportedMachine) as refused:
        return 0, f"Landlock: {refused}"
    try:
        with tempfile.NamedTemporaryFile(prefix="dendro-probe-") as target:
            arguments = [_PACKAGE_ROOT, str(ruleset), program.hex(), target.name]
            failure = _failure_of([*_PYTHON, _LANDLOCK_TRIAL, *arguments], (ruleset,))
    finally:
        os.close(ruleset)
    return (0, f"Landlock: {failure}") if failure else (abi, "")


def _can_mount() -> bool:
    with (
        tempfile.TemporaryDirectory(prefix="dendro-probe-") as writable,
        tempfile.TemporaryDirectory(prefix="dendro-probe-") as protected,
    ):
        return not _failure_of([*_PYTHON, _MOUNT_TRIAL, _PACKAGE_ROOT, writable, protected], ())


_PYTHON = (sys.executable, "-I", "-S", "-c")


def _failure_of(argv: list[str], descriptors: tuple[int, ...]) -> str:
    """Runs a trial; the empty string, or what went wrong in one line."""
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=_TRIAL_S, pass_fds=descriptors, cwd="/", env={}
        )
    except (OSError, subprocess.TimeoutExpired) as broken:
        return str(broken)
    if done.returncode == 0:
        return ""
    told = done.stderr.decode(errors="replace").strip().splitlines()
    return told[-1] if told else f"the trial ended with {done.returncode}"
