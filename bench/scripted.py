"""Sessions whose model and commands follow a script: the decisions, entries and commits of real ones.

What a worker does around them (tasks, waiting, HTTP) is left out, so that the core and the broker can be
measured by themselves, and long or many sessions can be made in seconds.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

import orjson

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import BudgetPart, Claimed, CommitRequest, Committed, Release
from orchestrator.core import commands as c
from orchestrator.core.calls import Exec
from orchestrator.core.commit_parts import NewEvent, TreePart
from orchestrator.core.decide import decide
from orchestrator.core.ids import SessionId
from orchestrator.protocol import ops
from orchestrator.protocol.codec import encode_submission, parse_submission
from orchestrator.protocol.commands import UnknownCommand
from orchestrator.protocol.events import ExecCommandEnd
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.scalars import Duration
from orchestrator.protocol.submission import Submission
from orchestrator.rollouts.session_summary import Position, session_meta
from orchestrator.runtime.journal import Step, Writer

ANSWER = {
    "type": "message",
    "role": "assistant",
    "id": "msg_1",
    "content": [{"type": "output_text", "text": "All done."}],
}
USAGE = {
    "input_tokens": 1200,
    "cached_input_tokens": 0,
    "output_tokens": 20,
    "reasoning_output_tokens": 0,
    "total_tokens": 1220,
}
COMMAND = ("bash", "-c", "touch report.txt")
OUTPUT_BYTES = 1_000
"""Of a scripted command: a screenful."""


def user_input(n: int) -> bytes:
    """A submission as it stands in the SQ."""
    text = TextInput(text="Say that you are done.")
    return encode_submission(Submission(SubmissionId(f"turn-{n}"), ops.UserInput(items=(text,))))


def begun(position: Position, epoch: int, payload: bytes) -> Step:
    """A turn begins: the input is taken, the first request decided."""
    submission = parse_submission(payload)
    return step_of(position, epoch, c.Submitted(submission.id, submission.op, "script"), c.BeginRequest())


def answered(position: Position, epoch: int) -> Step:
    """The model has said its last word: the turn is over."""
    n = position.state.requests
    return step_of(position, epoch, c.ItemCompleted(n, ANSWER), c.ResponseCompleted(n, f"resp_{n}", USAGE))


def called(position: Position, epoch: int) -> Step:
    """The model wants a command. Whether it runs or is asked about, the session's policy says."""
    return step_of(position, epoch, *calling(position, position.state.requests))


def calling(position: Position, n: int) -> tuple[c.Command, ...]:
    """Core commands for an answer to request `n` that calls a shell command."""
    arguments = orjson.dumps({"command": COMMAND}).decode()
    call = {"type": "function_call", "name": "shell", "arguments": arguments, "call_id": f"call-{n}"}
    parsed = UnknownCommand(cmd="touch report.txt")
    wanted = Exec(COMMAND, position.state.settings.cwd, (parsed,), key="touch")
    return (
        c.ItemCompleted(n, call),
        c.ResponseCompleted(n, f"resp_{n}", USAGE),
        c.CallAssessed(f"call-{n}", wanted),
    )


def finished(position: Position, epoch: int) -> Step:
    """The command has ended, and the next request is decided."""
    call_id, text = f"call-{position.state.requests}", "x" * OUTPUT_BYTES
    end = ExecCommandEnd(
        call_id=CallId(call_id),
        stdout=text,
        stderr="",
        aggregated_output=text,
        exit_code=0,
        duration=Duration(secs=0, nanos=5_000_000),
        formatted_output=text,
    )
    return step_of(position, epoch, c.CallFinished(call_id, text, (end,)), c.BeginRequest())


def whole_turn(position: Position, epoch: int, n: int) -> list[Step]:
    """Everything of a turn with one command, step by step."""
    steps = [begun(position, epoch, user_input(n))]
    for follow in (called, finished, answered):
        steps.append(follow(steps[-1].position, epoch))
    return steps


def step_of(position: Position, epoch: int, *commands: c.Command) -> Step:
    """The decisions that these commands lead to, one after the other."""
    now_ms = int(time.time() * 1000)
    step = Step(position, Writer(epoch, secrets.token_bytes), now_ms)
    for command in commands:
        step.take(decide(step.position.state, command, c.Moment(now_ms, epoch, step.position.seq)))
    return step


class Hand:
    """Holds one session of the script as a worker would, and commits its steps."""

    def __init__(self, broker: Broker, claimed: Claimed) -> None:
        self._broker = broker
        self._claimed = claimed
        self._last_commit = claimed.last_commit
        self.epoch = claimed.claim.epoch

    @classmethod
    async def take(cls, broker: Broker, session: SessionId) -> Hand:
        claimed = await broker.claims.claim_session(session, "script", secrets.token_hex(8))
        assert claimed is not None
        return cls(broker, claimed)

    async def commit(self, step: Step, release: Release = "keep") -> None:
        meta = session_meta(step.position, step.at_ms) if release != "keep" else None
        answer = await self._broker.commits.commit(
            CommitRequest(
                self._claimed.claim,
                secrets.token_hex(16),
                step.base.seq,
                step.base.head,
                self._last_commit,
                tuple(step.entries),
                tuple(step.events),
                cursor=self._claimed.sq_tip,
                timers_set=tuple(step.timers_set),
                approvals_open=tuple(step.approvals_open),
                tree=step.tree or TreePart(),
                budget=BudgetPart(settlements=step.budget.settlements if step.budget is not None else ()),
                status=step.position.state.status,
                meta=meta,
                release=release,
            )
        )
        assert isinstance(answer, Committed)
        self._last_commit = answer.last_commit
        assert answer.released == (release != "keep")

    async def emit(self, events: Sequence[NewEvent]) -> None:
        """Tells events that belong to no commit."""
        await self._broker.commits.emit(self._claimed.claim, events)

    async def snapshot(self, seq: int, state: bytes) -> Any:
        return await self._broker.commits.snapshot(self._claimed.claim, seq, state)
