"""Standard streams that a process was started without; each command looks for them first."""

from __future__ import annotations

import os
import sys


def open_missing() -> None:
    """Opens the null device where the process was started without a standard stream.

    The next file or connection would else get its number, and what is written for people go there.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is the one that is missing: those below are open.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
