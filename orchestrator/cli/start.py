"""The console script: Ctrl-C ends it as it ends a command, also while the command is still being loaded."""

from __future__ import annotations

import sys


def main() -> None:
    """Loads the command line and runs it."""
    try:
        from orchestrator.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
