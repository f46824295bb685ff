"""Frames between a keeper and its process: four bytes of length, then JSON. Only light imports."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

MOST_ASKED = 1 << 20
MOST_ANSWERED = 64 << 20
MOST_DESCRIPTORS = 240
"""Packs in one request; the kernel passes 253 descriptors at once."""
LENGTH = struct.Struct("!I")


def frame(value: object) -> bytes:
    """A value as a frame. Letters beyond ASCII are escaped, also those that are no letters."""
    body = json.dumps(value).encode("ascii")
    return LENGTH.pack(len(body)) + body


def receive(source: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next frame of a blocking socket and its descriptors; None at the end."""
    head, descriptors, _, _ = socket.recv_fds(source, LENGTH.size, MOST_DESCRIPTORS)
    if len(head) < LENGTH.size:
        return None
    left = LENGTH.unpack(head)[0]
    if left > MOST_ASKED:
        return None
    body = source.recv(left, socket.MSG_WAITALL)
    return (json.loads(body), descriptors) if len(body) == left else None
