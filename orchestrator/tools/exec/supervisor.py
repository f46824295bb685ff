"""The worker's side of the supervisor: starts it, runs commands under it, extends and ends claims.

A command lives no longer than the right to run it, and neither does the writer of a patch:
`extend` writes the claim's deadline, the supervisor enforces it by its own clock. `run`, `write`
and `kill` return only when no process of what they are about is left.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import marshal
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from orchestrator.boottime import boottime
from orchestrator.core.frozen import record
from orchestrator.sandbox.launch import Launch
from orchestrator.sandbox.limits import Limits, ProcessAllowance, memory_settings
from orchestrator.sandbox.probe import Preference, SandboxSupport, choose
from orchestrator.tools.exec.command import Command, Finished, Grip, OutputSink, Written
from orchestrator.tools.exec.held_objects import remove_cgroup
from orchestrator.tools.exec.running_command import Exit, Running

if TYPE_CHECKING:
    from orchestrator.tools.patch.writer import Job

log = logging.getLogger("dendro.tools")

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[3])
# Behind the standard library, so that no distribution's module can take the place of one of its own.
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from orchestrator.tools.exec.supervisor_process import Burial, main; "
    "it = list(map(int, sys.argv[2:6])); main(it[0], Burial(*it[1:], sys.argv[6:]) if it[1:] else None)"
)
_OWN_SESSION = (
    "import fcntl, os, sys, termios; os.getsid(0) == os.getpid() or os.setsid(); "
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Takes the terminal inside of the sandbox: a wrapper outside of it would die of the first Ctrl-C."""
_UNCONFINED: dict[str, Any] = {
    "timeout_s": None,
    "placeholders": [],
    "confine": {"mounts": []},
    "cgroups": [],
}
"""Values of a command's spec that confine nothing and hold nothing: a patch runs with them."""
_OUT_OF_MEMORY = (
    b"memoryerror",
    b"cannot allocate memory",
    b"out of memory",
    b"bad_alloc",
    b"memory exhausted",
)
OWN_SESSION = (os.path.realpath(sys.executable), "-I", "-S", "-c", _OWN_SESSION)
"""The words before a command that gets a terminal."""
_START_S = 10.0
_CLOSE_S = 5.0
"""Patience with a process that ends. All that it kept has been proved dead, or is killed by its shims."""
_LEAVE_S = 2.0
"""Patience with a process that takes nothing, while it is to hear that its worker leaves."""
_FORGET_S = 1.0
_LEAVES_S = 0.05
"""Time for which a command without outputs may still be on its way out: bubblewrap's own last process is,
when its first one has told how the command ended."""
_QUESTIONS = 5
_BUFFER = 4096
"""Bytes of messages that nobody has read yet: room for some ten. The supervisor takes one after the other and
forks for most: a deadline behind two hundred of them would come seconds late."""


class SupervisorLost(RuntimeError):
    """No supervisor process runs and none can be started, or it has just ended: nothing was begun."""


class Bury(Protocol):
    """The worker's part in giving its sessions to others when it has died."""

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """A pidfd of the worker, the reading end of its children's lifeline, and a pipe for the word."""
        ...

    def forbid(self) -> None:
        """Leaves all sessions to their leases from now on: something runs of which no supervisor knows."""
        ...


@record
class SupervisorConfig:
    """The supervisor's configuration: the machine's sandbox support, and how long to wait for output."""

    support: SandboxSupport
    prefer: Preference = "auto"
    quiet_s: float = 0.2
    """After the main process has ended: how long no output means that none will come."""
    grace_s: float = 2.0
    """The longest wait for a background process that goes on writing."""
    silence_s: float = 8.0
    """A supervisor process that is silent for so long is killed, and its children with it: it would let
    commands live on behind their deadlines. Longer than it may take to kill."""
    burial: Bury | None = None
    """Without it sessions of a worker that has died wait for their leases."""


class Supervisor:
    """A worker's supervisor process and the commands that run under it.

    A process that died (the kernel may choose it when memory is short) is replaced when the next command
    or patch needs one. What it kept is killed by its shims: it cannot be adopted.
    """

    def __init__(self, config: SupervisorConfig) -> None:
        self._config = config
        self._process: subprocess.Popen[bytes]
        self._socket: socket.socket
        self._loop = asyncio.get_running_loop()
        self._idents = itertools.count(1)
        self._running: dict[int, tuple[str, Running]] = {}
        self._allowance = ProcessAllowance(os.getuid())
        self._alive = False
        self._closed = False
        self.killed: Callable[[str], None] | None = None
        """Hears of each command that was killed, and why: `timeout` or `killed`."""
        self._starting = asyncio.Lock()
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        """Messages that wait for room in the socket, with their descriptors."""
        self._overtaking: dict[str, bytes] = {}
        """Messages that go before those: the last deadline of each claim, and the last question."""
        self._posting = threading.Lock()
        """Guards what waits, so that messages arrive as they were sent."""
        self._sent = asyncio.Event()
        """All that waited for room was sent, or nobody is there to take it."""
        self._rights = threading.Lock()
        """Guards the fields below: claims are extended by the thread that renews them."""
        self._deadlines: dict[str, float] = {}
        """Of claims that are over, too, until some time after they have passed."""
        self._sent_deadlines: set[str] = set()
        """The claims whose deadlines the process has to know: they have run something."""
        self._forget_at = 0.0
        self._asking = False
        self._unanswered = 0
        """Questions in a row, each asked when there had been time for an answer to the one before."""

    @classmethod
    async def start(cls, config: SupervisorConfig) -> Self:
        """Starts the process and waits until it serves."""
        supervisor = cls(config)
        await supervisor._start()
        return supervisor

    async def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        try:
            with theirs:
                process = _process(theirs, self._config)
            await self._hello(process, ours)
        except BaseException:
            ours.close()
            raise
        with self._rights:
            # Nobody has told this one of any claim.
            self._sent_deadlines.clear()
            self._process, self._socket, self._alive = process, ours, True
            self._unanswered = 0
        self._loop.add_reader(ours, self._read)

    async def _hello(self, process: subprocess.Popen[bytes], ours: socket.socket) -> None:
        try:
            async with asyncio.timeout(_START_S):
                hello = await self._loop.sock_recv(ours, 4096)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if not hello:
            raise SupervisorLost(f"the supervisor ended at its start with {process.wait()}")

    async def _revived(self) -> None:
        """Makes sure that there is a process; raises `SupervisorLost` if there cannot be one."""
        async with self._starting:
            if self._alive:
                return
            if self._closed:
                raise SupervisorLost("the supervisor was closed: the worker leaves")
            log.error("supervisor %d ended with %d: another one is started", self.pid, await self._gone())
            try:
                await self._start()
            except (OSError, TimeoutError) as error:
                raise SupervisorLost(
                    f"the supervisor is gone, and no other could be started: {error}"
                ) from error

    @property
    def alive(self) -> bool:
        """Whether the supervisor's process is there; without it nothing may be started."""
        return self._alive

    @property
    def pid(self) -> int:
        """The supervisor's process id, for logs and diagnosis."""
        return self._process.pid

    def extend(self, claim: str, deadline_boottime: float) -> None:
        """Writes the claim's deadline, in seconds of CLOCK_BOOTTIME; the last one written counts.

        May be called from any thread and never blocks. If the supervisor cannot take it, the old
        deadline remains: the commands die early rather than late.
        """
        with self._rights:
            self._deadlines[claim] = deadline_boottime
            if claim in self._sent_deadlines:
                self._send("extend", claim, deadline_boottime, overtaking=claim)
            now = boottime()
            if now >= self._forget_at:
                # Not each time: at hundreds of claims a second they are thousands.
                self._forget_at = now + _FORGET_S
                self._deadlines = {name: ends for name, ends in self._deadlines.items() if ends > now}
                self._sent_deadlines &= self._deadlines.keys()

    def _send_deadline(self, claim: str) -> None:
        """The process hears of a claim with its first command or patch: most claims never run one."""
        with self._rights:
            if claim not in self._sent_deadlines and claim in self._deadlines:
                self._sent_deadlines.add(claim)
                self._send("extend", claim, self._deadlines[claim], overtaking=claim)

    async def run(self, command: Command, output: OutputSink, grip: Grip | None = None) -> Finished:
        """Runs a command to its end and the end of everything that it started; `grip` holds it meanwhile.

        Cancelling kills it and waits for the proof. Raises `NoConfinement` if it cannot be
        confined as its policy asks, `SupervisorLost` if there is no supervisor.
        """
        if not command.argv:
            return Finished(exit_code=-1, error="the command is empty")
        if (unfit := _unfit_variable(command.env)) is not None:
            return Finished(
                exit_code=-1, error=f"the variable {unfit!r} cannot be set: no program can have it"
            )
        began = self._loop.time()
        running = Running(output, self._loop, tty=command.tty)
        try:
            await self._run(command.claim, running, partial(self._launch, command), grip)
        finally:
            self._report(running)
        ended = finished(running, self._loop.time() - began)
        return replace(ended, memory_limit=self._passed(command.limits, running, ended))

    def _report(self, running: Running) -> None:
        end = running.exit
        if self.killed is not None and end is not None and end.why in ("timeout", "killed"):
            self.killed(end.why)

    def _passed(self, limits: Limits, running: Running, ended: Finished) -> int | None:
        """The memory limit that it has passed: by the kernel's word, or, under an rlimit, by its own."""
        if self._config.support.memory_cgroup is not None:
            return limits.memory_bytes if running.ran_out_of_memory else None
        said = ended.stderr.lower() if ended.exit_code else b""
        return limits.memory_bytes if any(words in said for words in _OUT_OF_MEMORY) else None

    async def write(self, claim: str, job: Job) -> Written:
        """Carries out a patch's job under the claim, as `run` does a command.

        Cancelling kills its writer wherever it is, and waits for the proof.
        """
        running = Running(lambda *_: None, self._loop)
        await self._run(claim, running, partial(self._launch_writer, job))
        return written(running)

    async def _run(
        self,
        claim: str,
        running: Running,
        launch: Callable[[int, Running], None],
        grip: Grip | None = None,
    ) -> None:
        if not self._alive:
            await self._revived()
        ident = next(self._idents)
        self._running[ident] = (claim, running)
        if not self._asking:
            self._asking = True
            self._loop.call_later(self._config.silence_s / _QUESTIONS, self._ask)
        try:
            launch(ident, running)
            if grip is not None:
                terminal = running.terminal
                grip.bind(lambda: self._send("kill", ident), terminal.write if terminal is not None else None)
            await self._see_through(ident, running)
        finally:
            running.close()
            del self._running[ident]

    def _ask(self) -> None:
        """Asks the process whether it is still there, again and again while anything runs under it.

        Counts questions instead of time: a worker that was stopped itself has received no answer either.
        """
        self._asking = self._alive and bool(self._running)
        if not self._asking:
            return
        if self._unanswered >= _QUESTIONS:
            log.error("supervisor %d does not answer: it is killed, and what it keeps", self.pid)
            self._process.kill()
            self._asking = False
            return
        self._unanswered += 1
        self._send("ask", overtaking="")
        self._loop.call_later(self._config.silence_s / _QUESTIONS, self._ask)

    async def kill(self, claim: str) -> None:
        """Kills all commands of the claim; returns when they are proved dead."""
        mine = [running for owner, running in self._running.values() if owner == claim]
        self._send("kill_claim", claim)
        for running in mine:
            await running.gone.wait()

    async def close(self) -> None:
        """Kills all commands and ends the process."""
        self._closed = True
        for claim in {claim for claim, _ in self._running.values()}:
            await self.kill(claim)
        async with self._starting:
            if self._alive:
                await self._leave()
            self._lose()
            await self._gone()

    async def _leave(self) -> None:
        """Says that the worker leaves in good order, and waits until that is on its way.

        A process that does not hear it waits for the worker's death, to give its sessions to others, as long
        as the worker waits for the end of that process.
        """
        self._sent.clear()
        self._send("leave")
        if self._unsent:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LEAVE_S):
                    await self._sent.wait()

    async def _gone(self) -> int:
        """The exit code of a process that was told to end, or has ended."""
        try:
            return await asyncio.to_thread(self._process.wait, _CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return await asyncio.to_thread(self._process.wait)

    def _launch(self, command: Command, ident: int, running: Running) -> None:
        launcher = choose(self._config.support, command.confinement, self._config.prefer)
        argv = (*OWN_SESSION, *command.argv) if command.tty else command.argv
        launch = launcher.launch(argv, command.env, command.cwd, command.confinement)
        descriptors = [] if launch.ruleset is None else [launch.ruleset]
        self._hand_over(ident, running, self._spec(command, launch), descriptors, self._rlimits(command))

    def _launch_writer(self, job: Job, ident: int, running: Running) -> None:
        self._hand_over(ident, running, {**_UNCONFINED, "job": job}, [])

    def _hand_over(
        self,
        ident: int,
        running: Running,
        spec: dict[str, Any],
        descriptors: list[int],
        rlimits: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """Sends everything in one message, so that no half of it can arrive. Closes the descriptors."""
        try:
            descriptors[:0] = running.open()
            descriptors.insert(0, _memory_file(marshal.dumps(spec)))
            claim = self._running[ident][0]
            self._send_deadline(claim)
            self._send("run", ident, claim, rlimits, descriptors=descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    async def _see_through(self, ident: int, running: Running) -> None:
        """Waits for the end, then for the output; whatever is left then is killed."""
        last: asyncio.TimerHandle | None = None
        try:
            await running.ended.wait()
            if not running.gone.is_set():
                closed = await running.drain(self._config.quiet_s, self._config.grace_s)
                last = self._loop.call_later(_LEAVES_S if closed else 0.0, self._send, "kill", ident)
            await running.gone.wait()
        except asyncio.CancelledError:
            self._send("kill", ident)
            await _insist(running.gone)
            raise
        finally:
            if last is not None:
                last.cancel()
        if running.exit is not None:
            await running.drain(self._config.quiet_s, self._config.quiet_s)

    def _cgroups(self, limits: Limits) -> list[tuple[str, list[tuple[str, str]]]]:
        """Where the command gets its cgroups, each with its settings; in version 2 they are one."""
        support, made = self._config.support, dict[str, list[tuple[str, str]]]()
        if limits.processes is not None and support.pids_cgroup is not None:
            made.setdefault(support.pids_cgroup, []).append(("pids.max", str(limits.processes)))
        if limits.memory_bytes is not None and support.memory_cgroup is not None:
            made.setdefault(support.memory_cgroup, []).extend(memory_settings(limits.memory_bytes))
        return [*made.items()]

    def _sweep_cgroups(self, shim: int) -> None:
        for parent in {self._config.support.pids_cgroup, self._config.support.memory_cgroup} - {None}:
            remove_cgroup(f"{parent}/dendro-{self.pid}-{shim}")

    def _spec(self, command: Command, launch: Launch) -> dict[str, Any]:
        return {
            "program": command.argv[0],
            "argv": list(launch.argv),
            "tty": command.tty,
            "cwd": str(command.cwd),
            "path": command.env.get("PATH", os.defpath),
            "env": dict(launch.env),
            "timeout_s": command.timeout_s,
            "placeholders": list(launch.placeholders),
            "seccomp_on_fd": launch.seccomp_on_fd,
            "options_on_fd": launch.options_on_fd,
            "confine": {
                "mounts": launch.mounts,
                "hidden": launch.hidden,
                "device_rights": launch.device_rights,
                "keep_capabilities": launch.keep_capabilities,
                "seccomp": launch.seccomp,
            },
            "cgroups": self._cgroups(command.limits),
        }

    def _rlimits(self, command: Command) -> tuple[int | None, int | None]:
        """Its limits of processes and of memory, where no cgroup counts them."""
        limits, support = command.limits, self._config.support
        return (
            None if support.pids_cgroup else self._allowance.rlimit(limits),
            None if support.memory_cgroup else limits.memory_bytes,
        )

    def _send(
        self,
        *message: str | float | tuple[int | None, ...],
        descriptors: Sequence[int] = (),
        overtaking: str | None = None,
    ) -> None:
        """Sends a message, behind those that wait; it waits itself where the socket has no room.

        `overtaking` is what a message is about that goes before others, in place of an earlier one about it.
        May be called from any thread. Raises `SupervisorLost` for one with descriptors if nobody takes it.
        """
        data = marshal.dumps(message)
        with self._posting:
            try:
                self._send_waiting()
                socket.send_fds(self._socket, [data], descriptors, socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                pass
            except OSError as broken:
                if descriptors:
                    raise SupervisorLost(f"the supervisor is gone: {broken}") from broken
                return
            if overtaking is not None:
                self._overtaking[overtaking] = data
            else:
                # Copies, for whoever sends closes its own.
                self._unsent.append((data, [os.dup(descriptor) for descriptor in descriptors]))
        with suppress(RuntimeError):  # the loop is closed: nothing is to be run any more
            self._loop.call_soon_threadsafe(self._await_room)

    def _await_room(self) -> None:
        if self._alive:
            self._loop.add_writer(self._socket, self._use_room)

    def _use_room(self) -> None:
        with self._posting:
            try:
                self._send_waiting()
            except BlockingIOError:
                return
            except OSError:
                pass  # it is gone, which is read from the socket
        self._sent.set()
        self._loop.remove_writer(self._socket)

    def _send_waiting(self) -> None:
        """Sends what waits, as far as there is room; raises what the socket does."""
        while self._overtaking:
            about, data = next(iter(self._overtaking.items()))
            socket.send_fds(self._socket, [data], (), socket.MSG_NOSIGNAL)
            del self._overtaking[about]
        while self._unsent:
            data, descriptors = self._unsent[0]
            socket.send_fds(self._socket, [data], descriptors, socket.MSG_NOSIGNAL)
            self._drop_first()

    def _drop_first(self) -> None:
        for descriptor in self._unsent.popleft()[1]:
            os.close(descriptor)

    def _read(self) -> None:
        try:
            data = self._socket.recv(4096)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._lose()
            return
        match marshal.loads(data):
            case ("here",):
                self._unanswered = 0
            case ("swept", ident, survivors, shim):
                self._sweep_cgroups(shim)
                if entry := self._running.get(ident):
                    entry[1].lose_shim(survivors)
            case ("refused", ident, number):
                if entry := self._running.get(ident):
                    entry[1].failure = ("right", number) if number == 0 else ("fork", number)
                    entry[1].lose_shim()

    def _lose(self) -> None:
        """Records that the supervisor is gone: its shims notice, kill, and report on their own channels."""
        if not self._alive:
            return
        self._alive = False
        self._sent.set()
        self._loop.remove_writer(self._socket)
        with self._posting:
            self._overtaking.clear()
            while self._unsent:
                self._drop_first()
        unproved = not all(running.gone.is_set() for _, running in self._running.values())
        if unproved and self._config.burial is not None:
            # Their shims are nobody's children now: no other supervisor can prove that they have ended.
            self._config.burial.forbid()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for _, running in self._running.values():
            running.lose_supervisor()


def _process(theirs: socket.socket, config: SupervisorConfig) -> subprocess.Popen[bytes]:
    passed, cgroups = [theirs.fileno()], set[str]()
    if config.burial is not None:
        passed += config.burial.descriptors
        cgroups = {it for it in (config.support.pids_cgroup, config.support.memory_cgroup) if it is not None}
    argv = [sys.executable, "-I", "-S", "-c", _BOOT, _PACKAGE_ROOT, *map(str, passed), *sorted(cgroups)]
    # An empty environment: what the supervisor does not have, no command can find in it.
    return subprocess.Popen(
        argv,
        pass_fds=passed,
        env={},
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def _unfit_variable(env: Mapping[str, str]) -> str | None:
    """The name of a variable that no environment can hold."""
    for name, value in env.items():
        try:
            os.fsencode(f"{name}={value}")
        except UnicodeEncodeError:
            return name
        if not name or "=" in name or "\0" in name or "\0" in value:
            return name
    return None


def _memory_file(content: bytes) -> int:
    """A command line may be larger than any packet; a file in memory is taken whole and at once."""
    descriptor = os.memfd_create("dendro-command", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    return descriptor


async def _insist(event: asyncio.Event) -> None:
    """Waits through further cancellations: until the proof is there the processes may still act."""
    while not event.is_set():
        try:
            await event.wait()
        except asyncio.CancelledError:
            continue


# ── outcomes ──────────────────────────────────────────────────────────────────────────────────────
# The outcome of a command or of a patch's job, from what its shim and its supervisor reported.


def finished(running: Running, duration_s: float) -> Finished:
    # A command that could not be started has no exit code, although the fork that tried has one.
    end = Exit(-1) if running.exit is None or running.failure else running.exit
    return Finished(
        exit_code=end.code,
        stdout=running.kept("stdout"),
        stderr=running.kept("stderr"),
        aggregated=running.aggregated(),
        duration_s=duration_s,
        timed_out=end.why == "timeout",
        killed=end.why == "killed",
        error=_error(running),
    )


def written(running: Running) -> Written:
    if running.exit == Exit(0):
        return Written(marshal.loads(running.kept("stdout")))
    # Without a failure to start, or with one that says that nobody knows, it may have written.
    begun = running.failure is None or running.failure[0] == "proof"
    if running.failure == ("right", 0):
        return Written(None, begun, "the worker no longer had the right to work on the session")
    return Written(None, begun, _error(running) or "its writer was killed")


def _error(running: Running) -> str | None:
    if running.survivors:
        return f"{running.survivors} processes of another user could not be killed"
    if running.failure is None:
        return None if running.exit else "the command's shim was killed before it could report"
    what, number = running.failure
    match what:
        case "right":
            return "the right to run this command has ended"
        case "proof":
            return "supervisor and shim were killed: processes of this command may still run"
        case "cwd":
            return f"the working directory cannot be entered: {os.strerror(number)}"
        case "program" if number in (errno.ENOENT, errno.EACCES, errno.ENOEXEC):
            return f"{os.strerror(number)} (os error {number})"
        case _:
            return f"the command could not be started ({what}): {os.strerror(number)}"
