"""The supervisor's process: has a shim for each command, and ends commands when their claim has ended.

    worker ── SEQPACKET ── supervisor ── fork ── shim ── spawn ── bwrap or command
       └──────── per command: output pipes, channel ──┘

Authority over life: the claim's deadline, on CLOCK_BOOTTIME, as the worker wrote it last. The
worker's death closes the socket (all claims end at once); its stop lets the deadlines pass.
When the worker has died and nothing is left that it started, the supervisor says so by a byte in a pipe
(`Burial`): a process that waits there gives the worker's sessions to others.
If a shim is killed by a command that is not confined, its orphans fall to the supervisor, itself
a subreaper, which kills them. If the supervisor is killed, each shim gets PDEATHSIG and kills
its command. Only both deaths at once, which takes an unconfined command, would leave orphans.

A shim that has proved the end of its command takes the next one, of any claim: to fork this process costs
more than all else that it does for a command.

From the worker:
    run, id, claim, limits    with `Descriptors`; the limits are those that a process can only lower
    extend, claim, deadline
    kill, id
    kill_claim, claim
    ask                       a liveness check
    leave                     the worker ends in good order: what it held is given back
To the worker:
    ready
    here                      the answer to `ask`
    swept, id, survivors, pid a shim ended without proof; what it left behind was killed. 0 where it had none
    refused, id, errno        the claim has no right to run (0), or the fork failed

Only light imports: the size of this process is what a shim's start costs.
"""

# pathlib would add a third to what each fork copies.
# ruff: noqa: PTH112, PTH113, PTH118, PTH123, PTH208

from __future__ import annotations

import errno
import fcntl
import gc
import marshal
import os
import resource
import select
import signal
import socket
import struct
import time
from contextlib import suppress

from orchestrator.sandbox import confine, kernel
from orchestrator.tools.exec.held_objects import (
    NO_PLACE,
    Cgroup,
    has_process_below,
    hold_placeholder,
    release_placeholder,
)
from orchestrator.tools.patch import writer

TYPE_CHECKING = False  # typing's import costs the supervisor more than its own code
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.tools.exec.held_objects import Cgroup

# ── shim ──────────────────────────────────────────────────────────────────────────────────────────
# The shim: a forked process that starts a command, reaps it, and proves that no process of it is left.
#
# A patch that is being written has a shim as a command has. One at a time: what is below a shim is of one
# command. When nothing is left of that, the shim tells the supervisor (`_DONE`) and may get the next one;
# a shim that was told to kill ends instead, so that no late signal meets another command.
#
# The shim is a subreaper, so processes that the command leaves behind become its children; when `waitpid`
# says that there is no child, there is no descendant. The shim kills them all on a signal
# (`KILL_SIGNAL`), when the command's time is over, when the supervisor dies (PDEATHSIG) or when the
# worker's end of the channel closes. Each of these alone is enough.
#
# The shim writes to the worker, one line each on the channel:
#     failed <what> <errno>     the command could not be started
#     exited <code> <why>       the main process is over (itself, timeout, killed); output may still come
#     memory                    the kernel killed a process of the command that exceeded the memory limit
#     gone <survivors>          no descendant is left (or so many cannot be killed)
#
# Loaded into the supervisor, which forks per command: only light imports, plain dicts for records.


if TYPE_CHECKING:
    from typing import Any

    RLimits = tuple[int | None, int | None]
    """Of processes and of memory; what is lowered cannot be raised, so a shim has them for good."""

EXIT_TIMED_OUT = 124
BURIED = b"b"
"""The word that the worker is dead and nothing of it runs."""
KILL_PATIENCE_S = 5.0
_RESCAN_S = 0.01
_DONE, _LAST = b"d", b"l"
"""From a shim: nothing is left of its command, and the worker was told; with `_LAST` the shim ends."""
_NEXT = b"n"
"""To a shim, with `Descriptors`: another command."""


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


def run_shim(supervisor_pid: int, orders: socket.socket, given: Descriptors, limits: RLimits) -> int:
    """Runs commands one after the other, each to its end and to the end of all its descendants.

    Until the supervisor closes `orders` or something is to be killed; returns the shim's exit code, which is
    0 if nothing is left of any of them.
    """
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, KILL_SIGNAL)
    wakeup = shrug_off_signals()
    # Held back since the fork: until now the handler would have woken the supervisor.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (KILL_SIGNAL,))
    if os.getppid() != supervisor_pid:
        return 0  # the supervisor died before the kernel was asked to tell of it
    _lower_limits(*limits)
    following: Descriptors | None = given
    kept: dict[str, Cgroup] = {}
    try:
        while following is not None:
            survivors, killed = _see_through(following, wakeup, kept, name_of_cgroups(supervisor_pid))
            if survivors:
                return 1
            with suppress(OSError):  # a supervisor that is gone tells of it by a signal
                orders.send(_LAST if killed else _DONE, socket.MSG_NOSIGNAL)
            following = None if killed else _next(orders, wakeup)
        return 0
    finally:
        for cgroup in kept.values():
            cgroup.remove()


def name_of_cgroups(supervisor_pid: int) -> str:
    """The name of the cgroups of this shim."""
    return f"dendro-{supervisor_pid}-{os.getpid()}"


def _lower_limits(processes: int | None, data: int | None) -> None:
    """Sets what every process below is to have; a process cannot raise them again."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if processes is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    if data is not None:
        ceiling = resource.getrlimit(resource.RLIMIT_DATA)[1]
        wanted = data if ceiling == resource.RLIM_INFINITY else min(data, ceiling)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, wanted))


def _next(orders: socket.socket, wakeup: int) -> Descriptors | None:
    """Waits for another command; None if there is none to come."""
    poll = select.poll()
    poll.register(wakeup, select.POLLIN)
    poll.register(orders, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if wakeup in ready and KILL_SIGNAL in os.read(wakeup, 4096):
            return None
        if orders.fileno() in ready:
            try:
                data, descriptors = _receive(orders)
            except OSError:
                return None
            return Descriptors(*descriptors) if data else None


def _see_through(given: Descriptors, wakeup: int, kept: dict[str, Cgroup], name: str) -> tuple[int, bool]:
    """Runs one command; the number of processes that cannot be killed, and whether something was to be."""
    spec = _read_spec(given.spec)
    held = [hold_placeholder(path) for path in spec["placeholders"]]
    unheld = [path for path, descriptor in held if descriptor < 0]
    spec["confine"]["mounts"] = [mount for mount in spec["confine"]["mounts"] if mount[0] not in unheld]
    cgroups = [_cgroup(kept, f"{parent}/{name}", settings) for parent, settings in spec["cgroups"]]
    try:
        if any(descriptor == NO_PLACE for _, descriptor in held):
            # The command could make the folder again, and put there what was to be kept from it.
            main, failure = -1, f"failed guard {errno.ENOENT}"
        else:
            main, failure = _start(spec, given, cgroups)
        for descriptor in (given.stdout, given.stderr, given.ruleset):
            if descriptor is not None:
                os.close(descriptor)
        watch = _Watch(main, socket.socket(fileno=given.channel), wakeup, spec["timeout_s"])
        if failure:
            watch.report(failure)
        survivors = watch.run()
        if any(cgroup.ran_out_of_memory() for cgroup in cgroups):
            watch.report("memory")
    finally:
        for path, descriptor in held:
            release_placeholder(path, descriptor)
    watch.report(f"gone {survivors}")
    watch.flush()
    watch.close()
    return survivors, watch.killed


def _cgroup(kept: dict[str, Cgroup], path: str, settings: list[tuple[str, str]]) -> Cgroup:
    """The cgroup of the command before, or a new one."""
    if path in kept and not kept[path].is_fit(settings):
        kept.pop(path).remove()
    if path not in kept:
        kept[path] = Cgroup(path, settings)
    return kept[path]


def _start(spec: dict[str, Any], given: Descriptors, cgroups: list[Cgroup]) -> tuple[int, str]:
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

    @property
    def killed(self) -> bool:
        """Whether it was told to kill, or the time was over."""
        return self._killing_since is not None

    def close(self) -> None:
        """Lets go of the channel."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

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
        self.close()
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


# ── supervisor process ────────────────────────────────────────────────────────────────────────────


_PACKET = 64 * 1024
_MOST_DESCRIPTORS = 5
_ESCALATE_S = KILL_PATIENCE_S + 2.0
_END_S = 10.0
"""Time for which the worker's end is waited for when its socket has ended; a lease is over by then."""
_ALONE_S = 0.002
_REST_S = 30.0
"""Time for which a shim without a command is kept."""
_MOST_RESTING = 4
"""Shims without a command, each with about 2 MB of its own."""


class _Shim:
    """A running shim, as the supervisor knows it."""

    __slots__ = ("claim", "force_at", "ident", "limits", "orders", "rests_until")

    def __init__(
        self,
        ident: int,
        claim: str,
        limits: RLimits = (None, None),
        orders: socket.socket | None = None,
    ) -> None:
        self.ident: int | None = ident
        """Of its command; None while it has none."""
        self.claim = claim
        self.limits = limits
        self.orders = orders
        """None of a shim that gets no other command."""
        self.rests_until = 0.0
        self.force_at: float | None = None
        """The time at which a shim that got the kill signal and has not ended is killed itself."""

    def hear(self) -> bool:
        """Takes what it has said; whether it may get another command."""
        if self.orders is None:
            return False
        try:
            said = self.orders.recv(16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            said = b""
        if said:
            self.ident, self.claim = None, ""
        # One that was told to kill gets nothing more: the signal may be on its way.
        return said == _DONE and self.force_at is None

    def take(self, ident: int, claim: str, descriptors: list[int]) -> bool:
        """Gives it another command; False if it has ended."""
        assert self.orders is not None
        rights = struct.pack(f"{len(descriptors)}i", *descriptors)
        try:
            self.orders.sendmsg(
                [_NEXT], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], socket.MSG_NOSIGNAL
            )
        except OSError:
            return False
        self.ident, self.claim = ident, claim
        return True

    def dismiss(self) -> None:
        """Lets it end as soon as it has no command."""
        if self.orders is not None:
            self.orders.close()
            self.orders = None


class Burial:
    """Descriptors by which the worker's death is proved and told, and the parents of its commands' cgroups.

    `worker` is a pidfd of the worker, made by itself: no other process can have its place. `lifeline` ends
    with the last of the worker's other children that write. `word` is a pipe to the process that waits.
    """

    __slots__ = ("cgroups", "lifeline", "word", "worker")

    def __init__(self, worker: int, lifeline: int, word: int, cgroups: list[str]) -> None:
        self.worker = worker
        self.lifeline = lifeline
        self.word = word
        self.cgroups = cgroups
        for descriptor in (worker, lifeline, word):
            os.set_inheritable(descriptor, False)

    def close(self) -> None:
        """In a fork: what a command can reach must not say that its worker is dead."""
        for descriptor in (self.worker, self.lifeline, self.word):
            os.close(descriptor)


class _Supervisor:
    __slots__ = ("_burial", "_deadlines", "_left", "_poll", "_shims", "_timer", "_wakeup", "_worker")

    def __init__(self, worker: socket.socket, burial: Burial | None = None) -> None:
        self._worker: socket.socket | None = worker
        self._burial = burial
        self._left = False
        """Whether the worker has said that it ends in good order."""
        self._shims: dict[int, _Shim] = {}
        self._deadlines: dict[str, float] = {}
        self._timer = kernel.boottime_timer()
        self._wakeup = shrug_off_signals()
        self._poll = select.poll()

    def serve(self) -> None:
        """Until the worker is gone and every shim with it."""
        poll = self._poll
        for descriptor in (self._worker, self._timer, self._wakeup):
            assert descriptor is not None
            poll.register(descriptor, select.POLLIN)
        if self._burial is not None:
            poll.register(self._burial.worker, select.POLLIN)
        self._send(("ready",))
        while not self._is_done():
            for descriptor, _ in poll.poll():
                if self._burial is not None and descriptor == self._burial.worker:
                    poll.unregister(descriptor)
                    if self._worker is not None:
                        # Something else may hold its end of the socket, and packets may wait in it: none is
                        # taken any more.
                        poll.unregister(self._worker)
                        self._lose_worker()
                elif descriptor == self._wakeup:
                    os.read(self._wakeup, 4096)
                    self._reap()
                elif descriptor == self._timer:
                    self._read_timer()
                elif self._worker is None or descriptor != self._worker.fileno():
                    self._hear_shim(descriptor)
                elif not self._serve_packet():
                    poll.unregister(descriptor)
                    self._lose_worker()
            self._enforce()
        self._end()

    def _is_done(self) -> bool:
        """Whether the worker is gone, and every shim with it."""
        return self._worker is None and not self._shims

    def _end(self) -> None:
        self._sweep()
        self._bury()

    def _serve_packet(self) -> bool:
        """Takes one packet; False when the worker's end is closed."""
        assert self._worker is not None
        try:
            data, descriptors = _receive(self._worker)
        except ConnectionResetError:
            return False
        if not data:
            return False
        kind, *arguments = marshal.loads(data)
        if kind == "run":
            ident, claim, *limits = arguments
            self._run(ident, claim, descriptors, *limits)
        elif kind == "extend":
            claim, deadline = arguments
            self._deadlines[claim] = deadline
        elif kind == "leave":
            self._left = True
        elif kind == "ask":
            self._send(("here",))
        elif kind == "kill":
            self._kill(lambda shim: shim.ident == arguments[0])
        elif kind == "kill_claim":
            self._kill(lambda shim: shim.claim == arguments[0])
        return True

    def _run(self, ident: int, claim: str, descriptors: list[int], limits: RLimits) -> None:
        if self._deadlines.get(claim, 0.0) <= _now():
            self._send(("refused", ident, 0))
        else:
            self._give(ident, claim, descriptors, limits)
        for descriptor in descriptors:
            os.close(descriptor)

    def _give(self, ident: int, claim: str, descriptors: list[int], limits: RLimits) -> None:
        """Gives a command to a shim that rests, the one that began to last, or to a new one."""
        resting = [shim for shim in self._shims.values() if _rests(shim) and shim.limits == limits]
        for shim in sorted(resting, key=lambda shim: -shim.rests_until):
            if shim.take(ident, claim, descriptors):
                return
        self._fork_shim(ident, claim, descriptors, limits)

    def _fork_shim(self, ident: int, claim: str, descriptors: list[int], limits: RLimits) -> None:
        supervisor_pid = os.getpid()
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as full:
            self._send(("refused", ident, full.errno or errno.EMFILE))
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, (KILL_SIGNAL,))
        try:
            pid = os.fork()
        except OSError as full:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (KILL_SIGNAL,))
            ours.close()
            theirs.close()
            self._send(("refused", ident, full.errno or errno.EAGAIN))
            return
        if pid == 0:
            ours.close()
            self._become_shim(supervisor_pid, theirs, descriptors, limits)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (KILL_SIGNAL,))
        theirs.close()
        self._shims[pid] = _Shim(ident, claim, limits, ours)
        self._poll.register(ours, select.POLLIN)

    def _become_shim(
        self,
        supervisor_pid: int,
        orders: socket.socket,
        descriptors: list[int],
        limits: RLimits,
    ) -> None:
        """In the fork: lets go of what is the supervisor's and never returns."""
        code = 2
        try:
            assert self._worker is not None
            self._worker.close()  # else the worker could not see the supervisor's death
            if self._burial is not None:
                self._burial.close()
            os.close(self._timer)
            for shim in self._shims.values():
                shim.dismiss()
            code = run_shim(supervisor_pid, orders, Descriptors(*descriptors), limits)
        except BaseException as broken:
            os.write(2, f"dendro supervisor: shim failed: {broken!r}\n".encode())
        finally:
            os._exit(code)

    def _hear_shim(self, descriptor: int) -> None:
        """A shim has said that nothing of its command is left, or it has ended."""
        for shim in self._shims.values():
            if shim.orders is not None and shim.orders.fileno() == descriptor:
                shim.rests_until = _now() + _REST_S
                if not shim.hear() or (_rests(shim) and self._has_enough()):
                    self._dismiss(shim)
                return

    def _has_enough(self) -> bool:
        return sum(map(_rests, self._shims.values())) > _MOST_RESTING

    def _dismiss(self, shim: _Shim) -> None:
        if shim.orders is not None:
            self._poll.unregister(shim.orders)
            shim.dismiss()

    def _kill(self, wanted: object) -> None:
        assert callable(wanted)
        for pid, shim in self._shims.items():
            if shim.force_at is None and wanted(shim):
                os.kill(pid, KILL_SIGNAL)
                shim.force_at = _now() + _ESCALATE_S

    def _lose_worker(self) -> None:
        assert self._worker is not None
        self._worker.close()
        self._worker = None
        self._kill(lambda _: True)

    def _reap(self) -> None:
        """Reaps shims, and orphans that fell to the supervisor; sweeps after a shim that did not finish."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            shim = self._shims.pop(pid, None)
            if shim is None:
                continue
            shim.hear()
            self._dismiss(shim)
            if shim.ident is not None or status != 0:
                self._send(("swept", shim.ident or 0, self._sweep(), pid))

    def _sweep(self) -> int:
        """Kills every descendant that no living shim holds; returns how many are left."""
        give_up_at = _now() + KILL_PATIENCE_S
        spared = frozenset(self._shims)
        while strays := descendants_of(os.getpid(), spared):
            if kill_all(strays) == len(strays) or _now() > give_up_at:
                return len(strays)
            time.sleep(0.005)  # a dying process is still listed for a moment
        return 0

    def _bury(self) -> None:
        """Says that the worker has died and nothing runs that it started, if both are proved.

        It forks nothing any more: it takes no packets. The end of the socket proves nothing, since a worker
        that lives may have closed it.
        """
        if self._burial is None or self._left:
            return
        until = _now() + _END_S
        if self._worker_has_ended(until) and self._writers_have_ended(until) and self._is_alone(until):
            self._say_the_word()

    def _worker_has_ended(self, until: float) -> bool:
        assert self._burial is not None
        return _comes_to_its_end(self._burial.worker, select.POLLIN, until)

    def _writers_have_ended(self, until: float) -> bool:
        """Whether the worker's children that are not this process's have ended, as far as they write."""
        assert self._burial is not None
        # Not what is written: a child that reads what agents wrote may have been made to write there.
        return _comes_to_its_end(self._burial.lifeline, 0, until)

    def _is_alone(self, until: float) -> bool:
        """Whether the kernel says that no child is left, and so no descendant: orphans fall to this process.

        Nor is anything left in a cgroup of a command.
        """
        assert self._burial is not None
        while not self._is_childless():
            if self._sweep() or _now() > until:
                return False
            time.sleep(_ALONE_S)  # a process that was killed is a child for a moment more
        own = f"dendro-{os.getpid()}-"
        return not any(has_process_below(parent, own) for parent in self._burial.cgroups)

    def _is_childless(self) -> bool:
        self._reap()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        return False

    def _say_the_word(self) -> None:
        assert self._burial is not None
        with suppress(OSError):  # nobody waits: leases run out instead
            os.write(self._burial.word, BURIED)

    def _enforce(self) -> None:
        """Ends claims whose deadline has passed and shims that do not end; sets the timer for the next."""
        now = _now()
        for claim in [c for c, deadline in self._deadlines.items() if deadline <= now]:
            del self._deadlines[claim]
            self._kill(lambda shim, ended=claim: shim.claim == ended)
        upcoming = list(self._deadlines.values())
        for pid, shim in self._shims.items():
            if _rests(shim):
                if shim.rests_until <= now:
                    self._dismiss(shim)
                else:
                    upcoming.append(shim.rests_until)
            if shim.force_at is None:
                continue
            if shim.force_at <= now:
                os.kill(pid, signal.SIGKILL)
            else:
                upcoming.append(shim.force_at)
        self._arm(min(upcoming, default=None))

    def _arm(self, at: float | None) -> None:
        """Wakes up then."""
        kernel.arm(self._timer, at)

    def _read_timer(self) -> None:
        with suppress(BlockingIOError):  # it may have been set anew since it fired
            os.read(self._timer, 8)

    def _send(self, message: tuple[str | int, ...]) -> None:
        if self._worker is not None:
            # A worker that is stopped or gone does not hear; its own end tells it the rest.
            with suppress(OSError):
                self._worker.send(marshal.dumps(message), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _rests(shim: _Shim) -> bool:
    return shim.ident is None and shim.orders is not None


def _comes_to_its_end(descriptor: int, events: int, until: float) -> bool:
    """Waits until a pidfd's process has ended, or a pipe has no writer; whether it did in time."""
    poll = select.poll()
    poll.register(descriptor, events)
    while (left_s := until - _now()) > 0.0:
        if poll.poll(left_s * 1000 + 1):
            return True
    return False


def _receive(worker: socket.socket) -> tuple[bytes, list[int]]:
    """Receives a packet and its descriptors, closed on exec.

    Not `socket.recv_fds`, which drops its flags: each command would inherit the channel that reports
    the command's own end.
    """
    space = socket.CMSG_LEN(_MOST_DESCRIPTORS * 4)
    data, ancillary, _, _ = worker.recvmsg(_PACKET, space, socket.MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for _, _, body in ancillary:
        descriptors += memoryview(body)[: len(body) // 4 * 4].cast("i").tolist()
    return data, descriptors


def _now() -> float:
    return time.clock_gettime(kernel.CLOCK_BOOTTIME)


def main(descriptor: int, burial: Burial | None = None) -> None:
    """Serves the worker at the other end of the inherited socket."""
    os.chdir("/")
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    supervisor = _Supervisor(socket.socket(fileno=descriptor), burial)
    # No collection ever: a collector that walks the heap in a fork copies every page of it.
    gc.collect()
    gc.disable()
    gc.freeze()
    supervisor.serve()
    # To take everything to pieces costs as much as to serve a command.
    os._exit(0)


# ── forked command ────────────────────────────────────────────────────────────────────────────────
# The start of a command: its session, cgroups, descriptors and confinement, then its exec.
#
# A command that a wrapper confines, or nobody, is spawned. One that has to confine itself is a fork,
# which never runs half confined: whatever fails before the exec ends it, and the shim hears what it was
# and the errno.
#
# Or the fork that writes a patch, which needs no exec: what it runs is the product's own, so it goes
# without a sandbox and writes what was checked. Loaded into the supervisor: only light imports.


KILL_SIGNAL = signal.SIGUSR1
"""The signal that makes a shim kill everything; no terminal and no service manager sends it."""
IGNORED_SIGNALS = (
    *(signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGTSTP),
    *(signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGUSR2, signal.SIGALRM),
)
_TAKEN_SIGNALS = (*IGNORED_SIGNALS, signal.SIGCHLD, KILL_SIGNAL)
_SECCOMP_FD = 3
_OPTIONS_FD = 4


def start(
    spec: dict[str, Any], stdout: int, stderr: int, ruleset: int | None, cgroups: list[Cgroup]
) -> tuple[int, str]:
    """Starts the command; its pid, or -1 and the line that says why it did not start."""
    program = _locate(spec["program"], spec["path"], spec["cwd"])
    if isinstance(program, int):
        return -1, f"failed program {program}"
    comes_back = all(cgroup.has_way_back for cgroup in cgroups)
    if not comes_back or ruleset is not None or not _confines_nothing(spec["confine"]):
        return _fork(spec, program, (stdout, stderr, ruleset), cgroups)
    return _spawn(spec, program, (stdout, stderr), cgroups)


def _confines_nothing(confine: dict[str, Any]) -> bool:
    """Whether the child itself has nothing to do before its exec: a wrapper confines, or nobody."""
    return not confine["mounts"] and not confine["seccomp"] and confine["keep_capabilities"]


def _spawn(
    spec: dict[str, Any], program: str, outputs: tuple[int, int], cgroups: list[Cgroup]
) -> tuple[int, str]:
    """Starts it without a copy of this process, which goes into the command's cgroups for the moment.

    A fork copies the tables of all pages, and each page that either of the two then writes.
    """
    opened: list[int] = []
    stage = "preparation"
    try:
        actions = _own_descriptors(spec, *outputs, opened)
        stage = "cwd"
        os.chdir(spec["cwd"])
        stage = "preparation"
        for cgroup in cgroups:
            cgroup.enter()
        stage = "program"
        argv = spec["argv"]
        return os.posix_spawn(
            _locate_launcher(argv, program, spec),
            argv,
            spec["env"],
            file_actions=actions,
            setsid=True,
            setsigdef=_TAKEN_SIGNALS,
        ), ""
    except (OSError, ValueError) as refused:
        # What exec cannot even be asked, a NUL byte in a word, is a ValueError without an errno.
        return -1, f"failed {stage} {getattr(refused, 'errno', None) or errno.EINVAL}"
    finally:
        for cgroup in cgroups:
            cgroup.leave()
        os.chdir("/")
        for descriptor in opened:
            os.close(descriptor)


def _own_descriptors(
    spec: dict[str, Any], stdout: int, stderr: int, opened: list[int]
) -> list[tuple[int, int, int]]:
    """The file actions that give a command its descriptors; those that are made for it go into `opened`."""
    given = {0: stdout, 1: stdout, 2: stderr}
    if not spec["tty"]:
        given[0] = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        opened.append(given[0])
    for number, make in ((_SECCOMP_FD, _filter_pipe), (_OPTIONS_FD, _memory_file)):
        made = make(spec["seccomp_on_fd" if number == _SECCOMP_FD else "options_on_fd"])
        if made is not None:
            given[number] = made
            opened.append(made)
    return [(os.POSIX_SPAWN_DUP2, source, number) for number, source in given.items()]


def _fork(
    spec: dict[str, Any], program: str, descriptors: tuple[int, int, int | None], cgroups: list[Cgroup]
) -> tuple[int, str]:
    """Starts it by a fork of this process that confines itself."""
    news_in, news_out = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
    except OSError as refused:
        os.close(news_in)
        os.close(news_out)
        return -1, f"failed fork {refused.errno}"
    if pid == 0:
        _become_command(spec, program, cgroups, (*descriptors, news_out))
    os.close(news_out)
    failure = os.read(news_in, 256).decode()
    os.close(news_in)
    return pid, failure


def start_writer(job: writer.Job, stdout: int) -> tuple[int, str]:
    """Forks the writer of a patch, whose outcome goes to `stdout`; answers as `start` does."""
    shim_pid = os.getpid()
    try:
        pid = os.fork()
    except OSError as refused:
        return -1, f"failed fork {refused.errno}"
    if pid == 0:
        _become_writer(shim_pid, job, stdout)
    return pid, ""


def _become_writer(shim_pid: int, job: writer.Job, stdout: int) -> None:
    """In the fork: writes, reports the outcome, and exits; the writer does not outlive its shim."""
    code = 1
    try:
        _take_signals()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == shim_pid:
            # A patch holds each of its folders open, and may have thousands.
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            os.write(stdout, marshal.dumps(writer.carry_out(job)))
            code = 0
    except BaseException as broken:
        os.write(2, f"dendro supervisor: a patch's writer failed: {broken!r}\n".encode())
    finally:
        os._exit(code)


def _become_command(
    spec: dict[str, Any], program: str, cgroups: list[Cgroup], descriptors: tuple[int, int, int | None, int]
) -> None:
    """In the fork: becomes the command, or reports why not and exits; never runs it half confined."""
    stdout, stderr, ruleset, news = (None if fd is None else _high(fd) for fd in descriptors)
    assert stdout is not None
    assert stderr is not None
    assert news is not None
    stage = "preparation"
    try:
        _prepare(spec, stdout, stderr, cgroups)
        stage = "confinement"
        confine.confine_self(**spec["confine"], ruleset=ruleset)
        # Only now: a folder entered before would lie on the mount from before, which is read-only.
        stage = "cwd"
        os.chdir(spec["cwd"])
        stage = "program"
        argv = spec["argv"]
        os.execve(_locate_launcher(argv, program, spec), argv, spec["env"])
    except BaseException as refused:
        # What exec cannot even be asked, a NUL byte in a word, is a ValueError without an errno.
        os.write(news, f"failed {stage} {getattr(refused, 'errno', None) or errno.EINVAL}".encode())
    finally:
        os._exit(127)


def _high(descriptor: int) -> int:
    """A copy above the numbers that the command's own descriptors are put on."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)


def _lifted(descriptor: int) -> int:
    """The descriptor above those numbers."""
    lifted = _high(descriptor)
    os.close(descriptor)
    return lifted


def _locate(program: str, path: str, cwd: str) -> str | int:
    """The program's file, found as execvp does it, or the errno that execvp would give.

    Looked up before any wrapper starts: otherwise a missing program is the wrapper's exit
    code, indistinguishable from the command's own.
    """
    if not os.path.isdir(cwd):
        return program  # the change of directory will say so
    candidates = [program] if "/" in program else [f"{folder or '.'}/{program}" for folder in path.split(":")]
    answer = errno.ENOENT
    for candidate in candidates:
        full = os.path.join(cwd, candidate)
        if not os.path.isfile(full):
            continue
        if os.access(full, os.X_OK):
            return full
        answer = errno.EACCES
    return answer


def _locate_launcher(argv: list[str], program: str, spec: dict[str, Any]) -> str:
    """A wrapper is named by its full path; a bare command runs under the file found for it."""
    return program if argv[0] == spec["program"] else argv[0]


def _prepare(spec: dict[str, Any], stdout: int, stderr: int, cgroups: list[Cgroup]) -> None:
    """A session of its own, the cgroups, the three descriptors, the signals as a shell expects them."""
    os.setsid()
    for cgroup in cgroups:
        cgroup.enter()
    filter_fd = _filter_pipe(spec["seccomp_on_fd"])
    options_fd = _memory_file(spec["options_on_fd"])
    os.dup2(stdout if spec["tty"] else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    if filter_fd is not None:
        os.dup2(filter_fd, _SECCOMP_FD)
    if options_fd is not None:
        os.dup2(options_fd, _OPTIONS_FD)
    _take_signals()


def _take_signals() -> None:
    """Signals as a program expects them at its start."""
    signal.set_wakeup_fd(-1)
    for number in _TAKEN_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _filter_pipe(program: bytes) -> int | None:
    """A pipe that holds the filter: it fits the pipe's buffer, so nobody has to write while bwrap reads."""
    if not program:
        return None
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.write(writing, program)
    os.close(writing)
    return _lifted(reading)


def _memory_file(content: bytes) -> int | None:
    """A file in memory: an environment may be larger than a pipe's buffer."""
    if not content:
        return None
    descriptor = os.memfd_create("dendro-options", os.MFD_CLOEXEC)
    written = 0
    while written < len(content):
        written += os.pwrite(descriptor, content[written:], written)
    return _lifted(descriptor)


# ── descendants ───────────────────────────────────────────────────────────────────────────────────
# Finding and killing every descendant of a process, those that called setsid included.
#
# Works on the parent links in /proc: an orphan's parent is the nearest living subreaper above it, so
# nothing that a command started can leave the tree of its shim. Loaded into the supervisor, which forks
# per command: only light imports.


def descendants_of(root: int, spared: frozenset[int] = frozenset()) -> list[int]:
    """The living processes below `root`, without `spared` and what is below those; zombies are left out."""
    children = _children_by_parent()
    found: list[int] = []
    frontier = [root]
    while frontier:
        for pid, state in children.get(frontier.pop(), ()):
            if pid in spared:
                continue
            frontier.append(pid)
            if state not in "ZX":
                found.append(pid)
    return found


def kill_all(pids: list[int]) -> int:
    """Kills the processes; how many could not be, because they belong to another user.

    Stops them all first: a stopped process cannot fork, so a fork bomb that is met half-way
    through the list finds no brother left to replace what was killed.
    """
    for pid in pids:
        _send(pid, signal.SIGSTOP)
    return sum(not _send(pid, signal.SIGKILL) for pid in pids)


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def _children_by_parent() -> dict[int, list[tuple[int, str]]]:
    children: dict[int, list[tuple[int, str]]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                stat = file.read()
        except OSError:
            continue  # gone between the listing and the reading
        # The name in parentheses may hold blanks and parentheses itself: count from its end.
        state, parent = stat[stat.rindex(b")") + 2 :].split(b" ", 2)[:2]
        children.setdefault(int(parent), []).append((int(name), state.decode()))
    return children
