"""Code reviews: a task of kind `review`, which looks at a change and answers with findings.

It begins with nothing of the session's conversation, and leaves a message with its findings behind.
"""

from __future__ import annotations

from typing import Final

from orchestrator.core.compaction import LONG_TEXT
from orchestrator.core.context import SHELL, environment_context
from orchestrator.core.decide.branch_parts import Beginning, Exit
from orchestrator.core.frozen import replace
from orchestrator.core.history import message_text, user_message
from orchestrator.core.narrowing import helper_settings
from orchestrator.core.review import assignment, brief, review_message, reviewed
from orchestrator.core.settings import Rules, TurnSettings
from orchestrator.core.state import Branch, Task
from orchestrator.protocol import events as ev
from orchestrator.protocol.review import ReviewRequest
from orchestrator.protocol.wire import EventModel, written

TOO_LONG: Final = (
    "The reviewer's answer is too long to be read: a text of more than 64 KiB is kept beside the log. "
    "Ask for a review of a part of the change."
)


def beginning(session: TurnSettings, request: ReviewRequest, rules: Rules) -> Beginning:
    """The beginning of a review under the session's settings."""
    settings = _settings(session, rules)
    opening = (environment_context(settings.wire(), SHELL), brief(), user_message(assignment(request)))
    event = ev.EnteredReviewMode(
        prompt=request.prompt, target=request.target, user_facing_hint=request.user_facing_hint
    )
    return Beginning("review", settings, tuple(map(written, opening)), event)


def _settings(session: TurnSettings, rules: Rules) -> TurnSettings:
    """The session's settings, narrowed to reading; a mode is agreed on for the conversation alone."""
    return replace(helper_settings(session, rules.review_model), collaboration_mode=None, personality=None)


def exit(task: Task, branch: Branch, message: str | None) -> Exit:
    """The findings of a review; one without an answer leaves nothing but the news that it is over."""
    if message is None:
        return Exit(message, (ev.ExitedReviewMode(),))
    said = TOO_LONG if message == LONG_TEXT else message
    found = reviewed(said, task.settings.cwd)
    events: list[EventModel] = [ev.ExitedReviewMode(review_output=found.output)]
    if found.left_out:
        events.insert(0, ev.WarningEvent(message=_left_out(found.left_out)))
    told = review_message(message_text(branch.opening[-1]), found.output)
    return Exit(message, tuple(events), (user_message(told),))


def _left_out(count: int) -> str:
    findings = "1 finding of the review does" if count == 1 else f"{count:,} findings of the review do"
    return f"{findings} not fit and are left out: the task's last message has the reviewer's whole answer"
