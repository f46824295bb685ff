"""Recordings of one client over several connections, split into them, with the model that each was held with.

Excerpts begin in the middle of a sitting: turns before them are held first, and not compared.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.doors.comparator import Message
from tests.doors.conversation import RECORDINGS

THOUGHT = {"reasoning": "**Thinking**"}
GREETING = {"items": [THOUGHT, {"text": "Hello TUI from the mock."}]}
ALPHA = {"items": [THOUGHT, {"text": "Greetings from the far side."}]}
_CURSORS = re.compile(r'"(?:turns|items)BackwardsCursor": ("\{(?:[^"\\]|\\.)*")')
SLOW = "until test -e go; do sleep 0.05; done; echo d"
"""A command that ends when the test makes the file `go`, in the place of one that took six seconds."""
OUTSIDE = "echo x > @OUTSIDE@/f; echo ran"


def shell(call_id: str, command: str, reason: str | None = None) -> Message:
    """A response that runs a command, outside of the sandbox if a reason is given."""
    more = {} if reason is None else {"with_escalated_permissions": True, "justification": reason}
    args = {"command": ["bash", "-lc", command], **more}
    return {"items": [{"call": "shell", "args": args, "call_id": call_id}]}


def says(text: str) -> Message:
    return {"items": [{"text": text}]}


@dataclass(frozen=True, slots=True)
class Sitting:
    """A recording: the model's answers to each thread, in their order, and the prompts of turns before it."""

    recording: str
    model: Sequence[Message] = ()
    before: Sequence[str] = ()


DELTA = [shell("d1", SLOW), says("Delta is done.")]
ASKED = shell("b1", OUTSIDE, "May I write outside?")
SITTINGS = (
    Sitting("python_sdk/rpc.ndjson"),
    Sitting(
        "terminal/first_sitting.ndjson",
        [GREETING, shell("c1", OUTSIDE, "Write outside?"), says("Approved and done.")],
    ),
    Sitting("terminal/connection_cut_in_a_turn.ndjson", [ALPHA, *DELTA], ["ALPHA hello"]),
    Sitting(
        "terminal/resumed_while_asked.ndjson",
        [ALPHA, *DELTA, ASKED, says("Beta approved and done.")],
        ["ALPHA hello", "DELTA long"],
    ),
)


def model_of(sitting: Sitting, outside: str) -> list[Message]:
    """The answers of the model, in the order of its requests."""
    model = list(sitting.model) or _ruled(sitting)
    found: list[Message] = json.loads(json.dumps(model).replace("@OUTSIDE@", outside))
    return found


def _ruled(sitting: Sitting) -> list[Message]:
    """The answers of rules: for each prompt those of its first word, up to the one that ends the turn."""
    folder = (RECORDINGS / sitting.recording).parent
    rules = json.loads((folder / "model.json").read_text())["rules"]
    found: list[Message] = []
    for line in _lines(sitting):
        message = line.get("client", {})
        if message.get("method") == "turn/start":
            word = message["params"]["input"][0]["text"].split()[0]
            fitting = [rule["reply"] for rule in rules if rule["when"]["last_user"] == word]
            found += fitting
        elif message.get("method") == "turn/interrupt":
            # The answer behind the command that was stopped is never asked for.
            found.pop()
    return found


@dataclass(slots=True)
class Connection:
    """The lines of one connection; the first `unseen` of them were made here."""

    lines: list[Message] = field(default_factory=list)
    unseen: int = 0


def connections(sitting: Sitting, bound: dict[str, str]) -> list[Connection]:
    """The connections of a sitting; ids that its client chose are chosen anew, and `bound`."""
    lines = [line for line in _lines(sitting) if "process" not in line]
    text = _ours(json.dumps(lines))
    for line in lines:
        for name in re.findall(r"@ID\d+@", str(line.get("client", {}).get("id", ""))):
            bound.setdefault(name, uuid.uuid4().hex)
    for name in [name for name in bound if name in text]:
        text = text.replace(name, bound[name])
    found: list[Connection] = []
    for line in json.loads(text):
        if not found or line.get("client", {}).get("method") == "initialize":
            found.append(Connection())
        found[-1].lines.append(line)
    if sitting.before:
        early = list(_held_before(sitting, found[1].lines[0]))
        found[0] = Connection([*early, *found[0].lines], len(early))
    return found


def _ours(text: str) -> str:
    """The recording with this machine's provider and reviewer, and with places of lists as ids."""
    text = text.replace("sleep 6; echo d", SLOW).replace(
        '"modelProvider": "mock"', '"modelProvider": "openai"'
    )
    # In an answer, where more follows: there is no model here that reviews.
    text = text.replace('"approvalsReviewer": "auto_review", ', '"approvalsReviewer": "user", ')
    for number, cursor in enumerate(sorted(set(_CURSORS.findall(text))), 1):
        text = text.replace(cursor, f'"@ID90{number}@"')
    return text


def _held_before(sitting: Sitting, initialize: Message) -> Iterator[Message]:
    """A handshake, a thread `@ID1@` with its name, and whole turns."""
    yield initialize
    yield {"client": {"method": "initialized"}}
    yield {"client": {"id": "thread", "method": "thread/start", "params": {"sandbox": "workspace-write"}}}
    yield {"server": {"id": "thread", "result": {"thread": {"id": "@ID1@"}}}}
    for prompt in sitting.before:
        said = [{"type": "text", "text": prompt}]
        params: dict[str, Any] = {"threadId": "@ID1@", "input": said}
        yield {"client": {"id": prompt, "method": "turn/start", "params": params}}
        ended = {"threadId": "@ID1@", "turn": {"status": "completed"}}
        yield {"server": {"method": "turn/completed", "params": ended}}
    named = {"threadId": "@ID1@", "name": "Say hello"}
    yield {"client": {"id": "name", "method": "thread/name/set", "params": named}}
    yield {"server": {"id": "name", "result": {}}}


def _lines(sitting: Sitting) -> list[Message]:
    text = (RECORDINGS / sitting.recording).read_text()
    return [json.loads(line) for line in text.splitlines()]
