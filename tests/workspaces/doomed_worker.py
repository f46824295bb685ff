"""A worker for a test to kill: its keepers stop for good between two files of a merge, and say so.

Usage: python -m tests.workspaces.doomed_worker <fifo> <words of dendro …>

A keeper opens the fifo before it confines itself, and writes its pid there behind the first step of a merge.
"""

from __future__ import annotations

import sys

from orchestrator.cli.main import main
from orchestrator.folders import keeper

STOP = """
import os, threading
said = os.open({fifo!r}, os.O_RDWR | os.O_CLOEXEC)
from orchestrator.folders.merge import _Writer
move = _Writer._move
def stops_behind_the_first(self, number, step):
    if number:
        os.write(said, b"%d\\n" % os.getpid())
        threading.Event().wait()
    move(self, number, step)
_Writer._move = stops_behind_the_first
"""

if __name__ == "__main__":
    path, words = keeper._BOOT.split("from ", 1)
    keeper._BOOT = path + STOP.format(fifo=sys.argv[1]) + "from " + words
    sys.argv[1:] = sys.argv[2:]
    main()
