"""The system calls that Python does not wrap, by number, through ctypes.

Imported by the supervisor, which forks for every command: nothing heavier than ctypes may be
imported here (no dataclasses, typing, re or enum). Knows nothing of policies.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import time

M_ARENA_MAX = -8
PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2

# Numbers from include/uapi/asm-generic/unistd.h: from 424 on they are the same everywhere.
MOUNT_SETATTR = 442
LANDLOCK_CREATE_RULESET = 444
LANDLOCK_ADD_RULE = 445
LANDLOCK_RESTRICT_SELF = 446
LANDLOCK_RULE_PATH_BENEATH = 1

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
_MOUNT_ATTR_RDONLY = 0x1
_AT_RECURSIVE = 0x8000

CLOCK_BOOTTIME = 7
COUNTED_STILL_S = 1.0
"""Time for which the kernel may count a process that has ended in its cgroup."""
_TFD_TIMER_ABSTIME = 1
_TFD_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK

# timer_create, timer_settime
_TIMER_CALLS = {"x86_64": (222, 223), "aarch64": (107, 110)}

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def syscall(number: int, *arguments: int | bytes) -> int:
    """Makes a raw system call; bytes are passed as a pointer to them."""
    converted = [ctypes.c_long(a) if isinstance(a, int) else ctypes.c_char_p(a) for a in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *converted), f"syscall {number}")


def prctl(option: int, argument: int = 0) -> None:
    """`prctl(option, argument, 0, 0, 0)`: the kernel insists on the zeros for some options."""
    arguments = [ctypes.c_ulong(value) for value in (argument, 0, 0, 0)]
    _checked(_libc.prctl(ctypes.c_int(option), *arguments), f"prctl {option}")


def install_seccomp(program: bytes) -> None:
    """Filters this thread's system calls from now on, across exec; `program` is BPF."""
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog { unsigned short len; struct sock_filter *filter; } with its padding
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    pointer = ctypes.create_string_buffer(header, len(header))
    arguments = [ctypes.c_ulong(SECCOMP_MODE_FILTER), pointer, ctypes.c_ulong(0), ctypes.c_ulong(0)]
    _checked(_libc.prctl(ctypes.c_int(PR_SET_SECCOMP), *arguments), "seccomp")


def unshare(flags: int) -> None:
    """Moves this process into new namespaces."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str | None, target: str, flags: int, kind: bytes | None = None, data: bytes = b"") -> None:
    """`mount(2)`: a bind mount or a change of flags, or a new file system of a kind."""
    origin = os.fsencode(source) if source is not None else None
    flag_word = ctypes.c_ulong(flags)
    _checked(_libc.mount(origin, os.fsencode(target), kind, flag_word, data or None), f"mount {target}")


def allow_beneath(ruleset: int, path: str, rights: int) -> None:
    """Adds a Landlock rule for what is at the path now."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        # struct landlock_path_beneath_attr is packed: u64 allowed_access, s32 parent_fd
        rule = struct.pack("=Qi", rights, descriptor)
        syscall(LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def set_read_only(target: str, read_only: bool) -> None:
    """Makes the mount at `target` and every mount below it read-only, or writable again."""
    # struct mount_attr { u64 attr_set, attr_clr, propagation, userns_fd; }
    wanted = (_MOUNT_ATTR_RDONLY, 0) if read_only else (0, _MOUNT_ATTR_RDONLY)
    attributes = struct.pack("QQQQ", *wanted, 0, 0)
    syscall(MOUNT_SETATTR, -1, os.fsencode(target), _AT_RECURSIVE, attributes, len(attributes))


def boottime_timer() -> int:
    """A timer descriptor on CLOCK_BOOTTIME, which goes on while the machine sleeps."""
    return _checked(_libc.timerfd_create(CLOCK_BOOTTIME, _TFD_FLAGS), "timerfd_create")


def arm(timer: int, at_boottime_s: float | None) -> None:
    """Lets the timer fire at an absolute time, at once if it has passed; None disarms it."""
    at = 0.0 if at_boottime_s is None else max(at_boottime_s, 1e-6)
    seconds = int(at)
    setting = struct.pack("qqqq", 0, 0, seconds, int((at - seconds) * 1e9))
    _checked(_libc.timerfd_settime(timer, _TFD_TIMER_ABSTIME, setting, None), "timerfd_settime")


def deadly_timer() -> int | None:
    """A timer on CLOCK_BOOTTIME that kills this process, busy or stopped; None on an unknown processor."""
    numbers = _TIMER_CALLS.get(os.uname().machine)
    if numbers is None:
        return None
    # struct sigevent { union sigval value; int signo; int notify; char pad[48]; }; SIGEV_SIGNAL is 0
    event = ctypes.create_string_buffer(struct.pack("Qii48x", 0, signal.SIGKILL, 0), 64)
    timer = ctypes.c_int()
    arguments = (ctypes.c_long(numbers[0]), ctypes.c_long(CLOCK_BOOTTIME), event, ctypes.byref(timer))
    _checked(_libc.syscall(*arguments), "timer_create")
    return timer.value


def set_deadly(timer: int, at_boottime_s: float) -> None:
    """Lets a deadly timer fire at an absolute time, at once if it has passed."""
    at = max(at_boottime_s, 1e-6)
    setting = struct.pack("qqqq", 0, 0, int(at), int((at - int(at)) * 1e9))
    number = _TIMER_CALLS[os.uname().machine][1]
    syscall(number, timer, _TFD_TIMER_ABSTIME, setting, 0)


def remove_cgroup(path: str, patience_s: float = 0.0) -> None:
    """Removes a cgroup; raises `OSError` if it cannot be.

    The kernel counts a process that has ended for a moment more, and refuses as long: it is asked again.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            os.rmdir(path)  # noqa: PTH106 - pathlib is no light import
        except OSError as refused:
            if refused.errno != errno.EBUSY or time.monotonic() >= until:
                raise
            time.sleep(0.001)
        else:
            return


def share_heap() -> None:
    """Has all threads that begin from here on use one heap of the C library; musl has one, and no such call.

    For processes that live long, before their first thread: a heap of its own keeps the most that its thread
    ever needed, in pieces. Threads of Python seldom allocate at the same time.
    """
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is not None:
        mallopt(ctypes.c_int(M_ARENA_MAX), ctypes.c_int(1))


def trim_heap() -> None:
    """Has the C library give freed pages back, in the middle of the heap, too; musl does so by itself."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
