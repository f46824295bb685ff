"""Errors of the broker, and what the caller should do about each.

    BrokerError
    ├── Unavailable          no answer: connection lost, loading, busy, failing over; send the same again
    ├── OutOfMemory          Redis is full and wrote nothing; free memory or raise maxmemory
    ├── Misconfigured        wrong credentials, version or shard count; retrying cannot help
    ├── Corrupt              a key is not what the catalogue says; nothing was written
    │   └── DamagedEntry     an entry of a stream lacks a field, or has one that cannot be read
    ├── UnknownSession       no such session
    ├── SessionArchived      the session's log is in the archive; restore it, then send again
    ├── SessionHeld          a worker holds, or is to take, what was to be deleted
    ├── SubmissionConflict   the same id was used before for other bytes
    ├── QueueFull            the session's submission queue is at its bound
    │   └── SecretsFull      the tree has as many answers apart from its logs as it may
    └── CommitTooLarge       more than one commit may carry; nothing was sent

Answers that are part of normal work (`Fenced`, `Refused`) are values, not errors: see records.py.
"""

from __future__ import annotations


class BrokerError(Exception):
    """Anything that the broker could not do."""


class Unavailable(BrokerError):
    """Redis did not answer, or would not now; whether the last command took effect is unknown.

    Every script may be sent again with the same ids: it answers as it did the first time.
    """

    retryable = True


class OutOfMemory(BrokerError):
    """Redis refused the write because of `maxmemory`; nothing was written."""

    retryable = True


class Misconfigured(BrokerError):
    """The deployment and this process do not agree; the message names the remedy."""


class Corrupt(BrokerError):
    """A key has a type or an entry that no script of this version writes; nothing was written."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"key {key}: {reason}; `dendro verify ID` lists what of a session is damaged")
        self.key = key
        self.reason = reason


class DamagedEntry(Corrupt):
    """An entry of a stream that no script of this version writes; `number` is its place in the stream."""

    def __init__(self, key: str, number: int, error: Exception) -> None:
        lacks = isinstance(error, KeyError)
        field = error.args[0].decode() if lacks else ""
        reason = f"it lacks its field {field!r}" if lacks else f"a field of it cannot be read: {error}"
        super().__init__(key, f"entry {number}: {reason}")
        self.number = number
        self.damage = reason


class UnknownSession(BrokerError):
    """No session has this id."""

    def __init__(self, session: str) -> None:
        super().__init__(f"unknown session {session}; `dendro sessions` lists those that exist")
        self.session = session


class SessionArchived(BrokerError):
    """The session was archived; restore it before submitting to it. `why` says why it could not be."""

    def __init__(self, session: str, why: str = "") -> None:
        super().__init__(f"session {session} is archived; {why or 'restore it first'}")
        self.session = session


class SessionHeld(BrokerError):
    """A worker holds the session, or is to take it, so it cannot be deleted now."""

    def __init__(self, session: str, worker: str) -> None:
        why = f"is held by {worker}" if worker else "has something to do"
        super().__init__(f"session {session} {why}; shut it down first")
        self.session = session


class SubmissionConflict(BrokerError):
    """The id was used before, by the same client, for another operation."""

    def __init__(self, submission: str) -> None:
        super().__init__(f"submission {submission!r} was already sent with another op; use a new id")
        self.submission = submission


class BirthGivenUp(BrokerError):
    """The packs of an announced session were given up before it was created."""

    def __init__(self, session: str) -> None:
        super().__init__(
            f"session {session} was not made: its folder was stored so long ago that it may be removed by "
            "now, or Redis has lost its announcement; begin again"
        )
        self.session = session


class QueueFull(BrokerError):
    """The session's queue holds as much as it may."""

    def __init__(self, session: str, entries: int, size: int) -> None:
        super().__init__(
            f"the queue of session {session} is full ({entries} entries, {size} bytes); wait until it is read"
        )
        self.session = session
        self.entries = entries
        self.size = size


class SecretsFull(QueueFull):
    """The tree has as many answers whose texts stand apart as it may; nothing was written."""

    def __init__(self, session: str, most: int) -> None:
        BrokerError.__init__(
            self,
            f"the tree of session {session} has {most} answers that no worker has read, or whose turns still "
            "go on; wait until one of them ends",
        )
        self.session, self.entries, self.size = session, most, 0


class CommitTooLarge(BrokerError):
    """The step must be split, or its large outputs stored as blobs first."""
