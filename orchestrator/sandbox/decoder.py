"""Confinement of a process of the product's own that only computes on what a stranger wrote."""

from __future__ import annotations

import resource
from contextlib import suppress

from orchestrator.sandbox import landlock


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
        landlock.confine_here(least_abi=1)
