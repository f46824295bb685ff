"""Audit of a session's log as it is stored: proves that no entry of it was altered, exchanged or lost.

    its chain       every entry follows from the previous entry, from the first to the head in the hash
    its session     the first entries name the session that the log is stored as
    its texts       every large text that an entry refers to is there, and matches its hash
    its agents      every session that the log says it made is there
    its witnesses   notes of the log elsewhere (the tree's log, forks, a person) match its chain

Only the witnesses show a log cut short whose hash was put back to match: the chain itself then ends
where the hash says. So the notes count that lie beyond the log's end. Reads only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.broker.errors import Corrupt, DamagedEntry
from orchestrator.broker.logs import Logs
from orchestrator.broker.records import SessionHead, StoredEntry, TreeEntry
from orchestrator.core import facts as f
from orchestrator.core.blobs import may_refer
from orchestrator.core.chain import (
    NAMING_ENTRIES,
    NOT_FOLLOWING,
    BrokenLink,
    ChainWalk,
    Link,
    first_broken,
    names_session,
)
from orchestrator.core.entries import Kind, decode_entry, encode_json, stored_kind
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId, created_ms
from orchestrator.core.tree import Child
from orchestrator.rollouts.archive import Storage
from orchestrator.rollouts.full_log import full_log, pages
from orchestrator.rollouts.inherited_lines import LogLine, missing_texts
from orchestrator.rollouts.segments import BrokenArchive, links_of

_OF_OTHERS: frozenset[Kind] = frozenset({f.Forked, f.ChildMade})
"""Facts that name other sessions."""


@record
class ExternalNote:
    """A note, kept elsewhere, of an entry of a session's log: its number and the chain's value there."""

    session: SessionId
    seq: int
    chain: bytes
    """The whole value, or at least its first 8 bytes."""
    by: str
    """The place of the note, for people."""


@dataclass(slots=True)
class LogAudit:
    """The findings about a session."""

    session: SessionId
    seq: int = 0
    head: bytes = b""
    findings: list[BrokenLink] = field(default_factory=list)
    named: bool = False
    """Whether its first entries name any session."""
    texts: int = 0
    """Large texts that were looked at."""
    witnesses: int = 0
    """Notes that agree."""
    keyed: bool = False
    """Whether the log is keyed, and no key is configured here: nothing can be said of its chain."""
    children: list[tuple[int, Child]] = field(default_factory=list)
    """The agents that the log says it made, with the entry of each."""
    redacted: int = 0
    """Entries that have no text any more, each explained by a fact of the log."""
    forked_from: ExternalNote | None = None
    """The note of a parent's log in the log of its fork."""


async def audit_session(
    storage: Storage, head: SessionHead, witnesses: Iterable[ExternalNote] = ()
) -> LogAudit:
    """Walks the log of a session from its first entry to the one that `head` names, archive included.

    Raises `ArchiveUnavailable` if the archive could not be asked.
    """
    return await _Audit(storage, head, [note for note in witnesses if note.session == head.session]).run()


def is_keyed(links: Sequence[Link], broken: BrokenLink) -> bool:
    """Whether a chain that breaks at its first entry does not go on behind it without a key either.

    Where one entry was changed, the next one follows from the value that stands with the changed one.
    """
    first = broken.reason == NOT_FOLLOWING and broken.seq == 1
    return first and len(links) > 1 and first_broken(links[1:2], links[0].chain) is not None


async def tree_witnesses(reader: Logs, tree: TreeId) -> list[ExternalNote]:
    """Notes of the tree's sessions in the tree's log: the last entry of each commit that wrote to it."""
    found: dict[tuple[SessionId, int, bytes], ExternalNote] = {}
    after = 0
    while page := await reader.read_tree(tree, after):
        for entry in page:
            found[entry.session, entry.seq, entry.head] = _note(entry)
        after = page[-1].tree_seq
    return list(found.values())


def _note(entry: TreeEntry) -> ExternalNote:
    return ExternalNote(entry.session, entry.seq, entry.head, f"entry {entry.tree_seq} of the tree's log")


class _Audit:
    """A walk through a session's log."""

    def __init__(self, storage: Storage, head: SessionHead, witnesses: Sequence[ExternalNote]) -> None:
        self._storage = storage
        self._end = head
        self._notes: dict[int, list[ExternalNote]] = {}
        for note in witnesses:
            self._notes.setdefault(note.seq, []).append(note)
        self._walk = ChainWalk(storage.secret)
        self._seen: set[str] = set()
        self._bare: dict[int, tuple[bytes, bytes]] = {}
        """Entries without text, with the digest and what stands instead of each."""
        self._explained: dict[int, tuple[int, str, bytes]] = {}
        """Entries that facts say were redacted: the entry of the fact, the digest, the line instead."""
        self._found = LogAudit(head.session)

    async def run(self) -> LogAudit:
        found = self._found
        if await self._walked():
            self._ends_where_it_says()
            self._explain_redacted()
        found.seq, found.head = self._walk.seq, self._walk.head
        # An imported session's log names the agents of the one that it was exported from: they are older.
        born_ms = created_ms(self._end.session)
        found.children = [
            (seq, child) for seq, child in found.children if created_ms(child.session) >= born_ms
        ]
        for seq, child in found.children:
            if await self._storage.broker.logs.head(child.session) is None:
                self._find(seq, f"it made session {child.session}, which is gone")
        await self._check_beyond()
        return found

    def _find(self, seq: int, reason: str) -> None:
        self._found.findings.append(BrokenLink(seq, reason))

    # ── the entries ───────────────────────────────────────────────────────────────────────────

    async def _walked(self) -> bool:
        """False if the walk ended before the log: behind a break nothing can be said of the chain."""
        storage, end = self._storage, self._end
        try:
            async for page in pages(full_log(storage.broker.logs, storage.archive, end.session, 0, end.seq)):
                links = tuple(links_of(page))
                broken = self._walk.take(links)
                if broken is not None:
                    self._found.keyed = not storage.secret and self._walk.seq == 0 and is_keyed(links, broken)
                    if not self._found.keyed:
                        self._found.findings.append(broken)
                    return False
                await self._read(page)
                await storage.sleep(0)
        except DamagedEntry as error:
            self._find(error.number, error.damage)
            return False
        except (BrokenArchive, Corrupt) as error:
            self._find(self._walk.seq + 1, str(error))
            return False
        return True

    async def _read(self, page: Sequence[StoredEntry]) -> None:
        """Entries that follow from the ones before: what they say of others, and others of them."""
        for entry in page:
            if entry.digest:
                self._bare[entry.seq] = entry.digest, entry.payload
            elif stored_kind(entry.payload) is f.Redacted:
                self._redaction(entry)
            refers = stored_kind(entry.payload) in _OF_OTHERS or may_refer(entry.payload)
            if refers or entry.seq <= NAMING_ENTRIES:
                await self._check_entry(entry, refers=refers)
        if self._notes:
            for entry in page:
                if entry.seq in self._notes:
                    self._compare(entry)

    async def _check_entry(self, entry: StoredEntry, *, refers: bool) -> None:
        try:
            if entry.seq <= NAMING_ENTRIES:
                self._named_by(entry)
            if refers:
                await self._refers(LogLine(entry))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # Of a chain without a key, anybody can have written it.
            self._find(entry.seq, f"it is not an entry: {type(error).__name__} {error}")

    def _redaction(self, entry: StoredEntry) -> None:
        try:
            stated = f.decode(decode_entry(entry.payload).payload)
            assert isinstance(stated, f.Redacted)
            if stated.log == f"session:{self._end.session}":
                self._explained[stated.seq] = entry.seq, stated.digest, encode_json(stated.instead)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._find(entry.seq, f"it is not an entry: {type(error).__name__} {error}")

    def _explain_redacted(self) -> None:
        for seq, (digest, instead) in self._bare.items():
            by, named, stands = self._explained.pop(seq, (0, "", b""))
            if not by:
                self._find(seq, "it is redacted, and no fact of the log says who did that and why")
            elif named != digest.hex():
                self._find(seq, f"entry {by} says that another text was redacted here")
            elif stands != instead:
                self._find(seq, f"another line stands instead of it than entry {by} says")
            else:
                self._found.redacted += 1
        for seq, (by, _, _) in self._explained.items():
            self._find(seq, f"entry {by} says that it was redacted, and its text is here: upkeep removes it")

    def _named_by(self, entry: StoredEntry) -> None:
        told = decode_entry(entry.payload)
        named = names_session(told)
        self._found.named = self._found.named or bool(named)
        if named and named != self._end.session:
            self._find(entry.seq, f"it names session {named}, whose log stands in the place of this one's")

        if stored_kind(entry.payload) is f.Configured:
            self._compare_place(entry.seq, told.payload["session"])

    def _compare_place(self, seq: int, facts: Mapping[str, Any]) -> None:
        """The hash says to which tree and pool the session belongs, and is in no chain."""
        end = self._end
        by_hash = {"tree_id": end.tree, "agent_id": end.agent_id, "pool": end.pool}
        for name, value in by_hash.items():
            if facts.get(name, value) != value:
                self._find(seq, f"it says {name} {facts[name]!r}, the session's hash says {value!r}")

    async def _refers(self, line: LogLine) -> None:
        payload, seq = line.value["payload"], line.stored.seq
        match f.decode(payload) if line.kind in _OF_OTHERS else None:
            case f.ChildMade(child):
                self._found.children.append((seq, child))
            case f.Forked(parent):
                chain = bytes.fromhex(parent["chain"])
                by = f"entry {seq} of its fork {self._end.session}"
                self._found.forked_from = ExternalNote(parent["session"], parent["seq"], chain, by)
            case _:
                pass
        await self._check_texts(line)

    def _compare(self, entry: StoredEntry) -> None:
        for note in self._notes[entry.seq]:
            if entry.chain.startswith(note.chain):
                self._found.witnesses += 1
            else:
                self._find(entry.seq, f"{note.by} names another hash for it ({note.chain.hex()[:16]}…)")

    # ── the texts ─────────────────────────────────────────────────────────────────────────────

    async def _check_texts(self, line: LogLine) -> None:
        """Checks every text once; a fork's conversation may refer to more texts, seen once it is loaded."""
        texts: dict[str, str] = {}
        asked: set[str] = set()
        is_fork = line.kind is f.Forked
        while missing := missing_texts([line], texts.get) - asked:
            asked |= missing
            for digest in sorted(missing):
                if not is_fork and digest in self._seen:
                    continue
                content = await self._text(line.stored.seq, digest)
                if is_fork and content is not None:
                    texts[digest] = content.decode("utf-8", "surrogatepass")

    async def _text(self, seq: int, digest: str) -> bytes | None:
        first, content = digest not in self._seen, None
        self._seen.add(digest)
        self._found.texts += first
        try:
            content = await self._storage.blobs.get(self._end.tree, digest)
            if content is None:
                content = await self._storage.archive.read_blob(self._end.tree, digest)
            damage = "is neither in Redis nor in the archive" if content is None else ""
        except (BrokenArchive, Corrupt) as error:
            damage = f"is damaged: {error.reason if isinstance(error, Corrupt) else error}"
        if damage and first:
            self._find(seq, f"the large text {digest[:16]}… that it refers to {damage}")
        return content

    # ── the end ───────────────────────────────────────────────────────────────────────────────

    def _ends_where_it_says(self) -> None:
        walk, end = self._walk, self._end
        if walk.seq != end.seq:
            self._find(walk.seq + 1, f"missing: the session's log goes on to {end.seq}")
        elif walk.head != end.head:
            self._find(end.seq, "the session's hash names another chain head")

    async def _check_beyond(self) -> None:
        """Notes of entries that the log does not have: it was cut short, or Redis has lost its end."""
        beyond = [(seq, notes[0].by) for seq, notes in self._notes.items() if seq > self._end.seq]
        sealed = await self._storage.archive.sealed_through(self._end.tree, self._end.session)
        if sealed > self._end.seq:
            beyond.append((sealed, "a segment in the archive"))
        if not beyond:
            return
        # A living session may have gone on since it was asked for; those who noted it then knew more.
        now = await self._storage.broker.logs.head(self._end.session)
        end = max(self._end.seq, now.seq if now is not None else 0)
        for seq, by in sorted(beyond):
            if seq > end:
                reason = "which the log does not have: its end was cut off, or Redis lost it"
                self._find(end + 1, f"{by} names entry {seq}, {reason}")
                return


async def audit_tree(
    storage: Storage, heads: Sequence[SessionHead], noted: Iterable[ExternalNote] = ()
) -> AsyncIterator[LogAudit]:
    """Audits the sessions of one tree, children first: their logs are witnesses of their parents'."""
    witnesses = [*noted, *(await tree_witnesses(storage.broker.logs, heads[0].tree) if heads else ())]
    for head in sorted(heads, key=lambda head: -head.agent_id):
        audit = await audit_session(storage, head, witnesses)
        if audit.forked_from is not None:
            witnesses.append(audit.forked_from)
        yield audit


__all__ = ["ExternalNote", "LogAudit", "audit_session", "audit_tree", "tree_witnesses"]
