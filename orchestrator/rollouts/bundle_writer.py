"""The making of a bundle: the logs of a whole tree at one moment, with what their entries name, in a ZIP.

Logs are read once, page by page, and written as they are read; what is kept of an entry is its part of a
Merkle tree's edge. Equal input gives equal bytes, but for the time at which the bundle was made.
"""

from __future__ import annotations

import base64
import re
import zipfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, Literal

import orjson

from orchestrator.broker.records import SessionHead, StoredEntry, TreeEntry
from orchestrator.core.blobs import may_refer
from orchestrator.core.chain import NAMING_ENTRIES, payload_digest
from orchestrator.core.commit_parts import DECIDED
from orchestrator.core.entries import DENDRO, EVENT_MSG, Kind, published_kind, stored_kind, timestamp
from orchestrator.core.facts import Answered, ChildMade, Configured, Forked, Redacted, decode, kind_of
from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.merkle import Frontier
from orchestrator.protocol.events import Error, RequestResolved
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts import bundle_form as form
from orchestrator.rollouts.bundle_members import CHUNK
from orchestrator.rollouts.bundle_receipts import Head, read_statement
from orchestrator.rollouts.log_source import LogSource
from orchestrator.rollouts.register import BadRegister, Register, Signed
from orchestrator.rollouts.signed_notes import Checkpoint, Note, Signer
from orchestrator.rollouts.tree_log import tree_entries

_LEVEL: Final = 1
"""Of deflate: logs shrink to a fifth by it, at five times the speed of the usual level."""
_WRITTEN: Final = 256 << 10
"""Bytes of lines that are written together."""
_NAMING_KINDS: Final[frozenset[Kind]] = frozenset({ChildMade, Forked, Redacted, Configured})
"""Facts that say what the tree is made of, or why something is not there: these are never withheld."""

FetchPack = Callable[[str, int, Path], Awaitable[bool]]
"""Takes a pack's name and length, and a file to write it to; False if the store has not got it whole."""


# ── what is withheld ──────────────────────────────────────────────────────────────────────────────


@record
class Selection:
    """Parts of a tree that the maker of its bundle keeps back."""

    entries: tuple[tuple[str, int, int], ...] = ()
    """Log, first and last number."""
    sessions: frozenset[str] = frozenset()
    """Agents that are left out, with all below them."""
    texts: frozenset[str] = frozenset()
    all_texts: bool = False
    packs: frozenset[str] = frozenset()
    answers: bool = False
    """Whether decisions of people are kept back: who made each, and what they had before them."""

    def has(self, log: str, seq: int) -> bool:
        return any(id == log and first <= seq <= last for id, first, last in self.entries)


_ENTRIES = re.compile(r"(tree|session:[^:]+|[^:]+):([1-9][0-9]{0,17})(?:-([1-9][0-9]{0,17}))?")


def read_selection(words: Iterable[str], tree: str, whole: Callable[[str], str] = lambda id: id) -> Selection:
    """Reads `ID:SEQ`, `ID:SEQ-SEQ`, `tree:SEQ`, `text:SHA256`, `texts`, `pack:SHA256`, `answers`, `ID`.

    `whole` gives the id that a part of one means. Raises `RolloutError`.
    """
    entries: list[tuple[str, int, int]] = []
    texts: set[str] = set()
    packs: set[str] = set()
    sessions: set[str] = set()
    all_texts = answers = False
    for word in words:
        kind, _, rest = word.partition(":")
        if word == "texts":
            all_texts = True
        elif word == "answers":
            answers = True
        elif kind in ("text", "pack") and form.HASH.fullmatch(rest):
            (texts if kind == "text" else packs).add(rest)
        elif match := _ENTRIES.fullmatch(word):
            first, last = int(match[2]), int(match[3] or match[2])
            named = match[1].removeprefix("session:")
            entries.append((f"tree:{tree}" if named == "tree" else f"session:{whole(named)}", first, last))
        elif kind not in ("text", "pack") and ":" not in word and word:
            sessions.add(whole(word))
        else:
            raise RolloutError(
                f"--withhold {word!r} is none of ID:SEQ, ID:SEQ-SEQ, tree:SEQ, text:SHA256, texts, "
                "pack:SHA256, ID, answers"
            )
    if tree in sessions:
        raise RolloutError("the root of a tree cannot be left out of its bundle")
    return Selection(
        tuple(entries), frozenset(sessions), frozenset(texts), all_texts, frozenset(packs), answers
    )


# ── the making ────────────────────────────────────────────────────────────────────────────────────


@record
class WantedReceipts:
    """The register that a bundle gets receipts of."""

    register: Register
    newest: Signed
    whole: bool
    """All of the register, which alone shows that nothing was left out; else the tree's own statements."""
    since: Checkpoint | None = None
    """A checkpoint that the auditor had: the proof that the register goes on from it comes along."""
    stamp: bytes = b""
    """A time stamp of the newest checkpoint's text, as an authority gave it; empty: none."""

    @classmethod
    def of(
        cls,
        register: Register,
        *,
        whole: bool,
        since: Checkpoint | None = None,
        last: Signed | None = None,
    ) -> WantedReceipts:
        """Of the register as it is now, or was at `last`; raises `RolloutError` where it is another one."""
        newest = register.newest()
        if newest is None:
            raise RolloutError("there is no register yet: does a notary run? (`dendro notary run`)")
        point = newest.point
        for other in (since, last.point if last is not None else None):
            if other is not None and (other.origin != point.origin or other.size > point.size):
                raise RolloutError(
                    f"the checkpoint of {other.origin} with {other.size} statements is none of "
                    f"{point.origin}, which has {point.size}"
                )
        newest = last or newest
        return cls(register, newest, whole, since)


@record
class Order:
    """How a bundle is to be made."""

    origin: str
    made_at: str
    by: str
    key_id: str = ""
    """Names the key of the chains, if they have one."""
    packs: Literal["here", "named"] = "named"
    withhold: Selection = Selection()
    signer: Signer | None = None
    fetch_pack: FetchPack | None = None
    spool: Path = Path()
    """A folder of this user's for a pack on its way."""
    receipts: WantedReceipts | None = None


@dataclass(slots=True)
class Made:
    """A bundle that was written, in numbers."""

    manifest: form.Manifest
    sha256: str = ""
    """Of the manifest, which the note signs."""
    entries: int = 0
    absent_texts: int = 0
    """Texts that are not stored any more: they are declared as withheld."""
    absent_packs: int = 0
    behind: int = 0
    """Entries that are not in it because nothing was stated about them yet."""
    disputed: tuple[str, ...] = ()
    """Logs that are not as they were stated: who checks the bundle finds that."""


async def write_bundle(found: LogSource, tree: TreeId, out: BinaryIO, order: Order) -> Made:
    """Writes the bundle of a tree; raises `RolloutError` if a log is not all there."""
    tree_seq, heads = await found.broker.trees.heads_at_once(tree)
    stated = _Stated.of(tree, order.receipts) if order.receipts is not None else None
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        return await _Writer(found, tree, archive, order, heads, stated).run(tree_seq)


class _Stated:
    """The statements about the logs of a tree, up to a register's newest checkpoint."""

    def __init__(self, wanted: WantedReceipts, heads: Sequence[Head]) -> None:
        self.wanted, self.heads = wanted, heads
        self.last = {head.log: head for head in heads}

    @classmethod
    def of(cls, tree: TreeId, wanted: WantedReceipts) -> _Stated:
        """Reads the register once; raises `RolloutError` where it says nothing of the tree."""
        try:
            texts = enumerate(wanted.register.statements(wanted.newest.point.size))
            own = [read_statement(n, text) for n, text in texts if text.split("\n", 3)[2:3] == [str(tree)]]
        except (BadRegister, form.BadForm) as error:
            raise RolloutError(f"the register {wanted.newest.point.origin} is damaged: {error}") from None
        if not own:
            raise RolloutError(
                f"{wanted.newest.point.origin} has no statement about it yet: try again in a minute"
            )
        return cls(wanted, own)

    def size_of(self, log: str) -> int:
        """The last entry of a log that was stated, of all logs at one moment; 0 of one that was deleted."""
        last = self.last.get(log)
        return last.size if last is not None and last.state != "deleted" else 0

    def disputes(self, log: form.LogLine) -> bool:
        last = self.last.get(log.id)
        return last is None or (last.size, last.root, last.chain) != (log.size, log.root, log.head)

    def files(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """The members of the bundle; raises `BadRegister`."""
        wanted = self.wanted
        size = wanted.newest.point.size
        yield form.REGISTER, self._lines(size)
        yield f"receipts/{size}.note", iter((wanted.newest.note.encode(),))
        if wanted.stamp:
            yield f"receipts/{size}.tsr", iter((wanted.stamp,))
        if wanted.since is not None and wanted.since.size < size:
            proof = {
                "from": wanted.since.size,
                "to": size,
                "p": _encoded(wanted.register.consistency(size, wanted.since.size)),
            }
            yield form.CONSISTENCY, iter((orjson.dumps([proof]) + b"\n",))

    def _lines(self, size: int) -> Iterator[bytes]:
        register = self.wanted.register
        if self.wanted.whole:
            for n, text in enumerate(register.statements(size)):
                yield orjson.dumps({"i": n, "t": text}) + b"\n"
            return
        for head in self.heads:
            proof = _encoded(register.inclusion(size, head.index))
            yield orjson.dumps({"i": head.index, "n": size, "t": head.text, "p": proof}) + b"\n"


def _encoded(proof: Iterable[bytes]) -> list[str]:
    return [base64.b64encode(one).decode() for one in proof]


@dataclass(slots=True)
class _Log:
    """A log on its way into the bundle."""

    id: str
    frontier: Frontier = field(default_factory=Frontier)
    head: bytes = form.EMPTY_HEAD

    def line(self, line: form.Line) -> bytes:
        self.frontier.append(form.leaf(line.seq, line.epoch, line.digest, line.chain))
        self.head = line.chain
        return line.encode()

    def told(self, key_id: str) -> form.LogLine:
        return form.LogLine(self.id, self.frontier.size, self.frontier.root(), self.head, key_id)


class _Member:
    """A member on its way into the ZIP, hashed as it is written."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target, self._hash, self._bytes = target, sha256(), 0
        self._waiting: list[bytes] = []
        self._held = 0

    def write(self, data: bytes) -> None:
        self._waiting.append(data)
        self._held += len(data)
        if self._held >= _WRITTEN:
            self.flush()

    def flush(self) -> None:
        data = b"".join(self._waiting)
        self._target.write(data)
        self._hash.update(data)
        self._bytes += len(data)
        self._waiting.clear()
        self._held = 0

    def file(self) -> form.File:
        self.flush()
        return form.File(self._hash.hexdigest(), self._bytes)


class _Writer:
    def __init__(
        self,
        found: LogSource,
        tree: TreeId,
        archive: zipfile.ZipFile,
        order: Order,
        heads: Sequence[SessionHead],
        stated: _Stated | None = None,
    ) -> None:
        self._found, self._tree, self._archive, self._order = found, tree, archive, order
        self._stated, self._behind, self._disputed = stated, 0, list[str]()
        self._heads = [
            head
            for head in _kept(heads, order.withhold.sessions)
            if self._end(f"session:{head.session}", head.seq)
        ]
        self._files: dict[str, form.File] = {}
        self._logs: list[form.LogLine] = []
        self._named: set[str] = set()
        """Sessions that an entry names."""
        self._withheld: list[tuple[str, int]] = []
        self._gone: list[int] = []
        """Redacted entries of the log that is written."""
        self._redacted: set[int] = set()
        """Entries that its facts say were redacted."""
        self._texts: dict[str, int] = {}
        self._packs: dict[str, tuple[str, int]] = {}
        self._inherited: list[Any] = []

    async def run(self, tree_seq: int) -> Made:
        order = self._order
        for head in self._heads:
            await self._session(head)
        await self._tree_log(tree_seq)
        await self._read_inherited()
        self._require_selected()
        texts, absent = await self._write_texts()
        packs, absent_packs = await self._write_packs()
        self._write_receipts()
        kept = {str(head.session) for head in self._heads}
        manifest = form.Manifest(
            origin=order.origin,
            made_at=order.made_at,
            by=order.by,
            tree=str(self._tree),
            logs=tuple(self._logs),
            left_out=tuple(sorted(self._named - kept)),
            withheld=tuple(self._withheld),
            texts=texts,
            packs=packs,
            files=self._files,
        )
        data = manifest.encode()
        self._write(form.MANIFEST, data)
        text = form.note_text(order.origin, data)
        note = order.signer.signed(text) if order.signer is not None else Note(text, ())
        self._write(form.NOTE, note.encode())
        entries = sum(log.size for log in self._logs)
        digest, disputed = sha256(data).hexdigest(), tuple(self._disputed)
        return Made(manifest, digest, entries, absent, absent_packs, self._behind, disputed)

    def _write(self, name: str, data: bytes) -> None:
        with self._archive.open(name, "w") as target:
            target.write(data)

    # ── logs ──────────────────────────────────────────────────────────────────────────────────

    async def _session(self, head: SessionHead) -> None:
        log, name = _Log(f"session:{head.session}"), form.log_member(f"session:{head.session}")
        end = self._end(log.id, head.seq)
        self._behind += head.seq - end
        self._gone, self._redacted = [], set()
        with self._archive.open(name, "w", force_zip64=True) as target:
            member = _Member(target)
            async for entry in self._found.log(head.session, end):
                member.write(log.line(self._entry(log.id, entry)))
            self._files[name] = member.file()
        # What was redacted since has its fact behind the end: of that the bundle cannot say more.
        self._withheld += [(log.id, seq) for seq in self._gone if seq not in self._redacted]
        if log.frontier.size < end:
            raise RolloutError(
                f"entry {log.frontier.size + 1} of session {head.session} is missing; "
                "`dendro verify` tells more"
            )
        if log.head != head.head and end == head.seq:
            raise RolloutError(
                f"session {head.session} is said to have another head than its last entry; "
                "`dendro verify` tells more"
            )
        self._told_of(log.told(self._order.key_id))

    def _end(self, log: str, last: int) -> int:
        """The last entry of a log that comes into the bundle: that of its last statement, or its last one."""
        return last if self._stated is None else min(last, self._stated.size_of(log))

    def _told_of(self, log: form.LogLine) -> None:
        self._logs.append(log)
        if self._stated is not None and log.size and self._stated.disputes(log):
            self._disputed.append(log.id)

    def _write_receipts(self) -> None:
        if self._stated is None:
            return
        try:
            for name, parts in self._stated.files():
                with self._archive.open(name, "w", force_zip64=True) as target:
                    member = _Member(target)
                    for part in parts:
                        member.write(part)
                    self._files[name] = member.file()
        except BadRegister as error:
            raise RolloutError(f"the register is damaged: {error}") from None

    def _entry(self, log: str, entry: StoredEntry) -> form.Line:
        if entry.digest:
            if self._order.withhold.entries and self._order.withhold.has(log, entry.seq):
                raise RolloutError(f"entry {entry.seq} of {log} was redacted: there is nothing to withhold")
            self._gone.append(entry.seq)
            return form.Line(entry.seq, entry.epoch, entry.chain, entry.digest, None, b"")
        digest = entry.covered
        try:
            text: str | None = entry.payload.decode()
        except UnicodeDecodeError:
            raise RolloutError(f"entry {entry.seq} of {log} is damaged; `dendro verify` tells more") from None
        wish = self._order.withhold
        answered = wish.answers and _names_decider(stored_kind(entry.payload), entry.payload)
        if answered or (wish.entries and wish.has(log, entry.seq)):
            self._require_free(log, entry)
            self._withheld.append((log, entry.seq))
            text = None
        elif _tells(entry.payload):
            self._note(entry.payload)
        return form.Line(entry.seq, entry.epoch, entry.chain, digest, text, entry.salt)

    def _require_free(self, log: str, entry: StoredEntry) -> None:
        if entry.seq <= NAMING_ENTRIES or stored_kind(entry.payload) in _NAMING_KINDS:
            raise RolloutError(
                f"entry {entry.seq} of {log} cannot be withheld: without it nobody could see whose log it is,"
                " or what the tree is made of"
            )

    def _note(self, payload: bytes) -> None:
        """Keeps what an entry names."""
        value = orjson.loads(payload)
        self._texts.update(form.texts_named(value))
        told = value["payload"]
        if value["type"] != DENDRO:
            return
        for pack in form.packs_named(told):
            self._packs.setdefault(pack["sha256"], (str(pack["name"]), pack["bytes"]))
        if kind_of(told) is ChildMade:
            self._named.add(str(form.child_of(told)["session"]))
        elif kind_of(told) is Redacted:
            self._redacted.add(told["seq"])
        elif isinstance(stated := decode(told) if kind_of(told) is Forked else None, Forked):
            self._inherited.append(stated.content)

    async def _tree_log(self, last: int) -> None:
        log, name = _Log(f"tree:{self._tree}"), form.log_member(f"tree:{self._tree}")
        end = self._end(log.id, last)
        self._behind += last - end
        with self._archive.open(name, "w", force_zip64=True) as target:
            member = _Member(target)
            async for entry in tree_entries(self._found.broker.logs, self._tree):
                if entry.tree_seq > end:
                    break
                member.write(log.line(self._told(log.id, entry)))
            self._files[name] = member.file()
        if log.frontier.size < end:
            raise RolloutError(
                f"entry {log.frontier.size + 1} of the tree's log is missing; see `dendro verify`"
            )
        self._told_of(log.told(""))

    def _told(self, log: str, entry: TreeEntry) -> form.Line:
        payload = tree_payload(entry)
        digest = payload_digest(entry.salt, payload)
        text: str | None = payload.decode()
        wish = self._order.withhold
        answered = wish.answers and _names_decider(published_kind(entry.payload), entry.payload)
        if answered or wish.has(log, entry.tree_seq):
            self._withheld.append((log, entry.tree_seq))
            text = None
        elif may_refer(payload):
            self._texts.update(form.texts_named(orjson.loads(payload)))
        self._named.add(str(entry.session))
        return form.Line(entry.tree_seq, entry.seq, entry.head, digest, text, entry.salt, str(entry.session))

    # ── texts and packs ───────────────────────────────────────────────────────────────────────

    async def _read_inherited(self) -> None:
        """The texts that inherited conversations name, and those in what these had inherited themselves."""
        waiting, seen = self._inherited, set[str]()
        while waiting:
            content = waiting.pop()
            if isinstance(content, dict):
                digest = str(content.get("$blob"))
                if digest in seen or self._keeps_back(digest):
                    continue
                seen.add(digest)
                found = await self._found.large_texts(self._tree, [digest])
                content = found.get(digest)
            if isinstance(content, str):
                named, inside = form.conversation(content)
                self._texts.update(named)
                waiting += inside

    def _keeps_back(self, digest: str) -> bool:
        return self._order.withhold.all_texts or digest in self._order.withhold.texts

    def _require_selected(self) -> None:
        """Raises `RolloutError` for a wish that nothing answers: something else was to be withheld."""
        wish = self._order.withhold
        ids = {log.id: log.size for log in self._logs}
        for log, first, last in wish.entries:
            if last > ids.get(log, 0) or last < first:
                raise RolloutError(f"{log} has no entries {first} to {last}, which were to be withheld")
        for kind, wanted, named in (("text", wish.texts, self._texts), ("pack", wish.packs, self._packs)):
            if unknown := sorted(wanted - named.keys()):
                raise RolloutError(f"no entry names the {kind} {unknown[0]}, which was to be withheld")
        if unknown := sorted(wish.sessions - self._named):
            raise RolloutError(f"no session {unknown[0]} is in the tree, which was to be left out")

    async def _write_texts(self) -> tuple[dict[str, form.Stated], int]:
        told, absent = {}, 0
        for digest, size in sorted(self._texts.items()):
            if self._keeps_back(digest):
                told[digest] = form.Stated(size, "withheld")
                continue
            text = (await self._found.large_texts(self._tree, [digest])).get(digest)
            if text is None:
                absent += 1
                told[digest] = form.Stated(size, "withheld")
                continue
            content = text.encode("utf-8", "surrogatepass")
            self._write(f"texts/{digest}", content)
            self._files[f"texts/{digest}"] = form.File(sha256(content).hexdigest(), len(content))
            told[digest] = form.Stated(len(content), "here")
        return told, absent

    async def _write_packs(self) -> tuple[dict[str, form.Stated], int]:
        told, absent, order = {}, 0, self._order
        for digest, (name, size) in sorted(self._packs.items()):
            state = "named"
            if digest in order.withhold.packs:
                state = "withheld"
            elif order.packs == "here" and order.fetch_pack is not None:
                spool = order.spool / "pack"
                if await order.fetch_pack(name, size, spool):
                    state = "here"
                    self._write_pack(f"packs/{digest}.pack", spool)
                else:
                    absent += 1
            told[digest] = form.Stated(size, state)
        return told, absent

    def _write_pack(self, name: str, source: Path) -> None:
        info = zipfile.ZipInfo(name)
        # Packs are compressed already.
        info.compress_type, info.external_attr = zipfile.ZIP_STORED, 0o600 << 16
        with source.open("rb") as content, self._archive.open(info, "w", force_zip64=True) as target:
            member = _Member(target)
            while chunk := content.read(CHUNK):
                member.write(chunk)
            self._files[name] = member.file()


def _kept(heads: Sequence[SessionHead], left_out: frozenset[str]) -> list[SessionHead]:
    """The sessions that come into the bundle, by their ids: none that is left out, or is below one."""
    gone = {SessionId(id) for id in left_out}
    more = True
    while more:
        below = {head.session for head in heads if head.parent in gone} - gone
        gone |= below
        more = bool(below)
    return sorted((head for head in heads if head.session not in gone), key=lambda head: str(head.session))


def _tells(payload: bytes) -> bool:
    """Whether an entry may name a text, a pack, a session, or an entry that was redacted."""
    # Packs are told by a field of theirs, as docs/protocol/bundle.md has it.
    kinds = (ChildMade, Forked, Redacted)
    return may_refer(payload) or b'"sha256"' in payload or stored_kind(payload) in kinds


def _names_decider(kind: Kind, payload: bytes) -> bool:
    """Whether an entry says how a request was decided, and by whom: the answer, and what is told of it."""
    return kind in (Answered, RequestResolved) or (kind is Error and DECIDED.encode() in payload)


def tree_payload(entry: TreeEntry) -> bytes:
    """An entry of a tree's log in a bundle: its event as a rollout line has it, and what stands beside it."""
    told = orjson.loads(entry.payload)
    value: dict[str, Any] = {"timestamp": timestamp(entry.at_ms), "type": EVENT_MSG, "payload": told["msg"]}
    if told.get("id"):
        value["id"] = told["id"]
    if entry.about:
        value["about"] = orjson.loads(entry.about)
    if entry.depths:
        value["depths"] = [[depth.session, depth.regular, depth.interrupts] for depth in entry.depths]
    return orjson.dumps(value)
