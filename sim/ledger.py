"""The world outside of the crash boundary: commands as the kernel has them, and what they left.

A run is a process on a worker's machine. It does not stop because its worker is held up; it
stops when it is done, when it is killed, when its worker's death closes the supervisor's pipe, or
when the deadline has passed that the supervisor was told last.
"""

from __future__ import annotations

import asyncio
import marshal
import os
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orchestrator.broker.records import Claim
from orchestrator.runtime.burial import Register, held_claims
from orchestrator.tools.exec import supervisor_process
from sim.loop import Lane, SimLoop
from sim.trace import Trace

LOOK_S, LOOKS_S = 0.02, 10.0
"""How often a supervisor looks whether what it kills is dead, and for how long."""


@dataclass(slots=True, eq=False)
class Run:
    """A started command or patch."""

    session: str
    call_id: str
    claim: str
    machine: str
    began_s: float
    supervisor: SimSupervisor
    ended: Callable[[str], None]
    """Told `finished` or `killed`, once."""
    files: int = 0
    """How many a patch switches, one after the other; 0 for a command."""
    switched: int = 0
    output: str = ""
    denied: bool = False
    """The sandbox stopped it: it may be asked for, and run, without one."""
    lasting: int = 0
    """The number of the process that the command may become; 0: it ends with its call."""
    wrote: str = ""
    """All that it has written, if it may become a process."""
    exit_code: int = 0
    looked_s: float = 0.0
    """When somebody looked at it last."""
    lost: bool = False
    """Decided on a branch of the log that Redis had lost by then."""
    state: str = "running"
    ended_s: float = 0.0
    stuck_until_s: float = 0.0
    """Until then nothing ends it: it waits for a disk that does not answer."""
    marks: list[str] | None = None
    """Its writes to a portable folder; None if it is not to write to one."""
    mark: Callable[[str], None] | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The finding that a worker is to make of a script: the truth, as far as readers answered in time."""

    destroys: bool
    unread: bool
    """Two readers were lost with it, or with a script in it."""
    safe: bool
    prefix: bool
    """It is certain which commands it consists of."""


class Ledger:
    """Every run that there ever was."""

    def __init__(self, loop: SimLoop, trace: Trace) -> None:
        self._loop = loop
        self._trace = trace
        self.runs: list[Run] = []
        self.by_call: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
        self.written: Counter[tuple[str, str]] = Counter()
        """Patches that were written, by call."""
        self.missed: set[tuple[str, str]] = set()
        """Calls that went on under another claim because their supervisor stood still, as nothing forbids."""
        self.busy_s = 0.0
        """How late supervisors kill that have nothing more to do than usual."""
        self.frozen: dict[SimSupervisor, float] = {}
        """Keepers that stand still, and since when."""
        self.supervisors: dict[str, SimSupervisor] = {}
        """The supervisor that was told the deadlines of each claim."""
        self._asked: Counter[str] = Counter()
        self.typed: Callable[[Run, str], None] = lambda run, words: None
        """Told of words that are typed to a process."""
        self.behind: Callable[[Run], None] = lambda run: None
        """Told of a run that begins behind the deadline of its claim."""
        self.saw: Callable[[str], None] = lambda case: None
        """Told of cases that rules are interested in."""
        self.readings: dict[str, list[Reading]] = {}
        """The findings that workers were to make of the scripts of each call, time by time."""
        self.misread: Callable[[str], None] = lambda seen: None
        """Told of a script that is judged otherwise than it is."""
        self.misheld: Callable[[str], None] = lambda seen: None
        """Told of a dead worker whose register does not have the claims that it held."""
        self._registers: list[Register] = []

    def register(self) -> Register:
        """A register that is open until the simulation ends."""
        self._registers.append(Register())
        return self._registers[-1]

    def close(self) -> None:
        """Gives the memory of all registers back."""
        for register in self._registers:
            os.close(register.descriptor)
        self._registers.clear()

    def begin(self, run: Run) -> None:
        if self._loop.time() > run.supervisor.told_until_s(run.claim) + 1e-6:
            self.behind(run)
        self.runs.append(run)
        self.by_call[run.session, run.call_id].append(run)
        self._trace.note(run.machine, "begins", run.session[-4:], run.call_id)
        if run.mark is not None:
            run.mark("begun")

    def end(self, run: Run, how: str) -> None:
        if run.state != "running":
            return
        run.state, run.ended_s = how, self._loop.time()
        self._trace.note(run.machine, how, run.session[-4:], run.call_id)
        if run.mark is not None and how == "finished":
            run.mark("done")
        if run.files and how == "finished" and run.mark is None:
            # What a lost patch wrote to a portable folder is gone with its copy: it may be written again.
            self.written[run.session, run.call_id] += 1
        run.ended(how)

    def killed(self, session: str) -> list[Run]:
        return [run for run in self.runs if run.state == "killed" and run.session == session]

    def of_session(self, session: str) -> list[Run]:
        return [run for run in self.runs if run.session == session]

    def since_task(self, session: str) -> list[Run]:
        """The runs that the session has begun since this was asked last, at its last task's end."""
        at, self._asked[session] = self._asked[session], len(self.runs)
        return [run for run in self.runs[at:] if run.session == session]

    def freeze(self, supervisor: SimSupervisor) -> None:
        if supervisor not in self.frozen:
            self.frozen[supervisor] = self._loop.time()
            self._loop.hold(supervisor.lane)

    def thaw(self, *supervisors: SimSupervisor) -> None:
        """Lets these supervisors go on, or all: they kill what they should have killed."""
        for supervisor in supervisors or list(self.frozen):
            if self.frozen.pop(supervisor, None) is not None:
                supervisor.thawed_s = self._loop.time()
                self._loop.let_go(supervisor.lane)

    def kept(self, run: Run) -> bool:
        """Whether its supervisor runs, and did not stand still until just now."""
        stood = run.supervisor.lane.held or run.supervisor.thawed_s == self._loop.time()
        return not stood

    def switch(self, run: Run) -> None:
        """A patch's next file becomes visible; with the last one it is written."""
        if run.state != "running":
            return
        run.switched += 1
        if run.switched == run.files:
            self.end(run, "finished")

    def running(self, session: str = "") -> list[Run]:
        return [run for run in self.runs if run.state == "running" and session in ("", run.session)]


@dataclass(slots=True, eq=False)
class _Asked:
    """A packet for a supervisor."""

    packet: tuple[Any, ...]
    begin: Callable[[], None] | None = None
    granted: bool | None = None
    answered: asyncio.Future[None] | None = None


class _Ends:
    """The descriptors of a burial, by their names."""

    worker = "worker"
    lifeline = "lifeline"
    cgroups: tuple[str, ...] = ()


class _ProductsLoop(supervisor_process._Supervisor):
    """The product's supervisor process, turn by turn: its socket, its timer and its forks are simulated."""

    def __init__(self, clock: Callable[[], float], owner: SimSupervisor) -> None:
        self._worker: Any = self
        self._shims = {}
        self._deadlines = {}
        self._clock = clock
        self._packet = b""
        self.granted = False
        self._burial: Any = _Ends
        self._left = False
        self._owner = owner

    def ends(self) -> bool:
        """Goes the way to its end, when the worker's end of the socket has closed; False if not yet."""
        self._worker = None
        # The shim of what nothing can end has ended. Numbers that are no processes': nothing is sent to them.
        running = [run for run in self._owner.running() if run.stuck_until_s <= self._owner.now_s]
        self._shims = {-at: supervisor_process._Shim(at, run.claim) for at, run in enumerate(running, 2)}
        real, supervisor_process._comes_to_its_end = supervisor_process._comes_to_its_end, self._comes
        real_now, supervisor_process._now = supervisor_process._now, self._clock
        try:
            done = self._is_done()
            if done:
                self._shims = {}
                self._end()
            return done and not self._owner.running()
        finally:
            self._shims = {}
            supervisor_process._comes_to_its_end = real
            supervisor_process._now = real_now

    def _comes(self, descriptor: Any, events: int, until: float) -> bool:
        """Keepers of folders end with their worker, in a simulation at once."""
        return descriptor == "lifeline" or self._owner.worker_ended

    def _is_childless(self) -> bool:
        return not self._owner.running()

    def _sweep(self) -> int:
        return len(self._owner.running())

    def _say_the_word(self) -> None:
        self._owner.word()

    def turn(self, packet: tuple[Any, ...] | None) -> None:
        """Runs the loop once; a packet may have come."""
        real, supervisor_process._now = supervisor_process._now, self._clock
        try:
            if packet is not None:
                self._packet = marshal.dumps(packet)
                self._serve_packet()
            self._enforce()
        finally:
            supervisor_process._now = real

    def recvmsg(self, *sizes: int) -> tuple[bytes, list[Any], int, None]:
        """The socket's packet, without descriptors."""
        return self._packet, [], 0, None

    def _give(self, ident: int, claim: str, descriptors: list[int], limits: object) -> None:
        self.granted = True

    def _send(self, message: tuple[str | int, ...]) -> None:
        if message[0] == "refused":
            self.granted = False

    def _arm(self, at: float | None) -> None:
        """The simulation knows when the next deadline passes."""


class SimSupervisor:
    """The supervisor of one worker: it dies with it, and nothing else stops it."""

    def __init__(
        self,
        loop: SimLoop,
        ledger: Ledger,
        machine: str,
        simulated: Callable[[float], float],
        clock: Callable[[], float],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._process = _ProductsLoop(clock, self)
        self.outlives = False
        """Whether its machine lives when its worker has died, and a process waits for that."""
        self.worker_ended = False
        self.word: Callable[[], None] = lambda: None
        """Told that the worker is dead, and nothing of it runs."""
        self._register: Register | None = None
        """The product's register of the worker, where a process waits for the worker's death."""
        self.held: dict[str, Claim] = {}
        """The claims that it has to have."""
        self._forbidden = False
        """Whether nobody may read it: another supervisor was lost with what it ran."""
        self._asked: deque[_Asked] = deque()
        """Packets that it has not taken."""
        self._ledger = ledger
        self.machine = machine
        self._simulated = simulated
        self.lane = Lane(f"{machine}/supervisor")
        self.slow_s = ledger.busy_s
        """How late it kills."""
        self.thawed_s = -1.0
        """When it went on after it had stood still."""
        self.deadlines: dict[str, float] = {}
        """By claim, in simulated time."""
        self._left: dict[str, float] = {}
        """Those of its worker when that died."""

    def hold(self, claim: Claim) -> None:
        """Writes a claim where it can be read when the worker is dead."""
        self.held[claim.claim_id] = claim
        if self.outlives:
            new = [claim]
            if self._register is None:
                self._register = self._ledger.register()
                if self._forbidden:
                    self._register.forbid()
                # A fault may have it outlive a worker that held claims before.
                new = list(self.held.values())
            for one in new:
                self._register.hold(one)
            self.left()

    def let_go(self, claim: Claim) -> None:
        self.held.pop(claim.claim_id, None)
        if self._register is not None:
            self._register.let_go(claim)
            self.left()

    def left(self) -> list[Claim]:
        """The claims that a process would read which has heard of the worker's death: those that it holds."""
        if self._register is None:
            return []
        found = held_claims(self._register.descriptor)
        if {claim.claim_id for claim in found} != (set() if self._forbidden else self.held.keys()):
            self._ledger.misheld(f"the register of {self.machine} has {found}, and it held {self.held}")
        return found

    @property
    def now_s(self) -> float:
        return self._loop.time()

    def running(self) -> list[Run]:
        """All that runs under it."""
        return [run for run in self._ledger.running() if run.machine == self.machine]

    def loses_worker(self) -> None:
        """Its worker dies, and so closes its end of the socket, behind the packets that wait in it."""
        self._left, self.deadlines = self.deadlines, {}
        self.worker_ended = True
        late = self.outlives and self.slow_s > 0.0
        if not late:
            self.kill_now()
        if self.outlives:
            self._loop.on(self.lane, self._ends, self._process, self._loop.time() + LOOKS_S)
        if late:
            self._loop.on(self.lane, self.kill_now, after=self.slow_s)

    def is_cut_off(self) -> None:
        """The worker's end of the socket closes, and the worker lives: it starts another supervisor."""
        self._loop.on(self.lane, self.kill_now, after=self.slow_s)
        old = _ProductsLoop(self._clock, self)
        self._loop.on(self.lane, self._ends, old, self._loop.time() + LOOKS_S)
        self._loop.on(self.lane, self._is_forbidden, after=1.0)

    def _is_forbidden(self) -> None:
        self._forbidden = True
        if self._register is not None:
            self._register.forbid()

    def _ends(self, process: _ProductsLoop, until_s: float) -> None:
        """Looks again and again whether all that ran under it is dead, as its process does."""
        if not process.ends() and self._loop.time() < until_s:
            self._loop.on(self.lane, self._ends, process, until_s, after=LOOK_S)

    def told_until_s(self, claim: str) -> float:
        """The claim's deadline as the process knows it: it reads of its worker's death behind what waits."""
        return max(self.trusted_until_s(claim), self._left.get(claim, 0.0))

    def extend(self, claim: str, deadline_boottime: float) -> None:
        deadline = self._simulated(deadline_boottime)
        self._ask(_Asked(("extend", claim, deadline_boottime)))
        self._ledger.supervisors[claim] = self
        self.deadlines[claim] = max(deadline, self.deadlines.get(claim, deadline))
        after = max(0.0, deadline - self._loop.time()) + self.slow_s
        self._loop.on(self.lane, self._enforce, claim, deadline, after=after)

    def hurries(self) -> None:
        """Makes the supervisor as fast as ever."""
        self.slow_s = self._ledger.busy_s

    def trusted_until_s(self, claim: str) -> float:
        """The claim's deadline, as the supervisor was told it last."""
        return self.deadlines.get(claim, 0.0)

    def permits(self, claim: str) -> bool:
        """Whether the claim's deadline is still ahead: who wakes up behind it starts nothing."""
        permitted = self._loop.time() < self.trusted_until_s(claim)
        if not permitted:
            self._ledger.saw("begun_in_log")
        return permitted

    async def starts(self, claim: str, begin: Callable[[], None]) -> bool:
        """Asks for a start, which `begin` is where it is granted; False if it is refused.

        The product's own supervisor decides. One that stands still answers when it goes on.
        """
        asked = _Asked(("run", 1, claim, (None, None)), begin)
        self._ask(asked)
        if asked.granted is None:
            asked.answered = self._loop.create_future()
            cancelled = False
            while not asked.answered.done():
                try:
                    await asyncio.wait([asked.answered])
                except asyncio.CancelledError:
                    # Nothing is proved before the supervisor has spoken.
                    cancelled = True
            if cancelled:
                raise asyncio.CancelledError
        return bool(asked.granted)

    def _ask(self, asked: _Asked) -> None:
        self._asked.append(asked)
        if self.lane.held:
            self._loop.on(self.lane, self._turn)
        else:
            self._turn()

    def _turn(self) -> None:
        """As the product's loop: a packet is taken before deadlines are acted on, one in each turn."""
        while True:
            asked = self._asked.popleft() if self._asked else None
            self._process.turn(asked.packet if asked is not None else None)
            if asked is None:
                return
            if asked.packet[0] == "run":
                asked.granted = self._process.granted
                if not self.permits(asked.packet[2]):
                    self._ledger.saw("right_to_start")
                if asked.granted and asked.begin is not None:
                    asked.begin()
                if asked.answered is not None:
                    asked.answered.set_result(None)

    async def kill(self, claim: str) -> None:
        self.kill_now(claim)

    def kill_now(self, claim: str = "") -> None:
        if self.lane.held:
            # It is told, and does it when it can.
            self._loop.on(self.lane, self.kill_now, claim)
            return
        for run in self._ledger.running():
            if run.machine == self.machine and claim in ("", run.claim):
                if (stuck_s := run.stuck_until_s - self._loop.time()) > 0.0:
                    self._loop.on(self.lane, self.kill_now, claim, after=stuck_s + 1e-6)
                    continue
                self._ledger.saw("right_to_run")
                self._ledger.end(run, "killed")

    def _enforce(self, claim: str, deadline: float) -> None:
        self._turn()
        # Not asked of the loop: a sum of seconds may fall short of the deadline by its last digit.
        if self.trusted_until_s(claim) <= deadline:
            self.kill_now(claim)
