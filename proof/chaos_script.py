"""The model of a chaos run: asked to run something, it runs a program that writes down its begin and end."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.stub.answers import Answer, Call, Step, StubRequest, Text

_ASKED = re.compile(r"Run (\S+) for (\S+) s")
LEDGER, PROGRAM = "done.log", "work.sh"
SOURCE = f"""tell() {{ echo "$1 $2 $$ $(cut -d' ' -f1 /proc/uptime)" >> {LEDGER}; }}
tell begin "$1"
sleep "$2"
tell end "$1"
"""
"""The program that commands run: a file, for a script in an argument would be read before it is judged."""


def order(id: str, seconds: float) -> str:
    """The task of a turn."""
    return f"Run {id} for {seconds} s."


@dataclass(frozen=True, slots=True)
class ChaosScript:
    """Everything follows from the request alone: a person's message, and whether it was acted on."""

    name: str = "chaos"

    def answer(self, request: StubRequest) -> Answer:
        items = request.body.get("input") or ()
        return Answer(self._step(items), 1 + sum("call_id" in item for item in items), request.digest)

    def _step(self, items: Sequence[Mapping[str, Any]]) -> Step:
        asked = _ASKED.search(str(items[-1].get("content"))) if items[-1].get("role") == "user" else None
        if asked is None:
            return Step(items=(Text("Done."),))
        return Step(items=(Call("shell", {"command": ["sh", PROGRAM, *asked.groups()]}),))
