"""A conversation at the terminal: one task after another with a session, as `dendro run` without a prompt.

Each line begins a task, or is what the running one is told next; approvals are asked in the line's own place.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from io import TextIOBase
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer, WordCompleter
from prompt_toolkit.data_structures import Size
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.patch_stdout import patch_stdout
from rich.console import Console

from orchestrator.broker.follow import BEGINNING, EqCursor
from orchestrator.broker.records import SessionHead
from orchestrator.core.frozen import record
from orchestrator.core.tree import ROOT
from orchestrator.gateways.client import Client
from orchestrator.gateways.resume import to_resume
from orchestrator.gateways.submit import new_submission_id
from orchestrator.gateways.turn_follower import End, TurnFollower
from orchestrator.private_files import make_folder, open_file, write_file
from orchestrator.protocol import events as e
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.plans import PlanRequest
from orchestrator.protocol.scalars import ModeKind
from orchestrator.protocol.submission import Submission
from orchestrator.requests import Request
from orchestrator.settings import Settings
from orchestrator.terminal.faults import ExitCode, Fault
from orchestrator.terminal.live import LiveView, hung, reminder
from orchestrator.terminal.notifications import Calling, notifications
from orchestrator.terminal.origin import Origin, changed_from_here, forked, image_items, typed_request
from orchestrator.terminal.streams import STDOUT
from orchestrator.terminal.text import one_line
from orchestrator.terminal.watched_turn import (
    NOT_SENT,
    Conversation,
    Seat,
    Typed,
    View,
    take_up_requests,
    who_goes_on,
)
from orchestrator.views.agent_past import page_before
from orchestrator.views.event import Event
from orchestrator.views.event_text import visible, whole_or_note
from orchestrator.wiring.open_deployment import Opened, new_session, opened
from workers.companion import Companion

if TYPE_CHECKING:
    from prompt_toolkit.output import Output

IDLE = "/help shows words; Ctrl-D leaves"
STOP = "/stop"
WOULD_STOP = f"the agent works, and this would stop it: {STOP} first, or wait"
HIDDEN = "(not shown)"
PAST = 20
"""Events that a conversation which goes on shows first."""
WORDS: Mapping[str, str] = {
    "/help": "shows these words",
    "/stop": "stops what the agent does; /stop TEXT stops it, and says TEXT",
    "/name TEXT": "names the session",
    "/review [WHAT]": "reviews what is not committed, or against a BRANCH, or a SHA, or by words of yours",
    "/plan GOAL": "plans: the agent only reads, and puts a plan to you",
    "/quit": "leaves, as /detach and Ctrl-D do; what runs goes on, and you read who does it",
    "!COMMAND": "runs COMMAND in the session's folder and sandbox; the agent reads what came of it",
    "//TEXT": "says /TEXT",
}
BEGINNING_WORDS = frozenset({"/review", "/plan"})
"""Words that begin a task, and so may begin a session."""
LEAVING = frozenset({"/quit", "/detach"})
LATER_WORDS = frozenset({"/stop", "/name"})
"""Words about a session, which mean nothing before the line that makes one."""
NO_GOAL = "/plan GOAL: say what is to be planned"


async def _unknown() -> str:
    return "what runs is not interrupted"


@dataclass(slots=True, kw_only=True)
class Chat(Conversation):
    """A conversation that does not end with its task."""

    editor: Editor
    goes_on: Callable[[], Awaitable[str]] = _unknown
    """Says who goes on with a task that is left at work."""
    images: tuple[Path, ...] = ()
    """Images that the next message to begin a task takes along."""
    _mine: set[str] = field(default_factory=set)
    """Inputs that were typed here."""
    _busy: set[str] = field(default_factory=set)
    """Tasks that were begun and have not ended."""
    _handed: set[str] = field(default_factory=set)
    """Inputs that were typed here to begin a task, until the session says anything of them."""
    _since: float = field(default_factory=time.monotonic)
    """The time at which the task was begun, as far as was seen here."""
    _leaving: bool = False
    """Ctrl-C was pressed, and nothing else since."""

    async def begin(self, busy: bool) -> None:
        """From here on lines are read; `busy`: a task runs already."""
        if busy:
            self._busy.add("")
        self.editor.bar = self._bar
        self._reader = self._start(self._read())

    @property
    def _works(self) -> bool:
        """Whether a task runs, or one that was typed here waits for its worker: more input would end it."""
        return bool(self._busy or self._handed)

    # ── lines ─────────────────────────────────────────────────────────────────────────────────

    async def _read(self) -> None:
        while True:
            try:
                line = await self.editor.read()
            except Interrupted:
                self.press_ctrl_c()
                continue
            self._queue.put_nowait(Typed(line, self.editor.hid))
            if line is None:
                return

    async def _typed(self, text: str | None) -> ExitCode | None:
        if text is None or text.strip() in LEAVING:
            self.seat.view.note(await self._farewell())
            return ExitCode.DONE
        self._leaving = False
        line = text.strip()
        request = self.open_requests.first
        if line:
            self.seat.view.note(f"{PROMPT}{HIDDEN if self._asks_for_a_secret() else line}")
        if request is not None and self.prompt(request).answers(line):
            if (op := self.taken(request, line)) is not None:
                await self.submit(op)
                return await self._asked_next()
            self._put_question(request)
        elif request is not None and not line.startswith(("/", "!")):
            self.seat.view.note(f"answer the question first: {self.prompt(request).words}; or {STOP}")
        elif line and self._prompt is not None and self._prompt.was_meant(line):
            self.seat.view.note(NOT_SENT)
        elif line:
            await self.say(line)
        return None

    async def say(self, line: str) -> None:
        """Executes a line that answers no question."""
        word, _, rest = line.partition(" ")
        if line.startswith("!"):
            await self._run_command(line[1:])
        elif word == STOP and rest.strip():
            await self._tell(rest.strip(), interrupt=True)
        elif word == STOP:
            await self._stop_the_turn()
        elif word == "/plan":
            await self._plan(rest.strip())
        elif word == "/name":
            await self.submit(ops.SetThreadName(name=rest))
        elif word == "/review":
            await self._review(rest)
        elif is_word(line):
            show_words(self.seat.view, word)
        else:
            await self._tell(line.removeprefix("/"), interrupt=False)

    async def _stop_the_turn(self) -> None:
        if not self._works:
            self.seat.view.note(nothing_to_stop(self.open_requests.first, self.seat.name))
        await self.submit(ops.Interrupt())

    async def _run_command(self, command: str) -> None:
        """Runs a command of the person's own; the agent is not stopped for it."""
        if self._works:
            self.seat.view.note(WOULD_STOP)
        elif command.strip():
            await self._begin_with(ops.RunUserShellCommand(command=command.strip()))

    async def _plan(self, goal: str) -> None:
        """Begins a planning session; the agent is not stopped for it."""
        if self._works:
            self.seat.view.note(WOULD_STOP)
        elif not goal:
            self.seat.view.note(NO_GOAL)
        else:
            await self._begin_with(ops.Plan(plan_request=PlanRequest(goal=goal)))

    async def _tell(self, text: str, *, interrupt: bool) -> None:
        """A message to an agent at work waits until its turn is over, or stops it first."""
        if self._works:
            self._mine.add(await self.submit(ops.MessageAgent(agent_id=ROOT, text=text, interrupt=interrupt)))
        else:
            await self.start(text)

    async def _review(self, what: str) -> None:
        """A review begins a task; input that came upon a running one would end it unasked."""
        if self._works:
            self.seat.view.note("no review yet: the agent works; wait for it, or end that with /stop")
        else:
            await self._begin_with(ops.Review(review_request=typed_request(what)))

    async def start(self, text: str) -> None:
        """Begins a task; the first one has the images of the command line."""
        images = await image_items(self.seat.client, self.seat.session, self.images)
        self.images = ()
        await self._begin_with(ops.UserInput(items=(TextInput(text=text), *images)))

    async def _begin_with(self, op: ops.Op) -> None:
        """Hands in what begins a task; its worker may take its time, and an event may come at once."""
        id = new_submission_id()
        self._handed.add(id)
        if isinstance(op, ops.UserInput):
            self._mine.add(id)
        try:
            await self.seat.client.submit(self.seat.session, Submission(SubmissionId(id), op))
        except BaseException:
            self._handed.discard(id)
            raise

    async def _farewell(self) -> str:
        if self.open_requests:
            return "left unanswered"
        return f"left; {await self.goes_on()}" if self._works else "left"

    async def _interrupt(self) -> ExitCode | None:
        if self._leaving:
            self.seat.view.note(await self._farewell())
            return ExitCode.INTERRUPTED
        self._leaving = True
        if self._works:
            self.seat.view.note("interrupting the turn; Ctrl-C again leaves")
            await self.submit(ops.Interrupt())
        else:
            self.seat.view.note("Ctrl-C again leaves, and so does Ctrl-D")
        return None

    # ── events ────────────────────────────────────────────────────────────────────────────────

    async def _event(self, event: Event) -> ExitCode | None:
        self._handed.discard(event.id)
        match event.told:
            case e.TaskStarted():
                self._busy.add(event.id)
                self._leaving, self._since = False, time.monotonic()
            case e.UserMessage(message=prompt) if event.id not in self._mine:
                self.seat.view.note(hung(f"» {whole_or_note(prompt)}"))
            case e.ThreadNameUpdated(thread_name=name):
                self.seat.view.note(hung(f"the session is named {name}"))
            case _ if event.kind in e.TURN_ENDS:
                self._busy.clear()
            case _:
                pass
        code = await Conversation._event(self, event)  # a class with slots is not the one that super() means
        if event.kind in e.TURN_ENDS:
            self.seat.view.note(f"— {time.monotonic() - self._since:.1f} s")
        if not self.open_requests:
            self.editor.ask("")
        self.editor.draw()
        return code

    def _over(self, turn: TurnFollower, end: End) -> ExitCode | None:
        """The end of a task is not the end of the conversation."""
        return None

    # ── questions ─────────────────────────────────────────────────────────────────────────────

    def _put_question(self, request: Request) -> None:
        prompt = self.prompt(request)
        self.editor.ask(prompt.text, hides=prompt.hides)

    def _leave_question(self) -> None:
        """Events are drawn above the question."""

    def _remind(self, request: Request) -> None:
        """The question stands where it stood."""

    async def _asked_next(self) -> ExitCode | None:
        following = self.open_requests.first
        if following is None:
            self.editor.ask("")
            return None
        return await self._asked(following)

    def _bar(self) -> str:
        if (request := self.open_requests.first) is not None:
            others = len(self.open_requests) - 1
            return reminder(request) + (f"   (and {others} more)" if others else "")
        return "the agent works; Ctrl-C interrupts it" if self._works else IDLE


def nothing_to_stop(request: Request | None, name: str) -> str:
    """The note for a `/stop` while session `name` rests; `request` is the one before the person."""
    agent = 0 if request is None else request.agent_id or 0
    if not agent:
        return "nothing runs that could be stopped"
    return f"the root rests; agent {agent} is stopped by: dendro interrupt {name} {agent}"


def is_word(line: str) -> bool:
    """Whether a line is for this program, and not for the agent."""
    return line.startswith("/") and not line.startswith("//")


def show_words(view: View, word: str) -> None:
    """Says what may be typed."""
    if word in LATER_WORDS:
        view.note(f"{word} is for a session, and your first message makes one:")
    elif word != "/help":
        view.note(f"{word} means nothing here:")
    for name, meaning in WORDS.items():
        view.note(f"  {name:<14} {meaning}")


# ── from the first line to the last ───────────────────────────────────────────────────────────────


@record
class Opening:
    """The command line's arguments of a conversation."""

    origin: Origin
    images: tuple[Path, ...]
    override: ops.OverrideTurnContext | None
    """Other settings for a session that goes on."""
    mode: ModeKind | None = None
    """The collaboration mode from the next turn on; None leaves it as it is."""


async def converse(settings: Settings, opening: Opening, worker: Companion | None) -> ExitCode:
    """A conversation until the person leaves; the worker of one that goes on starts after the first look."""
    with above_the_line() as console:
        view = LiveView(console, streaming=True)
        editor = Editor(settings.home / "history", tuple(WORDS), settings.host.environ.get("TERM"))
        editor.bar = lambda: IDLE
        async with opened(settings, view.note, insists=True) as found:
            client = found.client(via="terminal")
            if opening.origin.is_new:
                first = await first_line(editor, view)
                if first is None:
                    return ExitCode.DONE
                session, cursor, head = await new_session(settings, client), BEGINNING, None
            else:
                head, first = await _to_go_on_with(found, client, opening.origin, view), None
                session, cursor = head.session, EqCursor.at(head)
                if worker is not None and opening.origin.resume is not None:
                    worker.start()
                await _show_past(found, head, console)
            calling = notifications(settings, session, view.note, head)
            seat = Seat(client, session, Calling(view, calling), interactive=True)
            heir = partial(who_goes_on, found, session, worker)
            chat = Chat(seat, None, editor=editor, images=opening.images, goes_on=heir)
            view.note(f"session {chat.seat.name}")
            code = await _hold(chat, found, opening, (first, head, cursor), worker)
            at_rest = await chat.left.unless(client.head(session))
            gone = at_rest is None and not chat.left.is_set()
            await chat.left.unless(calling.end())
    view.end(chat.seat.name, code, at_rest, gone=gone)
    return code


async def _hold(
    chat: Chat,
    found: Opened,
    opening: Opening,
    where: tuple[str | None, SessionHead | None, EqCursor],
    worker: Companion | None,
) -> ExitCode:
    first, head, cursor = where
    with chat.hearing_ctrl_c():
        if head is not None:
            await chat.left.unless(take_up_requests(chat, found, head))
            head = await chat.seat.client.head(head.session)
        override = await changed_from_here(found, chat.seat.session, opening.override, opening.mode)
        if override is not None:
            await chat.submit(override)
        if first is not None and (first.startswith("!") or is_word(first)):
            await chat.say(first)
        elif first is not None:
            await chat.start(first.removeprefix("/"))
        if not chat.left.is_set():
            await chat.begin(busy=head is not None and not head.at_rest)
        return await chat.run(cursor, worker)


async def first_line(editor: Editor, view: View) -> str | None:
    """The person's first line; None if they leave. A session is created only after it."""
    leaving = False
    while True:
        try:
            line = await editor.read()
        except Interrupted:
            if leaving:
                return None
            leaving = True
            view.note("Ctrl-C again leaves, and so does Ctrl-D")
            continue
        leaving, line = False, "/quit" if line is None else line.strip()
        if line in LEAVING:
            return None
        if line == "/plan":
            view.note(NO_GOAL)
        elif is_word(line) and line.split()[0] not in BEGINNING_WORDS:
            show_words(view, line.split()[0])
        elif line.removeprefix("!").removeprefix("/").strip():
            view.note(f"{PROMPT}{line}")
            return line


async def _to_go_on_with(found: Opened, client: Client, origin: Origin, view: View) -> SessionHead:
    if (id := origin.resume) is None:
        return await forked(found, client, origin, view.note)
    head = await to_resume(found, id)
    if head.agent_id != ROOT:
        raise Fault(
            f"session {head.session} is agent {head.agent_id} of a tree: dendro attach {id}", ExitCode.USAGE
        )
    return head


async def _show_past(found: Opened, head: SessionHead, console: Console) -> None:
    view = LiveView(console, streaming=False, whole=True)
    for event in (await page_before(found, head, PAST, visible)).events:
        view.event(event)


# ── editor ────────────────────────────────────────────────────────────────────────────────────────
# The line that a person types at a terminal while an agent's events are drawn above it.
#
# Editing and history are prompt_toolkit's. What is asked stands in the line's own place and in the bar
# above it, so that no event moves it out of sight. Knows neither sessions nor ops.


HISTORY_BYTES = 1 << 20
"""Of the history file; the older half goes when it is passed."""
PROMPT = "› "


class Interrupted(Exception):
    """Ctrl-C was pressed; nothing was typed."""


class History(FileHistory):
    """Lines of this and earlier conversations, in a file that only the user may read."""

    def __init__(self, file: Path, worth: Callable[[str], bool]) -> None:
        _prepare(file)
        super().__init__(str(file))
        self._worth = worth

    def append_string(self, string: str) -> None:
        if self._worth(string):
            super().append_string(string)


def _prepare(file: Path) -> None:
    make_folder(file.parent)
    os.close(open_file(file, os.O_APPEND | os.O_WRONLY))
    data = file.read_bytes()
    if len(data) > HISTORY_BYTES:
        # An entry begins with an empty line: what is kept begins with one.
        rest = data[-HISTORY_BYTES // 2 :]
        write_file(file, rest[rest.find(b"\n\n") + 1 :])


class PressedKeys(Vt100Input):
    """Keys as they are pressed, also while an event is drawn above the line.

    prompt_toolkit gives the terminal back to the kernel for that moment: a Ctrl-D that is pressed then is
    the end of a file that nobody reads, and is lost.
    """

    def cooked_mode(self) -> AbstractContextManager[None]:
        return nullcontext()


class Editor:
    """Reads lines, one after another."""

    def __init__(self, history: Path, words: Sequence[str], term: str | None) -> None:
        self.question = ""
        """The question that is open now, on one line; empty if a message may be typed."""
        self.bar: Callable[[], str] = str
        """The line above the input; it is erased with the input."""
        self.hid = False
        """Whether the line that was read last was not shown while it was typed."""
        self._hides = False
        self._draft = ""
        self._session: PromptSession[str] = PromptSession(
            message=self._message,
            history=History(history, lambda line: not self.question and bool(line.strip())),
            completer=_slash_words(words),
            complete_while_typing=False,
            erase_when_done=True,
            is_password=Condition(lambda: self._hides),
            input=PressedKeys(sys.stdin),
            output=_output(term),
            reserve_space_for_menu=2,
        )

    async def read(self) -> str | None:
        """The next line, None at the end of input; raises `Interrupted`."""
        self.hid = self._hides
        try:
            return await self._session.prompt_async(default=self._took_draft(), handle_sigint=False)
        except KeyboardInterrupt:
            raise Interrupted from None
        except EOFError:
            return None

    def _message(self) -> FormattedText:
        columns = _size().columns
        bar = one_line(self.bar())
        shown = bar if len(bar) < columns else bar[: max(0, columns - 2)] + "…"
        style = "reverse" if self.question else "fg:ansibrightblack"
        return FormattedText([(style, shown), ("", f"\n{self.question or PROMPT}")])

    def ask(self, question: str, *, hides: bool = False) -> None:
        """Puts a question, or none: what was typed before it is no answer, and is kept for later.

        With `hides` the answer is not shown.
        """
        self._hides = hides
        if question == self.question:
            self.hid = self.hid or hides
            return
        # The line begins anew: nothing of it was typed unseen before.
        self.hid = hides
        buffer = self._session.default_buffer
        if not self.question:
            self._draft = buffer.text
        self.question = question
        buffer.text = "" if question else self._took_draft()
        buffer.cursor_position = len(buffer.text)
        self.draw()

    def draw(self) -> None:
        """Draws the line and the bar again."""
        if self._session.app.is_running:
            self._session.app.invalidate()

    def _took_draft(self) -> str:
        if self.question:
            return ""
        draft, self._draft = self._draft, ""
        return draft


def _slash_words(words: Sequence[str]) -> Completer:
    return WordCompleter(list(words), sentence=True)


def _output(term: str | None) -> Output:
    """Asks the terminal for no report of its cursor: not every one answers."""
    assert sys.__stdout__ is not None
    return Vt100_Output(sys.__stdout__, _size, term=term, enable_cpr=False)


def _size() -> Size:
    columns, rows = os.get_terminal_size(STDOUT)
    return Size(rows=rows or 24, columns=columns or 80)


class _WholeLines(TextIOBase):
    """Passes on whole lines: a part of one would stand where the person types."""

    def __init__(self) -> None:
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        if lines:
            sys.stdout.write("".join(f"{line}\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        sys.stdout.flush()

    def isatty(self) -> bool:
        return True


@contextmanager
def above_the_line() -> Iterator[Console]:
    """A console whose lines are drawn above the line that is typed."""
    with patch_stdout(raw=True):
        # rich asks `file` for its encoding, and this one has that of the terminal.
        yield Console(file=_WholeLines(), force_terminal=True, highlight=False)  # type: ignore[arg-type]
