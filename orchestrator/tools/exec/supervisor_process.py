"""The supervisor's process: forks a shim per command, and ends commands when their claim has ended.

    worker ── SEQPACKET ── supervisor ── fork ── shim ── fork ── bwrap or command
       └──────── per command: output pipes, channel ──┘

Authority over life: the claim's deadline, on CLOCK_BOOTTIME, as the worker wrote it last. The
worker's death closes the socket (all claims end at once); its stop lets the deadlines pass.
If a shim is killed by a command that is not confined, its orphans fall to the supervisor, itself
a subreaper, which kills them. If the supervisor is killed, each shim gets PDEATHSIG and kills
its command. Only both deaths at once, which takes an unconfined command, would leave orphans.

From the worker:
    run, id, claim            with `Descriptors`
    extend, claim, deadline
    kill, id
    kill_claim, claim
    ask                       a liveness check
To the worker:
    ready
    here                      the answer to `ask`
    swept, id, survivors      a shim ended without proof; what it left behind was killed
    refused, id, errno        the claim has no right to run (0), or the fork failed

Only light imports: the size of this process is what a command's start costs.
"""

from __future__ import annotations

import errno
import gc
import marshal
import os
import select
import signal
import socket
import time
from contextlib import suppress

from orchestrator.sandbox import kernel
from orchestrator.tools.exec.fork import KILL_SIGNAL, descendants_of, kill_all
from orchestrator.tools.exec.shim import KILL_PATIENCE_S, Descriptors, run_shim, shrug_off_signals

_PACKET = 64 * 1024
_MOST_DESCRIPTORS = 5
_ESCALATE_S = KILL_PATIENCE_S + 2.0


class _Shim:
    """A running shim, as the supervisor knows it."""

    __slots__ = ("claim", "force_at", "ident")

    def __init__(self, ident: int, claim: str) -> None:
        self.ident = ident
        self.claim = claim
        self.force_at: float | None = None
        """The time at which a shim that got the kill signal and has not ended is killed itself."""


class _Supervisor:
    __slots__ = ("_deadlines", "_shims", "_timer", "_wakeup", "_worker")

    def __init__(self, worker: socket.socket) -> None:
        self._worker: socket.socket | None = worker
        self._shims: dict[int, _Shim] = {}
        self._deadlines: dict[str, float] = {}
        self._timer = kernel.boottime_timer()
        self._wakeup = shrug_off_signals()

    def serve(self) -> None:
        """Until the worker is gone and every shim with it."""
        poll = select.poll()
        for descriptor in (self._worker, self._timer, self._wakeup):
            assert descriptor is not None
            poll.register(descriptor, select.POLLIN)
        self._send(("ready",))
        while self._worker is not None or self._shims:
            for descriptor, _ in poll.poll():
                if descriptor == self._wakeup:
                    os.read(self._wakeup, 4096)
                    self._reap()
                elif descriptor == self._timer:
                    self._read_timer()
                elif not self._serve_packet():
                    poll.unregister(descriptor)
                    self._lose_worker()
            self._enforce()
        self._sweep()

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
            ident, claim = arguments
            self._run(ident, claim, descriptors)
        elif kind == "extend":
            claim, deadline = arguments
            self._deadlines[claim] = deadline
        elif kind == "ask":
            self._send(("here",))
        elif kind == "kill":
            self._kill(lambda shim: shim.ident == arguments[0])
        elif kind == "kill_claim":
            self._kill(lambda shim: shim.claim == arguments[0])
        return True

    def _run(self, ident: int, claim: str, descriptors: list[int]) -> None:
        if self._deadlines.get(claim, 0.0) <= _now():
            self._send(("refused", ident, 0))
        else:
            self._fork_shim(ident, claim, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def _fork_shim(self, ident: int, claim: str, descriptors: list[int]) -> None:
        supervisor_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as full:
            self._send(("refused", ident, full.errno or errno.EAGAIN))
            return
        if pid == 0:
            self._become_shim(supervisor_pid, descriptors)
        self._shims[pid] = _Shim(ident, claim)

    def _become_shim(self, supervisor_pid: int, descriptors: list[int]) -> None:
        """In the fork: lets go of what is the supervisor's and never returns."""
        code = 2
        try:
            assert self._worker is not None
            self._worker.close()  # else the worker could not see the supervisor's death
            os.close(self._timer)
            code = run_shim(supervisor_pid, Descriptors(*descriptors))
        except BaseException as broken:
            os.write(2, f"dendro supervisor: shim failed: {broken!r}\n".encode())
        finally:
            os._exit(code)

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
            if shim is not None and status != 0:
                self._send(("swept", shim.ident, self._sweep()))

    def _sweep(self) -> int:
        """Kills every descendant that no living shim holds; returns how many are left."""
        give_up_at = _now() + KILL_PATIENCE_S
        spared = frozenset(self._shims)
        while strays := descendants_of(os.getpid(), spared):
            if kill_all(strays) == len(strays) or _now() > give_up_at:
                return len(strays)
            time.sleep(0.005)  # a dying process is still listed for a moment
        return 0

    def _enforce(self) -> None:
        """Ends claims whose deadline has passed and shims that do not end; sets the timer for the next."""
        now = _now()
        for claim in [c for c, deadline in self._deadlines.items() if deadline <= now]:
            del self._deadlines[claim]
            self._kill(lambda shim, ended=claim: shim.claim == ended)
        upcoming = list(self._deadlines.values())
        for pid, shim in self._shims.items():
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


def main(descriptor: int) -> None:
    """Serves the worker at the other end of the inherited socket."""
    os.chdir("/")
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    supervisor = _Supervisor(socket.socket(fileno=descriptor))
    # No collection ever: a collector that walks the heap in a fork copies every page of it.
    gc.collect()
    gc.disable()
    gc.freeze()
    supervisor.serve()
