"""Calling a person: their program is started, and their terminal makes a sound.

Told what a session's events are, and knows nothing of where they come from. A program that hangs is
killed; one that cannot be started is named once.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_never

from orchestrator import requests
from orchestrator.broker.records import SessionHead
from orchestrator.config_keys import FrontSettings
from orchestrator.protocol.events import ExitedReviewMode, TaskComplete, TurnAborted, UserMessage
from orchestrator.requests.approvals import command_text
from orchestrator.sandbox.trusted_files import find_named_program, not_found, own_environment
from orchestrator.settings import Settings
from orchestrator.terminal.live import JsonView, LiveView
from orchestrator.terminal.text import one_line
from orchestrator.views.event import Event
from orchestrator.views.event_text import review_verdict_text, whole_or_note

TURN_COMPLETE, APPROVAL = "agent-turn-complete", "approval-requested"
PROGRAM_S = 5.0
"""So long may the person's program run."""
MOST_AT_ONCE = 8
"""Programs at once; an event that comes while so many run starts none."""
TEXT_CHARS, SHORT_CHARS, MOST = 4_000, 200, 20
"""Of each text, and of how many paths or questions."""
ARGUMENT_BYTES = 120_000
"""Of an argument with all texts: it holds 128 KiB (Linux, execve), and a character may take twelve bytes."""
MOST_MESSAGES, MESSAGE_CHARS = 4, 1_000
SHOWN_CHARS = 120
BEL = "\a"
KNOW_OSC9 = frozenset({"iTerm.app", "WezTerm", "ghostty", "WarpTerminal", "rio"})
"""`TERM_PROGRAM` of terminals that show OSC 9 as a notification."""


@dataclass(slots=True)
class Notifications:
    """The notifications of a front process for the moments when its session needs the person."""

    settings: FrontSettings
    thread_id: str
    cwd: str
    bell: Callable[[str], None] | None
    """Writes to the terminal; None without one."""
    complain: Callable[[str], None]
    osc9: bool = False
    _inputs: dict[str, list[str]] = field(default_factory=dict)
    """The texts that began a turn, until it ends."""
    _verdicts: dict[str, str] = field(default_factory=dict)
    """Outcomes of reviews, until their tasks are over."""
    _running: set[asyncio.Task[None]] = field(default_factory=set)
    _complained: bool = False

    def receive(self, event: Event) -> None:
        """Takes an event of the session; one that is read from its past has no cursor and calls nobody."""
        if event.cursor is None:
            return
        if event.type in requests.TO_PEOPLE:
            wanted = asked(requests.request_of(event.msg))
            words = "the agent asks" if "questions" in wanted else "approval requested"
            self._call(APPROVAL, event.id, wanted, f"{words}: {_wanted(wanted)}")
            return
        match event.told:
            case UserMessage(message=prompt):
                said = self._inputs.setdefault(event.id, [])
                said += [_cut(whole_or_note(prompt), MESSAGE_CHARS)][: MOST_MESSAGES - len(said)]
            case TaskComplete(last_agent_message=last):
                told = {
                    "input-messages": self._inputs.pop(event.id, []),
                    "last-assistant-message": None if last is None else _cut(last),
                }
                line = self._verdicts.pop(event.id, None) or last or "the turn is complete"
                self._call(TURN_COMPLETE, event.id, told, line)
            case ExitedReviewMode(review_output=output) if output is not None:
                self._verdicts[event.id] = f"review: {review_verdict_text(output)}"
            case _ if event.kind is TurnAborted:
                self._inputs.pop(event.id, None)
            case _:
                pass

    def _call(self, type: str, turn: str, told: Mapping[str, Any], line: str) -> None:
        if self.settings.notify and len(self._running) < MOST_AT_ONCE:
            value = {"type": type, "thread-id": self.thread_id, "turn-id": turn, "cwd": self.cwd, **told}
            task = asyncio.create_task(self._run(_argument(value)))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        if self.bell is not None and type in self.settings.notifications:
            # What begins with a number is no text but an order to some terminals: 9;4 moves a progress bar.
            words = f" {line}" if line[:1].isdigit() else line
            self.bell(f"\x1b]9;{one_line(words)[:SHOWN_CHARS]}{BEL}" if self.osc9 else BEL)

    async def _run(self, argument: str) -> None:
        name, *words = self.settings.notify
        try:
            path, work = ":".join(os.get_exec_path()), (Path(self.cwd),)
            if (found := find_named_program(name, path, work)) is None:
                raise FileNotFoundError(f"it {not_found(name)}: install it, or name it by its whole path")
            program = await asyncio.create_subprocess_exec(
                found,
                *words,
                argument,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env=own_environment(self.settings.notify, path, work),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            if not self._complained:
                self._complained = True
                self.complain(f"notify: {self.settings.notify[0]} cannot be started: {error}")
            return
        try:
            async with asyncio.timeout(PROGRAM_S):
                await program.wait()
        except TimeoutError:
            if not self._complained:
                self._complained = True
                self.complain(f"notify: {self.settings.notify[0]} was killed after {PROGRAM_S:g} s")
        finally:
            if program.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(program.pid, signal.SIGKILL)
                await program.wait()

    async def end(self) -> None:
        """Waits for the programs that still run, which is not long."""
        while self._running:
            await asyncio.wait(self._running)


def asked(request: requests.Request) -> dict[str, Any]:
    """The subject of an approval, for a program."""
    told: dict[str, Any] = {"call-id": _cut(request.call_id, SHORT_CHARS)}
    if request.agent_id:
        told["agent-id"] = request.agent_id
    match request:
        case requests.ChoicesRequest() | requests.InputRequest():
            told["questions"] = [_cut(each.question, MESSAGE_CHARS) for each in request.questions[:MOST]]
        case requests.PlanDecisionRequest():
            told["plan"] = _cut(request.subject, MESSAGE_CHARS)
        case requests.ServerRequest() | requests.ClientToolRequest() | requests.UnknownRequest():
            told["questions"] = [_cut(request.subject, MESSAGE_CHARS)]
        case requests.CommandRequest():
            told["command"] = _cut(command_text(request.command))
            told["cwd"] = _cut(request.cwd or "", MESSAGE_CHARS)
        case requests.PatchRequest():
            told["paths"] = [_cut(path, SHORT_CHARS) for path in request.all_paths[:MOST]]
        case _:
            assert_never(request)
    if request.where:
        told["where"] = _cut(request.where)
    if reasons := "; ".join(request.reasons):
        told["reason"] = _cut(reasons)
    return told


def _argument(value: Mapping[str, Any]) -> str:
    """The value as an argument of a program: with shorter texts, where all of them together are too long."""
    most = TEXT_CHARS
    # ASCII alone: a lone surrogate has no other form that a program could be given.
    while len(text := json.dumps(value)) > ARGUMENT_BYTES:
        most //= 2
        value = {name: _shortened(each, most) for name, each in value.items()}
    return text


def _shortened(value: Any, most: int) -> Any:
    if isinstance(value, list):
        return [_shortened(each, most) for each in value]
    return _cut(value, most) if isinstance(value, str) else value


def _wanted(told: Mapping[str, Any]) -> str:
    if "questions" in told:
        return " · ".join(told["questions"])
    if "plan" in told:
        return f"the plan {told['plan']}"
    return str(told["command"]) if "command" in told else ", ".join(told["paths"])


def _cut(text: str, most: int = TEXT_CHARS) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def notifications(
    settings: Settings, thread_id: str, complain: Callable[[str], None], head: SessionHead | None
) -> Notifications:
    """The notifications of this process, for a session, which may work in another folder than this one."""
    bell = _to_terminal if sys.stdout.isatty() else None
    cwd = (head and head.summary.get("cwd")) or str(settings.session_defaults.cwd)
    return Notifications(settings.front, thread_id, cwd, bell, complain, knows_osc9(settings))


def _to_terminal(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def knows_osc9(settings: Settings) -> bool:
    """Whether to write OSC 9. A multiplexer swallows it, and passes a bell on."""
    method, environ = settings.front.notification_method, settings.host.environ
    if method != "auto":
        return method == "osc9"
    if environ.get("TMUX") or environ.get("STY"):
        return False
    return environ.get("TERM_PROGRAM") in KNOW_OSC9 or environ.get("TERM") == "xterm-kitty"


class Calling:
    """A view that also notifies the person's program and terminal when the person is needed."""

    def __init__(self, view: LiveView | JsonView, notifications: Notifications) -> None:
        self._view = view
        self._notifications = notifications

    def event(self, event: Event) -> None:
        self._view.event(event)
        self._notifications.receive(event)

    def ask(self, request: requests.Request) -> str:
        return self._view.ask(request)

    def note(self, text: str) -> None:
        self._view.note(text)
