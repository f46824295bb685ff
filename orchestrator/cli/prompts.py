"""Asking a person at the terminal whether a call may go on."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from orchestrator.cli.live import Live
from orchestrator.cli.stdio import STDIN, read_stdin
from orchestrator.cli.text import one_line
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.views.event import Event
from orchestrator.views.event_text import command_text, variables_text, visible

QUESTION = "Allow? [y]es / [a]lways in this session / [n]o / [q]uit the turn: "
ANSWERS: Mapping[str, ReviewDecision] = {
    "y": ReviewDecision.APPROVED,
    "yes": ReviewDecision.APPROVED,
    "a": ReviewDecision.APPROVED_FOR_SESSION,
    "always": ReviewDecision.APPROVED_FOR_SESSION,
    "n": ReviewDecision.DENIED,
    "no": ReviewDecision.DENIED,
    "q": ReviewDecision.ABORT,
    "quit": ReviewDecision.ABORT,
}
LINE_BYTES = 4096
REMINDER_CHARS = 160


def show_request(live: Live, request: Mapping[str, Any]) -> None:
    """Which agent asks for what, the command with its folder or the patch; and why."""
    who = f"{live.agent(request['agent_id'])} " if request.get("agent_id") else ""
    if request["type"] == "exec_approval_request":
        live.line(f"? {who}wants to run in {one_line(request['cwd'])}", "bold yellow")
        if variables := variables_text(request):
            live.line(f"  with {one_line(variables)}", "bold yellow")
        live.line("  " + command_text(request["command"]).replace("\n", "\n  │ "), "bold")
    else:
        live.line(f"? {who}wants to change files", "bold yellow")
        live.changes(request)
    for name, text in (("reason", "because: {}"), ("grant_root", "asks to write below {} from now on")):
        if request.get(name):
            live.line(f"  {text.format(one_line(str(request[name])))}", "yellow")


def reminder(request: Mapping[str, Any]) -> str:
    """The open question in one line, for when other events have moved it out of sight."""
    who = f"agent {request['agent_id']}" if request.get("agent_id") else "the agent"
    if request["type"] == "exec_approval_request":
        wish = f"run: {command_text(request['command'])}"
    else:
        wish = f"change: {', '.join(request['changes'])}"
    shown = one_line(f"{who} wants to {wish}")
    return shown if len(shown) <= REMINDER_CHARS else shown[: REMINDER_CHARS - 1] + "…"


def put_question(*, again: bool = False) -> None:
    """Asks; what was typed before the question is no answer to it, unless it is asked again."""
    import termios

    if not again:
        termios.tcflush(STDIN, termios.TCIFLUSH)
    sys.stdout.write(QUESTION)
    sys.stdout.flush()


async def read_answer() -> str | None:
    """The line that a person types, None at the end of input."""
    data = await read_stdin(LINE_BYTES)
    return data.decode("utf-8", "replace").strip().lower() if data else None


def scrolls(event: Event) -> bool:
    """Whether an event moves a question up that stands at the terminal; what streams does it when it ends."""
    return visible(event.msg) and not event.type.endswith("_delta")


def at_a_terminal() -> bool:
    """Whether somebody is there to be asked."""
    return os.isatty(STDIN) and sys.stdout.isatty()
