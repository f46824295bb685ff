"""A rule that a person's answer adds to the owner's `default.rules`."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from orchestrator.private_files import make_folder, open_file
from orchestrator.tools.rules.parse import RuleError, parsed_rules

DEFAULT_FILE: Final = "default.rules"
MOST_BYTES: Final = 256 << 10
"""Bytes of a rule file."""


def add_rule(folder: Path, prefix: Sequence[str], *, confined: bool) -> None:
    """Adds a line that allows a prefix, unless it is there.

    `confined`: as the command that was approved, commands of the prefix stay in their sandbox. Raises
    `OSError`, or `RuleError` where the file would not be readable any more: then it stays as it is.
    """
    make_folder(folder)
    descriptor = open_file(folder / DEFAULT_FILE, os.O_RDWR | os.O_APPEND)
    with os.fdopen(descriptor, "r+b") as file:
        # Two workers of one person may add at once.
        fcntl.flock(file, fcntl.LOCK_EX)
        there, line = file.read(MOST_BYTES + 1), _line(prefix, confined=confined)
        if line.strip() in [each.strip() for each in there.splitlines()]:
            return
        added = line + b"\n" if not there or there.endswith(b"\n") else b"\n" + line + b"\n"
        if len(there) + len(added) > MOST_BYTES:
            raise RuleError(1, f"the file would have more than {MOST_BYTES:,} bytes")
        parsed_rules((there + added).decode())
        file.write(added)


def _line(prefix: Sequence[str], *, confined: bool) -> bytes:
    # JSON's texts are Python's, as long as nothing beyond ASCII is escaped.
    pattern = json.dumps(list(prefix), ensure_ascii=False)
    return f'prefix_rule(pattern={pattern}, decision="allow"{", confined=True" if confined else ""})'.encode()
