"""Turns replies into records. The only place that knows the one-letter fields of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar

from orchestrator.broker import records
from orchestrator.broker.connection import ScriptCall
from orchestrator.broker.errors import BrokerError, Corrupt, DamagedEntry, SessionArchived, UnknownSession
from orchestrator.broker.reply_shapes import Gives
from orchestrator.core.ids import AgentId, SessionId, TreeId

# ── reply fields ──────────────────────────────────────────────────────────────────────────────────
# The fields of replies that are read: `<Script><Code>` is what the head of a script gives under a code.
#
# For the type checker alone, which no program imports; a test holds each against its head. A reply of
# which only `now` is read needs none (`Reply.now`).


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


class AnnounceOk(TypedDict):
    now: int
    known: int


class AttendOk(TypedDict):
    now: int
    behind: str


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


class ForgetPromptsOk(TypedDict):
    gone: int
    now: int


class GiveUpOk(TypedDict):
    now: int
    known: int


class HeartbeatOk(TypedDict):
    now: int
    drains: bool
    places: list[tuple[int, int]]


class KeepSecretSecrets(TypedDict):
    most: int


class NoteWas(TypedDict):
    stands: bytes


class NoteFull(TypedDict):
    notes: int


class OfferJobFull(TypedDict):
    waiting: int


class Look(TypedDict):
    now: int
    jobs: bool
    claimable: list[tuple[int, int]]
    timed: list[int]


class Peek(TypedDict):
    now: int
    expired: list[str]
    due: list[str]


class RaiseLimitsOk(TypedDict):
    now: int
    found: list[tuple[str, int]]
    woken: int


class RecountOk(TypedDict):
    states: str


class Registry(TypedDict):
    now: int
    fields: dict[bytes, bytes]


class ReleaseOk(TypedDict):
    parks: bool
    now: int


class RenewOk(TypedDict):
    sq: int
    now: int


class ReserveIdsOk(TypedDict):
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
    shelved: bool
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


class TurnAwayOk(TypedDict):
    now: int
    told: list[tuple[str, str]]


class TimersDue(TypedDict):
    now: int
    members: list[str]


class TreeHeads(TypedDict):
    tree_seq: int
    named: list[str]
    heads: list[tuple[int | None, bytes]]


Fielded = tuple[bytes, dict[bytes, bytes]]
"""An entry of a stream as Redis answers it."""
Decoded = TypeVar("Decoded")


# ── replies ───────────────────────────────────────────────────────────────────────────────────────


HEAD_FIELDS = (
    "tree",
    "pool",
    "agent_id",
    "parent",
    "seq",
    "head",
    "cursor",
    "sq",
    "eq",
    "epoch",
    "owner",
    "status",
    "meta",
    "snapshot_seq",
    "sealed_seq",
    "manifest",
    "min_core",
    "tries",
    "regular",
    "interrupts",
    "quarantined",
    "archived",
    "created_ms",
    "name",
    "namespace",
    "source",
    "who",
    "ephemeral",
    "recency",
    "shelved",
    "note:git",
    "copy_on",
    "unsaved",
    "abandoned",
    "ended_seq",
    "states",
)


_TEXTS = frozenset(
    {"tree", "pool", "parent", "owner", "status", "name", "namespace", "source", "who", "copy_on", "states"}
)
_FLAGS = frozenset({"quarantined", "archived", "ephemeral", "shelved", "unsaved"})
_COPY_ON = HEAD_FIELDS.index("copy_on")
"""The field that portable sessions alone have."""
_OTHERS = _FLAGS | {"head", "meta", "manifest", "note:git", "abandoned"}
_COUNTS = tuple(name for name in HEAD_FIELDS if name not in _TEXTS | _OTHERS)


class Reply:
    """A script's reply, read by its head."""

    __slots__ = ("_gives", "code", "fields")

    def __init__(self, gives: Gives, code: str, fields: Any) -> None:
        self._gives = gives
        self.code = code
        self.fields = fields
        """By their names; each typed above."""

    @property
    def now(self) -> int:
        """Redis's time, of a reply that has it."""
        found: int = self.fields["now"]
        return found

    def unexpected(self) -> BrokerError:
        """The error of a caller that knows nothing to do with this code."""
        return self._gives.unexpected(self.code)


def read_reply(call: ScriptCall, reply: Sequence[Any], subject: SessionId | str = "") -> Reply:
    """The reply; raises what no caller can go on from, and `BadReply` for one that its head does not give."""
    gives = call.script.gives
    code, fields = gives.read(reply)
    if code == "CORRUPT":
        corrupt: CorruptFields = fields
        raise Corrupt(corrupt["key"], corrupt["why"])
    if code == "UNKNOWN":
        raise UnknownSession(subject)
    if code == "ARCHIVED":
        raise SessionArchived(subject)
    return Reply(gives, code, fields)


def queue_id(n: int) -> str:
    return f"{n}-0"


def fenced(reply: Reply) -> records.Fenced:
    return records.Fenced(reply.fields["epoch"], reply.fields.get("why", "claim"))


def refused(reply: Reply) -> records.Refused:
    fields = reply.fields
    return records.Refused(fields["reason"], fields.get("detail", ""), accounts(fields.get("accounts", ())))


def unstored(reply: Reply) -> records.Unstored:
    fields: UnstoredFields = reply.fields
    return records.Unstored(tuple(fields["lost"]))


def claimed(found: ClaimOk, claim: records.Claim, queue: str) -> records.Claimed:
    """The claim; raises `DamagedEntry` for an entry of its `queue` that is none."""
    return records.Claimed(
        claim=claim,
        seq=found["seq"],
        head=found["head"],
        cursor=queue_id(found["cursor"]),
        sq_tip=queue_id(found["sq"]),
        snapshot_seq=found["snapshot_seq"],
        agent_id=AgentId(found["agent_id"]),
        now_ms=found["now"],
        claims_without_progress=found["tries"],
        eq_n=found["eq"],
        first=decoded(queue, found["queued"], sq_entry),
        after=SessionId(found["next"]) if found["next"] else None,
        last_commit=found["commit"],
        abandoned=found["abandoned"],
    )


def committed(done: CommitOk, commit_id: str) -> records.Committed:
    return records.Committed(
        seq=done["seq"],
        head=done["head"],
        sq_tip=queue_id(done["tip"]),
        eq_n=done["eq"],
        released=done["released"],
        tree_seq=done["tree_seq"],
        now_ms=done["now"],
        last_commit=commit_id,
        depths=depths(done["depths"]),
        budget=accounts(done["accounts"]),
    )


def depths(stamp: str) -> tuple[records.InboxDepth, ...]:
    """`<session>:<messages>:<interrupts>`, one after the other."""
    found = (part.rsplit(":", 2) for part in stamp.split())
    return tuple(records.InboxDepth(SessionId(s), int(r), int(i)) for s, r, i in found)


def accounts(listed: Iterable[AccountRow]) -> tuple[records.Account, ...]:
    """The budgets as the scripts tell them."""
    return tuple(records.Account(*row) for row in listed)


def decoded(
    key: str, found: Iterable[Fielded], decode: Callable[[bytes, dict[bytes, bytes]], Decoded]
) -> tuple[Decoded, ...]:
    """The entries of a stream; raises `DamagedEntry` for the first that is none."""
    decoded: list[Decoded] = []
    entry_id = b"0-0"
    try:
        for entry_id, fields in found:
            decoded.append(decode(entry_id, fields))
    except (KeyError, ValueError) as error:
        raise DamagedEntry(key, number_of(entry_id), error) from error
    return tuple(decoded)


def sq_entry(entry_id: bytes, fields: dict[bytes, bytes]) -> records.SqEntry:
    return records.SqEntry(
        id=entry_id.decode(),
        kind=fields[b"k"].decode(),
        payload=fields[b"p"],
        client=fields[b"c"].decode(),
        submission=fields[b"u"].decode(),
        sender=fields[b"f"].decode(),
        seq=int(fields[b"q"]),
        at_ms=int(fields[b"t"]),
        generation=int(fields[b"g"]),
        interrupt=fields[b"i"] == b"1",
        by=fields.get(b"a", b""),
    )


def number_of(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])


def stored_entry(entry_id: bytes, fields: dict[bytes, bytes]) -> records.StoredEntry:
    return records.StoredEntry(
        number_of(entry_id), int(fields[b"e"]), fields[b"p"], fields[b"s"], fields[b"h"]
    )


def stored_event(entry_id: bytes, fields: dict[bytes, bytes]) -> records.StoredEvent:
    tree_seq, at_ms = int(fields.get(b"x", 0)), int(fields.get(b"t", 0))
    hash8 = fields[b"h"].decode()
    return records.StoredEvent(number_of(entry_id), fields[b"p"], int(fields[b"s"]), hash8, tree_seq, at_ms)


def tree_entry(entry_id: bytes, fields: dict[bytes, bytes]) -> records.TreeEntry:
    return records.TreeEntry(
        tree_seq=number_of(entry_id),
        payload=fields[b"p"],
        session=SessionId(fields[b"s"].decode()),
        seq=int(fields[b"q"]),
        head=fields[b"h"],
        depths=depths(fields[b"d"].decode()),
        at_ms=int(fields[b"t"]),
        about=fields[b"a"],
        salt=fields.get(b"z", b""),
    )


def session_head(session: SessionId, values: Sequence[bytes | None]) -> records.SessionHead | None:
    """From the values of `HEAD_FIELDS`; None if there is no such session."""
    if values[0] is None:
        return None
    field = {name: value or b"" for name, value in zip(HEAD_FIELDS, values, strict=True)}
    text = {name: field[name].decode() for name in _TEXTS}
    count = {name: int(field[name] or 0) for name in _COUNTS}
    return records.SessionHead(
        session=session,
        tree=TreeId(text["tree"]),
        pool=text["pool"],
        agent_id=AgentId(count["agent_id"]),
        parent=SessionId(text["parent"]) if text["parent"] else None,
        seq=count["seq"],
        head=field["head"],
        cursor=queue_id(count["cursor"]),
        sq_tip=queue_id(count["sq"]),
        eq_n=count["eq"],
        epoch=count["epoch"],
        holder=text["owner"] or None,
        status=text["status"],
        meta=field["meta"],
        snapshot_seq=count["snapshot_seq"],
        sealed_seq=count["sealed_seq"],
        manifest=field["manifest"],
        min_core=count["min_core"],
        claims_without_progress=count["tries"],
        pending_messages=count["regular"],
        pending_interrupts=count["interrupts"],
        quarantined=field["quarantined"] == b"1",
        archived=field["archived"] == b"1",
        created_ms=count["created_ms"],
        name=text["name"],
        labels=_labels(text, ephemeral=field["ephemeral"] == b"1"),
        recency_ms=count["recency"],
        shelved=field["shelved"] == b"1",
        git_note=field["note:git"],
        copy_on=text["copy_on"],
        unsaved_on=text["copy_on"] if field["unsaved"] == b"1" and not field["abandoned"] else "",
        ended_seq=count["ended_seq"],
        portable=values[_COPY_ON] is not None,
        states=text["states"],
    )


def _labels(text: Mapping[str, str], *, ephemeral: bool) -> records.Labels:
    """The labels of a session; a root of an earlier version has none."""
    source: records.Source = "exec" if text["source"] == "exec" else "agent" if text["parent"] else "cli"
    return records.Labels(text["namespace"], source, text["who"], ephemeral)
