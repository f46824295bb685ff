"""The system call filter, run by an interpreter of its few BPF instructions."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.sandbox.seccomp import AF_INET, AF_UNIX, Families, UnsupportedMachine, program
from tests.commit_seed import examples

ALLOW, REFUSE = 0x7FFF0000, 0x00050001
X86_64, AARCH64, I386 = 0xC000003E, 0xC00000B7, 0x40000003
PTRACE, SOCKET, SOCKETPAIR, WRITE = 101, 41, 53, 1
STREAM, DATAGRAM, RAW, SEQUENCED, CLOSED_ON_EXEC = 1, 2, 3, 5, 0o2000000


def verdict(code: bytes, call: int, arch: int = X86_64, first_argument: int = 0, second: int = 0) -> int:
    data = struct.pack("iIQQQ", call, arch, 0, first_argument, second)
    accumulator = at = 0
    while True:
        kind, if_true, if_false, value = struct.unpack_from("HBBI", code, at * 8)
        at += 1
        match kind:
            case 0x20:
                (accumulator,) = struct.unpack_from("I", data, value)
            case 0x54:
                accumulator &= value
            case 0x15:
                at += if_true if accumulator == value else if_false
            case 0x35:
                at += if_true if accumulator >= value else if_false
            case 0x06:
                return int(value)
            case _:
                raise AssertionError(f"instruction {kind:#x}")


def test_reaching_into_other_processes_is_refused_on_both_machines() -> None:
    assert verdict(program("x86_64", Families()), PTRACE) == REFUSE
    assert verdict(program("aarch64", Families()), 117, AARCH64) == REFUSE


def test_a_32_bit_or_x32_call_does_not_slip_through() -> None:
    assert verdict(program("x86_64", Families()), 26, I386) == REFUSE
    assert verdict(program("x86_64", Families()), 0x40000000 | 521) == REFUSE


def test_without_a_network_only_unix_sockets_are_given_out() -> None:
    code = program("x86_64", Families(allowed=(AF_UNIX,)))
    assert verdict(code, SOCKET, first_argument=AF_UNIX) == ALLOW
    assert verdict(code, SOCKET, first_argument=AF_INET) == REFUSE
    assert verdict(code, WRITE) == ALLOW


def test_a_refused_family_wins_over_an_open_network() -> None:
    code = program("x86_64", Families(refused=(AF_UNIX,)))
    assert verdict(code, SOCKET, first_argument=AF_UNIX) == REFUSE
    assert verdict(code, SOCKET, first_argument=AF_INET) == ALLOW


@given(st.integers(0, 0xFFFF), st.integers(0, 64), st.lists(st.integers(0, 45), max_size=4))
@settings(max_examples=examples(60), deadline=None)
def test_the_filter_always_reaches_a_verdict(call: int, family: int, allowed: list[int]) -> None:
    code = program("x86_64", Families(allowed=tuple(allowed)))
    assert verdict(code, call, first_argument=family) in (ALLOW, REFUSE)
    if call == SOCKET:
        assert (verdict(code, call, first_argument=family) == ALLOW) == (family in allowed)


def test_pairs_that_reach_nobody_else_are_given_out_without_unix_sockets() -> None:
    code = program("x86_64", Families(allowed=(AF_INET,)))
    for kind in (STREAM, SEQUENCED, STREAM | CLOSED_ON_EXEC):
        assert verdict(code, SOCKETPAIR, first_argument=AF_UNIX, second=kind) == ALLOW
    for kind in (DATAGRAM, RAW, DATAGRAM | CLOSED_ON_EXEC):
        assert verdict(code, SOCKETPAIR, first_argument=AF_UNIX, second=kind) == REFUSE
    with_unix = program("x86_64", Families(allowed=(AF_UNIX,)))
    assert verdict(with_unix, SOCKETPAIR, first_argument=AF_UNIX, second=DATAGRAM) == ALLOW


def test_limits_are_set_for_the_process_itself_alone() -> None:
    for code, call, arch in (
        (program("x86_64", Families()), 302, X86_64),
        (program("aarch64", Families(allowed=())), 261, AARCH64),
    ):
        assert verdict(code, call, arch, first_argument=0) == ALLOW
        assert verdict(code, call, arch, first_argument=4711) == REFUSE


def test_an_unknown_machine_is_named() -> None:
    with pytest.raises(UnsupportedMachine, match="sparc64"):
        program("sparc64", Families())
