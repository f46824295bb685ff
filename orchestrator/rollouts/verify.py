"""Verification of a session's log against itself and against all notes of it elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import SessionHead
from orchestrator.core.chain import (
    NAMING_ENTRIES,
    NOT_FOLLOWING,
    BrokenLink,
    ChainKey,
    ExpectedHead,
    first_broken,
    names_session,
)
from orchestrator.core.counts import counted
from orchestrator.core.entries import DENDRO, Entry
from orchestrator.core.facts import Configured, Redacted, decode, kind_of, states
from orchestrator.core.frozen import record
from orchestrator.core.ids import TreeId
from orchestrator.rollouts import RolloutError, file_format
from orchestrator.rollouts.archive import Storage
from orchestrator.rollouts.chain_check import (
    ExternalNote,
    LogAudit,
    audit_session,
    audit_tree,
    tree_witnesses,
)
from orchestrator.rollouts.rollout_file import days_of, last_noted
from orchestrator.rollouts.tree_log import audit_tree_log


@record
class Report:
    """The result of the checks of a log."""

    what: str
    seq: int
    head: bytes
    shown: tuple[str, ...]
    """The claims that hold, for people."""
    findings: Sequence[BrokenLink]
    key_id: str = ""
    """The id of the key that the log says its chain was keyed by; full exports say it, sessions do not."""
    unchecked: str = ""
    """Why the chain could not be checked here, where it is keyed otherwise: neither sound nor broken."""
    session: str = ""
    """The session whose log it is; empty for the log of a tree, and for a file."""


class Audited(Protocol):
    """A deployment, as far as its logs are verified."""

    @property
    def broker(self) -> Broker: ...

    @property
    def rollout_files(self) -> Path:
        """The folder of rollout files in this user's data folder."""
        ...

    def storage(self) -> Storage:
        """Redis and the archive."""
        ...


async def session_report(found: Audited, head: SessionHead, expected: ExpectedHead | None) -> Report:
    """The verification report of a session; `expected` is an earlier head."""
    witnesses = [*await tree_witnesses(found.broker.logs, head.tree), *_noted_in_file(found, head)]
    if expected is not None:
        witnesses.append(ExternalNote(head.session, expected.seq, expected.chain, "--expect-head"))
    return _report(await audit_session(found.storage(), head, witnesses))


def _noted_in_file(found: Audited, head: SessionHead) -> Iterator[ExternalNote]:
    """The note in the session's rollout file, where workers write that file into this user's data folder."""
    days = days_of(found.rollout_files, head.session)
    for path in (path for day in days for path in day.glob(f"rollout-*-{head.session}.jsonl")):
        if path.is_file():
            with path.open("rb") as file:
                line = last_noted(file)
            if line.seq:
                yield ExternalNote(head.session, line.seq, line.head, f"the file {path}")


async def sessions_by_tree(found: Audited, tree: TreeId | None) -> AsyncIterator[list[SessionHead]]:
    """The sessions of one tree, or of each tree that there is."""
    if tree is not None:
        yield list(await found.broker.logs.heads_of_tree(tree))
        return
    async for sessions in found.broker.logs.session_ids():
        # All of a tree are in one shard, and each page is one shard's.
        trees: dict[str, list[SessionHead]] = {}
        for head in await found.broker.logs.heads(sessions):
            trees.setdefault(str(head.tree), []).append(head)
        for heads in trees.values():
            yield heads


async def tree_reports(found: Audited, heads: Sequence[SessionHead]) -> list[Report]:
    """In the order in which the agents were made."""

    noted = [note for head in heads for note in _noted_in_file(found, head)]
    audits = [audit async for audit in audit_tree(found.storage(), heads, noted)]
    reports = [_report(audit) for audit in reversed(audits)]
    if heads:
        made = [child for audit in audits for _, child in audit.children]
        told, findings = await audit_tree_log(found.storage(), heads[0].tree, made)
        if told or findings:
            reports.append(_tree_report(heads[0].tree, told, findings))
    return reports


def _tree_report(tree: TreeId, told: int, findings: Sequence[BrokenLink]) -> Report:
    shown = (
        "in no chain",
        "it agrees with the registry and with the births, requests and decisions in its sessions' logs",
    )
    return Report(f"tree {tree}", told, b"", shown, findings)


def _report(audit: LogAudit) -> Report:
    shown = ["it is this session's log"] if audit.named else ["its entries name no session"]
    shown += [f"{audit.redacted} of them redacted"] if audit.redacted else []
    texts, notes = counted(audit.texts, "large text"), counted(audit.witnesses, "note")
    shown += [f"{texts} {'is' if audit.texts == 1 else 'are'} there"] if audit.texts else []
    shown += [f"{notes} of others {'agrees' if audit.witnesses == 1 else 'agree'}"] if audit.witnesses else []
    unchecked = unchecked_for("") if audit.keyed else ""
    what = f"session {audit.session}"
    return Report(
        what, audit.seq, audit.head, tuple(shown), audit.findings, unchecked=unchecked, session=audit.session
    )


def unchecked_for(key_id: str) -> str:
    """Why a chain cannot be checked, in words."""
    by = f"keyed by {key_id!r}" if key_id else "keyed, or changed from its first entries on"
    return f"{by}: cannot be checked here, where chain.secret is not that key"


# ── verify file ───────────────────────────────────────────────────────────────────────────────────
# Verification of an exported file, without any server.


_SHAPED = "a file in Codex's shapes has no facts, so nothing in it says why: verify a full export"


@dataclass(slots=True)
class _Seen:
    """The counts and names collected while reading a file."""

    lines: int = 0
    proved: int = 0
    """Lines of the tree's log that the one given beside it has, too."""
    left_out: int = 0
    redacted: dict[int, bytes] = field(default_factory=dict)
    """Digests of the redacted entries, by their numbers."""
    explained: set[tuple[int, str]] = field(default_factory=set)
    """The number and the digest of each entry that the log says was redacted."""
    sessions: set[str] = field(default_factory=set)
    """The sessions that the first entries name: one, or none if the entries are redacted."""
    pool: str | None = None
    texts_missing: int = 0
    export_mac: bool = False
    """Whether the log says that the first line of its exports bears a code."""


def audit_file(
    path: Path,
    key: ChainKey | None,
    expected: ExpectedHead | None,
    *,
    accept_old_header: bool = False,
    tree_lines: Mapping[int, bytes] | None = None,
) -> Report:
    """Walks a file to its end, `key` is the chain's; raises `RolloutError` for one that is no export.

    `tree_lines` are the SHA-256 of the lines that an export has of the tree's log, from elsewhere.
    """
    try:
        with path.open("rb") as file:
            text = file_format.read_rollout(file_format.lines_in(file))
            if text.kind == "foreign":
                raise RolloutError(_foreign(path, text))
            return _Audit(path, text, key, expected, accept_old_header, tree_lines or {}).run()
    except file_format.BadLine as error:
        raise RolloutError(f"{path}: {error}") from None


def _foreign(path: Path, text: file_format.RolloutText) -> str:
    for line in text.lines:
        if line.place is not None or line.tree_seq or line.inherited is not None:
            return (
                f"{path}: line {line.number} is of an export, and the first line is not: "
                "the file was changed at its beginning"
            )
    return f"{path}: Codex's rollout has no hash chain, there is nothing to verify"


def keyed_elsewhere(header: file_format.Header | None, key: ChainKey | None) -> str:
    """The id of the key that a full export was keyed by, where no key is configured here; else empty."""
    return header.key_id if header is not None and key is None else ""


class _Audit:
    """A walk through a file."""

    def __init__(
        self,
        path: Path,
        text: file_format.RolloutText,
        key: ChainKey | None,
        expected: ExpectedHead | None,
        accept_old_header: bool,
        tree_lines: Mapping[int, bytes],
    ) -> None:
        self._path, self._text, self._key, self._expected = path, text, key, expected
        self._accept_old_header, self._tree_lines = accept_old_header, tree_lines
        self._elsewhere = keyed_elsewhere(text.header, key)
        self._secret = key.secret if key else b""
        self._walk = file_format.FileWalk(self._secret, expected, keyed=not self._elsewhere)
        self._seen = _Seen()

    def run(self) -> Report:
        header, walk = self._text.header, self._walk
        unchecked = unchecked_for(self._elsewhere) if self._elsewhere else ""
        try:
            broken, last = self._walked()
            if broken is not None and self._is_keyed_otherwise(broken, last):
                broken, unchecked = None, unchecked_for(header.key_id if header is not None else "")
                findings: list[BrokenLink] = []
            else:
                findings = [broken] if broken else self._wrong_at_the_end()
        except file_format.BadLine as error:
            findings = [BrokenLink(walk.seq + 1, str(error))]
        shown = _shown(header, self._seen, walk.told)
        key_id = header.key_id if header is not None else ""
        return Report(str(self._path), walk.seq, walk.head, tuple(shown), findings, key_id, unchecked)

    def _walked(self) -> tuple[BrokenLink | None, file_format.FileLine | None]:
        for line in self._text.lines:
            broken = self._walk.take_line(line) or self._told_otherwise(line)
            if broken is not None:
                return broken, line
            if line.inherited is None and not line.tree_seq:
                self._note(line)
        return self._walk.unproved(), None

    def _told_otherwise(self, line: file_format.FileLine) -> BrokenLink | None:
        """A line of the tree's log that the log given beside the file has otherwise."""
        known = self._tree_lines.get(line.tree_seq) if line.tree_seq else None
        if known is None:
            return None
        if sha256(line.told).digest() != known:
            return BrokenLink(
                self._walk.seq, f"line {line.number}: the tree's log in the bundle has another one"
            )
        self._seen.proved += 1
        return None

    def _is_keyed_otherwise(self, broken: BrokenLink, line: file_format.FileLine | None) -> bool:
        """Whether the key is not the chain's: it does not lead to the first entry, and none leads on from it.

        A chain without a key goes on behind an entry that was changed: that is a finding.
        """
        header = self._text.header
        if broken.reason != NOT_FOLLOWING or self._walk.seq or line is None or line.place is None:
            return False
        if header is not None:
            return bool(header.key_id) and self._key is not None and header.key_id != self._key.id
        if self._key is not None:
            return False
        chain = line.place.chain
        after = next((line for line in self._text.lines if line.place is not None), None)
        return after is not None and first_broken(file_format.links_of(after, chain), chain) is not None

    def _note(self, line: file_format.FileLine) -> None:
        seen = self._seen
        seen.lines += 1
        seen.left_out += len(line.omitted)
        if line.place is None:
            return
        if line.entry is None:
            seen.redacted[line.place.seq] = line.place.digest
            return
        seen.texts_missing += line.texts_missing
        if line.entry.type == DENDRO:
            self._note_fact(line.entry)
        if line.place.seq <= NAMING_ENTRIES:
            seen.sessions |= {named for named in [names_session(line.entry)] if named}
            if line.entry.type == DENDRO and states(line.entry.payload, Configured):
                seen.pool = line.entry.payload.get("session", {}).get("pool")

    def _note_fact(self, fact: Entry) -> None:
        if kind_of(fact.payload) not in (Configured, Redacted):
            return
        try:
            stated = decode(fact.payload)
        except (AttributeError, KeyError, TypeError, ValueError):
            # One that lacks a field says nothing here: its entry is held by the chain, as any other.
            return
        match stated:
            case Configured(export_mac=mac):
                self._seen.export_mac |= mac is True
            case Redacted() as redacted if redacted.log in self._own_logs():
                self._seen.explained.add((redacted.seq, redacted.digest))
            case _:
                pass

    def _own_logs(self) -> set[str]:
        header = self._text.header
        named = self._seen.sessions | ({header.session_id} if header is not None else set())
        return {f"session:{session}" for session in named}

    # ── at the end ────────────────────────────────────────────────────────────────────────────

    def _wrong_at_the_end(self) -> list[BrokenLink]:
        """The faults that show only when all of a file was read, or beside its chain."""
        header, walk, seen = self._text.header, self._walk, self._seen
        wrong: list[str] = []
        if header is not None:
            named = seen.sessions | {header.session_id}
            wrong += [
                f"the file should go on to {header.seq}" if walk.seq != header.seq else "",
                "the first line names another head" if walk.head != header.head else "",
                f"the first line and the entries name several sessions: {', '.join(sorted(named))}"
                if len(named) > 1
                else "",
                f"the first line says pool {header.pool!r}, the entries say {seen.pool!r}"
                if seen.pool not in (None, header.pool)
                else "",
            ]
        elif len(seen.sessions) > 1:
            wrong.append(f"the entries name several sessions: {', '.join(sorted(seen.sessions))}")
        if self._expected is not None and not walk.met_expected:
            wrong.append(f"it does not contain the head that was expected at entry {self._expected.seq}")
        first = self._wrong_first_line()
        found = [BrokenLink(walk.seq + 1 if "go on" in text else walk.seq, text) for text in wrong if text]
        return [*([first] if first is not None else []), *found, *self._unexplained()]

    def _wrong_first_line(self) -> BrokenLink | None:
        header = self._text.header
        if header is None:
            return None
        if self._elsewhere and header.mac:
            return None if header.as_written else header.fault(b"")
        return header.fault(self._secret) or header_lacks_code(
            header, self._key, self._seen.export_mac, self._accept_old_header
        )

    def _unexplained(self) -> list[BrokenLink]:
        why = "and no fact of the log says who did that and why" if self._text.header else _SHAPED
        return [
            BrokenLink(seq, f"it is redacted, {why}")
            for seq, digest in self._seen.redacted.items()
            if (seq, digest.hex()) not in self._seen.explained
        ]


def header_lacks_code(
    header: file_format.Header, key: ChainKey | None, export_mac: bool, accept_old: bool
) -> BrokenLink | None:
    """The fault of a first line without a code where one has to be: without it the file can be cut unseen."""
    if header.mac:
        return None
    if export_mac:
        return BrokenLink(
            0,
            "the file's first line bears no code (`mac`), and the log says that those of its exports do: "
            "it was taken away",
        )
    # Its entries follow by the key that is configured here, so it is keyed, whatever its first line says.
    if key is None or accept_old:
        return None
    return BrokenLink(
        0,
        "the file's first line bears no code (`mac`): an older version wrote it, or it was taken away to cut "
        "the file. If you know that the file is so old, say --accept-old-header",
    )


def _shown(header: file_format.Header | None, seen: _Seen, told: int) -> list[str]:
    parts = f"{seen.lines} stand in the file, {seen.left_out} are left out of it but for their digests"
    shown = [parts if seen.left_out else f"all {seen.lines} stand in the file"]
    shown += ["what those say, only a full export shows"] if seen.left_out else []
    shown += [f"{len(seen.redacted)} of them redacted"] if seen.redacted else []
    shown += [f"{seen.texts_missing} large texts are not in the file"] if seen.texts_missing else []
    named = sorted(seen.sessions)
    shown.append(f"it is the log of session {named[0]}" if named else "its entries name no session")
    if seen.proved:
        shown.append(f"{counted(seen.proved, 'line')} of the tree's log, as the bundle has it")
    if told := told - seen.proved:
        are = "is" if told == 1 else "are"
        shown.append(f"{counted(told, 'line')} {are} of the tree's log: not proved by this file")
    if header is not None and not header.mac:
        shown.append("its first line bears no code, as older versions wrote it: state_sha256 is not proved")
    return shown
