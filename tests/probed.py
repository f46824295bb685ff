"""The probe of the confinements, which starts four processes, done once for a process and its forks."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from orchestrator.sandbox import probe
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.sandbox.trusted_files import find_program


def once() -> None:
    """Has the product ask this module; to be called before anything imports the probe by its name.

    What finds other programs, or is another user or on another machine, probes again.
    """
    probed = probe.probe
    found: dict[object, SandboxSupport] = {}

    @functools.wraps(probed)
    def found_here() -> SandboxSupport:
        here = _where()
        if here not in found:
            found[here] = probed()
        return found[here]

    probe.probe = found_here


def _where() -> object:
    namespaces = tuple(Path(f"/proc/self/ns/{name}").readlink() for name in ("mnt", "user", "pid", "uts"))
    program = find_program("bwrap")
    return namespaces, os.geteuid(), program and Path(program).resolve()
