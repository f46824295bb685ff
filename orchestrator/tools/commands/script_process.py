"""The process that reads scripts for another one: `python -m orchestrator.tools.commands.script_process`.

Models write the scripts, and the grammar is C: some scripts crash it, or keep it busy for ever. So this
process has no environment, little memory and little time for each script; it cannot write, connect or start
anything where the kernel has Landlock. Requests come on standard input, a socket: a letter, four bytes of
length, the script. Answers are four bytes of length and JSON.
"""

from __future__ import annotations

import json
import signal
import socket
import struct
from collections.abc import Callable
from dataclasses import astuple

from orchestrator.sandbox.decoder import confine_decoder
from orchestrator.tools.commands.bash_grammar import beginnings, plain
from orchestrator.tools.commands.bash_patch import patch_call

CPU_S = 0.25
"""Of processor time for one script; SIGPROF ends the process then, whatever it does."""
PATCH_CPU_S = 0.5
"""The same for a patch, which may be some megabytes long."""
MEMORY_BYTES = 1 << 30
_HEAD = struct.Struct("!cI")
_LENGTH = struct.Struct("!I")


def main() -> None:
    """Answers until the other end closes."""
    asked = socket.socket(fileno=0)
    confine_decoder(MEMORY_BYTES)
    asked.sendall(_LENGTH.pack(0))
    while head := asked.recv(_HEAD.size, socket.MSG_WAITALL):
        kind, length = _HEAD.unpack(head)
        source = asked.recv(length, socket.MSG_WAITALL) if length else b""
        signal.setitimer(signal.ITIMER_PROF, PATCH_CPU_S if kind == b"a" else CPU_S)
        answer = _READERS[kind](source)
        signal.setitimer(signal.ITIMER_PROF, 0)
        body = json.dumps(answer).encode()
        asked.sendall(_LENGTH.pack(len(body)) + body)


def _plain(source: bytes) -> object:
    found = plain(source)
    if found is None:
        return None
    return [[list(map(astuple, command)) for command in found.commands], found.operators]


_READERS: dict[bytes, Callable[[bytes], object]] = {b"p": _plain, b"b": beginnings, b"a": patch_call}

if __name__ == "__main__":
    main()
