"""Asking a person at the terminal whether a call may go on."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from orchestrator.cli.live import Live, command_text, variables_text
from orchestrator.cli.stdio import STDIN, read_stdin
from orchestrator.protocol import ops
from orchestrator.protocol.policy import ReviewDecision

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


def show_request(live: Live, request: Mapping[str, Any]) -> None:
    """Which agent asks for what, the command with its folder or the patch; and why."""
    who = f"agent {request['agent_id']} " if request.get("agent_id") else ""
    if request["type"] == "exec_approval_request":
        live.line(f"? {who}wants to run in {request['cwd']}", "bold yellow")
        if variables := variables_text(request):
            live.line(f"  with {variables}", "bold yellow")
        live.line(f"  {command_text(request['command'])}", "bold")
    else:
        live.line(f"? {who}wants to change files", "bold yellow")
        live.changes(request)
    for name, text in (("reason", "because: {}"), ("grant_root", "asks to write below {} from now on")):
        if request.get(name):
            live.line(f"  {text.format(request[name])}", "yellow")


def put_question() -> None:
    """Asks; what was typed before the question is no answer to it."""
    import termios

    termios.tcflush(STDIN, termios.TCIFLUSH)
    sys.stdout.write(QUESTION)
    sys.stdout.flush()


async def read_answer() -> str | None:
    """The line that a person types, None at the end of input."""
    data = await read_stdin(LINE_BYTES)
    return data.decode("utf-8", "replace").strip().lower() if data else None


def answer_op(request: Mapping[str, Any], decision: ReviewDecision) -> ops.Op:
    """The op that answers a request."""
    # Two agents of a tree may both have a call of this name.
    call, agent = str(request["call_id"]), request.get("agent_id")
    if request["type"] == "exec_approval_request":
        return ops.ExecApproval(id=call, decision=decision, agent_id=agent)
    return ops.PatchApproval(id=call, decision=decision, agent_id=agent)


def at_a_terminal() -> bool:
    """Whether somebody is there to be asked."""
    return os.isatty(STDIN) and sys.stdout.isatty()
