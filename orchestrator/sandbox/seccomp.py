"""The system call filter, assembled by hand: no sockets without a network, no reaching into processes.

Produces BPF bytes and installs nothing. Two architectures are known; a process of any
other architecture that runs under the filter (32-bit programs) is refused every call.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from functools import lru_cache

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NETWORK = (AF_INET, AF_INET6, AF_NETLINK)
"""A network namespace holds these in. AF_VSOCK, which leads to the hypervisor, knows no namespace."""

_SYSCALLS = {
    # name: (x86_64, aarch64)
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "open_by_handle_at": (304, 265),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
}
_SOCKET = (41, 198)
_SOCKETPAIR = (53, 199)
_PRLIMIT = (302, 261)
_PAIRED = (1, 5)
"""SOCK_STREAM and SOCK_SEQPACKET: a datagram socket out of a pair can still send to any other socket."""
_SOCKET_TYPE = 0xF
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COLUMN = {"x86_64": 0, "aarch64": 1}
_X32_BIT = 0x40000000

# struct seccomp_data { int nr; __u32 arch; __u64 instruction_pointer; __u64 args[6]; }
_NR, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24
_LOAD, _AND, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM


@dataclass(frozen=True, slots=True)
class Families:
    """Which address families `socket()` serves: only `allowed` (None: all), and never `refused`."""

    allowed: tuple[int, ...] | None = None
    refused: tuple[int, ...] = ()

    def serves(self, family: int) -> bool:
        """Whether a process gets sockets of the family."""
        return family not in self.refused and (self.allowed is None or family in self.allowed)


class UnsupportedMachine(RuntimeError):
    """No filter is known for this processor; the message names it."""


def known(machine: str) -> bool:
    """Whether there is a filter for the processor."""
    return machine in _AUDIT_ARCH


@lru_cache(maxsize=16)
def program(machine: str, families: Families) -> bytes:
    """BPF that answers EPERM to the calls above and to sockets of other families."""
    if machine not in _AUDIT_ARCH:
        raise UnsupportedMachine(f"no system call filter is known for {machine} (x86_64 and aarch64 are)")
    column = _COLUMN[machine]
    code = [
        _op(_LOAD, _ARCH),
        _op(_JUMP_EQUAL, _AUDIT_ARCH[machine], 1, 0),
        _op(_RETURN, _REFUSE),
        _op(_LOAD, _NR),
        # The x32 calls have numbers of their own on x86_64: without this they pass unseen.
        _op(_JUMP_AT_LEAST, _X32_BIT, 0, 1),
        _op(_RETURN, _REFUSE),
    ]
    for numbers in _SYSCALLS.values():
        code += [_op(_JUMP_EQUAL, numbers[column], 0, 1), _op(_RETURN, _REFUSE)]
    if not families.serves(AF_UNIX):
        code += _pair_rules(_SOCKETPAIR[column])
    code += _prlimit_rules(_PRLIMIT[column])
    code += _socket_rules(_SOCKET[column], families)
    return b"".join(code)


def _prlimit_rules(number: int) -> list[bytes]:
    """Limits are a process's own business: those of another one of the user can be lowered until it dies."""
    return [
        _op(_JUMP_EQUAL, number, 0, 4),
        _op(_LOAD, _ARG0),
        _op(_JUMP_EQUAL, 0, 0, 1),
        _op(_RETURN, _ALLOW),
        _op(_RETURN, _REFUSE),
    ]


def _pair_rules(number: int) -> list[bytes]:
    """Allows socket pairs, which reach no server: Python, Node and git use them for their own children."""
    rules = [_op(_LOAD, _ARG1), _op(_AND, _SOCKET_TYPE)]
    for kind in _PAIRED:
        rules += [_op(_JUMP_EQUAL, kind, 0, 1), _op(_RETURN, _ALLOW)]
    rules.append(_op(_RETURN, _REFUSE))
    return [_op(_JUMP_EQUAL, number, 0, len(rules)), *rules]


def _socket_rules(number: int, families: Families) -> list[bytes]:
    rules = [_op(_JUMP_EQUAL, number, 1, 0), _op(_RETURN, _ALLOW), _op(_LOAD, _ARG0)]
    for family in families.refused:
        rules += [_op(_JUMP_EQUAL, family, 0, 1), _op(_RETURN, _REFUSE)]
    for family in families.allowed or ():
        rules += [_op(_JUMP_EQUAL, family, 0, 1), _op(_RETURN, _ALLOW)]
    return [*rules, _op(_RETURN, _ALLOW if families.allowed is None else _REFUSE)]


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
