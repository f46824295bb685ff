"""Names for the protocol's identifiers, so that one is not passed for another.

Session and agent ids have structure and live in `core.ids`; on the wire they are a
string and a number.
"""

from __future__ import annotations

from typing import NewType

SubmissionId = NewType("SubmissionId", str)
"""Chosen by the client; events of the task it started carry it as `Event.id`."""

CallId = NewType("CallId", str)
"""The model's id of one tool call; begin, end, approval and output share it."""

ResponseId = NewType("ResponseId", str)
"""The model provider's id of one response: the bookmark that a later turn may continue from."""

SnapshotId = NewType("SnapshotId", str)
"""The id of a folder's recorded content: a commit object of git, 40 hexadecimal digits."""
