"""The shim: a forked process that starts a command, reaps it, and proves that no process of it is left.

A patch that is being written has a shim as a command has.

The shim is a subreaper, so processes that the command leaves behind become its children; when `waitpid`
says that there is no child, there is no descendant. The shim kills them all on a signal
(`KILL_SIGNAL`), when the command's time is over, when the supervisor dies (PDEATHSIG) or when
the worker's end of the channel closes. Each of these alone is enough.

The shim writes to the worker, one line each on the channel:
    failed <what> <errno>     the command could not be started
    exited <code> <why>       the main process is over (itself, timeout, killed); output may still come
    memory                    the kernel killed a process of the command that exceeded the memory limit
    gone <survivors>          no descendant is left (or so many cannot be killed)

Loaded into the supervisor, which forks per command: only light imports, plain dicts for records.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import socket
import time

from orchestrator.sandbox import kernel
from orchestrator.tools.exec.fork import (
    IGNORED_SIGNALS,
    KILL_SIGNAL,
    descendants_of,
    kill_all,
    start,
    start_writer,
)
from orchestrator.tools.exec.held_objects import (
    hold_placeholder,
    make_cgroup,
    ran_out_of_memory,
    release_placeholder,
    remove_cgroup,
)

TYPE_CHECKING = False  # typing's import costs the supervisor more than its own code
if TYPE_CHECKING:
    from typing import Any

EXIT_TIMED_OUT = 124
KILL_PATIENCE_S = 5.0
_RESCAN_S = 0.01


def shrug_off_signals() -> int:
    """Ignores the signals of a terminal or a service manager; returns a pipe that the other signals wake.

    Only the worker decides when commands end: a SIGTERM to the whole service must leave them
    the time that draining gives them.
    """
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    for number in (signal.SIGCHLD, KILL_SIGNAL):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


class Descriptors:
    """The descriptors that the worker sends along with a command."""

    __slots__ = ("channel", "ruleset", "spec", "stderr", "stdout")

    def __init__(self, spec: int, channel: int, stdout: int, stderr: int, ruleset: int | None = None) -> None:
        self.spec = spec
        self.channel = channel
        self.stdout = stdout
        self.stderr = stderr
        self.ruleset = ruleset


def run_shim(supervisor_pid: int, given: Descriptors) -> int:
    """Runs one command to its end and to the end of all its descendants; returns the shim's exit code."""
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, KILL_SIGNAL)
    wakeup = shrug_off_signals()
    if os.getppid() != supervisor_pid:
        return 0  # the supervisor died before the kernel was asked to tell of it
    spec = _read_spec(given.spec)
    held = [hold_placeholder(path) for path in spec["placeholders"]]
    unheld = [path for path, descriptor in held if descriptor < 0]
    spec["confine"]["mounts"] = [mount for mount in spec["confine"]["mounts"] if mount[0] not in unheld]
    cgroups = [path for path, _ in spec["cgroups"]]
    for path, settings in spec["cgroups"]:
        make_cgroup(path, settings)
    try:
        main, failure = _start(spec, given, cgroups)
        for descriptor in (given.stdout, given.stderr, given.ruleset):
            if descriptor is not None:
                os.close(descriptor)
        watch = _Watch(main, socket.socket(fileno=given.channel), wakeup, spec["timeout_s"])
        if failure:
            watch.report(failure)
        survivors = watch.run()
        if any(map(ran_out_of_memory, cgroups)):
            watch.report("memory")
    finally:
        for path in cgroups:
            remove_cgroup(path)
        for path, descriptor in held:
            release_placeholder(path, descriptor)
    watch.report(f"gone {survivors}")
    watch.flush()
    return 1 if survivors else 0


def _start(spec: dict[str, Any], given: Descriptors, cgroups: list[str]) -> tuple[int, str]:
    if "job" in spec:
        return start_writer(spec["job"], given.stdout)
    return start(spec, given.stdout, given.stderr, given.ruleset, cgroups)


class _Watch:
    """The wait for the command's end and for the reasons to end it."""

    __slots__ = (
        "_channel",
        "_deadline",
        "_exited",
        "_killing_since",
        "_main",
        "_timed_out",
        "_unsent",
        "_wakeup",
    )

    def __init__(self, main: int, channel: socket.socket, wakeup: int, timeout_s: float | None) -> None:
        self._main = main
        self._channel: socket.socket | None = channel
        self._wakeup = wakeup
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._timed_out = False
        self._killing_since: float | None = None
        self._exited = False
        self._unsent = ""

    def report(self, line: str) -> None:
        """Keeps a line for the next flush, so that the usual end is one send and not two."""
        self._unsent += line + "\n"

    def flush(self) -> None:
        """Sends the pending lines; the worker may be gone by now."""
        if self._unsent and self._channel is not None:
            try:
                self._channel.send(self._unsent.encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except OSError:
                self._hang_up()
        self._unsent = ""

    def run(self) -> int:
        """Until no descendant is left; the number of those that cannot be killed, if there are any."""
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        assert self._channel is not None
        poll.register(self._channel, select.POLLIN)
        while self._reap():
            survivors = self._kill_step() if self._killing_since is not None else 0
            if survivors:
                return survivors
            self.flush()
            for descriptor, _ in poll.poll(self._patience_ms()):
                if descriptor == self._wakeup:
                    self._read_signals()
                else:
                    poll.unregister(descriptor)
                    self._hang_up()
            self._check_time()
        return 0

    def _hang_up(self) -> None:
        """The worker has closed its end, which it does by dying: the right to run ended with it."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._begin_kill()

    def _begin_kill(self) -> None:
        if self._killing_since is None:
            self._killing_since = time.monotonic()

    def _read_signals(self) -> None:
        if KILL_SIGNAL in os.read(self._wakeup, 4096):
            self._begin_kill()

    def _check_time(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline and self._killing_since is None:
            self._timed_out = not self._exited
            self._begin_kill()

    def _patience_ms(self) -> float | None:
        if self._killing_since is not None:
            return _RESCAN_S * 1000
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - time.monotonic()) * 1000 + 1

    def _reap(self) -> bool:
        """Reaps the children that have ended; False when no child, and so no descendant, is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._main:
                self._note_exit(os.waitstatus_to_exitcode(status))

    def _note_exit(self, code: int) -> None:
        self._exited = True
        if code < 0:
            code = 128 - code
        if self._timed_out:
            self.report(f"exited {EXIT_TIMED_OUT} timeout")
        else:
            self.report(f"exited {code} {'itself' if self._killing_since is None else 'killed'}")

    def _kill_step(self) -> int:
        assert self._killing_since is not None
        refused = kill_all(descendants_of(os.getpid()))
        overdue = time.monotonic() - self._killing_since > KILL_PATIENCE_S
        return refused if overdue else 0


def _read_spec(descriptor: int) -> dict[str, Any]:
    """The worker's description of the command: a marshalled dict in a memory file.

    Both ends are the same interpreter, which is what marshal asks for; json would bring re
    and enum into every fork.
    """
    data = bytearray()
    while part := os.pread(descriptor, 1 << 20, len(data)):
        data += part
    os.close(descriptor)
    spec: dict[str, Any] = marshal.loads(data)
    return spec
