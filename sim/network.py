"""The way from a process to Redis and back: late, cut, or answered by nobody.

A command takes effect at one moment, between two delays. What the sender learns is another
matter: a connection may break before the command arrived, after it took effect, or before it
arrives all the same, because it lay in the server's socket while the sender gave up. Commands
of one process may overtake each other, as those of several connections do.

Knows scripts by name, for the trace, and keys, for those who block on streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from random import Random
from typing import Any

from redis import exceptions as foreign

from orchestrator.broker.scripts import load
from sim.double import Double, encoded
from sim.loop import Lane, SimLoop, current_lane
from sim.reference.check import STATEMENTS
from sim.replicas import Replicas
from sim.trace import Trace

TOGETHER = "TOGETHER"
"""Several commands of one connection, one behind the other."""

QUIET = frozenset(
    {
        *("look", "peek", "timers_due", "heartbeat", "attend", "turn_away"),
        *("XREAD", "XRANGE", "XREVRANGE", "HMGET", "XADD", "EXPIRE", "PEXPIRE", TOGETHER),
    }
)
"""Not worth a line of the trace each time."""

READS = frozenset(
    {"look", "peek", "timers_due", "registry", "XREAD", "XRANGE", "XREVRANGE", "HMGET", "HGETALL", "GET"}
)
"""Served by a Redis that takes nothing; the others write, or are scripts that may."""

LOOKS = frozenset({"look", "peek", "timers_due"})
"""Reads that a worker makes each second; one that would find nothing is not sent. See `sim/polls.py`."""


@dataclass(slots=True)
class NetworkFaults:
    """How likely a command is to be hit, each 0..1."""

    slow: float = 0.0
    """Takes up to 0.4 s each way instead of a millisecond."""
    lost_before: float = 0.0
    lost_after: float = 0.0
    late: float = 0.0
    """The sender is told that the connection broke; the command takes effect within 12 s."""
    late_wake: float = 0.0
    """A blocking read is answered up to 3 s after it could have been."""

    def clear(self) -> None:
        """No more faults."""
        self.slow = self.lost_before = self.lost_after = self.late = self.late_wake = 0.0


@dataclass(slots=True)
class Waiter:
    """A client that blocks on streams."""

    machine: str
    row: tuple[Any, ...]
    future: asyncio.Future[Any]
    keys: frozenset[str] = field(init=False)
    behind: tuple[bytes, ...] = field(init=False)
    """Each stream and the id behind which it is read, in turn."""

    def __post_init__(self) -> None:
        words = self.row[self.row.index("STREAMS") + 1 :]
        keys, ids = words[: len(words) // 2], words[len(words) // 2 :]
        self.keys = frozenset(keys)
        self.behind = encoded([word for pair in zip(keys, ids, strict=True) for word in pair])

    def reads(self, server: Double) -> Any:
        """The entries that it finds; None as long as there are none."""
        return server.look(*self.row) if server.goes_on(self.behind) else None


@dataclass(slots=True)
class Sent:
    """A command on its way."""

    machine: str
    lane: str
    name: str
    args: tuple[Any, ...]
    delivery: str


Wrote = Callable[[str, Sequence[Any], Any], None]
"""Called after a command that wrote: its name, its arguments, the reply."""


class Network:
    """Everybody's connections to the one double."""

    def __init__(self, loop: SimLoop, double: Double, rng: Random, trace: Trace) -> None:
        self._loop = loop
        self._double = double
        self._rng = rng
        self._trace = trace
        self.faults = NetworkFaults()
        self.lane = Lane("redis")
        self.waiting = Lane("redis/waiting")
        """Where blocking reads come to the end of their patience."""
        self.up = True
        self.cut: dict[str, int] = {}
        """Machines that reach nobody now, each with the number of reasons."""
        self.refused = 0
        self.instant = False
        """Whether commands and answers take no time."""
        self.lost = 0
        """Commands whose sender was told that the connection broke."""
        self.wrote: Wrote = lambda name, args, reply: None
        self.arrived: Callable[[Sent, Any], None] = lambda sent, reply: None
        """Called behind each effect, with its reply: a place to die at."""
        self.heard: Callable[[Sent, Any], None] = lambda sent, reply: None
        """Called when the sender of a commit is about to go on with its answer."""
        self.renews: Callable[[Sequence[Any]], None] = lambda args: None
        """Called when a renewal is sent, with its words."""
        self.detour: Callable[[Sent, asyncio.Future[Any]], bool] = lambda sent, future: False
        """Whether somebody takes a command off the network, to `deliver` it at a moment of his own."""
        self.replicas: Replicas | None = None
        """Replicas that confirm writes, in seeds where replicas are asked."""
        self.states = False
        """Whether each script's answer and writes are compared with what is stated of it."""
        self.misstated: Callable[[str, str], None] = lambda name, unlike: None
        self.commands = 0
        self._waiters: list[Waiter] = []
        for script in scripts().values():
            double.know(script.source, script.sha)
        self._names = {script.sha: name for name, script in scripts().items()}
        self._sources = {script.source: name for name, script in scripts().items()}
        self.refuses: Callable[[], foreign.RedisError] | None = None
        """The error that answers every command that may write; None as a rule."""
        self.answers_s: dict[str, tuple[float, float]] = {}
        """Machines, or lanes of theirs, that wait long for answers."""

    # ── sending ───────────────────────────────────────────────────────────────────────────────

    async def send(self, machine: str, args: tuple[Any, ...]) -> Any:
        """Sends a machine's command; raises the client library's errors."""
        delivery, name = self._delivery(), self._name(args)
        if self.cut.get(machine) or not self.up:
            delivery = "lost_before"
        asked = delivery == "ok" and name in LOOKS and args[0] == "EVALSHA"
        if asked and (nothing := self._server(machine).idle_look(args)) is not None:
            self.commands += 1
            return nothing
        if name == "PEXPIRE" and delivery == "ok" and self.refuses is None:
            # The word of a worker each second that it goes on listening.
            self.commands += 1
            return self._server(machine).run(*args)
        loop, future = self._loop, self._loop.create_future()
        sent = Sent(machine, current_lane().name, name, args, delivery)
        if name == "renew":
            self.renews(args)
        if delivery in ("lost_before", "late"):
            self._trace.note(sent.lane, delivery, sent.name)
            loop.on(self.lane, self._lose, future, after=self._rng.uniform(0.001, 0.4))
        if delivery == "late":
            after = self._rng.choice((0.3, 3.0, 12.0)) * self._rng.random()
            loop.on(self.lane, self._arrive, sent, loop.create_future(), after=after)
        elif delivery != "lost_before" and not self.detour(sent, future):
            loop.on(self.lane, self._arrive, sent, future, after=self._delay())
        reply = await future
        if sent.name == "commit":
            self.heard(sent, reply)
        return reply

    def deliver(self, sent: Sent, future: asyncio.Future[Any], after_s: float) -> None:
        """A command that was taken off the network arrives; nobody may be waiting for it any more."""
        self._loop.on(self.lane, self._arrive, sent, future, after=after_s)

    def loses(self, future: asyncio.Future[Any]) -> None:
        """Fails the command: its sender learns that the connection broke, and nothing else."""
        self._loop.on(self.lane, self._lose, future, after=self._rng.uniform(0.001, 0.4))

    def _delivery(self) -> str:
        faults, at = self.faults, self._rng.random()
        if at >= faults.lost_before + faults.lost_after + faults.late:
            return "ok"
        for name in ("lost_before", "lost_after", "late"):
            at -= getattr(faults, name)
            if at < 0:
                return name
        return "ok"

    def _delay(self) -> float:
        if self.instant:
            return 0.0
        random = self._rng.random
        if random() < self.faults.slow:
            return 0.001 + 0.399 * random()
        return 0.0001 + 0.0019 * random()

    def _name(self, args: tuple[Any, ...]) -> str:
        if args[0] == "EVALSHA":
            return self._names.get(args[1], "script")
        return self._sources.get(args[1], "script") if args[0] == "EVAL" else str(args[0])

    # ── at the server ─────────────────────────────────────────────────────────────────────────

    def _arrive(self, sent: Sent, future: asyncio.Future[Any]) -> None:
        if not self.up:
            self._lose(future)
            return
        if sent.name == "XREAD" and "BLOCK" in sent.args:
            self._block(sent, future)
            return
        self.commands += 1
        server = self._server(sent.machine)
        if sent.name == TOGETHER:
            self._together(server, sent, future)
            return
        error, reply, writes, command = None, None, server.writes, encoded(sent.args)
        stated = server.stated(sent.name, command) if self.states else None
        try:
            if self.refuses is not None and sent.name not in READS:
                self.refused += 1
                raise self.refuses()
            reply = server.take(sent.args[0], command)
        except foreign.RedisError as raised:
            error = raised
        if type(error) is foreign.ResponseError and sent.name in STATEMENTS:
            # A refusal, or a script that is not known, is an error of its own kind: nothing of it ran.
            self.misstated(sent.name, f"it raised {error}, and an answer was to be expected")
        if stated is not None and error is None and (unlike := stated.difference(reply)):
            self.misstated(sent.name, unlike)
        if self._trace.kept and sent.name not in QUIET:
            delivery = sent.delivery if sent.delivery != "ok" else ""
            delivery = delivery if server is self._double else f"{delivery} apart".strip()
            self._trace.note(sent.lane, sent.name, *_told(sent.name, sent.args, reply, error), delivery)
        if server is self._double:
            self.wrote(sent.name, sent.args, reply)
        if self._waiters and server.writes != writes:
            self._wake(server, sent.args)
        if sent.delivery == "lost_after":
            self._loop.on(self.lane, self._lose, future, after=self._rng.uniform(0.001, 0.5))
        elif sent.delivery == "ok":
            late = self.answers_s.get(sent.lane) or self.answers_s.get(sent.machine)
            after = self._delay() if late is None else self._rng.uniform(*late)
            self._loop.on(self.lane, self._answer, sent.machine, future, reply, error, after=after)
        if server is self._double:
            self.arrived(sent, reply)

    def _server(self, machine: str) -> Double:
        """The primary that a machine's connections lead to."""
        return self._double if self.replicas is None else self.replicas.server(machine)

    def _together(self, server: Double, sent: Sent, future: asyncio.Future[Any]) -> None:
        """A row of commands whose last one waits for replicas (WAIT)."""
        *rows, (_, wanted, timeout_ms) = sent.args[1]
        if self.refuses is not None or self.replicas is None:
            self.refused += 1
            error = (
                self.refuses() if self.refuses is not None else foreign.ResponseError("no replica is known")
            )
            self._loop.on(self.lane, self._answer, sent.machine, future, None, error, after=self._delay())
            return
        replies = [server.run(*row) for row in rows]
        confirms, after_s = self.replicas.asked(server, wanted, timeout_ms / 1000)
        self._loop.on(
            self.lane, self._confirm, sent, future, replies, confirms, after=after_s + self._delay()
        )

    def _confirm(
        self, sent: Sent, future: asyncio.Future[Any], replies: list[Any], confirms: Callable[[], int]
    ) -> None:
        have = confirms()
        self._trace.note(sent.lane, "confirmed", *(words[0] for words in sent.args[1][1:2]), have)
        if sent.delivery == "lost_after":
            self._lose(future)
        elif sent.delivery == "ok":
            self._answer(sent.machine, future, [*replies, have], None)

    def _answer(self, machine: str, future: asyncio.Future[Any], reply: Any, error: Any) -> None:
        if future.done():
            return
        if self.cut.get(machine) or not self.up:
            self._lose(future)
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(reply)

    def _lose(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            self.lost += 1
            future.set_exception(foreign.ConnectionError("the connection was lost"))

    # ── blocking ──────────────────────────────────────────────────────────────────────────────

    def _block(self, sent: Sent, future: asyncio.Future[Any]) -> None:
        args = sent.args
        at = args.index("BLOCK")
        waiter = Waiter(sent.machine, (*args[:at], *args[at + 2 :]), future)
        if found := waiter.reads(self._server(sent.machine)):
            self._loop.on(self.lane, self._reply_to, future, found, after=self._delay())
            return
        self._waiters.append(waiter)
        self._loop.on(self.waiting, self._reply_to, future, None, after=int(args[at + 1]) / 1000)

    def _reply_to(self, future: asyncio.Future[Any], found: Any) -> None:
        if not future.done():
            future.set_result(found)

    def _wake(self, server: Double, args: tuple[Any, ...]) -> None:
        touched, waiting = set(_keys(args)), []
        for waiter in self._waiters:
            if waiter.future.done():
                continue
            concerned = not touched.isdisjoint(waiter.keys) and self._server(waiter.machine) is server
            found = waiter.reads(server) if concerned else None
            if found:
                late = self._rng.random() < self.faults.late_wake
                delay = self._rng.uniform(0.1, 3.0) if late else self._delay()
                self._loop.on(self.lane, self._reply_to, waiter.future, found, after=delay)
            else:
                waiting.append(waiter)
        self._waiters = waiting

    def go_down(self) -> None:
        """Every connection breaks; until `up` is set again nobody is served."""
        self.up = False
        for waiter in self._waiters:
            self._loop.on(self.lane, self._lose, waiter.future, after=self._rng.uniform(0.0, 0.05))
        self._waiters.clear()

    def breaks(self, whose: Callable[[str], bool]) -> None:
        """Machines that wait at a server learn that it is not theirs any more."""
        gone = [waiter for waiter in self._waiters if whose(waiter.machine)]
        self._waiters = [waiter for waiter in self._waiters if not whose(waiter.machine)]
        for waiter in gone:
            self._loop.on(self.lane, self._lose, waiter.future, after=self._rng.uniform(0.0, 0.05))


class Line:
    """A process's client, on which the broker's `Connection` stands."""

    def __init__(self, network: Network, machine: str) -> None:
        self._network = network
        self._machine = machine

    def execute_command(self, *args: Any, **options: Any) -> Coroutine[Any, Any, Any]:
        return self._network.send(self._machine, args)

    def pipeline(self, transaction: bool) -> Row:
        return Row(self)

    async def aclose(self) -> None:
        return None


class Row:
    """Commands that are sent together, and answered together."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._commands: list[tuple[Any, ...]] = []

    async def __aenter__(self) -> Row:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    def execute_command(self, *args: Any) -> None:
        self._commands.append(args)

    async def execute(self) -> Any:
        return await self._line.execute_command(TOGETHER, self._commands)


def _keys(args: tuple[Any, ...]) -> Sequence[Any]:
    if args[0] in ("EVALSHA", "EVAL"):
        return args[3 : 3 + int(args[2])]
    return args[1:2] if args[0] != TOGETHER else ()


_SCRIPTS: dict[str, Any] = {}


def scripts() -> dict[str, Any]:
    """Every script of the product, by name."""
    if not _SCRIPTS:
        folder = files("orchestrator.broker").joinpath("lua")
        names = sorted(f.name.removesuffix(".lua") for f in folder.iterdir() if f.name.endswith(".lua"))
        _SCRIPTS.update({name: load(name) for name in names if not name.startswith("_")})
    return _SCRIPTS


@lru_cache(maxsize=10_000)
def _session_in(key: str) -> str:
    """The session whose hash is at a key, or ''."""
    kind, _, session = key.partition("}:")[2].partition(":")
    return session if kind == "session" else ""


def sessions_of(args: Sequence[Any]) -> list[str]:
    """All sessions whose hash is among a script's keys."""
    return [session for session in dict.fromkeys(map(_session_in, _keys(tuple(args)))) if session]


def session_of(name: str, args: tuple[Any, ...] | Sequence[Any]) -> str:
    """The session that a command is about, or ''."""
    return next(filter(None, map(_session_in, _keys(tuple(args)))), "")


def _told(name: str, args: tuple[Any, ...], reply: Any, error: Any) -> tuple[Any, ...]:
    if error is not None:
        return ("!", error)
    session = session_of(name, args)[-4:]
    if isinstance(reply, list) and reply and isinstance(reply[0], bytes):
        plain = [part for part in reply[1:] if _is_short(part)]
        return (session, reply[0], *plain[:6])
    return (session,) if session else ()


def _is_short(part: Any) -> bool:
    if type(part) is bytes:
        # Shown as Python writes it, which takes three signs more and sometimes many.
        return len(part) < 21 and len(str(part)) < 24
    return type(part) is int and len(str(part)) < 24
