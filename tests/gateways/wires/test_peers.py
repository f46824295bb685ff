"""Processes at the other end, as the kernel names them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from orchestrator.gateways.wires import authentication
from orchestrator.gateways.wires.addresses import bearer
from orchestrator.gateways.wires.authentication import Authentication, Peer, PeerFinder, Unauthenticated

UNSEEN_ONE = """
import ctypes, socket, sys
assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0  # PR_SET_DUMPABLE: as after a change of user, in sshd
kept = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sys.stdin.read()
"""
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
            assert found is None or not found.is_seen


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


@contextmanager
def unseen_peer() -> Iterator[socket.socket]:
    """A connection of a process of an own user whose open files nobody may list, as an sshd's are."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-c", UNSEEN_ONE, str(listener.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            with listener.accept()[0] as accepted:
                yield accepted
            assert process.stdin is not None
            process.stdin.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root lists the files of every process")
async def test_process_whose_files_nobody_may_list_is_not_called_a_sandbox() -> None:
    with unseen_peer() as accepted:
        assert PeerFinder().peer_of(accepted) == Peer(os.geteuid(), False, is_seen=False)


async def test_process_that_cannot_be_looked_at_learns_why_and_the_ways_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Authentication(peer_of=lambda _: Peer(os.geteuid(), False, is_seen=False))
    with socket.socket() as any_one:
        for _ in range(3):
            with pytest.raises(Unauthenticated) as told:
                await gate.principal(None, any_one)
    for word in ("ssh -L", "--remote-auth-token-env", "unix://", "namespace"):
        assert word in str(told.value)
    assert "in a sandbox is nobody" not in str(told.value)
    assert len([line for line in caplog.records if "ssh -L" in line.getMessage()]) == 1


def test_holder_that_is_not_found_or_gone_is_one_that_nobody_sees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        monkeypatch.setattr(PeerFinder, "_holder", lambda *_: 0)
        assert PeerFinder().peer_of(accepted) == Peer(os.geteuid(), False, is_seen=False)


def _row(local: str, remote: str, uid: int, inode: int) -> str:
    """A line of the kernel's table of sockets."""
    rest = f"00000000:00000000 00:00000000 00000000 {uid:5d} 0 {inode} 1 0 20 4 30 10 -1"
    return f"   0: {local} {remote} 01 {rest}"


OTHERS = os.geteuid() + 1


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "10.0.0.2", "2001:db8::2"])
@pytest.mark.parametrize("uid", [os.geteuid(), OTHERS])
def test_user_at_the_other_end_is_the_one_of_its_own_socket_and_nobody_is_from_elsewhere(
    host: str, uid: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs, another = (authentication._in_table(host, port) for port in (4500, 40_000, 40_001))
    mine = os.geteuid() if uid == OTHERS else OTHERS
    rows = [
        _row(ours, theirs, mine, 1),
        _row(another, ours, mine, 2),
        _row(theirs, another, mine, 3),
        _row(theirs, ours, uid, 4),
    ]
    (tmp_path / "net").mkdir()
    for name in ("tcp", "tcp6"):
        known = rows if (":" in host) == (name == "tcp6") else []
        (tmp_path / "net" / name).write_text("\n".join(["  sl  local_address", *known]) + "\n")
    looked_for = []

    def holder(finder: PeerFinder, uid: int, link: str) -> int:
        looked_for.append((uid, link))
        return 0

    monkeypatch.setattr(authentication, "PROC", tmp_path)
    monkeypatch.setattr(PeerFinder, "_holder", holder)
    found = PeerFinder()._loopback_peer((host, 4500), (host, 40_000))
    if not ip_address(host).is_loopback:
        assert (found, looked_for) == (None, [])
        return
    assert found == Peer(uid, False, is_seen=False)
    assert looked_for == [(uid, "socket:[4]")]


async def test_header_without_a_token_is_not_the_machine_s_user() -> None:
    gate = Authentication(peer_of=lambda _: Peer(os.geteuid(), False))
    with socket.socket() as any_one:
        assert (await gate.principal(None, any_one)).token == ""
        with pytest.raises(Unauthenticated, match="holds no token"):
            await gate.principal(bearer({"authorization": ["Basic YW5u"]}), any_one)
