"""Processes at the other end, as the kernel names them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from orchestrator.gateways.wires.peers import Peer, PeerFinder

CONFINED = """
import ctypes, socket, sys
assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
kept = []
for place in sys.argv[1:]:
    family = socket.AF_UNIX if "/" in place else socket.AF_INET
    kept.append(socket.socket(family))
    kept[-1].connect(place if family == socket.AF_UNIX else ("127.0.0.1", int(place)))
sys.stdin.read()
"""


def test_own_process_is_known_on_loopback_of_either_family() -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with (
            socket.create_server((host, 0), family=family) as listener,
            socket.create_connection(listener.getsockname()[:2]),
            listener.accept()[0] as accepted,
        ):
            finder = PeerFinder()
            assert finder.peer_of(accepted) == Peer(os.geteuid(), False)
            assert finder.peer_of(accepted) == Peer(os.geteuid(), False)


def test_process_that_has_left_is_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname())
        with listener.accept()[0] as accepted:
            left.close()
            found = PeerFinder().peer_of(accepted)
            assert found is None or found.is_confined


def test_process_in_a_sandbox_is_told_apart_from_its_user(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(path))
        unix.listen()
        places = (str(path), str(tcp.getsockname()[1]))
        with subprocess.Popen([sys.executable, "-c", CONFINED, *places], stdin=subprocess.PIPE) as process:
            with unix.accept()[0] as over_unix, tcp.accept()[0] as over_tcp:
                assert PeerFinder().peer_of(over_unix) == Peer(os.geteuid(), True)
                assert PeerFinder().peer_of(over_tcp) == Peer(os.geteuid(), True)
            assert process.stdin is not None
            process.stdin.close()
