"""A task of a session, watched and answered from a terminal until it is over.

Everything that can happen (an event, a typed line, Ctrl-C, the end of our worker) arrives in
one queue and is handled one after the other, so handlers never interleave.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, assert_never

from orchestrator import requests
from orchestrator.broker.errors import BrokerError, UnknownSession
from orchestrator.broker.follow import EqCursor
from orchestrator.broker.records import SessionHead
from orchestrator.core.calls.ask import DoesNotAnswer
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId
from orchestrator.gateways.client import AWAITING, PAUSED, QUARANTINED, STANDING, Client, standing
from orchestrator.gateways.resume import open_requests, until_read
from orchestrator.gateways.submit import new_submission_id
from orchestrator.gateways.turn_follower import Aborted, Completed, End, Quarantined, Refused, TurnFollower
from orchestrator.protocol import ops
from orchestrator.protocol.events import (
    ExecCommandBegin,
    McpToolCallBegin,
    StreamError,
    TaskStarted,
    WarningEvent,
)
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import Submission
from orchestrator.requests.approvals import shown_as
from orchestrator.terminal.faults import ExitCode, Fault, deleted
from orchestrator.terminal.live import reminder
from orchestrator.terminal.streams import STDIN, Echo, Left, read_stdin
from orchestrator.terminal.text import one_line
from orchestrator.views import SetAside
from orchestrator.views.asked_requests import OpenRequests
from orchestrator.views.event import Event
from orchestrator.views.event_text import visible
from orchestrator.views.find import short_id
from orchestrator.views.sessions import not_taken, unserved
from orchestrator.views.workers import serving_pool
from orchestrator.wiring.open_deployment import Opened
from workers.companion import Companion, LostWorker

LINE_BYTES = 32 << 10
NEWS_OF_HOLDER = frozenset({TaskStarted, ExecCommandBegin, McpToolCallBegin, StreamError})
PATIENCE_S = 5.0
"""The wait without a worker after which a person is told so."""
PARK_S = 10.0
TYPED_IN_VAIN = "the secret question is not asked any more: what you typed was not sent"
NOT_SEEN = "others have settled the request that you answered: this is another one, and not answered yet"
NOT_SENT = "others have settled the request that you answered: what you typed was not sent"
SEEN_S = 1.0
"""For so long a line at a request may be the answer to the one that others settled: it was typed before."""
POLL_S = 0.05


def put_question(question: str, *, again: bool = False) -> None:
    """Asks; what was typed before the question is no answer to it, unless it is asked again."""
    import termios

    if not again:
        termios.tcflush(STDIN, termios.TCIFLUSH)
    sys.stdout.write(question)
    sys.stdout.flush()


async def read_answer() -> str | None:
    """The line that a person types, None at the end of input."""
    data = await read_stdin(LINE_BYTES)
    return data.decode("utf-8", "replace").strip() if data else None


def scrolls(event: Event) -> bool:
    """Whether an event moves a question up that stands at the terminal; what streams does it when it ends."""
    return visible(event.msg) and not event.type.endswith("_delta")


def at_a_terminal() -> bool:
    """Whether a person can be asked here."""
    return os.isatty(STDIN) and sys.stdout.isatty()


@record
class Typed:
    """A line from the terminal; None is the end of input."""

    text: str | None = field(repr=False)
    hidden: bool = False
    """The terminal did not show it: it is an answer to a secret question, or nothing at all."""


@record
class CtrlC:
    """The person wants it to stop."""


@record
class WorkerEnded:
    """The worker that we brought along is gone."""

    code: int


@record
class Broken:
    """Following or reading has failed for good."""

    error: BaseException


@record
class Silence:
    """A stretch of time without any event."""


Happening = Event | Typed | CtrlC | WorkerEnded | Broken | Silence


class View(Protocol):
    """The display for a person (or a program)."""

    def event(self, event: Event) -> None:
        """Shows an event."""

    def ask(self, request: requests.Request) -> str:
        """Shows a request for approval, and answers the text that was shown; empty if it shows none."""
        return ""

    def note(self, text: str) -> None:
        """Says something that is not the session's."""


@record
class Seat:
    """A person's place at a session: the client, the view, and whether questions can be answered."""

    client: Client
    session: SessionId
    view: View
    interactive: bool
    """Whether a person can be asked."""

    @property
    def name(self) -> str:
        """The session's id, short where a person reads it."""
        return short_id(self.session) if self.interactive else self.session

    @property
    def how_to_go_on(self) -> str:
        return f"go on with: dendro run --resume {self.name}"


@dataclass(slots=True)
class Conversation:
    """A task from its submission to its end."""

    seat: Seat
    task_id: str | None
    """None follows whatever task the session is at."""
    open_requests: OpenRequests = field(init=False)
    _queue: asyncio.Queue[Happening] = field(default_factory=asyncio.Queue)
    _running: set[asyncio.Task[None]] = field(default_factory=set)
    _prompt: Prompt | None = None
    """The request that is before the person, or was the last one."""
    _reader: asyncio.Task[None] | None = None
    left: Left = field(default_factory=Left)
    """Set when the person leaves without waiting for anything."""
    _unheard: bool = False
    """Whether a Ctrl-C was pressed that has not been dealt with."""
    interrupts: int = 0
    """The number of times that the person has asked for the end of the turn here."""
    _turn: TurnFollower | None = None
    _holder: str = ""
    _worker: Companion | None = None
    """The worker that we brought along."""
    _told_silence: bool = False
    _echo: Echo = field(default_factory=Echo)

    def __post_init__(self) -> None:
        self.open_requests = OpenRequests(self.seat.session)

    @contextmanager
    def hearing_ctrl_c(self) -> Iterator[None]:
        """From here on Ctrl-C is a wish about the turn, no longer the end of this process."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.press_ctrl_c)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def press_ctrl_c(self) -> None:
        """Hands on the wish to stop; while what reads the queue waits for Redis, the next one leaves."""
        if self._unheard:
            self.left.set()
            return
        self._unheard = True
        self._queue.put_nowait(CtrlC())

    async def run(self, cursor: EqCursor, worker: Companion | None) -> ExitCode:
        """Until the task is over, or the person leaves.

        Raises `Fault` if our worker ends before it, or if the session is deleted.
        """
        try:
            code: ExitCode | None = await self.left.unless(self._run(cursor, worker))
        except UnknownSession as error:
            raise Fault(deleted(self.seat.session)) from error
        finally:
            self._echo.set(hides=False)
        return self._leave() if code is None else code

    def _leave(self) -> ExitCode:
        self.seat.view.note(f"left; {self.seat.how_to_go_on}")
        return ExitCode.INTERRUPTED

    async def _run(self, cursor: EqCursor, worker: Companion | None) -> ExitCode:
        self._start(self._follow(cursor))
        self._worker = worker
        if worker is not None:
            self._start(self._watch(worker))
        try:
            if self.open_requests.first is not None:
                code = await self._asked(self.open_requests.first)
                if code is not None:
                    return code
            while True:
                code = await self._handle(await self._next())
                if code is not None:
                    return code
        finally:
            await self._stop()

    # ── what happens ──────────────────────────────────────────────────────────────────────────

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._queue.put_nowait(Broken(error))

    async def _stop(self) -> None:
        # Asked again until it works: on Python 3.11 a cancellation that meets the end of what
        # `wait_for` waited for is forgotten (bpo-37658), and the Redis client sends that way.
        while self._running:
            for task in self._running:
                task.cancel()
            await asyncio.wait(self._running, timeout=POLL_S)

    async def _follow(self, cursor: EqCursor) -> None:
        async for event in self.seat.client.follow(self.seat.session, cursor):
            self._queue.put_nowait(event)

    async def _watch(self, worker: Companion) -> None:
        self._queue.put_nowait(WorkerEnded(await worker.ended()))

    async def _read(self) -> None:
        text = await read_answer()
        self._queue.put_nowait(Typed(text, self._echo.hid_a_line()))

    async def _next(self) -> Happening:
        with suppress(TimeoutError):
            never = self._told_silence and self.seat.interactive
            async with asyncio.timeout(None if never else PATIENCE_S):
                return await self._queue.get()
        return Silence()

    async def _handle(self, happening: Happening) -> ExitCode | None:
        match happening:
            case Event():
                return await self._event(happening)
            case Typed(text, hidden) if text is not None and hidden and not self._asks_for_a_secret():
                # Somebody else has answered while it was typed: nobody else may read it.
                self.seat.view.note(TYPED_IN_VAIN)
                return None
            case Typed(text):
                return await self._typed(text)
            case CtrlC():
                code = await self._interrupt()
                self._unheard = False
                return code
            case WorkerEnded(code):
                raise LostWorker(code, self.seat.how_to_go_on)
            case Broken(error):
                raise error
            case Silence():
                return await self._silence()
            case _:
                assert_never(happening)

    def _followed(self) -> TurnFollower:
        if self._turn is None:
            self._turn = TurnFollower(self.seat.client, self.seat.session, self.task_id)
        return self._turn

    # ── events ────────────────────────────────────────────────────────────────────────────────

    async def _event(self, event: Event) -> ExitCode | None:
        if event.kind in NEWS_OF_HOLDER:
            await self._tell_holder()
        before = self.open_requests.first
        if before is not None and self.seat.interactive and scrolls(event):
            self._leave_question()
        self.seat.view.event(event)
        self.open_requests.receive(event)
        turn = self._followed()
        end = await turn.receive(event)
        after = self.open_requests.first
        if after is not None and after is not before:
            if before is not None:
                self.prompt(after).comes_instead()
            return await self._asked(after)
        if before is not None and after is None:
            self.prompt(before).was_settled()
        if after is not None and self.seat.interactive and scrolls(event):
            self._remind(after)
        if not self.seat.interactive and _tells_of_a_spent_budget(event):
            return await self._out_of_budget()
        return None if end is None else self._over(turn, end)

    def _over(self, turn: TurnFollower, end: End) -> ExitCode | None:
        match end:
            case Completed():
                return ExitCode.FAILED if turn.error else ExitCode.DONE
            case Aborted(reason):
                return ExitCode.INTERRUPTED if reason == "interrupted" else ExitCode.FAILED
            case Refused():
                return ExitCode.FAILED
            case Quarantined():
                raise SetAside(self.seat.session)
            case _:
                assert_never(end)

    async def _tell_holder(self) -> None:
        head = await self.seat.client.head(self.seat.session)
        holder = head.holder if head is not None else None
        if holder and holder != self._holder:
            self.seat.view.note(f"worker {holder}" + (" took over" if self._holder else ""))
            self._holder = holder

    async def _out_of_budget(self) -> ExitCode | None:
        """Leaves a session that waits for more budget: only a person can give it."""
        await self._parked()
        head = await self.seat.client.head(self.seat.session)
        if head is None or PAUSED not in await standing(self.seat.client, head):
            return None
        how = f"dendro budget {self.seat.name} adds some; {self.seat.how_to_go_on}"
        self.seat.view.note(f"waiting for more budget, which only a person can give; {how}")
        return ExitCode.WAITING

    async def _silence(self) -> ExitCode | None:
        head = await self.seat.client.head(self.seat.session)
        if not self.seat.interactive and head is not None and head.status in STANDING:
            code = await self._if_at_rest(head)
            if code is not None:
                return code
        if head is not None and not self._told_silence and (warning := unserved(head)):
            self.seat.view.note(warning)
            self._told_silence = True
        return None

    async def _if_at_rest(self, head: SessionHead) -> ExitCode | None:
        """Leaves a tree that goes on only if a person or a program does something, if only for an agent."""
        statuses = await standing(self.seat.client, head)
        if PAUSED in statuses:
            return await self._out_of_budget()
        if statuses & AWAITING.keys():
            where = "dendro approvals lists what is asked"
            what = "an answer, or the program that brings a tool"
            self.seat.view.note(f"waiting for {what}; {where}; {self.seat.how_to_go_on}")
            return ExitCode.WAITING
        if QUARANTINED in statuses:
            where = f"dendro tree {self.seat.name} shows it, dendro revoke ID lets it run again"
            self.seat.view.note(
                f"waiting for an agent that is quarantined; {where}; {self.seat.how_to_go_on}"
            )
            return ExitCode.WAITING
        return None

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    async def _asked(self, request: requests.Request) -> ExitCode | None:
        """Puts the oldest open request to the person, or leaves it to whoever comes later."""
        self.prompt(request).was_shown(self.seat.view.ask(request))
        if not self.seat.interactive and isinstance(request, requests.ServerRequest):
            self.seat.view.note(f"waiting for an answer; {await self._who_keeps_its_call()}")
            return ExitCode.WAITING
        if not self.seat.interactive:
            await self._parked()
            what = "an answer" if request.questions else "an approval"
            self.seat.view.note(f"waiting for {what}; {self.seat.how_to_go_on}")
            return ExitCode.WAITING
        self._put_question(request)
        return None

    async def _who_keeps_its_call(self) -> str:
        """Says what becomes of a server's question when this command leaves: its call needs its worker."""
        if self._worker is None:
            return f"dendro approvals lists what is asked; {self.seat.how_to_go_on}"
        return (
            "the call that asks ends with the worker of this command, and is in doubt then: answer at a "
            "terminal, or let `dendro worker` work, and use `dendro run --no-worker`; "
            f"{self.seat.how_to_go_on}"
        )

    def _leave_question(self) -> None:
        """Ends the question's line, so that the next output is shown below the question, not behind it."""
        sys.stdout.write("\n")
        sys.stdout.flush()

    def _remind(self, request: requests.Request) -> None:
        """Events have moved the question up: it is put again, with what it is about."""
        self.seat.view.note(reminder(request))
        put_question(self.prompt(request).text, again=True)
        self._echo.set(hides=self.prompt(request).hides)

    def prompt(self, request: requests.Request) -> Prompt:
        """The prompt of a request, with what was answered of it so far."""
        if self._prompt is None or self._prompt.request is not request:
            self._prompt = Prompt(request)
        return self._prompt

    def _asks_for_a_secret(self) -> bool:
        request = self.open_requests.first
        return request is not None and self.prompt(request).hides

    def _put_question(self, request: requests.Request) -> None:
        self._echo.set(hides=self.prompt(request).hides)
        put_question(self.prompt(request).text)
        if self._reader is None or self._reader.done():
            self._reader = self._start(self._read())

    async def _typed(self, text: str | None) -> ExitCode | None:
        if text is None:
            self.seat.view.note(f"left unanswered; {self.seat.how_to_go_on}")
            return ExitCode.WAITING
        request = self.open_requests.first
        if request is None:
            # It was decided elsewhere while somebody was typing.
            return None
        op = self.taken(request, text)
        if op is None:
            self._put_question(request)
            return None
        await self.submit(op)
        following = self.open_requests.first
        return await self._asked(following) if following is not None else None

    def taken(self, request: requests.Request, line: str) -> ops.Op | None:
        """The op that a typed line completes, which closes its request; None: more is to be typed."""
        prompt = self.prompt(request)
        op = prompt.take(line)
        if op is not None:
            self.open_requests.take_first()
            self._echo.set(hides=False)
        elif prompt.fault:
            self.seat.view.note(prompt.fault)
        return op

    async def _parked(self) -> None:
        """Returns when nobody holds the session any more: its worker may leave then."""
        client, session = self.seat.client, self.seat.session

        async def let_go() -> bool:
            head = await client.head(session)
            return head is None or head.holder is None

        await client.until([session], let_go, PARK_S)

    # ── what we send ──────────────────────────────────────────────────────────────────────────

    async def _interrupt(self) -> ExitCode | None:
        self.interrupts += 1
        if self.interrupts > 1:
            return self._leave()
        self.seat.view.note("interrupting the turn; Ctrl-C again leaves")
        await self.submit(ops.Interrupt())
        return None

    async def submit(self, op: ops.Op) -> str:
        """Sends an op under an id of its own, and answers the id."""
        id = new_submission_id()
        await self.seat.client.submit(self.seat.session, Submission(SubmissionId(id), op))
        return id


def _tells_of_a_spent_budget(event: Event) -> bool:
    told = event.told
    # The tree is told at 80 % as well.
    return isinstance(told, WarningEvent) and told.budget is not None and "is spent" in told.message


async def who_goes_on(found: Opened, session: SessionId, own: Companion | None) -> str:
    """Says who goes on with a task when this process leaves, and its worker `own` with it."""
    try:
        head = await found.broker.logs.head(session)
        serving = await serving_pool(found.broker.claims, head.pool) if head is not None else []
    except BrokerError as error:
        return f"who goes on with the task is not known: {error}"
    others = [name for name in serving if own is None or not own.is_named(name)]
    if head is None or not others:
        pool = "" if head is None else f" {head.pool}"
        return f"no other worker serves its pool{pool}: the task stands still until one does (dendro worker)"
    if head.holder in others:
        return f"the task goes on: worker {head.holder} has it"
    return f"the task goes on: a worker of its pool {head.pool} takes it from the one of this command"


async def take_up_requests(talk: Conversation, found: Opened, head: SessionHead) -> None:
    """Gives the conversation the requests that wait for the person; one that is answered waits for nobody."""
    if not await until_read(found, head):
        talk.seat.view.note(f"an answer is on its way, and {not_taken(head)}")
    for request in await open_requests(found, head):
        if request.answered_by == "program":
            talk.seat.view.note(one_line(f"waiting for a program: {request.subject}"))
        else:
            talk.open_requests.add(request)


# ── prompts ───────────────────────────────────────────────────────────────────────────────────────
# Lines that a person types at an open request, until they are an answer.
#
# A choice takes one line, and so does a plan: a decision, or what is to be changed. Questions take one
# each: the number of an option, or words of one's own.


PLANNED: Final = "Follow this plan? [y]es / [n]o, or what is to be changed: "
ACCEPTED: Final = frozenset({"ok", "okay"})
"""More lines that approve a plan; those that are none of its choices say what is to be changed."""
CANCEL: Final = "/cancel"


@dataclass(slots=True)
class Prompt:
    """An open request before a person, and what was answered of it so far."""

    request: requests.Request
    fault: str = ""
    """Why the last line was no answer; empty if it was, or if it is plain."""
    _given: dict[str, list[str]] = field(default_factory=dict)
    _place: int = 0
    _shown: ops.Shown | None = None
    _unseen_until: float = 0.0
    _meant_until: float = 0.0

    def comes_instead(self) -> None:
        """Notes that others have settled the request before it, which a person may be answering."""
        self._unseen_until = time.monotonic() + SEEN_S

    def was_settled(self) -> None:
        """Notes that others have settled it, and that none came in its place."""
        self._meant_until = time.monotonic() + SEEN_S

    def was_meant(self, line: str) -> bool:
        """Whether a line is the answer of somebody who did not see that others have settled it."""
        return time.monotonic() < self._meant_until and self.answers(line)

    def was_shown(self, text: str) -> None:
        """Notes what the terminal has shown of the request above the line that asks."""
        self._shown = shown_as(f"{text}\n{self.text}", "terminal", int(time.time() * 1000))

    @property
    def text(self) -> str:
        """The line that asks."""
        match self.request:
            case requests.PlanDecisionRequest():
                return PLANNED
            case requests.ServerRequest():
                return f"Answer? {self._choices}: "
            case (
                requests.CommandRequest()
                | requests.PatchRequest()
                | requests.ClientToolRequest()
                | requests.UnknownRequest()
            ):
                outside = "Outside the sandbox. " if self.request.outside else ""
                return f"{outside}Allow? {self._choices}: "
            case requests.ChoicesRequest() | requests.InputRequest():
                return self._question_text(self._question)
            case _:
                assert_never(self.request)

    @property
    def _choices(self) -> str:
        return " / ".join(f"[{each.short[:1]}]{each.short[1:]}" for each in self.request.choices)

    def _question_text(self, question: requests.Question) -> str:
        how = "your words"
        if question.secret:
            how = "a secret, which is not shown and not kept"
        elif question.options:
            numbers = "numbers with commas" if question.several else "a number"
            how = f"{numbers}, or your own words"
        left = ", empty to leave it out" if question.may_be_left else ""
        return f"{question.header}: {how}{left}; {CANCEL}: "

    @property
    def words(self) -> str:
        """The answers of one letter that it takes."""
        *some, last = (choice.short[:1] for choice in self.request.choices)
        return f"{', '.join(some)} or {last}" if some else last

    @property
    def _question(self) -> requests.Question:
        return self.request.questions[self._place]

    @property
    def hides(self) -> bool:
        """Whether the line that is typed now is a secret."""
        return bool(self.request.questions) and self._question.secret

    def answers(self, line: str) -> bool:
        """Whether a line is for this request, and no command; a secret may begin as a command does."""
        match self.request:
            case requests.PlanDecisionRequest():
                return not line.startswith(("/", "!"))
            case requests.ChoicesRequest() | requests.InputRequest():
                return self.hides or line.strip() == CANCEL or not line.startswith(("/", "!"))
            case _:
                return self._chosen(line) is not None

    def take(self, line: str) -> ops.Op | None:
        """The op that the line completes; None while more is to be typed."""
        self.fault = ""
        if time.monotonic() < self._unseen_until:
            self.fault = NOT_SEEN
            return None
        request = self.request
        match request:
            case requests.PlanDecisionRequest():
                return self._take_decision(request, line.strip())
            case requests.ChoicesRequest() | requests.InputRequest():
                return self._take_words(request, line)
            case _:
                choice = self._chosen(line)
                return None if choice is None else request.answer(requests.Given(choice.word), self._shown)

    def _chosen(self, line: str) -> requests.Choice | None:
        """The choice whose letter, or whose first word, is typed."""
        word = line.strip().lower()
        named = (
            each for each in self.request.choices if word in (each.short[:1], each.short.partition(" ")[0])
        )
        return next(named, None) if word else None

    def _take_words(
        self, request: requests.ChoicesRequest | requests.InputRequest, line: str
    ) -> ops.Op | None:
        if line.strip() == CANCEL:
            return request.replied(None)
        if not self._take_answer(line):
            return None
        try:
            return request.replied(self._given)
        except DoesNotAnswer as error:
            self.fault, self._place = str(error), 0
            self._given.clear()
            return None

    def _take_decision(self, request: requests.PlanDecisionRequest, line: str) -> ops.Op | None:
        """A decision on a plan; any other words say what is to be changed."""
        if not line:
            return None
        choice = self._chosen("yes" if line.lower() in ACCEPTED else line)
        if choice is None and len(line) == 1:
            self.fault = f"{line!r} is no answer to a plan: y, n, or what is to be changed, in words"
            return None
        try:
            return request.revised(line) if choice is None else request.answer(requests.Given(choice.word))
        except DoesNotAnswer as error:
            self.fault = str(error)
            return None

    def _take_answer(self, line: str) -> bool:
        """Notes the answer to the question that is asked; whether it was the last one."""
        question = self._question
        if line.strip():
            self._given[question.name] = question.texts(line)
        elif not question.may_be_left:
            return False
        self._place += 1
        return self._place == len(self.request.questions)
