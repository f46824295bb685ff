"""An event loop without a clock: time passes only when nothing can happen before it.

Every simulated thread has a lane. A lane is first in, first out, as the loop of a process
is; which lane goes next is the seed's choice, and that is every interleaving that threads on
several machines can have. A lane can be held up (its process is stopped, its loop is stuck)
and can die: what was to run on it never does, not even its clean-up.

Knows no Redis and no sessions. Nothing here reads the machine's clock, starts a thread or
orders anything by address or hash.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from heapq import heapify, heappop, heappush
from math import ceil
from random import Random
from typing import Any, cast

TICKS = 65_536
"""In a second, where time goes by whole ticks."""
_LANE: ContextVar[Lane] = ContextVar("lane")


class Lane:
    """A simulated thread."""

    __slots__ = ("context", "dead", "held", "name", "ready")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[Step] = deque()
        self.held = 0
        """How many reasons there are why it does not run now."""
        self.dead = False
        self.context = copy_context()
        """Where callbacks find the lane that they run on."""
        self.context.run(_LANE.set, self)

    def __repr__(self) -> str:
        return self.name


def current_lane() -> Lane:
    """The lane that runs right now."""
    return _LANE.get()


class Step:
    """Something that is to run on a lane; what asyncio calls a handle.

    `SimLoop` fills it in where it makes one: there are thousands, and a constructor takes as long again.
    """

    __slots__ = ("args", "callback", "cancelled_", "context", "lane", "when_")

    args: tuple[Any, ...]
    callback: Callable[..., Any]
    cancelled_: bool
    context: Context
    lane: Lane
    when_: float

    def cancel(self) -> None:
        self.cancelled_ = True

    def cancelled(self) -> bool:
        return self.cancelled_

    def when(self) -> float:
        return self.when_


class SimLoop:
    """Runs lanes on simulated time, by the choices of a seeded generator.

    It has what asyncio's futures, tasks and time-outs ask of a loop, and nothing that touches the machine.

    Garbage is not collected while simulations run (see `campaign`): its moments are not the seed's choice.
    """

    def __init__(self, rng: Random) -> None:
        self._random = rng.random
        self._now = 0.0
        self._timers: list[tuple[float, int, Step]] = []
        self._numbered = 0
        self._awake: list[Lane] = []
        """Lanes that have something to run and may."""
        self._closed = self._stopped = False
        self.tasks: list[asyncio.Task[Any]] = []
        """All that ever were: one whose lane died must not be collected, for its clean-up would run."""
        self.failures: list[BaseException] = []
        """Of steps; a simulation without a defect has none."""
        self.steps = 0
        self.first_ready = False
        """Whether the lane goes next that has waited longest, and goes on until it has nothing to do.

        Time then goes by whole ticks, so that sums of it are the same in whatever order they are made.
        """
        self.thread_s: Callable[[], float] | None = None
        """How long it takes until a thread does what it was given, and until that is heard."""

    # ── running ───────────────────────────────────────────────────────────────────────────────

    def run(self, most_steps: int) -> bool:
        """Runs until `stop`, a failure, or so many steps; False if nothing is left that could ever run."""
        events._set_running_loop(cast(Any, self))
        awake, failures, random, steps = self._awake, self.failures, self._random, self.steps
        self._stopped, first_ready = False, self.first_ready
        try:
            while not (self._stopped or failures) and steps <= most_steps:
                while not awake:
                    if not self._pass_time():
                        return False
                lanes = len(awake)
                place = int(random() * lanes) if lanes > 1 and not first_ready else 0
                ready = awake[place].ready
                step = ready.popleft()
                if not ready:
                    del awake[place]
                if step.cancelled_:
                    continue
                steps += 1
                try:
                    step.context.run(step.callback, *step.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    failures.append(error)
            return True
        finally:
            self.steps = steps
            events._set_running_loop(None)

    def stop(self) -> None:
        """Nothing runs behind the present step."""
        self._stopped = True

    def _pass_time(self) -> bool:
        """Goes to the first timer that means anything, and lets all run that are due then."""
        timers, awake, now = self._timers, self._awake, None
        while timers and (now is None or timers[0][0] <= now):
            at, _, step = heappop(timers)
            lane = step.lane
            if step.cancelled_ or lane.dead:
                continue
            if now is None:
                now = self._now = max(at, self._now)
            ready = lane.ready
            if not (ready or lane.held):
                awake.append(lane)
            ready.append(step)
        return now is not None

    def next_timer(self, but: Collection[Lane]) -> float | None:
        """When something happens next by itself, on any other lane."""
        first: float | None = None
        for at, _, step in self._timers:
            if first is not None and at >= first:
                continue
            lane = step.lane
            if not (step.cancelled_ or lane.dead or lane in but):
                first = at
        return first

    def skip(self, seconds: float, sleeping: Collection[Lane] = ()) -> None:
        """Time passes and nobody runs meanwhile; timers of lanes that sleep run that much later."""
        seconds = _ticked(seconds) if self.first_ready else seconds
        self._now += seconds
        if sleeping:
            timers = [
                (at + seconds if step.lane in sleeping else at, n, step) for at, n, step in self._timers
            ]
            heapify(timers)
            self._timers = timers

    # ── lanes ─────────────────────────────────────────────────────────────────────────────────

    def start(self, lane: Lane, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Runs a coroutine on a lane."""
        task: asyncio.Task[Any] = lane.context.run(self.create_task, work, name=name)
        task.add_done_callback(self._look_at, context=lane.context)
        return task

    def _look_at(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)

    def on(self, lane: Lane, callback: Callable[..., Any], *args: Any, after: float = 0.0) -> Step:
        """Calls something on a lane, now or later."""
        return self._schedule(after, callback, args, lane.context)

    def hold(self, lane: Lane) -> None:
        """The lane runs nothing until it is let go as often as it was held."""
        lane.held += 1
        if lane in self._awake:
            self._awake.remove(lane)

    def let_go(self, lane: Lane) -> None:
        lane.held -= 1
        if not (lane.held or lane.dead) and lane.ready:
            self._awake.append(lane)

    def kill(self, lane: Lane) -> None:
        """Nothing of the lane ever runs again."""
        lane.dead = True
        lane.ready.clear()
        if lane in self._awake:
            self._awake.remove(lane)

    def close(self) -> None:
        """Ends what is suspended; whatever its clean-up does goes nowhere."""
        self._closed = True
        for task in self.tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            elif not task.cancelled():
                task.exception()
        with silenced():
            for task in reversed(self.tasks):
                _end(task)
            self.tasks.clear()
            self._timers.clear()
            self._awake.clear()

    # ── what asyncio asks of a loop ───────────────────────────────────────────────────────────

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        if context is None:
            context = copy_context()
        step = Step()
        step.callback, step.args, step.context, step.when_ = callback, args, context, self._now
        step.lane = lane = context[_LANE]
        step.cancelled_ = False
        if not (self._closed or lane.dead):
            ready = lane.ready
            if not (ready or lane.held):
                self._awake.append(lane)
            ready.append(step)
        return step

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        return self.call_soon(callback, *args, context=context)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        return self._schedule(delay, callback, args, copy_context() if context is None else context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        return self._schedule(
            when - self._now, callback, args, copy_context() if context is None else context
        )

    def _schedule(self, delay: float, callback: Any, args: tuple[Any, ...], context: Context) -> Step:
        when = self._now + delay if delay > 0.0 else self._now
        if self.first_ready:
            when = _ticked(when)
        step = Step()
        step.callback, step.args, step.context, step.when_ = callback, args, context, when
        step.lane = context[_LANE]
        step.cancelled_ = False
        if not self._closed:
            self._numbered = number = self._numbered + 1
            heappush(self._timers, (when, number, step))
        return step

    async def sleep(self, seconds: float) -> None:
        """`asyncio.sleep` on this loop, by a shorter way: nothing else is waited for as often."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[Any] = asyncio.Future(loop=self)  # type: ignore[arg-type]
        timer = self._schedule(seconds, _wake, (future,), copy_context())
        try:
            await future
        finally:
            timer.cancel()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name or "task", context=context)  # type: ignore[arg-type]
        self.tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """At once, or between two delays of `thread_s`: the simulator has no threads."""
        future = self.create_future()
        if self.thread_s is None:
            _take_outcome(future, _outcome_of(func, args))
        else:
            self.call_later(self.thread_s(), self._in_thread, future, func, args)
        return future

    def _in_thread(self, future: asyncio.Future[Any], func: Any, args: tuple[Any, ...]) -> None:
        outcome = _outcome_of(func, args)
        assert self.thread_s is not None
        self.call_later(self.thread_s(), _take_outcome, future, outcome)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # A reply that nobody waits for any more is told here when its future is freed: that is no failure.
        if not self._closed and "future" not in context and (error := context.get("exception")) is not None:
            self.failures.append(error)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    get_debug = staticmethod(bool)
    """Never on. Each new future asks for it, and this costs no frame."""

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed


def _ticked(seconds: float) -> float:
    return ceil(seconds * TICKS) / TICKS


@contextmanager
def silenced() -> Iterator[None]:
    """Ignores exceptions that the clean-up of suspended coroutines raises, and what it cannot begin."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        sys.unraisablehook = hook


@contextmanager
def unlisted() -> Iterator[None]:
    """Keeps tasks out of asyncio's list of all tasks, which costs each a weak reference."""
    listed: Any = vars(asyncio.tasks).get("_all_tasks")
    if listed is None:
        yield
        return
    # What the interpreter calls for each new task.
    listed.add = lambda task: None
    try:
        yield
    finally:
        del listed.add


Outcome = tuple[Any, Exception | None]


def _outcome_of(func: Any, args: tuple[Any, ...]) -> Outcome:
    try:
        return func(*args), None
    except Exception as error:
        return None, error


def _take_outcome(future: asyncio.Future[Any], outcome: Outcome) -> None:
    result, error = outcome
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _wake(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.set_result(None)


def _end(task: asyncio.Task[Any]) -> None:
    coroutine: Any = task.get_coro()
    for _ in range(8):
        try:
            coroutine.close()
            return
        except (RuntimeError, ValueError):
            # Its clean-up wanted to wait for something: it is asked again until it has given up.
            continue
        except BaseException:
            return
