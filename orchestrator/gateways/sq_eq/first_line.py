"""The first line of a connection: who speaks, which session is meant, and how it is to be told.

    {"id": "1", "op": {"type": "configure_session", "session_id": …}, "auth": …, "last_event": …}

Pure: bytes in, a record out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from orchestrator.core.frozen import record
from orchestrator.gateways.sq_eq.places import MOST
from orchestrator.protocol.codec import parse_submission
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.ops import ConfigureSession
from orchestrator.protocol.submission import MalformedSubmission, Submission
from orchestrator.tables.base import MIB

FIRST_LINE_LIMIT = MIB
"""It is read before anybody knows who sends it."""
MOST_NAME = 200
MOST_ID = 1_024
SAME = frozenset({"type", "session_id", "cwd", "workspace"})
"""Fields that are done with when the session is there."""


@record
class FirstLine:
    """The wish that begins a connection."""

    submission: Submission
    op: ConfigureSession
    auth: str | None = None
    last_event: int | None = None
    """The `seq` of the last event that the client has; None for all from the beginning."""
    with_seq: bool = False
    client: str | None = None
    """The client's name for itself: what it sends again after a lost connection counts once."""
    forked_from: str | None = None
    """The session that a new one goes on from."""
    last_response: str | None = None
    """The response that ended the turn to go on from; None for where the other session stands."""

    @property
    def changes_settings(self) -> bool:
        """Whether it sets more than where the session works."""
        return bool(self.op.model_fields_set - SAME)


def parse_first_line(line: bytes) -> FirstLine:
    """Reads it; raises `MalformedSubmission`. The fields beside `op` may stand in it, too."""
    submission = parse_submission(line)
    id, op = submission.id, submission.op
    if not isinstance(op, ConfigureSession):
        raise MalformedSubmission(
            "the first line of a connection is a configure_session, with the session_id of the session to "
            "attach to, or without one for a new session",
            id,
        )
    frame = orjson.loads(line)
    more: Mapping[str, Any] = {**frame["op"], **frame}
    last, name = more.get("last_event"), more.get("client")
    if last is not None and (type(last) is not int or not 0 <= last < MOST):
        raise MalformedSubmission("last_event: the seq of an event line is expected", id)
    if last is not None and op.session_id is None:
        raise MalformedSubmission("last_event: it needs the session_id that the event is of", id)
    if name is not None and not (isinstance(name, str) and 0 < len(name) <= MOST_NAME):
        raise MalformedSubmission(f"client: a text of 1 to {MOST_NAME} characters is expected", id)
    auth = more.get("auth")
    if auth is not None and not isinstance(auth, str):
        raise MalformedSubmission("auth: a token is expected", id)
    numbered = more.get("with_seq")
    if numbered is not None and type(numbered) is not bool:
        raise MalformedSubmission("with_seq: true or false is expected", id)
    source, response = _fork(more, id, op)
    return FirstLine(submission, op, auth, last, numbered is True, name, source, response)


def _fork(more: Mapping[str, Any], id: SubmissionId, op: ConfigureSession) -> tuple[str | None, str | None]:
    """The session to fork and the response at whose end; raises `MalformedSubmission`."""
    source, response = more.get("forked_from_id"), more.get("last_response_id")
    for name, value in (("forked_from_id", source), ("last_response_id", response)):
        if value is not None and not (isinstance(value, str) and 0 < len(value) <= MOST_ID):
            raise MalformedSubmission(f"{name}: a text of 1 to {MOST_ID} characters is expected", id)
    if source is not None and op.session_id is not None:
        raise MalformedSubmission(
            "forked_from_id: a fork is a new session: leave session_id out, or attach without a fork", id
        )
    if source is not None and op.workspace is not None:
        raise MalformedSubmission("workspace: a fork works where its source does, or in `cwd`", id)
    if response is not None and source is None:
        raise MalformedSubmission(
            "last_response_id: a new session needs the forked_from_id of the session whose turn it names; "
            "a session that you attach to takes it with a user_input",
            id,
        )
    return source, response
