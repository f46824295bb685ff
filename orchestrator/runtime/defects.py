"""Commands that no step can hold: their decision raised, or their commit is too large.

A defect is loud, and ends the claim: another worker, perhaps of another version, tries the same
submission. After `TRIES` claims that came no further the submission is consumed by an `error` that
names the defect, and the session lives on. What a model or a tool said is not tried again: it has
broken its request or its call.
"""

from __future__ import annotations

from orchestrator.broker.errors import CommitTooLarge
from orchestrator.core import commands as c
from orchestrator.core import entries as e
from orchestrator.core.commit_parts import COUNTED, TreePart
from orchestrator.core.decide.draft import Note
from orchestrator.core.state import State
from orchestrator.protocol.codec import short_id
from orchestrator.protocol.events import WarningEvent
from orchestrator.runtime.intake import Unreadable, failed_call
from orchestrator.runtime.side_work import call_of

TRIES = 3
"""Claims that come no further than a submission before it is given up."""
REASON_CHARS = 300
UNRECORDED = "the model's answer could not be recorded"


class Undecided(Exception):
    """A submission could not be decided under this claim; the next claim tries it again."""

    def __init__(self, submission: str, error: Exception, tried: int, most: int) -> None:
        super().__init__(
            f"submission {short_id(submission)} could not be decided ({reason(error)}): try {tried} of "
            f"{most}, the next worker takes it; the log of this one has the trace"
        )
        self.submission = submission


def reason(error: Exception) -> str:
    """The error in one line, short enough for an event."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= REASON_CHARS else f"{text[: REASON_CHARS - 1]}…"


def tries(max_tries: int) -> int:
    """The claims without progress after which a submission is given up: before its session is quarantined."""
    return max(1, min(TRIES, max_tries - 1))


def submission_of(command: c.Command | Unreadable) -> str:
    """The submission, the timer or the message that a command of the SQ came from."""
    match command:
        case Unreadable(submission) | c.Submitted(id=submission) | c.TimerFired(id=submission):
            return submission
        case c.MailArrived(key=key):
            return key
        case _:
            return ""


def given_up(submission: str, why: str) -> Note:
    """The `error` that a submission ends with which cannot be decided; nothing else of it happens."""
    text = f"not done: {why}; nothing of this submission was applied, and the session goes on without it"
    return Note((e.error(short_id(submission), text),))


def passed_over(submission: str, claims: int) -> Note:
    """The `error` of a submission that is not even tried any more."""
    return given_up(
        submission,
        f"{claims} workers in a row were lost before they had decided it, see their logs; if they were lost "
        "for another reason, send it again",
    )


def instead_of(command: c.Command | Unreadable, error: Exception, state: State) -> c.Command | Note | None:
    """The substitute for a command that failed alone; None if there is none."""
    why = _why(error)
    match command:
        case Unreadable(submission) | c.Submitted(id=submission) | c.TimerFired(id=submission):
            return given_up(submission, why)
        case c.MailArrived():
            return _message_given_up(command, why)
        case c.ItemCompleted(n):
            return c.ResponseBroken(n, "fatal", f"{UNRECORDED}: {why}")
        case c.ResponseCompleted(n, _, usage):
            return c.ResponseBroken(n, "fatal", f"{UNRECORDED}: {why}", usage=usage)
        case c.CallFinished(call_id):
            return failed_call(call_of(state, call_id), f"its output could not be recorded: {why}")
        case c.LookedUp(key) if command.error is None:
            return c.LookedUp(key, error=f"the answer could not be recorded: {why}")
        case c.CallAssessed(call_id):
            return c.CallAssessed(call_id, c.Immediate(f"not run: {why}"))
        case _:
            return None


def _why(error: Exception) -> str:
    if isinstance(error, CommitTooLarge):
        return f"it is more than one step can record ({error})"
    return f"internal error: {reason(error)}; the worker's log has the trace, please report it"


def _message_given_up(mail: c.MailArrived, why: str) -> Note:
    taken = (0, 0) if mail.kind not in COUNTED else (int(not mail.interrupt), int(mail.interrupt))
    text = f"a {mail.kind} of another agent was not read: {why}"
    return Note((e.event("", WarningEvent(message=text)),), tree=TreePart(taken=taken))
