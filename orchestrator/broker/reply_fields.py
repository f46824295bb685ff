"""The fields of replies that are read: `<Script><Code>` is what the head of a script gives under a code.

For the type checker alone, which no program imports; a test holds each against its head. A reply of which
only `now` is read needs none (`Reply.now`).
"""

from __future__ import annotations

from typing import Literal, TypedDict

AccountRow = tuple[Literal["tokens", "cost", "requests", "wall"], int, int, int | None, int]


class CorruptFields(TypedDict):
    """Of every script that looks at keys."""

    key: str
    why: str


class UnstoredFields(TypedDict):
    """Of `commit`, `create` and `restore`."""

    lost: list[str]


class AddToHistoryOk(TypedDict):
    n: int
    now: int


class AdmitWait(TypedDict):
    wait: int
    now: int


class ClaimOk(TypedDict):
    epoch: int
    tree: str
    agent_id: int
    seq: int
    head: bytes
    cursor: int
    sq: int
    snapshot_seq: int
    tries: int
    now: int
    eq: int
    queued: list[tuple[bytes, dict[bytes, bytes]]]
    next: str
    commit: str
    abandoned: str


class ClaimLeft(TypedDict):
    copy_on: str
    unsaved: bool
    wait_ms: int
    next: str


class CommitOk(TypedDict):
    seq: int
    head: bytes
    tip: int
    eq: int
    released: bool
    tree_seq: int
    now: int
    pokes: list[tuple[str, str]]
    woken: int
    depths: str
    accounts: list[AccountRow]


class CommitFenced(TypedDict):
    epoch: int
    why: str


class CommitRefused(TypedDict):
    reason: str
    detail: str
    accounts: list[AccountRow]


class CommitMoved(TypedDict):
    tree: str
    pool: str
    session: str


class DeleteHeld(TypedDict):
    session: str
    owner: str


class DeleteUnlisted(TypedDict):
    unlisted: list[str]


class EmitOk(TypedDict):
    n: int
    sq: int
    now: int


class FireOk(TypedDict):
    n: int
    generation: int
    owner: str
    now: int


class GiveUpOk(TypedDict):
    now: int
    known: int


class HeartbeatOk(TypedDict):
    now: int
    drains: bool


class KeepSecretSecrets(TypedDict):
    most: int


class NoteWas(TypedDict):
    stands: bytes


class NoteFull(TypedDict):
    notes: int


class OfferJobFull(TypedDict):
    waiting: int


class Peek(TypedDict):
    now: int
    expired: list[str]
    due: list[str]


class RaiseLimitsOk(TypedDict):
    now: int
    found: list[tuple[str, int]]
    woken: int


class Registry(TypedDict):
    now: int
    fields: dict[bytes, bytes]


class ReleaseOk(TypedDict):
    parks: bool
    now: int


class RenewOk(TypedDict):
    sq: int
    now: int


class ReserveOk(TypedDict):
    first: int
    now: int


class RevokeOk(TypedDict):
    now: int
    found: list[tuple[Literal["free", "held", "revoked", "gone", "saved"], int, str]]


class RevokeMoved(TypedDict):
    tree: str
    pool: str
    session: str


class Rights(TypedDict):
    denied: list[int]


class Serving(TypedDict):
    now: int
    found: list[tuple[int | None, bool]]


class SettleJobDone(TypedDict):
    now: int
    result: bytes


class SubmitOk(TypedDict):
    n: int
    owner: str
    quarantined: bool
    now: int


class SubmitFull(TypedDict):
    entries: int
    bytes: int


class SubmitMoved(TypedDict):
    tree: str
    pool: str


class TakeJobOk(TypedDict):
    payload: bytes
    now: int


class TimersDue(TypedDict):
    now: int
    members: list[str]
