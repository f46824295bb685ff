"""Turns raw replies into records. The only place that knows the one-letter fields of streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.broker.errors import BrokerError, Corrupt, SessionArchived, UnknownSession
from orchestrator.broker.records import (
    Claim,
    Claimed,
    Committed,
    Fenced,
    Labels,
    Refused,
    SessionHead,
    Source,
    SqEntry,
    StoredEntry,
    StoredEvent,
    Unstored,
)
from orchestrator.broker.tree_records import Account, InboxDepth, TreeEntry
from orchestrator.core.ids import AgentId, SessionId, TreeId

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
)


_TEXTS = frozenset(
    {"tree", "pool", "parent", "owner", "status", "name", "namespace", "source", "who", "copy_on"}
)
_FLAGS = frozenset({"quarantined", "archived", "ephemeral", "shelved", "unsaved"})
_OTHERS = _FLAGS | {"head", "meta", "manifest", "note:git", "abandoned"}


def code_of(reply: Sequence[Any], session: SessionId | str) -> str:
    """The reply's code; raises what no caller can go on from."""
    code: str = reply[0].decode()
    if code == "CORRUPT":
        raise Corrupt(reply[1].decode(), reply[2].decode())
    if code == "UNKNOWN":
        raise UnknownSession(session)
    if code == "ARCHIVED":
        raise SessionArchived(session)
    return code


def unexpected(script: str, code: str) -> BrokerError:
    """A code that the script's header does not name: script and library are of two versions."""
    return BrokerError(f"script {script} answered {code}, which this version does not know")


def queue_id(n: int) -> str:
    return f"{n}-0"


def fenced(reply: Sequence[Any]) -> Fenced:
    reason = reply[2].decode() if len(reply) > 2 else "claim"
    return Fenced(int(reply[1]), reason)


def refused(reply: Sequence[Any]) -> Refused:
    detail = reply[2].decode() if len(reply) > 2 else ""
    return Refused(reply[1].decode(), detail, accounts(reply[3]) if len(reply) > 3 else ())


def unstored(reply: Sequence[Any]) -> Unstored:
    return Unstored(tuple(digest.decode() for digest in reply[1]))


def claimed(reply: Sequence[Any], claim: Claim) -> Claimed:
    _, _, _, agent_id, seq, head, cursor, tip, snapshot_seq, tries, now, eq_n, page, after, *last = reply
    commit, abandoned = last
    return Claimed(
        claim=claim,
        seq=seq,
        head=head,
        cursor=queue_id(cursor),
        sq_tip=queue_id(tip),
        snapshot_seq=snapshot_seq,
        agent_id=AgentId(agent_id),
        now_ms=now,
        claims_without_progress=tries,
        eq_n=eq_n,
        first=tuple(sq_entry(entry_id, pairs(flat)) for entry_id, flat in page),
        after=SessionId(after.decode()) if after else None,
        last_commit=commit.decode(),
        abandoned=abandoned.decode(),
    )


def committed(reply: Sequence[Any], commit_id: str) -> Committed:
    _, seq, head, tip, eq_n, released, tree_seq, now, _, _, stamp, budget = reply
    return Committed(
        seq=seq,
        head=head,
        sq_tip=queue_id(tip),
        eq_n=eq_n,
        released=released == 1,
        tree_seq=tree_seq,
        now_ms=now,
        last_commit=commit_id,
        depths=depths(stamp),
        budget=accounts(budget),
    )


def depths(stamp: bytes) -> tuple[InboxDepth, ...]:
    """`<session>:<messages>:<interrupts>`, one after the other."""
    found = (part.rsplit(":", 2) for part in stamp.decode().split())
    return tuple(InboxDepth(SessionId(s), int(r), int(i)) for s, r, i in found)


def accounts(listed: Sequence[Sequence[Any]]) -> tuple[Account, ...]:
    """The budgets as the scripts tell them."""
    return tuple(
        Account(kind.decode(), spent, held, None if limit == b"" else int(limit), guessed)
        for kind, spent, held, limit, guessed in listed
    )


def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """A stream entry's fields as Lua returns them."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def sq_entry(entry_id: bytes, fields: dict[bytes, bytes]) -> SqEntry:
    return SqEntry(
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
    )


def number_of(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])


def stored_entry(entry_id: bytes, fields: dict[bytes, bytes]) -> StoredEntry:
    return StoredEntry(number_of(entry_id), int(fields[b"e"]), fields[b"p"], fields[b"s"], fields[b"h"])


def stored_event(entry_id: bytes, fields: dict[bytes, bytes]) -> StoredEvent:
    tree_seq, at_ms = int(fields.get(b"x", 0)), int(fields.get(b"t", 0))
    hash8 = fields[b"h"].decode()
    return StoredEvent(number_of(entry_id), fields[b"p"], int(fields[b"s"]), hash8, tree_seq, at_ms)


def tree_entry(entry_id: bytes, fields: dict[bytes, bytes]) -> TreeEntry:
    return TreeEntry(
        tree_seq=number_of(entry_id),
        payload=fields[b"p"],
        session=SessionId(fields[b"s"].decode()),
        seq=int(fields[b"q"]),
        head=fields[b"h"],
        depths=depths(fields[b"d"]),
        at_ms=int(fields[b"t"]),
        about=fields[b"a"],
    )


def session_head(session: SessionId, values: Sequence[bytes | None]) -> SessionHead | None:
    """From the values of `HEAD_FIELDS`; None if there is no such session."""
    if values[0] is None:
        return None
    field = {name: value or b"" for name, value in zip(HEAD_FIELDS, values, strict=True)}
    text = {name: field[name].decode() for name in _TEXTS}
    count = {
        name: int(field[name] or 0) for name in HEAD_FIELDS if name not in _TEXTS and name not in _OTHERS
    }
    return SessionHead(
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
    )


def _labels(text: Mapping[str, str], *, ephemeral: bool) -> Labels:
    """The labels of a session; a root of an earlier version has none."""
    source: Source = "exec" if text["source"] == "exec" else "agent" if text["parent"] else "cli"
    return Labels(text["namespace"], source, text["who"], ephemeral)
