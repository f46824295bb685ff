"""The model of the comparison with peers: what a message orders, it calls, in the words that it is offered.

Everything follows from the request alone, so that each peer is asked the same.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.stub.answers import Answer, Call, Step, StubConversation, StubRequest, Text

COMMANDS = 3
LEDGER = "ledger"
ECHOED = "x"
ECHO = ("sh", "-c", f"echo {ECHOED}")
_ORDER = re.compile(r"Peers: (three|nothing|many (?P<calls>\d+)|sleep (?P<seconds>[\d.]+))$")


def three() -> str:
    """Orders three commands, one after the other."""
    return "Peers: three"


def nothing() -> str:
    """Orders an answer without a call."""
    return "Peers: nothing"


def many(calls: int) -> str:
    """Orders so many commands in one response."""
    return f"Peers: many {calls}"


def sleep(seconds: str) -> str:
    """Orders three commands of which the second one writes its begin and its end, and sleeps in between."""
    return f"Peers: sleep {seconds}"


def sleeper(seconds: str) -> tuple[str, ...]:
    """The second command of such an order."""
    return ("sh", "-c", f"echo begin >> {LEDGER}; sleep {seconds}; echo end >> {LEDGER}")


@dataclass(frozen=True, slots=True)
class PeersScript:
    """Answers as the last message orders."""

    name: str = "peers"

    def answer(self, request: StubRequest) -> Answer:
        talk = StubConversation.of(request.body)
        return Answer(_step(talk), talk.turn, request.digest)


def _step(talk: StubConversation) -> Step:
    order = _ORDER.search(talk.task)
    made = len(talk.calls)
    if order is None or order[1] == "nothing":
        return Step(items=(Text("Done."),))
    if order["calls"]:
        wanted = 0 if made else int(order["calls"])
        return Step(items=(_call(talk, ("true",)),) * wanted or (Text("Done."),))
    if made == COMMANDS:
        return Step(items=(Text("Done."),))
    slow = order["seconds"] is not None and made == 1
    return Step(items=(_call(talk, sleeper(order["seconds"]) if slow else ECHO),))


def _call(talk: StubConversation, command: Sequence[str]) -> Call:
    """A call of the tool for commands that is offered; the last of them is Dendro's and the harness's own."""
    line: dict[str, Any] = {"exec_command": {"cmd": shlex.join(command)}}
    line["shell_command"] = {"command": shlex.join(command)}
    name = next((tool for tool in line if tool in talk.tools), "shell")
    return Call(name, line.get(name, {"command": list(command)}))
