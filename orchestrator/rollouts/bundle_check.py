"""The check of a bundle: every rule of its format, each with a name of its own.

A finding is something that a bundle of a run cannot be. A note is something that holds and that its reader
has to know: what was withheld, redacted or left out, what nobody signed, what could not be looked at. The
check reads each member once, in bounded memory, and starts no server.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import orjson

from orchestrator.core.chain import GENESIS, NAMING_ENTRIES, ChainKey, next_chain
from orchestrator.core.entries import BEHIND_TIME, DENDRO, EVENT_MSG, SESSION_META
from orchestrator.core.frozen import record
from orchestrator.core.merkle import EMPTY_ROOT, Frontier
from orchestrator.rollouts.bundle_form import (
    EMPTY_HEAD,
    MANIFEST,
    MOST_CONVERSATION_BYTES,
    MOST_MANIFEST_BYTES,
    MOST_UNEXPLAINED,
    NOTE,
    BadForm,
    File,
    KeyTwice,
    Line,
    LogLine,
    Manifest,
    NewerFormat,
    child_of,
    conversation,
    is_canonical,
    leaf,
    log_member,
    note_text,
    packs_named,
    read_line,
    read_manifest,
    strict_json,
    texts_named,
)
from orchestrator.rollouts.bundle_members import BadContainer, Members, lines_of, open_members
from orchestrator.rollouts.bundle_receipts import Head, LogReceipts, ReceiptReader, Receipts, Trust
from orchestrator.rollouts.signed_notes import (
    MOST_NOTE_BYTES,
    REQUESTS,
    BadNote,
    Note,
    SignedAnswers,
    Signers,
)

MOST_FINDINGS: Final = 1_000
"""More are counted, and not kept."""
_CHAINS_HELD: Final = 64 << 20
"""Bytes of chain values that are kept in memory; more go to a file without a name."""


@record
class Finding:
    """Something that is wrong: the rule's name, the place, and what is wrong there."""

    code: str
    place: str
    text: str


@dataclass(slots=True)
class LogSeen:
    """The figures of a log, as far as it was read."""

    id: str
    entries: int = 0
    root: bytes = EMPTY_ROOT
    head: bytes = EMPTY_HEAD
    first: str = ""
    last: str = ""
    """Times of its first and its last entry, as they say."""
    agent: int | None = None
    label: str = ""
    parent: str = ""


@dataclass(slots=True)
class BundleReport:
    """The result of a check."""

    findings: list[Finding] = field(default_factory=list)
    more: int = 0
    """Findings beyond those that are kept."""
    manifest: Manifest | None = None
    receipts: Receipts = field(default_factory=Receipts)
    logs: dict[str, LogSeen] = field(default_factory=dict)
    signed_by: tuple[str, ...] = ()
    """The names of trusted keys that signed the manifest."""
    signatures: int = 0
    redacted: dict[tuple[str, str], int] = field(default_factory=dict)
    """Entries by who redacted them, and why."""
    withheld: int = 0
    texts: dict[str, int] = field(default_factory=dict)
    packs: dict[str, int] = field(default_factory=dict)
    """How many of each state."""
    answers: int = 0
    proved_answers: int = 0
    """Answers of people whose signature a trusted key proves."""
    notes: list[str] = field(default_factory=list)
    uncovered: int = 0
    """Entries that no statement covers."""


def check_bundle(path: Path, trust: Trust | None = None, key: ChainKey | None = None) -> BundleReport:
    """Checks a bundle against itself and against what an auditor trusts.

    `key` is the chain's, where it is configured. Raises `NewerFormat` for a bundle of a later version, and
    `OSError` where the file cannot be read.
    """
    report = BundleReport()
    try:
        members = open_members(path)
    except BadContainer as error:
        report.findings.append(Finding(error.code, path.name, str(error)))
        return report
    try:
        _Check(members, trust, key, report).run()
    finally:
        members.close()
    return report


@dataclass(slots=True)
class _Fork:
    """A chain value that a fork says that its parent has at one of its entries."""

    session: str
    seq: int
    chain: bytes
    place: str
    text: str


class _Check:
    """A walk through a bundle."""

    def __init__(
        self, members: Members, trust: Trust | None, key: ChainKey | None, report: BundleReport
    ) -> None:
        self._members, self._trust, self._key, self._report = members, trust, key, report
        self._names = sorted(members.members)
        self._unread = set(self._names) - {MANIFEST, NOTE}
        self._made: dict[str, str] = {}
        """Sessions that a fact says were made, with the place of the fact."""
        self._forks: list[_Fork] = []
        self._chains = _Chains()
        self._bare: dict[tuple[str, int], bytes] = {}
        """Lines without text that `withheld` does not explain, by log and number: their digests."""
        self._redacted: dict[tuple[str, int], tuple[str, str]] = {}
        """Entries that a fact says were redacted, with the digest and the place of the fact."""
        self._texts: dict[str, set[int]] = {}
        self._packs: dict[str, set[int]] = {}
        """Texts and packs that entries name, with the lengths that they say."""
        self._named_by_tree: set[str] = set()
        people = trust.people if trust is not None else {}
        self.answers = SignedAnswers(Signers(people.values(), people))
        self._sessions: frozenset[str]
        self._left_out: frozenset[str]

    def find(self, code: str, place: str, text: str) -> None:
        """Takes a finding."""
        if len(self._report.findings) < MOST_FINDINGS:
            self._report.findings.append(Finding(code, place, text))
        else:
            self._report.more += 1

    def run(self) -> None:
        manifest = self._manifest()
        if manifest is None:
            return
        self._report.manifest = manifest
        self._check_files(manifest)
        reader = ReceiptReader(self._names, self._read, self.find, self._trust)
        self._report.receipts = reader.run(manifest.tree, manifest.origin)
        self._sessions = frozenset(log.session for log in manifest.logs if log.session)
        self._left_out = frozenset(manifest.left_out)
        with self._chains:
            # Sessions first: a line of the tree's log names an entry of one.
            for log in sorted(manifest.logs, key=lambda log: log.id):
                self._walk_log(log, manifest)
            self._check_tree(manifest)
            self._check_forks()
        self._check_explained(manifest)
        self._check_texts(manifest)
        self._check_packs(manifest)
        self._check_receipts(manifest)
        self._read_the_rest()

    # ── members ───────────────────────────────────────────────────────────────────────────────

    def _read(self, name: str) -> Iterator[bytes]:
        """A member's bytes, held against the manifest when they end."""
        self._unread.discard(name)
        manifest = self._report.manifest
        stated = manifest.files.get(name) if manifest is not None else None
        hash, size = sha256(), 0
        for chunk in self._members.chunks(name):
            size += len(chunk)
            if stated is not None and size > stated.bytes:
                break
            hash.update(chunk)
            yield chunk
        if stated is not None and (size, hash.hexdigest()) != (stated.bytes, stated.sha256):
            self.find("member-changed", name, "it is not the file that the manifest names")

    def _whole(self, name: str, most: int) -> bytes | None:
        """A member that is read at once; None, with a finding, where it cannot be."""
        if name not in self._members.members:
            self.find("member-missing", name, "it is not there")
            return None
        parts, size = [], 0
        try:
            for chunk in self._read(name):
                parts.append(chunk)
                size += len(chunk)
                if size > most:
                    raise BadContainer(f"it has more than {most:,} bytes")
        except BadContainer as error:
            self.find(error.code, name, str(error))
            return None
        return b"".join(parts)

    def _manifest(self) -> Manifest | None:
        data = self._whole(MANIFEST, MOST_MANIFEST_BYTES)
        if data is None:
            return None
        try:
            manifest = read_manifest(data)
        except BadForm as error:
            self.find("manifest", MANIFEST, str(error))
            return None
        self._check_note(manifest, data)
        return manifest

    def _check_note(self, manifest: Manifest, data: bytes) -> None:
        text = self._whole(NOTE, MOST_NOTE_BYTES)
        if text is None:
            return
        try:
            note = Note.read(text)
            keys = self._trust.log if self._trust is not None else ()
            signers = note.signed_by(keys)
        except BadNote as error:
            self.find("note", NOTE, str(error))
            return
        if note.text != note_text(manifest.origin, data):
            self.find("note", NOTE, "it is the note of another manifest")
        self._report.signatures = len(note.signatures)
        self._report.signed_by = tuple(key.name for key in signers)
        own = any(key.name == manifest.origin for key in keys)
        if own and manifest.origin not in self._report.signed_by:
            # Else a deployment whose key is trusted, too, could sign in the place of this one.
            self.find("signer", NOTE, f"the key of {manifest.origin} that you trust has not signed it")
        elif self._trust is not None and not signers:
            self.find("signer", NOTE, "no key that you trust has signed it")

    def _check_files(self, manifest: Manifest) -> None:
        there = set(self._names) - {MANIFEST, NOTE}
        for name in sorted(there - manifest.files.keys()):
            self.find("member-unlisted", name, "the manifest does not list it")
        for name in sorted(manifest.files.keys() - there):
            self.find("member-missing", name, "it is not there")
        logs = {log_member(log.id) for log in manifest.logs}
        for name in sorted(logs - manifest.files.keys()):
            self.find("log-file", name, "the manifest tells of a log, and lists no file of it")
        for name in sorted(name for name in manifest.files if name.startswith("logs/")):
            if name not in logs:
                self.find("log-file", name, "it is the file of a log that the manifest does not tell of")
        for kind, end, told in (("texts", "", manifest.texts), ("packs", ".pack", manifest.packs)):
            here = {f"{kind}/{digest}{end}" for digest, one in told.items() if one.state == "here"}
            files = {name for name in manifest.files if name.startswith(f"{kind}/")}
            code = f"{kind.removesuffix('s')}-file"
            for name in sorted(here ^ files):
                self.find(code, name, "the manifest tells otherwise of whether it is here")

    def _read_the_rest(self) -> None:
        """Members that nothing else has read are held against the manifest, too."""
        for name in sorted(self._unread):
            try:
                for _ in self._read(name):
                    pass
            except BadContainer as error:
                self.find(error.code, name, str(error))

    # ── logs ──────────────────────────────────────────────────────────────────────────────────

    def _walk_log(self, log: LogLine, manifest: Manifest) -> None:
        seen = self._report.logs.setdefault(log.id, LogSeen(log.id))
        name = log_member(log.id)
        if name not in self._members.members:
            return
        walk = _LogWalk(
            self, log, manifest, seen, self._report.receipts.logs.get(log.id), self._chain_key(log)
        )
        keep = self._chains.of(log.session)
        self.answers.begins()
        try:
            for lines in lines_of(self._read(name)):
                for data in lines:
                    walk.take(data)
                keep(walk.chains)
                walk.chains.clear()
        except BadContainer as error:
            self.find(
                "line" if error.code == "container" else error.code, f"{log.id}:{walk.seq + 1}", str(error)
            )
            return
        except _Stopped:
            return
        finally:
            keep(walk.chains)
            seen.entries, seen.head, seen.root = walk.seq, walk.head, walk.frontier.root()
        if walk.seq != log.size:
            self.find("size", log.id, f"it has {walk.seq} entries, the manifest says {log.size}")
            return
        if seen.root != log.root:
            self.find("root", log.id, "its Merkle root is not the one that the manifest names")
        if seen.head != log.head:
            self.find("head", log.id, "its last chain value is not the one that the manifest names")

    def _chain_key(self, log: LogLine) -> bytes | None:
        """The key of the log's chain; None where it cannot be checked here."""
        if not log.session:
            return None
        if not log.key_id:
            return b""
        return self._key.secret if self._key is not None and self._key.id == log.key_id else None

    def bare(self, log: str, line: Line) -> None:
        """Takes a line without text."""
        self._bare[log, line.seq] = line.digest
        self.answers.unread()
        if len(self._bare) > MOST_UNEXPLAINED:
            self.find("unexplained", f"{log}:{line.seq}", "more lines than are looked at have no text")
            raise _Stopped

    def entry(self, place: str, log: LogLine, line: Line, value: Mapping[str, Any]) -> None:
        """Keeps the word of an entry on other sessions, and on texts and packs."""
        text = line.payload or ""
        if "$blob" in text:
            for digest, size in texts_named(value):
                self._name(self._texts, digest, size, place, "text")
        payload = value.get("payload")
        if not isinstance(payload, dict) or not log.session:
            return
        if value.get("type") == EVENT_MSG and str(payload.get("type")) in REQUESTS:
            self.answers.asks(sha256(text.encode()[BEHIND_TIME:]).hexdigest())
        if value.get("type") != DENDRO:
            return
        if '"sha256"' in text:
            for pack in packs_named(payload):
                self._name(self._packs, pack["sha256"], pack["bytes"], place, "pack")
        match payload.get("kind"):
            case "child":
                self._child(place, log, payload)
            case "forked":
                self._fork(place, payload)
            case "redacted":
                self._redaction(place, payload)
            case "answer":
                self._answer(place, log, payload)
            case _:
                pass

    def _name(self, named: dict[str, set[int]], digest: str, size: Any, place: str, kind: str) -> None:
        manifest = self._report.manifest
        assert manifest is not None
        if digest in named:
            if type(size) is int and len(named[digest]) < 100:
                named[digest].add(size)
            return
        if digest not in (manifest.texts if kind == "text" else manifest.packs):
            what = "is neither here nor declared"
            self.find(f"{kind}-missing", place, f"the {kind} {digest[:16]}… that it names {what}")
            return
        named[digest] = {size} if type(size) is int else set()

    def _redaction(self, place: str, payload: Mapping[str, Any]) -> None:
        named = (str(payload.get("log")), _number(payload.get("seq")))
        if len(self._redacted) >= MOST_UNEXPLAINED:
            self.find("unexplained", place, "more entries were redacted than are looked at")
            raise _Stopped
        self._redacted[named] = (str(payload.get("digest")), place)
        who = (str(payload.get("who", "")), str(payload.get("why", "")))
        self._report.redacted[who] = self._report.redacted.get(who, 0) + 1

    def _child(self, place: str, log: LogLine, payload: Mapping[str, Any]) -> None:
        child = child_of(payload)
        session = str(child.get("session"))
        if session not in self._sessions and session not in self._left_out:
            self.find("child-absent", place, f"it made session {session:.100}, neither here nor left out")
            return
        self._made.setdefault(session, place)
        id = f"session:{session}"
        seen = self._report.logs.setdefault(id, LogSeen(id))
        seen.agent = _number(child.get("agent_id"))
        seen.label, seen.parent = str(child.get("label") or ""), log.session

    def _fork(self, place: str, payload: Mapping[str, Any]) -> None:
        parent = payload.get("parent")
        if isinstance(parent, dict):
            session, seq, chain = (
                str(parent.get("session")),
                _number(parent.get("seq")),
                _bytes(parent.get("chain")),
            )
            text = (
                f"it says that it forks session {session:.100} at entry {seq}, whose chain value is another"
            )
            if session in self._sessions and len(self._forks) < MOST_UNEXPLAINED:
                self._forks.append(_Fork(session, seq, chain, place, text))
        content = payload.get("content")
        self._read_inherited(content)

    def _read_inherited(self, content: Any) -> None:
        """The texts that an inherited conversation names, and those in what it had inherited itself."""
        waiting = [content]
        while waiting:
            text = waiting.pop()
            if isinstance(text, dict):
                text = self._inherited_text(text)
            if isinstance(text, str):
                named, inside = conversation(text)
                waiting += inside
                for digest, size in named:
                    self._name(self._texts, digest, size, "an inherited conversation", "text")

    def _inherited_text(self, reference: Mapping[str, Any]) -> str | None:
        digest = str(reference.get("$blob"))
        name = f"texts/{digest}"
        if name not in self._unread:
            return None
        if self._members.members[name].bytes > MOST_CONVERSATION_BYTES:
            self._report.notes.append(f"the conversation {digest[:16]}… is too long to look into")
            return None
        try:
            return b"".join(self._read(name)).decode("utf-8", "surrogatepass")
        except BadContainer as error:
            self.find(error.code, name, str(error))
        except UnicodeDecodeError:
            self.find("text-changed", name, "it is no conversation")
        return None

    def _answer(self, place: str, log: LogLine, payload: Mapping[str, Any]) -> None:
        report = self._report
        if payload.get("agent_id") is not None:
            return  # It was sent on to the agent that has asked, and decides nothing here.
        report.answers += 1
        if "sig" not in payload:
            return
        fault = self.answers.fault(log.session, payload, _shown(payload))
        if fault:
            self.find("answer", place, fault)
        report.proved_answers += fault == ""

    # ── the tree ──────────────────────────────────────────────────────────────────────────────

    def cause(self, place: str, line: Line) -> None:
        """Holds the entry that a line of the tree's log names as its cause against that session's log."""
        if line.by in self._left_out:
            self._named_by_tree.add(line.by)
        elif line.by not in self._sessions:
            self.find("cause", place, f"session {line.by} is neither here nor left out")
        elif self._chains.at(line.by, line.epoch) != line.chain:
            self.find("cause", place, f"no entry {line.epoch} of {line.by} has the chain value that it names")

    def _check_tree(self, manifest: Manifest) -> None:
        ids = {log.id for log in manifest.logs}
        if f"tree:{manifest.tree}" not in ids:
            self.find("tree-absent", MANIFEST, "the log of the tree is not there")
        for id in sorted(ids):
            if id.startswith("tree:") and id != f"tree:{manifest.tree}":
                self.find("log-file", id, "it is the log of another tree")
        if f"session:{manifest.tree}" not in ids and manifest.tree not in manifest.left_out:
            self.find("root-absent", MANIFEST, "the tree's root is neither here nor left out")
        for log in manifest.logs:
            if log.session and log.session != manifest.tree and log.session not in self._made:
                self.find("maker-absent", log.id, "no session's log says that it made it")
        for session in manifest.left_out:
            if f"session:{session}" in ids:
                self.find("left-out", MANIFEST, f"session {session} is here and left out")
            elif not self._bare and session not in self._made.keys() | self._named_by_tree | {manifest.tree}:
                self.find("left-out", MANIFEST, f"no entry names session {session}, which is left out")

    def _check_forks(self) -> None:
        for fork in self._forks:
            if self._chains.at(fork.session, fork.seq) != fork.chain:
                self.find("fork", fork.place, fork.text)

    # ── what is not there ─────────────────────────────────────────────────────────────────────

    def _check_explained(self, manifest: Manifest) -> None:
        withheld = set(manifest.withheld)
        self._report.withheld = len(withheld)
        ids = {log.id: log.size for log in manifest.logs}
        for (log, seq), digest in self._bare.items():
            place = f"{log}:{seq}"
            fact = self._redacted.get((log, seq))
            if fact is None and (log, seq) not in withheld:
                self.find("unexplained", place, "it has no text, and nothing says who took it away")
            elif fact is not None and fact[0] != digest.hex():
                self.find("unexplained", place, f"{fact[1]} says that another entry was redacted")
            elif fact is not None and (log, seq) in withheld:
                self.find("explained", place, "it is redacted, and the manifest says that it is withheld")
        for log, seq in sorted(withheld):
            if (log, seq) not in self._bare:
                self.find(
                    "explained", f"{log}:{seq}", "the manifest says that it is withheld, and it is here"
                )
        for (log, seq), (_, place) in sorted(self._redacted.items()):
            if log in ids and seq <= ids[log] and (log, seq) not in self._bare:
                self.find("explained", f"{log}:{seq}", f"{place} says that it was redacted, and it is here")

    def _check_texts(self, manifest: Manifest) -> None:
        for digest, told in sorted(manifest.texts.items()):
            self._report.texts[told.state] = self._report.texts.get(told.state, 0) + 1
            lengths = self._texts.get(digest)
            if lengths is None:
                self.find("text-unnamed", f"texts/{digest}", "no entry names it")
            elif told.state != "here" and told.bytes not in lengths:
                self.find("text-changed", f"texts/{digest}", "the entries that name it say another length")
            if told.state == "redacted" and not self._redacted:
                self.find(
                    "text-changed", f"texts/{digest}", "it is called redacted, and nothing was redacted"
                )
            if told.state == "here":
                self._check_content("text", f"texts/{digest}", digest, told.bytes, manifest)

    def _check_packs(self, manifest: Manifest) -> None:
        for digest, told in sorted(manifest.packs.items()):
            self._report.packs[told.state] = self._report.packs.get(told.state, 0) + 1
            lengths = self._packs.get(digest)
            if lengths is None:
                self.find("pack-unnamed", f"packs/{digest}.pack", "no entry names it")
            elif told.bytes not in lengths:
                self.find(
                    "pack-changed", f"packs/{digest}.pack", "the entries that name it say another length"
                )
            if told.state == "here":
                self._check_content("pack", f"packs/{digest}.pack", digest, told.bytes, manifest)

    def _check_content(self, kind: str, name: str, digest: str, size: int, manifest: Manifest) -> None:
        """The file is held against the manifest when it is read: here its name against the manifest."""
        if manifest.files.get(name, File(digest, size)) != File(digest, size):
            self.find(f"{kind}-changed", name, "it is not what its name says")

    # ── receipts ──────────────────────────────────────────────────────────────────────────────

    def _check_receipts(self, manifest: Manifest) -> None:
        receipts = self._report.receipts
        if not receipts.read:
            return
        sizes = {log.id: log.size for log in manifest.logs}
        for id, found in sorted(receipts.logs.items()):
            left_out = id.removeprefix("session:") in manifest.left_out and found.heads[-1].state == "deleted"
            if id not in sizes and not left_out:
                self.find("complete", id, "the register has statements of it, and it is not in the bundle")
        for log in manifest.logs:
            found_here = receipts.logs.get(log.id)
            covered = found_here.covered if found_here is not None else 0
            if covered < log.size:
                self._report.uncovered += log.size - covered
                self.find(
                    "uncovered", log.id, f"the last {log.size - covered} of its entries have no receipt"
                )
            elif covered > log.size:
                self.find("complete", log.id, f"it ends at {log.size}, a statement says {covered}")


class _Stopped(Exception):
    """A log is not read further: its finding was told."""


class _LogWalk:
    """The entries of one log, in their order."""

    def __init__(
        self,
        check: _Check,
        log: LogLine,
        manifest: Manifest,
        seen: LogSeen,
        receipts: LogReceipts | None,
        secret: bytes | None,
    ) -> None:
        self._check, self._log, self._seen, self._secret = check, log, seen, secret
        self._tree = not log.session
        self._tree_id = manifest.tree
        self._withheld = {seq for id, seq in manifest.withheld if id == log.id}
        self._heads: list[Head] = list(receipts.heads) if receipts is not None else []
        self._latest = list(receipts.latest_ms) if receipts is not None else []
        self._at = self._head_at = 0
        self.seq, self.head, self.frontier = 0, GENESIS, Frontier()
        self.chains = bytearray()
        """Chain values since the caller took them."""
        self._compare_heads()

    def take(self, data: bytes) -> None:
        """Takes the next line; raises `_Stopped` where the rest cannot be followed."""
        try:
            line = read_line(data, tree=self._tree)
        except BadForm as error:
            self._find("line", self.seq + 1, str(error))
            raise _Stopped from None
        if line.seq != self.seq + 1:
            self._find("gap", self.seq + 1, f"the next entry that is there is {line.seq}")
            raise _Stopped
        if self._secret is not None and line.chain != next_chain(
            self.head, line.seq, line.epoch, line.digest, self._secret
        ):
            self._find("chain", line.seq, "its chain value does not follow from it and the entry before it")
            self._secret = None
        self.seq, self.head = line.seq, line.chain
        self.frontier.append(leaf(line.seq, line.epoch, line.digest, line.chain))
        self.chains += line.chain
        if self._tree:
            self._check.cause(f"{self._log.id}:{line.seq}", line)
        if line.payload is None:
            self._check.bare(self._log.id, line)
        else:
            self._entry(line, line.payload)
        if self._head_at < len(self._heads):
            self._compare_heads()

    def _find(self, code: str, seq: int, text: str) -> None:
        self._check.find(code, f"{self._log.id}:{seq}", text)

    def _entry(self, line: Line, text: str) -> None:
        try:
            value = orjson.loads(text)
            sound = is_canonical(text.encode(), value)
        except orjson.JSONDecodeError:
            sound = False
        if not sound:
            try:
                value = strict_json(text, floats=True)
            except KeyTwice as error:
                return self._find("key-twice", line.seq, str(error))
            except BadForm as error:
                return self._find("entry", line.seq, str(error))
        if type(value) is not dict:
            return self._find("entry", line.seq, "it is no JSON object")
        if line.seq <= NAMING_ENTRIES and not self._tree:
            self._check_naming(line.seq, value)
        stamp = value.get("timestamp")
        if type(stamp) is str:
            self._seen.first = self._seen.first or stamp
            self._seen.last = stamp
            if self._latest:
                self._check_time(line.seq, stamp)
        self._check.entry(f"{self._log.id}:{line.seq}", self._log, line, value)
        return None

    def _check_naming(self, seq: int, value: Mapping[str, Any]) -> None:
        payload = value.get("payload")
        payload = payload if isinstance(payload, dict) else {}
        named, tree = None, None
        match value.get("type"), payload.get("kind"), payload.get("type"):
            case t, _, _ if t == SESSION_META:
                named = payload.get("id")
            case t, "configured", _ if t == DENDRO:
                session = payload.get("session")
                session = session if isinstance(session, dict) else {}
                named, tree = session.get("session_id"), session.get("tree_id")
            case t, _, "session_configured" if t == EVENT_MSG:
                named = payload.get("session_id")
            case _:
                pass
        if named not in (None, self._log.session):
            self._find(
                "naming", seq, f"it names session {named!r:.100}, whose log stands in the place of this one"
            )
        if tree not in (None, self._tree_id):
            self._find("naming", seq, f"it names tree {tree!r:.100}")

    # ── receipts ──────────────────────────────────────────────────────────────────────────────

    def _compare_heads(self) -> None:
        while self._head_at < len(self._heads) and self._heads[self._head_at].size == self.seq:
            head = self._heads[self._head_at]
            self._head_at += 1
            if (head.root, head.chain) != (self.frontier.root(), self.head):
                self._find(
                    "prefix", self.seq, f"the register's statement {head.index} says another past of this log"
                )

    def _check_time(self, seq: int, stamp: str) -> None:
        while self._at < len(self._latest) and self._latest[self._at][0] < seq:
            self._at += 1
        if self._at == len(self._latest):
            return
        try:
            moment = datetime.fromisoformat(stamp)
        except ValueError:
            return
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        if aware.timestamp() * 1000 > self._latest[self._at][1]:
            self._find("time", seq, "it is dated more than five minutes after a statement that covers it")


class _Chains:
    """The chain values of sessions' entries, by session and number: in memory, and beyond that in a file."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[int, int]] = {}
        self._end = 0

    def __enter__(self) -> _Chains:
        self._file = tempfile.SpooledTemporaryFile(max_size=_CHAINS_HELD)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def of(self, session: str) -> Any:
        """Begins a session; the answer takes its values as they come."""
        begin = self._end
        self._places[session] = (begin, begin)

        def keep(values: bytearray) -> None:
            self._file.seek(self._end)
            self._file.write(values)
            self._end += len(values)
            self._places[session] = (begin, self._end)

        return keep

    def at(self, session: str, seq: int) -> bytes | None:
        """The chain value of an entry; None if there is no such entry. Entry 0 stands for the beginning."""
        begin, end = self._places.get(session, (0, 0))
        place = begin + (seq - 1) * len(GENESIS)
        if seq == 0:
            return GENESIS
        if seq < 0 or place >= end:
            return None
        self._file.seek(place)
        return self._file.read(len(GENESIS))


def _number(value: Any) -> int:
    return value if type(value) is int else -1


def _bytes(value: Any) -> bytes:
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError):
        return b""


def _shown(answer: Mapping[str, Any]) -> object:
    """The digest of what a person had before them."""
    shown = answer.get("shown", "")
    text = str(shown).encode("utf-8", "surrogatepass")
    return shown.get("$blob") if isinstance(shown, dict) else sha256(text).hexdigest()


__all__ = ["BundleReport", "Finding", "LogSeen", "NewerFormat", "Trust", "check_bundle"]
